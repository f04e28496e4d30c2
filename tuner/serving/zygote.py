"""A parent that has imported vLLM and forks servers and benchmark clients from there.

Stand-alone: it runs with the Python that will serve, where ``tuner`` need not be installed, so it imports the
standard library and vLLM only. It speaks JSON lines: commands on standard input, answers on standard output,
its own messages on standard error. When its input ends (the tuner is gone), it ends everything it forked, and itself.

Started as ``python zygote.py parent MODULE...`` it imports the modules and serves; as ``python zygote.py cli ARG...``
it runs one ``vllm`` sub-command in the foreground, also where the console script is broken (a build of vLLM that is
not installed under the name ``vllm`` has no version to show); as ``python zygote.py serve ARG...`` a server.

Why a fork is sound. vLLM itself forks EngineCore and its workers on CUDA (``VLLM_WORKER_MULTIPROC_METHOD`` is
``fork`` there by default). Its CPU platform forces ``spawn``, because libgomp reads ``OMP_*``, ``GOMP_*`` and
``LD_PRELOAD`` when a process starts and never again. So a worker is forked here only where the variables that vLLM
sets for it are those that this parent itself was started with; anything else is spawned, as vLLM would.

Threads at the fork: the imports leave those of OpenBLAS (one pool each in NumPy, SciPy and OpenCV) and of Arrow's
jemalloc; both libraries register ``pthread_atfork`` handlers. An OpenMP pool, which would not survive a fork, appears
with the first parallel region only, and importing runs none.
"""

import atexit
import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

API_SERVER = "ApiServer"
SERVER_INFO_MODULE = "vllm.entrypoints.serve.dev.server_info.api_router"

# Read when a process or a library starts; changing them later has no effect.
FROZEN_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GLIBC_TUNABLES", "MALLOC_", "LD_")
# Written by import of torch or vLLM themselves; equal in every process, no effect on threads.
FROZEN_EXCEPT = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
# How long forked processes get to end by themselves after the tuner is gone (seconds).
ORPHAN_GRACE_S = 10.0


def frozen(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that count only at process start."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(FROZEN_PREFIXES) and name not in FROZEN_EXCEPT
    }


# Before any import: this is what the dynamic linker and libgomp saw.
AT_START = frozen(os.environ)


def provide_version() -> None:
    """Give ``importlib.metadata`` an answer for ``vllm`` where the module is there but no distribution of that name."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        known = importlib.metadata.version

        def version(distribution_name: str) -> str:
            if distribution_name == "vllm":
                return str(importlib.import_module("vllm.version").__version__)
            return known(distribution_name)

        importlib.metadata.version = version


def run_cli(arguments: Sequence[str]) -> None:
    """``vllm ARG...`` in this process."""
    sys.argv = ["vllm", *arguments]
    # The platform is detected from the distribution's name and version: look before the answer is replaced.
    importlib.import_module("vllm.platforms").current_platform.is_cpu()
    provide_version()
    importlib.import_module("vllm.entrypoints.cli.main").main()


def run_server(arguments: Sequence[str]) -> None:
    """``vllm serve ARG...`` in this process."""
    # /server_info describes the machine as well, by a dozen sub-processes that take seconds; nobody reads that here.
    with contextlib.suppress(ImportError):
        routes = importlib.import_module(SERVER_INFO_MODULE)
        if hasattr(routes, "_get_system_env_info_cached"):
            routes._get_system_env_info_cached = dict  # type: ignore[attr-defined]  # noqa: SLF001
    run_cli(["serve", *arguments])


class Starts:
    """Decides, inside a forked server, whether vLLM's processes are forked or spawned."""

    def __init__(self, *, worker_affinity: set[int], record: str) -> None:
        self.server = os.getpid()
        self.worker_affinity = worker_affinity
        self.record = record

    def method(self) -> str:
        """What ``VLLM_WORKER_MULTIPROC_METHOD`` is answered with.

        vLLM's own reasons against a fork (CUDA already in use, WSL) hold here too. EngineCore, which the server
        itself starts, only schedules when it has workers, so its OpenMP settings are of no consequence.
        """
        if cuda_in_use() or "microsoft" in os.uname().release.lower():
            return "spawn"
        if os.getpid() == self.server:
            return "fork"
        return "fork" if "OMP_NUM_THREADS" in AT_START or not on_cpu() else "spawn"

    def install(self) -> None:
        """Put both decisions in place: which method vLLM is told to use, and what that method then does."""
        envs = importlib.import_module("vllm.envs")
        if "VLLM_WORKER_MULTIPROC_METHOD" in os.environ:
            return  # the user's own choice
        if "--numa-bind" in sys.argv or "VLLM_WORKER_MULTIPROC_METHOD" not in envs.environment_variables:
            return
        envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = self.method
        context = importlib.import_module("multiprocessing.context")
        spawn, fork = context.SpawnProcess._Popen, context.ForkProcess._Popen  # noqa: SLF001 - no public way in

        def popen_spawn(process: Any) -> Any:
            if os.getpid() == self.server and process.name.startswith(API_SERVER) and not cuda_in_use():
                return fork(ApiServer(process))
            self.note(process)
            return spawn(process)

        def popen_fork(process: Any) -> Any:
            if os.getpid() == self.server:
                return fork(process)
            self.note(process)
            if on_cpu() and frozen(os.environ) != AT_START:
                # vLLM wants other OpenMP settings than this process was born with. Its pipes are closed by
                # the new process itself when forked; a spawned one never had them.
                process._kwargs.pop("inherited_fds", None)  # noqa: SLF001
                return spawn(process)
            with self.bound():
                return fork(process)

        context.SpawnProcess._Popen = staticmethod(popen_spawn)  # noqa: SLF001
        context.ForkProcess._Popen = staticmethod(popen_fork)  # noqa: SLF001

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Fork with the CPU binding that libgomp gave this parent's first thread at its start."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.worker_affinity)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def note(self, process: Any) -> None:
        """Leave what vLLM wants at a worker's start, so that the next parent can be born with it."""
        if not self.record or not process.name.startswith("VllmWorker"):
            return
        with contextlib.suppress(OSError), Path(self.record).open("x", encoding="utf-8") as file:
            json.dump(frozen(os.environ), file)


