"""Trials measured elsewhere before, as plain settings and values: what another store can tell a new study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.model.json import Json

__all__ = ["EarlierRun", "EarlierRuns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """One measured run.

    Attributes:
        settings: flag, dotted path, ``env:NAME`` or parameter name → its value as text.
        value: the objective's value.
        metrics: all that was measured.
        baseline: nothing was set but what its whole study sets.
        group: runs of one group can be compared with one another (one study, one machine).
    """

    settings: Mapping[str, str]
    value: float
    baseline: bool
    group: str
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRuns:
    """Runs of one source, and what is known of each group (``hardware``, ``model``, ``vllm``, ``workload``)."""

    source: str
    runs: Sequence[EarlierRun] = ()
    facts: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
