"""Everything a study needs to know before it starts a server, from the names that a user types."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.model.candidate import Candidate, Exclusion
from tuner.model.hardware import Hardware
from tuner.model.json import Json
from tuner.model.llm import ModelFacts
from tuner.model.space import Space
from tuner.model.workload import Workload
from tuner.spaces.doubts import Doubts
from tuner.spaces.facts import model_facts
from tuner.spaces.fitting import fit_flags, set_by
from tuner.spaces.loader import Library, facts_catalogue, located, merge, overlay_for
from tuner.spaces.memory import estimate
from tuner.spaces.overlaid import overlaid
from tuner.spaces.planner import SpacePlanner
from tuner.spaces.resolve import hardware_from, resolve, workload_from, workload_scope
from tuner.spaces.slips import reads_itself, unknown_names, written_over, written_twice
from tuner.spaces.stated import other_than_vllm
from tuner.spaces.traffic import SUFFIXES, workload_of_file
from tuner.spaces.universal import UNIVERSAL
from tuner.spaces.yamlfile import Located, Problem, SpaceError, plain

if TYPE_CHECKING:
    from tuner.spaces.introspect import VllmFlags

__all__ = ["Plan", "ProfileInfo", "open_plan", "profiles", "workloads"]


@dataclass(frozen=True, kw_only=True)
class ProfileInfo:
    """A hardware profile in a list.

    Attributes:
        hardware: what it describes.
        model, workload: its defaults.
        recognise: parts of the device's own name.
    """

    name: str
    description: str
    hardware: Hardware
    model: str
    workload: str
    recognise: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        return self.hardware.device

    @property
    def count(self) -> int:
        return self.hardware.count


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved space with its planner.

    Attributes:
        profile: name of the hardware profile.
        overlay: name of the model overlay, empty if there is none for it.
        notes: what a person should know about how the space came out.
        root: the merged files.
        own: the users' files as they were read, the last one over the others.
    """

    space: Space
    workload: Workload
    planner: SpacePlanner
    model: ModelFacts
    hardware: Hardware
    profile: str
    overlay: str = ""
    notes: tuple[str, ...] = ()
    root: Located = field(repr=False)
    own: tuple[Located, ...] = field(default=(), repr=False)


def profiles(library: Library | None = None) -> list[ProfileInfo]:
    """Every shipped hardware profile, by name.

    Raises:
        InputError: one of the files is at fault.
    """
    library = library or Library()
    out = []
    for name in library.names():
        root = merge(library.chain(library.find(name, "", "hardware profile"))).root
        hardware = root.get("hardware")
        recognise = hardware.get("recognise") if hardware else None
        out.append(
            ProfileInfo(
                name=name,
                description=_text(root, "description"),
                hardware=hardware_from(root, name),
                model=_text(root, "model"),
                workload=_text(root, "workload"),
                recognise=tuple(str(item.value) for item in recognise.items) if recognise else (),
            )
        )
    return out


def workloads(library: Library | None = None) -> list[str]:
    """Names of the shipped workloads."""
    return (library or Library()).names("workloads")


