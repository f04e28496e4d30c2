"""From the names that a user types to a plan."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.model.space import Choice
from tuner.model.workload import LoadPoint, Workload
from tuner.spaces.introspect import VllmFlags
from tuner.spaces.loader import Library
from tuner.spaces.plan import Plan, open_plan, profiles, workloads
from tuner.spaces.present import describe


def test_defaults_come_from_the_profile(plan: Plan) -> None:
    assert (plan.profile, plan.model.name, plan.workload.name, plan.overlay) == ("h1", "org/tiny", "short", "generic")
    assert plan.model.family == "generic"
    assert plan.hardware.sm == 90
    assert [item.name for item in plan.space.parameters][:3] == [
        "max_num_seqs",
        "max_num_batched_tokens",
        "speculation",
    ]


def test_the_models_overlay_lies_over_the_profile(library: Library) -> None:
    plan = open_plan("h1", model="org/tiny-moe-8b", library=library)
    assert plan.overlay == plan.model.family == "tiny-moe"
    assert plan.space.parameter("kv_cache_dtype").domain == Choice(
        values={"auto": "auto", "fp8": "fp8", "bfloat16": "bfloat16"}
    )
    quantization = plan.space.parameter("quantization").domain
    assert isinstance(quantization, Choice)
    assert list(quantization.values) == ["none", "fp8", "int8"]
    assert plan.space.parameter("expert_parallel").default is False


OWN_PROFILE = """
name: mine
extends: [h1]
model: org/tiny-moe-8b
arguments: {seed: 3}
parameters:
  kv_cache_dtype: {flag: kv-cache-dtype, type: choice, values: [fp8]}
  threads: {env: OMP_NUM_THREADS, type: choice, values: [1, 2]}
  block_size: {flag: block-size, type: choice, values: [32, 64]}
