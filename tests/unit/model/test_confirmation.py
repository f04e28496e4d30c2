from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tuner.model.candidate import Candidate
from tuner.model.confirmation import finalists, pairs_for, reserve_for
from tuner.model.history import History, Trial
from tuner.model.intervals import mean_estimate
from tuner.model.measurement import Measurement, PointResult
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.patience import hopeless
from tuner.model.workload import Objective

BASE = Candidate(assignment={}, arguments={}, origin="baseline")
LATENCY = Objective(metric="latency/ttft_p99", maximize=False, unit="ms")


def candidate(x: int) -> Candidate:
    return Candidate(assignment={"x": x}, arguments={"x": x}) if x else BASE


@dataclass
class Book:
    history: History = field(default_factory=lambda: History(objective=Objective(), baseline_key=BASE.key))

    def add(self, x: int, *values: float, ttft: float = 1.0, origin: str = "search") -> Book:
        """One value per load point."""
        points = tuple(
            PointResult(
                name=f"c{index}",
                metrics={"throughput/output": value},
                estimates={"throughput/output": mean_estimate([value, value * 1.001])},
            )
            for index, value in enumerate(values)
        )
        mean = sum(values) / len(values)
        outcome = Outcome(
            candidate=candidate(x),
            status=Status.MEASURED,
            objective=mean,
            measurement=Measurement(
                metrics={"throughput/output": mean, "latency/ttft_p99": ttft},
                objective=mean_estimate([mean]),
                points=points,
            ),
        )
        return self._add(origin, outcome)

    def failed(self, x: int, kind: str = "oom", blame: Blame = Blame.CONFIGURATION) -> Book:
        failure = Failure(kind=kind, cause=f"{kind} at 3 GiB", blame=blame, advice="Do less.")
        return self._add("search", Outcome(candidate=candidate(x), status=Status.BROKEN, failure=failure))

    def _add(self, origin: str, outcome: Outcome) -> Book:
        self.history.add(Trial(number=len(self.history.trials), origin=origin, outcome=outcome))
        return self

    def next(self, *, left: int | None = None, total: int = 12) -> list[object]:
        return [c.assignment["x"] for c in finalists(self.history, (), left=left, total=total)]


@pytest.mark.parametrize(("total", "pairs"), [(0, 2), (12, 2), (30, 2), (45, 3), (60, 4), (500, 4)])
def test_a_larger_budget_confirms_with_more_pairs(total: int, pairs: int) -> None:
    assert pairs_for(total) == pairs


@pytest.mark.parametrize(
    ("total", "questions", "reserve"),
    [(1, 1, 0), (4, 1, 0), (5, 1, 2), (12, 1, 4), (40, 1, 4), (60, 1, 8), (60, 5, 12), (24, 5, 6), (12, 5, 4)],
)
def test_the_reserve_is_in_pairs_and_at_most_half(total: int, questions: int, reserve: int) -> None:
    assert reserve_for(total, questions=questions) == reserve
    assert reserve <= max((total - 1) / 2, 0)


def test_the_best_is_started_until_it_has_its_pairs() -> None:
    book = Book().add(0, 100.0, origin="baseline").add(1, 150.0).add(2, 140.0)
    assert book.next() == [1]
    book.add(1, 149.0, origin="confirm")
    assert book.next() == [1]
    book.add(1, 148.0, origin="confirm")
    assert book.next() == []
    assert book.next(total=45) == [1]


def test_whoever_was_started_once_is_started_again_before_anybody_new() -> None:
    book = Book().add(0, 100.0, origin="baseline").add(1, 150.0).add(2, 140.0).add(1, 120.0, origin="confirm")
    assert book.next(left=2) == [1]
    assert book.next(left=6, total=60) == [1]
    book.add(1, 121.0, origin="confirm")
    assert book.next(left=4) == [2], "two pairs are left for the one that looks better now"
    assert book.next(left=3) == []


