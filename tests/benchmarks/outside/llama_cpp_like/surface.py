#!/usr/bin/env python3
"""A llama-server-like engine on a desktop: one GPU of 16 GB, 16 CPU cores, a 14B model. See ABOUT.md. Standard library only."""

import json
import math
import os
import random
import sys

GIB, MIB = 1024.0**3, 1024.0**2
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 48, 5120, 40, 8, 128, 152064
PARAMS, TRAINED = 14.77e9, 32768
CLIENTS, P_IN, OUT = 12, 1000, 300
REQUEST = P_IN + OUT
CORES = 16

BASE = {}
MAPPING = {"mmap": {}, "mlock": {"mlock": True}, "no-mmap": {"no-mmap": True}}
BITS = {"f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q5_1": 6.0, "q4_0": 4.5}
DRAFTS = {"draft-0.5b-q8_0.gguf": (0.49e9, 0.52e9, 24, 2, 64), "draft-1.5b-q4_k_m.gguf": (1.54e9, 0.99e9, 28, 2, 128),
          "draft-3b-q4_k_m.gguf": (3.09e9, 1.93e9, 36, 2, 128)}   # parameters, bytes, layers, kv heads, head size


def logs(low, high, n):
    return sorted({int(round(low * (high / low) ** (i / (n - 1)))) for i in range(n)})


SPACE = {
    "threads": {"flag": "threads", "low": 1, "high": 32},
    "threads_batch": {"flag": "threads-batch", "low": 1, "high": 32},
    "batch_size": {"flag": "batch-size", "values": [128, 256, 512, 1024, 2048, 4096]},
    "ubatch_size": {"flag": "ubatch-size", "values": [32, 64, 128, 256, 512, 1024, 2048]},
    "parallel": {"flag": "parallel", "low": 1, "high": 24, "log": True, "grid": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 20, 24]},
    "ctx_size": {"flag": "ctx-size", "low": 8192, "high": 32768, "log": True, "grid": logs(8192, 32768, 45)},
    "kv_unified": {"flag": "kv-unified", "values": [False, True]},
    "n_gpu_layers": {"flag": "n-gpu-layers", "low": 24, "high": 49},
    "cache_type_k": {"flag": "cache-type-k", "values": ["f16", "q8_0", "q5_1", "q4_0"]},
    "cache_type_v": {"flag": "cache-type-v", "values": ["f16", "bf16", "q8_0", "q4_0"]},
    "flash_attn": {"flag": "flash-attn", "values": ["auto", "on", "off"]},
    "mapping": {"values": list(MAPPING), "render": lambda v: (MAPPING[v], {})},
    "model_draft": {"flag": "model-draft", "values": ["default", *DRAFTS]},
    "draft_max": {"flag": "draft-max", "low": 1, "high": 16, "log": True, "grid": [1, 2, 3, 4, 5, 6, 8, 10, 12, 16],
                  "when": lambda c: c.get("model_draft", "default") != "default"},
}
for _spec in SPACE.values():
    if "grid" not in _spec:
        _spec["grid"] = _spec.get("values") or list(range(_spec["low"], _spec["high"] + 1))
STRUCTURE = ("model_draft", "kv_unified", "flash_attn")
PAIR_MOVES = 2500


def norm(a, b, p=3.0):
    return (a**p + b**p) ** (1.0 / p)


def structured(machine):
    """Starts that random draws hardly meet: contexts that just do for the slots, as many layers as fit."""
    pool = []
    drafts = [("default", 1)] + [(d, k) for d in DRAFTS for k in (1, 2, 4, 8)]
    for tk, tv, fa in (("f16", "f16", "on"), ("f16", "f16", "off"), ("q8_0", "q8_0", "on"), ("q4_0", "q4_0", "on"), ("q8_0", "q4_0", "on"), ("f16", "bf16", "on")):
        for ub in SPACE["ubatch_size"]["values"][2:]:
            for slots in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12):
                for unified in (False, True):
                    need = slots * (REQUEST + 8)
                    ctx = min((g for g in SPACE["ctx_size"]["grid"] if g >= need), default=32768)
                    for draft, k in drafts:
                        choice = {"threads": min(8, machine.fast_cores), "threads_batch": 8, "batch_size": 2048, "ubatch_size": ub, "parallel": slots,
                                  "ctx_size": ctx, "kv_unified": unified, "cache_type_k": tk, "cache_type_v": tv, "flash_attn": fa, "mapping": "no-mmap",
                                  "model_draft": draft, "draft_max": k}
                        for ngl in range(LAYERS + 1, LAYERS - 16, -1):
                            value = score(machine, tidy({**choice, "n_gpu_layers": ngl}))
                            if value > 0:
                                pool.append((value, len(pool), tidy({**choice, "n_gpu_layers": ngl})))
                                break
    pool.sort(key=lambda item: (-item[0], item[1]))
    # the best of each kind of cache, number of slots and draft
    seen, out = set(), []
    for _, _, choice in pool:
        key = (choice["cache_type_k"], choice["parallel"], choice["model_draft"])
        if key not in seen:
            seen.add(key)
            out.append(choice)
        if len(out) >= 10:
            break
    return out


