"""Known truth: intervals cover, equal is called equal, different is found, looking often costs nothing."""

from __future__ import annotations

import math
import random

import pytest

from tuner.measuring.statistics import (
    clearly_behind,
    clearly_breaks,
    compare,
    compare_paired,
    compare_so_far,
    estimate,
    relative_half_width,
    spending,
    weighted,
)
from tuner.model.workload import Limit


def draw(rng: random.Random, mean: float, noise: float, number: int) -> list[float]:
    return [rng.gauss(mean, noise * mean) for _ in range(number)]


def test_interval_is_students_t() -> None:
    # Mean 10, standard deviation 1 (n - 1), t(0.975, df 2) = 4.302653.
    value = estimate([9.0, 10.0, 11.0])
    assert value.value == pytest.approx(10)
    assert value.high - value.value == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    assert value.low == pytest.approx(20 - value.high)
    assert relative_half_width(value) == pytest.approx(4.302653 / math.sqrt(3) / 10, rel=1e-5)


def test_one_round_says_nothing_of_spread() -> None:
    value = estimate([5.0])
    assert (value.value, value.low, value.high) == (5.0, -math.inf, math.inf)
    assert relative_half_width(value) == math.inf


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf]])
def test_samples_must_be_finite_numbers(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="samples"):
        estimate(bad)


def test_interval_covers_the_truth_at_its_level() -> None:
    rng = random.Random(1)
    inside = 0
    for _ in range(1000):
        value = estimate(draw(rng, 400, 0.02, 4))
        inside += value.low <= 400 <= value.high
    assert 930 <= inside <= 970  # 950 expected, standard deviation 7


def test_baseline_against_itself_is_called_different_at_most_once_in_twenty() -> None:
    rng = random.Random(7)
    different = [
        sum(
            compare(draw(rng, 400, 0.02, 4), draw(rng, 400, 0.02, 4), True).verdict != "no significant difference"
            for _ in range(20)
        )
        for _ in range(100)
    ]
    assert sum(count <= 1 for count in different) >= 95
    assert sum(different) <= 40  # 1 % of 2000 is 20, standard deviation 4.5


@pytest.mark.parametrize(("noise", "rounds"), [(0.005, 3), (0.01, 5), (0.02, 10)])
def test_five_percent_faster_is_found(noise: float, rounds: int) -> None:
    rng = random.Random(11)
    found = sum(
        compare(draw(rng, 400, noise, rounds), draw(rng, 420, noise, rounds), True).verdict == "better"
        for _ in range(200)
    )
    assert found >= 180


def test_verdict_and_numbers_agree() -> None:
    result = compare([100.0, 101.0, 99.0, 100.0], [110.0, 111.0, 109.0, 110.0], True)
    assert result.verdict == "better"
    assert result.gain == pytest.approx(0.10)
    assert 0 < result.low < 0.10 < result.high
    assert result.p < 0.01


def test_smaller_is_better_when_minimizing() -> None:
    slow, fast = [50.0, 51.0, 49.5, 50.2], [40.0, 40.5, 39.7, 40.1]
    assert compare(slow, fast, maximize=False).verdict == "better"
    assert compare(slow, fast, maximize=True).verdict == "worse"
    assert compare(slow, fast, maximize=False).gain == pytest.approx(0.2, abs=0.01)


def test_p_value_matches_a_published_example() -> None:
    # scipy.stats.ttest_ind([1,2,3,4,5], [2,4,6,8,10], equal_var=False): t = -1.897, p = 0.1075.
    result = compare([1.0, 2, 3, 4, 5], [2.0, 4, 6, 8, 10], True)
    assert result.p == pytest.approx(0.107531, abs=1e-5)


def test_single_rounds_decide_nothing_unless_the_noise_is_known() -> None:
    blind = compare([100.0], [150.0], True)
    assert (blind.verdict, blind.p, blind.low) == ("no significant difference", 1.0, -math.inf)
    assert compare([100.0], [150.0], True, noise=0.02).verdict == "better"
    assert compare([100.0], [102.0], True, noise=0.02).verdict == "no significant difference"


def test_noise_between_starts_widens_the_interval() -> None:
    a, b = [100.0, 100.1, 99.9], [101.0, 101.1, 100.9]
    assert compare(a, b, True).verdict == "better"
    assert compare(a, b, True, noise=0.01).verdict == "no significant difference"


