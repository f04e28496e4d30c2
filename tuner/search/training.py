"""The trials that the models of one suggestion are fitted to, and how careful the next launch has to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.search.observations import Observation

__all__ = ["BOLD", "Training"]

Array: TypeAlias = NDArray[np.float64]

_YOUNG, _AFFORDED, _AHEAD = 10, 0.1, 5
"""Launches that may teach by failing as they like, the share of later ones that may, and so many of those to come that
are counted as having started: or else none could fail until ten have not."""
_RISEN = 0.015
"""Least rise (log units) of the best that is one."""
BOLD, _CAREFUL, _BURNT = (1.5, 0.4), (3.0, 0.75), (3.0, 0.9)
"""Exponent on the chance of starting, and the chance below which a candidate is taken only if there is no other: as
long as failures are affordable, when they no longer are, and after two in a row (three alike end a study)."""


@dataclass(frozen=True)
class Training:
    """Launched trials of one study, and how to read their values."""

    items: Sequence[Observation]
    maximize: bool
    startup: int
    budget: int | None

    @cached_property
    def started(self) -> list[int]:
        return [index for index, item in enumerate(self.items) if item.started]

    @cached_property
    def own(self) -> int:
        """Launches of this study; trials of earlier ones are no experience of this machine today."""
        return sum(item.weight >= 1 for item in self.items)

    @cached_property
    def caution(self) -> tuple[float, float]:
        """How much a failure would cost: little while nothing is known, later as long as few launches are wasted."""
        mine = [item.broken for item in self.items if item.weight >= 1]
        if mine[-2:] == [True, True]:
            return _BURNT
        later = mine[_YOUNG:]
        # One more failure must not break the share.
        affordable = len(mine) < _YOUNG or sum(later) + 1 <= _AFFORDED * (len(later) + _AHEAD)
        return BOLD if affordable else _CAREFUL

    @cached_property
    def stalled(self) -> int:
        """Launches of this study since the best value last rose by more than noise would raise it."""
        value = dict(zip(self.started, zip(self.y.tolist(), self.feasible.tolist(), strict=True), strict=True))
        best, count = -np.inf, 0
        for index, item in enumerate(self.items):
            if item.weight < 1:
                continue
            y, feasible = value.get(index, (-np.inf, False))
            count += 1
            if feasible and y > best + _RISEN:
                best, count = y, 0
        return count

    @cached_property
    def risen(self) -> bool:
        """Whether anything was better, by more than noise, than this study's first trial."""
        own = np.array([self.items[index].weight >= 1 for index in self.started], dtype=bool)
        kept = self.y[own & self.feasible]
        if not len(kept):
            return False
        return not self.feasible[own][0] or float(kept.max()) > float(self.y[own][0]) + _RISEN

    @cached_property
    def logarithmic(self) -> bool:
        return all((self.items[index].value or 0.0) > 0 for index in self.started)

    @cached_property
    def y(self) -> Array:
        """Targets of the started ones, more is better; logarithms where all values are positive."""
        values = np.array([self.items[index].value or 0.0 for index in self.started])
        if self.logarithmic:
            values = np.log(values)
        elif len(values) and np.std(values) > 0:
            values = values / np.std(values)
        return values if self.maximize else -values

    @cached_property
    def feasible(self) -> NDArray[np.bool_]:
        """Which of the started ones keep every limit and accuracy."""
        return np.array([self.items[index].feasible for index in self.started], dtype=bool)
