"""Finding files and laying them over one another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.spaces.loader import Library, facts_catalogue, merge, overlay_for, targets_of
from tuner.spaces.yamlfile import Located, parse_yaml, plain


def document(text: str, name: str = "f.yaml") -> Located:
    return parse_yaml(text.encode(), name)


def merged(*texts: str, user: str = "") -> dict[str, object]:
    users = [document(user, "mine.yaml")] if user else []
    result = plain(merge([document(text) for text in texts], users).root)
    assert isinstance(result, dict)
    return result


def test_later_files_win_key_by_key() -> None:
    found = merged(
        "model: a\nhardware: {count: 1, tflops: {bf16: 1, fp8: 2}}\narguments: {x: 1, y: 2}\nenvironment: {A: a, B: b}",
        "model: b\nhardware: {count: 2, tflops: {fp8: null}}\narguments: {y: null, z: 3}\nenvironment: {B: null}",
    )
    assert found == {
        "model": "b",
        "hardware": {"count": 2, "tflops": {"bf16": 1}},
        "arguments": {"x": 1, "z": 3},
        "environment": {"A": "a"},
    }


def test_nested_arguments_meet_whichever_way_they_are_spelt() -> None:
    found = merged(
        "arguments: {compilation-config: {cudagraph_mode: FULL, mode: 3}, other: {a.b: 1}}",
        "arguments: {compilation-config.cudagraph_mode: NONE}",
    )
    assert found["arguments"] == {
        "compilation-config.mode": 3,
        "compilation-config.cudagraph_mode": "NONE",
        "other": {"a.b": 1},  # a key with a dot has no dotted path
    }
    assert merged("arguments: {a-b: {c: 1, d: 2}}", "arguments: {a-b: null}")["arguments"] == {}
    assert merged("arguments: {a-b: {c: 1, d: 2}}", "arguments: {a-b: 5}")["arguments"] == {"a-b": 5}


def test_parameters_change_by_field_unless_they_say_their_type() -> None:
    base = "parameters: {x: {flag: x, type: int, low: 1, high: 9, log: true}, y: {flag: y, type: bool}}"
    assert merged(base, "parameters: {x: {high: 5}, y: null}")["parameters"] == {
        "x": {"flag": "x", "type": "int", "low": 1, "high": 5, "log": True}
    }
    assert merged(base, "parameters: {x: {flag: x, type: bool}}")["parameters"] == {
        "x": {"flag": "x", "type": "bool"},
        "y": {"flag": "y", "type": "bool"},
    }


def test_rules_by_name_derived_by_target_neutral_added() -> None:
    found = merged(
        "forbid: [{name: a, if: x}, {name: b, if: y}]\nderived: [{target: t, value: 1}, {target: u, value: 1}]\n"
        "neutral: [{targets: [p]}]",
        "forbid: [{name: a, if: false}]\nderived: [{target: t, value: 2, when: z}, {target: t, value: 3}]\n"
        "neutral: [{targets: [q]}]",
    )
    assert found["forbid"] == [{"name": "a", "if": False}, {"name": "b", "if": "y"}]
    assert [(item["target"], item["value"]) for item in found["derived"]] == [("u", 1), ("t", 2), ("t", 3)]  # type: ignore[attr-defined]
    assert found["neutral"] == [{"targets": ["p"]}, {"targets": ["q"]}]


def test_what_a_user_sets_is_not_searched() -> None:
    base = (
        "parameters: {a: {flag: block-size, type: bool}, b: {env: X, type: bool}, c: {type: choice, values: "
        "{m: {arguments: {moe-backend: t, other: 1}}}}, d: {flag: d, type: bool}}"
    )
    result = merge(
        [document(base)], [document("arguments: {block-size: 64, moe-backend: q}\nenvironment: {X: 1}", "me")]
    )
    assert list(result.root.mapping["parameters"].mapping) == ["d"]
    assert result.notes == (
        "a is not searched: me fixes block-size",
        "b is not searched: me fixes env:X",
        "c is not searched: me fixes moe-backend",
    )
    # Shipped layers only change what the baseline carries.
    layers = merge([document(base), document("arguments: {block-size: 64}")])
    assert list(layers.root.mapping["parameters"].mapping) == ["a", "b", "c", "d"]


def test_targets_of_a_parameter() -> None:
    node = document("flag: a-b\nvalues: {x: {arguments: {c: {d: 1}}, environment: {E: 1}}, y: default}")
    assert targets_of(node) == {"a-b", "c.d", "env:E"}


def test_extends_each_file_once_bases_first(library: Library, tmp_path: Path) -> None:
    (library.folder / "base" / "more.yaml").write_text("schema: 1\nname: more\nextends: [base/common]\n")
    top = tmp_path / "top.yaml"
    top.write_text("schema: 1\nname: top\nextends: [base/common, base/more, ./beside]\n")
    (tmp_path / "beside.yaml").write_text("schema: 1\nname: beside\nextends: [base/more]\n")
    chain = library.chain(top)
    assert [Path(root.file).name for root in chain] == ["common.yaml", "more.yaml", "beside.yaml", "top.yaml"]
    assert chain[0].file == "search_spaces/base/common.yaml"
    assert chain[-1].file == str(top)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: [./a]", "a.yaml:2: extends: ./a extends this file in turn; break the circle"),
        ("extends: [./b]", "b.yaml:2: extends: ./a extends this file in turn"),
        ("extends: [base/comon]", "there is no base/comon; did you mean base/common?"),
        ("extends: [../../../etc/passwd]", "there is no ../../../etc/passwd"),
        ("extends: [/etc/passwd]", "is no name such as base/cuda"),
        ("extends: [base/..]", "is no name such as base/cuda"),
    ],
)
def test_extends_refused(library: Library, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(f"schema: 1\n{text}\n")
    (tmp_path / "b.yaml").write_text("schema: 1\nextends: [./a]\n")
    with pytest.raises(InputError, match=re.escape(message)):
        library.chain(tmp_path / "a.yaml")


def test_unknown_names_get_close_ones(library: Library) -> None:
    assert library.find("h1", "", "hardware profile") == library.folder / "h1.yaml"
    with pytest.raises(InputError, match="unknown hardware profile 'H2'; did you mean h1"):
        library.find("H2", "", "hardware profile")
    with pytest.raises(InputError, match=re.escape("unknown workload '../h1'")):
        library.find("../h1", "workloads", "workload")
    with pytest.raises(InputError, match="there are short"):
        library.find("zzzz", "workloads", "workload")


def test_overlays(library: Library) -> None:
    overlays = library.overlays()
    assert overlay_for(overlays, "Org/Tiny-MoE-9b") == "tiny-moe"
    assert overlay_for(overlays, "/models/local", "TinyMoe") == "tiny-moe"
    assert overlay_for(overlays, "other/model", "Other") == "generic"
    catalogue = facts_catalogue(overlays)
    assert sorted(catalogue) == ["org/tiny", "org/tiny-moe-8b"]
    assert catalogue["org/tiny-moe-8b"]["experts"] == 8
