"""The live view of a study: a status line that moves in a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuner.model.candidate import Candidate
from tuner.model.choices import Choices, fit
from tuner.model.json import Json
from tuner.model.judge import misses
from tuner.model.measurement import Estimate
from tuner.model.outcome import Outcome, Status
from tuner.model.projection import value_of
from tuner.model.targets import against, figure, short_name
from tuner.model.words import VLLM_DEFAULTS
from tuner.model.workload import Limit, Objective

__all__ = ["StudyView"]

_MARKS = {
    Status.MEASURED: ("✓", "green"),
    Status.BEHIND: ("↓", "yellow"),
    Status.EXCLUDED: ("–", "dim"),
    Status.DUPLICATE: ("=", "dim"),
    Status.BROKEN: ("✗", "red"),
    Status.DISTURBED: ("!", "magenta"),
    Status.INTERRUPTED: ("■", "magenta"),
}
_ESTIMATE = ("≈", "cyan")
"""A replay's answer for a configuration that its table does not hold."""
_PHASE_WIDTH = 20
_LEAST_DETAIL = 10
_LONGEST = 200
"""Characters that a candidate's choices may take in one line; all of them stand in the report."""


class StudyView:
    """Shows a study as it goes on. Implements :class:`tuner.ports.Observer`; a context manager.

    In a terminal finished trials scroll up above a status line (trial, phase, best against baseline, time left).
    In a pipe every event is one line. With ``quiet`` nothing is shown.

    ``defaults`` are the server's own values of the parameters: a candidate is told by what departs from them.
    ``name`` is what the defaults are called.
    """

    def __init__(
        self,
        console: Console,
        objective: Objective,
        *,
        further: Sequence[Objective] = (),
        limits: Sequence[Limit] = (),
        defaults: Mapping[str, Json] | None = None,
        name: str = VLLM_DEFAULTS,
        budget_s: float | None = None,
        quiet: bool = False,
    ) -> None:
        self._further = tuple(further)
        self._limits = tuple(limits)
        self._choices = Choices(dict(defaults or {}), name=name)
        self._console = console
        self._objective = objective
        self._budget_s = budget_s
        self._quiet = quiet
        self._began = time.monotonic()
        self._defaults: list[float] = []
        self._defaults_feasible: bool | None = None
        self._best: float | None = None
        self._trial = ""
        self._phase = ("preparing", "")
        self._phase_began = self._began
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(get_renderable=self._status, console=self._console, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def trial_started(self, number: int, candidate: Candidate, *, done: int, total: int | None) -> None:
        """See :class:`tuner.ports.Observer`."""
        of = f" of {total}" if total is not None else ""
        self._trial = f"#{number} ({done + 1}{of})"
        self._phase = ("starting", "")
        self._phase_began = time.monotonic()
        self._line(Text.assemble((f"{self._trial} ", "bold"), self._describe(number, candidate)), live=False)

    def phase(self, phase: str, detail: str) -> None:
        """See :class:`tuner.ports.Observer`."""
        changed = phase != self._phase[0]
        if changed:
            self._phase_began = time.monotonic()
        self._phase = (phase, detail)
        if changed and self._live is None:
            self._line(Text(f"  {phase}{': ' + detail if detail else ''}", style="dim"))

    def trial_ended(self, number: int, outcome: Outcome, *, is_best: bool) -> None:
        """See :class:`tuner.ports.Observer`."""
        if outcome.candidate.origin == "baseline":
            self._count_default(outcome)
        if is_best or (self._best is None and outcome.feasible):
            self._best = outcome.objective
        mark, style = _MARKS[outcome.status]
        if outcome.status is Status.MEASURED and outcome.server is not None and outcome.server.mode == "estimate":
            mark, style = _ESTIMATE
        line = Text.assemble((f"{mark} ", style), (f"#{number:<3} ", "bold"), self._result(outcome))
        if is_best:
            line.append("  ← best", style="bold green")
        line.append(f"  {self._describe(number, outcome.candidate)}", style="dim")
        self._line(line)
        if is_best:
            self._choices.reference = (number, outcome.candidate.assignment)

    def _describe(self, number: int, candidate: Candidate) -> str:
        """One line for people: what the sampler chose beyond the defaults, or beside the best so far."""
        return fit(self._choices.words(number, candidate.assignment), _LONGEST, 1)[0]

    def _count_default(self, outcome: Outcome) -> None:
        """As :meth:`tuner.model.history.History.measured_baseline`: those that keep the limits, while there are any."""
        if outcome.objective is None or outcome.status is not Status.MEASURED:
            return
        if self._defaults_feasible is False and outcome.feasible:
            self._defaults.clear()
        if outcome.feasible or not self._defaults_feasible:
            self._defaults.append(outcome.objective)
            self._defaults_feasible = outcome.feasible

    @property
    def _baseline(self) -> float | None:
        """The mean over the defaults' trials so far, which the summary divides by as well."""
        return fmean(self._defaults) if self._defaults else None

    def resumed(self, baseline: Estimate | None, best: float | None) -> None:
        """See :class:`tuner.ports.Observer`."""
        self._defaults, self._best = [] if baseline is None else list(baseline.samples), best

    def message(self, text: str) -> None:
        """See :class:`tuner.ports.Observer`."""
        self._line(Text(f"· {text}", style="cyan"))

    def _result(self, outcome: Outcome) -> Text:
        seconds = outcome.seconds.get("total")
        took = f" in {seconds:.0f} s" if seconds else ""
        if outcome.status is Status.BEHIND:
            bound = "" if outcome.objective is None else f" (at best {figure(outcome.objective, self._objective.unit)})"
            return Text(f"stopped early, behind the best{bound}{took}")
        if outcome.status is Status.DUPLICATE:
            return Text(f"runs the same as #{outcome.twin}: not measured again")
        if outcome.exclusion is not None:
            return Text(f"not launched: {outcome.exclusion.reason}")
        if outcome.failure is not None:
            after = f" (after {seconds:.0f} s)" if seconds else ""
            return Text(f"{outcome.failure.kind}: {outcome.failure.cause.rstrip('.')}{after}")
        if outcome.objective is None:
            return Text(outcome.status.value)
        text = Text(figure(outcome.objective, self._objective.unit))
        estimate = outcome.measurement.objective if outcome.measurement else None
        if estimate is not None and len(estimate.samples) > 1 and estimate.value:
            text.append(f" ±{(estimate.high - estimate.low) / 2 / abs(estimate.value):.1%}")
        if outcome.candidate.origin != "baseline" and (compared := against(outcome.objective, self._baseline)):
            text.append(f" ({compared})")
        for objective in self._further:
            value = value_of(outcome, objective.metric)
            text.append(f", {short_name(objective.metric)} {'?' if value is None else figure(value, objective.unit)}")
        if outcome.server is not None and outcome.server.mode == "estimate":
            text.append(" estimated")
        missed = misses(outcome, self._limits)
        if outcome.constraints.get("accuracy", -1.0) > 0:
            missed.append(f"accuracy worse than {self._choices.name} allow")
        if missed:
            text.append(f" misses: {', '.join(missed)}", style="red")
        text.append(took)
        return text

    def _status(self) -> Group:
        grid = Table.grid(padding=(0, 2))
        phase, detail = self._phase
        waited = time.monotonic() - self._phase_began
        cells = [
            Text(self._trial or "study", style="bold"),
            Text(f"{phase[:_PHASE_WIDTH]} {waited:.0f} s", style="cyan"),
            Text(_cut(detail, max(_LEAST_DETAIL, self._console.width - 100)), style="dim"),
        ]
        if self._best is not None:
            compared = against(self._best, self._baseline)
            best = figure(self._best, self._objective.unit)
            cells.append(Text(f"best {best}{f' ({compared})' if compared else ''}", style="green"))
        if self._budget_s is not None:
            left = max(0.0, self._budget_s - (time.monotonic() - self._began))
            cells.append(Text(f"{left / 60:.0f} min left"))
        grid.add_row(*cells)
        return Group(grid)

    def _line(self, text: Text, *, live: bool = True) -> None:
        if self._quiet or (self._live is not None and not live):
            return
        self._console.print(text, soft_wrap=True, highlight=False)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"
