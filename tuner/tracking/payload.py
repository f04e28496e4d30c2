"""What a trial looks like in MLflow: names, values and sentences. Plain data, no mlflow."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from tuner.model.candidate import Candidate
from tuner.model.json import Json, canonical, finite
from tuner.model.judge import reason
from tuner.model.outcome import Outcome, Status
from tuner.model.secrets import MASK, looks_secret, mask, mask_environment
from tuner.model.serve_config import serve_command, serve_config
from tuner.model.workload import Limit
from tuner.ports import StudyInfo

__all__ = [
    "ROW_KEYS",
    "RUN_STATUS",
    "Mask",
    "child_metrics",
    "child_params",
    "child_tags",
    "command_text",
    "experiment_name",
    "row",
    "run_name",
    "study_params",
    "yaml_text",
]

PARAM_LIMIT = 6000
"""Longest parameter value that MLflow takes (characters)."""

TAG_LIMIT = 5000
"""Longest tag value written (characters); MLflow's own limit is 8000 on this line of versions, 5000 before."""

_ILLEGAL = re.compile(r"[^\w\-.:/ ]", re.ASCII)

RUN_STATUS: Mapping[Status, str] = {
    Status.MEASURED: "FINISHED",
    Status.BEHIND: "FINISHED",
    Status.DUPLICATE: "FINISHED",
    Status.EXCLUDED: "KILLED",
    Status.BROKEN: "FAILED",
    Status.DISTURBED: "FAILED",
    Status.INTERRUPTED: "KILLED",
}
"""How MLflow's own status shows each outcome; the tag ``state`` has the exact word."""


class Mask:
    """Hides what must not be shown: by shape and name, and the given secrets wherever they stand."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # Longest first, so that a secret inside another one leaves nothing of it.
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return mask(text)

    def json(self, value: Any, name: str = "") -> Any:
        """The same value with every string masked; names that look like secrets hide their strings whole."""
        if isinstance(value, str):
            return MASK if name and value and looks_secret(name) else self.text(value)
        if isinstance(value, Mapping):
            return {str(key): self.json(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return value


def legal(name: str) -> str:
    """The name in the characters that MLflow allows."""
    return _ILLEGAL.sub("_", name).strip("/ .")[:250] or "_"


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shown(value: Json) -> str:
    """A flag's value as people write it."""
    return value if isinstance(value, str) else canonical(value)


def experiment_name(info: StudyInfo) -> str:
    """One experiment per model and hardware."""
    model = info.model.rstrip("/")
    if model.startswith((".", "/", "~")):
        model = model.rsplit("/", 1)[-1]
    return f"{model} on {info.hardware}"


def run_name(number: int, origin: str, *, winner: bool = False) -> str:
    label = "winner" if winner else origin.replace("start:", "start ")
    return f"trial {number:03d} · {label}"


def child_params(candidate: Candidate, effective: Mapping[str, Json] | None, hide: Mask) -> dict[str, str]:
    """Flags asked for (``asked/…``), the environment (``asked/env:…``) and what runs (``effective/…``)."""
    found: dict[str, str] = {}
    for name, value in candidate.arguments.items():
        found[legal(f"asked/{name}")] = shown(hide.json(value, name))
    for name, text in mask_environment(candidate.environment).items():
        found[legal(f"asked/env:{name}")] = hide.text(text)
    for name, value in (effective or {}).items():
        found[legal(f"effective/{name}")] = shown(hide.json(_plain(value), name))
    return {name: cut(text, PARAM_LIMIT) for name, text in found.items()}


def _plain(value: Json) -> Json:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def child_metrics(outcome: Outcome) -> dict[str, float]:
    """Every finite figure of a trial, grouped by the part of its name before the slash."""
    found: dict[str, float] = {}
    measurement = outcome.measurement
    if measurement is not None:
        # What a failed trial had measured is kept, but never sorts among results.
        group = "partial/" if outcome.failure is not None else ""
        found.update({f"{group}{name}": value for name, value in measurement.metrics.items()})
        if len(measurement.points) > 1:
            for point in measurement.points:
                found.update({f"point {point.name}/{name}": value for name, value in point.metrics.items()})
        if measurement.objective is not None:
            found["objective/low"] = measurement.objective.low
            found["objective/high"] = measurement.objective.high
            found["objective/rounds"] = len(measurement.objective.samples)
        if measurement.bound is not None:
            found["objective/bound"] = measurement.bound
    if outcome.quality is not None:
        found.update(outcome.quality.metrics)
    if outcome.objective is not None and outcome.status is not Status.BEHIND:
        found["objective/value"] = outcome.objective
    if outcome.server is not None:
        found.update({f"start/{name}_s": value for name, value in outcome.server.phases.items()})
    found.update({f"seconds/{name}": value for name, value in outcome.seconds.items()})
    found.update({f"constraint/{name}": value for name, value in outcome.constraints.items()})
    return {legal(name): float(value) for name, value in found.items() if finite(value)}


