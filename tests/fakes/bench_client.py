"""A fake vLLM process with a benchmark client in this process: vLLM's own takes 13 s to import."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from tuner.model.measurement import ServerReport
from tuner.model.outcome import Blame, Failure
from tuner.ports import MeasurementFailed

FAKE = Path(__file__).with_name("fake_vllm.py")
KEY = "a-key-for-tests"


def flag(argv: Sequence[str], name: str, default: str = "") -> str:
    return argv[argv.index(name) + 1] if name in argv else default


async def _request(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One streamed completion, timed as vLLM's client does."""
    start = time.perf_counter()
    out: dict[str, Any] = {"start": start, "ttft": 0.0, "itl": [], "text": "", "tokens": 0, "input": 0, "error": ""}
    last = start
    try:
        async with client.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                return {**out, "error": response.reason_phrase}
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                data = json.loads(line[6:])
                now = time.perf_counter()
                if data.get("choices"):
                    if out["ttft"]:
                        out["itl"].append(now - last)
                    else:
                        out["ttft"] = now - start
                    last = now
                    choice = data["choices"][0]
                    out["text"] += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                elif data.get("usage"):
                    out["tokens"] = data["usage"]["completion_tokens"]
                    out["input"] = data["usage"]["prompt_tokens"]
    except httpx.HTTPError as error:
        out["error"] = f"Traceback\n{type(error).__name__}: {error}"
    return {**out, "latency": last - start}


def spread_of(name: str, values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(1000 * value for value in values) or [0.0]
    pick = {f"p{q}_{name}_ms": ordered[min(len(ordered) - 1, len(ordered) * q // 100)] for q in (50, 90, 99)}
    return {f"mean_{name}_ms": statistics.fmean(ordered), **pick}


def _rows(argv: Sequence[str]) -> list[dict[str, Any]]:
    """Prompts and output lengths of the data set that the flags name."""
    if flag(argv, "--dataset-name") == "custom":
        lines = Path(flag(argv, "--dataset-path")).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    number, seed = int(flag(argv, "--num-prompts")), flag(argv, "--seed")
    words = " w" * int(flag(argv, "--random-input-len", "8"))
    length = int(flag(argv, "--random-output-len", "8"))
    return [{"prompt": f"{seed} {index}{words}", "output_tokens": length} for index in range(number)]


async def _bench(argv: Sequence[str], stop: threading.Event) -> dict[str, Any]:
    rows = _rows(argv)
    seats = asyncio.Semaphore(int(flag(argv, "--max-concurrency", "100000")))
    extra = json.loads(flag(argv, "--extra-body", "{}"))
    limits = httpx.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(
        base_url=flag(argv, "--base-url"), headers=headers, timeout=httpx.Timeout(None), limits=limits, trust_env=False
    ) as client:

        async def one(row: dict[str, Any]) -> dict[str, Any]:
            async with seats:
                body = {
                    "model": flag(argv, "--model"),
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "ignore_eos": "--ignore-eos" in argv,
                    **extra,
                }
                content = [{"type": "text", "text": row["prompt"]}]
                if flag(argv, "--backend") == "openai-chat":
                    body |= {"messages": [{"role": "user", "content": content}]}
                    body |= {"max_completion_tokens": row["output_tokens"]}
                else:
                    body |= {"prompt": row["prompt"], "max_tokens": row["output_tokens"]}
                return await _request(client, flag(argv, "--endpoint"), body)

        begin = time.perf_counter()
        work = asyncio.gather(*(one(row) for row in rows))
        while not work.done():
            await asyncio.wait([work], timeout=0.05)
            if stop.is_set():
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work
                return {}
        duration = time.perf_counter() - begin
    done = [item for item in work.result() if not item["error"]]
    total = sum(item["tokens"] for item in done)
    inputs = sum(item["input"] for item in done)
    gaps = [gap for item in done for gap in item["itl"]]
    paces = [statistics.fmean(item["itl"]) for item in done if item["itl"]]
    everything = work.result()
    return {
        "completed": len(done),
        "failed": len(everything) - len(done),
        "duration": duration,
        "total_input_tokens": inputs,
        "total_output_tokens": total,
        "request_throughput": len(done) / duration,
        "request_goodput": len(done) / duration if "--goodput" in argv else None,
        "output_throughput": total / duration,
        "total_token_throughput": (total + inputs) / duration,
        **spread_of("ttft", [item["ttft"] for item in done]),
        **spread_of("tpot", paces),
        **spread_of("itl", gaps),
        **spread_of("e2el", [item["latency"] for item in done]),
        "input_lens": [item["input"] for item in everything],
        "output_lens": [item["tokens"] for item in everything],
        "ttfts": [item["ttft"] for item in everything],
        "itls": [item["itl"] for item in everything],
        "start_times": [item["start"] for item in everything],
        "generated_texts": [item["text"] for item in everything],
        "errors": [item["error"] for item in everything],
    }


class FakeHandle:
    """Implements ``tuner.ports.Server`` for a fake vLLM process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.base_url, self.api_key, self.model_name = process, f"http://127.0.0.1:{port}", KEY, "m"
        self.report = ServerReport(log_path=str(log))
        self.runs: list[list[str]] = []
        self.on_run: Callable[[int], None] = lambda number: None

    def failure(self) -> Failure | None:
        dead = self.process.poll() is not None
        if not dead:
            with suppress(httpx.HTTPError):
                dead = httpx.get(self.base_url + "/health", trust_env=False).status_code == 503
        if dead:
            return Failure(kind="server-died", cause="the server died", blame=Blame.CONFIGURATION, phase="serve")
        return None

    def run_client(
        self,
        argv: Sequence[str],
        *,
        log_path: Path,
        timeout_s: float,
        watch: Callable[[], bool] | None = None,
    ) -> int:
        self.runs.append(list(argv))
        self.on_run(len(self.runs))
        stop = threading.Event()
        box: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: box.update(asyncio.run(_bench(argv, stop))))
        began = time.monotonic()
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            if watch is not None and not watch():
                stop.set()
                thread.join()
                return -1
            if time.monotonic() - began > timeout_s:
                stop.set()
                thread.join()
                raise MeasurementFailed(Failure(kind="client-hang", cause="hung", blame=Blame.MACHINE, retry=True))
        log_path.write_text("ok\n", encoding="utf-8")
        path = Path(flag(argv, "--result-dir")) / flag(argv, "--result-filename")
        path.write_text(json.dumps(box), encoding="utf-8")
        return 0


@contextmanager
def running_fake(folder: Path, *flags: str, **faults: Any) -> Iterator[FakeHandle]:
    """A fake vLLM with the given flags and faults; ended on leaving."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    times = dict.fromkeys(("imports", "weights", "compile", "profile", "capture"), 0)
    environment = {
        **os.environ,
        "VLLM_API_KEY": KEY,
        "VLLM_SERVER_DEV_MODE": "1",
        "FAKE_VLLM": json.dumps({"times": times, "lifetime_s": 120, **faults}),
    }
    command = [sys.executable, str(FAKE), "--model", "m", "--host", "127.0.0.1", "--port", str(port), *flags]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        handle = FakeHandle(process, port, log)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with suppress(httpx.HTTPError):
                if httpx.get(handle.base_url + "/health", trust_env=False).status_code == 200:
                    break
            time.sleep(0.02)
        else:
            raise AssertionError(log.read_text(encoding="utf-8"))
        yield handle
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
