"""The answers per load point and the Pareto front as cells of text: the same table for a terminal and for Markdown.

Both take what :mod:`tuner.model.summary` made, so that a table can be drawn from a file as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.model.choices import differing, shown
from tuner.model.json import finite
from tuner.model.targets import figure, percent, short_name
from tuner.model.words import DEFAULTS, VLLM_DEFAULTS

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
    """One row per load point: the defaults, the best found there with its gain, and the gain of the single best."""
    single = next((entry["single"]["trial"] for entry in loads if entry["single"]), None)
    rows = []
    for entry in loads:
        best, gain = entry["best"], entry["judgement"]
        rows.append(
            (
                str(entry["load"]),
                _value(entry["baseline"]) or "misses a limit",
                _value(best) or "nothing better",
                "" if best is None else f"#{best['trial']}",
                _gain(gain),
                _ends(gain),
                "" if gain is None else _verdict(gain),
                *(() if single is None else (_gain(entry["single_judgement"]) or "misses a limit",)),
            )
        )
    columns = ["load", f"defaults ({unit})", f"best ({unit})", "trial", "gain", "99 % interval", "verdict"]
    columns += [] if single is None else [f"#{single} there"]
    right = frozenset({1, 2, 3, 4, 7})
    return TextTable(title="Best at each load", columns=tuple(columns), rows=tuple(rows), right=right)


def loads_lines(
    loads: Sequence[Entry], defaults: Mapping[str, Any] | None = None, name: str = VLLM_DEFAULTS
) -> list[str]:
    """The single best one, then each configuration that is best somewhere: where, how sure, and what it asks for."""
    single = next((entry["single"]["trial"] for entry in loads if entry["single"]), None)
    lines = [] if single is None else [f"Best single one over all loads (by the study's objective): trial {single}."]
    fresh = "start" if name == VLLM_DEFAULTS else "trial"
    groups: dict[int, list[Entry]] = {}
    for entry in loads:
        if entry["best"] is not None:
            groups.setdefault(entry["best"]["trial"], []).append(entry)
    for trial, entries in groups.items():
        doubts = []
        if any(entry["judgement"] is None or entry["judgement"]["basis"] != "starts" for entry in entries):
            most, confirmed = max(entry["picked_of"] for entry in entries), entries[0]["best"]["confirmed"]
            looks = f"the best looking of {most}, not confirmed" if most > 1 else "not confirmed"
            doubts += [looks] if not confirmed else [f"confirmed on one fresh {fresh} only"] if confirmed == 1 else []
        if any(entry["judgement"] is not None and entry["judgement"].get("estimated") for entry in entries):
            doubts.append("by the replay's estimate")
        if any(entry["accuracy_unchecked"] for entry in entries):
            doubts.append("accuracy not checked")
        where = ", ".join(str(entry["load"]) for entry in entries)
        note = f" ({'; '.join(doubts)})" if doubts else ""
        lines.append(f"{where}: trial {trial}{note}: {choices(entries[0]['best']['assignment'], defaults, name)}")
    if any("±" in _value(entry[side]) for entry in loads for side in ("baseline", "best")):
        lines.append("±: half of a value's 95 % interval.")
    return lines


def front_table(front: Entry, name: str = VLLM_DEFAULTS) -> TextTable:
    """One row per configuration on the front, the best of the first objective first."""
    metrics = [short_name(objective["metric"]) for objective in front["objectives"]]
    units = [objective["unit"] for objective in front["objectives"]]
    columns = ["trial"]
    for metric, unit in zip(metrics, units, strict=True):
        columns += [f"{metric} ({unit})" if unit else metric, "gain"]
    rows = []
    for point in front["points"]:
        cells = [f"#{point['trial']}"]
        judgements = point["judgements"] or [None] * len(metrics)
        for value, judgement in zip(point["values"], judgements, strict=True):
            sure = judgement is None or judgement["verdict"] != "no significant difference"
            cells += [_value(value), _gain(judgement) if sure else f"({_gain(judgement)})"]
        roles = [name] if point["baseline"] else []
        roles += [
            role if role == "knee" else f"best {short_name(role.removeprefix('best '))}" for role in point["roles"]
        ]
        if not point["baseline"] and not point["confirmed"]:
            roles.append("not confirmed")
        rows.append((*cells, ", ".join(roles)))
    right = frozenset(range(1, 1 + 2 * len(metrics)))
    return TextTable(
        title=f"Pareto front of {', '.join(metrics)}",
        columns=(*columns, "which is"),
        rows=tuple(rows),
        right=right,
    )


def front_lines(front: Entry, defaults: Mapping[str, Any] | None = None, name: str = VLLM_DEFAULTS) -> list[str]:
    """Where vLLM's defaults stand against the front, and what its configurations ask for."""
    lines = [_place(front["baseline"], name)]
    if any(j and j["verdict"] == "no significant difference" for p in front["points"] for j in p["judgements"]):
        lines.append(f"Gains are against {name}; in brackets: no significant difference.")
    shown = [point for point in front["points"] if not point["baseline"]]
    return lines + [f"trial {point['trial']}: {choices(point['assignment'], defaults, name)}" for point in shown]


def _place(baseline: Entry | None, name: str) -> str:
    whose = name[0].upper() + name[1:] if name == DEFAULTS else name
    if baseline is None:
        return f"{whose} have no place: they were not measured to the end, or miss a limit."
    if baseline["on_front"]:
        return f"{whose} are on the front: nothing measured is better in one objective and no worse in the others."
    beaten = baseline["beaten_by"]
    if not beaten:
        return f"{whose} are not on the front: something is better in one objective and no worse in the others."
    trials = f"trial{'s' * (len(beaten) > 1)} {', '.join(str(number) for number in beaten)}"
    return f"{whose} are behind the front: better in every objective measured {trials}."


def markdown(table: TextTable) -> str:
    """The table in Markdown, under its title."""
    rule = ["---:" if index in table.right else "---" for index in range(len(table.columns))]
    lines = [list(table.columns), rule, *(list(row) for row in table.rows)]
    body = "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)
    return f"### {table.title}\n\n{body}"


def choices(assignment: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, name: str = VLLM_DEFAULTS) -> str:
    """What the sampler chose beside the ``defaults`` that are known, on one line."""
    chosen = differing(assignment, defaults or {})
    return " ".join(f"{key}={shown(value)}" for key, value in chosen.items()) or name


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _value(measured: Entry | None) -> str:
    """A figure with half the width of its interval where that is known."""
    if measured is None or measured["value"] is None:
        return ""
    value, low, high = measured["value"], measured["low"], measured["high"]
    spread = f" ±{(high - low) / 2 / abs(value):.1%}" if value and finite(low) and finite(high) else ""
    return f"{figure(value)}{spread}"


def _gain(judgement: Entry | None) -> str:
    return "" if judgement is None or judgement["gain"] is None else percent(judgement["gain"])


def _ends(judgement: Entry | None) -> str:
    if judgement is None or not finite(judgement["low"]) or not finite(judgement["high"]):
        return ""
    low, last = judgement["low"], percent(judgement["high"])
    # One unit for both ends where they have one.
    return f"{low * 100:+.1f} to {last}" if last.endswith("%") else f"{percent(low)} to {last}"


def _verdict(judgement: Entry) -> str:
    verdict = str(judgement["verdict"])
    return "not significant" if verdict == "no significant difference" else verdict
