"""Runs one search on one surface and writes down what it found, trial by trial."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tests.benchmarks.search.bench_space import BenchPlanner, Surface
from tests.benchmarks.search.prices import Clock
from tuner.errors import StudyStopped
from tuner.model.candidate import Candidate
from tuner.model.json import Scalar
from tuner.model.judge import constraints
from tuner.model.measurement import Measurement
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.space import Range
from tuner.search import OptunaOptimizer

__all__ = ["Run", "optimum", "run_search"]


@dataclass(frozen=True)
class Run:
    """One seed of one method.

    Attributes:
        best: after each trial, the noiseless value of the configuration that measured best so far.
        failed: which trials did not start.
        seconds: time spent on suggestions alone.
        clock: wall seconds (of the surface, not of this machine) at the end of each trial; empty without prices.
    """

    best: tuple[float, ...]
    failed: tuple[bool, ...]
    seconds: float
    clock: tuple[float, ...] = ()


def run_search(
    surface: Surface,
    method: str,
    *,
    seed: int,
    trials: int,
    clock: Clock | None = None,
    budget_s: float | None = None,
    thrifty: bool = True,
) -> Run:
    """``trials`` launches, the baseline included.

    ``method``: a sampler's name, ``one-factor``, or ``told``: the default search, on servers that say of themselves
    what vLLM's ``/metrics`` do.

    With a ``clock`` launches cost its seconds, and end when ``budget_s`` is spent; only a ``thrifty`` search is told
    that the budget is time.
    """
    planner = BenchPlanner(surface)
    rng = np.random.default_rng([99, seed])
    best: list[float] = []
    failed: list[bool] = []
    top, top_measured, spent = 0.0, 0.0, 0.0
    times: list[float] = []

    def launch(assignment: Mapping[str, Scalar]) -> float | str:
        nonlocal top, top_measured
        true = surface.evaluate(planner.complete(assignment))
        value = true if isinstance(true, str) else true * float(np.exp(rng.normal(0, surface.noise)))
        if not isinstance(true, str) and isinstance(value, float) and value > top_measured:
            top, top_measured = true, value
        best.append(top)
        failed.append(isinstance(true, str))
        return value

    if method == "one-factor":
        for assignment in _one_factor(surface, launch, seed, trials):
            del assignment
        return Run(tuple(best[:trials]), tuple(failed[:trials]), 0.0)
    optimizer = OptunaOptimizer(
        surface.space,
        planner,
        storage="memory://",
        study_name="b",
        sampler="tune" if method == "told" else method,
        seed=seed,
        budget_trials=trials,
        budget_seconds=budget_s if thrifty else None,
    )
    while len(best) < trials and (budget_s is None or not times or times[-1] < budget_s):
        began = time.perf_counter()
        try:
            suggestion = optimizer.ask() if best else optimizer.ask("baseline", {})
        except StudyStopped:
            break
        spent += time.perf_counter() - began
        told = surface.told(planner.complete(suggestion.assignment)) if surface.told and method == "told" else {}
        outcome = outcome_of(planner.render(suggestion.assignment), launch(suggestion.assignment), told)
        if clock is not None:
            seconds = clock.seconds(planner.complete(suggestion.assignment), failed=failed[-1])
            times.append((times[-1] if times else 0.0) + seconds)
            outcome = replace(outcome, seconds={"total": seconds})
        began = time.perf_counter()
        optimizer.tell(suggestion.number, outcome, {})
        spent += time.perf_counter() - began
    best += [best[-1]] * (trials - len(best))
    return Run(tuple(best), tuple(failed), spent, tuple(times))


def outcome_of(candidate: Candidate, value: float | str, told: Mapping[str, float] | None = None) -> Outcome:
    """What a launcher would report; ``told``: metrics of the running server."""
    if isinstance(value, str):
        failure = Failure(kind="unknown", cause=value, blame=Blame.CONFIGURATION)
        kept = constraints((), failure=failure)
        return Outcome(candidate=candidate, status=Status.BROKEN, failure=failure, constraints=kept)
    measurement = Measurement(metrics=told, objective=None) if told else None
    return Outcome(
        candidate=candidate,
        status=Status.MEASURED,
        objective=value,
        measurement=measurement,
        constraints=constraints(()),
    )


def _one_factor(surface: Surface, launch: object, seed: int, trials: int) -> Iterator[Mapping[str, Scalar]]:
    """Parameters in random order; each value tried from the best so far, the best one kept."""
    rng = np.random.default_rng([7, seed])
    current: dict[str, Scalar] = {}
    planner = BenchPlanner(surface)
    record = launch(current)  # type: ignore[operator]
    yield current
    count = 1
    order = list(rng.permutation(len(surface.space.parameters)))
    while count < trials:
        for index in order:
            parameter = surface.space.parameters[int(index)]
            if parameter.name not in planner.complete(current):
                continue
            for value in _values(parameter.domain):
                trial = {**current, parameter.name: value}
                if count >= trials:
                    return
                if surface.excluded is not None and surface.excluded(planner.complete(trial)):
                    continue
                count += 1
                measured = launch(trial)  # type: ignore[operator]
                yield trial
                if not isinstance(measured, str) and measured > record:
                    current, record = trial, measured


def _values(domain: object) -> list[Scalar]:
    if isinstance(domain, Range):
        grid = np.geomspace(domain.low, domain.high, 4) if domain.log else np.linspace(domain.low, domain.high, 4)
        return [round(float(value)) if domain.integer else float(value) for value in grid]
    return list(domain.values)  # type: ignore[attr-defined]


def optimum(surface: Surface, *, effort: int = 24) -> float:
    """The best noiseless value, by restarted coordinate search on fine grids."""
    if surface.known_best is not None:
        return surface.known_best
    planner = BenchPlanner(surface)
    rng = np.random.default_rng(5)
    parameters = surface.space.parameters
    grids: dict[str, list[Scalar]] = {}
    for parameter in parameters:
        domain = parameter.domain
        if isinstance(domain, Range):
            grid = np.geomspace(domain.low, domain.high, 60) if domain.log else np.linspace(domain.low, domain.high, 60)
            points = [round(float(v)) if domain.integer else float(v) for v in grid]
            if domain.step:
                points = [domain.low + round((p - domain.low) / domain.step) * domain.step for p in points]
            grids[parameter.name] = list(dict.fromkeys(points))
        else:
            grids[parameter.name] = list(domain.values)

    def value(assignment: Mapping[str, Scalar]) -> float:
        full = planner.complete(assignment)
        if surface.excluded is not None and surface.excluded(full):
            return 0.0
        found = surface.evaluate(full)
        return 0.0 if isinstance(found, str) else found

    best = 0.0
    for attempt in range(effort):
        # Every second climb begins at the default with a few changes: random points are mostly dead.
        point: dict[str, Scalar] = {parameter.name: parameter.default for parameter in parameters}
        for name, grid in grids.items():
            if rng.random() < (1.0 if attempt % 2 else 0.3):
                point[name] = grid[int(rng.integers(len(grid)))]
        here = value(point)
        for _ in range(6):
            before = here
            for name in rng.permutation(list(grids)):
                for option in grids[str(name)]:
                    there = value({**point, str(name): option})
                    if there > here:
                        point, here = {**point, str(name): option}, there
            if here <= before:
                break
        best = max(best, here)
    return best
