"""Against a fake vLLM process: that an honest server is believed, and what can be known before any start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.bench_client import running_fake
from tuner.errors import InputError
from tuner.measuring import BenchLoadGenerator
from tuner.model.outcome import Blame
from tuner.model.workload import Limit, LoadPoint, Objective, Workload
from tuner.ports import MeasurementFailed

WORKLOAD = Workload(
    name="w",
    source="text",
    input_tokens=24,
    output_tokens=12,
    points=(LoadPoint(concurrency=8, requests=24),),
    rounds=(2, 2),
    precision=0.0,
)
OUTPUT = Objective()


def test_honest_server(tmp_path: Path) -> None:
    phases: list[str] = []
    generator = BenchLoadGenerator(
        WORKLOAD, OUTPUT, [Limit(metric="latency/ttft_p99", bound=60_000)], price_per_hour=2.0, sample_s=0.1
    )
    with running_fake(tmp_path) as server:
        result = generator.measure(
            server, seed=1, directory=tmp_path / "t", progress=lambda phase, detail: phases.append(phase)
        )
    assert result.complete
    assert result.bound is None
    assert result.objective is not None
    metrics = result.metrics
    assert metrics["throughput/output"] == pytest.approx(result.objective.value)
    assert metrics["throughput/requests"] == pytest.approx(metrics["throughput/output"] / 12)
    assert metrics["throughput/goodput"] == pytest.approx(metrics["throughput/requests"])
    for value, priced in zip(result.objective.samples, _prices(result.objective.samples), strict=True):
        assert priced == pytest.approx(2 / 3600 / value * 1e6)
    assert metrics["cost/price_per_mtok"] == pytest.approx(sum(_prices(result.objective.samples)) / 2)
    assert metrics["engine/prefix_hit_rate"] == 0
    assert metrics["engine/preemptions"] == 0
    assert 0 < metrics["engine/running_max"] <= 8
    assert metrics["latency/tpot_mean"] <= metrics["latency/e2e_mean"]
    assert (result.points[0].name, result.points[0].rounds) == ("c8", 2)
    assert all((tmp_path / "t" / name).exists() for name in result.artifacts)
    assert not list((tmp_path / "t").glob("*.prompts.jsonl"))
    assert set(phases) == {"warmup", "measure"}
    assert result.seconds["warmup"] > 0
    assert len({argv[argv.index("--seed") + 1] for argv in server.runs}) == len(server.runs)
    assert all(server.api_key not in " ".join(argv) for argv in server.runs)


CHAT = replace(WORKLOAD, endpoint="chat", input_tokens=120)


def test_chat_requests_carry_the_template_and_its_tokens(tmp_path: Path) -> None:
    with running_fake(tmp_path) as server:
        result = BenchLoadGenerator(CHAT, OUTPUT, sample_s=0.1).measure(
            server, seed=1, directory=tmp_path / "t", progress=lambda phase, detail: None
        )
    assert result.complete
    assert not [note for note in result.notes if "thrown away" in note]
    assert all(argv[argv.index("--backend") + 1] == "openai-chat" for argv in server.runs)
    assert all(argv[argv.index("--endpoint") + 1] == "/v1/chat/completions" for argv in server.runs)
    # Input and template together are what was asked for: a request is never longer, and hardly shorter.
    inputs = result.metrics["throughput/total"] / result.metrics["throughput/output"] * 12 - 12
    assert 100 < inputs <= 120


def test_a_template_that_leaves_no_room_is_said(tmp_path: Path) -> None:
    small = replace(CHAT, input_tokens=8)
    with (
        running_fake(tmp_path) as server,
        pytest.raises(MeasurementFailed, match="the chat template alone is") as caught,
    ):
        BenchLoadGenerator(small, OUTPUT).measure(
            server, seed=1, directory=tmp_path / "t", progress=lambda phase, detail: None
        )
    assert caught.value.failure.kind == "requests-too-short"
    assert caught.value.failure.blame is Blame.USER


def test_a_model_without_a_template_is_no_fault_of_the_machine(tmp_path: Path) -> None:
    with running_fake(tmp_path, no_template=True) as server, pytest.raises(MeasurementFailed) as caught:
        BenchLoadGenerator(CHAT, OUTPUT).measure(
            server, seed=1, directory=tmp_path / "t", progress=lambda phase, detail: None
        )
    failure = caught.value.failure
    assert (failure.kind, failure.blame, failure.retry) == ("no-chat-template", Blame.USER, False)
    assert "no chat template is defined" in failure.cause


def _prices(rates: tuple[float, ...]) -> list[float]:
    return [2 / 3600 / rate * 1e6 for rate in rates]


def test_requests_longer_than_the_server_allows(tmp_path: Path) -> None:
    with running_fake(tmp_path, "--max-model-len", "30") as server, pytest.raises(MeasurementFailed) as caught:
        BenchLoadGenerator(WORKLOAD, OUTPUT).measure(
            server, seed=1, directory=tmp_path / "t", progress=lambda phase, detail: None
        )
    assert caught.value.failure.kind == "requests-too-long"
    assert server.runs == []


@pytest.mark.parametrize(
    ("workload", "objective", "complaint"),
    [
        (replace(WORKLOAD, rounds=(3, 2)), OUTPUT, "rounds 3 to 2"),
        (WORKLOAD, Objective(metric="throughput/goodput"), "needs an upper limit"),
        (WORKLOAD, Objective(metric="cost/price_per_mtok", maximize=False), "price per hour"),
        (replace(WORKLOAD, points=(LoadPoint(weight=0),)), OUTPUT, "weight above 0"),
        (replace(WORKLOAD, points=(LoadPoint(requests=0),)), OUTPUT, "numbers must be positive"),
        (replace(WORKLOAD, points=(LoadPoint(rate=-1.0),)), OUTPUT, "rate and burstiness"),
        (replace(WORKLOAD, points=(LoadPoint(), LoadPoint())), OUTPUT, "the same"),
        (replace(WORKLOAD, source="jsonl", path="/absent.jsonl"), OUTPUT, "absent.jsonl"),
        (replace(WORKLOAD, source="random", endpoint="chat"), OUTPUT, "endpoint: chat needs text"),
    ],
)
def test_contradictions_are_found_before_any_start(workload: Workload, objective: Objective, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        BenchLoadGenerator(workload, objective)


def test_random_tokens_are_refused_for_experts_unless_forced() -> None:
    random = replace(WORKLOAD, source="random")
    with pytest.raises(InputError, match=r"mixture of experts needs real text.*force_random"):
        BenchLoadGenerator(random, OUTPUT, model_is_moe=True)
    BenchLoadGenerator(replace(random, force_random=True), OUTPUT, model_is_moe=True)
    BenchLoadGenerator(WORKLOAD, OUTPUT, model_is_moe=True)
