"""A study in plain values, for trackers and scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from tuner.model.front import Front
from tuner.model.history import Contender, History, Judgement
from tuner.model.json import Json, finite
from tuner.model.loads import LoadAnswer
from tuner.model.measurement import Estimate
from tuner.model.secrets import mask_environment
from tuner.model.targets import counted
from tuner.model.workload import Objective

__all__ = ["accuracy", "basis_words", "front_summary", "judgement_values", "loads_summary", "means", "summarise"]


def summarise(
    history: History,
    judgement: Judgement | None,
    *,
    loads: Sequence[LoadAnswer] = (),
    front: Front | None = None,
) -> dict[str, Json]:
    """A study in plain values: baseline, winner, gain with its interval, trials by status.

    A baseline that misses a limit is told with ``feasible`` false.
    With several load points ``loads`` has one entry each, with several objectives ``front`` has what no other
    configuration beats; a study with one of either has neither key.
    """
    baseline, winner = history.measured_baseline(), history.winner()
    counts: dict[str, int] = {}
    for trial in history.trials:
        counts[trial.outcome.status.value] = counts.get(trial.outcome.status.value, 0) + 1
    summary: dict[str, Json] = {
        "objective": history.objective.metric,
        "maximize": history.objective.maximize,
        "unit": history.objective.unit,
        "trials": counts,
        "baseline": None
        if baseline is None
        else {"trial": baseline.number, "feasible": baseline.feasible, **_said(baseline)},
        "winner": None,
    }
    if winner is not None:
        summary["winner"] = {
            "trial": winner.number,
            **_said(winner),
            "confirmed": winner.confirmed,
            "assignment": dict(winner.candidate.assignment),
            "arguments": dict(winner.candidate.arguments),
            "environment": dict(winner.candidate.environment),
        }
    if judgement is not None:
        summary["judgement"] = judgement_values(judgement)
    if loads:
        summary["loads"] = loads_summary(loads)
    if front is not None:
        summary["front"] = front_summary(front)
    return summary


def loads_summary(answers: Sequence[LoadAnswer]) -> list[Json]:
    """One entry per load point: the defaults, the best there, and the study's single best there.

    The interval of a value over several starts is by the spread that its gain stands on.
    """
    return [
        {
            "load": answer.name,
            "weight": answer.weight,
            "baseline": _measured(answer.baseline, answer.judgement or answer.single_judgement, 0),
            "best": _configuration(answer.best, answer.judgement),
            "judgement": judgement_values(answer.judgement),
            "picked_of": answer.picked_of,
            "accuracy_unchecked": answer.accuracy_unchecked,
            "single": _measured(answer.single, answer.single_judgement),
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


def _measured(contender: Contender | None, judgement: Judgement | None = None, side: int = 1) -> dict[str, Json] | None:
    """``side``: the contender's place in the judgement, 0 for the defaults and 1 for what is compared with them."""
    if contender is None:
        return None
    estimate = contender.estimate
    half = math.inf if judgement is None else judgement.halves[side]
    if len(contender.counted) > 1 and finite(half):
        estimate = replace(estimate, low=estimate.value - half, high=estimate.value + half)
    spread = {"low": None, "high": None} if contender.estimated else {}
    return {"trial": contender.number, "confirmed": contender.confirmed, **_estimate(estimate), **spread}


def _configuration(contender: Contender | None, judgement: Judgement | None = None) -> dict[str, Json] | None:
    if contender is None:
        return None
    return {
        **(_measured(contender, judgement) or {}),
        "assignment": dict(contender.candidate.assignment),
        "arguments": dict(contender.candidate.arguments),
        "environment": mask_environment(contender.candidate.environment),
    }


def means(contender: Contender) -> dict[str, float]:
    """Every metric of a configuration: the mean over the trials that its value is the mean of."""
    counted = contender.counted or contender.trials
    reports = [t.outcome.measurement.metrics for t in counted if t.outcome.measurement is not None]
    names = dict.fromkeys(name for report in reports for name in report)
    values = {name: [report[name] for report in reports if finite(report.get(name))] for name in names}
    return {name: fmean(found) for name, found in values.items() if found}


def accuracy(contender: Contender) -> dict[str, float]:
    """The accuracy report of a configuration; it has one at most, as its outputs do not depend on the start."""
    quality = next((t.outcome.quality for t in contender.trials if t.outcome.quality is not None), None)
    return {name: value for name, value in (quality.metrics if quality else {}).items() if finite(value)}


_STANDS_ON = {
    "vllm": ("server start", "rounds", "single rounds", "start"),
    "external": ("trial", "samples", "single values", "trial"),
    "replay": ("replayed answer", "draws", "single draws", "answer"),
}
"""By the study's kind: what is one start, its several values, its only one, and what confirms."""


def basis_words(judgement: Mapping[str, Any], confirmed: int, kind: str = "vllm") -> str:
    """What a verdict stands on: the starts of the winner and of the defaults, and whether it was confirmed.

    ``judgement``: its ``basis``, ``challenger_starts``, ``baseline_starts`` and ``single``; ``confirmed``: fresh starts
    of the winner since it was found. ``kind``: what measured; only tune itself is known to start a server each time.
    """
    start, several, alone, fresh = _STANDS_ON.get(kind, _STANDS_ON["vllm"])
    ours, theirs = judgement["challenger_starts"], judgement["baseline_starts"]
    if judgement["basis"] == "starts":
        return f"over {counted(ours, start)} against {theirs}"
    starts = f"one {start} each" if ours == theirs == 1 else f"{counted(ours, start)} against {theirs}"
    sure = {0: ", not confirmed", 1: f", confirmed on one fresh {fresh} only"}.get(confirmed, "")
    return f"from {alone if judgement.get('single') else several} of {starts}{sure}"


def _said(contender: Contender) -> dict[str, Json]:
    """A side of the verdict, in the means that all readers show."""
    return {
        "value": contender.value,
        "counted": [trial.number for trial in contender.counted or contender.trials],
        "estimated": contender.estimated,
        "metrics": {**means(contender), **accuracy(contender)},
    }


def judgement_values(judgement: Judgement | None) -> dict[str, Json] | None:
    """A judgement as plain values; None stays None, and an end of the interval that is not known is null.

    On estimated answers there is no interval: what a replay repeats of an estimate says nothing of its error.
    """
    if judgement is None:
        return None
    return {
        "verdict": judgement.verdict,
        "gain": _number(judgement.gain),
        "low": None if judgement.estimated else _number(judgement.low),
        "high": None if judgement.estimated else _number(judgement.high),
        "level": judgement.level,
        "basis": judgement.basis,
        "challenger_starts": judgement.challenger_starts,
        "baseline_starts": judgement.baseline_starts,
        "single": judgement.single,
        "estimated": judgement.estimated,
    }


def _estimate(estimate: Estimate) -> dict[str, Json]:
    return {"value": _number(estimate.value), "low": _number(estimate.low), "high": _number(estimate.high)}


def _number(value: float) -> float | None:
    """JSON has no infinity: an end that is not known is null."""
    return value if finite(value) else None
