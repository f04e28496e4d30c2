#!/usr/bin/env python3
"""A simulated H200 that serves a Qwen3-30B-A3B-like MoE with vLLM; see ABOUT.md. Nothing is measured."""
import json, math, os, random, sys

NAME, HARDWARE, DEFAULT_WORKLOAD = "h200", "h200", "offline.yaml"
GIB = 2.0**30
MEM, BW = 139.81, 4800e9
LAYERS, EXPERTS, TOPK, VOCAB = 48, 128, 8, 151936
KV_BYTES = 98304.0
F_MOE, F_DENSE, F_HEAD = 3.62e9, 1.81e9, 0.62e9
INPUT, OUTPUT, CONCURRENCY, REQUESTS = 512, 768, 2048, 8192


class Dead(Exception):
    def __init__(self, kind, cause, violation=None, phase="start"):
        super().__init__(cause)
        self.failure = {"kind": kind, "cause": cause, "phase": phase}
        if violation is not None:
            self.failure["violation"] = round(max(violation, 1e-3), 4)


def machine(seed):
    r = random.Random(f"shipped-h200-{seed}")
    u = r.uniform
    m = {"seed": seed}
    # how good each expert kernel is: (share of bandwidth, share of peak compute)
    m["moe"] = {
        ("none", "triton"): (u(.72, .84), u(.50, .62)), ("none", "flashinfer_cutlass"): (u(.66, .88), u(.48, .68)),
        ("fp8", "triton"): (u(.62, .80), u(.36, .48)), ("fp8", "cutlass"): (u(.62, .84), u(.38, .56)),
        ("fp8", "flashinfer_cutlass"): (u(.66, .86), u(.40, .58)),
        ("fp8_per_block", "triton"): (u(.58, .76), u(.30, .42)), ("fp8_per_block", "deep_gemm"): (u(.64, .88), u(.42, .62)),
        ("fp8_per_block", "cutlass"): (u(.60, .80), u(.34, .52)), ("fp8_per_block", "flashinfer_cutlass"): (u(.62, .84), u(.38, .56)),
        ("int8_per_channel_weight_only", "triton"): (u(.55, .75), u(.36, .50)),
    }
    m["auto_moe"] = {"none": "triton", "fp8": r.choice(["triton", "flashinfer_cutlass", "flashinfer_cutlass"]),
                     "fp8_per_block": r.choice(["triton", "triton", "flashinfer_cutlass", "deep_gemm"]),
                     "int8_per_channel_weight_only": "triton"}
    m["m_half"] = u(22, 48)
    m["untuned"] = (r.choice([640, 768, 900, 4096, 4096]), u(.78, .9))   # triton without a tuned table beyond so many sequences
    m["autotuned"] = (r.choice([8192, 16384]), u(.88, .97))             # flashinfer's autotuner covers so many tokens
    # linear layers
    m["lin"] = {"cutlass": u(.50, .66), "triton": u(.36, .52), "deep_gemm": u(.48, .68), "marlin": u(.26, .36)}
    m["auto_lin"] = {"fp8": "cutlass", "fp8_per_block": r.choice(["cutlass", "deep_gemm"])}
    # attention
    m["att"] = {"FLASH_ATTN": u(.70, .82), "FLASHINFER": u(.60, .88), "TRITON_ATTN": u(.45, .74)}
    m["kv8"] = {"FLASH_ATTN": u(.76, .95), "FLASHINFER": u(.72, .96), "TRITON_ATTN": u(.55, .85)}
    m["block"] = {16: 1.0, 32: u(.98, 1.03), 64: u(.97, 1.05), 128: u(.93, 1.05)}
    m["full_att"] = u(.86, .99)
    # host
    m["launch"], m["piece"] = u(48e-3, 85e-3), u(3.0e-3, 9e-3)
    m["h0"], m["h1"] = u(1.2e-3, 2.4e-3), u(6e-6, 12e-6)
    m["c_tok"], m["c_msg"], m["api_pow"] = u(5e-6, 10e-6), u(26e-6, 48e-6), u(.70, .95)
    m["api_tax"], m["burst"] = u(.01, .05), u(0, .015)
    m["hash"], m["o1"], m["o1_fixed"] = u(.03, .12), u(.95, 1.0), u(1.1, 1.5)
    m["inter"], m["thr"] = u(.95, .99), u(.99, 1.02)
    m["accept"], m["propose"] = u(.14, .34), u(5e-6, 12e-6)
    m["preempt"] = u(.25, .6)
    # memory
    m["ctx"] = u(.7, 1.5)
    m["resident"] = r.choice([0, 0, 0, u(4.0, 5.0)])
    m["graph_gib"], m["estimate"] = u(1.5, 2.6), u(.35, .6)
    m["frag"], m["frag_mtok"] = u(.4, 1.0), u(1.0, 2.0)
    # what does not start in this build
    m["dead_dynamic"] = r.random() < .5
    dead = {}
    pool = [
        (("fp8", "cutlass"), "FP8 MoE backend VLLM_CUTLASS does not support the deployment configuration since kernel does not support quantization scheme static weights, dynamic per-tensor activations"),
        (("fp8_per_block", "cutlass"), "FP8 MoE backend VLLM_CUTLASS does not support the deployment configuration since kernel does not support quantization scheme GroupShape(row=128, col=128)"),
        (("fp8_per_block", "deep_gemm"), "RuntimeError: DeepGEMM backend is not available or outdated. Please install or update the `deep_gemm` to a newer version to enable FP8 kernels."),
        (("none", "flashinfer_cutlass"), "RuntimeError: FlashInfer JIT: Ninja build failed: nvcc not found, cutlass_fused_moe_module_90 has no cubin"),
        (("fp8", "flashinfer_cutlass"), "AssertionError: FlashInfer CUTLASS FP8 MoE on SM90: intermediate size 768 with per-tensor scales is not supported"),
        (("int8_per_channel_weight_only", "triton"), "AttributeError: 'FusedMoE' object has no attribute 'w13_scale' while loading int8_per_channel_weight_only"),
    ]
    for key, text in r.sample(pool, (1 if m["dead_dynamic"] or m["resident"] else r.choice([2, 3]))):
        dead[key] = text
    if r.random() < .15:
        dead[("fp8_per_block", "flashinfer_cutlass")] = "NotImplementedError: FlashInfer CUTLASS block-scale MoE on SM90 needs CUDA >= 12.8 (found 12.6)"
    for q in m["auto_moe"]:                      # `auto` takes what runs; int8 has one kernel only
        if (q, m["auto_moe"][q]) in dead and q != "int8_per_channel_weight_only":
            m["auto_moe"][q] = "triton"
    m["dead_moe"] = dead
    m["dead_fi"] = r.choice(["fp8", "fp8", "all", "none", "none"])
    m["dead_triton_block"] = r.choice([128, 128, 64])
    m["dead_lin"] = r.choice([("fp8_per_block", "cutlass"), ("fp8_per_block", "marlin"), ("fp8", "marlin"), ("fp8", "triton")])
    m["noise"] = u(.006, .02)
    m["tell"] = seed % 3                         # 0: all the figures; 1: a few; 2: the objective and latencies only
    return m


