from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.search.helpers import SmallPlanner, measured, small_space
from tuner.model.outcome import Status
from tuner.model.space import UNSET, Choice, Parameter, Range
from tuner.search import OptunaOptimizer
from tuner.search.observations import Observation
from tuner.search.prices import Prices

LABELS = np.array([True, False])


def trial(number: int, seconds: float | None, *, weight: float = 1.0, started: bool = True) -> Observation:
    status = Status.MEASURED if started else Status.BROKEN
    return Observation(
        number=number, assignment={}, origin="search", status=status, value=1.0 if started else None,
        total_s=seconds, weight=weight,
    )  # fmt: skip


def learned(rows: list[list[float]], seconds: list[float | None]) -> Prices | None:
    return Prices.learned([trial(n, s) for n, s in enumerate(seconds)], np.array(rows), LABELS, [0])


def test_a_first_start_of_a_shape_is_dear_and_the_next_is_not() -> None:
    rows = [[0.0, 0.5], [0.0, 0.1], [1.0, 0.5], [1.0, 0.9], [0.0, 0.7], [2.0, 0.2]]
    prices = learned(rows, [300.0, 60.0, 310.0, 62.0, 61.0, 295.0])
    assert prices is not None
    new, known = prices.seconds(np.array([[3.0, 0.5], [1.0, 0.5]]))
    assert new == pytest.approx(300, rel=0.35)
    assert known == pytest.approx(60, rel=0.35)
    assert prices.relative(np.array([[3.0, 0.5]]))[0] > prices.relative(np.array([[1.0, 0.5]]))[0]


def test_a_setting_that_always_costs_minutes() -> None:
    rows = [[float(label), 0.1 * step] for step in range(4) for label in (0, 1)]
    prices = learned(rows, [60.0, 600.0] * 4)
    assert prices is not None
    cheap, dear = prices.relative(np.array([[0.0, 0.5], [1.0, 0.5]]))
    assert dear > 3 * cheap


def test_where_all_cost_the_same_nothing_is_said() -> None:
    rows = [[0.0, 0.1 * step] for step in range(8)]
    assert learned(rows, [100.0, 101.0, 99.0, 100.5, 100.0, 99.5, 100.0, 100.0]) is None
    assert learned(rows[:3], [10.0, 20.0, 30.0]) is None
    assert learned(rows, [None] * 8) is None


def test_failures_and_earlier_studies_have_no_prices() -> None:
    items = [
        *[trial(n, 60.0 * (1 + n % 2), started=False) for n in range(6)],
        *[trial(n, 9.0 * n, weight=0.3) for n in range(6)],
    ]
    assert Prices.learned(items, np.zeros((12, 2)), LABELS, [0]) is None


SPACE = small_space(
    parameters=(
        Parameter(name="max_num_seqs", target="max-num-seqs", default=64, domain=Range(low=4, high=1024, log=True)),
        Parameter(name="stream", target="stream-interval", default=1, domain=Range(low=1, high=16)),
        Parameter(
            name="kernel", target="kernel", recompiles=True,
            domain=Choice(values={"auto": UNSET, **{f"k{n}": f"k{n}" for n in range(6)}}),
        ),
    )
)  # fmt: skip


def asked(budget: float | None, *, even: bool) -> list[dict[str, object]]:
    """Every kernel is as good as any other, but each new one costs ten minutes to compile."""
    planner = SmallPlanner(SPACE)
    optimizer = OptunaOptimizer(
        replace(SPACE), planner, storage="memory://", study_name="s", seed=2, budget_seconds=budget
    )
    compiled: set[object] = {None}
    out = []
    for index in range(12):
        suggestion = optimizer.ask() if index else optimizer.ask("baseline", {})
        kernel = suggestion.assignment.get("kernel")
        seconds = 100.0 if even or kernel in compiled else 1200.0
        compiled.add(kernel)
        value = float(str(suggestion.assignment.get("max_num_seqs", 64))) ** 0.5
        optimizer.tell(suggestion.number, measured(planner.render(suggestion.assignment), value, seconds), {})
        out.append(dict(suggestion.assignment))
    return out


def test_where_all_cost_the_same_a_time_budget_changes_nothing() -> None:
    assert asked(7200.0, even=True) == asked(None, even=True)


def test_with_a_time_budget_dear_compiles_come_later() -> None:
    def new_kernels(found: list[dict[str, object]]) -> int:
        return len({item.get("kernel") for item in found})

    assert new_kernels(asked(7200.0, even=False)) <= new_kernels(asked(None, even=False))
