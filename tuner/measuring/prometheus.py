"""The text of ``/metrics``, read safely.

Only what is needed of the exposition format: names, labels, values. Lines that do not parse are counted and named,
never fatal; the size is limited, because the text comes from a process that may be broken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["Snapshot", "delta", "delta_by_label", "parse", "quantile"]

MAX_BYTES = 8 << 20
MAX_LINE = 16_384
_KEPT_ODD = 5
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"[ \t]*(?:,|$)')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One reading of ``/metrics``.

    Attributes:
        values: (name, sorted labels) → value.
        time: monotonic seconds at which it was read (0.0 where the caller did not say).
        odd: the first lines that could not be read, shortened.
    """

    values: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    time: float = 0.0
    odd: tuple[str, ...] = ()

    def _series(self, name: str) -> Mapping[Labels, float]:
        # The client library appends _total to counters; accept both spellings.
        return self.values.get(f"{name}_total") or self.values.get(name) or {}

    def total(self, name: str, **labels: str) -> float | None:
        """Sum over all series of that name (every engine) with these labels; None if there is none."""
        wanted = set(labels.items())
        found = [value for have, value in self._series(name).items() if wanted <= set(have)]
        return math.fsum(found) if found else None

    def peak(self, name: str) -> float | None:
        """Largest series of that name; None if there is none."""
        return max(self._series(name).values(), default=None)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums by one label's value."""
        out: dict[str, float] = {}
        for have, value in self._series(name).items():
            key = dict(have).get(label)
            if key is not None:
                out[key] = out.get(key, 0.0) + value
        return out

    def buckets(self, name: str) -> list[tuple[float, float]]:
        """Cumulative histogram (upper edge, count), summed over series, by rising edge."""
        out: dict[float, float] = {}
        for have, value in self.values.get(f"{name}_bucket", {}).items():
            edge = _number(dict(have).get("le", ""))
            if edge is not None and not math.isnan(edge):
                out[edge] = out.get(edge, 0.0) + value
        return sorted(out.items())


def parse(text: str, *, time: float = 0.0) -> Snapshot:
    """Read the exposition format; what is beyond the size limit is left out and named in ``odd``."""
    values: dict[str, dict[Labels, float]] = {}
    odd: list[str] = []
    if len(text) > MAX_BYTES:
        odd.append(f"text of {len(text)} characters cut at {MAX_BYTES}")
        text = text[:MAX_BYTES].rpartition("\n")[0]
    for line in _lines(text):
        entry = _entry(line)
        if entry is None:
            if len(odd) < _KEPT_ODD:
                odd.append(line[:120])
            continue
        name, labels, value = entry
        values.setdefault(name, {})[labels] = value
    return Snapshot(values=values, time=time, odd=tuple(odd))


def _lines(text: str) -> Iterator[str]:
    for raw in text.split("\n"):
        line = raw.strip()
        if line and not line.startswith("#"):
            yield line


def _entry(line: str) -> tuple[str, Labels, float] | None:
    match = _LINE.fullmatch(line) if len(line) <= MAX_LINE else None
    if match is None:
        return None
    name, inside, number = match.groups()
    value = _number(number)
    labels = _labels(inside or "")
    return None if value is None or labels is None or math.isnan(value) else (name, labels, value)


def _labels(inside: str) -> Labels | None:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(inside):
        match = _LABEL.match(inside, position)
        if match is None:
            return None
        text = re.sub(r'\\[n"\\]', lambda part: _ESCAPES[part.group()], match.group(2))
        found.append((match.group(1), text))
        position = match.end()
    return tuple(sorted(found))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def delta(before: Snapshot, after: Snapshot, name: str, **labels: str) -> float | None:
    """How far a counter went up; None if it is missing afterwards or went down (the server was restarted)."""
    end = after.total(name, **labels)
    if end is None:
        return None
    rise = end - (before.total(name, **labels) or 0.0)
    return rise if rise >= 0 else None


def delta_by_label(before: Snapshot, after: Snapshot, name: str, label: str) -> dict[str, float]:
    """:func:`delta` for each value of one label."""
    start = before.by_label(name, label)
    return {key: max(0.0, value - start.get(key, 0.0)) for key, value in after.by_label(name, label).items()}


def quantile(before: Snapshot, after: Snapshot, name: str, q: float) -> float | None:
    """Quantile of what a histogram took in between two readings, by linear interpolation within its bucket.

    None if nothing came in. What lies beyond the last finite edge is reported as that edge (a lower bound).
    """
    start = dict(before.buckets(name))
    rise = [(edge, max(0.0, count - start.get(edge, 0.0))) for edge, count in after.buckets(name)]
    if not rise or rise[-1][1] <= 0:
        return None
    rank = q * rise[-1][1]
    low, below = 0.0, 0.0
    for edge, count in rise:
        if count >= rank and count > below:
            return low if math.isinf(edge) else low + (edge - low) * (rank - below) / (count - below)
        if not math.isinf(edge):
            low = edge
        below = count
    return low
