"""What the search remembers of a trial: small, and read back from the storage without the full record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.model.json import Json, JsonObject, Scalar, canonical, finite
from tuner.model.outcome import Outcome, Status

__all__ = ["Observation", "facts_of", "numbers_in", "observation_from", "shrunk"]

_METRICS = (
    "engine/running_mean",
    "engine/running_max",
    "engine/preemptions",
    "engine/kv_usage_max",
    "engine/acceptance_rate",
    "engine/acceptance_length",
    "engine/step_ms",
)
_EFFECTIVE = ("kv-cache-tokens",)
_MOST_STEPS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One closed trial, as the models of the search see it.

    Attributes:
        value: the objective, or the bound where the trial was stopped early (``status`` is ``behind``).
        violations: constraint name → graded violation, ≤ 0 kept.
        identity: the planner's key of what would really run.
        cause: fingerprint of the failure or name of the rule, empty where there was none.
        message: the failure in words; what it names is suspected first.
        start_s: seconds to a ready server, None where unknown.
        total_s: wall seconds of the whole trial, None where unknown.
        metrics: figures of the running server that feed the mechanism.
        steps: (running batch, seconds per decode step) pairs.
        weight: 1 for this study's own trials, less for those of earlier studies.
        resolved: settings of the space that ran otherwise than asked, or where nothing was asked; None where no server
            said anything.
        further: values of the objectives beside the first, None where one was not measured.
    """

    number: int
    assignment: Mapping[str, Scalar]
    origin: str
    status: Status
    value: float | None
    violations: Mapping[str, float] = field(default_factory=dict)
    identity: str = ""
    cause: str = ""
    message: str = ""
    start_s: float | None = None
    total_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[tuple[float, float], ...] = ()
    weight: float = 1.0
    resolved: Mapping[str, Scalar] | None = None
    further: tuple[float | None, ...] = ()

    @property
    def started(self) -> bool:
        """The server came up and was measured."""
        return self.value is not None and self.status in (Status.MEASURED, Status.BEHIND, Status.DUPLICATE)

    @property
    def broken(self) -> bool:
        return self.status is Status.BROKEN or (self.status is Status.DUPLICATE and self.value is None)

    @property
    def feasible(self) -> bool:
        return self.started and all(violation <= 0 for violation in self.violations.values())


def facts_of(outcome: Outcome) -> dict[str, Json]:
    """The outcome's facts that the search models use, as JSON."""
    facts: dict[str, Json] = {"status": str(outcome.status)}
    if outcome.failure is not None:
        facts["cause"] = outcome.failure.fingerprint[:200]
        facts["message"] = outcome.failure.cause[:400]
    elif outcome.exclusion is not None:
        facts["cause"] = f"rule:{outcome.exclusion.rule}"[:200]
    if outcome.twin is not None:
        facts["twin"] = outcome.twin
    for phase in ("start", "total"):
        seconds = outcome.seconds.get(phase)
        if finite(seconds):
            facts[f"{phase}_s"] = seconds
    if outcome.measurement is not None:
        metrics = outcome.measurement.metrics
        facts["metrics"] = {name: metrics[name] for name in _METRICS if finite(metrics.get(name))}
        facts["steps"] = [[*pair] for pair in outcome.measurement.steps[:_MOST_STEPS] if all(map(finite, pair))]
    if outcome.server is not None:
        effective = outcome.server.effective
        facts["effective"] = {name: effective[name] for name in _EFFECTIVE if finite(effective.get(name))}
    return facts


def observation_from(
    *, number: int, asked: JsonObject, told: JsonObject, violations: Mapping[str, float], identity: str = ""
) -> Observation:
    """Read what :func:`facts_of` wrote. Unknown or damaged entries are left out, never fatal."""
    metrics = numbers_in(told.get("metrics")) | {
        f"effective/{k}": v for k, v in numbers_in(told.get("effective")).items()
    }
    steps = told.get("steps")
    pairs = [pair for pair in steps if _is_step(pair)] if isinstance(steps, list) else []
    value = told.get("objective")
    assignment = asked.get("assignment")
    return Observation(
        number=number,
        assignment=_scalars(assignment),
        origin=str(asked.get("origin", "search")),
        status=_status(told.get("status")),
        value=float(value) if isinstance(value, int | float) and finite(value) else None,
        violations=violations,
        identity=identity or str(asked.get("identity", "")),
        cause=str(told.get("cause", "")),
        message=str(told.get("message", "")),
        start_s=_number(told.get("start_s")),
        total_s=_number(told.get("total_s")),
        metrics=metrics,
        steps=tuple((float(a), float(b)) for a, b in pairs),
        resolved=_scalars(told["resolved"]) if "resolved" in told else None,
        further=_further(told.get("further")),
    )


def shrunk(record: Mapping[str, Json], limit: int) -> dict[str, Json]:
    """``record`` small enough for the storage: long strings and lists are cut, the structure stays."""
    if len(canonical(record)) <= limit:
        return dict(record)
    for characters, items in ((2000, 64), (500, 16), (100, 4), (20, 1)):
        smaller = _cut(record, characters, items)
        if isinstance(smaller, dict) and len(canonical(smaller)) <= limit:
            return {**smaller, "shortened": True}
    return {"shortened": True}


def _cut(value: Json, characters: int, items: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= characters else value[:characters] + "…"
    if isinstance(value, Mapping):
        return {key: _cut(item, characters, items) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_cut(item, characters, items) for item in value[:items]]
    return value


def _further(value: object) -> tuple[float | None, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(float(item) if isinstance(item, int | float) and finite(item) else None for item in value)


def _status(value: object) -> Status:
    """One that is not known (a newer version's) says no more than that the trial ended."""
    try:
        return Status(str(value))
    except ValueError:
        return Status.INTERRUPTED


def _is_step(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, int | float) and finite(x) for x in pair)


def _scalars(assignment: object) -> dict[str, Scalar]:
    if not isinstance(assignment, Mapping):
        return {}
    return {str(name): value for name, value in assignment.items() if isinstance(value, str | int | float)}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and finite(value) else None


def numbers_in(value: object) -> dict[str, float]:
    """The finite numbers of a JSON object; none of anything else."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): float(item) for key, item in value.items() if finite(item)}
