"""Several objectives: what Optuna is told, what the own sampler makes of them, and going on with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest

from tests.unit.search.helpers import SmallPlanner, broken, measured, small_space
from tuner.errors import InputError
from tuner.model.measurement import Measurement
from tuner.model.outcome import Status
from tuner.model.records import to_record
from tuner.model.workload import Objective
from tuner.search import SAMPLERS, OptunaOptimizer
from tuner.search.observations import Observation
from tuner.search.outcomes import complete_further
from tuner.search.scalar import scalarised

LATENCY = Objective(metric="latency/ttft_p99", maximize=False, unit="ms")
BOTH = (Objective(), LATENCY)


def opened(path: Path, *, sampler: str = "tune", further: tuple[Objective, ...] = (LATENCY,)) -> OptunaOptimizer:
    space = small_space()
    return OptunaOptimizer(
        space,
        SmallPlanner(space),
        storage=f"sqlite:///{path}/s.db",
        study_name="s",
        sampler=sampler,
        seed=3,
        further=further,
        budget_trials=24,
    )


def searched(optimizer: OptunaOptimizer, count: int) -> list[dict[str, object]]:
    """More sequences give more tokens and a longer wait; one backend is dead."""
    planner, out = SmallPlanner(small_space()), []
    for _ in range(count):
        suggestion = optimizer.ask()
        out.append(dict(suggestion.assignment))
        candidate = planner.render(suggestion.assignment)
        outcome = broken(candidate)
        if suggestion.assignment.get("attention_backend") != "BROKEN":
            seqs = float(str(suggestion.assignment.get("max_num_seqs", "256")))
            metrics = {"throughput/output": seqs, "latency/ttft_p99": 10 + seqs / 4}
            outcome = replace(measured(candidate, seqs), measurement=Measurement(metrics=metrics, objective=None))
        optimizer.tell(suggestion.number, outcome, to_record(outcome))
    return out


def told(path: Path) -> optuna.Study:
    return optuna.load_study(study_name="s", storage=f"sqlite:///{path}/s.db")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_searches_in_several_directions(tmp_path: Path, sampler: str) -> None:
    searched(opened(tmp_path, sampler=sampler), 6)
    study = told(tmp_path)
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    complete = [t for t in study.get_trials() if t.user_attrs["tune:told"]["status"] == "measured"]
    assert complete
    assert all(t.values[1] == pytest.approx(10 + t.values[0] / 4) for t in complete)


def test_what_could_not_start_is_told_the_worst_seen_of_each(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path, sampler="random"), SmallPlanner(small_space())
    good = optimizer.ask("user", {"max_num_seqs": "64"})
    outcome = replace(
        measured(planner.render(good.assignment), 64.0),
        measurement=Measurement(metrics={"latency/ttft_p99": 80.0}, objective=None),
    )
    optimizer.tell(good.number, outcome, {})
    bad = optimizer.ask("user", {"max_num_seqs": "128"})
    optimizer.tell(bad.number, broken(planner.render(bad.assignment)), {})
    assert [t.values for t in told(tmp_path).get_trials()] == [[64.0, 80.0], [64.0, 80.0]]


def test_the_worst_of_an_objective_is_at_its_bad_end() -> None:
    assert complete_further((None,), (LATENCY,), [(80.0,), (200.0,), (None,)]) == [200.0]
    assert complete_further((), (LATENCY,), []) == [10_000.0]
    assert complete_further((5.0,), (LATENCY,), [(80.0,)]) == [5.0]


def test_a_resumed_study_goes_on_as_an_uninterrupted_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = searched(opened(tmp_path / "a"), 8)
    parts = searched(opened(tmp_path / "b"), 5) + searched(opened(tmp_path / "b"), 3)
    assert whole == parts


def test_other_objectives_need_another_study(tmp_path: Path) -> None:
    searched(opened(tmp_path), 1)
    with pytest.raises(InputError) as refused:
        opened(tmp_path, further=())
    assert str(refused.value).startswith(
        "study 's' was made with another objective (max throughput/output + min latency/ttft_p99, "
        "now max throughput/output); it is kept as it is: go on under a new study name"
    )
    more = Objective(metric="latency/tpot_p50", maximize=False)
    with pytest.raises(InputError, match=r"now max throughput/output \+ min latency/ttft_p99 \+ min latency/tpot_p50"):
        opened(tmp_path, further=(LATENCY, more))


def test_no_gain_is_expected_of_one_weighting(tmp_path: Path) -> None:
    optimizer = opened(tmp_path)
    searched(optimizer, 14)
    assert optimizer.expected_gain() is None


def test_a_killed_process_loses_no_value(tmp_path: Path) -> None:
    searched(opened(tmp_path, sampler="random"), 4)
    values = [t.values for t in told(tmp_path).get_trials()]
    storage = told(tmp_path)._storage
    trial = next(t for t in told(tmp_path).get_trials() if t.user_attrs["tune:told"]["status"] == "measured")
    again = optuna.trial.create_trial(
        state=optuna.trial.TrialState.RUNNING,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs={**trial.user_attrs, "tune:asked": {**trial.user_attrs["tune:asked"], "owner": {}}},
    )
    storage.create_new_trial(told(tmp_path)._study_id, template_trial=again)
    assert len(opened(tmp_path).past()) == 5
    assert told(tmp_path).get_trials()[-1].values == values[trial.number]


def observation(number: int, value: float, latency: float | None, *, missed: bool = False) -> Observation:
    return Observation(
        number=number,
        assignment={},
        origin="search",
        status=Status.MEASURED,
        value=value,
        further=(latency,),
        violations={"limit:x": 0.5 if missed else -1.0},
    )


HISTORY = [observation(0, 100.0, 100.0), observation(1, 200.0, 180.0), observation(2, 110.0, 40.0)]


def order(turn: int, seed: int = 0) -> list[int]:
    values = [item.value or 0.0 for item in scalarised(HISTORY, BOTH, seed=seed, turn=turn)]
    return [int(index) for index in np.argsort(values)[::-1]]


def test_the_ends_of_the_front_have_their_turns() -> None:
    assert order(0) == [1, 2, 0], "throughput alone"
    assert order(3) == [2, 0, 1], "latency alone: less is better"
    assert order(6) == order(0)


def test_other_weights_lead_elsewhere_and_equal_seeds_to_the_same() -> None:
    firsts = {order(1, seed)[0] for seed in range(20)}
    assert firsts == {1, 2}, "trial 0 is beaten by trial 2 whatever the weights"
    assert scalarised(HISTORY, BOTH, seed=5, turn=1) == scalarised(HISTORY, BOTH, seed=5, turn=1)


def test_one_objective_alone_keeps_the_size_of_effects() -> None:
    values = [item.value or 0.0 for item in scalarised(HISTORY, BOTH, seed=0, turn=0)]
    assert values[1] / values[0] == pytest.approx(2.0, rel=0.02)


def test_a_missing_value_is_no_better_than_the_worst() -> None:
    history = [*HISTORY, observation(3, 100.0, None)]
    values = [item.value or 0.0 for item in scalarised(history, BOTH, seed=0, turn=3)]
    assert values[3] == min(values)


def test_a_study_that_minimises_first_gets_values_to_minimise() -> None:
    history = [replace(item, value=item.further[0], further=(item.value,)) for item in HISTORY]
    values = [item.value or 0.0 for item in scalarised(history, (LATENCY, Objective()), seed=0, turn=0)]
    assert int(np.argmin(values)) == 2


def test_one_objective_is_left_alone() -> None:
    assert scalarised(HISTORY, BOTH[:1], seed=0, turn=1) == HISTORY
