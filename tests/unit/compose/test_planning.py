"""Plans from options: what is said before anything is planned."""

from __future__ import annotations

import re

import pytest

from tuner.compose.options import Options
from tuner.compose.planning import _need_values
from tuner.errors import InputError
from tuner.spaces import VllmFlags

FLAGS = VllmFlags.known("0.32.0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("load-format", "--arg load-format: needs a value, write --arg load-format=VALUE"),
        ("--max-num-seqs", "--arg max-num-seqs: needs a value, write --arg max-num-seqs=VALUE"),
        ("kv-cache-dtype", "--arg kv-cache-dtype: needs a value, write --arg kv-cache-dtype=VALUE (auto, bfloat16, "),
    ],
)
def test_a_flag_that_is_no_switch_needs_its_value(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        _need_values(Options(hardware="h200", arguments=("enforce-eager", text)), FLAGS)


@pytest.mark.parametrize("text", ["enforce-eager", "load-format=dummy", "unknown-flag", "max-num-seqs="])
def test_switches_and_values_pass(text: str) -> None:
    _need_values(Options(hardware="h200", arguments=(text,)), FLAGS)
