"""The load generator with the real server and the real benchmark client: rounds agree with the counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.demo import demo_model
from tuner.measuring import BenchLoadGenerator
from tuner.model.candidate import Candidate
from tuner.model.workload import Limit, LoadPoint, Objective, Workload
from tuner.ports import Reference, Server
from tuner.serving.launcher import VllmLauncher

pytestmark = pytest.mark.vllm

WORKLOAD = Workload(
    name="cpu-demo",
    source="text",
    input_tokens=64,
    output_tokens=64,
    points=(LoadPoint(concurrency=32, requests=64),),
    rounds=(3, 3),
)
FLAGS = {"enforce-eager": True, "kv-cache-memory-bytes": 1 << 30, "max-model-len": 1024, "max-num-seqs": 64}


def progress(phase: str, detail: str) -> None:
    print(f"{phase}: {detail}")  # noqa: T201 - shown by pytest where a test fails


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("study")
    launcher = VllmLauncher(str(demo_model()), study_dir=folder)
    candidate = Candidate(assignment={}, arguments=FLAGS)
    try:
        with launcher.launch(candidate, directory=folder / "trial", progress=progress) as running:
            yield running
    finally:
        launcher.close()


def test_three_rounds(server: Server, tmp_path: Path) -> None:
    generator = BenchLoadGenerator(
        WORKLOAD, Objective(), [Limit(metric="latency/e2e_p99", bound=600_000)], price_per_hour=1.0
    )
    result = generator.measure(server, seed=1, directory=tmp_path, progress=progress)
    assert result.complete
    assert result.objective is not None
    assert len(result.objective.samples) == 3
    metrics = result.metrics
    assert metrics["throughput/total"] == pytest.approx(2 * metrics["throughput/output"], rel=0.05)
    assert metrics["throughput/goodput"] == pytest.approx(metrics["throughput/requests"])
    assert metrics["engine/prefix_hit_rate"] < 0.01
    assert metrics["engine/running_max"] == 32
    assert 0 < metrics["engine/kv_usage_max"] < 0.5
    assert metrics["latency/ttft_p50"] <= metrics["latency/ttft_p99"] <= metrics["latency/e2e_p99"]
    assert result.steps
    for name in result.artifacts:
        raw = json.loads((tmp_path / name).read_text(encoding="utf-8"))
        assert raw["output_lens"] == [64] * 64
        # Text comes in words: at most what was asked, and nearly that.
        assert all(58 <= length <= 64 for length in raw["input_lens"])
    print(result.objective, result.notes, result.seconds)  # noqa: T201


@pytest.mark.parametrize(("source", "low", "high"), [("prefix", 0.4, 0.72), ("random", 0.0, 0.02)])
def test_other_sources(server: Server, tmp_path: Path, source: str, low: float, high: float) -> None:
    """Two thirds of the tokens are shared; whole blocks only can hit (128 tokens on CPU), so it may be less."""
    workload = replace(WORKLOAD, source=source, rounds=(1, 1), prefix_tokens=128 * (source == "prefix"))
    result = BenchLoadGenerator(workload, Objective()).measure(server, seed=2, directory=tmp_path, progress=progress)
    assert result.complete
    assert low <= result.metrics["engine/prefix_hit_rate"] <= high


def test_chat_goes_through_the_models_template(server: Server, tmp_path: Path) -> None:
    """Its tokens (a system line, the marks of turns) count as input: the text is shorter, what is read the same."""
    points = (LoadPoint(concurrency=8, requests=16),)
    measured = {}
    for endpoint in ("completions", "chat"):
        workload = replace(WORKLOAD, endpoint=endpoint, points=points, rounds=(1, 1))
        folder = tmp_path / endpoint
        folder.mkdir()
        result = BenchLoadGenerator(workload, Objective()).measure(server, seed=4, directory=folder, progress=progress)
        assert result.complete
        raw = json.loads((folder / result.artifacts[0]).read_text(encoding="utf-8"))
        assert raw["output_lens"] == [64] * 16
        measured[endpoint] = result.metrics
    log = Path(server.report.log_path).read_text(encoding="utf-8", errors="replace")
    assert log.count("POST /v1/chat/completions") >= 16
    plain, chat = (measured[name]["throughput/total"] / measured[name]["throughput/output"] for name in measured)
    assert chat == pytest.approx(plain, rel=0.03)


def test_a_candidate_far_behind_is_ended_early(server: Server, tmp_path: Path) -> None:
    reference = Reference(value=20_000.0, samples=(20_000.0, 20_100.0, 19_900.0))
    result = BenchLoadGenerator(WORKLOAD, Objective()).measure(
        server, seed=3, directory=tmp_path, progress=progress, reference=reference
    )
    assert not result.complete
    assert result.bound is not None
    assert result.bound < reference.value
    assert not list(tmp_path.glob("*.json"))
