"""Reading runs back from MLflow, this program's and anybody's, for the warm start of a new study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tuner.errors import InputError, RunError
from tuner.model.earlier import EarlierRun, EarlierRuns
from tuner.model.json import Json
from tuner.model.secrets import mask
from tuner.tracking.store import Store, temporary_errors

__all__ = ["read_earlier"]

_MOST_RUNS, _MOST_PARAMS, _LONGEST = 1000, 300, 500
"""Runs that are read, parameters of a run that are looked at, characters of a value that still is a setting."""

_ASKED, _OURS = "asked/", ("effective/", "version/", "workload/")
_FACTS = {"hardware": "hardware", "model": "model", "version/vllm": "vllm", "workload/name": "workload"}


def read_earlier(uri: str, experiment: str, metric: str) -> EarlierRuns:
    """The newest finished runs of an experiment that have the metric, at most a thousand.

    Args:
        uri: the tracking store.
        experiment: name or id.
        metric: the objective's name, such as ``throughput/output``.

    Raises:
        InputError: the store holds no such experiment, or cannot be used.
        RunError: the store does not answer.
    """
    store = Store(uri, Path())
    try:
        store.connect()
        found = store.experiment_named(experiment)
        if found is None:
            raise InputError(f"--warm-start mlflow:{experiment}: {mask(uri)} holds no experiment of that name or id")
        runs = store.newest(found, _MOST_RUNS)
    except temporary_errors() as error:
        raise RunError(
            f"--warm-start mlflow:{experiment}: {mask(uri)} cannot be read ({mask(str(error))[:200]})"
        ) from None
    parents = {str(run.info.run_id): run for run in runs}
    read = [item for item in (_run(run, metric) for run in runs) if item is not None]
    groups = {item.group for item in read}
    facts = {group: _facts(parents[group]) for group in groups if group in parents}
    return EarlierRuns(source=f"MLflow experiment {experiment}", runs=read, facts=facts)


def _run(run: Any, metric: str) -> EarlierRun | None:
    """A run as settings and a value; None for one that measured nothing or was a study's own parent."""
    value = _metric(run.data.metrics, metric)
    tags, params = run.data.tags, run.data.params
    if value is None or tags.get("feasible") == "no" or tags.get("state") not in (None, "measured"):
        return None
    ours = any(name.startswith(_ASKED) for name in params) or "state" in tags
    settings = dict(_settings(params, ours=ours))
    origin = tags.get("origin")
    return EarlierRun(
        settings=settings,
        value=value,
        baseline=origin == "baseline" if origin is not None else not settings,
        group=str(tags.get("mlflow.parentRunId") or run.info.experiment_id),
        metrics={str(name): float(figure) for name, figure in run.data.metrics.items() if math.isfinite(figure)},
    )


def _settings(params: Mapping[str, str], *, ours: bool) -> Iterable[tuple[str, str]]:
    for name, text in list(params.items())[:_MOST_PARAMS]:
        if len(text) > _LONGEST:
            continue
        if name.startswith(_ASKED):
            yield name.removeprefix(_ASKED), text
        elif not ours and not name.startswith(_OURS):
            yield name.lstrip("-"), text


def _metric(metrics: Mapping[str, float], name: str) -> float | None:
    """By its name, or as people without slashes spell it."""
    for spelled in (name, name.replace("/", "_"), name.replace("/", ".")):
        value = metrics.get(spelled)
        if isinstance(value, int | float) and math.isfinite(value) and value > 0:
            return float(value)
    return None


def _facts(parent: Any) -> dict[str, Json]:
    params = parent.data.params
    return {fact: params[name] for name, fact in _FACTS.items() if name in params}
