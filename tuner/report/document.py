"""A study and a trial as plain values: everything that is printed comes from here, and ``--json`` prints it whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tuner.model.history import Contender, History, Judgement, Trial
from tuner.model.json import Json, finite
from tuner.model.measurement import ServerReport
from tuner.model.outcome import Outcome, Status
from tuner.model.records import to_record
from tuner.model.secrets import mask, mask_environment

__all__ = ["ACCOUNT", "pareto", "reason", "study_document", "time_account", "trial_document"]

ACCOUNT = ("measure", "start", "warmup", "quality", "teardown")
"""Phases of a trial, as the loop clocks them, in the order of the time account."""


def study_document(history: History, judgement: Judgement | None, about: Mapping[str, Json]) -> dict[str, Any]:
    """The study in plain values.

    ``judgement`` is the winner against the defaults (None while either was not measured). ``about`` is the study's
    description; ``wall_seconds``, ``search_seconds`` and ``tracking_seconds`` in it complete the time account.
    """
    baseline, winner = history.baseline(), history.winner()
    objective = history.objective
    return {
        "study": about.get("name"),
        "hardware": about.get("hardware"),
        "model": about.get("model"),
        "workload": about.get("workload"),
        "kind": _facts(about).get("kind", "vllm"),
        "versions": about.get("versions"),
        "objective": {"metric": objective.metric, "maximize": objective.maximize, "unit": objective.unit},
        "limits": about.get("limits", []),
        "baseline": _contender(baseline),
        "winner": _contender(winner),
        "judgement": None
        if judgement is None
        else {
            "verdict": judgement.verdict,
            "gain": _number(judgement.gain),
            "low": _number(judgement.low),
            "high": _number(judgement.high),
            "basis": judgement.basis,
            "challenger_starts": judgement.challenger_starts,
            "baseline_starts": judgement.baseline_starts,
        },
        "trials": dict(Counter(trial.outcome.status.value for trial in history.trials)),
        "table": [_line(trial) for trial in history.trials],
        "pareto": pareto(history),
        "excluded": dict(Counter(t.outcome.exclusion.rule for t in history.trials if t.outcome.exclusion)),
        "failures": _failures(history.trials),
        "time": time_account(history, about),
    }


def trial_document(trial: Trial) -> dict[str, Any]:
    """All about one trial: what it asked, what ran, where the time went, what matters."""
    outcome = trial.outcome
    server = outcome.server
    return {
        "trial": trial.number,
        "origin": trial.origin,
        "status": outcome.status.value,
        "feasible": outcome.feasible,
        "reason": reason(outcome),
        "asked": {
            "choices": dict(outcome.candidate.assignment),
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


def reason(outcome: Outcome) -> str:
    """One sentence: why the trial is not simply a good one; empty if it is."""
    if outcome.exclusion is not None:
        return outcome.exclusion.reason
    if outcome.failure is not None:
        return mask(outcome.failure.cause)
    if outcome.status is Status.DUPLICATE:
        return f"runs the same as trial {outcome.twin}"
    if outcome.status is Status.BEHIND:
        return "stopped early: clearly behind the best"
    if outcome.quality is not None and not outcome.quality.passed:
        return outcome.quality.reason
    missed = [name.removeprefix("limit:") for name, value in outcome.constraints.items() if value > 0]
    return f"misses {', '.join(missed)}" if missed else ""


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
    for value, accuracy, number in points:
        if not front or accuracy > front[-1]["accuracy"]:
            front.append({"trial": number, "objective": value, "accuracy": accuracy})
    return front


def time_account(history: History, about: Mapping[str, Json]) -> dict[str, Any]:
    """Seconds by what they went into, and the study's wall time.

    Without the study's own figures the wall time is the sum of its trials, and search and tracking are unknown.
    """
    spent = {phase: sum(t.outcome.seconds.get(phase, 0.0) for t in history.trials) for phase in ACCOUNT}
    inside = sum(t.outcome.seconds.get("total", 0.0) for t in history.trials)
    for name in ("search", "tracking"):
        value = about.get(f"{name}_seconds")
        if finite(value):
            spent[name] = float(value)  # type: ignore[arg-type]
    wall = about.get("wall_seconds")
    total = max(float(wall), inside) if finite(wall) else inside  # type: ignore[arg-type]
    spent["other"] = max(0.0, total - sum(spent.values()))
    starts: dict[str, float] = {}
    for trial in history.trials:
        if trial.outcome.server is not None:
            for phase, seconds in trial.outcome.server.phases.items():
                if phase != "total":
                    starts[phase] = starts.get(phase, 0.0) + seconds
    return {"wall_seconds": total, "seconds": spent, "start_phases": starts}


def _contender(contender: Contender | None) -> dict[str, Any] | None:
    if contender is None:
        return None
    measured = contender.trials[-1].outcome.measurement
    quality = next((t.outcome.quality for t in contender.trials if t.outcome.quality is not None), None)
    return {
        "trial": contender.number,
        "value": contender.value,
        "confirmed": contender.confirmed,
        "assignment": dict(contender.candidate.assignment),
        "arguments": dict(contender.candidate.arguments),
        "environment": mask_environment(contender.candidate.environment),
        "metrics": {k: v for k, v in (measured.metrics if measured else {}).items() if finite(v)},
        "accuracy": {k: v for k, v in (quality.metrics if quality else {}).items() if finite(v)},
    }


def _line(trial: Trial) -> dict[str, Any]:
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
        "seconds": outcome.seconds.get("total"),
        "reason": reason(outcome),
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
            "cause": reason(found[0].outcome),
            "advice": found[0].outcome.failure.advice if found[0].outcome.failure else "",
        }
        for kind, found in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def _facts(about: Mapping[str, Json]) -> Mapping[str, Json]:
    facts = about.get("facts")
    return facts if isinstance(facts, Mapping) else {}


def _number(value: float | None) -> float | None:
    return value if finite(value) else None


def _forecast(server: ServerReport | None) -> dict[str, Any]:
    """What was reckoned before the launch, with its relative error against the server's own report."""
    if server is None:
        return {}
    return {name: {"expected": value, "error": server.forecast_error(name)} for name, value in server.forecast.items()}
