"""`tune check`: everything wrong with a file, and what the space is like."""

from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tuner.errors import InputError
from tuner.spaces.check import check_space, size_of
from tuner.spaces.introspect import VllmFlags
from tuner.spaces.loader import Library, spaces_folder
from tuner.spaces.plan import Plan, open_plan

Make = Callable[..., Path]


def test_a_good_file(library: Library, space_file: Make) -> None:
    path = space_file(
        "parameters: {max_num_seqs: {high: 64}, stream: {flag: stream-interval, type: int, low: 1, high: 8}}"
    )
    report = check_space(path, hardware="h1", flags=VllmFlags.known("0.32.0"), library=library)
    assert report.ok
    assert report.errors == report.warnings == ()
    assert (report.profile, report.model, report.workload) == ("h1", "org/tiny", "short")
    # seqs, tokens, speculation, depth, KV dtype, quantization, utilization, tensor parallel, prefix, threads, stream
    assert report.size == 33 * 8129 * 2 * 7 * 2 * 2 * 4 * 3 * 2 * 2 * 8
    assert report.survey is not None
    assert set(report.survey.excluded) <= {"ranks", "tokens-below-seqs"}
    document = report.document()
    assert document["ok"] is True
    assert document["size"] == report.size
    assert 0.4 < document["feasible_share"] < 0.8  # type: ignore[operator]


def test_errors_with_file_line_and_key(library: Library, space_file: Make) -> None:
    path = space_file("parametrs: {}\narguments: {model: x}\nparameters:\n  x: {type: itn}\n")
    report = check_space(path, hardware="h1", library=library)
    assert not report.ok
    assert [(item.line, item.key) for item in report.errors] == [
        (2, "parametrs"),
        (3, "arguments.model"),
        (5, "parameters.x.type"),
    ]
    output = io.StringIO()
    report.print(Console(file=output, width=300))
    assert f"error: {path}:2: parametrs: unknown key; did you mean `parameters`?" in output.getvalue()


def test_errors_that_show_in_the_merged_space(library: Library, space_file: Make) -> None:
    path = space_file("parameters:\n  x: {flag: stream-interval, type: int, low: 1}\n  y: {flag: b, low: 1}\n")
    report = check_space(path, hardware="h1", library=library)
    assert [(item.file, item.line, item.key) for item in report.errors] == [
        (str(path), 3, "parameters.x"),
        (str(path), 4, "parameters.y"),
    ]


def test_a_rule_without_a_value_is_an_error(library: Library, space_file: Make) -> None:
    path = space_file("forbid: [{name: odd, if: 'kv_cache_dtype + 1 > 3'}]")
    report = check_space(path, hardware="h1", library=library)
    (error,) = report.errors
    assert (error.file, error.line, error.key) == (str(path), 2, "forbid[0]")
    assert error.message.startswith("the rule odd cannot be evaluated: + needs numbers, not '")
    assert error.message.endswith("in `kv_cache_dtype + 1 > 3`")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("derived: [{target: api-server-count, value: 'kv_cache_dtype + 1'}]", "derived[0]"),
        (
            "parameters: {odd: {flag: stream-interval, type: bool, when: 'kv_cache_dtype > 3'}}",
            "parameters.odd.when",
        ),
    ],
)
def test_what_has_no_value_is_an_error_in_its_place(library: Library, space_file: Make, text: str, key: str) -> None:
    (error,) = check_space(space_file(text), hardware="h1", library=library).errors
    assert (error.line, error.key) == (2, key)
    assert "cannot be evaluated: " in error.message


def test_a_space_in_which_nothing_can_start(library: Library, space_file: Make) -> None:
    path = space_file("forbid: [{name: all, if: 'hardware.sm < 100', reason: 'sm{hardware.sm} is too old'}]")
    report = check_space(path, hardware="h1", library=library)
    assert [(item.file, item.line, item.key, item.message) for item in report.errors] == [
        (str(path), 2, "forbid[0]", "nothing in this space can start on h1: the rule all: sm90 is too old")
    ]


