"""Sentences one after the other, and whose defaults they are."""

from __future__ import annotations

import pytest

from tuner.model.words import defaults_of, sentences


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (("it broke", "mend it"), "it broke. Mend it."),
        (("it broke.", "Mend it.", ""), "it broke. Mend it."),
        (("", "mend it"), "mend it."),
        (("why did it break?", "see the log …"), "why did it break? See the log …"),
        (("too large", "gpu_memory_utilization is 0.99"), "too large. gpu_memory_utilization is 0.99."),
        (("too long", "--trial-timeout may be raised"), "too long. --trial-timeout may be raised."),
        (("it broke", "vLLM says why"), "it broke. vLLM says why."),
    ],
)
def test_sentences_end_and_begin(texts: tuple[str, ...], said: str) -> None:
    assert sentences(*texts) == said


@pytest.mark.parametrize(
    ("about", "name"),
    [
        ({}, "vLLM's defaults"),
        ({"facts": {"kind": "vllm"}}, "vLLM's defaults"),
        ({"facts": {"kind": "replay"}}, "vLLM's defaults"),
        ({"facts": {"kind": "external"}}, "the defaults"),
        ({"facts": None}, "vLLM's defaults"),
    ],
)
def test_the_defaults_of_a_trial_command_need_not_be_vllms(about: dict[str, object], name: str) -> None:
    assert defaults_of(about) == name  # type: ignore[arg-type]
