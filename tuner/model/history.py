"""What a study knows so far: its trials, the baseline, the best, and how sure the difference is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from tuner.model.candidate import Candidate
from tuner.model.intervals import mean_estimate
from tuner.model.measurement import Estimate, QualityReport
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Objective

__all__ = ["Comparison", "Contender", "History", "Judgement", "Trial"]

LAUNCHED = frozenset({Status.MEASURED, Status.BEHIND, Status.BROKEN, Status.DISTURBED})
"""Statuses that spent budget: excluded candidates and duplicates cost none."""

_START_NOISE = 0.01
"""Relative spread between starts of one configuration, assumed while only one start is known. Repeats on an H200
differ by 0.1 to 0.8 %, on two CPU cores by 2 to 4 %; the confirmation replaces the assumption by starts."""

_ALPHA = 0.01
"""Error rate of a verdict, as :data:`tuner.measuring.statistics.ALPHA`; shared among all where one is picked."""


class Comparison(Protocol):
    """Result of comparing a challenger with a reference; gains are relative, positive is better."""

    @property
    def verdict(self) -> str: ...
    @property
    def gain(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def halves(self) -> tuple[float, float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The winner against the baseline.

    Attributes:
        verdict: ``better``, ``worse`` or ``no significant difference``.
        gain, low, high: relative difference of the objective (0.6 = 60 % better) and its interval.
        level: confidence of the interval, one minus the error rate of the verdict: 0.99, or more where the best of
            many was picked.
        basis: what the interval stands on: ``starts`` (each sample is a server start of its own) or ``rounds``.
        challenger_starts, baseline_starts: server starts behind it.
        single: every start brought a single value; there were no rounds.
        estimated: a side of it rests on answers that a replay estimated; the interval says nothing then.
        halves: half of the 95 % interval of the baseline's and of the winner's value, by the spread that the gain's
            interval stands on: over few starts the value's own (:attr:`Contender.estimate`) is far wider.
    """

    verdict: str
    gain: float
    low: float
    high: float
    basis: str
    challenger_starts: int
    baseline_starts: int
    level: float = 1 - _ALPHA
    single: bool = False
    estimated: bool = False
    halves: tuple[float, float] = (math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One closed trial."""

    number: int
    origin: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One configuration with everything measured of it.

    Attributes:
        value: mean objective over its trials that count.
        confirmed: trials of origin ``confirm`` among them.
        counted: the trials that count: once there are confirming ones, only those.
    """

    candidate: Candidate
    trials: tuple[Trial, ...]
    value: float
    confirmed: int
    counted: tuple[Trial, ...] = ()

    @property
    def number(self) -> int:
        """The trial that found it."""
        return self.trials[0].number

    @property
    def estimate(self) -> Estimate:
        """The value with its 95 % interval: over server starts where there are several, else over the rounds of one."""
        if len(self.counted) > 1:
            return mean_estimate([t.outcome.objective for t in self.counted if t.outcome.objective is not None])
        measurement = self.counted[0].outcome.measurement if self.counted else None
        if measurement is not None and measurement.objective is not None:
            return measurement.objective
        return Estimate(value=self.value, low=-math.inf, high=math.inf)

    @property
    def feasible(self) -> bool:
        """Every trial of it keeps the limits; only the baseline is told of where it does not."""
        return all(t.outcome.feasible for t in self.trials)

    @property
    def estimated(self) -> bool:
        """Its value rests on answers that a replay estimated for want of a recorded trial."""
        return any(_estimated(t) for t in self.counted or self.trials)

    @property
    def accuracy_checked(self) -> bool:
        """Some trial of it has an accuracy report; one that could not win the study was not given one."""
        return any(t.outcome.quality is not None for t in self.trials)


@dataclass
class History:
    """Trials of a study in order, and the questions the loop and the report ask of them.

    ``objective`` is what is tuned and judged; with ``further`` ones beside it the study has a Pareto front
    (:mod:`tuner.model.front`).
    """

    objective: Objective
    baseline_key: str
    trials: list[Trial] = field(default_factory=list)
    further: tuple[Objective, ...] = ()

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)

    def spent(self, since: int = 0) -> int:
        """Launched trials from trial ``since`` on; failures count."""
        return sum(1 for t in self.trials if t.number >= since and t.outcome.status in LAUNCHED)

    def seconds(self, since: int = 0) -> float:
        """Wall seconds of trials from trial ``since`` on."""
        return sum(t.outcome.seconds.get("total", 0.0) for t in self.trials if t.number >= since)

    def typical_seconds(self) -> float:
        """Mean wall seconds of a launched trial (0.0 before the first)."""
        costs = [t.outcome.seconds.get("total", 0.0) for t in self.trials if t.outcome.status in LAUNCHED]
        return fmean(costs) if costs else 0.0

    def contenders(self, *, with_baseline: bool = False) -> list[Contender]:
        """Feasible configurations, best first.

        The trial that found a configuration was picked because its number was high, so once there are
        confirming trials only those count.
        """
        groups: dict[str, list[Trial]] = {}
        for trial in self.trials:
            if trial.outcome.feasible and trial.outcome.status is Status.MEASURED:
                groups.setdefault(trial.outcome.candidate.key, []).append(trial)
        doomed = {
            t.outcome.candidate.key
            for t in self.trials
            if t.outcome.status is Status.BROKEN or t.outcome.constraints.get("accuracy", -1.0) > 0
        }
        missed = self._missed_when_confirmed()
        found = []
        for key, trials in groups.items():
            if (key == self.baseline_key and not with_baseline) or (key in doomed and key != self.baseline_key):
                continue
            confirming = [t for t in trials if t.origin == "confirm"]
            if key != self.baseline_key and missed[key] > len(confirming):
                continue  # it kept the limits by luck, when it was found
            counted = confirming if confirming and key != self.baseline_key else trials
            values = [t.outcome.objective for t in counted if t.outcome.objective is not None]
            found.append(
                Contender(
                    candidate=trials[0].outcome.candidate,
                    trials=tuple(trials),
                    value=fmean(values),
                    confirmed=len(confirming),
                    counted=tuple(counted),
                )
            )
        return sorted(found, key=lambda c: c.value, reverse=self.objective.maximize)

    def _missed_when_confirmed(self) -> Counter[str]:
        """Per configuration, the confirming trials that were measured and missed a limit."""
        return Counter(
            t.outcome.candidate.key
            for t in self.trials
            if t.origin == "confirm"
            and t.outcome.status is Status.MEASURED
            and t.outcome.objective is not None
            and not t.outcome.feasible
        )

    def sides(self) -> tuple[Contender | None, list[Contender]]:
        """The baseline, and the other feasible configurations, best first: both questions for the price of one."""
        everybody = self.contenders(with_baseline=True)
        baseline = next((c for c in everybody if c.candidate.key == self.baseline_key), None)
        return baseline, [c for c in everybody if c is not baseline]

    def baseline(self) -> Contender | None:
        """The baseline with all its trials, None before it was measured."""
        for contender in self.contenders(with_baseline=True):
            if contender.candidate.key == self.baseline_key:
                return contender
        return None

    def measured_baseline(self) -> Contender | None:
        """The baseline, also where it misses a limit: what it measured is shown, and beaten by all that keep it."""
        found = self.baseline()
        trials = tuple(
            t
            for t in self.trials
            if t.outcome.candidate.key == self.baseline_key
            and t.outcome.status is Status.MEASURED
            and t.outcome.objective is not None
        )
        if found is not None or not trials:
            return found
        return Contender(
            candidate=trials[0].outcome.candidate,
            trials=trials,
            value=fmean(t.outcome.objective for t in trials if t.outcome.objective is not None),
            confirmed=sum(t.origin == "confirm" for t in trials),
            counted=trials,
        )

    def default_value(self) -> Estimate | None:
        """The objective of the baseline over the trials that count, also where it misses a limit; None before."""
        found = self.measured_baseline()
        values = [] if found is None else [t.outcome.objective for t in found.counted]
        return mean_estimate([value for value in values if value is not None]) if values else None

    def winner(self) -> Contender | None:
        """The best configuration that measured better than the baseline: confirmed ones go before unconfirmed ones.

        Of the confirmed, those with two fresh starts go before those with one, which says nothing of the spread.

        None where nothing did. A baseline that misses a limit is beaten by whatever keeps them all.
        """
        baseline = self.baseline()
        better = [c for c in self.contenders() if baseline is None or self.objective.better(c.value, baseline.value)]
        confirmed = [c for c in better if c.confirmed]
        proven = [c for c in confirmed if c.confirmed > 1]
        return (proven or confirmed or better or [None])[0]  # type: ignore[list-item]

    def best(self) -> Contender | None:
        """The best feasible configuration, the baseline included."""
        contenders = self.contenders(with_baseline=True)
        return contenders[0] if contenders else None

    def baseline_quality(self) -> QualityReport | None:
        """The baseline's accuracy report."""
        for trial in self.trials:
            if trial.outcome.candidate.key == self.baseline_key and trial.outcome.quality is not None:
                return trial.outcome.quality
        return None

    def judge(
        self,
        challenger: Contender,
        compare: Callable[..., Comparison],
        *,
        against: Contender | None = None,
        picked_of: int = 1,
    ) -> Judgement | None:
        """The challenger against the baseline (or ``against``); None while either has no sample.

        With at least two starts of each, every start is one sample (rounds of one server share its luck);
        with fewer, the rounds are compared and the basis says so.

        ``picked_of``: the challenger is the best looking of so many. On the rounds that it was picked by, the error
        rate is shared among them (Bonferroni); starts made after it was picked need no such care.
        """
        reference = against or self.baseline()
        if reference is None:
            return None
        ours = [t for t in challenger.trials if t.origin == "confirm"] or list(challenger.trials)
        theirs = list(reference.counted or reference.trials)
        basis = "starts" if min(len(ours), len(theirs)) >= 2 else "rounds"
        a, b = _samples(ours, basis), _samples(theirs, basis)
        if not a or not b:
            return None
        noise = 0.0 if basis == "starts" else _START_NOISE
        shared = picked_of > 1 and not any(t.origin == "confirm" for t in ours)
        alpha = _ALPHA / picked_of if shared else _ALPHA
        # Starts are few; what makes one differ from the next (memory, clocks, neighbours) is the machine's, not theirs.
        result = compare(b, a, self.objective.maximize, noise=noise, alpha=alpha, alike=basis == "starts")
        return Judgement(
            verdict=result.verdict,
            gain=result.gain,
            low=result.low,
            high=result.high,
            basis=basis,
            challenger_starts=len(ours),
            baseline_starts=len(theirs),
            level=1 - alpha,
            single=basis == "rounds" and len(a) <= len(ours) and len(b) <= len(theirs),
            estimated=any(_estimated(t) for t in (*ours, *theirs)),
            halves=result.halves,
        )

    def repeated_cause(self, times: int) -> Outcome | None:
        """The last outcome if the last ``times`` launched trials all failed for the same root cause."""
        tail = self.failed_alike()
        return tail[-1] if len(tail) >= times else None

    def failed_alike(self) -> list[Outcome]:
        """The launched trials at the end that all failed for one root cause, in order; empty if the last one ran."""
        tail: list[Outcome] = []
        for trial in reversed(self.trials):
            outcome = trial.outcome
            if outcome.status not in LAUNCHED:
                continue
            if outcome.failure is None or (tail and outcome.failure.fingerprint != tail[0].failure.fingerprint):  # type: ignore[union-attr]
                break
            tail.append(outcome)
        return tail[::-1]

    def others_ran(self) -> bool:
        """Some configuration other than the baseline's came to be measured."""
        return any(
            t.outcome.status in (Status.MEASURED, Status.BEHIND) and t.outcome.candidate.key != self.baseline_key
            for t in self.trials
        )


def _estimated(trial: Trial) -> bool:
    return trial.outcome.server is not None and trial.outcome.server.mode == "estimate"


def _samples(trials: Iterable[Trial], basis: str) -> Sequence[float]:
    samples: list[float] = []
    for trial in trials:
        outcome = trial.outcome
        if outcome.objective is None:
            continue
        rounds = outcome.measurement.objective.samples if outcome.measurement and outcome.measurement.objective else ()
        samples += [outcome.objective] if basis == "starts" or not rounds else rounds
    return samples