def test_samples_without_any_spread() -> None:
    assert compare([5.0, 5.0], [5.0, 5.0], True).verdict == "no significant difference"
    assert compare([5.0, 5.0], [6.0, 6.0], True).verdict == "better"


def test_pairs_cancel_drift() -> None:
    rng = random.Random(3)
    drift = [100 * 1.05**turn for turn in range(6)]
    a = [value * rng.gauss(1, 0.002) for value in drift]
    b = [value * 1.02 * rng.gauss(1, 0.002) for value in drift]
    assert compare(a, b, True).verdict == "no significant difference"
    assert compare_paired(a, b, True).verdict == "better"
    with pytest.raises(ValueError, match="pairs"):
        compare_paired(a, b[:-1], True)


def test_spent_error_adds_up() -> None:
    shares = [spending(0.05, look, 6) for look in range(1, 7)]
    assert sum(shares) == pytest.approx(0.05)
    assert shares == sorted(shares)
    with pytest.raises(ValueError, match="look"):
        spending(0.05, 7, 6)


def test_looking_after_every_round_keeps_the_error_rate() -> None:
    rng = random.Random(5)
    wrong = 0
    for _ in range(500):
        a, b = draw(rng, 400, 0.02, 6), draw(rng, 400, 0.02, 6)
        wrong += any(
            compare_so_far(a[:look], b[:look], True, look=look, looks=6, alpha=0.05).verdict
            != "no significant difference"
            for look in range(2, 7)
        )
    assert wrong <= 40  # at most 25 expected, standard deviation 5


def test_equal_challenger_is_rarely_called_behind() -> None:
    rng = random.Random(9)
    stopped = 0
    for _ in range(1000):
        reference, mine = draw(rng, 400, 0.02, 4), draw(rng, 400, 0.02, 6)
        stopped += any(clearly_behind(mine[:look], reference, True, looks=6) for look in range(1, 7))
    assert stopped <= 65  # at most 50 expected, standard deviation 7


def test_slow_challenger_is_stopped_after_one_round() -> None:
    rng = random.Random(13)
    stopped = sum(
        clearly_behind(draw(rng, 300, 0.01, 1), draw(rng, 400, 0.01, 4), True, looks=6, noise=0.01) for _ in range(100)
    )
    assert stopped >= 95


def test_behind_works_for_latency_and_needs_a_reference() -> None:
    assert clearly_behind([80.0, 81.0], [50.0, 50.5, 49.5], False, looks=4)
    assert not clearly_behind([40.0, 41.0], [50.0, 50.5, 49.5], False, looks=4)
    assert not clearly_behind([1.0], [], True, looks=4)
    assert not clearly_behind([1.0], [100.0], True, looks=4)
    assert clearly_behind([1.0], [100.0], True, looks=4, noise=0.02)


def test_limit_is_broken_only_beyond_doubt() -> None:
    limit = Limit(metric="latency/ttft_p99", bound=500)
    assert not clearly_breaks([], limit, looks=4)
    assert not clearly_breaks([900.0], limit, looks=4)
    assert clearly_breaks([900.0, 910.0, 905.0], limit, looks=4)
    assert not clearly_breaks([510.0, 495.0, 520.0], limit, looks=4)
    assert not clearly_breaks([100.0, 101.0, 100.0], limit, looks=4)
    assert clearly_breaks([1.0, 1.1, 0.9], Limit(metric="throughput/requests", bound=5, at_most=False), looks=4)


def test_points_are_weighted() -> None:
    value = weighted([(3.0, [10.0, 12.0]), (1.0, [100.0, 100.0])])
    assert value.value == pytest.approx(0.75 * 11 + 25)
    assert value.samples == (pytest.approx(32.5), pytest.approx(34.0))
    # Only the first point varies: half-width is 0.75 times its own.
    alone = estimate([10.0, 12.0])
    assert value.high - value.value == pytest.approx(0.75 * (alone.high - alone.value))
    with pytest.raises(ValueError, match="weights"):
        weighted([(0.0, [1.0])])


# Recorded on one H200 (vLLM 0.25.1, Qwen3-30B-A3B shape, closed loop of 256): output tok/s of two runs each.
H200_DEFAULT = (8730.8, 8722.1)
H200_SEQS_256 = (9555.9, 9527.8)
# Six runs of one configuration on a DGX Spark, as reported in public (6.9 % from lowest to highest).
SPARK = (35.3, 35.7, 34.7, 35.2, 36.1, 37.1)


