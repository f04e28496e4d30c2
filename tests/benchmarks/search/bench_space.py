"""The least that a surface needs to be searched: a space, and a planner without any rules of its own.

No rule excludes anything here: every dead configuration has to be found out by a launch, which is harder than in a
real study, where the space's rules weed out most of them for nothing. As with a user's bare profile, what vLLM is known
to refuse is no more than a belief that the search begins with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.expression import Expression
from tuner.model.hardware import Hardware
from tuner.model.json import Json, Scalar, canonical
from tuner.model.llm import ModelFacts
from tuner.model.space import UNSET, Choice, Parameter, Range, Space
from tuner.spaces.doubts import Doubts
from tuner.spaces.loader import Library

_LIBRARY = Library()

__all__ = ["BenchPlanner", "Surface", "choice", "number", "space_of", "switch"]


@dataclass(frozen=True)
class Surface:
    """A function of a configuration.

    Attributes:
        evaluate: assignment (every parameter present, defaults filled in, conditional ones only where they exist) →
            noiseless throughput, or a message that says why the server does not start.
        noise: relative standard deviation of a measurement.
        excluded: whether the planner refuses an assignment for nothing (replayed tables: what was not recorded).
        known_best: the optimum where it need not be searched.
        told: what a running server would say of itself (``engine/…`` metrics), where the surface knows.
    """

    name: str
    space: Space
    evaluate: Callable[[Mapping[str, Scalar]], float | str]
    noise: float
    excluded: Callable[[Mapping[str, Scalar]], bool] | None = None
    known_best: float | None = None
    told: Callable[[Mapping[str, Scalar]], Mapping[str, float]] | None = None


class BenchPlanner:
    """Implements :class:`tuner.ports.Planner` for surfaces."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._parameters = surface.space.parameters
        self._defaults: dict[str, Scalar] = {p.name: p.default for p in self._parameters}
        self._doubts = Doubts(surface.space, {}, library=_LIBRARY)

    def complete(self, assignment: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """What would run: defaults filled in, conditional parameters only where they exist."""
        full = self._defaults | dict(assignment)
        return {p.name: full[p.name] for p in self._parameters if p.when is None or p.when.holds(full)}

    def baseline(self) -> Candidate:
        return Candidate(assignment={}, arguments={}, origin="baseline")

    def starts(self) -> Sequence[Candidate]:
        return ()

    def render(self, assignment: Mapping[str, Scalar], *, origin: str = "search") -> Candidate:
        full = self._defaults | dict(assignment)
        kept: dict[str, Scalar] = {}
        arguments: dict[str, Json] = {}
        for parameter in self._parameters:
            if parameter.name not in assignment or (parameter.when is not None and not parameter.when.holds(full)):
                continue
            kept[parameter.name] = assignment[parameter.name]
            value: object = assignment[parameter.name]
            if isinstance(parameter.domain, Choice):
                value = parameter.domain.values[str(value)]
            if value is not UNSET:
                # Sizes are numbers to vLLM, and to what is known of it.
                arguments[parameter.target] = int(value) if str(value).isdecimal() else value  # type: ignore[assignment,arg-type]
        return Candidate(assignment=kept, arguments=arguments, origin=origin)

    def exclusion(self, candidate: Candidate) -> Exclusion | None:
        if self._surface.excluded is not None and self._surface.excluded(self.complete(candidate.assignment)):
            return Exclusion(reason="not in the table", rule="table")
        return None

    def doubts(self, candidate: Candidate) -> Sequence[float]:
        return self._doubts.of(candidate)

    def identity(self, candidate: Candidate) -> str:
        return canonical(self.complete(candidate.assignment))

    def effective_identity(self, candidate: Candidate, effective: Mapping[str, Json]) -> str:
        return self.identity(candidate)

    def forecast(self, candidate: Candidate) -> Mapping[str, float]:
        return {}

    def numerics(self, candidate: Candidate) -> str:
        return ""


def choice(
    name: str, labels: Sequence[str], *, target: str = "", ordinal: bool = False, when: str = "", default: str = ""
) -> Parameter:
    """A choice whose default is the first label unless stated (and leaves the flag away unless sizes are meant)."""
    values: dict[str, object] = {label: label for label in labels}
    if not ordinal:
        values[labels[0]] = UNSET
    return Parameter(
        name=name,
        target=target or name.replace("_", "-"),
        domain=Choice(values=values, ordinal=ordinal),  # type: ignore[arg-type]
        default=default or labels[0],
        when=Expression.parse(when) if when else None,
    )


def switch(name: str, *, default: bool) -> Parameter:
    values: dict[str, object] = {"true": True, "false": False}
    domain = Choice(values=values)  # type: ignore[arg-type]
    return Parameter(name=name, target=name.replace("_", "-"), domain=domain, default=str(default).lower())


def number(
    name: str, low: float, high: float, default: float, *, log: bool = False, step: float | None = None,
    integer: bool = True, target: str = "", when: str = "",
) -> Parameter:  # fmt: skip
    return Parameter(
        name=name,
        target=target or name.replace("_", "-"),
        domain=Range(low=low, high=high, log=log, step=step, integer=integer),
        default=default,
        when=Expression.parse(when) if when else None,
    )


def space_of(name: str, parameters: Sequence[Parameter], *, count: int = 1, platform: str = "cuda") -> Space:
    """The space, on a machine and model whose figures fit none of the surfaces in particular."""
    return Space(
        name=name,
        hardware=Hardware(
            name="h200",
            platform=platform,  # type: ignore[arg-type]
            device="NVIDIA H200",
            count=count,
            capability=(9, 0),
            memory_gib=139.8,
            bandwidth_gb_s=4800,
            tflops={"bf16": 989, "fp8": 1979},
        ),
        model=ModelFacts(
            name="Qwen/Qwen3-30B-A3B",
            layers=48,
            hidden=2048,
            heads=32,
            kv_heads=4,
            head_dim=128,
            vocab=151936,
            max_position=40960,
            experts=128,
            experts_per_token=8,
            moe_intermediate=768,
            weight_bytes=61e9,
            kv_bytes_per_token={"auto": 98304.0, "fp8": 49152.0},
        ),
        parameters=tuple(parameters),
    )
