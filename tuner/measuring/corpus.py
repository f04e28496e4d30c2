"""Varied English text without end, from a few hundred phrases of our own: real words for speculation and routing.

Random tokens make a draft model or an n-gram lookup guess nonsense and an expert router spread in ways that no
traffic does. This text has natural words, grammar, numbers and names, recurring topics, and never repeats: every
prompt opens with a serial number of its own, so that no two share their first cache block.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["closing", "opening", "sentences"]

_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class _Material:
    slots: Mapping[str, Sequence[str]]
    sentences: Sequence[str]
    openings: Sequence[str]
    closings: Sequence[str]


@cache
def _material() -> _Material:
    text = (resources.files("tuner.measuring") / "data" / "corpus.json").read_text(encoding="utf-8")
    return _Material(**json.loads(text))


def opening(rng: random.Random) -> str:
    """First sentence of a prompt; its serial number makes it unlike every other."""
    return _fill(rng.choice(_material().openings), rng)


def closing(rng: random.Random) -> str:
    """Last sentence of a prompt: what the model is asked to do."""
    return rng.choice(_material().closings)


def sentences(rng: random.Random) -> Iterator[str]:
    """Sentences without end; each a template filled anew."""
    templates = _material().sentences
    while True:
        yield _fill(rng.choice(templates), rng)


def _fill(template: str, rng: random.Random) -> str:
    def word(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "serial":
            return str(rng.randrange(10**8, 10**9))
        if name == "day":
            return str(rng.randrange(1, 29))
        if name == "number":
            return str(rng.randrange(2, 900))
        return rng.choice(_material().slots[name])

    text = _SLOT.sub(word, template)
    return text[0].upper() + text[1:]
