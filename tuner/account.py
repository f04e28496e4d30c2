"""How far a run of a study has come, and where its time went: one small file, always whole."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Account"]

_BOOKS = ("wall_seconds", "search_seconds", "tracking_seconds")


@dataclass
class Account:
    """The file ``progress.json`` of a study.

    Attributes:
        since: number of the first trial of the run that goes on.
        finished: whether that run came to its end; the next one then starts with a fresh budget.
        booked: wall seconds of the whole study, and of search and tracking in it.
    """

    path: Path
    since: int = 0
    finished: bool = True
    booked: dict[str, float] = field(default_factory=dict)
    _before: float = 0.0
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = time.monotonic()

    @classmethod
    def read(cls, path: Path) -> Account:
        """The account as it was left; a fresh one where there is none or it cannot be read."""
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            state = None
        if not isinstance(state, dict) or not isinstance(state.get("since"), int):
            return cls(path)
        booked = {name: float(state[name]) for name in _BOOKS if isinstance(state.get(name), int | float)}
        return cls(
            path,
            since=state["since"],
            finished=state.get("finished") is not False,
            booked=booked,
            _before=booked.get("wall_seconds", 0.0),
        )

    @property
    def running(self) -> float:
        """Seconds since this account was opened."""
        return time.monotonic() - self._began

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Book the time of a block under ``search`` or ``tracking``."""
        began = time.monotonic()
        try:
            yield
        finally:
            name = f"{what}_seconds"
            self.booked[name] = self.booked.get(name, 0.0) + time.monotonic() - began

    def write(self, *, finished: bool) -> None:
        """Write the file anew, in one step."""
        self.finished = finished
        self.booked["wall_seconds"] = self._before + self.running
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".tmp")
        fresh.write_text(json.dumps({**self.booked, "since": self.since, "finished": finished}), encoding="utf-8")
        fresh.replace(self.path)
