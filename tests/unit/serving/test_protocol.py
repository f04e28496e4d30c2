from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tuner.model.candidate import Candidate
from tuner.model.intervals import mean_estimate
from tuner.model.outcome import Blame, Status
from tuner.model.workload import Limit, LoadPoint, Objective
from tuner.ports import Reference, TrialContext
from tuner.serving.protocol import AnswerError, outcome_of, read_answer, request

CANDIDATE = Candidate(
    assignment={"seqs": 64},
    arguments={"max-num-seqs": 64, "compilation-config.cudagraph_mode": "FULL", "enable-prefix-caching": False},
    environment={"VLLM_X": "1"},
)
OBJECTIVE = Objective()


def outcome(answer: dict[str, Any]) -> Any:
    return outcome_of(answer, CANDIDATE, objective=OBJECTIVE)


def test_request_tells_everything(tmp_path: Path) -> None:
    context = TrialContext(number=3, directory=tmp_path, seed=5, reference=Reference(value=2.0, samples=(1.0, 3.0)))
    text = request(CANDIDATE, context, objective=OBJECTIVE, limits=[Limit(metric="latency/ttft_p99", bound=500)])
    assert text.endswith("\n")
    assert text.count("\n") == 1
    told = json.loads(text)
    assert told["protocol"] == 1
    assert told["trial"] == 3
    assert told["seed"] == 5
    assert told["directory"] == str(tmp_path)
    assert told["candidate"]["assignment"] == {"seqs": 64}
    assert told["candidate"]["flags"] == [
        "--max-num-seqs", "64", "--compilation-config", '{"cudagraph_mode":"FULL"}', "--no-enable-prefix-caching",
    ]  # fmt: skip
    assert told["candidate"]["environment"] == {"VLLM_X": "1"}
    assert told["reference"] == {"value": 2.0, "samples": [1.0, 3.0]}
    assert told["limits"] == [{"metric": "latency/ttft_p99", "bound": 500, "at_most": True}]


def test_answer_is_found_among_chatter() -> None:
    assert read_answer('loading…\n{"status": "old"}\n{"status": "ok"}\nbye\n') == {"status": "ok"}
    assert read_answer('{\n "status":\n "ok"\n}') == {"status": "ok"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "nothing"),
        ("hello", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ('{"status": "ok", "metrics": {"a": NaN}}', "NaN"),
        ('{"a":' * 40 + "1" + "}" * 40, "nested"),
        ("[" * 100_000, "no JSON object"),
    ],
)
def test_what_is_no_answer(text: str, part: str) -> None:
    with pytest.raises(AnswerError, match=part):
        read_answer(text)


def test_texts_and_names_hold_nothing_that_a_terminal_obeys() -> None:
    red = "\\u001b[31m"
    failure = f'{{"cause": "a\\nb{red}{"z" * 5000}", "kind": "k{red}", "advice": "{red}x", "excerpt": "1{red}\\n2"}}'
    got = outcome(read_answer(f'{{"status": "failed", "failure": {failure}, "effective": {{"s{red}": "v{red}"}}}}'))
    assert got.failure.cause == "a b" + "z" * 496 + "…"
    assert (got.failure.kind, got.failure.advice, got.failure.excerpt) == ("k", "x", "1\n2")
    assert got.server.effective == {"s": "v"}
    told = f'{{"status": "ok", "objective": 1, "metrics": {{"m{red}\\n": 1}}, "notes": ["{red}n"], "version": "{red}1",'
    got = outcome(
        read_answer(
            f'{told} "warnings": "{red}w", "effective": {{}}, "points": [{{"name": "p{red}", "objective": 1}}]}}'
        )
    )
    assert set(got.measurement.metrics) == {"m", "throughput/output"}
    assert (got.measurement.notes, got.server.version, got.server.warnings) == (("n",), "1", ("w",))
    assert got.measurement.points[0].name == "p"


def test_ok_with_samples() -> None:
    got = outcome({"status": "ok", "samples": {"throughput/output": [10.0, 12.0, 14.0]}, "metrics": {"x": 1}})
    assert got.status is Status.MEASURED
    assert got.objective == 12.0
    assert got.measurement.metrics == {"x": 1.0, "throughput/output": 12.0}
    # t(2 degrees of freedom) = 4.303, standard error = 2 / sqrt(3)
    assert got.measurement.objective.high == pytest.approx(12 + 4.303 * 2 / math.sqrt(3))


def test_bare_forms() -> None:
    assert outcome({"status": "ok", "samples": [1.0, 3.0]}).objective == 2.0
    assert outcome({"status": "ok", "objective": 7}).objective == 7.0
    got = outcome({"status": "ok", "metrics": {"throughput/output": 5}})
    assert got.objective == 5.0
    assert math.isinf(got.measurement.objective.low)