def open_plan(
    hardware: str,
    *,
    model: str | None = None,
    workload: str | Workload | None = None,
    space_files: Sequence[Path] = (),
    local_hardware: Hardware | None = None,
    flags: VllmFlags | None = None,
    arguments: Mapping[str, Json] | None = None,
    environment: Mapping[str, str] | None = None,
    external: bool = False,
    library: Library | None = None,
) -> Plan:
    """The plan for a profile, a model and a workload, with the user's own files over them.

    Args:
        hardware: a profile's name, or the path of one.
        model: hub id or folder; by default the profile's.
        workload: a workload's name, the path of one or of a traffic file (JSONL, ShareGPT JSON), or the workload
            itself; by default the profile's.
        space_files: the user's spaces; the last one wins.
        local_hardware: what this machine is; its memory and cores replace the profile's figures.
        flags: what the vLLM that will serve accepts; None leaves flags unchecked.
        arguments: flags for every candidate, from the command line (dotted paths allowed).
        environment: variables for every candidate, from the command line.
        external: a program of the user's own measures: where a flag is left away, the stated default runs.

    Raises:
        InputError: an unknown name, a file at fault, or flags that this vLLM does not have (all in one message).
    """
    library = library or Library()
    seen: set[Path] = set()
    base = library.chain(library.find(hardware, "", "hardware profile"), seen)
    users = [root for path in space_files for root in library.chain(path, seen)]
    mine = [root for root in (*base, *users) if not library.ships(root)]
    given = _command_line(arguments or {}, environment or {})
    first = merge([*base, *users]).root
    profile = _text(first, "name") if hardware.endswith((".yaml", ".yml")) else hardware

    overlays = library.overlays()
    catalogue = facts_catalogue({**overlays, **{f"{root.file} {n}": root for n, root in enumerate(mine)}})
    try:
        facts, overlay, layers = _model_layers(library, model or _text(first, "model"), seen, overlays, catalogue)
    except SpaceError:
        raise
    except InputError as error:
        raise _with_hardware(error, first) from None
    traffic, layer = _workload(library, merge(base).root, first, workload, seen)
    own = [*users, *([given] if given else [])]
    merged = merge([*base, *layers, *layer], own)

    machine = hardware_from(merged.root, profile or Path(hardware).stem)
    if local_hardware is not None:
        machine = _measured(machine, local_hardware)
    names = frozenset(root.file for root in mine)
    scope = workload_scope(traffic)
    # A program of one's own has no flags but those that the files set; vLLM's are names that rules may ask for.
    named = _recorded() if external and flags is None else flags
    declared, given_flags = _section(merged.root, "parameters"), _section(merged.root, "arguments")
    try:
        resolved = resolve(
            merged.root,
            name=machine.name,
            hardware=machine,
            model=facts,
            workload=traffic,
            load=lambda other: dataclasses.replace(model_facts(other, catalogue), family=facts.family),
            own=names,
            fixed=merged.fixed,
        )
    except SpaceError as error:
        more = _names(library, mine, merged.root, targets=(), scope=scope, flags=named)
        raise _with_more(error, [*more, *reads_itself(declared, names, given_flags)]) from None
    changed = overlaid(overlay or "", base, layers, own, own=names, space=resolved.space, fixed=merged.fixed)
    space, notes, unfit = resolved.space, [*merged.notes, *resolved.notes, *changed], None
    if flags is not None:
        try:
            space, taken = fit_flags(space, flags, own)
            notes += taken
        except SpaceError as error:
            unfit = error

    def memory(candidate: Candidate) -> Exclusion | None:
        served = space.served(candidate)
        found = estimate(candidate, machine, served, tokens_needed=traffic.tokens_needed).exclusion()
        if found is None or not space.checkpoints:
            return found
        return dataclasses.replace(found, reason=f"{served.name} {found.reason}")

    def forecast(candidate: Candidate) -> dict[str, float]:
        found = estimate(candidate, machine, space.served(candidate), tokens_needed=traffic.tokens_needed)
        figures = {"model-gib": found.weights_gib, "kv-cache-tokens": float(found.kv_tokens)}
        return {name: figure for name, figure in figures.items() if figure > 0}

    known = frozenset(rule.name for rule in (*space.forbids, *UNIVERSAL))
    planner = SpacePlanner(
        space,
        scope,
        memory=memory,
        flags=flags.check if flags is not None else None,
        forecast=forecast,
        doubts=Doubts(space, scope, known=known, library=library).of,
        stated=resolved.stated if external else (),
    )
    problems = [
        *_names(library, mine, merged.root, targets=set_by(space), scope=scope, flags=named),
        *reads_itself(declared, names, given_flags),
        *written_twice(planner, declared, names),
        *written_over(planner, mine),
        *(() if external or flags is None else other_than_vllm(space, declared, names)),
    ]
    if unfit is not None:
        raise _with_more(unfit, problems)
    if problems:
        raise SpaceError(*problems)
    return Plan(
        space=space,
        workload=traffic,
        planner=planner,
        model=facts,
        hardware=machine,
        profile=machine.name,
        overlay=overlay or "",
        notes=tuple(notes),
        root=merged.root,
        own=tuple(mine),
    )


def _with_hardware(error: InputError, first: Located) -> InputError:
    """What is wrong with the model, and in the same message what the hardware section lacks.

    Who writes a profile for an engine of their own is told once what it needs, not fact by fact.
    """
    try:
        hardware_from(first, "")
    except SpaceError as lacking:
        return InputError(f"{error}; and {lacking}")
    return error


def _with_more(error: SpaceError, problems: Iterable[Problem]) -> SpaceError:
    """What else is wrong beside an error that ends the planning: all of it is told at once, each place once."""
    told = {(item.file, item.line, item.key) for item in error.problems}
    more = [item for item in problems if (item.file, item.line, item.key) not in told]
    if not more:
        return error
    counted = str(error).endswith("`tune check` lists them)")
    summary = "" if counted else f"{error} (and {len(more)} more: `tune check` lists them)"
    return SpaceError(*error.problems, *more, summary=summary)


