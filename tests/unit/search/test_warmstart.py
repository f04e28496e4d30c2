from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.search.helpers import SmallPlanner, measured, small_space
from tuner.search import OptunaOptimizer
from tuner.search.warmstart import aligned, likeness

FACTS = {"hardware": "h200", "model": "m", "family": "qwen3", "vllm": "0.33.0", "workload": "chat"}


def opened(path: Path, name: str, facts: dict[str, str]) -> OptunaOptimizer:
    space = small_space()
    url = f"sqlite:///{path}/s.db"
    return OptunaOptimizer(
        space, SmallPlanner(space), storage=url, study_name=name, seed=1, facts=facts, warm_start=True
    )  # type: ignore[arg-type]


def filled(path: Path, name: str, facts: dict[str, str]) -> None:
    optimizer, planner = opened(path, name, facts), SmallPlanner(small_space())
    baseline = optimizer.ask("baseline", {})
    optimizer.tell(baseline.number, measured(planner.baseline(), 100.0), {})
    for label, value in (("64", 50.0), ("1024", 300.0)):
        suggestion = optimizer.ask("user", {"max_num_seqs": label})
        optimizer.tell(suggestion.number, measured(planner.render(suggestion.assignment), value), {})


@pytest.mark.parametrize(
    ("change", "weight"),
    [
        ({}, 0.3),
        ({"vllm": "0.32.0"}, 0.18),
        ({"model": "n"}, 0.09),
        ({"hardware": "b200"}, 0.0),
        ({"kind": "replay"}, 0.0),
        ({"model": "n", "family": "llama"}, 0.0),
    ],
)
def test_distance_costs_weight(change: dict[str, str], weight: float) -> None:
    assert likeness(FACTS, {**FACTS, **change}) == pytest.approx(weight)


def test_earlier_trials_come_as_ratios_to_their_baseline(tmp_path: Path) -> None:
    filled(tmp_path, "old", FACTS)
    optimizer, planner = opened(tmp_path, "new", FACTS), SmallPlanner(small_space())
    assert aligned(optimizer._earlier, optimizer._history) == [], "nothing compares before our own baseline"
    baseline = optimizer.ask("baseline", {})
    optimizer.tell(baseline.number, measured(planner.baseline(), 10.0), {})
    found = aligned(optimizer._earlier, optimizer._history)
    assert [(item.assignment.get("max_num_seqs"), item.value, item.weight) for item in found] == [
        (None, 10.0, 0.3),
        ("64", 5.0, 0.3),
        ("1024", 30.0, 0.3),
    ]
    assert len(optimizer.past()) == 1, "they are no trials of this study"
    assert optimizer.ask().assignment["max_num_seqs"] in ("512", "1024", "2048")


def test_another_machine_teaches_nothing(tmp_path: Path) -> None:
    filled(tmp_path, "old", {**FACTS, "hardware": "b200"})
    assert opened(tmp_path, "new", FACTS)._earlier == []