def test_an_early_stop_is_a_bound() -> None:
    got = outcome({"status": "ok", "complete": False, "metrics": {"throughput/output": 5}})
    assert got.status is Status.BEHIND
    assert got.objective is None
    assert got.measurement.bound == 5.0


def test_effective_quality_steps() -> None:
    got = outcome(
        {
            "status": "ok",
            "objective": 1.0,
            "effective": {"block-size": 32},
            "version": "fork 1",
            "steps": [[8, 0.01]],
            "quality": {"passed": False, "reason": "worse", "metrics": {"accuracy/drop": 0.1}},
        }
    )
    assert got.server.effective == {"block-size": 32}
    assert got.server.version == "fork 1"
    assert got.measurement.steps == ((8.0, 0.01),)
    assert not got.quality.passed
    assert got.quality.metrics == {"accuracy/drop": 0.1}


def test_failures_say_whose_fault() -> None:
    got = outcome({"status": "infeasible", "failure": {"kind": "no-kv", "cause": "3 GiB missing", "violation": 3.0}})
    assert got.status is Status.BROKEN
    assert (got.failure.kind, got.failure.blame, got.failure.violation) == ("no-kv", Blame.CONFIGURATION, 3.0)
    got = outcome({"status": "failed", "failure": {"kind": "port", "cause": "taken", "blame": "machine"}})
    assert got.status is Status.DISTURBED
    assert got.failure.retry
    got = outcome({"status": "failed", "reason": "boom", "kind": "k"})
    assert (got.failure.cause, got.failure.kind) == ("boom", "k")


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({}, "status"),
        ({"status": 1}, "status is 1"),
        ({"status": "ok"}, "throughput/output"),
        ({"status": "ok", "protocol": 2, "objective": 1}, "protocol 2"),
        ({"status": "ok", "metrics": [1]}, "metrics must be"),
        ({"status": "ok", "metrics": {"throughput/output": "5"}}, "not a finite number"),
        ({"status": "ok", "metrics": {"throughput/output": True}}, "not a finite number"),
        ({"status": "ok", "samples": {"throughput/output": [1, None]}}, "samples of"),
        ({"status": "ok", "samples": "x"}, "samples must"),
        ({"status": "ok", "samples": [1, 1], "metrics": {"throughput/output": 100}}, "which is it"),
        ({"status": "ok", "objective": 1, "quality": {"passed": 1}}, "quality"),
        ({"status": "ok", "objective": 1, "steps": [[1]]}, "steps"),
        ({"status": "ok", "objective": 1, "effective": 3}, "effective"),
        ({"status": "failed"}, "failure.cause"),
        ({"status": "failed", "failure": {"cause": "x", "blame": "god"}}, "blame"),
        ({"status": "failed", "failure": {"cause": "x", "violation": "much"}}, "violation"),
    ],
)
def test_wrong_answers_name_the_key(answer: dict[str, Any], part: str) -> None:
    with pytest.raises(AnswerError, match=part):
        outcome(answer)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({"samples": {"throughput/output": [1e308, 1.5e308]}}, "samples of 'throughput/output': one is 1e\\+308"),
        ({"metrics": {"throughput/output": 1e101}}, "metrics.'throughput/output' is 1e\\+101"),
        ({"objective": 10**400}, "objective is 1000"),
        ({"objective": 1, "seconds": {"start": 1e200}}, "seconds.'start'"),
        ({"objective": 1, "steps": [[1, 1e200]]}, "steps"),
        ({"objective": 1, "steps": [[1, -0.1]]}, "steps"),
        ({"objective": 1, "effective": {"kv-cache-tokens": {"a": [1e200]}}}, "effective.'kv-cache-tokens'"),
        ({"objective": 1, "quality": {"passed": True, "metrics": {"accuracy/score": -1e200}}}, "'accuracy/score'"),
        ({"points": [{"name": "a", "objective": 1e200}]}, "points.a: objective"),
        ({"points": [{"name": "a", "objective": 1, "weight": 1e200}]}, "points.a.weight"),
        ({"status": "failed", "failure": {"cause": "x", "violation": 1e200}}, "failure.violation"),
    ],
)
def test_numbers_whose_squares_overflow_are_refused_by_their_key(answer: dict[str, Any], part: str) -> None:
    with pytest.raises(AnswerError, match=part):
        outcome({"status": "ok", **answer})


