"""From merged files to a space: every bound a number, every choice one that this hardware and model offer."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tuner.model.expression import Expression
from tuner.model.hardware import Hardware
from tuner.model.json import Json, Scalar, canonical
from tuner.model.llm import ModelFacts
from tuner.model.space import UNSET, Derived, Forbid, Parameter, Range, Space, Start
from tuner.model.workload import LoadPoint, Workload
from tuner.spaces.checkpoints import Checkpoints, Joined, find_checkpoints, is_checkpoint, join
from tuner.spaces.domains import Static, env_text, make_parameter, settings, targets
from tuner.spaces.facts import model_facts
from tuner.spaces.kinds import parse_formula
from tuner.spaces.starts import Starts
from tuner.spaces.stated import Stated, stated_by
from tuner.spaces.yamlfile import Located, Problem, SpaceError, plain

T = TypeVar("T")

__all__ = ["Resolved", "hardware_from", "resolve", "rule_from", "space_digest", "workload_from", "workload_scope"]


@dataclass(frozen=True)
class Resolved:
    """A space, and what a person should know about how it came out.

    Attributes:
        stated: what runs where its flags are left away, as the files say it.
    """

    space: Space
    notes: tuple[str, ...] = ()
    stated: tuple[Stated, ...] = ()


def hardware_from(root: Located, name: str) -> Hardware:
    """The machine that a profile describes.

    Raises:
        SpaceError: the profile lacks what every machine has.
    """
    node = root.get("hardware")
    if node is None:
        raise SpaceError(root.problem("hardware", "is missing: this is no hardware profile"))
    known = {item.name for item in dataclasses.fields(Hardware)}
    values = {key: plain(entry) for key, entry in node.mapping.items() if key in known and entry.value is not None}
    missing = [key for key in ("platform", "device", "memory_gib", "bandwidth_gb_s") if key not in values]
    if missing:
        raise SpaceError(node.problem("hardware", f"needs {', '.join(missing)}"))
    if (capability := values.get("capability")) is not None:
        major, minor = str(capability).split(".")
        values["capability"] = (int(major), int(minor))
    return Hardware(name=name, **_whole(values))  # type: ignore[arg-type]


def rule_from(node: Located) -> Forbid:
    """One entry of a ``forbid`` section."""
    condition, reason = parse_formula(node.mapping["if"]), node.get("reason")
    violation, name = node.get("violation"), str(plain(node.get("name")))
    return Forbid(
        name=name,
        condition=condition,
        reason=str(reason.value) if reason else f"the rule {name} forbids it",
        source=str(plain(node.get("source")) or ""),
        violation=parse_formula(violation) if violation else None,
    )


def workload_from(node: Located, name: str) -> Workload:
    """The traffic that a mapping describes.

    Raises:
        SpaceError: it contradicts itself.
    """
    values: dict[str, object] = {key: plain(entry) for key, entry in node.mapping.items() if entry.value is not None}
    points = node.get("points")
    if points is not None:
        if not points.items:
            raise SpaceError(points.problem("workload.points", "needs at least one load point"))
        timed = values.get("source") == "trace"
        values["points"] = tuple(_point(item, number, timed=timed) for number, item in enumerate(points.items))
    if path := values.get("path"):
        values["path"] = _beside(node.file, str(path))
    if (rounds := node.get("rounds")) is not None:
        least, most = (int(str(plain(item))) for item in rounds.items)
        if least > most:
            raise SpaceError(rounds.problem("workload.rounds", f"must be [least, most], not [{least}, {most}]"))
        values["rounds"] = (least, most)
    return Workload(name=name, **_whole(values))  # type: ignore[arg-type]


def _beside(file: str, path: str) -> str:
    """A traffic file lies beside the YAML that names it; from the working folder, if it is not there."""
    given = Path(path).expanduser()
    beside = Path(file).parent / given
    return str((beside if beside.exists() else given).absolute())


def _point(node: Located, number: int, *, timed: bool) -> LoadPoint:
    values = {key: plain(entry) for key, entry in node.mapping.items() if entry.value is not None}
    if not timed and "concurrency" not in values and "rate" not in values:
        raise SpaceError(node.problem(f"workload.points[{number}]", "needs `concurrency`, `rate`, or both"))
    return LoadPoint(**_whole(values))  # type: ignore[arg-type]


def _whole(values: Mapping[str, object]) -> dict[str, object]:
    """Whole floats that YAML wrote with an exponent (1e3) as integers; what is a float takes either."""
    return {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in values.items()
    }


def workload_scope(workload: Workload) -> dict[str, object]:
    """What expressions see of the traffic.

    ``max_concurrency`` is the most requests in flight: of closed loops the greatest concurrency; an open loop has at
    most the requests of one round.
    """
    values = {item.name: getattr(workload, item.name) for item in dataclasses.fields(workload) if item.name != "points"}
    in_flight = [point.requests if point.concurrency is None else point.concurrency for point in workload.points]
    return values | {
        "tokens_needed": workload.tokens_needed,
        "max_concurrency": max(in_flight),
        "min_concurrency": min(in_flight),
    }


def resolve(
    root: Located,
    *,
    name: str,
    hardware: Hardware,
    model: ModelFacts,
    workload: Workload,
    load: Callable[[str], ModelFacts] | None = None,
    own: frozenset[str] = frozenset(),
    fixed: frozenset[str] = frozenset(),
) -> Resolved:
    """The space that merged files describe for one machine, model and workload.

    Args:
        load: facts of another checkpoint that the space offers; raises InputError where they cannot be had.
        own: names of the users' own files, in which slips are errors.
        fixed: parameters that the users' arguments took out.

    Raises:
        SpaceError: with every problem found.
    """
    static = Static({"hardware": hardware, "model": model, "workload": workload_scope(workload)}, own)
    found = _Resolver(root, static, load or (lambda other: model_facts(other, {})), fixed)
    return found.space(name, hardware, model)


class _Resolver:
    def __init__(self, root: Located, static: Static, load: Callable[[str], ModelFacts], fixed: frozenset[str]) -> None:
        self._root = root
        self._static = static
        self._load = load
        self._fixed = fixed
        self._checkpoints = Checkpoints()
        self._statics: Mapping[Scalar, Static] = {}
        self._rules: list[Forbid] = []
        self._problems: list[Problem] = []
        self._notes: list[str] = []
        self._arguments: dict[str, Json] = {key: plain(node) for key, node in self._section("arguments")}
        self._environment = {key: env_text(plain(node)) for key, node in self._section("environment")}
        self._constants: dict[str, Scalar] = {}
        self._stated: list[Stated] = []

    def space(self, name: str, hardware: Hardware, model: ModelFacts) -> Resolved:
        parameters = self._parameters()
        space = Space(
            name=name,
            hardware=hardware,
            model=model,
            parameters=parameters,
            forbids=(*self._each("forbid", lambda node, _: rule_from(node)), *self._rules),
            derived=tuple(self._each("derived", self._derived)),
            neutral=tuple(self._each("neutral", self._neutral)),
            starts=self._starts(parameters),
            base_arguments=self._arguments,
            base_environment=self._environment,
            constants=self._constants,
            checkpoints=self._checkpoints.others,
        )
        if self._problems:
            raise SpaceError(*self._problems)
        digested = dataclasses.replace(space, digest=space_digest(space))
        return Resolved(digested, tuple(self._notes), tuple(self._stated))

    def _section(self, key: str) -> list[tuple[str, Located]]:
        node = self._root.get(key)
        return [(name, item) for name, item in node.mapping.items() if item.value is not None] if node else []

    def _parameters(self) -> tuple[Parameter, ...]:
        section, found = dict(self._section("parameters")), dict[str, Parameter]()
        try:
            self._checkpoints = find_checkpoints(section, self._static, self._load)
            self._statics = self._checkpoints.statics(self._static)
        except SpaceError as error:
            self._problems += error.problems
            section = {name: node for name, node in section.items() if not is_checkpoint(node)}
        for name, node in section.items():
            try:
                joined = self._joined(name, node)
            except SpaceError as error:
                self._problems += error.problems
                continue
            if joined.note:
                self._notes.append(joined.note)
            self._rules += joined.rules
            if joined.parameter is not None:
                stated = stated_by(joined.parameter, node)
                self._stated += [stated] if stated is not None else []
                if not self._collapsed(joined.parameter):
                    found[name] = joined.parameter
        try:
            return _sorted(found)
        except ValueError as error:
            node = self._root.mapping["parameters"]
            self._problems.append(node.problem("parameters", str(error)))
            return ()

    def _joined(self, name: str, node: Located) -> Joined:
        """The parameter beside every checkpoint that candidates may serve."""
        if not self._statics or is_checkpoint(node):
            parameter, note = make_parameter(name, node, self._static)
            if parameter is None and is_checkpoint(node):
                note = f"{name} is not searched: its `if` does not hold for this model and hardware"
            return Joined(parameter, note=note)
        made = {label: make_parameter(name, node, static) for label, static in self._statics.items()}
        try:
            return join(made, self._checkpoints)
        except ValueError as error:
            raise SpaceError(node.problem(f"parameters.{name}", str(error))) from None

    def _collapsed(self, parameter: Parameter) -> bool:
        """Whether one value is left, which then is no parameter: it becomes a base argument, or nothing at all."""
        domain = parameter.domain
        if isinstance(domain, Range):
            if domain.low != domain.high:
                return False
            label: Scalar = round(domain.low) if domain.integer else domain.low
            value: object = label
        else:
            if len(domain.values) != 1:
                return False
            label, value = next(iter(domain.values.items()))
        if parameter.when is not None and value is not UNSET:
            return False  # kept as a parameter of one value, because the condition still decides
        if parameter.when is None:
            self._constants[parameter.name] = label
        if value is UNSET or (parameter.default is not None and label == parameter.default):
            return True
        arguments, environment = settings(parameter, label)
        self._arguments |= arguments
        self._environment |= environment
        return True

    def _each(self, key: str, make: Callable[[Located, str], T | None]) -> Iterator[T]:
        node = self._root.get(key)
        for number, item in enumerate(node.items if node else []):
            try:
                made = make(item, f"{key}[{number}]")
            except SpaceError as error:
                self._problems += error.problems
                continue
            if made is not None:
                yield made

    def _derived(self, node: Located, key: str) -> Derived | None:
        value, when = node.get("value"), node.get("when")
        if value is None:
            return None
        target = str(plain(node.get("target")))
        if target.split(".", maxsplit=1)[0] in ("model", "host", "port", "api-key"):
            raise SpaceError(node.problem(f"{key}.target", f"{target} is set by tune itself"))
        return Derived(target=target, value=parse_formula(value), when=parse_formula(when) if when else None)

    def _neutral(self, node: Located, _: str) -> tuple[Expression | None, tuple[str, ...]]:
        condition = node.get("if")
        names = tuple(str(plain(item)) for item in node.mapping["targets"].items)
        return (parse_formula(condition) if condition else None, names)

    def _starts(self, parameters: tuple[Parameter, ...]) -> tuple[Start, ...]:
        starts = Starts(
            known={parameter.name: parameter for parameter in parameters},
            constants=self._constants,
            declared=dict(self._section("parameters")),
            fixed=self._fixed,
            own=self._static.own,
            static=lambda assigned: self._statics.get(_scalar(assigned.get(self._checkpoints.name)), self._static),
        )
        made = [starts.make(name, node) for name, node in self._section("starts")]
        self._problems += starts.problems
        self._notes += starts.notes
        return tuple(start for start in made if start is not None)


def _scalar(value: Json) -> Scalar:
    return value if isinstance(value, str | int | float) else None


def _sorted(found: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    """Parameters after those that decide whether they exist, otherwise in the order of the files.

    Raises:
        ValueError: conditions run in a circle.
    """
    provides: dict[str, set[str]] = {}
    for name, parameter in found.items():
        provides.setdefault(name, set()).add(name)
        for target in targets(parameter):
            path = target.replace("-", "_")
            for key in (path, path.split(".")[0]):
                provides.setdefault(key, set()).add(name)
    needs = {name: _deciders(parameter, provides) for name, parameter in found.items()}
    out: dict[str, Parameter] = {}
    while len(out) < len(found):
        free = [name for name in found if name not in out and needs[name] <= out.keys()]
        if not free:
            raise ValueError(f"the `when` of {', '.join(sorted(found.keys() - out.keys()))} depend on one another")
        out[free[0]] = _reading(found[free[0]], needs[free[0]])
    return tuple(out.values())


def _reading(parameter: Parameter, others: set[str]) -> Parameter:
    """The parameter with a condition that names every other parameter it depends on, by flag or checkpoint too."""
    when = parameter.when
    if when is None or others <= when.names:
        return parameter
    return dataclasses.replace(parameter, when=dataclasses.replace(when, names=when.names | others))


def _deciders(parameter: Parameter, provides: Mapping[str, set[str]]) -> set[str]:
    names = parameter.when.names if parameter.when else ()
    found: set[str] = set()
    for name in names:
        found |= provides.get(name) or provides.get(name.split(".")[0], set())
    return found - {parameter.name}


def space_digest(space: Space) -> str:
    """What a trial's numbers stand for: what can be chosen, and what is run then.

    Rules and starts decide what is tried, not what a result means: they may change under a running study. Measured
    figures of the machine count only through the bounds they gave.
    """

    def text(expression: Expression | None) -> str:
        return "" if expression is None else expression.text

    content: dict[str, Json] = {
        "name": space.name,
        "model": space.model.name,
        "hardware": [space.hardware.name, space.hardware.platform, space.hardware.count],
        "arguments": dict(space.base_arguments),
        "environment": dict(space.base_environment),
        "parameters": [
            [item.name, item.target, _domain(item), text(item.when), item.default] for item in space.parameters
        ],
        "derived": [[item.target, text(item.value), text(item.when)] for item in space.derived],
        "constants": dict(space.constants),
    }
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:16]


def _domain(parameter: Parameter) -> Json:
    domain = parameter.domain
    if isinstance(domain, Range):
        return [domain.low, domain.high, domain.step, domain.log, domain.integer, domain.base]
    return [[label, "UNSET" if value is UNSET else value] for label, value in domain.values.items()]  # type: ignore[list-item]
