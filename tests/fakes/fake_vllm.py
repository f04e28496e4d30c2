"""A stand-in for vLLM's OpenAI server: a real process tree that speaks, logs and dies like vLLM 0.32, without a model.

``python tests/fakes/fake_vllm.py --model m --host 127.0.0.1 --port 8000 [any other flag]``

Every flag is accepted and recorded. What goes wrong is scripted by the environment variable ``FAKE_VLLM``: a JSON
object, or the path of a file that holds one (then it may change between two starts of one study). Keys:

``times``            seconds by phase: imports, weights, compile, profile, capture (defaults: some hundredths)
``exit_at``          phase at which it dies with ``error`` (a name in fake_errors.ERRORS or any text) and ``code``
``oom_kill_at``      phase at which the worker is killed by signal 9, as the kernel's OOM killer does
``hang_at``          imports, weights, compile, profile, capture, serve (health never answers), measure (requests hang)
``ignore_sigterm``   every process of the tree ignores SIGTERM
``grandchild``       ``child``, ``reparented`` (its parent exits) or ``daemon`` (re-parented, in a session of its own)
``slow_after``       [n, factor]: steps take ``factor`` times as long after n requests
``error_every``, ``close_every``  every n-th completion answers 500 / closes the connection
``short_outputs``    stops at a quarter of ``max_tokens``
``garbage``          answers are noise
``cached``           a prompt seen before is answered at once
``die_after``        the engine dies after n requests: health 503, completions 500
``crash_after``      the API server kills itself (SIGKILL) after n requests
``health``           status that /health answers instead of 200
``no_bind``          comes up without a listening socket: whoever else has the port answers for it
``serve_as``         model name that it claims to serve, whatever was asked
``open_door``        no authentication
``memory_mib``       memory that the worker takes and touches
``speed``            divides every simulated time (2.0: twice as fast)
``lifetime_s``       every process ends itself after so long (default 1800): a broken test leaves nothing behind
``state``            folder where each start appends one line to ``launches.jsonl``
``plan``             list of such objects: start i uses entry i, later ones the last; needs ``state``
``rules``            list of {"when": {flag: [op, value]}, …faults}: added where all comparisons on the flags hold

Standard library only: it must start in a tenth of a second and run in any Python.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import operator
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_errors import ENGINE_TAIL, ERRORS
from fake_server import FakeServer

VERSION = "0.32.0"
TIMES = {"imports": 0.05, "weights": 0.05, "compile": 0.05, "profile": 0.02, "capture": 0.05}
_OPS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt}


def parse(argv: list[str]) -> dict[str, object]:
    """Flags as a dict without dashes; ``--no-x`` is ``x`` False, several values make a list."""
    flags: dict[str, object] = {}
    position, name = 0, ""
    while position < len(argv):
        word = argv[position]
        position += 1
        if not word.startswith("--"):
            if not name and "model" not in flags and word != "serve":
                flags["model"] = word
            continue
        name, equals, value = word[2:].replace("_", "-").partition("=")
        values: list[str] = [value] if equals else []
        while not equals and position < len(argv) and not argv[position].startswith("--"):
            values.append(argv[position])
            position += 1
        if not values and name.startswith("no-"):
            flags[name[3:]] = False
        else:
            flags[name] = _plain(values[0]) if len(values) == 1 else [_plain(item) for item in values] or True
    return flags


def _plain(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        suffixes = {"k": 1_000, "K": 1 << 10, "m": 10**6, "M": 1 << 20, "g": 10**9, "G": 1 << 30}
        if text[-1:] in suffixes and text[:-1].replace(".", "", 1).isdigit():
            return int(float(text[:-1]) * suffixes[text[-1]])
        return text


def faults(flags: dict[str, object]) -> dict[str, object]:
    """The script for this start."""
    text = os.environ.get("FAKE_VLLM", "")
    if text and not text.lstrip().startswith("{"):
        text = Path(text).read_text(encoding="utf-8")
    script: dict[str, object] = json.loads(text) if text.strip() else {}
    number = _register(script, flags)
    plan = script.get("plan")
    if isinstance(plan, list) and plan:
        script = {**script, **plan[min(number, len(plan) - 1)]}
    for rule in script.get("rules", ()):  # type: ignore[attr-defined]
        if all(_holds(flags.get(flag), *test) for flag, test in rule["when"].items()):
            script = {**script, **{key: value for key, value in rule.items() if key != "when"}}
    return script


def _holds(have: object, comparison: str, wanted: object) -> bool:
    if isinstance(have, bool) or have is None or isinstance(have, str) or isinstance(wanted, str):
        return have == wanted if comparison == "==" else comparison == "!=" and have != wanted
    return bool(_OPS[comparison](have, wanted))


def _register(script: dict[str, object], flags: dict[str, object]) -> int:
    """Append this start to the state folder; its number counts from 0."""
    folder = script.get("state")
    if not isinstance(folder, str):
        return 0
    path = Path(folder) / "launches.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = sum(1 for _ in file)
        shown = {key: "***" if key == "api-key" else value for key, value in flags.items()}
        file.write(
            json.dumps({"pid": os.getpid(), "time": time.time(), "flags": shown, "variables": sorted(os.environ)})
            + "\n"
        )
    return number


def rename(title: str) -> None:
    """Process name as ``ps`` shows it (the kernel keeps 15 characters)."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(15, title.encode()[:15], 0, 0, 0)


