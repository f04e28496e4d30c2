#!/usr/bin/env python3
"""One H100 80GB, dense 8B bf16, 256 concurrent requests (512 in of which 256 shared + tail, 384 out): a stand-in server."""
import json
import math
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = int(os.environ.get("SURFACE_SEED", "0") or 0)
R = random.Random(91011 + 7919 * SEED)
U = R.uniform

# ---- the drawn machine ------------------------------------------------------------------------------------------
C = {
    "bw": U(0.78, 0.90),            # of 3.35 TB/s for weights
    "mfu": U(0.48, 0.62),           # of 989 TFLOPS for GEMMs of prefill
    "fa": U(0.62, 0.86), "fi": U(0.66, 0.94), "tri": U(0.52, 0.86), "flex": U(0.28, 0.40),
    "fa8": U(0.50, 0.92), "fi8": U(0.78, 1.0), "tri8": U(0.55, 0.95),   # efficiency kept beside an fp8 cache
    "e5": U(0.93, 1.01),
    "fi_plan": U(0.2, 2.4),         # ms on the host per step: FlashInfer's plan()
    "fi_nvcc": R.random() < 0.8,
    "casc_ms": U(0.3, 2.4),         # merge kernels and two launches a layer
    "casc_gain": U(0.70, 0.95),     # share of the shared reads that it saves
    "launch3": U(0.20, 0.52), "launch0": U(0.60, 0.95), "launch1": U(0.38, 0.66),   # ms a layer without a graph
    "piece": U(0.05, 0.13),         # ms a layer: attention launched between piecewise graphs
    "mode0": U(1.08, 1.18), "mode1": U(0.86, 1.03),   # elementwise kernels not fused / inductor over the whole graph
    "sched0": U(0.9, 2.0), "sched": U(0.014, 0.034),  # ms, ms a sequence: scheduler, input batch, sampler sync
    "async_ipc": U(0.2, 1.0),
    "async_waste": U(0.5, 3.0),     # extra steps a request runs past its end
    "tok": U(0.066, 0.105),         # ms a streamed chunk: detokenise, serialise, SSE (weak host: 16 to 32 slow cores)
    "tok_fix": U(0.030, 0.062),     # ms a token that no stream interval saves
    "req": U(1.8, 4.0),             # ms a request: HTTP, tokenise
    "api_eff": U(0.70, 0.92),       # what each doubling of the API servers yields
    "api_cost": U(0.12, 0.45),      # ms a step of the engine core for each further API server
    "cores": R.choice([8, 12, 16, 24]),
    "over": U(0.03, 0.055),         # per doubling of max-num-seqs above the clients: H200 trials, 1024 against 256: 8.7 %
    "act": U(0.18, 0.34),           # GiB of activations for 1,024 batched tokens
    "graph_mem": U(0.5, 1.1),       # GiB of graphs for 512 sizes
    "tenant": U(0.0, 3.6),          # GiB that another process holds
    "hol": U(-0.035, 0.035),        # whole prompts instead of chunks
    "full_pad": U(1.00, 1.08),      # FULL graphs for mixed batches: worst-case scheduler metadata
    "thr": R.choice([256, 512, 1024]),   # a threshold that happens to suit the prompts
    "thr_gain": U(-0.04, 0.05),
    "coarse": U(0.0, 0.045),        # per doubling of the capture size beyond 512: sizes lie further apart, batches are padded
    "mode1_flex": R.random() < 0.5,
    "noise": U(0.006, 0.015),
}
LAYERS, CLIENTS, SHARED, OWN, OUT = 32, 256, 256, 512, 384
KV_TOKEN = 131072.0
WEIGHTS = 16.06e9
GIB = 2.0**30

