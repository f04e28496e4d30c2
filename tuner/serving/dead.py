"""Settings with which every recorded trial failed: alone, two together, or a number beyond a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Dead", "Setting", "dead_settings"]

_FEWEST = 3
"""Configurations that have to fail before what they have in common is called dead."""
_BY_CHANCE = 0.01
_MOST_BOUNDS = 24

Value: TypeAlias = str | float


@dataclass(frozen=True, slots=True)
class Setting:
    """``name`` is ``value`` (``sign`` ``=``), or a number no less (``>``) or no more (``<``); ``""``: left away."""

    name: str
    sign: str
    value: Value

    def holds(self, features: Mapping[str, Value]) -> bool:
        """Whether a configuration has the setting."""
        value = features.get(self.name, "")
        if self.sign == "=" or isinstance(value, str) or isinstance(self.value, str):
            return self.sign == "=" and value == self.value
        return value >= self.value if self.sign == ">" else value <= self.value

    def __str__(self) -> str:
        if self.value == "":
            return f"no {self.name}"
        text = f"{self.value:g}" if isinstance(self.value, float) else self.value
        return f"{self.name}{ {'=': '=', '>': ' of at least ', '<': ' of at most '}[self.sign] }{text}"


@dataclass(frozen=True, slots=True)
class Dead:
    """One setting, or two together; of the ``failed`` configurations with it, ``rows`` failed for one reason."""

    settings: tuple[Setting, ...]
    rows: tuple[int, ...]
    failed: int

    def holds(self, features: Mapping[str, Value]) -> bool:
        """Whether a configuration has all of it."""
        return all(setting.holds(features) for setting in self.settings)


def dead_settings(rows: Sequence[Mapping[str, Value]], reasons: Sequence[str | None]) -> tuple[Dead, ...]:
    """What is dead by recorded configurations and why each failed (None: it ran), what explains most first.

    All configurations with it failed, at least three of them for one reason that nothing before it explains, and more
    than chance makes of the share that fails for this reason with only a part of it.
    """
    settings, failed = _settings(rows), np.array([reason is not None for reason in reasons])
    if not settings or not failed.any():
        return ()
    has, names = _held(settings, rows), np.array([setting.name for setting in settings])
    both = has @ has.T
    fit = (names[:, None] != names) | np.eye(len(names), dtype=bool)
    fit &= (both >= _FEWEST) & (both == (has * failed) @ has.T)
    found: list[Dead] = []
    whys = {reason: np.array([own == reason for own in reasons]) for reason in sorted(filter(None, set(reasons)))}
    left = dict(whys)
    while True:
        best = {reason: _strongest(has, both, fit, why) for reason, why in left.items()}
        reason = max(best, key=lambda name: best[name][0])
        count, one, two = best[reason]
        if count < _FEWEST:
            return tuple(found)
        held = (has[one] * has[two]).astype(bool)
        found.append(
            Dead(
                settings=tuple(settings[index] for index in sorted({one, two})),
                rows=tuple(np.flatnonzero(held & whys[reason]).tolist()),
                failed=int(held.sum()),
            )
        )
        left = {name: why & ~held for name, why in left.items()}


def _strongest(has: Any, both: Any, fit: Any, why: Any) -> tuple[int, int, int]:
    """How many failures of one reason are explained at most, and the two settings (one twice where it does alone)."""
    count, of, same = (has * why) @ has.T, has.sum(axis=1), has @ why
    share = (same[:, None] - count + 1) / (of[:, None] - both + 2)  # with the first and without the second
    share = np.maximum(share, share.T)
    np.fill_diagonal(share, (why.sum() - same + 1) / (has.shape[1] - of + 2))
    count = np.where(fit & (share**count < _BY_CHANCE), count, 0)
    one, two = np.unravel_index(int((count + 0.5 * np.eye(len(count))).argmax()), count.shape)
    return int(count[one, two]), int(one), int(two)


def _held(settings: Sequence[Setting], rows: Sequence[Mapping[str, Value]]) -> Any:
    """Which settings (rows) the configurations (columns) have, as ones and zeros."""
    has = np.zeros((len(settings), len(rows)), np.float32)
    for index, setting in enumerate(settings):
        has[index] = [setting.holds(row) for row in rows]
    return has


def _settings(rows: Sequence[Mapping[str, Value]]) -> list[Setting]:
    """Values that occur, then bounds, the narrowest first: what lies between two rows is not told to be dead."""
    found: list[Setting] = []
    bounds: list[Setting] = []
    for name in sorted({name for row in rows for name in row}):
        values: set[Value] = {row.get(name, "") for row in rows}
        texts = sorted(value for value in values if isinstance(value, str))
        numbers = sorted(value for value in values if isinstance(value, float))
        numbers = numbers[:: -(-len(numbers) // _MOST_BOUNDS) or 1]
        found += [Setting(name, "=", value) for value in texts]
        found += [Setting(name, "=", value) for value in numbers]
        bounds += [Setting(name, ">", value) for value in reversed(numbers)]
        bounds += [Setting(name, "<", value) for value in numbers]
    return found + bounds
