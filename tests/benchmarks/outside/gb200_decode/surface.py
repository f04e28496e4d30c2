#!/usr/bin/env python3
"""Simulator: a 187B MoE on four GB200, decode-heavy, 16 and 512 requests in flight. See ABOUT.md."""
import json, math, os, random, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = int(os.environ.get("SURFACE_SEED", "0"))
GIB = 2.0 ** 30
TOTAL, GMU = 184.3, 0.92
LAYERS, HIDDEN, E, TOPK, INTER = 60, 4096, 160, 8, 1536
EXPERT = 3 * HIDDEN * INTER              # weights of one expert in one layer
ATTN = 4.53e9                            # attention weights of all layers
VOCAB = 151552
KV = LAYERS * 2 * 8 * 128 * 2            # bytes a token in bf16
IN, OUT = 2048, 1024
POINTS = [("c16", 16, 6.0), ("c512", 512, 1.0)]
NVFP4 = "example/MoE-187B-A14B-NVFP4"
FP8 = "example/MoE-187B-A14B-FP8"

DOM = {
    "model": [FP8, NVFP4], "tensor-parallel-size": [1, 2, 4], "data-parallel-size": [1, 2, 4],
    "enable-expert-parallel": [False, True],
    "all2all-backend": ["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput", "flashinfer_nvlink_one_sided"],
    "moe-backend": ["auto", "triton", "deep_gemm", "cutlass", "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl"],
    "attention-backend": ["auto", "FLASHINFER", "FLASH_ATTN", "TRITON_ATTN"], "kv-cache-dtype": ["auto", "fp8"],
    "max-num-seqs": [16, 2048], "cudagraph": ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"],
    "capture": [16, 32, 64, 128, 256, 512, 1024, 2048], "fusion": ["default", "allreduce", "attn-quant", "both", "none"],
    "spec": [False, True], "k": [1, 2, 3, 4, 5, 6],
}
DEFAULT = {"model": FP8, "tensor-parallel-size": 4, "data-parallel-size": 1, "enable-expert-parallel": False,
           "all2all-backend": "allgather_reducescatter", "moe-backend": "auto", "attention-backend": "auto", "kv-cache-dtype": "auto",
           "max-num-seqs": 1024, "cudagraph": "FULL_AND_PIECEWISE", "capture": 512, "fusion": "default", "spec": False, "k": 1}


class Dead(Exception):
    def __init__(self, kind, cause, violation=1.0, phase="start"):
        super().__init__(cause)
        self.kind, self.cause, self.violation, self.phase = kind, cause, violation, phase


