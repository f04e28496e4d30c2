#!/usr/bin/env python3
"""A simulated B300 that serves DeepSeek-V4-Flash with vLLM at 256 concurrent requests; see ABOUT.md. Nothing is measured."""
import json, math, os, random, sys

NAME, HARDWARE, DEFAULT_WORKLOAD = "b300", "b300", None
GIB = 2.0**30
MEM, BW = 267.6, 7750e9
LAYERS, EXPERTS, TOPK, VOCAB = 43, 256, 6, 129280
F_MOE, F_DENSE, F_HEAD = 15.1e9, 9.8e9, 1.06e9
EXPERT_BYTES, DENSE_BYTES, HEAD_BYTES = 147e9, 7.2e9, 1.06e9
INPUT, OUTPUT, CONCURRENCY, REQUESTS = 128, 300, 256, 1280
# tokens gained in a step with k = 1 … 7 drafts (InferenceX's golden tables for the bigger sister model)
GAIN = {"mtp": [1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54], "dspark": [1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73]}


class Dead(Exception):
    def __init__(self, kind, cause, violation=None, phase="start"):
        super().__init__(cause)
        self.failure = {"kind": kind, "cause": cause, "phase": phase}
        if violation is not None:
            self.failure["violation"] = round(max(violation, 1e-3), 4)


