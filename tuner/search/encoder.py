"""From assignments to the numbers that the models see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.model.json import Scalar
from tuner.model.space import Parameter, Space
from tuner.model.workload import Objective, Workload
from tuner.ports import Planner
from tuner.search.candidates import signature
from tuner.search.conditions import Conditions
from tuner.search.distributions import Encoding
from tuner.search.knobs import Defaults, is_chosen, is_decisive, read_knobs, varies_knobs
from tuner.search.mechanism import PER_TOKEN, StepModel
from tuner.search.observations import Observation

__all__ = ["Encoder", "Rows"]

Array: TypeAlias = NDArray[np.float64]

_ABSENT, _UNKNOWN = -1.0, -2.0
_DECISIVE = 3.0
_MOST_REMEMBERED = 20_000
_LATEST = 200
"""Trials whose servers are listened to: what a machine makes of a setting does not change with time."""


@dataclass(frozen=True)
class Rows:
    """Encoded candidates: one column per parameter (``x``), the knobs of the mechanism, and the planner's doubts."""

    x: Array
    knobs: Array
    doubts: Array

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.int64]) -> Rows:
        return Rows(self.x[index], self.knobs[index], self.doubts[index])


def _weight(parameter: Parameter) -> float:
    """Settings of the batch and of precision decide most of what vLLM's settings decide."""
    return _DECISIVE if is_decisive(parameter) else 1.0


class Encoder:
    """Remembers what it encoded: the same trials come again with every suggestion."""

    def __init__(
        self,
        space: Space,
        encoded: Mapping[str, Encoding],
        *,
        conditions: Conditions,
        planner: Planner,
        objective: Objective,
        workload: Workload | None,
        certain: bool = True,
    ) -> None:
        self._encoded = encoded
        self._conditions = conditions
        self._planner = planner
        self._defaults = Defaults.of(space)
        self._certain = certain
        self._stated = {name: item.default for name, item in encoded.items() if item.default is not None}
        self.told: dict[str, Scalar] = {}
        """Defaults that this study's servers reported."""
        self._same: dict[tuple[str, Scalar], Scalar] = {}
        """Labels behind which these servers run another one: ``auto`` and the kernel that it stands for."""
        self._memory: dict[tuple[object, ...], tuple[Array, Array, Array]] = {}
        per_step = objective.metric.startswith(PER_TOKEN)
        self.model = StepModel(space, workload, per_step=per_step, certain=certain)
        self.knows_mechanism = varies_knobs(space)
        self.importance = np.array([_weight(parameter) for parameter in space.parameters] or [1.0])
        self.recompiles = [index for index, parameter in enumerate(space.parameters) if parameter.recompiles]
        self.choices = [
            column
            for column, item in enumerate(encoded.values())
            if is_chosen(item.parameter) and (not item.ordered or item.few)
        ]
        """Columns of decisive settings that are chosen rather than dosed."""
        self.labels = np.array([not item.ordered for item in encoded.values()] or [True])

    @property
    def input_labels(self) -> NDArray[np.bool_]:
        """Which of the models' input columns are labels."""
        return np.append(self.labels, [False, False, True]) if self.knows_mechanism else self.labels

    @property
    def input_importance(self) -> Array:
        """How much each of the models' input columns is expected to matter."""
        return np.append(self.importance, [2.0, 1.0, 1.0]) if self.knows_mechanism else self.importance

    def inputs(self, rows: Rows, theta: Array | None) -> Array:
        """What the models see: the parameters, and what the mechanism makes of them."""
        if not self.knows_mechanism:
            return rows.x
        return np.column_stack([rows.x, self.model.features(rows.knobs, theta)])

    @property
    def heard(self) -> tuple[Mapping[str, Scalar], Mapping[tuple[str, Scalar], Scalar]]:
        """What servers said of settings: rows mean another thing when it changes."""
        return self.told, self._same

    def correct(self, trials: Sequence[Observation]) -> None:
        """Take from the servers what ran: what a space states of a default may be true of another card."""
        ran: dict[tuple[str, Scalar], list[Scalar]] = {}
        own = [trial for trial in trials if trial.weight >= 1 and trial.started]
        said = [(trial, trial.resolved) for trial in own if trial.resolved is not None][-_LATEST:]
        for name in dict.fromkeys(name for _, resolved in said for name in resolved if name in self._encoded):
            item = self._encoded[name]
            for trial, resolved in said:
                asked = trial.assignment.get(name, None if item.ordered else item.default)
                value = resolved.get(name, asked)
                if value is not None and self._conditions.active(name, trial.assignment):
                    ran.setdefault((name, asked), []).append(value)
        # What comes out differently is no fixed value: a server fits it to the rest.
        fixed = {key: values for key, values in ran.items() if len(set(values)) == 1}
        told = {name: values[0] for (name, asked), values in fixed.items() if asked is None}
        same: dict[tuple[str, Scalar], Scalar] = {
            (name, asked): values[0]
            for (name, asked), values in fixed.items()
            if asked is not None and asked != values[0] and not self._encoded[name].ordered
            # One refusal of what was asked for may be that candidate's own.
            if asked == self._encoded[name].default or len(values) > 1
        }
        if (told, same) != self.heard:
            self.told, self._same = told, same
            self._memory.clear()

    def rows(self, assignments: Sequence[Mapping[str, Scalar]]) -> Rows:
        if len(self._memory) > _MOST_REMEMBERED:
            self._memory.clear()
        rows = [self._row(assignment) for assignment in assignments]
        return Rows(*(np.array(column) for column in zip(*rows, strict=True)))

    def implied(self, assignments: Sequence[Mapping[str, Scalar]]) -> NDArray[np.bool_]:
        """Entries of the rows that stand for a default which was not asked for."""
        names = list(self._encoded) or [""]
        return np.array([[name not in item for name in names] for item in assignments], dtype=bool).reshape(
            len(assignments), len(names)
        )

    def _row(self, assignment: Mapping[str, Scalar]) -> tuple[Array, Array, Array]:
        key = signature(assignment)
        known = self._memory.get(key)
        if known is None:
            candidate = self._planner.render(assignment)
            # A setting left away runs at its default, which need not be vLLM's own (a profile for a program, a fork).
            asked = {**self._stated, **self.told, **assignment}
            running = self._planner.render({n: self._same.get((n, value), value) for n, value in asked.items()})
            # What is reckoned is reckoned for vLLM; a trial command may run anything.
            forecast = self._planner.forecast(running) if self._certain else {}
            knobs = np.array(read_knobs(running, self._defaults, forecast))
            known = (self._parameters(assignment), knobs, np.array(self._planner.doubts(candidate), dtype=float))
            self._memory[key] = known
        return known

    def _parameters(self, assignment: Mapping[str, Scalar]) -> Array:
        out = [self._value(name, item, assignment) for name, item in self._encoded.items()]
        return np.array(out or [0.0])

    def _value(self, name: str, item: Encoding, assignment: Mapping[str, Scalar]) -> float:
        if name not in assignment and not self._conditions.active(name, assignment):
            return _ABSENT
        value = assignment.get(name, self.told.get(name, item.default))
        value = self._same.get((name, value), value)
        code = item.unit(value) if item.ordered else item.position(value)
        return _UNKNOWN if code is None else float(code)
