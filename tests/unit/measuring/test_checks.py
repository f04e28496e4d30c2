from __future__ import annotations

import random

import pytest

from tuner.measuring import checks
from tuner.measuring.bench import BenchResult
from tuner.measuring.prometheus import parse
from tuner.measuring.workloads import RoundLoad
from tuner.model.outcome import Blame


def result(**changes: object) -> BenchResult:
    values: dict[str, object] = {
        "completed": 4,
        "failed": 0,
        "duration": 1.0,
        "total_input": 40,
        "total_output": 1000,
        "request_throughput": 4.0,
        "output_throughput": 1000.0,
        "total_throughput": 1040.0,
        "latency_ms": {},
    }
    return BenchResult(**{**values, **changes})  # type: ignore[arg-type]


def load(hit_rate: float = 0.0) -> RoundLoad:
    return RoundLoad(
        arguments=(),
        requests=4,
        output_tokens=None,
        output_range=(1, 1000),
        output_total=1000,
        input_total=40,
        hit_rate=hit_rate,
    )


@pytest.mark.parametrize(
    ("before", "after", "kind", "blame"),
    [
        (500, 1500, None, None),
        (500, 1520, None, None),
        (500, 1510, None, None),
        (500, 1600, "counter-mismatch", Blame.MACHINE),
        (500, 1400, "counter-mismatch", Blame.CONFIGURATION),
        (500, 600, "cached-answers", Blame.CONFIGURATION),
        (500, 20, "counter-mismatch", Blame.MACHINE),
    ],
)
def test_tokens_against_the_servers_count(before: int, after: int, kind: str | None, blame: Blame | None) -> None:
    texts = [parse(f"vllm:generation_tokens_total {value}\n") for value in (before, after)]
    failure = checks.counters(texts[0], texts[1], result(), 4)
    assert (failure.kind if failure else None) == kind
    assert (failure.blame if failure else None) == blame


def test_server_without_counters_is_not_accused() -> None:
    assert checks.counters(parse(""), parse(""), result(), 4) is None


def test_prefix_hits() -> None:
    before = parse("vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 10\n")
    after = parse("vllm:prefix_cache_queries_total 300\nvllm:prefix_cache_hits_total 60\n")
    rate = checks.hit_rate(before, after)
    assert rate == pytest.approx(0.25)
    assert checks.hit_rate(after, after) is None
    assert checks.prefix_cache(rate, load(0.25)) is None
    assert checks.prefix_cache(rate, load(0.9)) is None
    spoiled = checks.prefix_cache(rate, load())
    assert spoiled == "25.0% of the prompt tokens hit the prefix cache, the workload gives 0.0%"
    assert checks.prefix_cache(None, load()) is None


def paced(paces: list[float]) -> BenchResult:
    return result(start_times=tuple(range(len(paces))), itls=tuple((pace,) * 8 for pace in paces))


def test_slowdown_half_way_is_seen() -> None:
    rng = random.Random(1)
    steady = [rng.gauss(0.05, 0.005) for _ in range(64)]
    assert checks.slowdown(paced(steady)) is None
    fallen = steady[:32] + [2 * pace for pace in steady[32:]]
    assert "rose 2" in str(checks.slowdown(paced(fallen)))
    assert checks.slowdown(paced(fallen[::-1])) is None


def test_slow_from_the_start_is_seen_against_an_earlier_round() -> None:
    rng = random.Random(2)
    fast = paced([rng.gauss(0.05, 0.005) for _ in range(64)])
    slow = paced([rng.gauss(0.15, 0.015) for _ in range(64)])
    assert checks.slowdown(slow) is None
    assert checks.slowdown(slow, checks.first_paces(fast)) is not None
    assert checks.faster(checks.first_paces(slow), checks.first_paces(fast)) == checks.first_paces(fast)
    assert checks.faster((), checks.first_paces(slow)) == checks.first_paces(slow)


def test_few_requests_say_nothing() -> None:
    assert checks.slowdown(paced([0.05] * 10 + [0.5] * 10)) is None
    assert checks.first_paces(paced([0.05] * 10)) == ()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([100.0], 0), ([100.0, 96.0], 0), ([100.0, 104.0, 70.0], -1), ([75.0, 100.0], 1), ([100.0, 75.0, 80.0], 0)],
)
def test_shift_between_rounds(samples: list[float], expected: int) -> None:
    assert checks.shift(samples) == expected


def test_replayed_answers() -> None:
    memory = checks.Memory()
    first = result(texts=tuple(f"answer number {n} with enough letters" for n in range(10)))
    assert memory.replayed(first) is None
    again = memory.replayed(first)
    assert again is not None
    assert again.kind == "cached-answers"


def test_a_handful_of_like_answers_says_nothing() -> None:
    memory = checks.Memory()
    few = result(texts=("a small model may say this twice", "and this as well, to other prompts"))
    assert memory.replayed(few) is None
    assert memory.replayed(few) is None


def test_a_model_that_always_says_the_same_replays_nothing() -> None:
    memory = checks.Memory()
    same = result(texts=("the very same answer for everybody",) * 10)
    assert memory.replayed(same) is None
    assert memory.replayed(same) is None


def timed(*rows: tuple[float, float]) -> BenchResult:
    """Answers of eight tokens: (time to first token, seconds between tokens)."""
    return result(
        output_lens=(8,) * len(rows),
        ttfts=tuple(first for first, _ in rows),
        itls=tuple((gap,) * 7 if gap else () for _, gap in rows),
    )


def test_answers_that_come_at_once_and_early_were_kept() -> None:
    failure = checks.Memory().replayed(timed((0.1, 0.05), (0.1, 0.05), (0.01, 0.0), (0.01, 0.0)))
    assert failure is not None
    assert failure.kind == "cached-answers"
    assert "2 of 4" in failure.cause


def test_answers_that_a_busy_client_finds_in_one_piece_but_late_are_honest() -> None:
    assert checks.Memory().replayed(timed((0.1, 0.05), (0.1, 0.05), (0.45, 0.0), (0.45, 0.0))) is None


def test_a_round_of_kept_answers_is_known_by_the_rounds_before() -> None:
    memory = checks.Memory()
    assert memory.replayed(timed((0.1, 0.05), (0.1, 0.05))) is None
    assert memory.replayed(timed((0.01, 0.0), (0.01, 0.0))) is not None
    assert checks.Memory().replayed(timed((0.01, 0.0), (0.01, 0.0))) is None
    assert checks.Memory(pace=0.05).replayed(timed((0.01, 0.0), (0.01, 0.0))) is not None


def test_users_own_repeats_may_be_answered_alike() -> None:
    memory = checks.Memory()
    answers = result(texts=tuple(f"answer number {n} with enough letters" for n in range(10)))
    assert memory.replayed(answers, texts=False) is None
    assert memory.replayed(answers, texts=False) is None
