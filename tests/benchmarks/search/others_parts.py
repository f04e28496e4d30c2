"""What the surfaces of :mod:`tests.benchmarks.search.others` share: reading a configuration, drawing constants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tests.benchmarks.search.bench_space import BenchPlanner, Surface
from tuner.model.json import Scalar
from tuner.model.space import Range

__all__ = ["GIB", "NO_KV", "Config", "Draw", "chosen", "climbed", "drawer", "first", "number_of", "oom", "soft_min"]

GIB = 2.0**30
NO_KV = (
    "ValueError: No available memory for the cache blocks. "
    "Try increasing `gpu_memory_utilization` when initializing the engine."
)

Config: TypeAlias = Mapping[str, Scalar]
Draw: TypeAlias = Callable[[float, float], float]


def drawer(seed: int, salt: int) -> Draw:
    """Uniform draws that depend on the seed and the surface alone."""
    rng = np.random.default_rng([salt, seed])
    return lambda low, high: float(rng.uniform(low, high))


def number_of(config: Config, name: str, absent: float = 0.0) -> float:
    """A numeric parameter, or what a conditional one counts as where it does not exist."""
    value = config.get(name)
    return absent if value is None else float(value)


def chosen(config: Config, name: str) -> str:
    return str(config.get(name, ""))


def first(*reasons: tuple[bool, str]) -> str:
    """The message of the first check that fails, in the order in which a server meets them; empty if none does."""
    return next((message for failed, message in reasons if failed), "")


def oom(needed_gib: float, total_gib: float) -> str:
    """What PyTorch says, which names no flag."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {max(0.02, needed_gib):.2f} GiB. "
        f"GPU 0 has a total capacity of {total_gib:.2f} GiB of which {max(0.0, needed_gib) * 311:.2f} MiB is free."
    )


def soft_min(*rates: float, sharpness: float = 4.0) -> float:
    """The rate of a chain of queues: close to the slowest, lower where two are alike."""
    return float(sum(rate**-sharpness for rate in rates) ** (-1.0 / sharpness))


def climbed(surface: Surface, starts: Iterable[Config]) -> Surface:
    """The surface with its optimum: the best that can be reached with each of ``starts`` held as it is.

    For surfaces where several parameters have to change at once before anything starts, so that climbing by one
    parameter at a time ends early.
    """
    planner = BenchPlanner(surface)

    def value(point: Config) -> float:
        found = surface.evaluate(planner.complete(point))
        return 0.0 if isinstance(found, str) else found

    def climb(point: Config, held: Iterable[str], size: int) -> tuple[float, Config]:
        here, before = value(point), -1.0
        while here > before:
            before = here
            for parameter in surface.space.parameters:
                domain = parameter.domain
                if parameter.name in held:
                    continue
                options: list[Scalar] = list(domain.values) if not isinstance(domain, Range) else []
                if isinstance(domain, Range):
                    grid = (np.geomspace if domain.log else np.linspace)(domain.low, domain.high, size)
                    options = [round(float(at)) if domain.integer else float(at) for at in grid]
                for option in options:
                    there = value({**point, parameter.name: option})
                    if there > here:
                        point, here = {**point, parameter.name: option}, there
        return here, point

    ends = sorted((climb(start, start.keys(), 12) for start in starts), key=lambda end: -end[0])
    return replace(surface, known_best=max(climb(point, (), 60)[0] for _, point in ends[:4]))
