"""Intervals, comparisons and decisions that keep their error rate when looked at again and again.

Everything here works on a handful of rounds (two to eight) of one positive quantity with a relative noise of a few
tenths to a few percent, taken as normal. Three facts shape it:

* With so few rounds the spread itself is barely known, so every quantile is Student's t, never the normal's.
* A decision taken after every round is a multiple test. The number of rounds is bounded, so the error rate is split
  over the looks beforehand (alpha spending: Lan & DeMets, Biometrika 70, 1983; by the union bound the total error is
  at most the sum). That is exact for t statistics at any sample size, which the asymptotic mixture tests for unbounded
  streams (Johari et al., Operations Research 70, 2022) are not at n = 2.
* Rounds on one server do not show what differs between two starts of the same configuration. Callers who know that
  spread pass it as ``noise`` (relative standard deviation between starts); it enters as a known variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tuner.model.measurement import Estimate
from tuner.model.workload import Limit

__all__ = [
    "Comparison",
    "Verdict",
    "clearly_behind",
    "clearly_breaks",
    "compare",
    "compare_paired",
    "compare_so_far",
    "estimate",
    "relative_half_width",
    "spending",
    "weighted",
]

Verdict: TypeAlias = Literal["better", "worse", "no significant difference"]

ALPHA = 0.01
"""Two-sided error rate of a verdict: of 20 comparisons of a configuration with itself at most one is called different
with probability 0.98 (binomial); at 0.05 it would be 0.74."""
_FRACTION, _WILDER = 0.2, 25.0
"""Ratio of two means below which the smaller one may be next to nothing, and by how much its relative variance is then
larger where it does not scatter like the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a challenger does against a reference.

    Attributes:
        verdict: ``better`` or ``worse`` where ``p`` is at most ``alpha``, else ``no significant difference``.
        gain: relative gain of the challenger over the reference, positive is better (0.05: 5 % better).
        low, high: ends of the gain's confidence interval at level 1 - ``alpha``, so that the verdict and the interval
            never contradict each other; infinite where nothing is known of the spread.
        p: two-sided p-value of "no difference".
        alpha: the error rate the verdict was taken at.
        halves: half of the 95 % interval of the reference's and of the challenger's mean, by the very spread that the
            gain's interval stands on; infinite where nothing is known of it.
    """

    verdict: Verdict
    gain: float
    low: float
    high: float
    p: float
    alpha: float = ALPHA
    halves: tuple[float, float] = (math.inf, math.inf)


def estimate(samples: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean and t interval; infinite ends for a single sample.

    Raises:
        ValueError: no samples.
    """
    mean, variance, df = _moments(samples)
    if df == 0:
        return Estimate(value=mean, low=-math.inf, high=math.inf, samples=tuple(samples))
    half = _t_quantile(1 - (1 - confidence) / 2, df) * math.sqrt(variance / len(samples))
    return Estimate(value=mean, low=mean - half, high=mean + half, samples=tuple(samples))


def relative_half_width(value: Estimate) -> float:
    """Half the interval over the mean (0.02: ± 2 %); infinite where the mean is zero or the spread unknown."""
    half = (value.high - value.low) / 2
    return half / abs(value.value) if value.value else math.inf if half else 0.0


def weighted(parts: Sequence[tuple[float, Sequence[float]]], confidence: float = 0.95) -> Estimate:
    """Weighted mean of several load points, from (weight, samples) pairs with any number of rounds each.

    The interval uses the Welch-Satterthwaite degrees of freedom; ``samples`` holds the weighted mean of each round
    that all points have.

    Raises:
        ValueError: no parts, a part without samples, or weights that do not add up to more than zero.
    """
    total = sum(weight for weight, _ in parts)
    if total <= 0:
        raise ValueError("weights must add up to more than zero")
    shares = [(weight / total, samples) for weight, samples in parts if weight > 0]
    moments = [(share, *_moments(samples), len(samples)) for share, samples in shares]
    mean = sum(share * value for share, value, _, _, _ in moments)
    rounds = tuple(
        sum(share * samples[index] for share, samples in shares) for index in range(min(len(s) for _, s in shares))
    )
    if any(df == 0 for _, _, _, df, _ in moments):
        return Estimate(value=mean, low=-math.inf, high=math.inf, samples=rounds)
    terms = [(share**2 * variance / n, float(df)) for share, _, variance, df, n in moments]
    half = _t_quantile(1 - (1 - confidence) / 2, _satterthwaite(terms)) * math.sqrt(sum(term for term, _ in terms))
    return Estimate(value=mean, low=mean - half, high=mean + half, samples=rounds)


