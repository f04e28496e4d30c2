"""What MLflow's parent run shows of several load points and several objectives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tuner.model.workload import Objective
from tuner.tracking.answers import answer_metrics, answer_tables, answer_tags, answer_text
from tuner.tracking.overview import Overview

MEASURED = {"trial": 0, "confirmed": 2, "value": 50.0, "low": 49.0, "high": 51.0}
BEST = {**MEASURED, "trial": 7, "value": 80.0, "low": None, "high": None, "assignment": {"x": 1}}
GAIN = {"verdict": "better", "gain": 0.6, "low": 0.5, "high": 0.7, "basis": "starts"}
LOADS = [
    {
        "load": "c1", "weight": 1.0, "baseline": MEASURED, "best": BEST, "judgement": GAIN, "picked_of": 3,
        "accuracy_unchecked": False, "single": None, "single_judgement": None,
    },
    {
        "load": "c8", "weight": 1.0, "baseline": MEASURED, "best": None, "judgement": None, "picked_of": 3,
        "accuracy_unchecked": False, "single": None, "single_judgement": None,
    },
]  # fmt: skip
LATENCY = {"value": 9.0, "low": 8.0, "high": 10.0}
FRONT = {
    "objectives": [
        {"metric": "throughput/output", "maximize": True, "unit": "tok/s"},
        {"metric": "latency/ttft_p99", "maximize": False, "unit": "ms"},
    ],
    "points": [
        {
            **BEST, "values": [LATENCY | {"value": 80.0}, LATENCY], "judgements": [GAIN, None],
            "baseline": False, "roles": [],
        },
        {
            **BEST, "trial": 9, "values": [LATENCY, LATENCY | {"value": 4.0}], "judgements": [],
            "baseline": False, "roles": ["knee"],
        },
    ],
    "baseline": {"values": [LATENCY, LATENCY], "on_front": False, "beaten_by": [7]},
}  # fmt: skip
SUMMARY: dict[str, Any] = {"unit": "tok/s", "loads": LOADS, "front": FRONT}


def test_figures_per_load_and_of_the_front_are_metrics() -> None:
    assert answer_metrics(SUMMARY) == {
        "load c1/best": 80.0,
        "load c1/baseline": 50.0,
        "load c1/gain": 0.6,
        "load c1/gain_low": 0.5,
        "load c1/gain_high": 0.7,
        "load c8/baseline": 50.0,
        "front/configurations": 2.0,
        "front/best_throughput": 80.0,
        "front/best_ttft_p99": 4.0,
    }


def test_tags_name_the_trials() -> None:
    assert answer_tags(SUMMARY) == {
        "best.c1": "trial 7", "best.c8": "vLLM's defaults", "front": "trial 7, trial 9",
    }  # fmt: skip


def test_the_description_has_both_tables() -> None:
    overview = Overview(title="t", model="m", objective=Objective(), rows=[], summary=SUMMARY)
    note = overview.note()
    assert "| c1 | 50 ±2.0% | 80 | #7 | +60.0% | +50.0 to +70.0% | better |" in note
    assert "| c8 | 50 ±2.0% | nothing better |" in note
    assert "- vLLM's defaults are behind the front: better in every objective measured trial 7." in note
    assert overview.tags()["best.c1"] == "trial 7"
    assert overview.metrics()["load c1/gain"] == 0.6


def test_tables_are_artifacts_whose_columns_differ() -> None:
    tables = answer_tables(SUMMARY)
    assert sorted(tables) == ["front.json", "loads.json"]
    front = json.loads(tables["front.json"])
    assert len(set(front["columns"])) == len(front["columns"]) == len(front["data"][0])
    assert "gain 2" in front["columns"]


@pytest.mark.parametrize("summary", [{}, {"winner": None}])
def test_a_study_of_one_load_and_one_objective_shows_nothing_more(summary: dict[str, Any]) -> None:
    assert answer_metrics(summary) == {}
    assert answer_tags(summary) == {}
    assert answer_text(summary) == ""
    assert answer_tables(summary) == {}