class Machine:
    def __init__(self, seed):
        self.seed = seed
        r = random.Random(1543 * seed + 7)
        u = r.uniform
        self.noise_launch, self.noise_run = u(0.006, 0.018), u(0.008, 0.025)
        self.weights = u(11.0, 12.9) * GIB            # Q6_K, Q6_K_L
        self.output = 0.055 * self.weights
        self.card = 15.60 * GIB - u(0.45, 1.5) * GIB  # what the desktop leaves
        self.context_gib = u(0.30, 0.50)
        self.gpu_bw = u(620e9, 960e9) * u(0.66, 0.84)
        self.vec = u(0.012, 0.060)                    # a further sequence in the vector kernels, up to 8
        self.jump = u(0.95, 1.45)                     # the matrix kernels that take over
        self.mmq = u(38e12, 85e12)
        self.mmq0 = u(10, 34)
        self.ub0 = u(60, 200)
        self.big_ub = u(0.80, 1.04)                   # above 1024
        self.launch = u(20e-6, 60e-6)                 # per layer and graph
        self.pcie = u(9e9, 24e9)
        self.fast_cores = r.choice([6, 8, 8, 12, 16])  # the rest are slow ones
        self.slow = u(0.42, 0.68)
        self.smt = u(0.55, 0.85)
        self.core = u(90e9, 170e9)
        self.ram = u(48e9, 84e9)
        self.ram_th = u(3.5, 8.0)
        self.no_mmap = u(1.02, 1.18)
        self.mlock = u(1.0, 1.06)
        self.mlock_limit = r.random() < 0.3           # `ulimit -l` is small: a warning only
        self.barrier = u(1.0e-6, 4.0e-6)
        self.polls = u(0.02e-3, 0.11e-3)              # what spinning threads cost each step
        self.sample = u(0.15e-3, 0.7e-3)              # per token, on one core
        self.server = u(0.6e-3, 2.2e-3)
        self.attn_fa, self.attn_plain = u(0.45, 0.75), u(0.22, 0.46)
        self.fa_prompt, self.plain_prompt = u(24e12, 46e12), u(9e12, 22e12)
        self.fa_bits = {"f16": 1.0, "bf16": u(0.75, 1.0), "q8_0": u(0.70, 1.05), "q5_1": u(0.35, 0.65), "q4_0": u(0.35, 0.85)}
        self.all_quants = r.random() < 0.5            # built with GGML_CUDA_FA_ALL_QUANTS
        self.bf16_fa = r.random() < 0.7
        self.unified_cost = u(1.15, 2.4)
        self.auto_fa = r.random() < 0.9               # auto stays on although layers lie on the CPU
        self.margin = 1.0
        self.together = r.random() < 0.5              # the server drafts for all slots in one batch
        self.accept = {}
        self.surely = {}
        base = u(0.52, 0.70)
        for name, more in zip(DRAFTS, (0.0, u(0.02, 0.09), u(0.06, 0.15))):
            self.accept[name] = min(0.88, base + more)
            self.surely[name] = min(0.92, base + more + u(0.05, 0.12))
        self.draft_step = u(0.7e-3, 1.6e-3)
        self.vocab_off = r.choice([None, None, None, None, None, *DRAFTS])
        self.hole = u(0.04, 0.14)                     # fragmented unified cache

    def cpu_speed(self, threads):
        """Cores' worth of work: split evenly, so slow cores hold the fast ones up."""
        if threads <= self.fast_cores:
            eff = float(threads)
        elif threads <= CORES:
            mixed = self.fast_cores + (threads - self.fast_cores) * self.slow
            even = threads * self.slow
            eff = 0.45 * even + 0.55 * mixed
        else:
            full = self.fast_cores + (CORES - self.fast_cores) * self.slow
            eff = full * (1.0 - (1.0 - self.smt) * min(1.0, (threads - CORES) / 8.0))
        if threads >= CORES:
            eff *= 0.90                               # none is left for the server and the driver
        return eff

    def measure(self, arguments, environment):
        a = arguments
        threads = int(a.get("threads", CORES))
        tb = int(a.get("threads-batch", threads))
        batch = int(a.get("batch-size", 2048))
        ub = min(int(a.get("ubatch-size", 512)), batch)
        slots = int(a.get("parallel", 4))
        ctx = int(a.get("ctx-size", 8192))
        unified = truth(a.get("kv-unified", False))
        tk, tv = a.get("cache-type-k", "f16"), a.get("cache-type-v", "f16")
        fa_asked = str(a.get("flash-attn", "auto"))
        draft = a.get("model-draft")
        k = int(a.get("draft-max", 16))
        no_mmap, mlock = truth(a.get("no-mmap", False)), truth(a.get("mlock", False))
        ngl_asked = a.get("n-gpu-layers")
        warnings = []

        slot_ctx = ctx if unified else ctx // slots
        if slot_ctx > TRAINED:
            warnings.append(f"n_ctx_seq ({slot_ctx}) > n_ctx_train ({TRAINED}) -- possible training context overflow")
        busy_slots = min(slots, CLIENTS)
        if slot_ctx < REQUEST + 8:
            raise Dead("context", f"request ({REQUEST} tokens) exceeds the available context size ({slot_ctx} tokens), try increasing it "
                       f"(n_ctx = {ctx}, n_parallel = {slots})", REQUEST / slot_ctx - 1 + 0.01, "serve")
        if unified and busy_slots * REQUEST > 1.3 * ctx:
            raise Dead("context", f"decode: failed to find a memory slot for batch of size {busy_slots}; srv: Context size has been exceeded "
                       f"({busy_slots} sequences share {ctx} cells)", busy_slots * REQUEST / (1.3 * ctx) - 1 + 0.01, "serve")

        # --- where the layers go
        layer = (self.weights - self.output) / LAYERS
        kvb = LAYERS * KV_HEADS * HEAD_DIM * (BITS[tk] + BITS[tv]) / 8.0     # per token, all layers
        flash_possible = fa_asked != "off"

        def used(n, flash):
            share = min(n, LAYERS) / LAYERS
            total = min(n, LAYERS) * layer + (self.output if n > LAYERS else 0.0) + ctx * kvb * share
            logits = ub * VOCAB * 4.0 if n > LAYERS else 0.0
            hidden = ub * HIDDEN * 4.0 * 9.0
            scores = 0.0 if flash else HEADS * ub * min(slot_ctx, TRAINED) * 4.0 * 1.1
            if n > 0:
                total += logits + hidden + scores + self.context_gib * GIB
                if n < LAYERS + 1:
                    total += layer                     # space to copy what lies on the host
            if draft:
                p, b, dl, dk, dh = DRAFTS[draft]
                total += b + ctx * 2.0 * dl * dk * dh * 2.0 + 64 * VOCAB * 4.0 + 0.12 * GIB
            return total

        if draft and draft not in DRAFTS:
            raise Dead("draft", f"failed to load draft model, '{draft}'", None, "load")
        if ngl_asked is None:
            ngl = LAYERS + 1
            while ngl > 0 and used(ngl, flash_possible) > self.card - self.margin * GIB:
                ngl -= 1
        else:
            ngl = min(int(ngl_asked), LAYERS + 1)
        on_gpu = min(ngl, LAYERS)
        flash = fa_asked == "on" or (fa_asked == "auto" and (on_gpu == LAYERS or self.auto_fa))
        if fa_asked == "auto" and not flash:
            warnings.append("Flash Attention was auto, set to disabled: layer 0 is assigned to device CPU but the Flash Attention tensor is "
                            "assigned to device CUDA0")
        if BITS[tv] < 16 and not flash:
            raise Dead("v-cache", f"llama_init_from_model: quantized V cache was requested ({tv}), but this requires Flash Attention", None, "context")
        need = used(ngl, flash)
        if need > self.card:
            missing = (need - self.card) / MIB
            what = "KV buffer" if ctx * kvb * on_gpu / LAYERS > 0.5 * min(ngl, LAYERS) * layer else "buffer"
            raise Dead("cuda-oom", f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {missing + 512:.2f} MiB on device 0: cudaMalloc failed: "
                       f"out of memory; llama_init_from_model: failed to allocate {what}", missing / 1024, "load")
        if draft and draft == self.vocab_off:
            warnings.append(f"the target and draft vocabs are not compatible - tokens will be translated between the two ('{draft}')")

        # --- fused attention has kernels for equal types only, unless built with all of them
        mixed_types = flash and tk != tv and not self.all_quants and {tk, tv} != {"f16", "bf16"}
        lost = flash and ("bf16" in (tk, tv)) and not self.bf16_fa
        on_host = mixed_types or lost
        if on_host:
            warnings.append("flash attention of these cache types has no CUDA kernel; it runs on the CPU (graph splits = %d)" % (2 * LAYERS + 2))

        # --- decode
        S = float(busy_slots)
        slow = 1.0
        if unified and S * REQUEST > ctx:
            slow += self.hole * (1 + 3 * (S * REQUEST / ctx - 1))
            S = max(1.0, ctx / REQUEST)
        off = LAYERS - on_gpu
        out_gpu = ngl > LAYERS
        host_bytes = off * layer + (0 if out_gpu else self.output)
        gpu_bytes = self.weights - host_bytes
        host_frac = host_bytes / self.weights
        map_gain = self.no_mmap if no_mmap else (self.mlock if mlock and not self.mlock_limit else 1.0)
        if mlock and self.mlock_limit:
            warnings.append("warning: failed to mlock 1048576000-byte buffer: Cannot allocate memory. Try increasing RLIMIT_MEMLOCK ('ulimit -l' as root).")
        kv_eff = self.fa_bits[tk] ** 0.5 * self.fa_bits[tv] ** 0.5 if flash else (1.0 if BITS[tk] == 16 else 0.7)

        def gpu_matmul(n, bytes_, frac):
            if n <= 8:
                return bytes_ / self.gpu_bw * (1 + self.vec * (n - 1))
            return self.jump * norm(bytes_ / self.gpu_bw, 2 * PARAMS * frac * n / (self.mmq * n / (n + self.mmq0)), 4)

        def host_matmul(n, bytes_, frac, th):
            speed = self.cpu_speed(th)
            ram = self.ram * map_gain * (1 - math.exp(-min(th, CORES) / self.ram_th)) * (0.9 if th > CORES else 1.0)
            return norm(bytes_ / ram, 2 * PARAMS * frac * n / (speed * self.core * map_gain**0.5)) + off * 9 * self.barrier * th * (2.5 if th >= CORES else 1.0)

        def attention(n, seqs):
            """Reading the cache once for each sequence's tokens."""
            cells = (P_IN + OUT / 2) * seqs
            flat = cells * kvb
            times = 1 + 0.12 * (n / seqs - 1)
            if unified:
                times *= 1 + (self.unified_cost - 1) * min(1.0, (seqs - 1) / 7)
            share = on_gpu / LAYERS
            gpu = share * flat * times / (self.gpu_bw * (self.attn_fa if flash else self.attn_plain) * kv_eff)
            host_bw = self.ram * 0.6 * (1 - math.exp(-min(threads, CORES) / self.ram_th))
            host = (1 - share) * flat * times / host_bw
            if on_host:
                gpu = share * flat * times / (host_bw * 0.6) + LAYERS * 90e-6
            return gpu + host

        def decode(n, seqs):
            t = gpu_matmul(n, gpu_bytes, 1 - host_frac) if gpu_bytes > 0 else 0.0
            if host_bytes > 0:
                if n >= 32 and ngl > 0:
                    t += min(host_bytes / self.pcie + 0.2e-3 * off, host_matmul(n, host_bytes, host_frac, tb))
                else:
                    t += host_matmul(n, host_bytes, host_frac, threads)
                if ngl > 0:
                    t += 0.35e-3
            t += attention(n, seqs) + LAYERS * self.launch
            t += self.polls * (threads if threads < CORES else threads * 2.2)
            return t + self.sample * n + self.server

        if draft:
            p, b, dl, dk, dh = DRAFTS[draft]
            alpha, sure = self.accept[draft], self.surely[draft]
            if draft == self.vocab_off:
                alpha, sure = 0.75 * alpha, 0.85 * sure
            drafted = (1 - sure ** k) / (1 - sure)
            gained = (1 - alpha ** (drafted + 1)) / (1 - alpha)
            one = b / (self.gpu_bw * 0.55) + self.draft_step
            rounds = drafted * (1 + 0.10 * (S - 1)) if self.together else drafted * S
            step = decode(S * (1 + drafted), S) + rounds * one
        else:
            gained, drafted = 1.0, 0.0
            step = decode(S, S)

        # --- prompts: `batch-size` tokens an iteration, in pieces of `ubatch-size`
        room = max(16.0, batch - S)
        piece = min(ub, room, P_IN * 1.0)
        share = on_gpu / LAYERS
        gpu_rate = self.mmq * piece / (piece + self.ub0) * (self.big_ub if piece > 1024 else 1.0)
        body = 0.945 * PARAMS                         # of a prompt, one token alone needs the output matrix
        t_piece = 2 * body * share * piece / gpu_rate + LAYERS * self.launch
        if off > 0:
            by_host = host_matmul(piece, off * layer, 0.945 * (1 - share), tb)
            by_link = off * layer / self.pcie + 2 * body * (1 - share) * piece / gpu_rate + 0.2e-3 * off
            t_piece += min(by_host, by_link) if ngl > 0 and piece >= 32 else by_host
        work = 4.0 * HEADS * HEAD_DIM * LAYERS * (P_IN / 2) * piece * (self.unified_cost ** 0.6 if unified and S > 1 else 1.0)
        t_piece += work * share / ((self.fa_prompt if flash else self.plain_prompt) * kv_eff) if not on_host else work * share / (self.core * 0.5 * self.cpu_speed(tb))
        if share < 1:
            t_piece += work * (1 - share) / (self.core * 0.5 * self.cpu_speed(tb))
        t_piece += self.polls * tb * 0.5
        per_prompt = P_IN / piece * t_piece + math.ceil(P_IN / room) * self.server
        if draft:
            p = DRAFTS[draft][0]
            per_prompt += 2 * p * P_IN / (self.mmq * 0.5)
        # while one prompt is read, all slots wait
        per_request = OUT / gained * step / S * slow + per_prompt
        rate = OUT / per_request
        hold = per_request * S
        total = CLIENTS * per_request
        metrics = {"latency/tpot_p50": 1000 * (step / gained * slow + per_prompt * S / OUT), "latency/ttft_p50": 1000 * max(per_prompt, total - hold + per_prompt),
                   "latency/ttft_p99": 1000 * (max(per_prompt, total - hold) * 1.6 + 2 * per_prompt)}
        return {"value": rate, "metrics": metrics, "effective": {"n-gpu-layers": ngl} if ngl_asked is None else {}, "warnings": warnings,
                "parts": {"step": step, "prompt": per_prompt, "ngl": ngl, "used": need / GIB, "card": self.card / GIB, "gained": gained, "drafted": drafted}}


