"""Whether the same prompts still give the same tokens, with the same log-probabilities.

Greedy decoding is not bitwise repeatable: batch size changes the order of sums. So the baseline is asked twice in
different batches, and how far it agrees with itself is the floor that a candidate is seen against.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.quality.client import CompletionsClient

__all__ = ["PROMPTS", "TOKENS", "Agreement", "Transcript", "compare", "transcribe"]

TOKENS = 24
"""Tokens per prompt: long enough to see decoding drift, short enough to cost seconds."""

PROMPTS: Mapping[str, str] = {
    "letter": "Dear Mrs Miller, thank you for your letter of last week. I am writing to",
    "recipe": "To make a simple vegetable soup, first wash the carrots and potatoes, then",
    "weather": "The forecast for tomorrow says that the morning will be cold and foggy, but",
    "history": "The printing press changed Europe because books, which had been copied by hand,",
    "code": "def add(a, b):\n    return a + b\n\ndef multiply(a, b):\n    return",
    "list": "Here are three reasons to walk to work every day:\n1.",
    "story": "The old fisherman pulled his boat onto the sand and looked at the sky. He knew that",
    "science": "When a piece of iron is left outside in the rain for several weeks, it",
    "dialogue": 'Anna asked, "Where did you put the keys?" Tom thought for a moment and said,',
    "maths": "A baker sells 12 loaves in the morning and 15 in the afternoon. In total she sells",
    "travel": "We took the night train from Vienna to Rome. When we arrived in the morning,",
    "health": "Doctors say that most adults should sleep between seven and nine hours, because",
    "json": '{"name": "Anna", "age": 31, "city": "Vienna"}\n{"name": "Ben", "age": 27, "city":',
    "translate": "English: good morning. French: bonjour. English: thank you. French: merci. English: yes. French:",
    "summary": "The meeting began late. Nobody had read the report, and the chair was ill. In short, the meeting",
    "poem": "The moon is up, the lake is still,\nA single light is on the hill,\nAnd",
}
"""Prompt id → text: prose, lists, code and data, so that no one kind of token decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Greedy output per prompt id: token texts and their log-probabilities (nats)."""

    tokens: Mapping[str, tuple[str, ...]]
    logprobs: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How alike two transcripts are.

    Attributes:
        share: mean over prompts of the common beginning's length over the longer output's (0 to 1).
        divergence: mean position (tokens) of the first difference.
        identical: share of prompts whose outputs are the same to the end.
        logprob_difference: mean absolute difference (nats) on the common beginnings; NaN where nothing is known.
    """

    share: float
    divergence: float
    identical: float
    logprob_difference: float


def transcribe(client: CompletionsClient, *, rearranged: bool = False) -> Transcript:
    """Greedy outputs of :data:`PROMPTS`: in one batch, or ``rearranged`` into two batches in reverse order.

    Raises:
        MeasurementFailed: the server died or answered with errors.
    """
    names = list(PROMPTS)
    half = len(names) // 2
    batches = [names[half:][::-1], names[:half][::-1]] if rearranged else [names]
    tokens: dict[str, tuple[str, ...]] = {}
    logprobs: dict[str, tuple[float, ...]] = {}
    for batch in batches:
        answers = client.complete([PROMPTS[name] for name in batch], max_tokens=TOKENS, logprobs=1)
        for name, answer in zip(batch, answers, strict=True):
            tokens[name] = answer.tokens
            logprobs[name] = tuple(math.nan if value is None else value for value in answer.logprobs)
    return Transcript(tokens={name: tokens[name] for name in names}, logprobs={name: logprobs[name] for name in names})


def compare(one: Transcript, other: Transcript) -> Agreement:
    """Agreement on the prompts that both hold.

    Raises:
        ValueError: they share no prompt.
    """
    names = [name for name in one.tokens if name in other.tokens]
    if not names:
        raise ValueError("the transcripts share no prompt")
    shares, positions, same, gaps = [], [], [], []
    for name in names:
        a, b = one.tokens[name], other.tokens[name]
        common, longer = _common(a, b), max(len(a), len(b))
        shares.append(common / longer if longer else 1.0)
        positions.append(common)
        same.append(common == longer)
        values = zip(one.logprobs.get(name, ())[:common], other.logprobs.get(name, ())[:common], strict=False)
        gaps += [abs(x - y) for x, y in values if math.isfinite(x) and math.isfinite(y)]
    count = len(names)
    return Agreement(
        share=math.fsum(shares) / count,
        divergence=sum(positions) / count,
        identical=sum(same) / count,
        logprob_difference=math.fsum(gaps) / len(gaps) if gaps else math.nan,
    )


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length