def machine(seed):
    r = random.Random(104729 * seed + 31)
    u = r.uniform
    m = {
        "bw": u(0.62, 0.78) * 8e12, "kvbw": 8e12, "mfu8": u(0.30, 0.45), "mfu4": u(0.22, 0.38),
        "arlat": u(6e-6, 15e-6), "arbw": u(250e9, 650e9), "fuse_gain": u(0.30, 0.62), "fuse_max": r.choice([128, 256, 512, 1024]),
        "attnquant": u(1.5e-6, 5e-6), "eager": u(70e-6, 120e-6), "piece": u(11e-6, 24e-6), "host": u(0.7e-3, 1.8e-3),
        "hostseq": u(1.5e-6, 5e-6), "verify": u(3e-6, 10e-6), "draft": u(0.35e-3, 0.75e-3), "accept": u(0.66, 0.88),
        "decay": u(0.82, 0.95), "acc_fp4": u(0.90, 1.0), "imb": u(0.10, 0.6), "dpsync": u(1.02, 1.08),
        "tpslice": u(0.80, 0.95), "noise": u(0.005, 0.018), "ctx": u(1.6, 2.8), "act": u(5.0, 8.0), "graph": u(1.3, 2.6),
        "deepep": r.random() < 0.8, "mixed": u(1.0e-3, 3.0e-3), "mtp_nvfp4": u(1.0, 1.35),
        "lowlat_max": r.choice([256, 512, 1024]), "other_scale": 1.0,
    }
    m["a2a"] = {"allgather_reducescatter": (u(16e-6, 26e-6), u(220e9, 380e9), 1.0), "deepep_low_latency": (u(9e-6, 16e-6), u(120e9, 260e9), 0.5),
                "deepep_high_throughput": (u(35e-6, 60e-6), u(450e9, 700e9), 0.5), "flashinfer_nvlink_one_sided": (u(11e-6, 22e-6), u(300e9, 600e9), 0.5)}
    # (share of bandwidth with few tokens, share of peak with many, overhead per layer)
    m["moe"] = {
        (0, "triton"): (u(0.55, 0.75), u(0.35, 0.55), u(14e-6, 22e-6)),
        (0, "deep_gemm"): (u(0.60, 0.90), u(0.85, 1.15), u(12e-6, 22e-6)),
        (0, "cutlass"): (u(0.65, 0.88), u(0.75, 1.05), u(10e-6, 20e-6)),
        (0, "flashinfer_trtllm"): (u(0.80, 1.00), u(0.65, 1.00), u(6e-6, 11e-6)),
        (0, "flashinfer_cutlass"): (u(0.65, 0.92), u(0.75, 1.10), u(10e-6, 18e-6)),
        (1, "cutlass"): (u(0.55, 0.80), u(0.60, 0.95), u(14e-6, 24e-6)),
        (1, "flashinfer_trtllm"): (u(0.72, 1.00), u(0.60, 1.00), u(7e-6, 13e-6)),
        (1, "flashinfer_cutlass"): (u(0.60, 0.90), u(0.75, 1.10), u(10e-6, 20e-6)),
        (1, "flashinfer_cutedsl"): (u(0.68, 1.02), u(0.70, 1.15), u(9e-6, 18e-6)),
    }
    m["auto"] = {0: r.choice(["flashinfer_trtllm", "deep_gemm", "flashinfer_trtllm"]), 1: r.choice(["flashinfer_trtllm", "flashinfer_cutlass"])}
    m["attn"] = {
        ("FLASHINFER", "auto"): (u(0.72, 0.86), u(7e-6, 11e-6)), ("FLASHINFER", "fp8"): (u(0.60, 0.82), u(7e-6, 12e-6)),
        ("FLASH_ATTN", "auto"): (u(0.60, 0.88), u(8e-6, 13e-6)),
        ("TRITON_ATTN", "auto"): (u(0.45, 0.75), u(10e-6, 18e-6)), ("TRITON_ATTN", "fp8"): (u(0.40, 0.78), u(10e-6, 18e-6)),
    }
    return m


