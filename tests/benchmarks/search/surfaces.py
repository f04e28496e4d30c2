"""Synthetic surfaces shaped like vLLM's: cliffs, interactions, dead regions, conditional parameters, noise.

Written down from what is published about vLLM, with constants that change with the seed; none of it shares code or
formulae with the search. Throughput is built from factors and curves per setting (what a setting does to the figure),
not from a time per step as the search's own model is. The search's settings were chosen while looking at seeds 0 to 7
of these surfaces: seeds from 8 on have constants that nobody looked at, but the forms are the same and the author is
the search's, so neither proves anything for a surface that somebody else wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tests.benchmarks.search.bench_space import Surface, choice, number, space_of, switch
from tuner.model.json import Scalar

__all__ = ["SURFACES"]

Setting = Mapping[str, Scalar]


def _num(setting: Setting, name: str) -> float:
    return float(setting[name])  # type: ignore[arg-type]


def _peak(value: float, best: float, width: float, depth: float) -> float:
    """1 at ``best``, falling by ``depth`` at ``width`` doublings away, on a log scale."""
    away = math.log2(max(value, 1e-9) / best) / width
    return 1 - depth * away**2 / (1 + away**2)


def moe_batch(seed: int) -> Surface:
    """A sparse model, offline batch, one large GPU: huge batches pay, if captured; half of all labels cannot start."""
    rng = np.random.default_rng([1, seed])
    knee = float(rng.uniform(500, 1100))
    power = float(rng.uniform(0.75, 0.9))
    fp8 = float(rng.uniform(1.3, 1.7))
    eager = float(rng.uniform(0.25, 0.45))
    backend = {"auto": 1.0,
               "triton": float(rng.uniform(0.9, 1.08)), "deep_gemm": float(rng.uniform(0.98, 1.12)),
               "flashinfer_cutlass": float(rng.uniform(0.95, 1.15))}  # fmt: skip
    attention = {"auto": 1.0, "FLASH_ATTN": 1.0, "FLASHINFER": float(rng.uniform(0.95, 1.06)), "TRITON_ATTN": 0.9}
    parameters = [
        number("max_num_seqs", 16, 2048, 256, log=True),
        number("max_num_batched_tokens", 1024, 32768, 8192, log=True),
        number("gpu_memory_utilization", 0.4, 0.98, 0.9, step=0.02, integer=False),
        number("max_cudagraph_capture_size", 8, 2048, 512, log=True),
        choice("cudagraph_mode", ["FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY", "NONE"],
               target="compilation-config.cudagraph_mode"),
        choice("quantization", ["none", "fp8", "awq", "int8_per_channel_weight_only"]),
        choice("kv_cache_dtype", ["auto", "fp8"]),
        choice("moe_backend", ["auto", "triton", "deep_gemm", "flashinfer_cutlass"]),
        choice("attention_backend", ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLASHMLA"]),
        choice("block_size", ["16", "24", "32", "64", "128"], ordinal=True),
        switch("async_scheduling", default=True),
        switch("enable_chunked_prefill", default=True),
        choice("speculation", ["off", "ngram"], target="speculative-config.method"),
        number("num_speculative_tokens", 1, 8, 3, target="speculative-config.num_speculative_tokens",
               when="speculation != 'off'"),
    ]  # fmt: skip

    def evaluate(s: Setting) -> float | str:
        seqs, tokens = _num(s, "max_num_seqs"), _num(s, "max_num_batched_tokens")
        memory, capture = _num(s, "gpu_memory_utilization"), _num(s, "max_cudagraph_capture_size")
        quantised = s["quantization"] == "fp8"
        if s["quantization"] == "awq":
            return "ValueError: no awq weights in the checkpoint"
        if s["moe_backend"] == "deep_gemm" and not quantised:
            return "ValueError: moe_backend='deep_gemm' is not supported for unquantized MoE"
        if s["attention_backend"] == "FLASHMLA" or s["block_size"] == "24":
            return "ValueError: No valid attention backend found for cuda"
        if s["enable_chunked_prefill"] == "false" and tokens < 2048:
            return "ValueError: max_num_batched_tokens is smaller than max_model_len"
        if tokens < seqs:
            return "ValueError: max_num_batched_tokens must be greater than or equal to max_num_seqs"
        if memory < (0.3 if quantised else 0.5):
            return "ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization"
        if memory > 0.94 and tokens > 16384:
            return "torch.OutOfMemoryError: CUDA out of memory"
        rate = 40 * min(seqs, knee) ** power * (1 + 0.15 * max(math.log2(seqs / knee), 0) * (0.5 if seqs > knee else 0))
        drafts = _num(s, "num_speculative_tokens") if s["speculation"] != "off" else 0
        if drafts:
            rate *= 1.15 / (1 + 0.12 * drafts) if seqs < 64 else 0.92 / (1 + 0.08 * drafts)
        graph = s["cudagraph_mode"]
        if graph == "NONE" or (min(seqs, 1.3 * knee)) * (1 + drafts) > capture:
            rate *= eager
        elif graph == "PIECEWISE":
            rate *= 0.97
        rate *= fp8 if quantised else 0.85 if s["quantization"] != "none" else 1.0
        rate *= 1.06 if s["kv_cache_dtype"] == "fp8" else 1.0
        rate *= backend[str(s["moe_backend"])] * attention[str(s["attention_backend"])]
        rate *= _peak(tokens, 12000, 3, 0.2)
        rate *= 0.94 if s["async_scheduling"] == "false" else 1.0
        return rate * (0.9 + 0.1 * min(memory / 0.85, 1.0))

    def told(s: Setting) -> dict[str, float]:
        running = min(_num(s, "max_num_seqs"), 1.3 * knee)
        return {"engine/running_mean": 0.9 * running, "engine/running_max": running}

    return Surface("moe-batch", space_of("moe-batch", parameters), evaluate, noise=0.02, told=told)


def dense_chat(seed: int) -> Surface:
    """A dense model at a low load: the load bounds the batch, speculation pays up to a depth, the rest is small."""
    rng = np.random.default_rng([2, seed])
    load = int(rng.choice([16, 24, 48]))
    depth = float(rng.uniform(2, 5))
    gain = float(rng.uniform(0.35, 0.8))
    quant = {"none": 1.0, "fp8": float(rng.uniform(1.15, 1.45)), "awq": float(rng.uniform(1.2, 1.6)),
             "bitsandbytes": float(rng.uniform(0.5, 0.8)), "mxfp4": None}  # fmt: skip
    parameters = [
        number("max_num_seqs", 4, 512, 256, log=True),
        number("max_num_batched_tokens", 512, 16384, 2048, log=True),
        choice("quantization", ["none", "fp8", "awq", "bitsandbytes", "mxfp4"]),
        choice("kv_cache_dtype", ["auto", "fp8"]),
        choice("attention_backend", ["auto", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TREE_ATTN"]),
        choice("speculation", ["off", "ngram", "eagle3", "suffix", "draft_model"], target="speculative-config.method"),
        number(
            "spec_tokens", 1, 10, 3, target="speculative-config.num_speculative_tokens", when="speculation != 'off'"
        ),
        number("max_cudagraph_capture_size", 4, 1024, 512, log=True),
        switch("enforce_eager", default=False),
        switch("async_scheduling", default=True),
        number("stream_interval", 1, 16, 1, log=True),
        choice("api_server_count", ["1", "2", "4", "8"], ordinal=True),
    ]

    def evaluate(s: Setting) -> float | str:
        if quant[str(s["quantization"])] is None:
            return "ValueError: quantization mxfp4 is not supported on this device"
        if s["attention_backend"] == "TREE_ATTN":
            return "ValueError: TREE_ATTN only with a draft tree"
        if s["speculation"] == "suffix":
            return "ImportError: arctic-inference"
        if s["speculation"] == "draft_model" and s["quantization"] == "awq":
            return "RuntimeError: draft and target kernels differ"
        if s["speculation"] == "ngram" and s["async_scheduling"] == "true":
            return "ValueError: async scheduling is only supported with EAGLE/MTP"
        batch = min(_num(s, "max_num_seqs"), load)
        rate = 60 * batch**0.92 * (quant[str(s["quantization"])] or 0)
        tokens = batch
        if s["speculation"] != "off":
            k = _num(s, "spec_tokens")
            tokens = batch * (1 + k)
            kind = {"ngram": 0.45, "eagle3": 1.0, "draft_model": 0.7}[str(s["speculation"])]
            rate *= 1 + gain * kind * (1 - math.exp(-k / depth * 2)) - 0.018 * k * (1 + batch / 40)
        if s["enforce_eager"] == "true" or tokens > _num(s, "max_cudagraph_capture_size"):
            rate *= 0.62
        kernels = {"auto": 1.0, "FLASHINFER": 1.03, "TRITON_ATTN": 0.93, "FLEX_ATTENTION": 0.55}
        rate *= kernels[str(s["attention_backend"])]
        rate *= 0.985 if s["kv_cache_dtype"] == "fp8" else 1.0
        rate *= 1 + 0.012 * math.log2(_num(s, "stream_interval"))
        rate *= {"1": 1.0, "2": 1.015, "4": 0.99, "8": 0.95}[str(s["api_server_count"])]
        rate *= 0.93 if s["async_scheduling"] == "false" else 1.0
        return rate * _peak(_num(s, "max_num_batched_tokens"), 4096, 3, 0.12)

    def told(s: Setting) -> dict[str, float]:
        running = min(_num(s, "max_num_seqs"), load)
        found = {"engine/running_mean": 0.9 * running, "engine/running_max": running}
        if s["speculation"] != "off":
            kind = {"ngram": 0.45, "eagle3": 1.0, "draft_model": 0.7}[str(s["speculation"])]
            found["engine/acceptance_length"] = 1 + 1.3 * gain * kind * (
                1 - math.exp(-_num(s, "spec_tokens") / depth * 2)
            )
        return found

    return Surface("dense-chat", space_of("dense-chat", parameters), evaluate, noise=0.015, told=told)


def long_context(seed: int) -> Surface:
    """Long prompts: the KV cache bounds the batch; too many sequences thrash, too much memory dies."""
    rng = np.random.default_rng([3, seed])
    room = float(rng.uniform(24, 60))
    steep = float(rng.uniform(0.5, 1.2))
    edge = float(rng.uniform(0.93, 0.96))
    best_tokens = float(rng.choice([4096, 8192, 16384]))
    parameters = [
        number("max_num_seqs", 8, 1024, 256, log=True),
        number("max_num_batched_tokens", 1024, 65536, 8192, log=True),
        number("gpu_memory_utilization", 0.7, 0.99, 0.92, step=0.01, integer=False),
        choice("kv_cache_dtype", ["auto", "fp8", "int4"]),
        choice("block_size", ["16", "32", "64", "128", "256"], ordinal=True),
        switch("enable_prefix_caching", default=True),
        number("long_prefill_token_threshold", 0, 8192, 0, step=512),
        choice("attention_backend", ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"]),
        choice("cudagraph_mode", ["FULL_AND_PIECEWISE", "FULL", "PIECEWISE", "NONE"],
               target="compilation-config.cudagraph_mode"),
        choice("quantization", ["none", "fp8", "fp8_per_block", "experts_int8"]),
        choice("scheduling_policy", ["fcfs", "priority"]),
    ]  # fmt: skip

    def held(s: Setting) -> float:
        taken = 0.25 if s["quantization"] in ("fp8", "fp8_per_block") else 0.45
        free = _num(s, "gpu_memory_utilization") - taken
        return room * free / 0.5 * (1.9 if s["kv_cache_dtype"] == "fp8" else 1.0)

    def evaluate(s: Setting) -> float | str:
        memory, tokens = _num(s, "gpu_memory_utilization"), _num(s, "max_num_batched_tokens")
        if s["quantization"] == "experts_int8":
            return "ValueError: experts_int8 needs a MoE"
        if s["kv_cache_dtype"] == "int4":
            return f"ValueError: unsupported cache dtype {s['kv_cache_dtype']}"
        if s["block_size"] == "256" and s["attention_backend"] in ("auto", "FLASH_ATTN"):
            return "ValueError: No common block size for 256"
        if s["attention_backend"] == "FLASHINFER" and s["kv_cache_dtype"] == "auto" and s["cudagraph_mode"] == "FULL":
            return "RuntimeError: graph capture failed"
        if memory + 0.012 * math.log2(tokens / 8192) > edge + 0.02:
            return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
        small = s["quantization"] in ("fp8", "fp8_per_block")
        fits, seqs = held(s), _num(s, "max_num_seqs")
        rate = 90 * min(seqs, fits) ** 0.8
        if seqs > 1.3 * fits:
            rate /= 1 + 0.25 * steep * math.log2(seqs / (1.3 * fits))
        rate *= 1.18 if s["quantization"] == "fp8" else 1.1 if small else 1.0
        rate *= _peak(tokens, best_tokens, 2, 0.35)
        rate *= {"FULL_AND_PIECEWISE": 1.0, "FULL": 1.01, "PIECEWISE": 0.96, "NONE": 0.8}[str(s["cudagraph_mode"])]
        rate *= {"auto": 1.0, "FLASH_ATTN": 1.0, "FLASHINFER": 1.05, "TRITON_ATTN": 0.85}[str(s["attention_backend"])]
        rate *= 0.96 if s["enable_prefix_caching"] == "false" else 1.0
        rate *= 1 - 0.04 * abs(_num(s, "long_prefill_token_threshold") - 2048) / 6144
        return rate

    def told(s: Setting) -> dict[str, float]:
        seqs, fits = _num(s, "max_num_seqs"), held(s)
        return {
            "engine/running_mean": 0.9 * min(seqs, fits),
            "engine/running_max": min(seqs, fits),
            "engine/kv_usage_max": min(seqs / fits, 1.0),
        }

    return Surface("long-context", space_of("long-context", parameters), evaluate, noise=0.02, told=told)


def eight_gpus(seed: int) -> Surface:
    """Eight GPUs: how they are split matters most, expert parallelism and its transport interact, much cannot start."""
    rng = np.random.default_rng([4, seed])
    best = int(rng.choice([1, 2, 4]))
    expert = float(rng.uniform(0.9, 1.3))
    parameters = [
        choice("tensor_parallel_size", ["1", "2", "4", "8"], ordinal=True, default="8"),
        choice("data_parallel_size", ["1", "2", "4", "8"], ordinal=True),
        switch("enable_expert_parallel", default=False),
        choice(
            "all2all_backend", ["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "nixl_ep"]
        ),
        switch("enable_dbo", default=False),
        number("max_num_seqs", 32, 2048, 256, log=True),
        number("max_num_batched_tokens", 2048, 32768, 8192, log=True),
        number("max_cudagraph_capture_size", 16, 2048, 512, log=True),
        choice("quantization", ["none", "fp8"]),
        choice("moe_backend", ["auto", "triton", "deep_gemm", "cutlass", "marlin"]),
        choice("performance_mode", ["balanced", "interactivity", "throughput"]),
        switch("async_scheduling", default=True),
        switch("enable_eplb", default=False),
    ]

    def evaluate(s: Setting) -> float | str:
        tp, dp = int(_num(s, "tensor_parallel_size")), int(_num(s, "data_parallel_size"))
        ep, transport = s["enable_expert_parallel"] == "true", str(s["all2all_backend"])
        if tp * dp > 8:
            return f"ValueError: World size ({tp * dp}) is larger than the number of available GPUs (8)"
        if tp == 1 and s["quantization"] == "none":
            return "torch.OutOfMemoryError: CUDA out of memory while loading weights"
        if s["moe_backend"] in ("cutlass", "deep_gemm") and s["quantization"] != "fp8":
            return f"ValueError: moe_backend {s['moe_backend']} needs fp8"
        if transport == "nixl_ep":
            return "ImportError: nixl is not installed"
        if s["enable_dbo"] == "true" and not transport.startswith("deepep"):
            return "AssertionError: Microbatching currently only supports deepep"
        if s["enable_eplb"] == "true" and not ep:
            return "ValueError: enable_expert_parallel must be True to use EPLB."
        seqs = _num(s, "max_num_seqs")
        rate = 30 * min(seqs * dp, 1500) ** 0.78 * (tp * dp / 8) ** 0.55
        rate *= 1 - 0.16 * abs(math.log2(tp / (2 * best)))
        if min(seqs, 1500 / dp) > _num(s, "max_cudagraph_capture_size"):
            rate *= 0.5
        if ep and dp > 1:
            rate *= expert * {"deepep_high_throughput": 1.12, "deepep_low_latency": 0.9}.get(transport, 1.0)
            rate *= 1.05 if s["enable_dbo"] == "true" else 1.0
            rate *= 1.04 if s["enable_eplb"] == "true" else 1.0
        elif ep:
            rate *= 0.97
        rate *= 1.4 if s["quantization"] == "fp8" else 1.0
        rate *= {"auto": 1.0, "triton": 0.95, "deep_gemm": 1.1, "cutlass": 1.04, "marlin": 0.8}[str(s["moe_backend"])]
        rate *= {"balanced": 1.0, "interactivity": 0.95, "throughput": 1.02}[str(s["performance_mode"])]
        rate *= 0.92 if s["async_scheduling"] == "false" else 1.0
        return rate * _peak(_num(s, "max_num_batched_tokens"), 16384, 4, 0.2)

    return Surface("eight-gpus", space_of("eight-gpus", parameters, count=8), evaluate, noise=0.03)


def contrary(seed: int) -> Surface:
    """vLLM's names on a machine that behaves against expectation: small batches win, FP8 and graphs lose."""
    rng = np.random.default_rng([5, seed])
    best = float(rng.choice([12, 24, 40]))
    parameters = [
        number("max_num_seqs", 4, 1024, 256, log=True),
        number("max_num_batched_tokens", 256, 16384, 2048, log=True),
        number("max_cudagraph_capture_size", 4, 1024, 256, log=True),
        choice(
            "cudagraph_mode", ["FULL_AND_PIECEWISE", "PIECEWISE", "NONE"], target="compilation-config.cudagraph_mode"
        ),
        choice("quantization", ["none", "fp8", "awq"]),
        choice("kv_cache_dtype", ["auto", "fp8"]),
        choice("block_size", ["16", "32", "64", "128"], ordinal=True),
        switch("async_scheduling", default=True),
        switch("enable_chunked_prefill", default=True),
        choice("attention_backend", ["auto", "TRITON_ATTN", "ROCM_ATTN", "FLEX_ATTENTION"]),
    ]

    def evaluate(s: Setting) -> float | str:
        if s["quantization"] == "awq" and s["kv_cache_dtype"] == "fp8":
            return "RuntimeError: kernel launch failed"
        if s["attention_backend"] == "ROCM_ATTN":
            return "ValueError: ROCM_ATTN needs ROCm"
        rate = 400.0 * _peak(_num(s, "max_num_seqs"), best, 2.5, 0.6)
        rate *= {"FULL_AND_PIECEWISE": 0.8, "PIECEWISE": 0.9, "NONE": 1.0}[str(s["cudagraph_mode"])]
        if s["cudagraph_mode"] != "NONE":
            rate *= 1 - 0.02 * math.log2(_num(s, "max_cudagraph_capture_size") / 4)
        rate *= {"none": 1.0, "fp8": 0.7, "awq": 1.1}[str(s["quantization"])]
        rate *= 0.85 if s["kv_cache_dtype"] == "fp8" else 1.0
        rate *= {"16": 0.95, "32": 1.0, "64": 1.06, "128": 0.9}[str(s["block_size"])]
        rate *= 1.05 if s["async_scheduling"] == "false" else 1.0
        rate *= {"auto": 1.0, "TRITON_ATTN": 1.12, "FLEX_ATTENTION": 0.6}[str(s["attention_backend"])]
        return rate * _peak(_num(s, "max_num_batched_tokens"), 1024, 2, 0.3)

    return Surface("contrary", space_of("contrary", parameters), evaluate, noise=0.02)


