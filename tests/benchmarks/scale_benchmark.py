"""A storage full of trials: ``python -m tests.benchmarks.scale_benchmark`` (ten minutes for 10,000 trials).

Fills a SQLite study through the port, with random candidates, then opens it anew: seconds to resume and to suggest,
and the memory that it takes.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.benchmarks.search.bench_space import BenchPlanner, Surface
from tests.benchmarks.search.harness import outcome_of
from tests.benchmarks.search.surfaces import SURFACES
from tuner.model.records import to_record
from tuner.search import OptunaOptimizer


class _Machine:
    """Answers suggestions as a surface does, with noise."""

    def __init__(self, surface: Surface, seed: int) -> None:
        self._surface = surface
        self._planner = BenchPlanner(surface)
        self._rng = np.random.default_rng(seed)

    def answer(self, optimizer: OptunaOptimizer) -> float:
        """One trial; the seconds until it was suggested."""
        began = time.perf_counter()
        suggestion = optimizer.ask()
        seconds = time.perf_counter() - began
        value = self._surface.evaluate(self._planner.complete(suggestion.assignment))
        if not isinstance(value, str):
            value *= float(np.exp(self._rng.normal(0, self._surface.noise)))
        outcome = outcome_of(self._planner.render(suggestion.assignment), value)
        optimizer.tell(suggestion.number, outcome, to_record(outcome))
        return seconds


def _opened(surface: Surface, storage: str, sampler: str) -> OptunaOptimizer:
    return OptunaOptimizer(surface.space, BenchPlanner(surface), storage=storage, study_name="many", sampler=sampler)


def _mebibytes() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def measure(surface: Surface, storage: str, trials: int, asks: int) -> dict[str, Any]:
    """Seconds and MiB."""
    began, machine = time.perf_counter(), _Machine(surface, 0)
    filling = _opened(surface, storage, "random")
    for _ in range(trials):
        machine.answer(filling)
    filled = time.perf_counter() - began
    del filling
    before, began = _mebibytes(), time.perf_counter()
    optimizer = _opened(surface, storage, "tune")
    past = len(optimizer.past())
    resumed, held = time.perf_counter() - began, _mebibytes()
    seconds, grown = [], []
    for _ in range(asks):
        seconds.append(round(machine.answer(optimizer), 2))
        grown.append(round(_mebibytes() - held, 1))
    return {
        "trials in the storage": past,
        "filled (s)": round(filled, 1),
        "resume (s)": round(resumed, 2),
        "suggestions (s)": seconds,
        "memory that the resumed study takes (MiB)": round(held - before, 1),
        "grown after each suggestion (MiB)": grown,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, open anew, print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--asks", type=int, default=8)
    parser.add_argument("--surface", default="dense-chat", choices=sorted(SURFACES))
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{Path(folder) / 'study.db'}"
        found = measure(SURFACES[chosen.surface](0), storage, chosen.trials, chosen.asks)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
