"""A crude model of a decode step, whose coefficients the study's own trials correct.

The shape is what is known: weights and KV cache are read over the memory bus, tokens cost FLOPs, launching kernels
costs time unless a captured graph covers the batch, the batch is the least of the scheduler's limit, the load and the
KV capacity, drafts must be verified and are accepted with some chance, and prompts have to be prefilled. The sizes
come from the hardware and the model, each with a wide prior: what is right is the form, not the figures. Where the
form is wrong, the statistical model on the residual takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, brentq, least_squares

from tuner.model.hardware import Hardware
from tuner.model.llm import ModelFacts
from tuner.model.space import Space
from tuner.model.weights import parts
from tuner.model.workload import Workload
from tuner.search.engine import EngineReadings
from tuner.search.knobs import KNOBS, offers_lookup, own_bits, varies
from tuner.search.resampling import systematic

__all__ = ["PER_TOKEN", "Fit", "StepModel", "speaks_of"]

Array: TypeAlias = NDArray[np.float64]

_COLUMN = {name: index for index, name in enumerate(KNOBS)}

_SETTLED = 1e-3
"""Standard deviation of what is no question."""
_PRIOR: tuple[tuple[str, float], ...] = (
    ("weights", 0.7),
    ("compute", 0.7),
    ("kv", 0.8),
    ("launch", 1.0),
    ("host", 0.8),
    ("load", 0.7),
    ("capacity", 0.8),
    ("acceptance", 1.0),
    ("lookup", 1.0),
    ("prefill", 0.7),
    ("chunk", 0.8),
    ("eight_bit", 0.4),
    ("parallel", 0.8),
    ("link", 1.2),
    ("thrash", 0.8),
    ("frontend", 1.0),
    ("threading", 0.7),
    ("length", _SETTLED),
)
"""Coefficient → standard deviation of its logarithm around the value from the data sheet."""

_LOAD_UNKNOWN, _LENGTH_UNKNOWN = 1.5, 2.0
"""The same where nobody says what is sent: prompts and answers differ a hundredfold, and with them the sequences that
fit into the cache, what is read of it in a step, and the share of prefill, all at once."""

_GUESSED = 1.2
"""The same for what a card of unknown figures reads and computes."""
_READ_ALL_S, _CPU_GB_S = 0.03, 50.0
"""Seconds in which a GPU reads its whole memory (24 to 56 ms from RTX 4090 to L40S), and a CPU's memory bus in GB/s,
where nobody says."""
_FLOPS_PER_BYTE, _CPU_FLOPS_PER_BYTE = 200.0, 15.0
"""Arithmetic in 16 bits over memory bandwidth: 156 (A100) to 458 (DGX Spark) on GPUs."""

_ACCEPTED = (-0.2, 0.6)
"""Log odds that a draft token is accepted: looked up in the prompt 45 %, from a trained head or model 65 % (published
acceptance of EAGLE and MTP heads lies at 60 to 85 % for the first token)."""
_LINK_GB_S = 100.0
_WIDTH = 3.5
"""MLP over hidden width where nobody says (Llama 3: 3.5, Qwen 3 dense: 2.7 to 5)."""
_EXPERTS_SHARE, _MOST_EXPERTS = 0.9, 0.98
"""Part of a sparse model's weights that lies in its experts where its shape does not say, and at most: those are split
over data parallel ranks too (vllm/model_executor/layers/fused_moe)."""

_TOLD_SD = {"batch": 0.2, "capacity": 0.3, "cache": 0.1, "accepted": 0.1}
"""How far a server's own figure may be from the model's, in log units, where every coefficient is right."""
_STEP_SD = 0.15

PER_TOKEN, _WHOLE = ("latency/tpot", "latency/itl"), ("latency/e2el",)
"""Metrics that follow from a step: the time per output token, and of a whole request with its wait for a place."""

_OFFSET = len(_PRIOR)
_DRAWS = 16
_PARTICLES = 192
_STRIDES = (0.6, 0.25, 0.6, 0.1)
"""How far sets of coefficients are moved in turn, in units of how they scatter."""
_OFFSET_SD = 3.0


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients learned from trials.

    Attributes:
        theta: logarithmic corrections, then the offset of the log objective.
        error: root mean square of the relative error on the trials it was fitted to.
        penalty: logarithm of what the fit's freedom costs it in a comparison with other models (≤ 0).
        draws: coefficients that the trials leave possible, one set per row; the spread of the forecast.
    """

    theta: Array
    error: float
    penalty: float
    draws: Array


