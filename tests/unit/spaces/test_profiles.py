"""The shipped profiles and overlays: each pair is planned for each vLLM, or refused with one true reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.candidate import Candidate
from tuner.model.json import Json
from tuner.model.space import UNSET, Choice, Range
from tuner.spaces.facts import model_facts
from tuner.spaces.introspect import FORK_ENVIRONMENT, KNOWN_VERSIONS, VllmFlags
from tuner.spaces.loader import Library, facts_catalogue, overlay_for
from tuner.spaces.plan import Plan, open_plan, profiles, workloads

LIBRARY = Library()
OVERLAYS = LIBRARY.overlays()
CATALOGUE = facts_catalogue(OVERLAYS)
PROFILES = LIBRARY.names()
FLAGS = {version: VllmFlags.known(version) for version in KNOWN_VERSIONS}
SAMPLES = 6
_plans: dict[tuple[str, str | None, str | None], Plan] = {}


def plan(profile: str, model: str | None = None, workload: str | None = None) -> Plan:
    key = (profile, model, workload)
    if key not in _plans:
        _plans[key] = open_plan(profile, model=model, workload=workload, library=LIBRARY)
    return _plans[key]


def test_what_is_shipped() -> None:
    assert set(PROFILES) == {
        "b300", "b300x8", "b200", "gb200", "h200", "h100", "a100", "mi300x", "mi355x", "rtx4090x2", "rtx-pro-6000",
        "dgx-spark-x2", "cpu",
    }  # fmt: skip
    assert set(LIBRARY.names("models")) == {
        "deepseek-v4", "deepseek-v3.2", "qwen3-dense", "qwen3-moe", "gpt-oss", "glm", "kimi", "minimax", "llama",
        "generic",
    }  # fmt: skip
    assert set(workloads()) == {"batch-short", "batch-sweep", "agentic", "chat", "long-prompt", "cpu-demo"}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_figure_of_a_profile_has_a_source(profile: str) -> None:
    hardware = LIBRARY.chain(LIBRARY.folder / f"{profile}.yaml")
    sources = {name for root in hardware if (node := root.get("hardware")) for name in _sources(node)}
    assert {"memory_gib", "bandwidth_gb_s", "tflops"} <= sources


def _sources(node: object) -> list[str]:
    found = node.get("sources")  # type: ignore[attr-defined]
    return list(found.mapping) if found else []


def test_overlays_carry_the_facts_of_every_default_model() -> None:
    for info in profiles(LIBRARY):
        assert info.model in CATALOGUE
        facts = model_facts(info.model, CATALOGUE, hub_cache=Path("/nowhere"))
        assert overlay_for(OVERLAYS, info.model, facts.architecture) is not None


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    [
        ("Qwen/Qwen3-30B-A3B", 61.1),
        ("Qwen/Qwen3-8B", 16.4),
        ("Qwen/Qwen3-235B-A22B", 470),
        ("meta-llama/Llama-3.3-70B-Instruct", 141),
        ("deepseek-ai/DeepSeek-V4-Pro", 865),
        ("zai-org/GLM-5", 1488),
        ("zai-org/GLM-4.6", 710),
    ],
)
def test_computed_sizes_are_those_of_the_checkpoints(model: str, gigabytes: float) -> None:
    assert model_facts(model, CATALOGUE, hub_cache=Path("/nowhere")).weight_bytes / 1e9 == pytest.approx(
        gigabytes, rel=0.04
    )


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("model", [min(facts_catalogue({name: root})) for name, root in sorted(OVERLAYS.items())])
def test_every_profile_with_every_overlay(profile: str, model: str) -> None:
    found = plan(profile, model)
    planner, space = found.planner, found.space
    assert all(rule.source for rule in space.forbids)
    reason = planner.exclusion(planner.baseline())
    survey = planner.survey(SAMPLES, seed=1)
    assert reason is None or reason.reason
    assert survey.feasible or survey.excluded
    for flags in FLAGS.values():
        assert flags.check_space(space) == []
        for candidate in (planner.baseline(), *planner.starts(), *survey.feasible):
            if not set(candidate.environment) & set(FORK_ENVIRONMENT):
                assert flags.check(candidate) == []


@pytest.mark.parametrize("profile", ["b300x8", "cpu", "dgx-spark-x2", "h200"])
@pytest.mark.parametrize("workload", ["batch-short", "batch-sweep", "agentic", "chat", "long-prompt", "cpu-demo"])
def test_profiles_with_every_workload(profile: str, workload: str) -> None:
    found = plan(profile, None, workload)
    baseline = found.planner.baseline()
    reason = found.planner.exclusion(baseline)
    if reason is None:
        length = baseline.arguments["max-model-len"]
        assert isinstance(length, int)
        assert found.workload.tokens_needed <= length <= found.model.max_position
    else:
        assert reason.reason


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "rtx4090x2"])
def test_every_default_starts(profile: str) -> None:
    found = plan(profile)
    assert found.planner.exclusion(found.planner.baseline()) is None
    for start in found.planner.starts():
        assert found.planner.exclusion(start) is None, start.origin
    assert found.planner.feasible_share(60) > 0.2


@pytest.mark.parametrize(
    ("profile", "model", "arguments", "rule"),
    [
        ("b300", None, {"moe_backend": "deep_gemm_mega_moe"}, "mega-moe-expert-parallel"),
        ("b300", None, {"block_size": 128}, "dsv4-block-size"),
        ("b300", None, {"attention-config.indexer_kv_dtype": "mxfp4"}, ""),
        ("b300", None, {"attention_backend": "FLASHINFER_MLA_SPARSE"}, "dsv4-attention-name"),
        ("b300", None, {"kv_cache_dtype": "bfloat16"}, "dsv4-kv-dtype"),
        ("b300", None, {"quantization": "fp8"}, "quantization-of-quantised"),
        ("b300", None, {"moe_backend": "b12x"}, "moe-b12x-capability"),
        (
            "dgx-spark-x2",
            None,
            {"moe_backend": "deep_gemm_mega_moe", "enable_expert_parallel": True},
            "mega-moe-capability",
        ),
        ("dgx-spark-x2", None, {"attention-config.indexer_kv_dtype": "mxfp4"}, "dsv4-fp4-indexer"),
        ("dgx-spark-x2", None, {"attention_backend": "FLASHMLA_SPARSE_DSV4"}, "attention-capability"),
        ("h200", None, {"moe_backend": "flashinfer_trtllm"}, "moe-trtllm-capability"),
        ("h200", None, {"moe_backend": "deep_gemm_mega_moe", "enable_expert_parallel": True}, "mega-moe-capability"),
        ("h200", None, {"moe_backend": "deep_gemm", "quantization": "fp8"}, "moe-deep-gemm-blocks"),
        ("h200", None, {"moe_backend": "deep_gemm", "quantization": "fp8_per_block"}, ""),
        ("h200", None, {"moe_backend": "marlin"}, "moe-unquantised"),
        ("h200", None, {"moe_backend": "emulation"}, "moe-emulation"),
        ("h200", None, {"moe_backend": "aiter"}, "moe-rocm"),
        ("h200", None, {"block_size": 24}, "block-size-multiple"),
        ("h200", None, {"attention_backend": "FLASHMLA"}, "attention-kind"),
        ("h200", None, {"attention_backend": "ROCM_ATTN"}, "attention-platform"),
        ("h200", None, {"attention_backend": "FLASHINFER", "block_size": 128}, "attention-block-size"),
        ("h200", None, {"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8"}, ""),
        ("h200", None, {"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8_e5m2"}, "attention-kv-dtype"),
        ("h200", None, {"kv_cache_dtype": "fp8_ds_mla"}, "kv-ds-mla"),
        ("h200", None, {"quantization": "awq"}, "quantization-needs-checkpoint"),
        ("h200", None, {"gpu_memory_utilization": 1.1}, "utilization-range"),
        (
            "h200",
            None,
            {"gpu_memory_utilization": 0.42, "max_num_batched_tokens": 16384, "max_num_seqs": 256},
            "memory",
        ),
        ("h200", None, {"max_num_batched_tokens": 128, "max_num_seqs": 256}, "mtok-below-seqs"),
        ("h200", None, {"max_model_len": 256}, "request-too-long"),
        ("h200", None, {"max_model_len": 100000}, "model-too-short"),
        ("h200", None, {"tensor_parallel_size": 2}, "ranks"),
        ("h200", None, {"enable_dbo": True}, "dbo-all2all"),
        ("h200", None, {"enable_eplb": True}, "eplb-needs-ep"),
        (
            "h200",
            None,
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 512, "max_num_seqs": 64},
            "mtok-below-length",
        ),
        (
            "h200",
            None,
            {"async_scheduling": True, "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            "async-with-ngram",
        ),
        ("h200", None, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, ""),
        ("h200", None, {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, "mtp-absent"),
        ("h200", None, {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 1}}, "spec-draft-model"),
        ("h200", None, {"speculative_config": {"method": "ngram"}}, "spec-tokens-missing"),
        ("h200", "Qwen/Qwen3-8B", {"enable_expert_parallel": True}, "expert-parallel-dense"),
        ("h200", "Qwen/Qwen3-8B", {"quantization": "int8_per_channel_weight_only"}, "quantization-moe-only"),
        ("h200", "Qwen/Qwen3-8B", {"moe_backend": "triton"}, "moe-backend-dense"),
        ("h200", "deepseek-ai/DeepSeek-V3.2", {}, "weights-beyond-devices"),
        (
            "b300x8",
            "deepseek-ai/DeepSeek-V3.2",
            {"attention_backend": "FLASH_ATTN_MLA", "kv_cache_dtype": "fp8"},
            "attention-capability",
        ),
        ("b300x8", "deepseek-ai/DeepSeek-V3.2", {"attention_backend": "FLASHMLA"}, "dsv32-needs-sparse"),
        (
            "b300x8",
            "deepseek-ai/DeepSeek-V3.2",
            {"speculative_config": {"method": "mtp", "num_speculative_tokens": 3}},
            "",
        ),
        ("b300x8", "Qwen/Qwen3-8B", {"tensor_parallel_size": 3}, "heads-divisible"),
        ("b300x8", None, {"tensor_parallel_size": 4, "data_parallel_size": 4}, "ranks"),
        # Ranks of a dense model are independent engines behind vLLM's own balancer; only another balancer is refused.
        ("b300x8", "Qwen/Qwen3-8B", {"tensor_parallel_size": 4, "data_parallel_size": 2}, ""),
        (
            "b300x8",
            "Qwen/Qwen3-8B",
            {"tensor_parallel_size": 4, "data_parallel_size": 2, "data_parallel_external_lb": True},
            "dp-dense",
        ),
        (
            "b300x8",
            "Qwen/Qwen3-8B",
            {"tensor_parallel_size": 4, "data_parallel_size": 2, "data_parallel_rank": 0},
            "dp-dense",
        ),
        (
            "b300x8",
            None,
            {"tensor_parallel_size": 4, "data_parallel_size": 2, "data_parallel_external_lb": True},
            "",
        ),
        (
            "b300x8",
            None,
            {"moe_backend": "flashinfer_moe_ep_mega_deep_gemm", "all2all_backend": "deepep_v2"},
            "moe-ep-dispatch",
        ),
        ("a100", None, {"quantization": "nvfp4_per_token"}, "quantization-capability"),
        ("a100", "openai/gpt-oss-20b", {"moe_backend": "flashinfer_cutlass"}, "moe-hopper-or-newer"),
        ("a100", "openai/gpt-oss-20b", {"attention_backend": "FLASH_ATTN"}, "gpt-oss-sinks"),
        ("mi300x", None, {"moe_backend": "aiter"}, "aiter-switched-off"),
        ("mi300x", None, {"moe_backend": "marlin"}, "moe-cuda"),
        ("rtx4090x2", None, {}, "weights-beyond-devices"),
        ("cpu", None, {"block_size": 16}, "cpu-block-size"),
        ("cpu", None, {"kv_cache_dtype": "int8_per_token_head"}, "cpu-kv-dtype"),
        ("cpu", None, {"quantization": "fp8"}, "cpu-online-quantization"),
        ("cpu", None, {"tensor_parallel_size": 2}, "cpu-tensor-parallel"),
        ("cpu", None, {"speculative_config": {"method": "ngram_gpu", "num_speculative_tokens": 2}}, "cpu-speculation"),
        ("cpu", None, {"kv_cache_memory_bytes": 1048576}, "memory"),
    ],
)
def test_what_cannot_start_is_known_before(
    profile: str, model: str | None, arguments: dict[str, Json], rule: str
) -> None:
    found = plan(profile, model)
    flags = {name if "." in name else name.replace("_", "-"): value for name, value in arguments.items()}
    base = found.planner.baseline()
    candidate = Candidate(assignment={}, arguments={**base.arguments, **flags}, environment=base.environment)
    exclusion = found.planner.exclusion(candidate)
    assert (exclusion.rule if exclusion else "") == rule
    if exclusion is not None:
        assert exclusion.source
        assert "{" not in exclusion.reason
        assert "not set" not in exclusion.reason


def test_fp8_cache_is_refused_with_flash_attn_mla_on_hopper() -> None:
    # Kimi has latent attention without an indexer; eight H200 hold it.
    found = open_plan("h200", model="moonshotai/Kimi-K2-Thinking", library=LIBRARY)
    base: dict[str, Json] = {"attention-backend": "FLASH_ATTN_MLA", "cpu-offload-gb": 1}
    for dtype, rule in (("fp8", "attention-kv-dtype"), ("auto", "memory")):
        candidate = Candidate(assignment={}, arguments={**base, "kv-cache-dtype": dtype})
        exclusion = found.planner.exclusion(candidate)
        assert exclusion is not None
        assert exclusion.rule == rule


def test_two_stock_rtx4090_are_refused_with_both_reasons_and_a_fork_lifts_one() -> None:
    found = plan("rtx4090x2").planner
    exclusion = found.exclusion(found.baseline())
    assert exclusion is not None
    assert "about 160 GB of weights do not fit 2 x 23.5 GiB" in exclusion.reason
    assert "no attention backend of DeepSeek-V4 for compute capability 8.9" in exclusion.reason
    assert not found.survey(40).feasible
    forked = open_plan("rtx4090x2", space_files=[LIBRARY.folder / "forks" / "vllm-moet.yaml"], library=LIBRARY)
    assert [rule.condition.text for rule in forked.space.forbids if rule.name == "dsv4-attention"] in ([], ["false"])
    assert forked.space.base_environment["VLLM_MOE_BACKEND"] == "deep_gemm_mega_moe"


def start_of(profile: str, name: str) -> Candidate:
    return next(start for start in plan(profile).planner.starts() if start.origin == f"start:{name}")


def test_the_report_of_one_b300() -> None:
    start = start_of("b300", "report-b300")
    assert {
        "kv-cache-dtype": "fp8", "block-size": 256, "max-num-seqs": 256, "enable-prefix-caching": True,
        "compilation-config.cudagraph_mode": "FULL_AND_PIECEWISE", "moe-backend": "flashinfer_trtllm",
    }.items() <= start.arguments.items()  # fmt: skip
    assert start_of("b300", "report-b300-dspark").arguments["speculative-config.method"] == "dspark"
    assert plan("b300").workload.points[0].concurrency == 256
    assert plan("b300").workload.output_tokens == 300


def test_the_report_of_two_dgx_spark() -> None:
    start = start_of("dgx-spark-x2", "report-dgx-spark")
    assert start.environment == {"VLLM_TRITON_MLA_SPARSE": "1"}
    assert {
        "max-num-seqs": 8, "enable-prefix-caching": True, "speculative-config.method": "mtp", "tensor-parallel-size": 2,
        "nnodes": 2,
    }.items() <= start.arguments.items()  # fmt: skip
    stock = open_plan("dgx-spark-x2", flags=FLAGS["0.32.0"], library=LIBRARY).planner
    reasons = {item.origin: stock.exclusion(item) for item in stock.starts()}
    fork = reasons["start:report-dgx-spark"]
    assert fork is not None
    assert "--vllm-command" in fork.reason
    assert reasons["start:stock-dgx-spark"] is None
    workload = plan("dgx-spark-x2").workload
    assert workload.prefix_tokens + workload.input_tokens == pytest.approx(42565, rel=0.001)
    assert workload.expected_hit_rate == 0.88


def test_the_report_of_two_rtx4090() -> None:
    start = start_of("rtx4090x2", "report-rtx4090x2")
    assert start.environment["VLLM_MOE_BACKEND"] == "deep_gemm_mega_moe"
    assert start.environment["VLLM_SPARSE_MLA_BACKEND"] == "flashinfer_triton"
    assert start.arguments["gpu-memory-utilization"] == 0.9
    assert start.arguments["tensor-parallel-size"] == 2


def test_the_cpu_space_holds_what_matters_there() -> None:
    space = plan("cpu").space
    assert {parameter.name for parameter in space.parameters} == {
        "max_num_seqs", "max_num_batched_tokens", "block_size", "prefix_caching", "chunked_prefill", "kv_cache_dtype",
        "enforce_eager", "omp_threads", "speculation", "spec_tokens",
    }  # fmt: skip
    assert space.base_arguments["kv-cache-memory-bytes"] == 1024**3
    # The best that is known for two cores is one of the choices, and nobody starts there.
    omp = space.parameter("omp_threads").domain
    assert isinstance(omp, Choice)
    assert omp.values == {"auto": UNSET, "nobind": "nobind", "cores-0-1": "0-1"}
    assert not any("omp_threads" in start.assignment for start in space.starts)


def test_cpu_settings_without_effect_are_one_candidate() -> None:
    planner = plan("cpu").planner
    base = planner.baseline()
    for extra in ({"attention-backend": "FLASH_ATTN"}, {"compilation-config.cudagraph_mode": "FULL"}):
        other = Candidate(assignment={}, arguments={**base.arguments, **extra})
        assert planner.identity(other) == planner.identity(base)


def test_the_h200_space_is_wide_and_does_not_start_at_its_best() -> None:
    found = open_plan("h200", library=LIBRARY)
    names = {parameter.name for parameter in found.space.parameters}
    assert {
        "max_num_seqs", "max_num_batched_tokens", "quantization", "kv_cache_dtype", "moe_backend", "cudagraph_mode",
        "capture", "async_scheduling", "block_size", "gpu_memory_utilization", "performance_mode", "attention_backend",
        "optimization_level", "stream_interval", "speculation", "spec_tokens",
    } <= names  # fmt: skip
    for start in found.space.starts:
        assert not (start.assignment.get("quantization") == "fp8" and start.assignment.get("kv_cache_dtype") == "fp8")
    seqs = found.space.parameter("max_num_seqs").domain
    assert isinstance(seqs, Range)
    assert seqs.high == 2048


def test_graphs_cover_the_largest_decode_batch_in_tokens() -> None:
    planner = plan("h200").planner
    candidate = planner.render(
        {
            "max_num_seqs": 300,
            "capture": "cover",
            "speculation": "ngram",
            "spec_tokens": 3,
            "max_num_batched_tokens": 4096,
        }
    )
    assert candidate.arguments["compilation-config.max_cudagraph_capture_size"] == 1200
    assert "async-scheduling" not in candidate.arguments
    assert planner.exclusion(candidate) is None


def test_dead_choices_are_not_even_offered() -> None:
    moe = plan("h200").space.parameter("moe_backend").domain
    assert isinstance(moe, Choice)
    assert "flashinfer_trtllm" not in moe.values
    assert "deep_gemm_mega_moe" not in moe.values
    kv = plan("a100").space
    assert "kv_cache_dtype" not in {parameter.name for parameter in kv.parameters}  # fp8 needs 8.9