def other_engine(seed: int) -> Surface:
    """Another engine behind a trial command: no parameter that the mechanism knows."""
    rng = np.random.default_rng([6, seed])
    threads = float(rng.choice([6, 10, 14]))
    batch = float(rng.choice([256, 512, 1024]))
    parameters = [
        number("threads", 1, 32, 4),
        number("ubatch", 32, 4096, 512, log=True),
        number("lanes", 1, 64, 1, log=True),
        choice("flash", ["auto", "on", "off"]),
        choice("cache_type", ["f16", "q8_0", "q4_0", "q5_1"]),
        choice("split", ["layer", "row", "none"]),
        number("polling", 0, 100, 50, step=10),
        number("defrag", 0.0, 1.0, 0.1, integer=False),
        switch("pin_memory", default=True),
    ]

    def evaluate(s: Setting) -> float | str:
        if s["cache_type"] in ("q4_0", "q5_1") and s["flash"] == "off":
            return "error: V cache quantization requires flash attention"
        if s["split"] == "row" and _num(s, "lanes") > 32:
            return "CUDA error: out of memory"
        many = _num(s, "threads")
        rate = 100 * _peak(many, threads, 1.2, 0.6) * _num(s, "lanes") ** 0.5 / (1 + (_num(s, "lanes") / 40) ** 2)
        rate *= _peak(_num(s, "ubatch"), batch * (0.5 if s["cache_type"] == "f16" else 1.0), 2, 0.4)
        rate *= {"auto": 1.0, "on": 1.05, "off": 0.8}[str(s["flash"])]
        rate *= {"f16": 1.0, "q8_0": 1.1, "q4_0": 1.04, "q5_1": 0.9}[str(s["cache_type"])]
        rate *= {"layer": 1.0, "row": 1.1, "none": 0.7}[str(s["split"])]
        rate *= 1 - 0.1 * abs(_num(s, "polling") - 80) / 80
        rate *= 1 - 0.15 * (_num(s, "defrag") - 0.4) ** 2
        return rate * (0.97 if s["pin_memory"] == "false" else 1.0)

    return Surface("other-engine", space_of("other-engine", parameters), evaluate, noise=0.03)


