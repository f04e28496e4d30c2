"""Recorded trials read from a JSONL table, and what they say about a configuration that is not in it.

Two layouts are read, also mixed in one file:

* the measured tables of this project: ``config`` (names with underscores), ``output_tok_s`` per run, ``latency`` in
  seconds, ``start_s``, ``error``; ``mode`` and ``prompts`` say how it was measured;
* the extended one: ``arguments`` (flags, dotted paths), ``metrics`` under grouped names, ``samples`` per metric,
  ``failure`` (``kind``, ``cause``, ``blame``, ``violation``, …), ``seconds``. A record of a trial (``candidate`` and
  ``status`` at the top) is read as well.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from tuner.errors import InputError
from tuner.model.json import canonical, finite, reckonable
from tuner.model.outcome import Blame, Failure
from tuner.model.targets import counted
from tuner.model.words import shortened
from tuner.serving.dead import Dead, dead_settings

__all__ = ["Best", "Point", "Row", "Table", "at_points", "flatten", "read_table"]

Features: TypeAlias = Mapping[str, str | float]

_LARGEST_FILE = 256 << 20
_NEIGHBOURS = 4
_LEAST = 1e-6
_NAMED = 3
"""Settings in which a row differs that are named."""
_UNKNOWN_NOISE = 0.01
_ABSENT = "<absent>"
_POINT = "point "
_WEIGHT = "point/weight"
_MOST_POINTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One recorded trial. ``metrics`` are empty where it failed.

    Figures of one load point of several stand among the metrics under the point's name (:func:`at_points`).

    ``hardware`` is the profile that it was measured on and ``device`` ``cpu`` or ``gpu``, both empty where the row
    does not tell; ``line`` is where it stands in its file.
    """

    features: Features
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failure: Failure | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    context: str = ""
    hardware: str = ""
    device: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A recorded configuration: its value over the rows that ran, and where in the file these stand."""

    value: float
    features: Features
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What the table says of one configuration. ``basis`` is for people."""

    metrics: Mapping[str, float]
    failure: Failure | None
    seconds: Mapping[str, float]
    exact: bool
    basis: str


def flatten(arguments: Mapping[str, Any]) -> dict[str, str | float]:
    """Arguments as plain features: dotted paths, dashes in flag names, numbers as floats, the rest as text."""
    flat: dict[str, str | float] = {}
    for name, value in arguments.items():
        head, dot, rest = name.lstrip("-").partition(".")
        _put(flat, head.replace("_", "-") + dot + rest, value)
    return flat