def child_tags(outcome: Outcome, *, is_best: bool, hide: Mask, limits: Sequence[Limit] = ()) -> dict[str, str]:
    tags = {
        "state": outcome.status.value,
        "feasible": "yes" if outcome.feasible else "no",
        "origin": outcome.candidate.origin,
        "reason": reason(outcome, limits),
    }
    if is_best:
        tags["best_so_far"] = "yes"
    if outcome.failure is not None:
        tags["failure.class"] = outcome.failure.kind
        tags["failure.blame"] = outcome.failure.blame.value
        tags["failure.phase"] = outcome.failure.phase
        tags["failure.advice"] = outcome.failure.advice
    if outcome.exclusion is not None:
        tags["failure.class"] = f"excluded:{outcome.exclusion.rule}"
    if outcome.server is not None:
        tags["server.start"] = outcome.server.mode
        tags["server.version"] = outcome.server.version
        tags["server.differences"] = "; ".join(outcome.server.differences)
    return {name: cut(hide.text(text), TAG_LIMIT) for name, text in tags.items() if text}


def yaml_text(candidate: Candidate, model: str, hide: Mask) -> str:
    """The candidate as ``vllm serve --config`` reads it, its environment as a comment."""
    lines = [f"# {name}={value}" for name, value in mask_environment(candidate.environment).items()]
    head = "# environment:\n" + "\n".join(lines) + "\n" if lines else ""
    config = hide.json(serve_config(candidate, model))
    return hide.text(head) + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def command_text(outcome: Outcome, model: str, hide: Mask) -> str:
    """The exact command as it was started (secrets masked), and the same for a person to paste."""
    environment = mask_environment(outcome.candidate.environment)
    prefix = "".join(f"{name}={value} " for name, value in environment.items())
    lines = [prefix + serve_command(outcome.candidate, model)]
    if outcome.server is not None and outcome.server.command:
        lines = ["# as started:", prefix + " ".join(outcome.server.command), "", "# as a person would:", *lines]
    return hide.text("\n".join(lines) + "\n")


def study_params(info: StudyInfo, hide: Mask) -> dict[str, str]:
    """What was asked of the study: traffic, objective, limits, versions."""
    workload = info.workload
    found: dict[str, Any] = {
        "hardware": info.hardware,
        "model": info.model,
        "objective": "; ".join(
            f"{'maximise' if item.maximize else 'minimise'} {item.metric}" for item in (info.objective, *info.further)
        ),
        "limits": ", ".join(
            f"{limit.metric} {'<=' if limit.at_most else '>='} {limit.bound:g}" for limit in info.limits
        ),
        "workload/name": workload.name,
        "workload/source": workload.source,
        "workload/input_tokens": str(workload.input_tokens),
        "workload/output_tokens": str(workload.output_tokens),
        "workload/points": ", ".join(point.name for point in workload.points),
        **{f"version/{name}": version for name, version in info.versions.items()},
    }
    return {legal(name): cut(hide.text(str(value)), PARAM_LIMIT) for name, value in found.items() if value}


ROW_KEYS = frozenset(
    {
        "number",
        "key",
        "origin",
        "state",
        "feasible",
        "objective",
        "low",
        "high",
        "metrics",
        "seconds",
        "arguments",
        "environment",
        "assignment",
        "at",
    }
)
"""What a row of the study's table must have to be shown; others were written by another version."""


def row(number: int, outcome: Outcome, hide: Mask) -> dict[str, Any]:
    """The trial's line in the study's table, with all that the parent run shows of it."""
    candidate = outcome.candidate
    estimate = outcome.measurement.objective if outcome.measurement is not None else None
    return {
        "number": number,
        "key": candidate.key,
        "origin": candidate.origin,
        "state": outcome.status.value,
        "feasible": outcome.feasible,
        "objective": outcome.objective if finite(outcome.objective) else None,
        "low": estimate.low if estimate is not None and finite(estimate.low) else None,
        "high": estimate.high if estimate is not None and finite(estimate.high) else None,
        "metrics": {
            name: value
            for name, value in child_metrics(outcome).items()
            if name.split("/")[0] in ("throughput", "latency", "accuracy", "engine", "gpu", "cost")
        },
        "seconds": outcome.seconds.get("total"),
        "arguments": hide.json(dict(candidate.arguments)),
        "environment": hide.json(mask_environment(candidate.environment)),
        "assignment": hide.json(dict(candidate.assignment)),
        "reason": hide.text(reason(outcome)),
    }


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"
