#!/usr/bin/env python3
"""gpt-oss-120b (MXFP4 experts, sinks, every second layer windowed) on one H100 80 GB behind `vllm serve`: 256 clients in a
closed loop, 512 tokens in, 1,500 out. Objective: output throughput. SURFACE_SEED draws the machine.
"""
import json
import math
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = int(os.environ.get("SURFACE_SEED", "0"))
TOTAL = 79.1
GIB = 2**30
FULL_BYTES = 18 * 2 * 8 * 64 * 2     # a token in the 18 layers that see everything, 16 bit; as much in the 18 windowed ones
WINDOW = 128
CLIENTS, INPUT, OUTPUT = 256, 512, 1500
EXPERT_GB, DENSE_GB = 61.0, 3.3

SPACE = {  # name: (flag, kind, values, default)
    "max_num_seqs": ("max-num-seqs", "int", (16, 1024), 1024),
    "max_num_batched_tokens": ("max-num-batched-tokens", "int", (512, 32768), 8192),
    "gpu_memory_utilization": ("gpu-memory-utilization", "float", (0.86, 0.98, 0.01), 0.92),
    "max_model_len": ("max-model-len", "choice", [2048, 4096, 8192, 32768, 131072], 131072),
    "kv_cache_dtype": ("kv-cache-dtype", "choice", ["auto", "fp8"], "auto"),
    "attention_backend": ("attention-backend", "choice", ["auto", "FLASH_ATTN", "TRITON_ATTN", "FLASHINFER"], "auto"),
    "moe_backend": ("moe-backend", "choice", ["auto", "triton", "triton_unfused", "marlin", "flashinfer_cutlass", "flashinfer_trtllm"], "auto"),
    "cudagraph_mode": ("compilation-config.cudagraph_mode", "choice", ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "NONE"], "FULL_AND_PIECEWISE"),
    "capture_size": ("compilation-config.max_cudagraph_capture_size", "int", (16, 2048), None),
    "async_scheduling": ("async-scheduling", "bool", [False, True], True),
    "stream_interval": ("stream-interval", "int", (1, 32), 1),
    "api_server_count": ("api-server-count", "choice", [1, 2, 4, 8], 1),
    "speculation": ("speculative-config.method", "choice", ["off", "eagle3"], "off"),
    "spec_tokens": ("speculative-config.num_speculative_tokens", "lin", (1, 7), None),
}


class Dead(Exception):
    def __init__(self, kind, cause, violation=1.0, phase="start"):
        super().__init__(cause)
        self.kind, self.cause, self.violation, self.phase = kind, cause, violation, phase


def constants(seed):
    r = random.Random(41900 + seed)
    u = r.uniform
    k = {}
    k["bw"] = 3350e9 * u(0.94, 1.0)
    # experts: share of the bandwidth reached, ms per token of a step (decoding), prefill's tokens per second
    k["moe"] = {
        "triton": (u(0.58, 0.78), u(0.026, 0.045), u(24e3, 33e3)),
        "triton_unfused": (u(0.60, 0.80), u(0.026, 0.045), u(26e3, 36e3)),
        "marlin": (u(0.66, 0.88), u(0.036, 0.062), u(15e3, 23e3)),
        "flashinfer_cutlass": (u(0.52, 0.86), u(0.022, 0.040), u(26e3, 40e3)),
    }
    k["moe_extra"] = {"triton": 0.2, "triton_unfused": 0.35, "marlin": 0.6, "flashinfer_cutlass": u(0.6, 1.3)}
    k["moe_ws"] = {"triton": 8.5e-5, "triton_unfused": 1.15e-4, "marlin": 9.0e-5, "flashinfer_cutlass": 1.2e-4}
    k["auto_moe"] = r.choice(["triton_unfused", "triton_unfused", "triton", "marlin"])
    k["attn_eff"] = u(0.62, 0.82)
    k["triton_attn"] = u(1.05, 2.2)
    k["fa_fp8"] = r.random() < 0.65            # this build's FA3 takes an fp8 cache beside sinks
    k["kv8"] = {"FLASH_ATTN": u(0.56, 1.0), "TRITON_ATTN": u(0.55, 0.95)}
    k["kv8_step"] = u(0.2, 1.6)
    k["long"] = u(0.01, 0.05)                  # split-KV of FULL graphs is planned for max_model_len
    k["host_a"], k["host_b"], k["host_c"] = u(26, 42), u(0.010, 0.022), u(0.010, 0.03)
    k["pw_a"], k["pw_b"] = u(5.5, 10.5), u(0.008, 0.02)
    k["sched_a"], k["sched_b"] = u(1.2, 2.6), u(0.008, 0.020)
    k["chunk"], k["detok"], k["push"] = u(0.085, 0.170), u(0.004, 0.010), u(0.004, 0.012)   # ms
    k["steal"] = u(0.01, 0.06)
    k["accept"] = u(0.22, 0.66)
    k["draft"] = u(0.9, 2.0)
    k["oom"] = u(0.9, 2.2)
    k["thrash"] = u(0.12, 0.35)
    k["rest"] = u(0.4, 0.9)
    k["noise"] = 0.010
    return k


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


