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
        (3, "parameters.max_num_seqs.high", "nothing lies from 32 (low, search_spaces/h1.yaml:19) to 8 (high)"),
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


def test_bounds_of_two_files_are_told_where_the_last_one_stands(library: Library, space_file: Make) -> None:
    first = space_file("parameters: {max_num_batched_tokens: {high: 512}}", "first.yaml")
    then = space_file("parameters: {max_num_batched_tokens: {low: 600}}", "then.yaml")
    told = {
        (first, then): f"{then}:2: parameters.max_num_batched_tokens.low: nothing lies from 600 (low) to 512 (high, "
        f"{first}:2)",
        (then, first): f"{first}:2: parameters.max_num_batched_tokens.high: nothing lies from 600 (low, {then}:2) to "
        "512 (high)",
    }
    for files, message in told.items():
        with pytest.raises(InputError) as refused:
            open_plan("h1", space_files=files, library=library)
        assert str(refused.value) == message


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


def test_a_value_of_a_start_that_does_not_exist_there_is_a_warning(library: Library, space_file: Make) -> None:
    path = space_file(
        "starts:\n"
        "  a: {assign: {max_num_seqs: 64, spec_tokens: 3}}\n"
        "  b: {assign: {speculation: ngram, spec_tokens: 3}}\n"
    )
    report = check_space(path, hardware="h1", flags=FLAGS, library=library)
    assert report.ok
    (warning,) = report.warnings
    place, _, message = warning.partition(": is left out: ")
    assert place == f"{path}:3: starts.a.assign.spec_tokens"
    assert message == "spec_tokens exists only beside others for which `speculation != 'off'` holds"


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


def test_names_that_mean_nothing_to_a_program_of_ones_own(library: Library, space_file: Make) -> None:
    """Nobody knows its flags, but those that nothing here sets are never set."""
    path = space_file(
        "parameters:\n"
        "  depth: {flag: queue-depth, type: int, low: 1, high: 8, default: 1}\n"
        "  a: {flag: x-a, type: int, low: 1, high: 8, when: 'nosuch > 3'}\n"
        "  b: {flag: x-b, type: int, low: 1, high: 8, when: 'queue_depth > 3 and depth > 2'}\n"
        "forbid:\n"
        "  - {name: x, if: 'flags.queue_depht > 3'}\n"
        "  - {name: y, if: 'flags.queue_depth > 3 and enable_dbo == true'}\n"
    )
    report = check_space(path, hardware="h1", external=True, library=library)
    expected = [
        (
            4,
            "parameters.a.when",
            "nosuch is no parameter and no flag, so it is always null; name a parameter of the space, or declare it",
        ),
        (7, "forbid[0].if", "flags.queue_depht is no flag, so it is always null; did you mean queue_depth?"),
    ]
    assert [(item.line, item.key, item.message) for item in report.errors] == expected
    with pytest.raises(InputError, match=r"my.yaml:4: parameters.a.when: nosuch is no parameter .*1 more"):
        open_plan("h1", space_files=[path], external=True, library=library)


@pytest.mark.parametrize("asked", ["x", "stream_interval", "flags.stream_interval"])
def test_a_parameter_that_waits_for_itself(library: Library, space_file: Make, asked: str) -> None:
    path = space_file(f"parameters: {{x: {{flag: stream-interval, type: int, low: 1, high: 8, when: '{asked} > 1'}}}}")
    message = (
        f"reads {asked}, the parameter itself, which has no value before it exists: it would never be searched; name "
        "other parameters, or exclude values of it with `forbid`"
    )
    assert found(library, path) == [(2, "parameters.x.when", message)]


def test_a_flag_that_another_sets_may_be_asked_for(library: Library, space_file: Make) -> None:
    text = "parameters: {x: {flag: stream-interval, type: int, low: 2, high: 8, when: 'stream_interval > 1'}}"
    assert found(library, space_file(f"arguments: {{stream-interval: 2}}\n{text}")) == []


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("prefix_caching: {default: maybe}", "prefix_caching.default", "must be true or false, not 'maybe'"),
        (
            "max_num_seqs: {low: 1.5}",
            "max_num_seqs.low",
            "is 1.5, but the type is int; write a whole number, or `type: float`",
        ),
        ("max_num_seqs: {default: 1.5}", "max_num_seqs.default", "is 1.5, but the type is int"),
        (
            "kv_cache_dtype: {values: []}",
            "kv_cache_dtype.values",
            "needs a value; `kv_cache_dtype: null` takes the parameter away",
        ),
    ],
)
def test_values_that_the_type_does_not_have(
    library: Library, space_file: Make, text: str, key: str, message: str
) -> None:
    assert found(library, space_file(f"parameters: {{{text}}}")) == [(2, f"parameters.{key}", message)]


