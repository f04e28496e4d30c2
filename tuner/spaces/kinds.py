"""Kinds of values in a YAML document: each can check one, and describe itself as JSON Schema.

Checks never stop at the first problem, so that a user sees all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol

from tuner.model.expression import Expression
from tuner.model.json import Json, finite
from tuner.spaces.yamlfile import Located, Problem

__all__ = [
    "AnyJson",
    "Boolean",
    "EitherOf",
    "Field",
    "Formula",
    "Kind",
    "ListOf",
    "Literal",
    "MapOf",
    "Number",
    "OneOf",
    "Record",
    "Template",
    "Text",
    "parse_formula",
    "placeholders",
]

_TOO_LARGE = 10**18
"""Whole numbers of one digit less are exact wherever they go."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


class Kind(Protocol):
    """What a value may be."""

    def check(self, node: Located, key: str, /) -> Iterator[Problem]:
        """Everything wrong with ``node``, which stands under the dotted path ``key``."""
        ...

    def fits(self, node: Located, /) -> bool:
        """Whether the value has this kind's shape at all (decides between alternatives)."""
        ...

    def schema(self) -> dict[str, Json]: ...


def _named(node: Located) -> str:
    match node.value:
        case None:
            return "nothing"
        case bool():
            return "true" if node.value else "false"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return repr(node.value)[:60]


@dataclass(frozen=True, kw_only=True)
class Text:
    """A string. ``pattern`` must match all of it; ``hint`` says how to write it."""

    pattern: str = ""
    hint: str = ""

    def fits(self, node: Located) -> bool:
        return isinstance(node.value, str)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if not isinstance(node.value, str):
            yield node.problem(key, f"must be text, not {_named(node)}; put it in quotes")
        elif self.pattern and not re.fullmatch(self.pattern, node.value):
            yield node.problem(key, f"{node.value[:60]!r} {self.hint or 'is not written as it must be'}")

    def schema(self) -> dict[str, Json]:
        out: dict[str, Json] = {"type": "string"}
        if self.pattern:
            out["pattern"] = f"^(?:{self.pattern})$"
        return out


