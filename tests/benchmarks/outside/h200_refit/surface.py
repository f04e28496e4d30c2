#!/usr/bin/env python3
"""Qwen3-30B-A3B-shaped MoE on one H200, vLLM 0.25.1, offline: 1,024 prompts at once, 128 tokens in, 300 out.

Fitted to the trials of eight runs on one H200; SURFACE_SEED 0 is the fit, others vary around it.
"""
import json
import math
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = int(os.environ.get("SURFACE_SEED", "0"))
TOTAL = 139.81            # GiB that CUDA reports
KVB = 48 * 2 * 4 * 128 * 2  # bytes of one token, 16 bit
INPUT, OUTPUT, PROMPTS, LEN = 128, 300, 1024, 2048

# ms of a decode step without attention, by tokens in the step; knots at 256/512 (and fp8 1024) are from the data
BF16 = {1: 4.6, 8: 7.5, 16: 10.2, 32: 13.0, 64: 16.9, 128: 18.6, 256: 20.148, 512: 22.974, 1024: 30.0, 2048: 49.0, 4096: 90.0}
FP8 = {1: 3.6, 8: 4.6, 16: 5.4, 32: 6.3, 64: 7.0, 128: 7.7, 256: 8.565, 512: 16.594, 1024: 25.5, 2048: 46.0, 4096: 90.0}

SPACE = {  # name: (flag, kind, values, default)
    "max_num_seqs": ("max-num-seqs", "int", (16, 2048), 1024),
    "max_num_batched_tokens": ("max-num-batched-tokens", "int", (1024, 32768), 16384),
    "gpu_memory_utilization": ("gpu-memory-utilization", "float", (0.40, 0.98, 0.02), 0.92),
    "block_size": ("block-size", "choice", [16, 32, 64, 128], 16),
    "quantization": ("quantization", "choice", ["none", "fp8", "fp8_per_block"], "none"),
    "kv_cache_dtype": ("kv-cache-dtype", "choice", ["auto", "fp8"], "auto"),
    "attention_backend": ("attention-backend", "choice", ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"], "auto"),
    "moe_backend": ("moe-backend", "choice", ["auto", "triton", "flashinfer_cutlass", "deep_gemm", "marlin", "deep_gemm_mega_moe"], "auto"),
    "cudagraph_mode": ("compilation-config.cudagraph_mode", "choice", ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "NONE"], "FULL_AND_PIECEWISE"),
    "capture_size": ("compilation-config.max_cudagraph_capture_size", "int", (32, 4096), None),
    "speculation": ("speculative-config.method", "choice", ["off", "ngram"], "off"),
    "spec_tokens": ("speculative-config.num_speculative_tokens", "lin", (1, 6), None),
    "async_scheduling": ("async-scheduling", "bool", [False, True], True),
    "chunked_prefill": ("enable-chunked-prefill", "bool", [False, True], True),
}


class Dead(Exception):
    def __init__(self, kind, cause, violation=1.0, phase="start"):
        super().__init__(cause)
        self.kind, self.cause, self.violation, self.phase = kind, cause, violation, phase