def _written(root: Located) -> set[str]:
    """Flags that the files set, read off them as they are: what there is of a space that cannot be resolved."""
    found = set(_section(root, "arguments"))
    for node in _section(root, "parameters").values():
        found |= {str(plain(node.get("flag"))), str(plain(node.get("env")))}
        for entry in (node.get("values") or node).mapping.values():
            arguments = entry.get("arguments")
            found |= set(arguments.mapping) if arguments is not None else set()
    derived = root.get("derived")
    return found | {str(plain(item.get("target"))) for item in (derived.items if derived is not None else [])}


def _recorded() -> VllmFlags:
    from tuner.spaces.introspect import VllmFlags  # noqa: PLC0415 - only where nothing was asked of a vLLM

    return VllmFlags.known()


def _names(
    library: Library,
    mine: Sequence[Located],
    root: Located,
    *,
    targets: Collection[str],
    scope: Mapping[str, object],
    flags: VllmFlags | None,
) -> Iterator[Problem]:
    """Names in the users' expressions that mean nothing to this space and this vLLM."""

    def elsewhere() -> set[str]:
        shipped = [other for name in library.names() for other in library.chain(library.folder / f"{name}.yaml")]
        return {name for other in (*shipped, *library.overlays().values()) for name in _section(other, "parameters")}

    set_here = {_flag(target) for target in (*targets, *_written(root))}
    known = set_here | {*_section(root, "parameters")}
    known |= {name for own in mine for name in _section(own, "parameters")}
    flagged = None if flags is None else {_flag(name) for name in flags.flags} | set_here
    return unknown_names(mine, workload=scope, parameters=known, flags=flagged, elsewhere=functools.cache(elsewhere))


def _section(root: Located, key: str) -> dict[str, Located]:
    node = root.get(key)
    return node.mapping if node is not None else {}


def _flag(target: str) -> str:
    return target.removeprefix("env:").split(".")[0].replace("-", "_")


def _text(root: Located, key: str) -> str:
    node = root.get(key)
    return node.value if node is not None and isinstance(node.value, str) else ""


def _command_line(arguments: Mapping[str, Json], environment: Mapping[str, str]) -> Located | None:
    parts: dict[str, Mapping[str, Json]] = {"arguments": arguments, "environment": environment}
    content: dict[str, Json] = {key: value for key, value in parts.items() if value}
    return located(content) if content else None


def _model_layers(
    library: Library,
    name: str,
    seen: set[Path],
    overlays: Mapping[str, Located],
    catalogue: Mapping[str, Mapping[str, object]],
) -> tuple[ModelFacts, str | None, list[Located]]:
    if not name:
        raise InputError("no model: the profile names none; give --model")
    facts = model_facts(name, catalogue)
    overlay = overlay_for(overlays, name, facts.architecture)
    if overlay is None:
        return facts, None, []
    layers = library.chain(library.folder / "models" / f"{overlay}.yaml", seen)
    return dataclasses.replace(facts, family=overlay), overlay, layers


def _workload(
    library: Library, base: Located, first: Located, asked: str | Workload | None, seen: set[Path]
) -> tuple[Workload, list[Located]]:
    """The traffic, and the files it came from (they may bring arguments of their own).

    A user's space may name a workload, or change single figures of the one that the profile names.
    """
    if isinstance(asked, Workload):
        return asked, []
    node = first.get("workload")
    changes = node if node is not None and isinstance(node.value, dict) else None
    name = asked or _text(first, "workload") or _text(base, "workload")
    if not name and changes is None:
        raise InputError("no workload: the profile names none; give --workload")
    if not name and changes is not None:
        return workload_from(changes, "own"), []
    if name.endswith(SUFFIXES):
        return workload_of_file(Path(name).expanduser()), []
    layers = library.chain(library.find(name, "workloads", "workload"), seen)
    found = merge(layers).root.get("workload")
    if found is None or not isinstance(found.value, dict):
        raise InputError(f"{name}: has no `workload:` mapping, so it is no workload")
    if changes is not None and not asked:
        found = (
            merge(
                [Located({"workload": found}, found.file, found.line)],
                [Located({"workload": changes}, changes.file, changes.line)],
            ).root.get("workload")
            or found
        )
    return workload_from(found, Path(name).stem), layers


def _measured(profile: Hardware, local: Hardware) -> Hardware:
    """The profile with what this machine was found to have, if it is such a machine."""
    if local.platform != profile.platform or local.capability != profile.capability:
        return profile
    return dataclasses.replace(
        profile,
        memory_gib=local.memory_gib or profile.memory_gib,
        cores=local.cores or profile.cores,
        unified_memory=local.unified_memory or profile.unified_memory,
    )