def _put(flat: dict[str, str | float], name: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _put(flat, f"{name}.{key}", item)
    elif isinstance(value, bool) or value is None:
        flat[name] = str(value).lower()
    elif finite(value):
        flat[name] = float(value)
    else:
        flat[name] = value if isinstance(value, str) else canonical(value)


def read_table(
    path: Path, *, context: str = "", defaults: Features | None = None, base: Features | None = None
) -> Table:
    """Read a table. Rows measured in different ways (``mode``) are not mixed: ``context`` picks, or the most common.

    ``defaults`` and ``base`` are the table's (:class:`Table`). What another replay estimated is no recorded trial.

    Raises:
        InputError: no such file, too large, or a line that is not a recorded trial (the message names the line).
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise InputError(f"{path} is larger than {_LARGEST_FILE >> 20} MiB: give the trials only, one a line")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the replay table {path} cannot be read: {error}") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = _row(json.loads(line, parse_constant=_refuse))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is not a recorded trial: {error}") from error
        if row is not None:
            rows.append(replace(row, line=number))
    contexts = Counter(row.context for row in rows)
    if context and context not in contexts:
        known = ", ".join(sorted(contexts))
        raise InputError(f"{path} holds no trials of mode {context!r}; it has: {known}")
    picked = context or (contexts.most_common(1)[0][0] if contexts else "")
    told = sum(1 for line in text.splitlines() if line.strip())
    rows = [row for row in rows if row.context == picked]
    if not any(row.metrics for row in rows):
        raise InputError(f"{path} holds no measured trial: nothing can be replayed from it")
    table = Table(rows, context=picked, defaults=defaults, base=base)
    table.unused = told - len(rows)
    return table


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _row(raw: Any) -> Row | None:
    """One line; None for what says nothing about a configuration (excluded, disturbed, interrupted, estimated)."""
    if not isinstance(raw, dict):
        raise TypeError("it is not a JSON object")
    if raw.get("basis") == "estimated" or _mapping(raw, "server").get("mode") == "estimate":
        return None
    if isinstance(raw.get("candidate"), dict):
        if raw.get("status") in ("excluded", "disturbed", "interrupted", "behind", "duplicate"):
            return None
        measured = raw.get("measurement") or {}
        raw = {
            "arguments": raw["candidate"].get("arguments") or {},
            "environment": raw["candidate"].get("environment") or {},
            "metrics": measured.get("metrics") if raw.get("failure") is None else None,
            "samples": _record_samples(measured),
            "failure": raw.get("failure"),
            "seconds": raw.get("seconds"),
            "points": measured.get("points"),
            "effective": (raw.get("server") or {}).get("effective"),
        }
    arguments = raw.get("arguments", raw.get("config"))
    if not isinstance(arguments, dict):
        raise TypeError("it has neither config nor arguments")
    features = flatten(arguments)
    for name, value in _mapping(raw, "environment").items():
        features[f"env:{name}"] = str(value)
    failure = _failure(raw)
    if failure is not None and failure.blame is not Blame.CONFIGURATION:
        return None
    metrics, samples = ({}, {}) if failure is not None else _figures(raw)
    if failure is None and not metrics:
        raise ValueError("it has neither metrics nor a failure")
    seconds = {name: float(value) for name, value in _mapping(raw, "seconds").items() if finite(value)}
    start = raw.get("start_s")
    if start is not None and finite(start):
        seconds.setdefault("start", float(start))
    return Row(
        features=features,
        metrics=metrics,
        samples=samples,
        failure=failure,
        seconds=seconds,
        context=shortened(str(raw.get("mode", "")), 80),
        hardware=shortened(str(raw.get("hardware") or ""), 80),
        device=_device(raw),
    )


def _device(raw: Mapping[str, Any]) -> str:
    """What the trial ran on, as far as its server or its meters told."""
    told = _mapping(raw, "effective").get("device")
    if told in ("cpu", "cuda", "rocm", "hip", "xpu"):
        return "cpu" if told == "cpu" else "gpu"
    metered = raw.get("power_w") is not None or any(name.startswith("gpu/") for name in _mapping(raw, "metrics"))
    return "gpu" if metered else ""


def _record_samples(measured: Mapping[str, Any]) -> dict[str, Any]:
    points = measured.get("points") or [{}]
    estimates = points[0].get("estimates") or {}
    return {name: item.get("samples") or [] for name, item in estimates.items()}


def _mapping(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        raise TypeError(f"{key} is not an object")
    return value


def _figures(raw: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, tuple[float, ...]]]:
    samples = {
        name: tuple(float(value) for value in values)
        for name, values in _mapping(raw, "samples").items()
        if values and all(reckonable(value) for value in values)
    }
    # Without a group it is a counter of vLLM's own, taken over a whole run: nothing to replay.
    metrics = {
        name: float(value) for name, value in _mapping(raw, "metrics").items() if "/" in name and reckonable(value)
    }
    runs = raw.get("output_tok_s")
    if runs is not None:
        values = tuple(float(value) for value in (runs if isinstance(runs, list) else [runs]))
        if not values or not all(reckonable(value) for value in values):
            raise ValueError("output_tok_s is not a list of numbers")
        samples["throughput/output"] = values
    for name, value in _mapping(raw, "latency").items():
        if reckonable(value):
            metrics.setdefault(f"latency/{name}", float(value) * 1000)
    for name, values in samples.items():
        metrics.setdefault(name, statistics.fmean(values))
    return metrics | _point_figures(raw.get("points")), samples


def _point_figures(points: Any) -> dict[str, float]:
    """Metrics of each load point under ``point <name>:``, where a trial measured several."""
    if points is None:
        return {}
    if not isinstance(points, list) or len(points) > _MOST_POINTS:
        raise TypeError(f"points is not a list of at most {_MOST_POINTS} load points")
    found = {}
    for point in points if len(points) > 1 else ():
        if not isinstance(point, dict) or not isinstance(point.get("name"), str):
            raise TypeError("a load point has no name")
        figures = {**_mapping(point, "metrics"), _WEIGHT: point.get("weight", 1.0)}
        found.update({f"{_POINT}{point['name']}:{name}": float(v) for name, v in figures.items() if reckonable(v)})
    return found


def at_points(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, tuple[float, dict[str, float]]]]:
    """The metrics of the whole trial, and per load point its weight and its own metrics."""
    whole: dict[str, float] = {}
    points: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        if name.startswith(_POINT):
            point, _, metric = name.removeprefix(_POINT).partition(":")
            points.setdefault(point, {})[metric] = value
        else:
            whole[name] = value
    return whole, {point: (found.pop(_WEIGHT, 1.0), found) for point, found in points.items()}


def _failure(raw: Mapping[str, Any]) -> Failure | None:
    told = raw.get("failure")
    error = raw.get("error")
    if told is None and error is None:
        return None
    if told is None:
        if not isinstance(error, str):
            raise TypeError("error is not text")
        # The exception's own sentence; numbers do not count when causes are compared (Failure.fingerprint).
        return Failure(kind="unknown", cause=shortened(error, 500), blame=Blame.CONFIGURATION)
    if isinstance(told, str):
        told = {"cause": told}
    if not isinstance(told, dict):
        raise TypeError("failure is neither an object nor text")
    violation = told.get("violation")
    return Failure(
        kind=shortened(str(told.get("kind", "unknown")), 80),
        cause=shortened(str(told.get("cause", "no cause recorded")), 500),
        blame=Blame(told.get("blame", "configuration")),
        phase=shortened(str(told.get("phase", "launch")), 40),
        violation=float(violation) if violation is not None and finite(violation) and violation > 0 else None,
        advice=shortened(str(told.get("advice", "")), 500),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Configuration:
    """What was asked, defaults filled in, the rows that recorded it, and what they say together."""

    features: Features
    rows: tuple[Row, ...]
    point: Point


class Table:
    """Rows of one context, with distances between configurations.

    Args:
        defaults: what runs where a row or a candidate leaves a setting away, as far as it is known.
        base: what every candidate carries; where no row speaks of it, it was so for all of them.

    Attributes:
        unused: lines of the file that are not among the rows.
    """

    def __init__(
        self, rows: Sequence[Row], *, context: str = "", defaults: Features | None = None, base: Features | None = None
    ) -> None:
        self.rows = tuple(rows)
        self.context = context
        self.unused = 0
        spoken = {name for row in rows for name in row.features}
        self._defaults = {
            **(defaults or {}),
            **{name: value for name, value in (base or {}).items() if name not in spoken},
        }
        alike: dict[tuple[tuple[str, str | float], ...], list[Row]] = {}
        for row in self.rows:
            alike.setdefault(tuple(sorted(self.filled(row.features).items())), []).append(row)
        self._configurations = [
            _Configuration(features=dict(key), rows=tuple(found), point=_exact(found)) for key, found in alike.items()
        ]
        self._names = frozenset(self._defaults) | spoken
        self._spans = {name: self._span(name) for name in self._names}

    def filled(self, features: Features) -> Features:
        """The features with the defaults that they leave away."""
        return {**self._defaults, **features}

    def _span(self, name: str) -> float:
        values = [_log(value) for one in self._configurations if isinstance(value := one.features.get(name), float)]
        return (max(values) - min(values)) if values else 0.0

    @property
    def metrics(self) -> frozenset[str]:
        """Names that some row holds."""
        return frozenset(name for row in self.rows for name in row.metrics if not name.startswith(_POINT))

    @property
    def hardware(self) -> tuple[str, ...]:
        """Profiles that the rows name."""
        return tuple(sorted({row.hardware for row in self.rows if row.hardware}))

    @property
    def devices(self) -> tuple[str, ...]:
        """``cpu`` and ``gpu``, as far as the rows tell."""
        return tuple(sorted({row.device for row in self.rows if row.device}))

    def noise(self, metric: str) -> float:
        """Relative standard deviation of one run: the median over rows with several; 1 % where none has.

        The median, because one row whose first run still compiled would otherwise speak for all.
        """
        spreads = [
            statistics.stdev(values) / mean
            for row in self.rows
            if len(values := row.samples.get(metric, ())) > 1 and (mean := statistics.fmean(values)) > 0
        ]
        return statistics.median(spreads) if spreads else _UNKNOWN_NOISE

    def distance(self, one: Features, other: Features) -> float:
        """Sum over all settings: 1 for another choice, a share of the table's range (log scale) for numbers."""
        one, other = self.filled(one), self.filled(other)
        names = sorted(one.keys() | other.keys())
        return sum(self._apart(name, one.get(name, _ABSENT), other.get(name, _ABSENT)) for name in names)

    def _apart(self, name: str, one: str | float, other: str | float) -> float:
        if one == other:
            return 0.0
        if isinstance(one, float) and isinstance(other, float):
            # Numbers outside the table's range count as far as they are outside of it.
            span = self._spans.get(name, 0.0)
            return abs(_log(one) - _log(other)) / span if span else 1.0
        # Absent, or a word beside numbers, is a default that is unknown here: half as far as another choice.
        return 0.5 if _ABSENT in (one, other) or isinstance(one, float) or isinstance(other, float) else 1.0

    @cached_property
    def _dead(self) -> tuple[Dead, ...]:
        """What fails by all that was recorded, one reason apart from another (numbers do not count)."""
        failures = [one.point.failure for one in self._configurations]
        reasons = [None if x is None else f"{x.kind}: {re.sub(r'[0-9]+', '', x.cause)}" for x in failures]
        return dead_settings([one.features for one in self._configurations], reasons)

    @cached_property
    def _explained(self) -> frozenset[int]:
        """Configurations that failed with something dead: they say nothing of one that has none of it."""
        dead = self._dead
        return frozenset(i for i, one in enumerate(self._configurations) if any(d.holds(one.features) for d in dead))

    def find(self, features: Features) -> Point | None:
        """What was recorded of the configuration; None where it was not."""
        filled = self.filled(features)
        return next((one.point for one in self._configurations if one.features == filled), None)

    def look_up(self, features: Features) -> Point:
        """The row itself where the configuration was recorded, else an estimate.

        A configuration counts once, however often it was recorded. Failures have sharp edges, so they are not averaged:
        the answer is a failure where the configuration has a setting, or two together, with which everything recorded
        failed; else where those of the nearest rows that failed, and that may concern it, outweigh the others.
        """
        recorded = self.find(features)
        if recorded is not None:
            return recorded
        filled = self.filled(features)
        ranked = sorted((self.distance(filled, one.features), i) for i, one in enumerate(self._configurations))
        dead = next((dead for dead in self._dead if dead.holds(filled)), None)
        if dead is not None:
            nearest = next(self._configurations[i] for _, i in ranked if i in dead.rows)
            what = " and ".join(str(setting) for setting in dead.settings)
            basis = f"all {dead.failed} recorded configurations with {what} failed"
            return replace(nearest.point, exact=False, basis=f"estimated: {basis}")
        found = [
            (apart, self._configurations[i])
            for apart, i in ranked
            if i not in self._explained and not _names_another(self._configurations[i], filled)
        ]
        voters = found[:_NEIGHBOURS]
        failed = [(apart, one) for apart, one in voters if one.point.failure is not None]
        if 2 * _weight(failed) > _weight(voters):
            nearest = failed[0][1]
            basis = f"{len(failed)} of the {len(voters)} nearest recorded configurations failed"
            basis += f" (the nearest of them {_differs(nearest.features, filled)})"
            return replace(nearest.point, exact=False, basis=f"estimated: {basis}")
        near = [(apart, one) for apart, one in found if one.point.metrics][:_NEIGHBOURS]
        weights = [_near(apart) for apart, _ in near]
        whose = (
            f"{len(near)} nearest recorded configurations (the nearest" if len(near) > 1 else "only one that ran (it"
        )
        return Point(
            metrics=_mix([one.point.metrics for _, one in near], weights),
            failure=None,
            seconds=_mix([one.point.seconds for _, one in near], weights),
            exact=False,
            basis=f"estimated from the {whose} {_differs(near[0][1].features, filled)})",
        )

    def best(self, metric: str, *, maximize: bool, keeps: Callable[[Mapping[str, float]], bool]) -> Best | None:
        """The recorded configuration that is best in ``metric`` of those whose figures ``keeps`` takes."""
        found = [one for one in self._configurations if metric in one.point.metrics and keeps(one.point.metrics)]
        if not found:
            return None
        sign = 1.0 if maximize else -1.0
        best = max(found, key=lambda one: sign * one.point.metrics[metric])
        ran = [row for row in best.rows if row.failure is None]
        return Best(value=best.point.metrics[metric], features=best.features, lines=tuple(row.line for row in ran))


def _names_another(one: _Configuration, features: Features) -> bool:
    """It failed for a reason that names a choice of its own which the configuration asked about does not have."""
    failure = one.point.failure
    if failure is None:
        return False
    words = set(re.findall(r"\w+", failure.cause))
    return any(value in words and features.get(name) != value for name, value in one.features.items())


def _differs(one: Features, other: Features) -> str:
    names = sorted(name for name in one.keys() | other.keys() if one.get(name, _ABSENT) != other.get(name, _ABSENT))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"differs in {counted(len(names), 'setting')}: {', '.join(names[:_NAMED])}{more}"


def _weight(points: Sequence[tuple[float, _Configuration]]) -> float:
    return math.fsum(_near(apart) for apart, _ in points)


def _near(apart: float) -> float:
    return 1.0 / max(apart, _LEAST) ** 2


def _log(value: float) -> float:
    return math.copysign(math.log2(1 + abs(value)), value)


def _exact(rows: Sequence[Row]) -> Point:
    measured = [row for row in rows if row.failure is None]
    chosen = measured or list(rows)
    ones = [1.0] * len(chosen)
    return Point(
        metrics=_mix([row.metrics for row in chosen], ones) if measured else {},
        failure=None if measured else rows[0].failure,
        seconds=_mix([row.seconds for row in chosen], ones),
        exact=True,
        basis=f"recorded ({len(chosen)} trial{'s' if len(chosen) > 1 else ''})",
    )


def _mix(items: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """Weighted mean by name: geometric where all are positive (rates and times differ by factors)."""
    mixed = {}
    for name in {name for item in items for name in item}:
        pairs = [(item[name], weight) for item, weight in zip(items, weights, strict=True) if name in item]
        total = math.fsum(weight for _, weight in pairs)
        if len(pairs) == 1:
            mixed[name] = pairs[0][0]
        elif all(value > 0 for value, _ in pairs):
            mixed[name] = math.exp(math.fsum(math.log(value) * weight for value, weight in pairs) / total)
        else:
            mixed[name] = math.fsum(value * weight for value, weight in pairs) / total
    return dict(sorted(mixed.items()))
