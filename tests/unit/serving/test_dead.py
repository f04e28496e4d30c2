from __future__ import annotations

import pytest

from tuner.serving.dead import Setting, dead_settings


def rows(*what: tuple[dict[str, str | float], str | None]) -> tuple[list[dict[str, str | float]], list[str | None]]:
    return [features for features, _ in what], [reason for _, reason in what]


def words(*what: tuple[dict[str, str | float], str | None]) -> list[tuple[str, int]]:
    return [(" and ".join(map(str, dead.settings)), dead.failed) for dead in dead_settings(*rows(*what))]


FINE: list[tuple[dict[str, str | float], str | None]] = [
    ({"a": "x", "b": "u", "n": number}, None) for number in (1.0, 2.0, 4.0, 8.0)
]


def test_a_value_with_which_everything_failed_is_dead() -> None:
    lost: list[tuple[dict[str, str | float], str | None]] = [
        ({"a": "y", "b": "u", "n": number}, "no y") for number in (1.0, 2.0, 8.0)
    ]
    assert words(*FINE, *lost) == [("a=y", 3)]
    # Two that failed may be anything, and one that ran proves the contrary.
    assert words(*FINE, *lost[:2]) == []
    assert words(*FINE, *lost, ({"a": "y", "b": "u", "n": 4.0}, None)) == []


def test_two_settings_are_dead_together_where_each_runs_alone() -> None:
    alone: list[tuple[dict[str, str | float], str | None]] = [
        ({"a": a, "b": b, "n": number}, None) for a, b in (("y", "u"), ("x", "v")) for number in (1.0, 2.0, 4.0, 8.0)
    ]
    lost: list[tuple[dict[str, str | float], str | None]] = [
        ({"a": "y", "b": "v", "n": number}, "no y with v") for number in (1.0, 2.0, 8.0)
    ]
    assert words(*FINE, *alone, *lost) == [("a=y and b=v", 3)]


def test_a_number_beyond_a_bound_is_dead_from_the_first_that_failed() -> None:
    lost: list[tuple[dict[str, str | float], str | None]] = [
        ({"a": "x", "b": "u", "n": number}, "too large") for number in (16.0, 20.0, 32.0)
    ]
    (dead,) = dead_settings(*rows(*FINE, *lost))
    assert dead.settings == (Setting("n", ">", 16.0),)
    assert dead.rows == (4, 5, 6)
    assert [dead.holds({"n": number}) for number in (8.0, 12.0, 16.0, 99.0)] == [False, False, True, True]
    assert not dead.holds({"n": "auto"})


def test_what_is_left_away_can_be_what_is_dead() -> None:
    fine: list[tuple[dict[str, str | float], str | None]] = [({"on": "1", "n": n}, None) for n in (1.0, 2.0, 4.0)]
    lost: list[tuple[dict[str, str | float], str | None]] = [({"n": n}, "needs on") for n in (1.0, 2.0, 4.0)]
    assert words(*fine, *lost) == [("no on", 3)]


def test_failures_for_different_reasons_prove_nothing_together() -> None:
    lost: list[tuple[dict[str, str | float], str | None]] = [
        ({"a": "y", "b": "u", "n": number}, f"reason {number}") for number in (1.0, 2.0, 8.0)
    ]
    assert words(*FINE, *lost) == []


@pytest.mark.parametrize("what", [[], FINE, [({}, None)], [({}, "no"), ({}, None)]])
def test_nothing_is_dead_where_nothing_tells(what: list[tuple[dict[str, str | float], str | None]]) -> None:
    assert words(*what) == []
