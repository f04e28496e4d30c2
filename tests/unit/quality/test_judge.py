from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.quality.judge import ALLOWED_DROP, paired_drop, verdict


def answers(bits: str) -> dict[str, float]:
    return {str(index): float(bit) for index, bit in enumerate(bits)}


def test_drop_counts_only_where_the_two_differ() -> None:
    drop = paired_drop(answers("1" * 60 + "0" * 40), answers("1" * 50 + "0" * 10 + "1" * 4 + "0" * 36))
    assert (drop.lost, drop.gained, drop.count) == (10, 4, 100)
    assert drop.value == pytest.approx(0.06)
    # By hand: b = 10.5, c = 4.5, n = 102.
    assert drop.se == pytest.approx(math.sqrt(15 - 36 / 102) / 102)
    assert drop.low == pytest.approx(6 / 102 - 1.6448536 * drop.se)


def test_identical_answers_pass_but_are_not_certainty() -> None:
    drop = paired_drop(answers("10" * 150), answers("10" * 150))
    assert drop.value == 0
    assert 0 < drop.se < 0.01
    found = verdict(drop)
    assert found.passed
    assert found.excess < 0


def test_only_shared_questions_are_compared() -> None:
    drop = paired_drop({"a": 1.0, "b": 1.0, "old": 1.0}, {"a": 1.0, "b": 0.0, "new": 0.0})
    assert (drop.count, drop.lost) == (2, 1)
    with pytest.raises(ValueError, match="no question"):
        paired_drop({"a": 1.0}, {"b": 1.0})


def test_graded_answers_use_the_sample_error() -> None:
    base = {str(i): 0.5 + 0.01 * (i % 5) for i in range(50)}
    drop = paired_drop(base, {key: value - 0.1 for key, value in base.items()})
    assert drop.value == pytest.approx(0.1)
    assert drop.se == pytest.approx(0.0, abs=1e-12)
    assert not verdict(drop).passed


def test_garbage_fails_with_a_grade_and_a_reason() -> None:
    found = verdict(paired_drop(answers("1" * 230 + "0" * 74), answers("1" * 90 + "0" * 214)))
    assert not found.passed
    assert 0.35 < found.excess < 0.46
    assert "140 lost, 0 gained" in found.reason
    assert "1.0% is allowed" in found.reason


def test_other_text_alone_is_no_failure_but_with_a_significant_drop_it_is() -> None:
    base = answers("1" * 200 + "0" * 100)
    slight = paired_drop(base, answers("1" * 195 + "0" * 105))
    assert 0 < slight.low < ALLOWED_DROP
    assert verdict(slight, agreement=0.6, floor=0.95).passed
    found = verdict(slight, agreement=0.05, floor=0.95)
    assert not found.passed
    assert found.excess > 0
    assert "agreement 5%" in found.reason
    assert verdict(paired_drop(base, base), agreement=0.05, floor=0.95).passed


@pytest.mark.parametrize(
    ("lost", "gained", "bound"),
    [(0.02, 0.02, 0.01), (0.03, 0.02, 0.06), (0.01, 0.0, 0.06)],
    ids=["equal", "at-the-limit", "at-the-limit-one-sided"],
)
def test_noise_fails_a_good_candidate_rarely(lost: float, gained: float, bound: float) -> None:
    rng = np.random.default_rng(5)
    runs, failures = 600, 0
    for _ in range(runs):
        kinds = rng.choice(3, size=304, p=[1 - lost - gained, lost, gained])
        base = {str(i): float(kind != 2) for i, kind in enumerate(kinds)}
        other = {str(i): float(kind != 1) for i, kind in enumerate(kinds)}
        failures += not verdict(paired_drop(base, other)).passed
    assert failures / runs <= bound


def test_a_drop_of_eight_points_is_found() -> None:
    rng = np.random.default_rng(6)
    found = 0
    for _ in range(200):
        kinds = rng.choice(3, size=304, p=[0.86, 0.11, 0.03])
        base = {str(i): float(kind != 2) for i, kind in enumerate(kinds)}
        other = {str(i): float(kind != 1) for i, kind in enumerate(kinds)}
        found += not verdict(paired_drop(base, other)).passed
    assert found >= 180
