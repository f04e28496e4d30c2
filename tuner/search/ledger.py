"""What is written into Optuna's storage around the trials themselves, and read back from it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache

import optuna
import psutil
from optuna.trial import FrozenTrial, TrialState

from tuner.errors import InputError
from tuner.model.json import Json, JsonObject
from tuner.model.outcome import Status
from tuner.model.workload import Limit, Objective
from tuner.ports import Past
from tuner.search.observations import Observation, numbers_in, observation_from

__all__ = [
    "ASKED",
    "RECORD",
    "TOLD",
    "bind",
    "kept_facts",
    "objective_text",
    "observation_of",
    "owner",
    "owner_alive",
    "past_of",
    "told_values",
]

ASKED = "tune:asked"
"""Trial attribute: assignment, origin, identity, owner. Written when the trial is opened."""
TOLD = "tune:told"
"""Trial attribute: status, objective and the facts the models use. Written last before the trial is closed."""
RECORD = "tune:record"
"""Trial attribute: the caller's record."""

_STUDY = "tune:study"
_FORMAT = 1


def bind(
    study: optuna.Study,
    *,
    digest: str,
    objective: Objective,
    limits: Sequence[Limit],
    facts: Mapping[str, Json],
    further: Sequence[Objective] = (),
) -> None:
    """Tie a new study to what it searches, or check that an old one searches the same.

    Raises:
        InputError: the study of that name belongs to another space, to other objectives or to other limits.
    """
    wanted: dict[str, Json] = {
        "format": _FORMAT,
        "space": digest,
        "objective": objective_text(objective, further),
        "limits": [asdict(limit) for limit in limits],
    }
    kept = study.user_attrs.get(_STUDY)
    if kept is None:
        if any(ASKED not in trial.user_attrs for trial in study.get_trials(deepcopy=False)):
            raise InputError(
                f"study {study.study_name!r} holds trials that this program did not make; use another study name"
            )
        study.set_user_attr(_STUDY, {**wanted, "facts": dict(facts)})
        return
    before = str(kept.get("objective")) if isinstance(kept, Mapping) else "none"
    for key, what in (
        ("format", "another layout"),
        ("space", "another search space"),
        ("objective", f"another objective ({before}, now {wanted['objective']})"),
        ("limits", "other limits"),
    ):
        if not isinstance(kept, Mapping) or kept.get(key) != wanted[key]:
            raise InputError(
                f"study {study.study_name!r} was made with {what}; it is kept as it is: "
                f"go on under a new study name, such as {study.study_name}-{digest[:6]}"
            )


def objective_text(objective: Objective, further: Sequence[Objective] = ()) -> str:
    """How a study spells its objectives."""
    return " + ".join(f"{'max' if item.maximize else 'min'} {item.metric}" for item in (objective, *further))


def kept_facts(attributes: Mapping[str, object]) -> tuple[str, dict[str, Json]] | None:
    """Objective and facts of a study from its attributes; None if it is none of ours."""
    kept = attributes.get(_STUDY)
    facts = kept.get("facts") if isinstance(kept, Mapping) else None
    return (
        (str(kept.get("objective")), dict(facts)) if isinstance(kept, Mapping) and isinstance(facts, Mapping) else None
    )


@cache
def owner() -> dict[str, Json]:
    """The running process, so that another one can tell whether it still lives."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": psutil.Process().create_time()}


def owner_alive(trial: FrozenTrial, *, elsewhere: bool) -> bool:
    """Whether the process that opened ``trial`` still runs; ``elsewhere`` answers for other hosts."""
    asked = trial.user_attrs.get(ASKED)
    who = asked.get("owner") if isinstance(asked, Mapping) else None
    if not isinstance(who, Mapping):
        return False
    if who.get("host") != socket.gethostname():
        return elsewhere
    pid, since = who.get("pid"), who.get("since")
    if not isinstance(pid, int) or not isinstance(since, int | float):
        return False
    try:
        return abs(psutil.Process(pid).create_time() - since) < 1.0
    except psutil.Error:
        return False


def observation_of(trial: FrozenTrial) -> Observation | None:
    """What the models learn from a closed trial; None if nothing."""
    asked, told = _mapping(trial, ASKED), _mapping(trial, TOLD)
    if asked is None or told is None or not trial.state.is_finished():
        return None
    return observation_from(number=trial.number, asked=asked, told=told, violations=dict(trial.constraints))


def figures_of(trial: FrozenTrial) -> dict[str, float]:
    """Every metric that a closed trial measured, accuracy included; none where its record was cut too short."""
    record = _mapping(trial, RECORD) or {}
    found: dict[str, float] = {}
    for part in (record.get("quality"), record.get("measurement")):
        found |= numbers_in(part.get("metrics") if isinstance(part, Mapping) else None)
    return found


def told_values(trial: FrozenTrial) -> list[float]:
    """One value per objective, as they were to be told when the process that ran the trial was killed."""
    told = _mapping(trial, TOLD) or {}
    kept = told.get("values", [told.get("value")])
    return [float(value) for value in kept if isinstance(value, int | float)] if isinstance(kept, list) else []


def past_of(trial: FrozenTrial) -> Past:
    """A closed trial as the study sees it."""
    asked, told, record = _mapping(trial, ASKED) or {}, _mapping(trial, TOLD) or {}, _mapping(trial, RECORD) or {}
    assignment = asked.get("assignment")
    objective = told.get("objective")
    return Past(
        number=trial.number,
        assignment=dict(assignment) if isinstance(assignment, Mapping) else {},  # type: ignore[arg-type]
        origin=str(asked.get("origin", "search")),
        status=str(told.get("status", Status.INTERRUPTED)),
        objective=float(objective) if isinstance(objective, int | float) else None,
        constraints=dict(trial.constraints) if trial.state == TrialState.COMPLETE else {},
        record=record,
    )


def _mapping(trial: FrozenTrial, key: str) -> JsonObject | None:
    value = trial.user_attrs.get(key)
    return value if isinstance(value, Mapping) else None
