from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.measuring.workloads import PromptSupply, Traffic, read_traffic
from tuner.model.outcome import Blame
from tuner.model.workload import LoadPoint, Workload
from tuner.ports import MeasurementFailed

POINT = LoadPoint(concurrency=4, requests=16)
TEXT = Workload(name="w", source="text", input_tokens=96, output_tokens=32)


def count(texts: Sequence[str]) -> list[int]:
    """A tokenizer of sorts: three letters or less make a token, words do not share any."""
    return [sum((len(word) + 2) // 3 for word in text.split()) + 1 for text in texts]


def supply(
    workload: Workload, seed: int = 1, *, traffic: Traffic | None = None, longest: int | None = None
) -> PromptSupply:
    return PromptSupply(workload, traffic or Traffic(), seed=seed, count_tokens=count, max_model_len=longest)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("tokens", [1, 5, 20, 64, 500])
def test_text_has_almost_the_wanted_length_and_never_more(tokens: int) -> None:
    prompts = supply(replace(TEXT, input_tokens=tokens)).prompts(20, seed=3)
    lengths = count([prompt.text for prompt in prompts])
    if tokens >= 20:
        assert all(tokens - max(6, tokens // 20) <= length <= tokens for length in lengths)
        assert sum(lengths) >= 0.97 * tokens * len(lengths) - 20
    assert [prompt.input_tokens for prompt in prompts] == pytest.approx(lengths, abs=3)


def test_no_prompt_comes_twice_nor_shares_its_first_block() -> None:
    seen: set[str] = set()
    for seed in (1, 2):
        source = supply(TEXT, seed)
        for number in range(3):
            texts = [prompt.text for prompt in source.prompts(50, seed=number)]
            starts = {" ".join(text.split()[:8]) for text in texts}
            assert len(starts) == 50
            assert not starts & seen
            seen |= starts


def test_same_seeds_give_the_same_text() -> None:
    first, second = (supply(TEXT, 5).prompts(5, seed=9) for _ in range(2))
    assert first == second


def test_text_is_made_of_words() -> None:
    words = supply(TEXT).prompts(1, seed=1)[0].text.split()
    assert sum(word.strip(".,;:").isalpha() for word in words) > 0.7 * len(words)
    assert len({word.lower() for word in words}) > 0.4 * len(words)


def test_round_writes_a_custom_data_set(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    load = supply(replace(TEXT, spread=0.5)).round(POINT, seed=7, path=path)
    rows = lines(path)
    assert len(rows) == load.requests == 16
    assert tuple(row["output_tokens"] for row in rows) == load.output_tokens
    assert load.output_range[0] >= 16
    assert load.output_range[1] <= 48
    assert len(set(load.output_tokens or ())) > 3
    assert load.output_total == sum(load.output_tokens or ())
    words = list(load.arguments)
    assert words[words.index("--dataset-name") + 1] == "custom"
    assert words[words.index("--dataset-path") + 1] == str(path)
    assert "--skip-chat-template" in words
    assert load.salt == ""
    assert load.hit_rate < 0.05


def test_random_uses_vllms_own_data_set(tmp_path: Path) -> None:
    load = supply(replace(TEXT, source="random")).round(POINT, seed=7, path=tmp_path / "p")
    assert load.arguments == (
        *("--dataset-name", "random", "--random-input-len", "96", "--random-output-len", "32"),
        *("--random-range-ratio", "0.0", "--seed", "7"),
    )
    assert load.output_tokens == (32,) * 16
    spread = supply(replace(TEXT, source="random", spread=0.1)).round(POINT, seed=7, path=tmp_path / "p")
    assert (spread.output_tokens, spread.output_range) == (None, (28, 36))


def test_prefixes_are_shared_and_suffixes_fresh() -> None:
    source = supply(replace(TEXT, source="prefix", prefix_tokens=64, prefix_groups=2))
    rounds = [[prompt.text.split("\n\n") for prompt in source.prompts(20, seed=seed)] for seed in (1, 2)]
    heads = {head for done in rounds for head, _ in done}
    assert len(heads) == 2
    assert all(55 <= length <= 64 for length in count(sorted(heads)))
    assert len({tail for done in rounds for _, tail in done}) == 40


def test_prefix_hit_rate_follows_from_the_lengths(tmp_path: Path) -> None:
    workload = replace(TEXT, source="prefix", prefix_tokens=96, prefix_groups=2)
    assert supply(workload).round(POINT, seed=1, path=tmp_path / "p").hit_rate == pytest.approx(0.5)


def test_jsonl_uses_every_record_before_repeating_any(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{n} question", "output_tokens": 5}) for n in range(20)))
    workload = replace(TEXT, source="jsonl", path=str(path))
    source = supply(workload, traffic=read_traffic(workload))
    first = source.round(replace(POINT, requests=10), seed=1, path=tmp_path / "1")
    second = source.round(replace(POINT, requests=10), seed=2, path=tmp_path / "2")
    prompts = [row["prompt"] for name in "12" for row in lines(tmp_path / name)]
    assert len(set(prompts)) == 20
    assert first.output_tokens == (5,) * 10
    assert first.salt
    assert first.salt != second.salt


def test_repeats_within_a_round_are_expected_hits(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_text(json.dumps({"prompt": "always the same question"}))
    workload = replace(TEXT, source="jsonl", path=str(path))
    load = supply(workload, traffic=read_traffic(workload)).round(POINT, seed=1, path=tmp_path / "1")
    assert load.hit_rate == pytest.approx(15 / 16)


def test_records_that_do_not_fit_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    rows = [{"prompt": "word " * (200 if n % 2 else 5)} for n in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)))
    workload = replace(TEXT, source="jsonl", path=str(path))
    source = supply(workload, traffic=read_traffic(workload), longest=64)
    prompts = source.prompts(8, seed=1)
    assert all(len(prompt.text.split()) == 5 for prompt in prompts)
    assert source.skipped > 0
    nothing = supply(workload, traffic=read_traffic(workload), longest=8)
    with pytest.raises(MeasurementFailed) as caught:
        nothing.prompts(8, seed=1)
    assert caught.value.failure.kind == "requests-too-long"
    assert caught.value.failure.blame is Blame.USER


def test_sharegpt_answers_set_the_output_length(tmp_path: Path) -> None:
    path = tmp_path / "talks.json"
    talk = [{"from": "human", "value": "how are you"}, {"from": "gpt", "value": "very well thank you so much"}]
    path.write_text(json.dumps([{"conversations": talk}]))
    workload = replace(TEXT, source="sharegpt", path=str(path))
    (prompt,) = supply(workload, traffic=read_traffic(workload)).prompts(1, seed=1)
    assert prompt.output_tokens == count(["very well thank you so much"])[0]


def test_trace_keeps_times_and_sharing_with_fresh_tokens(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 5.0, "input_length": 64, "output_length": 8, "hash_ids": [1, 2]},
        {"timestamp": 5.5, "input_length": 64, "output_length": 9, "hash_ids": [1, 3]},
        {"timestamp": 6.0, "input_length": 40, "output_length": 4},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    workload = replace(TEXT, source="trace", path=str(path), points=(LoadPoint(requests=3),))
    source = supply(workload, traffic=read_traffic(workload))
    load = source.round(workload.points[0], seed=1, path=tmp_path / "1")
    source.round(workload.points[0], seed=2, path=tmp_path / "2")
    first, second = lines(tmp_path / "1"), lines(tmp_path / "2")
    assert [row["timestamp"] for row in first] == [0.0, 0.5, 1.0]
    ids = [row["hash_ids"] for row in first]
    assert ids[0][0] == ids[1][0]  # type: ignore[index]
    assert ids[0][1] != ids[1][1]  # type: ignore[index]
    assert len(ids[2]) == 2  # type: ignore[arg-type]
    assert not set(ids[0]) & set(second[0]["hash_ids"])  # type: ignore[call-overload]
    assert load.output_tokens == (8, 9, 4)
    assert load.self_timed
    assert load.span_s == 1.0
    assert load.hit_rate == pytest.approx(32 / 168)
    assert load.arguments[load.arguments.index("--timed-trace-chunk-hash-size") + 1] == "32"


def test_length_is_checked_before_anything_is_sent() -> None:
    with pytest.raises(MeasurementFailed, match=r"need 128 tokens .* max_model_len is 100") as caught:
        supply(TEXT, longest=100)
    assert caught.value.failure.blame is Blame.USER
    supply(TEXT, longest=128)


@pytest.mark.parametrize(
    ("workload", "complaint"),
    [
        (replace(TEXT, source="jsonl"), "needs a path"),
        (replace(TEXT, source="prefix"), "prefix_tokens"),
        (replace(TEXT, points=()), "load point"),
        (replace(TEXT, source="trace", path="x", points=(LoadPoint(rate=1.0),)), "leave rate away"),
    ],
)
def test_contradictions_are_input_errors(workload: Workload, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_traffic(workload)
