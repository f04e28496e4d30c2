"""Honest and cheap, on the real vLLM: rerun with ``python -m tests.benchmarks.live_benchmark`` on an idle machine.

``same``: one configuration against itself, by the code that judges a study's winner: every start against the one before
it (as after a search), four starts against four in turns (as after a confirmation), and fourteen against fourteen; then
with the challenger's numbers raised by 5 %, which has to be found.
``studies``: the same study of twelve eager trials with the warm parent and early stops, and with cold starts and
neither.
``search``: the same number of trials by the default search and at random.

Two hours on two cores. Other work on the machine makes the figures worthless.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console

from tuner.demo import cache_folder, is_complete
from tuner.measuring import BenchLoadGenerator
from tuner.measuring.statistics import compare
from tuner.model.candidate import Candidate
from tuner.model.history import History, Trial
from tuner.model.measurement import Measurement
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import LoadPoint, Objective, Workload
from tuner.serving.launcher import VllmLauncher

_MODEL = cache_folder() / "models" / "SmolLM2-135M-Instruct"
_EAGER = {"enforce-eager": True, "kv-cache-memory-bytes": 1_000_000_000, "max-model-len": 1024}
_LOAD = Workload(
    name="cpu-demo",
    source="text",
    input_tokens=64,
    output_tokens=64,
    ignore_eos=True,
    points=(LoadPoint(concurrency=32, requests=64),),
    rounds=(2, 3),
    precision=0.02,
)


def starts(count: int, folder: Path, console: Console) -> list[Measurement]:
    """One configuration measured on ``count`` servers, each started anew, with prompts of its own."""
    launcher = VllmLauncher(
        str(_MODEL), study_dir=folder, environment={"VLLM_CPU_OMP_THREADS_BIND": "0-1"}, weight_bytes=269e6
    )
    load = BenchLoadGenerator(_LOAD, Objective())
    candidate = Candidate(assignment={}, arguments=_EAGER)
    found = []
    try:
        for number in range(count):
            where = folder / f"{number:02d}"
            began = time.monotonic()
            with launcher.launch(candidate, directory=where, progress=lambda *_: None) as server:
                found.append(load.measure(server, seed=1000 + number, directory=where, progress=lambda *_: None))
            value = found[-1].objective
            assert value is not None
            console.print(f"  start {number}: {value.value:.1f} tok/s in {time.monotonic() - began:.0f} s")
    finally:
        launcher.close()
    return found


def verdict(challenger: Sequence[Measurement], reference: Sequence[Measurement], factor: float = 1.0) -> str:
    """How a study would judge it, the challenger's samples multiplied by ``factor``."""
    baseline, other = (Candidate(assignment={}, arguments=arguments) for arguments in ({}, {"max-num-seqs": 1}))
    history = History(objective=Objective(), baseline_key=baseline.key)
    sides = ((baseline, reference, 1.0), (other, challenger, factor))
    for candidate, measured, times in sides:
        for index, item in enumerate(measured):
            objective = item.objective
            assert objective is not None
            raised = replace(
                objective,
                value=objective.value * times,
                samples=tuple(sample * times for sample in objective.samples),
            )
            outcome = Outcome(
                candidate=candidate,
                status=Status.MEASURED,
                objective=raised.value,
                measurement=replace(item, objective=raised),
            )
            origin = "confirm" if index else "search" if candidate is other else "baseline"
            history.add(Trial(number=len(history.trials), origin=origin, outcome=outcome))
    judged = history.judge(next(c for c in history.contenders() if c.candidate.key == other.key), compare)
    assert judged is not None
    return judged.verdict


def same(count: int, console: Console) -> dict[str, Any]:
    """How often starts of one configuration are called different, and how often 5 % more is found."""
    with tempfile.TemporaryDirectory() as folder:
        found = starts(count, Path(folder), console)
    singles = [((later,), (earlier,)) for later, earlier in zip(found[1:], found[:-1], strict=True)]
    groups = {"one start against one": singles}
    for name, side in (("four", 4), ("fourteen", 14)):
        windows = [found[first : first + 2 * side] for first in range(len(found) - 2 * side + 1)]
        groups[f"{name} against {name} in turns"] = [(window[1::2], window[::2]) for window in windows]
    answer: dict[str, Any] = {"tok/s": [round(item.objective.value, 1) for item in found if item.objective is not None]}
    for name, pairs in groups.items():
        answer[name] = {
            "comparisons": len(pairs),
            "called different": sum(verdict(*pair) != "no significant difference" for pair in pairs),
            "5 % more found": sum(verdict(*pair, 1.05) == "better" for pair in pairs),
        }
    return answer


def study(name: str, folder: Path, trials: int, *extra: str) -> dict[str, Any]:
    """One study by the command line; its wall time and what came of it."""
    command = [sys.executable, "-m", "tuner.cli", "--hardware", "cpu", "--directory", str(folder), "--study", name]
    command += ["--arg", "enforce-eager=true", "--trials", str(trials), "--seed", "0", "--json", *extra]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"the study {name} ended with {done.returncode}: {done.stderr[-2000:]}")
    answer = json.loads(done.stdout)
    account = json.loads((folder / name / "progress.json").read_text(encoding="utf-8"))
    return {
        "seconds": round(seconds, 1),
        "account": account,
        **{key: answer.get(key) for key in ("winner", "judgement")},
    }


def studies(trials: int, console: Console) -> dict[str, Any]:
    """Warm with early stops against cold without."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, extra in (("warm", ()), ("cold", ("--cold", "--no-early-stop"))):
            found[name] = study(name, Path(folder), trials, *extra)
            console.print(f"  {name}: {found[name]['seconds']:.0f} s")
            shutil.rmtree(Path(folder) / name / "trials", ignore_errors=True)
    found["share of the cold wall time"] = round(found["warm"]["seconds"] / found["cold"]["seconds"], 3)
    return found


def search(trials: int, console: Console) -> dict[str, Any]:
    """The best measured value after each trial, by the default search and at random."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for sampler in ("tune", "random"):
            done = study(sampler, folder, trials, "--sampler", sampler, "--no-accuracy")
            table = folder / f"{sampler}.jsonl"
            command = [sys.executable, "-m", "tuner.cli", "report", "--directory", name, "--study", sampler]
            subprocess.run([*command, "--table", str(table)], capture_output=True, check=True)
            lines = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]
            values = [line.get("objective") or 0.0 for line in lines if line["origin"] != "confirm"]
            found[sampler] = {
                "seconds": done["seconds"],
                "winner": done["winner"],
                "best tok/s after each trial": [round(value, 1) for value in accumulate(values, max)],
            }
            console.print(f"  {sampler}: {found[sampler]['best tok/s after each trial']}")
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["same", "studies", "search"])
    parser.add_argument("--starts", type=int, default=48)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    console = Console(stderr=True)
    if not is_complete(_MODEL):
        console.print("the demo model is not there: make install, then python -m tuner.demo")
        return 1
    found: dict[str, Any] = {}
    wanted = [options.only] if options.only else ["same", "studies", "search"]
    if "same" in wanted:
        found["same"] = same(options.starts, console)
    if "studies" in wanted:
        found["studies"] = studies(options.trials, console)
    if "search" in wanted:
        found["search"] = search(options.trials, console)
    text = json.dumps(found, indent=1)
    sys.stdout.write(text + "\n")
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