def flat(seed: int) -> Surface:
    """Nothing matters beyond the noise: any gain that is claimed here is false."""
    rng = np.random.default_rng([7, seed])
    tilt = rng.normal(0, 0.002, size=6)
    parameters = [
        number("max_num_seqs", 64, 1024, 256, log=True),
        number("max_num_batched_tokens", 2048, 16384, 8192, log=True),
        choice("block_size", ["16", "32", "64"], ordinal=True),
        switch("async_scheduling", default=True),
        number("stream_interval", 1, 8, 1),
        choice("attention_backend", ["auto", "FLASH_ATTN", "FLASHINFER"]),
    ]

    def evaluate(s: Setting) -> float | str:
        marks = (
            math.log2(_num(s, "max_num_seqs") / 256) / 2,
            math.log2(_num(s, "max_num_batched_tokens") / 8192) / 2,
            math.log2(float(str(s["block_size"])) / 32),
            1.0 if s["async_scheduling"] == "true" else -1.0,
            _num(s, "stream_interval") / 8,
            1.0 if s["attention_backend"] == "FLASHINFER" else 0.0,
        )
        return 5000 * math.exp(float(np.dot(tilt, marks)))

    return Surface("flat", space_of("flat", parameters), evaluate, noise=0.01)


SURFACES: dict[str, Callable[[int], Surface]] = {
    "moe-batch": moe_batch,
    "dense-chat": dense_chat,
    "long-context": long_context,
    "eight-gpus": eight_gpus,
    "contrary": contrary,
    "other-engine": other_engine,
    "flat": flat,
}
"""Name → surface for a seed."""
