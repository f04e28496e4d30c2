"""What earlier studies in the same storage teach: down-weighted by distance, never trusted over new measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import optuna

from tuner.model.json import Json
from tuner.model.outcome import Status
from tuner.search.distributions import Encoding
from tuner.search.ledger import kept_facts, observation_of
from tuner.search.observations import Observation

__all__ = ["aligned", "earlier_trials", "likeness"]

_SAME, _OTHER_VERSION, _OTHER_WORKLOAD, _OTHER_MODEL = 0.3, 0.6, 0.5, 0.3
"""Weight of a trial of an identical study, and factors for what differs."""
_MOST = 60
_LEAST_WEIGHT = 0.03


def likeness(mine: Mapping[str, Json], theirs: Mapping[str, Json]) -> float:
    """Weight of another study's trials, from the facts that both keep: 0 where nothing carries over.

    Facts compared: ``hardware`` and ``kind`` (must agree), ``model``, ``family``, ``vllm`` (version) and
    ``workload``. What either side does not say counts as different.
    """

    def same(key: str) -> bool:
        return mine.get(key) is not None and mine.get(key) == theirs.get(key)

    if mine.get("kind") != theirs.get("kind"):
        return 0.0  # a replayed table is no machine
    if not same("hardware") or not (same("model") or same("family")):
        return 0.0
    weight = _SAME * (1.0 if same("model") else _OTHER_MODEL)
    return weight * (1.0 if same("vllm") else _OTHER_VERSION) * (1.0 if same("workload") else _OTHER_WORKLOAD)


def earlier_trials(
    study: optuna.Study, *, objective: str, facts: Mapping[str, Json], encoded: Mapping[str, Encoding]
) -> list[Observation]:
    """Measured trials of like studies for the same objective, the likest studies first, at most a few dozen.

    Only assignments that this space can say are taken. Failures are not: what could not start then may start now.
    """
    storage = study._storage  # noqa: SLF001  (Optuna has no public way from a study to its neighbours)
    found: list[tuple[float, str]] = []
    for other in storage.get_all_studies():
        kept = kept_facts(other.user_attrs)
        if other.study_name == study.study_name or kept is None or kept[0] != objective:
            continue
        weight = likeness(facts, kept[1])
        if weight >= _LEAST_WEIGHT:
            found.append((weight, other.study_name))
    out: list[Observation] = []
    for weight, name in sorted(found, key=lambda pair: (-pair[0], pair[1])):
        if len(out) >= _MOST:
            break
        other_study = optuna.load_study(study_name=name, storage=storage)
        out += _relative(other_study, weight, encoded)[: _MOST - len(out)]
    return out


def aligned(earlier: Sequence[Observation], history: Sequence[Observation]) -> list[Observation]:
    """Earlier trials at this study's level: their values are ratios to their own baseline until now."""
    level = [item.value for item in history if item.origin == "baseline" and item.started and item.value]
    if not level or not earlier:
        return []
    scale = median(level)
    return [replace(item, value=item.value * scale) for item in earlier if item.value is not None]


def _relative(study: optuna.Study, weight: float, encoded: Mapping[str, Encoding]) -> list[Observation]:
    trials = [observation_of(trial) for trial in study.get_trials(deepcopy=False)]
    measured = [item for item in trials if item is not None and item.status is Status.MEASURED and item.feasible]
    level = [item.value for item in measured if item.origin == "baseline" and item.value]
    if not level:
        return []  # without its own baseline nothing says how its values compare with ours
    scale = median(level)
    usable = [
        item
        for item in measured
        if item.value
        and math.isfinite(item.value / scale)
        and all(name in encoded and encoded[name].encode(value) is not None for name, value in item.assignment.items())
    ]
    return [
        # Negative numbers: these are no trials of this study.
        replace(item, number=-1 - index, origin="earlier", value=(item.value or 0.0) / scale, weight=weight)
        for index, item in enumerate(usable)
    ]
