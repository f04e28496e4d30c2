"""From merged files to numbers, for one machine, model and workload."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tuner.errors import InputError
from tuner.model.hardware import Hardware
from tuner.model.llm import ModelFacts
from tuner.model.space import UNSET, Choice, Range
from tuner.model.workload import LoadPoint, Workload
from tuner.spaces.resolve import Resolved, hardware_from, resolve, workload_from, workload_scope
from tuner.spaces.yamlfile import parse_yaml

HARDWARE = Hardware(
    name="h", platform="cuda", device="H", count=4, capability=(9, 0), memory_gib=80, bandwidth_gb_s=3000
)
MODEL = ModelFacts(
    name="m", layers=2, hidden=8, heads=8, kv_heads=2, head_dim=16, vocab=10, max_position=4096, weight_bytes=1e9
)
WORKLOAD = Workload(name="w", points=(LoadPoint(concurrency=8), LoadPoint(concurrency=64)))


def resolved(text: str, *, hardware: Hardware = HARDWARE, model: ModelFacts = MODEL) -> Resolved:
    root = parse_yaml(("schema: 1\n" + text).encode(), "f.yaml")
    return resolve(root, name="s", hardware=hardware, model=model, workload=WORKLOAD)


def domain(text: str) -> Range | Choice:
    return resolved(f"parameters: {{x: {{flag: x, {text}}}}}").space.parameter("x").domain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type: int, low: 1, high: 9", Range(low=1, high=9)),
        ("type: int, low: 32, high: 'workload.max_concurrency * 2', log: true", Range(low=32, high=128, log=True)),
        ("type: int, low: '6 / 5', high: '99 / 10'", Range(low=2, high=9)),
        ("type: int, low: 10, high: 100, step: 32", Range(low=10, high=74, step=32)),
        ("type: int, low: 2, high: 64, log: true, base: 2", Range(low=2, high=64, log=True, base=2)),
        ("type: float, low: 0.5, high: 0.9", Range(low=0.5, high=0.9, integer=False)),
        ("type: float, low: 0.8, high: 0.95, step: 0.05", Range(low=0.8, high=0.95, step=0.05, integer=False)),
        ("type: bool", Choice(values={True: True, False: False})),
        ("type: choice, values: [16, 32]", Choice(values={16: 16, 32: 32})),
        ("type: choice, values: [a, default]", Choice(values={"a": "a", "default": UNSET})),
        ("type: choice, values: {1: default, 2: 2}, ordinal: true", Choice(values={1: UNSET, 2: 2}, ordinal=True)),
        ("type: choice, values: {a: {value: {k: [1]}}, b: [1, 2]}", Choice(values={"a": {"k": [1]}, "b": [1, 2]})),
        (
            "type: choice, values: {a: 1, b: {value: 2, if: 'hardware.sm >= 100'}, c: 3}",
            Choice(values={"a": 1, "c": 3}),
        ),
    ],
)
def test_domains(text: str, expected: Range | Choice) -> None:
    found = domain(text)
    assert type(found) is type(expected)
    if isinstance(expected, Range):
        assert dataclasses.asdict(found) == pytest.approx(dataclasses.asdict(expected))
    else:
        assert found == expected


def test_an_alternative_that_sets_several() -> None:
    text = "flag: x, type: choice, values: {a: default, b: {arguments: {y: {z: 1}}, environment: {E: 1}}, c: 3}"
    parameter = resolved(f"parameters: {{x: {{{text}}}}}").space.parameter("x")
    assert parameter.target == ""
    assert parameter.domain == Choice(
        values={
            "a": UNSET,
            "b": {"arguments": {"y.z": 1}, "environment": {"E": "1"}},
            "c": {"arguments": {"x": 3}},
        }
    )
    assert parameter.default == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type: int, low: 1", "f.yaml:2: parameters.x: needs `high`"),
        ("low: 1, high: 2", "f.yaml:2: parameters.x: needs `type`"),
        ("type: int, low: max_num_seqs, high: 9", "may only read hardware, model and workload, not max_num_seqs"),
        ("type: int, low: hardware.foo, high: 9", "parameters.x.low: hardware has no 'foo'"),
        ("type: int, low: \"'a'\", high: 9", "parameters.x.low: gives 'a' here, not a number"),
        ("type: int, low: hardware.tflops.fp4, high: 9", "parameters.x.low: gives None here, not a number"),
        ("type: int, low: 0, high: 9, log: true", "a logarithmic range starts above 0"),
        ("type: int, low: 1, high: 9, step: 0.5", "parameters.x.step: is 0.5"),
        ("type: int, low: 1, high: 9, values: [1]", "belongs to `type: choice`"),
        ("type: int, low: 1, high: 9, base: 2", "needs `type: int` and `log: true`"),
        ("type: choice", "needs `values`"),
        ("type: choice, values: [[1], 2]", "lists only single values"),
        ("type: choice, values: [1, 1]", "stands here for the second time"),
        ("type: choice, values: {a: {if: 'true'}}", "needs `value`, `arguments` or `environment`"),
        ("type: bool, low: 1", "does not belong to `type: bool`"),
        ("env: E, type: bool", "has both `flag` and `env`"),
        ("type: int, low: 1, high: 9, default: abc", "parameters.x.default: must be a number"),
        ("type: bool, if: y", "parameters.x.if: may only read"),
    ],
)
def test_parameters_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        resolved(f"parameters: {{x: {{flag: x, {text}}}}}")


def test_a_parameter_needs_a_target() -> None:
    with pytest.raises(InputError, match="needs `flag` or `env`"):
        resolved("parameters: {x: {type: int, low: 1, high: 2}}")


def test_one_value_left_is_no_parameter() -> None:
    found = resolved(
        "arguments: {z: 1}\n"
        "parameters:\n"
        "  one: {flag: a, type: int, low: 2, high: 2}\n"
        "  unset: {flag: b, type: choice, values: {q: default, r: {value: r, if: 'hardware.sm > 100'}}}\n"
        "  same: {flag: c, type: choice, values: [5], default: 5}\n"
        "  none: {flag: d, type: choice, values: {r: {value: r, if: 'hardware.sm > 100'}}}\n"
        "  empty: {flag: e, type: int, low: 9, high: 'workload.min_concurrency'}\n"
        "  absent: {flag: f, type: bool, if: model.is_moe}\n"
        "  several: {type: choice, values: {s: {arguments: {g: 1}, environment: {E: 2}}}}\n"
        "  conditional: {flag: h, type: choice, values: [7], when: other}\n"
        "  other: {flag: i, type: bool}\n"
    )
    space = found.space
    assert [item.name for item in space.parameters] == ["other", "conditional"]
    assert space.base_arguments == {"z": 1, "a": 2, "g": 1}
    assert space.base_environment == {"E": "2"}
    assert space.constants == {"one": 2, "unset": "q", "same": 5, "several": "s"}
    assert found.notes == (
        "none is not searched: none of its values is for this hardware and model",
        "empty is not searched: nothing lies between 9 and 8 here",
    )


def test_parameters_follow_what_decides_them() -> None:
    text = (
        "parameters:\n"
        "  depth: {flag: speculative-config.num_speculative_tokens, type: int, low: 1, high: 3, when: method}\n"
        "  extra: {flag: e, type: bool, when: 'speculative_config.num_speculative_tokens > 1'}\n"
        "  method: {type: choice, values: {off: default, a: {arguments: {speculative-config.method: a}}}}\n"
    )
    assert [item.name for item in resolved(text).space.parameters] == ["method", "depth", "extra"]
    circle = "parameters: {a: {flag: a, type: bool, when: b}, b: {flag: b, type: bool, when: a}}"
    with pytest.raises(InputError, match=re.escape("the `when` of a, b depend on one another")):
        resolved(circle)


def test_starts_in_the_spaces_terms() -> None:
    found = resolved(
        "parameters: {a: {flag: a, type: int, low: 1, high: 8}, b: {flag: b, type: bool}, c: {flag: c, type: choice, "
        "values: [x, y]}, one: {flag: o, type: choice, values: [k]}}\n"
        "starts:\n"
        "  good: {assign: {a: 99, b: 'true', one: k}, source: there}\n"
        "  bad: {assign: {c: z}}\n"
        "  unknown: {assign: {q: 1}}\n"
        "  elsewhere: {if: 'hardware.sm > 100', assign: {a: 1}}\n"
    )
    assert [(item.name, item.assignment, item.source) for item in found.space.starts] == [
        ("good", {"a": 8, "b": True}, "there")
    ]
    assert found.notes == (
        "start bad is left out: c=z is not offered here",
        "start unknown is left out: q=1 is not offered here",
    )


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        resolved("parameters: {a: {type: bool}, b: {flag: b, type: int}, c: {flag: c, type: choice}}")
    assert len(caught.value.problems) == 3  # type: ignore[attr-defined]
    assert "(and 2 more: `tune check` lists them)" in str(caught.value)


def test_the_digest_stands_for_what_can_be_chosen() -> None:
    base = "parameters: {a: {flag: a, type: int, low: 1, high: 'hardware.count'}}"
    digest = resolved(base).space.digest
    assert re.fullmatch("[0-9a-f]{16}", digest)
    assert resolved(base + "\nforbid: [{name: x, if: 'a > 1'}]").space.digest == digest
    assert resolved(base, hardware=dataclasses.replace(HARDWARE, memory_gib=79.6)).space.digest == digest
    assert resolved(base, hardware=dataclasses.replace(HARDWARE, count=8)).space.digest != digest
    assert resolved(base + "\narguments: {b: 1}").space.digest != digest


def test_hardware_and_workload() -> None:
    root = parse_yaml(
        b'hardware: {platform: cuda, device: D, capability: "12.1", memory_gib: 119.7, bandwidth_gb_s: 273, count: 1e1,'
        b" recognise: [D], sources: {count: x}}",
        "f",
    )
    found = hardware_from(root, "n")
    assert (found.name, found.sm, found.count, found.memory_gib) == ("n", 121, 10, 119.7)
    with pytest.raises(InputError, match="needs device, memory_gib, bandwidth_gb_s"):
        hardware_from(parse_yaml(b"hardware: {platform: cpu}", "f"), "n")
    with pytest.raises(InputError, match="no hardware profile"):
        hardware_from(parse_yaml(b"a: 1", "f"), "n")

    node = parse_yaml(b"points: [{concurrency: 4, requests: 9}, {rate: 2.5, requests: 50}]\nrounds: [1, 3]", "f")
    traffic = workload_from(node, "t")
    assert traffic.points == (LoadPoint(concurrency=4, requests=9), LoadPoint(rate=2.5, requests=50))
    assert traffic.rounds == (1, 3)
    scope = workload_scope(traffic)
    assert (scope["max_concurrency"], scope["min_concurrency"], scope["tokens_needed"]) == (50, 4, 256)
    for text, message in (
        (b"points: []", "at least one load point"),
        (b"points: [{requests: 3}]", "needs `concurrency`, `rate`, or both"),
        (b"rounds: [3, 1]", "must be [least, most]"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            workload_from(parse_yaml(text, "f"), "t")
