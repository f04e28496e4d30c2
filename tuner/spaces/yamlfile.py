"""Reading YAML that somebody else wrote: plain data with the line of every value, within limits.

Built from the parser's events with a stack of its own: nothing is constructed from tags, nothing recurses, and a
number is only a number where YAML 1.2 says so (``off`` and ``1:30`` stay strings, as people expect).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tuner.errors import InputError
from tuner.model.json import Json, Scalar

__all__ = ["MAX_BYTES", "Located", "Problem", "SpaceError", "plain", "read_yaml"]

MAX_BYTES = 1 << 20
_MAX_DEPTH = 24
_MAX_NODES = 50_000
_MAX_SCALAR = 10_000

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_WORDS: Mapping[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong (or odd) in a file.

    Attributes:
        file: as the user may open it.
        line: from 1; 0 where the whole file is meant.
        key: dotted path of the key, empty for the whole file.
        message: what is wrong, and what to write instead.
    """

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class SpaceError(InputError):
    """Input at fault in a space. ``problems`` holds every one of them; the message is ``summary``, or the first."""

    def __init__(self, *problems: Problem, summary: str = "") -> None:
        more = len(problems) - 1
        tail = f" (and {more} more: `tune check` lists them)" if more else ""
        super().__init__(summary or f"{problems[0]}{tail}")
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Located:
    """A value of a YAML file with its place. Lists and mappings hold further ones."""

    value: Scalar | list[Located] | dict[str, Located]
    file: str
    line: int

    @property
    def mapping(self) -> dict[str, Located]:
        """Its entries; empty if it is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Located]:
        """Its elements; empty if it is no list."""
        return self.value if isinstance(self.value, list) else []

    def get(self, key: str) -> Located | None:
        """The entry of that name; None if there is none, or it is null."""
        found = self.mapping.get(key)
        return None if found is None or found.value is None else found

    def problem(self, key: str, message: str) -> Problem:
        return Problem(self.file, self.line, key, message)


def plain(node: Located | None) -> Json:
    """The value without its places."""
    if node is None:
        return None
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


def read_yaml(path: Path, *, shown: str | None = None) -> Located:
    """The only document of a YAML file, as a mapping.

    Args:
        shown: how messages call the file; by default its path.

    Raises:
        InputError: the file cannot be read, is no YAML, is too large or deep, repeats a key, uses anchors or
            tags, or is no mapping; with file and line.
    """
    name = shown or str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpaceError(Problem(name, 0, "", f"cannot be read ({error.strerror or error})")) from None
    if len(data) > MAX_BYTES:
        raise SpaceError(Problem(name, 0, "", "is larger than 1 MiB; a space is a few KB, is this the right file?"))
    return parse_yaml(data, name)


def parse_yaml(data: bytes, name: str) -> Located:
    """As :func:`read_yaml`, from bytes."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpaceError(Problem(name, line, "", "is not UTF-8 text")) from None
    try:
        root = _Builder(name).build(yaml.parse(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise SpaceError(Problem(name, line, "", f"is not YAML: {error.problem or error.context}")) from None
    except yaml.YAMLError as error:
        raise SpaceError(Problem(name, 0, "", f"is not YAML: {' '.join(str(error).split())[:200]}")) from None
    if not isinstance(root.value, dict):
        raise SpaceError(Problem(name, root.line, "", "must be a mapping of keys such as `parameters:`"))
    return root


class _Builder:
    """Turns events into located values. Open collections stand on a stack, each with the key it waits for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack: list[tuple[Located, str | None]] = []
        self._nodes = 0
        self._root: Located | None = None

    def build(self, events: Iterator[yaml.Event]) -> Located:
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 0
            match event:
                case yaml.ScalarEvent():
                    self._refuse_extras(event, line)
                    self._scalar(event, line)
                case yaml.MappingStartEvent():
                    self._refuse_extras(event, line)
                    self._open(Located({}, self._name, line))
                case yaml.SequenceStartEvent():
                    self._refuse_extras(event, line)
                    self._open(Located([], self._name, line))
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._stack.pop()
                case yaml.AliasEvent():
                    raise self._error(line, "anchors and aliases (& and *) are not used here; `extends` shares content")
                case yaml.DocumentStartEvent() if self._root is not None:
                    raise self._error(line, "holds a second document; one per file")
                case _:
                    pass
        return self._root or Located({}, self._name, 1)

    def _refuse_extras(self, event: yaml.NodeEvent, line: int) -> None:
        if event.anchor is not None:
            raise self._error(line, "anchors and aliases (& and *) are not used here; `extends` shares content")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise self._error(line, f"tags such as {tag} are not used here")
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise self._error(line, f"holds more than {_MAX_NODES} values")

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        if len(event.value) > _MAX_SCALAR:
            raise self._error(line, f"a value is {len(event.value)} characters long; {_MAX_SCALAR} are allowed")
        if "\0" in event.value:
            message = "holds a NUL character, which no flag and no variable can carry; leave it away"
            raise SpaceError(Problem(self._name, line, self._path(), message))
        if self._stack:
            holder, key = self._stack[-1]
            if isinstance(holder.value, dict) and key is None:
                self._key(holder, event.value, line)
                return
        value = event.value if event.style in ("'", '"', "|", ">") else self._resolved(event.value, line)
        self._place(Located(value, self._name, line))

    def _key(self, holder: Located, key: str, line: int) -> None:
        if key == "<<":
            raise self._error(line, "merge keys (<<) are not used here; `extends` shares content")
        if key in holder.mapping:
            raise self._error(
                line, f"the key {key!r} stands here for the second time (first in line {_line(holder, key)})"
            )
        self._stack[-1] = (holder, key)

    def _open(self, node: Located) -> None:
        if len(self._stack) >= _MAX_DEPTH:
            raise self._error(node.line, f"is nested more than {_MAX_DEPTH} deep")
        if self._stack and isinstance(self._stack[-1][0].value, dict) and self._stack[-1][1] is None:
            raise self._error(node.line, "a key must be a plain word, not a list or mapping")
        self._place(node)
        self._stack.append((node, None))

    def _place(self, node: Located) -> None:
        if not self._stack:
            self._root = node
            return
        holder, key = self._stack[-1]
        if isinstance(holder.value, list):
            holder.value.append(node)
        elif isinstance(holder.value, dict) and key is not None:
            holder.value[key] = node
            self._stack[-1] = (holder, None)

    def _resolved(self, text: str, line: int) -> Scalar:
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise self._error(line, f"{text[:40]} is too large")
            return number
        if text.lower().lstrip("+-") in (".inf", ".nan"):
            raise self._error(line, f"{text} is not a number that a setting can have")
        return text

    def _path(self) -> str:
        """The dotted key of the value that is read: what is open was the last to be placed in what holds it."""
        parts = [f".{[*node.mapping][-1]}" if node.mapping else f"[{len(node.items) - 1}]" for node, _ in self._stack]
        for node, key in self._stack[-1:]:
            parts[-1] = f"[{len(node.items)}]" if key is None else f".{key}"
        return "".join(parts).lstrip(".")

    def _error(self, line: int, message: str) -> SpaceError:
        return SpaceError(Problem(self._name, line, "", message))


def _line(holder: Located, key: str) -> int:
    return holder.mapping[key].line
