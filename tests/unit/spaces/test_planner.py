"""What an assignment means, what cannot start, and what is the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.model.candidate import Candidate, Exclusion, render_flags
from tuner.model.json import Json
from tuner.ports import Planner
from tuner.spaces.loader import Library
from tuner.spaces.plan import Plan, open_plan
from tuner.spaces.planner import SpacePlanner


def with_space(library: Library, path: Path) -> SpacePlanner:
    return open_plan("h1", space_files=[path], library=library).planner


def test_is_a_planner(plan: Plan) -> None:
    planner: Planner = plan.planner
    assert planner.baseline().origin == "baseline"


def test_baseline_carries_what_every_candidate_carries(plan: Plan) -> None:
    baseline = plan.planner.baseline()
    assert baseline.assignment == {}
    # max_num_seqs is known to default to 1024, so what follows from it is set as well.
    assert baseline.arguments == {"seed": 7, "compilation-config.max_cudagraph_capture_size": 1024}
    assert baseline.environment == {"NCCL_DEBUG": "WARN"}


def test_render(plan: Plan) -> None:
    candidate = plan.planner.render(
        {
            "max_num_seqs": 64,
            "speculation": "ngram",
            "spec_tokens": 3,
            "kv_cache_dtype": "fp8",
            "prefix_caching": False,
            "tensor_parallel_size": 2,
            "threads": "two",
            "quantization": "none",
        }
    )
    assert candidate.arguments == {
        "seed": 7,
        "max-num-seqs": 64,
        "speculative-config.method": "ngram",
        "speculative-config.prompt_lookup_max": 4,
        "speculative-config.num_speculative_tokens": 3,
        "kv-cache-dtype": "fp8",
        "enable-prefix-caching": False,
        "tensor-parallel-size": 2,
        "compilation-config.max_cudagraph_capture_size": 256,
    }
    assert candidate.environment == {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "2"}
    assert "--no-enable-prefix-caching" in render_flags(candidate)


def test_what_does_not_exist_is_left_out(plan: Plan) -> None:
    off = plan.planner.render({"speculation": "off", "spec_tokens": 3})
    assert off.assignment == {"speculation": "off"}
    assert not any(name.startswith("speculative") for name in off.arguments)
    # Not chosen at all means vLLM's default, which is off.
    assert plan.planner.render({"spec_tokens": 3}).assignment == {}
    assert plan.planner.render({"speculation": "no such", "nobody": 1}).assignment == {}
    assert plan.planner.render({"prefix_caching": "false", "tensor_parallel_size": "2"}).assignment == {
        "prefix_caching": False,
        "tensor_parallel_size": 2,
    }


def test_starts(plan: Plan) -> None:
    (start,) = plan.planner.starts()
    assert start.origin == "start:recipe"
    assert start.assignment == {"max_num_seqs": 256, "kv_cache_dtype": "fp8"}


def excluded(planner: SpacePlanner, **assignment: object) -> Exclusion:
    found = planner.exclusion(planner.render(assignment))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_rules_speak_with_their_numbers(plan: Plan) -> None:
    assert excluded(plan.planner, max_num_seqs=256, max_num_batched_tokens=64) == Exclusion(
        rule="tokens-below-seqs",
        reason="max_num_batched_tokens (64) is below max_num_seqs (256)",
        source="vllm/config/scheduler.py",
        violation=0.75,
    )
    ranks = excluded(plan.planner, tensor_parallel_size=4)
    assert (ranks.rule, ranks.violation) == ("ranks", 1.0)
    assert "4 ranks need as many devices, h1 has 2" in ranks.reason
    assert plan.planner.exclusion(plan.planner.render({"tensor_parallel_size": 2})) is None


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"block-size": 48}, "block-size"),
        ({"gpu-memory-utilization": 1.1}, "utilization-range"),
        ({"gpu-memory-utilization": 0}, "utilization-range"),
        ({"max-num-batched-tokens": 100, "max-num-seqs": 200}, "tokens-below-seqs"),
        ({"max-model-len": 255}, "request-too-long"),
        ({"max-model-len": "0.25k"}, "request-too-long"),
        ({"tensor-parallel-size": 2, "pipeline-parallel-size": 2}, "ranks"),
        ({"data-parallel-size": 3}, "ranks"),
        ({"max-num-seqs": 0}, "not-positive"),
        ({"tensor-parallel-size": "two"}, "ranks"),
        ({"tensor-parallel-size": "4"}, "ranks"),
        ({"block-size": "48"}, "block-size"),
        ({"gpu-memory-utilization": "1.1"}, "utilization-range"),
        ({"max-num-seqs": "-1"}, "not-positive"),
    ],
)
def test_rules_see_what_the_user_sets(library: Library, arguments: Mapping[str, Json], rule: str) -> None:
    planner = open_plan("h1", arguments=arguments, library=library).planner
    found = planner.exclusion(planner.baseline())
    assert found is not None
    assert found.rule == rule
    assert found.violation > 0


@pytest.mark.parametrize(
    "arguments",
    [{"block-size": "32"}, {"max-num-seqs": "64"}, {"gpu-memory-utilization": "0.9", "stream-interval": "4"}],
)
def test_numbers_in_quotes_are_numbers(library: Library, arguments: Mapping[str, Json]) -> None:
    """A command line knows no quotes: a rule that could not compare them excluded a whole space."""
    planner = open_plan("h1", arguments=arguments, library=library).planner
    assert planner.exclusion(planner.baseline()) is None


@pytest.mark.parametrize("value", ["auto", -1, "1k", 256])
def test_lengths_that_hold_the_workload(library: Library, value: Json) -> None:
    planner = open_plan("h1", arguments={"max-model-len": value}, library=library).planner
    assert planner.exclusion(planner.baseline()) is None


def test_a_rule_can_be_lifted(library: Library, space_file: Callable[[str], Path]) -> None:
    path = space_file(
        "forbid: [{name: ranks, if: false}, {name: tokens-below-seqs, if: false}, {name: mtok-below-seqs, if: false}]"
    )
    planner = with_space(library, path)
    assert planner.exclusion(planner.render({"tensor_parallel_size": 4})) is None
    assert planner.exclusion(planner.render({"max_num_seqs": 256, "max_num_batched_tokens": 64})) is None


def test_order_of_the_checks(plan: Plan) -> None:
    asked: list[str] = []

    def memory(candidate: Candidate) -> Exclusion | None:
        asked.append("memory")
        return Exclusion(rule="memory", reason="too small") if candidate.assignment.get("max_num_seqs") == 128 else None

    def flags(_: Candidate) -> list[str]:
        asked.append("flags")
        return ["a is unknown", "b is unknown"]

    planner = SpacePlanner(plan.space, {"tokens_needed": 1}, memory=memory, flags=flags)
    assert excluded(planner, max_num_seqs=256, max_num_batched_tokens=64).rule == "tokens-below-seqs"
    assert asked == []
    assert excluded(planner, max_num_seqs=128).rule == "memory"
    assert asked == ["memory"]
    assert excluded(planner).reason == "a is unknown; b is unknown"


def test_what_cannot_be_evaluated_is_said_not_raised(library: Library, space_file: Callable[[str], Path]) -> None:
    path = space_file(
        "parameters: {odd: {flag: stream-interval, type: bool, when: 'kv_cache_dtype > 3'}}\n"
        "derived: [{target: api-server-count, value: 'kv_cache_dtype + 1'}]"
    )
    planner = with_space(library, path)
    candidate = planner.render({"kv_cache_dtype": "fp8", "odd": True})
    assert "odd" not in candidate.assignment
    found = planner.exclusion(candidate)
    assert found is not None
    assert found.rule == "expression"
    assert "api-server-count cannot be evaluated: + needs numbers, not 'fp8'" in found.reason


def test_identity_is_what_would_run(plan: Plan) -> None:
    planner = plan.planner
    baseline = planner.identity(planner.baseline())
    assert planner.identity(planner.render({"kv_cache_dtype": "auto"})) == baseline
    assert planner.identity(planner.render({"prefix_caching": True, "speculation": "off"})) == baseline
    assert planner.identity(planner.render({"kv_cache_dtype": "fp8"})) != baseline
    assert planner.identity(planner.render({"threads": "two"})) != baseline


def test_identity_leaves_out_what_has_no_effect(library: Library, space_file: Callable[[str], Path]) -> None:
    path = space_file("parameters: {algo: {flag: prefix-caching-hash-algo, type: choice, values: [sha256, xxhash]}}")
    planner = with_space(library, path)
    same = [planner.identity(planner.render({"prefix_caching": False, "algo": algo})) for algo in ("sha256", "xxhash")]
    assert same[0] == same[1]
    other = [planner.identity(planner.render({"prefix_caching": True, "algo": algo})) for algo in ("sha256", "xxhash")]
    assert other[0] != other[1]


def test_effective_identity_believes_the_server(plan: Plan) -> None:
    planner = plan.planner
    a, b = planner.render({"max_num_seqs": 256}), planner.render({"max_num_seqs": 512})
    runs: dict[str, Json] = {"max-num-seqs": 256, "cudagraph-capture-max": 256, "kv-cache-tokens": 1000}
    assert planner.effective_identity(a, runs) == planner.effective_identity(b, {**runs, "kv-cache-tokens": 1016})
    assert planner.effective_identity(a, runs) != planner.effective_identity(b, {**runs, "max-num-seqs": 512})
    # What the server does not report counts as asked.
    assert planner.effective_identity(a, {}) != planner.effective_identity(b, {})


def test_numerics_tells_only_what_may_change_tokens(plan: Plan) -> None:
    planner = plan.planner
    plain = planner.numerics(planner.baseline())
    assert planner.numerics(planner.render({"max_num_seqs": 64, "speculation": "ngram", "threads": "two"})) == plain
    assert planner.numerics(planner.render({"kv_cache_dtype": "fp8"})) != plain
    assert planner.numerics(planner.render({"kv_cache_dtype": "auto"})) == plain


def test_survey_counts_by_rule(plan: Plan) -> None:
    survey = plan.planner.survey(200, seed=3)
    assert survey == plan.planner.survey(200, seed=3)
    assert set(survey.excluded) == {"ranks", "tokens-below-seqs"}
    assert sum(count for count, _ in survey.excluded.values()) + round(survey.share * 200) == 200
    assert 0.3 < survey.share < 0.9
    assert plan.planner.feasible_share(200, seed=3) == survey.share
    assert all(plan.planner.exclusion(candidate) is None for candidate in survey.feasible[:20])


def read_flags(argv: list[str]) -> dict[str, object]:
    """The inverse of ``render_flags`` for scalars, switches and JSON, as an argument parser would have it."""
    out: dict[str, object] = {}
    index = 0
    while index < len(argv):
        name = argv[index].removeprefix("--")
        index += 1
        if index == len(argv) or argv[index].startswith("--"):
            out[name.removeprefix("no-")] = not name.startswith("no-")
            continue
        text = argv[index]
        index += 1
        try:
            out[name] = json.loads(text)
        except ValueError:
            out[name] = text
    return out


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_any_suggestion_renders_and_reads_back(plan: Plan, seed: int) -> None:
    planner = plan.planner
    assignment = planner.random_assignment(random.Random(seed))
    candidate = planner.render(assignment)
    assert candidate.assignment == assignment
    assert planner.render(candidate.assignment) == candidate
    assert read_flags(render_flags(candidate)) == candidate.nested()
    planner.exclusion(candidate)
    assert planner.identity(candidate) == planner.identity(planner.render(assignment, origin="confirm"))
