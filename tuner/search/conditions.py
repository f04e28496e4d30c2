"""Which parameters exist under which choices, asked of the planner (it owns the conditions)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.model.json import Scalar
from tuner.ports import Planner
from tuner.search.distributions import Encoding

__all__ = ["Conditions"]

_MOST_REMEMBERED = 50_000


@dataclass
class Conditions:
    """Decides activity by rendering: a parameter exists where the planner keeps it in the assignment.

    What a condition reads is known, so each combination of those values is rendered once.
    """

    encoded: Mapping[str, Encoding]
    planner: Planner
    _filler: dict[str, Scalar] = field(init=False)
    _reads: dict[str, tuple[str, ...]] = field(init=False)
    _known: dict[tuple[object, ...], bool] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # Nothing stands for what may be left away.
        self._filler = {
            name: item.default if item.default is not None else item.at(0.0)
            for name, item in self.encoded.items()
            if not item.omissible
        }
        self._reads = {name: self._closure(name) for name in self.encoded}

    def active(self, name: str, decided: Mapping[str, Scalar]) -> bool:
        """Whether ``name`` exists beside the ``decided`` values (those that its condition reads)."""
        reads = self._reads[name]
        if self.encoded[name].parameter.when is None:
            return True
        # The type belongs to the key: True, 1 and "1" are different choices.
        key = (name, *((other, type(decided.get(other)), decided.get(other)) for other in reads))
        known = self._known.get(key)
        if known is None:
            if len(self._known) > _MOST_REMEMBERED:
                self._known.clear()
            known = name in self.planner.render({**self._filler, **decided}).assignment
            self._known[key] = known
        return known

    def prune(self, assignment: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """A full assignment without the parameters that do not exist under it, in the space's order."""
        return {name: assignment[name] for name in self.encoded if name in assignment and self.active(name, assignment)}

    def _closure(self, name: str) -> tuple[str, ...]:
        """Parameters that the condition of ``name`` reads, and those that their conditions read."""
        seen: dict[str, None] = {}
        waiting = [name]
        while waiting:
            when = self.encoded[waiting.pop()].parameter.when
            for other in sorted(when.names) if when is not None else ():
                if other in self.encoded and other not in seen and other != name:
                    seen[other] = None
                    waiting.append(other)
        return tuple(sorted(seen))
