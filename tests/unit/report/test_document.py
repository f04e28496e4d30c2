"""The report's facts on a study with known answers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.history import History, Judgement, Trial
from tuner.model.measurement import Estimate, Measurement, QualityReport, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Objective
from tuner.report import study_document, trial_document
from tuner.report.document import pareto, time_account

BASELINE = Candidate(assignment={}, arguments={}, origin="baseline")
BETTER = Judgement(
    verdict="better", gain=0.6, low=-math.inf, high=math.inf, basis="rounds", challenger_starts=1, baseline_starts=1
)


def outcome(value: float | None, accuracy: float | None = None, **changes: Any) -> Outcome:
    number = changes.pop("n", 0)
    candidate = Candidate(assignment={"n": number}, arguments={"n": number}) if number else BASELINE
    base = Outcome(
        candidate=candidate,
        status=Status.MEASURED,
        objective=value,
        measurement=None
        if value is None
        else Measurement(
            metrics={"throughput/output": value},
            objective=Estimate(value=value, low=value - 5, high=value + 5, samples=(value - 1, value + 1)),
        ),
        quality=None if accuracy is None else QualityReport(passed=True, metrics={"accuracy/score": accuracy}),
        server=ServerReport(
            effective={"n": number},
            differences=("asked 3, runs 4",),
            phases={"imports": 8.0, "weights": 2.0, "total": 10.0},
            mode="warm",
            warnings=("Using default MoE config",),
        ),
        seconds={"start": 10.0, "measure": 30.0, "quality": 5.0, "teardown": 1.0, "total": 50.0},
    )
    return replace(base, **changes)


def make(*outcomes: Outcome, objective: Objective | None = None) -> History:
    history = History(objective=objective or Objective(), baseline_key=BASELINE.key)
    for number, item in enumerate(outcomes):
        origin = "baseline" if item.candidate is BASELINE else "search"
        history.add(Trial(number=number, origin=origin, outcome=item))
    return history


FAILURE = Failure(kind="kv-too-small", cause="2 GiB missing", blame=Blame.CONFIGURATION, advice="ask for less")
STUDY = make(
    outcome(500.0, 0.60),
    outcome(800.0, 0.59, n=1),
    outcome(700.0, 0.61, n=2),
    outcome(600.0, 0.58, n=3),
    outcome(None, n=4, status=Status.BROKEN, failure=FAILURE),
    outcome(None, n=5, status=Status.BROKEN, failure=FAILURE),
    outcome(None, n=6, status=Status.EXCLUDED, server=None, seconds={}, exclusion=Exclusion(reason="r", rule="memory")),
    outcome(400.0, n=7, status=Status.BEHIND),
)


def test_the_study_in_plain_values() -> None:
    document = study_document(STUDY, BETTER, {"name": "s", "facts": {"kind": "replay"}, "limits": []})
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["kind"] == "replay"
    assert document["baseline"]["value"] == 500.0
    assert document["winner"]["trial"] == 1
    assert document["judgement"]["low"] is None
    assert document["trials"] == {"measured": 4, "broken": 2, "excluded": 1, "behind": 1}
    assert document["excluded"] == {"memory": 1}
    assert document["failures"] == [
        {
            "class": "kv-too-small",
            "trials": [4, 5],
            "blame": "configuration",
            "cause": "2 GiB missing",
            "advice": "ask for less",
        }
    ]
    assert document["table"][7]["reason"] == "stopped early: clearly behind the best"


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    assert [point["trial"] for point in pareto(STUDY)] == [1, 2]
    faster_is_lower = make(
        outcome(10.0, 0.5), outcome(8.0, 0.5, n=1), objective=Objective(metric="latency/ttft_p99", maximize=False)
    )
    assert [point["trial"] for point in pareto(faster_is_lower)] == [1]


def test_the_time_account_adds_up() -> None:
    account = time_account(STUDY, {"wall_seconds": 500.0, "search_seconds": 12.0})
    assert account["wall_seconds"] == 500.0
    assert account["seconds"]["measure"] == 210.0
    assert account["seconds"]["search"] == 12.0
    assert sum(account["seconds"].values()) == pytest.approx(500.0)
    assert account["start_phases"] == {"imports": 56.0, "weights": 14.0}


def test_without_a_wall_time_the_trials_are_the_whole() -> None:
    account = time_account(STUDY, {})
    assert account["wall_seconds"] == 350.0
    assert account["seconds"]["other"] == pytest.approx(350.0 - 7 * 46.0)


def test_a_trial_says_what_it_asked_and_what_ran() -> None:
    document = trial_document(STUDY.trials[1])
    assert document["asked"]["arguments"] == {"n": 1}
    assert document["ran"] == {"n": 1}
    assert document["differences"] == ["asked 3, runs 4"]
    assert document["warnings"] == ["Using default MoE config"]
    assert document["start"]["mode"] == "warm"
    assert document["record"]["status"] == "measured"
    json.dumps(document, allow_nan=False)


def test_an_empty_study_has_a_document() -> None:
    document = study_document(make(), None, {})
    assert document["winner"] is None
    assert document["time"]["wall_seconds"] == 0
