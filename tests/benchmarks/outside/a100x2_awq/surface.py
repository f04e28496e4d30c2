#!/usr/bin/env python3
"""Qwen3-32B on two A100-40GB PCIe, 64 chat clients: see ABOUT.md."""
import json, math, os, random, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = int(os.environ.get("SURFACE_SEED", "0"))
GIB = 2**30
ISL, HIT, OSL, N, MAXLEN = 330, 190, 210, 64, 8192
LIMIT = 350.0  # ms, ttft_p99 (options.txt)
BF16, AWQ, GPTQ, FP8 = "Qwen/Qwen3-32B", "Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B-GPTQ-Int4", "Qwen/Qwen3-32B-FP8"
BYTES = {BF16: 65.5e9, AWQ: 19.3e9, GPTQ: 19.5e9, FP8: 34.4e9}
FLOP = 2 * 31.2e9


def constants(seed):
    r = random.Random(f"a100-{seed}")
    u = r.uniform
    c = {"bw": 1555e9 * u(.76, .88), "fl": 312e12 * u(.58, .72), "pcie": u(5, 13) * 1e9, "nlat": u(28, 48) * 1e-6,
         "clat": u(10, 24) * 1e-6, "cbw": u(.35, 1.4), "launch": u(14, 24) * 1e-3, "host": u(2.5, 6) * 1e-3,
         "bubble": u(1.03, 1.25), "graph": u(.5, 1.1), "unacc": u(.5, 1.3), "waste": u(.25, .6), "dpimb": u(.72, .95),
         "alpha": u(.5, .84), "hit": u(.15, .42), "nalpha": u(.4, .7), "plan": u(.3, 1.5) * 1e-3, "act": u(.85, 1.12),
         "kvq": u(.7, .95), "draft": u(.4, 2.4) * 1e-3}
    c["q"] = {BF16: (1.0, 1.0), AWQ: (u(.8, .95), u(.82, .98)), GPTQ: (u(.8, .95), u(.82, .98)), FP8: (u(.8, .95), u(.78, .96)),
              "online": (u(.78, .93), u(.76, .95))}
    c["attn"] = {"FLASH_ATTN": u(.66, .82), "FLASHINFER": u(.6, .88), "TRITON_ATTN": u(.38, .78)}
    return c


def dead(kind, cause, violation=1.0, phase="start"):
    return {"dead": cause, "kind": kind, "violation": max(violation, 1e-3), "phase": phase}


def smax(a, b, p=3.0):
    m = max(a, b, 1e-12)
    return m * ((a / m)**p + (b / m)**p)**(1 / p)


