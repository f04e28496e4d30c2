"""A space cut to what one vLLM accepts.

What the user wrote and this vLLM does not know is an error, all of it in one message. What a shipped file offers and
this version lacks (or has lost) is taken out, with a note: the same profile serves several versions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.model.candidate import Candidate
from tuner.model.json import Json, Scalar
from tuner.model.space import Choice, Parameter, Space
from tuner.spaces.domains import settings, targets
from tuner.spaces.introspect import FORK_ENVIRONMENT
from tuner.spaces.loader import flatten
from tuner.spaces.resolve import space_digest
from tuner.spaces.yamlfile import Located, Problem, SpaceError, plain

if TYPE_CHECKING:
    from tuner.spaces.introspect import VllmFlags

__all__ = ["fit_flags"]


def fit_flags(space: Space, flags: VllmFlags, users: Sequence[Located] = ()) -> tuple[Space, list[str]]:
    """The space without what this vLLM does not accept, and notes on what was taken out.

    Raises:
        SpaceError: the users' own files name flags, values or variables that this vLLM does not have.
    """
    return _Fitter(space, flags, users).fit()


class _Fitter:
    def __init__(self, space: Space, flags: VllmFlags, users: Sequence[Located]) -> None:
        self._space = space
        self._flags = flags
        # Where the users wrote what they wrote: the last place wins, as in merging.
        self._parameters = {name: node for root in users for name, node in _section(root, "parameters").items()}
        self._settings = {name: node for root in users for name, node in flatten(_section(root, "arguments")).items()}
        self._settings |= {
            f"env:{name}": node for root in users for name, node in _section(root, "environment").items()
        }
        self._targets = {target: node for root in users for target, node in _derived_targets(root)}
        self._errors: list[Problem] = []
        self._notes: list[str] = []

    def fit(self) -> tuple[Space, list[str]]:
        space = self._space
        parameters = tuple(kept for item in space.parameters if (kept := self._parameter(item)) is not None)
        derived = tuple(item for item in space.derived if self._target(item.target))
        arguments = {
            name: value for name, value in space.base_arguments.items() if self._setting(name, value, "base argument")
        }
        environment = {
            name: value
            for name, value in space.base_environment.items()
            if name in FORK_ENVIRONMENT or self._setting(f"env:{name}", value, "variable")
        }
        if self._errors:
            unique = list(dict.fromkeys(problem.message for problem in self._errors))
            count = f"{len(unique)} settings that" if len(unique) > 1 else "a setting that"
            where = " and ".join(dict.fromkeys(problem.file for problem in self._errors))
            summary = f"{where}: {count} vLLM {self._flags.version} does not accept: {'; '.join(unique)}"
            raise SpaceError(*self._errors, summary=summary)
        known = {item.name: item for item in parameters}
        starts = tuple(
            start
            for start in space.starts
            if all(_offers(known.get(name), at) for name, at in start.assignment.items())
        )
        fitted = dataclasses.replace(
            space,
            parameters=parameters,
            derived=derived,
            base_arguments=arguments,
            base_environment=environment,
            starts=starts,
        )
        return dataclasses.replace(fitted, digest=space_digest(fitted)), list(dict.fromkeys(self._notes))

    def _parameter(self, item: Parameter) -> Parameter | None:
        own = self._parameters.get(item.name)
        domain = item.domain
        if not isinstance(domain, Choice):
            problems = self._check(settings(item, domain.low))
            return self._without(item, own, problems) if problems else item
        found: dict[Scalar, list[str]] = {label: self._check(settings(item, label)) for label in domain.values}
        bad = [label for label, problems in found.items() if problems]
        if not bad:
            return item
        good = {label: value for label, value in domain.values.items() if not found[label]}
        if own is not None or not {label for label in good if settings(item, label) != ({}, {})}:
            return self._without(item, own, [problem for label in bad for problem in found[label]])
        self._notes.append(
            f"{item.name} is searched without {', '.join(map(str, bad))}: not in vLLM {self._flags.version}"
        )
        default = item.default if item.default in good else None
        return dataclasses.replace(item, domain=Choice(values=good, ordinal=domain.ordinal), default=default)

    def _without(self, item: Parameter, own: Located | None, problems: list[str]) -> Parameter | None:
        if own is not None:
            self._errors += [own.problem(f"parameters.{item.name}", problem) for problem in problems]
        else:
            self._notes.append(f"{item.name} is not searched: {problems[0]}")
        return None

    def _setting(self, name: str, value: Json, what: str) -> bool:
        own = self._settings.get(name)
        parts: tuple[dict[str, Json], dict[str, str]] = ({name: value}, {})
        if name.startswith("env:"):
            parts = ({}, {name[4:]: str(value)})
        problems = self._check(parts)
        if problems and own is not None:
            key = f"environment.{name[4:]}" if name.startswith("env:") else f"arguments.{name}"
            self._errors += [own.problem(key, problem) for problem in problems]
        elif problems:
            self._notes.append(f"{what} {name} is left out: {problems[0]}")
        return not problems

    def _target(self, target: str) -> bool:
        parts: tuple[dict[str, Json], dict[str, str]] = ({target: None}, {})
        if target.startswith("env:"):
            parts = ({}, {target[4:]: ""})
        problems = self._check(parts)
        own = self._targets.get(target)
        if problems and own is not None:
            self._errors += [own.problem("derived", problem) for problem in problems]
        elif problems:
            self._notes.append(f"derived {target} is left out: {problems[0]}")
        return not problems

    def _check(self, parts: tuple[dict[str, Json], dict[str, str]]) -> list[str]:
        arguments, environment = parts
        # A fork's variable stays: its starting points are shown, and excluded by name unless that fork serves.
        environment = {name: value for name, value in environment.items() if name not in FORK_ENVIRONMENT}
        return list(self._flags.check(Candidate(assignment={}, arguments=arguments, environment=environment)))


def _section(root: Located, key: str) -> dict[str, Located]:
    node = root.get(key)
    return node.mapping if node else {}


def _derived_targets(root: Located) -> list[tuple[str, Located]]:
    node = root.get("derived")
    return [(str(plain(item.get("target"))), item) for item in node.items] if node else []


def _offers(parameter: Parameter | None, label: Scalar) -> bool:
    if parameter is None:
        return False
    return not isinstance(parameter.domain, Choice) or label in parameter.domain.values


def set_by(space: Space) -> frozenset[str]:
    """Every flag and variable that the space can set."""
    found = {*space.base_arguments, *(f"env:{name}" for name in space.base_environment)}
    found |= {item.target for item in space.derived}
    return frozenset(found.union(*(targets(item) for item in space.parameters)))
