"""Whether a candidate is less accurate than the baseline by more than is allowed, or whether that is noise.

The answers are paired (the same questions), so what counts is on how many questions the two differ, not how many each
gets right: with 300 questions a score alone is known to ± 5 points, the difference of two similar configurations to
± 1. A candidate fails only if the drop is *significantly* larger than allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["ALLOWED_DROP", "CONFIDENCE", "Drop", "Verdict", "paired_drop", "verdict"]

ALLOWED_DROP = 0.01
"""Accuracy (share, absolute) that a faster configuration may cost: one point, the usual bar for quantised models
("99 % recovery")."""
CONFIDENCE = 0.95
CATASTROPHE = 0.1
"""Agreement below this part of the baseline's with itself means that decoding has gone astray. Seen with
SmolLM2-135M-Instruct on vLLM 0.32 CPU: the baseline with itself 1.0, a sound fp8 KV cache 0.31 (small models part
ways early), a KV cache that writes garbage 0.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Baseline minus candidate on the questions that both answered.

    Attributes:
        value: mean difference (share; positive is worse than the baseline).
        se: its paired standard error.
        low: lower end of the one-sided confidence interval: the drop is at least this.
        lost, gained: questions that only the baseline, only the candidate got right.
        count: questions compared.
    """

    value: float
    se: float
    low: float
    lost: int
    gained: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``excess`` > 0 if and only if it failed: the part of the drop that is beyond both allowance and doubt."""

    passed: bool
    excess: float
    reason: str = ""


def paired_drop(
    baseline: Mapping[str, float], candidate: Mapping[str, float], *, confidence: float = CONFIDENCE
) -> Drop:
    """The paired difference with its standard error.

    For right-or-wrong answers half a question is added to both kinds of disagreement (Agresti and Min, 2005, for
    matched pairs), so that few or no differences do not look like certainty. Graded answers use the sample's
    standard error.

    Raises:
        ValueError: the two share no question.
    """
    names = [name for name in baseline if name in candidate]
    if not names:
        raise ValueError("no question was answered by both")
    count = len(names)
    differences = [baseline[name] - candidate[name] for name in names]
    lost, gained = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    value = math.fsum(differences) / count
    if all(d in (-1.0, 0.0, 1.0) for d in differences):
        b, c, n = lost + 0.5, gained + 0.5, count + 2.0
        centre = (b - c) / n
        se = math.sqrt(max(b + c - (b - c) ** 2 / n, 0.0)) / n
    else:
        centre = value
        spread = math.fsum((d - value) ** 2 for d in differences) / max(count - 1, 1)
        se = math.sqrt(spread / count) if count > 1 else abs(value)
    low = centre - NormalDist().inv_cdf(confidence) * se
    return Drop(value=value, se=se, low=low, lost=lost, gained=gained, count=count)


def verdict(
    drop: Drop, *, allowed: float = ALLOWED_DROP, agreement: float | None = None, floor: float | None = None
) -> Verdict:
    """Pass or fail.

    Args:
        drop: of one question set.
        allowed: drop (share) that is acceptable.
        agreement: candidate with baseline, share 0 to 1; None where unknown.
        floor: baseline with itself.
    """
    excess = drop.low - allowed
    numbers = (
        f"{drop.value:.1%} (± {drop.se:.1%}) below the baseline on {drop.count} questions: "
        f"{drop.lost} lost, {drop.gained} gained"
    )
    if excess > 0:
        return Verdict(passed=False, excess=excess, reason=f"accuracy {numbers}; {allowed:.1%} is allowed")
    if agreement is not None and floor is not None and agreement < CATASTROPHE * floor and drop.low > 0:
        reason = (
            f"writes other text than the baseline (agreement {agreement:.0%}, the baseline with itself {floor:.0%}) "
            f"and is significantly worse: accuracy {numbers}"
        )
        return Verdict(passed=False, excess=drop.low, reason=reason)
    return Verdict(passed=True, excess=min(excess, 0.0))
