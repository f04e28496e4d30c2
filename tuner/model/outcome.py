"""How a trial ended, and whose doing it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.measurement import Measurement, QualityReport, ServerReport

__all__ = ["Blame", "Failure", "Outcome", "Status"]


class Status(StrEnum):
    """The seven ways a trial ends."""

    MEASURED = "measured"
    """Ran to the end; limits and accuracy are kept or not (see ``constraints``)."""
    BEHIND = "behind"
    """Stopped early: clearly no better than the best; ``measurement.bound`` holds."""
    EXCLUDED = "excluded"
    """Never launched: a rule or the memory estimate says it cannot run."""
    DUPLICATE = "duplicate"
    """Runs the same as an earlier trial, whose result it takes."""
    BROKEN = "broken"
    """The configuration's own fault: cannot start, dies, or writes garbage."""
    DISTURBED = "disturbed"
    """The machine's fault: worth another try, tells nothing about the configuration."""
    INTERRUPTED = "interrupted"
    """The user or a signal ended it."""


class Blame(StrEnum):
    """Whose fault a failure is."""

    CONFIGURATION = "configuration"
    MACHINE = "machine"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A classified failure.

    Attributes:
        kind: stable class name (``kv-too-small``, ``cuda-oom``, ``attn-invalid``, ``hang``, ``garbage``, ``unknown``).
        cause: the root cause in one sentence, with its numbers.
        blame: whose fault it is.
        retry: whether the same candidate deserves another try.
        phase: where it happened: ``launch``, ``imports``, ``weights``, ``compile``, ``profile``, ``capture``,
            ``serve``, ``measure``, ``quality``, ``teardown``.
        violation: graded constraint (GiB missing and the like, > 0), None where no number is known.
        advice: what to change, one sentence.
        excerpt: the log lines it was read from.
    """

    kind: str
    cause: str
    blame: Blame
    retry: bool = False
    phase: str = "launch"
    violation: float | None = None
    advice: str = ""
    excerpt: str = ""

    @property
    def fingerprint(self) -> str:
        """Same root cause, same fingerprint (numbers do not count)."""
        return (
            self.kind
            if self.kind != "unknown"
            else "unknown:" + "".join(ch for ch in self.cause[:120] if not ch.isdigit())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything one trial brought.

    Attributes:
        constraints: name → graded violation, ≤ 0 means kept; the same names for every trial of a study.
        objective: the objective's value where one was measured.
        seconds: wall time by phase (``start``, ``warmup``, ``measure``, ``quality``, ``teardown``, ``total``).
        twin: number of the trial whose result a duplicate takes.
    """

    candidate: Candidate
    status: Status
    objective: float | None = None
    measurement: Measurement | None = None
    quality: QualityReport | None = None
    server: ServerReport | None = None
    failure: Failure | None = None
    exclusion: Exclusion | None = None
    constraints: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    twin: int | None = None

    @property
    def feasible(self) -> bool:
        """Measured to the end, every limit kept, accuracy no worse."""
        return (
            self.status in (Status.MEASURED, Status.DUPLICATE)
            and self.objective is not None
            and all(value <= 0 for value in self.constraints.values())
        )