def simulate(a, m):
    fp4 = 1 if a["model"] == NVFP4 else 0
    tp, dp, ep = a["tensor-parallel-size"], a["data-parallel-size"], a["enable-expert-parallel"]
    moe, attn, kvd = a["moe-backend"], a["attention-backend"], a["kv-cache-dtype"]
    seqs, mode, cap = int(a["max-num-seqs"]), a["cudagraph"], int(a["capture"])
    k = int(a["k"]) if a["spec"] else 0
    world = tp * dp
    if world > 4:
        raise Dead("world-size", f"World size ({world}) is larger than the number of available GPUs (4) in this node. If this is "
                   "intentional and you are using multi-node, set --nnodes.", world / 4 - 1)
    a2a = a["all2all-backend"] if ep and dp > 1 else None
    # kernels
    if attn == "auto":
        attn = "FLASHINFER"
    elif attn == "FLASH_ATTN" and kvd == "fp8":
        raise Dead("attn-invalid", "Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: "
                   "['kv_cache_dtype not supported']")
    scheme = "NvFp4" if fp4 else "Fp8"
    if moe == "auto":
        moe = m["auto"][fp4]
        if a2a == "deepep_low_latency":
            moe = "flashinfer_cutedsl" if fp4 else "deep_gemm"
    if (fp4, moe) not in m["moe"]:
        raise Dead("moe-backend", f"moe_backend='{moe}' is not supported for {scheme} MoE. Expected one of "
                   f"{sorted(b for f, b in m['moe'] if f == fp4)}.")
    if a2a and a2a.startswith("deepep") and not m["deepep"]:
        raise Dead("no-deepep", f"ModuleNotFoundError: No module named 'deep_ep' (all2all_backend={a2a})")
    if a2a == "deepep_low_latency" and moe in ("flashinfer_trtllm", "flashinfer_cutlass") or \
            a2a == "deepep_low_latency" and moe == "triton" and fp4:
        raise Dead("moe-a2a", f"{scheme} MoE backend '{moe.upper()}' does not support the deployment configuration since kernel does "
                   "not support batched activation format.")
    if a2a == "deepep_high_throughput" and moe == "flashinfer_trtllm" and fp4:
        raise Dead("moe-a2a", f"{scheme} MoE backend 'FLASHINFER_TRTLLM' does not support the deployment configuration since kernel "
                   "does not support parallel config deepep_high_throughput.")
    if a2a == "deepep_low_latency" and seqs * (1 + k) > m["lowlat_max"] * 4:
        raise Dead("deepep-buffer", f"AssertionError: num_max_dispatch_tokens_per_rank ({seqs * (1 + k)}) exceeds the DeepEP low-latency "
                   f"buffer ({m['lowlat_max'] * 4})", seqs * (1 + k) / m["lowlat_max"] / 4 - 1)
    if mode == "NONE":
        cap = 0
    # memory of one rank
    ebytes = 0.5625 if fp4 else 1.008
    wexp = E * EXPERT * LAYERS * ebytes / world
    wattn = ATTN * 1.0 / tp
    emb = 2 * VOCAB * HIDDEN * 2 / tp
    wmtp = 0.0 if not k else (E * EXPERT * (2.0 if fp4 and m["mtp_nvfp4"] > 1.15 else ebytes) / world + ATTN / LAYERS / tp * 2)
    weights = (wexp + wattn + emb + wmtp) / GIB
    if weights + m["ctx"] > TOTAL - 1.0:
        raise Dead("cuda-oom", f"CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of {TOTAL} GiB of which "
                   f"{max(0.0, TOTAL - weights - m['ctx']):.2f} GiB is free (loading weights)", weights + m["ctx"] - TOTAL + 1, "load")
    act = m["act"] * (0.5 + 0.5 / tp) + VOCAB * 4 * min(seqs * (1 + k), 8192) * 3.0 / GIB * 0.6
    if a2a:
        act += 2.0 + (6.0 if a2a == "deepep_low_latency" else 3.0) * min(2048, seqs) / 1024
    graph = m["graph"] * (0.3 + 0.7 * cap / 512) * (1.35 if mode == "FULL_AND_PIECEWISE" else 1.0) * (1.4 if k else 1.0) * (cap > 0)
    kvgib = TOTAL * GMU - weights - m["ctx"] - act - 0.7 * graph
    if kvgib <= 0:
        raise Dead("no-kv", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
                   f"engine. (Available KV cache memory: {kvgib:.2f} GiB)", -kvgib + 0.01)
    if 0.3 * graph + 0.25 * act > TOTAL * (1 - GMU) - 3.0:
        raise Dead("cuda-oom", f"CUDA out of memory. Tried to allocate {0.5 * graph:.2f} GiB. GPU 0 has a total capacity of {TOTAL} GiB "
                   f"(Capturing CUDA graphs, largest {cap})", 0.3 * graph + 0.25 * act - TOTAL * (1 - GMU) + 3.0, "capture")
    per_tok = KV * (0.5 if kvd == "fp8" else 1.0)
    K = kvgib * GIB / (per_tok / tp)          # one replica

    fus = a["fusion"]
    if fus == "default":
        fus = "allreduce" if m["auto"][1] == "flashinfer_trtllm" else "none"
    fuse_ar = fus in ("allreduce", "both")
    fuse_aq = fus in ("attn-quant", "both")
    lo, hi, ov = m["moe"][(fp4, moe)]
    ab, alat = m["attn"][(attn, kvd)]
    acc = m["accept"] * (m["acc_fp4"] if fp4 else 1.0)
    alen, p = 1.0, 1.0
    for i in range(k):
        p *= acc * m["decay"] ** i
        alen += p

    def step(n):
        """Seconds of one step with n sequences on each replica, all decoding."""
        t = n * (1 + k)                              # tokens of a replica
        g = t * dp                                   # tokens that the experts see
        # mode of this step
        run = mode
        over = 0.0
        if a2a == "deepep_high_throughput" or run == "NONE" or t > cap:
            over = LAYERS * m["eager"]
            run = "NONE"
            if mode != "NONE" and t > cap and a2a != "deepep_high_throughput":
                over *= 0.85                         # compiled, no graph
        elif run == "PIECEWISE" or (attn == "TRITON_ATTN" and k):
            over = LAYERS * m["piece"]
        # attention
        twa = wattn / m["bw"]
        twa = math.hypot(twa, 2 * ATTN / tp * t / (5e15 * m["mfu8"]))
        ctx = IN + OUT * 0.5
        tkv = n * ctx * per_tok / tp / (m["kvbw"] * ab) * (1 + 0.08 * k) + LAYERS * alat * (1 - 0.1 * (kvd == "fp8"))
        if fuse_aq and kvd == "fp8" and mode in ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE") and run == mode and attn != "FLASH_ATTN":
            tkv -= LAYERS * m["attnquant"]
        elif fuse_aq:
            tkv += LAYERS * 0.4e-6
        # experts
        touched = E * (1 - (1 - TOPK / E) ** max(g, 1.0))
        rd = touched * EXPERT * LAYERS * ebytes / world / (m["bw"] * lo)
        peak = 1e16 * m["mfu4"] if fp4 else 5e15 * m["mfu8"]
        ct = 2 * g * TOPK * EXPERT * LAYERS / world / (peak * hi)
        tm = (rd ** 1.6 + ct ** 1.6) ** (1 / 1.6)
        if ep:
            tm *= 1 + m["imb"] / math.sqrt(1 + g / 48.0) + 0.06
        elif world > 1:
            tm /= m["tpslice"] ** (math.log2(world) / 2)
        tm += LAYERS * ov
        # communication
        tc = 0.0
        if tp > 1:
            lat = m["arlat"] * (0.8 if tp == 2 else 1.0)
            bts = t * HIDDEN * 2 * 2 * (tp - 1) / tp / m["arbw"]
            nar = 2 if dp == 1 else 1
            f = (1 - m["fuse_gain"]) if fuse_ar and t <= m["fuse_max"] and dp == 1 else 1.0
            if fuse_ar and t > m["fuse_max"] and dp == 1:
                f = 1.06
            tc += LAYERS * nar * (lat * f + bts * (0.85 + 0.15 * f))
        if dp > 1:
            l, b, share = m["a2a"][a2a or "allgather_reducescatter"]
            vol = g * HIDDEN * 2 * (world - 1) / world if share == 1.0 else t * min(TOPK, world) * HIDDEN * 1.5 / tp
            tc += LAYERS * (2 * l + 2 * vol / b)
        # head, host, speculation
        th = VOCAB * HIDDEN * 2 / tp / m["bw"] + t * 2 * VOCAB * HIDDEN / tp / (2.5e15 * 0.5)
        host = m["host"] + m["hostseq"] * n
        if k:
            one = m["draft"] * (1.0 if run != "NONE" else 2.2) + th + (tm + twa + tkv + tc) / LAYERS * (m["mtp_nvfp4"] if fp4 else 1.0)
            host += k * one + m["verify"] * n * (1 + k)
        core = (twa + tkv + tm + tc) + over + th
        return (core * (m["dpsync"] if dp > 1 else 1.0) + host)

    out = {}
    for name, conc, w in POINTS:
        n = min(conc / dp, float(seqs), K / (IN + OUT * 0.75))
        ceil_n = max(n, 1.0)
        s = step(ceil_n)
        dec = OUT / alen * s                         # seconds a sequence decodes
        pre = 2 * IN * (E and TOPK * EXPERT * LAYERS + ATTN) / world / ((1e16 * m["mfu4"] if fp4 else 5e15 * m["mfu8"]) * 0.8) \
            + m["mixed"] * (1.6 if mode in ("FULL_DECODE_ONLY", "NONE") else 1.0)
        if mode in ("FULL_DECODE_ONLY", "NONE"):
            pre += LAYERS * m["eager"] * 0.35
        pre *= dp * (1.0 if dp == 1 else 1.08)       # replicas step together
        x = n / (dec + pre * n)                      # requests a second and replica
        tput = x * dp * OUT
        wait = max(0.0, conc - n * dp) / (x * dp)
        out[name] = {"throughput": tput, "running": n * dp, "ttft": (wait + pre * 1.5 + s) * 1000, "ttft99": (wait * 1.2 + pre * min(n, 24) + s) * 1000,
                     "tpot": (dec + pre * n) / OUT * 1000, "step": (n, s)}
    tot = sum(w for _, _, w in POINTS)
    val = sum(out[nm]["throughput"] * w for nm, _, w in POINTS) / tot
    return {"throughput": val, "points": out, "K": K, "moe": moe, "attn": attn, "alen": alen, "c16": out["c16"]["throughput"],
            "c512": out["c512"]["throughput"], "kv_usage": min(1.0, out["c512"]["running"] / dp * (IN + OUT * 0.75) / K),
            "kvgib": kvgib, "fus": fus}


