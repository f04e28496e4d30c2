"""Several checkpoints of one model in one space: what each is, and what the other parameters are beside each.

A checkpoint parameter chooses what is served, so everything that the files say of ``model`` holds for the checkpoint
that a candidate chose. What is decided once, ``if`` and the bounds, is decided once for every checkpoint and joined:
a parameter that only some of them have gets a condition, a value that only some of them have gets a rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tuner.errors import InputError
from tuner.model.expression import Expression
from tuner.model.json import Scalar
from tuner.model.llm import ModelFacts
from tuner.model.space import UNSET, Choice, Forbid, Parameter, Range
from tuner.spaces.domains import Static, make_parameter, settings
from tuner.spaces.yamlfile import Located, SpaceError, plain

__all__ = ["Checkpoints", "Joined", "find_checkpoints", "is_checkpoint", "join"]


@dataclass(frozen=True)
class Joined:
    """A parameter as it is beside all checkpoints.

    Attributes:
        rules: what excludes its values beside the checkpoints that do not offer them.
        note: what a person should know, empty for nothing.
    """

    parameter: Parameter | None
    rules: tuple[Forbid, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Checkpoints:
    """The parameter that chooses the checkpoint.

    Attributes:
        name: its name, empty where the space has none.
        facts: label → what the checkpoint is, the study's own among them.
        own: the label of the study's own.
    """

    name: str = ""
    facts: Mapping[Scalar, ModelFacts] = field(default_factory=dict)
    own: Scalar = None

    @property
    def others(self) -> dict[str, ModelFacts]:
        """What candidates may serve beside the study's own model, by its name."""
        return {facts.name: facts for label, facts in self.facts.items() if label != self.own}

    def statics(self, static: Static) -> dict[Scalar, Static]:
        """What can be known before anything varies, for each checkpoint."""
        return {
            label: dataclasses.replace(static, scope={**static.scope, "model": facts})
            for label, facts in self.facts.items()
        }


def is_checkpoint(node: Located) -> bool:
    """Whether this parameter of the files chooses what is served."""
    return plain(node.get("type")) == "checkpoint"


def find_checkpoints(
    parameters: Mapping[str, Located], static: Static, load: Callable[[str], ModelFacts]
) -> Checkpoints:
    """The checkpoints that the space offers, with their facts.

    Raises:
        SpaceError: the parameter is not as it must be, there are two, or a checkpoint cannot be read.
    """
    found = Checkpoints()
    for name, node in parameters.items():
        if not is_checkpoint(node):
            continue
        parameter, _ = make_parameter(name, node, static)
        if parameter is None or not isinstance(parameter.domain, Choice):
            continue
        if found.name:
            raise SpaceError(node.problem(f"parameters.{name}", f"{found.name} chooses the checkpoint already"))
        own = static.scope["model"]
        facts: dict[Scalar, ModelFacts] = {}
        mine: Scalar = None
        for label in parameter.domain.values:
            chosen = settings(parameter, label)[0].get("model")
            if isinstance(chosen, str):
                facts[label] = _load(load, chosen, node, f"parameters.{name}.values.{label}")
            elif isinstance(own, ModelFacts):
                facts[label], mine = own, label
        found = Checkpoints(name, facts, mine)
    return found


def _load(load: Callable[[str], ModelFacts], chosen: str, node: Located, key: str) -> ModelFacts:
    try:
        return load(chosen)
    except InputError as error:
        values = node.get("values")
        label = key.rsplit(".values.", 1)[-1]
        at = values.mapping.get(label, values) if values is not None else node
        raise SpaceError(at.problem(key, str(error))) from None


def join(made: Mapping[Scalar, tuple[Parameter | None, str]], chooser: Checkpoints) -> Joined:
    """One parameter of what it is beside each checkpoint.

    Raises:
        ValueError: the conditions become too long to be one.
    """
    offered = {label: parameter for label, (parameter, _) in made.items() if parameter is not None}
    if not offered:
        return Joined(None, note=made[chooser.own][1])
    first = offered.get(chooser.own) or next(iter(offered.values()))
    if len(offered) == len(made) and all(item == first for item in offered.values()):
        return Joined(first)
    domain, rules = first.domain, tuple[Forbid, ...]()
    if isinstance(domain, Choice):
        domain, rules = _union(first, offered, chooser.name)
    elif isinstance(domain, Range):
        domain = _common(domain, [item.domain for item in offered.values() if isinstance(item.domain, Range)])
    when, note = first.when, ""
    if len(offered) < len(made):
        among = _among(chooser.name, offered)
        when = Expression.parse(among if when is None else f"({when.text}) and {among}")
        note = f"{first.name} is searched with {chooser.name} {' and '.join(map(str, offered))} only"
    return Joined(dataclasses.replace(first, domain=domain, when=when), rules, note)


def _union(first: Parameter, offered: Mapping[Scalar, Parameter], chooser: str) -> tuple[Choice, tuple[Forbid, ...]]:
    """Every value that some checkpoint offers, and rules against it beside the others.

    No rule speaks against the default: leaving a flag away is always possible.
    """
    values: dict[Scalar, object] = {}
    has: dict[Scalar, list[Scalar]] = {}
    for checkpoint, item in offered.items():
        for label, value in item.domain.values.items() if isinstance(item.domain, Choice) else ():
            values.setdefault(label, value)
            has.setdefault(label, []).append(checkpoint)
    rules = tuple(
        Forbid(
            name=f"{first.name.lower().replace('_', '-')}-of-checkpoint",
            condition=Expression.parse(
                f"{first.name} == {_literal(label)} and {_among(chooser, [x for x in offered if x not in having])}"
            ),
            reason=f"{first.name} {{{first.name}}} is not offered for {{model.name}}",
            source=f"`if` of parameters.{first.name}.values",
        )
        for label, having in has.items()
        if len(having) < len(offered) and label != first.default and values[label] is not UNSET
    )
    ordinal = isinstance(first.domain, Choice) and first.domain.ordinal
    return Choice(values=values, ordinal=ordinal), rules  # type: ignore[arg-type]


def _common(own: Range, ranges: Iterable[Range]) -> Range:
    """What every checkpoint allows; the study's own bounds where that is nothing."""
    low, high = own.low, own.high
    for item in ranges:
        low, high = max(low, item.low), min(high, item.high)
    return dataclasses.replace(own, low=low, high=high) if low < high else own


def _among(name: str, labels: Iterable[Scalar]) -> str:
    return f"{name} in [{', '.join(map(_literal, labels))}]"


def _literal(label: Scalar) -> str:
    return str(label).lower() if isinstance(label, bool) else repr(label)
