"""Whether what comes out is still right: sanity, agreement with the baseline, question sets, lm-eval tasks."""

from tuner.quality.check import QualitySuite

__all__ = ["QualitySuite"]
