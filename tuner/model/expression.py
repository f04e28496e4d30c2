"""A small, safe expression language for ``when:``, ``forbid:``, bounds and derived values.

Grammar (Python's own syntax, a subset): numbers, strings, ``true``/``false``/``null``, names with dots
(``max_num_seqs``, ``hardware.sm``, ``model.is_moe``), lists, ``not and or``, comparisons (chained too, ``in`` and
``not in``), ``+ - * / // %``, unary minus, ``a if c else b``, and the functions ``min max ceil floor round abs
int len``. Parsed with :mod:`ast`, walked by this module: nothing is ever executed.

``null`` means "not set": arithmetic with it gives ``null``, an order comparison with it is false, and a key that a
mapping lacks is ``null``. So a rule about two settings stays silent where one of them is left to vLLM.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Protocol, TypeAlias, cast

from tuner.model.json import Json

__all__ = ["Expression", "ExpressionError"]

_MAX_TEXT = 2000
_MAX_NODES = 400
_MAX_DEPTH = 40
_MAX_NUMBER = 2.0**63
_WORDS: Mapping[str, Json] = {"true": True, "false": False, "null": None}

Scope: TypeAlias = Mapping[str, object]
Number: TypeAlias = int | float


class ExpressionError(ValueError):
    """An expression that parses, but has no value in the scope it was evaluated in."""


class _Node(Protocol):
    def value(self, scope: Scope, /) -> Json: ...


@dataclass(frozen=True, slots=True)
class Expression:
    """One parsed expression. Two expressions are equal if their texts are.

    Attributes:
        text: as written.
        names: dotted names that it reads (``hardware.sm``, ``max_num_seqs``).
    """

    text: str
    names: frozenset[str] = field(compare=False)
    _root: _Node = field(compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Parse ``text``.

        Raises:
            ValueError: it is not in the grammar, or too long or deep; the message names the column (from 1).
        """
        if len(text) > _MAX_TEXT:
            raise ValueError(f"expression is {len(text)} characters long; {_MAX_TEXT} are allowed")
        # One character for one, so that columns stay true (YAML's folded blocks bring line breaks).
        flat = "".join(" " if character in "\n\r\t\f" else character for character in text)
        lead = len(flat) - len(flat.lstrip())
        if not flat.strip():
            raise ValueError("expression is empty")
        parser = _Parser(lead)
        root = parser.node(_tree(flat.strip(), lead), 0)
        return cls(text, frozenset(parser.names), root)

    def evaluate(self, scope: Scope) -> Json:
        """Its value, with names looked up in ``scope`` (mappings, and fields and properties of dataclasses).

        Raises:
            ExpressionError: a name is unknown, an operand has the wrong type, or a number overflows.
        """
        try:
            return self._root.value(scope)
        except ExpressionError as error:
            raise ExpressionError(f"{error} in `{self.text.strip()}`") from None

    def holds(self, scope: Scope) -> bool:
        """Whether its value counts as true (``null``, false, 0, and empty strings and lists do not).

        Raises:
            ExpressionError: as :meth:`evaluate`.
        """
        return bool(self.evaluate(scope))

    def never_holds(self, scope: Scope) -> bool:
        """Whether it counts as false whatever the names stand for that ``scope`` lacks."""
        return _decided(self._root, scope) is False


