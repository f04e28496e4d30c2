"""One H200, Qwen3-30B-A3B, throughput under a bound on tpot_p99. See ABOUT.md."""
import json, math, os, random, sys

SEED = int(os.environ.get("SURFACE_SEED", "0"))
HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 30.0  # ms, tpot_p99
GIB = 2.0**30
MNS, MNBT, GMU = "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization"
KVD, QU, MOE, ATT = "kv-cache-dtype", "quantization", "moe-backend", "attention-backend"
CG, CAP = "compilation-config.cudagraph_mode", "compilation-config.max_cudagraph_capture_size"
SP, K, EP, ASY, STR = "speculative-config.method", "speculative-config.num_speculative_tokens", "enable-expert-parallel", "async-scheduling", "stream-interval"
INT8 = "int8_per_channel_weight_only"
DEFAULT = {MNS: 1024, MNBT: 8192, GMU: 0.92, KVD: "auto", QU: "none", MOE: "auto", ATT: "auto", CG: "FULL_AND_PIECEWISE", CAP: 512,
           SP: "off", K: 0, EP: False, ASY: True, STR: 1}
SPACE = [(MNS, "i", (16, 1024), None), (MNBT, "i", (512, 32768), None), (GMU, "c", [round(0.70 + 0.01 * i, 2) for i in range(29)], None),
         (KVD, "c", ["auto", "fp8"], None), (QU, "c", ["none", "fp8", "fp8_per_block", INT8], None),
         (MOE, "c", ["auto", "triton", "flashinfer_cutlass", "deep_gemm", "cutlass"], None),
         (ATT, "c", ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"], None),
         (CG, "c", ["NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"], None),
         (CAP, "i", (16, 4096), lambda a: a[CG] != "NONE"), (SP, "c", ["off", "ngram", "eagle3"], None),
         (K, "c", [1, 2, 3, 4, 5, 6, 7], lambda a: a[SP] != "off"), (EP, "c", [False, True], None), (ASY, "c", [False, True], None),
         (STR, "i", (1, 16), None)]
R = random.Random(104729 * SEED + 5)
U = R.uniform
OK = {"none": ["triton", "flashinfer_cutlass"], "fp8": ["triton", "flashinfer_cutlass", "cutlass"],
      "fp8_per_block": ["triton", "flashinfer_cutlass", "deep_gemm", "cutlass"], INT8: ["triton"]}
H = dict(bw=4800e9 * U(0.70, 0.84), flops=989e12 * U(0.34, 0.46), t0=U(250, 700),
         # of each (quantization, backend): share of bandwidth, and of flops against bf16
         moe={(q, b): (U(0.62, 0.98), {"none": 1.0, "fp8": 1.6, "fp8_per_block": 1.55, INT8: 0.75}[q] * U(0.75, 1.1)) for q in OK for b in OK[q]},
         auto={"none": "triton", "fp8": R.choice(["triton", "cutlass"]), "fp8_per_block": R.choice(["triton", "flashinfer_cutlass"]), INT8: "triton"},
         att={("FLASH_ATTN", 2): 1.0, ("FLASH_ATTN", 1): U(0.6, 0.95), ("FLASHINFER", 2): U(0.82, 1.08), ("FLASHINFER", 1): U(0.7, 1.05),
              ("TRITON_ATTN", 2): U(0.5, 0.85), ("TRITON_ATTN", 1): U(0.45, 0.8)},
         no_dg=R.random() < 0.3, fi_spec=R.random() < 0.35, acc={"ngram": U(0.12, 0.40), "eagle3": U(0.30, 0.66)}, decay=U(0.80, 0.95),
         draft=U(0.9e-3, 2.2e-3), eager=U(16e-3, 28e-3), launch=U(5e-3, 9e-3), piece=U(2.5e-3, 4.5e-3), full=U(0.5e-3, 1.1e-3),
         sched=U(0.8e-3, 2.0e-3), sched_n=U(5e-6, 14e-6), async_left=U(0.1, 0.3), c0=U(9e-6, 16e-6), c1=U(40e-6, 90e-6), ep=U(0.93, 1.04),
         act=U(0.8, 1.4), ctx=U(0.7, 2.2), graph=U(0.8, 2.0), under=U(0.3, 0.7), frag=U(0.5, 2.0), jit=U(0.25, 0.5))
LAYERS, PROMPT, OUT, CLIENTS, TOTAL = 48, 512, 256, 640, 139.81
ACTIVE, EXPERT_B, OTHER_B = 3.35e9, 28.99e9, 1.54e9


class Dead(Exception):
    def __init__(self, kind, cause, violation=None, phase="start"):
        super().__init__(cause); self.kind, self.cause, self.violation, self.phase = kind, cause, violation, phase


def full(args):
    a = dict(DEFAULT)
    for k, v in args.items():
        if k in a and v is not None:
            a[k] = v
    for k in (MNS, MNBT, CAP, K, STR):
        a[k] = int(a[k])
    a[GMU] = float(a[GMU])
    for k in (EP, ASY):
        if isinstance(a[k], str):
            a[k] = a[k].lower() == "true"
    if a[SP] == "off":
        a[K] = 0
    return a


def model(args):
    a = full(args)
    mns, mnbt, gmu, k, q = a[MNS], a[MNBT], a[GMU], a[K], a[QU]
    if mnbt < mns:
        raise Dead("config", f"max_num_batched_tokens ({mnbt}) must be greater than or equal to max_num_seqs ({mns}).", mns / mnbt - 1)
    if a[SP] != "off" and k < 1:
        raise Dead("config", "num_speculative_tokens must be provided with speculative method")
    if a[SP] == "ngram" and a[ASY] and ASY in args:
        raise Dead("config", "Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram GPU kind of speculative decoding")
    asy = a[ASY] and a[SP] != "ngram"
    b = H["auto"][q] if a[MOE] == "auto" else a[MOE]
    if b not in OK[q]:
        kind = {"none": "unquantized", "fp8": "per_tensor FP8", "fp8_per_block": "block FP8", INT8: "int8 weight-only"}[q]
        raise Dead("moe-backend", f"ValueError: moe_backend='{b}' is not supported for {kind} MoE. Expected one of {OK[q]}.")
    if b == "deep_gemm" and H["no_dg"]:
        raise Dead("deep-gemm", "RuntimeError: DeepGEMM backend is not available or outdated. Please install or update the deep_gemm package")
    if b == "cutlass" and a[EP] and q == "fp8":
        raise Dead("moe-ep", "NotImplementedError: CutlassExpertsFp8 does not support expert_map with per-tensor scales")
    kvb = 2 if a[KVD] == "auto" else 1
    att = "FLASH_ATTN" if a[ATT] == "auto" else a[ATT]
    if att == "FLASHINFER" and a[SP] != "off" and H["fi_spec"]:
        raise Dead("cuda-graph", "RuntimeError: FlashInfer decode wrapper: uniform batches of query length > 1 need trtllm-gen kernels, not available on sm_90")
    scale = {"none": 2.0, "fp8": 1.02, "fp8_per_block": 1.04, INT8: 1.03}[q]
    w = (EXPERT_B * scale + OTHER_B * (2.0 if q == INT8 else scale)) / GIB + (0.7 if a[SP] == "eagle3" else 0)
    graph = 0 if a[CG] == "NONE" else H["graph"] * (0.3 + (a[CAP] / 512) ** 0.85 * {"PIECEWISE": 0.6, "FULL_DECODE_ONLY": 0.6, "FULL_AND_PIECEWISE": 1.0}[a[CG]])
    act = H["act"] * (0.6 + mnbt * 8 * (768 * 4 + 2048 * 2) * 2 / GIB) + mns * (1 + k) * 151936 * 4 * 2.2 / GIB
    free = TOTAL - H["ctx"]
    if gmu * TOTAL > free:
        raise Dead("free-mem", f"Free memory on device cuda:0 ({free:.2f}/139.81 GiB) on startup is less than desired GPU memory utilization ({gmu:.2f}, {gmu * TOTAL:.2f} GiB).", gmu * TOTAL - free)
    kv = gmu * TOTAL - w - act - graph * (1 - H["under"])
    if kv <= 0:
        raise Dead("no-kv", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", 0.01 - kv)
    per_tok = 2 * 4 * 128 * kvb * LAYERS * (1 + (1 / 48 if a[SP] == "eagle3" else 0))
    tokens = int(kv * GIB / per_tok / 16) * 16
    if tokens < 2048:
        raise Dead("kv-too-small", f"To serve at least one request with the model's max seq len (2048), ({2048 * per_tok / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory ({kv:.2f} GiB).", 1.0)
    spare = free - gmu * TOTAL - graph * H["under"] - H["frag"] * (0.3 + mnbt / 16384)
    if spare < 0:
        cap = graph * H["under"] > 1.0
        raise Dead("capture-oom" if cap else "cuda-oom", f"torch.OutOfMemoryError: CUDA out of memory{' while capturing CUDA graphs' if cap else ' under load, EngineDeadError'} ({-spare:.2f} GiB missing at gpu_memory_utilization {gmu:.2f})", -spare, "capture" if cap else "measure")
    per_seq = PROMPT + OUT / 2 + 8
    n = min(mns, CLIENTS, tokens / per_seq)
    alpha = H["acc"].get(a[SP], 0)
    acc = 1 + sum(alpha**i * H["decay"] ** (i * (i - 1) / 2) for i in range(1, k + 1))
    bw_m, fl_m = H["moe"][(q, b)]
    ae = H["att"][(att, kvb)]
    epf = H["ep"] if a[EP] else 1.0

    def step(ndec, npre):
        tok = ndec * (1 + k) + npre
        eff = tok / (tok + H["t0"])
        cover = 1 - (1 - 8 / 128) ** max(tok, 1)
        wb = EXPERT_B * scale * cover / (H["bw"] * bw_m * epf) + OTHER_B * (2.0 if q == INT8 else scale) / H["bw"]
        lin = (wb**3 + (2 * ACTIVE * tok / (H["flops"] * fl_m * epf * eff)) ** 3) ** (1 / 3)
        attn = ndec * per_seq * per_tok / (H["bw"] * ae) * (1 + 0.06 * k) + npre * 2 * 4096 * PROMPT * LAYERS / (989e12 * 0.5 * ae)
        gpu = lin + attn
        covered = a[CG] != "NONE" and tok <= a[CAP]
        if a[CG] == "NONE":
            host = H["eager"]
        elif covered and npre == 0 and a[CG] != "PIECEWISE":
            host = H["full"]
        elif covered and a[CG] != "FULL_DECODE_ONLY":
            host = H["piece"]
        else:
            host = H["launch"]
        t = max(gpu, host) + 0.3 * min(gpu, host)
        if a[SP] == "eagle3":
            t += k * H["draft"] * (1 + ndec / 300) + 0.2e-3
        elif a[SP] == "ngram":
            t += 6e-6 * ndec
        s = H["sched"] + H["sched_n"] * ndec * (1 + 0.15 * k)
        return t + s * (H["async_left"] if asy else 1.0)

    ratio = PROMPT / OUT * acc  # prefill tokens per decode step and running sequence
    nd = min(n, mnbt / (1 + k + ratio))
    chunk = max(mnbt - nd * (1 + k), 1)
    need = ratio * nd
    f = min(1.0, need / chunk)
    pre = need if f >= 1 else chunk
    tm, tdec = step(nd, pre), step(nd, 0)
    t = f * tm + (1 - f) * tdec
    x = nd * acc / t
    front = 1 / (H["c0"] + H["c1"] / (a[STR] * (acc if a[STR] == 1 else 1)))
    x = (x**-6 + front**-6) ** (-1 / 6)
    mean = nd / x  # seconds per token of a running sequence
    # a request sees OUT/acc steps, of which f are mixed: its own mean scatters
    steps = OUT / acc
    var = max(f * (1 - f), 0.0) * (tm - tdec) ** 2 / steps
    p99 = mean * (1 + H["jit"] * 0.25) + 2.6 * math.sqrt(var) / acc * (1 + H["jit"])
    p99 *= 1 + (0.10 * (acc - 1) / acc if k else 0)
    ttft = max(0.0, CLIENTS - nd) / (x / OUT) + (PROMPT / chunk + 1) * tm * (1 + 2 * f)
    return x, dict(a=a, n=nd, tokens=tokens, usage=min(1.0, nd * (per_seq + 30) / tokens), acc=acc, p99=p99 * 1000, p50=mean * 1000, ttft=ttft * 1150 + 30, b=b, att=att)


def objective(args):
    return model(args)[0]


def over(args):
    try:
        d = model(args)[1]
    except Dead:
        return ""
    return f"over: tpot_p99 {d['p99']:.1f} ms is above {LIMIT:.0f} ms" if d["p99"] > LIMIT else ""


def value(args):
    try:
        v, d = model(args)
    except Dead:
        return 0.0
    return v if d["p99"] <= LIMIT else 1e-3 * LIMIT / d["p99"]


def draw(r):
    a = {}
    for k, t, v, when in SPACE:
        if when and not when({**DEFAULT, **a}):
            continue
        a[k] = r.choice(v) if t == "c" else int(round(math.exp(r.uniform(math.log(v[0]), math.log(v[1])))))
    return a


def clean(a):
    out = {}
    for k, t, v, when in SPACE:
        if when and not when({**DEFAULT, **out}):
            continue
        out[k] = a.get(k) or (1 if k == K else DEFAULT[k])
    return out


def climb(r, start=None):
    best = draw(r); bv = 0.0
    for _ in range(4000):
        if bv > 1: break
        best = clean({**draw(r), **(start or {}), GMU: 0.85}); bv = value(best)
    fresh = True
    while fresh:
        fresh = False
        moves = []
        for k, t, v, when in SPACE:
            if t == "c":
                c = [{k: x} for x in v]
            else:
                cur = best.get(k, DEFAULT[k])
                c = [{k: int(round(v[0] * (v[1] / v[0]) ** (j / 30)))} for j in range(31)] + [{k: min(v[1], max(v[0], cur + d))} for d in (-32, -8, -2, -1, 1, 2, 8, 32)]
            moves.append(c)
        moves.append([{QU: x, MOE: y} for x in SPACE[4][2] for y in SPACE[5][2]])
        moves.append([{KVD: x, ATT: y} for x in SPACE[3][2] for y in SPACE[6][2]])
        moves.append([{MNS: int(16 * 64 ** (j / 24)), MNBT: int(512 * 64 ** (i / 18))} for i in range(19) for j in range(25)])
        moves.append([{SP: s, K: x, ASY: y, MNS: int(64 * 16 ** (j / 24))} for s in ("off", "ngram", "eagle3") for x in range(1, 8) for y in (False, True) for j in range(25)])
        moves.append([{CG: x, CAP: int(16 * 256 ** (j / 16))} for x in SPACE[7][2] for j in range(17)])
        r.shuffle(moves)
        for c in moves:
            for ch in c:
                cand = clean({**best, **ch}); x = value(cand)
                if x > bv * (1 + 1e-9):
                    best, bv, fresh = cand, x, True
    return bv, best


def optimum(restarts=24):
    path = os.path.join(HERE, f".optimum.{SEED}.json")
    if os.path.exists(path):
        return json.load(open(path))
    st = [None, {SP: "off"}, {SP: "eagle3"}, {SP: "ngram", ASY: False}]
    res = sorted((climb(random.Random(1000 + i), st[i % 4]) for i in range(restarts)), key=lambda x: -x[0])
    out = {"value": res[0][0], "arguments": res[0][1], "restarts": [round(x[0] / res[0][0], 4) for x in res]}
    json.dump(out, open(path, "w"))
    return out


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode == "--optimum":
        print(json.dumps(optimum())); return
    if mode == "--default":
        print(over({}) or "within the limit", objective({})); return
    q = json.load(sys.stdin)
    args = q["candidate"]["arguments"]
    try:
        v, d = model(args)
    except Dead as e:
        if mode == "--value":
            print("dead:", e.cause); return
        fail = {"kind": e.kind, "cause": e.cause, "phase": e.phase}
        if e.violation is not None:
            fail["violation"] = max(1e-3, e.violation)
        print(json.dumps({"protocol": 1, "status": "infeasible", "failure": fail, "seconds": {"start": 45}})); return
    if mode == "--value":
        print(over(args) or v); return
    r = random.Random(q["seed"]); start = r.gauss(1, 0.01)
    f = [start * r.gauss(1, 0.01) for _ in range(3)]
    p99 = [d["p99"] / g * r.gauss(1, 0.015) for g in f]
    ttft = [d["ttft"] / g * r.gauss(1, 0.03) for g in f]
    a = d["a"]
    print(json.dumps({"protocol": 1, "status": "ok",
                      "samples": {"throughput/output": [v * g for g in f], "latency/tpot_p99": p99, "latency/ttft_p99": ttft},
                      "metrics": {"latency/tpot_p50": d["p50"], "engine/running_mean": d["n"] * 0.98, "engine/running_max": math.ceil(d["n"]),
                                  "engine/kv_usage_max": d["usage"], **({"engine/acceptance_length": d["acc"]} if a[SP] != "off" else {})},
                      "effective": {"kv-cache-tokens": d["tokens"], MNS: a[MNS], MNBT: a[MNBT], "attention-backend": d["att"], "moe-backend": d["b"]},
                      "seconds": {"start": 50, "measure": 120}}))


if __name__ == "__main__":
    main()
