"""What running servers told of themselves beside the objective, in the mechanism's terms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.search.observations import Observation

__all__ = ["EngineReadings"]

Array: TypeAlias = NDArray[np.float64]

_FULL = 0.95
"""Use of the KV cache from which on it bounds the batch: what was admitted at first is preempted later."""
_LEAST_USE = 0.005
"""Below it the peak use of the cache is a matter of single blocks."""


@dataclass(frozen=True)
class EngineReadings:
    """One value per trial, NaN where its server did not say.

    Attributes:
        batch: running sequences, mean under load, all replicas together.
        capacity: sequences that the KV cache holds, all replicas together: the running ones over their share of it.
        cache: tokens that the KV cache of one replica holds, by the server's log.
        accepted: tokens that a sequence gains in a step (1 + accepted drafts).
        step_of, step_batch, step_s: decode steps at unlike batches: the trial (an index), the running sequences of
            one replica, and seconds. Only trials with several batch sizes.
    """

    batch: Array
    capacity: Array
    cache: Array
    accepted: Array
    step_of: NDArray[np.int64]
    step_batch: Array
    step_s: Array

    @classmethod
    def of(cls, trials: Sequence[Observation]) -> EngineReadings:
        """Read ``trials``; those of earlier studies say nothing of this one's servers."""
        own = [dict(trial.metrics) if trial.weight >= 1 else {} for trial in trials]
        steps = [
            (index, batch, seconds)
            for index, trial in enumerate(trials)
            if trial.weight >= 1
            for batch, seconds in _by_size(trial.steps)
        ]
        return cls(
            batch=_column(metrics.get("engine/running_mean") for metrics in own),
            capacity=_column(_held(metrics) for metrics in own),
            cache=_column(metrics.get("effective/kv-cache-tokens") for metrics in own),
            accepted=_column(metrics.get("engine/acceptance_length") for metrics in own),
            step_of=np.array([index for index, _, _ in steps], dtype=np.int64),
            step_batch=np.array([batch for _, batch, _ in steps], dtype=float),
            step_s=np.array([seconds for _, _, seconds in steps], dtype=float),
        )


def _held(metrics: dict[str, float]) -> float | None:
    use = metrics.get("engine/kv_usage_max", 0.0)
    running = metrics.get("engine/running_mean" if use >= _FULL else "engine/running_max", 0.0)
    return running / use if use >= _LEAST_USE and running > 0 else None


def _by_size(steps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The median step of each doubling of the batch; nothing where there is only one."""
    groups: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for batch, seconds in steps:
        if batch > 0 and seconds > 0:
            groups[round(math.log2(batch))].append((batch, seconds))
    if len(groups) < 2:
        return []
    return [(median(b for b, _ in group), median(s for _, s in group)) for _, group in sorted(groups.items())]


def _column(values: Iterable[float | None]) -> Array:
    return np.array([value if value is not None and value > 0 else math.nan for value in values], dtype=float)