def test_a_shipped_rule_is_named_with_its_file_and_the_way_out(space_file: Make) -> None:
    """No candidate of that profile's own model can start; another model may."""
    report = check_space(space_file(""), hardware="rtx4090x2", samples=20)
    (error,) = report.errors
    assert re.fullmatch(
        r"nothing in this space can start on rtx4090x2: about 160 GB of weights do not fit 2 x 23.5 GiB, .* "
        r"\(rule weights-beyond-devices, search_spaces/models/deepseek-v4.yaml:\d+\); deepseek-ai/DeepSeek-V4-Flash is "
        r"the profile's own model, give another with --model NAME",
        error.message,
    )
    assert check_space(space_file(""), hardware="rtx4090x2", model="Qwen/Qwen3-8B", samples=20).ok
    (error,) = check_space(
        space_file(""), hardware="rtx4090x2", model="deepseek-ai/DeepSeek-V4-Flash", samples=20
    ).errors
    assert "--model" not in error.message


def test_a_profile_is_checked_on_its_own_hardware(library: Library) -> None:
    report = check_space(library.folder / "h1.yaml", library=library)
    assert (report.ok, report.profile) == (True, "h1")


def test_which_profile_a_file_is_checked_for_where_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("schema: 1\nstarts: {wide: {assign: {max_num_seqs: 100000}}}\n")
    report = check_space(path, samples=3)
    assert [item.key for item in report.errors] == ["starts.wide.assign.max_num_seqs"]
    assert report.notes == ("checked for cpu, the profile of every machine; --hardware NAME checks it for yours",)
    path.write_text("schema: 1\n")
    report = check_space(path, samples=3)
    assert (report.ok, report.profile) == (True, "cpu")
    assert report.notes[0].startswith("checked for cpu")
    assert not any(note.startswith("checked for") for note in check_space(path, hardware="cpu", samples=3).notes)


def test_an_error_of_a_profile_that_nobody_named_says_how_to_name_one(space_file: Make) -> None:
    path = space_file("starts: {s: {assign: {stream_interval: 4}}}")
    (error,) = check_space(path, samples=3).errors
    assert error.message == (
        "there is no parameter stream_interval (checked for cpu: pass --hardware NAME, such as h200, to check it for "
        "your profile)"
    )
    assert check_space(path, hardware="h200", samples=3).ok
    # What is wrong on any machine does not speak of one.
    (error,) = check_space(space_file("parametrs: {}")).errors
    assert "--hardware" not in error.message


def test_missing_files_and_names(library: Library, space_file: Make) -> None:
    assert "cannot be read" in str(check_space(Path("/none.yaml"), library=library).errors[0])
    assert "unknown hardware profile" in str(check_space(space_file(""), hardware="h9", library=library).errors[0])


def test_size(plan: Plan) -> None:
    assert size_of(plan.space) > 1e6


# -- whatever is typed into a file ---------------------------------------------------------------------------------

_EXAMPLES = int(os.environ.get("TUNE_FUZZ_EXAMPLES", "200"))
_WORDS = (
    "parameters", "forbid", "if", "values", "flag", "type", "low", "high", "hardware.sm", "null", "{", "}", "[", "]",
    ": ", "- ", "\n", "  ", "'", '"', "&a", "*a", "<<", "!!x", "1e99", "-1", "0", "true", "max_num_seqs >", "min(",
    "**", "default", "extends", "#", "\t", "\u00e9", "\0", "---", "%", "1/0", "'a' + 1", ".nan", "9" * 30, "x" * 300,
)  # fmt: skip
_VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 10**30, 0.5, 1e300, "", "x", "default", "1/0", "a b", "max_num_seqs", "nobody + 1",
    "int", "choice", [], {}, [1, "a", None], {"a": 1}, {"value": {"b": [1]}}, [[1, 2], [3]], "hardware", "-" * 50,
    "(" * 60,
    {"arguments": {"a-b": {"c": 1}}}, ["./my"], "workload.max_concurrency * 10 ** 3", "9" * 40, {"type": "bool"},
)  # fmt: skip


def _paths(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in entries for inner in _paths(item, (*path, key)))]