def _misfit(z: Array) -> Array:
    """Negative log likelihood of standardised errors, lenient with single large ones (pseudo-Huber)."""
    return np.asarray(np.sum(np.sqrt(1 + z**2) - 1, axis=-1))


@dataclass(frozen=True, slots=True)
class _Costs:
    """Seconds: reading a device's weights once, one token's arithmetic, one token's exchange between devices."""

    weights: Array
    compute: Array
    exchange: Array


@dataclass(frozen=True, slots=True)
class _Service:
    """What becomes of a request once it runs.

    Attributes:
        batch: sequences that run at once.
        answer: tokens.
        seconds: of the whole answer: its steps, and others' prompts meanwhile.
        chunk: seconds of the longest piece of a prompt in one step.
    """

    batch: Array
    answer: Array
    seconds: Array
    chunk: Array


class StepModel:
    """Predicts the logarithm of throughput (or of its inverse, for objectives that are minimised).

    Args:
        space: for the hardware's and the model's figures.
        workload: lengths and load; a wide guess without.
        certain: the workload is what is sent. A trial command may send anything: then it is where the guess begins.
        per_step: the objective is the time of one step (TPOT, ITL) rather than throughput.
    """

    def __init__(self, space: Space, workload: Workload | None, *, per_step: bool, certain: bool = True) -> None:
        hardware, model = space.hardware, space.model
        self._per_step = per_step
        self._cpu = hardware.platform == "cpu"
        bandwidth, flops, guessed = _speed(hardware)
        weight_bytes = _bytes_in_16_bits(model)
        self._shared = _experts_share(model, weight_bytes / 2)
        active = weight_bytes / 2
        if model.is_moe:
            # Kernels of experts reach about half of what dense ones do: each sees few tokens.
            active *= min(2 * (1 - self._shared * (1 - model.experts_per_token / model.experts)), 1.0)
        self._weight_bytes = weight_bytes
        self._memory = hardware.memory_gib * 2**30
        self._bandwidth = bandwidth
        self._compute = 2 * active / flops
        width = model.mla_rank / 2 if model.is_mla else model.kv_heads * model.head_dim
        per_token = model.kv_bytes_per_token.get("auto", 0.0) or 4.0 * model.layers * width
        # Tensor ranks share the heads of the cache, down to one each; a latent is kept by every rank.
        whole = model.is_mla or model.extra.get("kv_replicated") is True
        self._kv_shares = 1.0 if whole else float(max(model.kv_heads, 1))
        self._kv_per_token = max(per_token, 1.0)
        self._read_kv = self._kv_per_token / bandwidth
        # Without a graph the host launches about ten kernels a layer, some 30 microseconds of Python each.
        self._launch = 0.0 if self._cpu else max(model.layers, 1) * 10 * 30e-6
        self._host = 1e-3
        # Two all-reduces a layer: each takes some 15 microseconds however little is sent (between the sockets of a CPU
        # twenty times that), and sends a token's hidden state of two bytes over the link between devices.
        self._reduce = 2 * max(model.layers, 1) * (300e-6 if self._cpu else 15e-6)
        link = hardware.interconnect_gb_s or _LINK_GB_S
        self._exchange = 0.0 if self._cpu else 8.0 * max(model.layers, 1) * max(model.hidden, 1) / (link * 1e9)
        # The API server's work for one streamed token: 12,000 tok/s were the most that one process passed on beside
        # an H200 with 1,024 clients. Only where the space can do something about it, else it is a mere constant.
        self._frontend = 70e-6 if varies(space, "stream", "api_servers") else 0.0
        self._input = float(workload.input_tokens + workload.prefix_tokens) if workload else 256.0
        self._output = float(max(workload.output_tokens, 1)) if workload else 256.0
        self._load, load_known = _load(workload)
        doubts = dict.fromkeys(guessed, _GUESSED)
        if not certain or not load_known:
            doubts["load"] = _LOAD_UNKNOWN
        if not certain or workload is None:
            doubts["length"] = _LENGTH_UNKNOWN
        if not offers_lookup(space):
            doubts["lookup"] = _SETTLED
        self._sigma = np.array([doubts.get(name, sd) for name, sd in _PRIOR])

    def batch(self, knobs: Array, theta: Array | None = None) -> Array:
        """Running batch (sequences) per row of knobs; one line per set of coefficients where there are several."""
        t = self._named(theta)
        dp = knobs[:, _COLUMN["data_parallel"]]
        capacity = self._capacity(knobs, t)
        seqs = knobs[:, _COLUMN["seqs"]] * dp
        load = self._load * np.exp(t["load"])
        power = 4.0  # a soft minimum: limits that are close to each other all bite a little
        return np.asarray(np.maximum((seqs**-power + load**-power + capacity**-power) ** (-1 / power), 1.0))

    def predict(self, knobs: Array, theta: Array | None = None) -> Array:
        """Log objective up to an offset, more is better; one line per set of coefficients where there are several."""
        served = self._service(knobs, theta)
        if self._per_step:
            return np.asarray(-np.log(served.seconds / served.answer))
        return np.asarray(np.log(served.batch * served.answer / served.seconds))

    def latency(self, metric: str, knobs: Array, theta: Array | None, stutter: float = 0.0) -> Array:
        """Logarithm of a latency that the mechanism speaks of, up to an offset.

        ``stutter``: how much of one step with a full prompt chunk in it a token waits, beyond the mean: percentiles
        are made of such steps.
        """
        served = self._service(knobs, theta)
        if metric.startswith(_WHOLE):
            return np.asarray(np.log(served.seconds / served.batch))
        return np.asarray(np.log(served.seconds / served.answer + stutter * served.chunk))

    def _service(self, knobs: Array, theta: Array | None) -> _Service:
        """What becomes of a request once it runs."""
        t = self._named(theta)
        column = _columns(knobs)
        batch = self.batch(knobs, theta)
        local = batch / column["data_parallel"]
        prompt, answer = (tokens * np.exp(t["length"]) for tokens in (self._input, self._output))
        step, costs = self._step(column, local, t)
        # The engine and the API servers work side by side: the slower one sets the pace of a token.
        passing_on = (
            self._frontend * np.exp(t["frontend"]) * batch * (0.2 + 0.8 / column["stream"]) / column["api_servers"]
        )
        pace = ((step / _accepted(column, t)) ** 4 + passing_on**4) ** 0.25
        per_token = np.exp(t["prefill"]) * costs.compute + costs.exchange
        prompts = prompt * per_token * local
        launched = costs.weights + self._host
        chunks = local * prompt / column["batched_tokens"] * launched * np.exp(t["chunk"])
        seconds = answer * pace + prompts + chunks
        # Sequences that are admitted without room for their cache are preempted and computed again.
        capacity = self._capacity(knobs, t)
        crowd = np.log2(np.maximum(column["seqs"] * column["data_parallel"], 1) / capacity)
        wanted = np.log2(self._load * np.exp(t["load"]) / capacity)
        thrash = 1 + 0.08 * np.exp(t["thrash"]) * np.clip(np.minimum(crowd, wanted), 0, 6)
        chunk = np.minimum(column["batched_tokens"], local * prompt) * per_token
        return _Service(batch=batch, answer=answer, seconds=seconds * thrash, chunk=chunk)

    def _step(self, column: Mapping[str, Array], local: Array, t: Mapping[str, Array]) -> tuple[Array, _Costs]:
        """Seconds of one decode step with ``local`` sequences on each replica, and what prefill pays too."""
        tp, pp, drafts = column["tensor_parallel"], column["pipeline_parallel"], column["drafts"]
        tokens = local * (1 + drafts)
        eight_bit = np.where(column["format_bits"] < 12, np.exp(-0.45 * np.exp(t["eight_bit"])), 1.0)
        context = (self._input + self._output / 2) * np.exp(t["length"])
        covered = (column["graphs"] > 0) & (column["capture"] >= tokens)
        uncovered = np.where(covered, np.where(column["graphs"] > 1, 0.0, 0.15), 1.0)
        # Arithmetic follows the threads; a memory bus is full before all cores pull on it.
        threads = column["threads"] ** (np.exp(t["threading"]) if self._cpu else 0.0)
        weights = self._held(column) * pp / self._bandwidth * np.exp(t["weights"]) / threads**0.5
        # Stages of a pipeline work side by side, each on its own part of the batch.
        compute = self._compute * np.exp(t["compute"]) * eight_bit / threads / tp / pp
        exchange = self._exchange * np.exp(t["link"]) * (tp - 1) / tp / pp
        cached = column["kv_bits"] / 16 / np.minimum(tp, self._kv_shares) / pp
        step = (
            weights
            + tokens * (compute + exchange)
            + local * context * self._read_kv * np.exp(t["kv"]) * cached
            + self._launch * np.exp(t["launch"]) * uncovered
            + self._host * np.exp(t["host"]) * (1 + local / 256) * (1.5 - 0.5 * column["async"])
            + np.where(tp > 1, self._reduce * np.exp(t["parallel"]), 0.0)
            + drafts * np.where(column["draft_free"] > 0, 0.02, 0.08) * weights
        )
        return step, _Costs(weights=weights, compute=compute, exchange=exchange)

    def fit(self, knobs: Array, y: Array, covariance: Array, told: EngineReadings | None = None) -> Fit:
        """Coefficients that explain ``y`` (log objective, more is better), and what else would.

        ``covariance``: of what else may move the values (labels, noise, misfit). ``told``: what the servers of these
        trials said of themselves; it bounds the coefficients, and speaks neither for nor against the mechanism.
        """
        free = covariance + _OFFSET_SD**2  # a constant factor is free: what the labels add, other units
        whiten = np.linalg.inv(np.linalg.cholesky(free))
        inverse = np.linalg.inv(covariance)
        pull = inverse.sum(axis=0) / inverse.sum()
        beside = _Beside(self, knobs, told)
        centre = float(np.median(y - self.predict(knobs)))

        def known(theta: Array) -> Array:
            return np.concatenate([beside(theta), theta / self._sigma])

        def residuals(theta: Array) -> Array:
            return np.concatenate([whiten @ (y - centre - self.predict(knobs, theta)), known(theta)])

        def mode(of: Callable[[Array], Array], start: Array) -> OptimizeResult:
            return least_squares(of, start, loss="soft_l1", max_nfev=25, method="trf")

        sets = self._posterior(knobs, y - centre, whiten, beside)
        starts = (np.zeros(_OFFSET), sets[0])
        solved = min((mode(residuals, start) for start in starts), key=lambda found: float(found.cost))
        best = np.clip(solved.x, -6, 40)
        theta = np.append(best, np.median(y - self.predict(knobs, best)))
        error = y - theta[_OFFSET] - self.predict(knobs, best)
        # What explaining the objective costs beyond explaining the servers' own figures.
        penalty = self._price(best, solved.jac, beside)
        if beside.any:
            alone = mode(known, np.zeros(_OFFSET))
            penalty -= self._price(alone.x, alone.jac, beside)
        offsets = (y - self.predict(knobs, sets)) @ pull
        return Fit(
            theta=theta,
            error=float(np.sqrt(np.mean(error**2))),
            penalty=penalty,
            draws=np.column_stack([sets, offsets]),
        )

    def _price(self, theta: Array, jacobian: Array, beside: _Beside) -> float:
        """Log evidence at a mode, without the objective's own misfit: bent coefficients, and freedom (Laplace)."""
        slopes = jacobian[:-_OFFSET] * self._sigma
        _, logdet = np.linalg.slogdet(np.eye(_OFFSET) + slopes.T @ slopes)
        bent = 0.5 * float(np.sum((theta / self._sigma) ** 2)) + float(_misfit(beside(theta)))
        return -bent - 0.5 * float(logdet)

    def _posterior(self, knobs: Array, y: Array, whiten: Array, beside: _Beside) -> Array:
        """Sets of coefficients in proportion to their probability, the likeliest first; shape (sets, coefficients).

        A sequential Monte Carlo sampler from the priors: the trials' weight grows step by step, so that explanations
        far from each other stay beside one another (too little room for the cache, or a slow bus) until trials tell.
        """
        rng = np.random.default_rng(0)  # equal histories, equal suggestions

        def likelihood(sets: Array) -> Array:
            z = (y - self.predict(knobs, sets)) @ whiten.T
            return -_misfit(z) - _misfit(beside(sets))

        def prior(sets: Array) -> Array:
            return np.asarray(-0.5 * np.sum((sets / self._sigma) ** 2, axis=1))

        open_ones = np.flatnonzero(self._sigma > _SETTLED)
        sets = np.zeros((_PARTICLES, _OFFSET))
        sets[:, open_ones] = rng.standard_normal((_PARTICLES, len(open_ones))) * self._sigma[open_ones]
        fits = likelihood(sets)
        heat = 0.0
        while heat < 1:
            heat, weight = _hotter(fits, heat)
            chosen = systematic(weight)
            sets, fits = sets[chosen], fits[chosen]
            root = np.linalg.cholesky(np.cov(sets[:, open_ones].T) + 1e-6 * np.eye(len(open_ones)))
            for scale in _STRIDES:
                moved = sets.copy()
                moved[:, open_ones] += scale * rng.standard_normal((_PARTICLES, len(open_ones))) @ root.T
                better = likelihood(moved)
                odds = heat * (better - fits) + prior(moved) - prior(sets)
                taken = np.log(rng.random(_PARTICLES)) < odds
                sets = np.where(taken[:, None], moved, sets)
                fits = np.where(taken, better, fits)
        best = int(np.argmax(fits + prior(sets)))
        others = np.linspace(0, _PARTICLES - 1, _DRAWS - 1).round().astype(int)
        return np.asarray(sets[np.append(best, others)])

    def features(self, knobs: Array, theta: Array | None = None) -> Array:
        """What decides the regime, each from 0 to 1: batch, capture against batch, covered, tokens a step."""
        batch = self.batch(knobs, theta) / knobs[:, _COLUMN["data_parallel"]]
        tokens = batch * (1 + knobs[:, _COLUMN["drafts"]])
        ratio = np.clip(np.log2(np.maximum(knobs[:, _COLUMN["capture"]], 0.25) / tokens), -2, 2)
        covered = (ratio >= 0) & (knobs[:, _COLUMN["graphs"]] > 0)
        return np.column_stack([np.log2(batch) / 13, (ratio + 2) / 4, covered.astype(float)])

    def _capacity(self, knobs: Array, t: Mapping[str, Array]) -> Array:
        """Sequences whose KV cache fits, over all replicas; on paper at least one."""
        on_paper = knobs[:, _COLUMN["data_parallel"]] * self._cache(knobs) / (self._input + self._output)
        return np.asarray(np.maximum(on_paper, 1.0) * np.exp(t["capacity"] - t["length"]))

    def _held(self, column: Mapping[str, Array]) -> Array:
        """Bytes of weights on each device: what the planner reckons, else by bits and devices."""
        bits = self._weight_bytes * column["weight_bits"] / 16
        split = bits * (1 - self._shared + self._shared / column["data_parallel"])
        split = split / column["tensor_parallel"] / column["pipeline_parallel"]
        return np.where(column["weight_gib"] > 0, column["weight_gib"] * 2**30, split)

    def _cache(self, knobs: Array) -> Array:
        """Tokens that the KV cache of one replica holds, on paper: what the planner reckons, else what is left."""
        column = _columns(knobs)
        free = self._memory * column["utilization"] - self._held(column) - 2 * 2**30
        room = np.where(column["kv_bytes"] > 0, column["kv_bytes"], free)
        split = np.minimum(column["tensor_parallel"], self._kv_shares) * column["pipeline_parallel"]
        per_token = self._kv_per_token * column["kv_bits"] / 16 / split
        # A model that does not fit on paper may run all the same (another model is measured).
        left = np.maximum(room, 0.02 * self._memory) / per_token
        reckoned = np.where(column["kv_room"] > 0, column["kv_room"], left)
        return np.where(column["kv_tokens"] > 0, column["kv_tokens"], reckoned)

    def _named(self, theta: Array | None) -> dict[str, Array]:
        """Coefficient → its value, or a column of values, one per set of coefficients."""
        if theta is None:
            theta = np.zeros(_OFFSET)
        return {name: theta[..., index, None] for index, (name, _) in enumerate(_PRIOR)}


