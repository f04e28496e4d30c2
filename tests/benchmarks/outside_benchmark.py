"""The whole program on surfaces by others: ``python -m tests.benchmarks.outside_benchmark`` (an hour on two cores).

Every run is one study through the real command line with ``--trial-command``: starts, search, confirmation, MLflow.
Writes ``docs/benchmarks/outside.jsonl`` (a stopped call goes on from there) and ``outside.md``. A share is the
noiseless value of what had measured best by then, of the best that the surface's own thorough search found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "outside"
_ROOT = Path(__file__).parents[2]
METHODS = ("tune", "tpe", "random")
_MARKS = (10, 20, 40)
_ANSWER_S, _STUDY_S = 300, 3600


def surfaces() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("*/surface.py"))


def run(surface: str, method: str, seed: int, trials: int) -> dict[str, Any]:
    """One study, and how good what it measured best was after every launch."""
    folder = FOLDER / surface
    options = folder / "options.txt"
    more = options.read_text(encoding="utf-8").replace("{here}", str(folder)).split() if options.exists() else []
    if (profile := folder / "profile.yaml").exists():
        more = ["--hardware", str(profile), *more]
    environment = {**os.environ, "SURFACE_SEED": str(seed), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    program = [sys.executable, str(folder / "surface.py")]
    with tempfile.TemporaryDirectory(prefix="outside-") as place:
        command = [
            *(sys.executable, "-m", "tuner.cli"),
            *("--trial-command", " ".join(program), "--trials", str(trials), "--seed", str(seed)),
            *("--sampler", method, "--no-accuracy", "--directory", place, "--json", *more),
        ]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_STUDY_S, check=False, cwd=place
        )
        if done.returncode:
            raise RuntimeError(f"{surface} {method} seed {seed}: exit {done.returncode}: {done.stderr[-500:]}")
        told = json.loads(done.stdout)
        asked = [(path.parent, json.loads(path.read_bytes())) for path in Path(place).glob("*/trials/*/request.json")]
        launched = sorted(asked, key=lambda item: int(item[1]["trial"]))
        outcomes = [json.loads((where / "trial.json").read_bytes()) for where, _ in launched]
        truths = [_ask(program, "--value", environment, question) for _, question in launched]
    best = _number(_ask(program, "--optimum", environment, {}))
    minimise = not told["maximize"]
    shares = _shares(outcomes, truths, best, minimise=minimise)
    return {
        "surface": surface,
        "method": method,
        "seed": seed,
        "trials": trials,
        "share": [round(share, 4) for share in shares],
        "dead": [int(truth.startswith("dead")) for truth in truths],
        "reason": told.get("reason", ""),
    }


def _ask(program: Sequence[str], what: str, environment: Mapping[str, str], question: Mapping[str, Any]) -> str:
    done = subprocess.run(
        [*program, what],
        env=dict(environment),
        input=json.dumps(question),
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        check=True,
    )
    return done.stdout.strip()


def _number(text: str) -> float:
    if text.startswith("{"):
        return float(json.loads(text)["value"])
    return float(text.split(maxsplit=1)[0])


def _shares(
    outcomes: Sequence[Mapping[str, Any]], truths: Sequence[str], best: float, *, minimise: bool
) -> list[float]:
    """After each launch: the true worth of the one that measured best among those that kept every limit."""
    top, worth, found = -np.inf, 0.0, []
    for outcome, truth in zip(outcomes, truths, strict=True):
        kept = all(float(value) <= 0 for value in outcome["constraints"].values())
        if outcome["status"] == "measured" and kept:
            measured = float(outcome["objective"]) * (-1 if minimise else 1)
            if measured > top:
                # What keeps a limit by luck alone is worth nothing.
                value = 0.0 if truth.startswith(("dead", "over")) else float(truth.split(maxsplit=1)[0])
                top, worth = measured, (best / value if minimise else value / best) if value else 0.0
        found.append(worth)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--surfaces", default=",".join(surfaces()))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    chosen = parser.parse_args(arguments)
    jobs = [
        (name, method, seed, chosen.trials)
        for seed in range(chosen.seeds)
        for name in chosen.surfaces.split(",")
        for method in chosen.methods.split(",")
    ]
    chosen.out.mkdir(parents=True, exist_ok=True)
    log = chosen.out / "outside.jsonl"
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    known = {(row["surface"], row["method"], row["seed"], row["trials"]) for row in rows}
    failed = 0
    with ThreadPoolExecutor(chosen.workers) as pool, log.open("a", encoding="utf-8") as file:
        for future in as_completed([pool.submit(run, *job) for job in jobs if job not in known]):
            try:
                row = future.result()
            except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
                failed += 1
                sys.stderr.write(f"{error}\n")
                continue
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    table = markdown(rows)
    (chosen.out / "outside.md").write_text(table, encoding="utf-8")
    sys.stdout.write(table)
    return 1 if failed else 0


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Medians over the seeds, per surface and method; a study that ended early keeps what it had."""
    lines = [
        "# The whole program on surfaces by others",
        "",
        "`python -m tests.benchmarks.outside_benchmark`: studies through the real command line, `--trial-command`, on",
        "surfaces by people who had not read the search (`tests/benchmarks/outside`). Share of the optimum (%) after",
        "so many launches, the defaults included, median over seeds; the worst seed at the end; launches after the",
        "tenth that cannot start. The last launches of a study confirm its finalists.",
        "",
        f"| surface | method | seeds | {' | '.join(f'after {mark}' for mark in _MARKS)} | worst | dead >10 |",
        f"|---|---|--:|{'--:|' * len(_MARKS)}--:|--:|",
    ]
    order = {method: index for index, method in enumerate(METHODS)}
    pairs = {(row["surface"], row["method"]) for row in rows}
    for surface, method in sorted(pairs, key=lambda pair: (pair[0], order.get(pair[1], len(order)), pair[1])):
        mine = [row for row in rows if (row["surface"], row["method"]) == (surface, method)]
        most = max(row["trials"] for row in mine)
        full = np.array([(row["share"] + row["share"][-1:] * most)[:most] for row in mine]) * 100
        marks = [f"{np.median(full[:, mark - 1]):.1f}" if mark <= most else "" for mark in _MARKS]
        dead = np.mean([np.mean(row["dead"][10:] or [0]) for row in mine]) * 100
        lines.append(
            f"| {surface} | {method} | {len(mine)} | {' | '.join(marks)} | {full[:, -1].min():.1f} | {dead:.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
