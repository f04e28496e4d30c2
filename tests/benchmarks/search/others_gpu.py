"""Surfaces on one GPU: a mixture of experts offline, and a dense model behind the API server.

See :mod:`tests.benchmarks.search.others`.
"""

from __future__ import annotations

import math

from tests.benchmarks.search.bench_space import Surface, choice, number, space_of, switch
from tests.benchmarks.search.others_parts import GIB, NO_KV, Config, chosen, drawer, first, number_of, oom, soft_min
from tuner.model.hardware import Hardware
from tuner.model.llm import ModelFacts
from tuner.model.space import Space

__all__ = ["dense_online", "h200_moe"]

_MOE_BACKENDS = ("auto", "triton", "flashinfer_cutlass", "cutlass", "deep_gemm")
_MOE_FORMATS = {
    "none": {"auto", "triton", "flashinfer_cutlass"},
    "fp8": {"auto", "triton", "flashinfer_cutlass", "cutlass"},
    "fp8_per_block": set(_MOE_BACKENDS),
}


def h200_moe(seed: int) -> Surface:
    """Qwen3-30B-A3B offline on one H200: 2048 prompts of 128 tokens at once, 300 tokens out each.

    Step times follow recorded runs: with graphs about 17 ms + 0.02 ms a sequence in BF16 and half in FP8; a host
    that needs 0.036 ms a sequence, hidden behind the GPU by asynchronous scheduling; 42 ms of kernel launches where
    a batch is larger than the largest captured graph.
    """
    draw = drawer(seed, 101)
    prompts, length, output = 2048, 128, 300
    base, per_token = draw(15.5, 18.0), draw(0.011, 0.015)
    host_sequence, host_token = draw(0.015, 0.0195), draw(0.0145, 0.0185)
    launch = draw(37, 47)
    foreign = draw(3.0, 6.0)  # GiB that the driver, a desktop or a neighbour holds
    accepted = draw(0.45, 0.8)
    moe_speed = {
        "auto": 1.0,
        "triton": 1.0,
        "flashinfer_cutlass": draw(0.85, 1.1),
        "cutlass": draw(0.9, 1.12),
        "deep_gemm": draw(0.85, 1.0),
    }
    attention_speed = {"auto": 1.0, "FLASH_ATTN": 1.0, "FLASHINFER": draw(0.9, 1.2), "TRITON_ATTN": draw(1.2, 1.7)}
    attention_speed["FLEX_ATTENTION"] = draw(2.2, 3.5)
    space = space_of(
        "h200_moe",
        [
            number("max_num_seqs", 16, 2048, 1024, log=True),
            number("max_num_batched_tokens", 256, 32768, 16384, log=True),
            number("gpu_memory_utilization", 0.42, 0.98, 0.92, integer=False),
            choice("quantization", ["none", "fp8", "fp8_per_block"]),
            choice("kv_cache_dtype", ["auto", "fp8"]),
            choice("attention_backend", ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"]),
            choice("block_size", ["16", "32", "64", "128"], ordinal=True),
            choice("moe_backend", _MOE_BACKENDS),
            choice("cudagraph_mode", ["FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY", "NONE"]),
            number("max_cudagraph_capture_size", 32, 2048, 512, log=True, when="cudagraph_mode != 'NONE'"),
            choice("async_scheduling", ["auto", "true", "false"]),
            switch("enable_prefix_caching", default=True),
            choice("speculation", ["off", "ngram"]),
            number("num_speculative_tokens", 1, 6, 3, when="speculation == 'ngram'"),
        ],
    )

    def memory(config: Config) -> tuple[float, float]:
        """GiB for the KV cache, and GiB that graphs take outside the budget of the profiler."""
        sequences, batched = number_of(config, "max_num_seqs"), number_of(config, "max_num_batched_tokens")
        weights = 56.9 if chosen(config, "quantization") == "none" else 29.9
        activations = (
            batched * 1.1e5 / GIB + sequences * (1 + number_of(config, "num_speculative_tokens")) * 1.6e6 / GIB
        )
        modes = {"FULL_AND_PIECEWISE": 1.6, "NONE": 0.0}.get(chosen(config, "cudagraph_mode"), 1.0)
        graphs = modes * (0.35 + number_of(config, "max_cudagraph_capture_size") / 512 * 0.9)
        return number_of(config, "gpu_memory_utilization") * 139.8 - weights - activations - 1.2, graphs

    def dead(config: Config) -> str:
        attention, kv = chosen(config, "attention_backend"), chosen(config, "kv_cache_dtype")
        quantization, moe = chosen(config, "quantization"), chosen(config, "moe_backend")
        sequences, batched = number_of(config, "max_num_seqs"), number_of(config, "max_num_batched_tokens")
        room, graphs = memory(config)
        claimed = number_of(config, "gpu_memory_utilization") * 139.8
        return first(
            (
                batched < sequences,
                (
                    "ValidationError: 1 validation error for SchedulerConfig: max_num_batched_tokens "
                    f"({batched:.0f}) must be greater than or equal to max_num_seqs ({sequences:.0f})."
                ),
            ),
            (
                chosen(config, "speculation") == "ngram" and chosen(config, "async_scheduling") == "true",
                (
                    "ValueError: Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram "
                    "GPU kind of speculative decoding."
                ),
            ),
            (
                claimed > 139.8 - foreign,
                (
                    f"ValueError: Free memory on device cuda:0 ({139.8 - foreign:.2f}/139.8 GiB) on startup is "
                    f"less than desired GPU memory utilization ({claimed / 139.8:.2f}, {claimed:.2f} GiB)."
                ),
            ),
            (
                moe not in _MOE_FORMATS[quantization],
                f"ValueError: moe_backend='{moe}' is not supported for unquantized MoE."
                if quantization == "none"
                else f"ValueError: FP8 MoE backend {moe.upper()} does not support the deployment configuration since "
                "kernel does not support quantization scheme.",
            ),
            (
                (attention == "FLASHINFER" and chosen(config, "block_size") == "128")
                or (attention == "FLEX_ATTENTION" and kv == "fp8"),
                (
                    f"ValueError: Selected backend AttentionBackendEnum.{attention} is not valid for this "
                    f"configuration. Reason: ['{'kv_cache_dtype' if kv == 'fp8' else 'block_size'} not supported']"
                ),
            ),
            (room < 2.0, NO_KV),
            (claimed + graphs > 139.8 - foreign, oom(graphs, 139.8)),
        )

    def evaluate(config: Config) -> float | str:
        reason = dead(config)
        if reason:
            return reason
        eight = chosen(config, "quantization") != "none"
        kv = (49152.0 if chosen(config, "kv_cache_dtype") == "fp8" else 98304.0) * 1.02
        batched = number_of(config, "max_num_batched_tokens")
        room, _ = memory(config)
        fits = room * GIB / (kv * (length + output))
        # A steady state fills every freed slot: each decoded token brings length/output prompt tokens with it.
        asked = min(number_of(config, "max_num_seqs"), prompts, batched / (1 + length / output))
        running = min(asked, fits) * (0.93 if asked > 1.15 * fits else 1.0)
        drafts = number_of(config, "num_speculative_tokens")
        gain = (1 - accepted ** (drafts + 1)) / (1 - accepted) if drafts else 1.0
        tokens = running * (1 + drafts)
        speed = moe_speed[chosen(config, "moe_backend")] * (
            1.06 if chosen(config, "quantization") == "fp8_per_block" else 1.0
        )
        gemm = (base + per_token * tokens) * (0.5 if eight else 1.0) * speed
        attention = attention_speed[chosen(config, "attention_backend")] * running * 0.0065
        attention *= (0.62 if chosen(config, "kv_cache_dtype") == "fp8" else 1.0) * (1 + drafts * 0.1)
        attention *= {"16": 1.03, "32": 1.0, "64": 1.0, "128": 1.02}[chosen(config, "block_size")]
        gpu = gemm + attention
        host = 1.3 + host_sequence * running + host_token * running * gain + (0.004 * running if drafts else 0.0)
        host += 0.0015 * running if chosen(config, "enable_prefix_caching") == "true" else 0.0
        launches = launch * (1.3 if eight else 1.0)
        if tokens > number_of(config, "max_cudagraph_capture_size"):
            step = launches + gpu + host
        elif drafts or chosen(config, "async_scheduling") == "false":
            step = gpu + host
        else:
            step = max(gpu, host) + 0.06 * min(gpu, host)
        waves = math.ceil(prompts / running)
        piece = min(batched, running * length)
        chunks = math.ceil(running * length / piece) * (0.35 * launches)
        prefill = chunks + running * length * (0.007 if eight else 0.012) * speed
        seconds = (prompts / running * output / gain * step + waves * prefill) / 1000
        # The last wave is not full; requests of one length finish together, but admission smears some of it.
        seconds *= 1 + 0.35 * (waves * running / prompts - 1)
        return prompts * output / seconds

    return Surface("h200_moe", space, evaluate, noise=0.012)


_LLAMA = ModelFacts(
    name="meta-llama/Llama-3.1-8B-Instruct", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, vocab=128256,
    max_position=131072, intermediate=14336, weight_bytes=16.06e9,
    kv_bytes_per_token={"auto": 131072.0, "fp8": 65536.0},
)  # fmt: skip


def _card(seed: int) -> Hardware:
    if drawer(seed, 202)(0, 1) < 0.5:
        return Hardware(
            name="h100", platform="cuda", device="NVIDIA H100 80GB HBM3", capability=(9, 0), memory_gib=79.1,
            bandwidth_gb_s=3350, tflops={"bf16": 989, "fp8": 1979},
        )  # fmt: skip
    return Hardware(
        name="l40s", platform="cuda", device="NVIDIA L40S", capability=(8, 9), memory_gib=44.4, bandwidth_gb_s=864,
        tflops={"bf16": 362, "fp8": 733},
    )  # fmt: skip


def dense_online(seed: int) -> Surface:
    """Llama-3.1-8B on one H100 or L40S behind the API server: a closed loop of 64 to 256 clients.

    Every reply waits for three queues: the GPU, the engine's own process, and the API servers that detokenize and
    stream. Speculation multiplies the tokens a step computes, so it pays only where steps are bound by memory.
    """
    draw = drawer(seed, 201)
    card = _card(seed)
    hopper = card.capability == (9, 0)
    total, bandwidth = card.memory_gib, card.bandwidth_gb_s * 0.8
    clients = round(math.exp(draw(math.log(64), math.log(256))))
    prompt, output, shared = draw(500, 1400), draw(180, 380), draw(0.2, 0.6)
    eagle, ngram = draw(0.62, 0.76), draw(0.25, 0.5)
    cores = round(draw(4, 9))
    chunk_us, token_us = draw(42, 75), draw(18, 32)
    attention_speed = {"auto": 1.0, "FLASH_ATTN": 1.0, "FLASHINFER": draw(0.9, 1.12), "TRITON_ATTN": draw(1.15, 1.5)}
    attention_speed["FLEX_ATTENTION"] = draw(2.0, 3.0)
    space = Space(
        name="dense_online",
        hardware=card,
        model=_LLAMA,
        parameters=(
            number("max_num_seqs", 8, 1024, 1024 if hopper else 256, log=True),
            number("max_num_batched_tokens", 256, 32768, 8192 if hopper else 2048, log=True),
            number("gpu_memory_utilization", 0.5, 0.98, 0.92, integer=False),
            choice("quantization", ["none", "fp8", "fp8_per_block", "mxfp8"]),
            choice("kv_cache_dtype", ["auto", "fp8"]),
            choice("attention_backend", ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"]),
            number("max_cudagraph_capture_size", 8, 1024, 512, log=True),
            choice("async_scheduling", ["auto", "true", "false"]),
            switch("enable_prefix_caching", default=True),
            number("api_server_count", 1, 8, 1),
            number("stream_interval", 1, 32, 1, log=True),
            choice("speculation", ["off", "ngram", "eagle"]),
            number("num_speculative_tokens", 1, 8, 3, when="speculation != 'off'"),
        ),
    )

    def memory(config: Config) -> tuple[float, float]:
        weights = 15.0 if chosen(config, "quantization") == "none" else 8.5
        weights += 0.9 if chosen(config, "speculation") == "eagle" else 0.0
        logits = number_of(config, "max_num_seqs") * (1 + number_of(config, "num_speculative_tokens")) * 1.1e6
        activations = (number_of(config, "max_num_batched_tokens") * 1.4e5 + logits) / GIB
        graphs = 0.3 + number_of(config, "max_cudagraph_capture_size") / 512 * 0.8
        return number_of(config, "gpu_memory_utilization") * total - weights - activations - 0.9, graphs

    def dead(config: Config) -> str:
        attention, kv = chosen(config, "attention_backend"), chosen(config, "kv_cache_dtype")
        sequences, batched = number_of(config, "max_num_seqs"), number_of(config, "max_num_batched_tokens")
        drafts, speculation = number_of(config, "num_speculative_tokens"), chosen(config, "speculation")
        claimed = number_of(config, "gpu_memory_utilization") * total
        room, graphs = memory(config)
        no_fp8 = attention == "FLEX_ATTENTION" or (attention == "FLASH_ATTN" and not hopper)
        return first(
            (
                batched < sequences,
                (
                    f"max_num_batched_tokens ({batched:.0f}) must be greater than or equal to max_num_seqs "
                    f"({sequences:.0f})."
                ),
            ),
            (
                speculation == "eagle" and batched <= sequences * drafts,
                (
                    "ValueError: VllmConfig received max_num_scheduled_tokens but it does not have enough slots "
                    "to support the speculative decoding settings."
                ),
            ),
            (
                speculation == "ngram" and chosen(config, "async_scheduling") == "true",
                (
                    "ValueError: Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram "
                    "GPU kind of speculative decoding."
                ),
            ),
            (
                chosen(config, "quantization") == "mxfp8",
                (
                    "ValueError: The quantization method mxfp8 is not supported for the current GPU. Minimum "
                    f"capability: 100. Current capability: {card.sm}."
                ),
            ),
            (
                claimed > total - 1.4,
                (
                    f"ValueError: Free memory on device cuda:0 ({total - 1.4:.2f}/{total:.2f} GiB) on startup is "
                    f"less than desired GPU memory utilization ({claimed / total:.2f}, {claimed:.2f} GiB)."
                ),
            ),
            (
                kv == "fp8" and no_fp8,
                (
                    f"ValueError: Selected backend AttentionBackendEnum.{attention} is not valid for this "
                    "configuration. Reason: ['kv_cache_dtype not supported']"
                ),
            ),
            (
                attention == "FLEX_ATTENTION" and speculation == "eagle",
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            ),
            (room < 1.0, NO_KV),
            (claimed + graphs > total - 0.7, oom(graphs, total)),
        )

    def evaluate(config: Config) -> float | str:
        reason = dead(config)
        if reason:
            return reason
        small_kv = chosen(config, "kv_cache_dtype") == "fp8"
        kv = 65536.0 if small_kv else 131072.0
        hit = shared if chosen(config, "enable_prefix_caching") == "true" else 0.0
        context = prompt + output / 2
        room, _ = memory(config)
        fits = room * GIB / (kv * (prompt + output - hit * prompt * 0.9))
        wanted = min(number_of(config, "max_num_seqs"), clients)
        running = min(wanted, fits) * (0.92 if wanted > 1.1 * fits else 1.0)
        drafts, method = number_of(config, "num_speculative_tokens"), chosen(config, "speculation")
        odds = {"eagle": eagle, "ngram": ngram}.get(method, 0.0)
        gain = sum(odds**position for position in range(int(drafts) + 1))
        tokens = running * (1 + drafts)
        quantization = chosen(config, "quantization")
        rate = card.tflops["bf16"] * 1e9 * {"none": 0.55, "fp8": 0.9, "fp8_per_block": 0.8}[quantization]  # per ms
        weights = 16.06 if quantization == "none" else 9.1  # the head stays in 16 bit
        attention = attention_speed[chosen(config, "attention_backend")] * (1.08 if small_kv else 1.0)
        read = weights / bandwidth * 1e3 + running * context * kv / bandwidth / 1e6 * attention
        decode = (read**3 + (tokens * 16.06e9 / rate) ** 3) ** (1 / 3) + 0.4
        if method == "eagle":
            decode += drafts * (0.25 + 1.0 / bandwidth * 1e3 + running * 0.0008)
        # Prompts of new requests ride along; what a step has no room for waits, and decoding with it.
        arriving = running * gain * prompt * (1 - hit) / output
        left = max(16.0, number_of(config, "max_num_batched_tokens") - tokens)
        chunk = min(left, max(arriving, 2.0 * prompt))
        prefill = arriving * 16.06e9 / rate * (1 + 160 / chunk) + arriving / chunk * 0.8
        lost = max(1.0, arriving / left)
        uncovered = tokens > number_of(config, "max_cudagraph_capture_size")
        host = 0.8 + running * (0.011 + 0.006 * gain) + (0.01 * running if method == "ngram" else 0.0)
        gpu = decode * lost + prefill + (9.0 if uncovered else 0.0)
        overlaps = chosen(config, "async_scheduling") != "false" and method != "ngram"
        step = max(gpu, host) + 0.15 * min(gpu, host) if overlaps else gpu + host
        engine = running * gain / step * 1e3
        servers = number_of(config, "api_server_count")
        workers = min(servers, cores - 2) ** 0.9
        interval = max(number_of(config, "stream_interval"), gain)
        frontend = workers * 1e6 / (token_us + chunk_us / interval)
        engine *= 1 - 0.03 * max(0.0, servers - (cores - 2))
        return float(soft_min(engine, frontend, sharpness=3.0) * (1 - 0.004 * min(interval, 32) ** 0.8))

    return Surface("dense_online", space, evaluate, noise=0.02)
