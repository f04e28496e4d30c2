"""``tune check my_space.yaml``: everything wrong with a file, and what the space that it makes is like."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.model.candidate import Exclusion
from tuner.model.json import Json
from tuner.model.space import Choice, Parameter, Space
from tuner.model.targets import counted
from tuner.spaces.blocked import UNEVALUATED, place_of, refused
from tuner.spaces.domains import settings
from tuner.spaces.loader import Library
from tuner.spaces.plan import Plan, open_plan
from tuner.spaces.planner import Survey
from tuner.spaces.schema import check_document
from tuner.spaces.yamlfile import Located, Problem, SpaceError, read_yaml

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.spaces.introspect import VllmFlags

__all__ = ["CheckReport", "check_space", "size_of"]


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What was found in a file.

    Attributes:
        errors: what keeps it from being used, each with file, line and key where one is at fault.
        warnings: what is probably not meant.
        profile, model, workload: what it was checked for.
        size: configurations without the conditions (infinite where a float varies freely), None if it has errors.
        survey: what random candidates of it are worth.
        external: a trial command is to measure them.
    """

    path: Path
    errors: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    profile: str = ""
    model: str = ""
    workload: str = ""
    size: float | None = None
    survey: Survey | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)
    external: bool = False

    @property
    def ok(self) -> bool:
        return not self.errors

    def document(self) -> dict[str, Json]:
        """As plain data, for ``--json``."""
        size = self.size
        return {
            "file": str(self.path),
            "ok": self.ok,
            "errors": [
                {"file": item.file, "line": item.line, "key": item.key, "message": item.message} for item in self.errors
            ],
            "warnings": list(self.warnings),
            "profile": self.profile,
            "model": self.model,
            "workload": self.workload,
            "size": None if size is None or math.isinf(size) else int(size),
            "feasible_share": self.survey.share if self.survey else None,
            "excluded": {
                rule: {"count": count, "reason": reason}
                for rule, (count, reason) in (self.survey.excluded.items() if self.survey else ())
            },
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """As text for people."""
        yield from (f"error: {item}" for item in self.errors)
        yield from (f"warning: {item}" for item in self.warnings)
        yield from (f"note: {item}" for item in self.notes)
        if self.survey is None or self.size is None:
            return
        size = (
            "a continuum of"
            if math.isinf(self.size)
            else f"{self.size:,.0f}"
            if self.size < 1e15
            else f"{self.size:.1e}"
        )
        yield f"{self.path}: {size} configurations for {self.model} on {self.profile}, workload {self.workload}"
        able = "may be measured" if self.external else "can start"
        yield f"{self.survey.share:.0%} of {self.survey.sampled} random ones {able}"
        for rule, (count, reason) in self.survey.excluded.items():
            yield f"  {count:>4} x {rule}: {reason}"

    def print(self, console: Console) -> None:
        """Write :meth:`lines` to a terminal."""
        for line in self.lines():
            console.print(line, highlight=False, soft_wrap=True, markup=False)


def check_space(
    path: Path,
    *,
    hardware: str | None = None,
    model: str | None = None,
    workload: str | None = None,
    flags: VllmFlags | None = None,
    external: bool = False,
    samples: int = 300,
    library: Library | None = None,
) -> CheckReport:
    """Check a user's space, alone and over the profile it is meant for.

    Args:
        hardware: the profile to lay it over; left away, the file's own (if it is a profile or extends one), else
            ``cpu``, the profile of every machine.
        flags: the flags of the vLLM that will serve; None leaves them unchecked.
        external: a trial command measures, not vLLM: flags are the command's own business, and left unchecked.
    """
    flags = None if external else flags
    library = library or Library()
    notes: tuple[str, ...] = ()
    way = ""
    try:
        problems = check_document(read_yaml(path))
        if problems:
            return CheckReport(path=path, errors=tuple(problems))
        profile, layers = _profile(path, hardware, library)
        if hardware is None and layers:
            notes = (f"checked for {profile}, the profile of every machine; --hardware NAME checks it for yours",)
            way = f" (checked for {profile}: pass --hardware NAME, such as h200, to check it for your profile)"
        plan = open_plan(
            profile,
            model=model,
            workload=workload,
            space_files=layers,
            flags=flags,
            external=external,
            library=library,
        )
    except InputError as error:
        found = error.problems if isinstance(error, SpaceError) else (Problem(str(path), 0, "", str(error)),)
        return CheckReport(path=path, errors=tuple(_with(way, found)), notes=notes)
    survey, root = plan.planner.survey(samples), read_yaml(path)
    own = root.get("starts")
    return CheckReport(
        path=path,
        errors=tuple(_with(way, _faults(path, plan, survey, model_given=model is not None))),
        warnings=tuple(_idle_starts(plan, own.mapping if own is not None else {})),
        profile=plan.profile,
        model=plan.model.name,
        workload=plan.workload.name,
        size=size_of(plan.space),
        survey=survey,
        external=external,
        notes=(*notes, *plan.notes, *(_foreign(plan, path, library) if flags is not None and not layers else ())),
    )


def _with(way: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    return (dataclasses.replace(item, message=f"{item.message}{way}") for item in problems)


def _foreign(plan: Plan, path: Path, library: Library) -> Iterator[str]:
    """Said of a profile for another engine: none of its own parameters is one that vLLM knows.

    Read from the notes, as only there it shows why a parameter is gone: `if` and one-value ranges take some too.
    """
    mine = [root.get("parameters") for root in library.chain(path) if not library.ships(root)]
    own = {name for section in mine if section is not None for name, item in section.mapping.items() if item.value}
    unknown = {
        name
        for name in own
        for note in plan.notes
        if note.startswith(f"{name} is not searched: ") and "unknown to vLLM" in note
    }
    if own and own == unknown:
        yield (
            f"vLLM knows none of the {counted(len(own), 'parameter')} of this profile; if another engine is meant, "
            "with --trial-command COMMAND they are searched (tune check takes that option too)"
        )


def _profile(path: Path, asked: str | None, library: Library) -> tuple[str, list[Path]]:
    if asked is not None:
        return asked, [path]
    own = any(root.get("hardware") is not None for root in library.chain(path))
    return (str(path), []) if own else ("cpu", [path])


def _faults(path: Path, plan: Plan, survey: Survey, *, model_given: bool) -> Iterator[Problem]:
    """What shows only in candidates: expressions without a value, and a space in which nothing can start."""
    found = [plan.planner.exclusion(candidate) for candidate in (plan.planner.baseline(), *plan.planner.starts())]
    excluded = {rule: Exclusion(rule=rule, reason=reason) for rule, (_, reason) in survey.excluded.items()}
    excluded |= {item.rule: item for item in found if item is not None}
    broken = [item for _, item in sorted(excluded.items()) if UNEVALUATED in item.reason]
    for item in broken:
        at = place_of(plan.own, item)
        yield at[0].problem(at[1], item.reason) if at is not None else Problem(str(path), 0, "", item.reason)
    first = found[0]
    if first is None or broken:
        return
    none = survey.share == 0 and all(item is not None for item in found)
    # A study compares with the baseline, and ends before its first trial without one.
    what = f"{'nothing in this space' if none else 'the baseline'} can{'' if none else 'not'} start"
    error = refused(plan, first, f"{what} on {plan.hardware.name}", model_given=model_given)
    yield from error.problems if isinstance(error, SpaceError) else (Problem(str(path), 0, "", str(error)),)


def _idle_starts(plan: Plan, own: Mapping[str, Located]) -> Iterator[str]:
    """Starting points of the file itself that will never be launched, or not as they are written."""
    for start, candidate in zip(plan.space.starts, plan.planner.starts(), strict=True):
        if start.name not in own:
            continue
        node = own[start.name]
        for name in sorted(start.assignment.keys() - candidate.assignment.keys()):
            parameter = plan.space.parameter(name)
            when, (arguments, environment) = parameter.when, settings(parameter, start.assignment[name])
            if (
                arguments.items() <= candidate.arguments.items()
                and environment.items() <= candidate.environment.items()
            ):
                continue  # every candidate carries it
            beside = f"only beside others for which `{when.text}` holds" if when else "not beside the others"
            entry = node.mapping["assign"].mapping[name]
            yield str(entry.problem(f"starts.{start.name}.assign.{name}", f"is left out: {name} exists {beside}"))
        found = plan.planner.exclusion(candidate)
        if found is not None:
            yield str(node.problem(f"starts.{start.name}", f"cannot start: {found.reason}"))


def size_of(space: Space) -> float:
    """Configurations of a space, counted without its conditions; infinite where a float varies freely."""
    return math.prod(_values(parameter) for parameter in space.parameters)


def _values(parameter: Parameter) -> float:
    domain = parameter.domain
    if isinstance(domain, Choice):
        return len(domain.values)
    if domain.base is not None:
        return math.floor(math.log(domain.high / domain.low, domain.base) + 1e-9) + 1
    step = domain.step or (1 if domain.integer else None)
    return math.inf if step is None else math.floor((domain.high - domain.low) / step + 1e-9) + 1
