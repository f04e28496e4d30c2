from __future__ import annotations

import itertools
import threading

import pytest

from tuner.measuring.prometheus import Snapshot, parse
from tuner.measuring.sampler import Sampler, look


def text(running: int, tokens: int, steps: int) -> str:
    return (
        f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:num_requests_waiting 2\n'
        f"vllm:kv_cache_usage_perc 0.{running}\nvllm:generation_tokens_total {tokens}\n"
        f'vllm:request_success_total{{finished_reason="length"}} 3\nvllm:iteration_tokens_total_count {steps}\n'
    )


def collected(*texts: str | None, api_servers: int = 1) -> Sampler:
    """A sampler that has seen these readings, one second apart."""
    done = threading.Event()
    numbers = itertools.count()

    def fetch() -> Snapshot | None:
        number = next(numbers)
        if number >= len(texts) - 1:
            done.set()
        item = texts[min(number, len(texts) - 1)]
        return None if item is None else parse(item, time=float(number))

    sampler = Sampler(fetch, interval_s=0.0005, api_servers=api_servers)
    with sampler:
        assert done.wait(5)
    sampler._samples = sampler._samples[: sum(item is not None for item in texts)]
    return sampler


def test_look_reads_vllms_names() -> None:
    sample = look(parse(text(3, 50, 7), time=1.0))
    assert (sample.running, sample.waiting, sample.kv_usage, sample.generated) == (3, 2, 0.3, 50)
    assert (sample.finished, sample.steps, sample.engines) == (3, 7, 1)
    assert look(parse("")).steps is None


def test_averages_are_over_the_time_under_load() -> None:
    sampler = collected(text(0, 0, 0), text(4, 10, 5), text(8, 20, 9), text(0, 30, 12))
    metrics = sampler.metrics()
    assert metrics["engine/running_mean"] == 6
    assert metrics["engine/running_max"] == 8
    assert metrics["engine/waiting_max"] == 2
    assert metrics["engine/kv_usage_max"] == pytest.approx(0.8)


def test_steps_are_paired_with_a_batch_that_held() -> None:
    sampler = collected(text(8, 0, 0), text(8, 80, 10), text(2, 100, 20), text(2, 120, 40))
    assert sampler.steps() == ((8.0, pytest.approx(0.1)), (2.0, pytest.approx(0.05)))
    assert sampler.metrics()["engine/step_ms"] == pytest.approx(75)


def test_a_server_that_does_not_answer_is_no_error() -> None:
    sampler = collected(None, text(1, 1, 1), None, text(1, 2, 2))
    assert sampler.missed >= 2
    assert len(sampler.samples) == 2


def test_tick_runs_with_every_reading() -> None:
    ticks = threading.Event()
    with Sampler(lambda: None, interval_s=0.001, tick=ticks.set):
        assert ticks.wait(5)


def test_steps_counted_by_several_api_servers_are_no_step_times() -> None:
    """Each of four servers counts every step: an H200 seemed to take 6 ms for one of 24."""
    sampler = collected(text(8, 0, 0), text(8, 80, 40), api_servers=4)
    assert sampler.steps() == ()
    assert "engine/step_ms" not in sampler.metrics()
    assert sampler.metrics()["engine/running_mean"] == 8