DEFAULT = {
    "max-num-seqs": 1024, "max-num-batched-tokens": 8192, "gpu-memory-utilization": 0.9, "kv-cache-dtype": "auto",
    "attention-backend": "auto", "compilation-config.cudagraph_mode": "FULL_AND_PIECEWISE",
    "compilation-config.max_cudagraph_capture_size": 512, "compilation-config.mode": 3, "async-scheduling": False,
    "stream-interval": 1, "api-server-count": 1, "enable-chunked-prefill": True, "long-prefill-token-threshold": 0,
    "disable-cascade-attn": False,
}
SPACE = {
    "max-num-seqs": [16, 32, 64, 128, 256, 512, 1024],
    "max-num-batched-tokens": [512, 1024, 2048, 4096, 8192, 16384, 32768],
    "gpu-memory-utilization": [round(0.5 + 0.04 * i, 2) for i in range(13)],
    "kv-cache-dtype": ["auto", "fp8_e4m3", "fp8_e5m2"],
    "attention-backend": ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"],
    "compilation-config.cudagraph_mode": ["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"],
    "compilation-config.max_cudagraph_capture_size": [32, 64, 128, 256, 512, 1024],
    "compilation-config.mode": [0, 1, 3],
    "async-scheduling": [False, True],
    "stream-interval": [1, 2, 3, 4, 6, 8, 11, 16, 23, 32],
    "api-server-count": [1, 2, 4, 8],
    "enable-chunked-prefill": [True, False],
    "long-prefill-token-threshold": [0, 2048, 1024, 512, 256],
    "disable-cascade-attn": [False, True],
}
CATEGORICAL = {"kv-cache-dtype", "attention-backend", "compilation-config.cudagraph_mode", "compilation-config.mode",
               "async-scheduling", "enable-chunked-prefill", "disable-cascade-attn"}


class Dead(Exception):
    def __init__(self, kind, cause, violation=None, phase="start", excerpt=None):
        super().__init__(cause)
        self.answer = {"kind": kind, "cause": cause, "phase": phase}
        if violation is not None:
            self.answer["violation"] = round(max(violation, 1e-3), 4)
        if excerpt:
            self.answer["excerpt"] = excerpt


def pmax(p, *xs):
    return sum(max(x, 1e-9) ** p for x in xs) ** (1.0 / p)


