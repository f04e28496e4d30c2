"""The samplers by name. All but ``tune`` are Optuna's own, with settings that suit few, noisy, crashing trials."""

from __future__ import annotations

import hashlib
import warnings

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler

from tuner.errors import InputError

__all__ = ["SAMPLERS", "make_sampler", "needs_every_parameter", "seed_for"]

SAMPLERS = ("tune", "tpe", "gp", "random", "qmc", "nsga2")


def make_sampler(name: str, *, seed: int, fixed_seed: int, startup: int) -> BaseSampler:
    """Optuna's sampler behind ``name``.

    Args:
        name: one of :data:`SAMPLERS` except ``tune``.
        seed: for this one suggestion, so that a resumed study goes on as an uninterrupted one would.
        fixed_seed: for the whole study (the quasi-random sequence keeps its place in the storage).
        startup: random trials before a model is fitted.

    Raises:
        InputError: no such sampler.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            return TPESampler(seed=seed, n_startup_trials=startup, multivariate=True, group=True, constant_liar=True)
        if name == "gp":
            # Parameters that GP cannot model (conditional ones in foreign trials) are left to a plain TPE.
            independent = TPESampler(seed=seed, n_startup_trials=startup)
            return GPSampler(
                seed=seed, n_startup_trials=startup, independent_sampler=independent, warn_independent_sampling=False
            )
        if name == "random":
            return RandomSampler(seed=seed)
        if name == "qmc":
            return QMCSampler(seed=fixed_seed, scramble=True, warn_independent_sampling=False)
        if name == "nsga2":
            return NSGAIISampler(seed=seed, population_size=max(startup, 8))
    raise InputError(f"sampler {name!r}: unknown; choose one of {', '.join(SAMPLERS)}")


def needs_every_parameter(name: str) -> bool:
    """These model the intersection of all trials: a parameter absent once would never be modelled again."""
    return name in ("gp", "qmc", "nsga2")


def seed_for(seed: int, closed: int) -> int:
    """The seed of one suggestion, from the study's seed and the number of closed trials alone."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{closed}".encode()).digest()[:4], "big")
