"""What a user's own file says by mistake, although every line of it keeps to the format.

Some slips would change a study without a word: a name in an expression that means nothing (it is null, so the rule is
silent for ever), a parameter that waits for itself, and a flag that two parameters write, or a parameter and a derived
value (the later one wins, and the search learns of a knob that turns nothing).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import combinations

from tuner.model.expression import Expression
from tuner.model.hardware import Hardware
from tuner.model.json import Json, canonical
from tuner.model.llm import ModelFacts
from tuner.model.space import Parameter
from tuner.spaces.domains import settings, targets
from tuner.spaces.kinds import parse_formula, placeholders
from tuner.spaces.loader import targets_of
from tuner.spaces.planner import SpacePlanner
from tuner.spaces.yamlfile import Located, Problem

__all__ = ["reads_itself", "unknown_names", "written_over", "written_twice"]

_DRAWS = 400
_FREE = frozenset({"env", "true", "false", "null"})
_BOUNDS = ("when", "if", "low", "high", "step")


def unknown_names(
    own: Sequence[Located],
    *,
    workload: Collection[str],
    parameters: Collection[str],
    flags: Collection[str] | None,
    elsewhere: Callable[[], Collection[str]],
) -> Iterator[Problem]:
    """Names in the expressions of the users' files that mean nothing, with their places.

    Args:
        own: the users' files, each as it was read.
        workload: what expressions may ask of the traffic.
        parameters: names that the merged files declare or set.
        flags: flags of the vLLM that will serve, dashes as underscores; None where nobody knows them.
        elsewhere: parameters of other shipped profiles, which are null here on purpose; asked only if need be.
    """
    attributes = {"hardware": _attributes(Hardware), "model": _attributes(ModelFacts), "workload": set(workload)}

    def unknown(name: str) -> str:
        first, *rest = name.split(".")
        if first in attributes:
            known = attributes[first]
            return f"{first} has no {rest[0]}{_close(rest[0], known)}" if rest and rest[0] not in known else ""
        if flags is None or first in _FREE:
            return ""
        if first == "flags":
            odd = rest and rest[0] not in flags
            return f"{name} is no flag, so it is always null{_close(rest[0], flags)}" if odd else ""
        if first in parameters or first in flags or first in elsewhere():
            return ""
        close = _close(first, {*parameters, *flags}) or "; name a parameter of the space, or declare it"
        return f"{name} is no parameter and no flag, so it is always null{close}"

    for root in own:
        for node, key, expression in _expressions(root):
            for message in filter(None, map(unknown, sorted(expression.names))):
                yield node.problem(key, message)


def _close(name: str, known: Collection[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _attributes(kind: type) -> set[str]:
    fields = {item.name for item in dataclasses.fields(kind)}
    return fields | {name for name in dir(kind) if isinstance(getattr(kind, name, None), property)}


def _expressions(root: Located) -> Iterator[tuple[Located, str, Expression]]:
    """Every expression of a file with its place and key."""
    for key, holder, names in _holders(root):
        for name in names:
            node = holder.get(name)
            if node is not None:
                yield node, f"{key}.{name}", parse_formula(node)
        reason = holder.get("reason") if key.startswith("forbid") else None
        for text in placeholders(str(reason.value)) if reason is not None else ():
            yield reason or holder, f"{key}.reason", Expression.parse(text)


def _holders(root: Located) -> Iterator[tuple[str, Located, tuple[str, ...]]]:
    for name, node in _entries(root, "parameters"):
        yield f"parameters.{name}", node, _BOUNDS
        values = node.get("values")
        if values is not None:
            labelled = values.mapping or {str(number): item for number, item in enumerate(values.items)}
            yield from ((f"parameters.{name}.values.{label}", item, ("if",)) for label, item in labelled.items())
    for section, names in (("derived", ("value", "when")), ("forbid", ("if", "violation")), ("neutral", ("if",))):
        listed = root.get(section)
        for number, item in enumerate(listed.items if listed else []):
            yield f"{section}[{number}]", item, names
    for name, node in _entries(root, "starts"):
        yield f"starts.{name}", node, ("if",)


def _entries(root: Located, section: str) -> list[tuple[str, Located]]:
    node = root.get(section)
    return list(node.mapping.items()) if node else []


def reads_itself(
    declared: Mapping[str, Located], own: Collection[str], arguments: Collection[str]
) -> Iterator[Problem]:
    """Parameters whose `when`, in a user's file, asks for their own value or flag, which is not chosen yet.

    Args:
        declared: the parameters of the merged files.
        arguments: flags that are set whatever is chosen.
    """
    for name, node in declared.items():
        when = node.get("when")
        if when is None or when.file not in own:
            continue
        elsewhere = {
            *arguments,
            *(flag for other, item in declared.items() if other != name for flag in targets_of(item)),
        }
        flags = {target.replace("-", "_") for target in targets_of(node) - elsewhere}
        asked = {name, *flags, *(f"flags.{flag}" for flag in flags)} & parse_formula(when).names
        if asked:
            yield when.problem(
                f"parameters.{name}.when",
                f"reads {min(asked)}, the parameter itself, which has no value before it exists: it would never be "
                "searched; name other parameters, or exclude values of it with `forbid`",
            )


def written_over(planner: SpacePlanner, own: Sequence[Located]) -> Iterator[Problem]:
    """Derived values of the users' files that change what a parameter was chosen to be.

    Tried with random candidates, as :func:`written_twice`.
    """
    derived = {
        str(item.mapping["target"].value): (f"derived[{number}]", item)
        for root in own
        if (listed := root.get("derived")) is not None
        for number, item in enumerate(listed.items)
    }
    known = {item.target for item in planner.space.derived}
    setters = [
        (item, shared) for item in planner.space.parameters if (shared := targets(item) & derived.keys() & known)
    ]
    rng = random.Random(0)  # noqa: S311 - a sample, not a secret
    for _ in range(_DRAWS if setters else 0):
        candidate = planner.render(planner.random_assignment(rng))
        for pair in list(setters):
            parameter, shared = pair
            if parameter.name not in candidate.assignment:
                continue
            arguments, environment = settings(parameter, candidate.assignment[parameter.name])
            asked = {**arguments, **{f"env:{name}": value for name, value in environment.items()}}
            runs = {**candidate.arguments, **{f"env:{name}": value for name, value in candidate.environment.items()}}
            odd = sorted(target for target in shared & asked.keys() if asked[target] != runs.get(target))
            if odd:
                setters.remove(pair)
                key, item = derived[odd[0]]
                yield item.problem(
                    key,
                    f"writes over {odd[0]}, which the parameter {parameter.name} sets: {_shown(asked[odd[0]])} would "
                    f"be chosen and {_shown(runs.get(odd[0]))} would run; take the parameter away ({parameter.name}: "
                    "null), or give this a `when` under which it is not searched",
                )


def _shown(value: Json) -> str:
    return value if isinstance(value, str) else canonical(value)


def written_twice(planner: SpacePlanner, declared: Mapping[str, Located], own: Collection[str]) -> Iterator[Problem]:
    """Pairs of parameters, one of them a user's, that set the same flag of one candidate.

    Whether their conditions exclude each other is tried, not proved: 400 random candidates show a pair that meets.
    """
    pairs = [
        (first, second, shared)
        for first, second in combinations(planner.space.parameters, 2)
        if (shared := targets(first) & targets(second))
        and {declared[first.name].file, declared[second.name].file} & {*own}
    ]
    rng = random.Random(0)  # noqa: S311 - a sample, not a secret
    for _ in range(_DRAWS if pairs else 0):
        chosen = planner.random_assignment(rng)
        for pair in list(pairs):
            first, second, shared = pair
            if first.name in chosen and second.name in chosen:
                both = _set(first, chosen[first.name]) & _set(second, chosen[second.name]) & shared
                if both:
                    pairs.remove(pair)
                    yield _twice(first, second, min(both), declared, own)


def _set(parameter: Parameter, label: str | float | bool | None) -> set[str]:
    arguments, environment = settings(parameter, label)
    return {*arguments, *(f"env:{name}" for name in environment)}


def _twice(
    first: Parameter, second: Parameter, target: str, declared: Mapping[str, Located], own: Collection[str]
) -> Problem:
    mine, other = (second, first) if declared[second.name].file in own else (first, second)
    place = declared[other.name]
    return declared[mine.name].problem(
        f"parameters.{mine.name}",
        f"sets {target}, as {other.name} does ({place.file}:{place.line}); take one away ({other.name}: null), or let "
        "their `when` exclude each other",
    )
