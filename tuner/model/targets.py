"""What a person types for objectives, limits and durations, and what it means."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches

from tuner.model.workload import Limit, Objective

__all__ = [
    "METRICS",
    "against",
    "change",
    "counted",
    "duration",
    "figure",
    "is_usual",
    "metric_unit",
    "never_negative",
    "parse_duration",
    "parse_limit",
    "parse_objective",
    "percent",
    "short_name",
]

_MANY = 10.0
"""Gains beyond this factor are told as factors."""
_PERCENTILES = ("mean", "p50", "p90", "p99")

METRICS: dict[str, tuple[str, bool, str]] = {
    "throughput": ("throughput/output", True, "tok/s"),
    "output": ("throughput/output", True, "tok/s"),
    "total": ("throughput/total", True, "tok/s"),
    "requests": ("throughput/requests", True, "req/s"),
    "goodput": ("throughput/goodput", True, "req/s"),
    "energy": ("cost/joules_per_mtok", False, "J/Mtok"),
    "cost": ("cost/price_per_mtok", False, "/Mtok"),
    "power": ("gpu/power_w", False, "W"),
    "accuracy": ("accuracy/score", True, ""),
    **{
        f"{name}_{stat}": (f"latency/{name}_{stat}", False, "ms")
        for name in ("ttft", "tpot", "itl", "e2e")
        for stat in _PERCENTILES
    },
}
"""Short name → (metric, more is better, unit)."""

_UNITS = {metric: unit for metric, _, unit in METRICS.values()}
_SHORT = {metric: name for name, (metric, _, _) in METRICS.items() if name != "output"}
_SIZES = ("throughput/", "latency/", "engine/", "cost/")
"""Groups of rates, times, counts and shares."""
_HUGE, _TINY = 1e15, 1e-6
_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z/%]*)\s*$")
_TIME_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LATENCY_UNITS = {"": 1.0, "ms": 1.0, "s": 1000.0, "us": 0.001}


def parse_objective(text: str) -> Objective:
    """An objective from its short name (``throughput``, ``ttft_p99``) or a metric's full name.

    Raises:
        ValueError: unknown name; the message lists what is near.
    """
    metric, maximize, unit = _metric(text.strip())
    return Objective(metric=metric, maximize=maximize, unit=unit)


def parse_limit(text: str) -> Limit:
    """A limit such as ``ttft_p99=500ms``, ``e2e_p99<=8s`` or ``throughput>=2000``.

    With ``=`` the natural side is meant: at most for what should be small, at least for what should be large.
    Latencies are in milliseconds unless a unit is given; shares may be given in percent.

    Raises:
        ValueError: not of that form, unknown metric, another metric's unit, or no positive number.
    """
    match = re.match(r"^\s*([A-Za-z0-9_/]+)\s*(<=|>=|=)\s*(.+)$", text)
    if match is None:
        raise ValueError(f"limit {text!r}: write NAME=VALUE, such as ttft_p99=500ms or throughput>=2000")
    name, sign, value_text = match.groups()
    metric, maximize, _ = _metric(name)
    number = _NUMBER.match(value_text)
    if number is None:
        raise ValueError(f"limit {text!r}: {value_text!r} is no positive number")
    value, unit = float(number.group(1)), number.group(2)
    value *= _scale(text, metric, unit)
    if not 0 < value < 1e15:
        raise ValueError(f"limit {text!r}: {value_text!r} is no positive number")
    at_most = not maximize if sign == "=" else sign == "<="
    return Limit(metric=metric, bound=value, at_most=at_most)


def short_name(metric: str) -> str:
    """What people type for a metric: ``ttft_p99`` for ``latency/ttft_p99``; unknown names stay as they are."""
    return _SHORT.get(metric, metric)


def metric_unit(metric: str) -> str:
    """The unit that a metric is kept in; empty for shares and for names that are not known."""
    return _UNITS.get(metric, "")


def never_negative(metric: str) -> bool:
    """Whether a figure below zero cannot have been measured: rates, times, counts, shares, power and prices."""
    return metric.startswith(_SIZES) or metric == "gpu/power_w"


def figure(value: float, unit: str = "") -> str:
    """A number with its unit, short enough for a table: four digits that count, thousands with commas.

    Small numbers keep their digits (``0.00004``), what is out of all proportion has an exponent.
    """
    size = abs(value)
    if size >= _HUGE or 0 < size < _TINY:
        text = f"{value:.4g}"
    elif size >= 999.95:
        text = f"{value:,.0f}"
    else:
        # Below 0.0001 `g` would take an exponent, which nobody reads in a column of numbers.
        text = f"{value:.4g}" if size >= 1e-4 or not size else f"{float(f'{value:.4g}'):.10f}".rstrip("0")
    return f"{text} {unit}".rstrip()


def change(before: float | None, after: float | None) -> str:
    """``+12.3%``: how far a figure went from the defaults' ``before``, in units of its size; empty where none is known.

    Up is plus also for figures below zero: from -10 to -5 is ``+50.0%``.
    """
    if not before or after is None or not math.isfinite(before) or not math.isfinite(after):
        return ""
    gain = (after - before) / abs(before)
    return percent(gain) if before > 0 else f"{gain:+.1%}"


def percent(gain: float) -> str:
    """``+60.0%``; of what multiplies a figure by more than ten, how often (``×1,058``): nobody reads +105,656 %."""
    return f"×{1 + gain:,.0f}" if gain > _MANY else f"{gain:+.1%}"


def against(value: float, default: float | None) -> str:
    """``1.23× default``; where one of them is below zero there is no such factor, and the change stands for it."""
    if not default or not math.isfinite(value / default):
        return ""
    if default < 0 or value < 0:
        return f"{change(default, value)} against the default"
    factor = value / default
    return f"{factor:.2f}× default" if 0.1 <= factor < 1000 or not factor else f"{figure(factor)}× default"


def counted(number: int, what: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def parse_duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``30m``, ``2h`` or ``1h30m``.

    Raises:
        ValueError: not of that form, or not positive.
    """
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    rebuilt = "".join(number + unit for number, unit in parts)
    if not parts or rebuilt != re.sub(r"\s+", "", text.strip().lower()):
        raise ValueError(f"duration {text!r}: write a number with s, m or h, such as 30m")
    total = 0.0
    for number, unit in parts:
        if unit not in _TIME_UNITS:
            raise ValueError(f"duration {text!r}: unit {unit!r} is unknown, use s, m or h")
        total += float(number) * _TIME_UNITS[unit]
    if not 0 < total < 1e9:
        raise ValueError(f"duration {text!r}: must be more than nothing and less than 30 years")
    return total


