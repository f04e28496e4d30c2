from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tests.benchmarks.search.bench_space import BenchPlanner
from tests.benchmarks.search.harness import outcome_of
from tests.benchmarks.search.surfaces import SURFACES
from tests.unit.search.helpers import SmallPlanner, measured, small_space
from tuner.errors import InputError
from tuner.model.earlier import EarlierRun, EarlierRuns
from tuner.model.measurement import Measurement
from tuner.model.records import to_record
from tuner.model.workload import Limit
from tuner.ports import Suggestion
from tuner.search import OptunaOptimizer
from tuner.search.candidates import CandidateSource
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
    assert aligned(optimizer._start.trials, optimizer._history) == [], "nothing compares before our own baseline"
    baseline = optimizer.ask("baseline", {})
    optimizer.tell(baseline.number, measured(planner.baseline(), 10.0), {})
    found = aligned(optimizer._start.trials, optimizer._history)
    assert [(item.assignment.get("max_num_seqs"), item.value, item.weight) for item in found] == [
        ("1024", 30.0, 0.3),
        ("64", 5.0, 0.3),
        (None, 10.0, 0.3),
    ]
    assert len(optimizer.past()) == 1, "they are no trials of this study"
    assert optimizer.ask().assignment["max_num_seqs"] in ("512", "1024", "2048")


def test_another_machine_teaches_nothing(tmp_path: Path) -> None:
    filled(tmp_path, "old", {**FACTS, "hardware": "b200"})
    assert opened(tmp_path, "new", FACTS)._start.trials == ()


def test_what_a_study_starts_from_is_decided_once(tmp_path: Path) -> None:
    """A resumed study suggests what the uninterrupted one would have, whatever was tuned meanwhile."""
    filled(tmp_path, "old", FACTS)
    first = opened(tmp_path, "new", FACTS)
    filled(tmp_path, "another", FACTS)
    again = opened(tmp_path, "new", FACTS)
    assert again._start.trials == first._start.trials
    assert again.warm_start_note == first.warm_start_note
    assert "3 earlier trials of old, at weight 0.3" in first.warm_start_note


def test_earlier_trials_are_judged_by_this_studys_limits(tmp_path: Path) -> None:
    """Theirs had none: what was fast is no good start where it takes too long; what did not measure it says nothing."""
    filled(tmp_path, "silent", FACTS)
    old, planner = opened(tmp_path, "old", FACTS), SmallPlanner(small_space())
    for label, value, ttft in (("", 100.0, 300.0), ("1024", 300.0, 1500.0), ("64", 50.0, 100.0)):
        suggestion = old.ask("user", {"max_num_seqs": label}) if label else old.ask("baseline", {})
        outcome = measured(planner.render(suggestion.assignment), value)
        assert outcome.measurement is None
        outcome = replace(outcome, measurement=Measurement(metrics={"latency/ttft_p99": ttft}, objective=None))
        old.tell(suggestion.number, outcome, to_record(outcome))

    def new(name: str) -> OptunaOptimizer:
        return OptunaOptimizer(
            small_space(), planner, storage=f"sqlite:///{tmp_path}/s.db", study_name=name, facts=FACTS,
            limits=(Limit(metric="latency/ttft_p99", bound=500.0),), warm_start=True,
        )  # fmt: skip

    for optimizer in (new("n"), new("n")):  # the second reads what the first one wrote down
        found = {
            (item.assignment.get("max_num_seqs"), item.violations.get("limit:latency/ttft_p99")): item.feasible
            for item in optimizer._start.trials
            if not math.isnan(item.violations["limit:latency/ttft_p99"])
        }
        assert found == {("1024", 2.0): False, ("64", -0.8): True, (None, -0.4): True}
        assert sum(math.isnan(item.violations["limit:latency/ttft_p99"]) for item in optimizer._start.trials) == 3
        assert not any(item.feasible for item in optimizer._start.trials if math.isnan(max(item.violations.values())))