def _tree(text: str, lead: int) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a string is no reason to write to the terminal
            return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        column = (error.offset or 1) + lead
        raise ValueError(f"column {column}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"column {lead + 1}: cannot be parsed ({error or 'nested too deeply'})") from None


class _Parser:
    """From Python's tree to this module's nodes, refusing everything outside the grammar."""

    def __init__(self, lead: int) -> None:
        self.names: set[str] = set()
        self._lead = lead
        self._nodes = 0

    def node(self, tree: ast.expr, depth: int) -> _Node:
        self._nodes += 1
        if depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            raise self._error(tree, "the expression is too deep or has too many parts")

        def inner(child: ast.expr) -> _Node:
            return self.node(child, depth + 1)

        match tree:
            case ast.Constant():
                return self._constant(tree)
            case ast.Name() | ast.Attribute():
                return self._name(tree)
            case ast.Compare():
                return self._comparison(tree, inner)
            case ast.Call():
                return self._call(tree, inner)
            case _:
                return self._operation(tree, inner)

    def _operation(self, tree: ast.expr, inner: Callable[[ast.expr], _Node]) -> _Node:
        match tree:
            case ast.List() | ast.Tuple():
                return _List(tuple(inner(item) for item in tree.elts))
            case ast.BoolOp():
                return _Junction(isinstance(tree.op, ast.And), tuple(inner(item) for item in tree.values))
            case ast.UnaryOp(op=ast.Not()):
                return _Not(inner(tree.operand))
            case ast.UnaryOp(op=ast.USub()):
                return _Negative(inner(tree.operand))
            case ast.BinOp() if type(tree.op) in _ARITHMETIC:
                symbol, function = _ARITHMETIC[type(tree.op)]
                return _Binary(symbol, function, inner(tree.left), inner(tree.right))
            case ast.IfExp():
                return _Conditional(inner(tree.test), inner(tree.body), inner(tree.orelse))
            case _:
                raise self._error(tree, f"{_called(tree)} is not part of the expression language")

    def _constant(self, tree: ast.Constant) -> _Node:
        value = tree.value
        if value is not None and not isinstance(value, bool | int | float | str):
            raise self._error(tree, f"a {type(value).__name__} is not a value here")
        if isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) < _MAX_NUMBER:
            raise self._error(tree, f"the number is too large, it must be below {_MAX_NUMBER:.3g}")
        return _Literal(value)

    def _name(self, tree: ast.Name | ast.Attribute) -> _Node:
        parts: list[str] = []
        node: ast.expr = tree
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            raise self._error(tree, "a dot may only follow a name")
        parts.append(node.id)
        if len(parts) == 1 and parts[0] in _WORDS:
            return _Literal(_WORDS[parts[0]])
        if len(parts) > _MAX_DEPTH or any(part.startswith("_") for part in parts):
            raise self._error(tree, "names do not begin with an underscore")
        path = tuple(reversed(parts))
        self.names.add(".".join(path))
        return _Name(path)

    def _comparison(self, tree: ast.Compare, inner: Callable[[ast.expr], _Node]) -> _Node:
        for op in tree.ops:
            if type(op) not in _COMPARISONS:
                raise self._error(tree, "only == != < <= > >= in and `not in` compare")
        kinds = tuple(_COMPARISONS[type(op)] for op in tree.ops)
        return _Comparison(kinds, (inner(tree.left), *(inner(item) for item in tree.comparators)))

    def _call(self, tree: ast.Call, inner: Callable[[ast.expr], _Node]) -> _Node:
        known = ", ".join(_FUNCTIONS)
        if not isinstance(tree.func, ast.Name) or tree.func.id not in _FUNCTIONS:
            raise self._error(tree, f"no such function; there are {known}")
        if tree.keywords or any(isinstance(item, ast.Starred) for item in tree.args):
            raise self._error(tree, f"{tree.func.id}() takes plain arguments only")
        least, most, function = _FUNCTIONS[tree.func.id]
        if not least <= len(tree.args) <= most:
            raise self._error(tree, f"{tree.func.id}() does not take {len(tree.args)} arguments")
        return _Call(tree.func.id, function, tuple(inner(item) for item in tree.args))

    def _error(self, tree: ast.expr, message: str) -> ValueError:
        return ValueError(f"column {tree.col_offset + self._lead + 1}: {message}")


def _called(tree: ast.AST) -> str:
    if isinstance(tree, ast.BinOp):
        return f"the operator {type(tree.op).__name__}"
    return f"a {type(tree).__name__}"


@dataclass(frozen=True, slots=True)
class _Literal:
    constant: Json

    def value(self, _: Scope, /) -> Json:
        return self.constant


