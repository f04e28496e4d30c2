"""All rounds of all load points on one server: when to go on, what to throw away, and when it is enough."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from tuner.measuring import bench, checks
from tuner.measuring.rounds import Round, RoundRunner, median_steps
from tuner.measuring.statistics import clearly_behind, clearly_breaks, estimate, relative_half_width, weighted
from tuner.measuring.warmup import warm_up
from tuner.model.measurement import Estimate, Measurement, PointResult
from tuner.model.outcome import Blame, Failure
from tuner.model.targets import counted, figure, metric_unit, short_name
from tuner.model.workload import Limit, LoadPoint, Objective, Workload
from tuner.ports import MeasurementFailed, Progress, Reference

__all__ = ["Session", "Settings"]

_SPOILED_ALLOWED = 3
"""Rounds that may be thrown away in one trial before the trial itself counts as disturbed."""
_EARLY_METRICS = ("throughput/output", "throughput/total", "throughput/requests", "throughput/goodput")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What stays the same for all trials of a study. See :class:`~tuner.measuring.generator.BenchLoadGenerator`."""

    workload: Workload
    objective: Objective
    limits: tuple[Limit, ...]
    noise_floor: float
    alpha: float
    warmup_waves: int
    warmup_limit_s: float
    stall_s: float


@dataclass(kw_only=True)
class Session:
    """Measures one candidate on its running server."""

    settings: Settings
    runner: RoundRunner
    seed: int
    progress: Progress
    reference: Reference | None
    _rounds: dict[str, list[Round]] = field(default_factory=dict, init=False)
    _notes: list[str] = field(default_factory=list, init=False)
    _warm_s: float = field(default=0.0, init=False)
    _began: float = field(default=0.0, init=False)
    _spoiled: list[str] = field(default_factory=list, init=False)
    _tries: int = field(default=0, init=False)
    _cut: Round = field(default_factory=Round, init=False)

    def measure(self) -> Measurement:
        """Warm up and measure all points.

        Raises:
            MeasurementFailed: see :meth:`tuner.ports.LoadGenerator.measure`; what was measured until then is in it.
        """
        least, most = self.settings.workload.rounds
        self._rounds = {point.name: [] for point in self.settings.workload.points}
        try:
            self._warm()
            self._began = time.monotonic()
            while (number := min(len(done) for done in self._rounds.values()) + 1) <= most:
                bound = self._one_of_each(number)
                if bound is None and self._hopeless():
                    bound = self._optimistic()
                if bound is not None:
                    return self._result(bound=bound)
                if number >= least and relative_half_width(self._objective()) <= self.settings.workload.precision:
                    break
            return self._result()
        except MeasurementFailed as error:
            if error.partial is not None or not all(self._rounds.values()):
                raise
            raise MeasurementFailed(error.failure, self._result(complete=False)) from error

    def _warm(self) -> None:
        warmed = warm_up(
            self.runner.server,
            self.runner.api,
            self.runner.supply,
            self.settings.workload,
            self.runner.compiled,
            seed=_seed(self.seed, "warmup", 0),
            waves=self.settings.warmup_waves,
            stall_s=self.settings.stall_s,
            limit_s=self.settings.warmup_limit_s,
            progress=self.progress,
        )
        self.runner.expected_rate, self.runner.expected_pace = warmed.rate, warmed.pace
        self._warm_s = warmed.seconds
        self._notes += warmed.notes

    def _one_of_each(self, number: int) -> float | None:
        """One good round of every point that has fewer than ``number``; the bound where one was ended early."""
        for point in self.settings.workload.points:
            fallen = False
            while len(self._rounds[point.name]) < number:
                done = self._round(point, number)
                if done.bound is not None:
                    self._cut = done
                    return done.bound
                if done.spoiled is not None and not self._pardon(point, done.spoiled):
                    continue
                fallen = self._keep(point, done, fallen=fallen)
        return None

    def _round(self, point: LoadPoint, number: int) -> Round:
        self._tries += 1
        again = f"-try{self._tries}" if self._spoiled else ""
        most = self.settings.workload.rounds[1]
        detail = ""
        if all(self._rounds.values()):
            value = self._objective()
            width = relative_half_width(value)
            spread = f" ± {width:.1%}" if math.isfinite(width) else ""
            detail = f": {figure(value.value, self.settings.objective.unit)}{spread} so far"
        self.progress("measure", f"{point.name} round {number} of at most {most}{detail}")
        if self.settings.workload.source == "random" and not self.settings.workload.expected_hit_rate:
            # Random tokens of a small vocabulary repeat by chance: 1,024 prompts hit 2 to 3 % of earlier rounds'.
            self.runner.api.reset_prefix_cache()
        return self.runner.run(
            point,
            seed=_seed(self.seed, point.name, self._tries),
            stem=f"bench-{point.name}-r{number}{again}",
            race=self._race(),
        )

    def _race(self) -> dict[str, Any] | None:
        """What an early stop within a round needs; None where it is not possible."""
        objective = self.settings.objective
        single = len(self.settings.workload.points) == 1
        if self.reference is None or not single or not objective.maximize or objective.metric not in _EARLY_METRICS:
            return None
        return {
            "metric": objective.metric,
            "earlier": self._samples(objective.metric),
            "reference": self._reference_samples(),
            "looks": self.settings.workload.rounds[1],
            "noise": self.settings.noise_floor,
            "alpha": self.settings.alpha,
        }

    def _pardon(self, point: LoadPoint, failure: Failure) -> bool:
        """Whether a spoiled round may be kept after all; otherwise it is thrown away and named.

        Raises:
            MeasurementFailed: it happened too often to be an accident.
        """
        often = len(self._spoiled) >= _SPOILED_ALLOWED
        if failure.kind == "compiled-while-measuring" and often:
            self._notes.append(f"{point.name}: a round was kept although {failure.cause}")
            return True
        # Once may be an accident of the machine; the same again right away is how this server is.
        if often or (failure.kind == "slowdown" and self._spoiled[-1:] == ["slowdown"]):
            raise MeasurementFailed(failure)
        self._throw_away(point, failure.kind, failure.cause)
        if failure.kind == "prefix-cache-warm" and self.runner.api.reset_prefix_cache():
            self._notes.append(f"{point.name}: the prefix cache was reset")
        return False

    def _throw_away(self, point: LoadPoint, kind: str, cause: str) -> None:
        self._spoiled.append(kind)
        self._notes.append(f"{point.name}: a round was thrown away ({kind}): {cause}")

    def _keep(self, point: LoadPoint, done: Round, *, fallen: bool) -> bool:
        """Add a round; throw away what does not fit the others. True if it fell far below the earlier ones.

        Raises:
            MeasurementFailed: throughput fell and stayed down.
        """
        rounds = self._rounds[point.name]
        before = [item.throughput for item in rounds]
        shift = checks.shift([*before, done.throughput])
        cause = f"{done.throughput:.0f} tok/s after {', '.join(f'{value:.0f}' for value in before)}"
        if shift < 0 and fallen:
            failure = bench.failed(
                "slowdown", f"throughput fell and stayed down: {cause}", blame=Blame.MACHINE, retry=True
            )
            raise MeasurementFailed(failure)
        if shift < 0 and len(self._spoiled) < _SPOILED_ALLOWED:
            self._throw_away(point, "slowdown", cause)
            return True
        if shift > 0:
            self._throw_away(point, "not-yet-warm", cause)
            rounds.clear()
        rounds.append(done)
        return False

    def _hopeless(self) -> bool:
        """Whether going on is no use: clearly behind the best, or a limit clearly broken."""
        if self.reference is None:
            return False
        settings = self.settings
        looks = settings.workload.rounds[1]
        samples = self._samples(settings.objective.metric)
        if clearly_behind(
            samples,
            self._reference_samples(),
            settings.objective.maximize,
            looks=looks,
            alpha=settings.alpha,
            noise=settings.noise_floor,
        ):
            self._notes.append(
                f"stopped after round {len(samples)}: clearly behind the best "
                f"({figure(self.reference.value, settings.objective.unit)})"
            )
            return True
        for limit in settings.limits:
            values = self._samples(limit.metric)
            if values and clearly_breaks(values, limit, looks=looks, alpha=settings.alpha):
                mean = statistics.fmean(values)
                self._notes.append(
                    f"stopped after round {len(values)}: {short_name(limit.metric)} is {figure(mean)}, "
                    f"the limit {figure(limit.bound, metric_unit(limit.metric))}"
                )
                return True
        return False

    def _optimistic(self) -> float:
        """The objective is no better than this, at about two standard errors."""
        samples = self._samples(self.settings.objective.metric)
        mean = statistics.fmean(samples)
        spreads = [
            statistics.stdev(values) / abs(statistics.fmean(values))
            for values in (samples, self._reference_samples())
            if len(values) > 1 and statistics.fmean(values)
        ]
        error = math.hypot(max(spreads, default=0.0) / math.sqrt(len(samples)), self.settings.noise_floor)
        return mean * (1 + 2 * error) if self.settings.objective.maximize else mean * (1 - min(2 * error, 1.0))

    def _reference_samples(self) -> tuple[float, ...]:
        if self.reference is None:
            return ()
        return self.reference.samples or (self.reference.value,)

    def _samples(self, metric: str) -> tuple[float, ...]:
        """Weighted mean over the points, one value per round that all points have."""
        return self._estimate(metric).samples if self._measured(metric) else ()

    def _measured(self, metric: str) -> bool:
        return all(done and all(metric in item.metrics for item in done) for done in self._rounds.values())

    def _estimate(self, metric: str) -> Estimate:
        parts = [
            (point.weight, [item.metrics[metric] for item in self._rounds[point.name]])
            for point in self.settings.workload.points
        ]
        return weighted(parts)

    def _objective(self) -> Estimate:
        metric = self.settings.objective.metric
        if not self._measured(metric):
            have = ", ".join(sorted(next(iter(self._rounds.values()))[0].metrics))
            failure = bench.failed(
                "objective-not-measured",
                f"{metric} was not measured on this machine; there is {have}",
                blame=Blame.USER,
                advice="choose another objective",
            )
            raise MeasurementFailed(failure)
        return self._estimate(metric)

    def _result(self, *, bound: float | None = None, complete: bool = True) -> Measurement:
        if self.runner.supply.skipped:
            self._notes.append(
                f"{counted(self.runner.supply.skipped, 'request')} passed over: longer than max_model_len"
            )
        if bound is not None and not all(self._rounds.values()):
            self._notes.append(
                f"stopped within the first round: no better than {figure(bound, self.settings.objective.unit)}"
            )
        points = [self._point(point) for point in self.settings.workload.points if self._rounds[point.name]]
        everything = [item for done in self._rounds.values() for item in done]
        metric = self.settings.objective.metric
        return Measurement(
            metrics=_joined(points) or self._cut.metrics,
            objective=self._estimate(metric) if self._measured(metric) else None,
            points=tuple(points),
            bound=bound,
            complete=complete and bound is None,
            steps=median_steps([*everything, self._cut]),
            notes=tuple(self._notes),
            seconds={"warmup": self._warm_s, "measure": time.monotonic() - self._began if self._began else 0.0},
            artifacts=tuple(name for item in everything for name in item.artifacts),
        )

    def _point(self, point: LoadPoint) -> PointResult:
        rounds = self._rounds[point.name]
        names = [name for name in rounds[0].metrics if all(name in item.metrics for item in rounds)]
        estimates = {name: estimate([item.metrics[name] for item in rounds]) for name in names}
        return PointResult(
            name=point.name,
            metrics={name: value.value for name, value in estimates.items()},
            estimates={
                name: value for name, value in estimates.items() if name.startswith(("throughput/", "latency/"))
            },
            rounds=len(rounds),
            weight=point.weight,
        )


def _joined(points: list[PointResult]) -> dict[str, float]:
    """Weighted mean over the points; peaks are the highest of all."""
    if not points:
        return {}
    total = sum(point.weight for point in points) or 1.0
    names = [name for name in points[0].metrics if all(name in point.metrics for point in points)]
    return {
        name: max(point.metrics[name] for point in points)
        if name.endswith("_max")
        else sum(point.weight * point.metrics[name] for point in points) / total
        for name in names
    }


def _seed(seed: int, what: str, number: int) -> int:
    """A seed nobody used before: 31 bits out of the trial's own, the point and the try."""
    digest = hashlib.blake2s(f"{seed}/{what}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF
