"""What a candidate chose, in as few words as tell it apart: its difference from vLLM's defaults or from another trial.

A space of twenty parameters makes assignments of twenty entries, most of them vLLM's own defaults. The whole
assignment stands in ``--json``, in ``--table`` and in ``--trial N``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.model.json import Json, canonical, finite
from tuner.model.words import VLLM_DEFAULTS

__all__ = ["Choices", "differing", "fit", "shown"]


def shown(value: Json) -> str:
    """A value as people write it: text bare, everything else as JSON."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, float) and not finite(value) else canonical(value)


def differing(assignment: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    """The part of an assignment that departs from the defaults; where a default is not known, all of it counts."""
    return {
        name: value
        for name, value in assignment.items()
        if name not in defaults or canonical(defaults[name]) != canonical(value)
    }


@dataclass
class Choices:
    """Words for the assignments of one study.

    Attributes:
        defaults: parameter → what vLLM takes by itself, as far as the space knows.
        reference: the trial that others are compared with (the winner), and its assignment.
        name: what the defaults are called.
    """

    defaults: Mapping[str, Json] = field(default_factory=dict)
    reference: tuple[int, Mapping[str, Json]] | None = None
    name: str = VLLM_DEFAULTS
    _seen: dict[str, int] = field(default_factory=dict, init=False)

    def words(self, number: int, assignment: Mapping[str, Json]) -> list[str]:
        """The shortest of: vLLM's defaults, another trial's, departures from the reference, departures from vLLM's.

        Trials are to be asked for in their order: a later one is told by an earlier one that chose the same.
        """
        own = differing(assignment, self.defaults)
        if not own:
            return [self.name]
        first = self._seen.setdefault(canonical(own), number)
        if first != number:
            return [f"as #{first}"]
        plain = [f"{name}={shown(value)}" for name, value in own.items()]
        if self.reference is None or self.reference[0] == number:
            return plain
        base = differing(self.reference[1], self.defaults)
        changed = [f"{name}={shown(value)}" for name, value in own.items() if name not in base or base[name] != value]
        # What the reference sets and this one leaves to vLLM (or cannot have) is part of the difference.
        changed += [f"{name}={shown(assignment.get(name, 'unset'))}" for name in base if name not in own]
        return [f"as #{self.reference[0]} but", *changed] if changed and len(changed) + 1 < len(plain) else plain


def fit(words: list[str], width: int, lines: int) -> list[str]:
    """Words in at most so many lines; what does not fit is counted (``+7 more``)."""
    rows: list[list[str]] = [[]]
    for place, word in enumerate(words):
        room = width - len(" ".join([*rows[-1], word]))
        left = len(words) - place - 1
        if room < 0 and rows[-1]:
            if len(rows) == lines:
                return [" ".join(row) for row in _counted(rows, left + 1, width)]
            rows.append([])
        rows[-1].append(word)
    return [" ".join(row) for row in rows]


def _counted(rows: list[list[str]], left: int, width: int) -> list[list[str]]:
    """The rows with the number of words left away at their end, which must fit as well."""
    while len(rows[-1]) > 1 and len(" ".join([*rows[-1], f"+{left} more"])) > width:
        rows[-1].pop()
        left += 1
    rows[-1].append(f"+{left} more")
    return rows
