"""How people are told things: sentences one after the other, and what a study is compared with by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.model.json import Json

__all__ = ["DEFAULTS", "VLLM_DEFAULTS", "defaults_name", "defaults_of", "kind_of", "plain", "sentences", "shortened"]

VLLM_DEFAULTS = "vLLM's defaults"
DEFAULTS = "the defaults"
"""The baseline of a study that a trial command or a table answers: what was measured need not be vLLM."""

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]?"
)
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters but for tabs and ends of lines, and what turns the direction of writing."""
_HALF = re.compile(r"[\ud800-\udfff]")
"""Half a character, which no file and no terminal takes."""
_ENDS = (".", "!", "?", "…")


def sentences(*texts: str) -> str:
    """Texts one after the other, each as a sentence with its full stop; empty ones are left out.

    Causes come from logs and advice from rules: some end with a full stop, some do not, and what follows begins with a
    capital unless it begins with a name (``gpu_memory_utilization``, ``--trial-timeout``).
    """
    said: list[str] = []
    for text in filter(None, (text.strip() for text in texts)):
        first = text.partition(" ")[0].rstrip(",;:")
        whole = text[0].upper() + text[1:] if said and first.isalpha() and first.islower() else text
        said.append(whole if whole.endswith(_ENDS) else f"{whole}.")
    return " ".join(said)


def plain(text: str) -> str:
    """Text of a program as text: nothing in it moves a terminal's cursor, colours its words or ends its line early.

    Lines and tabs stay; a progress bar's carriage returns are ends of lines.
    """
    if text.isprintable():
        return text
    text = _ESCAPE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")
    return _HALF.sub("\ufffd", _UNSEEN.sub("", text))


def shortened(text: str, most: int) -> str:
    """One line of at most ``most`` characters."""
    text = " ".join(plain(text).split())
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def defaults_name(kind: object) -> str:
    """What the baseline of a study of this kind (``vllm``, ``external``, ``replay``) is called."""
    return VLLM_DEFAULTS if kind == "vllm" else DEFAULTS


def defaults_of(about: Mapping[str, Json]) -> str:
    """The same by the study's description."""
    return defaults_name(kind_of(about))


def kind_of(about: Mapping[str, Json]) -> str:
    """What measured, by the study's description: ``vllm``, ``external`` (a trial command) or ``replay``."""
    facts = about.get("facts")
    return str((facts.get("kind") if isinstance(facts, Mapping) else None) or "vllm")