# ---------------------------------------------------------------------------------------------------------------------
# protocol, optimum
class Dead(Exception):
    def __init__(self, kind, cause, violation=None, phase="start", advice=None):
        super().__init__(cause)
        self.kind, self.cause, self.violation, self.phase, self.advice = kind, cause, violation, phase, advice


def flatten(arguments, prefix=""):
    out = {}
    for key, value in arguments.items():
        name = prefix + str(key)
        if isinstance(value, dict):
            out.update(flatten(value, name + "."))
        else:
            out[name] = value
    return out


def truth(value):
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "on", "yes")
    return bool(value)


def active(choice, name):
    when = SPACE[name].get("when")
    return when is None or when(choice)


def tidy(choice):
    """Only what exists beside the others, in the order of the space."""
    out = {}
    for name in SPACE:
        if name in choice and active(out, name):
            out[name] = choice[name]
    return out


def complete(choice, rng):
    out = {}
    for name, spec in SPACE.items():
        if active(out, name):
            out[name] = choice[name] if name in choice else rng.choice(spec["grid"])
    return out


def draw(rng):
    """One uniformly random configuration of the profile's space."""
    out = {}
    for name, spec in SPACE.items():
        if not active(out, name):
            continue
        if "values" in spec:
            out[name] = rng.choice(spec["values"])
        elif spec.get("log"):
            out[name] = int(round(math.exp(rng.uniform(math.log(spec["low"]), math.log(spec["high"])))))
        elif "step" in spec:
            n = int(round((spec["high"] - spec["low"]) / spec["step"]))
            out[name] = round(spec["low"] + spec["step"] * rng.randint(0, n), 6)
        else:
            out[name] = rng.randint(spec["low"], spec["high"])
    return out


