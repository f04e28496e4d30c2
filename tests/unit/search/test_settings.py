from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.search.helpers import small_space
from tuner.model.json import Scalar
from tuner.model.space import UNSET, Choice, Parameter
from tuner.search.distributions import encodings
from tuner.search.settings import assignment_of

BUNDLE = Parameter(
    name="graphs",
    target="",
    domain=Choice(
        values={
            "default": UNSET,
            "piecewise": {"arguments": {"compilation-config.cudagraph_mode": "PIECEWISE"}},
            "small": {"arguments": {"compilation-config.cudagraph_mode": "PIECEWISE", "max-cudagraph-capture-size": 8}},
            "tuned": {"environment": {"VLLM_X": "1"}},
        }
    ),
)
SWITCH = Parameter(name="async", target="async-scheduling", domain=Choice(values={"default": UNSET, "off": False}))
SPACE = small_space(parameters=(*small_space().parameters, BUNDLE, SWITCH))
ENCODED = encodings(replace(SPACE, digest=""))


@pytest.mark.parametrize(
    ("settings", "assignment"),
    [
        ({}, {}),
        ({"max-num-seqs": "512"}, {"max_num_seqs": "512"}),
        ({"max_num_seqs": "512.0"}, {"max_num_seqs": "512"}),
        ({"--max-num-batched-tokens": "2048"}, {"max_num_batched_tokens": 2048}),
        ({"max-num-batched-tokens": "2000"}, {"max_num_batched_tokens": 2048}),
        ({"async-scheduling": "False"}, {"async": "off"}),
        ({"attention_backend": "flash_attn"}, {"attention_backend": "FLASH_ATTN"}),
        (
            {"speculative-config": '{"method": "ngram", "num_speculative_tokens": 3}'},
            {"spec_method": "ngram", "spec_tokens": 3},
        ),
        ({"compilation-config.cudagraph_mode": "PIECEWISE"}, {"graphs": "piecewise"}),
        (
            {"compilation-config.cudagraph_mode": "PIECEWISE", "max-cudagraph-capture-size": "8"},
            {"graphs": "small"},
        ),
        ({"env:VLLM_X": "1"}, {"graphs": "tuned"}),
        ({"lr": "0.1", "max-num-seqs": "64"}, {"max_num_seqs": "64"}),
        ({"speculative-config": '{"method": '}, {}),
    ],
)
def test_settings_as_this_space_says_them(settings: dict[str, str], assignment: dict[str, Scalar]) -> None:
    assert assignment_of(settings, ENCODED) == assignment


@pytest.mark.parametrize("text", ["100000000", "0", "many", "nan", "", "[1]"])
def test_a_value_that_the_parameter_cannot_take(text: str) -> None:
    assert assignment_of({"max-num-batched-tokens": text}, ENCODED) is None
    assert assignment_of({"max-num-seqs": text}, ENCODED) is None
