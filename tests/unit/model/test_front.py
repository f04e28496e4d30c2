from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from tuner.measuring.statistics import compare
from tuner.model.candidate import Candidate
from tuner.model.front import favourites, pareto_front
from tuner.model.history import History, Trial
from tuner.model.intervals import mean_estimate
from tuner.model.measurement import Measurement, PointResult, QualityReport
from tuner.model.outcome import Outcome, Status
from tuner.model.summary import front_summary
from tuner.model.tables import front_lines, front_table
from tuner.model.workload import Objective

BASE = Candidate(assignment={}, arguments={}, origin="baseline")
OUTPUT, TTFT = "throughput/output", "latency/ttft_p99"
LATENCY = Objective(metric=TTFT, maximize=False, unit="ms")


@dataclass
class Trade:
    history: History = field(
        default_factory=lambda: History(objective=Objective(), baseline_key=BASE.key, further=(LATENCY,))
    )

    def add(
        self,
        x: int,
        output: float,
        ttft: float,
        *,
        origin: str = "search",
        limit: float = -1.0,
        rounds: int = 3,
        accuracy: float | None = None,
    ) -> None:
        who = Candidate(assignment={"x": x}, arguments={"x": x}) if x else BASE
        spread = [1 + 0.004 * (index - 1) for index in range(rounds)] if rounds > 1 else [1.0]
        estimates = {
            OUTPUT: mean_estimate([output * s for s in spread]),
            TTFT: mean_estimate([ttft * s for s in spread]),
        }
        metrics = {name: estimate.value for name, estimate in estimates.items()}
        outcome = Outcome(
            candidate=who,
            status=Status.MEASURED,
            objective=output,
            measurement=Measurement(
                metrics=metrics,
                objective=estimates[OUTPUT],
                points=(PointResult(name="c8", metrics=metrics, estimates=estimates, rounds=rounds),),
            ),
            quality=None
            if accuracy is None
            else QualityReport(passed=True, metrics={"accuracy/score": accuracy, "accuracy/score_se": 0.02}),
            constraints={"start": -1.0, "limit:x": limit},
        )
        self.history.add(Trial(number=len(self.history.trials), origin=origin, outcome=outcome))


@pytest.fixture
def trade() -> Trade:
    """Trial 1 is fast, 2 is quick to answer, 3 is even, 4 is beaten by 3, 5 misses a limit."""
    made = Trade()
    made.add(0, 100.0, 100.0, origin="baseline")
    made.add(1, 200.0, 180.0)
    made.add(2, 110.0, 40.0)
    made.add(3, 180.0, 60.0)
    made.add(4, 170.0, 70.0)
    made.add(5, 500.0, 10.0, limit=0.4)
    return made


def test_the_front_is_what_no_feasible_configuration_beats_in_both(trade: Trade) -> None:
    front = pareto_front(trade.history, compare)
    assert front is not None
    assert [point.contender.number for point in front.points] == [1, 3, 2]
    assert [point.roles for point in front.points] == [(f"best {OUTPUT}",), ("knee",), (f"best {TTFT}",)]
    assert [value.value for value in front.points[1].values] == pytest.approx([180.0, 60.0])
    assert front.points[1].values[1].low == pytest.approx(60 - 0.596, abs=0.01)


def test_the_defaults_stand_behind_what_is_better_in_every_objective(trade: Trade) -> None:
    front = pareto_front(trade.history, compare)
    assert front is not None
    assert not front.baseline_on_front
    assert front.beaten_by == (3, 2)
    assert front_lines(front_summary(front), {"x": 3}) == [
        "vLLM's defaults are behind the front: better in every objective measured trials 3, 2.",
        "trial 1: x=1",
        "trial 3: vLLM's defaults",
        "trial 2: x=2",
    ]


def test_gains_are_judged_per_objective_and_less_of_a_latency_is_a_gain(trade: Trade) -> None:
    front = pareto_front(trade.history, compare)
    assert front is not None
    fast = front.points[0].judgements
    assert [j.verdict for j in fast if j] == ["better", "worse"]
    assert [round(j.gain, 3) for j in fast if j] == [1.0, -0.8]


def test_the_defaults_may_be_on_the_front_themselves() -> None:
    made = Trade()
    made.add(0, 100.0, 20.0, origin="baseline")
    made.add(1, 200.0, 90.0)
    front = pareto_front(made.history, compare)
    assert front is not None
    assert front.baseline_on_front
    assert front.beaten_by == ()
    table = front_table(front_summary(front))
    assert table.columns == ("trial", "throughput (tok/s)", "gain", "ttft_p99 (ms)", "gain", "which is")
    assert [row[5] for row in table.rows] == ["best throughput, not confirmed", "vLLM's defaults, best ttft_p99"]


def test_a_study_with_one_objective_has_no_front(trade: Trade) -> None:
    trade.history.further = ()
    assert pareto_front(trade.history, compare) is None
    assert favourites(trade.history) == []


def test_worth_confirming_are_the_ends_and_the_knee(trade: Trade) -> None:
    assert [c.number for c in favourites(trade.history)] == [1, 2, 3]


def test_one_number_of_a_latency_tail_is_compared_with_nothing() -> None:
    made = Trade()
    made.add(0, 100.0, 100.0, origin="baseline", rounds=1)
    made.add(1, 200.0, 90.0, rounds=1)
    front = pareto_front(made.history, compare)
    assert front is not None
    assert front.points[0].judgements[1] is None
    assert json.loads(json.dumps(front_summary(front), allow_nan=False))["points"][0]["values"][1]["low"] is None


def test_accuracy_as_an_objective_keeps_its_own_standard_error() -> None:
    made = Trade()
    made.history.further = (Objective(metric="accuracy/score", unit=""),)
    made.add(0, 100.0, 1.0, origin="baseline", accuracy=0.7)
    made.add(1, 200.0, 1.0, accuracy=0.65)
    made.add(1, 201.0, 1.0, origin="confirm", accuracy=0.65)
    made.add(1, 202.0, 1.0, origin="confirm", accuracy=0.65)
    made.add(2, 300.0, 1.0)
    front = pareto_front(made.history, compare)
    assert front is not None
    assert [point.contender.number for point in front.points] == [1, 0], "trial 4 has no accuracy"
    accuracy = front.points[0].values[1]
    assert (accuracy.low, accuracy.high) == pytest.approx((0.65 - 0.0392, 0.65 + 0.0392))
    assert front.points[0].judgements[1] is None


def test_a_lucky_number_does_not_push_off_what_was_confirmed(trade: Trade) -> None:
    trade.add(3, 179.0, 60.5, origin="confirm")
    trade.add(3, 179.5, 60.3, origin="confirm")
    trade.add(6, 179.9, 60.0)
    front = pareto_front(trade.history, compare)
    assert front is not None
    assert [point.contender.number for point in front.points] == [1, 8, 3, 2]
    trade.add(7, 190.0, 50.0)
    front = pareto_front(trade.history, compare)
    assert front is not None
    assert [point.contender.number for point in front.points] == [1, 9, 2], "beyond doubt"
