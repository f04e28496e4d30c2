"""From what happened to graded constraints: one place, the same names for every trial of a study.

The sampler of Optuna that models constraints matches them by position, so every closed trial must set the same
names in the same order; this function is the only writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.model.candidate import Exclusion
from tuner.model.json import Json, finite
from tuner.model.measurement import Measurement, QualityReport
from tuner.model.outcome import Failure, Outcome, Status
from tuner.model.targets import figure, metric_unit, short_name
from tuner.model.workload import Limit

__all__ = ["constraint_names", "constraints", "limit_value", "limits_of", "misses", "reason"]

_KEPT = -1.0
_BROKEN = 1.0


def constraint_names(limits: Sequence[Limit]) -> tuple[str, ...]:
    """Names of a study's constraints, in their fixed order: ``start``, ``accuracy``, one per limit."""
    return ("start", "accuracy", *(f"limit:{limit.metric}" for limit in limits))


def constraints(
    limits: Sequence[Limit],
    *,
    failure: Failure | None = None,
    exclusion: Exclusion | None = None,
    measurement: Measurement | None = None,
    quality: QualityReport | None = None,
) -> dict[str, float]:
    """Graded violations, ≤ 0 where kept.

    ``start`` is the failure's own grade (GiB missing and the like) or 1.0; ``accuracy`` the drop beyond what is
    allowed (``accuracy/excess`` of the quality report), or 1.0 where the report has no number; a limit's value is
    the relative excess of its metric. A limit whose metric was not measured counts as kept only if the trial never
    came to measuring it (the ``start`` constraint speaks then).
    """
    values = dict.fromkeys(constraint_names(limits), _KEPT)
    if failure is not None:
        values["start"] = failure.violation if failure.violation and failure.violation > 0 else _BROKEN
    elif exclusion is not None:
        values["start"] = exclusion.violation if exclusion.violation > 0 else _BROKEN
    if quality is not None and not quality.passed:
        excess = quality.metrics.get("accuracy/excess", _BROKEN)
        values["accuracy"] = excess if excess > 0 else _BROKEN
    if measurement is not None:
        for limit in limits:
            value = limit_value(limit, measurement, quality)
            name = f"limit:{limit.metric}"
            excess = _BROKEN if value is None else limit.excess(value)
            # Two limits on one metric (a floor and a ceiling) share a name: the worse one speaks.
            values[name] = max(values[name], excess) if values[name] != _KEPT else excess
    return values


def limit_value(limit: Limit, measurement: Measurement | None, quality: QualityReport | None) -> float | None:
    """What a trial reported of a limit's metric, accuracy included; None where it reported nothing."""
    for report in (measurement, quality):
        if report is not None and limit.metric in report.metrics:
            return report.metrics[limit.metric]
    return None


def limits_of(about: Mapping[str, Json]) -> tuple[Limit, ...]:
    """The study's limits out of its description; entries that are none are left out."""
    entries = about.get("limits")
    found = []
    for entry in entries if isinstance(entries, list | tuple) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("metric"), str) and finite(entry.get("bound")):
            bound, at_most = float(entry["bound"]), entry.get("at_most", True) is not False
            found.append(Limit(metric=str(entry["metric"]), bound=bound, at_most=at_most))
    return tuple(found)


def misses(outcome: Outcome, limits: Sequence[Limit]) -> list[str]:
    """The limits that a trial does not keep, as people read them: ``ttft_p99 812 > 500 ms``.

    A metric that never came says so (``accuracy not reported``): that is no measured miss. A limit that the study
    file does not hold any more is named alone.
    """
    found = []
    known = {f"limit:{limit.metric}" for limit in limits}
    for limit in limits:
        if outcome.constraints.get(f"limit:{limit.metric}", _KEPT) <= 0:
            continue
        name = short_name(limit.metric)
        value = limit_value(limit, outcome.measurement, outcome.quality)
        if value is None:
            found.append(f"{name} not reported")
        elif limit.excess(value) > 0:
            sign = ">" if limit.at_most else "<"
            found.append(f"{name} {_apart(value, limit.bound)} {sign} {figure(limit.bound, metric_unit(limit.metric))}")
    others = [name for name, value in outcome.constraints.items() if value > 0 and name.startswith("limit:")]
    return found + [short_name(name.removeprefix("limit:")) for name in others if name not in known]


def reason(outcome: Outcome, limits: Sequence[Limit] = ()) -> str:
    """One sentence: why the trial is not simply a good one; empty if it is."""
    if outcome.exclusion is not None:
        return outcome.exclusion.reason
    if outcome.failure is not None:
        return outcome.failure.cause
    if outcome.status is Status.DUPLICATE:
        return f"runs the same as trial {outcome.twin}"
    missed = misses(outcome, limits)
    if outcome.status is Status.BEHIND:
        # What an early end kept from being reported is no reason for it.
        broken = [text for text in missed if not text.endswith("not reported")]
        return f"stopped early: {', '.join(broken) or 'clearly behind the best'}"
    if outcome.quality is not None and not outcome.quality.passed:
        return outcome.quality.reason
    return f"misses its limits: {', '.join(missed)}" if missed else ""


def _apart(value: float, bound: float) -> str:
    """The value in as many digits as it takes to tell it from the bound."""
    short = figure(value)
    return short if short != figure(bound) else f"{value:,.8g}"
