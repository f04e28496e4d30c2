"""Several checkpoints of one model: everything that is asked of the model is asked of the one that is served."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.model.candidate import render_flags
from tuner.model.serve_config import serve_command, serve_config
from tuner.model.space import UNSET, Choice
from tuner.search.conditions import Conditions
from tuner.search.distributions import encodings
from tuner.serving.command import Settings, build, environment
from tuner.spaces.check import check_space
from tuner.spaces.introspect import KNOWN_VERSIONS, VllmFlags
from tuner.spaces.loader import Library
from tuner.spaces.plan import Plan, open_plan
from tuner.spaces.present import describe

Make = Callable[..., Path]

FP8 = """
facts:
  org/tiny-fp8:
    {architecture: TinyForCausalLM, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16, vocab: 1000,
     max_position: 4096, intermediate: 128, weight_bytes: 5.0e+8, quantization: fp8}
parameters:
  checkpoint: {type: checkpoint, values: {bf16: org/tiny, fp8: org/tiny-fp8}}
"""


@pytest.fixture
def both(library: Library, space_file: Make) -> Plan:
    return open_plan("h1", space_files=[space_file(FP8)], library=library)


def test_the_chosen_checkpoint_is_what_is_served(both: Plan) -> None:
    own, other = (both.planner.render({"checkpoint": label}) for label in ("bf16", "fp8"))
    assert (own.checkpoint, other.checkpoint) == ("", "org/tiny-fp8")
    assert serve_config(own, both.model.name)["model"] == "org/tiny"
    assert serve_config(other, both.model.name)["model"] == "org/tiny-fp8"
    assert serve_command(other, both.model.name).startswith("vllm serve org/tiny-fp8 ")
    assert "--model" not in render_flags(other)
    assert both.space.served(other).quantization == "fp8"
    assert both.space.served(own) is both.model


@pytest.mark.parametrize(
    ("base", "begins"),
    [
        (("vllm", "serve"), "vllm serve org/tiny-fp8 --host"),
        (("docker", "run", "img", "--model={model}"), "docker run img --model=org/tiny-fp8 --host"),
        (("./start.sh",), "./start.sh --model org/tiny-fp8 --host"),
    ],
)
def test_the_servers_command(both: Plan, base: tuple[str, ...], begins: str) -> None:
    settings = Settings(model=both.model.name, base=base, environment={})
    command = build(both.planner.render({"checkpoint": "fp8"}), settings, port=1, served_name="n", key="", marker="m")
    text = " ".join(command.argv)
    assert text.startswith(begins)
    assert text.count("org/tiny") == 1


def test_only_a_folder_is_served_without_the_hub(both: Plan, tmp_path: Path) -> None:
    settings = Settings(model=str(tmp_path), base=("vllm", "serve"), environment={})
    own, other = (both.planner.render({"checkpoint": label}) for label in ("bf16", "fp8"))
    assert environment(settings, own, key="", marker="m")["HF_HUB_OFFLINE"] == "1"
    assert environment(settings, other, key="", marker="m").get("HF_HUB_OFFLINE") == os.environ.get("HF_HUB_OFFLINE")


def test_the_studys_own_is_the_default(both: Plan) -> None:
    planner, parameter = both.planner, both.space.parameter("checkpoint")
    assert parameter.domain == Choice(values={"bf16": UNSET, "fp8": "org/tiny-fp8"})
    assert (parameter.default, parameter.target, parameter.numerics) == ("bf16", "model", True)
    own = planner.render({"checkpoint": "bf16"})
    assert planner.identity(own) == planner.identity(planner.baseline())
    assert own.key == planner.baseline().key


def test_another_checkpoint_is_another_configuration_with_other_tokens(both: Plan) -> None:
    planner = both.planner
    own, other = planner.baseline(), planner.render({"checkpoint": "fp8"})
    assert planner.identity(own) != planner.identity(other)
    assert planner.numerics(own) != planner.numerics(other)
    # A server that reports the same settings still runs other weights.
    assert planner.effective_identity(own, {"block-size": 16}) != planner.effective_identity(other, {"block-size": 16})


def test_which_model_the_study_serves_decides_the_default(library: Library, space_file: Make) -> None:
    plan = open_plan("h1", model="org/tiny-fp8", space_files=[space_file(FP8)], library=library)
    assert plan.space.parameter("checkpoint").default == "fp8"
    assert plan.planner.baseline().checkpoint == ""
    assert plan.planner.render({"checkpoint": "bf16"}).checkpoint == "org/tiny"
    # Online methods are for the 16-bit checkpoint, although the study's own is quantised.
    assert plan.planner.render({"quantization": "fp8"}).assignment == {}
    assert plan.planner.render({"checkpoint": "bf16", "quantization": "fp8"}).arguments["quantization"] == "fp8"


def test_a_parameter_that_only_some_checkpoints_have(both: Plan) -> None:
    assert "quantization is searched with checkpoint bf16 only" in both.notes
    planner = both.planner
    assert planner.render({"quantization": "fp8"}).assignment == {"quantization": "fp8"}
    assert planner.render({"quantization": "fp8", "checkpoint": "fp8"}).assignment == {"checkpoint": "fp8"}
    names = [parameter.name for parameter in both.space.parameters]
    assert names.index("checkpoint") < names.index("quantization")


def test_the_search_knows_what_decides_whether_a_parameter_exists(both: Plan) -> None:

    conditions = Conditions(encodings(both.space), both.planner)
    assert conditions.active("quantization", {"checkpoint": "bf16"})
    assert not conditions.active("quantization", {"checkpoint": "fp8"})


def test_conditions_and_rules_ask_the_checkpoint_that_is_served(library: Library, space_file: Make) -> None:
    path = space_file(
        FP8
        + "  kernel: {flag: linear-backend, type: choice, values: [auto, marlin], when: \"model.quantization != ''\"}\n"
        "forbid:\n"
        "  - {name: no-fp8-cache, if: \"model.quantization == 'fp8' and kv_cache_dtype == 'fp8'\",\n"
        '     reason: "{model.name} has no fp8 cache"}\n'
    )
    planner = open_plan("h1", space_files=[path], library=library).planner
    assert planner.render({"kernel": "marlin"}).assignment == {}
    assert planner.render({"kernel": "marlin", "checkpoint": "fp8"}).arguments["linear-backend"] == "marlin"
    assert planner.exclusion(planner.render({"kv_cache_dtype": "fp8"})) is None
    found = planner.exclusion(planner.render({"kv_cache_dtype": "fp8", "checkpoint": "fp8"}))
    assert found is not None
    assert (found.rule, found.reason) == ("no-fp8-cache", "org/tiny-fp8 has no fp8 cache")


def test_a_value_that_only_some_checkpoints_have(library: Library, space_file: Make) -> None:
    path = space_file(
        FP8 + "  kernel: {flag: linear-backend, type: choice, default: auto, values: {auto: default, "
        "marlin: {value: marlin, if: \"model.quantization != ''\"}, triton: triton}}\n"
    )
    planner = open_plan("h1", space_files=[path], library=library).planner
    found = planner.exclusion(planner.render({"kernel": "marlin"}))
    assert found is not None
    assert (found.rule, found.reason) == ("kernel-of-checkpoint", "kernel marlin is not offered for org/tiny")
    for good in ({"kernel": "marlin", "checkpoint": "fp8"}, {"kernel": "triton"}, {"checkpoint": "bf16"}):
        assert planner.exclusion(planner.render(good)) is None


def test_bounds_hold_for_every_checkpoint(library: Library, space_file: Make) -> None:
    bound = "{flag: stream-interval, type: int, low: 1, high: \"8 if model.quantization == '' else 4\"}"
    plan = open_plan("h1", space_files=[space_file(f"{FP8}  stream: {bound}\n")], library=library)
    assert plan.space.parameter("stream").domain.high == 4  # type: ignore[union-attr]


def test_memory_is_that_of_the_checkpoint(library: Library, space_file: Make) -> None:
    big = FP8.replace("weight_bytes: 5.0e+8", "weight_bytes: 5.0e+11")
    plan = open_plan("h1", space_files=[space_file(big)], library=library)
    planner = plan.planner
    assert planner.exclusion(planner.baseline()) is None
    found = planner.exclusion(planner.render({"checkpoint": "fp8"}))
    assert found is not None
    assert found.rule == "memory"
    assert found.reason.startswith("org/tiny-fp8 needs ")
    small = open_plan("h1", space_files=[space_file(FP8)], library=library).planner
    more, less = (small.forecast(small.render({"checkpoint": label})) for label in ("fp8", "bf16"))
    assert more["kv-cache-tokens"] > less["kv-cache-tokens"]


def test_starts_may_choose_a_checkpoint(library: Library, space_file: Make) -> None:
    path = space_file(
        FP8 + "starts:\n"
        "  published: {assign: {checkpoint: fp8}, if: \"model.quantization == 'fp8'\"}\n"
        "  online: {assign: {quantization: fp8}, if: \"model.quantization == ''\"}\n"
        "  never: {assign: {checkpoint: bf16}, if: \"model.quantization == 'fp8'\"}\n"
    )
    starts = open_plan("h1", space_files=[path], library=library).planner.starts()
    assert [(start.origin, start.checkpoint) for start in starts] == [
        ("start:recipe", ""),
        ("start:published", "org/tiny-fp8"),
        ("start:online", ""),
    ]


def test_more_flags_may_come_with_a_checkpoint(library: Library, space_file: Make) -> None:
    path = space_file(FP8.replace("fp8: org/tiny-fp8}", "fp8: {value: org/tiny-fp8, arguments: {dtype: auto}}}"))
    planner = open_plan("h1", space_files=[path], library=library).planner
    candidate = planner.render({"checkpoint": "fp8"})
    assert candidate.checkpoint == "org/tiny-fp8"
    assert candidate.arguments["dtype"] == "auto"
    assert planner.identity(candidate) != planner.identity(planner.baseline())


def test_folders_beside_the_file(library: Library, space_file: Make, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-int4"
    folder.mkdir()
    config = {
        "architectures": ["TinyForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "intermediate_size": 128,
        "quantization_config": {"quant_method": "awq"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    path = space_file("parameters: {checkpoint: {type: checkpoint, values: {own: default, int4: ./tiny-int4}}}")
    plan = open_plan("h1", space_files=[path], library=library)
    assert plan.planner.render({"checkpoint": "int4"}).checkpoint == str(folder.resolve())
    assert plan.space.checkpoints[str(folder.resolve())].quantization == "awq"
    # The same folder as the study's own model is its default, however it is spelled.
    again = open_plan(
        "h1",
        model=str(folder),
        space_files=[space_file("parameters: {c: {type: checkpoint, values: {a: ./tiny-int4, b: org/tiny}}}")],
        library=library,
    )
    assert again.space.parameter("c").default == "a"
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match=re.escape(f"{path}:2: parameters.c.values.a: ") + ".*config.json: not valid"):
        open_plan("h1", space_files=[_own(space_file)], library=library)


def _own(space_file: Make) -> Path:
    return space_file("parameters: {c: {type: checkpoint, values: {a: ./tiny-int4, b: org/tiny}}}")


@pytest.mark.parametrize(
    ("parameter", "key", "message"),
    [
        ("values: {a: default, b: org/none}", "c.values.b", "model 'org/none': no such folder"),
        ("values: {a: default, b: ./none}", "c.values.b", "no such folder: "),
        ("values: {a: default, b: 7}", "c.values.b", "must be a hub id"),
        ("values: {a: default, b: --port}", "c.values.b", "must be a hub id"),
        ("values: {a: default, b: org/tiny}", "c.values.b", "org/tiny stands here for the second time"),
        ("values: {b: org/tiny-fp8}", "c.values", "none of these is org/tiny, which the study serves"),
        ("values: {a: default}, default: a", "c.default", "the default is the study's model (--model"),
        ("values: {a: default}, when: max_num_seqs", "c.when", "something is always served"),
        ("values: {a: default}, numerics: false", "c.numerics", "always true"),
        ("values: {a: default}, flag: model", "c", "needs no `flag`"),
        ("low: 1", "c", "needs `values`"),
    ],
)
def test_slips(library: Library, space_file: Make, parameter: str, key: str, message: str) -> None:
    text = FP8.partition("parameters:")[0] + f"parameters:\n  c: {{type: checkpoint, {parameter}}}\n"
    report = check_space(space_file(text), hardware="h1", library=library)
    (problem,) = report.errors
    assert (problem.line, problem.key) == (8, f"parameters.{key}")
    assert message in problem.message


def test_there_is_one_checkpoint_parameter(library: Library, space_file: Make) -> None:
    path = space_file(FP8 + "  again: {type: checkpoint, values: [org/tiny, org/tiny-fp8]}\n")
    (problem,) = check_space(path, hardware="h1", library=library).errors
    assert (problem.key, problem.message) == ("parameters.again", "checkpoint chooses the checkpoint already")


@pytest.mark.parametrize("flag", ["model", "port", "api-key"])
def test_the_launchers_flags_are_not_searched(library: Library, space_file: Make, flag: str) -> None:
    path = space_file(f"parameters: {{c: {{flag: {flag}, type: choice, values: [a, b]}}}}")
    (problem,) = check_space(path, hardware="h1", library=library).errors
    assert problem.key == "parameters.c.flag"
    assert "cannot be searched as a flag" in problem.message


def test_what_is_shown(both: Plan) -> None:
    (shown,) = [item for item in describe(both)["parameters"] if item["name"] == "checkpoint"]  # type: ignore[union-attr, index, call-overload]
    assert shown["values"] == {"bf16": "org/tiny", "fp8": "org/tiny-fp8"}  # type: ignore[index, call-overload]


# -- as shipped -------------------------------------------------------------------------------------------------------

SHIPPED = Library()


@pytest.mark.parametrize(
    ("name", "profile", "models"),
    [
        ("qwen3-30b-a3b", "h200", ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-FP8")),
        ("qwen3-235b-a22b", "b300x8", ("Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B-FP8")),
        ("qwen3-32b", "h200", ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-AWQ")),
    ],
)
def test_shipped_checkpoints(space_file: Make, name: str, profile: str, models: tuple[str, ...]) -> None:
    path = space_file(f"extends: [checkpoints/{name}]")
    for model in models:
        plan = open_plan(profile, model=model, space_files=[path], library=SHIPPED)
        assert {plan.model.name, *plan.space.checkpoints} == set(models)
        planner, rng = plan.planner, random.Random(1)
        served = set()
        for _ in range(60):
            candidate = planner.render(planner.random_assignment(rng))
            facts = plan.space.served(candidate)
            served.add(facts.name)
            assert not (facts.quantization and "quantization" in candidate.arguments)
            for version in KNOWN_VERSIONS:
                assert VllmFlags.known(version).check(candidate) == []
        assert served == set(models)


def test_nobody_downloads_a_second_checkpoint_unasked() -> None:
    for profile in SHIPPED.names():
        assert not open_plan(profile, library=SHIPPED).space.checkpoints


def test_a_checkpoint_that_cannot_be_split_so_is_excluded(space_file: Make) -> None:
    path = space_file("extends: [checkpoints/qwen3-235b-a22b]")
    planner = open_plan("b300x8", model="Qwen/Qwen3-235B-A22B", space_files=[path], library=SHIPPED).planner
    found = planner.exclusion(planner.render({"checkpoint": "fp8", "tensor_parallel_size": 8}))
    assert found is not None
    assert found.rule == "fp8-blocks-divided"
    experts = {"checkpoint": "fp8", "tensor_parallel_size": 8, "enable_expert_parallel": True}
    assert planner.exclusion(planner.render(experts)) is None
    assert planner.exclusion(planner.render({"tensor_parallel_size": 8})) is None


def test_not_for_other_models(space_file: Make) -> None:
    plan = open_plan("h200", model="Qwen/Qwen3-8B", space_files=[space_file("extends: [checkpoints/qwen3-32b]")])
    assert not plan.space.checkpoints
    assert "checkpoint is not searched: its `if` does not hold for this model and hardware" in plan.notes
