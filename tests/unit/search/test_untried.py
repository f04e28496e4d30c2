"""A label that nobody measured stays worth a trial, however alike its sisters are."""

from __future__ import annotations

from tests.benchmarks.search.bench_space import Surface, choice, number, space_of
from tests.benchmarks.search.harness import run_search


def test_every_label_is_launched_within_a_dozen_trials() -> None:
    """Three backends do alike, the fourth is a tenth faster: hidden unless it is tried for its own sake."""
    speeds = {"auto": 1.0, "triton": 1.0, "marlin": 1.0, "cutlass": 1.1}
    launched: list[str] = []

    def evaluate(setting: object) -> float:
        assert isinstance(setting, dict)
        launched.append(str(setting["moe_backend"]))
        return 1000.0 * speeds[launched[-1]] * float(setting["max_num_seqs"]) ** 0.05

    parameters = [number("max_num_seqs", 16, 1024, 256, log=True), choice("moe_backend", list(speeds))]
    surface = Surface("labels", space_of("labels", parameters), evaluate, noise=0.005)
    run_search(surface, "tune", seed=3, trials=12)
    assert set(launched) == set(speeds)
