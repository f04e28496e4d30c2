"""The 95 % interval of a mean of a few values, without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.model.measurement import Estimate
from tuner.model.targets import percent, short_name
from tuner.model.workload import Objective

__all__ = ["gain_interval", "gain_words", "mean_estimate"]

# Two-sided 95 % quantiles of Student's t by degrees of freedom 1 to 30, then the normal's (any table of t).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def mean_estimate(samples: Sequence[float]) -> Estimate:
    """Mean and 95 % interval (Student's t); infinite ends for a single value, which says nothing of its spread.

    Raises:
        ValueError: no samples.
    """
    count = len(samples)
    if not count:
        raise ValueError("no samples")
    mean = math.fsum(samples) / count
    if count == 1:
        return Estimate(value=mean, low=-math.inf, high=math.inf, samples=tuple(samples))
    variance = math.fsum((sample - mean) ** 2 for sample in samples) / (count - 1)
    quantile = _T95[count - 2] if count - 2 < len(_T95) else 1.960
    half = quantile * math.sqrt(variance / count)
    return Estimate(value=mean, low=mean - half, high=mean + half, samples=tuple(samples))


def gain_words(gain: float, objective: Objective) -> str:
    """``+60.0%``; of what should be small the change with its name (``-63.5% tpot_p50``), as its figures show it."""
    return percent(gain) if objective.maximize else f"{percent(0.0 - gain)} {short_name(objective.metric)}"


def gain_interval(low: float, high: float, level: float, *, maximize: bool = True) -> str:
    """``99 % interval +50.0% to +70.0%``; an error rate shared among many needs more digits (99.96 % for 24).

    Without ``maximize`` it is the change's interval, as in :func:`gain_words`.
    """
    low, high = (low, high) if maximize else (0.0 - high, 0.0 - low)
    return f"{level * 100:.4g} % interval {percent(low)} to {percent(high)}"