LIMIT_MS = float("inf")


def arguments(q):
    a = dict(DEFAULT)
    g = q["candidate"]["arguments"]
    fl = {}
    for key, v in g.items():                         # nested mappings as dotted paths
        if isinstance(v, dict) and key != "speculative-config":
            stack = [(key, v)]
            while stack:
                p, d = stack.pop()
                for kk, vv in d.items():
                    if isinstance(vv, dict):
                        stack.append((p + "." + kk, vv))
                    else:
                        fl[p + "." + kk] = vv
        elif isinstance(v, dict):
            for kk, vv in v.items():
                fl[key + "." + kk] = vv
        else:
            fl[key] = v
    for key in ("model", "tensor-parallel-size", "data-parallel-size", "enable-expert-parallel", "all2all-backend", "moe-backend",
                "attention-backend", "kv-cache-dtype", "max-num-seqs"):
        if fl.get(key) is not None:
            a[key] = fl[key]
    cc = "compilation-config."
    if fl.get(cc + "cudagraph_mode") is not None:
        a["cudagraph"] = fl[cc + "cudagraph_mode"]
    cap = fl.get(cc + "max_cudagraph_capture_size", fl.get("max-cudagraph-capture-size"))
    k = fl.get("speculative-config.num_speculative_tokens")
    a["spec"] = bool(fl.get("speculative-config.method")) and k != 0
    if a["spec"]:
        a["k"] = int(k or 1)
    if cap is not None:
        a["capture"] = int(cap)
    ar, aq = fl.get(cc + "pass_config.fuse_allreduce_rms"), fl.get(cc + "pass_config.fuse_attn_quant")
    if ar is None and aq is None:
        a["fusion"] = "default"
    else:
        a["fusion"] = {(1, 0): "allreduce", (0, 1): "attn-quant", (1, 1): "both", (0, 0): "none"}[(int(bool(ar)), int(bool(aq)))]
    return a


