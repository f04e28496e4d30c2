"""The chance of keeping a limit: a process, on what the mechanism leaves where it speaks of the metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tuner.search.encoder import Encoder, Rows
from tuner.search.gaussian import Process
from tuner.search.mechanism import Fit, speaks_of
from tuner.search.training import Training

__all__ = ["LimitModel", "limit_models"]

Array: TypeAlias = NDArray[np.float64]

_FAR = -0.5
"""A metric that was never nearer to its bound (relative excess) is no concern."""
_MOST, _MOST_LEFT = 1.5, 1.0
"""Bounds on the targets: how far over its bound a metric is beyond that does not matter."""
_SPREAD, _SPREAD_LEFT = 0.2, 0.1
"""Least spread of a metric, and of what the mechanism leaves of its logarithm."""
_STUTTERS = ((0.0, 0.15), (0.03, 0.2), (0.1, 0.3), (0.3, 0.2), (1.0, 0.15))
"""Shares of a step with a full chunk in it that a token may have to wait, and the chance of each."""
_NOISE = 0.03
"""Spread of a repeated percentile, before the data say otherwise."""
_FOREIGN = 10.0
"""Noise variance of an earlier study's trial over its weight, in units of a repeat's."""


@dataclass(frozen=True)
class LimitModel:
    """How far a metric is over its bound.

    Attributes:
        metric: empty where the mechanism does not speak of it; ``process`` is then on the relative excess, else on
            what is left of its logarithm.
        drawn: coefficients that the trials leave possible, then the metric's stutter and level; and the process on
            what each leaves.
    """

    metric: str
    process: Process
    drawn: tuple[tuple[Array, Process], ...] = ()

    def kept(self, encoder: Encoder, rows: Rows) -> Array:
        """Chance that each row keeps it."""
        several = [process for _, process in self.drawn] or [self.process]
        means, deviation = self.process.means(encoder.inputs(rows, None), several)
        if self.drawn:
            means = means + [
                encoder.model.latency(self.metric, rows.knobs, t[:-2], t[-2]) + t[-1] for t, _ in self.drawn
            ]
        return np.asarray(ndtr(-means / np.sqrt(deviation**2 + self.process.noise**2)).mean(axis=0))


def limit_models(encoder: Encoder, rows: Rows | None, training: Training, fit: Fit | None) -> tuple[LimitModel, ...]:
    """One model per limit that is anywhere near being missed.

    Args:
        rows: the started trials.
        fit: what they say of the mechanism's coefficients; None where it has no say.
    """
    if rows is None:
        return ()
    items = [training.items[index] for index in training.started]
    out = []
    for name in sorted({name for item in items for name in item.violations if name.startswith("limit:")}):
        excess = np.array([item.violations.get(name, np.nan) for item in items])
        known = np.flatnonzero(np.isfinite(excess))  # an earlier study need not have measured it
        if not len(known) or excess[known].max() < _FAR:
            continue
        metric = name.removeprefix("limit:")
        extra = np.array([max(_FOREIGN / items[index].weight - _FOREIGN, 0.0) for index in known])
        seen = _Seen(encoder, rows.take(known), excess[known], extra)
        if fit is not None and speaks_of(metric) and excess[known].min() > -1:
            out.append(seen.physical(metric, fit.draws))
        elif len(known) > 1:
            out.append(LimitModel("", seen.process(np.clip(seen.excess, -_MOST, _MOST), _SPREAD)))
    return tuple(out)


@dataclass(frozen=True)
class _Seen:
    """Trials that measured a limit's metric: the relative excess, and the noise variance beyond a repeat's."""

    encoder: Encoder
    rows: Rows
    excess: Array
    extra: Array

    def physical(self, metric: str, draws: Array) -> LimitModel:
        over = np.log1p(self.excess)
        places = (np.arange(len(draws)) + 0.5) / len(draws)
        fits = [self._fit(metric, over, theta, place) for theta, place in zip(draws, places, strict=True)]
        process = self.process(fits[0][1], _SPREAD_LEFT)
        return LimitModel(metric, process, tuple((theta, process.with_targets(left)) for theta, left in fits))

    def _fit(self, metric: str, over: Array, theta: Array, place: float) -> tuple[Array, Array]:
        """Coefficients with the metric's stutter and level instead of the objective's, and what they leave.

        ``place``: where in the distribution of what the stutter may be, from 0 to 1.
        """
        found: list[tuple[Array, Array]] = []
        likely: list[float] = []
        for stutter, chance in _STUTTERS:
            left = over - self.encoder.model.latency(metric, self.rows.knobs, theta, stutter)
            level = float(np.median(left))
            left = np.clip(left - level, -_MOST_LEFT, _MOST_LEFT)
            likely.append(np.log(chance) - 0.5 * float(np.sum((left / _SPREAD_LEFT) ** 2)))
            found.append((np.array([*theta[:-1], stutter, level]), left))
        share = np.cumsum(np.exp(np.array(likely) - max(likely)))
        return found[int(np.searchsorted(share, place * share[-1]))]

    def process(self, targets: Array, floor: float) -> Process:
        return Process.fit(
            self.encoder.inputs(self.rows, None),
            targets,
            self.encoder.input_labels,
            scale_floor=floor,
            noise_guess=_NOISE,
            extra=self.extra,
        )
