from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from statistics import fmean

import pytest

from tuner.measuring.statistics import compare
from tuner.model.candidate import Candidate
from tuner.model.history import History, Trial
from tuner.model.intervals import mean_estimate
from tuner.model.loads import load_answers, load_favourites
from tuner.model.measurement import Measurement, PointResult, QualityReport
from tuner.model.outcome import Outcome, Status
from tuner.model.projection import at_load, estimate_of, load_names
from tuner.model.summary import loads_summary, summarise
from tuner.model.tables import loads_lines, loads_table, markdown
from tuner.model.workload import Limit, Objective

BASE = Candidate(assignment={}, arguments={}, origin="baseline")
CHECKED = QualityReport(passed=True, metrics={"accuracy/score": 0.6})
OUTPUT, TTFT = "throughput/output", "latency/ttft_p99"


def candidate(x: int) -> Candidate:
    return Candidate(assignment={"x": x}, arguments={"x": x})


@dataclass
class Sweep:
    """Writes trials that measured c1 and c8: mean throughput with ± 0.5 % over three rounds, and a TTFT."""

    history: History = field(default_factory=lambda: History(objective=Objective(), baseline_key=BASE.key))

    def add(
        self,
        who: Candidate,
        c1: float,
        c8: float,
        *,
        ttft: tuple[float, float] = (10.0, 80.0),
        origin: str = "search",
        status: Status = Status.MEASURED,
        quality: QualityReport | None = CHECKED,
        rounds: int = 3,
    ) -> None:
        points = []
        for name, value, tail in (("c1", c1, ttft[0]), ("c8", c8, ttft[1])):
            steps = [value * (1 + 0.005 * (index - 1)) for index in range(3)][:rounds] if rounds > 1 else [value]
            estimates = {OUTPUT: mean_estimate(steps), TTFT: mean_estimate([tail] * rounds)}
            metrics = {metric: estimate.value for metric, estimate in estimates.items()}
            points.append(PointResult(name=name, metrics=metrics, estimates=estimates, rounds=rounds))
        metrics = {metric: fmean(point.metrics[metric] for point in points) for metric in (OUTPUT, TTFT)}
        outcome = Outcome(
            candidate=who,
            status=status,
            objective=metrics[OUTPUT],
            measurement=Measurement(metrics=metrics, objective=None, points=tuple(points)),
            quality=quality,
            constraints={"start": -1.0, "accuracy": -1.0},
            seconds={"total": 10.0},
        )
        self.history.add(Trial(number=len(self.history.trials), origin=origin, outcome=outcome))


@pytest.fixture
def sweep() -> Sweep:
    """Defaults, one that is best alone (trial 1), one that is best in company and over both (trial 2)."""
    made = Sweep()
    made.add(BASE, 50.0, 200.0, origin="baseline")
    made.add(candidate(1), 90.0, 190.0)
    made.add(candidate(2), 52.0, 300.0)
    return made


def test_each_load_has_its_own_best_and_the_study_its_single_one(sweep: Sweep) -> None:
    alone, company = load_answers(sweep.history, (), compare)
    assert (alone.name, company.name) == ("c1", "c8")
    assert alone.best is not None
    assert company.best is not None
    assert (alone.best.number, company.best.number) == (1, 2)
    assert alone.best.value == pytest.approx(90.0)
    assert alone.judgement is not None
    assert alone.judgement.verdict == "better"
    assert alone.judgement.gain == pytest.approx(0.8)
    assert alone.single is not None
    assert alone.single.number == 2
    assert alone.single_judgement is not None
    assert alone.single_judgement.gain == pytest.approx(0.04)


def test_one_load_point_has_no_answer_per_load(sweep: Sweep) -> None:
    trial = sweep.history.trials[0]
    assert trial.outcome.measurement is not None
    single = Measurement(metrics={OUTPUT: 1.0}, objective=None, points=trial.outcome.measurement.points[:1])
    outcome = Outcome(candidate=BASE, status=Status.MEASURED, objective=1.0, measurement=single)
    history = History(
        objective=Objective(), baseline_key=BASE.key, trials=[Trial(number=0, origin="b", outcome=outcome)]
    )
    assert load_names(history) == ()
    assert load_answers(history, (), compare) == ()


