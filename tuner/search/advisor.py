"""What to try next: the default search of this project.

A mechanistic model gives the trend, a Gaussian process what the trend misses, a noisy-or the chance of starting;
expected improvement times that chance is maximised over a pool and then by local search. The same process without the
mechanism runs beside it, and the evidence weighs the two: where the mechanism is wrong, it fades.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from tuner.model.json import Scalar
from tuner.model.space import Space
from tuner.model.workload import Objective, Workload
from tuner.ports import Planner
from tuner.search.agreement import Agreement
from tuner.search.candidates import Assignment, CandidateSource, signature
from tuner.search.conditions import Conditions
from tuner.search.distributions import Encoding
from tuner.search.encoder import Encoder
from tuner.search.feasibility import Suspects
from tuner.search.observations import Observation
from tuner.search.surrogate import Surrogate, train
from tuner.search.training import Training

__all__ = ["Advisor"]

Array: TypeAlias = NDArray[np.float64]

_POOL = 420
_STUCK = 3
"""Launches without a better one from which on two labels are changed at once: before, forecasts of both are guesses."""
_CLIMBERS = 3
_CLIMBS = 4
_MOST_TRAINED = 160
"""Trials that the models are fitted to; of more, the best and the latest are kept."""
_CONFIDENT, _UNMOVED = 12, 6
"""Fewer measured trials than this, or since the last better one, say nothing about what may still come."""
_LOST = 2
"""Launches per parameter before which a search that found nothing better than the defaults does not give up."""
_NOTHING_LOST = 0.01
"""What settings may bring together (log units) and be left out all the same: less than one trial can tell."""
_THRIFT = 1.0
"""How much seconds count at the start of a study whose budget is time."""


@dataclass(frozen=True)
class _Ranked:
    assignment: Assignment
    score: float
    gain: float


class Advisor:
    """Turns a history into the next candidate. Deterministic given history, what to avoid, and seed."""

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
        budget_s: float | None = None,
        certain: bool = True,
    ) -> None:
        self._encoded = encoded
        self._planner = planner
        self._objective = objective
        self._startup = startup
        self._budget = budget
        self._budget_s = budget_s
        self._encoder = Encoder(
            space,
            encoded,
            conditions=conditions,
            planner=planner,
            objective=objective,
            workload=workload,
            certain=certain,
        )
        self._agreement = Agreement(self._encoder)
        self._source = CandidateSource(encoded, conditions)
        self._suspects = Suspects.of(encoded)
        numeric = frozenset(parameter.name for parameter in space.parameters if parameter.numerics)
        self._accuracy_suspects = Suspects.of(encoded, only=numeric)
        self._gain: tuple[int, float | None] = (-1, None)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """What Optuna is told that each parameter may be."""
        return {name: item.distribution for name, item in self._encoded.items()}

    def internal(self, assignment: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """An assignment as Optuna's samplers would spell it."""
        spelled = {name: item.encode(assignment[name]) for name, item in self._encoded.items() if name in assignment}
        return {name: value for name, value in spelled.items() if value is not None}

    def propose(
        self,
        history: Sequence[Observation],
        avoided: AbstractSet[str],
        pending: Sequence[Mapping[str, Scalar]],
        *,
        seed: int,
    ) -> Assignment | None:
        """The candidate that promises most; None if nothing new and feasible was found."""
        # One thread: on matrices this small more only cost, and equal histories must give equal suggestions.
        with threadpool_limits(limits=1):
            return self._propose(history, avoided, pending, seed)

    def _propose(
        self,
        history: Sequence[Observation],
        avoided: AbstractSet[str],
        pending: Sequence[Mapping[str, Scalar]],
        seed: int,
    ) -> Assignment | None:
        rng = np.random.default_rng(seed)
        training, surrogate = self._models(history, pending, thrift=self._thrift(history))
        parents = self._parents(training, surrogate)
        ranked = self._rank(self._source.pool(parents, rng, _POOL, stuck=surrogate.stalled >= _STUCK), surrogate)
        ranked = self._climb(ranked, surrogate)
        self._gain = (len(history), ranked[0].gain if ranked else None)
        for item in ranked:
            candidate = self._planner.render(item.assignment)
            if self._planner.identity(candidate) in avoided or self._planner.exclusion(candidate) is not None:
                continue
            return dict(candidate.assignment)
        return self.any_new(avoided, seed=seed)

    def plainer(
        self, history: Sequence[Observation], assignment: Mapping[str, Scalar], avoided: AbstractSet[str]
    ) -> Assignment | None:
        """``assignment`` without settings whose absence costs nothing that the model can see.

        What brings least is left out first, as long as all of it together costs next to nothing. None if there is no
        model yet, or what is left was tried, is excluded or the same to the planner.
        """
        with threadpool_limits(limits=1):
            _, surrogate = self._models(history)
            if not surrogate.views:
                return None
            plain = dict(self._planner.render(assignment).assignment)
            least = surrogate.worth(self._encoder.rows([plain]))[0] - _NOTHING_LOST
            while fewer := self._fewer(plain):
                worth = surrogate.worth(self._encoder.rows(fewer))
                if worth.max() < least:
                    break
                plain = fewer[int(np.argmax(np.round(worth, 6)))]
        candidate = self._planner.render(plain)
        known = {*avoided, self._planner.identity(self._planner.render(assignment))}
        if self._planner.identity(candidate) in known or self._planner.exclusion(candidate) is not None:
            return None
        return dict(candidate.assignment)

    def _fewer(self, assignment: Assignment) -> list[Assignment]:
        """All that lack one setting of ``assignment``, and what exists only beside it."""
        without = [{other: value for other, value in assignment.items() if other != name} for name in assignment]
        return [dict(self._planner.render(item).assignment) for item in without]

    def any_new(self, avoided: AbstractSet[str], *, seed: int) -> Assignment | None:
        """A random candidate that is neither excluded nor known; None after a long search."""
        rng = np.random.default_rng(seed + 1)
        for _ in range(3000):
            candidate = self._planner.render(self._source.prune(self._source.random(rng)))
            if self._planner.identity(candidate) not in avoided and self._planner.exclusion(candidate) is None:
                return dict(candidate.assignment)
        return None

    def expected_gain(self, history: Sequence[Observation]) -> float | None:
        """Relative gain over the best that the last suggestion's model still saw; None while it cannot say."""
        if sum(item.started for item in history) < _CONFIDENT or self._gain[0] < 0:
            return None
        training = self._training(history)
        if not training.risen and training.own < _LOST * len(self._encoded):
            return None
        return self._gain[1] if training.stalled >= _UNMOVED else None

    @property
    def has_proposed(self) -> bool:
        """Whether there was a suggestion that :meth:`expected_gain` can speak of."""
        return self._gain[0] >= 0

    # -- parts ----------------------------------------------------------------------------------------------

    def _models(
        self, history: Sequence[Observation], pending: Sequence[Mapping[str, Scalar]] = (), *, thrift: float = 0.0
    ) -> tuple[Training, Surrogate]:
        """Everything that can be said after a history."""
        self._encoder.correct(history)
        training = self._training(self._agreement.judged(history, maximize=self._objective.maximize))
        return training, train(self._encoder, training, self._suspects, self._accuracy_suspects, pending, thrift=thrift)

    def _training(self, history: Sequence[Observation]) -> Training:
        launched = [item for item in history if item.started or item.broken]
        if len(launched) > _MOST_TRAINED:
            launched = self._thinned(launched)
        return Training(launched, maximize=self._objective.maximize, startup=self._startup, budget=self._budget)

    def _thrift(self, history: Sequence[Observation]) -> float:
        """Where the budget is time, seconds count, less and less: at the end the best is wanted at any price."""
        if self._budget_s is None:
            return 0.0
        spent = sum(item.total_s or 0.0 for item in history if item.weight >= 1)
        return _THRIFT * max(1 - spent / self._budget_s, 0.0)

    def _thinned(self, launched: Sequence[Observation]) -> list[Observation]:
        """The latest third, the best third, and the rest evenly from what is left, in their order."""
        third = _MOST_TRAINED // 3
        sign = -1.0 if self._objective.maximize else 1.0
        keep = {item.number: item for item in launched[-third:]}
        best = sorted(
            (item for item in launched if item.feasible), key=lambda item: (sign * (item.value or 0.0), item.number)
        )
        keep |= {item.number: item for item in best[:third]}
        left = [item for item in launched if item.number not in keep]
        step = max(len(left) // max(_MOST_TRAINED - len(keep), 1), 1)
        keep |= {item.number: item for item in left[::step][: _MOST_TRAINED - len(keep)]}
        return [keep[number] for number in sorted(keep)]

    def _parents(self, training: Training, surrogate: Surrogate) -> list[Mapping[str, Scalar]]:
        """The best by the model's own mean (less noise than the measurement), then the default."""
        order = surrogate.best_first(training)
        parents: list[Mapping[str, Scalar]] = [training.items[index].assignment for index in order[:5]]
        return [*parents, {}] if parents else [{}]

    def _rank(self, pool: Sequence[Assignment], surrogate: Surrogate) -> list[_Ranked]:
        if not pool:
            return []
        rows = self._encoder.rows(pool)
        score, gain = surrogate.acquisition(rows)
        score = np.round(score, 6)  # ties are settled by order, not by the last bit
        order = np.argsort(-score, kind="stable")
        return [_Ranked(pool[int(index)], float(score[index]), float(gain[index])) for index in order]

    def _climb(self, ranked: list[_Ranked], surrogate: Surrogate) -> list[_Ranked]:
        """Coordinate steps uphill from the best few; returns everything seen, best first."""
        seen = {signature(item.assignment): item for item in ranked}
        rng = np.random.default_rng(0)
        fronts = ranked[:_CLIMBERS]
        for _ in range(_CLIMBS):
            fresh: dict[tuple[object, ...], Assignment] = {}
            for item in fronts:
                for neighbour in self._source.sweep(self._source.complete(item.assignment, rng)):
                    pruned = self._source.prune(neighbour)
                    key = signature(pruned)
                    if key not in seen:
                        fresh[key] = pruned
            scored = self._rank(list(fresh.values()), surrogate)
            seen |= {signature(item.assignment): item for item in scored}
            better = [item for item in scored if item.score > fronts[0].score] if fronts else scored
            if not better:
                break
            fronts = better[:_CLIMBERS]
        return sorted(seen.values(), key=lambda item: -item.score)
