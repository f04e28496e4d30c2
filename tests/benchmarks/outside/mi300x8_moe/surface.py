#!/usr/bin/env python3
"""Eight MI300X serving a mixture of experts of 235B (22B active) with vLLM: see ABOUT.md. Standard library only."""

import json
import math
import os
import random
import sys

GIB = 1024.0**3
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 94, 4096, 64, 4, 128
EXPERTS, TOP_K, INTER, VOCAB = 128, 8, 1536, 151936
DENSE = LAYERS * (2 * HIDDEN * HEADS * HEAD_DIM + 2 * HIDDEN * KV_HEADS * HEAD_DIM)
EMBED = 2 * VOCAB * HIDDEN
EXPERT = 3 * HIDDEN * INTER  # one expert of one layer
CLIENTS, P_IN, OUT, MAX_LEN = 512, 2000, 4000, 8192
MEMORY, BANDWIDTH = 191.7, 5300e9
PEAK16, PEAK8 = 1307e12, 2615e12
GPUS = 8

BASE = {"tensor-parallel-size": 8, "max-model-len": MAX_LEN}
AITER = {
    "off": {},
    "on": {"VLLM_ROCM_USE_AITER": "1"},
    "no-moe": {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MOE": "0"},
    "no-mha": {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MHA": "0"},
    "no-linear": {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_LINEAR": "0"},
}


def logs(low, high, n):
    return sorted({int(round(low * (high / low) ** (i / (n - 1)))) for i in range(n)})


def fits(c, factor=2):
    return c.get("tensor_parallel_size", 8) * c.get("pipeline_parallel_size", 1) * factor <= GPUS


SPACE = {
    "tensor_parallel_size": {"flag": "tensor-parallel-size", "values": [1, 2, 4, 8]},
    "pipeline_parallel_size": {"flag": "pipeline-parallel-size", "values": [1, 2],
                               "when": lambda c: c.get("tensor_parallel_size", 8) in (2, 4)},
    "data_parallel_size": {"flag": "data-parallel-size", "values": [1, 2, 4, 8], "when": fits},
    "expert_parallel": {"flag": "enable-expert-parallel", "values": [False, True]},
    "all2all_backend": {"flag": "all2all-backend",
                        "values": ["default", "mori_high_throughput", "mori_low_latency", "deepep_high_throughput"],
                        "when": lambda c: c.get("expert_parallel", False) and c.get("data_parallel_size", 1) > 1},
    "aiter": {"values": list(AITER), "render": lambda v: ({}, AITER[v])},
    "attention_backend": {"flag": "attention-backend",
                          "values": ["default", "ROCM_ATTN", "ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "TRITON_ATTN"]},
    "quantization": {"flag": "quantization", "values": ["default", "fp8", "ptpc_fp8", "fp8_per_block", "int8_per_channel_weight_only", "mxfp4"]},
    "kv_cache_dtype": {"flag": "kv-cache-dtype", "values": ["default", "fp8"]},
    "cudagraph_mode": {"flag": "compilation-config.cudagraph_mode",
                       "values": ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "NONE"]},
    "capture_size": {"flag": "compilation-config.max_cudagraph_capture_size", "low": 32, "high": 4096, "log": True,
                     "grid": logs(32, 4096, 15), "when": lambda c: c.get("cudagraph_mode") != "NONE"},
    "max_num_seqs": {"flag": "max-num-seqs", "low": 16, "high": 1024, "log": True, "grid": logs(16, 1024, 25)},
    "max_num_batched_tokens": {"flag": "max-num-batched-tokens", "low": 512, "high": 32768, "log": True,
                               "grid": logs(512, 32768, 25)},
    "gpu_memory_utilization": {"flag": "gpu-memory-utilization", "low": 0.80, "high": 0.98, "step": 0.01},
}
for _spec in SPACE.values():
    if "grid" not in _spec:
        _spec["grid"] = _spec.get("values") or [round(0.80 + 0.01 * i, 2) for i in range(19)]
STRUCTURE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "expert_parallel")
PAIR_MOVES = 1500


def norm(a, b, p=3.0):
    return (a**p + b**p) ** (1.0 / p)


class Machine:
    def __init__(self, seed):
        self.seed = seed
        r = random.Random(977 * seed + 41)
        u = r.uniform
        self.noise_launch, self.noise_run = u(0.004, 0.012), u(0.005, 0.018)
        self.bw = BANDWIDTH * u(0.62, 0.80)
        self.lin = u(0.34, 0.52)                      # share of the peak of dense GEMMs
        self.lin8 = u(0.62, 0.85)                     # of the doubled fp8 peak, how much arrives
        self.aiter_lin = u(0.92, 1.28)
        self.ptpc_plain, self.ptpc_aiter = u(0.55, 0.95), u(0.95, 1.15)
        self.block_lin = u(0.65, 1.0)
        self.moe = u(0.22, 0.38)                      # Triton fused_moe, share of the peak
        self.moe_bw = u(0.45, 0.75)
        self.moe8 = u(0.55, 0.85)
        self.m0 = u(10, 34)                           # tokens an expert needs for half of it
        self.narrow = u(50, 190)                      # width of a slice at which half is lost
        self.aiter_moe = u(1.25, 1.95)
        self.aiter_moe_bw = u(1.0, 1.6)
        self.aiter_moe_quant = {"none": u(0.75, 1.05), "fp8": u(0.9, 1.1), "ptpc_fp8": u(0.9, 1.15),
                                "fp8_per_block": u(0.8, 1.15), "int8_per_channel_weight_only": 0.55}
        self.int8 = u(0.45, 0.75)                     # weight-only: unpacked to 16 bits on the way
        self.untuned = u(0.40, 0.95) if r.random() < 0.6 else 1.0   # no tuned table for slices narrower than 256
        self.ep_imbalance = u(0.06, 0.42)
        self.attn = {"ROCM_ATTN": (u(0.24, 0.40), u(0.20, 0.34)), "TRITON_ATTN": (u(0.24, 0.50), u(0.18, 0.34)),
                     "ROCM_AITER_FA": (u(0.42, 0.72), u(0.34, 0.55)),
                     "ROCM_AITER_UNIFIED_ATTN": (u(0.40, 0.72), u(0.28, 0.48))}
        self.kv8 = {"ROCM_ATTN": u(0.55, 0.9), "TRITON_ATTN": u(0.6, 0.95), "ROCM_AITER_FA": u(0.62, 1.0),
                    "ROCM_AITER_UNIFIED_ATTN": u(0.62, 1.0)}
        self.auto_aiter = r.choice(["ROCM_AITER_FA", "ROCM_ATTN", "ROCM_AITER_UNIFIED_ATTN"])
        self.ar_lat, self.ar_eff = u(11e-6, 30e-6), u(0.45, 0.75)
        self.link = 50e9
        self.ag_lat, self.ag_eff = u(25e-6, 60e-6), u(0.35, 0.65)
        self.ht_lat, self.ht_eff = u(50e-6, 110e-6), u(0.6, 0.85)
        self.ll_lat, self.ll_eff = u(14e-6, 30e-6), u(0.25, 0.5)
        self.mori = r.random() > 0.2
        self.ll_limit = r.choice([1024, 2048, 4096])
        self.mori_heap = u(4.0, 9.0)
        self.eager, self.piece, self.full = u(220e-6, 420e-6), u(28e-6, 75e-6), u(1e-6, 3e-6)
        self.host, self.host_seq = u(1.0e-3, 3.0e-3), u(4e-6, 12e-6)
        self.bubble = u(1.06, 1.28)
        self.pad = u(0.2, 0.9)
        self.act = u(0.22, 0.42) / 1024                # GiB per token of a step
        self.ws = u(0.9, 1.7)
        self.rccl = u(1.2, 3.0)
        self.graph_gib = u(0.012, 0.034)
        self.graph_seen = u(0.3, 0.9)                  # of the graphs' memory, what the profiler reserves
        self.unseen = u(2.6, 6.5)                      # workspaces that no profile run sees
        self.thrash = u(0.04, 0.16)

    def linear_eff(self, q, aiter_lin):
        gain = self.aiter_lin if aiter_lin else 1.0
        if q == "none" or q.startswith("int8"):
            return self.lin * PEAK16 * gain
        eff = self.lin * PEAK8 * self.lin8 * gain
        if q == "ptpc_fp8":
            eff *= self.ptpc_aiter if aiter_lin else self.ptpc_plain
        elif q == "fp8_per_block":
            eff *= self.block_lin
        return eff

    def measure(self, arguments, environment):
        a = arguments
        tp, pp, dp = (int(a.get(k, 1)) for k in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"))
        ep = truth(a.get("enable-expert-parallel", False))
        a2a = a.get("all2all-backend", "allgather_reducescatter")
        aiter = truth(environment.get("VLLM_ROCM_USE_AITER", "0"))
        aiter_moe = aiter and truth(environment.get("VLLM_ROCM_USE_AITER_MOE", "1"))
        aiter_lin = aiter and truth(environment.get("VLLM_ROCM_USE_AITER_LINEAR", "1"))
        q = a.get("quantization") or "none"
        kv = a.get("kv-cache-dtype", "auto")
        backend = a.get("attention-backend")
        mns = int(a.get("max-num-seqs", 1024))
        mbt = int(a.get("max-num-batched-tokens", 8192))
        gmu = float(a.get("gpu-memory-utilization", 0.92))
        max_len = int(a.get("max-model-len", MAX_LEN))
        mode = a.get("compilation-config.cudagraph_mode", "FULL_AND_PIECEWISE")
        if truth(a.get("enforce-eager", False)):
            mode = "NONE"
        capture = int(a.get("compilation-config.max_cudagraph_capture_size", min(2 * mns, 512)))
        warnings = []

        # --- arguments
        if mbt < mns:
            raise Dead("scheduler", f"ValueError: max_num_batched_tokens ({mbt}) must be greater than or equal to max_num_seqs ({mns}).",
                       mns / mbt - 1, "arguments")
        world = tp * pp * dp
        if world > GPUS:
            raise Dead("world-size", f"ValueError: World size ({world}) is larger than the number of available GPUs ({GPUS}) in this node.",
                       world / GPUS - 1, "arguments")
        if q == "mxfp4":
            raise Dead("quantization", "ValueError: mxfp4 quantization is currently not supported in rocm for gfx942 "
                       "(MX formats need gfx950); the checkpoint's weights are bfloat16", None, "arguments")
        group = tp * dp
        if q == "fp8_per_block" and not ep and (INTER // group) % 128:
            raise Dead("fp8-blocks", f"ValueError: The output_size of gate's and up's weight = {INTER // group} is not divisible by "
                       "weight quantization block_n = 128.", None, "load")
        auto = self.auto_aiter if aiter else "ROCM_ATTN"
        if auto == "ROCM_AITER_FA" and not truth(environment.get("VLLM_ROCM_USE_AITER_MHA", "1")):
            auto = "ROCM_ATTN"
        resolved = backend or auto
        if resolved in ("ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN") and not aiter:
            raise Dead("attn-invalid", f"ValueError: Selected backend AttentionBackendEnum.{resolved} is not valid for this configuration. "
                       "Reason: ['AITER is not enabled: set VLLM_ROCM_USE_AITER=1']", None, "arguments")
        if kv == "fp8_e5m2" and resolved == "ROCM_AITER_FA":
            raise Dead("attn-invalid", f"ValueError: Selected backend AttentionBackendEnum.{resolved} is not valid for this configuration. "
                       "Reason: ['kv_cache_dtype not supported']", None, "arguments")
        mori = False
        if ep and dp > 1:
            if a2a.startswith("deepep"):
                raise Dead("all2all", "AssertionError: DeepEP kernels not found. Please follow "
                           "https://github.com/vllm-project/vllm/blob/main/tools/ep_kernels/README.md to install DeepEP kernels.")
            if a2a.startswith("mori"):
                mori = True
                if not self.mori:
                    raise Dead("all2all", "ImportError: MoRI is not installed: No module named 'mori'")
                if not aiter_moe:
                    raise Dead("all2all", f"NotImplementedError: {a2a} needs AITER's fused MoE experts "
                               "(VLLM_ROCM_USE_AITER=1 and VLLM_ROCM_USE_AITER_MOE=1)")
                if a2a == "mori_low_latency" and mbt > self.ll_limit:
                    raise Dead("all2all", f"AssertionError: mori: max_num_inp_token_per_rank={self.ll_limit} is smaller than "
                               f"max_num_batched_tokens={mbt}", mbt / self.ll_limit - 1)

        # --- graphs that really run
        if mode == "FULL" and resolved == "ROCM_AITER_FA":
            warnings.append("CUDAGraphMode.FULL is not supported with ROCM_AITER_FA backend (support: AttentionCGSupport.UNIFORM_BATCH); "
                            "setting cudagraph_mode=FULL_AND_PIECEWISE")
            mode = "FULL_AND_PIECEWISE"
        if mori and a2a == "mori_high_throughput" and mode != "NONE":
            warnings.append("mori_high_throughput does not support CUDA graphs; setting cudagraph_mode=NONE")
            mode = "NONE"

        # --- memory of one GPU
        int8 = q.startswith("int8")                   # experts only
        wb = 2.0 if q == "none" else (1.0 if q == "fp8" else 1.01)
        db = 2.0 if int8 else wb
        weights = (DENSE * db / (tp * pp) + EMBED * 2 / (tp * min(pp, 2)) + LAYERS * EXPERTS * EXPERT * wb / (group * pp)) / GIB
        budget = gmu * MEMORY
        if weights > MEMORY - 1.5:
            raise Dead("cuda-oom", f"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of "
                       f"{MEMORY:.2f} GiB of which 0.31 GiB is free (about {weights:.1f} GiB of weights per GPU)", weights / MEMORY - 0.9, "load")
        spread = dp if not mori else max(1.0, dp * 0.6)
        activation = mbt * self.act / (0.5 + 0.5 * tp) * 2 + self.ws * min(mbt * spread, 65536) * TOP_K * HIDDEN * 2 / GIB
        sizes = 0 if mode == "NONE" else 3 + min(capture, 256) / 8 + max(0, capture - 256) / 16
        graphs = sizes * self.graph_gib * (1.55 if mode == "FULL_AND_PIECEWISE" else 1.0) / pp
        fixed = self.rccl * (world > 1) + (self.mori_heap * (1 + 0.25 * mbt / 4096) if mori else 0.0) + 0.9
        available = budget - weights - activation - fixed - graphs * self.graph_seen
        if available <= 0.2:
            raise Dead("no-kv", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                       f"initializing the engine. (Available KV cache memory: {available:.2f} GiB)", 0.2 - available + 0.1, "profile")
        kvb = 2.0 if kv == "auto" else 1.0
        per_token = 2 * HEAD_DIM * max(1.0, KV_HEADS / tp) * LAYERS / pp * kvb
        tokens = int(available * GIB / per_token)
        if tokens < max_len:
            need = max_len * per_token / GIB
            raise Dead("kv-too-small", f"ValueError: To serve at least one request with the model's max seq len ({max_len}), ({need:.2f} GiB KV "
                       f"cache is needed, which is larger than the available KV cache memory ({available:.2f} GiB). Based on the available "
                       f"memory, the estimated maximum model length is {tokens}.", need - available, "profile")
        over = budget + graphs * (1 - self.graph_seen) + self.unseen * (0.6 + 0.4 * min(1.0, mbt / 16384)) - (MEMORY - 0.6)
        if over > 0:
            where = "capture" if graphs * (1 - self.graph_seen) > over else "serve"
            raise Dead("capture-oom" if where == "capture" else "cuda-oom",
                       f"torch.OutOfMemoryError: HIP out of memory{' while capturing graphs' if where == 'capture' else ' under load'}: "
                       f"{over:.2f} GiB missing at gpu_memory_utilization {gmu}", over, where)

        # --- who runs
        share = CLIENTS / dp
        hold = tokens / (P_IN + 0.62 * OUT)
        running = min(mns * 1.0, share, hold)
        squeeze = max(0.0, min(mns, share) / max(hold, 1e-9) - 1)
        recompute = 1 + self.thrash * min(1.0, squeeze)
        ratio = P_IN / OUT * recompute
        micro = running / pp                          # sequences of one batch in the pipeline
        decode = min(micro, mbt / (1 + ratio))
        need = decode * ratio                         # prefill tokens a step has to carry in the mean
        chunk = max(16.0, min(mbt - decode, max(P_IN, need)))
        f = min(1.0, need / chunk)
        any_rank = 1 - (1 - f) ** dp

        def step(prefill):
            """Seconds of one step of one stage: `prefill` tokens beside the decodes on the rank that has them."""
            layers = LAYERS / pp
            local = decode + prefill
            others = decode + (f * chunk if prefill else 0.0)
            if dp == 1:
                total = local
            else:
                mean = (local + (dp - 1) * others)
                total = mean if mori else mean + self.pad * (dp * local - mean)
            # attention's projections
            eff = self.linear_eff(q, aiter_lin)
            small = local / (local + 48.0)
            dense = DENSE / LAYERS * layers / tp
            embed = EMBED / 2 / tp / pp
            t_dense = norm((dense * db + embed * 2) / self.bw, 2 * local * (dense + 0.2 * embed) / (eff * (0.25 + 0.75 * small)))
            # experts
            touched = EXPERTS * (1 - (1 - TOP_K / EXPERTS) ** max(1.0, total))
            per_expert = total * TOP_K / EXPERTS
            width = INTER if ep else INTER / group
            shape = width / (width + self.narrow)
            e_bw, e_peak = self.bw * self.moe_bw, self.moe * (PEAK16 if q == "none" else PEAK8 * self.moe8)
            if aiter_moe and not int8:
                bonus = self.aiter_moe_quant[q] * (self.untuned if width < 256 else 1.0)
                e_bw, e_peak = e_bw * self.aiter_moe_bw * min(1.0, bonus + 0.1), e_peak * self.aiter_moe * bonus
            elif q in ("ptpc_fp8", "fp8_per_block"):
                e_peak *= 0.9
            if int8:
                e_peak = min(e_peak, self.moe * PEAK16 * self.int8)
            e_bw = min(e_bw * (0.6 + 0.4 * shape), self.bw)
            t_moe = norm(touched * EXPERT * wb * layers / group / e_bw,
                         total * TOP_K * 2 * EXPERT * layers / group / (e_peak * shape * per_expert / (per_expert + self.m0)))
            if ep:
                t_moe *= 1 + self.ep_imbalance * (group - 1) / 7 * (0.55 + 0.45 / (1 + per_expert / 64))
            # attention itself
            d_eff, p_eff = self.attn[resolved]
            context = P_IN + OUT / 2
            k8 = 1.0 if kv == "auto" else self.kv8[resolved] * (0.9 if kv == "fp8_e5m2" else 1.0)
            t_attn = decode * context * per_token / (BANDWIDTH * d_eff * k8)
            t_attn += prefill * (P_IN / 2) * 4 * HEADS * HEAD_DIM / tp * layers / (PEAK16 * p_eff * (0.6 + 0.4 * k8) * prefill / (prefill + 400)) if prefill else 0
            # links: two all-reduces a layer; experts over data-parallel ranks
            t_link = 0.0
            if tp > 1:
                wire = self.link * (tp - 1) * self.ar_eff
                n = 1.0 if (dp > 1) else 2.0
                t_link += layers * n * (self.ar_lat + 2 * (tp - 1) / tp * local * HIDDEN * 2 / wire)
            if dp > 1:
                wire = self.link * (group - 1)
                far = (group - 1) / group
                if not mori:
                    t_link += layers * 2 * (self.ag_lat + far * total * HIDDEN * 2 / (wire * self.ag_eff))
                else:
                    lat, e = (self.ht_lat, self.ht_eff) if a2a == "mori_high_throughput" else (self.ll_lat, self.ll_eff)
                    reach = 1 - (1 - 1 / group) ** TOP_K
                    t_link += layers * (2 * lat + reach * total * HIDDEN * (3 if q == "none" else 2.6) / (wire * e) * far)
            if pp > 1:
                t_link += 60e-6 + local * HIDDEN * 2 / (self.link * tp)
            gpu = t_dense + t_moe + t_attn + t_link
            # launching
            fuse = 0.82 if aiter else 1.0
            eager = layers * self.eager * fuse
            if mode == "NONE":
                launch = eager
            elif prefill:
                piece = mode in ("FULL_AND_PIECEWISE", "PIECEWISE", "FULL")
                launch = layers * (self.full if mode == "FULL" else self.piece) if piece and local <= capture else 0.75 * eager
            else:
                launch = 0.75 * eager if local > capture else layers * (self.piece if mode == "PIECEWISE" else self.full)
            graphed = mode != "NONE" and (local <= capture) and (not prefill or mode != "FULL_DECODE_ONLY")
            busy = gpu + launch if graphed else max(gpu, launch) + 0.25 * min(gpu, launch)
            return busy + self.host + self.host_seq * decode

        plain, mixed = step(0.0), step(chunk)
        mean = (1 - any_rank) * plain + any_rank * mixed
        if pp > 1:
            mean *= self.bubble + 0.25 * f * (1 - f) * (mixed - plain) / mean
        if dp > 1:
            mean *= 1.02 + 0.01 * math.log2(dp)
        rate = decode * dp / mean
        first = CLIENTS / max(1.0, rate / OUT) - OUT * mean * pp
        metrics = {
            "engine/running_mean": round(running * dp * 0.985, 1), "engine/running_max": int(round(running * dp)),
            "engine/kv_usage_max": round(min(1.0, running * (P_IN + 0.62 * OUT) / tokens), 4),
            "latency/tpot_p50": 1000 * mean * pp, "latency/tpot_p99": 1000 * (0.4 * mean + 0.9 * mixed) * pp,
            "latency/ttft_p50": 1000 * max(1.3 * mixed, first), "latency/ttft_p99": 1000 * max(4 * mixed, 1.6 * first),
        }
        effective = {"kv-cache-tokens": tokens, "max-num-seqs": mns, "max-num-batched-tokens": mbt}
        if mode != a.get("compilation-config.cudagraph_mode", mode):
            effective["compilation-config.cudagraph_mode"] = mode
        return {"value": rate, "metrics": metrics, "effective": effective, "warnings": warnings,
                "parts": {"plain": plain, "mixed": mixed, "f": f, "decode": decode, "weights": weights, "tokens": tokens}}


# ---------------------------------------------------------------------------------------------------------------------
# protocol, optimum
class Dead(Exception):
    def __init__(self, kind, cause, violation=None, phase="start", advice=None):
        super().__init__(cause)
        self.kind, self.cause, self.violation, self.phase, self.advice = kind, cause, violation, phase, advice


def flatten(arguments, prefix=""):
    out = {}
    for key, value in arguments.items():
        name = prefix + str(key)
        if isinstance(value, dict):
            out.update(flatten(value, name + "."))
        else:
            out[name] = value
    return out


def truth(value):
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "on", "yes")
    return bool(value)


def active(choice, name):
    when = SPACE[name].get("when")
    return when is None or when(choice)


def tidy(choice):
    """Only what exists beside the others, in the order of the space."""
    out = {}
    for name in SPACE:
        if name in choice and active(out, name):
            out[name] = choice[name]
    return out


def complete(choice, rng):
    out = {}
    for name, spec in SPACE.items():
        if active(out, name):
            out[name] = choice[name] if name in choice else rng.choice(spec["grid"])
    return out


def draw(rng):
    """One uniformly random configuration of the profile's space."""
    out = {}
    for name, spec in SPACE.items():
        if not active(out, name):
            continue
        if "values" in spec:
            out[name] = rng.choice(spec["values"])
        elif spec.get("log"):
            out[name] = int(round(math.exp(rng.uniform(math.log(spec["low"]), math.log(spec["high"])))))
        elif "step" in spec:
            n = int(round((spec["high"] - spec["low"]) / spec["step"]))
            out[name] = round(spec["low"] + spec["step"] * rng.randint(0, n), 6)
        else:
            out[name] = rng.randint(spec["low"], spec["high"])
    return out


def rendered(choice):
    arguments, environment = dict(BASE), {}
    for name, value in tidy(choice).items():
        spec = SPACE[name]
        if "render" in spec:
            more, env = spec["render"](value)
            arguments.update(more)
            environment.update(env)
        elif value != "default":
            arguments[spec["flag"]] = value
    return arguments, environment


def score(machine, choice):
    arguments, environment = rendered(choice)
    try:
        return machine.measure(arguments, environment)["value"]
    except Dead:
        return -1.0


def climb(machine, start, rng):
    best, value = dict(start), score(machine, start)
    names = list(SPACE)
    stale = False
    while not stale:
        stale = True
        for name in rng.sample(names, len(names)):
            if name not in best:
                continue
            for option in SPACE[name]["grid"]:
                if option == best[name]:
                    continue
                trial = complete({**best, name: option}, rng)
                got = score(machine, trial)
                if got > value * 1.0002:
                    best, value, stale = trial, got, False
    # two and three at once
    for _ in range(PAIR_MOVES):
        trial = dict(best)
        for name in rng.sample([n for n in names if n in best], rng.choice((2, 2, 3))):
            trial[name] = rng.choice(SPACE[name]["grid"])
        trial = complete(trial, rng)
        got = score(machine, trial)
        if got > value * 1.0002:
            return climb(machine, trial, rng)
    return best, value


def search(machine, restarts=10, draws=4000, seed=1):
    rng = random.Random(seed)
    pool = []
    for _ in range(draws):
        choice = draw(rng)
        pool.append((score(machine, choice), len(pool), choice))
    pool.sort(reverse=True)
    # the best of each structure first, so that the restarts differ
    seen, starts = set(), []
    for value, _, choice in pool:
        key = tuple(str(choice.get(n)) for n in STRUCTURE)
        if value > 0 and key not in seen:
            seen.add(key)
            starts.append(choice)
        if len(starts) >= restarts:
            break
    if "structured" in globals():
        starts += structured(machine)
    found = [climb(machine, s, rng) for s in starts]
    found.sort(key=lambda item: -item[1])
    return found


def optimum(machine, again=False):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"optimum_{machine.seed}.json")
    if os.path.exists(path) and not again:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    found = search(machine)
    choice, value = found[0]
    arguments, environment = rendered(choice)
    result = {"value": round(value, 3), "arguments": arguments, "environment": environment, "assignment": tidy(choice),
              "restarts": [round(v, 1) for _, v in found]}
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(result, handle)
        handle.write("\n")
    return result


def question():
    asked = json.load(sys.stdin)
    candidate = asked.get("candidate", asked)
    return asked, flatten(candidate.get("arguments") or {}), dict(candidate.get("environment") or {})


def main():
    machine = Machine(int(os.environ.get("SURFACE_SEED", "0") or 0))
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode == "--optimum":
        print(json.dumps(optimum(machine, again="--again" in sys.argv)))
        return
    if mode in ("--default", "--value"):
        arguments, environment = (dict(BASE), {}) if mode == "--default" else question()[1:]
        try:
            print(round(machine.measure(arguments, environment)["value"], 3))
        except Dead as dead:
            print(f"dead: {dead.cause}")
        return
    asked, arguments, environment = question()
    try:
        got = machine.measure(arguments, environment)
    except Dead as dead:
        failure = {"kind": dead.kind, "cause": dead.cause, "phase": dead.phase}
        if dead.violation is not None:
            failure["violation"] = round(max(1e-3, dead.violation), 4)
        if dead.advice:
            failure["advice"] = dead.advice
        print(json.dumps({"protocol": 1, "status": "infeasible", "failure": failure}))
        return
    noise = random.Random(int(asked.get("seed") or 0) * 2654435761 % (1 << 61))
    launch = math.exp(noise.gauss(0.0, machine.noise_launch))
    runs = [got["value"] * launch * math.exp(noise.gauss(0.0, machine.noise_run)) for _ in range(3)]
    mean = sum(runs) / len(runs)
    metrics = {"throughput/output": mean}
    for name, value in got["metrics"].items():
        exact = name.startswith("engine/")
        metrics[name] = value if exact else value / launch * math.exp(noise.gauss(0.0, 1.5 * machine.noise_run))
    answer = {"protocol": 1, "status": "ok", "metrics": metrics, "samples": {"throughput/output": runs}}
    if got.get("effective"):
        answer["effective"] = got["effective"]
    if got.get("warnings"):
        answer["warnings"] = got["warnings"]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
