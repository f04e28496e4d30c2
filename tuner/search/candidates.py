"""Where suggestions come from: random candidates, mutations and crossings of the best, one-factor sweeps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tuner.model.json import Scalar
from tuner.search.conditions import Conditions
from tuner.search.distributions import Encoding
from tuner.search.knobs import is_chosen, is_decisive

__all__ = ["Assignment", "CandidateSource"]

Assignment = dict[str, Scalar]

_SWEEP = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_NEAR = (-0.12, -0.05, 0.05, 0.12)
_TRADES = (0.1, 0.34, 0.67)
"""How far two numbers are moved together, as shares of their ranges."""
_OMITTED = 0.2
"""Share of random candidates that leave a setting without a default to the server."""
_MOST_TRADED = 7
_MOST_MATCHED = 200
"""Pairs of labels in one pool."""


class CandidateSource:
    """Draws full assignments (conditional parameters included) and prunes them to what exists."""

    def __init__(self, encoded: Mapping[str, Encoding], conditions: Conditions) -> None:
        self._encoded = encoded
        self._conditions = conditions
        self._names = list(encoded)
        decisive = [name for name, item in encoded.items() if item.ordered and is_decisive(item.parameter)]
        self._traded = decisive[:_MOST_TRADED]
        self._matched = [
            name
            for name, item in encoded.items()
            if (not item.ordered and len(item.values) > 2) or (is_chosen(item.parameter) and item.few)
        ]

    def complete(self, assignment: Mapping[str, Scalar], rng: np.random.Generator) -> Assignment:
        """Every parameter: what is given, else the default, else nothing where that may be, else a random value."""
        out: Assignment = {}
        for name, item in self._encoded.items():
            value = assignment.get(name, item.default)
            if value is not None:
                out[name] = value
            elif not item.omissible:
                out[name] = item.at(float(rng.random()))
        return out

    def prune(self, assignment: Mapping[str, Scalar]) -> Assignment:
        return self._conditions.prune(assignment)

    def random(self, rng: np.random.Generator) -> Assignment:
        drawn = {name: item.at(float(rng.random())) for name, item in self._encoded.items()}
        return {name: value for name, value in drawn.items() if not self._left_away(name, rng)}

    def _left_away(self, name: str, rng: np.random.Generator) -> bool:
        return self._encoded[name].omissible and rng.random() < _OMITTED

    def pool(
        self, parents: Sequence[Mapping[str, Scalar]], rng: np.random.Generator, size: int, *, stuck: bool = False
    ) -> list[Assignment]:
        """About ``size`` different candidates, pruned, in a fixed order; ``stuck``: and matches of two labels."""
        full = [self.complete(parent, rng) for parent in parents]
        found: dict[tuple[object, ...], Assignment] = {}

        def add(assignment: Mapping[str, Scalar]) -> None:
            pruned = self.prune(assignment)
            found.setdefault(signature(pruned), pruned)

        for parent in full[:2]:
            for neighbour in self.sweep(parent):
                add(neighbour)
        for parent in full[:1]:
            for neighbour in (*self.trades(parent), *(self.matches(parent, rng) if stuck else ())):
                add(neighbour)
        share = size // 3 if full else size
        for _ in range(share):
            add(self.random(rng))
        for index in range(size - share if full else 0):
            parent = full[min(int(rng.exponential(1.2)), len(full) - 1)]
            if index % 5 == 0 and len(full) > 1:
                parent = self._cross(parent, full[int(rng.integers(len(full)))], rng)
            add(self.mutate(parent, rng, changes=1 + min(int(rng.exponential(1.3)), 6)))
        return list(found.values())

    def mutate(self, parent: Mapping[str, Scalar], rng: np.random.Generator, *, changes: int) -> Assignment:
        """``parent`` with some parameters moved: numbers to a near or any value, labels to any."""
        child = dict(parent)
        for index in rng.permutation(len(self._names))[:changes]:
            name = self._names[int(index)]
            item = self._encoded[name]
            if name in child and self._left_away(name, rng):
                del child[name]
                continue
            unit = item.unit(child.get(name))
            if unit is None or rng.random() < 0.4:
                child[name] = item.at(float(rng.random()))
            else:
                child[name] = item.at(min(max(unit + float(rng.normal(0, 0.2)), 0.0), 1.0))
        return child

    def sweep(self, parent: Mapping[str, Scalar]) -> list[Assignment]:
        """Each parameter in turn at its other values (of a long range six, and four near by), all else as it is."""
        out = []
        for name, item in self._encoded.items():
            here = item.unit(parent.get(name))
            near = [] if here is None else [here + step for step in _NEAR if 0 <= here + step <= 1]
            few = 0 < len(item.values) <= 12
            values = item.values if few else tuple(dict.fromkeys(item.at(unit) for unit in (*_SWEEP, *near)))
            out += [{**parent, name: value} for value in values if value != parent.get(name)]
            if item.omissible and name in parent:
                out.append({other: value for other, value in parent.items() if other != name})
        return out

    def trades(self, parent: Mapping[str, Scalar]) -> list[Assignment]:
        """Two decisive numbers at once, one up and one down or both up: what one step alone would only break.

        Devices are split either way but not more than there are, a deeper draft asks for fewer sequences.
        """
        out: list[Assignment] = []
        units = {name: self._encoded[name].unit(parent.get(name)) for name in self._traded}
        for first, second in itertools.permutations(self._traded, 2):
            a, b = units[first], units[second]
            if a is None or b is None:
                continue
            for far in _TRADES:
                moved = {first: self._encoded[first].at(min(a + far, 1.0))}
                if a + far < 1 + far / 2 and b > 0:
                    out.append({**parent, **moved, second: self._encoded[second].at(max(b - far, 0.0))})
                if first < second and a < 1 and b < 1:
                    out.append({**parent, **moved, second: self._encoded[second].at(min(b + far, 1.0))})
        return out

    def matches(self, parent: Mapping[str, Scalar], rng: np.random.Generator) -> list[Assignment]:
        """Two labels at once, of several each: a kernel and the precision that it is made for, drafts and a layout.

        Each alone may be slower or unable to start. Of very many, some are drawn.
        """
        labels = {name: [v for v in self._encoded[name].values if v != parent.get(name)] for name in self._matched}
        out: list[Assignment] = []
        for first, second in itertools.combinations(self._matched, 2):
            out += [{**parent, first: a, second: b} for a in labels[first] for b in labels[second]]
        if len(out) > _MOST_MATCHED:
            out = [out[index] for index in np.sort(rng.choice(len(out), _MOST_MATCHED, replace=False)).tolist()]
        return out

    def _cross(self, a: Mapping[str, Scalar], b: Mapping[str, Scalar], rng: np.random.Generator) -> Assignment:
        chosen = {name: a if rng.random() < 0.5 else b for name in self._names}
        return {name: parent[name] for name, parent in chosen.items() if name in parent}


def signature(assignment: Mapping[str, Scalar]) -> tuple[object, ...]:
    """Equal for equal assignments; True and 1 differ."""
    return tuple((name, type(value), value) for name, value in assignment.items())
