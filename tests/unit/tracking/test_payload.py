"""What a trial looks like in MLflow, and that nothing secret is in it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import yaml

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.judge import reason
from tuner.model.measurement import Estimate, Measurement, PointResult, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.tracking import payload
from tuner.tracking.payload import Mask

CANDIDATE = Candidate(
    assignment={"n": 8},
    arguments={"max-num-seqs": 8, "enable-prefix-caching": False, "compilation-config.cudagraph_mode": "NONE"},
    environment={"HF_TOKEN": "hf_abcdefghijklmnopqrstuv", "OMP": "2"},
)
OUTCOME = Outcome(
    candidate=CANDIDATE,
    status=Status.MEASURED,
    objective=500.0,
    measurement=Measurement(
        metrics={"throughput/output": 500.0, "latency/ttft_p99": math.inf, "accuracy/task|x": 0.5},
        objective=Estimate(value=500.0, low=-math.inf, high=math.inf, samples=(500.0,)),
    ),
    server=ServerReport(effective={"max-num-seqs": 8, "long": "x" * 9000}, phases={"total": 12.0}),
    constraints={"limit:latency/ttft_p99": -0.5},
    seconds={"total": 60.0},
)


def test_parameters_are_asked_and_effective_and_cut() -> None:
    params = payload.child_params(CANDIDATE, OUTCOME.server.effective, Mask())  # type: ignore[union-attr]
    assert params["asked/max-num-seqs"] == "8"
    assert params["asked/enable-prefix-caching"] == "false"
    assert params["asked/env:OMP"] == "2"
    assert params["asked/env:HF_TOKEN"] == "***"
    assert len(params["effective/long"]) == payload.PARAM_LIMIT


def test_metrics_are_finite_and_legally_named() -> None:
    metrics = payload.child_metrics(OUTCOME)
    assert metrics["throughput/output"] == 500.0
    assert metrics["objective/value"] == 500.0
    assert metrics["start/total_s"] == 12.0
    assert metrics["seconds/total"] == 60.0
    assert metrics["constraint/limit:latency/ttft_p99"] == -0.5
    assert metrics["accuracy/task_x"] == 0.5
    assert "latency/ttft_p99" not in metrics
    assert "objective/low" not in metrics


def test_several_load_points_stand_side_by_side() -> None:
    points = (PointResult(name="c1", metrics={"throughput/output": 90.0}), PointResult(name="c8", metrics={}))
    measurement = replace(OUTCOME.measurement, points=points)  # type: ignore[type-var]
    metrics = payload.child_metrics(replace(OUTCOME, measurement=measurement))
    assert metrics["point c1/throughput/output"] == 90.0


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (OUTCOME, ""),
        (replace(OUTCOME, constraints={"limit:latency/ttft_p99": 0.2}), "misses its limits: ttft_p99"),
        (replace(OUTCOME, status=Status.DUPLICATE, twin=4), "runs the same as trial 4"),
        (replace(OUTCOME, exclusion=Exclusion(reason="needs 90 GiB", rule="memory")), "needs 90 GiB"),
        (
            replace(OUTCOME, failure=Failure(kind="oom", cause="no memory", blame=Blame.CONFIGURATION)),
            "no memory",
        ),
    ],
)
def test_the_reason_is_one_sentence(outcome: Outcome, sentence: str) -> None:
    assert reason(outcome) == sentence


def test_tags_tell_state_feasibility_and_failure() -> None:
    failure = Failure(kind="kv-too-small", cause="2 GiB missing", blame=Blame.CONFIGURATION, phase="profile")
    broken = replace(OUTCOME, status=Status.BROKEN, failure=failure, constraints={"start": 1.0})
    tags = payload.child_tags(broken, is_best=False, hide=Mask())
    assert tags["state"] == "broken"
    assert tags["feasible"] == "no"
    assert tags["failure.class"] == "kv-too-small"
    assert tags["reason"] == "2 GiB missing"
    assert payload.child_tags(OUTCOME, is_best=True, hide=Mask())["best_so_far"] == "yes"


def test_yaml_says_false_the_way_vllm_hears_it() -> None:
    text = payload.yaml_text(CANDIDATE, "org/model", Mask())
    assert "hf_abc" not in text
    assert yaml.safe_load(text) == {
        "model": "org/model",
        "max-num-seqs": 8,
        "no-enable-prefix-caching": True,
        "compilation-config": {"cudagraph_mode": "NONE"},
    }


def test_given_secrets_are_hidden_wherever_they_stand() -> None:
    hide = Mask(["hunter22", "hunter22-long"])
    assert hide.json({"a": ["x hunter22-long y"], "api_key": "other", "n": 3}) == {
        "a": ["x *** y"],
        "api_key": "***",
        "n": 3,
    }


def test_names_of_runs_and_experiments() -> None:
    assert payload.run_name(0, "baseline") == "trial 000 · baseline"
    assert payload.run_name(12, "start:recipe") == "trial 012 · start recipe"
    assert payload.run_name(3, "search", winner=True) == "trial 003 · winner"


def test_what_a_failed_trial_had_measured_does_not_sort_among_results() -> None:
    failure = Failure(kind="slowdown", cause="fell and stayed down", blame=Blame.MACHINE)
    metrics = payload.child_metrics(replace(OUTCOME, status=Status.DISTURBED, objective=None, failure=failure))
    assert "throughput/output" not in metrics
    assert metrics["partial/throughput/output"] == 500.0
