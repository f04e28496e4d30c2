"""The loop: baseline, known good starts, search, the best made plainer, confirmation. Knows ports and model only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from tuner.account import Account
from tuner.errors import InputError, StudyStopped
from tuner.interrupts import interrupts
from tuner.model.candidate import Candidate
from tuner.model.confirmation import LEAST_STARTS, finalists, reserve_for, worth_confirming
from tuner.model.front import pareto_front
from tuner.model.history import Comparison, History, Judgement, Trial
from tuner.model.json import Json, Scalar
from tuner.model.judge import constraints, misses
from tuner.model.loads import load_answers
from tuner.model.measurement import QualityReport
from tuner.model.outcome import Outcome, Status
from tuner.model.patience import hopeless
from tuner.model.projection import value_of
from tuner.model.records import from_record, to_record
from tuner.model.summary import summarise
from tuner.model.targets import counted, duration, short_name
from tuner.model.words import defaults_name, sentences
from tuner.ports import (
    Observer,
    Optimizer,
    Planner,
    Reference,
    StudyInfo,
    Suggestion,
    Tracker,
    TrialContext,
    TrialRunner,
)

__all__ = ["Budget", "Result", "Study"]

_TRIES = 3
"""So often is a candidate run again when the machine was at fault."""

_Asked: TypeAlias = tuple[Suggestion, Candidate]

_SPENT, _NOTHING_LEFT = "the budget of", "nothing feasible is left to try"

_MOST_TURNS = 8
"""Turns of a confirmation whose finalist changes again and again."""

_LEAST_FOR_PLAINER = 10
"""Trials of a budget from which on one goes to the best with fewer settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run of the study may spend; whichever ends first. Failed launches count.

    Attributes:
        trials: launched trials, confirmation included (None: no bound).
        seconds: wall time (None: no bound).
        min_gain: the search ends when the model expects less than this relative gain.
    """

    trials: int | None = None
    seconds: float | None = None
    min_gain: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a study ended. ``reason`` is one sentence: why it ended when it did."""

    history: History
    judgement: Judgement | None
    reason: str
    wall_seconds: float


