"""Trials as JSON lines: what the replay launcher reads, and what other studies may learn from.

The first keys are those of the recorded H200 table (``mode``, ``prompts``, ``config``, ``start_s``, ``log``,
``output_tok_s``, ``latency`` in seconds, ``error``); the others extend it. ``hardware``, ``model`` and ``workload``
say what it was measured on, so that a replay for another machine is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import InputError
from tuner.model.files import draft_beside, target_of, write_draft
from tuner.model.history import History, Trial
from tuner.model.json import Json, finite
from tuner.model.outcome import Blame, Outcome, Status
from tuner.model.projection import estimate_of
from tuner.model.secrets import mask, mask_environment
from tuner.report.document import basis_of

__all__ = ["table_row", "write_table"]


def write_table(history: History, path: Path, about: Mapping[str, Json] | None = None) -> int:
    """Write one line per trial, all or nothing; returns how many. ``about`` is the study's description.

    What a replay estimated is left out: replayed again, it would pass for recorded.

    Raises:
        InputError: the file cannot be written, or something other than a file is there.
    """
    origin = {name: about[name] for name in ("hardware", "model", "workload") if about.get(name)} if about else {}
    kept = [trial for trial in history.trials if basis_of(trial) != "estimated"]
    lines = [json.dumps({**table_row(trial), **origin}, allow_nan=False) for trial in kept]
    place = target_of(path, "--table")
    try:
        with draft_beside(place) as draft:
            write_draft(draft, "".join(f"{line}\n" for line in lines))
            draft.replace(place)
    except OSError as error:
        raise InputError(f"--table {path}: cannot be written ({error.strerror}); choose another place") from None
    return len(lines)


def table_row(trial: Trial) -> dict[str, Any]:
    """One trial as a line of the table. Keys without a value are left out, but for ``config`` and ``status``."""
    outcome = trial.outcome
    measurement, server = outcome.measurement, outcome.server
    metrics = dict(measurement.metrics) if measurement is not None else {}
    phases = dict(server.phases) if server is not None else {}
    error = outcome.failure.cause if outcome.failure else outcome.exclusion.reason if outcome.exclusion else None
    estimate = measurement.objective if measurement is not None else None
    row: dict[str, Any] = {
        "mode": "server",
        "trial": trial.number,
        "origin": trial.origin,
        "status": outcome.status.value,
        "basis": basis_of(trial) if basis_of(trial) in ("recorded", "estimated") else None,
        "config": {name.replace("-", "_"): value for name, value in outcome.candidate.nested().items()},
        "arguments": dict(outcome.candidate.arguments),
        "assignment": dict(outcome.candidate.assignment),
        "environment": mask_environment(outcome.candidate.environment),
        "start_s": phases.get("total", outcome.seconds.get("start")),
        "log": "server.log" if server is not None and server.log_path else None,
        "output_tok_s": _samples(trial).get("throughput/output") or _single(metrics, "throughput/output"),
        "latency": _seconds(metrics),
        "error": mask(error) if error else None,
        "failure": _failure(outcome),
        "objective": outcome.objective,
        "interval": None if estimate is None else [estimate.low, estimate.high],
        "bound": None if measurement is None else measurement.bound,
        "metrics": metrics,
        "samples": _samples(trial),
        "points": _points(trial),
        "accuracy": dict(outcome.quality.metrics) if outcome.quality is not None else None,
        "power_w": metrics.get("gpu/power_w"),
        "effective": dict(server.effective) if server is not None else None,
        "phases": phases,
        "constraints": dict(outcome.constraints),
        "seconds": dict(outcome.seconds),
        "twin": outcome.twin,
    }
    kept = {name: _finite(value) for name, value in row.items()}
    return {name: value for name, value in kept.items() if value not in (None, {}, []) or name in ("config", "status")}


def _samples(trial: Trial) -> dict[str, list[float]]:
    """Per-round values by metric: of the only load point, or the weighted mean over several."""
    measurement = trial.outcome.measurement
    if measurement is None or not measurement.points:
        return {}
    if len(measurement.points) > 1:
        names = [name for name in measurement.points[0].estimates if name in measurement.metrics]
        found = {name: estimate_of(trial.outcome, name) for name in names}
        return {name: list(item.samples) for name, item in found.items() if item is not None}
    return {name: list(item.samples) for name, item in measurement.points[0].estimates.items() if item.samples}


def _points(trial: Trial) -> list[dict[str, Any]]:
    """What each load point measured, where there are several."""
    points = trial.outcome.measurement.points if trial.outcome.measurement is not None else ()
    if len(points) < 2:
        return []
    return [{"name": point.name, "weight": point.weight, "metrics": dict(point.metrics)} for point in points]


def _single(metrics: Mapping[str, float], name: str) -> list[float]:
    return [metrics[name]] if name in metrics else []


def _failure(outcome: Outcome) -> dict[str, Any] | None:
    failure = outcome.failure
    if failure is not None:
        return {
            "kind": failure.kind,
            "cause": mask(failure.cause),
            "blame": failure.blame.value,
            "phase": failure.phase,
            "violation": failure.violation,
        }
    if outcome.exclusion is not None:
        return {
            "kind": f"excluded:{outcome.exclusion.rule}",
            "cause": outcome.exclusion.reason,
            "blame": Blame.CONFIGURATION.value,
            "violation": outcome.exclusion.violation,
        }
    if outcome.status in (Status.DISTURBED, Status.INTERRUPTED):
        blame = Blame.MACHINE if outcome.status is Status.DISTURBED else Blame.USER
        return {"kind": outcome.status.value, "cause": f"the trial was {outcome.status.value}", "blame": blame.value}
    return None


def _seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Latencies in seconds by their short names, as the recorded table has them."""
    head = "latency/"
    return {name.removeprefix(head): value / 1000 for name, value in metrics.items() if name.startswith(head)}


def _finite(value: Any) -> Any:
    """The value without what JSON cannot hold: an unknown number is no number."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value if not isinstance(value, float) or finite(value) else None
