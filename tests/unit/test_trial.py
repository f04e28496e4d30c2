"""The path of one trial: what is asked of which port, in which order, and what an ending means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tuner.model.candidate import Candidate
from tuner.model.measurement import Estimate, Measurement, QualityReport, ServerReport
from tuner.model.outcome import Blame, Failure, Status
from tuner.model.workload import Objective
from tuner.ports import LaunchFailed, MeasurementFailed, Progress, Reference, Server, TrialContext
from tuner.trial import VllmTrial

CANDIDATE = Candidate(assignment={"max_num_seqs": 8}, arguments={"max-num-seqs": 8})
GARBAGE = Failure(kind="garbage", cause="answers 'ÿÿÿ'", blame=Blame.CONFIGURATION)
DEAD = Failure(kind="cuda-oom", cause="tried to allocate 2.00 GiB", blame=Blame.CONFIGURATION, violation=2.0)


@dataclass
class Played:
    """Launcher, server, load generator and quality check in one; writes down the order of calls."""

    measured: Measurement | Exception = field(
        default_factory=lambda: Measurement(
            metrics={"throughput/output": 100.0},
            objective=Estimate(value=100.0, low=95.0, high=105.0, samples=(98.0, 102.0)),
            seconds={"warmup": 0.0},
        )
    )
    launch_error: Exception | None = None
    garbage: Failure | None = None
    calls: list[str] = field(default_factory=list)

    base_url: str = "http://127.0.0.1:1"
    api_key: str = "k"
    model_name: str = "m"
    report: ServerReport = field(default_factory=lambda: ServerReport(effective={"max-num-seqs": 8}, mode="warm"))

    def failure(self) -> Failure | None:
        return None

    def run_client(
        self, argv: Sequence[str], *, log_path: Path, timeout_s: float, watch: Callable[[], bool] | None = None
    ) -> int:
        raise AssertionError("the trial itself runs no client")

    @contextmanager
    def launch(self, candidate: Candidate, *, directory: Path, progress: Progress) -> Iterator[Server]:
        self.calls.append("launch")
        if self.launch_error is not None:
            raise self.launch_error
        try:
            yield self
        finally:
            self.calls.append("teardown")

    def measure(self, server: Server, **kwargs: object) -> Measurement:
        self.calls.append("measure")
        if isinstance(self.measured, Exception):
            raise self.measured
        return self.measured

    def sanity(self, server: Server) -> Failure | None:
        self.calls.append("sanity")
        return self.garbage

    def check(self, server: Server, **kwargs: object) -> QualityReport:
        self.calls.append("check")
        return QualityReport(passed=True, metrics={"accuracy/score": 0.5})

    def close(self) -> None:
        self.calls.append("close")


def _run(played: Played, tmp_path: Path, **context: object) -> tuple[object, list[str]]:
    trial = VllmTrial(launcher=played, load=played, quality=played, objective=Objective())
    facts = TrialContext(number=3, directory=tmp_path / "0003", seed=7, **context)  # type: ignore[arg-type]
    return trial.run(CANDIDATE, facts, lambda _phase, _detail: None), played.calls


def test_a_good_trial_goes_through_every_station_in_order(tmp_path: Path) -> None:
    outcome, calls = _run(Played(), tmp_path)
    assert calls == ["launch", "sanity", "measure", "check", "teardown"]
    assert outcome.status is Status.MEASURED
    assert outcome.objective == 100.0
    assert outcome.server.mode == "warm"
    assert set(outcome.seconds) == {"start", "warmup", "measure", "quality", "teardown", "total"}


def test_garbage_is_not_worth_measuring(tmp_path: Path) -> None:
    outcome, calls = _run(Played(garbage=GARBAGE), tmp_path)
    assert calls == ["launch", "sanity", "teardown"]
    assert (outcome.status, outcome.failure) == (Status.BROKEN, GARBAGE)


@pytest.mark.parametrize(
    ("reference", "checked"), [(None, True), (104.0, True), (106.0, False)], ids=["baseline", "may win", "cannot win"]
)
def test_accuracy_is_checked_only_where_it_can_matter(tmp_path: Path, reference: float | None, checked: bool) -> None:
    known = None if reference is None else Reference(value=reference)
    outcome, calls = _run(Played(), tmp_path, reference=known)
    assert ("check" in calls) is checked
    assert outcome.status is Status.MEASURED


def test_numerics_that_were_checked_before_are_not_checked_again(tmp_path: Path) -> None:
    known = QualityReport(passed=False, reason="2 points lost")
    outcome, calls = _run(Played(), tmp_path, known_quality=known)
    assert "check" not in calls
    assert outcome.quality is known


def test_accuracy_switched_off_asks_nothing(tmp_path: Path) -> None:
    outcome, calls = _run(Played(), tmp_path, check_quality=False)
    assert calls == ["launch", "measure", "teardown"]
    assert outcome.quality is None


def test_a_failed_launch_is_the_configurations_or_the_machines(tmp_path: Path) -> None:
    outcome, _ = _run(Played(launch_error=LaunchFailed(DEAD, ServerReport(log_path="x"))), tmp_path)
    assert (outcome.status, outcome.failure, outcome.server.log_path) == (Status.BROKEN, DEAD, "x")
    port = Failure(kind="port", cause="taken", blame=Blame.MACHINE, retry=True)
    outcome, _ = _run(Played(launch_error=LaunchFailed(port)), tmp_path)
    assert outcome.status is Status.DISTURBED


def test_a_death_under_load_keeps_what_was_measured_but_not_its_number(tmp_path: Path) -> None:
    partial = Measurement(metrics={"throughput/output": 50.0}, objective=None, complete=False)
    outcome, calls = _run(Played(measured=MeasurementFailed(DEAD, partial)), tmp_path)
    assert calls[-1] == "teardown"
    assert (outcome.status, outcome.objective, outcome.measurement) == (Status.BROKEN, None, partial)


def test_an_early_stop_is_a_bound(tmp_path: Path) -> None:
    behind = Measurement(metrics={}, objective=None, bound=70.0, complete=False)
    outcome, calls = _run(Played(measured=behind), tmp_path, reference=Reference(value=100.0))
    assert (outcome.status, outcome.objective) == (Status.BEHIND, 70.0)
    assert "check" not in calls


def test_a_server_that_runs_what_another_ran_is_not_measured(tmp_path: Path) -> None:
    outcome, calls = _run(Played(), tmp_path, twin=lambda _candidate, effective: effective["max-num-seqs"])
    assert calls == ["launch", "teardown"]
    assert (outcome.status, outcome.twin) == (Status.DUPLICATE, 8)


def test_no_valid_round_is_a_disturbance(tmp_path: Path) -> None:
    empty = Measurement(metrics={}, objective=None, notes=("round 1 thrown away: prefix cache was warm",))
    outcome, _ = _run(Played(measured=empty), tmp_path)
    assert outcome.status is Status.DISTURBED
    assert outcome.failure.cause.endswith("prefix cache was warm")


def test_an_interrupt_ends_the_server_first(tmp_path: Path) -> None:
    played = Played(measured=KeyboardInterrupt())  # type: ignore[arg-type]
    played.measure = lambda *_a, **_k: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        _run(played, tmp_path)
    assert played.calls == ["launch", "sanity", "teardown"]
