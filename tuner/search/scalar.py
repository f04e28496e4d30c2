"""Several objectives made into one for a suggestion: another weighting each time, so that the front is filled.

The augmented Chebyshev function of ParEGO (Knowles, IEEE Transactions on Evolutionary Computation 10, 2006): the
largest weighted distance from the best seen of each objective, plus a little of all. Unlike a weighted sum it also
reaches what lies in a dent of the front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tuner.model.workload import Objective
from tuner.search.observations import Observation

__all__ = ["scalarised"]

_EVERYTHING = 0.05
"""Share of the sum beside the largest distance: of two that are equally far in the worst, the better elsewhere wins."""

_ENDS = 3
"""One suggestion of so many is for one objective alone, each in its turn: the ends of the front are asked for most."""

_LEAST_SPREAD = 0.02
"""Spread (log units) below which an objective counts as the same everywhere; scaled up it would be noise."""

_Array = NDArray[np.float64]


def scalarised(
    history: Sequence[Observation], objectives: Sequence[Objective], *, seed: int, turn: int
) -> list[Observation]:
    """The history with one value for all objectives, better in the direction of the first one.

    ``turn`` counts suggestions; equal seeds, turns and histories give equal values. Trials that lack a value of some
    objective get the worst seen of it.
    """
    started = [index for index, item in enumerate(history) if item.started]
    if not started or len(objectives) < 2:
        return list(history)
    utility = np.column_stack([_utility([history[i] for i in started], k, o) for k, o in enumerate(objectives)])
    feasible = np.array([history[index].feasible for index in started])
    ideal = utility[feasible].max(axis=0) if feasible.any() else utility.max(axis=0)
    spread = np.maximum(ideal - np.median(utility, axis=0), _LEAST_SPREAD)
    distance = (ideal - utility) / spread
    weights = _weights(len(objectives), seed=seed, turn=turn)
    cost = (weights * distance).max(axis=1) + _EVERYTHING * (weights * distance).sum(axis=1)
    # Back to log units, in which the models know what a usual effect and a usual noise is.
    better = -cost * float((weights * spread).sum()) / float((weights**2).sum() + _EVERYTHING)
    values = np.exp(np.clip(better if objectives[0].maximize else -better, -30.0, 30.0))
    out = list(history)
    for index, value in zip(started, values, strict=True):
        out[index] = replace(history[index], value=float(value))
    return out


def _weights(count: int, *, seed: int, turn: int) -> _Array:
    """Weights that add up to one, uniform over all that do; now and then all on one objective."""
    if turn % _ENDS == 0:
        return np.asarray(np.eye(count)[(turn // _ENDS) % count])
    return np.asarray(np.random.default_rng(seed).dirichlet(np.ones(count)))


def _utility(items: Sequence[Observation], index: int, objective: Objective) -> _Array:
    """More is better; logarithms where all values are positive, else in units of their spread."""
    raw = [item.value if index == 0 else _further(item, index - 1) for item in items]
    known = [value for value in raw if value is not None and math.isfinite(value)]
    if not known:
        return np.zeros(len(items))
    worst = min(known) if objective.maximize else max(known)
    values = np.array([worst if value is None or not math.isfinite(value) else value for value in raw])
    if values.min() > 0:
        values = np.log(values)
    elif values.std() > 0:
        values = values / values.std()
    return values if objective.maximize else -values


def _further(item: Observation, index: int) -> float | None:
    return item.further[index] if index < len(item.further) else None
