"""What a study on a real H200 left behind is read as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner import spaces
from tuner.model.candidate import Candidate
from tuner.model.outcome import Status
from tuner.model.workload import LoadPoint, Objective, Workload
from tuner.ports import TrialContext
from tuner.serving.logs import read_log
from tuner.serving.replay import ReplayRunner

DATA = Path(__file__).parents[1] / "data" / "h200"
FOLDER = DATA / "study"


def rows(*folders: str) -> list[Any]:
    """Every trial of these folders that started, with its folder."""
    found = []
    for folder in folders:
        lines = (DATA / folder / "trials.jsonl").read_text().splitlines()
        found += [(folder, row) for row in map(json.loads, lines) if "output_tok_s" in row]
    return [pytest.param(folder, row, id=f"{folder} trial {row['trial']}") for folder, row in found]


QWEN = rows("study", "batch-1024", "concurrency-256")
ROWS: list[dict[str, Any]] = [json.loads(line) for line in (FOLDER / "trials.jsonl").read_text().splitlines()]
WORKLOAD = Workload(
    name="batch-1024", force_random=True, output_tokens=300, points=(LoadPoint(concurrency=1024, requests=1024),)
)


@pytest.mark.parametrize(("folder", "row"), QWEN)
def test_the_log_says_what_the_server_reported(folder: str, row: dict[str, Any]) -> None:
    facts = read_log(DATA / folder / row["log"])
    asked = row["arguments"].get("compilation-config.cudagraph_mode", "FULL_AND_PIECEWISE")
    assert facts.settings["cudagraph-mode"] == asked
    for name in ("kv-cache-tokens", "attention-backend", "moe-backend", "cudagraph-capture-max", "model-gib"):
        assert facts.settings[name] == row["effective"][name]
    assert facts.settings["api-server-count"] == (
        row["arguments"].get("api-server-count", 1) if folder != "study" else 1
    )
    for name in ("weights", "compile", "profile", "capture"):
        assert facts.seconds[name] == pytest.approx(row["phases"][name], abs=0.01)


@pytest.mark.parametrize(("folder", "row"), QWEN)
def test_the_memory_estimate_is_within_two_percent_of_the_reported_kv_cache(folder: str, row: dict[str, Any]) -> None:
    assert folder
    plan = spaces.open_plan("h200", model="Qwen/Qwen3-30B-A3B", workload=WORKLOAD)
    candidate = Candidate(assignment={}, arguments=row["arguments"])
    expected = plan.planner.forecast(candidate)
    assert expected["kv-cache-tokens"] == pytest.approx(row["effective"]["kv-cache-tokens"], rel=0.02)
    assert expected["model-gib"] == pytest.approx(row["effective"].get("model-gib", expected["model-gib"]), rel=0.02)


def test_the_winner_of_the_batch_study_is_more_than_two_and_a_half_times_the_default() -> None:
    trials = [json.loads(line) for line in (DATA / "batch-1024" / "trials.jsonl").read_text().splitlines()]
    confirmed = {row["origin"] + str(bool(row.get("assignment"))): row for row in trials if row["origin"] == "confirm"}
    winner, default = confirmed["confirmTrue"], confirmed["confirmFalse"]
    assert winner["objective"] / default["objective"] == pytest.approx(2.88, abs=0.01)
    assert winner["arguments"]["api-server-count"] == 4


def test_the_table_replays_what_was_measured(tmp_path: Path) -> None:
    runner = ReplayRunner(FOLDER / "trials.jsonl", objective=Objective(), noise=0.0)
    best = max((row for row in ROWS if row["status"] == "measured"), key=lambda row: row["objective"])
    context = TrialContext(number=0, directory=tmp_path, seed=1)
    outcome = runner.run(Candidate(assignment={}, arguments=best["arguments"]), context, lambda *_: None)
    assert outcome.status is Status.MEASURED
    assert outcome.objective == pytest.approx(best["objective"], rel=0.01)
    assert best["objective"] / ROWS[0]["objective"] == pytest.approx(1.74, abs=0.01)
