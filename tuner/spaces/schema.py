"""The format of the files in ``search_spaces/`` and of a user's own space: version 1.

``python -m tuner.spaces.schema`` prints the JSON Schema for editors, made from what checks the files here;
``search_spaces/schema.json`` is its output. Prose: ``docs/SPACES.md``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator

from tuner.model.hardware import Hardware
from tuner.model.json import Json
from tuner.model.workload import LoadPoint, Workload
from tuner.spaces.kinds import (
    AnyJson,
    Boolean,
    EitherOf,
    Field,
    Formula,
    Kind,
    ListOf,
    Literal,
    MapOf,
    Number,
    OneOf,
    Record,
    Template,
    Text,
)
from tuner.spaces.yamlfile import Located, Problem

__all__ = ["DOCUMENT", "OWNED", "check_document", "json_schema"]

_FLAG = r"[a-z0-9][a-z0-9-]*(\.[A-Za-z0-9_-]+)*"
_FLAG_HINT = "is not a flag as it is written here: no leading dashes, dashes inside (max-num-seqs), dots for parts"
_ENV = r"[A-Za-z_][A-Za-z0-9_]*"
_ENV_HINT = "is not the name of an environment variable"
_NAME = r"[A-Za-z][A-Za-z0-9_]*"
OWNED = {
    name: f"`{name}` is set by tune itself; {way}"
    for name, way in {
        "model": "give --model, or the key `model`",
        "host": "servers listen on loopback",
        "port": "a free port is taken for each trial",
        "api-key": "each study makes its own",
        "config": "its content belongs into `arguments`",
        "served-model-name": "clients of the trial need to know it",
        "uds": "servers listen on loopback",
    }.items()
}
_RESERVED = {
    name: f"{name!r} already means something in expressions; take another name"
    for name in ("hardware", "model", "workload", "flags", "env", "true", "false", "null", "None", "True", "False",
                 "and", "or", "not", "in", "if", "else", "is", "min", "max", "ceil", "floor", "round", "abs", "int",
                 "len", "lambda", "for", "class", "def", "import", "from", "with", "as", "pass", "return", "while")
}  # fmt: skip

_ENVIRONMENT = MapOf(
    kind=EitherOf((Text(), Number()), "text or a number (write true and false in quotes)"),
    pattern=_ENV,
    hint=_ENV_HINT,
    removable=True,
)
_ARGUMENTS = MapOf(kind=AnyJson(), pattern=_FLAG, hint=_FLAG_HINT, removable=True, reserved=OWNED)
_SOURCE = Field(Text(), "Where this comes from: a file and function of vLLM, a page, a measurement.")

_CHOICE = Record(
    "One alternative of a choice.",
    {
        "value": Field(AnyJson(), "The value; may be any JSON. Left away together with `arguments`: flag not set."),
        "arguments": Field(_ARGUMENTS, "Flags set together (instead of one `flag` with one `value`)."),
        "environment": Field(_ENVIRONMENT, "Environment variables set with this alternative."),
        "if": Field(Formula(), "Offered only on hardware and models for which this holds."),
        "source": _SOURCE,
    },
)


_ALTERNATIVE = EitherOf((Literal(), _CHOICE), "a value")


class _Parameter(Record):
    """A parameter with a `type` replaces any earlier one: there is nothing that null could take away from it."""

    def check(self, node: Located, key: str) -> Iterator[Problem]:
        """See :meth:`Record.check`."""
        yield from super().check(node, key)
        values = node.get("values") if node.get("type") is not None else None
        for label, item in (values.mapping if values is not None else {}).items():
            if item.value is None:
                yield item.problem(
                    f"{key}.values.{label}",
                    "null takes away a label of an earlier file; write `default` to leave the flag away",
                )


PARAMETER = _Parameter(
    "One dimension of the search.",
    {
        "flag": Field(Text(pattern=_FLAG, hint=_FLAG_HINT), "Flag without dashes, or a dotted path into a JSON flag."),
        "env": Field(Text(pattern=_ENV, hint=_ENV_HINT), "Environment variable (instead of `flag`)."),
        "type": Field(
            OneOf(("int", "float", "choice", "bool", "checkpoint")),
            "Kind of values; `checkpoint` is a choice of what to serve (hub ids or folders of one model).",
        ),
        "low": Field(Formula(), "Smallest value: a number, or an expression of hardware, model and workload."),
        "high": Field(Formula(), "Largest value, included."),
        "step": Field(Formula(), "Distance between values, counted from `low`."),
        "log": Field(Boolean(), "Search on a logarithmic scale."),
        "base": Field(OneOf((2,)), "2: the values are `low` times the powers of two (with `log`)."),
        "values": Field(
            EitherOf((ListOf(_ALTERNATIVE), MapOf(kind=_ALTERNATIVE, removable=True)), "a list or a mapping"),
            "Alternatives: a list of values, or label → value. The word `default` leaves the flag away (with "
            "`type: checkpoint`: the study's own model).",
        ),
        "ordinal": Field(Boolean(), "The order of the values means something (sizes)."),
        "default": Field(Literal(), "What vLLM takes when the flag is left away; a checkpoint's is the study's model."),
        "if": Field(Formula(), "The parameter is part of the space only where this holds for hardware and model."),
        "when": Field(Formula(), "The parameter exists only beside values of others for which this holds."),
        "numerics": Field(Boolean(), "It may change the tokens that come out."),
        "recompiles": Field(Boolean(), "A change needs a new compile."),
        "source": _SOURCE,
    },
)

_DERIVED = Record(
    "An argument that follows from others.",
    {
        "target": Field(
            Text(pattern=rf"{_FLAG}|env:{_ENV}", hint=_FLAG_HINT), "Flag, dotted path, or env:NAME.", required=True
        ),
        "value": Field(Formula(), "Its value; null leaves the target alone.", required=True),
        "when": Field(Formula(), "Set only where this holds."),
        "source": _SOURCE,
    },
)

_RULE_NAME = Text(pattern=r"[a-z0-9][a-z0-9-]*", hint="must be lower-case words joined by dashes")
_FORBID = Record(
    "Configurations that are never launched.",
    {
        "name": Field(
            _RULE_NAME, "Stable name; a later file's rule of the same name replaces this one.", required=True
        ),
        "if": Field(Formula(), "Where this holds, nothing is launched. `false` lifts the rule.", required=True),
        "reason": Field(Template(), "One sentence with its numbers: expressions in braces."),
        "source": _SOURCE,
        "violation": Field(Formula(), "How far beyond the limit (> 0), so that the search can learn from it."),
    },
)

_NEUTRAL = Record(
    "Settings without effect.",
    {
        "if": Field(Formula(), "Where this holds (always, if left away) …"),
        "targets": Field(
            ListOf(Text(pattern=rf"{_FLAG}|env:{_ENV}", hint=_FLAG_HINT)), "… these have no effect.", required=True
        ),
        "source": _SOURCE,
    },
)

_START = Record(
    "A configuration known to be good, tried right after the baseline.",
    {
        "assign": Field(
            MapOf(kind=Literal(), pattern=_NAME, hint="is no parameter name"),
            "Parameter → value or label.",
            required=True,
        ),
        "if": Field(Formula(), "Only on hardware and models for which this holds."),
        "source": _SOURCE,
    },
)


def _kind_of(annotation: str) -> Kind:
    """The kind for a dataclass field, by its annotation."""
    if "bool" in annotation:
        return Boolean()
    if "float" in annotation:
        return Number(low=0)
    return Number(integer=True, low=0) if "int" in annotation else Text()


_HARDWARE_SPECIAL: dict[str, Kind] = {
    "platform": OneOf(("cuda", "rocm", "cpu")),
    "count": Number(integer=True, low=1, high=100_000),
    "nodes": Number(integer=True, low=1, high=10_000),
    "capability": Text(pattern=r"\d{1,2}\.\d", hint='is not a compute capability such as "9.0" (in quotes)'),
    "tflops": MapOf(kind=Number(low=0), pattern=r"[a-z0-9_]+", hint="is no dtype such as bf16", removable=True),
    "recognise": ListOf(Text()),
    "sources": MapOf(kind=Text(), removable=True),
}
_HARDWARE = Record(
    "What the machine is; figures are per accelerator.",
    {
        **{
            item.name: Field(_HARDWARE_SPECIAL.get(item.name) or _kind_of(str(item.type)), f"Hardware.{item.name}")
            for item in dataclasses.fields(Hardware)
            if item.name != "name"
        },
        "recognise": Field(_HARDWARE_SPECIAL["recognise"], "Parts of the device's own name, for --hardware auto."),
        "sources": Field(_HARDWARE_SPECIAL["sources"], "Where each figure comes from."),
    },
)

_POINT = Record(
    "One level of load.",
    {
        "concurrency": Field(Number(integer=True, low=1, high=1_000_000), "Requests in flight (closed loop)."),
        "rate": Field(Number(low=1e-6, high=1e9), "Requests per second (open loop)."),
        "burstiness": Field(Number(low=1e-3, high=1e3), "1 is Poisson, smaller is burstier."),
        "requests": Field(Number(integer=True, low=1, high=10_000_000), "Requests per round."),
        "weight": Field(Number(low=0, high=1e6), "Share in the objective."),
    },
)
_WORKLOAD_SPECIAL: dict[str, Kind] = {
    "source": OneOf(("random", "text", "prefix", "jsonl", "sharegpt", "trace")),
    "endpoint": OneOf(("completions", "chat")),
    "input_tokens": Number(integer=True, low=1, high=100_000_000),
    "output_tokens": Number(integer=True, low=1, high=100_000_000),
    "prefix_tokens": Number(integer=True, low=0, high=100_000_000),
    "prefix_groups": Number(integer=True, low=1, high=1_000_000),
    "spread": Number(low=0, high=1),
    "expected_hit_rate": Number(low=0, high=1),
    "precision": Number(low=1e-6, high=1),
    "temperature": Number(low=0, high=10),
    "points": ListOf(_POINT),
    "rounds": ListOf(Number(integer=True, low=1, high=1000), length=2),
}
_WORKLOAD = Record(
    "The traffic.",
    {
        item.name: Field(_WORKLOAD_SPECIAL.get(item.name) or _kind_of(str(item.type)), f"Workload.{item.name}")
        for item in dataclasses.fields(Workload)
        if item.name != "name"
    },
)
assert {item.name for item in dataclasses.fields(LoadPoint)} == set(_POINT.fields)  # noqa: S101 - kept in step by import

_MATCH = Record(
    "Which models an overlay is for.",
    {
        "architectures": Field(ListOf(Text()), "First entry of `architectures` in config.json."),
        "names": Field(ListOf(Text()), "Hub ids; * and ? are wildcards."),
    },
)

DOCUMENT = Record(
    "A search space of tune, or a part of one.",
    {
        "schema": Field(OneOf((1,)), "Version of this format.", required=True),
        "name": Field(Text(), "Its name in lists."),
        "description": Field(Text(), "One line for lists."),
        "extends": Field(ListOf(Text()), "Files that this one builds on: relative to search_spaces/, or ./ beside it."),
        "hardware": Field(_HARDWARE, "Hardware profiles only."),
        "model": Field(Text(), "Default model: hub id or folder."),
        "workload": Field(EitherOf((Text(), _WORKLOAD), "a name or a mapping"), "Default workload, or a workload."),
        "arguments": Field(_ARGUMENTS, "Flags for every candidate, the baseline included."),
        "environment": Field(_ENVIRONMENT, "Environment variables for every candidate."),
        "parameters": Field(
            MapOf(
                kind=PARAMETER,
                pattern=_NAME,
                hint="is no parameter name: letters, digits and underscores",
                removable=True,
                reserved=_RESERVED,
            ),
            "What is searched. null removes a parameter of an earlier file.",
        ),
        "derived": Field(ListOf(_DERIVED), "Arguments that follow from others, in order."),
        "forbid": Field(ListOf(_FORBID), "What cannot start, and why."),
        "neutral": Field(ListOf(_NEUTRAL), "What has no effect: candidates that differ only there are one."),
        "starts": Field(MapOf(kind=_START, removable=True), "Configurations known to be good."),
        "match": Field(_MATCH, "Model overlays only."),
        "facts": Field(
            MapOf(kind=MapOf(kind=AnyJson()), removable=True), "Hub id → shape, for planning without the model's files."
        ),
    },
)


def check_document(root: Located) -> list[Problem]:
    """Everything in which a file departs from the format; empty if it keeps to it."""
    return list(DOCUMENT.check(root, ""))


def json_schema() -> dict[str, Json]:
    """The format as JSON Schema (2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vllm-tune search space",
        **DOCUMENT.schema(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=1, sort_keys=False) + "\n")
