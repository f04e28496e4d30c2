"""Runs of an experiment as earlier trials: this program's own, somebody else's, and nonsense."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.errors import InputError
from tuner.tracking import earlier
from tuner.tracking.earlier import read_earlier

METRIC = "throughput/output"


def run(number: str, *, params: dict[str, str], metrics: dict[str, float], **tags: str) -> Any:
    named = {name.replace("parent", "mlflow.parentRunId"): text for name, text in tags.items()}
    return SimpleNamespace(
        info=SimpleNamespace(run_id=number, experiment_id="7"),
        data=SimpleNamespace(params=params, metrics=metrics, tags=named),
    )


def read(monkeypatch: pytest.MonkeyPatch, runs: list[Any]) -> Any:
    class Store:
        def __init__(self, *_: object) -> None: ...

        def connect(self) -> None: ...

        def experiment_named(self, name: str) -> str | None:
            return "7" if name == "mine" else None

        def newest(self, experiment: str, most: int) -> list[Any]:
            assert experiment == "7"
            return runs[:most]

    monkeypatch.setattr(earlier, "Store", Store)
    return read_earlier("sqlite:////m.db", "mine", METRIC)


def test_own_runs_come_with_what_was_asked_and_what_their_study_was(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(
        monkeypatch,
        [
            run("p", params={"hardware": "h200", "model": "m", "version/vllm": "0.33.0", "seed": "1"}, metrics={}),
            run("a", params={}, metrics={METRIC: 100.0}, parent="p", state="measured", origin="baseline"),
            run(
                "b",
                params={"asked/max-num-seqs": "64", "effective/max-num-seqs": "32", "asked/env:X": "1"},
                metrics={METRIC: 50.0},
                parent="p",
                state="measured",
                origin="search",
            ),
        ],
    )
    assert [(item.settings, item.value, item.baseline, item.group) for item in found.runs] == [
        ({}, 100.0, True, "p"),
        ({"max-num-seqs": "64", "env:X": "1"}, 50.0, False, "p"),
    ]
    assert found.facts == {"p": {"hardware": "h200", "model": "m", "vllm": "0.33.0"}}


def test_foreign_runs_are_read_by_their_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = run("x", params={"--max_num_seqs": "64", "notes": "n" * 1000}, metrics={"throughput_output": 10.0})
    (item,) = read(monkeypatch, [foreign]).runs
    assert (item.settings, item.value, item.baseline, item.group) == ({"max_num_seqs": "64"}, 10.0, False, "7")


@pytest.mark.parametrize(
    "metrics", [{}, {"loss": 1.0}, {METRIC: math.nan}, {METRIC: math.inf}, {METRIC: -1.0}, {METRIC: 0.0}]
)
def test_what_measured_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch, metrics: dict[str, float]) -> None:
    assert read(monkeypatch, [run("x", params={"lr": "0.1"}, metrics=metrics)]).runs == []


@pytest.mark.parametrize("tags", [{"state": "broken"}, {"state": "behind"}, {"state": "measured", "feasible": "no"}])
def test_what_failed_or_missed_a_limit_is_left_out(monkeypatch: pytest.MonkeyPatch, tags: dict[str, str]) -> None:
    assert read(monkeypatch, [run("x", params={}, metrics={METRIC: 5.0}, **tags)]).runs == []


def test_no_such_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    read(monkeypatch, [])
    with pytest.raises(InputError, match=r"mlflow:other: .* no experiment"):
        read_earlier("sqlite:////m.db", "other", METRIC)