def compare(
    a_samples: Sequence[float],
    b_samples: Sequence[float],
    maximize: bool,
    *,
    alpha: float = ALPHA,
    noise: float = 0.0,
    alike: bool = False,
) -> Comparison:
    """Welch's comparison of a challenger ``b`` with a reference ``a`` measured in independent rounds.

    Args:
        a_samples: the reference (the baseline), one value per round.
        b_samples: the challenger.
        maximize: more is better.
        alpha: two-sided error rate of the verdict.
        noise: relative standard deviation between starts of one configuration, where known.
        alike: both sides scatter alike, relative to their means, so that one spread is learned from both (Student).
            With two samples a side Welch has one degree of freedom and finds nothing: on two CPU cores 469 and 445
            against 300, 303 and 288 tok/s was "no significant difference". Where one mean is a fraction of the other
            and scatters by far more it is not so: a goodput of 0.002 requests/s ± 250 % says nothing of 1.6 ± 0.2 %.

    Raises:
        ValueError: no samples on one side.
    """
    mean_a, variance_a, df_a = _moments(a_samples)
    mean_b, variance_b, df_b = _moments(b_samples)
    if df_a == 0:
        variance_a, df_a = variance_b, df_b  # one round says nothing of its spread: take the other side's
    if df_b == 0:
        variance_b, df_b = variance_a, df_a
    known = noise**2 * (mean_a**2 + mean_b**2)
    if df_a == 0 and known == 0:
        return _unknown(mean_a, mean_b, maximize, alpha)
    terms = [(variance_a / len(a_samples), float(df_a)), (variance_b / len(b_samples), float(df_b))]
    sides = terms
    several = len(a_samples) > 1 and len(b_samples) > 1
    if alike and several and _alike(mean_a, variance_a, mean_b, variance_b):
        df = float(df_a + df_b)
        spread = (df_a * variance_a / mean_a**2 + df_b * variance_b / mean_b**2) / df
        sides = [(spread * mean_a**2 / len(a_samples), df), (spread * mean_b**2 / len(b_samples), df)]
        terms = [(sides[0][0] + sides[1][0], df)]
    halves = (_half(sides[0], noise**2 * mean_a**2), _half(sides[1], noise**2 * mean_b**2))
    found = _judge(mean_a, mean_b - mean_a, terms, known=known, maximize=maximize, alpha=alpha)
    return replace(found, halves=halves)


def _half(term: tuple[float, float], known: float, confidence: float = 0.95) -> float:
    """Half the interval of one side's mean, from its variance with its degrees of freedom and a known variance."""
    error = math.sqrt(term[0] + known)
    return _t_quantile(1 - (1 - confidence) / 2, _satterthwaite([term], known)) * error if error else 0.0


def _alike(mean_a: float, variance_a: float, mean_b: float, variance_b: float) -> bool:
    """Whether two sides may scatter alike, relative to their means: not where one is next to nothing, and wild."""
    if not mean_a or not mean_b:
        return False
    sides = sorted(((abs(mean_a), variance_a / mean_a**2), (abs(mean_b), variance_b / mean_b**2)))
    (small, wild), (large, calm) = sides
    return small > _FRACTION * large or wild <= _WILDER * calm


def compare_paired(
    a_samples: Sequence[float], b_samples: Sequence[float], maximize: bool, *, alpha: float = ALPHA
) -> Comparison:
    """Compare rounds taken in turns (``a`` then ``b``, again and again): what drifts with time drops out.

    Raises:
        ValueError: no samples, or different numbers of them.
    """
    if len(a_samples) != len(b_samples):
        raise ValueError(f"pairs need as many a ({len(a_samples)}) as b ({len(b_samples)}) samples")
    mean_a = _moments(a_samples)[0]
    difference, variance, df = _moments([b - a for a, b in zip(a_samples, b_samples, strict=True)])
    if df == 0:
        return _unknown(mean_a, mean_a + difference, maximize, alpha)
    terms = [(variance / len(a_samples), float(df))]
    return _judge(mean_a, difference, terms, known=0.0, maximize=maximize, alpha=alpha)


def compare_so_far(
    a_samples: Sequence[float],
    b_samples: Sequence[float],
    maximize: bool,
    *,
    look: int,
    looks: int,
    alpha: float = ALPHA,
    noise: float = 0.0,
) -> Comparison:
    """:func:`compare` at look number ``look`` of at most ``looks``; over all looks the error rate stays ``alpha``."""
    return compare(a_samples, b_samples, maximize, alpha=spending(alpha, look, looks), noise=noise)


def spending(alpha: float, look: int, looks: int) -> float:
    """Share of the error rate for look ``look`` (from 1) of ``looks``: proportional to ``look``.

    Later looks know more and get more; the shares add up to ``alpha``, whatever the looks have in common.

    Raises:
        ValueError: ``look`` is not within 1 to ``looks``.
    """
    if not 1 <= look <= looks:
        raise ValueError(f"look {look} is not within 1 to {looks}")
    return alpha * 2 * look / (looks * (looks + 1))