def rendered(choice):
    arguments, environment = dict(BASE), {}
    for name, value in tidy(choice).items():
        spec = SPACE[name]
        if "render" in spec:
            more, env = spec["render"](value)
            arguments.update(more)
            environment.update(env)
        elif value != "default":
            arguments[spec["flag"]] = value
    return arguments, environment


def score(machine, choice):
    arguments, environment = rendered(choice)
    try:
        return machine.measure(arguments, environment)["value"]
    except Dead:
        return -1.0


def climb(machine, start, rng):
    best, value = dict(start), score(machine, start)
    names = list(SPACE)
    stale = False
    while not stale:
        stale = True
        for name in rng.sample(names, len(names)):
            if name not in best:
                continue
            for option in SPACE[name]["grid"]:
                if option == best[name]:
                    continue
                trial = complete({**best, name: option}, rng)
                got = score(machine, trial)
                if got > value * 1.0002:
                    best, value, stale = trial, got, False
    # two and three at once
    for _ in range(PAIR_MOVES):
        trial = dict(best)
        for name in rng.sample([n for n in names if n in best], rng.choice((2, 2, 3))):
            trial[name] = rng.choice(SPACE[name]["grid"])
        trial = complete(trial, rng)
        got = score(machine, trial)
        if got > value * 1.0002:
            return climb(machine, trial, rng)
    return best, value


