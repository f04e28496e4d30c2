"""Load generation, ``/metrics`` and statistics: from a running server to numbers with their spread."""

from tuner.measuring.generator import BenchLoadGenerator
from tuner.measuring.refusals import needs_text, refuse_random
from tuner.measuring.statistics import Comparison, Verdict, compare, compare_paired, compare_so_far

__all__ = [
    "BenchLoadGenerator",
    "Comparison",
    "Verdict",
    "compare",
    "compare_paired",
    "compare_so_far",
    "needs_text",
    "refuse_random",
]
