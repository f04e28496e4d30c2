"""How good is the search? Rerun with ``python -m tests.benchmarks.search_benchmark`` (hours on two cores, GP the most).

Writes ``docs/benchmarks/search.jsonl`` (every run; a stopped call goes on from there), ``search.md`` (the table) and
``search.png`` (the curves). Shares are those of the noiseless value of the configuration that measured best, of the
surface's optimum.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# One thread a process: the matrices are small, and the processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from tests.benchmarks.search.harness import Run, optimum, run_search
from tests.benchmarks.search.others import OTHERS
from tests.benchmarks.search.replay import h200_table
from tests.benchmarks.search.surfaces import SURFACES as OWN

SURFACES = {**OTHERS, **OWN}
METHODS = ("tune", "told", "random", "tpe", "gp", "one-factor")
_TABLE = "h200-table"
_MARKS = (10, 20, 40)


def _job(job: tuple[str, str, int, int, str]) -> dict[str, Any]:
    name, method, seed, trials, table = job
    warnings.simplefilter("ignore")
    surface = h200_table(Path(table)) if name == _TABLE else SURFACES[name](seed)
    run: Run = run_search(surface, method, seed=seed, trials=trials)
    best = optimum(surface)
    return {
        "surface": name,
        "method": method,
        "seed": seed,
        "share": [round(value / best, 4) for value in run.best],
        "failed": [int(failed) for failed in run.failed],
        "seconds_per_suggestion": round(run.seconds / trials, 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--gp-seeds", type=int, default=None, help="fewer seeds for GP, which takes most of the time")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--surfaces", default=",".join(SURFACES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--table", default="", help="trials.jsonl of recorded H200 trials, to replay too")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    chosen = parser.parse_args(arguments)
    names = [*chosen.surfaces.split(","), *([_TABLE] if chosen.table else [])]
    # Seeds outermost: whenever it is stopped, every surface and method has about as many.
    jobs = [
        (name, method, seed, 10 if name == _TABLE else chosen.trials, chosen.table)
        for seed in range(chosen.seeds)
        for name in names
        for method in chosen.methods.split(",")
        if method != "gp" or seed < (chosen.gp_seeds or chosen.seeds)
        if method != "told" or (name in SURFACES and SURFACES[name](seed).told is not None)
    ]
    chosen.out.mkdir(parents=True, exist_ok=True)
    log = chosen.out / "search.jsonl"
    runs = _done(log)
    known = {(run["surface"], run["method"], run["seed"], len(run["share"])) for run in runs}
    waiting = [job for job in jobs if job[:4] not in known]
    with ProcessPoolExecutor(chosen.workers) as pool, log.open("a", encoding="utf-8") as file:
        for future in as_completed([pool.submit(_job, job) for job in waiting]):
            run = future.result()
            runs.append(run)
            file.write(json.dumps(run) + "\n")
            file.flush()
    # What earlier calls left is reported too, whatever this one was asked for.
    places, methods = [*SURFACES, _TABLE], list(METHODS)
    runs.sort(key=lambda run: (places.index(run["surface"]), methods.index(run["method"]), run["seed"]))
    _report(runs, chosen.out)
    return 0


def _done(log: Path) -> list[dict[str, Any]]:
    """Runs of an earlier call: delete the file after a change of the search."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


def _report(runs: Sequence[dict[str, Any]], out: Path) -> None:
    table = _markdown(runs)
    (out / "search.md").write_text(table, encoding="utf-8")
    _plot(runs, out / "search.png")
    sys.stdout.write(table)


def _groups(runs: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((str(run["surface"]), str(run["method"])), []).append(run)
    return groups


def _markdown(runs: Sequence[dict[str, Any]]) -> str:
    lines = [
        "# Search benchmark",
        "",
        "Share of the optimum (%), median over seeds; worst seed at the end; launches that cannot start.",
        "Surfaces in `tests/benchmarks/search`: `others.py` (by another hand), `surfaces.py` (by the search's author).",
        "No rule helps here: what is dead must be launched. `told`: `tune` on servers that say of themselves what",
        "vLLM's `/metrics` do (running batch, use of the KV cache, accepted drafts); the others see the objective.",
        "",
        "| surface | method | seeds | after 10 | after 20 | after 40 | worst seed | dead ≤10 | dead >10 | s/ask |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (surface, method), group in _groups(runs).items():
        share = np.array([run["share"] for run in group], dtype=float) * 100
        failed = np.array([run["failed"] for run in group], dtype=float) * 100
        marks = [f"{np.median(share[:, mark - 1]):.1f}" if mark <= share.shape[1] else "" for mark in _MARKS]
        late = f"{failed[:, 10:].mean():.0f}" if failed.shape[1] > 10 else ""
        seconds = np.mean([float(str(run["seconds_per_suggestion"])) for run in group])
        lines.append(
            f"| {surface} | {method} | {len(group)} | {' | '.join(marks)} | {share[:, -1].min():.1f} "
            f"| {failed[:, :10].mean():.0f} | {late} | {seconds:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _plot(runs: Sequence[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415  (only here, and slow)

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    groups = _groups(runs)
    names = list(dict.fromkeys(surface for surface, _ in groups))
    columns = 4
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        for (surface, method), group in groups.items():
            if surface == name:
                share = np.array([run["share"] for run in group], dtype=float) * 100
                trials = np.arange(1, share.shape[1] + 1)
                color = f"C{METHODS.index(method)}"
                axis.plot(trials, np.median(share, axis=0), label=f"{method} ({len(group)})", color=color)
                axis.fill_between(trials, *np.quantile(share, [0.1, 0.9], axis=0), color=color, alpha=0.1)
        axis.set(title=name, xlabel="launches", ylabel="% of the optimum")
    for axis in list(axes.flat)[len(names) :]:
        axis.set_visible(False)
    for axis in list(axes.flat)[: len(names)]:
        axis.legend(fontsize=7, title="method (seeds)", title_fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    raise SystemExit(main())