def search(machine, restarts=10, draws=4000, seed=1):
    rng = random.Random(seed)
    pool = []
    for _ in range(draws):
        choice = draw(rng)
        pool.append((score(machine, choice), len(pool), choice))
    pool.sort(reverse=True)
    # the best of each structure first, so that the restarts differ
    seen, starts = set(), []
    for value, _, choice in pool:
        key = tuple(str(choice.get(n)) for n in STRUCTURE)
        if value > 0 and key not in seen:
            seen.add(key)
            starts.append(choice)
        if len(starts) >= restarts:
            break
    if "structured" in globals():
        starts += structured(machine)
    found = [climb(machine, s, rng) for s in starts]
    found.sort(key=lambda item: -item[1])
    return found


def optimum(machine, again=False):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"optimum_{machine.seed}.json")
    if os.path.exists(path) and not again:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle)
    found = search(machine)
    choice, value = found[0]
    arguments, environment = rendered(choice)
    result = {"value": round(value, 3), "arguments": arguments, "environment": environment, "assignment": tidy(choice),
              "restarts": [round(v, 1) for _, v in found]}
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(result, handle)
        handle.write("\n")
    return result


def question():
    asked = json.load(sys.stdin)
    candidate = asked.get("candidate", asked)
    return asked, flatten(candidate.get("arguments") or {}), dict(candidate.get("environment") or {})


