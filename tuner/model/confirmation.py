"""What a study keeps back for its proof, and who is started again for it. Pure questions to a history.

How many pairs (the finalist and the defaults, each on a fresh server) is decided by the budget alone, never by what the
pairs show: looking, and going on where the result does not please, would spoil the error rate of the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.model.candidate import Candidate
from tuner.model.front import favourites
from tuner.model.history import Contender, History
from tuner.model.loads import load_favourites
from tuner.model.workload import Limit

__all__ = ["LEAST_STARTS", "finalists", "pairs_for", "reserve_for"]

LEAST_STARTS = 2
"""Fresh starts without which nothing counts as confirmed: one start says nothing of the spread between starts."""

_MOST_PAIRS = 4
_TRIALS_PER_PAIR = 15


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


@dataclass(frozen=True, slots=True)
class _Wanted:
    candidate: Candidate
    starts: int


def finalists(history: History, limits: Sequence[Limit], *, left: int | None, total: int) -> list[Candidate]:
    """Who is to be started on a fresh server in the next turn, what matters most first; empty when all is done.

    First the best configuration, until it has its pairs. Then what answers the study's other questions, until each
    has two starts: the best at each load point, and the ends and the knee of the front. Nobody is begun whom the
    ``left`` trials (None: no bound) would leave with one start.
    """
    main = _finalist(history, left)
    found: list[_Wanted] = []
    if main is not None and main.confirmed < pairs_for(total):
        found.append(_Wanted(main.candidate, max(LEAST_STARTS - main.confirmed, 1)))
    others = [*load_favourites(history, limits), *favourites(history)]
    for candidate in {other.candidate.key: other.candidate for other in others}.values():
        done = sum(t.origin == "confirm" and t.outcome.candidate.key == candidate.key for t in history.trials)
        if done >= LEAST_STARTS or any(candidate.key == item.candidate.key for item in found):
            continue
        more = [*found, _Wanted(candidate, LEAST_STARTS - done)]
        if left is None or sum(item.starts for item in more) + max(item.starts for item in more) <= left:
            found = more
    return [item.candidate for item in found]


def _finalist(history: History, left: int | None) -> Contender | None:
    """The best that confirmation has not already shown to be no better.

    One that has a single fresh start, and lost its lead by it, is finished first where the trials that are left
    would not do for both.
    """
    contenders = history.contenders()
    best = contenders[0] if contenders else None
    if best is None or best.confirmed or left is None or left >= 2 * LEAST_STARTS:
        return best
    return next((c for c in contenders if 0 < c.confirmed < LEAST_STARTS), best)
