"""What the loop needs from the world. Adapters implement these; the loop knows nothing else of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.json import Json, Scalar
from tuner.model.measurement import Estimate, Measurement, QualityReport, ServerReport
from tuner.model.outcome import Failure, Outcome
from tuner.model.workload import Limit, Objective, Workload

__all__ = [
    "LaunchFailed",
    "Launcher",
    "LoadGenerator",
    "MeasurementFailed",
    "Observer",
    "Optimizer",
    "Past",
    "Planner",
    "Progress",
    "QualityCheck",
    "Reference",
    "Server",
    "StudyInfo",
    "Suggestion",
    "Tracker",
    "TrialContext",
    "TrialRunner",
]

Progress = Callable[[str, str], None]
"""Called with (phase, detail) as a trial moves on; must return quickly and never raise."""


class LaunchFailed(Exception):
    """A server did not come up. ``failure`` says why, ``report`` what was seen of it until then."""

    def __init__(self, failure: Failure, report: ServerReport | None = None) -> None:
        super().__init__(failure.cause)
        self.failure = failure
        self.report = report


class MeasurementFailed(Exception):
    """A running server could not be measured, or what was measured is not to be believed."""

    def __init__(self, failure: Failure, partial: Measurement | None = None) -> None:
        super().__init__(failure.cause)
        self.failure = failure
        self.partial = partial


class Server(Protocol):
    """A running vLLM server that is known to be ours."""

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT`` without a trailing slash."""
        ...

    @property
    def api_key(self) -> str:
        """Bearer token; never logged."""
        ...

    @property
    def model_name(self) -> str:
        """The served model name."""
        ...

    @property
    def report(self) -> ServerReport: ...

    def failure(self) -> Failure | None:
        """Why the server is dead or stuck; None while it is well."""
        ...

    def run_client(
        self, argv: Sequence[str], *, log_path: Path, timeout_s: float, watch: Callable[[], bool] | None = None
    ) -> int:
        """Run a ``vllm`` sub-command (``["bench", "serve", …]``) beside the server, forked warm where possible.

        ``watch`` is called about once a second; returning False ends the client early. Returns the exit code
        (-1 if ended early by ``watch``). ``OPENAI_API_KEY`` in its environment carries the key.

        Raises:
            MeasurementFailed: the client hung past ``timeout_s`` or the server died under it.
        """
        ...


class Launcher(Protocol):
    """Starts servers."""

    def launch(self, candidate: Candidate, *, directory: Path, progress: Progress) -> AbstractContextManager[Server]:
        """Start one server, wait until it is ready and proven to be ours; on exit end every process of it.

        Args:
            directory: the trial's own folder; ``server.log`` is written there.

        Raises:
            LaunchFailed: on entering, with the classified cause.
            tuner.errors.StudyStopped: on leaving, when the machine does not give back port or memory.
        """
        ...

    def close(self) -> None:
        """End everything the launcher still holds (warm parents). Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a challenger must beat: the best so far. ``samples`` are per-round objective values."""

    value: float
    samples: tuple[float, ...] = ()


class LoadGenerator(Protocol):
    """Warms up and measures."""

    def measure(
        self,
        server: Server,
        *,
        seed: int,
        directory: Path,
        progress: Progress,
        reference: Reference | None = None,
    ) -> Measurement:
        """Measure all load points on the server, with prompts nobody sent before (``seed`` is fresh per trial).

        ``reference`` allows an early stop when the candidate is clearly behind.

        Raises:
            MeasurementFailed: failed requests, dead server, numbers that contradict the counters.
        """
        ...


