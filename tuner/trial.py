"""The path of one trial on real vLLM: launch, sanity, measure, check accuracy, and what it all came to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tuner.model.candidate import Candidate
from tuner.model.measurement import Measurement, QualityReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Objective
from tuner.ports import (
    Launcher,
    LaunchFailed,
    LoadGenerator,
    MeasurementFailed,
    Progress,
    QualityCheck,
    Server,
    TrialContext,
)

__all__ = ["VllmTrial"]


@dataclass
class VllmTrial:
    """Runs a candidate on a vLLM server of its own. Implements :class:`tuner.ports.TrialRunner`.

    Attributes:
        min_gain: a candidate must promise at least this relative gain before its accuracy is worth checking.
    """

    launcher: Launcher
    load: LoadGenerator
    quality: QualityCheck
    objective: Objective
    min_gain: float = 0.0
    kind: str = field(default="vllm", init=False)

    def run(self, candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
        """See :meth:`tuner.ports.TrialRunner.run`."""
        context.directory.mkdir(parents=True, exist_ok=True)
        clock = _Clock()
        outcome = Outcome(candidate=candidate, status=Status.BROKEN)
        started = False
        try:
            progress("starting", "")
            launch_began = time.monotonic()
            with self.launcher.launch(candidate, directory=context.directory, progress=progress) as server:
                started = True
                clock.add("start", time.monotonic() - launch_began)
                outcome = replace(outcome, server=server.report)
                twin = context.twin(candidate, server.report.effective) if context.twin is not None else None
                try:
                    if twin is None:
                        outcome = self._on_server(server, outcome, context, progress, clock)
                    else:
                        outcome = replace(outcome, status=Status.DUPLICATE, twin=twin)
                finally:
                    progress("stopping", "")
                    teardown_began = time.monotonic()
            clock.add("teardown", time.monotonic() - teardown_began)
        except LaunchFailed as failed:
            if not started:
                clock.add("start", time.monotonic() - launch_began)
            outcome = _failed(outcome, failed.failure)
            if failed.report is not None:
                outcome = replace(outcome, server=failed.report)
        return replace(outcome, seconds=clock.seconds())

    def _on_server(
        self, server: Server, outcome: Outcome, context: TrialContext, progress: Progress, clock: _Clock
    ) -> Outcome:
        try:
            if context.check_quality:
                with clock.phase("quality"):
                    garbage = self.quality.sanity(server)
                if garbage is not None:
                    return _failed(outcome, garbage)
            began = time.monotonic()
            measurement = self.load.measure(
                server,
                seed=context.seed,
                directory=context.directory,
                progress=progress,
                reference=context.reference,
            )
            clock.add_measurement(measurement, time.monotonic() - began)
            outcome = _measured(outcome, measurement)
            report = self._quality(server, outcome, context, progress, clock)
            # The server's own report can grow while it serves (kernels compiled late, warnings).
            return replace(outcome, quality=report, server=server.report)
        except MeasurementFailed as failed:
            partial = failed.partial or outcome.measurement
            return replace(_failed(outcome, failed.failure), measurement=partial, objective=None, server=server.report)

    def _quality(
        self, server: Server, outcome: Outcome, context: TrialContext, progress: Progress, clock: _Clock
    ) -> QualityReport | None:
        """The accuracy report where it can matter: a candidate that cannot win is not evaluated."""
        if not context.check_quality or outcome.status is not Status.MEASURED:
            return None
        if context.known_quality is not None:
            return context.known_quality
        if not self._can_win(outcome, context):
            return None
        with clock.phase("quality"):
            progress("checking accuracy", "")
            return self.quality.check(
                server, baseline=context.baseline_quality, directory=context.directory, progress=progress
            )

    def _can_win(self, outcome: Outcome, context: TrialContext) -> bool:
        if context.reference is None or outcome.measurement is None or outcome.measurement.objective is None:
            return True
        estimate = outcome.measurement.objective
        target = context.reference.value
        if self.objective.maximize:
            return estimate.high >= target * (1 + self.min_gain)
        return estimate.low <= target * (1 - self.min_gain)

    def close(self) -> None:
        """See :meth:`tuner.ports.TrialRunner.close`."""
        self.launcher.close()


class _Clock:
    """Wall seconds by phase."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def add_measurement(self, measurement: Measurement, wall: float) -> None:
        """Split the wall time of measuring as the load generator accounts for it; the rest is measuring."""
        warmup = min(measurement.seconds.get("warmup", 0.0), wall)
        self.add("warmup", warmup)
        self.add("measure", wall - warmup)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def seconds(self) -> dict[str, float]:
        return {**self._seconds, "total": time.monotonic() - self._began}


def _measured(outcome: Outcome, measurement: Measurement) -> Outcome:
    estimate = measurement.objective
    if measurement.bound is not None or not measurement.complete:
        return replace(outcome, status=Status.BEHIND, measurement=measurement, objective=measurement.bound)
    if estimate is None:
        failure = Failure(
            kind="nothing-measured",
            cause="no valid round was measured" + (f": {measurement.notes[-1]}" if measurement.notes else ""),
            blame=Blame.MACHINE,
            retry=True,
            phase="measure",
        )
        return replace(_failed(outcome, failure), measurement=measurement)
    return replace(outcome, status=Status.MEASURED, measurement=measurement, objective=estimate.value)


def _failed(outcome: Outcome, failure: Failure) -> Outcome:
    disturbed = failure.blame is Blame.MACHINE
    return replace(outcome, status=Status.DISTURBED if disturbed else Status.BROKEN, failure=failure)
