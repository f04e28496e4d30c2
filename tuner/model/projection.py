"""One study seen through one of its load points, or through one of its objectives.

A projection is a :class:`~tuner.model.history.History` of its own, so that baseline, best and judgement mean there
what they mean for the whole study.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tuner.model.history import History, Trial
from tuner.model.intervals import mean_estimate
from tuner.model.judge import constraints
from tuner.model.measurement import Estimate, Measurement, PointResult, QualityReport
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Limit, Objective

__all__ = ["at_load", "by_objective", "estimate_of", "load_names", "value_of"]

_RAN = (Status.MEASURED, Status.BEHIND)


def load_names(history: History) -> tuple[str, ...]:
    """Names of the study's load points in their order; empty where there is only one."""
    for trial in history.trials:
        measurement = trial.outcome.measurement
        if measurement is not None and trial.outcome.status is Status.MEASURED:
            names = tuple(dict.fromkeys(point.name for point in measurement.points))
            return names if len(names) > 1 else ()
    return ()


def at_load(history: History, name: str, limits: Sequence[Limit]) -> History:
    """The study as if it had measured load point ``name`` alone. Limits are judged by what was measured there.

    A trial that was stopped early, because its mean over all points fell behind, still measured this point: it
    counts with the rounds it has. Its accuracy was not checked then.
    """
    return replace(history, trials=[_trial_at(trial, name, history.objective, limits) for trial in history.trials])


def _trial_at(trial: Trial, name: str, objective: Objective, limits: Sequence[Limit]) -> Trial:
    outcome = trial.outcome
    point = _point(outcome, name)
    value = None if point is None else point.metrics.get(objective.metric)
    if point is None or value is None or not math.isfinite(value) or outcome.status not in _RAN:
        return replace(trial, outcome=_without_value(outcome))
    measurement = Measurement(
        metrics=point.metrics,
        objective=point.estimates.get(objective.metric) or mean_estimate([value]),
        points=(point,),
    )
    seen = replace(
        outcome,
        status=Status.MEASURED,
        objective=value,
        measurement=measurement,
        constraints=constraints(limits, measurement=measurement, quality=outcome.quality),
    )
    return replace(trial, outcome=seen)


def by_objective(history: History, objective: Objective) -> History:
    """The study as if ``objective`` were its only one. A trial stopped early has no value of it."""
    trials = []
    for trial in history.trials:
        estimate = estimate_of(trial.outcome, objective.metric) if trial.outcome.status is Status.MEASURED else None
        if estimate is None:
            trials.append(replace(trial, outcome=_without_value(trial.outcome)))
            continue
        measurement = trial.outcome.measurement
        metrics = measurement.metrics if measurement is not None else {}
        seen = replace(
            trial.outcome, objective=estimate.value, measurement=Measurement(metrics=metrics, objective=estimate)
        )
        trials.append(replace(trial, outcome=seen))
    return replace(history, objective=objective, further=(), trials=trials)


def value_of(outcome: Outcome, metric: str) -> float | None:
    """A metric of a trial that ran to its end, accuracy included; None where it was not measured."""
    estimate = estimate_of(outcome, metric)
    return None if estimate is None else estimate.value


def estimate_of(outcome: Outcome, metric: str) -> Estimate | None:
    """The same with its 95 % interval over rounds: of the only point, or of the weighted mean over points.

    An accuracy has the interval of its standard error. Any other metric without values per round has infinite ends:
    nothing is known of its spread.
    """
    measurement = outcome.measurement
    value = measurement.metrics.get(metric) if measurement is not None else None
    if value is None and outcome.quality is not None:
        return _accuracy(outcome.quality, metric)
    if value is None or not math.isfinite(value):
        return None
    samples = _rounds(measurement.points, metric) if measurement is not None else ()
    if len(samples) < 2:
        return Estimate(value=value, low=-math.inf, high=math.inf, samples=samples or (value,))
    spread = mean_estimate(samples)
    # The mean of the rounds that all points have is not quite the mean of all rounds: the interval moves with it.
    shift = value - spread.value
    return Estimate(value=value, low=spread.low + shift, high=spread.high + shift, samples=samples)


def _accuracy(quality: QualityReport, metric: str) -> Estimate | None:
    value, error = quality.metrics.get(metric), quality.metrics.get(f"{metric}_se", math.inf)
    if value is None or not math.isfinite(value):
        return None
    return Estimate(value=value, low=value - 1.96 * error, high=value + 1.96 * error, samples=(value,))


def _rounds(points: Sequence[PointResult], metric: str) -> tuple[float, ...]:
    """One weighted mean over the points per round that all of them have."""
    columns = [point.estimates[metric].samples for point in points if metric in point.estimates]
    total = sum(point.weight for point in points)
    if not columns or len(columns) < len(points) or total <= 0:
        return ()
    shares = [point.weight / total for point in points]
    return tuple(
        math.fsum(share * column[index] for share, column in zip(shares, columns, strict=True))
        for index in range(min(len(column) for column in columns))
    )


def _point(outcome: Outcome, name: str) -> PointResult | None:
    points = outcome.measurement.points if outcome.measurement is not None else ()
    return next((point for point in points if point.name == name), None)


def _without_value(outcome: Outcome) -> Outcome:
    return replace(outcome, objective=None)