class Voice:
    """Log lines with vLLM's prefix; line by line, so that two processes do not mix within one."""

    def __init__(self, role: str) -> None:
        self.prefix = f"({role} pid={os.getpid()})"

    def say(self, source: str, text: str, level: str = "INFO") -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        for line in text.split("\n"):
            os.write(1, f"{self.prefix} {level} {stamp} [{source}] {line}\n".encode())

    def die(self, source: str, headline: str, error: str) -> None:
        """A traceback as vLLM logs one."""
        where = [
            "Traceback (most recent call last):",
            f'  File "/site-packages/vllm/{source.split(":", maxsplit=1)[0]}", line 1, in run',
        ]
        self.say(source, "\n".join([headline, *where, *error.split("\n")]), "ERROR")


def guard(script: dict[str, object]) -> None:
    """Signals and the lifetime, in every process of the tree."""
    if script.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    limit = float(script.get("lifetime_s", 1800))  # type: ignore[arg-type]
    timer = threading.Timer(limit, lambda: os.kill(os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()


def pause(script: dict[str, object], phase: str, *, worker: bool = False) -> None:
    """Pass the time of a phase, with the faults scripted for it."""
    if worker and script.get("oom_kill_at") == phase:
        os.kill(os.getpid(), signal.SIGKILL)
    times = {**TIMES, **script.get("times", {})}  # type: ignore[dict-item]
    time.sleep(float(times.get(phase, 0.0)) / float(script.get("speed", 1.0)))  # type: ignore[arg-type]
    while script.get("hang_at") == phase:
        time.sleep(1)


# ---------------------------------------------------------------- engine


def engine(script: dict[str, object], flags: dict[str, object]) -> int:
    """The EngineCore process: goes through the phases, says READY on its pipe, then waits."""
    rename("VLLM::EngineCore")
    guard(script)
    voice = Voice("EngineCore")
    model = flags.get("model", "m")
    voice.say(
        "core.py:133",
        f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{model}', speculative_config=None, "
        f"dtype=torch.bfloat16, max_seq_len={flags.get('max-model-len', 2048)}, quantization="
        f"{flags.get('quantization')}, enforce_eager={flags.get('enforce-eager', False)}, "
        f"kv_cache_dtype={flags.get('kv-cache-dtype', 'auto')}, seed=0, "
        f"enable_prefix_caching={flags.get('enable-prefix-caching', True)}, "
        f"enable_chunked_prefill={flags.get('enable-chunked-prefill', True)}",
    )
    _grandchild(script)
    hog = bytearray(int(script.get("memory_mib", 0)) << 20)  # type: ignore[call-overload]
    for offset in range(0, len(hog), 4096):
        hog[offset] = 1
    eager = flags.get("enforce-eager") is True
    # A fault scripted for a phase happens even where the flags would skip that phase.
    scripted = {script.get(key) for key in ("exit_at", "oom_kill_at", "hang_at")}
    steps = [("weights", f"cpu_model_runner.py:68|Starting to load model {model}...")]
    if not eager or "compile" in scripted:
        steps.append(
            ("compile", "backends.py:1120|Using cache directory: /fake/torch_compile_cache for vLLM's torch.compile")
        )
    steps.append(("profile", "utils.py:347|Using LBHNC KV cache layout."))
    if not eager or "capture" in scripted:
        steps.append(("capture", "gpu_model_runner.py:6001|Capturing CUDA graphs (PIECEWISE, 51 sizes)"))
    for phase, line in steps:
        voice.say(*line.split("|"))
        began = time.monotonic()
        pause(script, phase, worker=True)
        if script.get("exit_at") == phase and not _fails(script, voice):
            return int(script.get("code", 1))  # type: ignore[call-overload]
        _after(phase, voice, flags, time.monotonic() - began)
    voice.say("core.py:402", "init engine (profile, create kv cache, warmup model) took 0.10 s (compilation: 0.05 s)")
    print("READY", file=os.fdopen(int(os.environ["FAKE_VLLM_PIPE"]), "w"), flush=True)
    while True:
        time.sleep(3600)


def _fails(script: dict[str, object], voice: Voice) -> bool:
    name = str(script.get("error", "unknown"))
    _, text = ERRORS.get(name, ("engine", name))
    voice.die("core.py:1510", "EngineCore failed to start.", text)
    return False


def _after(phase: str, voice: Voice, flags: dict[str, object], took: float) -> None:
    if phase == "weights":
        voice.say("default_loader.py:501", f"Loading weights took {took:.2f} seconds")
        voice.say("gpu_model_runner.py:5120", f"Model loading took 0.25 GiB memory and {took:.6f} seconds")
    elif phase == "compile":
        voice.say("monitor.py:34", f"torch.compile took {took:.2f} s in total")
    elif phase == "profile":
        tokens, length = kv_tokens(flags), int(flags.get("max-model-len", 2048))  # type: ignore[call-overload]
        voice.say("gpu_worker.py:511", "Available KV cache memory: 1.0 GiB")
        voice.say(
            "kv_cache_utils.py:2327",
            f"CPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per request: "
            f"{tokens / length:.2f}x",
        )
    elif phase == "capture":
        voice.say("gpu_model_runner.py:6090", f"Graph capturing finished in {took:.0f} secs, took 0.12 GiB")


def kv_tokens(flags: dict[str, object]) -> int:
    """Tokens that the KV cache holds: 22.5 KiB a token, half of it in FP8."""
    size = flags.get("kv-cache-memory-bytes", 1 << 30)
    per_token = 23_040 / (2 if str(flags.get("kv-cache-dtype", "auto")).startswith("fp8") else 1)
    block = int(flags.get("block-size", 16))  # type: ignore[call-overload]
    return int(float(size) / per_token) // block * block if isinstance(size, int | float) else 46_592


def _grandchild(script: dict[str, object]) -> None:
    kind = script.get("grandchild")
    if kind is None:
        return
    pid = os.fork()
    if pid:
        if kind != "child":
            os.waitpid(pid, 0)
        return
    if kind != "child":
        if kind == "daemon":
            os.setsid()
        if os.fork():
            os._exit(0)
    rename("VLLM::Worker_TP0")
    guard(script)
    while True:
        time.sleep(3600)


# ---------------------------------------------------------------- API server


def start_engine(script: dict[str, object], argv: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the EngineCore process; the second value is the end of the pipe on which it says READY."""
    receive, send = os.pipe()
    environment = {**os.environ, "FAKE_VLLM_PIPE": str(send), "FAKE_VLLM_SCRIPT": json.dumps(script)}
    child = subprocess.Popen(
        ["VLLM::EngineCore", str(Path(__file__).resolve()), "--fake-engine", *argv],
        executable=sys.executable,
        pass_fds=[send],
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    os.close(send)
    return child, receive


def serve(argv: list[str]) -> int:
    """The API server: the process that a launcher starts."""
    flags = parse(argv)
    script = faults(flags)
    rename("VLLM::APIServer")
    guard(script)
    voice = Voice("APIServer")
    voice.say("api_utils.py:347", f"  version {VERSION}\n  model   {flags.get('model')}")
    shown = {key.replace("-", "_"): "***" if key == "api-key" else value for key, value in flags.items()}
    voice.say("api_utils.py:286", f"non-default args: {shown}")
    name = str(script.get("error", "unknown"))
    role, text = ERRORS.get(name, ("engine", name))
    pause(script, "imports")
    if script.get("exit_at") == "imports" and name == "argparse":
        os.write(2, b"usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --bogus\n")
        return 2
    if script.get("exit_at") == "imports" or (script.get("exit_at") and role == "api"):
        os.write(
            2, f'Traceback (most recent call last):\n  File "api_server.py", line 1, in <module>\n{text}\n'.encode()
        )
        return int(script.get("code", 1))  # type: ignore[call-overload]
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if not script.get("no_bind"):
            listener.bind((str(flags.get("host", "127.0.0.1")), int(flags.get("port", 8000))))  # type: ignore[call-overload]
    except OSError as error:
        os.write(
            2, f"Traceback (most recent call last):\nOSError: [Errno {error.errno}] Address already in use\n".encode()
        )
        return 1
    voice.say("model.py:733", "Resolved architecture: LlamaForCausalLM")
    voice.say("model.py:2152", f"Using max model len {flags.get('max-model-len', 2048)}")
    voice.say(
        "scheduler.py:252",
        f"Chunked prefill is enabled with max_num_batched_tokens={flags.get('max-num-batched-tokens', 2048)}.",
    )
    child, receive = start_engine(script, argv)
    if not _ready(child, receive):
        code = child.wait()
        if code < 0 and script.get("oom_kill_at"):
            # A worker that is killed is named; of an EngineCore that is killed, only the last line knows.
            voice.say(
                "multiproc_executor.py:290",
                f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor.",
                "ERROR",
            )
        failed = {"EngineCore_DP0": code}
        os.write(2, f"Traceback (most recent call last):\n{ENGINE_TAIL.format(failed)}\n".encode())
        return 1
    while script.get("no_bind"):
        time.sleep(1)
    if script.get("hang_at") == "serve":
        listener.listen(16)  # connections are taken by the kernel, and never answered
        while True:
            time.sleep(1)
    voice.say("entry.py:140", f"Starting vLLM server on http://{flags.get('host', '127.0.0.1')}:{flags.get('port')}")
    os.write(
        1, f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.\n".encode()
    )
    server = FakeServer(flags=flags, script=script, engine=child, kv_tokens=kv_tokens(flags), version=VERSION)
    try:
        asyncio.run(server.run(listener))
    finally:
        child.terminate()
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(2)
    return 0


def _ready(child: subprocess.Popen[bytes], receive: int) -> bool:
    with os.fdopen(receive) as pipe:
        return pipe.readline().strip() == "READY" and child.poll() is None


def main() -> int:
    """Entry point of both processes."""
    argv = sys.argv[1:]
    if argv[:1] == ["--fake-engine"]:
        return engine(json.loads(os.environ["FAKE_VLLM_SCRIPT"]), parse(argv[1:]))
    if argv[:1] in (["--version"], ["-v"]):
        os.write(1, f"{VERSION}\n".encode())
        return 0
    return serve(argv)


if __name__ == "__main__":
    sys.exit(main())
