"""A server that replays, drops, stops short, slows down, hangs or dies while it is measured: named for what it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.bench_client import FakeHandle, running_fake
from tuner.measuring import BenchLoadGenerator, checks
from tuner.model.measurement import Measurement
from tuner.model.outcome import Blame
from tuner.model.workload import LoadPoint, Objective, Workload
from tuner.ports import MeasurementFailed, Reference

WORKLOAD = Workload(
    name="w",
    source="text",
    input_tokens=24,
    output_tokens=16,
    points=(LoadPoint(concurrency=8, requests=40),),
    rounds=(2, 2),
    precision=0.0,
)


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a second on a shared machine vary more than real ones: the faults here are larger, the limits wider."""
    monkeypatch.setattr(checks, "SHIFT", 0.7)
    monkeypatch.setattr(checks, "_SLOW", 3.0)


def measure(
    handle: FakeHandle,
    directory: Path,
    workload: Workload = WORKLOAD,
    reference: Reference | None = None,
    **options: Any,
) -> Measurement:
    generator = BenchLoadGenerator(workload, Objective(), **{"sample_s": 0.1, "warmup_waves": 2, **options})
    return generator.measure(
        handle, seed=1, directory=directory, progress=lambda phase, detail: None, reference=reference
    )


@pytest.mark.parametrize(
    ("faults", "kind", "blame"),
    [
        ({"short_outputs": True}, "short-output", Blame.CONFIGURATION),
        ({"error_every": 7}, "requests-failed", Blame.CONFIGURATION),
        ({"close_every": 30}, "requests-failed", Blame.CONFIGURATION),
        ({"die_after": 40}, "server-died", Blame.CONFIGURATION),
        ({"crash_after": 40}, "server-died", Blame.CONFIGURATION),
        ({"slow_after": [36, 8.0], "speed": 2.0}, "slowdown", Blame.MACHINE),
        ({"slow_after": [56, 8.0], "speed": 2.0}, "slowdown", Blame.MACHINE),
    ],
)
def test_dishonest_servers_are_named(tmp_path: Path, faults: dict[str, Any], kind: str, blame: Blame) -> None:
    with running_fake(tmp_path, **faults) as server, pytest.raises(MeasurementFailed) as caught:
        measure(server, tmp_path / "t")
    failure = caught.value.failure
    assert (failure.kind, failure.blame) == (kind, blame)
    assert "\n" not in failure.cause


def test_hang_is_named(tmp_path: Path) -> None:
    with running_fake(tmp_path, hang_at="measure") as server, pytest.raises(MeasurementFailed) as caught:
        measure(server, tmp_path / "t", stall_s=1.0)
    assert caught.value.failure.kind == "hang"


def test_cached_answers_are_named(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{n} what is that"}) for n in range(6)), encoding="utf-8")
    workload = replace(WORKLOAD, source="jsonl", path=str(path), output_tokens=32)
    with running_fake(tmp_path, cached=True) as server, pytest.raises(MeasurementFailed) as caught:
        measure(server, tmp_path / "t", workload)
    assert caught.value.failure.kind == "cached-answers"


def test_warm_prefix_cache_is_thrown_away_and_said(tmp_path: Path) -> None:
    """The fake ignores the salt that keeps rounds apart, so the user's repeated prompts hit the cache."""
    path = tmp_path / "traffic.jsonl"
    rows = [{"prompt": f"{n} is a long question that fills more than one block " * 3} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    workload = replace(WORKLOAD, source="jsonl", path=str(path))
    with running_fake(tmp_path, "--block-size", "16") as server:
        result = measure(server, tmp_path / "t", workload)
    assert result.complete
    assert any("thrown away (prefix-cache-warm)" in note for note in result.notes)
    assert any("prefix cache was reset" in note for note in result.notes)
    assert result.metrics["engine/prefix_hit_rate"] < 0.4  # what the file itself repeats within a round


def test_shared_prefixes_hit_as_they_should(tmp_path: Path) -> None:
    workload = replace(WORKLOAD, source="prefix", input_tokens=32, prefix_tokens=64, prefix_groups=2)
    with running_fake(tmp_path) as server:
        result = measure(server, tmp_path / "t", workload)
    assert 0.4 < result.metrics["engine/prefix_hit_rate"] < 0.7


def test_foreign_traffic_is_named(tmp_path: Path) -> None:
    with running_fake(tmp_path) as server:

        def intrude(number: int) -> None:
            body = {"model": "m", "prompt": ["x y z"] * 40, "max_tokens": 20, "ignore_eos": True}
            headers = {"Authorization": f"Bearer {server.api_key}"}
            httpx.post(server.base_url + "/v1/completions", json=body, headers=headers, trust_env=False, timeout=60)

        server.on_run = intrude
        with pytest.raises(MeasurementFailed, match="somebody else uses this server") as caught:
            measure(server, tmp_path / "t")
    assert caught.value.failure.kind == "counter-mismatch"


def test_a_candidate_far_behind_is_stopped_within_its_round(tmp_path: Path) -> None:
    workload = replace(WORKLOAD, rounds=(2, 6), points=(LoadPoint(concurrency=2, requests=200),))
    best = Reference(value=50_000.0, samples=(50_000.0, 50_100.0, 49_900.0))
    with running_fake(tmp_path) as server:
        result = measure(server, tmp_path / "t", workload, best)
    assert not result.complete
    assert result.bound is not None
    assert result.bound < best.value
    assert result.points == ()
    assert any("stopped within the first round" in note for note in result.notes)
