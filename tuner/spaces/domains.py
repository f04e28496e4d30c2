"""From a parameter as the files write it to one with numbers and labels, for one machine, model and workload."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tuner.model.expression import ExpressionError
from tuner.model.json import Json, Scalar, finite
from tuner.model.llm import ModelFacts
from tuner.model.space import UNSET, Choice, Domain, Parameter, Range
from tuner.spaces.kinds import parse_formula
from tuner.spaces.loader import flatten
from tuner.spaces.schema import OWNED
from tuner.spaces.yamlfile import Located, Problem, SpaceError, plain

__all__ = [
    "CHECKPOINT",
    "Static",
    "declared_labels",
    "env_text",
    "find_label",
    "make_parameter",
    "neighbours",
    "settings",
    "targets",
]

CHECKPOINT = "model"
"""Where the value of a checkpoint parameter goes: :attr:`tuner.model.candidate.Candidate.checkpoint`."""
STATIC_ROOTS = frozenset({"hardware", "model", "workload"})
_UNSET_WORD = "default"
_ENTRY_KEYS = frozenset({"value", "arguments", "environment", "if", "source"})


@dataclass(frozen=True)
class Static:
    """Evaluates what must be known before anything varies.

    Attributes:
        own: the users' files: what can only be a slip there is an error.
    """

    scope: Mapping[str, object]
    own: frozenset[str] = frozenset()

    def value(self, node: Located, key: str) -> Json:
        """The expression's value.

        Raises:
            SpaceError: it reads something that varies, or has no value.
        """
        expression = parse_formula(node)
        odd = sorted(name for name in expression.names if name.split(".")[0] not in STATIC_ROOTS)
        if odd:
            raise SpaceError(
                node.problem(
                    key, f"may only read hardware, model and workload, not {', '.join(odd)}; see `when` and `forbid`"
                )
            )
        try:
            return expression.evaluate(self.scope)
        except ExpressionError as error:
            raise SpaceError(node.problem(key, str(error))) from None

    def holds(self, parent: Located, key: str) -> bool:
        """Whether the parent's ``if`` holds; true where there is none."""
        node = parent.get("if")
        return node is None or bool(self.value(node, f"{key}.if"))


def make_parameter(name: str, node: Located, static: Static) -> tuple[Parameter | None, str]:
    """The parameter ``name``, or None and why it has no values here.

    Raises:
        SpaceError: the files do not say what it needs.
    """
    key = f"parameters.{name}"
    if not static.holds(node, key):
        return None, ""
    kind = plain(node.get("type"))
    if kind not in _MAKERS:
        raise SpaceError(node.problem(key, f"needs `type` ({', '.join(map(str, _MAKERS))})"))
    target = _target(key, node, kind)
    domain = _MAKERS[kind](key, node, static)
    note = ""
    if isinstance(domain, Range) and domain.low == domain.high and (node.get("step") or domain.base):
        note = _one_left(name, node, domain, static)
    if isinstance(domain, Range) and domain.low > domain.high:
        if (slip := _crossed(key, node, domain, static)) is not None:
            raise SpaceError(slip)
        return None, f"{name} is not searched: nothing lies between {domain.low:g} and {domain.high:g} here"
    if isinstance(domain, Choice) and not domain.values:
        return None, f"{name} is not searched: none of its values is for this hardware and model"
    if isinstance(domain, Choice) and _bundles(node):
        domain, target = _bundle(domain, node, target), ""
    when = node.get("when")
    return Parameter(
        name=name,
        target=target,
        domain=domain,
        when=parse_formula(when) if when else None,
        default=_default(key, node, domain),
        numerics=plain(node.get("numerics")) is True or kind == "checkpoint",
        recompiles=plain(node.get("recompiles")) is True,
    ), note


def _crossed(key: str, node: Located, domain: Range, static: Static) -> Problem | None:
    """The error at the user's bound that was written last; none where only the machine or model leaves nothing."""
    bounds = {name: node.mapping[name] for name in ("high", "low")}
    written = [name for name, entry in bounds.items() if entry.file in static.own and finite(entry.value)]
    if not written:
        return None
    # What lays files over one another leaves the place of the last one at the parameter.
    last = next((name for name in written if bounds[name].file == node.file), written[0])
    said = {
        name: name if entry.file == bounds[last].file else f"{name}, {entry.file}:{entry.line}"
        for name, entry in bounds.items()
    }
    return bounds[last].problem(
        f"{key}.{last}", f"nothing lies from {domain.low:g} ({said['low']}) to {domain.high:g} ({said['high']})"
    )


