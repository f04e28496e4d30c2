"""Surfaces away from vLLM on GPUs: vLLM's CPU backend on a server of two sockets, and another engine's flags.

See :mod:`tests.benchmarks.search.others`.
"""

from __future__ import annotations

import math

from tests.benchmarks.search.bench_space import Surface, choice, number, switch
from tests.benchmarks.search.others_parts import GIB, Config, chosen, drawer, first, number_of, oom
from tuner.model.hardware import Hardware
from tuner.model.llm import ModelFacts
from tuner.model.space import Space

__all__ = ["cpu_server", "sglang_like"]

_QWEN_8B = ModelFacts(
    name="Qwen/Qwen3-8B", layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, vocab=151936, max_position=40960,
    intermediate=12288, weight_bytes=16.4e9, kv_bytes_per_token={"auto": 147456.0, "fp8": 73728.0},
)  # fmt: skip


def cpu_server(seed: int) -> Surface:
    """Qwen3-8B on two sockets with AMX: 200-odd clients, prompts of a few hundred tokens.

    One worker binds to one memory node and leaves the other idle; unbound threads wander and read across the link
    between sockets; a worker per node reads both memories. The cache is small unless it is asked for.
    """
    draw = drawer(seed, 501)
    cores, memory_gib = round(draw(32, 64)), draw(240, 500)  # of a socket
    bandwidth, flops = draw(190, 290), draw(30e9, 60e9)  # of a socket: GB/s reached, BF16 operations a ms on AMX
    amx_fp16 = draw(0, 1) < 0.35
    clients, prompt, output = round(draw(120, 320)), draw(250, 700), draw(100, 260)
    shared, remote, sync_us = draw(0.1, 0.5), draw(0.42, 0.6), draw(25, 60)
    best_block = 64 if draw(0, 1) < 0.5 else 128
    sgl = draw(0.8, 0.96)
    hardware = Hardware(
        name="xeon-2s", platform="cpu", device="Intel Xeon, 2 sockets", memory_gib=2 * memory_gib,
        bandwidth_gb_s=2 * 307.0, tflops={"bf16": 2 * flops / 1e9}, cores=2 * cores,
    )  # fmt: skip
    space = Space(
        name="cpu_server",
        hardware=hardware,
        model=_QWEN_8B,
        parameters=(
            choice("tensor_parallel_size", ["1", "2", "4"], ordinal=True),
            choice("omp_threads_bind", ["auto", "nobind", "per_node"], target="env:VLLM_CPU_OMP_THREADS_BIND"),
            number("reserved_cpu", 0, 16, 0, target="env:VLLM_CPU_NUM_OF_RESERVED_CPU"),
            number("kvcache_space", 1, 256, 4, log=True, target="env:VLLM_CPU_KVCACHE_SPACE"),
            choice("block_size", ["16", "32", "64", "128", "256"], ordinal=True, default="128"),
            choice("dtype", ["auto", "bfloat16", "float16", "float32"]),
            choice("kv_cache_dtype", ["auto", "fp8_e5m2"]),
            number("max_num_seqs", 1, 512, 128, log=True),
            number("max_num_batched_tokens", 512, 16384, 2048, log=True),
            switch("enable_chunked_prefill", default=True),
            switch("enable_prefix_caching", default=True),
            switch("sgl_kernel", default=False),
        ),
    )

    def dead(config: Config) -> str:
        tensor, bind = int(chosen(config, "tensor_parallel_size")), chosen(config, "omp_threads_bind")
        groups = 2 if bind == "per_node" else tensor
        batched, sequences = number_of(config, "max_num_batched_tokens"), number_of(config, "max_num_seqs")
        wide = 2.0 if chosen(config, "dtype") == "float32" else 1.0
        cache, weights = number_of(config, "kvcache_space"), 15.3 * wide / tensor
        # A rank allocates from the node that it is bound to; unbound memory comes from both.
        node = memory_gib * (1.9 if bind == "nobind" and tensor == 1 else 1.0) - 12
        ranks = 2 if tensor == 4 else 1
        token = 147456.0 * wide / tensor * (0.5 if chosen(config, "kv_cache_dtype") != "auto" else 1.0)
        needed = 2048 * token / GIB
        return first(
            (
                batched < sequences,
                (
                    f"max_num_batched_tokens ({batched:.0f}) must be greater than or equal to max_num_seqs "
                    f"({sequences:.0f})."
                ),
            ),
            (
                chosen(config, "enable_chunked_prefill") == "false" and batched < 2048,
                (
                    f"ValueError: max_num_batched_tokens ({batched:.0f}) is smaller than max_model_len (2048). This "
                    "effectively limits the maximum sequence length to max_num_batched_tokens."
                ),
            ),
            (
                groups != tensor,
                f"AssertionError: VLLM_CPU_OMP_THREADS_BIND has {groups} groups for {tensor} ranks.",
            ),
            (
                chosen(config, "block_size") == "16",
                "ValueError: No common block size for 16.",
            ),
            (
                cache * ranks + weights * ranks > node,
                (
                    f"ValueError: Available memory on node 0 ({node - weights:.2f}/{memory_gib:.2f} GiB) on kv cache "
                    f"allocation is less than requested memory for kv ({cache:.2f} GiB). Decrease "
                    "--kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE."
                ),
            ),
            (
                cache < needed,
                (
                    "ValueError: To serve at least one request with the model's max seq len (2048), "
                    f"({needed:.2f} GiB KV "
                    f"cache is needed, which is larger than the available KV cache memory ({cache:.2f} GiB)."
                ),
            ),
        )

    def machine(config: Config) -> tuple[float, float]:
        """GB/s and operations a ms that all ranks get together."""
        tensor, bind = int(chosen(config, "tensor_parallel_size")), chosen(config, "omp_threads_bind")
        reserved = number_of(config, "reserved_cpu")
        if bind == "nobind":
            # Both sockets' cores, memory wherever it was touched first; ranks fight for the same cores.
            sockets, read = 2.0, remote * (0.85 if tensor == 1 else 0.65 / math.sqrt(tensor))
        elif tensor == 1:
            sockets, read = 1.0, 1.0
        else:
            sockets, read = 2.0, 1.0 if tensor == 2 else 1.04
        used = cores - reserved / sockets
        # The API server and the engine's loop take about a core and a half from whoever has none to spare.
        spare = reserved + (cores if sockets == 1.0 else 0.0)
        stolen = 0.72 if spare < 1 else 0.88 if spare < 2 else 1.0
        saturated = 1 - math.exp(-used / cores * 4.5)  # a part of the cores saturates the memory
        speed = used / cores * stolen * sockets * (0.75 if bind == "nobind" else 1.0)
        return bandwidth * sockets * read * saturated * (0.5 + 0.5 * stolen), flops * speed

    def evaluate(config: Config) -> float | str:
        reason = dead(config)
        if reason:
            return reason
        tensor, dtype = int(chosen(config, "tensor_parallel_size")), chosen(config, "dtype")
        wide = 2.0 if dtype == "float32" else 1.0
        small = chosen(config, "kv_cache_dtype") != "auto"
        token = 147456.0 * wide * (0.5 if small else 1.0)
        hit = shared if chosen(config, "enable_prefix_caching") == "true" else 0.0
        block = int(chosen(config, "block_size"))
        held = math.ceil((prompt + output) / block) * block - hit * prompt * 0.8
        fits = number_of(config, "kvcache_space") * tensor * GIB / (token * held)
        wanted = min(number_of(config, "max_num_seqs"), clients)
        running = max(1.0, min(wanted, fits)) * (0.9 if wanted > 1.1 * fits else 1.0)
        reach, rate = machine(config)
        rate *= {"float32": 0.09, "float16": 1.0 if amx_fp16 else 0.3}.get(dtype, 1.0)
        kernels = sgl if chosen(config, "sgl_kernel") == "true" and dtype in {"auto", "bfloat16"} else 1.0
        away = abs(math.log2(block / best_block))
        attention = (1 + 0.06 * away) * (1.25 if small else 1.0)  # FP8 is widened in software
        weights = 16.4 * wide / reach * 1e3
        cache = running * (prompt + output / 2) * token / reach / 1e6 * attention
        talk = 36 * 2 * sync_us / 1e3 * math.log2(tensor) * 1.5 + running * 8192 * 72 * (tensor - 1) / tensor / 40e6
        step = (max(weights, running * 16.4e9 / rate) + 0.3 * min(weights, running * 16.4e9 / rate)) * kernels
        step += cache + talk + 3.0 + 0.05 * running
        arriving = running * prompt * (1 - hit) / output
        batched = number_of(config, "max_num_batched_tokens")
        left = max(24.0, batched - running)
        chunk = min(left, prompt * 4)
        # Without chunks a step is either a prompt or decoding: nobody decodes while somebody is read.
        share = 1.0 if chosen(config, "enable_chunked_prefill") == "true" else 1.18
        spill = 1 + 0.12 * max(0.0, math.log2(chunk / 2048))  # activations leave the last-level cache
        prefill = arriving * 16.4e9 / rate * spill * share * kernels + arriving / chunk * (0.4 * weights + talk)
        return running / (step * max(1.0, arriving / left) + prefill) * 1e3

    return Surface("cpu_server", space, evaluate, noise=0.025)


