"""The memory estimate against what vLLM itself reported on an H200, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tuner.model.candidate import Candidate
from tuner.model.hardware import Hardware
from tuner.model.json import Json
from tuner.model.llm import ModelFacts
from tuner.spaces.facts import model_facts
from tuner.spaces.memory import MemoryEstimate, batch_defaults, estimate

STARTS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "h200" / "starts.jsonl").read_text(encoding="utf-8").splitlines()
]
QWEN3_MOE: dict[str, object] = {
    "layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "vocab": 151936, "max_position": 40960,
    "experts": 128, "experts_per_token": 8, "moe_intermediate": 768,
}  # fmt: skip
H200 = Hardware(
    name="h200", platform="cuda", device="NVIDIA H200", capability=(9, 0), memory_gib=139.81, bandwidth_gb_s=4800
)


def shape(**changes: object) -> ModelFacts:
    return model_facts("org/model", {"org/model": {**QWEN3_MOE, **changes}}, hub_cache=Path("/nowhere"))


def asked(start: dict[str, Json]) -> dict[str, Json]:
    arguments: dict[str, Json] = {"max-model-len": 2048}
    if start["mode"] == "offline":  # the offline class has other defaults than the server
        arguments["max-num-batched-tokens"] = start["max_num_batched_tokens"]
    config = start["config"]
    assert isinstance(config, dict)
    return arguments | {key.replace("_", "-"): value for key, value in config.items()}


def of(
    hardware: Hardware = H200, model: ModelFacts | None = None, tokens_needed: int = 428, **arguments: Json
) -> MemoryEstimate:
    flags = {name.replace("_", "-"): value for name, value in arguments.items()}
    return estimate(Candidate(assignment={}, arguments=flags), hardware, model or shape(), tokens_needed=tokens_needed)


@pytest.mark.parametrize("start", [s for s in STARTS if s["weights_gib"]], ids=lambda s: s["log"])
def test_close_to_what_vllm_reported(start: dict[str, Json]) -> None:
    found = estimate(Candidate(assignment={}, arguments=asked(start)), H200, shape(), tokens_needed=428)
    assert found.weights_gib == pytest.approx(start["weights_gib"], rel=0.01)
    assert found.kv_gib == pytest.approx(start["available_gib"], abs=0.35)
    if start["graphs_gib"]:
        assert found.graphs_gib == pytest.approx(start["graphs_gib"], abs=0.1)
    if start["kv_tokens"]:
        assert found.kv_tokens == pytest.approx(start["kv_tokens"], rel=0.10)
    # "No available memory for the cache blocks" is what the start at a utilization of 0.42 ended with.
    assert (found.exclusion() is None) == bool(start["kv_tokens"])


def test_the_start_without_memory_is_refused_with_its_amount() -> None:
    found = of(gpu_memory_utilization=0.42, max_num_seqs=256, max_num_batched_tokens=16384, max_model_len=40960)
    excluded = found.exclusion()
    assert excluded is not None
    assert excluded.rule == "memory"
    assert "weights 56.9" in excluded.reason
    assert 0.02 < excluded.violation < 0.2


def test_dsv4_does_not_fit_two_rtx4090() -> None:
    small = dataclasses.replace(H200, memory_gib=23.5, count=2, capability=(8, 9))
    excluded = of(small, shape(weight_bytes=160e9), tensor_parallel_size=2).exclusion()
    assert excluded is not None
    assert "needs 5" in excluded.reason
    assert excluded.violation > 2


def test_tensor_parallel_splits_weights_and_kv_heads_down_to_one() -> None:
    one, two, eight = (of(tensor_parallel_size=size) for size in (1, 2, 8))
    assert two.weights_gib == pytest.approx(one.weights_gib / 2)
    assert two.kv_bytes_per_token == one.kv_bytes_per_token / 2
    assert eight.kv_bytes_per_token == one.kv_bytes_per_token / 4  # four KV heads


def test_latent_cache_is_on_every_rank() -> None:
    model = shape(mla_rank=576)
    assert of(model=model, tensor_parallel_size=8).kv_bytes_per_token == of(model=model).kv_bytes_per_token


def test_data_parallel_ranks_share_experts_only() -> None:
    plain, data = of(), of(data_parallel_size=4)
    assert plain.weights_gib / 4 < data.weights_gib < plain.weights_gib / 2


def test_pipeline_splits_layers() -> None:
    assert of(pipeline_parallel_size=2).kv_bytes_per_token == of().kv_bytes_per_token / 2


def test_int8_weight_only_leaves_attention_alone() -> None:
    int8, fp8 = of(quantization="int8_per_channel_weight_only"), of(quantization="fp8")
    assert fp8.weights_gib < int8.weights_gib < fp8.weights_gib + 1


def test_formats_that_checkpoints_come_in_count_where_they_are_asked_for() -> None:
    assert of(quantization="bitsandbytes").weights_gib < 0.4 * of().weights_gib
    assert of(quantization="unheard_of").weights_gib == of().weights_gib


def test_a_shape_without_its_mlp_is_not_made_of_embeddings() -> None:
    """What the stated shape misses lies in the layers: the size of the embeddings is known."""
    facts = {"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 8, "head_dim": 128, "vocab": 152064}
    known = {**facts, "max_position": 32768, "weight_bytes": 29_540_000_000}
    model = model_facts("org/dense", {"org/dense": known}, hub_cache=Path("/nowhere"))
    embedding = 2 * 2 * 152064 * 5120
    expected = (embedding + (29.54e9 - embedding) / 2) / 2**30
    assert of(model=model, quantization="fp8").weights_gib == pytest.approx(expected)


def test_quantization_flag_means_nothing_on_a_quantised_checkpoint() -> None:
    model = shape(quantization="fp8")
    assert of(model=model, quantization="fp8").weights_gib == of(model=model).weights_gib


def test_explicit_kv_size_decides_and_must_fit_beside_the_weights() -> None:
    assert of(kv_cache_memory_bytes="10G").kv_gib == 10
    assert of(kv_cache_memory_bytes=10 * 1024**3).kv_tokens == 10 * 1024**3 // 98304
    too_much = of(kv_cache_memory_bytes="90G").exclusion()
    assert too_much is not None
    assert of(kv_cache_memory_bytes="70G").exclusion() is None


def test_on_cpu_only_the_given_size_counts() -> None:
    host = Hardware(name="cpu", platform="cpu", device="CPU", memory_gib=16, bandwidth_gb_s=20, cores=2)
    model = shape(experts=0, experts_per_token=0, moe_intermediate=0, layers=30, hidden=576, heads=9, kv_heads=3,
                  head_dim=64, intermediate=1536, vocab=49152, max_position=8192)  # fmt: skip
    found = of(host, model, kv_cache_memory_bytes=1024**3, max_model_len=1024)
    assert found.kv_tokens == 1024**3 // 23040
    assert found.graphs_gib == 0
    assert found.exclusion() is None
    assert of(host, model, kv_cache_memory_bytes=16 * 1024**2, max_model_len=1024).exclusion() is not None


def test_eager_mode_has_no_graphs_and_speculation_costs_logits() -> None:
    assert of(enforce_eager=True).graphs_gib == 0
    speculative: dict[str, Json] = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}}
    drafted = estimate(Candidate(assignment={}, arguments=speculative), H200, shape(), tokens_needed=428)
    assert drafted.peak_gib > of().peak_gib


def test_window_layers_keep_the_window_only() -> None:
    windowed = shape(extra={"sliding_layers": 24, "sliding_window": 128})
    assert of(model=windowed, max_model_len=32768).needed_gib == pytest.approx(
        of(max_model_len=32768).needed_gib * (0.5 + 0.5 * 128 / 32768)
    )


@pytest.mark.parametrize(
    ("memory", "device", "arguments", "expected"),
    [
        (268, "NVIDIA B300", {}, (16384, 1024)),
        (139, "NVIDIA H200", {}, (8192, 1024)),
        (79, "NVIDIA A100-SXM4-80GB", {}, (2048, 256)),
        (23, "NVIDIA GeForce RTX 4090", {"performance-mode": "throughput"}, (4096, 512)),
        (139, "NVIDIA H200", {"max-num-seqs": 64, "max-num-batched-tokens": "2k"}, (2000, 64)),
    ],
)
def test_batch_defaults_of_vllm_serve(
    memory: float, device: str, arguments: dict[str, Json], expected: tuple[int, int]
) -> None:
    hardware = dataclasses.replace(H200, memory_gib=memory, device=device)
    assert batch_defaults(hardware, arguments) == expected


def test_the_estimate_is_told_beside_what_a_server_reports() -> None:
    found = dataclasses.replace(of(), kv_tokens=745_000)
    assert found.against(744_688.0) == "KV cache 744,688 tokens, estimated 745,000 (+0.0 %)"
    assert found.against(0) == "KV cache 0 tokens, estimated 745,000"
    assert "KV cache 68" in of(max_model_len=2048).line()
