from __future__ import annotations

import re

import numpy as np
import pytest

from tests.benchmarks.search.bench_space import BenchPlanner, Surface
from tests.benchmarks.search.harness import optimum
from tests.benchmarks.search.others import OTHERS
from tuner.model.json import Scalar
from tuner.model.space import Range


def anywhere(surface: Surface, count: int) -> list[dict[str, Scalar]]:
    """Uniformly random configurations, on a logarithmic scale where the space says so."""
    rng = np.random.default_rng(3)
    planner = BenchPlanner(surface)

    def one() -> dict[str, Scalar]:
        point: dict[str, Scalar] = {}
        for parameter in surface.space.parameters:
            domain = parameter.domain
            if not isinstance(domain, Range):
                point[parameter.name] = list(domain.values)[int(rng.integers(len(domain.values)))]
                continue
            value = rng.uniform(domain.low, domain.high)
            if domain.log:
                value = np.exp(rng.uniform(np.log(domain.low), np.log(domain.high)))
            point[parameter.name] = round(float(value)) if domain.integer else float(value)
        return planner.complete(point)

    return [one() for _ in range(count)]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_starts_and_leaves_something_to_find(name: str, seed: int) -> None:
    surface = OTHERS[name](seed)
    assert 8 <= len(surface.space.parameters) <= 14
    default = surface.evaluate(BenchPlanner(surface).complete({}))
    assert isinstance(default, float), default
    assert default > 0
    assert optimum(surface, effort=3) > 1.5 * default


@pytest.mark.parametrize("name", OTHERS)
def test_some_configurations_do_not_start_and_for_several_reasons(name: str) -> None:
    surface = OTHERS[name](1)
    values = [surface.evaluate(point) for point in anywhere(surface, 300)]
    messages = [value for value in values if isinstance(value, str)]
    assert 0.25 < len(messages) / len(values) < 0.65
    assert len({re.sub(r"[\d.]+", "", message) for message in messages}) >= 4
    assert all(value > 0 for value in values if not isinstance(value, str))


@pytest.mark.parametrize("name", OTHERS)
def test_the_seed_draws_the_constants_and_nothing_else_does(name: str) -> None:
    surface, again, other = OTHERS[name](2), OTHERS[name](2), OTHERS[name](3)
    points = anywhere(surface, 40)
    values = [surface.evaluate(point) for point in points]
    assert values == [again.evaluate(point) for point in points]
    assert values == [surface.evaluate(point) for point in points]
    assert values != [other.evaluate(point) for point in points]


@pytest.mark.parametrize(
    ("changes", "recorded"),
    [
        ({"max_num_seqs": 512}, 17_100),
        ({"max_num_seqs": 256}, 10_930),
        ({"max_num_seqs": 256, "quantization": "fp8"}, 21_770),
        ({"max_num_seqs": 256, "cudagraph_mode": "NONE"}, 3_500),
        ({"max_num_seqs": 1024, "quantization": "fp8"}, 8_457),
        ({"max_num_seqs": 512, "quantization": "fp8", "kv_cache_dtype": "fp8"}, 23_050),
    ],
)
def test_the_surface_of_one_h200_is_near_what_was_recorded(changes: dict[str, Scalar], recorded: float) -> None:
    for seed in range(5):
        surface = OTHERS["h200_moe"](seed)
        assert surface.evaluate(BenchPlanner(surface).complete(changes)) == pytest.approx(recorded, rel=0.25)
