"""A study and a trial as plain values: everything that is printed comes from here, and ``--json`` prints it whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.model.choices import differing
from tuner.model.history import Contender, History, Judgement, Trial
from tuner.model.json import Json, finite
from tuner.model.judge import limits_of, misses, reason
from tuner.model.measurement import ServerReport
from tuner.model.outcome import Status
from tuner.model.records import to_record
from tuner.model.secrets import mask, mask_environment
from tuner.model.summary import accuracy, judgement_values, means
from tuner.model.words import kind_of
from tuner.model.workload import Limit

__all__ = ["ACCOUNT", "bases", "basis_of", "pareto", "study_document", "time_account", "trial_document"]

ACCOUNT = ("measure", "start", "warmup", "quality", "teardown")
"""Phases of a trial, as the loop clocks them, in the order of the time account."""


def study_document(history: History, judgement: Judgement | None, about: Mapping[str, Json]) -> dict[str, Any]:
    """The study in plain values.

    ``judgement`` is the winner against the defaults (None while either was not measured, or where the defaults miss a
    limit: ``baseline`` then has ``feasible`` false). ``about`` is the study's
    description; ``wall_seconds``, ``search_seconds`` and ``tracking_seconds`` in it complete the time account.
    """
    baseline, winner = history.measured_baseline(), history.winner()
    objective = history.objective
    limits, defaults = limits_of(about), _mapping(about, "defaults")
    return {
        "study": about.get("name"),
        "hardware": about.get("hardware"),
        "model": about.get("model"),
        "workload": about.get("workload"),
        "kind": kind_of(about),
        "versions": about.get("versions"),
        "objective": {"metric": objective.metric, "maximize": objective.maximize, "unit": objective.unit},
        "limits": about.get("limits", []),
        "defaults": dict(defaults),
        "baseline": _contender(baseline),
        "winner": _contender(winner),
        "judgement": judgement_values(judgement),
        "trials": dict(Counter(trial.outcome.status.value for trial in history.trials)),
        "bases": bases(history),
        "table": [_line(trial, limits, defaults) for trial in history.trials],
        "pareto": pareto(history),
        "excluded": dict(Counter(t.outcome.exclusion.rule for t in history.trials if t.outcome.exclusion)),
        "failures": _failures(history.trials),
        "time": time_account(history, about),
    }


def trial_document(trial: Trial, about: Mapping[str, Json] | None = None) -> dict[str, Any]:
    """All about one trial: what it asked, what ran, where the time went, what matters.

    ``about`` is the study's description: with it, the limits have bounds and choices are told from the defaults.
    """
    outcome, limits = trial.outcome, limits_of(about or {})
    server = outcome.server
    return {
        "trial": trial.number,
        "origin": trial.origin,
        "status": outcome.status.value,
        "feasible": outcome.feasible,
        "reason": mask(reason(outcome, limits)),
        "misses": misses(outcome, limits),
        "basis": _basis(server),
        "asked": {
            "choices": dict(outcome.candidate.assignment),
            "differs": differing(outcome.candidate.assignment, _mapping(about or {}, "defaults")),
            "arguments": dict(outcome.candidate.arguments),
            "environment": mask_environment(outcome.candidate.environment),
        },
        "ran": dict(server.effective) if server is not None else {},
        "differences": list(server.differences) if server is not None else [],
        "warnings": list(server.warnings) if server is not None else [],
        "forecast": _forecast(server),
        "start": {"mode": server.mode, **server.phases} if server is not None else {},
        "seconds": dict(outcome.seconds),
        "record": to_record(outcome),
    }


def pareto(history: History) -> list[dict[str, Any]]:
    """Measured configurations that no other beats in both the objective and accuracy, best objective first.

    Empty where accuracy was not measured. Limits do not count here: the front shows what there is to trade.
    """
    sign = 1.0 if history.objective.maximize else -1.0
    points = [
        (outcome.objective, outcome.quality.metrics["accuracy/score"], trial.number)
        for trial in history.trials
        if (outcome := trial.outcome).status is Status.MEASURED
        and outcome.objective is not None
        and outcome.quality is not None
        and "accuracy/score" in outcome.quality.metrics
    ]
    points.sort(key=lambda point: (-sign * point[0], -point[1], point[2]))
    front: list[dict[str, Any]] = []
    for value, score, number in points:
        if not front or score > front[-1]["accuracy"]:
            front.append({"trial": number, "objective": value, "accuracy": score})
    return front


def time_account(history: History, about: Mapping[str, Json]) -> dict[str, Any]:
    """Seconds by what they went into, and the study's wall time.

    Where nothing was started here (a trial command, a replay) the phases that trials report are not this study's
    time: they stand under ``told``, and ``seconds`` has the search, the tracking, and ``trials`` for the rest.
    Without the study's own figures the wall time is the sum of its trials, and search and tracking are unknown.
    """
    inside = sum(t.outcome.seconds.get("total", 0.0) for t in history.trials)
    phases = {phase: sum(t.outcome.seconds.get(phase, 0.0) for t in history.trials) for phase in ACCOUNT}
    starts: dict[str, float] = {}
    for trial in history.trials:
        if trial.outcome.server is not None:
            for phase, seconds in trial.outcome.server.phases.items():
                if phase != "total":
                    starts[phase] = starts.get(phase, 0.0) + seconds
    own = {name: float(value) for name in ("search", "tracking") if finite(value := about.get(f"{name}_seconds"))}  # type: ignore[arg-type]
    wall = about.get("wall_seconds")
    if kind_of(about) != "vllm":
        return _told_account(float(wall) if finite(wall) else None, own, {**phases, "total": inside}, starts)  # type: ignore[arg-type]
    spent = {**phases, **own}
    total = max(float(wall), inside) if finite(wall) else inside  # type: ignore[arg-type]
    spent["other"] = max(0.0, total - sum(spent.values()))
    return {"wall_seconds": total, "seconds": spent, "start_phases": starts}


def _told_account(
    wall: float | None, own: Mapping[str, float], told: Mapping[str, float], starts: Mapping[str, float]
) -> dict[str, Any]:
    """The account where trials report seconds that nobody here waited for: they stand apart, under ``told``."""
    spent = dict(own)
    if wall is not None:
        spent["trials"] = max(0.0, wall - sum(own.values()))
    known = {name: seconds for name, seconds in told.items() if seconds > 0}
    return {"wall_seconds": wall or 0.0, "seconds": spent, "start_phases": dict(starts), "told": known}


def _contender(contender: Contender | None) -> dict[str, Any] | None:
    """A configuration; its figures are means over the same trials as its value."""
    if contender is None:
        return None
    counted = contender.counted or contender.trials
    return {
        "trial": contender.number,
        "value": contender.value,
        "feasible": contender.feasible,
        "confirmed": contender.confirmed,
        "counted": [trial.number for trial in counted],
        "estimated": contender.estimated,
        "assignment": dict(contender.candidate.assignment),
        "arguments": dict(contender.candidate.arguments),
        "environment": mask_environment(contender.candidate.environment),
        "metrics": means(contender),
        "accuracy": accuracy(contender),
    }


def _basis(server: ServerReport | None) -> str:
    """Where a trial's numbers come from."""
    modes = {"external": "trial command", "replay": "recorded", "estimate": "estimated"}
    return modes.get(server.mode, "measured here") if server is not None else ""