@dataclass(frozen=True, slots=True)
class _Name:
    path: tuple[str, ...]

    def value(self, scope: Scope, /) -> Json:
        if self.path[0] not in scope:
            raise ExpressionError(f"unknown name {self.path[0]!r}")
        found = scope[self.path[0]]
        for number, part in enumerate(self.path[1:], start=1):
            found = _member(found, part, ".".join(self.path[:number]))
        return _json(found, ".".join(self.path))


@dataclass(frozen=True, slots=True)
class _List:
    items: tuple[_Node, ...]

    def value(self, scope: Scope, /) -> Json:
        return [item.value(scope) for item in self.items]


@dataclass(frozen=True, slots=True)
class _Not:
    operand: _Node

    def value(self, scope: Scope, /) -> Json:
        return not self.operand.value(scope)


@dataclass(frozen=True, slots=True)
class _Junction:
    """``and``/``or``: the deciding operand's value, the rest unread, as in Python."""

    every: bool
    operands: tuple[_Node, ...]

    def value(self, scope: Scope, /) -> Json:
        result: Json = None
        for operand in self.operands:
            result = operand.value(scope)
            if bool(result) != self.every:
                break
        return result


@dataclass(frozen=True, slots=True)
class _Negative:
    operand: _Node

    def value(self, scope: Scope, /) -> Json:
        value = self.operand.value(scope)
        return None if value is None else -_number(value, "-")


@dataclass(frozen=True, slots=True)
class _Binary:
    symbol: str
    function: Callable[[Number, Number], Number]
    left: _Node
    right: _Node

    def value(self, scope: Scope, /) -> Json:
        left, right = self.left.value(scope), self.right.value(scope)
        if left is None or right is None:
            return None
        return _arithmetic(self.symbol, self.function, _number(left, self.symbol), _number(right, self.symbol))


@dataclass(frozen=True, slots=True)
class _Comparison:
    kinds: tuple[str, ...]
    operands: tuple[_Node, ...]

    def value(self, scope: Scope, /) -> Json:
        left = self.operands[0].value(scope)
        for kind, operand in zip(self.kinds, self.operands[1:], strict=True):
            right = operand.value(scope)
            if not _compare(kind, left, right):
                return False
            left = right
        return True


@dataclass(frozen=True, slots=True)
class _Conditional:
    test: _Node
    then: _Node
    otherwise: _Node

    def value(self, scope: Scope, /) -> Json:
        return self.then.value(scope) if self.test.value(scope) else self.otherwise.value(scope)


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    function: Callable[[list[Json]], Json]
    arguments: tuple[_Node, ...]

    def value(self, scope: Scope, /) -> Json:
        values = [argument.value(scope) for argument in self.arguments]
        if any(value is None for value in values):
            return None
        try:
            return self.function(values)
        except ExpressionError:
            raise
        except (TypeError, ValueError, OverflowError):
            raise ExpressionError(f"{self.name}() cannot take {_shown(values)}") from None


def _decided(node: _Node, scope: Scope) -> bool | None:
    """What ``node`` counts as; None where that hangs on names that ``scope`` lacks, or it has no value."""
    if isinstance(node, _Junction):
        found = {_decided(operand, scope) for operand in node.operands}
        # One operand decides; otherwise all of them must be known.
        return (not node.every) if (not node.every) in found else None if None in found else node.every
    if isinstance(node, _Not):
        inner = _decided(node.operand, scope)
        return None if inner is None else not inner
    try:
        return bool(node.value(scope))
    except ExpressionError:
        return None


def _arithmetic(symbol: str, function: Callable[[Number, Number], Number], left: Number, right: Number) -> Number:
    try:
        result = function(left, right)
    except ZeroDivisionError:
        raise ExpressionError(f"{left} {symbol} {right} divides by zero") from None
    except OverflowError:
        raise ExpressionError(f"{left} {symbol} {right} is too large") from None
    if not abs(result) < _MAX_NUMBER:
        raise ExpressionError(f"{left} {symbol} {right} is too large")
    return result


