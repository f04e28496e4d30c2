from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.measuring import bench
from tuner.measuring.bench import BenchResult, arguments, check, goodput_limits, read_result, slim
from tuner.measuring.workloads import RoundLoad
from tuner.model.outcome import Blame
from tuner.model.workload import Limit, LoadPoint, Workload
from tuner.ports import MeasurementFailed

WORKLOAD = Workload(name="w", source="text", input_tokens=10, output_tokens=8)
LOAD = RoundLoad(
    arguments=("--dataset-name", "custom"),
    requests=4,
    output_tokens=(8, 8, 8, 8),
    output_range=(8, 8),
    output_total=32,
    input_total=40,
    hit_rate=0.0,
)


def raw(**changes: Any) -> dict[str, Any]:
    """A result as ``vllm bench serve --save-detailed`` writes it."""
    spreads = {
        f"{kind}_{name}_ms": 10.0 * place
        for place, name in enumerate(("ttft", "tpot", "itl", "e2el"), start=1)
        for kind in ("mean", "p50", "p90", "p99")
    }
    return {
        "completed": 4,
        "failed": 0,
        "duration": 2.0,
        "total_input_tokens": 40,
        "total_output_tokens": 32,
        "request_throughput": 2.0,
        "output_throughput": 16.0,
        "total_token_throughput": 36.0,
        "request_goodput": None,
        "input_lens": [10] * 4,
        "output_lens": [8] * 4,
        "ttfts": [0.1] * 4,
        "itls": [[0.05] * 7] * 4,
        "start_times": [1.0, 1.1, 1.2, 1.3],
        "generated_texts": ["some text"] * 4,
        "errors": [""] * 4,
        **spreads,
        **changes,
    }


def read(folder: Path, data: object) -> BenchResult:
    path = folder / "r.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return read_result(path)


def test_reads_every_number(tmp_path: Path) -> None:
    result = read(tmp_path, raw(request_goodput=1.5))
    assert result.output_throughput == 16.0
    assert result.goodput == 1.5
    assert result.latency_ms["ttft_mean"] == 10.0
    assert result.latency_ms["e2e_p99"] == 40.0
    assert len(result.latency_ms) == 16
    assert result.output_lens == (8, 8, 8, 8)
    assert result.itls[0] == (0.05,) * 7
    assert check(result, LOAD, exact=True) is None


def test_reads_acceptance(tmp_path: Path) -> None:
    more = {
        "spec_decode_acceptance_rate": 62.5,
        "spec_decode_acceptance_length": 2.25,
        "spec_decode_per_position_acceptance_rates": [0.8, 0.45],
    }
    result = read(tmp_path, raw(**more))
    assert result.acceptance == {"rate": 0.625, "length": 2.25, "position_0": 0.8, "position_1": 0.45}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "list instead of an object"),
        ("[" * 100_000, "not JSON"),
        ({"completed": 4}, '"failed" must be .* missing'),
        (raw(duration="2"), '"duration" must be'),
        (raw(duration=0), '"duration" must be more than 0'),
        (raw(duration=True), '"duration" must be'),
        (raw(output_throughput=float("nan")), '"output_throughput" must be a finite'),
        (raw(output_throughput=-1), '"output_throughput" must be'),
        (raw(p99_ttft_ms=float("inf")), '"p99_ttft_ms" must be a finite'),
        (raw(output_lens=None), '"output_lens" must be a list'),
        (raw(output_lens=[8, None]), '"output_lens" must be finite'),
        (raw(itls=[1.0]), '"itls" must be a list of lists'),
        (raw(completed=3.5), '"completed" must be a whole'),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, data: object, complaint: str) -> None:
    with pytest.raises(MeasurementFailed, match=complaint) as caught:
        read(tmp_path, data)
    assert caught.value.failure.kind == "bad-result"
    assert caught.value.failure.retry


def test_missing_and_huge_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeasurementFailed, match="No such file"):
        read_result(tmp_path / "absent.json")
    monkeypatch.setattr(bench, "MAX_RESULT", 100)
    with pytest.raises(MeasurementFailed, match="more than 100"):
        read(tmp_path, raw())


