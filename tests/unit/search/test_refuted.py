"""A machine that behaves against expectation: the mechanism's forecasts are tried, then dropped."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.benchmarks.search.bench_space import Surface, choice, number, space_of
from tests.benchmarks.search.harness import run_search
from tuner.search import advisor


def test_a_mechanism_that_is_clearly_wrong_loses_its_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve sequences are best, eight bits are slower: twenty to one against what is known of machines."""
    weights: list[float] = []
    real = advisor.train

    def watched(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        weights.append(sum(weight for weight, view in found.views if view.fit is not None))
        return found

    monkeypatch.setattr(advisor, "train", watched)

    def evaluate(setting: object) -> float:
        assert isinstance(setting, dict)
        off = math.log2(float(setting["max_num_seqs"]) / 12)
        return 400.0 * (0.6 if setting["quantization"] == "fp8" else 1.0) * math.exp(-(off**2) / 8)

    parameters = [number("max_num_seqs", 4, 1024, 256, log=True), choice("quantization", ["none", "fp8"])]
    surface = Surface("against", space_of("against", parameters), evaluate, noise=0.005)
    found = run_search(surface, "tune", seed=1, trials=14)
    assert weights[-1] < 0.05, "the least weight of the young would be 0.15"
    assert found.best[-1] > 0.95 * 400