def clearly_behind(
    challenger: Sequence[float],
    reference: Sequence[float],
    maximize: bool,
    *,
    looks: int,
    alpha: float = 0.05,
    noise: float = 0.0,
) -> bool:
    """Whether the challenger is worse than the reference, asked after each of at most ``looks`` rounds.

    A one-sided two-sample t test with pooled variance (same machine, same load: the same spread), so that already
    the first round of a challenger can be judged by the spread of the reference. A challenger as good as the
    reference is called behind with probability at most ``alpha`` over all looks. With one sample on both sides,
    only a known ``noise`` can decide.
    """
    look = len(challenger)
    if not look or not reference:
        return False
    mean_c, variance_c, df_c = _moments(challenger)
    mean_r, variance_r, df_r = _moments(reference)
    deficit = mean_r - mean_c if maximize else mean_c - mean_r
    known = noise**2 * (mean_c**2 + mean_r**2)
    df = df_c + df_r
    if deficit <= 0 or (df == 0 and known == 0):
        return False
    pooled = (variance_c * df_c + variance_r * df_r) / df if df else 0.0
    term = pooled * (1 / look + 1 / len(reference))
    error = math.sqrt(term + known)
    level = spending(alpha, min(look, looks), looks)
    if error == 0:
        return True
    return _t_tail(deficit / error, _satterthwaite([(term, float(df))], known)) <= level


def clearly_breaks(samples: Sequence[float], limit: Limit, *, looks: int, alpha: float = 0.05) -> bool:
    """Whether a limit is broken beyond doubt, asked after each of at most ``looks`` rounds; never after one round.

    Latency tails are noisier than throughput, so their spread is taken from their own rounds (one-sample t test).
    """
    mean, variance, df = _moments(samples) if samples else (0.0, 0.0, 0)
    excess = mean - limit.bound if limit.at_most else limit.bound - mean
    if df == 0 or excess <= 0:
        return False
    error = math.sqrt(variance / len(samples))
    if error == 0:
        return True
    return _t_tail(excess / error, float(df)) <= spending(alpha, min(len(samples), looks), looks)


def _judge(
    base: float,
    difference: float,
    terms: Sequence[tuple[float, float]],
    *,
    known: float,
    maximize: bool,
    alpha: float,
) -> Comparison:
    error = math.sqrt(sum(term for term, _ in terms) + known)
    scale = abs(base) or 1.0
    gain = (difference if maximize else -difference) / scale
    if error == 0:
        p, half = (1.0 if difference == 0 else 0.0), 0.0
    else:
        df = _satterthwaite(terms, known)
        p = 2 * _t_tail(abs(difference) / error, df)
        half = _t_quantile(1 - alpha / 2, df) * error / scale
    verdict: Verdict = "no significant difference"
    if p <= alpha:
        verdict = "better" if gain > 0 else "worse"
    return Comparison(verdict=verdict, gain=gain, low=gain - half, high=gain + half, p=min(p, 1.0), alpha=alpha)


def _unknown(mean_a: float, mean_b: float, maximize: bool, alpha: float) -> Comparison:
    difference = mean_b - mean_a if maximize else mean_a - mean_b
    return Comparison(
        verdict="no significant difference",
        gain=difference / (abs(mean_a) or 1.0),
        low=-math.inf,
        high=math.inf,
        p=1.0,
        alpha=alpha,
    )


def _moments(samples: Sequence[float]) -> tuple[float, float, int]:
    """Mean, unbiased variance (0 for one sample) and degrees of freedom."""
    count = len(samples)
    if count == 0:
        raise ValueError("no samples")
    if not all(math.isfinite(value) for value in samples):
        raise ValueError("samples must be finite")
    mean = math.fsum(samples) / count
    if count == 1:
        return mean, 0.0, 0
    return mean, math.fsum((value - mean) ** 2 for value in samples) / (count - 1), count - 1


def _satterthwaite(terms: Sequence[tuple[float, float]], known: float = 0.0) -> float:
    """Degrees of freedom of a sum of estimated variances (term, df) and a known one."""
    total = sum(term for term, _ in terms) + known
    below = sum(term**2 / df for term, df in terms if df > 0 and term > 0)
    if below == 0:
        # Only the known part varies: the normal is exact. No variance at all: any value does.
        return math.inf if known > 0 else max((df for _, df in terms), default=1.0)
    return total**2 / below


def _t_quantile(probability: float, df: float) -> float:
    # scipy.special costs a few tenths of a second to import; `tune --help` must not pay for it.
    from scipy import special  # noqa: PLC0415

    return float(special.ndtri(probability) if math.isinf(df) else special.stdtrit(df, probability))


def _t_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t (or the normal, for infinite ``df``)."""
    from scipy import special  # noqa: PLC0415

    return float(special.ndtr(-t) if math.isinf(df) else special.stdtr(df, -t))
