"""Where random tokens would measure nothing: acceptance of drafts and routing to experts need real text.

Source: field reports collected by users of vLLM (random tokens distort acceptance and expert routing), and vLLM's own
``rejection_sample_method=synthetic``, which exists because acceptance on random tokens is not to be had.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.model.candidate import Candidate
from tuner.model.workload import Workload

__all__ = ["MOE", "SPECULATION", "needs_text", "refusal", "refuse_random"]

SPECULATION = "speculative decoding needs real text: acceptance on random tokens says nothing"
MOE = "a mixture of experts needs real text: random tokens spread over the experts as no traffic does"


def needs_text(candidate: Candidate, model_is_moe: bool) -> str | None:
    """Why this candidate must be measured with real text, in one sentence; None if random tokens will do.

    Random tokens distort acceptance and expert routing (field reports: pitfalls 47).
    """
    arguments = candidate.nested()
    speculative = arguments.get("speculative-config")
    method = speculative.get("method") if isinstance(speculative, Mapping) else arguments.get("spec-method")
    if speculative or method or arguments.get("spec-model"):
        return f"{method or 'draft model'}: {SPECULATION}"
    return MOE if model_is_moe else None


def refuse_random(workload: Workload, candidate: Candidate, model_is_moe: bool) -> str | None:
    """Why the workload's random tokens are refused for this candidate; None if it may be measured."""
    return refusal(workload, needs_text(candidate, model_is_moe))


def refusal(workload: Workload, reason: str | None) -> str | None:
    """The reason, if the workload sends random tokens (a trace does, too) and is not forced to."""
    return reason if workload.source in ("random", "trace") and not workload.force_random else None
