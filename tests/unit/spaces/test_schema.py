"""The format: what it refuses, with line and key, and the JSON Schema made from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.spaces.loader import spaces_folder
from tuner.spaces.schema import check_document, json_schema
from tuner.spaces.yamlfile import parse_yaml, read_yaml


def problems(text: str) -> list[str]:
    return [str(problem) for problem in check_document(parse_yaml(("schema: 1\n" + text).encode(), "f.yaml"))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parametrs: {}", "f.yaml:2: parametrs: unknown key; did you mean `parameters`?"),
        ("parameters: []", "f.yaml:2: parameters: must be a mapping, not a list"),
        ("parameters: {x: {type: itn}}", "f.yaml:2: parameters.x.type: must be one of int, float, choice, bool"),
        ("parameters:\n  x:\n    hgh: 3", "f.yaml:4: parameters.x.hgh: unknown key; did you mean `high`?"),
        ("parameters: {x: {low: '1 +'}}", "f.yaml:2: parameters.x.low: expression '1 +': column 1"),
        ("parameters: {x: {high: [1]}}", "f.yaml:2: parameters.x.high: must be an expression"),
        ("parameters: {x: {flag: max_num_seqs}}", "f.yaml:2: parameters.x.flag: 'max_num_seqs' is not a flag"),
        ("parameters: {x: {flag: --foo}}", "is not a flag as it is written here"),
        ("parameters: {hardware: {}}", "already means something in expressions"),
        ("parameters: {x-y: {}}", "is no parameter name"),
        ("parameters: {x: {values: 3}}", "parameters.x.values: must be a list or a mapping, not 3"),
        ("parameters: {x: {values: {a: {vlue: 1}}}}", "parameters.x.values.a.vlue: unknown key; did you mean `value`?"),
        (
            "parameters: {x: {flag: x, type: choice, values: {auto: null, a: 1}}}",
            "f.yaml:2: parameters.x.values.auto: null takes away a label of an earlier file; write `default`",
        ),
        ("arguments: {model: x}", "f.yaml:2: arguments.model: `model` is set by tune itself"),
        ("arguments: {port: 1}", "arguments.port: `port` is set by tune itself"),
        ("environment: {X: true}", "environment.X: must be text or a number"),
        ("environment: {'1X': a}", "is not the name of an environment variable"),
        ("forbid: [{if: 'true'}]", "forbid[0]: needs the key `name`"),
        ("forbid: [{name: x, if: 'a <'}]", "forbid[0].if: expression 'a <'"),
        ("forbid: [{name: x, if: 'a', reason: 'is {a +}'}]", "forbid[0].reason: {a +} is no expression"),
        ("derived: [{target: a-b, value: 'x ** 2'}]", "derived[0].value: expression 'x ** 2': column 1"),
        ("derived: [{target: a-b}]", "needs the key `value`"),
        ("neutral: [{if: 'true'}]", "needs the key `targets`"),
        ("starts: {a: {assign: {x: {y: 1}}}}", "starts.a.assign.x: must be a single value"),
        ("hardware: {capability: 9.0}", "hardware.capability: must be text, not 9.0; put it in quotes"),
        ("hardware: {memory_gib: -1}", "hardware.memory_gib: is -1, but must be at least 0"),
        ("hardware: {platform: tpu}", "must be one of cuda, rocm, cpu"),
        ("hardware: {count: 1.5}", "hardware.count: must be a whole number"),
        ("workload: {points: [{concurrency: 0}]}", "workload.points[0].concurrency: is 0, but must be from 1"),
        ("workload: {rounds: [1]}", "workload.rounds: must have 2 elements, not 1"),
        ("workload: {spread: 2}", "workload.spread: is 2, but must be from 0 to 1"),
        ("model: 3", "model: must be text, not 3"),
        ("extends: base", "extends: must be a list"),
    ],
)
def test_refused_with_line_and_key(text: str, message: str) -> None:
    found = problems(text)
    assert any(message in line for line in found), found


def test_schema_version_is_needed_and_known() -> None:
    assert [str(p) for p in check_document(parse_yaml(b"name: x", "f"))] == [
        "f:1: schema: needs the key `schema`: write `schema: 1`"
    ]
    assert [str(p) for p in check_document(parse_yaml(b"schema: 2", "f"))] == ["f:1: schema: must be 1, not 2"]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("100000000000000000000000", "is 100000000000000000000000, but 999999999999999999 is the largest number"),
        ("9223372036854775807", "is 9223372036854775807, but 999999999999999999 is the largest number"),
        ("-1e308", "is -1e+308, but -999999999999999999 is the smallest number"),
    ],
)
def test_a_number_that_is_too_large_is_told_as_it_was_written(number: str, message: str) -> None:
    assert problems(f"parameters: {{x: {{flag: x, type: int, low: 1, high: {number}}}}}") == [
        f"f.yaml:2: parameters.x.high: {message} that is taken"
    ]


def test_every_problem_is_found_at_once() -> None:
    assert len(problems("foo: 1\narguments: {A: 1, model: x}\nparameters: {x: {type: 1, lw: 2}}")) == 5


def test_null_takes_away() -> None:
    assert problems("parameters: {x: null}\narguments: {a: null}\nstarts: {s: null}\nenvironment: {E: null}") == []
    assert problems("parameters: {x: {values: {auto: null}}}") == []  # without a type: laid over an earlier one


def test_json_schema_is_in_step_with_the_code() -> None:
    written = json.loads((spaces_folder() / "schema.json").read_text(encoding="utf-8"))
    assert written == json_schema(), "run: python -m tuner.spaces.schema > search_spaces/schema.json"


@pytest.mark.parametrize("path", sorted(spaces_folder().rglob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_files_keep_to_the_format(path: Path) -> None:
    assert [str(problem) for problem in check_document(read_yaml(path))] == []
