from __future__ import annotations

import math

import pytest

from tests.unit.search.helpers import KEPT, measured
from tuner.model.candidate import Candidate, Exclusion
from tuner.model.json import Json
from tuner.model.measurement import Measurement
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.search.observations import observation_from
from tuner.search.outcomes import tell_sampler, worst_value

NAMES = ("start", "accuracy", "limit:latency/ttft_p99")
CANDIDATE = Candidate(assignment={}, arguments={})
FAILURE = Failure(kind="cuda-oom", cause="1.5 GiB missing", blame=Blame.CONFIGURATION, violation=1.5)


def outcome(status: Status, **changes: object) -> Outcome:
    return Outcome(candidate=CANDIDATE, status=status, **{"constraints": KEPT, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [Status.MEASURED, Status.DUPLICATE])
def test_a_measured_value_is_told_as_it_is(status: Status) -> None:
    told = tell_sampler(outcome(status, objective=120.0), names=NAMES, worst=10.0)
    assert (told.complete, told.value, told.measured) == (True, 120.0, True)
    assert list(told.constraints) == list(NAMES)
    assert all(value <= 0 for value in told.constraints.values())


def test_a_missed_limit_keeps_its_value_and_its_grade() -> None:
    graded = {**KEPT, "limit:latency/ttft_p99": 0.4}
    told = tell_sampler(outcome(Status.MEASURED, objective=500.0, constraints=graded), names=NAMES, worst=10.0)
    assert told.value == 500.0
    assert told.constraints["limit:latency/ttft_p99"] == 0.4


def test_stopped_early_is_told_as_its_bound() -> None:
    measurement = Measurement(metrics={}, objective=None, bound=80.0, complete=False)
    told = tell_sampler(outcome(Status.BEHIND, objective=70.0, measurement=measurement), names=NAMES, worst=10.0)
    assert (told.complete, told.value) == (True, 80.0)


def test_its_own_fault_is_the_worst_value_with_a_graded_violation() -> None:
    graded = {"start": 1.5, "accuracy": -1.0}
    told = tell_sampler(outcome(Status.BROKEN, failure=FAILURE, constraints=graded), names=NAMES, worst=10.0)
    assert (told.complete, told.value, told.measured) == (True, 10.0, False)
    assert told.constraints == {"start": 1.5, "accuracy": -1.0, "limit:latency/ttft_p99": -1.0}


def test_excluded_is_told_like_broken() -> None:
    exclusion = Exclusion(reason="24 GiB missing", rule="memory", violation=24.0)
    told = tell_sampler(
        outcome(Status.EXCLUDED, exclusion=exclusion, constraints={"start": 24.0}), names=NAMES, worst=3.0
    )
    assert (told.value, told.constraints["start"]) == (3.0, 24.0)


def test_a_fault_that_nobody_graded_is_still_a_violation() -> None:
    told = tell_sampler(outcome(Status.BROKEN, failure=FAILURE), names=NAMES, worst=10.0)
    assert told.constraints["start"] == 1.0


def test_garbage_with_a_fast_value_does_not_win() -> None:
    told = tell_sampler(outcome(Status.BROKEN, objective=9999.0, failure=FAILURE), names=NAMES, worst=10.0)
    assert told.value == 10.0


@pytest.mark.parametrize("status", [Status.DISTURBED, Status.INTERRUPTED])
def test_the_machines_fault_says_nothing(status: Status) -> None:
    told = tell_sampler(outcome(status, objective=120.0), names=NAMES, worst=10.0)
    assert (told.complete, told.value, dict(told.constraints)) == (False, None, {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_is_told_is_finite(value: float | None) -> None:
    graded = {"start": math.nan, "accuracy": math.inf}
    told = tell_sampler(outcome(Status.MEASURED, objective=value, constraints=graded), names=NAMES, worst=10.0)
    assert told.value == 10.0
    assert all(math.isfinite(item) for item in told.constraints.values())
    assert told.constraints["start"] == 1.0


def test_every_status_is_decided() -> None:
    for status in Status:
        told = tell_sampler(outcome(status, objective=5.0), names=NAMES, worst=1.0)
        assert told.complete == (status not in (Status.DISTURBED, Status.INTERRUPTED))


def test_worst_value() -> None:
    assert worst_value([3.0, 1.0, 2.0], maximize=True) == 1.0
    assert worst_value([3.0, 1.0, 2.0], maximize=False) == 3.0
    assert worst_value([], maximize=True) == 0.0
    assert worst_value([], maximize=False) > 1000


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ({"status": "of a newer version"}, {}),
        ({"status": "measured", "steps": [[1, None], ["a", 2], [4, 0.5]], "objective": 1.0}, {}),
        ({"status": "measured"}, {"assignment": {"a": [1], "b": 2}}),
        ({"status": 5, "metrics": 7, "further": {}}, {"assignment": 5, "origin": []}),
    ],
)
def test_damaged_records_are_read_as_far_as_they_go(told: dict[str, Json], asked: dict[str, Json]) -> None:
    found = observation_from(number=3, asked=asked, told=told, violations={})
    assert found.status in (Status.INTERRUPTED, Status.MEASURED)
    assert found.steps == (((4.0, 0.5),) if "steps" in told else ())
    assert dict(found.assignment) == ({"b": 2} if isinstance(asked.get("assignment"), dict) else {})


def test_large_values_stay_apart() -> None:
    """Bytes, or tokens a year: whatever is finite is told as it is."""
    told = [
        tell_sampler(measured(Candidate(assignment={}, arguments={}), value), names=(), worst=0.0).value
        for value in (1e15, 2e15)
    ]
    assert told == [1e15, 2e15]
