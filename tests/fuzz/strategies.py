"""Inputs that are wrong in the ways that real ones are: valid ones with damage, JSON of any shape, plain noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

__all__ = ["damaged", "documents", "json_values", "jsonl"]

_NASTY = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "null", "true", '""', "[]", "{}", "\x00", "\ud800", "\ufffd",
    "9" * 400, "[" * 3000, "{" * 3000, "(" * 3000, "-" * 3000, "a" * 5000, "é\u202e", "../../etc/passwd", "${HOME}",
    "!!python/object/apply:os.system", "&a *a", "__import__", "\r\n", "\t", "'", '"', "\\", "%s", "{0}", ": ", "- ",
)  # fmt: skip
_FLOATS = st.floats(allow_nan=True, allow_infinity=True)
_SCALARS = st.none() | st.booleans() | st.integers() | _FLOATS | st.text(max_size=20) | st.sampled_from(_NASTY)


def json_values(keys: Sequence[str]) -> st.SearchStrategy[Any]:
    """Any JSON (NaN too, as Python writes it) whose keys are mostly those that the reader looks for."""
    names = st.sampled_from([*keys]) | st.text(max_size=8)
    return st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=8),
        max_leaves=25,
    )


def _apply(text: str, edits: list[tuple[str, float, float, str]]) -> str:
    for kind, at, length, piece in edits:
        position = int(at * len(text))
        end = min(len(text), position + int(length * 40))
        if kind == "cut":
            text = text[:position] + text[end:]
        elif kind == "insert":
            text = text[:position] + piece + text[position:]
        elif kind == "replace":
            text = text[:position] + piece + text[end:]
        elif kind == "repeat":
            text = text[:position] + text[position:end] * 30 + text[end:]
        else:
            text = text[:position]
    return text


def damaged(samples: Sequence[str]) -> st.SearchStrategy[str]:
    """A valid input with up to six edits, or noise."""
    shares = st.floats(0, 1, exclude_max=True)
    pieces = st.sampled_from(_NASTY) | st.text(max_size=12)
    edit = st.tuples(st.sampled_from(["cut", "insert", "replace", "repeat", "truncate"]), shares, shares, pieces)
    edited = st.builds(_apply, st.sampled_from([*samples]), st.lists(edit, min_size=1, max_size=6))
    return (
        edited
        | st.sampled_from(_NASTY)
        | st.text(max_size=200)
        | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1"))
    )


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def documents(samples: Sequence[Any], keys: Sequence[str]) -> st.SearchStrategy[str]:
    """Text of a JSON document: one of ours with a key replaced, any shape, or damaged text."""
    whole = json_values(keys)

    def replaced(pick: tuple[Any, str, Any]) -> str:
        sample, key, value = pick
        return _dump({**sample, key: value} if isinstance(sample, dict) else [*sample, value])

    changed = st.tuples(st.sampled_from([*samples]), st.sampled_from([*keys]), whole).map(replaced)
    return changed | whole.map(_dump) | damaged([_dump(sample) for sample in samples])


def jsonl(samples: Sequence[Any], keys: Sequence[str]) -> st.SearchStrategy[str]:
    """Lines of such documents."""
    return st.lists(documents(samples, keys), max_size=4).map("\n".join)
