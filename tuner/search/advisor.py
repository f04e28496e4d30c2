"""What to try next: new candidates at random, until the models speak."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from optuna.distributions import BaseDistribution

from tuner.model.json import Scalar
from tuner.model.space import Space
from tuner.model.workload import Objective, Workload
from tuner.ports import Planner
from tuner.search.conditions import Conditions
from tuner.search.distributions import Encoding
from tuner.search.observations import Observation

__all__ = ["Advisor"]


class Advisor:
    def __init__(
        self,
        *,
        space: Space,
        encoded: Mapping[str, Encoding],
        conditions: Conditions,
        planner: Planner,
        objective: Objective,
        workload: Workload | None,
        startup: int,
        budget: int | None,
    ) -> None:
        self._encoded = encoded
        self._conditions = conditions
        self._planner = planner

    def propose(
        self,
        history: Sequence[Observation],
        avoided: AbstractSet[str],
        pending: Sequence[Mapping[str, Scalar]],
        *,
        seed: int,
    ) -> dict[str, Scalar] | None:
        return self.any_new(history, avoided, seed=seed)

    def any_new(
        self, history: Sequence[Observation], avoided: AbstractSet[str], *, seed: int
    ) -> dict[str, Scalar] | None:
        rng = random.Random(seed)
        for _ in range(2000):
            full = {name: item.at(rng.random()) for name, item in self._encoded.items()}
            candidate = self._planner.render(self._conditions.prune(full))
            if self._planner.identity(candidate) not in avoided and self._planner.exclusion(candidate) is None:
                return dict(candidate.assignment)
        return None

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return {name: item.distribution for name, item in self._encoded.items()}

    def internal(self, assignment: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """As Optuna's samplers would spell it."""
        out = {}
        for name, item in self._encoded.items():
            if name in assignment:
                out[name] = item.encode(assignment[name])
        return out

    def expected_gain(self, history: Sequence[Observation]) -> float | None:
        return None
