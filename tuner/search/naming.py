"""What an error message would call a setting, a label, or what several labels have in common."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from tuner.model.json import Scalar
from tuner.search.distributions import Encoding

__all__ = [
    "HUNGRY",
    "SOMEWHAT_HUNGRY",
    "Sisters",
    "Words",
    "names_of",
    "plain",
    "range_words",
    "sisters_among",
    "words_of",
]

Words: TypeAlias = tuple[re.Pattern[str], ...]

_STUFFING = re.compile(r"^(?:enable|disable|use|max|num|vllm)_|_(?:size|type|mode|method|name)$")
"""What names of settings begin and end with, and messages leave away."""
HUNGRY = ("memory_utilization", "kv_cache_memory", "batched_tokens", "max_model_len")
SOMEWHAT_HUNGRY = ("max_num_seqs", "capture", "spec_tokens", "speculative_tokens")
"""Parameters of which more takes more memory: the far end is likelier to be dead, and to blame for running out."""
_MISSING = re.compile(
    r"no_module|not_(?:be_)?(?:installed|found|available|supported|compiled|built)|unavailable|unsupported|import|missing"
    r"|requires?(?![a-z])|needs?(?![a-z])|only_(?:supported|available)"
)
"""How a message says that something is not to be had here."""
_SHORTEST = 3
"""Letters of a word that may be a name."""


def plain(text: str) -> str:
    """As names are compared: lower case, words joined by underscores."""
    return text.lower().replace("-", "_").replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Sisters:
    """One label and those of its parameter that share a word with it, as positions among the suspects."""

    word: re.Pattern[str]
    labels: re.Pattern[str]
    label: int
    others: tuple[int, ...]

    def accused(self, text: str) -> bool:
        """Whether a message says that the word is not to be had, and not only a label that it is part of."""
        return _MISSING.search(text) is not None and self.word.search(self.labels.sub(" ", text)) is not None


def sisters_among(item: Encoding, first: int) -> list[Sisters]:
    """The labels of a parameter that share a word which not all of them have; ``first``: where its suspects begin."""
    labels = [plain(str(value)) for value in item.values]
    members: dict[str, set[int]] = {}
    for position, label in enumerate(labels):
        for word in re.split(r"[^a-z0-9]+", label):
            if len(word) >= _SHORTEST and not word.isdigit():
                members.setdefault(word, set()).add(position)
    every = re.compile("|".join(_word(label).pattern for label in sorted(labels, key=len, reverse=True)))
    return [
        Sisters(_word(word), every, first + one, tuple(first + other for other in sorted(alike - {one})))
        for word, alike in members.items()
        if 1 < len(alike) < len(labels)
        for one in sorted(alike)
    ]


def words_of(name: str, value: Scalar) -> Words:
    """A label; with its parameter's name where it is too short to mean anything by itself."""
    text = plain(str(value))
    # Short labels ("8", "on") occur in any message; a name and its value together do not.
    if len(text) >= 3 and not text.isdigit() and text not in ("auto", "none", "true", "false", "off"):
        return (_word(text),)
    return (_word(plain(name)), re.compile(rf"{re.escape(plain(name))}[\W_]{{1,4}}{re.escape(text)}\b"))


def names_of(item: Encoding) -> Words:
    """The parameter's own name and the flag or variable behind it, as prose inflects them.

    ``pipeline_parallel_size`` is "pipeline parallelism" in an error message. Short names stand in any message.
    """
    last = re.split(r"[.:]", item.parameter.target)[-1]
    stems = dict.fromkeys(_STUFFING.sub("", plain(name)).strip("_") for name in (item.name, last))
    return tuple(re.compile(rf"(?<![a-z0-9]){re.escape(stem)}") for stem in stems if len(stem) >= 5)


def range_words(name: str) -> Words:
    """The name itself; where more takes more memory, what running out of it is called too."""
    spelled = plain(name)
    memory = (re.compile(r"out_?of_?memory|(?<![a-z0-9])oom(?![a-z0-9])|no_available_memory|kv_too_small|kv_cache"),)
    return (_word(spelled), *(memory if any(mark in spelled for mark in (*HUNGRY, *SOMEWHAT_HUNGRY)) else ()))


def _word(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z0-9]){re.escape(text)}(?![a-z0-9])")