def cuda_in_use() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def on_cpu() -> bool:
    return bool(importlib.import_module("vllm.platforms").current_platform.is_cpu())


class ApiServer:
    """One of several API servers (``--api-server-count``) of which vLLM spawns each; here they are forked.

    They only speak HTTP, so a fork is as good and saves their imports. Their counters are shared through files, which
    prometheus_client decides at its import: the fork decides again.
    """

    def __init__(self, process: Any) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def _bootstrap(self, *arguments: Any, **named: Any) -> int:
        with contextlib.suppress(ImportError, AttributeError):
            values: Any = importlib.import_module("prometheus_client.values")
            values.ValueClass = values.get_value_class()
        return int(self._process._bootstrap(*arguments, **named))  # noqa: SLF001 - what multiprocessing calls


class Parent:
    """The long-lived process: forks on command, reports who ended."""

    def __init__(self, modules: Sequence[str], answers: TextIO) -> None:
        self.answers = answers
        self.children: dict[int, str] = {}
        self.missing: list[str] = []
        for name in modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                self.missing.append(f"{name}: {error}")
        self.refuse_cuda()
        gc.collect()
        gc.freeze()

    def refuse_cuda(self) -> None:
        """End here if an import has initialised CUDA: every fork would fail with a puzzling message."""
        if cuda_in_use():
            self.say(event="refused", why="importing vLLM initialised CUDA, a fork could not use it")
            raise SystemExit(3)

    def say(self, **message: object) -> None:
        """One answer, one line."""
        self.answers.write(json.dumps(message) + "\n")
        self.answers.flush()

    def serve(self) -> None:
        """Fork on command until the input ends."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the tuner decides
        threads = len(list(Path("/proc/self/task").iterdir()))
        vllm = sys.modules.get("vllm")
        self.say(
            event="ready",
            pid=os.getpid(),
            threads=threads,
            missing=self.missing,
            version=getattr(vllm, "__version__", ""),
        )
        buffer = b""
        while True:
            readable, _, _ = select.select([0, wake_read], [], [])
            if wake_read in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                self.reap()
            if 0 not in readable:
                continue
            data = os.read(0, 1 << 16)
            if not data:
                break
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                self.fork(json.loads(line), wake_read, wake_write)
        self.end_all()

    def fork(self, request: Mapping[str, Any], *close: int) -> None:
        """Fork one process; in it, everything of this parent is left behind."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for descriptor in close:
                    os.close(descriptor)
                self.become(request)
                status = 0
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else int(error.code is not None)
                if isinstance(error.code, str):
                    print(error.code, file=sys.stderr)
            except BaseException:  # noqa: BLE001 - the child must never return into the parent's loop
                traceback.print_exc()
            finally:
                finish(status)
        self.children[pid] = request["id"]
        self.say(event="started", id=request["id"], pid=pid)

    def become(self, request: Mapping[str, Any]) -> None:
        """In the child: a session, output, environment and arguments of its own, then vLLM."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        worker_affinity = os.sched_getaffinity(0)
        os.sched_setaffinity(0, request["affinity"])
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(null)
        os.close(log)
        # vLLM's log handlers hold the sys.stdout of the import: it writes to descriptor 1, which is the log now.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.dup2(1, self.answers.fileno())
        os.environ.clear()
        os.environ.update(request["environment"])
        if request.get("directory"):
            os.chdir(request["directory"])
        gc.unfreeze()
        if request["kind"] == "server":
            Starts(worker_affinity=worker_affinity, record=request.get("record", "")).install()
            run_server(request["arguments"])
        else:
            run_cli(request["arguments"])

    def reap(self) -> None:
        """Report who has ended, with the exit code (negative: the signal)."""
        for pid in list(self.children):
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done, status = pid, 0
            if done:
                self.say(event="exited", id=self.children.pop(pid), code=os.waitstatus_to_exitcode(status))

    def end_all(self) -> None:
        """The tuner is gone: nothing that was forked here may outlive it."""
        for number, patience in ((signal.SIGTERM, ORPHAN_GRACE_S), (signal.SIGKILL, 5.0)):
            deadline = time.monotonic() + patience
            # A forked child leads a session and a process group of its own, so its workers are reached as well,
            # also after it has ended itself.
            for pid in self.children:
                # A child that was forked a moment ago does not lead its group yet: it is reached by itself.
                for send in (os.killpg, os.kill):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        send(pid, number)
            while time.monotonic() < deadline and any(map(group_exists, self.children)):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(-1, os.WNOHANG)
                time.sleep(0.05)


def group_exists(pid: int) -> bool:
    """Whether the process group still has members, or its leader to be is still there."""
    for ask in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            ask(pid, 0)
            return True
    return False


def finish(status: int) -> None:
    """Leave a forked process as the interpreter would, without returning into the parent's loop."""
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what the interpreter itself calls
        atexit._run_exitfuncs()  # noqa: SLF001 - as above
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def main() -> None:
    """The command line, see the module."""
    what, *rest = sys.argv[1:]
    if what == "cli":
        run_cli(rest)
    elif what == "serve":
        run_server(rest)
    else:
        # Answers go out on a descriptor of their own; whatever vLLM prints while it is imported goes to the log.
        answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        Parent(rest, answers).serve()


if __name__ == "__main__":
    main()
