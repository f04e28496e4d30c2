"""Surfaces over several GPUs: eight of them in one host, and a pair of small machines with unified memory.

See :mod:`tests.benchmarks.search.others`.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tests.benchmarks.search.bench_space import Surface, choice, number, switch
from tests.benchmarks.search.others_parts import GIB, NO_KV, Config, chosen, climbed, drawer, first, number_of, oom
from tuner.model.hardware import Hardware
from tuner.model.llm import ModelFacts
from tuner.model.space import Space

__all__ = ["big_tp", "spark_pair"]

_AIR = ModelFacts(
    name="zai-org/GLM-4.5-Air", layers=46, hidden=4096, heads=96, kv_heads=8, head_dim=128, vocab=151552,
    max_position=131072, intermediate=10944, experts=128, experts_per_token=8, moe_intermediate=1408,
    weight_bytes=213e9, kv_bytes_per_token={"auto": 188416.0, "fp8": 94208.0},
)  # fmt: skip
_EXPERTS_GB, _REST_GB = 199.0, 14.0  # of the BF16 checkpoint


def _eight(seed: int) -> Hardware:
    if drawer(seed, 302)(0, 1) < 0.5:
        return Hardware(
            name="h200x8", platform="cuda", device="NVIDIA H200", count=8, capability=(9, 0), memory_gib=139.8,
            bandwidth_gb_s=4800, tflops={"bf16": 989, "fp8": 1979}, interconnect_gb_s=450,
        )  # fmt: skip
    return Hardware(
        name="rtx-pro-6000x8", platform="cuda", device="NVIDIA RTX PRO 6000 Blackwell Server Edition", count=8,
        capability=(12, 0), memory_gib=94.9, bandwidth_gb_s=1792, tflops={"bf16": 468, "fp8": 936},
        interconnect_gb_s=50,
    )  # fmt: skip


@lru_cache
def big_tp(seed: int) -> Surface:
    """GLM-4.5-Air (106B-A12B) on eight GPUs, over NVLink (H200) or PCIe (RTX PRO 6000) by the seed's draw.

    Tensor parallelism shares reads and pays two all-reduces a layer; pipelines send little and read the weights once
    for each micro-batch; data parallelism splits the KV cache by sequences and meets at every expert layer.
    """
    draw = drawer(seed, 301)
    host = _eight(seed)
    nvlink = (host.interconnect_gb_s or 0) > 100
    total, bandwidth = host.memory_gib, host.bandwidth_gb_s * draw(0.74, 0.84)
    link = (host.interconnect_gb_s or 1.0) * (draw(0.6, 0.8) if nvlink else draw(0.35, 0.6))
    hop_us = draw(7, 12) if nvlink else draw(28, 55)
    clients = round(math.exp(draw(math.log(500), math.log(2500))))
    prompt, output = draw(600, 2000), draw(350, 1000)
    skew = draw(1.08, 1.35)  # the busiest expert rank, against the mean
    narrow = draw(90, 200)  # width at which a sharded expert's GEMM is half as fast as a wide one's
    moe_speed = {"auto": 1.0, "triton": draw(1.0, 1.15), "cutlass": draw(0.85, 1.1)}
    moe_speed["flashinfer_cutlass"] = draw(0.8, 1.1)
    space = Space(
        name="big_tp",
        hardware=host,
        model=_AIR,
        parameters=(
            choice("tensor_parallel_size", ["1", "2", "4", "8"], ordinal=True, default="8"),
            choice("pipeline_parallel_size", ["1", "2"], ordinal=True, when="tensor_parallel_size != '8'"),
            choice("data_parallel_size", ["1", "2", "4"], ordinal=True, when="tensor_parallel_size != '8'"),
            switch("enable_expert_parallel", default=False),
            choice(
                "all2all_backend",
                ["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency"],
                when="enable_expert_parallel == 'true' and data_parallel_size != '1' and tensor_parallel_size != '8'",
            ),
            choice("quantization", ["none", "fp8", "fp8_per_block"]),
            choice("kv_cache_dtype", ["auto", "fp8"]),
            choice("moe_backend", ["auto", "triton", "cutlass", "flashinfer_cutlass"]),
            switch("disable_custom_all_reduce", default=False),
            number("max_num_seqs", 16, 2048, 1024, log=True),
            number("max_num_batched_tokens", 1024, 32768, 8192, log=True),
            number("gpu_memory_utilization", 0.6, 0.98, 0.92, integer=False),
            number("max_cudagraph_capture_size", 16, 1024, 512, log=True),
        ),
    )

    def sizes(config: Config) -> tuple[int, int, int, bool]:
        tensor, pipeline, data = (
            int(number_of(config, f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline", "data")
        )
        return tensor, pipeline, data, chosen(config, "enable_expert_parallel") == "true"

    def memory(config: Config) -> tuple[float, float, float]:
        """Per GPU: GiB of weights, of KV cache, and of graphs beyond the budget."""
        tensor, pipeline, data, _ = sizes(config)
        eight = 0.52 if chosen(config, "quantization") != "none" else 1.0
        weights = eight * 1e9 / GIB * (_EXPERTS_GB / (tensor * pipeline * data) + _REST_GB / (tensor * pipeline))
        activations = number_of(config, "max_num_batched_tokens") * 2.2e5 / GIB + 1.5
        if chosen(config, "all2all_backend").startswith("deepep"):
            activations += 2.0 + number_of(config, "max_num_seqs") / 512  # its buffers
        graphs = 0.5 + number_of(config, "max_cudagraph_capture_size") / 512 * 1.6
        return weights, number_of(config, "gpu_memory_utilization") * total - weights - activations, graphs

    def dead(config: Config) -> str:
        tensor, pipeline, data, experts = sizes(config)
        world = tensor * pipeline * data
        weights, room, graphs = memory(config)
        quantization, moe = chosen(config, "quantization"), chosen(config, "moe_backend")
        backend = chosen(config, "all2all_backend")
        sequences, batched = number_of(config, "max_num_seqs"), number_of(config, "max_num_batched_tokens")
        shard = 1408 // (1 if experts else tensor * data)
        return first(
            (
                batched < sequences,
                (
                    f"max_num_batched_tokens ({batched:.0f}) must be greater than or equal to max_num_seqs "
                    f"({sequences:.0f})."
                ),
            ),
            (world > 8, f"ValueError: World size ({world}) is larger than the number of available GPUs (8)."),
            (
                moe == "cutlass" and quantization == "none",
                f"ValueError: moe_backend='{moe}' is not supported for unquantized MoE.",
            ),
            (
                quantization == "fp8_per_block" and shard % 128 != 0,
                (
                    f"ValueError: The output_size of gate's and up's weight = {shard} is not divisible by weight "
                    "quantization block_n = 128."
                ),
            ),
            (
                backend.startswith("deepep") and not nvlink,
                "RuntimeError: Failed: CUDA error deep_ep.cpp:117 'peer access is not supported between these devices'"
                if backend == "deepep_high_throughput"
                else "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            ),
            (
                backend == "deepep_low_latency" and sequences > 1024 * data,
                "AssertionError: num_max_dispatch_tokens_per_rank exceeded",
            ),
            (weights > total - 2.5, oom(2.75 if tensor > 1 else 5.5, total)),
            (room < prompt * 4e-4 / tensor, NO_KV),
            (
                number_of(config, "gpu_memory_utilization") * total + graphs * 0.6 > total - (2.2 if nvlink else 1.6),
                "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
                if tensor > 1
                else oom(graphs, total),
            ),
        )

    def layer_ms(config: Config, batch: float, *, decoding: bool) -> float:
        """One layer on one GPU for ``batch`` tokens over all data-parallel ranks."""
        tensor, pipeline, data, experts = sizes(config)
        quantization = chosen(config, "quantization")
        eight = 0.52 if quantization != "none" else 1.0
        local, layers, group = batch / data, 46, tensor * data
        touched = 1 - (1 - 8 / 128) ** batch
        rate = host.tflops["bf16"] * 1e9 * (0.5 if quantization == "none" else 0.8)
        speed = moe_speed[chosen(config, "moe_backend")] * (skew if experts and group > 1 else 1.0)
        speed *= 1.0 if experts else 1 + narrow / (1408 / group) * 0.35
        flops = 6 * 4096 * 1408 * 8 * batch / group
        moe = (_EXPERTS_GB * eight / layers * touched / group / bandwidth * 1e3 + flops / rate) * speed
        dense = _REST_GB * eight / layers / tensor / bandwidth * 1e3 + 2.2e8 * local / tensor / rate
        kv = 94208.0 if chosen(config, "kv_cache_dtype") == "fp8" else 188416.0
        reads = local * (prompt + output / 2) * kv / layers / tensor / bandwidth / 1e6 if decoding else 0.0
        # Messages: two all-reduces in a tensor group, a dispatch and a combine among data-parallel ranks.
        talk = 0.0
        slow = 2.2 if nvlink and chosen(config, "disable_custom_all_reduce") == "true" and decoding else 1.0
        if tensor > 1:
            talk += 2 * (
                hop_us * slow * math.log2(tensor) / 1e3 + local * 8192 * 2 * (tensor - 1) / tensor / link / 1e6
            )
        if data > 1:
            volume = local * 8192 * (data - 1) / link / 1e6 * 2
            backend = chosen(config, "all2all_backend")
            fixed = {"deepep_high_throughput": 6.0, "deepep_low_latency": 1.6}.get(backend, 3.5)
            volume *= {"deepep_high_throughput": 0.4, "deepep_low_latency": 0.75}.get(backend, 1.0)
            talk += fixed * hop_us / 1e3 + volume
        return float((moe + dense + reads + talk) / pipeline)

    def evaluate(config: Config) -> float | str:
        reason = dead(config)
        if reason:
            return reason
        tensor, pipeline, data, _ = sizes(config)
        kv = 94208.0 if chosen(config, "kv_cache_dtype") == "fp8" else 188416.0
        _, room, _ = memory(config)
        fits = room * GIB / (kv / (tensor * pipeline) * (prompt + output)) * data
        asked = min(number_of(config, "max_num_seqs") * data, clients)
        running = min(asked, fits) * (0.9 if asked > 1.1 * fits else 1.0)
        batch = running / pipeline
        step = 46 * layer_ms(config, batch, decoding=True) * pipeline
        step *= 1.1 if pipeline > 1 else 1.0  # stages wait for one another
        step *= 1 + 0.05 * math.log2(data)  # and ranks for the one with the longest contexts
        eager = batch / data > number_of(config, "max_cudagraph_capture_size")
        eager = eager or chosen(config, "all2all_backend") == "deepep_high_throughput"
        engine = 1.5 + 0.014 * running / data + (0.0 if pipeline == 1 else 0.01 * running)
        step = step + 26.0 if eager else step
        step = max(step, engine) + 0.2 * min(step, engine)
        # Prefill of what arrives meanwhile, in chunks over all ranks.
        arriving = running * prompt / output
        chunk = min(number_of(config, "max_num_batched_tokens") * data, max(arriving, prompt))
        prefill = (
            arriving / chunk * (46 * layer_ms(config, chunk, decoding=False) * (1.15 if pipeline > 1 else 1.0) + 4)
        )
        return running / (step + prefill) * 1e3

    layouts = [("8", "1", "1")] + [
        (t, p, d) for t in "124" for p in "12" for d in "124" if int(t) * int(p) * int(d) <= 8
    ]
    starts = [
        {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, "data_parallel_size": data,
         "enable_expert_parallel": experts, "quantization": quantization}
        for tensor, pipeline, data in layouts
        for experts in ("false", "true")
        for quantization in ("fp8", "fp8_per_block")
    ]  # fmt: skip
    return climbed(Surface("big_tp", space, evaluate, noise=0.015), starts)


_GLM = ModelFacts(
    name="GLM-4.6-NVFP4", layers=92, hidden=5120, heads=96, kv_heads=8, head_dim=128, vocab=151552,
    max_position=202752, intermediate=12288, experts=160, experts_per_token=8, moe_intermediate=1536,
    quantization="modelopt_fp4", weight_bytes=194e9, kv_bytes_per_token={"auto": 376832.0, "fp8": 188416.0},
    mtp_layers=1,
)  # fmt: skip
_GB10 = Hardware(
    name="dgx-spark-x2", platform="cuda", device="NVIDIA GB10", count=2, nodes=2, capability=(12, 1), memory_gib=119.6,
    bandwidth_gb_s=273, tflops={"bf16": 125, "fp8": 250, "fp4": 500}, interconnect_gb_s=25, unified_memory=True,
)  # fmt: skip


def spark_pair(seed: int) -> Surface:
    """GLM-4.6 in NVFP4 (194 GB) on two GB10 machines: few users, long prompts, hardly any memory left for the cache.

    The GPU's memory is the host's: what the engine claims the operating system lacks, and offloaded weights lie in the
    same chips. A machine that swaps crawls before it dies.
    """
    draw = drawer(seed, 401)
    total, bandwidth = _GB10.memory_gib, 273 * draw(0.76, 0.86)
    system = draw(4.5, 6.5)  # GiB that the system and the engine's processes need beside the claim
    hop_us = draw(22, 40)
    clients, prompt, output = round(draw(10, 32)), draw(3500, 7500), draw(400, 900)
    # The chance that the first, second … drafted token is kept.
    reached = [draw(0.74, 0.85), draw(0.42, 0.58), draw(0.18, 0.34), draw(0.06, 0.16), draw(0.01, 0.06)]
    moe_speed = {"auto": 1.0, "marlin": draw(0.98, 1.08), "b12x": draw(0.78, 0.95), "flashinfer_cutlass": 1.0}
    attention_speed = {"auto": 1.0, "FLASH_ATTN": 1.0, "FLASHINFER": draw(0.85, 1.0), "TRITON_ATTN": draw(1.0, 1.4)}
    space = Space(
        name="spark_pair",
        hardware=_GB10,
        model=_GLM,
        parameters=(
            choice("parallelism", ["tp2", "pp2"], target="tensor-parallel-size"),
            number("gpu_memory_utilization", 0.8, 0.96, 0.92, integer=False),
            number("max_num_seqs", 1, 256, 256, log=True),
            number("max_num_batched_tokens", 512, 16384, 8192, log=True),
            number("max_model_len", 8192, 65536, 16384, log=True),
            choice("kv_cache_dtype", ["auto", "fp8"]),
            choice("moe_backend", ["auto", "marlin", "flashinfer_cutlass", "b12x"]),
            choice("attention_backend", ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"]),
            choice("cudagraph_mode", ["FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY", "NONE"]),
            number("max_cudagraph_capture_size", 1, 512, 512, log=True, when="cudagraph_mode != 'NONE'"),
            number("cpu_offload_gb", 0, 12, 0),
            choice("speculation", ["off", "mtp"], when="parallelism == 'tp2'"),
            number("num_speculative_tokens", 1, 5, 1, when="parallelism == 'tp2' and speculation == 'mtp'"),
            switch("enable_prefix_caching", default=True),
        ),
    )

    def memory(config: Config) -> tuple[float, float]:
        """GiB for the KV cache, and GiB taken from the machine altogether."""
        offload = number_of(config, "cpu_offload_gb")
        weights = 90.3 + (1.9 if chosen(config, "speculation") == "mtp" else 0.0) - offload
        activations = 0.9 + number_of(config, "max_num_batched_tokens") * 1.7e5 / GIB
        captured = number_of(config, "max_cudagraph_capture_size")
        graphs = (1.5 if chosen(config, "cudagraph_mode") == "FULL_AND_PIECEWISE" else 1.0) * captured / 512 * 1.6
        claim = number_of(config, "gpu_memory_utilization") * total
        drafting = number_of(config, "num_speculative_tokens") * number_of(config, "max_num_seqs") * 1.2e6 / GIB
        return claim - weights - activations - drafting, claim + offload + graphs + system

    def dead(config: Config) -> str:
        room, taken = memory(config)
        moe, attention = chosen(config, "moe_backend"), chosen(config, "attention_backend")
        small = chosen(config, "kv_cache_dtype") == "fp8"
        length = number_of(config, "max_model_len")
        needed = length * (94208.0 if small else 188416.0) / GIB
        batched, sequences = number_of(config, "max_num_batched_tokens"), number_of(config, "max_num_seqs")
        claim = number_of(config, "gpu_memory_utilization")
        return first(
            (
                batched < sequences,
                (
                    f"max_num_batched_tokens ({batched:.0f}) must be greater than or equal to max_num_seqs "
                    f"({sequences:.0f})."
                ),
            ),
            (
                claim * total > total - system + 1.5,
                (
                    f"ValueError: Free memory on device cuda:0 ({total - system + 1.5:.2f}/{total} GiB) on "
                    f"startup is less than desired GPU memory utilization ({claim:.2f}, {claim * total:.2f} GiB)."
                ),
            ),
            (
                moe == "b12x" and attention == "TRITON_ATTN",
                (
                    "RuntimeError: Triton Error [CUDA]: out of resource: shared memory, Required: 114688, "
                    "Hardware limit: 101376. Reducing block sizes or `num_stages` may help."
                ),
            ),
            (
                attention == "FLASH_ATTN" and small,
                (
                    "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. "
                    "Reason: ['kv_cache_dtype not supported']"
                ),
            ),
            (taken > total + 5.0, "RuntimeError: Engine core initialization failed. See root cause above."),
            (room < 0.4, NO_KV),
            (
                room < needed,
                (
                    f"ValueError: To serve at least one request with the model's max seq len ({length:.0f}), "
                    f"({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
                    f"({room:.2f} GiB)."
                ),
            ),
        )

    def evaluate(config: Config) -> float | str:
        reason = dead(config)
        if reason:
            return reason
        room, taken = memory(config)
        small = chosen(config, "kv_cache_dtype") == "fp8"
        kv = 94208.0 if small else 188416.0  # a node's share of one token
        fits = room * GIB / (kv * (prompt + output))
        asked = min(number_of(config, "max_num_seqs"), clients)
        running = max(0.6, min(asked, fits)) * (0.88 if asked > 1.1 * fits else 1.0)
        drafts = int(number_of(config, "num_speculative_tokens"))
        gain = 1 + sum(reached[:drafts])
        piped = chosen(config, "parallelism") == "pp2"
        batch = running / 2 if piped and running > 1 else running
        tokens = batch * (1 + drafts)
        # Drafted tokens of one sequence choose related experts: fewer distinct ones than strangers would.
        touched = 1 - (1 - 8 / 160) ** (batch * (1 + 0.75 * drafts))
        offload = number_of(config, "cpu_offload_gb")
        experts = 172.0 / 2 * touched * moe_speed[chosen(config, "moe_backend")]
        read = (experts + 11.0) * (1 + 0.9 * offload / 90.0) / bandwidth * 1e3
        cache = (
            batch * (prompt + output / 2) * kv / bandwidth / 1e6 * attention_speed[chosen(config, "attention_backend")]
        )
        compute = tokens * 32e9 / 2 * 2 / 110e9
        draft = drafts * (1.1 + 2.0 * min(1.0, touched * 2)) / bandwidth * 1e3
        node = read + cache + compute + draft
        mode, covered = chosen(config, "cudagraph_mode"), tokens <= number_of(config, "max_cudagraph_capture_size")
        launches = 92 * (0.02 if covered and mode.startswith("FULL") else 0.06 if covered else 0.42)
        talk = 0.06 if piped else 92 * 2 * (hop_us / 1e3 + tokens * 10240 / 25e6)
        if piped:
            # Two halves of the batch in flight; a single sequence walks through both nodes.
            step = 2 * (node / 2 * (1.0 if running > 1 else 2.0) + launches / 2 + talk) * 1.12
            step = step if running > 1 else step / 2
        else:
            step = node + launches + talk
        hit = 0.25 if chosen(config, "enable_prefix_caching") == "true" and fits > 1.2 * running else 0.0
        arriving = running * gain * prompt * (1 - hit) / output
        chunk = min(number_of(config, "max_num_batched_tokens"), prompt * max(1.0, running / 4))
        exchange = 0.2 if piped else 92 * 2 * chunk * 10240 / 25e6 * 0.5
        eager = 0.0 if mode in {"FULL_AND_PIECEWISE", "PIECEWISE"} else 6.0
        prefill = arriving / chunk * (86.0 / bandwidth * 1e3 + chunk * 32e9 / 95e9 + exchange + eager)
        squeezed = max(0.0, taken - total)
        return float(running * gain / (step + prefill) * 1e3 / (1 + 0.9 * squeezed**1.5))

    return Surface("spark_pair", space, evaluate, noise=0.03)
