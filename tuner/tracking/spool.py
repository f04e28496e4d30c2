"""A queue on disk: what is to be logged is written here first, and leaves only when it has arrived.

``events.jsonl`` holds numbered events, ``sent.json`` the number of the last that arrived, ``rows.jsonl`` one line per
ended trial (for the study's table), ``identity.json`` who the study is. An event may be sent twice (a crash between
arriving and noting it), never lost: receivers are idempotent.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import deque
from pathlib import Path
from threading import Lock
from typing import Any

from tuner.errors import InputError

__all__ = ["Event", "Spool"]

Event = dict[str, Any]

_MOST_IN_MEMORY = 10_000
"""Events kept in memory while the disk takes none; each is a few kilobytes."""


class Spool:
    """The queue of one study. Safe for one writer and one sender thread."""

    def __init__(self, directory: Path) -> None:
        """Open or create the queue.

        Raises:
            InputError: the folder cannot be written.
        """
        self.directory = directory
        self._lock = Lock()
        self._events_path = directory / "events.jsonl"
        self._rows_path = directory / "rows.jsonl"
        self._unwritten: deque[tuple[Path, bytes]] = deque(maxlen=_MOST_IN_MEMORY)
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for leftover in directory.glob("send-*"):  # files on their way when a process was killed
                shutil.rmtree(leftover, ignore_errors=True)
            self.identity = self._load_identity()
            for path in (self._events_path, self._rows_path):
                _drop_torn_line(path)
            self._sent = self._load_sent()
            self._pending = deque(event for event in _read(self._events_path) if event.get("seq", 0) > self._sent)
        except OSError as error:
            raise InputError(
                f"cannot write the tracking spool {directory}: {error.strerror}; "
                "make it writable, free some space, or choose another folder"
            ) from None
        self._last = max([self._sent, *(event["seq"] for event in self._pending)])

    def append(self, event: Event) -> str | None:
        """Queue an event. Returns why the disk did not take it (it is then kept in memory), None if all is well."""
        with self._lock:
            self._last += 1
            numbered = {"seq": self._last, **event}
            self._pending.append(numbered)
            return self._write(self._events_path, numbered)

    def add_row(self, row: dict[str, Any]) -> str | None:
        """Keep the figures of an ended trial for the study's table; as :meth:`append` otherwise."""
        with self._lock:
            return self._write(self._rows_path, row)

    def rows(self) -> list[dict[str, Any]]:
        """One row per ended trial, in order of their numbers; the last one written counts."""
        with self._lock:
            found = list(_read(self._rows_path))
            found += [json.loads(line) for path, line in self._unwritten if path == self._rows_path]
        latest = {row["number"]: row for row in found if isinstance(row.get("number"), int)}
        return [latest[number] for number in sorted(latest)]

    def head(self) -> Event | None:
        """The oldest event that has not arrived."""
        with self._lock:
            return self._pending[0] if self._pending else None

    def __len__(self) -> int:
        with self._lock:
            return len(self._pending)

    def arrived(self, event: Event) -> None:
        """The head arrived. Not being able to note it is harmless: it will be sent again."""
        with self._lock:
            self._pending.popleft()
            self._note(event["seq"])

    def reject(self, event: Event, reason: str) -> None:
        """The head can never arrive: keep it in ``rejected.jsonl`` and go on with the next."""
        with self._lock:
            self._write(self.directory / "rejected.jsonl", {**event, "rejected": reason})
            self._pending.popleft()
            self._note(event["seq"])

    # --- files ---

    def _note(self, seq: int) -> None:
        self._sent = seq
        try:
            _replace(self.directory / "sent.json", {"seq": seq})
            if not self._pending and not self._unwritten:
                os.truncate(self._events_path, 0)  # everything arrived: start the file anew
        except OSError:
            return

    def _write(self, path: Path, value: dict[str, Any]) -> str | None:
        self._unwritten.append((path, json.dumps(value, separators=(",", ":"), default=str).encode() + b"\n"))
        while self._unwritten:
            target, line = self._unwritten[0]
            try:
                _append(target, line)
            except OSError as error:
                return error.strerror or str(error)
            self._unwritten.popleft()
        return None

    def _load_identity(self) -> str:
        path = self.directory / "identity.json"
        try:
            known = json.loads(path.read_text(encoding="utf-8"))["id"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            known = None
        if isinstance(known, str) and known.isalnum():
            return known
        fresh = uuid.uuid4().hex
        _replace(path, {"id": fresh})
        return fresh

    def _load_sent(self) -> int:
        try:
            seq = json.loads((self.directory / "sent.json").read_text(encoding="utf-8"))["seq"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0
        return seq if isinstance(seq, int) else 0


def _append(path: Path, line: bytes) -> None:
    """Add a whole line or none of it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(handle).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def _replace(path: Path, value: dict[str, Any]) -> None:
    fresh = path.with_suffix(".tmp")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(value, file)
    fresh.replace(path)


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line without its end: whoever wrote it was killed before it counted."""
    if not path.exists():
        path.touch(mode=0o600)
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            file.truncate(whole)


def _read(path: Path) -> list[Event]:
    events = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                events.append(event)
    return events
