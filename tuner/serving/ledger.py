"""What a study has started, on disk, so that a rerun can end what a killed tuner left.

One JSON object a line, appended and flushed before a process starts and again when its pid is known.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from tuner.serving.processes import Identity, Tree, boot_id, end_tree, identify, is_running, marked

__all__ = ["Ledger", "sweep"]

_SIZE_LIMIT = 8 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    event: str
    boot: str
    marker: str
    owner: Identity
    process: Identity | None
    what: str


class Ledger:
    """Append-only record of processes, readable by its owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._boot = boot_id()
        me = identify(os.getpid())
        self._owner = me or Identity(os.getpid(), 0)

    def will_start(self, marker: str, what: str) -> None:
        """Before the start: from here on the marker alone finds the process."""
        self._append("will-start", marker, None, what)

    def started(self, marker: str, process: Identity, what: str) -> None:
        self._append("started", marker, process, what)

    def ended(self, marker: str, what: str) -> None:
        """Everything with this marker is known to be gone."""
        self._append("ended", marker, None, what)

    def _append(self, event: str, marker: str, process: Identity | None, what: str) -> None:
        line = json.dumps(
            {
                "event": event,
                "boot": self._boot,
                "marker": marker,
                "owner": [self._owner.pid, self._owner.started],
                "process": [process.pid, process.started] if process else None,
                "what": what,
            }
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _identity(value: object) -> Identity | None:
    if isinstance(value, list) and len(value) == 2 and all(isinstance(item, int) for item in value):
        return Identity(value[0], value[1])
    return None


def _entries(path: Path) -> list[_Entry]:
    try:
        with path.open("rb") as file:
            data = file.read(_SIZE_LIMIT)
    except FileNotFoundError:
        return []
    entries = []
    for line in data.splitlines():
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the line that was being written when the tuner was killed
        if not isinstance(raw, dict):
            continue
        owner = _identity(raw.get("owner"))
        marker = raw.get("marker")
        if owner is None or not isinstance(marker, str) or len(marker) < 16:
            continue
        entries.append(
            _Entry(
                str(raw.get("event")),
                str(raw.get("boot")),
                marker,
                owner,
                _identity(raw.get("process")),
                str(raw.get("what")),
            )
        )
    return entries


def sweep(path: Path) -> tuple[str, ...]:
    """End what a killed tuner of this study left running; nothing else is touched.

    A process is ended if it carries a marker from the ledger, or is recorded with pid and start time of this boot, or
    descends from or shares the session of one that is. Entries of a tuner that still runs are left alone.

    Returns:
        One sentence per thing ended or left, for the user.
    """
    here = boot_id()
    me = identify(os.getpid())
    open_entries: dict[str, list[_Entry]] = {}
    for entry in _entries(path):
        if entry.event == "ended":
            open_entries.pop(entry.marker, None)
        elif entry.boot == here and entry.owner != me and not is_running(entry.owner):
            open_entries.setdefault(entry.marker, []).append(entry)
    notes = []
    ledger = Ledger(path)
    for marker, entries in open_entries.items():
        roots = {entry.process: entry.what for entry in entries if entry.process is not None}
        ended = 0
        left: tuple[Identity, ...] = ()
        for root in roots or {}:
            tree = Tree(root, marker)
            ended += len(tree.refresh(thorough=True))
            left += end_tree(tree, grace_s=5.0)
        for stray in marked(marker):
            ended += 1
            left += end_tree(Tree(stray, marker), grace_s=5.0)
        if ended:
            what = entries[-1].what
            notes.append(f"ended {ended} process{'' if ended == 1 else 'es'} of an earlier run of this study ({what})")
        if left:
            pids = ", ".join(str(item.pid) for item in left)
            notes.append(f"processes {pids} of an earlier run cannot be killed: the machine may need a restart")
        else:
            ledger.ended(marker, "swept")
    return tuple(notes)
