"""A running server that is known to be ours, and clients beside it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tuner.model.measurement import ServerReport
from tuner.model.outcome import Blame, Failure
from tuner.ports import MeasurementFailed
from tuner.serving.failures import died, excerpt, hang
from tuner.serving.logs import LogReader, tail
from tuner.serving.processes import Tree, end_tree
from tuner.serving.starting import Handle
from tuner.serving.watch import memory_failure, stack_dump

__all__ = ["LocalServer", "StartClient"]

StartClient = Callable[[Sequence[str], Mapping[str, str], Path], tuple[Handle, Tree]]
"""Starts ``vllm ARG…`` with extra variables and a log file, warm where possible."""

_TICK_S = 0.1
_WATCH_S = 1.0
_HEALTH_S = 5.0
_STUCK_S = 180.0


@dataclass
class LocalServer:
    """Implements :class:`tuner.ports.Server` for a process on this machine.

    Attributes:
        reader: follows the log; ``compiled_under_load`` grows while kernels are compiled.
        stuck_s: a server that answers no health check for so long is hung (seconds).
    """

    base_url: str
    api_key: str
    model_name: str
    handle: Handle
    tree: Tree
    reader: LogReader
    first_report: ServerReport
    start_client: StartClient
    directory: Path
    stuck_s: float = _STUCK_S
    _failure: Failure | None = None
    _last_well: float = 0.0

    def __post_init__(self) -> None:
        self._client = httpx.Client(base_url=self.base_url, timeout=_HEALTH_S, trust_env=False)
        self._last_well = time.monotonic()

    @property
    def report(self) -> ServerReport:
        """What was seen at the start, with the warnings that came since."""
        self.reader.poll()
        first = self.first_report
        warnings = dict.fromkeys((*first.warnings, *self.reader.facts.warnings))
        return ServerReport(
            effective=first.effective,
            differences=first.differences,
            phases=first.phases,
            mode=first.mode,
            warnings=tuple(warnings),
            version=first.version,
            command=first.command,
            log_path=first.log_path,
        )

    def failure(self) -> Failure | None:
        """Why the server is dead or stuck; None while it is well."""
        if self._failure is None:
            self._failure = self._look()
        return self._failure

    def _look(self) -> Failure | None:
        self.reader.poll()
        code = self.handle.poll()
        if code is not None:
            self.reader.finish()
            return died(tail(self.reader.path), code=code, phase="serve")
        if failure := memory_failure("serve", tail(self.reader.path, limit=1 << 14)):
            return failure
        now = time.monotonic()
        try:
            status = self._client.get("/health").status_code
        except httpx.HTTPError:
            status = 0
        if status == httpx.codes.OK:
            self._last_well = now
            self.tree.refresh()
            return None
        if status == httpx.codes.SERVICE_UNAVAILABLE:
            # The API server lives, its engine is dead: the cause is in the log by now, or within a moment.
            self._settle()
            return died(tail(self.reader.path), code=self.handle.poll(), phase="serve")
        if now - self._last_well > self.stuck_s:
            stack = stack_dump(self.tree, self.directory / "stack.txt")
            return hang(phase="serve", seconds=now - self._last_well, log=tail(self.reader.path), stack=stack)
        return None

    def _settle(self) -> None:
        deadline = time.monotonic() + 2.0
        while self.handle.poll() is None and time.monotonic() < deadline:
            time.sleep(_TICK_S)

    def run_client(
        self, argv: Sequence[str], *, log_path: Path, timeout_s: float, watch: Callable[[], bool] | None = None
    ) -> int:
        """See :meth:`tuner.ports.Server.run_client`."""
        handle, tree = self.start_client(argv, {"OPENAI_API_KEY": self.api_key}, log_path)
        begun = next_watch = time.monotonic()
        next_watch += _WATCH_S
        next_health = begun + _HEALTH_S
        try:
            while True:
                code = handle.poll()
                if code is not None:
                    return code
                now = time.monotonic()
                if self.handle.poll() is not None or now >= next_health:
                    next_health = now + _HEALTH_S
                    if failure := self.failure():
                        raise MeasurementFailed(failure)
                if now - begun > timeout_s:
                    raise MeasurementFailed(_client_hung(argv, now - begun, log_path))
                if watch is not None and now >= next_watch:
                    next_watch = now + _WATCH_S
                    if not watch():
                        return -1
                time.sleep(_TICK_S)
        finally:
            end_tree(tree, grace_s=2.0, kill_s=5.0)
            handle.poll()

    def close(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            self._client.close()


def _client_hung(argv: Sequence[str], seconds: float, log_path: Path) -> Failure:
    return Failure(
        kind="client-hang",
        cause=f"vllm {' '.join(argv[:2])} did not end within {seconds:.0f} s",
        blame=Blame.MACHINE,
        retry=True,
        phase="measure",
        advice="send fewer requests, or give the client more time",
        excerpt=excerpt(tail(log_path), ""),
    )