def test_a_gain_within_the_spread_is_said_to_be_none(sweep: Sweep) -> None:
    sweep.history.trials.clear()
    sweep.add(BASE, 50.0, 200.0, origin="baseline")
    sweep.add(candidate(1), 50.1, 201.0)
    answer = load_answers(sweep.history, (), compare)[0]
    assert answer.best is not None
    assert answer.judgement is not None
    assert answer.judgement.verdict == "no significant difference"


def test_the_best_of_many_needs_a_larger_gain_than_the_only_one() -> None:
    only, many = Sweep(), Sweep()
    for made in (only, many):
        made.add(BASE, 50.0, 200.0, origin="baseline")
        made.add(candidate(1), 52.0, 200.0)
    for x in range(2, 40):
        many.add(candidate(x), 49.0, 199.0)
    first, second = load_answers(only.history, (), compare)[0], load_answers(many.history, (), compare)[0]
    assert (first.picked_of, second.picked_of) == (1, 39)
    assert first.judgement is not None
    assert second.judgement is not None
    assert second.judgement.high - second.judgement.low > first.judgement.high - first.judgement.low


def test_a_limit_counts_where_it_is_missed_only(sweep: Sweep) -> None:
    # The mean over both points (45 ms) keeps 50 ms, c8 (80 ms) does not.
    limit = Limit(metric=TTFT, bound=50.0)
    alone, company = load_answers(sweep.history, (limit,), compare)
    assert alone.best is not None
    assert company.best is None
    assert company.baseline is None
    rows = loads_table(loads_summary((alone, company)), "tok/s").rows
    assert rows[1][1:3] == ("misses a limit", "nothing better")


def test_what_was_stopped_early_still_answers_for_its_load_but_its_accuracy_is_open(sweep: Sweep) -> None:
    sweep.add(candidate(3), 120.0, 60.0, status=Status.BEHIND, quality=None, rounds=1)
    alone = load_answers(sweep.history, (), compare)[0]
    assert alone.best is not None
    assert alone.best.number == 3
    assert alone.accuracy_unchecked
    assert "c1: trial 3 (the best looking of 3, not confirmed; accuracy not checked): x=3" in loads_lines(
        loads_summary([alone])
    )
    assert [c.number for c in load_favourites(sweep.history, ())] == [3, 2]


def test_a_tie_with_the_winner_at_one_load_is_not_worth_two_starts(sweep: Sweep) -> None:
    sweep.add(candidate(6), 90.4, 310.0)
    assert [c.number for c in load_favourites(sweep.history, ())] == [3, 3]
    sweep.add(candidate(7), 80.0, 311.0)  # the best in company alone, by a third of a percent
    assert [c.number for c in load_favourites(sweep.history, ())] == [3, 3]
    sweep.add(candidate(8), 92.0, 200.0)  # two percent better alone
    assert [c.number for c in load_favourites(sweep.history, ())] == [5, 3]


def test_what_loses_to_the_defaults_at_a_load_is_no_tie_there() -> None:
    made = Sweep()
    made.add(BASE, 100.0, 100.0, origin="baseline")
    made.add(candidate(1), 99.7, 300.0)  # the winner over both
    made.add(candidate(2), 100.4, 90.0)
    assert [c.number for c in load_favourites(made.history, ())] == [2, 1]


def test_a_confirmed_best_stands_until_another_is_better_beyond_doubt(sweep: Sweep) -> None:
    sweep.add(candidate(1), 88.0, 190.0, origin="confirm")
    sweep.add(candidate(1), 88.4, 190.0, origin="confirm")
    sweep.add(candidate(4), 88.9, 100.0)
    assert (best := load_answers(sweep.history, (), compare)[0].best) is not None
    assert best.number == 1
    sweep.add(candidate(5), 130.0, 100.0)
    assert (best := load_answers(sweep.history, (), compare)[0].best) is not None
    assert best.number == 6


