"""What expressions see of a candidate: choices by parameter name, and everything that is rendered by flag name.

A bare name means, in this order: the value or label chosen for the parameter of that name; the rendered flag of that
name (dashes as underscores, parts after a dot); the parameter's known default; ``null``. ``flags.NAME`` always means
the rendered flag, ``env.NAME`` the rendered environment variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import cast

from tuner.model.candidate import Candidate
from tuner.model.expression import Expression, ExpressionError
from tuner.model.json import Json, Scalar
from tuner.model.space import Parameter, Space
from tuner.spaces.domains import CHECKPOINT, settings

__all__ = ["Scopes", "holds", "numeric"]

_HUMAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([kKmMgGtT])")
_PLAIN = re.compile(r"-?\d{1,15}(\.\d{1,15})?")
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LENGTH = "max_model_len"


def numeric(value: Json) -> Json:
    """Text as vLLM reads it from its command line: ``"128"``, ``2k`` (decimal) and ``1G`` (binary) are numbers.

    Anything else stays as it is.
    """
    if not isinstance(value, str):
        return value
    if plain := _PLAIN.fullmatch(value):
        return float(value) if plain[1] else int(value)
    found = _HUMAN.fullmatch(value)
    return value if found is None else round(float(found[1]) * _SCALES[found[2]])


class Scopes:
    """Makes scopes for one space."""

    def __init__(self, space: Space, workload: Mapping[str, object], names: Iterable[str]) -> None:
        self._space = space
        roots = {name.split(".")[0] for name in names}
        self._fixed: dict[str, object] = dict.fromkeys(roots) | {
            "hardware": space.hardware,
            "model": space.model,
            "workload": workload,
        }
        self._checkpoints = space.checkpoints
        self._parameters = {parameter.name for parameter in space.parameters}

    def empty(self) -> dict[str, object]:
        """A scope in which nothing is chosen: base arguments and constants only."""
        scope = dict(self._fixed) | {"flags": {}, "env": {}}
        self.add(scope, self._space.base_arguments, self._space.base_environment)
        for name, label in self._space.constants.items():
            scope[name] = label
        return scope

    def add(self, scope: dict[str, object], arguments: Mapping[str, Json], environment: Mapping[str, str]) -> None:
        """Make rendered flags and variables visible."""
        flags = cast("dict[str, object]", scope["flags"])
        for path, value in arguments.items():
            head, *rest = path.replace("-", "_").split(".")
            flags[head] = _placed(flags.get(head), rest, _known(head, value))
            if head == CHECKPOINT:
                # Whatever rules ask of the model, they ask of the checkpoint that is served.
                scope[head] = self._checkpoints.get(str(value), self._space.model)
                continue
            if scope.get(head) is None or head not in self._parameters:
                scope[head] = flags[head]
        if environment:
            scope["env"] = {**cast("dict[str, str]", scope["env"]), **environment}

    def choose(self, scope: dict[str, object], parameter: Parameter, label: Scalar) -> None:
        """Make the choice for a parameter, and what it sets, visible."""
        arguments, environment = settings(parameter, label)
        self.add(scope, arguments, environment)
        scope[parameter.name] = label

    def leave(self, scope: dict[str, object], parameter: Parameter) -> None:
        """A parameter that exists and was not chosen: its flag is left to vLLM."""
        if scope.get(parameter.name) is None:
            scope[parameter.name] = parameter.default

    def of(self, candidate: Candidate) -> dict[str, object]:
        """The scope of a finished candidate."""
        scope = dict(self._fixed) | {"flags": {}, "env": {}}
        for name, label in self._space.constants.items():
            scope[name] = label
        self.add(scope, candidate.arguments, candidate.environment)
        for parameter in self._space.parameters:
            if parameter.name in candidate.assignment:
                scope[parameter.name] = candidate.assignment[parameter.name]
            elif holds(parameter.when, scope):
                self.leave(scope, parameter)
        return scope


def holds(condition: Expression | None, scope: Mapping[str, object]) -> bool:
    """Whether the condition holds; one without a value does not (:meth:`SpacePlanner.exclusion` says so)."""
    if condition is None:
        return True
    try:
        return condition.holds(scope)
    except ExpressionError:
        return False


def _placed(holder: object, rest: list[str], value: object) -> object:
    """``value`` under the path ``rest`` of a copy of ``holder``."""
    if not rest:
        if isinstance(holder, Mapping) and isinstance(value, Mapping):
            return {**value, **holder}
        return value
    inner = dict(holder) if isinstance(holder, Mapping) else {}
    inner[rest[0]] = _placed(inner.get(rest[0]), rest[1:], value)
    return inner


def _known(head: str, value: Json) -> Json:
    # "auto" and -1 let vLLM fit the length: no rule can know it.
    if head == _LENGTH and value in ("auto", -1, "-1"):
        return None
    return numeric(value)
