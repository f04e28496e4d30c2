#!/usr/bin/env python3
"""DeepSeek-V3 (671B, fp8) on eight H200, offline, 4,096 requests in flight: see ABOUT.md."""
import json, math, os, random, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = int(os.environ.get("SURFACE_SEED", "0"))
GIB = 2**30
ISL, OSL, N, MAXLEN, GMU, MEM = 900, 600, 4096, 8192, .92, 139.8
DENSE = 11.4e9 + 1.2e9 + 2.55e9        # attention, dense layers, shared experts (fp8)
EMBED, EXPERTS = 3.7e9, 657e9
MOE_FLOP, DENSE_FLOP = 2 * 20.4e9, 2 * 16.1e9
KV = 576 * 2 * 61


def constants(seed):
    r = random.Random(f"h200x8-{seed}")
    u = r.uniform
    c = {"bw": 4.8e12 * u(.72, .86), "fl": 1979e12 * u(.42, .56), "launch": u(30, 90) * 1e-3, "arlat": u(12, 22) * 1e-6,
         "nv": u(280, 390) * 1e9, "htlat": u(45, 95) * 1e-6, "lllat": u(18, 36) * 1e-6, "llbw": u(.55, .95), "htbw": u(.5, 1.05),
         "imb": u(1.1, 1.7), "hide": u(.2, .92), "waste": u(.25, .6), "graph": u(.9, 2.2), "ws": u(.8, 1.4) * 1.1e-4,
         "p1": u(.6, .89), "dec": u(.6, .86), "narrow": u(.55, .92), "strag": u(.7, 2.6), "host": u(6, 16) * 1e-6,
         "kvq": u(.5, .95), "blk": {32: u(.93, 1.0), 64: 1.0, 128: u(.95, 1.03)}, "unacc": u(1.0, 3.0), "lag": u(3, 9) * 1e-6}
    c["moe"] = {"triton": u(.24, .40), "deep_gemm": u(.32, .54), "flashinfer_cutlass": u(.30, .52), "cutlass": u(.28, .46), "marlin": u(.15, .24)}
    c["half"] = {"triton": u(8, 20), "deep_gemm": u(24, 56), "flashinfer_cutlass": u(14, 40), "cutlass": u(16, 40), "marlin": u(4, 10)}
    c["auto"] = r.choice(["triton", "triton", "flashinfer_cutlass"])
    c["attn"] = {"FLASH_ATTN_MLA": (u(.66, .82), u(.5, .68)), "FLASHMLA": (u(.66, .84), u(.5, .74)), "TRITON_MLA": (u(.45, .65), u(.18, .3))}
    c["cutlass_ht"] = r.random() < .5
    return c


def dead(kind, cause, violation=1.0, phase="start"):
    return {"dead": cause, "kind": kind, "violation": max(violation, 1e-3), "phase": phase}


def smax(a, b, p=3.0):
    m = max(a, b, 1e-12)
    return m * ((a / m)**p + (b / m)**p)**(1 / p)