def test_a_study_by_name(tmp_path: Path) -> None:
    filled(tmp_path, "old", {**FACTS, "hardware": "b200"})
    space = small_space()

    def new(name: str, source: str) -> OptunaOptimizer:
        return OptunaOptimizer(
            space, SmallPlanner(space), storage=f"sqlite:///{tmp_path}/s.db", study_name=name, facts=FACTS,
            warm_start=source,
        )  # fmt: skip

    assert [item.weight for item in new("n", "old")._start.trials] == [0.1] * 3, "asked for, however unlike"
    with pytest.raises(InputError, match="no other study of that name"):
        new("m", "nosuch")


def test_runs_of_another_store() -> None:
    space = small_space()
    runs = EarlierRuns(
        source="MLflow experiment e",
        runs=[
            EarlierRun(settings={}, value=100.0, baseline=True, group="p"),
            EarlierRun(settings={"max-num-seqs": "1024"}, value=300.0, baseline=False, group="p"),
            EarlierRun(settings={"max-num-seqs": "5"}, value=900.0, baseline=False, group="p"),
            EarlierRun(settings={"max-num-seqs": "64"}, value=9.0, baseline=False, group="without a baseline"),
        ],
        facts={"p": {"hardware": "h200", "model": "m"}},
    )
    optimizer = OptunaOptimizer(
        space, SmallPlanner(space), storage="memory://", study_name="n", facts=FACTS, earlier=runs
    )
    found = [(dict(item.assignment), item.value) for item in optimizer._start.trials]
    assert found == [({"max_num_seqs": "1024"}, 3.0), ({}, 1.0)]
    assert "2 earlier trials of MLflow experiment e" in optimizer.warm_start_note


SURFACE = SURFACES["other-engine"](1)


def _measured(optimizer: OptunaOptimizer, suggestion: Suggestion, bend: float = 1.0) -> float:
    """Tell what the surface says; with ``bend`` -1 what is good is measured as bad."""
    planner = BenchPlanner(SURFACE)
    level = SURFACE.evaluate(planner.complete({}))
    value = SURFACE.evaluate(planner.complete(suggestion.assignment))
    assert isinstance(level, float)
    told = value if isinstance(value, str) else level * (value / level) ** bend
    optimizer.tell(suggestion.number, outcome_of(planner.render(suggestion.assignment), told), {})
    return 0.0 if isinstance(value, str) else value


def _study(path: Path, name: str, *, warm: bool, seed: int = 1) -> OptunaOptimizer:
    storage = f"sqlite:///{path}/w.db"
    planner = BenchPlanner(SURFACE)
    return OptunaOptimizer(
        SURFACE.space, planner, storage=storage, study_name=name, seed=seed, budget_trials=9, warm_start=warm and "old"
    )


def _earlier_study(path: Path, *, bend: float) -> None:
    optimizer = _study(path, "old", warm=False)
    _measured(optimizer, optimizer.ask("baseline", {}))
    source = CandidateSource(optimizer._encoded, optimizer._conditions)
    rng = np.random.default_rng(0)
    for _ in range(30):
        _measured(optimizer, optimizer.ask("user", source.prune(source.random(rng))), bend)


def _best(optimizer: OptunaOptimizer) -> float:
    """After seven trials."""
    values = [_measured(optimizer, optimizer.ask("baseline", {}))]
    values += [_measured(optimizer, optimizer.ask()) for _ in range(6)]
    return max(values)


def test_a_warm_start_helps_and_a_misleading_one_does_not_hurt(tmp_path: Path) -> None:
    (tmp_path / "lies").mkdir()
    _earlier_study(tmp_path, bend=1.0)
    _earlier_study(tmp_path / "lies", bend=-1.0)

    def best(path: Path, name: str, *, warm: bool) -> float:
        # Of one seed alone the best of seven trials says little.
        return median(_best(_study(path, f"{name}{seed}", warm=warm, seed=seed)) for seed in (1, 2, 3))

    cold = best(tmp_path, "cold", warm=False)
    warm = best(tmp_path, "warm", warm=True)
    misled = best(tmp_path / "lies", "misled", warm=True)
    assert warm > 1.15 * cold
    # It costs the trials that refute it.
    assert misled > 0.65 * cold
