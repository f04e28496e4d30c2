#!/usr/bin/env python3
"""A server with vLLM's flags and an arbitrary response: random additive effects, pairwise interactions, cliffs, dead regions."""
import json
import math
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = int(os.environ.get("SURFACE_SEED", "0") or 0)

S, B, G, K, A = "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "block-size", "attention-backend"
MODE, CAP = "compilation-config.cudagraph_mode", "compilation-config.max_cudagraph_capture_size"
KV, PC, ASY, SI, Q = "kv-cache-dtype", "enable-prefix-caching", "async-scheduling", "stream-interval", "quantization"
SP, N = "speculative-config.method", "speculative-config.num_speculative_tokens"
SPACE = {
    S: [8, 16, 32, 64, 128, 256, 512], B: [512, 1024, 2048, 4096, 8192, 16384],
    G: [0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95], K: [16, 32, 64, 128], KV: ["auto", "fp8", "fp8_e5m2"],
    A: ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"], PC: [True, False], ASY: [True, False],
    MODE: ["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"], CAP: [16, 32, 64, 128, 256, 512],
    SI: [1, 2, 3, 4, 6, 8, 11, 16], Q: ["none", "fp8", "fp8_per_block"], SP: ["off", "ngram"], N: [1, 2, 3, 4, 5, 6, 7],
}
CATEGORICAL = {KV, A, PC, ASY, MODE, Q, SP}
DEFAULT = {S: 256, B: 2048, G: 0.9, K: 16, KV: "auto", A: "FLASH_ATTN", PC: True, ASY: True, MODE: "FULL_AND_PIECEWISE",
           CAP: 512, SI: 1, Q: "none", SP: "off", N: 3}
LINEAR = {G, N}
NUMERIC = [k for k in SPACE if k not in CATEGORICAL]