def evaluate(a, c):
    g = a.get
    tp, dp = int(g("tensor-parallel-size") or 8), int(g("data-parallel-size") or 1)
    ep = bool(g("enable-expert-parallel") or False)
    a2a = g("all2all-backend") or "allgather_reducescatter"
    moe = g("moe-backend") or "auto"
    att = g("attention-backend") or "auto"
    kvd = g("kv-cache-dtype") or "auto"
    block = int(g("block-size") or 64)
    method = g("speculative-config.method")
    k = int(g("speculative-config.num_speculative_tokens") or 1) if method else 0
    dbo = bool(g("enable-dbo") or False)
    mbt = int(g("max-num-batched-tokens") or 8192)
    mns = int(g("max-num-seqs") or min(1024, mbt))
    cap = int(g("max-cudagraph-capture-size") or min(512, mns * (1 + k) * 2))
    # ---- what vLLM refuses
    if mbt < mns:
        return dead("config", f"ValueError: max_num_batched_tokens ({mbt}) must be greater than or equal to max_num_seqs ({mns}).", mns / mbt - 1)
    if method and mns * (1 + k) > mbt:
        return dead("spec-slots", f"ValueError: VllmConfig does not have enough slots to schedule a token and support the speculative decoding settings (max_num_batched_tokens={mbt}, max_num_seqs={mns}, num_speculative_tokens={k}).", mns * (1 + k) / mbt - 1)
    if tp * dp > 8:
        return dead("world-size", f"ValueError: World size ({tp * dp}) is larger than the number of available GPUs (8) in this node.", tp * dp - 8)
    many = ep and dp > 1
    a2 = a2a if many else "allgather_reducescatter"
    if dbo and not (many and a2.startswith("deepep")):
        return dead("dbo-a2a", f"AssertionError: Microbatching currently only supports the deepep_low_latency, deepep_high_throughput, deepep_v2 and nixl_ep all2all backends. {a2} is not supported.")
    if att == "FLASH_ATTN_MLA" and kvd != "auto":
        return dead("attn-invalid", "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN_MLA is not valid for this configuration. Reason: ['kv_cache_dtype not supported']")
    if att == "FLASHMLA" and block != 64:
        return dead("attn-invalid", "ValueError: Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. Reason: ['block_size not supported']")
    if att in ("CUTLASS_MLA", "FLASHINFER_MLA"):
        return dead("attn-invalid", f"ValueError: Selected backend AttentionBackendEnum.{att} is not valid for this configuration. Reason: ['compute capability not supported']")
    real = att
    if att == "auto":                       # the first of the priority list that can
        real = "FLASH_ATTN_MLA" if kvd == "auto" else ("FLASHMLA" if block == 64 else "TRITON_MLA")
    if a2 == "deepep_low_latency" and moe in ("flashinfer_cutlass", "cutlass", "marlin"):
        return dead("moe-backend", f"ValueError: Fp8 MoE backend '{moe.upper()}' does not support the deployment configuration since kernel does not support batched activation format.")
    if a2 == "deepep_high_throughput" and moe == "cutlass" and c["cutlass_ht"]:
        return dead("moe-backend", "ValueError: Fp8 MoE backend 'CUTLASS' does not support the deployment configuration since kernel does not support parallel config with deepep_high_throughput.")
    mb = moe
    if moe == "auto":
        mb = "deep_gemm" if a2.startswith("deepep") else c["auto"]
    # ---- memory of one GPU, GiB
    w = (DENSE + EMBED) / tp + EXPERTS / (tp * dp) + (12.0e9 / (tp * dp) + .3e9 if method else 0)
    if w / GIB > MEM - 1.5:
        return dead("cuda-oom", f"Failed to load model - not enough GPU memory. torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of {MEM} GiB (weights of {w / GIB:.0f} GiB per rank)", w / GIB - MEM, "load")
    buf = 0.0
    if a2 == "deepep_low_latency":
        buf = 256 * mbt * 7168 * 3.3 / GIB * (1.25 if dbo else 1)
    elif a2 == "deepep_high_throughput":
        buf = 2.0 * (2 if dbo else 1)
    if a2.startswith("deepep"):
        act = mbt * 4.5e-4 + .6
    else:
        act = mbt * dp * c["ws"] + .6
    graphs = 0.0 if a2 == "deepep_high_throughput" else c["graph"] * (.25 + .75 * cap / 512) * (1 + .15 * k) * (.7 if tp == 8 else 1)
    samp = mns * (1 + k) * 129280 * 4 * 2.5 / GIB
    headroom = MEM * (1 - GMU) - c["unacc"] - .35 * graphs - .15 * buf
    if samp > headroom + 3:
        return dead("sampler-oom", f"RuntimeError: CUDA out of memory occurred when warming up sampler with {mns} dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", samp - headroom - 3, "warmup")
    if headroom < 0:
        return dead("capture-oom", f"torch.OutOfMemoryError: CUDA out of memory during CUDA graph capture (max capture size {cap}). Tried to allocate 1.75 GiB. GPU 0 has a total capacity of {MEM} GiB", -headroom, "capture")
    kvb = KV * (1 + (1 / 61 if method else 0)) * (1 if kvd == "auto" else .5)
    avail = MEM * GMU - w / GIB - buf - act - graphs - 2.2
    if avail <= 0:
        return dead("no-kv", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", -avail + .1, "kv")
    tokens = avail * GIB / kvb
    if tokens < MAXLEN:
        need = MAXLEN * kvb / GIB
        return dead("kv-too-small", f"ValueError: To serve at least one request with the model's max seq len ({MAXLEN}), ({need:.2f} GiB KV cache is needed, which is larger than the available KV cache memory ({avail:.2f} GiB). Based on the available memory, the estimated maximum model length is {int(tokens)}.", need - avail, "kv")
    # ---- speed, per data-parallel rank
    acc, p = 1.0, 1.0
    for i in range(k):
        p *= c["p1"] * c["dec"]**i
        acc += p
    held = ISL + OSL / 2 + k + block / 2
    seats = tokens / held
    n_r = N / dp
    admit = min(n_r, mns)
    waste = 1.0
    if admit > seats:
        o = admit / seats - 1
        waste = 1 + c["waste"] * o / (o + .4)
    run = min(admit, seats)
    pre = ISL * waste
    kve, kvt = c["attn"][real]
    heads = 128 // tp
    rows = heads * (1 + k)
    eff_rows = math.ceil(rows / 64) * 64 if real != "TRITON_MLA" else math.ceil(rows / 16) * 16
    eff = c["moe"][mb] * (1 if ep else c["narrow"])
    if a2 == "deepep_low_latency" and mb == "triton":
        eff *= .75
    imb = c["imb"] if ep else 1.0

    def step(b, q):
        r = b * (1 + k) + q                       # tokens of this rank
        t = r * dp                                # of all
        split = dbo and r >= 64
        dense = smax((DENSE + EMBED / 2) / tp / c["bw"] * (2 if split else 1), r * DENSE_FLOP / tp / c["fl"])
        m = t * 8 / 256                           # tokens an expert sees
        touched = 1 - math.exp(-m)
        m2 = m / 2 if split else m
        mread = EXPERTS / (tp * dp) * touched / c["bw"] / (.8 if not ep else 1) * (2 if split else 1)
        comp = t * MOE_FLOP / (tp * dp) * imb / (1979e12 * eff * m2 / (m2 + c["half"][mb]))
        moe_t = smax(mread, comp)
        ctx = ISL + OSL / 2
        kq = 1.0 if kvd == "auto" else c["kvq"]
        attn = smax(b * ctx * kvb / (c["bw"] * kve), b * ctx * eff_rows * (576 + 512) * 2 * 61 / (989e12 * kvt * kq)) / c["blk"].get(block, 1)
        attn += q * ISL / 2 * heads * 320 * 2 * 61 / (989e12 * .5)
        comm = 0.0
        size = r * 14336
        if tp > 1:
            comm += 61 * (1 if dp > 1 else 2) * (c["arlat"] + 2 * size * (tp - 1) / tp / c["nv"])
        a2t = 0.0
        if dp > 1:
            if a2 == "deepep_low_latency":
                a2t = 58 * (2 * c["lllat"] + r / tp * 8 * 7168 * 3 / (c["nv"] * c["llbw"]))
            elif a2 == "deepep_high_throughput":
                a2t = 58 * (2 * c["htlat"] + r / tp * 5.3 * 7168 * 3 / (c["nv"] * c["htbw"]))
            else:
                a2t = 58 * (2 * c["arlat"] + 2 * t * 14336 * (dp - 1) / dp / c["nv"] / tp + r * c["lag"] * .01)
        gpu = dense + moe_t + attn
        if split:
            comm += a2t - c["hide"] * min(a2t, .9 * gpu) + 61 * 2.5e-5
        else:
            comm += a2t
        gpu += comm
        if a2 == "deepep_high_throughput":
            fl = 1.0
        elif r <= cap:
            fl = .1 if q == 0 else .3
        else:
            fl = 1.0
        gpu = smax(gpu, c["launch"] * fl * (1.35 if split else 1), 3)
        if k:
            one = (moe_t / 58 / (1 + k) * 1.3 + attn / 61 + 129280 * 7168 * 2 / tp / c["bw"] + 6e-4 + a2t / 58)
            gpu += k * one
        return gpu + 1.2e-3 + c["host"] * b * (1 + .25 * k) * .5 + (8e-4 if dp > 1 else 0)

    for _ in range(5):
        cc = run * acc * pre / OSL
        budget = mbt - run * (1 + k)
        if cc > budget * .97:
            run *= max(.3, (budget * .97 / cc)**.8)
    cc = run * acc * pre / OSL
    budget = max(32.0, mbt - run * (1 + k))
    if cc > budget:
        cc = budget
    t = step(run, cc)
    if dp > 1:                                    # all ranks wait for the one with most prefill
        qmax = min(budget, cc + c["strag"] * math.sqrt(cc * ISL) * (1.0 if dp == 2 else 1.25 if dp == 4 else 1.45))
        t += max(0.0, qmax - cc) * (DENSE_FLOP / tp / c["fl"] + MOE_FLOP / 8 / (1979e12 * eff) * .5)
    rate = run * acc / t * dp
    rate *= .97
    return {"value": rate, "tpot": t / acc * 1000, "run": run * dp, "kv": min(1.0, admit / seats), "tokens": tokens, "acc": acc,
            "backend": real, "moe": mb, "a2a": a2 if many else None, "spec": bool(method), "steps": [[b, step(b, 0)] for b in (1, 16, 64, 128, 256, 512, 1024) if b <= run],
            "mns": mns, "mbt": mbt, "cap": cap, "waste": waste, "seats": seats, "cc": cc, "budget": budget, "block": block, "ttft": 0}


def logints(lo, hi, n):
    return sorted({int(round(math.exp(math.log(lo) + (math.log(hi) - math.log(lo)) * i / (n - 1)))) for i in range(n)})


LIMIT = float("inf")
SPACE = {"tensor-parallel-size": [1, 2, 4, 8], "enable-expert-parallel": [False, True],
         "all2all-backend": [None, "deepep_high_throughput", "deepep_low_latency"], "enable-dbo": [False, True],
         "moe-backend": [None, "triton", "deep_gemm", "flashinfer_cutlass", "cutlass", "marlin"],
         "attention-backend": [None, "FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA"], "kv-cache-dtype": ["auto", "fp8"], "block-size": [32, 64, 128],
         "max-num-seqs": logints(32, 1024, 41), "max-num-batched-tokens": logints(1024, 32768, 41),
         "max-cudagraph-capture-size": [None] + logints(64, 2048, 31), "speculative-config.method": [None, "mtp"],
         "speculative-config.num_speculative_tokens": [1, 2, 3, 4]}


def canon(x):
    x = dict(x)
    if x["tensor-parallel-size"] < 8:
        x["data-parallel-size"] = 8 // x["tensor-parallel-size"]
    if not (x["tensor-parallel-size"] < 8 and x["enable-expert-parallel"]):
        x["all2all-backend"] = x["enable-dbo"] = None
    if x["speculative-config.method"] is None:
        x["speculative-config.num_speculative_tokens"] = None
    return {a: b for a, b in x.items() if b is not None}


def score(r):
    return 0.0 if "dead" in r else r["value"]


def over(r):
    return None


def answer_metrics(r, q, rng):
    s = rng.gauss(1, .01)
    m = {"latency/tpot_p50": r["tpot"] / s, "engine/running_mean": r["run"] * .97 * rng.gauss(1, .008), "engine/running_max": math.ceil(r["run"]),
         "engine/kv_usage_max": r["kv"]}
    if r["spec"]:
        m["engine/acceptance_length"] = r["acc"] * rng.gauss(1, .008)
    e = {"kv-cache-tokens": int(r["tokens"]), "attention-backend": r["backend"], "moe-backend": r["moe"], "max-num-seqs": r["mns"],
         "max-num-batched-tokens": r["mbt"], "max-cudagraph-capture-size": r["cap"], "block-size": r["block"]}
    return {"protocol": 1, "status": "ok", "samples": {"throughput/output": [r["value"] * s * rng.gauss(1, .008) for _ in range(3)]}, "metrics": m,
            "effective": e, "steps": [[b, t * rng.gauss(1, .02)] for b, t in r["steps"]]}


def climb(rng, c, starts):
    """Random restarts with climbing over single and double moves; returns the sorted ends."""
    ends, keys = [], list(SPACE)
    for _ in range(starts):
        for _ in range(400):
            x = {k: rng.choice(v) for k, v in SPACE.items()}
            s = score(evaluate(canon(x), c))
            if s > 0:
                break
        better = True
        while better:
            better = False
            rng.shuffle(keys)
            for k in keys:
                for v in SPACE[k]:
                    if v == x[k]:
                        continue
                    y = {**x, k: v}
                    t = score(evaluate(canon(y), c))
                    if t > s * (1 + 1e-9):
                        x, s, better = y, t, True
            if not better:
                for _ in range(1500):
                    y = dict(x)
                    for k in rng.sample(keys, rng.choice((2, 2, 3))):
                        y[k] = rng.choice(SPACE[k])
                    t = score(evaluate(canon(y), c))
                    if t > s * (1 + 1e-9):
                        x, s, better = y, t, True
                        break
        ends.append((s, x))
    return sorted(ends, key=lambda e: -e[0])


def optimum(seed):
    path = os.path.join(HERE, f"optimum_{seed}.json")
    if os.path.exists(path):
        return open(path).read().strip()
    s, x = climb(random.Random(f"opt-{seed}"), constants(seed), 30)[0]
    text = json.dumps({"value": s, "arguments": canon(x)})
    with open(path, "w") as f:
        f.write(text + "\n")
    return text


def main():
    c = constants(SEED)
    flag = sys.argv[1] if len(sys.argv) > 1 else ""
    if flag == "--optimum":
        print(optimum(SEED))
        return
    if flag == "--default":
        r = evaluate({}, c)
        print("dead: " + r["dead"] if "dead" in r else ("over: " + over(r) if over(r) else r["value"]))
        return
    q = json.load(sys.stdin)
    r = evaluate(q.get("candidate", q).get("arguments", {}), c)
    if flag == "--value":
        print("dead: " + r["dead"] if "dead" in r else ("over: " + over(r) if over(r) else r["value"]))
        return
    if "dead" in r:
        out = {"protocol": 1, "status": "infeasible", "failure": {"kind": r["kind"], "cause": r["dead"], "blame": "configuration",
               "violation": r["violation"], "phase": r["phase"]}}
    else:
        out = answer_metrics(r, q, random.Random(f"{SEED}-{q.get('seed', 0)}"))
    print(json.dumps(out))


if __name__ == "__main__":
    main()