def model(arguments):
    """→ (tok/s, figures). Raises Dead."""
    a = {**DEFAULT, **{k: v for k, v in arguments.items() if k in DEFAULT and v is not None}}
    seqs, mnbt = int(a["max-num-seqs"]), int(a["max-num-batched-tokens"])
    gmu, kv, back = float(a["gpu-memory-utilization"]), a["kv-cache-dtype"], a["attention-backend"]
    graph, cap = a["compilation-config.cudagraph_mode"], int(a["compilation-config.max_cudagraph_capture_size"])
    mode = int(a["compilation-config.mode"])
    asy, si, api = bool(a["async-scheduling"]), int(a["stream-interval"]), int(a["api-server-count"])
    chunked, thr = bool(a["enable-chunked-prefill"]), int(a["long-prefill-token-threshold"])
    cascade = not a["disable-cascade-attn"]
    if back in ("auto", "default"):
        back = "FLASH_ATTN"
        if kv == "fp8_e5m2":
            back = "FLASHINFER" if C["fi_nvcc"] else "TRITON_ATTN"     # what the platform falls back to
    warnings = []

    # -- argument validation, seconds after the start
    if mnbt < seqs:
        raise Dead("validation", "1 validation error for SchedulerConfig: Value error, max_num_batched_tokens "
                   f"({mnbt}) must be greater than or equal to max_num_seqs ({seqs}).", seqs / mnbt - 1)
    if not chunked and mnbt < 4096:
        raise Dead("validation", "1 validation error for SchedulerConfig: Value error, max_num_batched_tokens "
                   f"({mnbt}) is smaller than max_model_len (4096). This effectively limits the maximum sequence length "
                   "to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
                   "max_num_batched_tokens or decrease max_model_len.", 4096 / mnbt - 1)
    if back == "FLASHINFER" and kv != "auto" and not C["fi_nvcc"]:      # the bf16 kernels came precompiled, these did not
        raise Dead("crash", "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
                   phase="warmup")
    if back == "FLASH_ATTN" and kv == "fp8_e5m2":
        raise Dead("attn-invalid", "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this "
                   "configuration. Reason: ['kv_cache_dtype not supported']")
    if back == "FLEX_ATTENTION" and kv != "auto":
        raise Dead("attn-invalid", "ValueError: Selected backend AttentionBackendEnum.FLEX_ATTENTION is not valid for "
                   "this configuration. Reason: ['kv_cache_dtype not supported']")
    if mode == 1 and back == "FLEX_ATTENTION" and C["mode1_flex"]:
        raise Dead("crash", "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
                   "proc(s): {'EngineCore_DP0': 1}", phase="compile",
                   excerpt="torch._dynamo.exc.FailOnRecompileLimitHit: Hard failure due to fullgraph=True")

    # -- what vLLM overrides without asking
    if mode != 3 and graph in ("PIECEWISE", "FULL_AND_PIECEWISE"):
        new = "NONE" if graph == "PIECEWISE" else "FULL_DECODE_ONLY"
        warnings.append(f"Cudagraph mode {graph} is not compatible with compilation mode {mode}. Overriding to {new}.")
        graph = new
    if graph == "FULL" and back == "FLASHINFER":
        new = "FULL_AND_PIECEWISE" if mode == 3 else "FULL_DECODE_ONLY"
        warnings.append("CUDAGraphMode.FULL is not supported with FlashInferBackend backend (support: "
                        f"AttentionCGSupport.UNIFORM_BATCH); setting cudagraph_mode={new}")
        graph = new

    # -- memory
    total = 79.1
    free = total - 0.55 - C["tenant"]
    if gmu * total > free:
        raise Dead("free-mem", f"ValueError: Free memory on device cuda:0 ({free:.2f}/{total:.2f} GiB) on startup is less "
                   f"than desired GPU memory utilization ({gmu}, {gmu * total:.2f} GiB). Decrease GPU memory utilization "
                   "or reduce GPU memory used by other processes.", gmu * total - free)
    act = 0.7 + C["act"] * mnbt / 1024 * (1.35 if mode == 0 else 1.0) + (0.0005 * seqs if seqs > 256 else 0.12)
    graphs = 0.0 if graph == "NONE" else C["graph_mem"] * (0.25 + 0.75 * min(cap, 2 * seqs) / 512) * (
        1.6 if graph == "FULL_AND_PIECEWISE" else 1.0)
    room = gmu * total - WEIGHTS / GIB - act
    if room <= 0.05:
        raise Dead("no-kv", "ValueError: No available memory for the cache blocks. Try increasing "
                   "`gpu_memory_utilization` when initializing the engine.", 0.1 - room, phase="profile")
    left = free - gmu * total
    need = 1.15 * graphs + 0.35
    if left + 1.2 < need:                     # graphs live outside of what was profiled
        short = need - left - 1.2
        raise Dead("capture-oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
                   f"{int(short * 1024) + 20} MiB. GPU 0 has a total capacity of 79.10 GiB of which {max(left, 0.02):.2f} "
                   "GiB is free.", short, phase="capture", excerpt="Capturing CUDA graphs (decode, FULL):  71%|███████ ")
    kvb = KV_TOKEN * (0.5 if kv != "auto" else 1.0)
    capacity = room * GIB / kvb
    need_kv = 4096
    if capacity < need_kv:
        raise Dead("kv-too-small", "ValueError: To serve at least one request with the model's max seq len (4096), "
                   f"({need_kv * kvb / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
                   f"({room:.2f} GiB). Based on the available memory, the estimated maximum model length is "
                   f"{int(capacity)}.", need_kv * kvb / GIB - room, phase="profile")

    # -- how many run
    fit = (capacity - SHARED) / (OWN + 0.62 * OUT)
    want = min(CLIENTS, seqs)
    b = min(want, fit)
    preempt = 0.0
    if fit < want:
        preempt = 0.18 * min(1.0, want / fit - 1)        # recomputed prompts
    # -- mixed and pure decode steps; what a request needs of prefill in every decode step
    chunk_max = max(mnbt - b, 48.0)
    refill = b * OWN * (1 + preempt * 2) / OUT           # prefill tokens a step, mean
    if thr and chunked:
        chunk_max = min(chunk_max, thr * 2.0 if thr < 1024 else thr * 1.5)
    natural = 180.0 + 3.2 * OWN * (0.4 + 0.6 * min(1.0, b / 256))     # arrivals come in bursts of a few requests
    chunk = min(chunk_max, natural)
    f = refill / chunk
    run = b
    if f > 0.92:                                         # the budget starves the refill: slots stay empty
        run = b * 0.92 / f
        f = 0.92
    # -- kernels
    eff = {"FLASH_ATTN": C["fa"], "FLASHINFER": C["fi"], "TRITON_ATTN": C["tri"], "FLEX_ATTENTION": C["flex"]}[back]
    if kv != "auto":
        eff *= {"FLASH_ATTN": C["fa8"], "FLASHINFER": C["fi8"], "TRITON_ATTN": C["tri8"]}[back]
        if kv == "fp8_e5m2":
            eff *= C["e5"]
    plan = C["fi_plan"] if back == "FLASHINFER" else 0.0
    decode_full = graph in ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE") and run <= cap
    use_casc = cascade and not decode_full and back in ("FLASH_ATTN", "FLASHINFER")
    own_tokens = run * (OWN + OUT / 2)
    shared_tokens = run * SHARED * ((1 - C["casc_gain"]) if use_casc else 1.0)
    bw = 3.35e12
    t_w = WEIGHTS / (bw * C["bw"]) * 1e3
    t_kv = (own_tokens + shared_tokens) * kvb / (bw * eff) * 1e3 + (C["casc_ms"] if use_casc else 0.0)
    elem = 2.0 + 0.0075 * run
    fuse = {0: C["mode0"], 1: C["mode1"], 3: 1.0}[mode]
    gpu_decode = (t_w + elem) * fuse + t_kv + 0.006 * run
    t_pre = 2 * 8.03e9 * chunk / (989e12 * C["mfu"] * (chunk / (chunk + 70.0))) * 1e3
    gpu_mixed = pmax(4, (t_w + elem) * fuse, t_pre * (0.35 + 0.65 * fuse)) + t_kv * 1.05 + 0.006 * run + 0.5
    # -- launches
    eager = LAYERS * {0: C["launch0"], 1: C["launch1"], 3: C["launch3"]}[mode]
    pieces = LAYERS * C["piece"] + 1.2

    def launch(tokens, mixed):
        if graph == "NONE" or tokens > cap:
            return eager
        if graph == "FULL":
            return 0.5
        if not mixed:
            return pieces if graph == "PIECEWISE" else 0.5
        return eager if graph == "FULL_DECODE_ONLY" else pieces
    if graph == "FULL" and run + chunk <= cap:
        gpu_mixed *= C["full_pad"]
    l_dec, l_mix = launch(run, False), launch(run + chunk, True)
    sched = C["sched0"] + C["sched"] * run
    ipc = C["api_cost"] * (api - 1)
    busy = max(0.0, (2 + api * 1.6 + (1.5 if asy else 0)) / C["cores"] - 0.75)     # processes fight for cores
    host_scale = 1 + 1.1 * busy
    if asy:      # scheduling of the next step runs beside the GPU; FlashInfer's plan cannot
        host = C["async_ipc"] + plan + 0.25 * ipc
        dec = pmax(5, gpu_decode, (l_dec + sched + ipc) * host_scale) + host * host_scale
        mix = pmax(5, gpu_mixed, (l_mix + sched * 1.2 + ipc) * host_scale) + host * host_scale
    else:
        host = (sched + ipc + plan) * host_scale
        dec = pmax(5, gpu_decode, l_dec * host_scale) + host
        mix = pmax(5, gpu_mixed, l_mix * host_scale) + host * 1.15
    step = (1 - f) * dec + f * mix
    if graph != "NONE" and cap > 512:
        step *= 1 + C["coarse"]
    if asy:
        step *= 1 + C["async_waste"] / OUT
    # -- front end: a pipeline beside the engine
    n_eff = api ** math.log2(1 + C["api_eff"])
    stream = run * (C["tok"] / si**0.9 + C["tok_fix"]) + run / OUT * C["req"]
    front = stream / n_eff * host_scale
    if asy:
        front *= 1.04
    total_step = pmax(4, step, front)
    thr_factor = 1.0
    if chunked and thr:
        thr_factor += C["thr_gain"] * (1 - abs(math.log2(thr / C["thr"])) * 0.7)
        if mnbt <= 1024:
            thr_factor = min(thr_factor, 1.0)             # the budget is the threshold already
    if not chunked:
        thr_factor += C["hol"] - (0.03 if mnbt > 8192 else 0.0)
    over = max(0.0, math.log2(max(seqs, 1) / CLIENTS)) * C["over"]
    waste = 1 - preempt
    value = 1000.0 * run / total_step * thr_factor * (1 - over) * waste
    figures = {
        "engine/running_mean": run, "engine/running_max": min(want, fit if fit < want else want),
        "engine/kv_usage_max": min(1.0, (SHARED + b * (OWN + 0.75 * OUT)) / capacity),
        "engine/preemptions": round(1280 * preempt * 1.5), "latency/tpot_p50": 1000 * run / value,
        "latency/ttft_p99": 400 + 0.9 * chunk + 1000 * OUT * max(0.0, CLIENTS - run) / max(value, 1) * 1.05 + 20 * mix,
        "kv-tokens": int(capacity) // 16 * 16, "warnings": warnings, "graph": graph, "backend": back,
        "dec": dec, "front": front, "step": step, "gpu": gpu_decode, "gpu_mix": gpu_mixed, "f": f, "mix": mix,
    }
    return value, figures


