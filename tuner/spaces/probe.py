"""Runs inside the Python that serves: asks vLLM's own parser what it accepts, or how it reads arguments.

Stand-alone on purpose (standard library and vLLM only): its source is handed to that Python, which need not have
`tune`. Requests come as JSON on standard input, the answer leaves as one JSON line after a marker, because vLLM may
log to standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import io
import json
import sys
import typing
from contextlib import redirect_stderr

MARKER = "\x1etune-probe:"
# JSON flags of `vllm serve` and the configuration class behind each.
NESTED = {
    "compilation-config": ("vllm.config", "CompilationConfig"),
    "speculative-config": ("vllm.config", "SpeculativeConfig"),
    "kernel-config": ("vllm.config", "KernelConfig"),
    "attention-config": ("vllm.config", "AttentionConfig"),
    "eplb-config": ("vllm.config.parallel", "EPLBConfig"),
    "structured-outputs-config": ("vllm.config", "StructuredOutputsConfig"),
    "kv-transfer-config": ("vllm.config", "KVTransferConfig"),
    "quantization-config": ("vllm.config.quantization", "QuantizationConfigArgs"),
}


def serve_parser() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of ``vllm`` with its sub-command ``serve``, and that sub-command's own."""
    flexible = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    serve = importlib.import_module("vllm.entrypoints.cli.serve").ServeSubcommand()
    top = flexible(prog="vllm")
    commands = top.add_subparsers(required=False, dest="subparser")
    return top, serve.subparser_init(commands)


def describe() -> dict[str, object]:
    """Version, flags, fields of the JSON flags, and environment names."""
    _, parser = serve_parser()
    flags = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list its options
        names = [option for option in action.option_strings if option.startswith("--")]
        if names and names[0] != "--help":
            flags[names[0][2:]] = describe_action(action, names)
    extra = {"attention-backend": attention_backends(), "quantization": quantization_methods()}
    for name, choices in extra.items():
        if name in flags and choices and not flags[name].get("choices"):
            flags[name]["choices"] = choices
    fields = {flag: found for flag, where in NESTED.items() if (found := class_fields(*where))}
    if "attention-config" in fields and "backend" in fields["attention-config"]:
        fields["attention-config"]["backend"] = {"choices": extra["attention-backend"]}
    names = importlib.import_module("vllm.envs").environment_variables
    return {"version": version(), "flags": flags, "fields": fields, "env": sorted(map(str, names))}


def version() -> str:
    """vLLM's version from the module itself: some builds install no distribution named ``vllm``."""
    return str(getattr(importlib.import_module("vllm"), "__version__", "unknown"))


def describe_action(action: argparse.Action, names: list[str]) -> dict[str, object]:
    out: dict[str, object] = {"kind": kind_of(action)}
    aliases = [name[2:] for name in names[1:] if not name.startswith("--no-")]
    if aliases:
        out["aliases"] = aliases
    if action.choices:
        out["choices"] = [plain(choice) for choice in action.choices]
    if action.nargs not in (None, 0):
        out["nargs"] = action.nargs
    return out


def kind_of(action: argparse.Action) -> str:
    """bool, switch (no ``--no-`` form), int, float, json or str: by what its converter accepts."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return "bool"
    if action.nargs == 0:
        return "switch"
    convert = action.type
    if not callable(convert) or convert is str:
        return "str"
    if accepts(convert, "{}") and not accepts(convert, "x"):
        return "json"
    if accepts(convert, "x"):
        return "str"
    if accepts(convert, "1.5"):
        return "float"
    return "int" if accepts(convert, "7") else "str"


def accepts(convert: typing.Callable[[str], object], text: str) -> bool:
    try:
        convert(text)
    except Exception:  # noqa: BLE001 - a converter of vLLM may raise whatever its validation raises
        return False
    return True


def class_fields(module: str, name: str) -> dict[str, dict[str, object]]:
    """Fields of a configuration class, with the choices of those that are Literals or enums."""
    try:
        cls = getattr(importlib.import_module(module), name)
        fields = dataclasses.fields(cls)
    except (ImportError, AttributeError, TypeError):
        return {}
    try:
        hints = typing.get_type_hints(cls)
    except Exception:  # noqa: BLE001 - a hint may name what only type checkers import
        hints = {}
    out: dict[str, dict[str, object]] = {}
    for field in fields:
        if field.init and not field.name.startswith("_"):
            choices = literals(hints.get(field.name, field.type))
            out[field.name] = {"choices": choices} if choices else {}
    return out


def literals(hint: object) -> list[object]:
    """Choices of a hint if a value can be nothing else; empty for open types."""
    if typing.get_origin(hint) is typing.Annotated:
        return literals(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return [plain(value) for value in typing.get_args(hint)]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return [member.name for member in hint]
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if parts and str(typing.get_origin(hint)) in ("typing.Union", "<class 'types.UnionType'>"):
        found = [literals(part) for part in parts]
        return [value for values in found for value in values] if all(found) else []
    return []


def attention_backends() -> list[str]:
    try:
        backends = importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum
    except (ImportError, AttributeError):
        return []
    return ["auto", *backends.__members__]


def quantization_methods() -> list[str]:
    try:
        methods = importlib.import_module("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS
    except (ImportError, AttributeError):
        return []
    return [str(method) for method in methods]


def read(argv: list[str]) -> dict[str, object]:
    """What ``vllm serve ARGV`` would run with: every setting by its name, or ``error`` with the parser's words."""
    top, _ = serve_parser()
    words = io.StringIO()
    try:
        with redirect_stderr(words):
            namespace = top.parse_args(["serve", *argv])
    except SystemExit:
        lines = [line for line in words.getvalue().splitlines() if "error:" in line]
        return {"error": lines[-1].split("error:", 1)[1].strip() if lines else words.getvalue()[-500:]}
    except Exception as error:  # noqa: BLE001 - validation of a JSON flag raises its own kinds
        return {"error": f"{type(error).__name__}: {error}"[:1000]}
    return {"values": {name: plain(value) for name, value in vars(namespace).items() if name != "dispatch_function"}}


def plain(value: object, depth: int = 0) -> object:
    """A value as JSON: enums by name, dataclasses as dicts, everything else as text."""
    if depth > 6:
        return str(value)
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name, None), depth + 1) for name in names if not name.startswith("_")}
    if isinstance(value, dict):
        return {str(key): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner, depth + 1) for inner in value]
    return str(value)


def main() -> None:
    request = json.load(sys.stdin)
    answer: object = [read(argv) for argv in request["read"]] if "read" in request else describe()
    sys.stdout.write(f"\n{MARKER}{json.dumps(answer, default=str)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
