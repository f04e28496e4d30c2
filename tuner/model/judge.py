"""From what happened to graded constraints: one place, the same names for every trial of a study.

The sampler of Optuna that models constraints matches them by position, so every closed trial must set the same
names in the same order; this function is the only writer.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.candidate import Exclusion
from tuner.model.measurement import Measurement, QualityReport
from tuner.model.outcome import Failure
from tuner.model.workload import Limit

__all__ = ["constraint_names", "constraints"]

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
            value = measurement.metrics.get(limit.metric)
            name = f"limit:{limit.metric}"
            excess = _BROKEN if value is None else limit.excess(value)
            # Two limits on one metric (a floor and a ceiling) share a name: the worse one speaks.
            values[name] = max(values[name], excess) if values[name] != _KEPT else excess
    return values
