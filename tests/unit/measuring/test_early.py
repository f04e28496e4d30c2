from __future__ import annotations

import itertools

import pytest

from tuner.measuring.early import BoundedRound, RoundWatch, best_possible, fastest_rate
from tuner.measuring.sampler import Sample

RACE = BoundedRound(
    amount=4000, tokens=4000, seats=8, earlier=(), reference=(400.0, 404.0, 396.0), looks=4, noise=0.01, alpha=0.05
)


def run(rate: float, seconds: int, *, finished_each: float = 1.0, start: int = 2) -> list[Sample]:
    """An idle server for ``start`` seconds (the client imports), then load at a constant rate."""
    idle = [Sample(float(t), 0, 0, 0, 100, 5, 10) for t in range(start)]
    busy = [
        Sample(float(start + t), 8, 0, 0.1, 100 + rate * t, 5 + finished_each * t, 10.0 + t) for t in range(seconds)
    ]
    return idle + busy


def test_nothing_is_known_before_the_load_comes() -> None:
    assert best_possible([], RACE) is None
    assert best_possible(run(100, 0, start=5), RACE) is None


def test_a_round_lasts_at_least_as_long_as_it_has_lasted() -> None:
    samples = run(100, 6, finished_each=0.0)
    assert best_possible(samples, RACE) == pytest.approx(4000 / 5)


def test_the_rest_is_no_faster_than_the_fastest_stretch() -> None:
    # 10 s at 100 tok/s with 9 requests answered: 900 done, 3100 to come at 100 x 1.03.
    samples = run(100, 10)
    assert best_possible(samples, RACE) == pytest.approx(4000 / (9 + 3100 / 103))
    open_loop = BoundedRound(**{name: getattr(RACE, name) for name in RACE.__slots__} | {"seats": 0})  # type: ignore[arg-type]
    assert best_possible(samples, open_loop) == pytest.approx(4000 / 9)


@pytest.mark.parametrize("rate", [50.0, 200.0, 300.0, 396.0, 500.0])
def test_the_bound_never_lies_below_the_truth(rate: float) -> None:
    """At a constant rate the round's true value is the rate itself."""
    for seconds in range(2, int(4000 / rate) + 1):
        bound = best_possible(run(rate, seconds), RACE)
        assert bound is not None
        assert bound >= rate * 0.999


def test_slow_round_is_ended_and_bounded() -> None:
    samples = run(200, 12)
    watch = RoundWatch(lambda: samples, RACE)
    assert not watch()
    assert watch.reason == "behind"
    assert watch.bound is not None
    assert 200 <= watch.bound < 300


def test_equal_round_goes_on_to_its_end() -> None:
    for seconds in range(1, 11):
        samples = run(400, seconds)
        watch = RoundWatch(lambda samples=samples: samples, RACE)  # type: ignore[misc]
        assert watch()


def test_without_a_reference_nothing_is_ended() -> None:
    samples = run(1, 100)
    assert RoundWatch(lambda: samples, None)()


def test_hang_is_told_from_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 60.0)
    monkeypatch.setattr("tuner.measuring.early.time.monotonic", lambda: next(clock))
    idle = [Sample(0.0, 0, 0, 0, 100, 5, 10)]
    watch = RoundWatch(lambda: idle, None, stall_s=100)
    assert all(watch() for _ in range(5))
    stuck = [Sample(0.0, 3, 2, 0, 100, 5, 10)]
    watch = RoundWatch(lambda: stuck, None, stall_s=100)
    assert [watch() for _ in range(4)] == [True, True, False, False]
    assert watch.reason == "hang"


def test_fastest_stretch_is_at_least_three_seconds_long() -> None:
    assert fastest_rate(run(100, 2, start=0)) == 0
    burst = [Sample(float(t), 1, 0, 0, generated, 0, 0) for t, generated in enumerate([0, 0, 0, 300, 300, 300, 300])]
    assert fastest_rate(burst) == pytest.approx(100)
