"""What an assignment means, what cannot start, and what is the same: the planner of one study."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.expression import Expression, ExpressionError
from tuner.model.json import Json, Scalar, canonical, finite
from tuner.model.space import UNSET, Choice, Forbid, Parameter, Range, Space
from tuner.spaces.domains import env_text, find_label, settings, targets
from tuner.spaces.identity import effective_settings, flat, under
from tuner.spaces.kinds import placeholders
from tuner.spaces.scope import Scopes, holds, numeric
from tuner.spaces.stated import Stated, running
from tuner.spaces.universal import UNIVERSAL

__all__ = ["SpacePlanner", "Survey", "draw"]

MemoryCheck = Callable[[Candidate], Exclusion | None]
FlagCheck = Callable[[Candidate], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What random candidates of a space are worth.

    Attributes:
        sampled: candidates drawn.
        feasible: those that nothing speaks against, each configuration once.
        share: part of the drawn ones that nothing speaks against (0 to 1).
        excluded: rule → how many it excluded (the first rule that speaks counts), and one of its reasons.
    """

    sampled: int
    feasible: tuple[Candidate, ...]
    share: float
    excluded: Mapping[str, tuple[int, str]] = field(default_factory=dict)


class SpacePlanner:
    """Implements :class:`tuner.ports.Planner` for a resolved space.

    Args:
        workload: what expressions see as ``workload`` (:func:`tuner.spaces.resolve.workload_scope`).
        memory: says why a candidate does not fit; asked after the rules.
        flags: sentences about flags that the installed vLLM does not take; asked last.
        forecast: what the started server is expected to report.
        doubts: see :meth:`tuner.ports.Planner.doubts`.
        stated: defaults of the program that a trial command runs, which take the place of vLLM's where its flags are
            asked for: in the rules that hold everywhere, the memory estimate and the forecast.

    Attributes:
        rules: what is never launched, in the order in which it is asked.
    """

    def __init__(
        self,
        space: Space,
        workload: Mapping[str, object],
        *,
        memory: MemoryCheck | None = None,
        flags: FlagCheck | None = None,
        forecast: Callable[[Candidate], Mapping[str, float]] | None = None,
        doubts: Callable[[Candidate], Sequence[float]] | None = None,
        stated: Sequence[Stated] = (),
    ) -> None:
        self.space = space
        self.workload = workload
        self._memory = memory
        self._flags = flags
        self._forecast = forecast
        self._doubts = doubts
        self._stated = stated
        own = {rule.name for rule in space.forbids}
        self._universal = tuple(rule for rule in UNIVERSAL if rule.name not in own)
        self.rules: tuple[Forbid, ...] = (*space.forbids, *self._universal)
        # A rule `memory` of the files, such as one that never holds, takes the place of the estimate.
        self._estimates = "memory" not in own
        self._reasons = {text: Expression.parse(text) for rule in self.rules for text in placeholders(rule.reason)}
        self._scopes = Scopes(space, workload, self._names())
        self._defaults = dict(_known_defaults(space))
        self._silent = frozenset().union(*(targets(item) for item in space.parameters if not item.numerics)) | {
            item.target for item in space.derived
        }

    def _names(self) -> Iterator[str]:
        """Every name that some expression of the space reads."""
        expressions: list[Expression | None] = [*self._reasons.values()]
        for rule in self.rules:
            expressions += [rule.condition, rule.violation]
        for item in self.space.derived:
            expressions += [item.value, item.when]
        expressions += [parameter.when for parameter in self.space.parameters]
        expressions += [condition for condition, _ in self.space.neutral]
        for expression in expressions:
            if expression is not None:
                yield from expression.names
        yield from (parameter.name for parameter in self.space.parameters)

    def baseline(self) -> Candidate:
        """vLLM's defaults, with what every candidate carries."""
        return self.render({}, origin="baseline")

    def starts(self) -> Sequence[Candidate]:
        """The known good configurations, in the order of the files."""
        return [self.render(start.assignment, origin=f"start:{start.name}") for start in self.space.starts]

    def render(self, assignment: Mapping[str, Scalar], *, origin: str = "search") -> Candidate:
        """What vLLM is asked for. Parameters that do not exist beside the others are left out of the assignment.

        Never raises: what cannot be evaluated is left away here, and :meth:`exclusion` says so.
        """
        scope = self._scopes.empty()
        arguments, environment = dict(self.space.base_arguments), dict(self.space.base_environment)
        kept: dict[str, Scalar] = {}
        for parameter in self.space.parameters:
            if not holds(parameter.when, scope):
                continue
            label = _label(parameter, assignment)
            if label is None:
                self._scopes.leave(scope, parameter)
                continue
            kept[parameter.name] = label
            flags, variables = settings(parameter, label)
            arguments |= flags
            environment |= variables
            self._scopes.choose(scope, parameter, label)
        for item in self.space.derived:
            if not holds(item.when, scope):
                continue
            value = _value(item.value, scope)
            if value is None:
                continue
            if item.target.startswith("env:"):
                environment[item.target[4:]] = env_text(value)
                self._scopes.add(scope, {}, {item.target[4:]: env_text(value)})
            else:
                arguments[item.target] = value
                self._scopes.add(scope, {item.target: value}, {})
        return Candidate(assignment=kept, arguments=arguments, environment=environment, origin=origin)

    def exclusion(self, candidate: Candidate) -> Exclusion | None:
        """The first thing that speaks against a launch: rules in their order, the memory estimate, vLLM's flags."""
        scope, run = self._scopes.of(candidate), self._running(candidate)
        found = (
            self._ruled_out(self.space.forbids, scope)
            or self._ruled_out(self._universal, scope if run is candidate else self._scopes.of(run))
            or self._underivable(scope)
            or (self._memory(run) if self._memory is not None and self._estimates else None)
        )
        if found is not None:
            return found
        problems = self._flags(candidate) if self._flags is not None else ()
        return (
            Exclusion(rule="flag", reason="; ".join(problems), source="vLLM's own argument parser")
            if problems
            else None
        )

    def _running(self, candidate: Candidate) -> Candidate:
        """The candidate with what a program of one's own takes where it says nothing; itself where vLLM serves."""
        return running(candidate, self._stated, self._scopes.of(candidate)) if self._stated else candidate

    def _ruled_out(self, rules: Sequence[Forbid], scope: Mapping[str, object]) -> Exclusion | None:
        for rule in rules:
            try:
                if rule.condition.holds(scope):
                    return self._excluded(rule, scope)
            except ExpressionError as error:
                reason = f"the rule {rule.name} cannot be evaluated: {error}"
                return Exclusion(rule=rule.name, reason=reason, source=rule.source)
        return None

    def doubts(self, candidate: Candidate) -> Sequence[float]:
        """See :meth:`tuner.ports.Planner.doubts`."""
        return self._doubts(candidate) if self._doubts is not None else ()

    def _excluded(self, rule: Forbid, scope: Mapping[str, object]) -> Exclusion:
        reason = rule.reason
        for text in placeholders(rule.reason):
            value = _value(self._reasons[text], scope)
            reason = reason.replace(f"{{{text}}}", "not set" if value is None else _shown(value))
        amount = _value(rule.violation, scope) if rule.violation is not None else None
        graded = float(amount) if isinstance(amount, int | float) and finite(amount) and amount > 0 else 1.0
        return Exclusion(rule=rule.name, reason=reason, source=rule.source, violation=graded)

    def _underivable(self, scope: Mapping[str, object]) -> Exclusion | None:
        expressions = [(item.target, item.when) for item in self.space.derived]
        expressions += [(item.target, item.value) for item in self.space.derived if holds(item.when, scope)]
        expressions += [(item.name, item.when) for item in self.space.parameters]
        for name, expression in expressions:
            try:
                if expression is not None:
                    expression.evaluate(scope)
            except ExpressionError as error:
                return Exclusion(rule="expression", reason=f"{name} cannot be evaluated: {error}", source="the space")
        return None

    def identity(self, candidate: Candidate) -> str:
        """Key of what would run: without settings that have no effect here, or that only repeat vLLM's default."""
        return _digest(self._telling(candidate))

    def effective_identity(self, candidate: Candidate, effective: Mapping[str, Json]) -> str:
        """As :meth:`identity`, with what the server reports in place of what was asked."""
        return _digest(effective_settings(self._telling(candidate), effective))

    def forecast(self, candidate: Candidate) -> Mapping[str, float]:
        """See :meth:`tuner.ports.Planner.forecast`."""
        return self._forecast(self._running(candidate)) if self._forecast is not None else {}

    def numerics(self, candidate: Candidate) -> str:
        """Key of what can change the tokens: without parameters known not to, and without derived values."""
        telling = self._telling(candidate)
        return _digest({key: value for key, value in telling.items() if not under(key, self._silent)})

    def _telling(self, candidate: Candidate) -> dict[str, Json]:
        """Flags and variables that make a difference, each nested part on its own."""
        out = {key: numeric(value) for key, value in flat(candidate.nested()).items() if value is not None}
        out |= {f"env:{name}": value for name, value in candidate.environment.items()}
        scope = self._scopes.of(candidate)
        dead: set[str] = set()
        for condition, names in self.space.neutral:
            if holds(condition, scope):
                dead.update(names)
        return {
            key: value
            for key, value in out.items()
            if not under(key, dead)
            and not (key in self._defaults and canonical(self._defaults[key]) == canonical(value))
        }

    def random_assignment(self, rng: random.Random) -> dict[str, Scalar]:
        """Any assignment that the space can suggest, each value as likely as its neighbours."""
        drawn = {parameter.name: draw(parameter, rng) for parameter in self.space.parameters}
        return dict(self.render(drawn).assignment)

    def survey(self, n: int = 300, seed: int = 0) -> Survey:
        """What ``n`` random candidates are worth: which would be launched, and which rules exclude the others."""
        rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
        counts: Counter[str] = Counter()
        reasons: dict[str, str] = {}
        feasible: dict[str, Candidate] = {}
        for _ in range(n):
            candidate = self.render(self.random_assignment(rng))
            found = self.exclusion(candidate)
            if found is None:
                feasible.setdefault(self.identity(candidate), candidate)
            else:
                counts[found.rule] += 1
                reasons.setdefault(found.rule, found.reason)
        return Survey(
            sampled=n,
            feasible=tuple(feasible.values()),
            share=1 - counts.total() / n if n else 0.0,
            excluded={rule: (count, reasons[rule]) for rule, count in counts.most_common()},
        )

    def feasible_share(self, n: int = 300, seed: int = 0) -> float:
        """The part of ``n`` random candidates (0 to 1) that nothing speaks against."""
        return self.survey(n, seed).share