def strip(a):
    """A config without what does not exist beside the others."""
    a = dict(a)
    if a["compilation-config.cudagraph_mode"] == "NONE":
        a.pop("compilation-config.max_cudagraph_capture_size", None)
    if not a["enable-chunked-prefill"]:
        a.pop("long-prefill-token-threshold", None)
    return a


def val(a):
    try:
        return model(strip(a))[0]
    except Dead:
        return -1.0


def climb(a, rng):
    best = val(a)
    keys = list(SPACE)
    better = True
    while better:
        better = False
        rng.shuffle(keys)
        for k in keys:
            for v in SPACE[k]:
                if v != a[k]:
                    t = {**a, k: v}
                    x = val(t)
                    if x > best * (1 + 1e-9):
                        a, best, better = t, x, True
    return best, a


def pairs(a, best):
    keys = list(SPACE)
    for i, k in enumerate(keys):
        for m in keys[i + 1:]:
            for v in SPACE[k]:
                for w in SPACE[m]:
                    x = val({**a, k: v, m: w})
                    if x > best * (1 + 1e-9):
                        return x, {**a, k: v, m: w}
    return None


def search(restarts=40, salt=0):
    rng = random.Random(5 + salt)
    ends = []
    for i in range(restarts):
        a = dict(DEFAULT)
        if i:
            for _ in range(4000):
                a = {k: rng.choice(v) for k, v in SPACE.items()}
                if val(a) > 0:
                    break
        ends.append(climb(a, rng))
    best, a = max(ends, key=lambda e: e[0])
    while True:
        r = pairs(a, best)
        if r is None:
            return best, strip(a), ends
        best, a = climb(r[1], rng)


