"""The figures of the defaults beside those of the winner: the same rows for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.model.judge import limits_of
from tuner.model.targets import change, metric_unit, short_name
from tuner.model.workload import Limit
from tuner.report.text import figure

__all__ = ["FIGURES", "figure_rows"]

FIGURES = (
    ("throughput/output", "output throughput", "tok/s"),
    ("throughput/requests", "requests", "req/s"),
    ("throughput/goodput", "goodput", "req/s"),
    ("latency/ttft_p50", "TTFT p50", "ms"),
    ("latency/ttft_p99", "TTFT p99", "ms"),
    ("latency/tpot_p50", "TPOT p50", "ms"),
    ("latency/e2e_p99", "E2E p99", "ms"),
    ("accuracy/score", "accuracy", ""),
    ("gpu/power_w", "power", "W"),
    ("cost/joules_per_mtok", "energy", "J/Mtok"),
    ("cost/price_per_mtok", "price", "/Mtok"),
)

_Side = Mapping[str, Any] | None


def figure_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Label, the defaults' figure, the winner's and the change: the objective, what is usual, and all that is limited.

    ``document``: :func:`tuner.report.document.study_document`. A limit stands in the label; who misses it says so.
    """
    baseline, winner, objective = document["baseline"], document["winner"], document["objective"]
    before, after = _figures(baseline), _figures(winner)
    before, after = _with_value(before, baseline, objective), _with_value(after, winner, objective)
    limits: dict[str, list[Limit]] = {}
    for limit in limits_of(document):
        limits.setdefault(limit.metric, []).append(limit)
    shown = [(objective["metric"], objective["metric"], objective["unit"])]
    shown += [entry for entry in FIGURES if entry[0] in (before | after) or entry[0] in limits]
    shown += [(metric, short_name(metric), metric_unit(metric)) for metric in limits]
    rows: dict[str, tuple[str, str, str, str]] = {}
    for metric, label, unit in shown:
        bounds = limits.get(metric, ())
        sides = (
            _cell(side, values.get(metric), unit, bounds) for side, values in ((baseline, before), (winner, after))
        )
        row = (_label(label, unit, bounds), *sides, change(before.get(metric), after.get(metric)))
        rows.setdefault(metric, row)  # type: ignore[arg-type]
    return list(rows.values())


def _figures(side: _Side) -> dict[str, float]:
    return {} if side is None else {**side["metrics"], **side["accuracy"]}


def _with_value(figures: dict[str, float], side: _Side, objective: Mapping[str, Any]) -> dict[str, float]:
    return figures if side is None else {**figures, objective["metric"]: side["value"]}


def _label(label: str, unit: str, bounds: Sequence[Limit]) -> str:
    sides = [f"at {'most' if limit.at_most else 'least'} {figure(limit.bound, unit)}" for limit in bounds]
    return f"{label} ({', '.join(sides)})" if sides else label


def _cell(side: _Side, value: float | None, unit: str, bounds: Sequence[Limit]) -> str:
    """A figure; of one that is limited also whether it is missed, or was not reported."""
    if side is None:
        return ""
    if value is None:
        return "not reported" if bounds else ""
    missed = not side["feasible"] and any(limit.excess(value) > 0 for limit in bounds)
    return f"{figure(value, unit)}, misses" if missed else figure(value, unit)