def value(a, m):
    try:
        return simulate(a, m)["throughput"]
    except Dead:
        return -1.0


def canon(a):
    a = dict(a)
    if a["tensor-parallel-size"] >= 4:
        a["data-parallel-size"] = 1
    if not a["enable-expert-parallel"] or a["data-parallel-size"] == 1:
        a["all2all-backend"] = DEFAULT["all2all-backend"]
    if a["cudagraph"] == "NONE":
        a["capture"] = DEFAULT["capture"]
    if not a["spec"]:
        a["k"] = 1
    return a


def sample(r):
    a = {}
    for key, d in DOM.items():
        a[key] = int(round(d[0] * (d[1] / d[0]) ** r.random())) if key == "max-num-seqs" else r.choice(d)
    return canon(a)


SEQGRID = [16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 1280, 1536, 2048]


def climb(a, m):
    best, v = a, value(a, m)
    while True:
        start = v
        cands = [{**best, key: x} for key in DOM for x in (SEQGRID if key == "max-num-seqs" else DOM[key])]
        for mod in DOM["model"]:
            cands += [{**best, "model": mod, "moe-backend": b} for b in DOM["moe-backend"]]
            cands += [{**best, "model": mod, "kv-cache-dtype": kv, "attention-backend": at} for kv in ("auto", "fp8") for at in DOM["attention-backend"]]
        for t, d in [(4, 1), (2, 2), (1, 4), (2, 1), (1, 2)]:
            for ep in (False, True):
                for b in DOM["all2all-backend"]:
                    cands += [{**best, "tensor-parallel-size": t, "data-parallel-size": d, "enable-expert-parallel": ep, "all2all-backend": b,
                               "moe-backend": mb} for mb in DOM["moe-backend"]]
        cands += [{**best, "spec": k > 0, "k": max(k, 1), "capture": c} for k in range(7) for c in DOM["capture"]]
        for b in cands:
            b = canon(b)
            w = value(b, m)
            if w > v * (1 + 1e-9):
                best, v = b, w
        if v <= start * (1 + 1e-9):
            return v, best