def bases(history: History) -> dict[str, int]:
    """How many answers came from where: ``measured here``, ``trial command``, ``recorded``, ``estimated``.

    A status says how a trial ended; in a replay ``measured`` is also said of what was recorded or estimated.
    """
    return dict(Counter(filter(None, (_basis(trial.outcome.server) for trial in history.trials))))


def basis_of(trial: Trial) -> str:
    """Where a trial's numbers come from; empty where it has no server to ask."""
    return _basis(trial.outcome.server)


def _line(trial: Trial, limits: Sequence[Limit], defaults: Mapping[str, Json]) -> dict[str, Any]:
    outcome = trial.outcome
    estimate = outcome.measurement.objective if outcome.measurement is not None else None
    metrics = outcome.measurement.metrics if outcome.measurement is not None else {}
    return {
        "trial": trial.number,
        "origin": trial.origin,
        "status": outcome.status.value,
        "feasible": outcome.feasible,
        "objective": _number(outcome.objective),
        "low": _number(estimate.low) if estimate else None,
        "high": _number(estimate.high) if estimate else None,
        "accuracy": outcome.quality.metrics.get("accuracy/score") if outcome.quality else None,
        "ttft_p99": _number(metrics.get("latency/ttft_p99")),
        "assignment": dict(outcome.candidate.assignment),
        "differs": differing(outcome.candidate.assignment, defaults),
        "basis": _basis(outcome.server),
        "seconds": outcome.seconds.get("total"),
        "misses": misses(outcome, limits),
        "reason": mask(reason(outcome, limits)),
    }


def _failures(trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """One entry per class, the most frequent first, with one of its causes in full."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.outcome.failure is not None:
            groups.setdefault(trial.outcome.failure.kind, []).append(trial)
    return [
        {
            "class": kind,
            "trials": [trial.number for trial in found],
            "blame": found[0].outcome.failure.blame.value if found[0].outcome.failure else "",
            "cause": mask(reason(found[0].outcome)),
            "advice": found[0].outcome.failure.advice if found[0].outcome.failure else "",
        }
        for kind, found in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def _mapping(about: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = about.get(key)
    return value if isinstance(value, Mapping) else {}


def _number(value: float | None) -> float | None:
    return value if finite(value) else None


def _forecast(server: ServerReport | None) -> dict[str, Any]:
    """What was reckoned before the launch, with its relative error against the server's own report.

    Only for servers that `tune` started: a trial command or a table has no memory that was reckoned.
    """
    if server is None or _basis(server) != "measured here":
        return {}
    return {name: {"expected": value, "error": server.forecast_error(name)} for name, value in server.forecast.items()}