def _one_left(name: str, node: Located, domain: Range, static: Static) -> str:
    """Said of a range of which the distance of its values leaves the first one only."""
    high = _bound(f"parameters.{name}", node, "high", static)
    if high <= domain.low:
        return ""
    far = "the next power of two" if domain.base else f"the next one, {domain.step:g} (step) away,"
    return f"{name} is not searched: of {domain.low:g} to {high:g} only {domain.low:g} is left, {far} lies beyond"


def _target(key: str, node: Located, kind: object) -> str:
    """Where the value goes; empty for a choice whose values say it themselves."""
    flag, env = node.get("flag"), node.get("env")
    if kind == "checkpoint":
        if odd := flag or env:
            raise SpaceError(odd.problem(key, "`type: checkpoint` needs no `flag` and no `env`; it is what is served"))
        return CHECKPOINT
    if flag and env:
        raise SpaceError(node.problem(key, "has both `flag` and `env`; one value goes to one place (or use a choice)"))
    if flag is not None and str(flag.value) in OWNED:
        way = "`type: checkpoint` searches it" if flag.value == "model" else OWNED[str(flag.value)]
        raise SpaceError(flag.problem(f"{key}.flag", f"{flag.value} cannot be searched as a flag; {way}"))
    target = str(flag.value) if flag else f"env:{env.value}" if env else ""
    if not target and not (kind == "choice" and _bundles(node)):
        raise SpaceError(node.problem(key, "needs `flag` or `env` (or, for a choice, values with `arguments`)"))
    return target


def find_label(domain: Domain, value: Json) -> Scalar:
    """``value`` as assignments of this domain hold it.

    Raises:
        KeyError: a choice has no such label, or a range is given no number.
    """
    if isinstance(domain, Range):
        if isinstance(value, bool) or not isinstance(value, int | float) or not finite(value):
            raise KeyError(value)
        number = min(max(value, domain.low), domain.high)
        return round(number) if domain.integer else float(number)
    for label in domain.values:
        if type(label) is type(value) and label == value:
            return label
    for label in domain.values:
        # Labels of a mapping are text in YAML: 1, true and "1", "true" are what a person means by them.
        if _word(label) == _word(value):
            return label
    raise KeyError(value)


def neighbours(domain: Range, value: float) -> tuple[float, float] | None:
    """The values of the range around a number of its span that is none of them; None where it is one."""
    if domain.base == 2:
        below = float(domain.low)
        while below * 2 <= value:
            below *= 2
        return None if below == value else (below, below * 2)
    step = domain.step or (1 if domain.integer else 0)
    if not step:
        return None
    count = (value - domain.low) / step
    if abs(count - round(count)) < 1e-6:  # 0.1 + 2 * 0.1 is not 0.3
        return None
    return domain.low + math.floor(count) * step, domain.low + math.ceil(count) * step


def settings(parameter: Parameter, label: Scalar) -> tuple[dict[str, Json], dict[str, str]]:
    """The arguments and the environment that a value of a parameter sets; nothing where it leaves its flag away.

    Raises:
        KeyError: the parameter has no such value.
    """
    domain = parameter.domain
    known = find_label(domain, label)
    value: object = known if isinstance(domain, Range) else domain.values[known]
    if value is UNSET:
        return {}, {}
    if not parameter.target:
        parts = cast("Mapping[str, Mapping[str, Json]]", value)
        variables = {name: env_text(item) for name, item in parts.get("environment", {}).items()}
        return dict(parts.get("arguments", {})), variables
    if parameter.target.startswith("env:"):
        return {}, {parameter.target[4:]: env_text(cast("Json", value))}
    return {parameter.target: cast("Json", value)}, {}