_QWEN_32B = ModelFacts(
    name="Qwen/Qwen3-32B", layers=64, hidden=5120, heads=64, kv_heads=8, head_dim=128, vocab=151936, max_position=40960,
    intermediate=25600, weight_bytes=65.5e9, kv_bytes_per_token={"auto": 262144.0, "fp8": 131072.0},
)  # fmt: skip
_H200 = Hardware(
    name="h200", platform="cuda", device="NVIDIA H200", capability=(9, 0), memory_gib=139.8, bandwidth_gb_s=4800,
    tflops={"bf16": 989, "fp8": 1979},
)  # fmt: skip


def sglang_like(seed: int) -> Surface:
    """Qwen3-32B on one H200 in an engine with SGLang's flags.

    A fraction of the memory is set aside for weights and cache; activations of a prefill chunk and the graphs must
    fit into the rest. Admission is a bet on how long replies get: too bold, and requests are retracted and redone.
    """
    draw = drawer(seed, 601)
    total, bandwidth = _H200.memory_gib, 4800 * draw(0.76, 0.86)
    clients, prompt, output = round(draw(220, 700)), draw(500, 1200), draw(350, 800)
    typical = draw(0.45, 0.75)  # how much of the longest reply is used on average
    shared, odds = draw(0.15, 0.45), draw(0.62, 0.8)
    branching = draw(0.03, 0.09)
    attention_speed = {"fa3": 1.0, "flashinfer": draw(0.95, 1.15), "triton": draw(1.2, 1.6)}
    drafting = "speculative_algorithm == 'EAGLE3'"
    space = Space(
        name="sglang_like",
        hardware=_H200,
        model=_QWEN_32B,
        parameters=(
            number("mem_fraction_static", 0.5, 0.97, 0.86, integer=False),
            number("chunked_prefill_size", 512, 65536, 8192, log=True),
            number("max_running_requests", 8, 2048, 256, log=True),
            number("schedule_conservativeness", 0.1, 2.0, 1.0, integer=False),
            choice("schedule_policy", ["fcfs", "lpm", "random"]),
            choice("attention_backend", ["fa3", "flashinfer", "triton", "trtllm_mha"]),
            number("cuda_graph_max_bs", 4, 1024, 256, log=True),
            choice("page_size", ["1", "16", "32", "64"], ordinal=True),
            choice("kv_cache_dtype", ["auto", "fp8_e4m3", "fp8_e5m2"]),
            choice("quantization", ["none", "fp8"]),
            switch("disable_overlap_schedule", default=False),
            choice("speculative_algorithm", ["none", "EAGLE3"]),
            number("speculative_num_steps", 1, 7, 3, when=drafting),
            choice("speculative_eagle_topk", ["1", "2", "4", "8"], ordinal=True, when=drafting),
        ),
    )

    def memory(config: Config) -> tuple[float, float, float]:
        """GiB of the cache, GiB that the rest has to hold, and the part of it that graphs take."""
        static = number_of(config, "mem_fraction_static") * total
        weights = 61.0 if chosen(config, "quantization") == "none" else 32.5
        steps, width = number_of(config, "speculative_num_steps"), number_of(config, "speculative_eagle_topk", 1)
        weights += 2.4 if steps else 0.0
        graphs = 0.6 + number_of(config, "cuda_graph_max_bs") * (0.011 + 0.004 * steps * math.sqrt(width))
        rest = 2.2 + number_of(config, "chunked_prefill_size") * 3.6e-4 + graphs
        return static - weights, rest, graphs

    def dead(config: Config) -> str:
        attention, kv = chosen(config, "attention_backend"), chosen(config, "kv_cache_dtype")
        cache, rest, graphs = memory(config)
        spare = total * (1 - number_of(config, "mem_fraction_static"))
        width = number_of(config, "speculative_eagle_topk", 1)
        return first(
            (
                attention == "trtllm_mha",
                (
                    "ValueError: TRTLLM MHA backend is only supported on Blackwell GPUs (SM100). Please use a "
                    "different backend."
                ),
            ),
            (
                attention == "fa3" and kv == "fp8_e5m2",
                "AssertionError: FlashAttention3 only supports fp8_e4m3 if we use FP8 for KV cache",
            ),
            (
                width > 1 and chosen(config, "page_size") != "1" and attention != "flashinfer",
                (
                    "ValueError: speculative_eagle_topk > 1 with page_size > 1 is unstable and produces "
                    "incorrect results "
                    "for paged attention backends. This combination is only supported for the 'flashinfer' backend."
                ),
            ),
            (
                cache < 1.0,
                (
                    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
                    f"self.server_args.mem_fraction_static={number_of(config, 'mem_fraction_static'):.3f}"
                ),
            ),
            (
                rest - graphs < spare < rest,
                (
                    f"Exception: Capture cuda graph failed: {oom(rest - spare, total)} Possible solutions: 1. set "
                    "--mem-fraction-static to a smaller value 2. set --cuda-graph-max-bs to a smaller value"
                ),
            ),
            (spare <= rest - graphs, oom(rest - spare, total)),
        )

    def evaluate(config: Config) -> float | str:
        reason = dead(config)
        if reason:
            return reason
        small = chosen(config, "kv_cache_dtype") != "auto"
        kv = 131072.0 if small else 262144.0
        policy, page = chosen(config, "schedule_policy"), int(chosen(config, "page_size"))
        hit = shared * {"lpm": 1.0, "fcfs": 0.75, "random": 0.5}[policy] * (1 - page / 400)
        cache, _, _ = memory(config)
        mean = prompt * (1 - 0.8 * hit) + output * 0.55 + page / 2
        fits = cache * GIB / (kv * mean)
        # What admission reserves for a reply, against what replies turn out to need.
        boldness = typical / max(0.1, number_of(config, "schedule_conservativeness"))
        admitted = min(number_of(config, "max_running_requests"), clients, fits * min(1.3, 0.55 + 0.45 * boldness))
        running = min(admitted, fits)
        redone = 1 + 0.9 * max(0.0, admitted / fits - 1) + 0.05 * max(0.0, boldness - 1) * (admitted >= fits)
        steps, width = number_of(config, "speculative_num_steps"), int(number_of(config, "speculative_eagle_topk", 1))
        chance = min(0.93, odds + branching * math.log2(width))
        gain = sum(chance**position for position in range(int(steps) + 1))
        tokens = running * (1 + steps * width**0.7)
        eight = chosen(config, "quantization") == "fp8"
        rate = 989e9 * (0.95 if eight else 0.58)
        weights = 33.5 if eight else 65.5
        attention = attention_speed[chosen(config, "attention_backend")] * (1.1 if small else 1.0)
        attention *= 1.05 if page == 1 else 1.0
        read = weights / bandwidth * 1e3 + running * (prompt + output / 2) * kv / bandwidth / 1e6 * attention
        decode = (read**3 + (tokens * 65.5e9 / rate) ** 3) ** (1 / 3) + 0.5
        decode += steps * (0.5 + running * width * 0.001)
        host = 2.0 + 0.022 * running + (2.0 + 0.006 * running if steps else 0.0) + (0.6 if policy == "lpm" else 0.0)
        host += 0.012 * running / math.sqrt(page)
        covered = running <= number_of(config, "cuda_graph_max_bs")
        launches = 0.0 if covered else 17.0 * (1 + 0.4 * steps)
        overlaps = chosen(config, "disable_overlap_schedule") == "false"
        step = max(decode, launches, host) if overlaps else max(decode, launches) + host
        # Prompts interrupt decoding: a chunk is a step of its own, and a small one wastes the GPU.
        arriving = running * gain * prompt * (1 - hit) / output
        chunk = min(number_of(config, "chunked_prefill_size"), 12 * prompt)
        prefill = arriving * 65.5e9 / rate * (1 + 900 / chunk) + arriving / chunk * (weights / bandwidth * 1e3 + 9.0)
        return float(running * gain / ((step + prefill) * redone) * 1e3)

    return Surface("sglang_like", space, evaluate, noise=0.02)
