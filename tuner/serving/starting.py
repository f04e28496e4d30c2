"""Two ways to start a process, one handle: cold (a new interpreter) or warm (forked from a parent)."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from tuner.serving.processes import Identity, Tree, end_tree, identify, is_running

__all__ = ["ZYGOTE", "Handle", "WarmParent", "WarmParentLost", "start_cold"]

ZYGOTE = Path(__file__).with_name("zygote.py")
_ANSWER_LIMIT = 1 << 20


class WarmParentLost(Exception):
    """The warm parent cannot be used: it did not start, refused, or died. The message says why."""


class Handle(Protocol):
    """A started process."""

    @property
    def identity(self) -> Identity: ...

    def poll(self) -> int | None:
        """Exit code (negative: the signal), None while it runs."""
        ...


class _Cold:
    def __init__(self, process: subprocess.Popen[bytes], identity: Identity) -> None:
        self._process = process
        self.identity = identity

    def poll(self) -> int | None:
        return self._process.poll()


def start_cold(
    argv: Sequence[str], *, environment: Mapping[str, str], log: Path, directory: Path | None = None
) -> Handle:
    """Start a command in a session of its own, output appended to ``log``.

    Raises:
        OSError: the program is missing or may not be executed.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    # Not yet waited for, so the pid is certainly still this process's.
    return _Cold(process, identify(process.pid) or Identity(process.pid, 0))


class _Forked:
    def __init__(self, parent: WarmParent, request: str, identity: Identity) -> None:
        self._parent = parent
        self._request = request
        self.identity = identity

    def poll(self) -> int | None:
        return self._parent.exit_code(self._request, self.identity)


class WarmParent:
    """A running ``zygote.py``.

    Args:
        python: the Python that will serve (words of a command).
        modules: imported before the first fork; missing ones are skipped.
        environment: what it is born with; import-time variables of its children must be the same.

    Raises:
        WarmParentLost: it did not come up within ``timeout_s`` seconds.
    """

    def __init__(
        self,
        python: Sequence[str],
        modules: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        timeout_s: float = 300.0,
    ) -> None:
        self._lock = threading.Lock()
        self._counter = 0
        self._exits: dict[str, int] = {}
        self._started: queue.Queue[dict[str, object]] = queue.Queue()
        self._lost = ""
        begun = time.monotonic()
        with log.open("ab") as errors:
            log.chmod(0o600)
            try:
                self._process = subprocess.Popen(
                    [*python, str(ZYGOTE), "parent", *modules],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise WarmParentLost(f"the serving Python cannot be started: {error}") from error
        self.identity = identify(self._process.pid) or Identity(self._process.pid, 0)
        threading.Thread(target=self._listen, name="warm-parent", daemon=True).start()
        try:
            hello = self._started.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise WarmParentLost(f"importing vLLM took more than {timeout_s:.0f} s") from None
        if hello.get("event") != "ready":
            self.close()
            raise WarmParentLost(str(hello.get("why") or f"it ended while importing vLLM (see {log.name})"))
        self.version = str(hello.get("version") or "")
        self.missing: tuple[str, ...] = _strings(hello.get("missing"))
        self.seconds = time.monotonic() - begun

    def _listen(self) -> None:
        stream: IO[bytes] | None = self._process.stdout
        while stream is not None:
            line = stream.readline(_ANSWER_LIMIT)
            if not line:
                break
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if message.get("event") == "exited":
                self._exits[str(message.get("id"))] = int(message.get("code", 1))
            else:
                self._started.put(message)
        self._lost = "the warm parent died"
        self._started.put({"event": "lost"})

    @property
    def is_alive(self) -> bool:
        return not self._lost and self._process.poll() is None

    def start(
        self,
        kind: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        directory: Path | None = None,
        record: Path | None = None,
    ) -> Handle:
        """Fork a ``server`` or a ``cli`` client.

        Args:
            record: where the process notes the variables that vLLM sets for its worker.

        Raises:
            WarmParentLost: the parent is gone.
        """
        with self._lock:
            self._counter += 1
            request = str(self._counter)
            message = {
                "id": request,
                "kind": kind,
                "arguments": list(arguments),
                "environment": dict(environment),
                "log": str(log.absolute()),
                "directory": str(directory.absolute()) if directory else "",
                "record": str(record.absolute()) if record else "",
                "affinity": sorted(os.sched_getaffinity(0)),
            }
            try:
                if self._process.stdin is None:
                    raise WarmParentLost("the warm parent is closed")
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                raise WarmParentLost("the warm parent died") from error
            while True:
                try:
                    answer = self._started.get(timeout=30.0)
                except queue.Empty:
                    raise WarmParentLost("the warm parent does not answer") from None
                if answer.get("event") == "lost":
                    self._started.put(answer)
                    raise WarmParentLost("the warm parent died")
                if answer.get("id") == request:
                    break
        pid = answer.get("pid")
        if not isinstance(pid, int):
            raise WarmParentLost("the warm parent answers nonsense")
        return _Forked(self, request, identify(pid) or Identity(pid, 0))

    def exit_code(self, request: str, identity: Identity) -> int | None:
        code = self._exits.get(request)
        if code is not None:
            return code
        if not self.is_alive:
            # Nobody is left to tell the code; whether it runs can still be seen. It may have become our own child.
            if is_running(identity):
                return None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(identity.pid, os.WNOHANG)
            return -9
        return None

    def close(self) -> None:
        """End it and whatever it forked. Safe to call twice."""
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:
            end_tree(Tree(self.identity, ""), grace_s=1.0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5.0)


def _strings(value: object) -> tuple[str, ...]:
    return tuple(str(item)[:300] for item in value[:50]) if isinstance(value, list) else ()