def constants(seed):
    r = random.Random(7700 + seed)
    u = r.uniform
    spread = 0.0 if seed == 0 else 1.0

    def j(centre, width):  # around the fit
        x = u(-width, width)
        return centre * math.exp(x * spread)

    k = {}
    k["machine"] = j(1.0, 0.12)
    k["bf16_hi"] = j(1.0, 0.20)          # slope at large batches
    k["fp8"] = j(1.0, 0.22)
    k["fp8_hump"] = j(1.0, 0.25)         # "Using default MoE config" at 32 tokens per expert and more
    k["attn_eff"] = j(0.80, 0.15)
    k["host_a"], k["host_b"], k["host_c"] = j(43.6, 0.2), j(0.0345, 0.2), j(0.0300, 0.3)  # no graph: ms, per token, per sequence
    k["pw_a"], k["pw_b"] = j(5.0, 0.35), j(0.010, 0.4)   # piecewise: the attention launches
    k["sched_a"], k["sched_b"] = j(0.9, 0.3), j(0.0045, 0.4)
    k["rate_bf16"], k["rate_fp8"] = j(73000, 0.2), j(105000, 0.25)
    k["accept"] = 0.985 if seed == 0 else u(0.25, 0.97)
    k["oom"] = u(1.3, 4.2)
    k["block_lo"], k["block_hi"], k["block_hump"] = u(0.96, 1.15), u(0.90, 1.12), u(0.80, 1.12)
    k["int8_lo"], k["int8_hi"] = u(0.60, 0.78), u(0.92, 1.12)
    m = {("triton", q): (1.0, 1.0) for q in ("none", "fp8", "fp8_per_block", "int8_per_channel_weight_only")}
    m["flashinfer_cutlass", "none"] = (u(0.95, 1.25), u(0.78, 1.08))
    m["flashinfer_cutlass", "fp8"] = (u(0.95, 1.30), u(0.74, 1.05))
    m["flashinfer_cutlass", "fp8_per_block"] = (u(0.95, 1.25), u(0.82, 1.10))
    m["deep_gemm", "fp8_per_block"] = (u(1.0, 1.30), u(0.80, 1.10))
    m["marlin", "fp8"] = (u(0.92, 1.05), u(1.15, 1.6))
    m["marlin", "fp8_per_block"] = (u(0.92, 1.05), u(1.15, 1.6))
    k["moe"] = m
    k["auto_block"] = r.choice(["triton", "flashinfer_cutlass", "deep_gemm"])
    k["attn"] = {"FLASH_ATTN": 1.0, "FLASHINFER": u(0.88, 1.2), "TRITON_ATTN": u(1.05, 1.6), "FLEX_ATTENTION": u(2.0, 3.2)}
    k["kv8"] = {"FLASH_ATTN": u(0.54, 0.80), "FLASHINFER": u(0.52, 0.75), "TRITON_ATTN": u(0.55, 0.85)}
    k["kv8_step"] = u(0.1, 0.7)          # quantising queries and the new keys, ms
    k["block"] = {16: 1.0, 32: u(0.97, 1.02), 64: u(0.94, 1.04), 128: u(0.93, 1.08)}
    k["noise"] = 0.006
    return k


def knots(table, t):
    xs = sorted(table)
    t = min(max(t, xs[0]), xs[-1] * 4)
    for a, b in zip(xs, xs[1:]):
        if t <= b or b == xs[-1]:
            if b == 4096 and t > b:
                return table[b] * t / b
            w = math.log(t / a) / math.log(b / a)
            return table[a] * (1 - w) + table[b] * w
    return table[xs[-1]]


def large(t):
    return min(1.0, max(0.0, math.log2(max(t, 1) / 64) / 4))


def linear(k, t, q, moe):
    w = large(t)
    if q == "none":
        x = knots(BF16, t) * (1 + (k["bf16_hi"] - 1) * w)
    elif q == "int8_per_channel_weight_only":
        x = knots(BF16, t) * (k["int8_lo"] * (1 - w) + k["int8_hi"] * w) * (1 + (k["bf16_hi"] - 1) * w)
    else:
        hump = k["fp8_hump"] * (k["block_hump"] if q == "fp8_per_block" else 1.0)
        smooth = min(1.0, max(0.0, math.log2(max(t, 1) / 256)))   # 0 up to 256, 1 from 512
        x = knots(FP8, t) * k["fp8"] * (1 + (hump - 1) * smooth)
        if q == "fp8_per_block":
            x *= k["block_lo"] * (1 - w) + k["block_hi"] * w
    lo, hi = k["moe"][moe, q]
    return x * (lo * (1 - w) + hi * w) * k["machine"]


