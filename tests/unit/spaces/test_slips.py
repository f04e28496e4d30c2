"""What keeps to the format and is a slip all the same: an error with its place in a user's file, never in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.spaces.check import check_space
from tuner.spaces.introspect import VllmFlags
from tuner.spaces.loader import Library
from tuner.spaces.plan import open_plan

Make = Callable[..., Path]
FLAGS = VllmFlags.known("0.32.0")


def found(library: Library, path: Path) -> list[tuple[int, str, str]]:
    report = check_space(path, hardware="h1", flags=FLAGS, library=library)
    assert all(item.file == str(path) for item in report.errors)
    return [(item.line, item.key, item.message) for item in report.errors]


def test_bounds_the_wrong_way_round(library: Library, space_file: Make) -> None:
    path = space_file(
        "parameters:\n"
        "  max_num_seqs: {high: 8}\n"
        "  a: {flag: stream-interval, type: int, low: 5, high: 2}\n"
        "  b: {flag: cpu-offload-gb, type: float, low: 5.5, high: 2}\n"
    )
    assert found(library, path) == [
        (3, "parameters.max_num_seqs.high", "nothing lies from 32 (low) to 8 (high)"),
        (4, "parameters.a.high", "nothing lies from 5 (low) to 2 (high)"),
        (5, "parameters.b.high", "nothing lies from 5.5 (low) to 2 (high)"),
    ]
    # A bound that follows from the machine may leave nothing there: that is a note, as in shipped files.
    plan = open_plan(
        "h1",
        space_files=[
            space_file('parameters: {a: {flag: x-y, type: int, low: "hardware.count + 1", high: "hardware.count"}}')
        ],
        library=library,
    )
    assert "a is not searched: nothing lies between 3 and 2 here" in plan.notes


def test_starts_that_nobody_can_try(library: Library, space_file: Make) -> None:
    path = space_file(
        "starts:\n"
        "  a: {assign: {max_num_seqs: 100000}}\n"
        "  b: {assign: {kv_cache_dtype: fp9}}\n"
        "  c: {assign: {max_num_sequences: 64}}\n"
        "  d: {assign: {max_num_seqs: many}}\n"
        "  e: {assign: {prefix_caching: maybe}}\n"
        "  good: {assign: {max_num_seqs: 64, prefix_caching: false, tensor_parallel_size: 2}}\n"
    )
    assert found(library, path) == [
        (3, "starts.a.assign.max_num_seqs", "is 100000, outside 32 to 512"),
        (4, "starts.b.assign.kv_cache_dtype", "'fp9' is none of auto, fp8"),
        (5, "starts.c.assign.max_num_sequences", "there is no parameter max_num_sequences; did you mean max_num_seqs?"),
        (6, "starts.d.assign.max_num_seqs", "must be a number from 32 to 512, not 'many'"),
        (7, "starts.e.assign.prefix_caching", "'maybe' is none of true, false"),
    ]


def test_starts_for_another_machine_are_a_note(library: Library, space_file: Make) -> None:
    path = space_file("starts: {a: {assign: {quantization: int8}}, b: {assign: {kv_cache_dtype: fp8}}}")
    plan = open_plan("h1", space_files=[path], arguments={"kv-cache-dtype": "fp8"}, library=library)
    assert "start a is left out: quantization=int8 is not offered here" in plan.notes
    assert "start b is left out: kv_cache_dtype=fp8 is not offered here" in plan.notes


def test_a_start_that_a_rule_excludes_is_a_warning(library: Library, space_file: Make) -> None:
    path = space_file("starts: {wide: {assign: {tensor_parallel_size: 4}}}")
    report = check_space(path, hardware="h1", flags=FLAGS, library=library)
    assert report.ok
    (warning,) = report.warnings
    assert warning.startswith(f"{path}:2: starts.wide: cannot start: 4 ranks need as many devices")


def test_two_parameters_for_one_flag(library: Library, space_file: Make) -> None:
    path = space_file(
        "parameters:\n"
        "  seqs: {flag: max-num-seqs, type: int, low: 1, high: 64}\n"
        "  bundle: {type: choice, values: {off: default, on: {arguments: {kv-cache-dtype: fp8}}}}\n"
    )
    lines = {(line, key): message for line, key, message in found(library, path)}
    assert set(lines) == {(3, "parameters.seqs"), (4, "parameters.bundle")}
    assert lines[3, "parameters.seqs"].startswith("sets max-num-seqs, as max_num_seqs does (search_spaces/h1.yaml:")
    with pytest.raises(InputError, match="sets max-num-seqs, as max_num_seqs does"):
        open_plan("h1", space_files=[path], library=library)


def test_two_parameters_that_never_meet(library: Library, space_file: Make) -> None:
    path = space_file(
        "parameters:\n"
        "  max_num_seqs: {when: \"kv_cache_dtype != 'fp8'\"}\n"
        "  seqs: {flag: max-num-seqs, type: int, low: 1, high: 64, when: \"kv_cache_dtype == 'fp8'\"}\n"
        "  spec: {type: choice, values: {off: default, on: {arguments: {speculative-config.method: suffix}}}}\n"
        "  speculation: null\n"
        "  spec_tokens: null\n"
    )
    assert found(library, path) == []


def test_names_that_mean_nothing(library: Library, space_file: Make) -> None:
    path = space_file(
        "parameters:\n"
        '  a: {flag: stream-interval, type: int, low: 1, high: 4, when: "max_num_sqs > 3"}\n'
        "derived:\n"
        '  - {target: api-server-count, value: "hardware.cuont", when: "flags.max_num_sqs > 1"}\n'
        "forbid:\n"
        "  - name: x\n"
        '    if: "max_num_seqs > 3 and enable_dbo and env.NOBODY == null and workload.input_tokens > 0"\n'
        '    reason: "{max_num_seqs} and {kv_cahe_dtype}"\n'
        "neutral:\n"
        '  - {if: "model.is_mo", targets: [moe-backend]}\n'
    )
    null = "so it is always null; did you mean"
    assert found(library, path) == [
        (3, "parameters.a.when", f"max_num_sqs is no parameter and no flag, {null} max_num_seqs?"),
        (5, "derived[0].value", "hardware has no cuont; did you mean count?"),
        (5, "derived[0].when", f"flags.max_num_sqs is no flag, {null} max_num_seqs?"),
        (9, "forbid[0].reason", f"kv_cahe_dtype is no parameter and no flag, {null} kv_cache_dtype?"),
        (11, "neutral[0].if", "model has no is_mo; did you mean is_moe?"),
    ]


def test_names_of_other_profiles_are_null_here(library: Library, space_file: Make) -> None:
    path = space_file("forbid: [{name: x, if: 'expert_parallel == true and max_num_seqs > 300'}]")
    assert found(library, path) == []  # the overlay of another model has it


def test_without_a_vllm_only_what_cannot_depend_on_it(library: Library, space_file: Make) -> None:
    path = space_file("forbid: [{name: x, if: 'a_forks_flag == 1'}, {name: y, if: 'workload.tokens > 1'}]")
    report = check_space(path, hardware="h1", library=library)
    assert [(item.key, item.message) for item in report.errors] == [
        ("forbid[1].if", "workload has no tokens; did you mean input_tokens?")
    ]
