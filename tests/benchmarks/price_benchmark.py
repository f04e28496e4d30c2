"""Does it pay to count seconds? ``python -m tests.benchmarks.price_benchmark`` (a quarter of an hour on two cores).

The default search with and without knowing that its budget is time, on surfaces whose launches cost unequal seconds
(``tests/benchmarks/search/prices.py``). Shares of the optimum against wall time. Writes ``docs/benchmarks/prices.md``.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

# One thread a process: the matrices are small, and the processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from tests.benchmarks.search.harness import Run, optimum, run_search
from tests.benchmarks.search.prices import Clock, priced
from tests.benchmarks.search.surfaces import SURFACES

_KINDS = ("compile", "labels", "even")
_SURFACES = "moe-batch,dense-chat,long-context,contrary"
_MARKS = (0.25, 0.5, 0.75, 1.0)
_MOST_TRIALS = 70


def _job(job: tuple[str, str, int, float, bool]) -> list[float]:
    """Shares at the marks, their mean over the budget, and the number of launches."""
    name, kind, seed, budget_s, thrifty = job
    warnings.simplefilter("ignore")
    surface = priced(SURFACES[name](seed))
    clock = Clock(kind=kind, seed=seed)
    run = run_search(surface, "tune", seed=seed, trials=_MOST_TRIALS, clock=clock, budget_s=budget_s, thrifty=thrifty)
    best = optimum(surface)
    shares = [_at(run, mark * budget_s) / best * 100 for mark in (*_MARKS, *np.linspace(0.05, 1, 20))]
    return [*shares[: len(_MARKS)], float(np.mean(shares[len(_MARKS) :])), float(len(run.clock))]


def _at(run: Run, seconds: float) -> float:
    return max((value for value, at in zip(run.best, run.clock, strict=False) if at <= seconds), default=0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="8-15", help="first and last")
    parser.add_argument("--surfaces", default=_SURFACES)
    parser.add_argument("--kinds", default=",".join(_KINDS[:2]))
    parser.add_argument("--budget", type=float, default=7200.0, help="seconds")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/prices.md"))
    chosen = parser.parse_args(arguments)
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    cases = [
        (name, kind, thrifty)
        for kind in chosen.kinds.split(",")
        for name in chosen.surfaces.split(",")
        for thrifty in (False, True)
    ]
    jobs = [(name, kind, seed, chosen.budget, thrifty) for name, kind, thrifty in cases for seed in seeds]
    with ProcessPoolExecutor(chosen.workers) as pool:
        rows = np.array(list(pool.map(_job, jobs))).reshape(len(cases), len(seeds), -1)
    text = _markdown(cases, rows, seeds=len(seeds), budget_s=chosen.budget)
    chosen.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0


def _markdown(cases: Sequence[tuple[str, str, bool]], rows: np.ndarray, *, seeds: int, budget_s: float) -> str:
    lines = [
        "# Gain per second",
        "",
        f"Share of the optimum (%) against wall time, budget {budget_s / 3600:g} h, {seeds} seeds. `trial`: the search",
        "does not know that its budget is time; `second`: it does. Prices: `tests/benchmarks/search/prices.py`.",
        "",
        "| prices | surface | gain per | "
        + " | ".join(f"{mark:.0%}" for mark in _MARKS)
        + " | mean | launches | worst |",
        "|---|---|---|" + "--:|" * (len(_MARKS) + 3),
    ]
    for (name, kind, thrifty), row in zip(cases, rows, strict=True):
        marks = " | ".join(f"{value:.1f}" for value in np.median(row[:, : len(_MARKS)], axis=0))
        mean, launches = row[:, -2].mean(), row[:, -1].mean()
        lines.append(
            f"| {kind} | {name} | {'second' if thrifty else 'trial'} | {marks} | {mean:.1f} | {launches:.0f} "
            f"| {row[:, len(_MARKS) - 1].min():.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
