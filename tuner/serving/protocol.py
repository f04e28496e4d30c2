"""Protocol 1 of ``--trial-command``: what a trial command is told, and what it may answer. Pure functions.

The contract for people is docs/TRIAL_COMMAND.md. An answer is untrusted input: it is size-limited by the caller,
parsed without surprises (no NaN, bounded depth), and whatever is wrong with it is said in one sentence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.model.candidate import Candidate, render_flags
from tuner.model.intervals import mean_estimate
from tuner.model.json import LARGEST, Json, canonical, reckonable
from tuner.model.measurement import Measurement, PointResult, QualityReport, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.targets import never_negative
from tuner.model.words import plain, shortened
from tuner.model.workload import Limit, LoadPoint, Objective
from tuner.ports import TrialContext

__all__ = ["PROTOCOL", "AnswerError", "outcome_of", "read_answer", "request"]

PROTOCOL = 1
"""Version of the request and of the answer. A new one is needed only when a key changes its meaning."""

_MOST_METRICS = 2_000
_MOST_SAMPLES = 10_000
_LONGEST_TEXT = 500
_LONGEST_NAME = 200
_LONGEST_EXCERPT = 6_000
_DEEPEST = 32
_MOST_POINTS = 64

_SERVED = ("throughput/output", "throughput/total", "throughput/requests")
"""Objectives that are 0 only where no request succeeded; goodput is 0 where none was fast enough."""

_STATUSES = {
    "ok": "ok",
    "measured": "ok",
    "failed": "failed",
    "infeasible": "infeasible",
}


class AnswerError(Exception):
    """The answer is not what the protocol asks for; the message is one sentence."""


def request(
    candidate: Candidate,
    context: TrialContext,
    *,
    objective: Objective,
    limits: Sequence[Limit],
    further: Sequence[Objective] = (),
    points: Sequence[LoadPoint] = (),
) -> str:
    """The JSON object that goes to the command's standard input: one line, keys sorted.

    ``further`` objectives and load ``points`` are told as ``objectives`` (the first one with them) and ``points``.
    """
    reference = context.reference
    value: dict[str, Json] = {
        "protocol": PROTOCOL,
        "trial": context.number,
        "origin": candidate.origin,
        "seed": context.seed,
        "directory": str(context.directory.resolve()),
        "candidate": {
            "key": candidate.key,
            "assignment": dict(candidate.assignment),
            "arguments": dict(candidate.arguments),
            "flags": render_flags(candidate),
            "environment": dict(candidate.environment),
        },
        "objective": _objective(objective),
        "objectives": [_objective(item) for item in (objective, *further)],
        "points": [
            {
                "name": point.name,
                "concurrency": point.concurrency,
                "rate": point.rate,
                "requests": point.requests,
                "weight": point.weight,
            }
            for point in points
        ],
        "limits": [{"metric": limit.metric, "bound": limit.bound, "at_most": limit.at_most} for limit in limits],
        "reference": None
        if reference is None
        else {"value": reference.value, "samples": [float(sample) for sample in reference.samples]},
    }
    return canonical(value) + "\n"


def _objective(objective: Objective) -> dict[str, Json]:
    return {"metric": objective.metric, "maximize": objective.maximize, "unit": objective.unit}


def read_answer(text: str) -> dict[str, Any]:
    """The JSON object in what the command printed: all of it, or its last line that is one.

    Raises:
        AnswerError: there is none, or it holds NaN, infinities or nesting without end.
    """
    stripped = text.strip()
    if not stripped:
        raise AnswerError("it printed nothing on standard output")
    found = _object(stripped)
    if found is None:
        # Programs chatter (progress bars, warnings of libraries); the answer is what comes last.
        lines = (line.strip() for line in reversed(stripped.splitlines()))
        found = next((value for line in lines if line.startswith("{") and (value := _object(line))), None)
    if found is None:
        raise AnswerError("standard output holds no JSON object")
    if _depth(found) > _DEEPEST:
        raise AnswerError(f"the answer is nested deeper than {_DEEPEST} levels")
    cleaned: dict[str, Any] = _clean(found)
    return cleaned


def _clean(value: Any) -> Any:
    """Names and texts without what a terminal would obey; names on one line and of bounded length."""
    if isinstance(value, dict):
        return {shortened(name, _LONGEST_NAME): _clean(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return plain(value) if isinstance(value, str) else value


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> float:
    raise AnswerError(f"the answer holds {name}, which is not JSON; leave the metric away instead")


def _depth(value: object) -> int:
    level, layer = 0, [value]
    while layer and level <= _DEEPEST:
        level += 1
        layer = [
            item
            for node in layer
            if isinstance(node, dict | list)
            for item in (node.values() if isinstance(node, dict) else node)
            if isinstance(item, dict | list)
        ]
    return level


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    metrics: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)


def outcome_of(answer: Mapping[str, Any], candidate: Candidate, *, objective: Objective) -> Outcome:
    """What the answer means.

    Raises:
        AnswerError: a key is missing or of the wrong type; the sentence names it.
    """
    version = answer.get("protocol", PROTOCOL)
    if version != PROTOCOL:
        raise AnswerError(f"it answers in protocol {_short(version)}; this version speaks {PROTOCOL}")
    status = answer.get("status")
    known = _STATUSES.get(status) if isinstance(status, str) else None
    if known is None:
        raise AnswerError(f"status is {_short(status)}; it must be one of ok, failed, infeasible")
    server = _server(answer)
    seconds = {name: value for name, value in _numbers(answer, "seconds").items() if value >= 0}
    if known != "ok":
        failure = _failure(answer, infeasible=known == "infeasible")
        broken = Status.DISTURBED if failure.blame is Blame.MACHINE else Status.BROKEN
        return Outcome(candidate=candidate, status=broken, failure=failure, server=server, seconds=seconds)
    points = _points(answer, objective)
    measurement = _measurement(answer, _figures(_with_means(answer, points), objective), objective, points)
    assert measurement.objective is not None  # noqa: S101 - for the type checker; _measurement raises otherwise
    if measurement.objective.value == 0 and objective.metric in _SERVED:
        failure = Failure(
            kind="nothing-served",
            cause=f"{objective.metric} is 0: nothing was served",
            blame=Blame.CONFIGURATION,
            phase="measure",
            advice="let the command answer status failed with the cause where no request succeeds",
        )
        return Outcome(candidate=candidate, status=Status.BROKEN, failure=failure, server=server, seconds=seconds)
    complete = measurement.complete
    return Outcome(
        candidate=candidate,
        status=Status.MEASURED if complete else Status.BEHIND,
        objective=measurement.objective.value if complete else None,
        measurement=measurement,
        quality=_quality(answer),
        server=server,
        seconds=seconds,
    )


def _figures(answer: Mapping[str, Any], objective: Objective) -> _Figures:
    metrics = _numbers(answer, "metrics")
    raw = answer.get("samples") or {}
    if isinstance(raw, list):  # a bare list can only be the objective's
        raw = {objective.metric: raw}
    if not isinstance(raw, dict):
        raise AnswerError("samples must map metric names to lists of numbers")
    samples: dict[str, tuple[float, ...]] = {}
    for name, values in raw.items():
        if not isinstance(values, list) or len(values) > _MOST_SAMPLES:
            raise AnswerError(f"samples of {_short(name)} must be a list of at most {_MOST_SAMPLES} finite numbers")
        if values:
            what = f"samples of {_short(name)}: one"
            samples[name] = tuple(_number(value, what, below=not never_negative(name)) for value in values)
    for name, values in samples.items():
        metrics.setdefault(name, math.fsum(values) / len(values))
    value = answer.get("objective")
    if value is not None:
        metrics.setdefault(objective.metric, _number(value, "objective", below=not never_negative(objective.metric)))
    if objective.metric not in metrics:
        have = ", ".join(sorted(metrics)[:8]) or "none"
        raise AnswerError(f"metrics lack the study's objective {objective.metric} (given: {have})")
    return _Figures(metrics=metrics, samples=samples)


def _measurement(
    answer: Mapping[str, Any], figures: _Figures, objective: Objective, points: tuple[PointResult, ...]
) -> Measurement:
    estimates = {name: mean_estimate(values) for name, values in figures.samples.items()}
    value = figures.metrics[objective.metric]
    best = estimates.get(objective.metric, mean_estimate([value]))
    if not math.isclose(best.value, value, rel_tol=0.5, abs_tol=1e-9):
        raise AnswerError(
            f"the samples of {objective.metric} average {best.value:g}, but the metric is {value:g}: which is it?"
        )
    complete = answer.get("complete", True)
    if not isinstance(complete, bool):
        raise AnswerError("complete must be true or false")
    point = PointResult(name="all", metrics=figures.metrics, estimates=estimates, rounds=len(best.samples))
    return Measurement(
        metrics=figures.metrics,
        objective=best,
        points=points or (point,),
        bound=None if complete else value,
        complete=complete,
        steps=_steps(answer),
        notes=tuple(_texts(answer, "notes")),
    )


def _points(answer: Mapping[str, Any], objective: Objective) -> tuple[PointResult, ...]:
    """The load points, where the command measured several: each with its own metrics and samples."""
    raw = answer.get("points") or []
    if not isinstance(raw, list) or len(raw) > _MOST_POINTS:
        raise AnswerError(f"points must be a list of at most {_MOST_POINTS} objects, each with name and metrics")
    found: list[PointResult] = []
    for item in raw:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= 80 or any(point.name == _text(name) for point in found):
            raise AnswerError("every entry of points must be an object with a name of its own")
        weight = item.get("weight", 1.0)
        if not reckonable(weight) or weight < 0:
            raise AnswerError(f"points.{name}.weight is {_short(weight)}, not a number from 0 on")
        try:
            figures = _figures({key: item.get(key) for key in ("metrics", "samples", "objective")}, objective)
        except AnswerError as error:
            raise AnswerError(f"points.{name}: {error}") from None
        estimates = {metric: mean_estimate(values) for metric, values in figures.samples.items()}
        rounds = max((len(values) for values in figures.samples.values()), default=1)
        found.append(
            PointResult(
                name=_text(name), metrics=figures.metrics, estimates=estimates, rounds=rounds, weight=float(weight)
            )
        )
    return tuple(found)


def _with_means(answer: Mapping[str, Any], points: Sequence[PointResult]) -> Mapping[str, Any]:
    """The answer with weighted means over its points, where it does not give a figure for all of them itself."""
    total = sum(point.weight for point in points)
    if not points or total <= 0:
        return answer
    given = answer.get("metrics") or {}
    taken = {*given, *(answer.get("samples") or {})} if isinstance(given, dict) else set()
    names = [name for name in points[0].metrics if name not in taken and all(name in p.metrics for p in points)]
    if "objective" in answer or not isinstance(given, dict):
        return answer
    means = {name: math.fsum(p.weight * p.metrics[name] for p in points) / total for name in names}
    rounds: dict[str, list[float]] = {}
    for name in names:
        columns = [p.estimates[name].samples for p in points if name in p.estimates]
        if len(columns) == len(points):
            shortest = min(len(column) for column in columns)
            rounds[name] = [
                math.fsum(p.weight * column[k] for p, column in zip(points, columns, strict=True)) / total
                for k in range(shortest)
            ]
    samples = answer.get("samples")
    if samples is not None and not isinstance(samples, dict):
        return {**answer, "metrics": {**means, **given}}
    return {**answer, "metrics": {**means, **given}, "samples": {**rounds, **(samples or {})}}


def _steps(answer: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    raw = answer.get("steps") or []
    if not isinstance(raw, list) or len(raw) > _MOST_SAMPLES:
        raise AnswerError(f"steps must be a list of at most {_MOST_SAMPLES} pairs [batch, seconds]")
    pairs = []
    for pair in raw:
        if not (isinstance(pair, list) and len(pair) == 2 and all(reckonable(x) and x >= 0 for x in pair)):
            raise AnswerError(
                "steps must be pairs [running batch size, seconds per decode step], two numbers from 0 on"
            )
        pairs.append((float(pair[0]), float(pair[1])))
    return tuple(pairs)


def _quality(answer: Mapping[str, Any]) -> QualityReport | None:
    raw = answer.get("quality")
    if raw is None:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("passed"), bool):
        raise AnswerError("quality must be an object with passed: true or false")
    return QualityReport(passed=raw["passed"], reason=_text(raw.get("reason", "")), metrics=_numbers(raw, "metrics"))


def _server(answer: Mapping[str, Any]) -> ServerReport | None:
    effective = answer.get("effective")
    if effective is None:
        return None
    if not isinstance(effective, dict) or len(effective) > _MOST_METRICS:
        raise AnswerError("effective must be an object: setting → what really ran")
    for name, value in effective.items():
        for item in _scalars(value):
            if isinstance(item, int | float) and not isinstance(item, bool):
                _number(item, f"effective.{_short(name)}")
    return ServerReport(
        effective={name: _text(value) if isinstance(value, str) else value for name, value in effective.items()},
        mode="external",
        version=_text(answer.get("version", "")),
        warnings=tuple(_texts(answer, "warnings")),
    )


def _scalars(value: object) -> Iterator[object]:
    """Everything within a value of JSON; :func:`read_answer` bounds its depth."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _scalars(item)
    else:
        yield value


