"""Processes by identity: found by descent, session and marker, ended for certain, never by name.

Linux only, straight from ``/proc``: a pid is reused, a pid with its start time (clock ticks since boot) is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MARKER", "Identity", "Tree", "become_subreaper", "boot_id", "end_tree", "identify", "is_running", "marked"]

MARKER = "TUNE_TRIAL"
"""Environment variable that every process of a trial is started with; also readable from outside."""

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_ENVIRON_LIMIT = 1 << 18
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for as long as the machine is up: ``started`` is in clock ticks since boot."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class _Stat:
    identity: Identity
    state: str
    parent: int
    session: int


def become_subreaper() -> bool:
    """Make this process the new parent of what its children leave behind, so that descent is never lost.

    Returns False where the kernel refuses (nothing is lost then but speed: sessions and markers remain).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def boot_id() -> str:
    """Changes with every boot: start times are comparable within one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses (proc(5)).
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    return _Stat(Identity(pid, int(fields[19])), fields[0], int(fields[1]), int(fields[3]))


def identify(pid: int) -> Identity | None:
    """The identity of the process that has this pid now; None if there is none."""
    stat = _stat(pid)
    return None if stat is None else stat.identity


def is_running(identity: Identity) -> bool:
    """Whether exactly this process still runs (a zombie does not)."""
    stat = _stat(identity.pid)
    return stat is not None and stat.identity == identity and stat.state not in "ZX"


def _table() -> dict[int, _Stat]:
    found = (_stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {stat.identity.pid: stat for stat in found if stat is not None}


def _marker(pid: int) -> str | None:
    """The marker in a process's environment; None if it has none or may not be read."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            data = file.read(_ENVIRON_LIMIT)
    except OSError:
        return None
    wanted = MARKER.encode() + b"="
    for item in data.split(b"\0"):
        if item.startswith(wanted):
            return item[len(wanted) :].decode(errors="replace")
    return None


def marked(prefix: str) -> set[Identity]:
    """Every running process whose marker starts with ``prefix`` (a random identifier, so never by accident)."""
    if len(prefix) < 16:
        raise ValueError("a marker this short could match by accident")
    found = set()
    for pid, stat in _table().items():
        if stat.state not in "ZX" and (_marker(pid) or "").startswith(prefix):
            found.add(stat.identity)
    return found


@dataclass
class Tree:
    """A process and everything that came from it.

    Members are remembered once seen, so that one that is re-parented, leaves its session or overwrites its
    environment (``setproctitle`` does) is not lost.

    Attributes:
        root: the process that was started; it leads a session of its own.
        marker: value of :data:`MARKER` that members carry, or a prefix of it; empty for none.
        spare: processes that carry the marker's prefix but do not belong (the warm parent).
    """

    root: Identity
    marker: str
    spare: set[Identity] = field(default_factory=set)
    members: set[Identity] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.members.add(self.root)

    def refresh(self, *, thorough: bool = False) -> set[Identity]:
        """Running members. ``thorough`` also reads every environment (for teardown, not for polling)."""
        table = _table()
        children: dict[int, list[_Stat]] = {}
        for stat in table.values():
            children.setdefault(stat.parent, []).append(stat)
        for stat in table.values():
            if stat.session == self.root.pid and self._same_session(table):
                self._add(stat.identity)
        queue = [item for item in self.members if item.pid in table and table[item.pid].identity == item]
        while queue:
            below = children.get(queue.pop().pid, [])
            queue += [stat.identity for stat in below if stat.identity not in self.members and self._add(stat.identity)]
        if thorough and self.marker:
            for identity in marked(self.marker):
                self._add(identity)
        return {
            item
            for item in self.members
            if (now := table.get(item.pid)) is not None and now.identity == item and now.state not in "ZX"
        }

    def _same_session(self, table: dict[int, _Stat]) -> bool:
        # A session id stays taken while it has members; only a leader born later would be another session.
        leader = table.get(self.root.pid)
        return leader is None or leader.identity == self.root

    def _add(self, identity: Identity) -> bool:
        # Nothing of ours is older than our root; the tuner itself and the warm parent never belong.
        if identity in self.spare or identity.pid == os.getpid() or identity.started < self.root.started:
            return False
        self.members.add(identity)
        return True


def _signal(identity: Identity, number: int) -> None:
    """Signal exactly this process: through a pidfd, so that a reused pid is never hit."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError:
        return
    try:
        if is_running(identity):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _reap(members: Iterable[Identity], keep: Identity) -> None:
    """Collect adopted zombies. The root is left to whoever started it, who wants its exit code."""
    for item in members:
        if item != keep:
            with contextlib.suppress(ChildProcessError, OSError):
                os.waitpid(item.pid, os.WNOHANG)


def _wait_gone(tree: Tree, seconds: float, *, signal_number: int | None = None) -> set[Identity]:
    deadline = time.monotonic() + seconds
    while True:
        running = tree.refresh()
        if not running:
            # A last, dearer look for what changed parent, session and all before it was ever seen.
            running = tree.refresh(thorough=True)
        for item in running if signal_number is not None else ():
            _signal(item, signal_number or 0)
        _reap(tree.members, tree.root)
        if not running or time.monotonic() > deadline:
            return running
        time.sleep(_POLL_S)


def end_tree(tree: Tree, *, grace_s: float = 15.0, kill_s: float = 20.0) -> tuple[Identity, ...]:
    """End a tree: SIGTERM to the root, a bounded wait, SIGKILL to all that is left, a bounded wait.

    vLLM ends its own EngineCore and workers on SIGTERM; one that is compiling may ignore it (seen in 0.32), and its
    children outlive it. Processes that appear meanwhile are killed as well.

    Returns:
        What even SIGKILL did not end (a process stuck in the driver); empty on success.
    """
    tree.refresh(thorough=True)
    _signal(tree.root, signal.SIGTERM)
    running = _wait_root(tree, grace_s)
    if running:
        # Its root is gone or stuck: members get one chance to leave tidily as well, then no more.
        for item in running:
            _signal(item, signal.SIGTERM)
        running = _wait_gone(tree, min(2.0, grace_s))
    if running:
        running = _wait_gone(tree, kill_s, signal_number=signal.SIGKILL)
    # What its dead parents left to this process, as the subreaper, would stay a zombie for the rest of the study.
    _reap(tree.members, tree.root)
    return tuple(sorted(running, key=lambda item: item.pid))


def _wait_root(tree: Tree, seconds: float) -> set[Identity]:
    deadline = time.monotonic() + seconds
    while is_running(tree.root) and time.monotonic() < deadline:
        tree.refresh()
        # At once: vLLM looks at its own children while it ends, and trips over zombies that nobody collects.
        _reap(tree.members, tree.root)
        time.sleep(_POLL_S)
    return tree.refresh(thorough=True)
