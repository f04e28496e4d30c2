"""The study's page: who wins, by how much, and what a person reads first."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from tuner.model.workload import Limit, Objective
from tuner.tracking.overview import Overview


def row(number: int, value: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "number": number,
        "key": f"k{number}",
        "origin": "search",
        "state": "measured",
        "feasible": True,
        "objective": value,
        "low": None,
        "high": None,
        "metrics": {} if value is None else {"throughput/output": value, "accuracy/score": 0.6},
        "seconds": 60.0,
        "arguments": {"enforce-eager": True, "max-num-seqs": number},
        "environment": {},
        "assignment": {"max_num_seqs": number},
        "reason": "",
        "at": 1000 + number,
        **changes,
    }


BASELINE = row(0, 500.0, origin="baseline", arguments={"enforce-eager": True}, assignment={})
ROWS = [
    BASELINE,
    row(1, 800.0),
    row(2, 900.0, feasible=False, reason="misses latency/ttft_p99"),
    row(3, None, state="broken", feasible=False, reason="2 GiB | missing"),
    row(4, 505.0, origin="confirm", key="k0", assignment={}),
]


def overview(summary: dict[str, Any] | None = None, rows: list[dict[str, Any]] = ROWS) -> Overview:
    return Overview(title="t", model="org/m", objective=Objective(), rows=rows, summary=summary or {})


def test_while_it_runs_the_best_feasible_challenger_leads() -> None:
    view = overview()
    assert view.winner is not None
    assert view.winner["number"] == 1
    assert view.metrics()["gain/gain"] == pytest.approx(0.6)
    assert "the study is running" in view.note()


def test_the_studys_own_verdict_counts_in_the_end() -> None:
    judgement = {"verdict": "no significant difference", "gain": 0.01, "low": -0.02, "high": 0.04, "basis": "starts"}
    view = overview({"winner": {"trial": 1}, "judgement": judgement})
    assert view.metrics()["gain/low"] == -0.02
    assert "Verdict: **no significant difference**" in view.note()
    assert "-2.0% to +4.0%" in view.note()
    assert view.tags() == {"winner": "trial 1", "verdict": "no significant difference"}


def test_a_study_without_a_winner_says_so() -> None:
    view = overview({"winner": None, "ended": True})
    assert view.winner is None
    assert view.yaml() is None
    assert "No configuration but the default" in view.note()
    assert view.metrics()["best/objective"] == 500.0


def test_lower_is_better_turns_everything_round() -> None:
    rows = [{**r, "objective": r["objective"] and 1000 - r["objective"]} for r in ROWS]
    view = Overview(
        title="t", model="m", objective=Objective(metric="latency/ttft_p99", maximize=False, unit="ms"), rows=rows
    )
    assert view.winner is not None
    assert view.winner["number"] == 1
    assert view.metrics()["gain/gain"] == pytest.approx(0.6)
    assert "Trial 1 is **-60.0% ttft_p99** against vLLM's defaults" in view.note()


def test_limited_metrics_are_among_the_figures_with_their_bounds() -> None:
    tpot = Limit(metric="latency/tpot_p99", bound=30.0)
    floor = Limit(metric="throughput/output", bound=400.0, at_most=False)
    rows = [{**row, "metrics": {**row["metrics"], "latency/tpot_p99": 40.0 - row["number"]}} for row in ROWS]
    view = Overview(title="t", model="m", objective=Objective(), rows=rows, limits=(tpot, floor))
    assert "| tpot_p99 (ms), at most 30 | 40 | 39 | -2.5% |" in view.note()
    assert "| Output throughput (tok/s), at least 400 | 500 | 800 | +60.0% |" in view.note()
    assert view.metrics()["baseline/latency/tpot_p99"] == 40.0


def test_history_is_best_so_far_by_trial() -> None:
    course = [(r["number"], value) for r, name, value in overview().history() if name == "history/best"]
    assert course == [(0, 500.0), (1, 800.0), (2, 800.0), (4, 800.0)]


def test_the_description_has_figures_yaml_and_trials() -> None:
    note = overview().note()
    assert "| Output throughput (tok/s) | 500 | 800 | +60.0% |" in note
    assert "```yaml\nmodel: org/m\nenforce-eager: true\nmax-num-seqs: 1\n```" in note
    assert "| 2 | 900 | 0.6 | max_num_seqs=2 ⚠ misses latency/ttft_p99 |" in note


def test_tables_hold_every_trial_and_only_flags_that_vary() -> None:
    lines = list(csv.DictReader(io.StringIO(overview().csv())))
    assert [line["trial"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert lines[3]["reason"] == "2 GiB | missing"
    assert "max-num-seqs" in lines[0]
    assert "enforce-eager" not in lines[0]
    table = json.loads(overview().table_json())
    assert len(table["data"]) == 5
    assert len(table["data"][0]) == len(table["columns"])


def test_the_page_of_all_runs_opens_sorted_by_the_objective() -> None:
    tags = overview().experiment_tags(["latency/e2e_p99"])
    view = json.loads(tags["mlflow.sharedViewState.tune"])
    assert view["orderByKey"] == "metrics.`throughput/output`"
    assert view["orderByAsc"] is False
    assert "metrics.`accuracy/score`" in view["selectedColumns"]
    assert "metrics.`latency/e2e_p99`" in view["selectedColumns"]
    assert "params.`asked/max-num-seqs`" in view["selectedColumns"]
    assert "params.`asked/enforce-eager`" not in view["selectedColumns"]


def test_a_study_without_trials_has_a_page() -> None:
    view = overview(rows=[])
    assert view.metrics() == {"trials/all": 0.0}
    assert "No winner yet" in view.note()


def test_the_parent_run_has_the_means_that_the_report_has() -> None:
    summary = {
        "winner": {"trial": 1, "value": 810.0, "metrics": {"throughput/output": 810.0, "latency/ttft_p99": 90.0}},
        "baseline": {"trial": 0, "value": 502.5, "metrics": {"throughput/output": 502.5}},
    }
    found = overview(summary).metrics()
    assert (found["best/objective"], found["baseline/objective"]) == (810.0, 502.5)
    assert (found["best/throughput/output"], found["baseline/throughput/output"]) == (810.0, 502.5)
    assert found["best/latency/ttft_p99"] == 90.0
    assert found["best/accuracy/score"] == 0.6
    alone = overview({"winner": None, "baseline": summary["baseline"]}).metrics()
    assert (alone["best/objective"], alone["best/throughput/output"]) == (502.5, 502.5)


def test_a_replays_estimate_is_named_and_has_no_interval() -> None:
    judgement = {"verdict": "better", "gain": 1.33, "low": None, "high": None, "basis": "starts", "estimated": True}
    view = overview({"winner": {"trial": 1}, "judgement": judgement})
    assert "is **+133.0%** against vLLM's defaults by the replay's estimate, not measured. Verdict" in view.note()
    assert "gain/low" not in view.metrics()


def test_below_zero_the_page_keeps_better_as_plus() -> None:
    rows = [{**BASELINE, "objective": -10.0}, row(1, -5.0)]
    view = overview(rows=[{**item, "metrics": {"throughput/output": item["objective"]}} for item in rows])
    assert view.metrics()["gain/gain"] == pytest.approx(0.5)
    assert "| -10 | -5 | +50.0% |" in view.note()
