"""Finding the files of ``search_spaces/`` and laying them over one another.

Later files win, key by key: base files, hardware profile, model overlay, workload, the user's own spaces in the
order given, the command line. What null means, how parameters merge and how rules are lifted: ``docs/SPACES.md``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import tuner
from tuner.errors import InputError
from tuner.model.json import Json
from tuner.spaces.kinds import parse_formula
from tuner.spaces.schema import check_document
from tuner.spaces.yamlfile import Located, SpaceError, plain, read_yaml

__all__ = [
    "Library",
    "Merged",
    "facts_catalogue",
    "flatten",
    "located",
    "merge",
    "overlay_for",
    "spaces_folder",
    "targets_of",
]

_MAX_FILES = 64
_SIMPLE = re.compile(r"[A-Za-z0-9_-]+")


def spaces_folder() -> Path:
    """Where the shipped profiles lie: inside the installed package, or beside it in a checkout.

    Raises:
        InputError: there are none; the installation is not whole.
    """
    package = Path(tuner.__file__).resolve().parent
    for folder in (package / "search_spaces", package.parent / "search_spaces"):
        if folder.is_dir():
            return folder
    raise InputError(f"search_spaces is missing beside {package}; install vllm-tune again")


@dataclass(frozen=True)
class Library:
    """The shipped files, and how others refer to them.

    Attributes:
        folder: ``search_spaces/``. Its files are read once in the life of a library.
    """

    folder: Path = field(default_factory=spaces_folder)
    _read: dict[Path, Located] = field(default_factory=dict, repr=False, compare=False)

    def names(self, part: str = "") -> list[str]:
        """Names of the profiles, or of what lies in the sub-folder ``part`` (``models``, ``workloads``)."""
        return sorted(path.stem for path in (self.folder / part).glob("*.yaml"))

    def find(self, name: str, part: str, what: str) -> Path:
        """The file for a name that a user typed, or for the path of a file of theirs.

        Raises:
            InputError: no such file; with the closest names.
        """
        if re.fullmatch(r"[\w.-]+", name) and (path := self.folder / part / f"{name}.yaml").is_file():
            return path
        if name.endswith((".yaml", ".yml")):
            return Path(name)
        known = self.names(part)
        close = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        way = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
        raise InputError(f"unknown {what} {name[:60]!r}; {way} (or give the path of a YAML file)")

    def chain(self, path: Path, seen: set[Path] | None = None) -> list[Located]:
        """The file at ``path`` after everything it extends, each file once, checked against the format.

        Args:
            seen: files already laid down by earlier chains, left out here; the chain's own are added.

        Raises:
            InputError: a file is missing or at fault, or extends itself.
        """
        seen = set() if seen is None else seen
        out: list[Located] = []
        self._walk(path, [], seen, out)
        return out

    def _walk(self, path: Path, trail: list[Path], seen: set[Path], out: list[Located]) -> None:
        key = path.resolve()
        if key in seen:
            return
        if len(trail) >= _MAX_FILES:
            raise InputError(f"{self._shown(path)}: extends more than {_MAX_FILES} files in a row")
        root = self._checked(path, key)
        extends = root.get("extends")
        for item in extends.items if extends else []:
            parent = self._parent(path, item)
            if parent.resolve() in (*(entry.resolve() for entry in trail), key):
                raise SpaceError(item.problem("extends", f"{item.value} extends this file in turn; break the circle"))
            if not parent.is_file():
                known = sorted(str(entry.relative_to(self.folder))[:-5] for entry in self.folder.rglob("*.yaml"))
                close = get_close_matches(str(item.value), known, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise SpaceError(item.problem("extends", f"there is no {item.value}{hint}"))
            self._walk(parent, [*trail, path], seen, out)
        seen.add(key)
        out.append(root)

    def _checked(self, path: Path, key: Path) -> Located:
        if key in self._read:
            return self._read[key]
        root = read_yaml(path, shown=self._shown(path))
        problems = check_document(root)
        if problems:
            raise SpaceError(*problems)
        if key.is_relative_to(self.folder.resolve()):
            self._read[key] = root
        return root

    def _parent(self, path: Path, item: Located) -> Path:
        name = str(item.value)
        if name.startswith(("./", "../")):
            beside = path.parent / name
            return beside if beside.suffix in (".yaml", ".yml") else beside.with_name(beside.name + ".yaml")
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", name):
            raise SpaceError(item.problem("extends", f"{name[:60]!r} is no name such as base/cuda"))
        return self.folder / f"{name.removesuffix('.yaml')}.yaml"

    def _shown(self, path: Path) -> str:
        """Shipped files by their place in ``search_spaces``, the user's as they were given."""
        try:
            return str(Path("search_spaces") / path.resolve().relative_to(self.folder.resolve()))
        except ValueError:
            return str(path)

    def ships(self, root: Located) -> bool:
        """Whether a file that was read is one of the shipped ones, not a user's."""
        return any(root is known for known in self._read.values())

    def overlays(self) -> dict[str, Located]:
        """Every model overlay by its name.

        Raises:
            InputError: one of them is at fault.
        """
        return {name: self.chain(self.folder / "models" / f"{name}.yaml")[-1] for name in self.names("models")}


