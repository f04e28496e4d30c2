from __future__ import annotations

from typing import Any

import pytest

from tuner.model.outcome import Blame
from tuner.quality.client import CompletionsClient
from tuner.quality.sanity import FACTS, degenerate, judge, sane

RIGHT = [f" {words[0].title()}. The next sentence says something else entirely." for _, words in FACTS]


def test_right_answers_pass() -> None:
    assert judge(RIGHT) is None


def test_a_rambling_model_passes_with_three_facts() -> None:
    rambling = " a question that many people have asked over the years"
    assert judge([*RIGHT[:3], *[rambling] * 5]) is None
    assert judge(RIGHT[:2] + [rambling] * 6) is not None


def test_loops_of_small_models_are_no_garbage() -> None:
    assert judge([" Paris. The capital of France is Paris. The capital of France", *RIGHT[1:]]) is None
    assert not degenerate(" I think so, and I think so, and I think so, and I think so")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "!!!!!!!!!!!!!!!!",
        " the the the the the the the the",
        "\ufffd\ufffd a \ufffd\ufffd",
        "\x00\x01\x02abc",
        "0 0 0 0 0 0 0 0 0 0 0 0",
    ],
)
def test_degenerate(text: str) -> None:
    assert degenerate(text)


@pytest.mark.parametrize("text", [" Paris", " 7, 8, 9, 10, 11, 12,", " cold.", " Größe und Maß", " 東京です", "!"])
def test_not_degenerate(text: str) -> None:
    assert not degenerate(text)


def test_garbage_is_the_configurations_fault_and_says_what_was_seen() -> None:
    failure = judge([" zqx!! lorem"] * len(FACTS))
    assert failure is not None
    assert (failure.kind, failure.blame, failure.retry) == ("garbage", Blame.CONFIGURATION, False)
    assert failure.violation == 1.0
    assert "0 of 8 facts right" in failure.cause
    assert "zqx!! lorem" in failure.cause


def test_right_first_tokens_with_broken_decoding_are_garbage() -> None:
    failure = judge([f" {words[0]}" + "!" * 15 for _, words in FACTS])
    assert failure is not None
    assert "8 of 8 facts right, 8 answers degenerate" in failure.cause


def test_one_request_with_the_key(serve: Any, words: Any) -> None:
    known = dict(FACTS)
    server = serve(words(lambda prompt: [" " + known[prompt][0]]))
    with CompletionsClient(server) as client:
        assert sane(client) is None
    assert len(server.seen) == 1
    assert server.authorizations == ["Bearer planted-key"]
    assert server.seen[0]["temperature"] == 0.0