def _failure(answer: Mapping[str, Any], *, infeasible: bool) -> Failure:
    raw = answer.get("failure")
    if isinstance(raw, str):
        raw = {"cause": raw}
    if raw is None:
        raw = {key: answer[key] for key in ("kind", "cause", "reason", "blame", "violation") if key in answer}
    if not isinstance(raw, dict):
        raise AnswerError("failure must be an object with kind and cause")
    cause = _text(raw.get("cause") or raw.get("reason") or "")
    if not cause:
        raise AnswerError("a trial that is not ok needs failure.cause: one sentence with its numbers")
    blame = raw.get("blame", "configuration")
    if blame not in set(Blame):
        raise AnswerError(f"failure.blame is {_short(blame)}; it must be configuration, machine or user")
    if infeasible:
        blame = "configuration"
    violation = raw.get("violation")
    if violation is not None:
        violation = _number(violation, "failure.violation")
    retry = raw.get("retry", blame == "machine")
    if not isinstance(retry, bool):
        raise AnswerError("failure.retry must be true or false")
    return Failure(
        kind=_text(raw.get("kind") or raw.get("class") or ("infeasible" if infeasible else "unknown"))[:80],
        cause=cause,
        blame=Blame(blame),
        retry=retry,
        phase=_text(raw.get("phase", "launch"))[:40],
        violation=violation if violation is not None and violation > 0 else None,
        advice=_text(raw.get("advice", "")),
        excerpt=str(raw.get("excerpt") or "")[-_LONGEST_EXCERPT:].strip("\n"),
    )