def optimum(m, restarts=8, seed=1):
    r = random.Random(seed)
    pts = []
    for _ in range(restarts):
        best = max(((value(a, m), i, a) for i, a in enumerate(sample(r) for _ in range(40))), key=lambda z: z[:2])
        pts.append(climb(best[2], m))
    return max(pts, key=lambda z: z[0]), [round(p[0], 2) for p in pts]


def show(a):
    o = {}
    for key, v in a.items():
        if v == DEFAULT[key] or key in ("spec", "k", "fusion"):
            continue
        o[{"cudagraph": "compilation-config.cudagraph_mode", "capture": "compilation-config.max_cudagraph_capture_size"}.get(key, key)] = v
    if a["fusion"] != "default":
        o["compilation-config.pass_config.fuse_allreduce_rms"] = a["fusion"] in ("allreduce", "both")
        o["compilation-config.pass_config.fuse_attn_quant"] = a["fusion"] in ("attn-quant", "both")
    if a["spec"]:
        o["speculative-config.method"] = "mtp"
        o["speculative-config.num_speculative_tokens"] = a["k"]
    return o


def main():
    m = machine(SEED)
    if "--optimum" in sys.argv:
        path = os.path.join(HERE, f"optimum_{SEED}.json")
        if os.path.exists(path) and "--fresh" not in sys.argv:
            print(open(path).read().strip())
            return
        (v, a), _ = optimum(m)
        text = json.dumps({"value": round(v, 3), "arguments": show(a)})
        with open(path, "w") as fh:
            fh.write(text + "\n")
        print(text)
        return
    if "--default" in sys.argv:
        print(round(simulate(DEFAULT, m)["throughput"], 3))
        return
    q = json.load(sys.stdin)
    try:
        s = simulate(arguments(q), m)
    except Dead as e:
        if "--value" in sys.argv:
            print(f"dead: {e.cause}")
            return
        print(json.dumps({"protocol": 1, "status": "infeasible", "failure": {
            "kind": e.kind, "cause": e.cause, "violation": round(max(e.violation, 1e-3), 4), "phase": e.phase}}))
        return
    if "--value" in sys.argv:
        print(round(s["throughput"], 4))
        return
    r = random.Random(q.get("seed", 0))
    start = r.gauss(0, m["noise"] * 0.6)
    pts = []
    for name, _, w in POINTS:
        o = s["points"][name]
        t = [o["throughput"] * (1 + start + r.gauss(0, m["noise"])) for _ in range(3)]
        pts.append({"name": name, "weight": w, "samples": {"throughput/output": t},
                    "metrics": {"throughput/output": sum(t) / 3, "latency/ttft_p50": o["ttft"], "latency/ttft_p99": o["ttft99"],
                                "latency/tpot_p50": o["tpot"], "latency/tpot_p99": o["tpot"] * 1.15}})
    eff = {"kv-cache-tokens": int(s["K"]), "moe-backend": s["moe"], "attention-backend": s["attn"]}
    tot = sum(w for _, _, w in POINTS)
    print(json.dumps({
        "protocol": 1, "status": "ok", "points": pts,
        "metrics": {"engine/running_mean": s["points"]["c512"]["running"] * 0.97, "engine/running_max": math.ceil(s["points"]["c512"]["running"]),
                    "engine/kv_usage_max": round(s["kv_usage"], 4), "engine/acceptance_length": round(s["alen"], 3)},
        "effective": eff, "steps": [[round(s["points"][nm]["step"][0], 2), s["points"][nm]["step"][1]] for nm, _, _ in POINTS],
        "seconds": {"start": 240.0, "measure": 300.0}, "version": "0.32.0"}))


if __name__ == "__main__":
    main()
