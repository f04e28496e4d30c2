"""YAML that somebody else wrote: plain data with lines, or one clear error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.spaces.yamlfile import MAX_BYTES, parse_yaml, plain, read_yaml


def test_values_and_lines() -> None:
    root = parse_yaml(b"a: 1\nb:\n  - x\n  - {c: 2.5e1, d: null}\n", "f.yaml")
    assert plain(root) == {"a": 1, "b": ["x", {"c": 25.0, "d": None}]}
    assert root.mapping["b"].items[1].mapping["c"].line == 4
    assert root.get("missing") is None
    assert root.mapping["b"].items[1].get("d") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),  # YAML 1.1 makes this false
        ("1:30", "1:30"),  # and this 90
        ("2020-01-01", "2020-01-01"),
        ("1e3", 1000.0),
        ("'12'", "12"),
        ("true", True),
        ("~", None),
        ("-5", -5),
        ("0x10", "0x10"),
        ("010", 10),
        ("2K", "2K"),
        ("|\n  text", "text"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    assert plain(parse_yaml(f"a: {text}".encode(), "f")) == {"a": value}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: 1\na: 2", "f.yaml:2: the key 'a' stands here for the second time (first in line 1)"),
        (b"a: &x [1]\nb: *x", "f.yaml:1: anchors and aliases"),
        (b"a:\n  <<: {b: 1}", "f.yaml:2: merge keys"),
        (b"a: !!python/object/apply:os.system [x]", "f.yaml:1: tags such as"),
        (b"- 1", "f.yaml:1: must be a mapping"),
        (b"just text", "f.yaml:1: must be a mapping"),
        (b"a: 1\n---\nb: 2", "f.yaml:2: holds a second document"),
        (b"a: 1\nb: \xff", "f.yaml:2: is not UTF-8 text"),
        (b"a: [1", "f.yaml:2: is not YAML"),
        (b"a: \x07", "f.yaml: is not YAML"),
        (b"a: .inf", "f.yaml:1: .inf is not a number"),
        (b"a: 1e999", "f.yaml:1: 1e999 is too large"),
        (b"? [a]\n: 1", "f.yaml:1: a key must be a plain word"),
        (b"a: " + b"[" * 40 + b"]" * 40, "f.yaml:1: is nested more than 24 deep"),
        (b"a: " + b"[" * 100_000, "f.yaml:1: is"),
        (b"a: [" + b"1," * 60_000 + b"1]", "f.yaml:1: holds more than 50000 values"),
        (b"a: '" + b"x" * 20_000 + b"'", "f.yaml:1: a value is 20000 characters long"),
    ],
)
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse_yaml(data, "f.yaml")
    assert "\n" not in str(caught.value)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(tmp_path)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_yaml(large)
    empty = tmp_path / "empty.yaml"
    empty.write_bytes(b"")
    assert plain(read_yaml(empty)) == {}
