"""The expression language of the search spaces: what it computes, and what it refuses."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.expression import Expression, ExpressionError
from tuner.model.hardware import Hardware
from tuner.model.llm import ModelFacts

HOPPER = Hardware(
    name="h200",
    platform="cuda",
    device="NVIDIA H200",
    capability=(9, 0),
    memory_gib=140.4,
    bandwidth_gb_s=4800,
    tflops={"bf16": 989.0},
)
MOE = ModelFacts(
    name="m",
    layers=1,
    hidden=1,
    heads=32,
    kv_heads=4,
    head_dim=64,
    vocab=1,
    max_position=4096,
    weight_bytes=1e9,
    experts=128,
    extra={"topk": 8},
)
SCOPE: dict[str, object] = {
    "hardware": HOPPER,
    "model": MOE,
    "workload": {"max_concurrency": 256},
    "seqs": 64,
    "share": 0.5,
    "kv": "fp8_e4m3",
    "unset": None,
    "flags": {"block-size": 64},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-seqs // 10", -7),
        ("7 % 4", 3),
        ("min(2048, workload.max_concurrency * 2)", 512),
        ("max([1, seqs, unset])", 64),
        ("ceil(seqs / 10) + floor(0.9) + abs(-1) + int(2.7)", 10),
        ("round(3.14159, 2)", 3.14),
        ("len([1, 2])", 2),
        ("hardware.sm", 90),
        ("hardware.sm >= 90 and model.is_moe", True),
        ("hardware.tflops.bf16", 989.0),
        ("hardware.tflops.fp4", None),
        ("hardware.capability == [9, 0]", True),
        ("model.extra.topk", 8),
        ("1 < seqs <= 64", True),
        ("'fp8' in kv", True),
        ("kv not in ['auto', 'bfloat16']", True),
        ("not true", False),
        ("seqs if share > 1 else 'small'", "small"),
        ("[[1, 32, 3], [33, seqs, 0]]", [[1, 32, 3], [33, 64, 0]]),
        ("unset or 8", 8),
        ("flags.block_size", 64),
        ("'a'  \n  == 'a'", True),
    ],
)
def test_value(text: str, value: object) -> None:
    assert Expression.parse(text).evaluate(SCOPE) == value


@pytest.mark.parametrize(
    "text",
    ["unset < 1", "unset >= 1", "unset in ['a']", "'a' in unset", "(unset * 2) > 0", "unset.anything.deeper == 1"],
)
def test_what_is_not_set_makes_no_rule_speak(text: str) -> None:
    assert Expression.parse(text).evaluate(SCOPE) is False


def test_arithmetic_with_null_is_null() -> None:
    assert Expression.parse("unset + 1").evaluate(SCOPE) is None
    assert Expression.parse("min(unset, 1)").evaluate(SCOPE) is None
    assert Expression.parse("-unset").evaluate(SCOPE) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nobody + 1", "unknown name 'nobody'"),
        ("hardware.smm", "hardware has no 'smm'"),
        ("model.name.upper", "model.name has no 'upper'"),
        ("hardware", "hardware is not a value"),
        ("kv + 1", "+ needs numbers, not 'fp8_e4m3'"),
        ("true + 1", "+ needs numbers, not True"),
        ("kv < 1", "< needs numbers"),
        ("1 / 0", "divides by zero"),
        ("1 % 0", "divides by zero"),
        ("9e18 * 9e18", "too large"),
        ("9000000000 * 9000000000 * 9000000000", "too large"),
        ("len(1)", "len() needs"),
        ("1 in 2", "nothing can be in 2"),
        ("1 in 'a'", "only a string"),
        ("round(1, -1000000000)", "at most 18 digits"),
        ("max('a', 1)", "needs numbers"),
    ],
)
def test_no_value(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Expression.parse(text).evaluate(SCOPE)
    assert message in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("2 ** 10", "column 1: the operator Pow"),
        ("1 + (2", "column 5"),
        ("seqs + __import__('os')", "column 8: no such function"),
        ("().__class__", "column 1: a dot may only follow a name"),
        ("a.__class__", "underscore"),
        ("[x for x in y]", "ListComp"),
        ("{'a': 1}", "Dict"),
        ("f'{seqs}'", "JoinedStr"),
        ("a[0]", "Subscript"),
        ("(lambda: 1)()", "no such function"),
        ("(a := 1)", "NamedExpr"),
        ("a is b", "compare"),
        ("1 | 2", "BitOr"),
        ("~1", "UnaryOp"),
        ("min(1, key=2)", "plain arguments"),
        ("min(*a)", "plain arguments"),
        ("ceil()", "does not take 0"),
        ("b'x'", "bytes is not a value"),
        ("1e999", "too large"),
        ("9" * 400, "too large"),
        ("x" * 3000, "3000 characters"),
        ("(" * 500 + "1" + ")" * 500, "nested"),
        ("-" * 1500 + "1", "deep"),
        ("+".join("1" * 900), "deep"),
        ("\0", "column 1"),
    ],
)
def test_outside_the_grammar(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Expression.parse(text)
    assert not isinstance(caught.value, ExpressionError)


def test_columns_count_from_what_was_written() -> None:
    with pytest.raises(ValueError, match="column 8: the operator Pow"):
        Expression.parse("\n  1 + 2 ** 3")


def test_names_and_identity() -> None:
    one = Expression.parse("hardware.sm > 80 and not (seqs in flags.sizes) or true")
    assert one.names == {"hardware.sm", "seqs", "flags.sizes"}
    assert one == Expression.parse(one.text)
    assert hash(one) == hash(Expression.parse(one.text))
    assert one != Expression.parse("true")


@given(st.text(alphabet="sequnt.()[]+-*/%<>=! 0123456789'\"andorifelsmx,\n", max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        expression = Expression.parse(text)
    except ValueError:
        return
    with contextlib.suppress(ExpressionError):
        expression.evaluate(SCOPE)


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("hardware.sm == 90 and x > 1", True),
        ("x > 1 and hardware.sm == 90", True),
        ("hardware.sm == 80 and x > 1", False),
        ("hardware.sm == 90 or x > 1", False),
        ("hardware.sm == 90 or hardware.sm > 100", True),
        ("not (hardware.sm == 80 or x > 1)", True),
        ("not (hardware.sm == 90 and x > 1)", False),
        ("x > 1 if hardware.sm == 80 else false", False),
        ("x > 1 if hardware.sm == 90 else false", True),
        ("x == null", False),
        ("null", True),
        ("hardware.sm < 'a'", False),
    ],
)
def test_what_is_false_whatever_is_not_known(text: str, never: bool) -> None:
    assert Expression.parse(text).never_holds({"hardware": {"sm": 80}}) is never
