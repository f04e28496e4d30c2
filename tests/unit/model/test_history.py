from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import pytest

from tuner.measuring.statistics import compare
from tuner.model.candidate import Candidate
from tuner.model.history import History, Trial
from tuner.model.measurement import Estimate, Measurement
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Objective

BASE = Candidate(assignment={}, arguments={}, origin="baseline")


def _candidate(x: int) -> Candidate:
    return Candidate(assignment={"x": x}, arguments={"x": x})


@dataclass
class Script:
    history: History

    def measured(self, candidate: Candidate, *samples: float, origin: str = "search", accuracy: float = -1.0) -> None:
        value = fmean(samples)
        self._add(
            origin,
            Outcome(
                candidate=candidate,
                status=Status.MEASURED,
                objective=value,
                measurement=Measurement(
                    metrics={}, objective=Estimate(value=value, low=value, high=value, samples=samples)
                ),
                constraints={"start": -1.0, "accuracy": accuracy},
                seconds={"total": 10.0},
            ),
        )

    def failed(self, candidate: Candidate, kind: str) -> None:
        failure = Failure(kind=kind, cause=kind, blame=Blame.CONFIGURATION)
        self._add("search", Outcome(candidate=candidate, status=Status.BROKEN, failure=failure, seconds={"total": 5.0}))

    def _add(self, origin: str, outcome: Outcome) -> None:
        self.history.add(Trial(number=len(self.history.trials), origin=origin, outcome=outcome))


@pytest.fixture
def script() -> Script:
    return Script(History(objective=Objective(), baseline_key=BASE.key))


def test_the_defaults_value_is_the_mean_of_their_trials_so_far(script: Script) -> None:
    assert script.history.default_value() is None
    script.measured(BASE, 100.0, origin="baseline")
    script.measured(_candidate(1), 130.0)
    script.measured(BASE, 104.0, origin="confirm")
    found, baseline = script.history.default_value(), script.history.baseline()
    assert found is not None
    assert baseline is not None
    assert (found.value, found.samples) == (baseline.value, (100.0, 104.0))


def test_once_confirmed_the_lucky_first_number_no_longer_counts(script: Script) -> None:
    script.measured(BASE, 100.0, origin="baseline")
    script.measured(_candidate(1), 130.0)
    script.measured(_candidate(1), 110.0, origin="confirm")
    script.measured(_candidate(1), 112.0, origin="confirm")
    winner = script.history.winner()
    assert winner is not None
    assert (winner.value, winner.confirmed, winner.number) == (111.0, 2, 1)


def test_a_confirmed_configuration_goes_before_a_lucky_unconfirmed_one(script: Script) -> None:
    script.measured(_candidate(1), 130.0)
    script.measured(_candidate(1), 110.0, origin="confirm")
    script.measured(_candidate(2), 140.0)
    winner = script.history.winner()
    assert winner is not None
    assert winner.candidate.assignment == {"x": 1}


def test_what_is_no_better_than_the_baseline_is_no_winner(script: Script) -> None:
    script.measured(BASE, 100.0, origin="baseline")
    script.measured(_candidate(1), 87.0)
    assert script.history.winner() is None
    best = script.history.best()
    assert best is not None
    assert best.candidate.key == BASE.key


def test_what_lost_accuracy_or_died_later_cannot_win(script: Script) -> None:
    script.measured(_candidate(1), 150.0)
    script.failed(_candidate(1), "cuda-oom")
    script.measured(_candidate(2), 140.0)
    script.measured(_candidate(2), 141.0, accuracy=0.04, origin="confirm")
    script.measured(_candidate(3), 120.0)
    assert [c.candidate.assignment["x"] for c in script.history.contenders()] == [3]


def test_two_starts_each_make_starts_the_samples(script: Script) -> None:
    for value in (100.0, 101.0):
        script.measured(BASE, value, value + 1, origin="baseline")
    for value in (150.0, 152.0):
        script.measured(_candidate(1), value, value + 1, origin="confirm")
    winner = script.history.winner()
    assert winner is not None
    judgement = script.history.judge(winner, compare)
    assert judgement is not None
    assert (judgement.basis, judgement.verdict) == ("starts", "better")
    assert judgement.gain == pytest.approx(0.5, abs=0.01)
    assert judgement.low < judgement.gain < judgement.high


def test_one_start_each_leaves_the_rounds_and_room_for_luck(script: Script) -> None:
    script.measured(BASE, 100.0, 100.1, 99.9, origin="baseline")
    script.measured(_candidate(1), 102.0, 102.1, 101.9)
    winner = script.history.winner()
    assert winner is not None
    judgement = script.history.judge(winner, compare)
    assert judgement is not None
    assert (judgement.basis, judgement.verdict) == ("rounds", "no significant difference")


def test_minimised_objectives_turn_everything_round(script: Script) -> None:
    script.history.objective = Objective(metric="latency/ttft_p99", maximize=False, unit="ms")
    script.measured(BASE, 100.0, origin="baseline")
    script.measured(_candidate(1), 80.0)
    script.measured(_candidate(2), 60.0)
    script.measured(_candidate(3), 120.0)
    winner = script.history.winner()
    assert winner is not None
    assert winner.value == 60.0


def test_the_same_cause_is_seen_only_in_a_row(script: Script) -> None:
    script.failed(_candidate(1), "a")
    script.failed(_candidate(2), "a")
    assert script.history.repeated_cause(3) is None
    script.measured(_candidate(3), 1.0)
    script.failed(_candidate(4), "a")
    assert script.history.repeated_cause(3) is None
    script.failed(_candidate(5), "a")
    script.failed(_candidate(6), "a")
    repeated = script.history.repeated_cause(3)
    assert repeated is not None
    assert repeated.failure is not None
    assert repeated.failure.kind == "a"


def test_spent_counts_failures_and_the_time_account_adds_up(script: Script) -> None:
    script.measured(BASE, 1.0, origin="baseline")
    script.failed(_candidate(1), "a")
    assert script.history.spent() == 2
    assert script.history.spent(since=1) == 1
    assert script.history.seconds() == 15.0
    assert script.history.typical_seconds() == 7.5