def overlay_for(overlays: Mapping[str, Located], model: str, architecture: str = "") -> str | None:
    """Name of the overlay for a model: by its hub id (the longest pattern wins), else by its architecture."""
    best: tuple[int, str] | None = None
    for name, root in overlays.items():
        match = root.get("match")
        for pattern in _texts(match, "names"):
            hit = fnmatch.fnmatchcase(model.lower(), pattern.lower())
            if hit and (best is None or len(pattern) > best[0]):
                best = (len(pattern), name)
    if best is not None:
        return best[1]
    for name, root in overlays.items():
        if architecture and architecture in _texts(root.get("match"), "architectures"):
            return name
    return "generic" if "generic" in overlays else None


def facts_catalogue(overlays: Mapping[str, Located]) -> dict[str, dict[str, object]]:
    """Hub id → shape facts, from all overlays."""
    out: dict[str, dict[str, object]] = {}
    for root in overlays.values():
        facts = root.get("facts")
        for name, entry in (facts.mapping if facts else {}).items():
            value = plain(entry)
            if isinstance(value, Mapping):
                out[name] = dict(value)
    return out


def _texts(node: Located | None, key: str) -> list[str]:
    found = node.get(key) if node else None
    return [str(item.value) for item in found.items] if found else []


def located(value: Json, file: str = "command line") -> Located:
    """Plain data as if it had been read from ``file``."""
    if isinstance(value, Mapping):
        return Located({str(key): located(item, file) for key, item in value.items()}, file, 0)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return Located([located(item, file) for item in value], file, 0)
    return Located(value, file, 0)


@dataclass(frozen=True)
class Merged:
    """Files laid over one another, and what a person should know about it.

    Attributes:
        fixed: parameters that a user's arguments took out.
    """

    root: Located
    notes: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()


def merge(documents: Sequence[Located], users: Sequence[Located] = ()) -> Merged:
    """Lay ``documents`` over one another, then the ``users``' own.

    An argument that a user sets fixes it: a shipped parameter that would vary it, or a derived value that would write
    over it, is taken out, and a note says so.
    """
    sections: dict[str, Located] = {}
    notes: dict[str, str] = {}
    derived: dict[str, str] = {}
    own = {id(root) for root in users}
    for root in (*documents, *users):
        if id(root) in own:
            notes |= _fix(sections, root)
            derived |= _fix_derived(sections, root)
        for key, node in root.mapping.items():
            if key == "extends":
                continue
            if node.value is None:
                continue
            merged = _MERGERS.get(key, _later)(sections.get(key), node)
            sections[key] = merged
    return Merged(
        Located(sections, documents[-1].file if documents else "", 1),
        (*notes.values(), *derived.values()),
        frozenset(notes),
    )


def flatten(arguments: Mapping[str, Located]) -> dict[str, Located]:
    """Nested mappings as dotted paths, where the keys allow it: one spelling, so that later files and rules meet it."""
    out: dict[str, Located] = {}
    for key, node in arguments.items():
        if node.mapping and all(_SIMPLE.fullmatch(name) for name in node.mapping):
            out |= flatten({f"{key}.{name}": item for name, item in node.mapping.items()})
        else:
            out[key] = node
    return out


def targets_of(parameter: Located) -> set[str]:
    """Every flag, dotted path and ``env:NAME`` that a parameter of the files may set."""
    found: set[str] = set()
    flag, env, values = parameter.get("flag"), parameter.get("env"), parameter.get("values")
    if flag:
        found.add(str(flag.value))
    if env:
        found.add(f"env:{env.value}")
    if values:
        for entry in (*values.mapping.values(), *values.items):
            arguments, environment = entry.get("arguments"), entry.get("environment")
            found |= set(flatten(arguments.mapping)) if arguments else set()
            found |= {f"env:{name}" for name in environment.mapping} if environment else set()
    return found


