"""Four H100, dense 70B, offline. See ABOUT.md."""
import json, math, os, random, sys

SEED = int(os.environ.get("SURFACE_SEED", "0"))
HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 2.0**30
TP, PP, DP = "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"
MNS, MNBT, GMU = "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization"
KVD, QU, BS, ATT = "kv-cache-dtype", "quantization", "block-size", "attention-backend"
CG, CAP = "compilation-config.cudagraph_mode", "compilation-config.max_cudagraph_capture_size"
ASY, PFX = "async-scheduling", "enable-prefix-caching"
DEFAULT = {TP: 4, PP: 1, DP: 1, MNS: 1024, MNBT: 8192, GMU: 0.92, KVD: "auto", QU: "none", BS: 16, ATT: "auto",
           CG: "FULL_AND_PIECEWISE", CAP: 512, ASY: True, PFX: True}
le2 = lambda a: int(a[TP]) <= 2
SPACE = [(TP, "c", [1, 2, 4], None), (PP, "c", [1, 2, 4], le2), (DP, "c", [1, 2, 4], lambda a: int(a[TP]) * int(a[PP]) <= 2),
         (MNS, "i", (16, 1024), None), (MNBT, "i", (512, 32768), None),
         (GMU, "c", [round(0.80 + 0.01 * i, 2) for i in range(19)], None),
         (KVD, "c", ["auto", "fp8", "fp8_e5m2"], None), (QU, "c", ["none", "fp8", "fp8_per_block", "bitsandbytes"], None),
         (BS, "c", [16, 32, 64, 128], None), (ATT, "c", ["auto", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"], None),
         (CG, "c", ["NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"], None),
         (CAP, "i", (16, 2048), lambda a: a[CG] != "NONE"), (ASY, "c", [False, True], None), (PFX, "c", [False, True], None)]

R = random.Random(7919 * SEED + 17)
U = R.uniform
H = dict(
    bw=3350e9 * U(0.70, 0.85), bf16=989e12 * U(0.58, 0.72), t0=U(150, 500),
    q={"fp8": U(1.45, 1.75), "fp8_per_block": U(1.35, 1.8), "bitsandbytes": U(0.45, 0.65), "none": 1.0},
    att={("FLASH_ATTN", 16): 1.0, ("FLASH_ATTN", 8): U(0.62, 0.95), ("FLASHINFER", 16): U(0.85, 1.08),
         ("FLASHINFER", 8): U(0.7, 1.05), ("TRITON_ATTN", 16): U(0.55, 0.85), ("TRITON_ATTN", 8): U(0.45, 0.8)},
    ar=U(140e9, 480e9), ar_lat=U(8e-6, 18e-6), pp_eff={2: U(0.84, 0.97), 4: U(0.72, 0.88)}, dp_eff=U(0.80, 0.99),
    launch=U(7e-3, 14e-3), eager=U(18e-3, 32e-3), piece=U(2.0e-3, 4.5e-3), full=U(0.6e-3, 1.2e-3),
    sched=U(1.2e-3, 2.6e-3), sched_n=U(8e-6, 22e-6), async_left=U(0.1, 0.35), hash=U(0.8e-3, 3e-3),
    pre=U(0.06, 0.28), act=U(0.9, 1.5), ctx=U(0.6, 1.6), graph=U(0.7, 1.6), under=U(0.3, 0.7), frag=U(0.4, 1.3),
    no_flashinfer=R.random() < 0.3, no_blockfp8=R.random() < 0.25, bs_best=R.choice([16, 32, 64]), bs_gain=U(0.02, 0.07),
    dp_mem=U(0.3, 1.1))
PARAMS, LAYERS, HID, VOCAB = 70.55e9, 80, 8192, 128256
PROMPT, OUT, INFLIGHT, TOTAL = 2000, 300, 512, 79.1


class Dead(Exception):
    def __init__(self, kind, cause, violation=None, phase="start"):
        super().__init__(cause); self.kind, self.cause, self.violation, self.phase = kind, cause, violation, phase


def full(args):
    a = dict(DEFAULT)
    for k, v in args.items():
        if k in a and v is not None:
            a[k] = v
    for k in (TP, PP, DP, MNS, MNBT, BS, CAP):
        a[k] = int(a[k])
    a[GMU] = float(a[GMU])
    for k in (ASY, PFX):
        if isinstance(a[k], str):
            a[k] = a[k].lower() == "true"
    return a


def model(args):
    a = full(args)
    tp, pp, dp, mns, mnbt, gmu = (a[k] for k in (TP, PP, DP, MNS, MNBT, GMU))
    world = tp * pp * dp
    if world > 4:
        raise Dead("world-size", f"World size ({world}) is larger than the number of available GPUs (4) in this node.", world / 4 - 1)
    if mnbt < mns:
        raise Dead("config", f"max_num_batched_tokens ({mnbt}) must be greater than or equal to max_num_seqs ({mns}).", mns / mnbt - 1)
    kvb = 2 if a[KVD] == "auto" else 1
    att = a[ATT]
    if att == "auto":
        att = "FLASH_ATTN" if a[KVD] != "fp8_e5m2" else ("TRITON_ATTN" if H["no_flashinfer"] or a[BS] == 128 else "FLASHINFER")
    if att == "FLASH_ATTN" and a[KVD] == "fp8_e5m2":
        raise Dead("attn-invalid", "Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: ['kv_cache_dtype not supported']")
    if att == "FLASHINFER" and a[BS] == 128:
        raise Dead("attn-invalid", "Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason: ['block_size not supported']")
    if att == "FLASHINFER" and H["no_flashinfer"] and kvb == 1:
        raise Dead("flashinfer-jit", "RuntimeError: Ninja build failed. Error: nvcc not found while building flashinfer batch_decode")
    if a[QU] == "fp8_per_block" and H["no_blockfp8"]:
        raise Dead("deep-gemm", "RuntimeError: DeepGEMM backend is not available or outdated, no kernel for block-wise fp8 linear layers")
    wb = {"none": 2.0, "fp8": 1.035, "fp8_per_block": 1.05, "bitsandbytes": 0.60}[a[QU]]
    w = PARAMS * wb / (tp * pp) / GIB
    act = H["act"] * (0.5 + mnbt * (HID * 14 + 2 * 28672 * 2 / tp) / GIB * 1.2) + mns * VOCAB * 4 * 2.2 / GIB
    graphs = 0 if a[CG] == "NONE" else H["graph"] * (0.25 + (a[CAP] / 512) ** 0.8 * {"PIECEWISE": 0.5, "FULL_DECODE_ONLY": 0.6, "FULL_AND_PIECEWISE": 1.0}[a[CG]])
    outside = H["ctx"] + (0.4 if tp > 1 else 0) + (H["dp_mem"] if dp > 1 else 0)
    if w > TOTAL - outside - 0.5:
        raise Dead("cuda-oom", f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 79.10 GiB; the model needs {w:.1f} GiB", w / TOTAL, "load")
    if gmu * TOTAL > TOTAL - outside:
        raise Dead("free-mem", f"Free memory on device cuda:0 ({TOTAL - outside:.2f}/79.10 GiB) on startup is less than desired GPU memory utilization ({gmu:.2f}, {gmu * TOTAL:.2f} GiB).", gmu * TOTAL - (TOTAL - outside))
    kv = gmu * TOTAL - w - act - graphs * (1 - H["under"])
    if kv <= 0:
        raise Dead("no-kv", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", -kv + 0.01)
    per_tok = 2 * 8 * 128 * kvb * LAYERS / (tp * pp)
    tokens = int(kv * GIB / per_tok / a[BS]) * a[BS]
    if tokens < 2560:
        raise Dead("kv-too-small", f"To serve at least one request with the model's max seq len (2560), ({2560 * per_tok / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory ({kv:.2f} GiB). Based on the available memory, the estimated maximum model length is {tokens}.", 2560 * per_tok / GIB - kv)
    spare = TOTAL - outside - gmu * TOTAL - graphs * H["under"] - H["frag"] * (0.3 + mnbt / 16384 * 0.7)
    if spare < 0:
        big = graphs * H["under"] > 0.5
        raise Dead("capture-oom" if big else "cuda-oom",
                   ("torch.OutOfMemoryError: CUDA out of memory while capturing CUDA graphs" if big else "torch.OutOfMemoryError: CUDA out of memory under load, EngineDeadError") + f" ({-spare:.2f} GiB missing at gpu_memory_utilization {gmu:.2f})", -spare, "capture" if big else "measure")
    # --- steady state of one replica
    per_seq = PROMPT + OUT * 0.5 + a[BS] * 0.5
    want = min(mns, INFLIGHT / dp)
    fit = tokens / per_seq
    n = min(want, fit)
    pre = H["pre"] * min(1.0, max(0.0, want / fit - 1.0) * 3)  # share of prompts computed again after preemption
    ratio = PROMPT * (1 + pre) / OUT
    nb = n / pp
    nd = min(nb, mnbt / (1 + ratio))
    stage = tp * pp

    def step(ntok, ndec, npre):
        eff = ntok / (ntok + H["t0"])
        flops = H["bf16"] * H["q"][a[QU]]
        lin = max(w * GIB / H["bw"] * (1.6 if a[QU] == "bitsandbytes" else 1), 2 * PARAMS / stage * ntok / (flops * max(eff, 0.02)))
        ae = H["att"][(att, 8 * kvb)] * (1 - H["bs_gain"] * abs(math.log2(a[BS] / H["bs_best"])))
        attn = ndec * per_seq * per_tok / (H["bw"] * ae) + npre * 2 * 8192 * PROMPT * LAYERS / stage / (H["bf16"] * 0.6 * ae)
        comm = 0.0
        if tp > 1:
            comm = 2 * LAYERS / pp * (H["ar_lat"] + ntok * HID * 2 * 2 * (tp - 1) / tp / H["ar"])
        gpu = lin + attn + comm
        decode_only = npre == 0
        covered = ntok <= a[CAP] and a[CG] != "NONE"
        if a[CG] == "NONE":
            host = H["eager"]
        elif covered and a[CG] != "PIECEWISE" and decode_only:
            host = H["full"]
        elif covered and a[CG] in ("PIECEWISE", "FULL_AND_PIECEWISE"):
            host = H["piece"]
        else:
            host = H["launch"]
        host *= 1 / pp ** 0.7
        t = max(gpu, host) + 0.25 * min(gpu, host)
        s = H["sched"] + H["sched_n"] * ndec + (0.6e-3 if tp > 1 else 0) + (H["hash"] * (npre / 2000) * 16 / a[BS] * 0.5 if a[PFX] else 0)
        return t + s * (H["async_left"] if a[ASY] and pp == 1 else 0.8 if a[ASY] else 1.0)

    chunk = max(mnbt - nd, 1)
    f = min(1.0, ratio * nd / chunk)
    npre = ratio * nd if f >= 1 else chunk
    t = f * step(nd + npre, nd, npre) + (1 - f) * step(nd, nd, 0)
    eff = H["pp_eff"].get(pp, 1.0) * min(1, 0.55 + 0.45 * nb / 24 if pp > 1 else 1)
    value = nd / t * eff * dp * (H["dp_eff"] if dp > 1 else 1)
    return value, dict(n=n, usage=min(1.0, n * (per_seq + OUT * 0.1) / tokens), tokens=tokens, att=att, t=t, tpot=t * pp / eff * 1000, nd=nd, a=a)


def value(args):
    try:
        return model(args)[0]
    except Dead:
        return 0.0


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
        out[k] = a.get(k, DEFAULT[k])
    return out


def climb(r, layout=None):
    best = draw(r); bv = 0.0 if layout else value(best)
    for _ in range(3000):
        if bv > 0: break
        best = draw(r)
        if layout:
            best = clean({**best, **layout, GMU: 0.9})
        bv = value(best)
    fresh = True
    while fresh:
        fresh = False
        order = list(range(len(SPACE))); r.shuffle(order)
        moves = []
        for i in order:
            k, t, v, when = SPACE[i]
            if t == "c":
                c = [{k: x} for x in v]
            else:
                cur = best.get(k, DEFAULT[k])
                c = [{k: int(round(v[0] * (v[1] / v[0]) ** (j / 30)))} for j in range(31)] + [{k: min(v[1], max(v[0], cur + d))} for d in (-16, -4, -1, 1, 4, 16)]
            moves.append(c)
        moves.append([{TP: t_, PP: p_, DP: d_} for t_ in (1, 2, 4) for p_ in (1, 2, 4) for d_ in (1, 2, 4) if t_ * p_ * d_ <= 4])
        moves.append([{KVD: x, ATT: y, BS: z} for x in SPACE[6][2] for y in SPACE[9][2] for z in SPACE[8][2]])
        moves.append([{GMU: x, MNBT: int(512 * 64 ** (j / 18))} for x in SPACE[5][2] for j in range(19)])
        moves.append([{MNS: int(16 * 64 ** (j / 18)), MNBT: int(512 * 64 ** (i / 18))} for i in range(19) for j in range(19)])
        for c in moves:
            for ch in c:
                cand = clean({**best, **ch}); x = value(cand)
                if x > bv * (1 + 1e-9):
                    best, bv, fresh = cand, x, True
    return bv, best


def optimum(restarts=48):
    path = os.path.join(HERE, f".optimum.{SEED}.json")
    if os.path.exists(path):
        return json.load(open(path))
    lay = [{TP: t, PP: p, DP: d} for t in (1, 2, 4) for p in (1, 2, 4) for d in (1, 2, 4) if t * p * d in (2, 4)]
    res = sorted((climb(random.Random(1000 + i), lay[i % (len(lay) + 3)] if i % (len(lay) + 3) < len(lay) else None) for i in range(restarts)), key=lambda x: -x[0])
    out = {"value": res[0][0], "arguments": res[0][1], "restarts": [round(x[0] / res[0][0], 4) for x in res]}
    json.dump(out, open(path, "w"))
    return out


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode == "--optimum":
        print(json.dumps(optimum())); return
    if mode == "--default":
        print(value({})); return
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
        print(json.dumps({"protocol": 1, "status": "infeasible", "failure": fail, "seconds": {"start": 60}})); return
    if mode == "--value":
        print(v); return
    r = random.Random(q["seed"]); start = r.gauss(1, 0.008)
    runs = [v * start * r.gauss(1, 0.008) for _ in range(3)]
    a = d["a"]
    print(json.dumps({"protocol": 1, "status": "ok", "samples": {"throughput/output": runs},
                      "metrics": {"engine/running_mean": d["n"] * 0.98, "engine/running_max": math.ceil(d["n"]), "engine/kv_usage_max": d["usage"], "latency/tpot_p50": d["tpot"]},
                      "effective": {"kv-cache-tokens": d["tokens"], MNS: a[MNS], MNBT: a[MNBT], "attention-backend": d["att"]},
                      "seconds": {"start": 90, "measure": 240}}))


if __name__ == "__main__":
    main()
