"""What vLLM is known to refuse, for spaces that do not forbid it themselves: a belief of the search, not a rule.

A profile of one's own need not extend ``base/cuda``, and what its program runs may be a fork or another engine: so the
shipped rules about kernels, block sizes and parallelism exclude nothing there. The search still starts from them, and
launches that come up in spite of one take it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tuner.model.candidate import Candidate
from tuner.model.expression import Expression
from tuner.model.space import Forbid, Space
from tuner.spaces.domains import targets
from tuner.spaces.loader import Library
from tuner.spaces.resolve import rule_from
from tuner.spaces.scope import Scopes, holds
from tuner.spaces.universal import UNIVERSAL

__all__ = ["Doubts"]

_FILES = ("base/common", "base/rules-attention", "base/rules-moe", "base/rules-parallel")
_OTHERWISE = frozenset(
    {
        # Without effect, or slow: no reason not to start.
        "capture-sizes-with-eager",
        "moe-backend-dense",
        "moe-emulation",
        # A program may serve another checkpoint where a label asks for it.
        "quantization-of-quantised",
        "mtp-absent",
        "mtp-depth",
    }
)
"""Rules of these files that say something else than that no server comes up. The files on quantization and speculation
are about checkpoints and draft models which a label may bring along."""


_CHECKED, _SEEN = 0.995, 0.9
"""How sure rules are: what vLLM's configuration checks by arithmetic, and what its kernels were seen to refuse."""


class Doubts:
    """The shipped rules that a space does not have, as far as they can tell its candidates apart.

    Args:
        known: names of rules that the space has, or has lifted.
    """

    def __init__(
        self,
        space: Space,
        workload: Mapping[str, object],
        *,
        known: frozenset[str] = frozenset(),
        library: Library | None = None,
    ) -> None:
        varied = {_root(parameter.name) for parameter in space.parameters}
        varied |= {_root(target) for parameter in space.parameters for target in targets(parameter)}
        rules = [*UNIVERSAL, *_shipped(library or Library())]
        self.rules: Sequence[Forbid] = tuple(
            rule for rule in rules if rule.name not in known | _OTHERWISE and varied & _subjects(rule.condition)
        )
        self._sure = [_CHECKED if rule in UNIVERSAL else _SEEN for rule in self.rules]
        names = [name for rule in self.rules for name in rule.condition.names]
        self._scopes = Scopes(space, workload, names)

    def of(self, candidate: Candidate) -> tuple[float, ...]:
        """For every rule how sure it is that it keeps the candidate from starting; 0 where it says nothing."""
        if not self.rules:
            return ()
        scope = self._scopes.of(candidate)
        return tuple(
            sure if holds(rule.condition, scope) else 0.0 for rule, sure in zip(self.rules, self._sure, strict=True)
        )


def _shipped(library: Library) -> Iterator[Forbid]:
    for path in (library.folder / f"{name}.yaml" for name in _FILES):
        node = library.chain(path)[-1].get("forbid") if path.is_file() else None
        yield from (rule_from(item) for item in (node.items if node else ()))


def _subjects(condition: Expression) -> set[str]:
    """The parameters and flags that a condition asks for."""
    return {_root(name.removeprefix("flags.")) for name in condition.names}


def _root(name: str) -> str:
    return name.split(".", maxsplit=1)[0].replace("-", "_")