class QualityCheck(Protocol):
    """Decides whether what comes out is still right."""

    def sanity(self, server: Server) -> Failure | None:
        """A factual completion; a Failure of kind ``garbage`` if the answer is nonsense."""
        ...

    def check(
        self, server: Server, *, baseline: QualityReport | None, directory: Path, progress: Progress
    ) -> QualityReport:
        """Question sets and agreement, judged against the baseline (None: this is the baseline).

        Raises:
            MeasurementFailed: the server died or answered with errors.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """What a trial may know of the study around it.

    Attributes:
        number: the storage's trial number.
        directory: the trial's own folder; everything the trial writes lies there.
        seed: fresh per trial and try, so that no prompt was ever sent before.
        reference: the best feasible result so far, for an early stop and for "can it still win"; None for the
            baseline and for confirmations (they are always measured and checked in full).
        baseline_quality: the baseline's report, None while there is none.
        known_quality: the report of an earlier trial with the same numerics, which then need not be checked again.
        check_quality: False where accuracy is meaningless (dummy weights) or the user switched it off.
    """

    number: int
    directory: Path
    seed: int
    reference: Reference | None = None
    baseline_quality: QualityReport | None = None
    known_quality: QualityReport | None = None
    check_quality: bool = True
    twin: Callable[[Candidate, Mapping[str, Json]], int | None] | None = None
    """Given what the started server really runs, the earlier trial that ran the same; None if it is new."""


class TrialRunner(Protocol):
    """Runs one candidate to its end. vLLM on this machine, an external command, or a replayed table."""

    @property
    def kind(self) -> str:
        """``vllm``, ``external`` or ``replay``: shown wherever results are shown."""
        ...

    def run(self, candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
        """Never raises for what a trial can do wrong: that is the outcome. ``constraints`` are left to the study.

        Raises:
            KeyboardInterrupt: passed on after everything the trial started has ended.
            tuner.errors.StudyStopped: the machine is not fit to go on.
        """
        ...

    def close(self) -> None:
        """End everything held between trials. Safe to call twice."""
        ...


class Planner(Protocol):
    """Knows the space: what an assignment means, what cannot start, and what is the same."""

    def baseline(self) -> Candidate: ...

    def starts(self) -> Sequence[Candidate]: ...

    def render(self, assignment: Mapping[str, Scalar], *, origin: str = "search") -> Candidate: ...

    def exclusion(self, candidate: Candidate) -> Exclusion | None:
        """Why this candidate is not to be launched; None if nothing speaks against it."""
        ...

    def doubts(self, candidate: Candidate) -> Sequence[float]:
        """For each thing that vLLM is known to refuse and this space does not forbid: how sure that is, 0 if not asked.

        Chances below 1, always as many and in the same order; none where nothing is known. Launches may refute them.
        """
        ...

    def identity(self, candidate: Candidate) -> str:
        """Key of what would really run: candidates that differ only in no-op settings share it."""
        ...

    def effective_identity(self, candidate: Candidate, effective: Mapping[str, Json]) -> str:
        """The same, decided by the started server's own report."""
        ...

    def forecast(self, candidate: Candidate) -> Mapping[str, float]:
        """What the server is expected to report, by the names of its effective configuration."""
        ...

    def numerics(self, candidate: Candidate) -> str:
        """Key of everything that can change the tokens that come out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A trial to run. ``number`` is the storage's trial number."""

    number: int
    assignment: Mapping[str, Scalar]
    origin: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A finished trial read back from the storage on resume."""

    number: int
    assignment: Mapping[str, Scalar]
    origin: str
    status: str
    objective: float | None
    constraints: Mapping[str, float]
    record: Mapping[str, Json] = field(default_factory=dict)


class Optimizer(Protocol):
    """Ask and tell, with everything kept in the storage as it happens."""

    def ask(self, origin: str = "search", assignment: Mapping[str, Scalar] | None = None) -> Suggestion:
        """The next trial. With ``assignment``, exactly that one (baseline, starts, confirmation).

        Excluded candidates are weeded out inside (they are recorded, and cost no suggestion).

        Raises:
            tuner.errors.StudyStopped: nothing feasible is left to try.
        """
        ...

    def tell(self, number: int, outcome: Outcome, record: Mapping[str, Json]) -> None:
        """Close a trial, exactly once. ``record`` is kept with it (JSON) and comes back in :meth:`past`."""
        ...

    def past(self) -> Sequence[Past]:
        """Every closed trial of this study, in order. RUNNING leftovers of a killed process are closed first."""
        ...

    def expected_gain(self) -> float | None:
        """Relative gain over the best that the model still expects (0.01 = 1 %); None if it cannot say."""
        ...

    def plainer(self, assignment: Mapping[str, Scalar]) -> Mapping[str, Scalar] | None:
        """The same without settings that the model takes to do nothing, never tried before; None if there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyInfo:
    """What identifies a study to people and to trackers. All plain values, no secrets."""

    name: str
    hardware: str
    model: str
    workload: Workload
    objective: Objective
    limits: tuple[Limit, ...] = ()
    directory: Path
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Json] = field(default_factory=dict)
    further: tuple[Objective, ...] = ()
    """Objectives beside the first: the study then looks for a Pareto front."""


class Tracker(Protocol):
    """Where people look at trials. Never stops a study: what cannot be sent is kept and sent later."""

    def open(self, info: StudyInfo) -> None: ...

    def trial_started(self, number: int, candidate: Candidate) -> None: ...

    def trial_ended(self, number: int, outcome: Outcome, *, directory: Path, is_best: bool) -> None:
        """Log parameters (asked and in effect), metrics, tags and the artifacts in ``directory``."""
        ...

    def study_ended(self, status: str, summary: Mapping[str, Json], artifacts: Sequence[Path]) -> None:
        """``status``: FINISHED, KILLED or FAILED. Idempotent."""
        ...


class Observer(Protocol):
    """Who watches a study: the live view, or nobody."""

    def trial_started(self, number: int, candidate: Candidate, *, done: int, total: int | None) -> None: ...

    def phase(self, phase: str, detail: str) -> None: ...

    def trial_ended(self, number: int, outcome: Outcome, *, is_best: bool) -> None: ...

    def resumed(self, baseline: Estimate | None, best: float | None) -> None:
        """The objective of the defaults (a sample per trial) and of the best so far, known from earlier runs."""
        ...

    def message(self, text: str) -> None:
        """Something a person should know; one line."""
        ...