def machine(seed):
    r = random.Random(f"shipped-b300-{seed}")
    u = r.uniform
    m = {"seed": seed}
    # experts: (share of bandwidth, share of peak compute, peak TFLOPS)
    m["moe"] = {"flashinfer_trtllm": (u(.60, .80), u(.34, .50), 4500), "deep_gemm": (u(.56, .80), u(.34, .54), 4500),
                "deep_gemm_mega_moe": (u(.70, .88), u(.42, .60), 4500), "triton_unfused": (u(.46, .66), u(.34, .46), 2250),
                "marlin": (u(.50, .72), u(.26, .36), 2250)}
    m["auto_moe"] = r.choice(["flashinfer_trtllm", "triton_unfused", "triton_unfused", "marlin"])
    m["m_half"] = u(14, 34)
    m["tune_gain"], m["tune_gib"] = r.choice([u(1.03, 1.25), u(1.03, 1.25), u(.92, 1.0)]), u(.8, 2.2)
    m["ep_cost"] = u(.0, .05)
    m["overlap_gain"], m["overlap_loss"], m["overlap_to"] = u(.0, .07), u(.02, .16), r.choice([128, 256, 512])
    # attention: microseconds a query token over all layers
    m["att"] = {"FLASHMLA_SPARSE_DSV4": u(10e-6, 26e-6), "FLASHINFER_MLA_SPARSE_DSV4": u(7e-6, 26e-6)}
    m["bf16_att"], m["indexer"], m["indexer4"] = u(.88, 1.15), u(3e-6, 9e-6), u(.55, .95)
    m["lost_graph"] = r.choice(["FLASHMLA_SPARSE_DSV4"] * 5 + [""])   # decode graph lost under FULL_AND_PIECEWISE
    m["full_cost"] = u(1.0, 1.08)
    m["lin"] = {"cutlass": u(.30, .42), "deep_gemm": u(.32, .48), "marlin": u(.16, .24), "flashinfer_cutlass": u(.34, .50)}
    m["auto_lin"] = r.choice(["cutlass", "deep_gemm"])
    # host
    m["launch"], m["piece"] = u(.110, .200), u(.020, .055)
    m["h0"], m["h1"] = u(1.8e-3, 3.6e-3), u(9e-6, 20e-6)
    m["c_tok"], m["c_msg"], m["api_pow"], m["api_tax"], m["burst"] = u(8e-6, 16e-6), u(45e-6, 95e-6), u(.7, .95), u(.0, .03), u(0, .02)
    m["hash"], m["o1_fixed"], m["fixed"] = u(.02, .08), u(1.05, 1.4), u(2.2e-3, 4.5e-3)
    m["inter"], m["thr"] = u(.97, 1.04), u(.99, 1.02)
    m["arrivals"] = u(12, 36)
    m["capture_cap"] = r.choice([512, 1024])
    # speculation
    m["text"] = u(.40, 1.0)
    m["mtp_ms"], m["dspark_ms"], m["verify"] = u(.9e-3, 2.2e-3), u(4e-3, 11e-3), u(6e-6, 16e-6)
    # memory
    m["ctx"], m["resident"] = u(1.0, 2.0), r.choice([0, 0, 0, u(7.5, 9.0)])
    m["graph_gib"], m["estimate"] = u(2.2, 3.8), u(.3, .55)
    m["frag"], m["frag_mtok"] = u(.6, 1.4), u(.9, 1.9)
    # what does not start in this build: drawn until about two in five of the space are gone
    dead, p, alive = {}, r.random, .92
    m["dead_lin"], m["next_n"], m["next_n_mxfp4"] = {}, 8, 8
    m["bf16_indexer4"], m["dead_overlap"], m["dead_dspark_dynamic"], m["dead_dspark"] = p() < .8, p() < .4, False, False
    if p() < .65:
        dead["deep_gemm_mega_moe"] = r.choice([
            "RuntimeError: symm_mem: rendezvous on a group of world size 1 is not supported (deep_gemm.get_symm_buffer_for_mega_moe)",
            "NotImplementedError: DeepSeek V4 MegaMoE currently requires expert parallel over more than one rank (ep_size=1)"])
        alive *= .91
    texts = {"deep_gemm": "ValueError: Mxfp4 MoE backend 'DEEPGEMM' does not support the deployment configuration since swiglu_limit is not implemented",
             "triton_unfused": "RuntimeError: PassManager::run failed: ptxas fatal : Value 'sm_103a' is not defined for option 'gpu-name'",
             "marlin": "RuntimeError: Marlin MXFP4 MoE: moe_wna16_marlin_gemm: no kernel image is available for execution on the device (sm_103)"}
    few = [("deep_gemm", .18), ("triton_unfused", .18), ("marlin", .18), ("lin_fi", .2), ("lin_marlin", .2),
           ("next_n4", .22), ("next_n6", .12), ("dspark_dynamic", .25), ("dspark", .33)]
    r.shuffle(few)
    for name, mass in few:
        if alive * (1 - mass) < .55 or name == m["auto_moe"]:
            continue
        alive *= 1 - mass
        if name in texts:
            dead[name] = texts[name]
        elif name == "lin_fi":
            m["dead_lin"]["flashinfer_cutlass"] = "RuntimeError: [FP8 gemm_groupwise runner] failed: no kernel image is available for execution on the device (compute capability 10.3)"
        elif name == "lin_marlin":
            m["dead_lin"]["marlin"] = "ValueError: Linear backend MARLIN cannot serve weight_scale_inv of type float8_e8m0fnu"
        elif name == "dspark":
            m["dead_dspark"] = True
        elif name == "dspark_dynamic":
            m["dead_dspark_dynamic"] = True
        else:
            m["next_n"] = min(m["next_n"], int(name[-1]))
            m["next_n_mxfp4"] = r.choice([m["next_n"], 8])
    m["dead_moe"] = dead
    m["noise"] = u(.006, .022)
    m["tell"] = seed % 3
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
    kv16 = a("kv-cache-dtype", "fp8") == "bfloat16"
    asked_att = a("attention-backend") or "auto"
    att = "FLASHMLA_SPARSE_DSV4" if asked_att == "auto" else asked_att
    level = int(a("optimization-level", 2))
    method = a("speculative-config.method")
    k = int(a("speculative-config.num_speculative_tokens", 0)) if method else 0
    schedule = a("speculative-config.num_speculative_tokens_per_batch_size")
    asyn = bool(a("async-scheduling", True))
    cg = a("compilation-config.cudagraph_mode") or ("FULL_AND_PIECEWISE" if level >= 2 else "PIECEWISE")
    asked_moe = a("moe-backend") or "auto"
    moe = m["auto_moe"] if asked_moe == "auto" else asked_moe
    asked_lin = a("linear-backend") or "auto"
    lin = m["auto_lin"] if asked_lin == "auto" else asked_lin
    ep = bool(a("enable-expert-parallel", False))
    api, stream = int(a("api-server-count", 1)), int(a("stream-interval", 1))
    prefix = bool(a("enable-prefix-caching", True))
    overlap = str(env.get("VLLM_DISABLE_SHARED_EXPERTS_STREAM", "0")) not in ("1", "true", "True")
    mx4 = a("attention-config.indexer_kv_dtype") == "mxfp4"
    tune = bool(a("enable-flashinfer-autotune", True))
    effective = {}

    # ---- what does not start
    if method == "dspark":
        if m["dead_dspark"]:
            raise Dead("spec-model", "ValueError: method 'dspark' needs the DSpark drafter's weights (model.dspark.*), the checkpoint deepseek-ai/DeepSeek-V4-Flash of this snapshot has none")
        if schedule and m["dead_dspark_dynamic"]:
            raise Dead("spec-dynamic", "ValueError: num_speculative_tokens_per_batch_size: DSpark drafts its whole block at once, a depth of 0 is not supported")
    if kv16 and att == "FLASHMLA_SPARSE_DSV4":
        raise Dead("kv-dtype", "ValueError: the fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16")
    if kv16 and mx4 and m["bf16_indexer4"]:
        raise Dead("indexer", "AssertionError: indexer_kv_dtype=mxfp4 shares its page with an fp8 kv-cache, kv_cache_dtype is bfloat16")
    if moe == "deep_gemm_mega_moe" and not ep:
        raise Dead("megamoe-ep", "NotImplementedError: DeepSeek V4 MegaMoE currently requires expert parallel")
    if moe in m["dead_moe"]:
        raise Dead("moe-kernel", m["dead_moe"][moe])
    if lin in m["dead_lin"]:
        raise Dead("linear-kernel", m["dead_lin"][lin])
    if method and att == "FLASHMLA_SPARSE_DSV4":
        limit = m["next_n_mxfp4"] if mx4 else m["next_n"]
        if k + 1 > limit:
            raise Dead("next-n", f"RuntimeError: Assertion error (csrc/apis/attention.hpp): next_n <= {limit}: fp8_paged_mqa_logits got next_n = {k + 1}", (k + 1 - limit) / limit)
    if asked_att == "auto":
        effective["attention-backend"] = att
    if asked_moe == "auto":
        effective["moe-backend"] = moe
    if asked_lin == "auto":
        effective["linear-backend"] = lin

    # ---- memory
    weights = 160e9 / GIB + (6.6 if method == "dspark" else 0) + (3.0 if moe == "marlin" else 0)
    capture = int(a("compilation-config.max_cudagraph_capture_size", min(seqs * (1 + k) * 2, m["capture_cap"])))
    work = {"deep_gemm": 1.3, "marlin": 1.1, "triton_unfused": 1.4, "deep_gemm_mega_moe": 1.6}.get(moe, 1.0)
    act = 1.4 + mtok * (TOPK + 1) * 12288 * 1.2 * work / GIB + min(seqs, mtok) * VOCAB * 12 / GIB
    share = {"FULL_AND_PIECEWISE": 1.0, "FULL": .7, "FULL_DECODE_ONLY": .55, "PIECEWISE": .5}[cg]
    graphs = m["graph_gib"] * share * (.35 + .65 * capture / 512) ** .85 + (.6 if mode == "interactivity" else 0)
    free = MEM - m["ctx"] - m["resident"]
    if gmu * MEM > free:
        raise Dead("free-mem", f"Free memory on device cuda:0 ({free:.2f}/{MEM} GiB) on startup is less than desired GPU memory utilization ({gmu}, {gmu * MEM:.2f} GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.", gmu * MEM - free)
    slack = free - gmu * MEM
    kv_gib = gmu * MEM - weights - act - graphs * m["estimate"] - 1.0
    if kv_gib <= .5:
        raise Dead("no-kv", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", .5 - kv_gib)
    late = graphs * (1 - m["estimate"])
    tuning = m["tune_gib"] * (mtok / 8192) ** .7 if tune and moe == "flashinfer_trtllm" else 0
    if tuning > slack:
        raise Dead("autotune-oom", f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tuning:.2f} GiB (flashinfer autotuner, trtllm_fp4_block_scale_moe, {mtok} tokens)", tuning - slack, "profile")
    if late > slack:
        raise Dead("capture-oom", f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {52 * late:.0f}.00 MiB while capturing CUDA graphs ({capture} tokens); if this persists set VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0", late - slack, "capture")
    if m["dead_overlap"] and overlap and cg == "FULL" and moe in ("deep_gemm", "deep_gemm_mega_moe", "triton_unfused"):
        raise Dead("capture-stream", "torch.AcceleratorError: CUDA error: operation failed due to a previous error during capture (shared_experts_stream was not joined before cudaStreamEndCapture)", None, "capture")
    running = float(min(conc, seqs, kv_gib * GIB / (6230 if kv16 else 3850) / (INPUT + OUTPUT)))
    active = bool(method) and (not schedule or any(lo <= running <= hi and d > 0 for lo, hi, d in schedule))
    drafts = k if active else 0
    spike = m["frag"] + m["frag_mtok"] * (mtok / 8192) ** .9 * work + running * drafts * VOCAB * 9 / GIB
    if late + spike > slack:
        raise Dead("cuda-oom", f"EngineCore died during the benchmark: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {spike * .4:.2f} GiB. GPU 0 has a total capacity of {MEM} GiB of which {max(slack - late, 0) * .5:.2f} GiB is free.", late + spike - slack, "measure")

    # ---- graphs that are really used
    if method and schedule and cg != "PIECEWISE":
        cg = "PIECEWISE"
        effective["compilation-config.cudagraph_mode"] = cg
    piecewise = cg == "PIECEWISE" or (cg == "FULL_AND_PIECEWISE" and att == m["lost_graph"])

    # ---- one step
    e_bw, e_c, peak = m["moe"][moe]
    if moe == "flashinfer_trtllm":
        e_bw, e_c = (e_bw * m["tune_gain"] ** .5, e_c * m["tune_gain"]) if tune else (e_bw, e_c)
    kernels = {"interactivity": m["inter"], "throughput": m["thr"]}.get(mode, 1)

    def gpu(tokens, heads):
        touched = 1 - (1 - TOPK / EXPERTS) ** tokens
        per = tokens * TOPK / EXPERTS
        eff = e_c * per / (per + m["m_half"])
        t = soft(3, EXPERT_BYTES * touched / (BW * e_bw), tokens * F_MOE / (peak * 1e12 * eff))
        t *= 1 + (m["ep_cost"] if ep and moe != "deep_gemm_mega_moe" else 0)
        if overlap:
            t *= 1 - m["overlap_gain"] if tokens < m["overlap_to"] else 1 + m["overlap_loss"]
        t += soft(3, DENSE_BYTES / (BW * .7), tokens * F_DENSE / (4500e12 * m["lin"][lin]))
        t += soft(3, HEAD_BYTES / (BW * .8), heads * F_HEAD / (2250e12 * .5)) + heads * VOCAB * 16 / (BW * .6)
        t += tokens * (m["att"][att] * (m["bf16_att"] if kv16 else 1) + m["indexer"] * (m["indexer4"] if mx4 else 1)) * (m["full_cost"] if cg == "FULL" else 1)
        return t / kernels + m["fixed"] * (m["o1_fixed"] if level < 2 else 1)

    batch = max(1.0, running)
    gain = 1 + (GAIN[method][k - 1] - 1) * m["text"] if drafts else 1.0
    tokens = batch * (1 + drafts)
    host = (m["h0"] + m["h1"] * batch * (1 + (m["hash"] if prefix else 0))) * (1 + m["api_tax"] * (api - 1))
    draft = 0.0
    if method:
        host += .6e-3
        if active:
            host += batch * 5e-6
            draft = k * (m["mtp_ms"] + batch * 1.2e-6) if method == "mtp" else m["dspark_ms"] + batch * k * 1.6e-6
            draft += tokens * m["verify"]
    front = batch * gain * (m["c_tok"] + m["c_msg"] / max(stream, gain)) / api ** m["api_pow"]

    def step(compute, captured, piece):
        if not captured:
            compute = soft(6, compute * 1.05, m["launch"])
        elif piece:
            compute += m["piece"]
        engine = soft(5, compute, host) if asyn else compute + host
        return soft(5, engine, front) * (1 + m["burst"] * stream / 16)

    t_decode = step(gpu(tokens, tokens) + draft, tokens <= capture, piecewise)
    budget = max(mtok - tokens, .1 * mtok)
    mixed = max(m["arrivals"] * (batch / 256) ** .5, batch * INPUT / budget)
    chunk = batch * INPUT / mixed
    # mixed steps are of many sizes: the larger the graphs, the more of them are covered
    covered = 0.0 if cg == "FULL_DECODE_ONLY" else min(1.0, capture / (chunk + tokens)) ** 1.5
    t_mixed = sum(w * step(gpu(chunk + tokens, tokens + chunk / INPUT) + draft, w_captured, cg != "FULL") for w, w_captured in ((covered, True), (1 - covered, False)) if w)
    steps = OUTPUT / gain
    wave = mixed * t_mixed + max(0.0, steps - mixed) * t_decode
    wave *= 1 + .15 * batch / requests
    value = batch * OUTPUT / wave
    metrics = {"latency/tpot_p50": 1e3 * wave / OUTPUT, "latency/ttft_p99": 1e3 * (wave * max(0, conc / batch - 1) + mixed * t_mixed), "throughput/requests": value / OUTPUT, "throughput/total": value * (INPUT + OUTPUT) / OUTPUT}
    if m["tell"] <= 1:
        per_token = 6230 if kv16 else 3850
        kv_tokens = int(kv_gib * GIB / per_token // 256 * 256)
        metrics.update({"engine/running_mean": .95 * batch, "engine/running_max": float(math.ceil(batch)), "engine/kv_usage_max": min(1.0, batch * (INPUT + OUTPUT) / kv_tokens)})
        if method:
            metrics["engine/acceptance_length"] = gain
        effective["kv-cache-tokens"] = kv_tokens
    out = {"value": value, "metrics": metrics, "effective": effective if m["tell"] <= 1 else {}}
    if m["tell"] == 0:
        out["steps"] = [[max(1, int(b)), step(gpu(b * (1 + drafts), b * (1 + drafts)) + draft, b * (1 + drafts) <= capture, piecewise)] for b in (batch, batch * .6)]
    return out


#COMMON
PAIRS = [("moe_backend", "enable_expert_parallel"), ("speculation", "spec_tokens"), ("spec_tokens", "capture"), ("speculation", "capture"), ("speculation", "spec_schedule"), ("attention_backend", "spec_tokens"), ("attention_backend", "speculation"), ("attention_backend", "indexer_kv_dtype"), ("attention_backend", "kv_cache_dtype"), ("max_num_seqs", "gpu_memory_utilization"), ("cudagraph_mode", "speculation"), ("moe_backend", "spec_tokens"), ("moe_backend", "shared_experts_stream")]
BASE = {"max-model-len": 1024, "kv-cache-dtype": "fp8", "block-size": 256}


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
