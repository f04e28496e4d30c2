"""What a study keeps back for its proof, and who is started again for it. Pure questions to a history.

How many pairs (the finalist and the defaults, each on a fresh server) is decided by the budget alone, never by what the
pairs show: looking, and going on where the result does not please, would spoil the error rate of the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.model.candidate import Candidate
from tuner.model.front import favourites
from tuner.model.history import Contender, History
from tuner.model.loads import load_favourites
from tuner.model.workload import Limit

__all__ = ["LEAST_STARTS", "finalists", "pairs_for", "reserve_for", "worth_confirming"]

LEAST_STARTS = 2
"""Fresh starts without which nothing counts as confirmed: one start says nothing of the spread between starts."""

_MOST_PAIRS = 4
_TRIALS_PER_PAIR = 15
_AS_GOOD, _GIVEN_AWAY = 0.015, 0.25
"""Relative distance within which fewer settings go before a higher number (servers of one candidate differ by it), and
the part of the gain that it may be."""
_FAR = 0.1
"""Relative distance from the defaults that is clear without an interval (spreads are a few percent)."""


def pairs_for(total: int) -> int:
    """Pairs of starts that a budget of ``total`` trials confirms its finalist with: from two to four."""
    return min(max(LEAST_STARTS, total // _TRIALS_PER_PAIR), _MOST_PAIRS)


def reserve_for(total: int, *, questions: int = 1) -> int:
    """Trials kept back for confirmation: the pairs, but at most half of what follows the baseline, in pairs.

    ``questions``: answers beside the study's winner that are to be confirmed too (one per load point, the ends and
    the knee of a front); they get up to two more pairs.
    """
    more = min(2, total // _TRIALS_PER_PAIR) if questions > 1 else 0
    return 2 * min(pairs_for(total) + more, (total - 1) // 4)


def worth_confirming(history: History, limits: Sequence[Limit]) -> bool:
    """Something may be better than the defaults: overall, at a load point, or in one of several objectives."""
    best = next(iter(history.contenders()), None)
    if best is not None and not _clearly_behind(history, best):
        return True
    return bool(load_favourites(history, limits) or favourites(history))


def _clearly_behind(history: History, contender: Contender) -> bool:
    """Worse than the defaults beyond both intervals; fresh starts would only say so again."""
    baseline, better = history.baseline(), history.objective.better
    if baseline is None or not better(baseline.value, contender.value):
        return False
    ours, theirs = contender.estimate, baseline.estimate
    near, far = (ours.high, theirs.low) if history.objective.maximize else (ours.low, theirs.high)
    if math.isinf(near) or math.isinf(far):
        return abs(contender.value - baseline.value) > _FAR * abs(baseline.value)
    return better(far, near)


def finalists(history: History, limits: Sequence[Limit], *, left: int | None, total: int) -> list[Candidate]:
    """Who is to be started on a fresh server in the next turn, what matters most first; empty when all is done.

    Whoever has been started once is started again before anybody new: one start proves nothing, and a finalist that
    lost its lead by it would otherwise be left for the next lucky number. Then the best configuration, or one that is
    as good with fewer settings, until it has its pairs, and what answers the study's other questions, until each has
    two starts: the best at each load point, and the ends and the knee of the front. Nobody is begun whom the ``left``
    trials (None: no bound) would not do for.
    """
    contenders = history.contenders()
    others = {c.candidate.key: c.candidate for c in [*load_favourites(history, limits), *favourites(history)]}
    begun = {c.candidate.key: c.candidate for c in contenders if c.confirmed} | others
    half = [candidate for key, candidate in begun.items() if _starts(history, key) == 1]
    if half:
        return half if left is None else half[: max(left - 1, 1)]
    found: list[Candidate] = []
    best = _plainest(history, contenders)
    if best is not None and _wanted(history, best, left=left, total=total):
        found.append(best.candidate)
    for key, candidate in others.items():
        if _starts(history, key) or any(key == item.key for item in found):
            continue
        # Two turns, with the defaults in each.
        if left is None or LEAST_STARTS * (len(found) + 2) <= left:
            found.append(candidate)
    return found


def _plainest(history: History, contenders: Sequence[Contender]) -> Contender | None:
    """The best, or what is as good with part of its settings: the rest of them would only have to be explained.

    As good: 1.5 % below it at most, and no more than a quarter of what it gains on the defaults is given away.
    """
    if not contenders or contenders[0].confirmed:
        return next(iter(contenders), None)
    best, baseline = contenders[0], history.baseline()
    given = _AS_GOOD * abs(best.value)
    if baseline is not None:
        given = min(given, _GIVEN_AWAY * abs(best.value - baseline.value))
    bound = best.value - (given if history.objective.maximize else -given)
    whole = best.candidate.assignment.items()
    parts = [c for c in contenders if c.candidate.assignment.items() < whole]
    parts = [c for c in parts if not history.objective.better(bound, c.value)]
    return min(parts, key=lambda c: len(c.candidate.assignment), default=best)


def _wanted(history: History, best: Contender, *, left: int | None, total: int) -> bool:
    if best.confirmed:
        return best.confirmed < pairs_for(total)
    return not _too_late(history, left) and not _clearly_behind(history, best)


def _starts(history: History, key: str) -> int:
    return sum(t.origin == "confirm" and t.outcome.candidate.key == key for t in history.trials)


def _too_late(history: History, left: int | None) -> bool:
    """Another finalist beside one that is confirmed needs two pairs; where nobody is, it takes what there is."""
    confirmed = any(c.confirmed for c in history.contenders())
    return confirmed and left is not None and left < 2 * LEAST_STARTS
