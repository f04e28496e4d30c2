"""Load generation, ``/metrics`` and statistics: from a running server to numbers with their spread."""

from tuner.measuring.generator import BenchLoadGenerator
from tuner.measuring.statistics import Comparison, Verdict, compare, compare_paired, compare_so_far
from tuner.measuring.workloads import needs_text, refuse_random

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
