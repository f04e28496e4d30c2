"""What every Optimizer must do, whatever samples behind it and wherever it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.search.helpers import SmallPlanner, broken, measured, small_space
from tuner.errors import RunError
from tuner.model.outcome import Outcome, Status
from tuner.model.records import from_record, to_record
from tuner.ports import Optimizer
from tuner.search import OptunaOptimizer

SPACE = small_space()
PLANNER = SmallPlanner(SPACE)


@pytest.fixture(params=["tune", "tpe", "random"])
def sampler(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite:///{}/s.db", "journal:///{}/s.journal"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def opened(url: str, sampler: str) -> Optimizer:
    return OptunaOptimizer(SPACE, PLANNER, storage=url, study_name="contract", sampler=sampler, seed=7)


def closed(optimizer: Optimizer, number: int, outcome: Outcome) -> None:
    optimizer.tell(number, outcome, to_record(outcome))


def test_ask_tell_past(url: str, sampler: str) -> None:
    optimizer = opened(url, sampler)
    baseline = optimizer.ask("baseline", {})
    closed(optimizer, baseline.number, measured(PLANNER.baseline(), 100.0))
    identities = {PLANNER.identity(PLANNER.baseline())}
    for index in range(4):
        suggestion = optimizer.ask()
        candidate = PLANNER.render(suggestion.assignment)
        assert dict(candidate.assignment) == dict(suggestion.assignment), "a suggestion names what exists, no more"
        assert PLANNER.identity(candidate) not in identities, "nothing is paid for twice"
        identities.add(PLANNER.identity(candidate))
        outcome = broken(candidate) if index == 1 else measured(candidate, 100.0 + index)
        closed(optimizer, suggestion.number, outcome)
        with pytest.raises(RunError):
            closed(optimizer, suggestion.number, outcome)
    past = opened(url, sampler).past()
    told = [item for item in past if item.record]
    assert [from_record(item.record).status for item in told] == [item.status for item in told]
    assert {item.status for item in told} == {"measured", "broken"}
    assert [item.number for item in past] == sorted(item.number for item in past)
    assert len({tuple(item.constraints) for item in past}) == 1, "the same constraints in the same order"
    gain = optimizer.expected_gain()
    assert gain is None or gain >= 0
    asked = told[-1].assignment
    plainer = optimizer.plainer(asked)
    assert plainer is None or plainer.items() < asked.items()


def test_the_machines_fault_is_kept_but_teaches_nothing(url: str, sampler: str) -> None:
    optimizer = opened(url, sampler)
    suggestion = optimizer.ask()
    candidate = PLANNER.render(suggestion.assignment)
    closed(optimizer, suggestion.number, Outcome(candidate=candidate, status=Status.DISTURBED))
    (past,) = optimizer.past()
    assert (past.status, past.objective, dict(past.constraints)) == ("disturbed", None, {})
    assert dict(optimizer.ask().assignment) == dict(suggestion.assignment)
