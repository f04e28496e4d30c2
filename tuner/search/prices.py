"""What a trial will cost in seconds, learned from the study's own: by what it sets, and by whether it compiles anew.

A start that finds its compiled kernels in the cache takes seconds where the first start of a shape takes minutes, so
whether the compile key (the values of all parameters marked ``recompiles``) ran before is an input of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.search.gaussian import Process
from tuner.search.observations import Observation

__all__ = ["Prices"]

Array: TypeAlias = NDArray[np.float64]

_FEWEST = 4
"""Trials with known seconds before prices are spoken of."""
_EVEN = 0.08
"""Spread of the log seconds below which all trials cost the same."""
_CHEAPEST, _DEAREST = 0.4, 4.0
"""Bounds of a price, in typical trials: a cheap trial that teaches nothing must not look like a bargain."""
_FRESH_MATTERS = 4.0


@dataclass(frozen=True)
class Prices:
    """Predicts the seconds of a trial. Use :meth:`learned`."""

    process: Process
    typical: float
    columns: NDArray[np.int64]
    compiled: frozenset[tuple[float, ...]]

    @classmethod
    def learned(
        cls, items: Sequence[Observation], x: Array, labels: NDArray[np.bool_], recompiles: Sequence[int]
    ) -> Prices | None:
        """From launched trials in their order; None while too few are known, or where all cost the same.

        Args:
            items: launched trials, this study's own and earlier ones.
            x: their encoded rows.
            labels: which columns are labels.
            recompiles: columns whose change needs a new compile.
        """
        columns = np.array(recompiles, dtype=np.int64)
        compiled: set[tuple[float, ...]] = set()
        rows: list[Array] = []
        seconds: list[float] = []
        for item, row in zip(items, x, strict=True):
            if item.weight < 1 or not item.started:
                continue  # another study's cache is not ours; what fails ends early, and says nothing of the rest
            key = tuple(row[columns].tolist())
            if item.total_s is not None and item.total_s > 0:
                rows.append(np.append(row, float(key not in compiled)))
                seconds.append(item.total_s)
            compiled.add(key)
        if len(seconds) < _FEWEST:
            return None
        y = np.log(seconds)
        if float(np.std(y)) < _EVEN:
            return None
        process = Process.fit(
            np.array(rows),
            y,
            np.append(labels, [True]),
            scale_floor=0.2,
            noise_guess=0.1,
            extra=np.zeros(len(y)),
            importance=np.append(np.ones(x.shape[1]), _FRESH_MATTERS if len(columns) else 0.1),
        )
        return cls(process, float(np.median(y)), columns, frozenset(compiled))

    def seconds(self, x: Array, *, fresh: Array | None = None) -> Array:
        """Forecast for each row; ``fresh``: whether it compiles anew, else by what was compiled before."""
        if fresh is None:
            fresh = np.array([tuple(row) not in self.compiled for row in x[:, self.columns].tolist()], dtype=float)
        mean, _ = self.process.predict(np.column_stack([x, fresh]))
        return np.asarray(np.exp(mean))

    def relative(self, x: Array) -> Array:
        """Price of each row in typical trials of this study, within bounds.

        A compile is paid for half: the trials that will find it in the cache have the other half to bear.
        """
        cached = self.seconds(x, fresh=np.zeros(len(x)))
        price = np.sqrt(self.seconds(x) * np.maximum(cached, 1e-3))
        return np.asarray(np.clip(price / np.exp(self.typical), _CHEAPEST, _DEAREST))
