"""From settings as text (another store's, anybody's) to an assignment of this space."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from tuner.model.json import Json, Scalar, canonical, finite
from tuner.model.measurement import reported_as
from tuner.model.space import UNSET, Choice
from tuner.search.distributions import Encoding
from tuner.search.knobs import spelling

__all__ = ["assignment_of", "resolved"]


_SWITCHES = {"1": "true", "on": "true", "yes": "true", "0": "false", "off": "false", "no": "false"}
"""How else a switch is logged."""


def assignment_of(settings: Mapping[str, str], encoded: Mapping[str, Encoding]) -> dict[str, Scalar] | None:
    """What the settings mean in this space: only what they set; None if a parameter cannot take its value.

    Names are matched loosely (``max_num_seqs``, ``--max-num-seqs``); settings that no parameter stands for are
    passed over.
    """
    flat = {spelling(name): text for name, text in settings.items()}
    for name, text in settings.items():
        flat |= {f"{spelling(name)}.{spelling(key)}": value for key, value in _inside(text)}
    out: dict[str, Scalar] = {}
    for name, item in encoded.items():
        found = _found(flat, name, item)
        if found is not None:
            value = _value(item, found)
            if value is None:
                return None
            out[name] = value
        elif not item.parameter.target and isinstance(item.parameter.domain, Choice):
            label = _bundle(item.parameter.domain, flat)
            if label is not None:
                out[name] = label
    return out


def resolved(
    effective: Mapping[str, Json], assignment: Mapping[str, Scalar], encoded: Mapping[str, Encoding]
) -> dict[str, Scalar]:
    """What a server runs instead of what was asked, or where nothing was, in this space's terms.

    Labels that this space does not offer are passed over; numbers stand as they are, also outside its ranges.
    """
    known = {name: value for name, value in effective.items() if isinstance(value, str | int) or finite(value)}
    flat = {spelling(name): _shown(value) for name, value in known.items()}
    out: dict[str, Scalar] = {}
    for name, item in encoded.items():
        # A bundle of several settings is none of the names that servers answer to.
        text = _found(flat, name, item) if item.parameter.target else None
        value = None if text is None else _ran(item, text)
        if value is not None and value != assignment.get(name):
            out[name] = value
    return out


def _ran(item: Encoding, text: str) -> Scalar | None:
    if isinstance(item.parameter.domain, Choice):
        return _value(item, text)
    number = _number(text)
    if number is None:
        return None
    return int(number) if item.parameter.domain.integer and number.is_integer() else number


def _found(flat: Mapping[str, str], name: str, item: Encoding) -> str | None:
    target = item.parameter.target
    keys = (spelling(target), spelling(reported_as(target)), spelling(name))
    return next((flat[key] for key in keys if key in flat), None)


def _value(item: Encoding, text: str) -> Scalar | None:
    domain = item.parameter.domain
    if isinstance(domain, Choice):
        plain = _plain(text)
        if set(map(type, domain.values)) == {bool}:
            plain = _SWITCHES.get(plain, plain)
        by_value = (label for label, value in domain.values.items() if _says(value, plain))
        return next(by_value, next((label for label in domain.values if _says(label, plain)), None))
    number = _number(text)
    if number is None:
        return None
    internal = item.encode(number) if domain.low <= number <= domain.high else None
    return None if internal is None else item.decode(internal)


def _says(value: object, plain: str) -> bool:
    return value is not UNSET and _shown(cast("Json", value)) == plain


def _bundle(domain: Choice, flat: Mapping[str, str]) -> Scalar | None:
    """The alternative whose arguments and variables are all set so; the one with most of them, if several are."""
    best: tuple[int, Scalar | None] = (0, None)
    for label, value in domain.values.items():
        if not isinstance(value, Mapping):
            continue
        wanted: dict[str, str] = {}
        for kind, prefix in (("arguments", ""), ("environment", "env:")):
            part = value.get(kind)
            if isinstance(part, Mapping):
                wanted |= {spelling(f"{prefix}{name}"): _shown(setting) for name, setting in part.items()}
        if len(wanted) > best[0] and all(_plain(flat.get(name, "")) == text for name, text in wanted.items()):
            best = (len(wanted), label)
    return best[1]


def _inside(text: str) -> list[tuple[str, str]]:
    """The entries of a setting that is an object itself (``speculative-config``)."""
    if not text.startswith("{"):
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [(str(key), value if isinstance(value, str) else canonical(value)) for key, value in found.items()]


def _shown(value: Json) -> str:
    return _plain(value if isinstance(value, str) else canonical(value))


def _plain(text: str) -> str:
    """``True`` and ``true``, ``8`` and ``8.0`` are one value however somebody logged them."""
    low = text.strip().lower()
    number = _number(low)
    if number is None:
        return low
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
