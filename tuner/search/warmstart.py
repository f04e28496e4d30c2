"""What earlier studies teach: down-weighted by distance, never trusted over new measurements.

Values come as ratios to their own study's baseline, so that only what a setting changes is carried over. Which earlier
trials a study uses is decided when it is made and kept with it: a resumed study suggests what the uninterrupted one
would have, whatever was tuned meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import optuna

from tuner.errors import InputError
from tuner.model.earlier import EarlierRuns
from tuner.model.json import Json, Scalar, canonical, finite
from tuner.model.outcome import Status
from tuner.model.workload import Limit
from tuner.search.distributions import Encoding
from tuner.search.ledger import figures_of, kept_facts, observation_of
from tuner.search.observations import Observation
from tuner.search.settings import assignment_of

__all__ = ["Earlier", "aligned", "from_runs", "from_studies", "keep", "kept", "likeness"]

_SAME, _OTHER_VERSION, _OTHER_WORKLOAD, _OTHER_MODEL = 0.3, 0.6, 0.5, 0.3
"""Weight of a trial of an identical study, and factors for what differs."""
_ASKED_FOR = 0.1
"""Least weight of a source that the user named, however unlike it is."""
_MOST = 60
_MOST_BYTES = 48_000
"""Of what is kept with the study (MySQL's limit for one attribute is 64 KiB)."""
_LEAST_WEIGHT = 0.03
_ATTRIBUTE = "tune:earlier"


@dataclass(frozen=True)
class Earlier:
    """Trials to start from, values as ratios to their own baseline, and where they come from in one line."""

    trials: tuple[Observation, ...] = ()
    note: str = ""
    sources: tuple[tuple[str, float, int], ...] = field(default=())


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


def from_studies(
    study: optuna.Study,
    *,
    objective: str,
    facts: Mapping[str, Json],
    encoded: Mapping[str, Encoding],
    name: str = "",
    limits: Sequence[Limit] = (),
) -> Earlier:
    """Measured trials of like studies for the same objective, the likest studies first, at most a few dozen.

    Only assignments that this space can say are taken. Failures are not: what could not start then may start now.
    Whatever limits their study had, trials are judged by this one's ``limits``.
    With a ``name``, that study alone, like or not.

    Raises:
        InputError: there is no study of that name, or it is of another objective.
    """
    storage = study._storage  # noqa: SLF001  (Optuna has no public way from a study to its neighbours)
    found: list[tuple[float, str]] = []
    for other in storage.get_all_studies():
        about = kept_facts(other.user_attrs)
        if other.study_name == study.study_name or (name and other.study_name != name):
            continue
        if about is None or about[0] != objective:
            if name:
                theirs = "nothing that tune knows" if about is None else about[0]
                raise InputError(f"--warm-start {name}: that study searched {theirs}, this one {objective}")
            continue
        weight = max(likeness(facts, about[1]), _ASKED_FOR if name else 0.0)
        if weight >= _LEAST_WEIGHT:
            found.append((weight, other.study_name))
    if name and not found:
        raise InputError(f"--warm-start {name}: the storage holds no other study of that name")
    sources: list[tuple[str, float, list[Observation]]] = []
    for weight, theirs in sorted(found, key=lambda pair: (-pair[0], pair[1])):
        if sum(len(items) for *_, items in sources) >= _MOST:
            break
        measured = []
        for trial in optuna.load_study(study_name=theirs, storage=storage).get_trials(False):
            item = observation_of(trial)
            if item is None or item.status is not Status.MEASURED or item.violations.get("accuracy", -1.0) > 0:
                continue
            measured.append(replace(item, violations=_violations(limits, figures_of(trial))))
        sources.append((theirs, weight, _relative(measured, weight, encoded)))
    return _joined(sources)


def from_runs(
    runs: EarlierRuns, *, facts: Mapping[str, Json], encoded: Mapping[str, Encoding], limits: Sequence[Limit] = ()
) -> Earlier:
    """Runs of another store (MLflow). Groups without a baseline are left out: nothing says how they compare.

    What a run set and this space cannot say is passed over; a run with a value that a parameter cannot take is
    left out.
    """
    sources: list[tuple[str, float, list[Observation]]] = []
    for group in dict.fromkeys(run.group for run in runs.runs):
        theirs = {**runs.facts.get(group, {}), "kind": facts.get("kind")}
        weight = max(likeness(facts, theirs), _ASKED_FOR)
        items: list[Observation] = []
        for run in runs.runs:
            assignment = assignment_of(run.settings, encoded) if run.group == group else None
            if assignment is not None:
                origin = "baseline" if run.baseline else "search"
                items.append(
                    Observation(
                        number=0,
                        assignment=assignment,
                        origin=origin,
                        status=Status.MEASURED,
                        value=run.value,
                        violations=_violations(limits, run.metrics),
                    )
                )
        sources.append((runs.source, weight, _relative(items, weight, encoded)))
    sources.sort(key=lambda source: -source[1])
    return _joined(sources, source=runs.source)


def aligned(earlier: Sequence[Observation], history: Sequence[Observation]) -> list[Observation]:
    """Earlier trials at this study's level: their values are ratios to their own baseline until now."""
    level = [item.value for item in history if item.origin == "baseline" and item.started and item.value]
    if not level or not earlier:
        return []
    scale = median(level)
    return [replace(item, value=item.value * scale) for item in earlier if item.value is not None]


def keep(study: optuna.Study, earlier: Earlier) -> None:
    """Write down what the study starts from."""
    rows: list[Json] = [
        [
            item.weight,
            item.value,
            dict(item.assignment),
            {k: v if finite(v) else None for k, v in item.violations.items()},
        ]
        for item in earlier.trials
    ]
    study.set_user_attr(_ATTRIBUTE, {"note": earlier.note, "trials": rows})


def kept(study: optuna.Study) -> Earlier | None:
    """What the study was started from; None if that was never decided. Damaged entries are left out."""
    found = study.user_attrs.get(_ATTRIBUTE)
    if not isinstance(found, Mapping):
        return None
    rows = found.get("trials")
    items: list[Observation] = []
    for row in rows if isinstance(rows, list) else []:
        if (
            isinstance(row, list)
            and len(row) in (3, 4)
            and finite(row[0])
            and finite(row[1])
            and isinstance(row[2], Mapping)
        ):
            over = row[3] if len(row) > 3 and isinstance(row[3], Mapping) else {}
            violations = {str(k): float(v) if finite(v) else math.nan for k, v in over.items()}
            items.append(_observation(len(items), row[2], float(row[1]), float(row[0]), violations))
    return Earlier(tuple(items), str(found.get("note", "")))


def _relative(measured: Sequence[Observation], weight: float, encoded: Mapping[str, Encoding]) -> list[Observation]:
    level = [item.value for item in measured if item.origin == "baseline" and item.value]
    if not level:
        return []  # without its own baseline nothing says how its values compare with ours
    scale = median(level)
    return [
        _observation(index, item.assignment, item.value / scale, weight, item.violations)
        for index, item in enumerate(measured)
        if item.value
        and math.isfinite(item.value / scale)
        and all(name in encoded and encoded[name].encode(value) is not None for name, value in item.assignment.items())
    ]


def _violations(limits: Sequence[Limit], figures: Mapping[str, float]) -> dict[str, float]:
    """By how much each limit was missed; not a number where its metric was not measured, which is not keeping it."""
    return {
        f"limit:{limit.metric}": limit.excess(figures[limit.metric]) if limit.metric in figures else math.nan
        for limit in limits
    }


def _observation(
    index: int, assignment: Mapping[str, Scalar], ratio: float, weight: float, violations: Mapping[str, float]
) -> Observation:
    # Negative numbers: these are no trials of this study.
    return Observation(
        number=-1 - index,
        assignment=dict(assignment),
        origin="earlier",
        status=Status.MEASURED,
        value=ratio,
        violations=dict(violations),
        weight=weight,
    )


def _joined(sources: Sequence[tuple[str, float, Sequence[Observation]]], source: str = "") -> Earlier:
    """The first few dozen, as many as can be kept with the study."""
    items: list[Observation] = []
    used: list[tuple[str, float, int]] = []
    size = 0
    for name, weight, trials in sources:
        count = len(items)
        # The best and the worst of a study teach most; of many, both ends are taken first.
        order = sorted(trials, key=lambda item: -abs(math.log(max(item.value or 1.0, 1e-9))))
        for item in order:
            size += len(canonical(dict(item.assignment))) + 60
            if len(items) < _MOST and size < _MOST_BYTES:
                items.append(item)
        if len(items) > count:
            used.append((name, weight, len(items) - count))
    numbered = tuple(replace(item, number=-1 - index) for index, item in enumerate(items))
    return Earlier(numbered, _note(used, source), tuple(used))


def _note(used: Sequence[tuple[str, float, int]], source: str) -> str:
    if not used:
        return f"warm start: {source} has no run that this study could learn from" if source else ""
    names = list(dict.fromkeys(name for name, *_ in used))
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    weights = sorted({round(weight, 2) for _, weight, _ in used}, reverse=True)
    spread = f"{weights[0]:g}" if len(weights) == 1 else f"{weights[-1]:g} to {weights[0]:g}"
    count = sum(number for *_, number in used)
    return f"warm start: {count} earlier trials of {shown}, at weight {spread} of an own trial (--warm-start none: off)"
