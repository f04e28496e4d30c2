"""Outcomes as plain JSON and back, without loss: what the storage keeps with each trial and reports read again.

The record follows the dataclasses of this package field by field, so a field added to one of them travels without a
change here. Numbers that JSON cannot spell are written as the strings ``nan``, ``inf`` and ``-inf`` where a number is
expected, and as ``{"$float": "inf"}`` where any JSON value may stand (``arguments``, ``effective``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from tuner.model.json import Json
from tuner.model.outcome import Outcome

__all__ = ["SCHEMA", "from_record", "to_record"]

SCHEMA = 1
"""Version of the record's layout, kept under ``schema``. Unknown keys are ignored, so additions need no new one."""

_TAG = "$float"
_DEEPEST = 64
"""Nesting beyond this is not a record of ours; it would only exhaust the interpreter's stack."""


def to_record(outcome: Outcome) -> dict[str, Json]:
    """The outcome as JSON values only: dicts, lists, strings, finite numbers, booleans, None.

    Raises:
        ValueError: a value is not JSON (the message names its key).
    """
    return {"schema": SCHEMA, **_encode_dataclass(outcome, "")}


def from_record(record: Mapping[str, Json]) -> Outcome:
    """The outcome that :func:`to_record` wrote. Tuples inside free JSON come back as lists.

    Keys that this version does not know are ignored, missing ones take the field's default.

    Raises:
        ValueError: a key without a default is missing, or a value has the wrong type (the message names the key).
    """
    return cast("Outcome", _decode_dataclass(record, Outcome, ""))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _arms(hint: Any) -> list[Any]:
    """Arms of a union without None. Several arms: free JSON, as no dataclass here has another such union."""
    return [arm for arm in get_args(hint) if arm is not NoneType]


def _is_json(hint: Any) -> bool:
    return _is_union(hint) and len(_arms(hint)) > 1


def _at(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


# --- out ---


def _encode_dataclass(value: Any, path: str) -> dict[str, Json]:
    hints = _hints(cast("type", type(value)))
    return {
        item.name: _encode(getattr(value, item.name), hints[item.name], _at(path, item.name)) for item in fields(value)
    }


def _encode(value: Any, hint: Any, path: str) -> Json:
    if _is_json(hint):
        return _encode_json(value, path, 0)
    if value is None:
        return None
    if _is_union(hint):
        return _encode(value, _arms(hint)[0], path)
    if is_dataclass(value):
        return _encode_dataclass(value, path)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        inner = get_args(hint)[1]
        return {str(key): _encode(item, inner, _at(path, key)) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_encode(item, _element(hint, index), _at(path, index)) for index, item in enumerate(value)]
    return _encode_scalar(value, path)


def _encode_scalar(value: Any, path: str) -> Json:
    if isinstance(value, bool | str | int) or value is None:
        return value
    # numpy's float64 is a float; narrower numpy numbers only know how to become one.
    if isinstance(value, float) or hasattr(value, "__float__"):
        number = float(value)
        return number if math.isfinite(number) else _spelled(number)
    raise ValueError(f"{path}: {type(value).__name__} is not JSON")


def _encode_json(value: Any, path: str, depth: int) -> Json:
    if depth > _DEEPEST:
        raise ValueError(f"{path}: nested too deeply")
    if isinstance(value, Mapping):
        return {str(key): _encode_json(item, _at(path, key), depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_encode_json(item, _at(path, index), depth + 1) for index, item in enumerate(value)]
    plain = _encode_scalar(value, path)
    return {_TAG: plain} if isinstance(plain, str) and not isinstance(value, str) else plain


def _spelled(number: float) -> str:
    if math.isnan(number):
        return "nan"
    return "inf" if number > 0 else "-inf"


# --- in ---


def _decode_dataclass(value: Any, kind: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(path or "record", "an object", value)
    hints = _hints(kind)
    found: dict[str, Any] = {}
    for item in fields(kind):
        if item.name in value:
            found[item.name] = _decode(value[item.name], hints[item.name], _at(path, item.name))
        elif _required(item):
            raise ValueError(f"{_at(path, item.name)}: missing in the record")
    return kind(**found)


def _required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _decode(value: Any, hint: Any, path: str) -> Any:
    if _is_json(hint):
        return _decode_json(value, path, 0)
    if _is_union(hint):
        return None if value is None else _decode(value, _arms(hint)[0], path)
    origin = get_origin(hint)
    if origin is not None:
        return _decode_container(value, hint, origin, path)
    if is_dataclass(hint):
        return _decode_dataclass(value, hint, path)
    if issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            known = ", ".join(str(member.value) for member in hint)
            raise ValueError(f"{path}: {value!r:.80} is not one of {known}") from None
    return _decode_scalar(value, hint, path)


def _decode_container(value: Any, hint: Any, origin: Any, path: str) -> Any:
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _wrong(path, "a list", value)
        arms = get_args(hint)
        if arms[-1] is not Ellipsis and len(value) != len(arms):
            raise ValueError(f"{path}: {len(value)} entries where {len(arms)} belong")
        return tuple(_decode(item, _element(hint, index), _at(path, index)) for index, item in enumerate(value))
    if not isinstance(value, Mapping):
        raise _wrong(path, "an object", value)
    inner = get_args(hint)[1]
    return {str(key): _decode(item, inner, _at(path, key)) for key, item in value.items()}


def _element(hint: Any, index: int) -> Any:
    arms = get_args(hint)
    return arms[0] if arms[-1] is Ellipsis else arms[min(index, len(arms) - 1)]


def _decode_scalar(value: Any, kind: type, path: str) -> Any:
    if kind is float:
        return _decode_float(value, path)
    if kind is int and isinstance(value, bool):
        raise _wrong(path, "a whole number", value)
    if not isinstance(value, kind):
        names: dict[type, str] = {int: "a whole number", bool: "true or false", str: "text"}
        raise _wrong(path, names.get(kind, kind.__name__), value)
    return value


def _decode_float(value: Any, path: str) -> float:
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(path, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{path}: the number is too large") from None


def _decode_json(value: Any, path: str, depth: int) -> Json:
    if depth > _DEEPEST:
        raise ValueError(f"{path}: nested too deeply")
    if isinstance(value, Mapping):
        if value.keys() == {_TAG}:
            return _decode_float(value[_TAG], path)
        return {str(key): _decode_json(item, _at(path, key), depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_decode_json(item, _at(path, index), depth + 1) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _wrong(path, "JSON", value)


def _wrong(path: str, expected: str, value: object) -> ValueError:
    return ValueError(f"{path}: {expected} belongs here, not {type(value).__name__}")