def test_every_load_points_best_is_confirmed_where_the_budget_does_for_it() -> None:
    book = Book().add(0, 10.0, 100.0, origin="baseline").add(1, 30.0, 90.0).add(2, 11.0, 200.0)
    assert book.next(left=None) == [2, 1]
    assert book.next(left=6) == [2, 1]
    assert book.next(left=5) == [2], "one start of it would prove nothing"
    book.add(2, 11.0, 200.0, origin="confirm").add(1, 30.0, 90.0, origin="confirm")
    assert sorted(map(str, book.next(left=3))) == ["1", "2"]
    assert len(book.next(left=2)) == 1


def test_the_ends_and_the_knee_of_a_front_are_confirmed() -> None:
    book = Book(History(objective=Objective(), baseline_key=BASE.key, further=(LATENCY,)))
    book.add(0, 100.0, ttft=100.0, origin="baseline").add(1, 200.0, ttft=180.0)
    book.add(2, 110.0, ttft=40.0).add(3, 180.0, ttft=60.0)
    assert book.next() == [1, 2, 3]
    assert book.next(left=6) == [1, 2]


def test_nothing_measured_is_nothing_to_confirm() -> None:
    assert Book().next() == []
    assert Book().add(0, 100.0, origin="baseline").next() == []


def test_a_dead_region_is_no_reason_to_end() -> None:
    book = Book().add(0, 100.0, origin="baseline").add(1, 150.0)
    for x in range(2, 17):
        book.failed(x)
    assert hopeless(book.history) is None
    book.failed(17)
    assert (
        hopeless(book.history) == "16 candidates in a row failed alike (the space is at fault): oom at 3 GiB. Do less."
    )


def test_while_only_the_defaults_ran_eight_are_enough() -> None:
    book = Book().add(0, 100.0, origin="baseline")
    for x in range(1, 8):
        book.failed(x)
    assert hopeless(book.history) is None
    assert hopeless(book.failed(7).history) is None, "the same choice again tells nothing new"
    assert (hopeless(book.failed(8).history) or "").startswith("8 candidates in a row")


def test_another_cause_or_a_measurement_in_between_begins_anew() -> None:
    book = Book().add(0, 100.0, origin="baseline").failed(1, blame=Blame.USER).failed(2, blame=Blame.USER)
    assert hopeless(book.failed(3, "other", Blame.USER).history) is None
    book.failed(4, "other", Blame.USER)
    assert "the input is at fault" in (hopeless(book.failed(5, "other", Blame.USER).history) or "")
    assert hopeless(book.add(6, 120.0).history) is None


class TestAsGoodWithFewerSettings:
    """``y`` beside ``x`` is what may be left out."""

    def _next(self, base: float, whole: float, part: float, *, maximize: bool = True) -> object:
        objective = Objective() if maximize else LATENCY
        history = History(objective=objective, baseline_key=BASE.key)
        for assignment, value in (({}, base), ({"x": 1, "y": 2}, whole), ({"x": 1}, part)):
            asked = Candidate(assignment=assignment, arguments=dict(assignment))
            outcome = Outcome(
                candidate=asked,
                status=Status.MEASURED,
                objective=value,
                measurement=Measurement(metrics={}, objective=mean_estimate([value]), points=()),
            )
            history.add(Trial(number=len(history.trials), origin="search", outcome=outcome))
        (found,) = finalists(history, (), left=4, total=12)
        return dict(found.assignment)

    @pytest.mark.parametrize(
        ("base", "whole", "part", "fewer"),
        [
            (100, 200, 198, True),
            (100, 200, 196, False),
            (100, 101.2, 99.97, False),
            (100, 101.2, 101.0, True),
            (100, 104, 102.9, False),
        ],
    )
    def test_little_may_be_given_away_and_of_a_small_gain_less(
        self, base: float, whole: float, part: float, fewer: bool
    ) -> None:
        assert self._next(base, whole, part) == ({"x": 1} if fewer else {"x": 1, "y": 2})
        turned = (10_000 / base, 10_000 / whole, 10_000 / part)
        assert self._next(*turned, maximize=False) == ({"x": 1} if fewer else {"x": 1, "y": 2})
