"""The search: samplers, what each outcome tells them, resume. The only importer of Optuna."""

from tuner.search.optimizer import OptunaOptimizer
from tuner.search.reading import read_trials
from tuner.search.samplers import SAMPLERS

__all__ = ["SAMPLERS", "OptunaOptimizer", "read_trials"]