@dataclass
class Study:
    """One study of one space on one machine. State lives in the optimizer's storage and the tracker."""

    info: StudyInfo
    planner: Planner
    optimizer: Optimizer
    runner: TrialRunner
    tracker: Tracker
    observer: Observer
    compare: Callable[..., Comparison]
    budget: Budget
    seed: int = 0
    check_quality: bool = True
    _history: History = field(init=False)
    _known_quality: dict[str, QualityReport] = field(default_factory=dict, init=False)
    _twins: dict[str, int] = field(default_factory=dict, init=False)
    _account: Account = field(init=False)
    _spent_before: float = field(default=0.0, init=False)
    _over: bool = field(default=False, init=False)
    _open: _Asked | None = field(default=None, init=False)
    _plain: bool = field(default=False, init=False)
    """Whether the best was asked for with fewer settings already."""

    def run(self) -> Result:
        """Run to the end of the budget, or until nothing more is to be expected.

        Raises:
            StudyStopped: going on would mislead or waste; what was measured is kept.
            KeyboardInterrupt: passed on after the trial in flight was closed.
        """
        self._account = Account.read(self.info.directory / "progress.json")
        with self._account.timed("search"):
            self._resume()
        try:
            reason = self._to_the_end()
        except KeyboardInterrupt:
            # Once more: it may have come just before the end was begun, and there is only one.
            self._end("KILLED")
            raise
        return Result(
            history=self._history,
            judgement=self._judgement(),
            reason=reason,
            wall_seconds=self._account.running,
        )

    def _to_the_end(self) -> str:
        status = "FAILED"
        try:
            with self._account.timed("tracking"), interrupts.held():
                self.tracker.open(self.info)
            reason = self._phases()
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            self._end(status)
        return reason

    def _end(self, status: str) -> None:
        """Leave nothing running and nothing open; a second call does nothing."""
        with interrupts.held():
            if self._over:
                return
            self._over = True
            self.runner.close()
            if self._open is not None:
                self._close(self._open[0], Outcome(candidate=self._open[1], status=Status.INTERRUPTED))
            with self._account.timed("tracking"):
                self.tracker.study_ended(status, self.summary(), ())
            self._account.write(finished=status == "FINISHED")

    def _phases(self) -> str:
        self._baseline()
        for candidate in self.planner.starts():
            if self._search_over(spare=False) is not None:
                break
            if not self._seen(candidate):
                self._trial(candidate.origin, candidate.assignment)
        reason = self._search()
        if not self._tried_plainer() and reason.startswith(_SPENT):
            reason = self._search()  # what was kept back for it
        self._confirm()
        return self._use_up() if reason.startswith(_SPENT) else reason

    def _search(self) -> str:
        """Search until something ends it; says what."""
        reason = self._search_over()
        while reason is None:
            if not self._searched():
                return _NOTHING_LEFT
            reason = self._search_over()
        return reason

    def _tried_plainer(self) -> bool:
        """Try the best without settings that seem to do nothing; False if there is nothing of the kind to try."""
        best = next(iter(self._history.contenders()), None)
        wanted = self._spares() and not self._out_of_budget(slack=1.0)
        self._plain = True
        if not wanted or best is None or best.confirmed or not worth_confirming(self._history, self.info.limits):
            return False
        with self._account.timed("search"):
            plainer = self.optimizer.plainer(best.candidate.assignment)
        if plainer is None:
            return False
        self.observer.message("the best so far, without settings that seem to do nothing:")
        self._trial("plainer", plainer)
        return True

    def _spares(self) -> bool:
        """Whether the search leaves a trial for it: not yet taken, and the budget is no handful."""
        return not self._plain and (self._total() == 0 or self._total() >= _LEAST_FOR_PLAINER)

    def _searched(self) -> bool:
        """Try the search's next suggestion; False if it has none."""
        asked = self._ask()
        if asked is None:
            return False
        self._run(asked)
        self._stop_if_hopeless()
        return True

    def _use_up(self) -> str:
        """Search with what the confirmation was given and had no use for; whoever is found meanwhile is confirmed."""
        while not self._out_of_budget(slack=1.0):
            before = len(self._history.trials)
            self._confirm()
            if len(self._history.trials) == before and not self._searched():
                return _NOTHING_LEFT
        return self._spent()

    # -- phases ---------------------------------------------------------------------------------------------

    def _baseline(self) -> None:
        """vLLM's own defaults; without them there is nothing to be better than."""
        if self._history.baseline() is not None:
            return
        outcome = self._trial("baseline", {})
        self._require_objectives(outcome)
        if outcome.status is Status.MEASURED and self._history.baseline() is not None:
            return
        if outcome.status is Status.MEASURED:
            missed = ", ".join(misses(outcome, self.info.limits))
            # The baseline may miss a limit that a better configuration keeps: it stays the yardstick.
            self.observer.message(f"the baseline itself misses: {missed}; candidates are judged by the limits")
            return
        cause = outcome.failure.cause if outcome.failure else outcome.exclusion.reason if outcome.exclusion else ""
        advice = outcome.failure.advice if outcome.failure else ""
        first = f"the baseline cannot run: {cause or outcome.status.value}"
        raise StudyStopped(f"{sentences(first, advice)} See {self._directory(self._history.trials[-1].number)}")

    def _require_objectives(self, outcome: Outcome) -> None:
        """What the defaults have no figure of cannot be traded."""
        if outcome.status is not Status.MEASURED:
            return
        for objective in self.info.further:
            if value_of(outcome, objective.metric) is None:
                have = ", ".join(sorted(outcome.measurement.metrics)) if outcome.measurement is not None else "nothing"
                whose = defaults_name(self.info.facts.get("kind"))
                raise InputError(
                    f"--objective {short_name(objective.metric)}: was not measured for {whose}; there is {have}"
                )

    def _confirm(self) -> None:
        """Finalists against the baseline, in turns, each on a fresh server with fresh prompts."""
        for turn in range(_MOST_TURNS):
            left = self._starts_left()
            found = finalists(self._history, self.info.limits, left=left, total=self._total())
            if not found:
                return
            starts = [replace(candidate, origin="confirm") for candidate in found]
            if left != 1 and not self._alone(left):
                starts.append(self.planner.baseline())
            for candidate in starts if turn % 2 == 0 else reversed(starts):
                if self._out_of_budget(slack=1.0):
                    if not any(c.confirmed >= LEAST_STARTS for c in self._history.contenders()):
                        self.observer.message("the budget ended before a winner was confirmed on fresh starts")
                    return
                self._trial("confirm", candidate.assignment, confirm_of=candidate)

    def _alone(self, left: int | None) -> bool:
        """Whether the finalist is started without the baseline beside it.

        A baseline that misses a limit is no yardstick; and where an earlier finalist failed and the last two trials
        are left, two of the new one say more than a third of the baseline.
        """
        baseline = self._history.baseline()
        if baseline is None:
            return True
        anew = not any(contender.confirmed for contender in self._history.contenders())
        return anew and left is not None and left <= LEAST_STARTS <= len(baseline.trials)

    def _starts_left(self) -> int | None:
        """Trials that still fit in the budget; None for no bound."""
        left = [] if self.budget.trials is None else [self.budget.trials - self._history.spent(self._account.since)]
        typical = self._history.typical_seconds()
        if self.budget.seconds is not None and typical:
            left.append(int((self.budget.seconds - self._elapsed()) / typical))
        return max(min(left), 0) if left else None

    # -- one trial ------------------------------------------------------------------------------------------

    def _ask(self) -> _Asked | None:
        try:
            return self._asked()
        except StudyStopped as stopped:
            self.observer.message(str(stopped))
            return None

    def _asked(self, *what: Any, confirm_of: Candidate | None = None) -> _Asked:
        """A suggestion and its candidate, open until its trial is closed, whatever comes between."""
        with self._account.timed("search"), interrupts.held():
            suggestion = self.optimizer.ask(*what)
            self._open = asked = (suggestion, confirm_of or self._rendered(suggestion))
        return asked

    def _rendered(self, suggestion: Suggestion) -> Candidate:
        if suggestion.origin == "baseline":
            return self.planner.baseline()
        return self.planner.render(suggestion.assignment, origin=suggestion.origin)

    def _trial(self, origin: str, assignment: Mapping[str, Scalar], confirm_of: Candidate | None = None) -> Outcome:
        return self._run(self._asked(origin, assignment, confirm_of=confirm_of))

    def _run(self, asked: _Asked) -> Outcome:
        """Run a suggestion; again, as a trial of its own, while the machine is at fault."""
        for attempt in range(_TRIES):
            suggestion, candidate = asked
            outcome = self._once(suggestion, candidate, attempt)
            retry = outcome.status is Status.DISTURBED and outcome.failure is not None and outcome.failure.retry
            if not retry or attempt + 1 == _TRIES or self._out_of_budget(slack=0.0):
                break
            cause = outcome.failure.cause if outcome.failure else ""
            self.observer.message(f"trial {suggestion.number} was disturbed ({cause}); trying it again")
            asked = self._asked(suggestion.origin, suggestion.assignment, confirm_of=candidate)
        return outcome

    def _once(self, suggestion: Suggestion, candidate: Candidate, attempt: int) -> Outcome:
        exclusion = self.planner.exclusion(candidate)
        if exclusion is not None:
            outcome = Outcome(candidate=candidate, status=Status.EXCLUDED, exclusion=exclusion)
            return self._close(suggestion, outcome)
        self.observer.trial_started(
            suggestion.number, candidate, done=self._history.spent(self._account.since), total=self.budget.trials
        )
        with interrupts.held():
            self.tracker.trial_started(suggestion.number, candidate)
        try:
            outcome = self.runner.run(candidate, self._context(suggestion, candidate, attempt), self.observer.phase)
        except KeyboardInterrupt:
            self._close(suggestion, Outcome(candidate=candidate, status=Status.INTERRUPTED))
            raise
        except StudyStopped:
            self._close(suggestion, Outcome(candidate=candidate, status=Status.DISTURBED))
            raise
        if outcome.server is not None:
            forecast = self.planner.forecast(candidate)
            outcome = replace(outcome, server=replace(outcome.server, forecast=forecast))
        return self._close(suggestion, outcome)

    def _context(self, suggestion: Suggestion, candidate: Candidate, attempt: int) -> TrialContext:
        full = suggestion.origin in ("baseline", "plainer", "confirm")
        best = self._history.best()
        reference = None
        # With several objectives, what is far behind in the first may be the best in another.
        if best is not None and not full and not self.info.further:
            samples = [
                s for t in best.trials if (m := t.outcome.measurement) and m.objective for s in m.objective.samples
            ]
            reference = Reference(value=best.value, samples=tuple(samples))
        return TrialContext(
            number=suggestion.number,
            directory=self._directory(suggestion.number),
            seed=_fresh_seed(self.seed, self.info.name, suggestion.number, attempt),
            reference=reference,
            baseline_quality=self._history.baseline_quality(),
            known_quality=self._known_quality.get(self.planner.numerics(candidate)),
            check_quality=self.check_quality,
            twin=None if full else self._twin,
        )

    def _close(self, suggestion: Suggestion, outcome: Outcome) -> Outcome:
        """Write a trial down everywhere, once: constraints, storage, tracker, memory."""
        with interrupts.held():
            return self._write_down(suggestion, outcome)

    def _write_down(self, suggestion: Suggestion, outcome: Outcome) -> Outcome:
        self._open = None
        if outcome.status is Status.DUPLICATE and outcome.twin is not None:
            outcome = self._as_twin(outcome, outcome.twin)
        outcome = replace(
            outcome,
            constraints=constraints(
                self.info.limits,
                failure=outcome.failure,
                exclusion=outcome.exclusion,
                measurement=outcome.measurement,
                quality=outcome.quality,
            ),
        )
        before = self._history.best()
        with self._account.timed("search"):
            self.optimizer.tell(suggestion.number, outcome, to_record(outcome))
        self._remember(Trial(number=suggestion.number, origin=suggestion.origin, outcome=outcome))
        best = self._history.best()
        is_best = (
            best is not None
            and outcome.feasible
            and best.candidate.key == outcome.candidate.key
            and (before is None or before.candidate.key != best.candidate.key)
        )
        directory = self._directory(suggestion.number)
        if outcome.status is not Status.EXCLUDED:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "trial.json").write_text(json.dumps(to_record(outcome), indent=1), encoding="utf-8")
        with self._account.timed("tracking"):
            self.tracker.trial_ended(suggestion.number, outcome, directory=directory, is_best=is_best)
        self._account.write(finished=False)
        self.observer.trial_ended(suggestion.number, outcome, is_best=is_best)
        return outcome

    def _as_twin(self, outcome: Outcome, number: int) -> Outcome:
        twin = next((t.outcome for t in self._history.trials if t.number == number), None)
        if twin is None:
            return outcome
        return replace(
            outcome,
            objective=twin.objective,
            measurement=twin.measurement,
            quality=twin.quality,
            failure=twin.failure,
        )

    def _twin(self, candidate: Candidate, effective: Mapping[str, Json]) -> int | None:
        return self._twins.get(self.planner.effective_identity(candidate, effective))

    def _remember(self, trial: Trial) -> None:
        outcome = trial.outcome
        self._history.add(trial)
        if outcome.status is Status.MEASURED:
            if outcome.server is not None:
                identity = self.planner.effective_identity(outcome.candidate, outcome.server.effective)
                self._twins.setdefault(identity, trial.number)
            if outcome.quality is not None:
                self._known_quality.setdefault(self.planner.numerics(outcome.candidate), outcome.quality)

    # -- when to end ----------------------------------------------------------------------------------------

    def _search_over(self, *, spare: bool = True) -> str | None:
        """Why the search ends now and confirmation begins; None to go on. ``spare``: one trial more is left alone."""
        done, more = self._history.spent(self._account.since), int(spare and self._spares())
        if self.budget.trials is not None and done + more + self._reserve(self.budget.trials) >= self.budget.trials:
            return self._spent()
        if self.budget.seconds is not None:
            typical = self._history.typical_seconds()
            reserve = typical * (more + self._reserve(int(self.budget.seconds / typical))) if typical else 0.0
            if self._elapsed() + reserve + typical > self.budget.seconds:
                return self._spent()
        with self._account.timed("search"):
            gain = self.optimizer.expected_gain()
        if gain is not None and gain < self.budget.min_gain:
            return f"the model expects less than {self.budget.min_gain:.1%} more"
        return None

    def _spent(self) -> str:
        """Which bound of the budget was met; of two, the one that has nothing left."""
        trials = self.budget.trials
        if trials is not None and (self.budget.seconds is None or self._history.spent(self._account.since) >= trials):
            return f"{_SPENT} {counted(trials, 'trial')} is spent"
        return f"{_SPENT} {duration(self.budget.seconds or 0.0)} is spent"

    def _reserve(self, total: int) -> int:
        points = len(self.info.workload.points)
        if self._history.trials and not worth_confirming(self._history, self.info.limits):
            return 0  # what was kept back goes to the search, until it finds something
        reserve = reserve_for(total, questions=max(points, 1 + len(self.info.further)))
        return reserve if self._history.baseline() is not None else (reserve + 1) // 2  # nobody to take turns with

    def _total(self) -> int:
        """Trials that the whole budget holds, whichever bound comes first."""
        typical = self._history.typical_seconds()
        bounds = [] if self.budget.trials is None else [self.budget.trials]
        if self.budget.seconds is not None and typical:
            bounds.append(int(self.budget.seconds / typical))
        return min(bounds, default=0)

    def _out_of_budget(self, *, slack: float) -> bool:
        """Whether another trial does not fit; ``slack`` typical trials must still fit in the time."""
        if self.budget.trials is not None and self._history.spent(self._account.since) >= self.budget.trials:
            return True
        if self.budget.seconds is None:
            return False
        return self._elapsed() + slack * self._history.typical_seconds() > self.budget.seconds

    def _elapsed(self) -> float:
        return self._spent_before + self._account.running

    def _stop_if_hopeless(self) -> None:
        why = hopeless(self._history)
        if why is not None:
            raise StudyStopped(why)

    # -- resume ---------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Read every closed trial back; a run that was cut off goes on with what it had left."""
        self._history = History(
            objective=self.info.objective, baseline_key=self.planner.baseline().key, further=self.info.further
        )
        past = self.optimizer.past()
        for item in past:
            if item.record:
                outcome = from_record(item.record)
                self._remember(Trial(number=item.number, origin=item.origin, outcome=outcome))
        if self._account.finished:
            self._account.since = max((item.number for item in past), default=-1) + 1
        else:
            self._spent_before = self._history.seconds(self._account.since)
            mine = [trial for trial in self._history.trials if trial.number >= self._account.since]
            cut = (Status.INTERRUPTED, Status.DISTURBED)
            self._plain = any(trial.origin == "plainer" and trial.outcome.status not in cut for trial in mine)
        if past:
            self.observer.message(f"going on with {counted(len(past), 'earlier trial')} of study {self.info.name}")
            best = self._history.best()
            self.observer.resumed(self._history.default_value(), None if best is None else best.value)
        self._account.write(finished=False)

    def _seen(self, candidate: Candidate) -> bool:
        identity = self.planner.identity(candidate)
        return any(
            self.planner.identity(t.outcome.candidate) == identity
            for t in self._history.trials
            if t.outcome.status not in (Status.DISTURBED, Status.INTERRUPTED)
        )

    def _directory(self, number: int) -> Path:
        return self.info.directory / "trials" / f"{number:04d}"

    # -- results --------------------------------------------------------------------------------------------

    def _judgement(self) -> Judgement | None:
        winner = self._history.winner()
        return None if winner is None else self._history.judge(winner, self.compare)

    def summary(self) -> dict[str, Json]:
        """Plain figures for trackers and scripts."""
        return summarise(
            self._history,
            self._judgement(),
            loads=load_answers(self._history, self.info.limits, self.compare),
            front=pareto_front(self._history, self.compare),
        )


def _fresh_seed(seed: int, study: str, number: int, attempt: int) -> int:
    """A seed that no other trial of this study used, the same again on a rerun of the same try."""
    text = f"{seed}/{study}/{number}/{attempt}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") & 0x7FFFFFFF