"""


def test_what_an_overlay_changes_of_a_users_own_profile_is_told(
    library: Library, space_file: Callable[..., Path]
) -> None:
    """DeepSeek's overlay took a user's block_size away and replaced their backends, and nothing said so."""
    overlay = library.folder / "models" / "tiny-moe.yaml"
    gone = '  block_size: {flag: block-size, type: choice, values: [64], if: "hardware.sm == 80"}\n'
    overlay.write_text(f"{overlay.read_text(encoding='utf-8')}{gone}arguments: {{seed: 9}}\n", encoding="utf-8")
    own = space_file(OWN_PROFILE, "mine.yaml")
    plan = open_plan(str(own), library=library)
    (note,) = (note for note in plan.notes if "model overlay" in note)
    assert note == (
        f"the model overlay tiny-moe comes after {own}: it replaces kv_cache_dtype, seed and takes out block_size; "
        "what is to stay as you wrote it belongs into a --space file, which comes after both"
    )
    assert not any("model overlay" in note for note in open_plan("h1", model="org/tiny-moe-8b", library=library).notes)

    again = "parameters: {kv_cache_dtype: {flag: kv-cache-dtype, type: choice, values: [fp8, auto]}}\n"
    later = space_file(f"{again}arguments: {{seed: 3, block-size: 64}}", "later.yaml")
    mended = open_plan(str(own), space_files=[later], library=library)
    assert [note for note in mended.notes if "model overlay" in note] == []
    assert list(mended.space.parameter("kv_cache_dtype").domain.values) == ["fp8", "auto"]  # type: ignore[union-attr]


def test_the_users_files_and_the_command_line_come_last(library: Library, space_file: Callable[..., Path]) -> None:
    first = space_file("parameters: {max_num_seqs: {high: 64}, threads: null}\narguments: {seed: 1}", "a.yaml")
    second = space_file("arguments: {seed: 2}\nworkload: {output_tokens: 256}", "b.yaml")
    plan = open_plan(
        "h1",
        space_files=[first, second],
        arguments={"kv-cache-dtype": "fp8"},
        environment={"NCCL_DEBUG": "INFO"},
        library=library,
    )
    assert plan.space.parameter("max_num_seqs").domain.high == 64  # type: ignore[union-attr]
    assert plan.space.base_arguments == {"seed": 2, "kv-cache-dtype": "fp8"}
    assert plan.space.base_environment == {"NCCL_DEBUG": "INFO"}
    names = [item.name for item in plan.space.parameters]
    assert "threads" not in names
    assert "kv_cache_dtype" not in names
    assert "kv_cache_dtype is not searched: command line fixes kv-cache-dtype" in plan.notes
    # Single figures of the workload that the profile names.
    assert (plan.workload.input_tokens, plan.workload.output_tokens) == (128, 256)


def test_workloads_of_ones_own(library: Library, space_file: Callable[..., Path]) -> None:
    path = space_file("workload: {input_tokens: 9, points: [{concurrency: 3}]}", "traffic.yaml")
    plan = open_plan("h1", workload=str(path), library=library)
    assert (plan.workload.name, plan.workload.input_tokens) == ("traffic", 9)
    given = Workload(name="given", points=(LoadPoint(concurrency=20),))
    plan = open_plan("h1", workload=given, library=library)
    assert plan.workload is given
    assert plan.space.parameter("max_num_seqs").domain.high == 40  # type: ignore[union-attr]
    with pytest.raises(InputError, match="has no `workload:` mapping"):
        open_plan("h1", workload=str(space_file("model: x")), library=library)


def test_the_machine_at_hand_replaces_the_figures(library: Library, plan: Plan) -> None:
    here = dataclasses.replace(plan.hardware, memory_gib=99.5, cores=32, name="here")
    found = open_plan("h1", local_hardware=here, library=library)
    assert (found.hardware.name, found.hardware.memory_gib, found.hardware.cores) == ("h1", 99.5, 32)
    assert found.space.digest == plan.space.digest
    other = dataclasses.replace(here, capability=(8, 0))
    assert open_plan("h1", local_hardware=other, library=library).hardware.memory_gib == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hardware": "h2"}, "unknown hardware profile 'h2'; did you mean h1"),
        ({"hardware": "h1", "workload": "shrt"}, "unknown workload 'shrt'; did you mean short"),
        ({"hardware": "h1", "model": "org/none"}, "model 'org/none'"),
        ({"hardware": "h1", "space_files": [Path("/none.yaml")]}, "/none.yaml: cannot be read"),
    ],
)
def test_unknown_names(library: Library, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        open_plan(library=library, **arguments)  # type: ignore[arg-type]


def test_a_stale_space_names_every_unknown_flag_at_once(library: Library, space_file: Callable[..., Path]) -> None:
    path = space_file(
        "arguments: {swap-space: 4, enable-chunked-prefil: true}\n"
        "environment: {VLLM_NONSENSE: 1}\n"
        "parameters:\n"
        "  a: {flag: max-num-partial-prefills, type: int, low: 1, high: 3}\n"
        "  b: {flag: kv-cache-dtype, type: choice, values: [auto, fp9]}\n"
        "derived: [{target: num-lookahead-slots, value: 3}]\n"
    )
    with pytest.raises(InputError) as caught:
        open_plan("h1", space_files=[path], flags=VllmFlags.known("0.32.0"), library=library)
    message = str(caught.value)
    assert message.startswith(f"{path}: 6 settings that vLLM 0.32.0 does not accept: ")
    for name in (
        "swap-space",
        "enable-chunked-prefil",
        "VLLM_NONSENSE",
        "max-num-partial-prefills",
        "fp9",
        "lookahead",
    ):
        assert name in message
    assert "\n" not in message
    places = [(problem.line, problem.key) for problem in caught.value.problems]  # type: ignore[attr-defined]
    assert (2, "arguments.swap-space") in places
    assert (5, "parameters.a") in places


def test_a_shipped_file_is_cut_to_the_version(library: Library) -> None:
    shipped = library.folder / "base" / "common.yaml"
    shipped.write_text(
        shipped.read_text() + "parameters:\n"
        "  moe: {flag: moe-backend, type: choice, values: {auto: default, b12x: b12x, triton: triton}}\n"
        "  gone: {flag: max-num-partial-prefills, type: int, low: 1, high: 3}\n"
        "starts: {old: {assign: {gone: 2}}, new: {assign: {moe: b12x}}, both: {assign: {moe: triton}}}\n"
    )
    plan = open_plan("h1", flags=VllmFlags.known("0.25.1"), library=library)
    assert plan.space.parameter("moe").domain.values.keys() == {"auto", "triton"}  # type: ignore[union-attr]
    assert [item.name for item in plan.space.starts] == ["old", "both", "recipe"]
    assert "moe is searched without b12x: not in vLLM 0.25.1" in plan.notes
    newer = open_plan("h1", flags=VllmFlags.known("0.32.0"), library=library)
    assert [item.name for item in newer.space.starts] == ["new", "both", "recipe"]
    assert any(note.startswith("gone is not searched: max-num-partial-prefills") for note in newer.notes)
    assert newer.space.digest != plan.space.digest


def test_lists(library: Library) -> None:
    (found,) = profiles(library)
    assert (found.name, found.device, found.count, found.model, found.workload, found.recognise) == (
        "h1",
        "NVIDIA H1",
        2,
        "org/tiny",
        "short",
        ("H1",),
    )
    assert workloads(library) == ["short"]


def test_description_is_plain_data(plan: Plan) -> None:
    document = describe(plan)
    assert document["profile"] == "h1"
    names = [item["name"] for item in document["parameters"]]  # type: ignore[union-attr, index, call-overload]
    assert "max_num_seqs" in names
    rules = document["rules"]
    assert (
        rules[0]["reason"] == "max_num_batched_tokens ({max_num_batched_tokens}) is below max_num_seqs ({max_num_seqs})"
    )  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ("", "under `facts:` of an overlay or of your own file, with layers, hidden, heads, kv_heads, head_dim, vocab"),
        ("facts: {my/sim: {layers: 2, heads: 4}}\n", "needs hidden, kv_heads, head_dim, vocab, max_position (whole"),
    ],
)
def test_a_new_profile_is_told_all_that_it_lacks_at_once(
    facts: str, says: str, library: Library, space_file: Callable[..., Path]
) -> None:
    path = space_file(
        f"name: sim\nhardware: {{platform: cpu, device: d}}\nmodel: my/sim\nworkload: short\n{facts}", "sim.yaml"
    )
    with pytest.raises(InputError) as error:
        open_plan(str(path), library=library)
    assert says in str(error.value)
    assert str(error.value).endswith("hardware: needs memory_gib, bandwidth_gb_s")
