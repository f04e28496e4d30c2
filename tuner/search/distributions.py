"""From a search space to what Optuna samples, and back.

Every parameter keeps one frozen distribution for the life of a study, whatever conditions it stands under: Optuna
refuses categorical choices that change on resume. Where order means something (ordinal choices, powers of two) the
sampler sees the position in the list, so that neighbours look alike to it; otherwise it sees the value itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from tuner.errors import InputError
from tuner.model.json import Json, Scalar, canonical, finite
from tuner.model.space import UNSET, Choice, Parameter, Range, Space

__all__ = ["Encoding", "encodings", "space_digest"]

_FEW = 6
"""Values that an ordered setting may have and be chosen from like labels."""
_MOST_POSITIONS = 4096
"""Longer lists of values are treated as numbers on a scale instead of positions."""

Internal: TypeAlias = Scalar


@dataclass(frozen=True)
class Encoding:
    """One parameter as a sampler sees it.

    Attributes:
        parameter: the parameter of the space.
        values: all values in order where they are listed or few, else empty.
        distribution: what Optuna samples from.
        by_position: the sampler sees positions in ``values``.
    """

    parameter: Parameter
    values: tuple[Scalar, ...]
    distribution: BaseDistribution
    by_position: bool

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def ordered(self) -> bool:
        """Whether a unit coordinate means something: numbers, and choices whose order does."""
        domain = self.parameter.domain
        return isinstance(domain, Range) or domain.ordinal

    @cached_property
    def _positions(self) -> dict[tuple[type, Scalar], int]:
        # True == 1 == 1.0 in Python; labels of different types must stay different.
        return {(type(value), value): position for position, value in enumerate(self.values)}

    @property
    def few(self) -> bool:
        """So few values that each may be tried for its own sake, also where their order means something."""
        return 1 < len(self.values) <= _FEW

    @property
    def omissible(self) -> bool:
        """Whether the defaults start without it, whatever the server makes of it, so that any candidate may.

        What exists beside something else alone nobody has seen left away.
        """
        return self.default is None and self.parameter.when is None

    def decode(self, internal: Scalar) -> Scalar:
        """The value or label behind what the sampler chose."""
        if self.by_position and isinstance(internal, int | float):
            return self.values[min(max(int(internal), 0), len(self.values) - 1)]
        domain = self.parameter.domain
        if isinstance(domain, Range) and isinstance(internal, int | float):
            return _snap(domain, float(internal))
        return internal

    def encode(self, value: Scalar) -> Internal | None:
        """What the sampler would have chosen for ``value``: the nearest it can say; None where it cannot."""
        domain = self.parameter.domain
        if isinstance(domain, Choice):
            position = self.position(value)
            if position is None:
                return None
            return position if self.by_position else self.values[position]
        number = _number(value)
        if number is None:
            return None
        if self.by_position:
            numbers = [_number(item) or 0.0 for item in self.values]
            return min(range(len(numbers)), key=lambda index: _distance(numbers[index], number, log=domain.log))
        return _snap(domain, number)

    def position(self, value: Scalar) -> int | None:
        """Index of ``value`` in the list of values, None where it is none of them."""
        found = self._positions.get((type(value), value))
        if found is not None:
            return found
        return next((index for index, item in enumerate(self.values) if item == value), None)

    def unit(self, value: Scalar) -> float | None:
        """``value`` on a scale from 0 to 1 (logarithmic where the range is); None for labels without an order."""
        domain = self.parameter.domain
        if isinstance(domain, Choice):
            position = self.position(value) if domain.ordinal else None
            return None if position is None else position / max(len(self.values) - 1, 1)
        number = _number(value)
        if number is None:
            return None
        low, high = domain.low, domain.high
        if domain.log and low > 0:
            low, high, number = math.log(low), math.log(high), math.log(max(number, 1e-12))
        return 0.5 if high <= low else min(max((number - low) / (high - low), 0.0), 1.0)

    def at(self, unit: float) -> Scalar:
        """The value at ``unit`` (0 to 1) of the scale; equal shares for listed values."""
        if self.values:
            return self.values[min(int(unit * len(self.values)), len(self.values) - 1)]
        domain = self.parameter.domain
        assert isinstance(domain, Range)  # noqa: S101  (choices always list their values)
        if domain.log:
            return _snap(domain, math.exp(math.log(domain.low) + unit * (math.log(domain.high) - math.log(domain.low))))
        return _snap(domain, domain.low + unit * (domain.high - domain.low))

    @cached_property
    def default(self) -> Scalar:
        """What runs where nothing is asked for: the stated default, the label that leaves the flag away, else None."""
        stated, domain = self.parameter.default, self.parameter.domain
        if not isinstance(domain, Choice):
            return stated if _number(stated) is not None else None
        if stated is not None:
            # Stated as a label, or as the value behind one.
            for label, value in domain.values.items():
                if label == stated or (type(value) is type(stated) and value == stated):
                    return label
        return next((label for label, value in domain.values.items() if value is UNSET), None)


def encodings(space: Space) -> dict[str, Encoding]:
    """The encoding of every parameter, in the space's order.

    Raises:
        InputError: a parameter has no value to offer, or bounds that are not numbers in order.
    """
    return {parameter.name: _encoding(parameter) for parameter in space.parameters}


def space_digest(space: Space, encoded: Mapping[str, Encoding]) -> str:
    """What must stay the same for a study to go on: the space's own digest, or one made from its parameters."""
    if space.digest:
        return space.digest
    text: dict[str, Json] = {name: distribution_to_json(item.distribution) for name, item in encoded.items()}
    text["base"] = canonical(dict(space.base_arguments))
    return hashlib.sha256(canonical(text).encode()).hexdigest()[:16]