def _mutate_tree(tree: object, rng: random.Random) -> object:
    """Change, remove, rename or move one value of a document."""
    paths = [path for path in _paths(tree) if path]
    path = rng.choice(paths)
    holder = tree
    for step in path[:-1]:
        holder = holder[step]  # type: ignore[index]
    key = path[-1]
    action = rng.randrange(5)
    if action == 0:
        del holder[key]  # type: ignore[attr-defined]
    elif action == 1 and isinstance(holder, dict):
        holder[rng.choice(["x", "if", "value", "low", "flag", "schema", "extends", "1", ""])] = holder.pop(key)
    elif action == 2:
        other = tree
        for step in rng.choice(paths):
            other = other[step]  # type: ignore[index]
        holder[key] = yaml.safe_load(yaml.safe_dump(other))  # type: ignore[index]
    else:
        holder[key] = rng.choice(_VALUES)  # type: ignore[index]
    return tree


def _mutated(text: str, rng: random.Random) -> bytes:
    if rng.random() < 0.6:
        tree = yaml.safe_load(text)
        for _ in range(rng.randint(1, 4)):
            if len(_paths(tree)) > 1:
                tree = _mutate_tree(tree, rng)
        return yaml.safe_dump(tree, sort_keys=False).encode()
    data = text
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        cut = at + rng.choice([0, 0, 1, 5, 40])
        data = data[:at] + rng.choice(_WORDS) + data[cut:]
    return data.encode()


_SHIPPED = Library()


def _documents() -> list[Path]:
    return [path for path in sorted(spaces_folder().glob("*.yaml")) if path.stem in ("cpu", "h200", "b300")] + [
        spaces_folder() / "base" / "cuda.yaml",
        spaces_folder() / "checkpoints" / "qwen3-30b-a3b.yaml",
        spaces_folder() / "workloads" / "batch-sweep.yaml",
    ]


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=_EXAMPLES)
@given(which=st.integers(0, 10**6), seed=st.integers(0, 10**9))
def test_any_file_is_valid_or_one_clear_error(tmp_path: Path, which: int, seed: int) -> None:
    documents = _documents()
    source = documents[which % len(documents)]
    path = tmp_path / "my.yaml"
    path.write_bytes(_mutated(source.read_text(encoding="utf-8"), random.Random(seed)))
    profile = "cpu" if source.stem == "cpu" else "h200"
    report = check_space(path, hardware=profile, samples=3, library=_SHIPPED)
    document = report.document()
    assert all(item["message"] and "\n" not in item["message"] for item in document["errors"])  # type: ignore[union-attr, index, call-overload]
    try:
        plan = open_plan(profile, space_files=[path], library=_SHIPPED)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both ends are right
        assert not report.ok
        return
    assert plan.planner.baseline().origin == "baseline"


@pytest.mark.parametrize("text", ["", "# nothing", "schema: 1"])
def test_nearly_empty_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(text)
    report = check_space(path, hardware="cpu", samples=3)
    assert report.ok == (text == "schema: 1")


SLIPS = """parameters:
  fourth: {flag: block-size, type: choice, values: [16, 32], when: "treads > 2"}
  third: {flag: %s, type: int, low: 1, high: %s}
forbid:
  - {name: a-rule, if: "hardware.cors > 4"}
"""


@pytest.mark.parametrize(
    ("flag", "high", "first"),
    [
        ("no-such-flag", "4", (4, "parameters.third", "no-such-flag: unknown to vLLM 0.32.0")),
        ("swap-space", "nonsense", (4, "parameters.third.high", "may only read hardware, model and workload")),
    ],
)
def test_independent_errors_are_told_at_once(
    library: Library, space_file: Make, flag: str, high: str, first: tuple[int, str, str]
) -> None:
    path = space_file(SLIPS % (flag, high))
    report = check_space(path, hardware="h1", flags=VllmFlags.known("0.32.0"), library=library)
    line, key, message = first
    assert [(item.line, item.key) for item in report.errors] == [
        (line, key),
        (3, "parameters.fourth.when"),
        (6, "forbid[0].if"),
    ]
    assert report.errors[0].message.startswith(message)
    assert report.errors[2].message == "hardware has no cors; did you mean cores?"
    with pytest.raises(InputError, match=r"\(and 2 more: `tune check` lists them\)$") as refused:
        open_plan("h1", space_files=[path], flags=VllmFlags.known("0.32.0"), library=library)
    assert str(refused.value).count("tune check") == 1