NAMING = [
    ("validation", "1 validation error for VllmConfig: Value error, {flag}={value} is not supported in this configuration."),
    ("backend", "NotImplementedError: {flag} {value} is not implemented for this platform."),
    ("value", "ValueError: Unsupported combination: {flags}."),
    ("cuda-oom", "torch.OutOfMemoryError: CUDA out of memory while {flag}={value} was being prepared. Tried to allocate 1.96 GiB."),
    ("assert", "AssertionError: expected {flag} to be compatible with the selected kernels, got {value}"),
]
MUTE = [
    ("crash", "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore_DP0': 1}}"),
    ("cuda-error", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("cuda-oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.44 GiB. GPU 0 has a total capacity of 79.10 GiB of "
     "which 1.02 GiB is free."),
    ("hang", "Timed out waiting for engine core processes to start (VLLM_ENGINE_READY_TIMEOUT_S=600)"),
    ("triton", "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 264192, Hardware limit: 232448."),
]


class Dead(Exception):
    def __init__(self, answer):
        super().__init__(answer["cause"])
        self.answer = answer


def unit(k, v):
    lo, hi = SPACE[k][0], SPACE[k][-1]
    if k in LINEAR:
        return (v - lo) / (hi - lo)
    return math.log(v / lo) / math.log(hi / lo)


def strip(a):
    a = dict(a)
    if a[MODE] == "NONE":
        a.pop(CAP, None)
    if a[SP] == "off":
        a.pop(N, None)
    return a


def pos(a):
    """Values → positions (numeric) or labels; what does not exist is absent."""
    a = strip(a)
    return {k: (v if k in CATEGORICAL else unit(k, v)) for k, v in a.items()}


class World:
    def __init__(self, sub):
        r = self.r = random.Random(sub)
        self.main = {}
        for k in SPACE:
            amp = min(1.2, math.exp(r.gauss(-1.5, 0.75)))
            if k in CATEGORICAL:
                self.main[k] = ("cat", {v: -amp * r.random() for v in SPACE[k]})
            elif r.random() < 0.5:
                self.main[k] = ("uni", amp, r.uniform(0.1, 0.9))
            else:
                self.main[k] = ("mono", amp * r.choice([-1, 1]), r.choice([0.5, 1.0, 2.0]))
        self.inter = []
        keys = list(SPACE)
        seen = set()
        while len(self.inter) < r.choice([3, 4, 5]):
            i, j = r.sample(keys, 2)
            if frozenset((i, j)) in seen:
                continue
            seen.add(frozenset((i, j)))
            amp = r.uniform(0.3, 0.65)
            if i in CATEGORICAL and j not in CATEGORICAL:
                i, j = j, i
            if i in CATEGORICAL:
                self.inter.append((i, j, "table", {(x, y): amp * r.uniform(-1, 1) for x in SPACE[i] for y in SPACE[j]}))
            elif j in CATEGORICAL:
                self.inter.append((i, j, "slope", {y: amp * r.uniform(-1, 1) for y in SPACE[j]}))
            else:
                self.inter.append((i, j, r.choice(["saddle", "ridge", "anti"]), amp * r.choice([-1, 1, 1])))
        self.cliffs = []
        for _ in range(2):
            c = [self.clause(r, r.choice(NUMERIC), 0.3, 0.6)]
            if r.random() < 0.6:
                k = r.choice(keys)
                if k != c[0][0]:
                    c.append(self.clause(r, k, 0.4, 0.75))
            self.cliffs.append((c, r.uniform(0.5, 1.0)))
        self.dead = []
        self.target = r.uniform(0.33, 0.46)
        probe = [pos({k: r.choice(v) for k, v in SPACE.items()}) for _ in range(500)]
        start = pos(DEFAULT)
        share = 0.0
        for _ in range(60):
            if share >= self.target - 0.03:
                break
            ks = r.sample(keys, 2 if r.random() < 0.7 else 1)
            c = [self.clause(r, k, *((0.25, 0.55) if len(ks) == 2 else (0.08, 0.25))) for k in ks]
            if self.holds(c, start):
                continue
            trial = [*self.dead, (c, None)]
            new = sum(any(self.holds(d[0], p) for d in trial) for p in probe) / len(probe)
            if new < share + 0.03 or new > self.target + 0.04:
                continue
            names = r.random() < 0.55
            self.dead.append((c, (names, r.choice(NAMING if names else MUTE), r.random() < 0.3)))
            share = new
        self.share = share
        self.top = r.uniform(3000, 15000)
        self.goal = r.uniform(0.33, 0.57)

    @staticmethod
    def clause(r, k, lo, hi):
        """A condition on one parameter that holds for about lo to hi of its values."""
        vs = SPACE[k]
        if k in CATEGORICAL:
            n = max(1, min(len(vs) - 1, round(len(vs) * r.uniform(lo, hi))))
            return (k, "in", tuple(r.sample(vs, n)))
        us = sorted(unit(k, v) for v in vs)
        n = max(1, min(len(vs) - 1, round(len(vs) * r.uniform(lo, hi))))
        if r.random() < 0.5:
            return (k, "<", (us[n - 1] + us[n]) / 2)
        return (k, ">", (us[-n - 1] + us[-n]) / 2)

    @staticmethod
    def holds(c, p):
        for k, op, x in c:
            if k not in p:
                return False
            if op == "in":
                if p[k] not in x:
                    return False
            elif (op == "<") != (p[k] < x):
                return False
        return True

    def z(self, p):
        t = 0.0
        for k, x in p.items():
            f = self.main[k]
            if f[0] == "cat":
                t += f[1][x]
            elif f[0] == "uni":
                t -= f[1] * ((x - f[2]) / max(f[2], 1 - f[2])) ** 2
            else:
                t += f[1] * max(x, 0.0) ** f[2]
        for i, j, kind, w in self.inter:
            if i not in p or j not in p:
                continue
            if kind == "table":
                t += w[(p[i], p[j])]
            elif kind == "slope":
                t += w[p[j]] * (2 * p[i] - 1)
            elif kind == "saddle":
                t += w * (2 * p[i] - 1) * (2 * p[j] - 1)
            elif kind == "ridge":
                t -= abs(w) * abs(p[i] - p[j])
            else:
                t -= abs(w) * abs(p[i] + p[j] - 1)
        for c, depth in self.cliffs:
            if self.holds(c, p):
                t -= depth
        return t

    def why(self, p, a):
        for c, how in self.dead:
            if self.holds(c, p):
                names, (kind, text), graded = how
                flag, value = c[-1][0], a.get(c[-1][0], DEFAULT[c[-1][0]])
                flags = " with ".join(f"--{k} {a.get(k, DEFAULT[k])}" for k, _, _ in c)
                cause = text.format(flag=flag, value=value, flags=flags)
                answer = {"kind": kind, "cause": cause, "phase": "start"}
                if graded and c[0][1] in "<>":
                    answer["violation"] = round(abs(p[c[0][0]] - c[0][2]) + 0.01, 3)
                return answer
        return None

    def zz(self, a):
        p = pos(a)
        if any(self.holds(c, p) for c, _ in self.dead):
            return -1e9
        return self.z(p)

    def climb(self, a, rng):
        best, keys, better = self.zz(a), list(SPACE), True
        while better:
            better = False
            rng.shuffle(keys)
            for k in keys:
                for v in SPACE[k]:
                    if v != a[k]:
                        t = {**a, k: v}
                        x = self.zz(t)
                        if x > best + 1e-9:
                            a, best, better = t, x, True
        return best, a

    def search(self, restarts=12, salt=0):
        rng = random.Random(17 + salt)
        ends = []
        for _ in range(restarts):
            ends.append(self.climb({k: rng.choice(v) for k, v in SPACE.items()}, rng))
        best, a = max(ends, key=lambda e: e[0])
        again = True
        while again:
            again = False
            keys = list(SPACE)
            for i, k in enumerate(keys):
                for m in keys[i + 1:]:
                    for v in SPACE[k]:
                        for w in SPACE[m]:
                            t = {**a, k: v, m: w}
                            x = self.zz(t)
                            if x > best + 1e-9:
                                best, a = self.climb(t, rng)
                                again = True
        return best, a, ends


def neighbours(a):
    for k, vs in SPACE.items():
        if (k == CAP and a[MODE] == "NONE") or (k == N and a[SP] == "off"):
            continue
        i = vs.index(a[k])
        for j in (range(len(vs)) if k in CATEGORICAL else (i - 1, i + 1)):
            if 0 <= j < len(vs) and j != i:
                yield {**a, k: vs[j]}


def draw():
    """The first sub-seed whose world keeps to what ABOUT.md promises; kept in world_N.json."""
    path = os.path.join(HERE, f"world_{SEED}.json")
    if os.path.exists(path):
        with open(path) as h:
            w = json.load(h)
        return World(w["sub"]), w["scale"], w["best"]
    for t in range(400):
        sub = 1_000_003 * (SEED + 1) + t
        w = World(sub)
        if not 0.30 <= w.share <= 0.5:
            continue
        d = w.zz(DEFAULT)
        quick = w.search(4)[0] if d > -1e8 else 0
        if d <= -1e8 or not 0.5 < -math.log(w.goal) / max(quick - d, 1e-9) < 1.6:
            continue
        best, a, _ = w.search(60)
        scale = -math.log(w.goal) / (best - d)
        near = [w.zz(n) for n in neighbours({**DEFAULT, **strip(a)})]
        good = sum(math.exp(scale * (x - best)) >= 0.85 for x in near) / len(near)
        if not 0.5 < scale < 1.6 or good < 0.6:
            continue
        with open(path, "w") as h:
            json.dump({"sub": sub, "scale": scale, "best": best, "near": good, "share": w.share, "tries": t}, h)
        with open(os.path.join(HERE, f"optimum_{SEED}.json"), "w") as h:
            json.dump({"value": w.top, "arguments": {k: v for k, v in strip(a).items()}}, h)
        return w, scale, best
    raise SystemExit("no world found")


W, SCALE, BEST = draw()


def model(arguments):
    a = {**DEFAULT, **{k: v for k, v in arguments.items() if k in DEFAULT and v is not None}}
    spec = arguments.get("speculative-config")
    if isinstance(spec, dict):
        a[SP], a[N] = spec.get("method", "off"), spec.get("num_speculative_tokens", 3)
    p = pos(a)
    why = W.why(p, a)
    if why:
        raise Dead(why)
    return W.top * math.exp(SCALE * (W.z(p) - BEST)), {}


def val(a):
    try:
        return model(strip(a))[0]
    except Dead:
        return -1.0


def optimum():
    with open(os.path.join(HERE, f"optimum_{SEED}.json")) as h:
        return json.load(h)


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
        value, _ = model(args)
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
    common = rng.gauss(1.0, 0.02)
    runs = [value * common * rng.gauss(1.0, 0.006) for _ in range(3)]
    print(json.dumps({"protocol": 1, "status": "ok", "samples": {"throughput/output": [round(r, 2) for r in runs]},
                      "metrics": {"latency/tpot_p50": round(128000 / value, 3)}, "seconds": {"start": 60.0, "measure": 60.0}}))


if __name__ == "__main__":
    main()
