"""A study in plain values, for trackers and scripts."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.front import Front
from tuner.model.history import Contender, History, Judgement
from tuner.model.json import Json, finite
from tuner.model.loads import LoadAnswer
from tuner.model.measurement import Estimate
from tuner.model.secrets import mask_environment
from tuner.model.workload import Objective

__all__ = ["front_summary", "judgement_values", "loads_summary", "summarise"]


def summarise(
    history: History,
    judgement: Judgement | None,
    *,
    loads: Sequence[LoadAnswer] = (),
    front: Front | None = None,
) -> dict[str, Json]:
    """A study in plain values: baseline, winner, gain with its interval, trials by status.

    With several load points ``loads`` has one entry each, with several objectives ``front`` has what no other
    configuration beats; a study with one of either has neither key.
    """
    baseline, winner = history.baseline(), history.winner()
    counts: dict[str, int] = {}
    for trial in history.trials:
        counts[trial.outcome.status.value] = counts.get(trial.outcome.status.value, 0) + 1
    summary: dict[str, Json] = {
        "objective": history.objective.metric,
        "maximize": history.objective.maximize,
        "unit": history.objective.unit,
        "trials": counts,
        "baseline": None if baseline is None else {"trial": baseline.number, "value": baseline.value},
        "winner": None,
    }
    if winner is not None:
        summary["winner"] = {
            "trial": winner.number,
            "value": winner.value,
            "confirmed": winner.confirmed,
            "assignment": dict(winner.candidate.assignment),
            "arguments": dict(winner.candidate.arguments),
            "environment": dict(winner.candidate.environment),
        }
    if judgement is not None:
        summary["judgement"] = {
            "verdict": judgement.verdict,
            "gain": judgement.gain,
            "low": judgement.low,
            "high": judgement.high,
            "level": judgement.level,
            "basis": judgement.basis,
        }
    if loads:
        summary["loads"] = loads_summary(loads)
    if front is not None:
        summary["front"] = front_summary(front)
    return summary


def loads_summary(answers: Sequence[LoadAnswer]) -> list[Json]:
    """One entry per load point: the defaults, the best there, and the study's single best there."""
    return [
        {
            "load": answer.name,
            "weight": answer.weight,
            "baseline": _measured(answer.baseline),
            "best": _configuration(answer.best),
            "judgement": judgement_values(answer.judgement),
            "picked_of": answer.picked_of,
            "accuracy_unchecked": answer.accuracy_unchecked,
            "single": _measured(answer.single),
            "single_judgement": judgement_values(answer.single_judgement),
        }
        for answer in answers
    ]


def front_summary(front: Front) -> dict[str, Json]:
    """The objectives, the front's configurations, and where the defaults stand."""
    return {
        "objectives": [_objective(objective) for objective in front.objectives],
        "points": [
            {
                **(_configuration(point.contender) or {}),
                "values": [_estimate(value) for value in point.values],
                "judgements": [judgement_values(judgement) for judgement in point.judgements],
                "baseline": point.is_baseline,
                "roles": list(point.roles),
            }
            for point in front.points
        ],
        "baseline": None
        if front.baseline is None
        else {
            "values": [_estimate(value) for value in front.baseline],
            "on_front": front.baseline_on_front,
            "beaten_by": list(front.beaten_by),
        },
    }


def _objective(objective: Objective) -> dict[str, Json]:
    return {"metric": objective.metric, "maximize": objective.maximize, "unit": objective.unit}


def _measured(contender: Contender | None) -> dict[str, Json] | None:
    if contender is None:
        return None
    return {"trial": contender.number, "confirmed": contender.confirmed, **_estimate(contender.estimate)}


def _configuration(contender: Contender | None) -> dict[str, Json] | None:
    if contender is None:
        return None
    return {
        **(_measured(contender) or {}),
        "assignment": dict(contender.candidate.assignment),
        "arguments": dict(contender.candidate.arguments),
        "environment": mask_environment(contender.candidate.environment),
    }


def judgement_values(judgement: Judgement | None) -> dict[str, Json] | None:
    """A judgement as plain values; None stays None, and an end of the interval that is not known is null."""
    if judgement is None:
        return None
    return {
        "verdict": judgement.verdict,
        "gain": _number(judgement.gain),
        "low": _number(judgement.low),
        "high": _number(judgement.high),
        "level": judgement.level,
        "basis": judgement.basis,
    }


def _estimate(estimate: Estimate) -> dict[str, Json]:
    return {"value": _number(estimate.value), "low": _number(estimate.low), "high": _number(estimate.high)}


def _number(value: float) -> float | None:
    """JSON has no infinity: an end that is not known is null."""
    return value if finite(value) else None
