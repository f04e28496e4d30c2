"""Starting points of the files as this space can try them.

A shipped start that this hardware, model or version does not offer is left out with a note. In a user's own file, what
can only be a slip is an error: a parameter or label that nobody declared, a number outside the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from tuner.model.json import Json, Scalar, finite
from tuner.model.space import Parameter, Range, Start
from tuner.spaces.domains import Static, declared_labels, find_label, neighbours
from tuner.spaces.yamlfile import Located, Problem, SpaceError, plain

__all__ = ["Starts"]


@dataclass
class Starts:
    """Makes starts, and collects what is wrong with them.

    Args:
        known: the parameters of the space.
        constants: parameters that came down to one value.
        declared: the parameters as the files write them, on whatever hardware.
        fixed: parameters that a user's arguments took out.
        own: the users' files.
        static: what can be known before anything varies, for the checkpoint of a start.
    """

    known: Mapping[str, Parameter]
    constants: Mapping[str, Scalar]
    declared: Mapping[str, Located]
    fixed: frozenset[str]
    own: frozenset[str]
    static: Callable[[Mapping[str, Json]], Static]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def make(self, name: str, node: Located) -> Start | None:
        """The start, or None where it is not for this space."""
        assigned = node.mapping["assign"].mapping
        try:
            if not self.static({key: plain(item) for key, item in assigned.items()}).holds(node, f"starts.{name}"):
                return None
        except SpaceError as error:
            self.problems += error.problems
            return None
        slips = [
            slip for key, item in assigned.items() if item.file in self.own for slip in self._slips(name, key, item)
        ]
        if slips:
            self.problems += slips
            return None
        assignment: dict[str, Scalar] = {}
        missing: list[str] = []
        for key, item in assigned.items():
            label = self._label(key, plain(item))
            if label is None:
                missing.append(f"{key}={plain(item)}")
            elif key in self.known:
                assignment[key] = label
        if missing:
            self.notes.append(f"start {name} is left out: {', '.join(missing)} is not offered here")
            return None
        return Start(name=name, assignment=assignment, source=str(plain(node.get("source")) or ""))

    def _slips(self, name: str, key: str, item: Located) -> Iterator[Problem]:
        path = f"starts.{name}.assign.{key}"
        if key not in self.declared:
            if key not in self.fixed:
                close = get_close_matches(key, list(self.declared), n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                yield item.problem(path, f"there is no parameter {key}{hint}")
            return
        value, parameter = plain(item), self.known.get(key)
        if parameter is not None and isinstance(parameter.domain, Range):
            low, high = parameter.domain.low, parameter.domain.high
            if isinstance(value, bool) or not isinstance(value, int | float) or not finite(value):
                yield item.problem(path, f"must be a number from {low:g} to {high:g}, not {value!r}")
            elif not low <= value <= high:
                yield item.problem(path, f"is {value:g}, outside {low:g} to {high:g}")
            elif (near := neighbours(parameter.domain, value)) is not None:
                below, above = near
                yield item.problem(path, f"is {value:g}, which {key} does not take; write {below:g} or {above:g}")
            return
        labels = declared_labels(self.declared[key])
        if labels and not any(_word(label) == _word(value) for label in labels):
            yield item.problem(path, f"{_word(value)!r} is none of {', '.join(map(_word, labels))}")

    def _label(self, name: str, value: Json) -> Scalar:
        """The value as this space holds it; None where it cannot be had."""
        if name in self.known:
            try:
                return find_label(self.known[name].domain, value)
            except KeyError:
                return None
        constant = self.constants.get(name)
        return constant if constant is not None and str(constant) == str(value) else None


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