def test_accuracy_lost_anywhere_rules_a_configuration_out_at_every_load(sweep: Sweep) -> None:
    sweep.add(candidate(7), 500.0, 500.0, quality=QualityReport(passed=False, reason="worse"))
    assert all(
        answer.best is not None and answer.best.number != 3 for answer in load_answers(sweep.history, (), compare)
    )


def test_the_summary_is_json_and_the_table_reads_as_markdown(sweep: Sweep) -> None:
    answers = load_answers(sweep.history, (), compare)
    summary = summarise(sweep.history, None, loads=answers)
    assert json.loads(json.dumps(summary, allow_nan=False))["loads"][0]["best"]["assignment"] == {"x": 1}
    assert "loads" not in summarise(sweep.history, None)
    text = markdown(loads_table(loads_summary(answers), "tok/s"))
    assert "| c1 | 50 ±1.2% | 90 ±1.2% | #1 | +80.0% | +74.0 to +86.0% | better | +4.0% |" in text
    assert "| verdict | #2 there |" in text
    assert loads_lines(loads_summary(answers)) == [
        "Best single one over all loads (by the study's objective): trial 2.",
        "c1: trial 1 (the best looking of 2, not confirmed): x=1",
        "c8: trial 2 (the best looking of 2, not confirmed): x=2",
        "±: half of a value's 95 % interval.",
    ]
    assert loads_lines(loads_summary(answers), {"x": 1})[1].endswith("vLLM's defaults")


def test_a_value_is_as_sure_as_the_gain_that_it_makes() -> None:
    """Two starts alone said ±10.3 %, beside a gain of +84.6 to +101.6 % by the scatter of both sides."""
    made = Sweep()
    for factor in (0.99, 1.0, 1.01):
        made.add(BASE, 50.0 * factor, 200.0, origin="baseline")
    made.add(candidate(1), 91.0, 190.0)
    for factor in (0.99, 1.01):
        made.add(candidate(1), 90.0 * factor, 190.0, origin="confirm")
    first = loads_summary(load_answers(made.history, (), compare))[0]
    assert isinstance(first, dict)
    row = loads_table([first], "tok/s").rows[0]
    # The relative variance 0.0002 over three starts of freedom (0.01 twice on each side); t of 95 % is 3.182.
    spread = math.sqrt((2 * 0.01**2 + 2 * 0.01**2) / 3)
    assert row[1] == f"50 ±{3.182 * spread / math.sqrt(3):.1%}"
    assert row[2] == f"90 ±{3.182 * spread / math.sqrt(2):.1%}"
    assert first["judgement"]["low"] == pytest.approx(0.8 - 5.841 * spread * math.sqrt(1 / 3 + 1.8**2 / 2), rel=1e-3)


def test_a_metric_over_points_is_their_weighted_mean_with_the_rounds_spread(sweep: Sweep) -> None:
    found = estimate_of(sweep.history.trials[0].outcome, OUTPUT)
    assert found is not None
    assert found.samples == pytest.approx((124.375, 125.0, 125.625))
    assert found.value == pytest.approx(125.0)
    assert found.low == pytest.approx(125.0 - 4.303 * 0.625 / math.sqrt(3), abs=1e-3)
    accuracy = estimate_of(sweep.history.trials[0].outcome, "accuracy/score")
    assert accuracy is not None
    assert (accuracy.value, accuracy.low) == (0.6, -math.inf)
    assert estimate_of(sweep.history.trials[0].outcome, "gpu/power_w") is None


def test_a_projection_leaves_the_study_as_it_is(sweep: Sweep) -> None:
    here = at_load(sweep.history, "c8", ())
    assert (here.baseline() or pytest.fail("no baseline")).value == pytest.approx(200.0)
    assert (sweep.history.baseline() or pytest.fail("no baseline")).value == pytest.approx(125.0)