def soft(p, *xs):
    top = max(xs)
    return top * sum((x / top) ** p for x in xs) ** (1 / p)


def evaluate(args, env, m, load=(CONCURRENCY, REQUESTS)):
    a = args.get
    conc, requests = load
    mode = a("performance-mode", "balanced")
    double = 2 if mode == "throughput" else 1
    seqs = int(a("max-num-seqs", 1024 * double))
    mtok = int(a("max-num-batched-tokens", 8192 * double))
    gmu = float(a("gpu-memory-utilization", .92))
    q = a("quantization") or "none"
    kv8 = a("kv-cache-dtype", "auto") == "fp8"
    att = a("attention-backend") or "FLASH_ATTN"
    att = "FLASH_ATTN" if att == "auto" else att
    block = int(a("block-size", 16))
    level = int(a("optimization-level", 2))
    method = a("speculative-config.method")
    k = int(a("speculative-config.num_speculative_tokens", 0)) if method else 0
    schedule = a("speculative-config.num_speculative_tokens_per_batch_size")
    asyn = bool(a("async-scheduling", True)) and not method
    cg = a("compilation-config.cudagraph_mode") or ("FULL_AND_PIECEWISE" if level >= 2 else "PIECEWISE")
    moe = a("moe-backend") or "auto"
    moe = m["auto_moe"][q] if moe == "auto" else moe
    lin = a("linear-backend") or "auto"
    api, stream = int(a("api-server-count", 1)), int(a("stream-interval", 1))
    prefix = bool(a("enable-prefix-caching", True))
    effective = {}

    # ---- configuration checks
    if method and schedule and cg in ("FULL", "FULL_DECODE_ONLY") and m["dead_dynamic"]:
        raise Dead("dynamic-spec", f"ValueError: num_speculative_tokens_per_batch_size needs piecewise CUDA graphs for its changing query length, cudagraph_mode={cg} was asked for")
    # ---- attention
    if att == "FLASHINFER":
        if m["dead_fi"] == "all":
            raise Dead("attn-invalid", "Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason: ['FlashInfer JIT cache for sm90a is missing and nvcc was not found']")
        if m["dead_fi"] == "fp8" and kv8:
            raise Dead("attn-kernel", "RuntimeError: Error in function 'BatchDecodeWithPagedKVCacheDispatched': unsupported kv dtype fp8_e4m3 with q dtype bf16, head_dim 128, group size 8")
        if cg == "FULL":
            cg = "FULL_AND_PIECEWISE"
            effective["compilation-config.cudagraph_mode"] = cg
    if att == "TRITON_ATTN" and block >= m["dead_triton_block"] and (block == 128 or not kv8):
        need = 1536 * block * (1 if kv8 else 2) + 40960
        raise Dead("triton-smem", f"triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: {need}, Hardware limit: 232448. Reducing block sizes or `num_stages` may help.")
    # ---- experts and linear layers
    if (q, moe) in m["dead_moe"]:
        raise Dead("moe-kernel", m["dead_moe"][(q, moe)])
    if q in ("fp8", "fp8_per_block"):
        if (q, lin) == m["dead_lin"]:
            raise Dead("linear-kernel", {"marlin": "RuntimeError: marlin_gemm: size_n = 5120 with 128x128 scales: no thread config fits", "cutlass": "RuntimeError: cutlass_scaled_mm: Error Internal for block scales on sm90 (m=1, n=5120, k=2048)", "triton": "triton.compiler.errors.CompilationError: scaled_mm: tl.dot operands float8e4nv, bfloat16"}[lin])
        if lin == "auto" or (lin == "deep_gemm" and q == "fp8"):
            real = m["auto_lin"][q]
            if (q, real) == m["dead_lin"]:
                real = "deep_gemm" if q == "fp8_per_block" else "cutlass"
            lin = real
    else:
        lin = "none"
    if not a("attention-backend") or a("attention-backend") == "auto":
        effective["attention-backend"] = att
    if (a("moe-backend") or "auto") == "auto":
        effective["moe-backend"] = moe
    if lin != "none" and lin != a("linear-backend"):
        effective["linear-backend"] = lin

    # ---- memory
    weights = {"none": 56.88, "fp8": 29.06, "fp8_per_block": 29.4, "int8_per_channel_weight_only": 31.6}[q]
    capture = int(a("compilation-config.max_cudagraph_capture_size", min(seqs * (1 + k) * 2, 512)))
    work = {"deep_gemm": 1.5, "cutlass": 1.25, "flashinfer_cutlass": 1.35}.get(moe, 1.0)
    act = .9 + mtok * TOPK * 3584 * 2 * 1.5 * work / GIB + min(seqs, mtok) * VOCAB * 12 / GIB
    share = {"FULL_AND_PIECEWISE": 1.0, "FULL": .7, "FULL_DECODE_ONLY": .6, "PIECEWISE": .45}[cg]
    graphs = m["graph_gib"] * share * (.35 + .65 * capture / 512) ** .8 + (.5 if mode == "interactivity" else 0)
    free = MEM - m["ctx"] - m["resident"]
    if gmu * MEM > free:
        raise Dead("free-mem", f"Free memory on device cuda:0 ({free:.2f}/{MEM} GiB) on startup is less than desired GPU memory utilization ({gmu}, {gmu * MEM:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.", gmu * MEM - free)
    kv_gib = gmu * MEM - weights - act - graphs * m["estimate"] - .6
    slack = free - gmu * MEM
    if kv_gib <= 0.2:
        raise Dead("no-kv", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", 0.2 - kv_gib)
    late = graphs * (1 - m["estimate"])
    if late > slack:
        raise Dead("capture-oom", f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {1024 * .05 * late:.2f} MiB while capturing CUDA graphs ({capture} tokens); {max(slack, 0) * .02:.2f} GiB is free", late - slack, "capture")
    kv_tokens = kv_gib * GIB / KV_BYTES * (2 if kv8 else 1)
    running = min(conc, seqs, kv_tokens / (INPUT + .62 * OUTPUT))
    active = method and (not schedule or any(lo <= running <= hi and d > 0 for lo, hi, d in schedule))
    drafts = k if active else 0
    spike = m["frag"] + m["frag_mtok"] * (mtok / 8192) ** .9 * work + running * drafts * VOCAB * 7 / GIB
    if late + spike > slack:
        raise Dead("cuda-oom", f"EngineCore died during the benchmark: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {spike * .4:.2f} GiB. GPU 0 has a total capacity of {MEM} GiB of which {max(slack - late, 0) * .5:.2f} GiB is free.", late + spike - slack, "measure")

    # ---- one step
    if method and schedule and cg == "FULL_AND_PIECEWISE":
        cg = "PIECEWISE"
        effective["compilation-config.cudagraph_mode"] = cg
    e_bw, e_c = m["moe"][(q, moe)]
    wide = {"none": 1.0, "int8_per_channel_weight_only": .54}.get(q, .505)
    peak = 1979e12 if q.startswith("fp8") else 989e12 * (.8 if q.startswith("int8") else 1)
    expert_bytes = 54.0 * GIB * wide
    dense_bytes = 2.3 * GIB * (.5 if q.startswith("fp8") else 1)
    lin_peak = 1979e12 * m["lin"][lin] if lin not in ("none", "marlin") else 989e12 * (m["lin"]["marlin"] * 1.6 if lin == "marlin" else .6)
    att_eff = m["att"][att] * m["block"][block] * (m["kv8"][att] if kv8 else 1)
    if cg == "FULL" and att != "TRITON_ATTN":
        att_eff *= m["full_att"]
    kernels = (m["o1"] if level < 2 else 1) * {"interactivity": m["inter"], "throughput": m["thr"]}.get(mode, 1)

    def gpu(tokens, heads, seqs_running, prefill=False):
        touched = 1 - (1 - TOPK / EXPERTS) ** tokens
        per = tokens * TOPK / EXPERTS
        tile = per / (per + m["m_half"])
        eff = e_c * tile
        if moe == "triton" and not prefill and tokens > m["untuned"][0]:
            eff *= m["untuned"][1]; low = m["untuned"][1]
        else:
            low = 1
        if moe == "flashinfer_cutlass" and tokens > m["autotuned"][0]:
            eff *= m["autotuned"][1]
        t = soft(3, expert_bytes * touched / (BW * e_bw * low), tokens * F_MOE / (peak * eff))
        t += soft(3, dense_bytes / (BW * .8), tokens * F_DENSE / lin_peak)
        t += soft(3, .58 * GIB / (BW * .8), heads * F_HEAD / (989e12 * .55)) + heads * VOCAB * 14 / (BW * .7)
        t += seqs_running * (INPUT + OUTPUT / 2) * KV_BYTES * (.5 if kv8 else 1) / (BW * att_eff)
        return t / kernels + 1.3e-3 * (m["o1_fixed"] if level < 2 else 1)

    batch = max(1.0, running)
    t_tokens = batch * (1 + drafts)
    host = m["h0"] + m["h1"] * batch * (1 + (m["hash"] * (16 / block) ** .4 if prefix else 0)) * (1 + m["api_tax"] * (api - 1))
    if method:
        host += m["propose"] * batch * (1.0 if active else .35)
    served = 1 + sum(m["accept"] ** i for i in range(1, drafts + 1))
    front = batch * served * (m["c_tok"] + m["c_msg"] / max(stream, served)) / api ** m["api_pow"]

    def step(compute, captured, piece):
        if not captured:
            compute = soft(6, compute * 1.04, m["launch"])
        elif piece:
            compute += m["piece"]
        engine = soft(5, compute, host) if asyn else compute + host
        return soft(5, engine, front) * (1 + m["burst"] * stream / 16)

    t_decode = step(gpu(t_tokens, t_tokens, batch), t_tokens <= capture, cg == "PIECEWISE")
    budget = max(mtok - t_tokens, .06 * mtok)
    over = max(0.0, min(conc, seqs) / running - 1)
    redo = min(.35, m["preempt"] * over * .3)
    chunk = min(budget, batch * INPUT)
    mixed_steps = batch * INPUT * (1 + redo) / budget
    mixed_tokens = chunk + t_tokens
    t_mixed = step(gpu(mixed_tokens, t_tokens + chunk / INPUT, batch, True), mixed_tokens <= capture and cg != "FULL_DECODE_ONLY", cg != "FULL")
    steps = OUTPUT / served * (1 + .5 * redo)
    wave = mixed_steps * t_mixed + max(0.0, steps - mixed_steps) * t_decode
    wave *= 1 + .3 * batch / requests
    value = batch * OUTPUT / wave
    metrics = {"latency/tpot_p50": 1e3 * wave / OUTPUT, "latency/ttft_p99": 1e3 * wave * (.25 + max(0, conc / batch - .75)), "throughput/requests": value / OUTPUT, "throughput/total": value * (INPUT + OUTPUT) / OUTPUT}
    if m["tell"] <= 1:
        metrics.update({"engine/running_mean": .94 * batch, "engine/running_max": float(math.ceil(batch)), "engine/kv_usage_max": min(1.0, batch * (INPUT + OUTPUT * .62) / kv_tokens)})
        if method:
            metrics["engine/acceptance_length"] = served
        effective["kv-cache-tokens"] = int(kv_tokens // block * block)
    out = {"value": value, "metrics": metrics, "effective": effective if m["tell"] <= 1 else {}}
    if m["tell"] == 0:
        out["steps"] = [[max(1, int(b)), step(gpu(b * (1 + drafts), b * (1 + drafts), b), b * (1 + drafts) <= capture, cg == "PIECEWISE")] for b in (batch, batch * .6)]
    return out


#COMMON
PAIRS = [("quantization", "moe_backend"), ("quantization", "linear_backend"), ("max_num_seqs", "capture"), ("attention_backend", "block_size"), ("attention_backend", "kv_cache_dtype"), ("max_num_seqs", "gpu_memory_utilization"), ("max_num_batched_tokens", "gpu_memory_utilization"), ("speculation", "spec_tokens"), ("speculation", "spec_schedule")]
BASE = {"max-model-len": 1280}


# ---------------------------------------------------------------- answering
def load_of(question):
    points = question.get("points") or []
    if points and points[0].get("concurrency"):
        return int(points[0]["concurrency"]), int(points[0].get("requests") or 4 * points[0]["concurrency"])
    return CONCURRENCY, REQUESTS


def clean(arguments):
    """Flags as the question gives them; a nested JSON flag (compilation-config: {...}) becomes dotted."""
    flat = {}
    for key, value in arguments.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{k}": v for k, v in value.items()})
        else:
            flat[key] = value
    return flat


def ask(question, m):
    c = question.get("candidate") or question
    return evaluate(clean(c.get("arguments") or {}), c.get("environment") or {}, m, load_of(question))


def answer(question, m):
    try:
        found = ask(question, m)
    except Dead as dead:
        return {"protocol": 1, "status": "infeasible", "failure": dead.failure, "seconds": {"start": 95.0}}
    rng = random.Random(int(question.get("seed", 0)))
    start = rng.gauss(1, m["noise"])
    samples = [found["value"] * start * rng.gauss(1, m["noise"] * .4) for _ in range(3)]
    metrics = {k: v * (rng.gauss(1, .01) if k.startswith("latency") else 1) for k, v in found["metrics"].items()}
    out = {"protocol": 1, "status": "ok", "samples": {"throughput/output": samples}, "metrics": metrics,
           "seconds": {"start": 140.0, "measure": 120.0}, "version": f"simulated {NAME} {m['seed']}"}
    for key in ("effective", "steps"):
        if found.get(key):
            out[key] = found[key]
    return out


# ---------------------------------------------------------------- the optimum over the shipped space
def the_plan():
    sys.path.insert(0, os.environ.get("TUNE_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 4)))
    from tuner.compose.options import Options
    from tuner.compose.planning import make_plan
    here = os.path.dirname(os.path.abspath(__file__))
    workload = os.path.join(here, DEFAULT_WORKLOAD) if DEFAULT_WORKLOAD else None
    return make_plan(Options(hardware=HARDWARE, workload=workload, trial_command="python x"), need_machine=False).plan


class Space:
    def __init__(self, m):
        self.m, self.plan, self.memo = m, the_plan(), {}
        self.names = [p.name for p in self.plan.space.parameters]
        self.grid = {p.name: self.values(p) for p in self.plan.space.parameters}

    @staticmethod
    def values(p):
        d = p.domain
        if hasattr(d, "values"):
            return list(d.values)
        if not d.integer:
            n = round((d.high - d.low) / d.step)
            return [round(d.low + i * d.step, 6) for i in range(n + 1)]
        if d.high - d.low < 24:
            return list(range(int(d.low), int(d.high) + 1))
        n = 29
        return sorted({int(round(d.low * (d.high / d.low) ** (i / (n - 1)) / 8) * 8) or int(d.low) for i in range(n)} | {int(d.low), int(d.high)})

    def render(self, full):
        keep = dict(full)
        c = self.plan.planner.render(keep)
        return c

    def score(self, full):
        key = tuple(full[n] for n in self.names)
        if key not in self.memo:
            c = self.render(full)
            if self.plan.planner.exclusion(c) is not None:
                self.memo[key] = (-2.0, c)
            else:
                try:
                    self.memo[key] = (evaluate(clean(c.arguments), c.environment, self.m)["value"], c)
                except Dead:
                    self.memo[key] = (-1.0, c)
        return self.memo[key]

    def random(self, rng):
        return {n: rng.choice(v) for n, v in self.grid.items()}

    def climb(self, full, rng):
        best = self.score(full)[0]
        pairs = [p for p in PAIRS if p[0] in self.grid and p[1] in self.grid]
        improved = True
        while improved:
            improved = False
            moves = [(n,) for n in self.names] + pairs
            rng.shuffle(moves)
            for move in moves:
                options = [()]
                for n in move:
                    options = [o + (v,) for o in options for v in self.grid[n]]
                for o in options:
                    trial = {**full, **dict(zip(move, o))}
                    value = self.score(trial)[0]
                    if value > best * (1 + 1e-9):
                        best, full, improved = value, trial, True
        return best, full


def optimum(seed, restarts=12):
    m = machine(seed)
    space = Space(m)
    rng = random.Random(seed)
    found = []
    for _ in range(restarts):
        start = max((space.random(rng) for _ in range(25)), key=lambda f: space.score(f)[0])
        found.append(space.climb(start, rng))
    found.sort(key=lambda x: -x[0])
    value, full = found[0]
    c = space.score(full)[1]
    return {"value": value, "arguments": dict(c.arguments), "environment": dict(c.environment),
            "assignment": {k: v for k, v in dict(c.assignment).items()}, "restarts": [round(v / value, 5) for v, _ in found]}


def main():
    seed = int(os.environ.get("SURFACE_SEED", "0"))
    m = machine(seed)
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "--optimum":
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"optimum_{seed}.json")
        if not os.path.exists(path):
            with open(path, "w") as f:
                json.dump(optimum(seed), f)
        print(open(path).read().strip())
        return
    if what == "--default":
        print(evaluate(BASE, {}, m)["value"])
        return
    question = json.load(sys.stdin)
    if what == "--value":
        try:
            print(ask(question, m)["value"])
        except Dead as dead:
            print("dead: " + dead.failure["cause"])
        return
    print(json.dumps(answer(question, m)))


if __name__ == "__main__":
    main()
