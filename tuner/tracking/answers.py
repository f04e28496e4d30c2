"""What the parent run shows of a study with several load points or objectives. Plain data, no mlflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tuner.model.json import finite
from tuner.model.tables import TextTable, front_lines, front_table, loads_lines, loads_table, markdown
from tuner.model.targets import short_name
from tuner.model.words import VLLM_DEFAULTS
from tuner.tracking.payload import legal

__all__ = ["answer_metrics", "answer_tables", "answer_tags", "answer_text"]

Summary = Mapping[str, Any]


def answer_metrics(summary: Summary) -> dict[str, float]:
    """``load c8/{best,baseline,gain,gain_low,gain_high,single_gain}`` per load point, and the size of the front."""
    found: dict[str, Any] = {}
    for entry in summary.get("loads") or ():
        group = f"load {entry['load']}"
        for name in ("best", "baseline"):
            if entry[name] is not None:
                found[f"{group}/{name}"] = entry[name]["value"]
        judgement, single = entry["judgement"] or {}, entry["single_judgement"] or {}
        found[f"{group}/gain"] = judgement.get("gain")
        found[f"{group}/gain_low"], found[f"{group}/gain_high"] = judgement.get("low"), judgement.get("high")
        found[f"{group}/single_gain"] = single.get("gain")
    front = summary.get("front")
    if front:
        found["front/configurations"] = len(front["points"])
        for place, objective in enumerate(front["objectives"]):
            values = [point["values"][place]["value"] for point in front["points"]]
            if values and all(finite(value) for value in values):
                pick = max if objective["maximize"] else min
                found[f"front/best_{short_name(objective['metric'])}"] = pick(values)
    return {name: float(value) for name, value in found.items() if finite(value)}


def answer_tags(summary: Summary, defaults: str = VLLM_DEFAULTS) -> dict[str, str]:
    """Which trial is best at which load, and which trials are on the front."""
    tags = {
        legal(f"best.{entry['load']}"): f"trial {entry['best']['trial']}" if entry["best"] else defaults
        for entry in summary.get("loads") or ()
    }
    front = summary.get("front")
    if front:
        tags["front"] = ", ".join(f"trial {point['trial']}" for point in front["points"])
    return tags


def answer_text(summary: Summary, defaults: str = VLLM_DEFAULTS) -> str:
    """The sections of the description, in Markdown; empty for a study of one load and one objective."""
    parts = []
    for table, lines in _sections(summary, defaults):
        parts += [markdown(table), "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(part for part in parts if part)


def answer_tables(summary: Summary, defaults: str = VLLM_DEFAULTS) -> dict[str, str]:
    """Artifacts ``loads.json`` and ``front.json``, in the split layout that MLflow's table view reads."""
    names = [name for name in ("loads", "front") if summary.get(name)]
    tables = [table for table, _ in _sections(summary, defaults)]
    return {
        f"{name}.json": json.dumps({"columns": _different(table.columns), "data": [list(row) for row in table.rows]})
        for name, table in zip(names, tables, strict=True)
    }


def _sections(summary: Summary, name: str = VLLM_DEFAULTS) -> list[tuple[TextTable, list[str]]]:
    sections = []
    if summary.get("loads"):
        loads = summary["loads"]
        sections.append((loads_table(loads, str(summary.get("unit", ""))), loads_lines(loads, name=name)))
    if summary.get("front"):
        sections.append((front_table(summary["front"], name), front_lines(summary["front"], name=name)))
    return sections


def _different(columns: tuple[str, ...]) -> list[str]:
    """A data frame wants every column's name once: the gain of the second objective is ``gain 2``."""
    seen: dict[str, int] = {}
    out = []
    for column in columns:
        seen[column] = seen.get(column, 0) + 1
        out.append(column if seen[column] == 1 else f"{column} {seen[column]}")
    return out
