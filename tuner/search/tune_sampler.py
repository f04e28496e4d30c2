"""The project's own sampler as one of Optuna's: a thin shell around the advisor."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from tuner.errors import StudyStopped
from tuner.model.json import Scalar
from tuner.search.advisor import Advisor
from tuner.search.observations import Observation

__all__ = ["TuneSampler"]


class TuneSampler(BaseSampler):
    """Suggests what the advisor makes of the history. One instance serves one suggestion.

    Raises:
        StudyStopped: when a trial is asked for and nothing new is left.
    """

    def __init__(
        self,
        advisor: Advisor,
        history: Sequence[Observation],
        avoided: AbstractSet[str],
        pending: Sequence[Mapping[str, Scalar]],
        *,
        seed: int,
    ) -> None:
        self._advisor = advisor
        self._history = history
        self._avoided = avoided
        self._pending = pending
        self._seed = seed
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._proposal: Mapping[str, Scalar] = {}

    def leaves_away(self, name: str) -> bool:
        """Whether the candidate is to run without a setting, which it may not even have."""
        return name not in self._proposal

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:  # noqa: ARG002
        """Decide on the candidate at once: Optuna would ask with the first value, after what is left away is known."""
        proposal = self._advisor.propose(self._history, self._avoided, self._pending, seed=self._seed)
        if proposal is None:
            raise StudyStopped("nothing feasible is left to try: every candidate found is excluded or was tried")
        self._proposal = proposal

    def infer_relative_search_space(
        self,
        study: optuna.Study,  # noqa: ARG002  (Optuna's signature, here and below)
        trial: FrozenTrial,  # noqa: ARG002
    ) -> dict[str, BaseDistribution]:
        """Every parameter: conditions are the advisor's business."""
        return self._advisor.distributions

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The advisor's next candidate, as internal values."""
        return self._advisor.internal(self._proposal)

    def sample_independent(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A random value, for parameters that the space does not know."""
        if isinstance(param_distribution, CategoricalDistribution):
            return self._random.choice(param_distribution.choices)
        if isinstance(param_distribution, IntDistribution):
            steps = (param_distribution.high - param_distribution.low) // param_distribution.step
            return param_distribution.low + self._random.randint(0, steps) * param_distribution.step
        if isinstance(param_distribution, FloatDistribution):
            return self._random.uniform(param_distribution.low, param_distribution.high)
        raise TypeError(f"parameter {param_name}: {type(param_distribution).__name__} cannot be sampled")