def targets(parameter: Parameter) -> frozenset[str]:
    """Every flag, dotted path and ``env:NAME`` that some value of the parameter sets."""
    if parameter.target:
        return frozenset({parameter.target})
    found: set[str] = set()
    for label in parameter.domain.values if isinstance(parameter.domain, Choice) else ():
        arguments, environment = settings(parameter, label)
        found |= {*arguments, *(f"env:{name}" for name in environment)}
    return frozenset(found)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bound(key: str, node: Located, name: str, static: Static) -> float:
    entry = node.get(name)
    if entry is None:
        raise SpaceError(node.problem(key, f"needs `{name}`"))
    value = static.value(entry, f"{key}.{name}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpaceError(entry.problem(f"{key}.{name}", f"gives {value!r} here, not a number"))
    # What an expression gives is rounded inwards; a figure that somebody wrote is not what they meant.
    if plain(node.get("type")) == "int" and isinstance(entry.value, float) and entry.value % 1:
        whole = "a whole number, or `type: float`"
        raise SpaceError(entry.problem(f"{key}.{name}", f"is {value:g}, but the type is int; write {whole}"))
    return value


def _range(key: str, node: Located, static: Static) -> Range:
    for odd in ("values", "ordinal"):
        if odd in node.mapping:
            raise SpaceError(node.problem(f"{key}.{odd}", "belongs to `type: choice`"))
    integer = plain(node.get("type")) == "int"
    low, high = _bound(key, node, "low", static), _bound(key, node, "high", static)
    step = _bound(key, node, "step", static) if node.get("step") else None
    log, base = plain(node.get("log")) is True, plain(node.get("base"))
    if integer:
        low, high = math.ceil(low), math.floor(high)
    if step is not None and (step <= 0 or (integer and step != int(step))):
        raise SpaceError(node.problem(f"{key}.step", f"is {step:g}; it must be above 0 (and whole for `type: int`)"))
    if log and low <= 0:
        raise SpaceError(node.problem(f"{key}.low", f"is {low:g}, but a logarithmic range starts above 0"))
    if base is not None and not (log and integer):
        raise SpaceError(node.problem(f"{key}.base", "needs `type: int` and `log: true`"))
    if step is not None and high > low:
        high = low + math.floor((high - low) / step + 1e-9) * step
    if base == 2 and low <= high < 2 * low:
        high = low
    return Range(low=low, high=high, step=step, log=log, integer=integer, base=2 if base == 2 else None)


def _switch(key: str, node: Located, _: Static) -> Choice:
    for odd in ("low", "high", "step", "log", "values"):
        if odd in node.mapping:
            raise SpaceError(node.problem(f"{key}.{odd}", "does not belong to `type: bool`"))
    return Choice(values={True: True, False: False})


def _choice(key: str, node: Located, static: Static) -> Choice:
    values = node.get("values")
    if values is None:
        raise SpaceError(node.problem(key, "needs `values`"))
    for odd in ("low", "high", "step", "log"):
        if odd in node.mapping:
            raise SpaceError(node.problem(f"{key}.{odd}", "does not belong to `type: choice`"))
    if not values.value:
        name = key.removeprefix("parameters.")
        raise SpaceError(values.problem(f"{key}.values", f"needs a value; `{name}: null` takes the parameter away"))
    out: dict[Scalar, object] = {}
    for label, entry in _labelled(key, values):
        path = f"{key}.values.{_word(label)}"
        if any(_word(label) == _word(known) for known in out):
            raise SpaceError(entry.problem(path, "stands here for the second time"))
        if static.holds(entry, path):
            out[label] = _value(path, entry)
    return Choice(values=out, ordinal=plain(node.get("ordinal")) is True)  # type: ignore[arg-type]


def _checkpoints(key: str, node: Located, static: Static) -> Choice:
    """What may be served. The study's own model is the alternative that leaves everything as it is."""
    for odd in ("default", "ordinal"):
        if odd in node.mapping:
            way = (
                "the default is the study's model (--model, or the key `model`)"
                if odd == "default"
                else "leave it away"
            )
            raise SpaceError(node.mapping[odd].problem(f"{key}.{odd}", f"does not belong to `type: checkpoint`; {way}"))
    if (when := node.get("when")) is not None:
        raise SpaceError(when.problem(f"{key}.when", "something is always served; use `if`"))
    if (numerics := node.get("numerics")) is not None and numerics.value is False:
        raise SpaceError(numerics.problem(f"{key}.numerics", "another checkpoint writes other tokens: always true"))
    own = cast("ModelFacts", static.scope["model"]).name
    out: dict[Scalar, Json | object] = {}
    choice, entries = _choice(key, node, static), dict(_labelled(key, node.mapping["values"]))
    for label, value in choice.values.items():
        path, entry = f"{key}.values.{_word(label)}", entries[label]
        name = own if value in (UNSET, _UNSET_WORD) else _checkpoint_name(path, entry, value, Path(own))
        if any(name == (own if known is UNSET else known) for known in out.values()):
            raise SpaceError(entry.problem(path, f"{name} stands here for the second time"))
        out[label] = UNSET if name == own else name
    if out and UNSET not in out.values():
        problem = f"none of these is {own}, which the study serves; add it (LABEL: default), or give another --model"
        raise SpaceError(node.mapping["values"].problem(f"{key}.values", problem))
    return dataclasses.replace(choice, values=out)  # type: ignore[arg-type]


def _checkpoint_name(path: str, entry: Located, value: object, own: Path) -> str:
    """A hub id as it is, a folder absolute. A relative folder lies beside the file that names it."""
    if not isinstance(value, str) or not value.strip() or value.startswith("-"):
        raise SpaceError(entry.problem(path, "must be a hub id such as ORG/NAME, or a folder with config.json"))
    given = Path(value).expanduser()
    folder = Path(entry.file).parent / given if value.startswith(".") else given
    if folder.is_dir():
        if own.is_dir() and folder.samefile(own):
            return str(own)
        return str(folder.absolute().resolve() if value.startswith(".") else folder.absolute())
    if value.startswith((".", "/", "~")):
        raise SpaceError(entry.problem(path, f"no such folder: {folder}"))
    return value


def _labelled(key: str, values: Located) -> list[tuple[Scalar, Located]]:
    if isinstance(values.value, dict):
        return [(_label(label), entry) for label, entry in values.value.items() if entry.value is not None]
    out: list[tuple[Scalar, Located]] = []
    for number, entry in enumerate(values.items):
        given = entry.get("value") if isinstance(entry.value, dict) else entry
        if given is None or isinstance(given.value, list | dict):
            problem = "lists only single values; write a mapping of labels for lists, mappings and `arguments`"
            raise SpaceError(entry.problem(f"{key}.values[{number}]", problem))
        out.append((given.value, entry))
    return out


def declared_labels(node: Located) -> list[Scalar]:
    """The labels of a parameter as the files write it, on whatever hardware; empty for a range."""
    if plain(node.get("type")) == "bool":
        return [True, False]
    values = node.get("values")
    try:
        return [label for label, _ in _labelled("", values)] if values is not None else []
    except SpaceError:
        return []


def _label(text: str) -> Scalar:
    """Keys of YAML mappings arrive as text; sizes among them are numbers, so that rules can compare them."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else text


def _value(path: str, entry: Located) -> object:
    if not isinstance(entry.value, dict):
        return UNSET if entry.value == _UNSET_WORD else plain(entry)
    if "value" in entry.value:
        return plain(entry.value["value"])
    if not {"arguments", "environment"} & set(entry.value):
        raise SpaceError(entry.problem(path, "needs `value`, `arguments` or `environment` (or the word `default`)"))
    return UNSET


def _bundles(node: Located) -> bool:
    """Whether some alternative sets more than the parameter's own flag."""
    values = node.get("values")
    entries = [*values.mapping.values(), *values.items] if values else []
    return any({"arguments", "environment"} & set(entry.mapping) for entry in entries)


def _bundle(domain: Choice, node: Located, target: str) -> Choice:
    """Every alternative as the arguments and variables it sets, the parameter's own flag among them."""
    values = node.get("values")
    entries = dict(_labelled("", values)) if values else {}
    out: dict[Scalar, object] = {}
    for label, value in domain.values.items():
        entry = entries[label]
        arguments: dict[str, Json] = {}
        environment: dict[str, str] = {}
        if value is not UNSET and target.startswith("env:"):
            environment[target[4:]] = env_text(value)  # type: ignore[arg-type]
        elif value is not UNSET and target:
            arguments[target] = value  # type: ignore[assignment]
        given, variables = entry.get("arguments"), entry.get("environment")
        arguments |= {name: plain(item) for name, item in flatten(given.mapping).items()} if given else {}
        environment |= {name: env_text(plain(item)) for name, item in variables.mapping.items()} if variables else {}
        parts = {"arguments": arguments, "environment": environment}
        out[label] = {name: part for name, part in parts.items() if part} or UNSET
    return Choice(values=out, ordinal=domain.ordinal)  # type: ignore[arg-type]


def env_text(value: Json) -> str:
    """A value as an environment variable holds it; vLLM reads booleans as 1 and 0."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _default(key: str, node: Located, domain: Domain) -> Scalar:
    entry = node.get("default")
    if entry is None or isinstance(entry.value, list | dict):
        if isinstance(domain, Choice):
            return next((label for label, value in domain.values.items() if value is UNSET), None)
        return None
    try:
        label = find_label(domain, entry.value)
    except KeyError:
        if isinstance(domain, Range):
            raise SpaceError(Problem(entry.file, entry.line, f"{key}.default", "must be a number")) from None
        if plain(node.get("type")) == "bool":
            what = f"must be true or false, not {entry.value!r}"
            raise SpaceError(Problem(entry.file, entry.line, f"{key}.default", what)) from None
        # vLLM's own default need not be among the alternatives; then no label means it.
        return None
    if isinstance(domain, Range) and domain.integer and isinstance(entry.value, float) and entry.value % 1:
        raise SpaceError(entry.problem(f"{key}.default", f"is {entry.value:g}, but the type is int"))
    # A default outside the range stays what it is: it is what vLLM takes.
    return entry.value if isinstance(domain, Range) else label


_MAKERS: Mapping[object, Callable[[str, Located, Static], Domain]] = {
    "int": _range,
    "float": _range,
    "choice": _choice,
    "bool": _switch,
    "checkpoint": _checkpoints,
}