def test_the_largest_numbers_that_are_taken_can_be_reckoned_with() -> None:
    got = outcome({"status": "ok", "samples": [1e100, 0.0] * 5000})
    assert got.objective == pytest.approx(5e99)
    assert math.isfinite(got.measurement.objective.high)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ({"samples": {"throughput/output": [-5.0, -6.0]}}, "samples of 'throughput/output': one is -5.0, which cannot"),
        ({"objective": -1}, "objective is -1, which cannot be below zero"),
        ({"objective": 1, "metrics": {"latency/ttft_p99": -1e-9}}, "metrics.'latency/ttft_p99' is -1e-09"),
        ({"objective": 1, "metrics": {"throughput/goodput": -1}}, "'throughput/goodput'"),
        ({"objective": 1, "metrics": {"engine/preemptions": -1}}, "'engine/preemptions'"),
        ({"objective": 1, "metrics": {"gpu/power_w": -1}}, "'gpu/power_w'"),
        ({"points": [{"name": "a", "samples": [-1]}]}, "points.a: samples of 'throughput/output'"),
    ],
)
def test_what_cannot_be_negative_is_refused_by_its_key(answer: dict[str, Any], part: str) -> None:
    with pytest.raises(AnswerError, match=part):
        outcome({"status": "ok", **answer})


def test_what_may_be_negative_is_taken() -> None:
    got = outcome({"status": "ok", "objective": 1, "metrics": {"gpu/temperature_c": -3, "score": -2}})
    assert got.measurement.metrics == {"gpu/temperature_c": -3.0, "score": -2.0, "throughput/output": 1.0}


@pytest.mark.parametrize("answer", [{"samples": [0.0, 0.0]}, {"objective": 0}, {"complete": False, "objective": 0}])
def test_no_throughput_at_all_means_that_nothing_was_served(answer: dict[str, Any]) -> None:
    got = outcome({"status": "ok", **answer})
    assert (got.status, got.objective, got.failure.kind) == (Status.BROKEN, None, "nothing-served")
    assert got.failure.cause == "throughput/output is 0: nothing was served"


def test_no_goodput_is_a_measurement() -> None:
    goodput = Objective(metric="throughput/goodput", unit="req/s")
    assert outcome_of({"status": "ok", "samples": [0.0, 0.0]}, CANDIDATE, objective=goodput).objective == 0.0


def test_estimate_of_one_value_knows_no_spread() -> None:
    assert mean_estimate([4.0]).low == -math.inf
    assert mean_estimate([4.0, 4.0]).low == 4.0


def test_objectives_and_load_points_are_told(tmp_path: Path) -> None:
    text = request(
        CANDIDATE,
        TrialContext(number=3, directory=tmp_path, seed=5),
        objective=OBJECTIVE,
        limits=(),
        further=[Objective(metric="latency/ttft_p99", maximize=False, unit="ms")],
        points=[LoadPoint(concurrency=8, requests=40, weight=2.0)],
    )
    told = json.loads(text)
    assert told["objective"] == told["objectives"][0]
    assert told["objectives"][1] == {"metric": "latency/ttft_p99", "maximize": False, "unit": "ms"}
    assert told["points"] == [{"name": "c8", "concurrency": 8, "rate": None, "requests": 40, "weight": 2.0}]


def test_load_points_give_the_whole_trial_its_means() -> None:
    c1 = {"name": "c1", "samples": {"throughput/output": [50.0, 52.0]}, "metrics": {"latency/ttft_p99": 10.0}}
    c8 = {"name": "c8", "samples": {"throughput/output": [200.0, 204.0, 208.0]}, "weight": 3}
    got = outcome({"status": "ok", "points": [c1, c8], "metrics": {"gpu/power_w": 300.0}})
    assert [(point.name, point.weight, point.rounds) for point in got.measurement.points] == [
        ("c1", 1, 2),
        ("c8", 3, 3),
    ]
    assert got.measurement.points[0].metrics == {"latency/ttft_p99": 10.0, "throughput/output": 51.0}
    # Of the whole: the mean by weight where all points have the metric; per round as far as all have rounds.
    assert got.measurement.metrics == {"throughput/output": (51 + 3 * 204) / 4, "gpu/power_w": 300.0}
    assert got.measurement.objective.samples == ((50 + 600) / 4, (52 + 612) / 4)


@pytest.mark.parametrize(
    ("points", "part"),
    [
        ({"c1": {}}, "points must be a list"),
        ([{"metrics": {"throughput/output": 1}}], "name of its own"),
        ([{"name": "a", "objective": 1}, {"name": "a", "objective": 1}], "name of its own"),
        ([{"name": "a", "metrics": {"x": 1}}], "points.a: metrics lack the study's objective"),
        ([{"name": "a", "objective": 1, "weight": -1}], "points.a.weight"),
        ([{"name": str(index), "objective": 1} for index in range(65)], "at most 64"),
    ],
)
def test_load_points_that_cannot_be_used_are_named(points: Any, part: str) -> None:
    with pytest.raises(AnswerError, match=part):
        outcome({"status": "ok", "objective": 1, "points": points})
