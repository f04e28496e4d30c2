from __future__ import annotations

import math
from typing import Any

import pytest

from tuner.quality.agreement import PROMPTS, TOKENS, Transcript, compare, transcribe
from tuner.quality.client import CompletionsClient


def transcript(**outputs: str) -> Transcript:
    return Transcript(
        tokens={name: tuple(text) for name, text in outputs.items()},
        logprobs={name: tuple(-0.1 * (i + 1) for i in range(len(text))) for name, text in outputs.items()},
    )


def test_common_beginning_counts() -> None:
    found = compare(transcript(a="abcd", b="wxyz"), transcript(a="abxx", b="wxyz"))
    assert found.share == pytest.approx((2 / 4 + 1) / 2)
    assert found.divergence == 3
    assert found.identical == 0.5
    assert found.logprob_difference == pytest.approx(0)


def test_a_shorter_output_is_a_difference_and_two_empty_ones_are_none() -> None:
    assert compare(transcript(a="abcd"), transcript(a="ab")).share == 0.5
    assert compare(transcript(a=""), transcript(a="")).share == 1.0


def test_log_probabilities_are_compared_where_the_tokens_agree() -> None:
    one = Transcript(tokens={"a": ("x", "y", "z")}, logprobs={"a": (-1.0, -2.0, -3.0)})
    other = Transcript(tokens={"a": ("x", "y", "q")}, logprobs={"a": (-1.5, math.nan, -30.0)})
    assert compare(one, other).logprob_difference == pytest.approx(0.5)
    unknown = Transcript(tokens={"a": ("x",)}, logprobs={})
    assert math.isnan(compare(one, unknown).logprob_difference)


def test_no_common_prompt_is_an_error() -> None:
    with pytest.raises(ValueError, match="no prompt"):
        compare(transcript(a="x"), transcript(b="x"))


def test_transcripts_are_the_same_however_they_are_batched(serve: Any, words: Any) -> None:
    server = serve(words(lambda prompt: [f" {len(prompt)}", f" {prompt[-1]}"] * 12))
    with CompletionsClient(server) as client:
        one, other = transcribe(client), transcribe(client, rearranged=True)
    assert one == other
    assert list(one.tokens) == list(PROMPTS)
    assert all(len(tokens) == TOKENS for tokens in one.tokens.values())
    assert [len(request["prompt"]) for request in server.seen] == [16, 8, 8]
    assert server.seen[1]["prompt"][0] == PROMPTS["poem"]
