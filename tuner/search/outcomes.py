"""What a trial's outcome tells the sampler. The one place where that is decided.

A configuration's own fault is COMPLETE with the worst value seen and a violated, graded constraint: told as FAIL,
Optuna's samplers forget it and go back to the dead choice. The machine's fault is FAIL: it says nothing about the
configuration. Every COMPLETE trial sets the same constraints in the same order, because GPSampler matches them by
position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.model.json import LARGEST, finite
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Objective

__all__ = ["Told", "complete_further", "tell_sampler", "worst_value"]

_WORST = 1e12
"""Bound on grades: an unmeasurable violation in one trial would spoil every model fitted later."""

_FALLBACK_COST = 1e4
"""Worst value of a minimised objective before anything was measured (10 s as milliseconds)."""

_KEPT = -1.0
_BROKEN = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What goes to Optuna.

    Attributes:
        complete: COMPLETE with ``value`` and ``constraints``; otherwise FAIL with neither.
        measured: the value is the candidate's own and may count as the worst seen.
    """

    complete: bool
    value: float | None = None
    constraints: Mapping[str, float] = field(default_factory=dict)
    measured: bool = False


def worst_value(values: Sequence[float], *, maximize: bool) -> float:
    """The worst of what was measured so far; without any, a value that no working configuration has."""
    if not values:
        return 0.0 if maximize else _FALLBACK_COST
    return min(values) if maximize else max(values)


def complete_further(
    values: Sequence[float | None], objectives: Sequence[Objective], seen: Sequence[Sequence[float | None]]
) -> list[float]:
    """What is told of the objectives beside the first: the worst ever ``seen`` of one that was not measured."""
    out = []
    for index, objective in enumerate(objectives):
        value = values[index] if index < len(values) else None
        if value is None or not finite(value):
            past = [found for row in seen if index < len(row) and (found := row[index]) is not None]
            value = worst_value(past, maximize=objective.maximize)
        out.append(_bounded(value))
    return out


def tell_sampler(outcome: Outcome, *, names: Sequence[str], worst: float) -> Told:
    """Map an outcome to what Optuna is told.

    Args:
        outcome: how the trial ended, its ``constraints`` set.
        names: the study's constraint names, in their fixed order.
        worst: what a trial without a value of its own is told (:func:`worst_value`).
    """
    status = outcome.status
    if status in (Status.DISTURBED, Status.INTERRUPTED):
        return Told(complete=False)
    value = _value(outcome)
    own_fault = status in (Status.BROKEN, Status.EXCLUDED) or value is None
    constraints = {name: _grade(outcome.constraints.get(name, _KEPT)) for name in names}
    if own_fault and all(grade <= 0 for grade in constraints.values()):
        # Whatever graded the failure left it out; the sampler must still learn that this did not work.
        first = names[0] if names else "start"
        constraints[first] = _BROKEN
    if own_fault or value is None:
        return Told(complete=True, value=_bounded(worst), constraints=constraints)
    return Told(complete=True, value=_bounded(value), constraints=constraints, measured=True)


def _value(outcome: Outcome) -> float | None:
    if outcome.status is Status.BEHIND and outcome.measurement is not None and finite(outcome.measurement.bound):
        return outcome.measurement.bound
    return outcome.objective if finite(outcome.objective) else None


def _grade(value: float) -> float:
    """Finite, whatever came: an unmeasurable violation is a violation."""
    if math.isnan(value):
        return _BROKEN
    return _bounded(value, _WORST)


def _bounded(value: float, most: float = LARGEST) -> float:
    return min(max(float(value), -most), most)