class _Beside:
    """Standardised errors of what servers told of themselves: running batch, cache, accepted drafts, step times."""

    def __init__(self, model: StepModel, knobs: Array, told: EngineReadings | None) -> None:
        self._model, self._knobs = model, knobs
        self._figures: list[tuple[str, NDArray[np.int64], Array, float]] = []
        self._steps: EngineReadings | None = None
        if told is None:
            return
        for name, sd in _TOLD_SD.items():
            values: Array = getattr(told, name)
            rows = np.flatnonzero(np.isfinite(values))
            if name == "accepted":
                rows = rows[knobs[rows, _COLUMN["drafts"]] > 0]
            if len(rows):
                self._figures.append((name, rows, np.log(values[rows]), sd))
        if len(told.step_of):
            self._steps = told

    @property
    def any(self) -> bool:
        return bool(self._figures) or self._steps is not None

    def __call__(self, theta: Array) -> Array:
        """One line per set of coefficients where there are several; empty lines where nothing was told."""
        t = self._model._named(theta)  # noqa: SLF001  (the model's own other half)
        errors = [np.zeros((*theta.shape[:-1], 0))]
        for name, rows, told, sd in self._figures:
            errors.append((told - self._foretold(name, self._knobs[rows], theta, t)) / sd)
        if self._steps is not None:
            errors.append(self._step_errors(self._steps, t))
        return np.concatenate(errors, axis=-1)

    def _foretold(self, name: str, knobs: Array, theta: Array, t: Mapping[str, Array]) -> Array:
        model = self._model
        if name == "batch":
            return np.log(model.batch(knobs, theta))
        if name == "capacity":
            return np.log(model._capacity(knobs, t))  # noqa: SLF001
        if name == "cache":
            return np.log(model._cache(knobs)) + t["capacity"]  # noqa: SLF001
        return np.log(_accepted(_columns(knobs), t))

    def _step_errors(self, told: EngineReadings, t: Mapping[str, Array]) -> Array:
        """How the step grows with the batch; its level would say no more than the objective does."""
        step, _ = self._model._step(_columns(self._knobs[told.step_of]), told.step_batch, t)  # noqa: SLF001
        off = np.log(told.step_s) - np.log(step)
        trials, place = np.unique(told.step_of, return_inverse=True)
        member = np.equal.outer(place, np.arange(len(trials))).astype(float)
        return np.asarray((off - (off @ (member / member.sum(axis=0))) @ member.T) / _STEP_SD)


