"""What vLLM is known to refuse, where a space does not say so itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.candidate import Candidate
from tuner.model.json import Scalar
from tuner.spaces.doubts import Doubts
from tuner.spaces.loader import Library
from tuner.spaces.plan import Plan, open_plan

BARE = """
schema: 1
name: mine
hardware:
  {platform: PLATFORM, device: NVIDIA H200, count: COUNT, capability: "9.0", memory_gib: 140, bandwidth_gb_s: 4800,
   tflops: {bf16: 989}}
model: Qwen/Qwen3-30B-A3B
workload: batch-short
parameters:
  max_num_seqs: {flag: max-num-seqs, type: int, low: 16, high: 2048, log: true, default: 256}
  block_size: {flag: block-size, type: choice, ordinal: true, values: [16, 24, 32, 64]}
  moe: {flag: moe-backend, type: choice, values: {auto: default, triton: triton, deep_gemm: deep_gemm}}
  tensor_parallel_size: {flag: tensor-parallel-size, type: choice, ordinal: true, values: [1, 2]}
  speculation: {flag: speculative-config.method, type: choice, values: {"off": default, eagle3: eagle3}}
MORE
"""


def bare(tmp_path: Path, more: str = "", platform: str = "cuda", count: int = 1) -> Plan:
    path = tmp_path / "mine.yaml"
    text = BARE.replace("PLATFORM", platform).replace("COUNT", str(count)).replace("MORE", more)
    path.write_text(text, encoding="utf-8")
    return open_plan(str(path))


def doubted(plan: Plan, **assignment: Scalar) -> bool:
    return max(plan.planner.doubts(plan.planner.render(assignment))) > 0.5


@pytest.mark.parametrize(("name", "value"), [("block_size", 24), ("moe", "deep_gemm")])
def test_a_bare_profile_doubts_what_the_shipped_rules_forbid(tmp_path: Path, name: str, value: Scalar) -> None:
    plan = bare(tmp_path)
    assert doubted(plan, **{name: value})
    assert plan.planner.exclusion(plan.planner.render({name: value})) is None


@pytest.mark.parametrize(
    ("name", "value"), [("block_size", 64), ("moe", "triton"), ("max_num_seqs", 2048), ("speculation", "eagle3")]
)
def test_nothing_else_is_doubted(tmp_path: Path, name: str, value: Scalar) -> None:
    """A label may bring its draft model along: that none is named here says nothing."""
    assert not doubted(bare(tmp_path), **{name: value})


def test_a_rule_of_the_space_or_one_lifted_there_is_no_doubt(tmp_path: Path) -> None:
    plan = bare(
        tmp_path, 'forbid: [{name: block-size-multiple, if: "false"}, {name: moe-unquantised, if: "moe == \'x\'"}]'
    )
    assert not doubted(plan, block_size=24)
    assert not doubted(plan, moe="deep_gemm")


def test_as_many_in_the_same_order_for_every_candidate(tmp_path: Path) -> None:
    planner = bare(tmp_path).planner
    counts = {len(planner.doubts(planner.render(item))) for item in ({}, {"moe": "triton"}, {"block_size": 24})}
    assert len(counts) == 1
    assert counts.pop() > 0


def test_shipped_profiles_have_nothing_left_to_doubt() -> None:
    plan = open_plan("h200")
    assert not any(plan.planner.doubts(candidate) for candidate in [plan.planner.baseline()])


def test_another_engines_flags_raise_no_doubt(tmp_path: Path) -> None:
    space = bare(tmp_path).space
    assert (
        Doubts(type(space)(name="x", hardware=space.hardware, model=space.model), {}).of(
            Candidate(assignment={}, arguments={})
        )
        == ()
    )


def test_a_library_without_rules_doubts_only_what_holds_everywhere(tmp_path: Path) -> None:
    space = bare(tmp_path).space
    (tmp_path / "none").mkdir()
    rules = Doubts(space, {}, library=Library(tmp_path / "none")).rules
    assert {rule.name for rule in rules} == {"mtok-below-seqs", "not-positive", "ranks", "heads-divisible"}


def test_more_ranks_than_devices_are_for_cpus_alone(tmp_path: Path) -> None:
    """A CPU host is one device, with a rank on each of its memory nodes."""
    reasons = [
        bare(tmp_path, platform=platform).planner.exclusion(
            Candidate(assignment={}, arguments={"tensor-parallel-size": 2})
        )
        for platform in ("cuda", "cpu")
    ]
    assert reasons[0] is not None
    assert reasons[0].rule == "ranks"
    assert reasons[1] is None


def test_data_parallel_ranks_of_a_dense_model_are_no_doubt(tmp_path: Path) -> None:
    """vLLM refuses them behind a balancer of one's own only."""
    more = (
        "  data_parallel_size: {flag: data-parallel-size, type: choice, ordinal: true, values: [1, 2], default: 1}\n"
        "  data_parallel_external_lb: {flag: data-parallel-external-lb, type: bool, default: false}\n"
    )
    plan = bare(tmp_path, more, count=2)
    dense = open_plan(str(tmp_path / "mine.yaml"), model="Qwen/Qwen3-8B")
    assert not doubted(dense, data_parallel_size=2)
    assert doubted(dense, data_parallel_size=2, data_parallel_external_lb=True)
    assert not doubted(plan, data_parallel_size=2, data_parallel_external_lb=True)