@dataclass(frozen=True, kw_only=True)
class Number:
    """A finite number between ``low`` and ``high``, both included."""

    integer: bool = False
    low: float | None = None
    high: float | None = None

    def fits(self, node: Located) -> bool:
        return finite(node.value)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not finite(value):
            yield node.problem(key, f"must be a number, not {_named(node)}")
        elif self.integer and value != int(value):
            yield node.problem(key, f"must be a whole number, not {value}")
        elif (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            span = f"at least {self.low:g}" if self.high is None else f"from {self.low or 0:g} to {self.high:g}"
            yield node.problem(key, f"is {value}, but must be {span}")

    def schema(self) -> dict[str, Json]:
        out: dict[str, Json] = {"type": "integer" if self.integer else "number"}
        if self.low is not None:
            out["minimum"] = self.low
        if self.high is not None:
            out["maximum"] = self.high
        return out


@dataclass(frozen=True)
class Boolean:
    def fits(self, node: Located) -> bool:
        return isinstance(node.value, bool)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if not isinstance(node.value, bool):
            yield node.problem(key, f"must be true or false, not {_named(node)}")

    def schema(self) -> dict[str, Json]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class OneOf:
    """One of a few words or numbers."""

    words: tuple[Json, ...]

    def fits(self, node: Located) -> bool:
        return not isinstance(node.value, list | dict | bool) and node.value in self.words

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if not self.fits(node):
            among = "one of " if len(self.words) > 1 else ""
            yield node.problem(key, f"must be {among}{', '.join(map(str, self.words))}, not {_named(node)}")

    def schema(self) -> dict[str, Json]:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class AnyJson:
    """Any value that a flag can take."""

    def fits(self, _: Located, /) -> bool:
        return True

    def check(self, _: Located, __: str, /) -> Iterator[Problem]:
        return iter(())

    def schema(self) -> dict[str, Json]:
        return {}


@dataclass(frozen=True)
class Literal:
    """A value written down as it is: a scalar, or a list (mappings are spelled ``{value: …}``)."""

    def fits(self, node: Located) -> bool:
        return not isinstance(node.value, dict)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if isinstance(node.value, dict):
            yield node.problem(key, "must be a single value, not a mapping")

    def schema(self) -> dict[str, Json]:
        return {"type": ["string", "number", "boolean", "array", "null"]}


@dataclass(frozen=True)
class Formula:
    """An expression of :mod:`tuner.model.expression`; plain numbers and booleans are expressions too."""

    def fits(self, node: Located) -> bool:
        return isinstance(node.value, str | int | float | bool)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if not self.fits(node):
            yield node.problem(key, f'must be an expression such as "max_num_seqs * 2", not {_named(node)}')
            return
        value = node.value
        if isinstance(value, int | float) and not abs(value) < _TOO_LARGE:
            shown, limit = value if isinstance(value, int) else f"{value:g}", _TOO_LARGE - 1
            most = f"{limit} is the largest" if value > 0 else f"{-limit} is the smallest"
            yield node.problem(key, f"is {shown}, but {most} number that is taken")
            return
        try:
            parse_formula(node)
        except ValueError as error:
            yield node.problem(key, f"expression {str(node.value)[:80]!r}: {error}")

    def schema(self) -> dict[str, Json]:
        return {"type": ["string", "number", "boolean"], "description": "An expression (docs/SPACES.md)."}


def parse_formula(node: Located) -> Expression:
    """The expression in ``node``.

    Raises:
        ValueError: it does not parse.
    """
    value = node.value
    if isinstance(value, bool):
        return Expression.parse("true" if value else "false")
    return Expression.parse(str(value))


def placeholders(template: str) -> list[str]:
    """The expressions in braces of a message, in order."""
    return _PLACEHOLDER.findall(template)


@dataclass(frozen=True)
class Template:
    """A message with expressions in braces: ``max_num_seqs ({max_num_seqs}) is too large``."""

    def fits(self, node: Located) -> bool:
        return isinstance(node.value, str)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if not isinstance(node.value, str):
            yield node.problem(key, f"must be text, not {_named(node)}")
            return
        for text in placeholders(node.value):
            try:
                Expression.parse(text)
            except ValueError as error:
                yield node.problem(key, f"{{{text[:60]}}} is no expression: {error}")

    def schema(self) -> dict[str, Json]:
        return {"type": "string"}


@dataclass(frozen=True)
class ListOf:
    kind: Kind
    length: int | None = None

    def fits(self, node: Located) -> bool:
        return isinstance(node.value, list)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if not isinstance(node.value, list):
            yield node.problem(key, f"must be a list, not {_named(node)}")
            return
        if self.length is not None and len(node.items) != self.length:
            yield node.problem(key, f"must have {self.length} elements, not {len(node.items)}")
        for number, item in enumerate(node.items):
            yield from self.kind.check(item, f"{key}[{number}]")

    def schema(self) -> dict[str, Json]:
        out: dict[str, Json] = {"type": "array", "items": self.kind.schema()}
        if self.length is not None:
            out |= {"minItems": self.length, "maxItems": self.length}
        return out


@dataclass(frozen=True, kw_only=True)
class MapOf:
    """Free keys. A null value is allowed where ``removable``: it takes away what an earlier file set."""

    kind: Kind
    pattern: str = ""
    hint: str = ""
    removable: bool = False
    reserved: Mapping[str, str] = field(default_factory=dict)

    def fits(self, node: Located) -> bool:
        return isinstance(node.value, dict)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if not isinstance(node.value, dict):
            yield node.problem(key, f"must be a mapping, not {_named(node)}")
            return
        for name, item in node.mapping.items():
            path = f"{key}.{name}"
            if name in self.reserved:
                yield item.problem(path, self.reserved[name])
            elif self.pattern and not re.fullmatch(self.pattern, name):
                yield item.problem(path, f"{name[:60]!r} {self.hint}")
            if item.value is None and self.removable:
                continue
            yield from self.kind.check(item, path)

    def schema(self) -> dict[str, Json]:
        inner: Json = self.kind.schema()
        if self.removable and inner:
            inner = {"anyOf": [inner, {"type": "null"}]}
        out: dict[str, Json] = {"type": "object", "additionalProperties": inner}
        if self.pattern:
            out["propertyNames"] = {"pattern": f"^(?:{self.pattern})$"}
        return out


@dataclass(frozen=True)
class EitherOf:
    """The first kind whose shape fits decides."""

    kinds: tuple[Kind, ...]
    says: str

    def fits(self, node: Located) -> bool:
        return any(kind.fits(node) for kind in self.kinds)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        for kind in self.kinds:
            if kind.fits(node):
                yield from kind.check(node, key)
                return
        yield node.problem(key, f"must be {self.says}, not {_named(node)}")

    def schema(self) -> dict[str, Json]:
        return {"anyOf": [kind.schema() for kind in self.kinds]}


@dataclass(frozen=True)
class Field:
    """One key of a record."""

    kind: Kind
    doc: str
    required: bool = False

    def wanted(self, name: str) -> str:
        """How to give the key: as it must be written where there is one way, else what it means."""
        only = self.kind.words if isinstance(self.kind, OneOf) else ()
        return f"write `{name}: {only[0]}`" if len(only) == 1 else self.doc


@dataclass(frozen=True)
class Record:
    """A mapping with known keys."""

    doc: str
    fields: Mapping[str, Field]

    def fits(self, node: Located) -> bool:
        return isinstance(node.value, dict)

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        if not isinstance(node.value, dict):
            yield node.problem(key, f"must be a mapping, not {_named(node)}")
            return
        prefix = f"{key}." if key else ""
        for name, item in node.mapping.items():
            known = self.fields.get(name)
            if known is None:
                yield item.problem(f"{prefix}{name}", f"unknown key{_close(name, self.fields)}")
            elif item.value is not None or known.required:
                yield from known.kind.check(item, f"{prefix}{name}")
        for name, known in self.fields.items():
            if known.required and name not in node.mapping:
                yield node.problem(key or name, f"needs the key `{name}`: {known.wanted(name)}")

    def schema(self) -> dict[str, Json]:
        properties: dict[str, Json] = {
            name: {**known.kind.schema(), "description": known.doc} for name, known in self.fields.items()
        }
        required = [name for name, known in self.fields.items() if known.required]
        out: dict[str, Json] = {"type": "object", "description": self.doc, "properties": properties}
        if required:
            out["required"] = required
        return out | {"additionalProperties": False}


def _close(name: str, known: Mapping[str, object]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else f"; there are {', '.join(known)}"