def speaks_of(metric: str) -> bool:
    """Whether the mechanism knows what a latency depends on."""
    return metric.startswith((*PER_TOKEN, *_WHOLE))


def _columns(knobs: Array) -> dict[str, Array]:
    return {name: knobs[:, index] for name, index in _COLUMN.items()}


def _accepted(column: Mapping[str, Array], t: Mapping[str, Array]) -> Array:
    """Tokens that a sequence gains in a step: one, and the drafts that are accepted."""
    guessed = np.where(column["draft_free"] > 0, *_ACCEPTED)
    # What a head guesses says nothing of how often answers repeat their prompts: summaries and code do, chat does not.
    learned = np.where(column["draft_free"] > 0, t["lookup"], t["acceptance"])
    alpha = 1 / (1 + np.exp(-(learned + guessed)))
    return np.asarray((1 - alpha ** (1 + column["drafts"])) / (1 - alpha))


def _bytes_in_16_bits(model: ModelFacts) -> float:
    """Of all weights, whatever the files hold them in. A size reckoned from a shape without its MLP is too small."""
    size = max(model.weight_bytes, 1e6) * 16 / own_bits(model)
    if model.is_moe or model.intermediate:
        return size
    usual = 2.0 * parts(replace(model, intermediate=int(_WIDTH * model.hidden))).total
    return size if size > 0.5 * usual else usual