def _fix(sections: dict[str, Located], root: Located) -> dict[str, str]:
    """Take out what the root's arguments fix: parameter → a note that says so."""
    own, fixed = root.get("parameters"), _fixed(root)
    parameters = sections.get("parameters")
    if not fixed or parameters is None:
        return {}
    keep, notes = {}, {}
    for name, entry in parameters.mapping.items():
        hit = sorted(fixed & targets_of(entry))
        if hit and not (own and name in own.mapping):
            notes[name] = f"{name} is not searched: {root.file} fixes {', '.join(hit)}"
        else:
            keep[name] = entry
    sections["parameters"] = Located(keep, parameters.file, parameters.line)
    return notes


def _fix_derived(sections: dict[str, Located], root: Located) -> dict[str, str]:
    """Take out derived values of earlier files that would write over what the root's arguments fix: target → a note.

    One that asks for its own target in `when` gives way by itself.
    """
    fixed, derived = _fixed(root), sections.get("derived")
    kept, notes = [], {}
    for item in derived.items if derived else []:
        target, when = str(plain(item.get("target"))), item.get("when")
        if target in fixed and not (when and target.replace("-", "_") in parse_formula(when).names):
            notes[target] = f"{target} is not derived: {root.file} fixes it"
        else:
            kept.append(item)
    if derived is not None and notes:
        sections["derived"] = Located(kept, derived.file, derived.line)
    return notes


def _fixed(root: Located) -> set[str]:
    """Every flag and ``env:NAME`` that the root's arguments and environment set."""
    arguments, environment = root.get("arguments"), root.get("environment")
    fixed = set(flatten(arguments.mapping)) if arguments else set()
    return fixed | ({f"env:{name}" for name in environment.mapping} if environment else set())


def _later(_: Located | None, new: Located) -> Located:
    return new


def _either(old: Located | None, new: Located) -> Located:
    """A name replaces; a mapping is laid over an earlier mapping."""
    if old is None or not isinstance(new.value, dict) or not isinstance(old.value, dict):
        return new
    return _deep(old, new)


def _deep(old: Located | None, new: Located) -> Located:
    if old is None or not isinstance(old.value, dict) or not isinstance(new.value, dict):
        return _without_nulls(new)
    out = dict(old.value)
    for key, node in new.value.items():
        if node.value is None:
            out.pop(key, None)
        else:
            out[key] = _deep(out.get(key), node)
    return Located(out, new.file, new.line)


def _without_nulls(node: Located) -> Located:
    if not isinstance(node.value, dict):
        return node
    kept = {key: _without_nulls(item) for key, item in node.value.items() if item.value is not None}
    return Located(kept, node.file, node.line)


def _arguments(old: Located | None, new: Located) -> Located:
    out = dict(old.mapping) if old else {}
    for key, node in flatten(new.mapping).items():
        # A whole flag replaces its parts; null takes a flag with all of its parts away.
        for known in [name for name in out if name == key or name.startswith(f"{key}.")]:
            del out[known]
        if node.value is not None:
            out[key] = node
    return Located(out, new.file, new.line)


def _entries(old: Located | None, new: Located) -> Located:
    """Whole entries by name; null removes."""
    out = dict(old.mapping) if old else {}
    for key, node in new.mapping.items():
        out.pop(key, None)
        if node.value is not None:
            out[key] = node
    return Located(out, new.file, new.line)


def _parameters(old: Located | None, new: Located) -> Located:
    out = dict(old.mapping) if old else {}
    for name, node in new.mapping.items():
        known = out.get(name)
        if node.value is None:
            out.pop(name, None)
        elif known is None or "type" in node.mapping:
            out[name] = node
        else:
            # Without a type it changes single fields: the bounds of a shipped range, say.
            out[name] = _deep(known, node)
    return Located(out, new.file, new.line)


def _derived(old: Located | None, new: Located) -> Located:
    replaced = {str(plain(item.get("target"))) for item in new.items}
    kept = [item for item in (old.items if old else []) if str(plain(item.get("target"))) not in replaced]
    return Located([*kept, *new.items], new.file, new.line)


def _forbid(old: Located | None, new: Located) -> Located:
    out = {str(plain(item.get("name"))): item for item in (old.items if old else [])}
    for item in new.items:
        name = str(plain(item.get("name")))
        out[name] = item
    return Located(list(out.values()), new.file, new.line)


def _append(old: Located | None, new: Located) -> Located:
    return Located([*(old.items if old else []), *new.items], new.file, new.line)


_MERGERS = {
    "hardware": _deep,
    "workload": _either,
    "arguments": _arguments,
    "environment": _entries,
    "parameters": _parameters,
    "derived": _derived,
    "forbid": _forbid,
    "neutral": _append,
    "starts": _entries,
}
