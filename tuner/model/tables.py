"""The answers per load point and the Pareto front as cells of text: the same table for a terminal and for Markdown.

Both take what :mod:`tuner.model.summary` made, so that a table can be drawn from a file as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.model.json import canonical, finite
from tuner.model.targets import figure, short_name

__all__ = ["TextTable", "choices", "front_lines", "front_table", "loads_lines", "loads_table", "markdown"]

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """``right``: columns of numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()


def loads_table(loads: Sequence[Entry], unit: str) -> TextTable:
    """One row per load point: the defaults, the best found there with its gain, and the single best there."""
    single = next((entry["single"]["trial"] for entry in loads if entry["single"]), None)
    last = "single best there" if single is None else f"single best (trial {single}) there"
    rows = []
    for entry in loads:
        best, alone = entry["best"], entry["single"]
        gain = _gain(entry["single_judgement"])
        rows.append(
            (
                str(entry["load"]),
                _value(entry["baseline"]) or "misses a limit",
                _value(best) or "nothing better",
                "" if best is None else f"trial {best['trial']}",
                _gain(entry["judgement"], interval=True),
                _verdict(entry),
                ("" if single is None else "misses a limit")
                if alone is None
                else f"{_value(alone)}{gain and f' ({gain})'}",
            )
        )
    columns = (
        "load",
        f"vLLM's defaults ({unit})",
        f"best ({unit})",
        "found by",
        "gain (99 % interval)",
        "verdict",
        last,
    )
    return TextTable(title="Best at each load", columns=columns, rows=tuple(rows), right=frozenset({1, 2, 6}))


def loads_lines(loads: Sequence[Entry]) -> list[str]:
    """What each load point's best asks for, one line each."""
    return [
        f"{entry['load']}: trial {entry['best']['trial']}: {choices(entry['best']['assignment'])}"
        for entry in loads
        if entry["best"] is not None
    ]


def front_table(front: Entry) -> TextTable:
    """One row per configuration on the front, the best of the first objective first."""
    names = [short_name(objective["metric"]) for objective in front["objectives"]]
    units = [objective["unit"] for objective in front["objectives"]]
    columns = ["trial"]
    for name, unit in zip(names, units, strict=True):
        columns += [f"{name} ({unit})" if unit else name, "against defaults"]
    rows = []
    for point in front["points"]:
        cells = [str(point["trial"])]
        judgements = point["judgements"] or [None] * len(names)
        for value, judgement in zip(point["values"], judgements, strict=True):
            shown = "" if point["baseline"] else _gain(judgement)
            note = (
                "" if judgement is None or judgement["verdict"] != "no significant difference" else " (not significant)"
            )
            cells += [_value(value), f"{shown}{note}" if shown else ""]
        roles = ["vLLM's defaults"] if point["baseline"] else []
        roles += [
            role if role == "knee" else f"best {short_name(role.removeprefix('best '))}" for role in point["roles"]
        ]
        if not point["baseline"] and not point["confirmed"]:
            roles.append("not confirmed")
        rows.append((*cells, ", ".join(roles), choices(point["assignment"])))
    right = frozenset(range(1, 1 + 2 * len(names)))
    return TextTable(
        title=f"Pareto front of {', '.join(names)}",
        columns=(*columns, "which is", "asks for"),
        rows=tuple(rows),
        right=right,
    )


def front_lines(front: Entry) -> list[str]:
    """Where vLLM's defaults stand against the front, in one sentence."""
    baseline = front["baseline"]
    if baseline is None:
        return ["vLLM's defaults have no place: they were not measured to the end, or miss a limit."]
    if baseline["on_front"]:
        return ["vLLM's defaults are on the front: nothing measured better in one objective costs nothing in another."]
    beaten = baseline["beaten_by"]
    if not beaten:
        return [
            "vLLM's defaults are not on the front: something is better in one objective and no worse in the others."
        ]
    trials = f"trial{'s' * (len(beaten) > 1)} {', '.join(str(number) for number in beaten)}"
    return [f"vLLM's defaults are behind the front: better in every objective measured {trials}."]


def markdown(table: TextTable) -> str:
    """The table in Markdown, under its title."""
    rule = ["---:" if index in table.right else "---" for index in range(len(table.columns))]
    lines = [list(table.columns), rule, *(list(row) for row in table.rows)]
    body = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return f"### {table.title}\n\n{body}"


def choices(assignment: Mapping[str, Any]) -> str:
    """What the sampler chose, on one line."""
    parts = [f"{name}={value if isinstance(value, str) else canonical(value)}" for name, value in assignment.items()]
    return " ".join(parts) or "vLLM's defaults"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _value(measured: Entry | None) -> str:
    """A figure with half the width of its interval where that is known."""
    if measured is None or measured["value"] is None:
        return ""
    value, low, high = measured["value"], measured["low"], measured["high"]
    spread = f" ±{(high - low) / 2 / abs(value):.1%}" if value and finite(low) and finite(high) else ""
    return f"{figure(value)}{spread}"


def _gain(judgement: Entry | None, *, interval: bool = False) -> str:
    if judgement is None or judgement["gain"] is None:
        return ""
    low, high = judgement["low"], judgement["high"]
    ends = f" ({low:+.1%} to {high:+.1%})" if interval and finite(low) and finite(high) else ""
    return f"{judgement['gain']:+.1%}{ends}"


def _verdict(entry: Entry) -> str:
    judgement = entry["judgement"]
    if entry["best"] is None:
        return "vLLM's defaults" if entry["baseline"] else ""
    words = ["not compared" if judgement is None else judgement["verdict"]]
    if judgement is not None and judgement["basis"] != "starts":
        words.append(
            f"best looking of {entry['picked_of']}, not confirmed" if entry["picked_of"] > 1 else "not confirmed"
        )
    if entry["accuracy_unchecked"]:
        words.append("accuracy not checked")
    return "; ".join(words)