def _experts_share(model: ModelFacts, parameters: float) -> float:
    """Part of the weights that lies in routed experts, by the model's shape."""
    if not model.is_moe:
        return 0.0
    routed = 3.0 * model.layers * model.experts * model.hidden * model.moe_intermediate
    return min(routed / parameters, _MOST_EXPERTS) if routed > 0 else _EXPERTS_SHARE


def _speed(hardware: Hardware) -> tuple[float, float, set[str]]:
    """Bytes and operations per second in practice, and the coefficients that stand on a guess of them."""
    guessed: set[str] = set()
    bandwidth = hardware.bandwidth_gb_s
    if bandwidth <= 0:
        bandwidth = _CPU_GB_S if hardware.platform == "cpu" else max(hardware.memory_gib, 8.0) / _READ_ALL_S
        guessed |= {"weights", "kv"}
    known = [hardware.tflops[name] for name in ("bf16", "fp16") if name in hardware.tflops]
    tflops = next((value for value in (*known, *hardware.tflops.values()) if value > 0), 0.0)
    if not tflops:
        tflops = bandwidth * (_CPU_FLOPS_PER_BYTE if hardware.platform == "cpu" else _FLOPS_PER_BYTE) / 1e3
        guessed |= {"compute"}
    return bandwidth * 1e9 * 0.7, max(tflops * 1e12 * 0.4, 1e9), guessed


def _hotter(fits: Array, heat: float) -> tuple[float, Array]:
    """The next weight of the trials, at which half of the sets still count, and what each set counts then."""

    def weight(step: float) -> Array:
        return np.asarray(np.exp(step * (fits - fits.max())))

    def spare(step: float) -> float:
        return float(weight(step).sum() ** 2 / np.sum(weight(step) ** 2)) - 0.5 * len(fits)

    step = 1 - heat
    if spare(step) < 0:
        step = max(float(brentq(spare, 0.0, step, xtol=1e-4)), 1e-3)
    return min(heat + step, 1.0), weight(step)


def _load(workload: Workload | None) -> tuple[float, bool]:
    """Requests in flight, and whether that is known."""
    if workload is not None:
        found = [point.concurrency for point in workload.points if point.concurrency]
        if found:
            return float(max(found)), True
    return 700.0, False