def evaluate(a, c):
    g = a.get
    model = g("model") or BF16
    quant = g("quantization")
    tp, pp, dp = int(g("tensor-parallel-size") or 2), int(g("pipeline-parallel-size") or 1), int(g("data-parallel-size") or 1)
    nocar = bool(g("disable-custom-all-reduce") or False)
    mbt = int(g("max-num-batched-tokens") or 2048)
    mns = int(g("max-num-seqs") or min(256, mbt))
    gmu = float(g("gpu-memory-utilization") or .92)
    kvd = g("kv-cache-dtype") or "auto"
    att = g("attention-backend") or "auto"
    method = g("speculative-config.method")
    k = int(g("speculative-config.num_speculative_tokens") or 3) if method else 0
    mode = g("compilation-config.cudagraph_mode") or "FULL_AND_PIECEWISE"
    # ---- what vLLM refuses before it loads anything
    if mbt < mns:
        return dead("config", f"ValueError: max_num_batched_tokens ({mbt}) must be greater than or equal to max_num_seqs ({mns}).", mns / mbt - 1)
    if tp * pp * dp > 2:
        return dead("world-size", f"ValueError: World size ({tp * pp * dp}) is larger than the number of available GPUs (2) in this node.", tp * pp * dp - 2)
    if quant and model != BF16:
        return dead("quant-mismatch", "ValueError: Quantization method specified in the model config does not match the quantization method specified in the `quantization` argument (fp8).")
    if method == "eagle3" and pp > 1:
        return dead("spec-pp", "NotImplementedError: Pipeline parallelism is not supported for this model with speculative method eagle3.")
    if method and mns * (1 + k) > mbt:
        return dead("spec-slots", f"ValueError: VllmConfig does not have enough slots to schedule a token and support the speculative decoding settings (max_num_batched_tokens={mbt}, max_num_seqs={mns}, num_speculative_tokens={k}).", mns * (1 + k) / mbt - 1)
    if att == "FLASH_ATTN" and kvd != "auto":
        return dead("attn-invalid", "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: ['kv_cache_dtype not supported']")
    if att == "TRITON_ATTN" and kvd == "fp8":
        return dead("triton-fp8", "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')")
    real = att if att != "auto" else ("FLASH_ATTN" if kvd == "auto" else "FLASHINFER")
    # ---- memory of one GPU, GiB
    shard = tp * pp
    online = bool(quant)
    w = (34.9e9 if online else BYTES[model]) / shard
    if online and shard == 1:
        return dead("cuda-oom", "Failed to load model - not enough GPU memory. torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total capacity of 39.39 GiB", 61.0 - 39.4, "load")
    if w / GIB > 38.4:
        return dead("cuda-oom", f"Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization. torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 250.00 MiB (weights of {w / GIB:.1f} GiB)", w / GIB - 38.4, "load")
    draft = 1.25e9 / tp if method == "eagle3" else 0.0
    cap = min(512, mns * 2 * (1 + k))
    graphs = {"FULL_AND_PIECEWISE": .9, "PIECEWISE": .5, "FULL_DECODE_ONLY": .45, "NONE": 0.0}[mode] * c["graph"] * (.35 + .65 * cap / 512)
    act = c["act"] * mbt * (5120 * 4 + 51200 / tp) * 2 / GIB + mns * (1 + k) * 151936 * 6 / tp / GIB
    base = .45 + (.4 if shard > 1 else 0)
    extra = (.5 if real == "FLASHINFER" else .1)
    unacc = c["unacc"] + .3 * graphs + (.25 if method else 0)
    if gmu * 39.39 + unacc > 39.39:
        return dead("capture-oom", f"torch.OutOfMemoryError: CUDA out of memory during CUDA graph capture. Tried to allocate 98.00 MiB. GPU 0 has a total capacity of 39.39 GiB of which {max(0.0, 39.39 * (1 - gmu) - unacc + .4):.2f} GiB is free", gmu * 39.39 + unacc - 39.39, "capture")
    kvb = 262144 / shard * (1 if kvd == "auto" else .5) * (1 + (1 / 64 if draft else 0))
    avail = gmu * 39.39 - (w + draft) / GIB - act - graphs - base - extra
    if avail <= 0:
        return dead("no-kv", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", -avail + .1, "kv")
    tokens = avail * GIB / kvb
    if tokens < MAXLEN:
        need = MAXLEN * kvb / GIB
        return dead("kv-too-small", f"ValueError: To serve at least one request with the model's max seq len ({MAXLEN}), ({need:.2f} GiB KV cache is needed, which is larger than the available KV cache memory ({avail:.2f} GiB). Based on the available memory, the estimated maximum model length is {int(tokens)}.", need - avail, "kv")
    # ---- speed
    bwf, cf = c["q"]["online" if online else model]
    if method == "eagle3":
        al, acc, p = c["alpha"] * (1 if model == BF16 else .98), 1.0, 1.0
        for i in range(k):
            p *= al * .97**i
            acc += p
        ver = 1.0 + k
    elif method == "ngram":
        acc = 1 + c["hit"] * sum(c["nalpha"]**(i + 1) for i in range(k))
        ver = 1.0 + c["hit"] * k
    else:
        acc, ver = 1.0, 1.0
    n_r = N / dp
    held = ISL + OSL / 2 + k
    seats = tokens / held
    admit = min(n_r, mns)
    waste = 1.0
    if admit > seats:
        o = admit / seats - 1
        waste = 1 + c["waste"] * o / (o + .25)
    run = min(admit, seats)
    pre = (ISL - HIT) * waste
    ctx = held

    def allreduce(t):
        size = t * 10240
        if nocar or size > 8 << 20:
            return 128 * (c["nlat"] + size / c["pcie"])
        return 128 * (c["clat"] + size / (c["pcie"] * c["cbw"]))

    def step(b, q):
        d = 2 if pp == 2 else 1            # micro-batches in flight
        t = (b * ver + q) / d
        lin = smax(w / (c["bw"] * bwf), t * FLOP / shard / (c["fl"] * cf))
        kvt = (b / d) * ctx * kvb / (c["bw"] * c["attn"][real] * (1 if kvd == "auto" else c["kvq"])) * (1 + .04 * k)
        gpu = lin + kvt + t * q / d * 8 * 5120 * 64 / shard / 1e15
        if tp == 2:
            gpu += allreduce(t)
        if pp == 2:
            gpu += 30e-6 + t * 10240 / c["pcie"]
        covered = (b * ver + q) / d <= cap
        if mode == "NONE":
            fl = 1.0
        elif q > 0:
            fl = 1.0 if mode == "FULL_DECODE_ONLY" or not covered else .4
        else:
            fl = (.4 if mode == "PIECEWISE" else .08) if covered else 1.0
        gpu = smax(gpu, c["launch"] / (1 if pp == 1 else 2) * fl, 4)
        gpu *= d * (c["bubble"] if pp == 2 else 1)
        host = c["host"] * (.45 + .55 * b / 64)
        host *= 1.0 if method == "ngram" else .25
        if method == "ngram":
            host += 3e-5 * b
        if real == "FLASHINFER":
            host += c["plan"]
        if method == "eagle3":
            host += k * (draft / (c["bw"] * .8) + c["draft"] + b * 6e-6)
        return gpu + host

    for _ in range(4):                      # a prefill-bound engine runs fewer sequences
        cc = run * acc * pre / OSL
        budget = mbt - run * (1 + k)
        if cc > budget * .95:
            run *= max(.3, budget * .95 / cc)
    cc = run * acc * pre / OSL
    budget = max(64.0, mbt - run * (1 + k))
    q = min(budget, max(pre, 1.5 * cc))
    f = min(1.0, cc / q)
    tm, td = step(run, q), step(run, 0)
    mean = f * tm + (1 - f) * td
    rate = run * acc / mean                 # tok/s of one replica
    total = rate * dp * (c["dpimb"] if dp > 1 else 1)
    seatwait = max(0.0, n_r - run) / (rate / OSL)
    rho = min(.95, f)
    back = pre * 1.6 + pre * 2.2 * rho / (1.15 - rho)
    qq = min(budget, back)
    ttft = (1.5 * seatwait + step(run, q) * .9 + max(1.0, back / qq) * step(run, qq) + .03) * 1000
    return {"value": total, "ttft": ttft, "ttft50": (seatwait + 1.4 * tm) * 1000, "tpot": mean / acc * 1000, "run": run * dp,
            "kv": min(1.0, admit / seats), "tokens": tokens, "acc": acc, "backend": real, "spec": bool(method),
            "steps": [[b, step(b, 0)] for b in (1, 8, 16, 32, 64) if b <= run], "mns": mns, "mbt": mbt, "waste": waste}


# ---- the space of profile.yaml, for --optimum and the checks
def logints(lo, hi, n):
    return sorted({int(round(math.exp(math.log(lo) + (math.log(hi) - math.log(lo)) * i / (n - 1)))) for i in range(n)})


SPACE = {"model": [BF16, AWQ, GPTQ, FP8], "quantization": [None, "fp8"], "tensor-parallel-size": [2, 1], "pipeline-parallel-size": [1, 2],
         "data-parallel-size": [1, 2], "disable-custom-all-reduce": [False, True], "max-num-seqs": logints(16, 512, 41),
         "max-num-batched-tokens": logints(512, 16384, 41), "gpu-memory-utilization": [round(.84 + .01 * i, 2) for i in range(13)],
         "kv-cache-dtype": ["auto", "fp8", "fp8_e5m2"], "attention-backend": [None, "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"],
         "speculative-config.method": [None, "ngram", "eagle3"], "speculative-config.num_speculative_tokens": [1, 2, 3, 4, 5, 6],
         "compilation-config.cudagraph_mode": ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"]}


def canon(x):
    x = dict(x)
    if x["model"] != BF16:
        x["quantization"] = None
    if x["tensor-parallel-size"] == 2:
        x["pipeline-parallel-size"] = x["data-parallel-size"] = None
    else:
        x["disable-custom-all-reduce"] = None
    if x["speculative-config.method"] is None:
        x["speculative-config.num_speculative_tokens"] = None
    elif x["speculative-config.method"] == "ngram":
        x["speculative-config.prompt_lookup_max"] = 4
    else:
        x["speculative-config.model"] = "RedHatAI/Qwen3-32B-speculator.eagle3"
    return {a: b for a, b in x.items() if b is not None}


def score(r):
    if "dead" in r:
        return 0.0
    return r["value"] if r["ttft"] <= LIMIT else r["value"] * .2 * LIMIT / r["ttft"]


def report(r):
    v = r["value"]
    return [v, r]


def answer_metrics(r, q, rng):
    s = rng.gauss(1, .012)
    def n(x, e): return x * s * rng.gauss(1, e)
    m = {"latency/ttft_p99": r["ttft"] * rng.gauss(1, .04), "latency/ttft_p50": r["ttft50"] * rng.gauss(1, .02), "latency/tpot_p50": r["tpot"] / s,
         "engine/running_mean": min(r["run"], r["run"] * .985 * rng.gauss(1, .008)), "engine/running_max": math.ceil(r["run"]), "engine/kv_usage_max": r["kv"]}
    if r["spec"]:
        m["engine/acceptance_length"] = r["acc"] * rng.gauss(1, .01)
    return {"protocol": 1, "status": "ok", "samples": {"throughput/output": [n(r["value"], .012) for _ in range(3)]}, "metrics": m,
            "effective": {"kv-cache-tokens": int(r["tokens"]), "attention-backend": r["backend"], "max-num-seqs": r["mns"], "max-num-batched-tokens": r["mbt"]},
            "steps": [[b, t * rng.gauss(1, .02)] for b, t in r["steps"]]}


def over(r):
    return f"ttft_p99 {r['ttft']:.0f} ms is above {LIMIT:.0f} ms" if r["ttft"] > LIMIT else None


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