def optimum():
    path = os.path.join(HERE, f"optimum_{SEED}.json")
    if os.path.exists(path):
        with open(path) as h:
            return json.load(h)
    best, a, _ = search()
    out = {"value": best, "arguments": a}
    with open(path, "w") as h:
        json.dump(out, h)
    return out


def main():
    if "--optimum" in sys.argv:
        print(json.dumps(optimum()))
        return
    if "--default" in sys.argv:
        print(model({})[0])
        return
    q = json.load(sys.stdin)
    args = (q.get("candidate") or {}).get("arguments") or q.get("arguments") or {}
    try:
        value, g = model(args)
    except Dead as d:
        if "--value" in sys.argv:
            print("dead:", d)
        else:
            print(json.dumps({"protocol": 1, "status": "infeasible", "failure": d.answer}))
        return
    if "--value" in sys.argv:
        print(value)
        return
    rng = random.Random(int(q.get("seed", 0)) * 31 + SEED)
    common = rng.gauss(1.0, C["noise"])               # a server is a little faster or slower as a whole
    runs = [value * common * rng.gauss(1.0, C["noise"] * 0.4) for _ in range(3)]
    steps = []
    for s in (32, 64, 128, 192, 256):
        if s <= g["engine/running_mean"]:
            steps.append([s, round(g["dec"] / 1000 * (0.42 + 0.58 * s / max(g["engine/running_mean"], 1)), 6)])
    metrics = {k: round(v, 4) for k, v in g.items() if "/" in k}
    answer = {"protocol": 1, "status": "ok", "samples": {"throughput/output": [round(r, 2) for r in runs]},
              "metrics": metrics, "effective": {"kv-cache-tokens": g["kv-tokens"],
                                                "compilation-config.cudagraph_mode": g["graph"],
                                                "attention-backend": g["backend"]},
              "steps": steps, "version": "0.12.0", "seconds": {"start": 70.0, "measure": 60.0}}
    if "max-num-seqs" not in args:
        answer["effective"]["max-num-seqs"] = 1024
    if "max-num-batched-tokens" not in args:
        answer["effective"]["max-num-batched-tokens"] = 8192
    if g["warnings"]:
        answer["warnings"] = g["warnings"]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