def test_failed_requests_are_never_a_number(tmp_path: Path) -> None:
    errors = ["", "", "Traceback\nServerDisconnectedError: gone", "Traceback\nServerDisconnectedError: gone"]
    data = raw(completed=2, failed=2, errors=errors, p99_ttft_ms=float("nan"))
    failure = check(read(tmp_path, data), LOAD, exact=True)
    assert failure is not None
    assert failure.kind == "requests-failed"
    assert failure.cause == "2 of 4 requests failed: ServerDisconnectedError: gone"


def test_all_failed(tmp_path: Path) -> None:
    data = {"completed": 0, "failed": 4, "errors": ["Internal Server Error"] * 4}
    failure = check(read(tmp_path, data), LOAD, exact=True)
    assert failure is not None
    assert "4 of 4" in failure.cause


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"output_lens": [8, 2, 8, 8]}, "short-output"),
        ({"output_lens": [8, 8, 8, 9]}, "short-output"),
        ({"output_lens": [8, 8, 8]}, "short-output"),
        ({"generated_texts": ["", " ", "", "x"]}, "empty-output"),
    ],
)
def test_answers_that_are_not_what_was_asked(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    failure = check(read(tmp_path, raw(**changes)), LOAD, exact=True)
    assert failure is not None
    assert failure.kind == kind
    assert failure.blame is Blame.CONFIGURATION


def test_no_output_token_at_all_is_no_measurement(tmp_path: Path) -> None:
    nothing = {"total_output_tokens": 0, "output_throughput": 0.0, "output_lens": [0] * 4, "generated_texts": [""] * 4}
    failure = check(read(tmp_path, raw(**nothing)), LOAD, exact=False)
    assert failure is not None
    assert failure.kind == "empty-output"
    assert failure.cause == "4 requests were answered without a single output token"


def test_lengths_may_vary_where_the_model_ends_by_itself(tmp_path: Path) -> None:
    result = read(tmp_path, raw(output_lens=[8, 2, 8, 5]))
    assert check(result, LOAD, exact=False) is None
    ranged = replace(LOAD, output_tokens=None, output_range=(2, 8))
    assert check(result, ranged, exact=True) is None
    outside = check(result, replace(ranged, output_range=(4, 8)), exact=True)
    assert outside is not None
    assert "instead of 4 to 8" in outside.cause


def test_command_line() -> None:
    argv = arguments(
        WORKLOAD,
        LoadPoint(concurrency=8, rate=2.5, burstiness=0.5),
        replace(LOAD, salt="ab"),
        base_url="http://127.0.0.1:1",
        model="m",
        tokenizer="/models/m",
        result=Path("/t/bench.json"),
        limits=[Limit(metric="latency/ttft_p99", bound=500), Limit(metric="latency/e2e_p90", bound=2000.5)],
        server_command=("python", "--trust-remote-code", "--tokenizer-mode", "slow"),
    )
    text = " ".join(argv)
    assert argv[:2] == ["bench", "serve"]
    assert "--max-concurrency 8" in text
    assert "--request-rate 2.5 --burstiness 0.5" in text
    assert "--goodput ttft:500 e2el:2000.5 --" in text
    assert '--extra-body {"cache_salt": "ab"}' in text
    assert "--ignore-eos" in argv
    assert "--trust-remote-code" in argv
    assert argv[argv.index("--tokenizer-mode") + 1] == "slow"
    assert "key" not in text


def test_goodput_takes_the_tightest_limit_of_a_request() -> None:
    limits = [
        Limit(metric="latency/ttft_p99", bound=500),
        Limit(metric="latency/ttft_p50", bound=200),
        Limit(metric="latency/itl_p99", bound=50),
        Limit(metric="throughput/requests", bound=2, at_most=False),
        Limit(metric="gpu/power_w", bound=300),
    ]
    assert goodput_limits(limits) == {"ttft": 200}


def test_large_results_lose_their_bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(raw()), encoding="utf-8")
    slim(path)
    assert "itls" in json.loads(path.read_text(encoding="utf-8"))
    monkeypatch.setattr(bench, "KEPT_RESULT", 10)
    slim(path)
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert "itls" not in kept
    assert kept["output_lens"] == [8] * 4
    assert [item.name for item in tmp_path.iterdir()] == ["r.json"]
