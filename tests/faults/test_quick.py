"""A few faults of each kind, in about a minute; `make faults` does them all."""

from __future__ import annotations

import pytest

from tests.faults.scenarios import Scale, failures, kill_tuner, stop_tuner

QUICK = Scale(kills=2, lock_s=2.0, steals=1)


def test_kill_of_the_tuner_loses_nothing_and_leaves_nothing() -> None:
    row = kill_tuner(QUICK)
    assert (row.injected, row.lost, row.left, row.running, row.tracebacks) == (2, 0, 0, 0, 0), row.notes


@pytest.mark.parametrize("names", [("no-kv", "hang, weights", "out of memory under load")])
def test_failures_get_their_class(names: tuple[str, ...]) -> None:
    row = failures(QUICK, only=names)
    assert (row.injected, row.right, row.left, row.running, row.tracebacks) == (len(names), len(names), 0, 0, 0), (
        row.notes
    )


def test_signals_close_everything() -> None:
    row = stop_tuner(QUICK, cases=1)
    assert (row.injected, row.right, row.left, row.running) == (1, 1, 0, 0), row.notes
