"""Writes ``tuner/spaces/known_flags/VERSION.json``: what a released vLLM accepts, for planning without one.

Two sources:

* ``--python PY``: the vLLM installed there, asked by the same probe that `tune` uses (best).
* ``--fields FILE``: flags, configuration fields and environment names read from vLLM's source code, as a difference to
  those of a version that was asked live (``--like``, ``--like-fields``).

Usage: ``python tools/record_flags.py --python /path/to/python`` or
``python tools/record_flags.py --fields fields_0.33.0.json --like-fields fields_0.32.0.json --version 0.33.0``.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path
from typing import Any

from tuner.spaces import serving_python
from tuner.spaces.probe import NESTED

FOLDER = Path(__file__).resolve().parent.parent / "tuner" / "spaces" / "known_flags"
# Flags whose configuration field has another name (vllm/engine/arg_utils.py).
RENAMED = {"kv_cache_dtype": "cache_dtype", "scheduling_policy": "policy"}
KINDS = {"int": "int", "float": "float", "bool": "bool", "str": "str"}


def literal_names(text: str, literals: dict[str, str], depth: int = 0) -> list[Any]:
    """Choices of a type in source text: ``Literal[...]``, a named alias of one, or a union of such with None."""
    if depth > 8:
        return []
    text = text.strip().removesuffix("| None").strip()
    named = [value for name, value in literals.items() if name.rsplit(".", 1)[-1] == text]
    if named:
        return literal_names(named[0], literals, depth + 1)
    match = re.fullmatch(r"Literal\[(.*)\]", text, re.DOTALL)
    if match is None:
        return []
    out: list[Any] = []
    for element in ast.parse(f"[{match.group(1)}]", mode="eval").body.elts:  # type: ignore[attr-defined]
        if isinstance(element, ast.Constant):
            out.append(element.value)
        else:
            out += literal_names(ast.unparse(element), literals, depth + 1)
    return out


def kind_of(text: str) -> str:
    """Kind of a flag from its field's type; ``any`` where it is a class or a union of several kinds."""
    names = {part.strip() for part in re.sub(r"\[.*\]", "", text).split("|")} - {"None"}
    if len(names) == 1:
        return KINDS.get(names.pop(), "any")
    return "any"


def field_types(data: dict[str, Any]) -> dict[str, str]:
    """Field name → type in source text, over all configuration classes."""
    out: dict[str, str] = {}
    for name, fields in data["configs"].items():
        if name != "LITERALS":
            for field, entry in fields.items():
                out.setdefault(field, str(entry.get("type") or ""))
    return out


def from_fields(
    data: dict[str, Any],
    like: dict[str, Any],
    like_data: dict[str, Any],
    version: str,
    changed: dict[str, tuple[list[str], list[str]]],
) -> dict[str, Any]:
    """A recording made of what the source differs in from ``like``, which was asked live."""
    literals, old_literals = data["configs"]["LITERALS"], like_data["configs"]["LITERALS"]
    types, old_types = field_types(data), field_types(like_data)
    of_configs = {name.removeprefix("--") for name in like_data["cli_flags"]}
    # Flags of the HTTP front end belong to no configuration class; they are those of the other recording.
    flags: dict[str, Any] = {name: flag for name, flag in like["flags"].items() if name not in of_configs}
    for option in data["cli_flags"]:
        name = option.removeprefix("--")
        field = RENAMED.get(name.replace("-", "_"), name.replace("-", "_"))
        new = literal_names(types.get(field, ""), literals)
        known = like["flags"].get(name)
        if name == "help" or any(name in flag.get("aliases", ()) for flag in like["flags"].values()):
            continue
        if known is None:
            flags[name] = {"kind": kind_of(types.get(field, "")), **({"choices": new} if new else {})}
            continue
        old = literal_names(old_types.get(field, ""), old_literals)
        added, removed = changed.get(name, ([], []))
        flags[name] = dict(known)
        if old and not new:
            flags[name].pop("choices", None)  # the type was opened
        elif "choices" in known:
            gone = {choice for choice in old if choice not in new} | set(removed)
            fresh = [choice for choice in new if choice not in old and choice not in known["choices"]] + added
            flags[name]["choices"] = [choice for choice in known["choices"] if choice not in gone] + fresh
    return {
        "version": version,
        "flags": flags,
        "fields": nested_fields(data, like, flags),
        "env": sorted(data["env_vars"]),
    }


def nested_fields(data: dict[str, Any], like: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Fields of the JSON flags, with the choices of those that are Literals."""
    literals = data["configs"]["LITERALS"]
    classes = {name.rsplit(".", 1)[-1]: fields for name, fields in data["configs"].items()}
    out: dict[str, Any] = {}
    for flag, (_, cls) in NESTED.items():
        if cls not in classes or flag not in flags:
            continue
        out[flag] = {}
        for name, field in classes[cls].items():
            if "ClassVar" in str(field.get("type")) or "init=False" in str(field.get("default")):
                continue
            choices = literal_names(str(field.get("type")), literals)
            if not choices and name in ("mode", "cudagraph_mode"):
                # Enums are no Literals in the source; their members are the same in these versions.
                choices = like["fields"].get(flag, {}).get(name, {}).get("choices", [])
            out[flag][name] = {"choices": choices} if choices else {}
    return out


def changes(texts: list[str]) -> dict[str, tuple[list[str], list[str]]]:
    out = {}
    for text in texts:
        flag, _, items = text.partition("=")
        names = items.split(",") if items else []
        out[flag] = ([n[1:] for n in names if n.startswith("+")], [n[1:] for n in names if n.startswith("-")])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", help="command of a Python that has vLLM")
    parser.add_argument("--fields", type=Path, help="JSON read from vLLM's source")
    parser.add_argument("--like", default="0.32.0", help="recorded version that knows the front end's flags")
    parser.add_argument("--like-fields", type=Path, help="the source's JSON of that version (with --fields)")
    parser.add_argument(
        "--changed",
        action="append",
        default=[],
        metavar="FLAG=+added,-removed",
        help="choices that live in an enum or registry, as a difference to --like",
    )
    parser.add_argument("--version", help="name of the recording")
    arguments = parser.parse_args()
    if arguments.python:
        recording: dict[str, Any] = dict(serving_python.describe(arguments.python))
    else:
        like = json.loads((FOLDER / f"{arguments.like}.json").read_text(encoding="utf-8"))
        data, like_data = (
            json.loads(path.read_text(encoding="utf-8")) for path in (arguments.fields, arguments.like_fields)
        )
        recording = from_fields(data, like, like_data, arguments.version, changes(arguments.changed))
    path = FOLDER / f"{arguments.version or recording['version']}.json"
    path.write_text(json.dumps(recording, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