def duration(seconds: float) -> str:
    """A bound on time as people set it: ``90 s``, ``30 min``, ``2 h 30 min``."""
    if seconds < 100 or (seconds < 600 and seconds % 60):
        return f"{seconds:.3g} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 2:
        return f"{60 * hours + minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def is_usual(limit: Limit) -> bool:
    """Whether a limit bounds the side that is bad: latencies and costs from above, throughput from below."""
    return limit.at_most != _metric(limit.metric)[1]


def _scale(text: str, metric: str, unit: str) -> float:
    """What a number in this unit is to be multiplied with to be in the metric's own."""
    own = metric_unit(metric)
    known = _LATENCY_UNITS if own == "ms" else {"": 1.0, own: 1.0} if own else {"": 1.0, "%": 0.01}
    if unit in known:
        return known[unit]
    usual = {"ms": "ms or s", "": "a share such as 0.5, or 50%"}.get(own, f"{own}, or leave it away")
    raise ValueError(f"limit {text!r}: {short_name(metric)} has no unit {unit!r}, use {usual}")


def _metric(name: str) -> tuple[str, bool, str]:
    if name in METRICS:
        return METRICS[name]
    for entry in METRICS.values():
        if entry[0] == name:
            return entry
    near = get_close_matches(name, METRICS, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(METRICS)}"
    raise ValueError(f"metric {name!r} is unknown; {hint}")
