"""``--replay``: answers from a recorded table instead of measuring. Nothing is started, and nothing is claimed.

Everything that comes out says so: the runner's kind, the server report's mode, and a note on each measurement.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tuner.errors import InputError
from tuner.model.candidate import Candidate
from tuner.model.hardware import Hardware
from tuner.model.intervals import mean_estimate
from tuner.model.measurement import Measurement, PointResult, ServerReport
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Limit, Objective
from tuner.ports import Progress, TrialContext
from tuner.serving.table import Best, Point, Table, at_points, flatten, read_table

__all__ = ["ReplayRunner"]

_RUNS = 3
"""Samples a replayed measurement has, as a short real one."""

_LARGEST_NOISE = 0.5


class ReplayRunner:
    """Implements :class:`tuner.ports.TrialRunner` from a table (layouts: :mod:`tuner.serving.table`).

    The same table, seed, candidate and trial number give the same answer, in any process: a study on it can be
    repeated and resumed exactly.

    Args:
        table: JSONL file of recorded trials.
        objective: which metric is the objective; the table must hold it.
        noise: relative standard deviation of one run; None takes what the table's own repeats show.
        seed: of the noise.
        context: the table's ``mode`` to replay; empty takes the one with most rows.
        pace: share of the recorded seconds that a trial really takes (0: none, 1: as long as then).
        hardware: what the study is about; a table that names another is refused.
        defaults: arguments and environment that run where they are left away, as far as they are known.
        baseline: what the study is compared with; what all candidates share with it, and no row tells, is passed over.

    Attributes:
        notes: what a person should know of the table, one sentence each.
        rows, failed: recorded trials that answers come from, and how many of them failed.
        unused: lines of the table that no answer comes from (a machine's fault, an estimate, another mode).

    Raises:
        InputError: the table cannot be read, lacks the objective, or was recorded on other hardware.
    """

    kind = "replay"

    def __init__(
        self,
        table: Path,
        *,
        objective: Objective,
        noise: float | None = None,
        seed: int = 0,
        context: str = "",
        pace: float = 0.0,
        hardware: Hardware | None = None,
        defaults: Candidate | None = None,
        baseline: Candidate | None = None,
    ) -> None:
        filled = None if defaults is None else _features(defaults)
        base = None if baseline is None else _features(baseline)
        self._table = read_table(table, context=context, defaults=filled, base=base)
        self.notes = _check_hardware(table, self._table, hardware) if hardware is not None else ()
        if base is not None and self._table.find(base) is None:
            self.notes += (
                f"{table.name} does not hold the defaults: what everything is compared with is estimated too",
            )
        self.rows, self.failed = len(self._table.rows), sum(row.failure is not None for row in self._table.rows)
        self.unused = self._table.unused
        self._name = table.name
        if objective.metric not in self._table.metrics:
            known = ", ".join(sorted(self._table.metrics))
            raise InputError(f"{table} does not hold {objective.metric}; it has: {known}")
        if noise is not None and not 0 <= noise <= _LARGEST_NOISE:
            raise InputError(f"the replay's noise must lie between 0 and {_LARGEST_NOISE}, not {noise:g}")
        self._objective = objective
        self._noise = self._table.noise(objective.metric) if noise is None else noise
        self._seed = seed
        self._pace = pace

    def run(self, candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
        """See :meth:`tuner.ports.TrialRunner.run`."""
        point = self._table.look_up(_features(candidate))
        progress("replaying", point.basis)
        if self._pace > 0:
            time.sleep(self._pace * sum(value for name, value in point.seconds.items() if name != "total"))
        server = ServerReport(
            mode="replay" if point.exact else "estimate",
            warnings=(f"nothing was started: {point.basis} in {self._name}",),
            phases={"total": point.seconds["start"]} if "start" in point.seconds else {},
        )
        if point.failure is not None:
            failure = point.failure
            if not point.exact:
                failure = replace(failure, cause=f"{failure.cause.rstrip('.')} (by the replay's estimate)")
            return Outcome(
                candidate=candidate,
                status=Status.BROKEN,
                failure=failure,
                server=server,
                seconds=point.seconds,
            )
        if self._objective.metric not in point.metrics:
            known = ", ".join(sorted(point.metrics))
            raise InputError(f"the trials nearest to this one lack {self._objective.metric}; they have: {known}")
        measurement = self._measurement(point, candidate, context)
        assert measurement.objective is not None  # noqa: S101 - for the type checker: set below
        return Outcome(
            candidate=candidate,
            status=Status.MEASURED,
            objective=measurement.objective.value,
            measurement=measurement,
            server=server,
            seconds=point.seconds,
        )

    def close(self) -> None:
        """See :meth:`tuner.ports.TrialRunner.close`: nothing is held."""

    def basis(self, candidate: Candidate) -> str:
        """Where the answer for a candidate comes from, in words."""
        return self._table.look_up(_features(candidate)).basis

    def best(self, limits: Sequence[Limit] = ()) -> Best | None:
        """The recorded configuration that is best in the objective and keeps the limits."""

        def keeps(metrics: Mapping[str, float]) -> bool:
            return all(x.metric in metrics and x.excess(metrics[x.metric]) <= 0 for x in limits)

        return self._table.best(self._objective.metric, maximize=self._objective.maximize, keeps=keeps)

    def is_of(self, candidate: Candidate, best: Best) -> bool:
        """Whether the candidate asks for what that configuration is."""
        return self._table.filled(_features(candidate)) == best.features

    def _measurement(self, point: Point, candidate: Candidate, context: TrialContext) -> Measurement:
        text = f"{self._seed}/{candidate.key}/{context.number}"
        source = random.Random(hashlib.sha256(text.encode()).digest())  # noqa: S311 - noise, not a secret
        whole, loads = at_points(point.metrics)
        value = whole[self._objective.metric]
        # A start has a share of its own beside the runs' (other addresses, other clocks): half of the spread here.
        start = source.gauss(0.0, self._noise / 2)
        factors = [max(1.0 + start + source.gauss(0.0, self._noise), 0.01) for _ in range(_RUNS)]
        metric, objective = self._objective.metric, mean_estimate([value * factor for factor in factors])
        metrics = {**whole, metric: objective.value}
        points = [PointResult(name="all", metrics=metrics, estimates={metric: objective}, rounds=_RUNS)]
        if loads and all(metric in figures for _, figures in loads.values()):
            points = []
            for name, (weight, figures) in sorted(loads.items(), key=lambda item: _natural(item[0])):
                here = mean_estimate([figures[metric] * factor for factor in factors])
                seen = {**figures, metric: here.value}
                points.append(
                    PointResult(name=name, metrics=seen, estimates={metric: here}, rounds=_RUNS, weight=weight)
                )
        return Measurement(
            metrics=metrics,
            objective=objective,
            points=tuple(points),
            notes=(f"replayed from {self._name}, not measured: {point.basis}",),
        )


def _features(candidate: Candidate) -> dict[str, str | float]:
    return flatten(candidate.arguments) | {f"env:{name}": value for name, value in candidate.environment.items()}


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """``c8`` before ``c16``."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name))


def _check_hardware(path: Path, table: Table, hardware: Hardware) -> tuple[str, ...]:
    """Refuse a table of another machine; its numbers say nothing of this one. Returns notes for a person."""
    named = table.hardware
    if named and hardware.name not in named:
        raise InputError(
            f"{path}: was recorded on {', '.join(named)}, which says nothing of {hardware.name}; "
            f"give --hardware {named[0]}"
        )
    wanted = "cpu" if hardware.platform == "cpu" else "gpu"
    if table.devices and wanted not in table.devices:
        raise InputError(
            f"{path}: was recorded on a {table.devices[0].upper()}, and {hardware.name} is a {wanted.upper()}; "
            "give --hardware of the machine that it was recorded on"
        )
    if not named:
        return (f"{path.name} does not name its hardware: that it is {hardware.name} is taken on trust",)
    return ()