def test_starts_between_the_values(library: Library, space_file: Make) -> None:
    path = space_file(
        "parameters:\n"
        "  depth: {flag: stream-interval, type: int, low: 3, high: 96, log: true, base: 2}\n"
        "starts:\n"
        "  a: {assign: {utilization: 0.87}}\n"
        "  b: {assign: {max_num_seqs: 64.5}}\n"
        "  c: {assign: {depth: 32}}\n"
        "  good: {assign: {utilization: 0.95, max_num_seqs: 64.0, depth: 96}}\n"
    )
    assert found(library, path) == [
        (5, "starts.a.assign.utilization", "is 0.87, which utilization does not take; write 0.85 or 0.9"),
        (6, "starts.b.assign.max_num_seqs", "is 64.5, which max_num_seqs does not take; write 64 or 65"),
        (7, "starts.c.assign.depth", "is 32, which depth does not take; write 24 or 48"),
    ]


def test_a_step_that_leaves_one_value_is_a_note(library: Library, space_file: Make) -> None:
    path = space_file(
        "parameters:\n"
        "  a: {flag: x-a, type: int, low: 0, high: 4, step: 10, default: 0}\n"
        "  b: {flag: x-b, type: int, low: 5, high: 9, log: true, base: 2}\n"
        "  c: {flag: x-c, type: int, low: 4, high: 4, step: 1}\n"
    )
    plan = open_plan("h1", space_files=[path], external=True, library=library)
    assert plan.notes == (
        "a is not searched: of 0 to 4 only 0 is left, the next one, 10 (step) away, lies beyond",
        "b is not searched: of 5 to 9 only 5 is left, the next power of two lies beyond",
    )
    assert {"x-b": 5, "x-c": 4}.items() <= plan.space.base_arguments.items()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('environment: {A: "a\\0b"}', "environment.A"),
        ('arguments: {hf-overrides: {x: [1, "\\0"]}}', "arguments.hf-overrides.x[1]"),
        ('parameters: {x: {flag: x, type: choice, values: [{value: "a\\0"}]}}', "parameters.x.values[0].value"),
    ],
)
def test_a_character_that_no_program_can_be_given(library: Library, space_file: Make, text: str, key: str) -> None:
    message = "holds a NUL character, which no flag and no variable can carry; leave it away"
    assert found(library, space_file(text)) == [(2, key, message)]


def test_a_derived_value_over_a_parameter(library: Library, space_file: Make) -> None:
    path = space_file(
        "derived:\n"
        "  - {target: max-num-batched-tokens, value: 2048, when: \"kv_cache_dtype == 'fp8'\"}\n"
        "  - {target: stream-interval, value: 4}\n"
    )
    ((line, key, message),) = found(library, path)
    assert (line, key) == (3, "derived[0]")
    assert message.startswith("writes over max-num-batched-tokens, which the parameter max_num_batched_tokens sets: ")
    assert message.endswith(
        " would be chosen and 2048 would run; take the parameter away (max_num_batched_tokens: null), or give this a "
        "`when` under which it is not searched"
    )
    apart = space_file(
        "parameters: {max_num_batched_tokens: {when: \"kv_cache_dtype != 'fp8'\"}}\n"
        "derived: [{target: max-num-batched-tokens, value: 2048, when: \"kv_cache_dtype == 'fp8'\"}]\n",
        "apart.yaml",
    )
    assert found(library, apart) == []


def test_a_derived_value_of_an_earlier_file_gives_way_to_an_argument(library: Library, space_file: Make) -> None:
    target = "compilation-config.max_cudagraph_capture_size"
    path = space_file(f"arguments: {{{target}: 512}}")
    plan = open_plan("h1", space_files=[path], library=library)
    assert plan.planner.render({"max_num_seqs": 64}).arguments[target] == 512
    assert plan.notes == (f"{target} is not derived: {path} fixes it",)
    typed = open_plan("h1", arguments={target: 256}, library=library)
    assert typed.planner.render({"max_num_seqs": 64}).arguments[target] == 256
    asking = space_file(
        "derived: [{target: stream-interval, value: 4, when: 'stream_interval == null'}]", "asking.yaml"
    )
    plan = open_plan("h1", space_files=[asking], arguments={"stream-interval": 2}, library=library)
    assert (plan.planner.baseline().arguments["stream-interval"], plan.notes) == (2, ())
