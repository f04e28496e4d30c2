from __future__ import annotations

from pathlib import Path

import pytest

from tuner.measuring.prometheus import parse
from tuner.measuring.rounds import Round, _engine_metrics, _last_error, amount_of, median_steps, server_latencies
from tuner.measuring.workloads import RoundLoad

LOAD = RoundLoad(
    arguments=(),
    requests=10,
    output_tokens=None,
    output_range=(8, 8),
    output_total=80,
    input_total=120,
    hit_rate=0.0,
)


@pytest.mark.parametrize(
    ("metric", "amount"),
    [
        ("throughput/output", 80),
        ("throughput/total", 200),
        ("throughput/requests", 10),
        ("throughput/goodput", 10),
        ("latency/ttft_p99", None),
    ],
)
def test_what_a_throughput_counts(metric: str, amount: float | None) -> None:
    assert amount_of(metric, LOAD) == amount


def test_acceptance_is_read_from_the_counters() -> None:
    name = "vllm:spec_decode_num"
    before = parse(f"{name}_drafts_total 10\n{name}_draft_tokens_total 30\n{name}_accepted_tokens_total 5\n")
    after = parse(
        f"{name}_drafts_total 110\n{name}_draft_tokens_total 330\n{name}_accepted_tokens_total 155\n"
        f'{name}_accepted_tokens_per_pos_total{{position="0"}} 90\n'
        f'{name}_accepted_tokens_per_pos_total{{position="1"}} 60\n'
        "vllm:num_preemptions_total 3\n"
    )
    assert _engine_metrics(before, after) == {
        "engine/preemptions": 3,
        "engine/acceptance_rate": 0.5,
        "engine/acceptance_length": 2.5,
        "engine/acceptance_position_0": 0.9,
        "engine/acceptance_position_1": 0.6,
    }


def test_latencies_of_a_round_that_was_ended_early() -> None:
    name = "vllm:time_to_first_token_seconds"
    after = parse(
        f'{name}_bucket{{le="0.1"}} 50\n{name}_bucket{{le="0.2"}} 100\n{name}_bucket{{le="+Inf"}} 100\n'
        f"{name}_count 100\n{name}_sum 11\n"
    )
    found = server_latencies(parse(""), after)
    assert found["latency/ttft_mean"] == pytest.approx(110)
    assert found["latency/ttft_p50"] == pytest.approx(100)
    assert found["latency/ttft_p99"] == pytest.approx(198)
    assert "latency/tpot_mean" not in found


def test_steps_of_all_rounds_by_batch() -> None:
    rounds = [Round(steps=((8.2, 0.01), (4.0, 0.005))), Round(steps=((7.9, 0.03), (8.0, 0.02)))]
    assert median_steps(rounds) == ((4.0, 0.005), (8.0, 0.02))


def test_the_clients_last_word(tmp_path: Path) -> None:
    log = tmp_path / "bench.log"
    assert _last_error(log) == "it left no log"
    log.write_text("")
    assert _last_error(log) == "it said nothing"
    log.write_text("Traceback (most recent call last):\nValueError: bad flag\n  some cleanup\n")
    assert _last_error(log) == "ValueError: bad flag"
    log.write_text("x" * 100_000 + "\nlast words\n")
    assert _last_error(log) == "last words"