def test_recorded_gain_is_found_and_recorded_noise_is_not() -> None:
    assert compare(H200_DEFAULT, H200_SEQS_256, True, alpha=0.05).verdict == "better"
    assert compare(H200_DEFAULT, H200_SEQS_256, True).gain == pytest.approx(0.0935, abs=1e-4)
    assert compare(SPARK[:3], SPARK[3:], True).verdict == "no significant difference"
    assert clearly_behind(H200_DEFAULT[:1], H200_SEQS_256, True, looks=6, noise=0.01)


def test_recorded_runs_against_themselves_twenty_times() -> None:
    rng = random.Random(21)
    different = found = 0
    for _ in range(20):
        # Resampled from the recorded runs, a round a draw; the challenger is as fast, or 5 % faster.
        a, b = ([rng.choice(SPARK) * rng.gauss(1, 0.002) for _ in range(8)] for _ in range(2))
        different += compare(a, b, True).verdict != "no significant difference"
        found += compare(a, [1.05 * value for value in b], True).verdict == "better"
    assert different <= 1
    assert found >= 18


def test_what_scatters_around_nothing_says_nothing_of_the_other_side() -> None:
    """Goodput of 0.0065 ± 250 % against 1.6 ± 0.2 %: the one's relative scatter made of the other "not significant"."""
    defaults, winner = [0.0003, 0.0041, 0.0151], [1.599, 1.601]
    judged = compare(defaults, winner, True, alike=True)
    assert judged.verdict == "better"
    assert judged.low > 100
    assert compare(winner, defaults, True, alike=True).verdict == "worse"


@pytest.mark.parametrize(
    ("defaults", "winner", "maximize"),
    [([100, 101], [600, 560], True), ([100, 101, 99], [600, 560], True), ([2000, 1900], [300, 301], False)],
)
def test_a_gain_of_several_times_is_found_with_two_starts(
    defaults: list[float], winner: list[float], maximize: bool
) -> None:
    assert compare(defaults, winner, maximize, alike=True).verdict == "better"


def test_two_starts_a_side_decide_where_both_scatter_alike() -> None:
    """Two CPU cores: 469 and 445 tok/s against 300, 303 and 288 were no significant difference to Welch."""
    defaults, winner = (300.2, 303.0, 288.4), (468.7, 445.3)
    assert compare(defaults, winner, True).verdict == "no significant difference"
    judged = compare(defaults, winner, True, alike=True)
    assert judged.verdict == "better"
    assert (judged.low, judged.high) == (pytest.approx(0.323, abs=0.001), pytest.approx(0.752, abs=0.001))


@pytest.mark.parametrize(("count_a", "count_b"), [(2, 2), (3, 2), (4, 4)])
def test_alike_keeps_its_error_rate(count_a: int, count_b: int) -> None:
    rng = random.Random(7)
    wrong = 0
    for _ in range(2000):
        a = [rng.gauss(300, 9) for _ in range(count_a)]
        b = [rng.gauss(300, 9) for _ in range(count_b)]
        wrong += compare(a, b, True, alike=True).verdict != "no significant difference"
    assert wrong <= 34  # 20 are expected at 1 %, 34 are exceeded with probability 0.002


def test_each_sides_interval_stands_on_the_spread_of_the_gains() -> None:
    reference, challenger = [99.0, 100.0, 101.0], [198.0, 202.0]
    apart = compare(reference, challenger, True)
    assert apart.halves == pytest.approx([(e.high - e.low) / 2 for e in (estimate(reference), estimate(challenger))])
    alike = compare(reference, challenger, True, alike=True)
    error = math.sqrt((2 * 0.01**2 + 2 * 0.01**2) / 3)
    assert alike.halves == pytest.approx((318.2 * error / math.sqrt(3), 636.5 * error / math.sqrt(2)), rel=1e-3)
    assert compare([100.0], [110.0], True).halves == (math.inf, math.inf)
    assert compare([100.0], [110.0], True, noise=0.01).halves == pytest.approx((1.96, 2.156), rel=1e-3)
    assert compare([100.0, 100.0], [110.0, 110.0], True).halves == (0.0, 0.0)
