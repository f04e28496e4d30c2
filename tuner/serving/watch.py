"""Waiting for a server without being fooled: death is noticed at once, silence ends in time, memory stays safe."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tuner.model.outcome import Blame, Failure
from tuner.serving.failures import classify, died, excerpt, hang
from tuner.serving.logs import LogReader, tail
from tuner.serving.processes import Tree
from tuner.serving.starting import Handle

__all__ = ["Patience", "host_memory", "stack_dump", "wait_ready"]

_TICK_S = 0.1
_DEAD_ENGINE_S = 5.0
_GIB = float(1 << 30)
# A phase may take this many times the longest that the study has seen of it.
_SLACK = 5.0
_SLOWEST_DISK = 50e6  # bytes/s: a cold network file system


@dataclass
class Patience:
    """How long a start may take and how long it may say nothing, by phase; learned from the study's own starts.

    Args:
        weight_bytes: size of the checkpoint: reading it is part of any start.
        scale: factor on every floor (tests use less than one).
    """

    weight_bytes: float = 0.0
    scale: float = 1.0
    seen: dict[str, float] = field(default_factory=dict)

    def total_s(self) -> float:
        """Limit for a whole start (seconds)."""
        floor = 1800.0 + 3.0 * self.weight_bytes / _SLOWEST_DISK
        return max(floor * self.scale, _SLACK * self.seen.get("total", 0.0))

    def silence_s(self, phase: str) -> float:
        """Limit for a phase in which nothing is logged (seconds)."""
        floor = {"imports": 300.0, "compile": 1200.0, "weights": 300.0 + self.weight_bytes / _SLOWEST_DISK}.get(
            phase, 600.0
        )
        return max(floor * self.scale, _SLACK * self.seen.get(phase, 0.0))

    def learn(self, phases: dict[str, float]) -> None:
        """Remember a start that came up."""
        for name, seconds in phases.items():
            self.seen[name] = max(seconds, self.seen.get(name, 0.0))


def host_memory() -> tuple[float, float]:
    """Available and total host memory (bytes) from ``/proc/meminfo``; infinities where it cannot be read."""
    values = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, rest = line.split(":", 1)
            values[name] = float(rest.split()[0]) * 1024.0
    return values.get("MemAvailable", float("inf")), values.get("MemTotal", float("inf"))


def memory_failure(phase: str, log: str) -> Failure | None:
    """A failure if the host is about to run out of memory: machines with unified memory die before CUDA says so."""
    available, total = host_memory()
    floor = min(max(0.03 * total, _GIB), 4.0 * _GIB) if total != float("inf") else 0.0
    if available >= floor:
        return None
    return Failure(
        kind="host-memory",
        cause=f"only {available / _GIB:.1f} GiB of host memory are left: the server was ended to keep the machine up",
        blame=Blame.CONFIGURATION,
        phase=phase,
        violation=max((floor - available) / _GIB, 0.01),
        advice="lower gpu_memory_utilization, kv_cache_memory_bytes or max_num_seqs",
        excerpt=excerpt(log, ""),
    )


def wait_ready(
    handle: Handle,
    tree: Tree,
    client: httpx.Client,
    reader: LogReader,
    patience: Patience,
    *,
    progress: Callable[[str, str], None],
    on_hang: Callable[[], str] = lambda: "",
) -> Failure | None:
    """Wait until ``/health`` answers 200. Returns why it never will; None when it did.

    ``on_hang`` is asked for a stack before a hung server is given up.
    """
    begun = last_word = well = time.monotonic()
    last_phase = ""
    words = ticks = 0
    while True:
        now = time.monotonic()
        reader.poll()
        if reader.facts.words != words:
            words, last_word = reader.facts.words, now
        phase = reader.facts.phase
        if phase != last_phase:
            progress("start", phase)
            last_phase = phase
        code = handle.poll()
        if code is not None:
            reader.finish()
            return classify(tail(reader.path), code=code, phase=reader.facts.phase)
        status = _health(client)
        if status == httpx.codes.OK:
            return None
        if status != httpx.codes.SERVICE_UNAVAILABLE:
            well = now
        elif now - well > _DEAD_ENGINE_S:
            # 503 has one meaning in vLLM: the API server is up, its engine is dead. It will not come back.
            return died(tail(reader.path), code=handle.poll(), phase=phase)
        if ticks % 10 == 0:
            tree.refresh()
            if failure := memory_failure(phase, tail(reader.path)):
                return failure
        if now - last_word > patience.silence_s(phase) or now - begun > patience.total_s():
            since = now - last_word if now - last_word > patience.silence_s(phase) else now - begun
            return hang(phase=phase, seconds=since, log=tail(reader.path), stack=on_hang())
        ticks += 1
        time.sleep(_TICK_S)


def _health(client: httpx.Client) -> int:
    """Status of ``/health``; 0 where nobody answers."""
    try:
        return client.get("/health", timeout=2.0).status_code
    except httpx.HTTPError:
        return 0


def stack_dump(tree: Tree, target: Path) -> str:
    """Stacks of a hung tree by py-spy, kept in ``target``; empty if py-spy is not installed or may not look."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return ""
    parts = []
    for item in sorted(tree.refresh(), key=lambda member: member.pid)[:8]:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [program, "dump", "--nonblocking", "--pid", str(item.pid)],
                capture_output=True,
                timeout=20,
                check=False,
            )
            parts.append(done.stdout[: 64 << 10].decode("utf-8", errors="replace"))
    text = "\n".join(part for part in parts if part)
    if text:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    return text[:4000]
