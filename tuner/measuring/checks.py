"""Whether a round's numbers agree with the server's own counters, with the other rounds, and with themselves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tuner.measuring.bench import BenchResult, failed
from tuner.measuring.prometheus import Snapshot, delta
from tuner.measuring.workloads import RoundLoad
from tuner.model.outcome import Blame, Failure

__all__ = [
    "Memory",
    "counters",
    "faster",
    "first_paces",
    "hit_rate",
    "prefix_cache",
    "shift",
    "slowdown",
]

COUNTER_TOLERANCE = 0.02
HIT_TOLERANCE = 0.02
"""Whole blocks only can hit, so the rate is at most what the traffic shares; 2 points for tokens against characters."""
SHIFT = 0.20
"""Two rounds of one server differ by 0.1 to 4 % (H200 and CPU data); a fifth is not noise."""
_SLOW = 1.5
_SLOW_Z = 4.0
_SLOW_FROM = 36
_GAPS_FROM = 4
_REPLAY_SHARE = 0.5
_REPLAY_LENGTH = 24
_REPLAY_FROM = 8
"""Fewer answers of that length say nothing: a small model may well give two prompts the same one."""
_FASTEST_TOKEN_S = 2e-5
"""No engine decodes one sequence at 50,000 tokens a second."""
_AT_ONCE = 0.25
_INSTANT_SHARE = 0.1
_MOSTLY = 0.5


def counters(before: Snapshot, after: Snapshot, result: BenchResult, requests: int) -> Failure | None:
    """Tokens that the client received against those that the server says it generated."""
    rise = delta(before, after, "vllm:generation_tokens")
    if rise is None:
        if before.total("vllm:generation_tokens") is None:
            return None  # this server does not count; nothing to compare with
        return failed(
            "counter-mismatch", "the server's counters fell: it was started anew", blame=Blame.MACHINE, retry=True
        )
    # One token per request may be counted on one side only (the end-of-text token).
    slack = COUNTER_TOLERANCE * result.total_output + requests
    numbers = f"the client received {result.total_output} tokens, the server generated {rise:.0f}"
    if rise < _MOSTLY * result.total_output:
        return failed("cached-answers", f"{numbers}: the answers were not computed")
    if rise > result.total_output + slack:
        cause = f"{numbers}: somebody else uses this server"
        return failed("counter-mismatch", cause, blame=Blame.MACHINE, retry=True)
    if rise < result.total_output - slack:
        return failed("counter-mismatch", numbers)
    return None


def hit_rate(before: Snapshot, after: Snapshot) -> float | None:
    """Share of prompt tokens found in the prefix cache; None where nothing was looked up."""
    queries = delta(before, after, "vllm:prefix_cache_queries")
    hits = delta(before, after, "vllm:prefix_cache_hits")
    return hits / queries if queries and hits is not None else None


def prefix_cache(rate: float | None, load: RoundLoad) -> str | None:
    """Why the prefix cache spoiled the round; None if it did not.

    Only more hits than the traffic can give are wrong: fewer are the configuration's own doing (the cache switched
    off, or too small).
    """
    if rate is None or rate <= load.hit_rate + HIT_TOLERANCE:
        return None
    return f"{rate:.1%} of the prompt tokens hit the prefix cache, the workload gives {load.hit_rate:.1%}"


def first_paces(result: BenchResult) -> tuple[float, ...]:
    """Seconds per output token of the first third of the requests; empty where there are too few to say."""
    paces = _paces(result)
    return paces[: len(paces) // 3] if len(paces) >= _SLOW_FROM else ()


def faster(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    """The one with the smaller median; an empty one loses."""
    if not a or not b:
        return a or b
    return a if statistics.median(a) <= statistics.median(b) else b


def slowdown(result: BenchResult, known: tuple[float, ...] = ()) -> str | None:
    """Why a closed-loop round looks slowed down half-way; None if it does not.

    Compares the time per output token of the first third of the requests (of this round, or of the fastest earlier
    one, ``known``) with that of the last third: rank test with z > 4, and half as slow again. The last requests run
    in an emptier batch, so by nature they are the faster ones.
    """
    early = faster(known, first_paces(result))
    paces = _paces(result)
    late = paces[-(len(paces) // 3) :]
    if not early or len(paces) < _SLOW_FROM:
        return None
    ratio = statistics.median(late) / max(statistics.median(early), 1e-9)
    if ratio < _SLOW or _rank_z(early, late) < _SLOW_Z:
        return None
    return f"time per output token rose {ratio:.1f} times from the first requests to the last"


def _paces(result: BenchResult) -> tuple[float, ...]:
    """Mean time between tokens of each request, in the order they started."""
    rows = sorted(zip(result.start_times, result.itls, strict=False))
    return tuple(statistics.fmean(gaps) for _, gaps in rows if len(gaps) >= _GAPS_FROM)


def shift(samples: Sequence[float]) -> int:
    """How the last round's throughput lies to the earlier ones: -1 far below, 1 far above, 0 with them."""
    if len(samples) < 2:
        return 0
    *earlier, last = samples
    if last < (1 - SHIFT) * min(earlier):
        return -1
    return 1 if last * (1 - SHIFT) > max(earlier) else 0