def _numbers(answer: Mapping[str, Any], key: str) -> dict[str, float]:
    raw = answer.get(key)
    if raw is None:
        return {}
    if not isinstance(raw, dict) or len(raw) > _MOST_METRICS:
        raise AnswerError(f"{key} must be an object of at most {_MOST_METRICS} numbers")
    numbers = {}
    for name, value in raw.items():
        if value is None:  # not measured
            continue
        numbers[name] = _number(value, f"{key}.{_short(name)}", below=not never_negative(name))
    return numbers


def _number(value: object, what: str, *, below: bool = True) -> float:
    """A number that can be reckoned with: means, variances and models take sums and squares of it.

    ``below``: it may lie below zero.
    """
    if not reckonable(value):
        raise AnswerError(f"{what} is {_short(value)}, not a finite number of at most {LARGEST:g}")
    number = float(value)  # type: ignore[arg-type]
    if number < 0 and not below:
        raise AnswerError(f"{what} is {_short(value)}, which cannot be below zero")
    return number


def _texts(answer: Mapping[str, Any], key: str) -> list[str]:
    raw = answer.get(key) or []
    if isinstance(raw, str):
        raw = [raw]
    if not isinstance(raw, list):
        raise AnswerError(f"{key} must be a list of sentences")
    return [_text(item) for item in raw[:50]]


def _text(value: object) -> str:
    """One line of text, whatever was given."""
    return shortened(str(value), _LONGEST_TEXT)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