def draw(parameter: Parameter, rng: random.Random) -> Scalar:
    """A random value of the parameter, uniform on its scale."""
    domain = parameter.domain
    if isinstance(domain, Choice):
        return rng.choice(list(domain.values))
    if domain.base == 2:
        most = 0
        while domain.low * 2 ** (most + 1) <= domain.high:
            most += 1
        return int(domain.low) << rng.randint(0, most)
    if domain.log:
        number = float(domain.low * math.exp(math.log(domain.high / domain.low) * rng.random()))
    else:
        number = rng.uniform(domain.low, domain.high)
    return _on_grid(domain, number)


def _on_grid(domain: Range, number: float) -> Scalar:
    step = domain.step or (1 if domain.integer else None)
    if step is not None:
        number = domain.low + round((number - domain.low) / step) * step
    number = min(max(number, domain.low), domain.high)
    # Twelve decimals: 0.80 + 4 × 0.01 is meant to be 0.84, and is what people read in a command.
    return round(number) if domain.integer else round(number, 12)


def _label(parameter: Parameter, assignment: Mapping[str, Scalar]) -> Scalar:
    """The chosen value in the space's own terms; None where there is none, or none that the space has."""
    value = assignment.get(parameter.name)
    if value is None:
        return None
    try:
        return find_label(parameter.domain, value)
    except KeyError:
        return None


def _known_defaults(space: Space) -> Iterator[tuple[str, Json]]:
    for parameter in space.parameters:
        default = parameter.default
        if not parameter.target or default is None:
            continue
        domain = parameter.domain
        value: object = domain.values.get(default, UNSET) if isinstance(domain, Choice) else default
        if value is UNSET:
            continue
        known = value if isinstance(value, bool | int | float | str | list | tuple | dict) else None
        yield parameter.target, env_text(known) if parameter.target.startswith("env:") else known


def _value(expression: Expression, scope: Mapping[str, object]) -> Json:
    try:
        return expression.evaluate(scope)
    except ExpressionError:
        return None


def _shown(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else canonical(value)


def _digest(content: Mapping[str, Json]) -> str:
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:16]