def _compare(kind: str, left: Json, right: Json) -> bool:
    if kind in ("==", "!="):
        return (left == right) is (kind == "==")
    if kind in ("in", "not in"):
        return _contains(right, left) is (kind == "in")
    if left is None or right is None:
        return False
    if isinstance(left, str) and isinstance(right, str):
        return bool(_ORDER[kind](left, right))
    return bool(_ORDER[kind](_number(left, kind), _number(right, kind)))


def _contains(container: Json, item: Json) -> bool:
    if container is None:
        return False
    if isinstance(container, str):
        if not isinstance(item, str):
            raise ExpressionError(f"only a string can be in a string, not {_shown(item)}")
        return item in container
    if isinstance(container, Sequence | Mapping):
        return any(item == entry for entry in container)
    raise ExpressionError(f"nothing can be in {_shown(container)}")


def _member(holder: object, name: str, path: str) -> object:
    """A key of a mapping, or a field or property of a dataclass; never a method, never a private name."""
    if holder is None:
        return None
    if isinstance(holder, Mapping):
        # Flags are written with dashes, which the grammar reads as minus.
        return holder.get(name, holder.get(name.replace("_", "-")))
    if is_dataclass(holder) and not isinstance(holder, type):
        public = {item.name for item in fields(holder)}
        if name in public or isinstance(getattr(type(holder), name, None), property):
            return getattr(holder, name)
    raise ExpressionError(f"{path} has no {name!r}")


def _json(value: object, name: str) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        raise ExpressionError(f"{name} is not a finite number")
    if isinstance(value, tuple):
        return list(value)
    if value is None or isinstance(value, bool | int | float | str | list | Mapping):
        return cast("Json", value)
    raise ExpressionError(f"{name} is not a value: name one of its parts")


def _number(value: Json, symbol: str) -> Number:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionError(f"{symbol} needs numbers, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _numbers(name: str, values: list[Json]) -> list[Number]:
    return [_number(value, f"{name}()") for value in values]


def _extreme(name: str, pick: Callable[[list[Number]], Number]) -> Callable[[list[Json]], Json]:
    def function(values: list[Json]) -> Json:
        only = values[0]
        flat = list(only) if len(values) == 1 and isinstance(only, list | tuple) else values
        # A list may hold settings that are not set; they do not count.
        known = [value for value in flat if value is not None]
        return pick(_numbers(name, known)) if known else None

    return function


def _unary(name: str, function: Callable[[Number], Number]) -> Callable[[list[Json]], Json]:
    return lambda values: function(_number(values[0], f"{name}()"))


def _rounded(values: list[Json]) -> Json:
    value, *digits = _numbers("round", values)
    if not digits:
        return round(value)
    if abs(digits[0]) > 18:  # round(1, -10**9) would compute ten to that power
        raise ExpressionError("round() takes at most 18 digits")
    return round(value, int(digits[0]))


def _length(values: list[Json]) -> Json:
    value = values[0]
    if not isinstance(value, str | Sequence | Mapping):
        raise ExpressionError(f"len() needs a string or a list, not {_shown(value)}")
    return len(value)


_ARITHMETIC: Mapping[type[ast.operator], tuple[str, Callable[[Number, Number], Number]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_ORDER: Mapping[str, Callable[..., object]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FUNCTIONS: Mapping[str, tuple[int, int, Callable[[list[Json]], Json]]] = {
    "min": (1, 32, _extreme("min", min)),
    "max": (1, 32, _extreme("max", max)),
    "ceil": (1, 1, _unary("ceil", math.ceil)),
    "floor": (1, 1, _unary("floor", math.floor)),
    "round": (1, 2, _rounded),
    "abs": (1, 1, _unary("abs", abs)),
    "int": (1, 1, _unary("int", int)),
    "len": (1, 1, _length),
}
