"""The JSON values that flags, choices and records may hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

__all__ = ["LARGEST", "Json", "JsonObject", "Scalar", "canonical", "finite", "reckonable"]

Scalar: TypeAlias = bool | int | float | str | None
Json: TypeAlias = Scalar | Sequence["Json"] | Mapping[str, "Json"]
JsonObject: TypeAlias = Mapping[str, Json]

LARGEST = 1e100
"""Bound on numbers that come from outside: sums and squares of many such numbers stay finite. A lower one would make
all that is above it alike to a sampler."""


def canonical(value: Json) -> str:
    """One spelling per value: sorted keys, no spaces, no NaN. Used for hashes and comparisons.

    Raises:
        ValueError: the value holds NaN or an infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | frozenset | set):
        return sorted(value) if isinstance(value, frozenset | set) else list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def finite(value: object) -> bool:
    """True for a real, finite number (booleans are not numbers here)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False  # an integer beyond every float


def reckonable(value: object) -> bool:
    """True for a finite number of a size that can be summed and squared (:data:`LARGEST`)."""
    return finite(value) and abs(value) <= LARGEST  # type: ignore[arg-type]