def evaluate(arguments, k):
    a = flatten(arguments)
    get = a.get
    seqs = int(get("max-num-seqs", 1024))
    mtok = int(get("max-num-batched-tokens", 8192))
    util = float(get("gpu-memory-utilization", 0.92))
    length = int(get("max-model-len", 131072))
    kv = get("kv-cache-dtype", "auto")
    attn = get("attention-backend", "auto")
    moe = get("moe-backend", "auto")
    mode = get("compilation-config.cudagraph_mode", "FULL_AND_PIECEWISE")
    cap = get("compilation-config.max_cudagraph_capture_size")
    asyn = truth(get("async-scheduling", True))
    every = int(get("stream-interval", 1))
    fronts = int(get("api-server-count", 1))
    spec = get("speculative-config.method")
    depth = int(get("speculative-config.num_speculative_tokens", 7)) if spec else 0

    # --- arguments
    if length > 131072:
        raise Dead("arguments", f"User-specified max_model_len ({length}) is greater than the derived max_model_len (max_position_embeddings=131072).", length / 131072 - 1)
    if length < INPUT + OUTPUT:
        raise Dead("too-short", f"every request failed: This model's maximum context length is {length} tokens. However, you requested {INPUT + OUTPUT} tokens.", (INPUT + OUTPUT) / length - 1, "measure")
    if mtok < seqs:
        if "max-num-seqs" in a:
            raise Dead("arguments", f"max_num_batched_tokens ({mtok}) must be greater than or equal to max_num_seqs ({seqs}).", seqs / mtok - 1)
        seqs = mtok
    schedulable = mtok - (seqs if depth else 0)   # the drafter needs a slot for each sequence
    if schedulable < 1:
        raise Dead("spec-slots", f"VllmConfig does not have enough slots to schedule a token and support the speculative decoding settings: max_num_batched_tokens={mtok}, max_num_seqs={seqs}, num_speculative_tokens={depth}. Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens", (1 - schedulable) / mtok)
    # --- attention
    why = {"FLASHINFER": ["sink setting not supported"], "FLEX_ATTENTION": ["sink setting not supported"], "FLASH_ATTN": [], "TRITON_ATTN": []}
    if kv == "fp8" and not k["fa_fp8"] or kv == "fp8_e5m2":
        why["FLASH_ATTN"] = ["kv_cache_dtype not supported"]
    if attn == "auto":
        attn = "TRITON_ATTN" if why["FLASH_ATTN"] else "FLASH_ATTN"
    elif why.get(attn, ["unknown"]):
        raise Dead("attention-invalid", f"Selected backend AttentionBackendEnum.{attn} is not valid for this configuration. Reason: {why[attn]}")
    # --- experts
    if moe == "auto":
        moe = k["auto_moe"]
    elif moe == "flashinfer_trtllm":
        raise Dead("moe-backend", "Mxfp4 MoE backend 'FLASHINFER_TRTLLM_MXFP4_BF16' does not support the deployment configuration since kernel does not support current device cuda.")
    elif moe not in k["moe"]:
        raise Dead("moe-backend", f"moe_backend='{moe}' is not supported for MXFP4 MoE. Expected one of ['triton', 'triton_unfused', 'marlin', 'flashinfer_cutlass'].")
    # --- graphs
    cap = min(seqs * (1 + depth) * 2, 512) if cap is None else int(cap)
    cap = min(cap, mtok)
    effective_mode = "FULL_AND_PIECEWISE" if mode == "FULL" and attn == "FLASH_ATTN" else mode
    graphs = 0.0
    if mode != "NONE":
        graphs = 0.08 + 0.00045 * cap * (effective_mode != "FULL_DECODE_ONLY")
        if effective_mode != "PIECEWISE":
            graphs += 0.0005 * min(cap, seqs * (1 + depth))
    # --- memory
    weights = 60.77 + k["moe_extra"][moe] + (1.75 if depth else 0.0)
    rest = k["rest"] + 0.0023 * seqs * (1 + 0.35 * depth) + k["moe_ws"][moe] * mtok
    available = util * TOTAL - weights - rest - graphs
    if util * TOTAL > TOTAL - 0.55:
        raise Dead("free-memory", f"Free memory on device cuda:0 ({TOTAL - 0.55:.2f}/{TOTAL} GiB) on startup is less than desired GPU memory utilization ({util}, {util * TOTAL:.2f} GiB).", util)
    if available <= 0:
        raise Dead("no-kv", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", -available + 0.01)
    half = kv != "auto"
    token = FULL_BYTES * (0.5 if half else 1.0) * (37 / 36 if depth else 1.0)
    one = (length + min(length, WINDOW + mtok)) * token
    if one > available * GIB:
        fits = int(max(0, available * GIB / token - WINDOW - mtok))
        raise Dead("kv-too-small", f"To serve at least one request with the model's max seq len ({length}), ({one / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory ({available:.2f} GiB). Based on the available memory, the estimated maximum model length is {fits}.", one / GIB - available)
    concurrency = available * GIB / ((length + min(length, WINDOW + 16)) * token)
    spare = (1 - util) * TOTAL
    need = k["oom"] + 0.3 * graphs
    if spare < need:
        raise Dead("cuda-oom", f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {128 + int(60 * (need - spare))}.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which {max(0.01, spare * 0.03):.2f} GiB is free" + (" (while capturing CUDA graphs)." if mode != "NONE" else "."), need - spare, "capture" if mode != "NONE" else "serve")
    late = k["oom"] * 0.55 + 2.4e-5 * mtok + 0.3 * graphs
    if spare < late:
        raise Dead("cuda-oom", f"EngineCore encountered an issue: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {256 + int(60 * (late - spare))}.00 MiB while the benchmark ran.", late - spare, "measure")

    # --- how many run at once
    want = min(CLIENTS, seqs)
    mean = (INPUT + OUTPUT / 2 + WINDOW + 32) * token
    holds = available * GIB / mean
    gain, p = 1.0, 1.0
    for i in range(depth):
        p *= k["accept"] * (0.93 ** i)
        gain += p
    running = float(want)
    loss = 0.0
    if holds < want:
        running = 0.97 * holds
        loss = k["thrash"] * (1 - holds / want)
    share = INPUT / OUTPUT * gain
    running = max(1.0, min(running, schedulable / (1 + depth + share)))

    # --- a step
    eff, slope, rate = k["moe"][moe]
    full_graph = effective_mode in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL")

    def gpu_ms(s, t):
        touched = 1 - (1 - 4 / 128) ** t
        memory = (EXPERT_GB * 1e9 * touched / eff + DENSE_GB * 1e9 / 0.8) / k["bw"] * 1e3
        math_ = slope * t
        x = (memory ** 3 + math_ ** 3) ** (1 / 3) + 0.35 * math_
        keys = s * (INPUT + OUTPUT / 2 + WINDOW) * FULL_BYTES / (k["bw"] * k["attn_eff"]) * 1e3
        keys *= k["triton_attn"] if attn == "TRITON_ATTN" else 1.0
        keys *= 1 + 0.12 * depth ** 0.5
        if full_graph and t <= cap:
            keys *= 1 + k["long"] * math.log2(length / 2048)
        if half:
            keys = keys * k["kv8"][attn] + k["kv8_step"]
        return x + keys + 1.3

    def with_host(gpu, s, t, mixed):
        if mode == "NONE" or t > cap or (mixed and effective_mode == "FULL_DECODE_ONLY"):
            host = k["host_a"] + k["host_b"] * min(t, 2048) + k["host_c"] * s
            return max(gpu, host) + 0.08 * min(gpu, host)
        if effective_mode == "PIECEWISE" or mixed:
            return max(gpu, k["pw_a"] + k["pw_b"] * s)
        return gpu

    s = running
    t = s * (1 + depth)
    sched = (k["sched_a"] + k["sched_b"] * s + k["push"] * s * min(1.0, gain / every) + 0.004 * t * (depth > 0)) * (1 + k["steal"] * (fronts - 1))
    drafts = depth * (k["draft"] + 0.0012 * s) + (0.014 * t if depth else 0.0)
    gpu = gpu_ms(s, t)

    def whole(gpu, t, mixed):
        ms = with_host(gpu, s, t, mixed) + drafts
        ms = max(ms, sched) + 0.15 * min(ms, sched) * 0.2 if asyn else ms + sched + 0.6
        front = s * gain * (k["chunk"] * min(1.0, 1 / (every * 1.0)) / (gain if every == 1 else 1.0) + k["detok"]) / fronts * (1 + 0.06 * (fronts - 1))
        return (ms ** 4 + front ** 4) ** 0.25

    plain = whole(gpu, t, False)
    step = plain
    budget = max(1.0, schedulable - s * (1 + depth))
    for _ in range(6):   # arrivals follow from the throughput, mixed steps from the arrivals
        arrivals = s * gain / step / OUTPUT                      # requests per ms
        prefill = arrivals * INPUT * (1 + 2.0 * loss)            # tokens per ms
        visits = arrivals * max(1.0, INPUT / budget)
        part = 1 - math.exp(-visits * step)
        per = min(budget, prefill * step / max(part, 1e-9))
        mixed = whole(gpu + per / rate * 1e3 * (1 + 60 / (per + 60)), t + per, True)
        step = 0.5 * step + 0.5 * ((1 - part) * plain + part * mixed)
    value = s * gain / step * 1e3 * (1 - loss)
    return value, {"running": s, "running_max": int(min(want, holds) + 0.999), "usage": min(1.0, s * mean / (available * GIB)) if holds >= want else 0.998,
                   "tokens": int(concurrency * length), "gain": gain, "attention": attn, "moe": moe, "mode": effective_mode, "capture": cap,
                   "asyn": asyn, "step": step, "depth": depth, "available": available, "loss": loss, "part": part, "gpu": gpu, "sched": sched}


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
                if name in ("speculation", "max_num_seqs") and r.random() < 0.5:
                    d["capture_size"] = 2048
                if name == "kv_cache_dtype" and r.random() < 0.5:
                    d["attention_backend"] = "auto"
                x = score(d, k)
                if x > best * (1 + 1e-9):
                    c, best = d, x
        if best <= before * (1 + 1e-6):
            return best, c


def optimum(seed, restarts=400):
    k = constants(seed)
    r = random.Random(5)
    found = []
    for i in range(restarts):
        c = draw_all(r)
        c["speculation"] = "eagle3" if i % 3 == 2 else "off"
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
        if dead.kind in ("no-kv", "kv-too-small", "cuda-oom", "arguments", "spec-slots"):
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
        "protocol": 1, "status": "ok", "version": "0.32.0 (simulated)",
        "samples": {"throughput/output": [round(x, 1) for x in runs]},
        "metrics": {"engine/running_mean": round(info["running"], 1), "engine/running_max": info["running_max"],
                    "engine/kv_usage_max": round(info["usage"], 4), "latency/tpot_p50": round(info["step"] / info["gain"], 2)},
        "effective": {"kv-cache-tokens": info["tokens"], "attention-backend": info["attention"], "moe-backend": info["moe"],
                      "compilation-config.cudagraph_mode": info["mode"], "compilation-config.max_cudagraph_capture_size": info["capture"],
                      "async-scheduling": info["asyn"]},
        "seconds": {"start": 120 + 0.03 * info["capture"], "measure": round(3 * 1024 * OUTPUT / value, 1)},
    }
    if info["depth"]:
        answer["metrics"]["engine/acceptance_length"] = round(info["gain"], 3)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
