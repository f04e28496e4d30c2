"""A few facts that any language model knows: HTTP 200 with garbage must not count as serving."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuner.model.outcome import Blame, Failure
from tuner.quality.client import CompletionsClient

__all__ = ["FACTS", "judge", "sane"]

FACTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("The capital of France is", ("paris",)),
    ("The capital of Germany is", ("berlin",)),
    ("The capital of Japan is", ("tokyo",)),
    ("Monday comes before", ("tuesday",)),
    ("1, 2, 3, 4, 5, 6,", ("7",)),
    ("The opposite of hot is", ("cold", "cool")),
    ("The Earth goes around the", ("sun",)),
    ("The language spoken in Italy is", ("italian",)),
)
"""Prompt → words of which one must come. SmolLM2-135M-Instruct knows at least six of the eight."""

_TOKENS = 16
_NEEDED = 3
"""Right answers asked for. Lenient, because a chat model may ramble; chance gives none."""
_DEGENERATE_SHARE = 0.5
_SHOWN = 80


def sane(client: CompletionsClient) -> Failure | None:
    """A failure of kind ``garbage`` if the server's answers are nonsense.

    All prompts go in one request, so that batching is exercised; sixteen tokens each, so that decoding from the KV
    cache is, and not only the prefill.

    Raises:
        MeasurementFailed: the server died or answered with errors.
    """
    answers = client.complete([prompt for prompt, _ in FACTS], max_tokens=_TOKENS)
    return judge([answer.text for answer in answers])


def judge(texts: Sequence[str]) -> Failure | None:
    """The verdict on answers to :data:`FACTS`, in their order."""
    right = sum(_mentions(text, words) for text, (_, words) in zip(texts, FACTS, strict=True))
    broken = [degenerate(text) for text in texts]
    if right >= _NEEDED and sum(broken) <= _DEGENERATE_SHARE * len(texts):
        return None
    shown = next((index for index, bad in enumerate(broken) if bad), 0)
    answer = " ".join(texts[shown].split())[:_SHOWN]
    cause = (
        f"the server answers, but with garbage: {right} of {len(FACTS)} facts right, {sum(broken)} answers degenerate; "
        f"{FACTS[shown][0]!r} → {answer!r}"
    )
    return Failure(
        kind="garbage",
        cause=cause,
        blame=Blame.CONFIGURATION,
        phase="quality",
        # No unit is natural here; the share of facts missed grades it for the sampler.
        violation=max(1.0 - right / len(FACTS), sum(broken) / len(FACTS)),
        advice="the configuration breaks the model's arithmetic: do not serve it; random weights: switch quality off",
    )


def _mentions(text: str, words: Sequence[str]) -> bool:
    found = set(re.findall(r"\w+", text.lower()))
    return any(word in found for word in words)


def degenerate(text: str) -> bool:
    """Empty, undecodable, or the same sign or word over and over: what broken kernels write.

    A loop over a whole phrase is no sign of damage: small models do that when greedy.
    """
    bare = "".join(text.split())
    if not bare:
        return True
    unreadable = sum(ch == "\ufffd" or not ch.isprintable() for ch in bare)
    if unreadable > 0.3 * len(bare):
        return True
    words = re.findall(r"\w+|[^\w\s]", text)
    if len(words) >= 8 and len(set(words[-8:])) <= 2:
        return True
    return len(bare) >= 12 and len(set(bare)) <= 3