class Memory:
    """What earlier rounds of one load point looked like: answers kept from earlier give themselves away by it.

    Args:
        pace: seconds per output token, until a round has shown its own; None if unknown.
    """

    def __init__(self, pace: float | None = None) -> None:
        self._seen: set[int] = set()
        self._typical = pace

    def replayed(self, result: BenchResult, *, texts: bool = True) -> Failure | None:
        """Whether answers of this round were kept from earlier instead of computed; remembers the round.

        Args:
            texts: no prompt was sent before, so that no answer should come again.
        """
        return self._at_once(result) or (self._again(result) if texts else None)

    def _at_once(self, result: BenchResult) -> Failure | None:
        """All tokens in one piece, long before the others have theirs.

        One piece alone proves nothing: a client that was held up finds a whole answer waiting, but finds it late.
        """
        rows = zip(result.output_lens, result.ttfts, result.itls, strict=False)
        answers = [(size, sum(gaps), (first + sum(gaps)) / size) for size, first, gaps in rows if size >= _GAPS_FROM]
        computed = [pace for size, decode, pace in answers if decode >= size * _FASTEST_TOKEN_S]
        if computed:
            self._typical = statistics.median(computed)
        if self._typical is None:
            return None
        early = _AT_ONCE * self._typical
        instant = sum(decode < size * _FASTEST_TOKEN_S and pace < early for size, decode, pace in answers)
        if instant <= _INSTANT_SHARE * len(answers):
            return None
        cause = f"{instant} of {len(answers)} answers came all at once, long before the others: they were cached"
        return failed("cached-answers", cause, advice="turn off the cache in front of the server")

    def _again(self, result: BenchResult) -> Failure | None:
        """Most answers were given before, to other prompts."""
        texts = [hash(text) for text in result.texts if len(text) >= _REPLAY_LENGTH]
        distinct = set(texts)
        again = sum(text in self._seen for text in texts)
        self._seen |= distinct
        # A model that says the same to everything (random weights) replays nothing: its answers do not vary.
        if len(texts) < _REPLAY_FROM or len(distinct) < _MOSTLY * len(texts) or again < _REPLAY_SHARE * len(texts):
            return None
        return failed("cached-answers", f"{again} of {len(texts)} answers were given to other prompts before")


def _rank_z(a: Sequence[float], b: Sequence[float]) -> float:
    """Mann-Whitney z score of ``b`` above ``a`` (normal approximation, ties count half)."""
    wins = sum((y > x) + 0.5 * (y == x) for x in a for y in b)
    count = len(a) * len(b)
    spread = math.sqrt(count * (len(a) + len(b) + 1) / 12)
    return (wins - count / 2) / spread
