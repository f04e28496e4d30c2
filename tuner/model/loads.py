"""A study over several load points, answered for each: which configuration is best at this load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.model.history import Comparison, Contender, History, Judgement
from tuner.model.projection import at_load, load_names
from tuner.model.workload import Limit

__all__ = ["LoadAnswer", "load_answers", "load_favourites"]


_TIE = 0.01
"""Relative difference at a load below which two configurations are one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAnswer:
    """What the study found at one load point. Values, limits and judgements are of this point alone.

    Attributes:
        name: the load point (``c8``: eight requests in flight).
        weight: its share in the study's objective.
        history: the study seen at this point.
        baseline: vLLM's defaults there; None where they miss a limit at this load.
        best: what measured better than the defaults there, the best of it; None where nothing did.
        judgement: ``best`` against the defaults.
        picked_of: configurations that ``best`` was picked from.
        single: the study's winner over all points, as it does here; None where there is none, or it misses a limit
            at this load.
        single_judgement: that one against the defaults.
    """

    name: str
    weight: float
    history: History
    baseline: Contender | None
    best: Contender | None
    judgement: Judgement | None
    picked_of: int
    single: Contender | None
    single_judgement: Judgement | None

    @property
    def accuracy_unchecked(self) -> bool:
        """The best there has no accuracy report although the defaults have one."""
        checked = self.history.baseline_quality() is not None
        return self.best is not None and checked and not self.best.accuracy_checked


def load_answers(
    history: History, limits: Sequence[Limit], compare: Callable[..., Comparison]
) -> tuple[LoadAnswer, ...]:
    """One answer per load point, in the workload's order; empty where there is only one point."""
    winner = history.winner()
    answers = []
    for name in load_names(history):
        here = at_load(history, name, limits)
        baseline, contenders = here.sides()
        best = _best(here, baseline, contenders, compare)
        single = _among(contenders, winner)
        answers.append(
            LoadAnswer(
                name=name,
                weight=_weight(history, name),
                history=here,
                baseline=baseline,
                best=best,
                judgement=None
                if best is None
                else here.judge(best, compare, against=baseline, picked_of=len(contenders)),
                picked_of=len(contenders),
                single=single,
                single_judgement=None if single is None else here.judge(single, compare, against=baseline),
            )
        )
    return tuple(answers)


def load_favourites(history: History, limits: Sequence[Limit]) -> list[Contender]:
    """Per load point the configuration that looks best there: worth confirming.

    Not where the defaults are as good. Where the one that is best over all loads does the same within a percent, and
    better than the defaults, it is that one: more starts would only settle a tie.
    """
    winner = history.winner()
    found = []
    for name in load_names(history):
        here = at_load(history, name, limits)
        baseline, contenders = here.sides()
        best = contenders[0] if contenders else None
        if best is None or not _beats(here, best, baseline):
            continue
        overall = _among(contenders, winner)
        tie = overall is not None and abs(best.value - overall.value) <= _TIE * abs(best.value)
        found.append(overall if overall is not None and tie and _beats(here, overall, baseline) else best)
    return found


def _among(contenders: Sequence[Contender], one: Contender | None) -> Contender | None:
    """The same configuration as it does at this load."""
    return next((c for c in contenders if one is not None and c.candidate.key == one.candidate.key), None)


def _beats(here: History, contender: Contender, baseline: Contender | None) -> bool:
    return baseline is None or here.objective.better(contender.value, baseline.value)


def _best(
    here: History, baseline: Contender | None, contenders: Sequence[Contender], compare: Callable[..., Comparison]
) -> Contender | None:
    """The best at a point: a confirmed one, unless an unconfirmed one is better beyond doubt."""
    better = [c for c in contenders if _beats(here, c, baseline)]
    confirmed = [c for c in better if c.confirmed > 1] or [c for c in better if c.confirmed]
    if not better or not confirmed or better[0] is confirmed[0]:
        return better[0] if better else None
    # Fresh starts regress to the mean; a number that was looked for among many has not yet.
    doubt = here.judge(better[0], compare, against=confirmed[0], picked_of=len(contenders))
    return better[0] if doubt is not None and doubt.verdict == "better" else confirmed[0]


def _weight(history: History, name: str) -> float:
    for trial in history.trials:
        measurement = trial.outcome.measurement
        for point in measurement.points if measurement is not None else ():
            if point.name == name:
                return point.weight
    return 1.0