def main():
    machine = Machine(int(os.environ.get("SURFACE_SEED", "0") or 0))
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode == "--optimum":
        print(json.dumps(optimum(machine, again="--again" in sys.argv)))
        return
    if mode in ("--default", "--value"):
        arguments, environment = (dict(BASE), {}) if mode == "--default" else question()[1:]
        try:
            print(round(machine.measure(arguments, environment)["value"], 3))
        except Dead as dead:
            print(f"dead: {dead.cause}")
        return
    asked, arguments, environment = question()
    try:
        got = machine.measure(arguments, environment)
    except Dead as dead:
        failure = {"kind": dead.kind, "cause": dead.cause, "phase": dead.phase}
        if dead.violation is not None:
            failure["violation"] = round(max(1e-3, dead.violation), 4)
        if dead.advice:
            failure["advice"] = dead.advice
        print(json.dumps({"protocol": 1, "status": "infeasible", "failure": failure}))
        return
    noise = random.Random(int(asked.get("seed") or 0) * 2654435761 % (1 << 61))
    launch = math.exp(noise.gauss(0.0, machine.noise_launch))
    runs = [got["value"] * launch * math.exp(noise.gauss(0.0, machine.noise_run)) for _ in range(3)]
    mean = sum(runs) / len(runs)
    metrics = {"throughput/output": mean}
    for name, value in got["metrics"].items():
        exact = name.startswith("engine/")
        metrics[name] = value if exact else value / launch * math.exp(noise.gauss(0.0, 1.5 * machine.noise_run))
    answer = {"protocol": 1, "status": "ok", "metrics": metrics, "samples": {"throughput/output": runs}}
    if got.get("effective"):
        answer["effective"] = got["effective"]
    if got.get("warnings"):
        answer["warnings"] = got["warnings"]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
