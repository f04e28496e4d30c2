"""Two RTX 4090 without NVLink serving a dense 32B to 32 chat clients (see ABOUT.md)."""
import json, math, os, random, sys
import numpy as np

GIB = 1 << 30
SEED = int(os.environ.get("SURFACE_SEED", "0"))
L, H, VOC, INTER, MAXLEN = 64, 5120, 152064, 27648, 2048
P, S, O, N = 600, 320, 200, 32          # prompt, shared, answer, clients
PAR = 32.8e9

SPACE = {  # assignment-level; (kind, values)
    "quantization": ["awq_marlin", "awq", "gptq_marlin", "fp8", "compressed-tensors", "bitsandbytes"],
    "tensor-parallel-size": [1, 2], "pipeline-parallel-size": [1, 2],
    "disable-custom-all-reduce": [False, True], "enforce-eager": [False, True],
    "max-cudagraph-capture-size": [8, 16, 32, 64, 128, 256, 512],
    "speculative-config.method": [None, "ngram", "eagle3"],
    "speculative-config.num_speculative_tokens": [1, 2, 3, 4, 5, 6],
    "max-num-seqs": (4, 256), "max-num-batched-tokens": (128, 8192),
    "gpu-memory-utilization": [round(0.80 + 0.01 * i, 2) for i in range(19)],
    "kv-cache-dtype": ["auto", "fp8"],
    "attention-backend": [None, "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "B12X"],
    "block-size": [16, 32, 64, 128], "cpu-offload-gb": [0, 1, 2, 4, 8],
}


def prune(a):
    a = {k: v for k, v in a.items() if v is not None}
    if a.get("tensor-parallel-size", 1) == 2: a.pop("pipeline-parallel-size", None)
    else: a.pop("disable-custom-all-reduce", None)
    if a.get("enforce-eager"): a.pop("max-cudagraph-capture-size", None)
    if "speculative-config.method" not in a: a.pop("speculative-config.num_speculative_tokens", None)
    return a


class Dead(Exception):
    def __init__(self, kind, cause, violation=None):
        super().__init__(cause); self.kind, self.cause, self.violation = kind, cause, violation


def constants(seed):
    r = np.random.default_rng(40900 + seed)
    u = lambda a, b: float(r.uniform(a, b))
    c = dict(bw=1008e9 * u(0.9, 0.97), tf=165e12 * u(0.9, 1.0))
    # gemm: bytes per parameter, memory efficiency, compute (share of bf16), fixed seconds a full pass
    c["q"] = {
        "awq_marlin": (0.5885, u(.70, .88), u(.48, .66), 0.0), "gptq_marlin": (0.580, u(.68, .88), u(.46, .68), 0.0),
        "awq": (0.5885, u(.36, .50), u(.14, .24), 0.002), "fp8": (1.045, u(.82, .92), u(.85, 1.45), 0.0),
        "compressed-tensors": (1.045, u(.74, .90), u(.8, 1.6), 0.001), "bitsandbytes": (0.605, u(.30, .40), u(.35, .5), 0.006)}
    c["p2p"] = ["none", "patched", "patched-slow"][int(r.integers(3))]
    c["ar_lat"], c["ar_bw"] = u(28e-6, 60e-6), u(6e9, 12e9)
    c["car_lat"], c["car_bw"] = u(11e-6, 18e-6), u(9e9, 15e9) if c["p2p"] == "patched" else u(2e9, 4e9)
    c["eager"], c["host"], c["hop"] = u(.014, .028), u(.0015, .004), u(.0008, .0025)
    c["bubble"] = u(.08, .30)
    c["att"] = {"FLASH_ATTN": (u(.70, .85), .0003), "FLASHINFER": (u(.68, .90), u(.0005, .0022)),
                "TRITON_ATTN": (u(.50, .78), .0004), "FLEX_ATTENTION": (u(.22, .35), .0030)}
    c["acc_ng"], c["acc_ea"] = u(.06, .26), u(.36, .66)
    c["ea_step"], c["ea_gib"], c["ng_cpu"] = u(.0007, .0016), u(.9, 1.7), u(.0006, .002)
    c["other"], c["used"] = u(.55, 1.0), u(.25, .65)
    c["graph"] = u(.0008, .0018)
    c["pcie"] = u(18e9, 25e9)
    c["mix"] = u(.0015, .005)              # a step with prefill: piecewise graphs, two attention passes, scheduler
    c["over"] = u(.15, .45)                # graphs not seen by the profiler, GiB
    c["noise"] = u(.008, .025)
    return c


def smax(a, b, p=4.0):
    return (a ** p + b ** p) ** (1 / p)


def model(a, c):
    if "weight-format" in a: a = dict(a, quantization=a["weight-format"])   # variant_quant: the same under a neutral name
    tp, pp = int(a.get("tensor-parallel-size", 1)), int(a.get("pipeline-parallel-size", 1))
    if tp * pp > 2:
        raise Dead("world-size", f"World size ({tp * pp}) is larger than the number of available GPUs (2) in this node.", tp * pp - 2)
    quant = a.get("quantization", "awq_marlin")
    mns, mnbt = int(a.get("max-num-seqs", 256)), int(a.get("max-num-batched-tokens", 2048))
    if mnbt < mns:
        raise Dead("config", f"max_num_batched_tokens ({mnbt}) must be greater than or equal to max_num_seqs ({mns}).", mns / mnbt - 1)
    method = a.get("speculative-config.method")
    k = int(a.get("speculative-config.num_speculative_tokens", 0)) if method else 0
    if method and not k:
        raise Dead("config", f"num_speculative_tokens must be provided with speculative method {method}")
    if method == "eagle3" and pp > 1:
        raise Dead("spec-pp", "NotImplementedError: Pipeline parallelism is not supported with speculative method eagle3.")
    kv = a.get("kv-cache-dtype", "auto"); f8 = kv != "auto"
    be, bs = a.get("attention-backend"), int(a.get("block-size", 16))
    if be is None:
        be = "FLASH_ATTN" if not f8 else ("FLASHINFER" if bs <= 64 else "TRITON_ATTN")
    bad = []
    if be == "B12X": bad.append("compute capability not supported")
    if be == "FLASH_ATTN" and f8 or be == "FLEX_ATTENTION" and f8: bad.append("kv_cache_dtype not supported")
    if be == "FLASHINFER" and bs > 64: bad.append("block_size not supported")
    if bad:
        raise Dead("attn-invalid", f"Selected backend AttentionBackendEnum.{be} is not valid for this configuration. Reason: {bad}")
    util, off = float(a.get("gpu-memory-utilization", .92)), float(a.get("cpu-offload-gb", 0))
    total = 23.5; want, free = util * total, total - c["used"]
    if want > free:
        raise Dead("free-mem", f"Free memory on device cuda:0 ({free:.2f}/{total} GiB) on startup is less than desired GPU memory utilization ({util}, {want:.2f} GiB).", want - free)
    # ---- memory of one GPU, GiB
    g = tp * pp
    bpp, meff, ceff, fixed = c["q"][quant]
    weights = PAR * bpp / g / GIB
    weights_gpu = max(weights - off / 1.0737, 0.15 * weights); moved = weights - weights_gpu
    if method == "eagle3": weights_gpu += c["ea_gib"] / (1 if tp == 1 else 1.6)
    if weights_gpu + c["other"] > total - c["used"]:
        raise Dead("cuda-oom", f"torch.OutOfMemoryError: CUDA out of memory while loading weights: {weights_gpu:.1f} GiB of weights, {free:.2f} GiB free.", weights_gpu + c["other"] - free)
    act = mnbt * (H * 2 * 7 + INTER * 2 * 2.2 / tp) / GIB + min(mns, mnbt) * (1 + k) * VOC * 4 * 2.5 / GIB + (.5 if quant == "bitsandbytes" else 0)
    eager = bool(a.get("enforce-eager", False))
    cap = 0 if eager else int(a.get("max-cudagraph-capture-size", min(512, 2 * mns * (1 + k))))
    sizes = 0 if eager else min(cap, 8) / 2 + cap / 8
    gmem = 0 if eager else .10 + c["graph"] * sizes * 4 / (1 if pp == 1 else 1.8)
    if weights_gpu + act + c["other"] > free:
        raise Dead("cuda-oom", f"torch.OutOfMemoryError: CUDA out of memory occurred when warming up sampler with {mns} dummy requests.", weights_gpu + act + c["other"] - free)
    kvmem = want - weights_gpu - act - c["other"] - gmem
    if kvmem <= 0:
        raise Dead("no-kv", f"No available memory for the cache blocks: {-kvmem:.2f} GiB missing. Try increasing gpu_memory_utilization.", -kvmem)
    tok_b = 2 * L * 8 * 128 * (1 if f8 else 2) / g
    need = MAXLEN * tok_b / GIB
    if kvmem < need:
        raise Dead("kv-too-small", f"To serve at least one request with the model's max seq len ({MAXLEN}), ({need:.2f} GiB KV cache is needed, which is larger than the available KV cache memory ({kvmem:.2f} GiB).", need - kvmem)
    if not eager and want + gmem * c["over"] + c["over"] * .5 > free + .1:
        raise Dead("capture-oom", f"CUDA out of memory while Graph capturing: {gmem * (1 + c['over']):.2f} GiB wanted beside utilization {util}.", want + gmem * c["over"] + c["over"] * .5 - free - .1)
    kvtok = int(kvmem * GIB / tok_b) // bs * bs
    # ---- how many run
    own = P - S + .6 * O + bs / 2 + k
    rkv = max(1.0, (kvtok - S) / own)
    R = min(N, mns); preempt = 0.0
    if rkv < R:
        preempt = min(.25, .35 * (R - rkv) / R + .03); R = rkv
    # ---- acceptance
    if method == "ngram": AL = 1 + sum(c["acc_ng"] ** .8 * .72 ** i for i in range(k))
    elif method == "eagle3": AL = sum(c["acc_ea"] ** i * (.96 ** (i * (i - 1) / 2)) for i in range(k + 1))
    else: AL = 1.0
    # ---- a pass of T tokens through one GPU's share
    def gemm(T):
        byte = weights * GIB / (c["bw"] * meff)
        comp = 2 * PAR * T / g / (c["tf"] * ceff)
        return smax(byte, comp, 2.2) + fixed / g + moved * GIB / c["pcie"]
    def ar(T):
        if tp == 1: return 0.0
        b = T * H * 2
        t = c["ar_lat"] + b / c["ar_bw"]
        if c["p2p"] != "none" and not a.get("disable-custom-all-reduce", False) and b < 8 << 20:
            t = c["car_lat"] + b / c["car_bw"]
        return 2 * L * t
    aeff, aplan = c["att"][be]
    if f8 and kv == "fp8_e5m2": aeff *= .97
    if f8 and be == "TRITON_ATTN": aeff *= .85
    aeff *= {16: .97, 32: 1.0, 64: 1.0, 128: .98}[bs]
    m = R / pp                                     # sequences of one micro-batch
    kvread = m * (P + O / 2) * tok_b / (c["bw"] * aeff) * (1 if k == 0 else 1.12)
    def step(Td, Tp):
        T = Td + Tp
        gpu = gemm(T) + ar(T) + kvread * (1.1 if Tp else 1) + (c["hop"] + T * H * 2 / c["ar_bw"] if pp > 1 else 0)
        graph = T <= cap and not (be == "FLEX_ATTENTION" and Tp)
        cpu = (.002 if graph else c["eager"]) / pp
        if graph and Tp: cpu += .004 / pp            # piecewise only
        t = smax(gpu, cpu, 3.0) + c["host"] / pp * (1 + m / 64) + aplan + (c["mix"] if Tp else 0)
        if method == "eagle3": t += k * c["ea_step"] + (0 if graph else k * .0015)
        if method == "ngram": t += c["ng_cpu"] * (1 + m / 32)
        return t
    td = m * (1 + k)
    chunk = min(mnbt - td, 2.2 * (P - S))
    if chunk < 8:
        chunk = 8.0
    rounds = O / AL
    tokens = m * (P - S) * (1 + preempt * 2)
    mixed = tokens / chunk
    total_rounds = smax(rounds, 1.25 * mixed, 5.0)  # a starved budget leaves decode slots empty, softly
    rounds = max(total_rounds - mixed, 0.0)
    per = rounds * step(td, 0) + mixed * step(td, chunk) * (1 + (c["bubble"] * min(1, chunk / 400) if pp > 1 else 0))
    per *= pp                                       # a round is one pass through both stages
    if pp > 1 and R < 2: per *= 1
    wait = 1.0 + .02 * (N - R) / N
    value = R * O / per / wait * (1 - preempt * .4)
    info = dict(R=R, AL=AL, kvtok=kvtok, usage=min(1.0, (S + R * (P - S + O)) / kvtok), ttft=1000 * (step(td, chunk) * max(1, (P - S) / chunk) * pp + (N - R) / N * per),
                tpot=1000 * per / O, step=step(td, 0) * pp, mns=mns, mnbt=mnbt, be=be)
    return value, info


def value(a, c):
    try: return model(a, c)[0]
    except Dead: return 0.0


def sample(rng):
    a = {}
    for k, v in SPACE.items():
        if isinstance(v, tuple): a[k] = int(round(math.exp(rng.uniform(math.log(v[0]), math.log(v[1])))))
        else: a[k] = rng.choice(v)
    return a


def grid(v):
    if isinstance(v, tuple): return sorted({int(round(x)) for x in np.geomspace(v[0], v[1], 40)})
    return v


def climb(c, rng, f=None):
    f = f or (lambda a: value(prune(a), c))
    a = sample(rng)
    for _ in range(400):
        if f(a) > 0: break
        a = sample(rng)
    best = f(a); go = True; keys = list(SPACE)
    while go:
        go = False; rng.shuffle(keys)
        for k in keys:
            for x in grid(SPACE[k]):
                b = dict(a); b[k] = x; y = f(b)
                if y > best * (1 + 1e-9): best, a, go = y, b, True
        for _ in range(400):                        # pairs
            b = dict(a)
            for k in rng.sample(keys, 2): b[k] = rng.choice(grid(SPACE[k]))
            y = f(b)
            if y > best * (1 + 1e-9): best, a, go = y, b, True
    return best, prune(a)


def optimum(c, restarts=64, salt=0):
    rng = random.Random(salt)
    runs = sorted((climb(c, rng) for _ in range(restarts)), key=lambda x: -x[0])
    return runs[0][0], runs[0][1], [r[0] for r in runs]


def main():
    c = constants(SEED)
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode == "--optimum":
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"optimum_{SEED}.json")
        if not os.path.exists(path):
            v, a, runs = optimum(c)
            json.dump({"value": v, "arguments": a, "restarts": runs}, open(path, "w"))
        sys.stdout.write(open(path).read() + "\n"); return
    if mode == "--default":
        print(model({}, c)[0]); return
    q = json.load(sys.stdin)
    a = q["candidate"]["arguments"]
    if mode == "--value":
        try: print(model(a, c)[0])
        except Dead as d: print("dead: " + d.cause)
        return
    try:
        v, i = model(a, c)
    except Dead as d:
        f = {"kind": d.kind, "cause": d.cause}
        if d.violation: f["violation"] = d.violation
        print(json.dumps({"protocol": 1, "status": "infeasible", "failure": f})); return
    r = np.random.default_rng(q["seed"])
    drift = r.normal(1, c["noise"] * .6)
    s = [v * drift * r.normal(1, c["noise"]) for _ in range(3)]
    print(json.dumps({"protocol": 1, "status": "ok", "samples": {"throughput/output": s},
        "metrics": {"throughput/output": sum(s) / 3, "latency/ttft_p50": i["ttft"], "latency/tpot_p50": i["tpot"], "engine/running_mean": i["R"] * .98,
                    "engine/running_max": math.floor(i["R"] + .5), "engine/kv_usage_max": i["usage"], "engine/acceptance_length": i["AL"]},
        "effective": {"kv-cache-tokens": i["kvtok"], "max-num-seqs": i["mns"], "max-num-batched-tokens": i["mnbt"], "attention-backend": i["be"]}}))


if __name__ == "__main__":
    main()