def flatten(arguments):
    out = {}
    for key, value in arguments.items():
        if isinstance(value, dict):
            for inner, v in value.items():
                out[key + "." + inner] = v
        else:
            out[key] = value
    return out


def truth(x):
    return x if isinstance(x, bool) else str(x).lower() in ("1", "true", "yes")


def evaluate(arguments, k, prompts=PROMPTS, server=None):
    a = flatten(arguments)
    get = a.get
    seqs = int(get("max-num-seqs", 1024))
    mtok = int(get("max-num-batched-tokens", 16384))
    util = float(get("gpu-memory-utilization", 0.92))
    block = get("block-size")
    q = get("quantization") or "none"
    kv = get("kv-cache-dtype", "auto")
    attn = get("attention-backend", "auto")
    moe = get("moe-backend", "auto")
    mode = get("compilation-config.cudagraph_mode", "FULL_AND_PIECEWISE")
    cap = get("compilation-config.max_cudagraph_capture_size")
    spec = get("speculative-config.method")
    depth = int(get("speculative-config.num_speculative_tokens", 3)) if spec else 0
    asyn = get("async-scheduling")
    chunked = truth(get("enable-chunked-prefill", True))

    # --- arguments
    if spec and asyn is not None and truth(asyn):
        raise Dead("async-spec", "Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU/DSpark/DFlash kind of speculative decoding, but got ngram")
    if mtok < seqs:
        if "max-num-seqs" in a:
            raise Dead("arguments", f"max_num_batched_tokens ({mtok}) must be greater than or equal to max_num_seqs ({seqs}).", seqs / mtok - 1)
        seqs = mtok
    if not chunked and mtok < LEN:
        raise Dead("arguments", f"max_num_batched_tokens ({mtok}) is smaller than max_model_len ({LEN}). This effectively limits the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences.", LEN / mtok - 1)
    asyn = (True if asyn is None else truth(asyn)) and not spec
    # --- attention
    order = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"]

    def refuses(backend):
        why = []
        if block is not None and int(block) % 16:
            why.append("block_size not supported")
        if backend == "FLASHINFER" and block is not None and int(block) == 128:
            why.append("block_size not supported")
        if backend == "FLEX_ATTENTION" and kv != "auto":
            why.append("kv_cache_dtype not supported")
        if backend == "FLASH_ATTN" and kv == "fp8_e5m2":
            why.append("kv_cache_dtype not supported")
        return why

    if attn == "auto":
        fits = [b for b in order if not refuses(b)]
        if not fits:
            raise Dead("attention-none", f"No valid attention backend found for cuda with AttentionSelectorConfig(head_size=128, dtype=torch.bfloat16, kv_cache_dtype={kv}, block_size={block}, use_mla=False, has_sink=False). Reasons: {{" + ", ".join(f"{b}: {refuses(b)}" for b in order) + "}.")
        attn = fits[0]
    elif refuses(attn):
        raise Dead("attention-invalid", f"Selected backend AttentionBackendEnum.{attn} is not valid for this configuration. Reason: {refuses(attn)}")
    size = int(block) if block is not None else 16
    # --- experts
    if moe == "auto":
        moe = k["auto_block"] if q == "fp8_per_block" else "triton"
    elif q == "none" and moe not in ("triton", "flashinfer_cutlass"):
        raise Dead("moe-backend", f"moe_backend='{moe}' is not supported for unquantized MoE. Expected one of ['triton', 'flashinfer_trtllm', 'flashinfer_cutlass', 'aiter'].")
    elif q == "int8_per_channel_weight_only" and moe != "triton":
        raise Dead("moe-backend", f"moe_backend='{moe}' is not supported for INT8 MoE. Expected one of ['triton', 'humming'].")
    elif moe == "deep_gemm_mega_moe":
        raise Dead("moe-backend", "moe_backend='deep_gemm_mega_moe' is not supported for FP8 MoE. Expected one of ['triton', 'deep_gemm', 'cutlass', 'flashinfer_trtllm', 'flashinfer_cutlass', 'marlin', 'aiter'].")
    elif moe == "deep_gemm" and q == "fp8":
        raise Dead("moe-backend", "FP8 MoE backend DEEPGEMM does not support the deployment configuration since kernel does not support quantization scheme QuantKey(f8e4m3fn,scale(f32,static,per_tensor),symmetric)xQuantKey(f8e4m3fn,scale(f32,dynamic,per_tensor),symmetric).")
    # --- graphs
    tokens_full = seqs * (1 + depth)
    cap = min(tokens_full * 2, 512) if cap is None else int(cap)
    cap = min(cap, mtok)
    effective_mode = mode
    support = {"FLASH_ATTN": 2, "FLASHINFER": 1, "TRITON_ATTN": 3, "FLEX_ATTENTION": 3}[attn]
    if mode == "FULL" and support < 3:
        effective_mode = "FULL_AND_PIECEWISE"
    if depth and support < 2 and effective_mode != "NONE":
        effective_mode = "PIECEWISE"
    graphs = 0.0
    if mode != "NONE":
        graphs = 0.12 + 0.0005 * cap
        if effective_mode != "PIECEWISE":
            graphs += 0.00052 * min(cap, tokens_full)
    # --- memory (fitted to "Available KV cache memory" of all logs, within 0.1 GiB)
    weights = {"none": 56.88, "fp8": 29.06, "fp8_per_block": 29.31, "int8_per_channel_weight_only": 30.4}[q]
    rest = 0.38 + 0.001953 * seqs + 6.47e-5 * mtok + 0.0007 * seqs * depth
    available = util * TOTAL - weights - rest - graphs
    if util * TOTAL > TOTAL - 0.6:
        raise Dead("free-memory", f"Free memory on device cuda:0 ({TOTAL - 0.6:.2f}/{TOTAL} GiB) on startup is less than desired GPU memory utilization ({util}, {util * TOTAL:.2f} GiB).", util)
    if available <= 0:
        raise Dead("no-kv", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", -available + 0.01)
    half = kv != "auto"
    kvb = KVB / (2 if half else 1)
    tokens = int(available * 2**30 / kvb / size) * size
    if tokens < LEN:
        raise Dead("kv-too-small", f"To serve at least one request with the model's max seq len ({LEN}), ({LEN * kvb / 2**30:.2f} GiB KV cache is needed, which is larger than the available KV cache memory ({available:.2f} GiB).", LEN * kvb / 2**30 - available)
    spare = (1 - util) * TOTAL
    need = k["oom"] + 0.35 * graphs + 2.0e-5 * mtok
    if spare < need:
        phase = "capture" if mode != "NONE" else "serve"
        raise Dead("cuda-oom", f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {64 + int(40 * (need - spare))}.00 MiB. GPU 0 has a total capacity of {TOTAL} GiB of which {max(0.01, spare * 0.02):.2f} GiB is free" + (" (while capturing CUDA graphs)." if phase == "capture" else "."), need - spare, phase)

    # --- the run: waves of sequences that began together
    per = math.ceil((INPUT + OUTPUT) / size) * size
    holds = tokens // per
    crowd = min(seqs, prompts)
    preempted = holds < crowd
    running = max(1, min(crowd, holds))
    if server:
        running = min(running, server["clients"])
    ctx = INPUT + OUTPUT / 2
    gain = 1.0
    if depth:
        p = 1.0
        for i in range(depth):   # deeper drafts are guessed from less
            p *= k["accept"] * (1 - 0.02 * max(0, i - 2))
            gain += p
    bw = 4800e9 * k["attn_eff"]

    def step(s):
        t = s * (1 + depth)
        mem = s * ctx * KVB / bw * 1e3 * k["attn"][attn] * k["block"][size]
        mem *= k["kv8"][attn] if half else 1.0
        gpu = linear(k, t, q, moe) + mem + (k["kv8_step"] if half else 0.0) + 0.004 * depth * s * 0.25
        sched = k["sched_a"] + k["sched_b"] * s + 0.006 * s * (depth > 0)
        if mode == "NONE" or t > cap:
            host = k["host_a"] + k["host_b"] * t + k["host_c"] * s
            ms = max(gpu, host) + 0.1 * min(gpu, host)
        elif effective_mode == "PIECEWISE":
            host = k["pw_a"] + k["pw_b"] * s + (0.01 * s if attn == "FLEX_ATTENTION" else 0)
            ms = max(gpu, host)
        else:
            ms = gpu
        ms = max(ms, sched) if asyn else ms + sched
        if server:
            ms += server["a"] + server["b"] * s
        return ms

    rate = {"none": k["rate_bf16"], "int8_per_channel_weight_only": k["rate_bf16"] * 0.93}.get(q, k["rate_fp8"])
    if q in ("fp8", "fp8_per_block"):
        rate /= k["moe"][moe, q][1]
    elif q == "none":
        rate /= k["moe"][moe, q][1] ** 0.7
    chunk = mtok if chunked else mtok // INPUT * INPUT

    def prefill(s):
        left, ms = s * INPUT, 0.0
        n = math.ceil(left / chunk)
        t = left / n
        gpu = t / rate * 1e3 * (1 + 1200 / (t + 400)) / (1 + 1200 / 16784) * (1 + 0.05 * max(0.0, math.log2(t / 16384)))
        gpu = max(gpu * k["machine"], linear(k, min(t, 512), q, moe))
        covered = t <= cap and mode in ("FULL_AND_PIECEWISE", "FULL", "PIECEWISE")
        host = k["pw_a"] + 2 if covered else k["host_a"] * 0.9
        return n * (max(gpu, host) + (0 if asyn else k["sched_a"] + k["sched_b"] * s))

    left, total, busy = prompts, 0.0, 0.0
    while left > 0:
        s = min(running, left)
        steps = OUTPUT / gain
        span = prefill(s) + steps * step(s)
        total += span
        busy += s * span
        left -= s
    if preempted:
        total *= 1.03
    value = prompts * OUTPUT / total * 1e3
    return value, {
        "running": busy / total, "running_max": running, "usage": min(1.0, running * per / tokens), "tokens": tokens, "gain": gain,
        "attention": attn, "moe": moe, "mode": effective_mode, "capture": cap, "asyn": asyn, "step": step(running), "depth": depth, "available": available,
    }


# ---------------------------------------------------------------- space, optimum
def exists(name, c):
    return name != "spec_tokens" or c["speculation"] != "off"


def arguments_of(c):
    out = {}
    for name, (flag, kind, _, default) in SPACE.items():
        if not exists(name, c):
            continue
        v = c[name]
        if v is None or v == default and default is not None or v in ("off",):
            continue
        out[flag] = v
    return out


def draw(name, r):
    _, kind, span, _ = SPACE[name]
    if kind == "int":
        return int(round(math.exp(r.uniform(math.log(span[0]), math.log(span[1])))))
    if kind == "lin":
        return r.randint(*span)
    if kind == "float":
        n = round((span[1] - span[0]) / span[2])
        return round(span[0] + span[2] * r.randint(0, n), 4)
    return r.choice(span)


def draw_all(r):
    return {name: draw(name, r) for name in SPACE}


def tries(name, value):
    _, kind, span, _ = SPACE[name]
    if kind == "int":
        grid = {int(round(span[0] * (span[1] / span[0]) ** (i / 28))) for i in range(29)} | {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
        if value:
            grid |= {value + d for d in (-64, -16, -4, -1, 1, 4, 16, 64)} | {value * 2, value // 2}
        return [g for g in sorted(grid) if span[0] <= g <= span[1]]
    if kind == "lin":
        return list(range(span[0], span[1] + 1))
    if kind == "float":
        return [round(span[0] + span[2] * i, 4) for i in range(round((span[1] - span[0]) / span[2]) + 1)]
    return span


def score(c, k):
    try:
        return evaluate(arguments_of(c), k)[0]
    except Dead:
        return 0.0


def climb(c, k, r):
    best = score(c, k)
    while True:
        before = best
        names = list(SPACE)
        r.shuffle(names)
        for name in names:
            for v in tries(name, c[name]):
                d = {**c, name: v}
                if name == "speculation":
                    d["async_scheduling"] = v == "off"
                    if v != "off":
                        d["max_num_seqs"] = min(d["max_num_seqs"], 220)
                if name == "quantization":
                    d["moe_backend"] = r.choice(["auto", "triton", "flashinfer_cutlass", "deep_gemm"])
                if name == "max_num_seqs" and r.random() < 0.5:
                    d["capture_size"] = 4096
                x = score(d, k)
                if x > best * (1 + 1e-9):
                    c, best = d, x
        if best <= before * (1 + 1e-6):
            return best, c


def optimum(seed, restarts=150):
    k = constants(seed)
    r = random.Random(5)
    found = []
    for i in range(restarts):
        c = draw_all(r)
        c["speculation"] = "ngram" if i % 4 == 3 else "off"
        c["async_scheduling"] = c["speculation"] == "off"
        while score(c, k) == 0:
            c = draw_all(r)
        found.append(climb(c, k, r))
    found.sort(key=lambda f: -f[0])
    return found


# ---------------------------------------------------------------- protocol
def main():
    k = constants(SEED)
    if "--optimum" in sys.argv:
        path = os.path.join(HERE, f"optimum_{SEED}.json")
        if os.path.exists(path):
            sys.stdout.write(open(path).read())
            return
        value, c = optimum(SEED)[0]
        text = json.dumps({"value": round(value, 2), "arguments": arguments_of(c)}) + "\n"
        with open(path, "w") as f:
            f.write(text)
        sys.stdout.write(text)
        return
    if "--default" in sys.argv:
        print(round(evaluate({}, k)[0], 2))
        return
    question = json.load(sys.stdin)
    arguments = question.get("candidate", {}).get("arguments", question.get("arguments", {})) or {}
    try:
        value, info = evaluate(arguments, k)
    except Dead as dead:
        if "--value" in sys.argv:
            print(f"dead: {dead.cause}")
            return
        failure = {"kind": dead.kind, "cause": dead.cause, "phase": dead.phase, "blame": "configuration"}
        if dead.kind in ("no-kv", "kv-too-small", "cuda-oom", "arguments"):
            failure["violation"] = round(max(dead.violation, 0.001), 4)
        print(json.dumps({"protocol": 1, "status": "infeasible", "failure": failure}))
        return
    if "--value" in sys.argv:
        print(round(value, 2))
        return
    r = random.Random(question.get("seed", 0))
    bias = r.gauss(0, k["noise"])
    runs = [value * math.exp(bias + r.gauss(0, k["noise"] * 0.6)) for _ in range(3)]
    answer = {
        "protocol": 1, "status": "ok", "version": "0.25.1 (simulated)",
        "samples": {"throughput/output": [round(x, 1) for x in runs]},
        "metrics": {"engine/running_mean": round(info["running"], 1), "engine/running_max": info["running_max"],
                    "engine/kv_usage_max": round(info["usage"], 4), "latency/tpot_p50": round(info["step"] / info["gain"], 2)},
        "effective": {"kv-cache-tokens": info["tokens"], "attention-backend": info["attention"], "moe-backend": info["moe"],
                      "compilation-config.cudagraph_mode": info["mode"], "compilation-config.max_cudagraph_capture_size": info["capture"],
                      "async-scheduling": info["asyn"]},
        "seconds": {"start": 95 + 0.02 * info["capture"], "measure": round(3 * PROMPTS * OUTPUT / value, 1)},
    }
    if info["depth"]:
        answer["metrics"]["engine/acceptance_length"] = round(info["gain"], 3)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
