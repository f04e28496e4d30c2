"""Sentences one after the other, and whose defaults they are."""

from __future__ import annotations

import pytest

from tuner.model.words import defaults_of, plain, sentences, shortened


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
        ({"facts": {"kind": "replay"}}, "the defaults"),
        ({"facts": {"kind": "external"}}, "the defaults"),
        ({"facts": None}, "vLLM's defaults"),
    ],
)
def test_the_defaults_of_a_trial_command_or_a_table_need_not_be_vllms(about: dict[str, object], name: str) -> None:
    assert defaults_of(about) == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – 5 µs", "plain – 5 µs"),
        ("a\x1b[31mred\x1b[0m b", "ared b"),
        ("a\x9b2Jb", "ab"),
        ("\x1b]0;a title\x07x\x1b]8;;http://x\x1b\\link", "xlink"),
        ("cut \x1b", "cut "),
        ("10 %\r20 %\r\nend\n\tin", "10 %\n20 %\nend\n\tin"),
        ("a\x00b\x07c\x7fd\u202ee", "abcde"),
        ("half \ud83d", "half \ufffd"),
    ],
)
def test_text_of_a_program_moves_no_terminal(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_one_line_of_bounded_length() -> None:
    assert shortened("a\nb \x1b[1m c", 10) == "a b c"
    assert shortened("z" * 50, 10) == "z" * 9 + "…"
