"""Records: every part of an outcome survives JSON text, and foreign records are refused by key."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.measurement import Estimate, Measurement, PointResult, QualityReport, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.records import SCHEMA, from_record, to_record

CANDIDATE = Candidate(
    assignment={"max_num_seqs": 64, "prefix": False, "dtype": "auto", "u": None, "share": 0.5},
    arguments={
        "max-num-seqs": 64,
        "enable-prefix-caching": False,
        "compilation-config.cudagraph_mode": "FULL",
        "speculative-config": {"method": "ngram", "table": [[1, 32, 3]]},
    },
    environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    origin="start:recipe",
)
FULL = Outcome(
    candidate=CANDIDATE,
    status=Status.MEASURED,
    objective=912.5,
    measurement=Measurement(
        metrics={"throughput/output": 912.5, "latency/ttft_p99": math.inf},
        objective=Estimate(value=912.5, low=-math.inf, high=math.inf, samples=(900.0, 925.0)),
        points=(
            PointResult(
                name="c32",
                metrics={"throughput/output": 912.5},
                estimates={"throughput/output": Estimate(value=1.0, low=0.5, high=1.5)},
                rounds=2,
                weight=0.5,
            ),
        ),
        bound=1000.0,
        complete=False,
        steps=((1.0, 0.01), (32.0, 0.05)),
        notes=("round 1 thrown away: warm prefix cache",),
        seconds={"warmup": 3.5},
        artifacts=("bench.json",),
    ),
    quality=QualityReport(
        passed=False,
        reason="drop of 12 points",
        metrics={"accuracy/score": 0.5},
        answers={"q1": 1.0, "q2": 0.0},
        completions={"p1": (" Paris", ".")},
        seconds=4.0,
    ),
    server=ServerReport(
        effective={"block-size": 128, "cudagraph-mode": None, "x": math.inf, "deep": {"a": [1, "inf"]}},
        differences=("asked 16, runs 128",),
        phases={"imports": 7.0, "total": 12.0},
        mode="warm",
        warnings=("Using default MoE config",),
        version="0.32.0",
        command=("vllm", "serve"),
        log_path="server.log",
    ),
    failure=Failure(
        kind="kv-too-small",
        cause="needs 2.1 GiB",
        blame=Blame.CONFIGURATION,
        retry=True,
        phase="profile",
        violation=0.7,
        advice="lower max-model-len",
        excerpt="ValueError: ...",
    ),
    exclusion=Exclusion(reason="too big", rule="memory", source="estimate", violation=2.0),
    constraints={"start": -1.0, "accuracy": 0.2},
    seconds={"start": 12.0, "total": 30.0},
    twin=3,
)


def through_text(outcome: Outcome) -> Outcome:
    return from_record(json.loads(json.dumps(to_record(outcome), allow_nan=False)))


def test_every_part_survives_json_text() -> None:
    back = through_text(FULL)
    assert back == FULL
    assert back.candidate.key == CANDIDATE.key
    assert back.status is Status.MEASURED
    assert back.failure is not None
    assert back.failure.blame is Blame.CONFIGURATION


def test_a_bare_outcome_survives() -> None:
    bare = Outcome(candidate=Candidate(assignment={}, arguments={}), status=Status.INTERRUPTED)
    assert through_text(bare) == bare


def test_nan_is_kept_as_text() -> None:
    record = to_record(replace(FULL, objective=math.nan))
    assert record["objective"] == "nan"
    back = from_record(record).objective
    assert back is not None
    assert math.isnan(back)


def test_a_text_that_spells_infinity_stays_text_in_free_json() -> None:
    server = from_record(to_record(FULL)).server
    assert server is not None
    assert server.effective["deep"] == {"a": [1, "inf"]}
    assert server.effective["x"] == math.inf


def test_records_of_other_versions() -> None:
    record = to_record(FULL)
    assert record["schema"] == SCHEMA
    newer = {**record, "schema": 99, "moon_phase": "full", "candidate": {**record["candidate"], "colour": "red"}}  # type: ignore[dict-item]
    assert from_record(newer) == FULL
    older = {key: record[key] for key in ("candidate", "status")}
    assert from_record(older) == Outcome(candidate=CANDIDATE, status=Status.MEASURED)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"status": "dancing"}, "status"),
        ({"objective": "fast"}, "objective"),
        ({"objective": True}, "objective"),
        ({"objective": 10**400}, "objective"),
        ({"twin": 1.5}, "twin"),
        ({"twin": False}, "twin"),
        ({"candidate": None}, "candidate"),
        ({"candidate": {"assignment": {}}}, "candidate.arguments"),
        ({"candidate": {"assignment": {}, "arguments": {}, "environment": {"A": 1}}}, "candidate.environment.A"),
        ({"constraints": [1]}, "constraints"),
        ({"quality": {"passed": 1}}, "quality.passed"),
        ({"measurement": {"metrics": {}, "objective": None, "steps": [[1]]}}, "measurement.steps.0"),
        ({"measurement": {"metrics": {}, "objective": None, "notes": "x"}}, "measurement.notes"),
        ({"server": {"effective": {"a": {1, 2}}}}, "server.effective.a"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(change: dict[str, object], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^{key}: "):
        from_record({**to_record(FULL), **change})  # type: ignore[arg-type]


def test_missing_and_foreign_records() -> None:
    with pytest.raises(ValueError, match=r"^candidate: missing"):
        from_record({})
    with pytest.raises(ValueError, match=r"^record: an object"):
        from_record([])  # type: ignore[arg-type]


def test_bottomless_nesting_is_refused() -> None:
    nested: object = 1
    for _ in range(5000):
        nested = [nested]
    record = {**to_record(FULL), "server": {"effective": {"a": nested}}}
    with pytest.raises(ValueError, match="nested too deeply"):
        from_record(record)  # type: ignore[arg-type]


def test_what_is_not_json_is_refused() -> None:
    server = ServerReport(effective={"a": object()})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"server\.effective\.a: object"):
        to_record(replace(FULL, server=server))


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(value=st.dictionaries(st.text(max_size=6), _json, max_size=4))
def test_any_json_survives_in_arguments(value: dict[str, object]) -> None:
    outcome = Outcome(candidate=Candidate(assignment={}, arguments=value), status=Status.BEHIND)  # type: ignore[arg-type]
    assert through_text(outcome) == outcome


@settings(max_examples=150, deadline=None)
@given(
    value=st.dictionaries(
        st.sampled_from(["status", "candidate", "measurement", "server", "quality", "objective", "seconds"]), _json
    )
)
def test_no_record_raises_anything_but_value_error(value: dict[str, object]) -> None:
    try:
        outcome = from_record({**to_record(FULL), **value})  # type: ignore[arg-type]
    except ValueError as error:
        assert str(error).count(":") >= 1  # noqa: PT017 - any outcome but another exception is right here
    else:
        assert isinstance(outcome, Outcome)