def _encoding(parameter: Parameter) -> Encoding:
    domain = parameter.domain
    if isinstance(domain, Choice):
        labels: tuple[Scalar, ...] = tuple(domain.values)
        if not labels:
            raise InputError(f"parameter {parameter.name}: the choice has no values; name at least one")
        if domain.ordinal:
            return Encoding(parameter, labels, IntDistribution(0, len(labels) - 1), by_position=True)
        return Encoding(parameter, labels, CategoricalDistribution(labels), by_position=False)
    if not (finite(domain.low) and finite(domain.high) and domain.low <= domain.high):
        raise InputError(
            f"parameter {parameter.name}: bounds {domain.low}..{domain.high} are not numbers in order; mend the range"
        )
    if domain.log and domain.low <= 0:
        raise InputError(f"parameter {parameter.name}: a logarithmic range starts above 0, not at {domain.low}")
    values = _listed(domain)
    if values and domain.log:
        # Powers of two and stepped logarithmic ranges: Optuna has no log scale with a step.
        return Encoding(parameter, values, IntDistribution(0, len(values) - 1), by_position=True)
    return Encoding(parameter, values, _range_distribution(domain), by_position=False)


def _range_distribution(domain: Range) -> BaseDistribution:
    if domain.integer:
        low, step = math.ceil(domain.low), max(int(domain.step or 1), 1)
        high = low + (math.floor(domain.high) - low) // step * step
        return IntDistribution(low, max(high, low), log=domain.log, step=1 if domain.log else step)
    if domain.log or not domain.step:
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    top = domain.low + math.floor((domain.high - domain.low) / domain.step + 1e-9) * domain.step
    return FloatDistribution(domain.low, max(round(top, 12), domain.low), step=domain.step)


def _listed(domain: Range) -> tuple[Scalar, ...]:
    """The values of a range that has few of them; empty for scales."""
    if domain.integer and domain.base is not None and domain.base >= 2:
        return tuple(_powers(domain.low, domain.high, domain.base))
    step = domain.step or (1 if domain.integer else None)
    if step is None or (domain.log and domain.step is None):
        return ()
    count = math.floor((domain.high - domain.low) / step + 1e-9) + 1
    if count > _MOST_POSITIONS:
        return ()
    start = float(math.ceil(domain.low) if domain.integer else domain.low)
    numbers = [start + index * step for index in range(count)]
    return tuple(
        int(number) if domain.integer else round(number, 12) for number in numbers if number <= domain.high + 1e-9
    )


def _powers(low: float, high: float, base: int) -> Sequence[int]:
    """``low`` times the powers of ``base``, up to ``high``."""
    value, out = max(math.ceil(low), 1), []
    while value <= high:
        out.append(value)
        value *= base
    return out


def _snap(domain: Range, number: float) -> Scalar:
    number = min(max(number, domain.low), domain.high)
    if domain.step:
        number = domain.low + round((number - domain.low) / domain.step) * domain.step
        if number > domain.high + 1e-9:
            number -= domain.step
    return round(number) if domain.integer else round(number, 12)


def _number(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and finite(value) else None


def _distance(a: float, b: float, *, log: bool) -> float:
    return abs(math.log(max(a, 1e-12)) - math.log(max(b, 1e-12))) if log else abs(a - b)
