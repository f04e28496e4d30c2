"""Will it fit? Weights, peak, CUDA graphs and KV cache of a candidate, in GiB per accelerator, before any launch.

Where the coefficients come from: 12 starts of vLLM 0.25.1 on one H200 with a model shaped like Qwen3-30B-A3B, at
several ``max_num_seqs``, ``max_num_batched_tokens``, utilizations, with and without fp8. What vLLM takes beside weights
and graphs splits into three terms that follow from the shape; only the constant was fitted. The figures of the logs
are the test's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.hardware import Hardware
from tuner.model.json import Json
from tuner.model.llm import ModelFacts
from tuner.model.weights import bytes_per_parameter, parts

__all__ = ["MemoryEstimate", "batch_defaults", "estimate"]

_GIB = 1024**3
_MIB = 1024**2
# CUDA context and library workspaces: 0.36 to 0.46 GiB in the 12 logs.
_CONTEXT_GIB = 0.38
# NCCL buffers once there is more than one rank: 342 to 392 MiB (aiconfigurator, systems/*.yaml, nccl_mem).
_NCCL_GIB = 0.37
# The sampler's warm-up holds the logits of every sequence in float32, sorted and as probabilities: 1.95 MiB per
# sequence at 151,936 tokens of vocabulary, which is 3.4 such rows.
_LOGIT_ROWS = 3.4
# One captured graph costs this per layer (piecewise: 51 sizes and 48 layers took 0.37 GiB; full: 0.24 GiB more).
_PIECEWISE_MIB_PER_LAYER = 0.15
_FULL_MIB_PER_LAYER = 0.10
_DEFAULT_UTILIZATION = 0.92


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """GiB per accelerator, of the fullest one.

    Attributes:
        budget_gib: what vLLM may take: utilization × memory, or, with an explicit KV cache size, the memory.
        weights_gib, peak_gib, graphs_gib: weights; context, activations and logits of the profiling run; CUDA graphs.
        kv_gib: what is left for the KV cache (negative where the rest alone is too much).
        kv_bytes_per_token: of one token on one accelerator.
        kv_tokens: tokens that the KV cache of one replica holds.
        needed_gib: KV cache of one request of ``max_model_len`` tokens.
        max_concurrency: requests of ``max_model_len`` tokens that fit at once.
        workload_concurrency: requests of the workload's length that fit at once.
        missing_gib: how much is missing to hold one request (0 where it fits).
        model_len: the ``max_model_len`` counted with.
        assumed: what was counted with because the flag is not given, and how to give it; empty where nothing was.
    """

    budget_gib: float
    weights_gib: float
    peak_gib: float
    graphs_gib: float
    kv_gib: float
    kv_bytes_per_token: float
    kv_tokens: int
    needed_gib: float
    max_concurrency: float
    workload_concurrency: float
    missing_gib: float
    model_len: int
    assumed: str = ""

    def exclusion(self) -> Exclusion | None:
        """Why the candidate cannot hold one request; None if it can."""
        if self.missing_gib <= 0:
            return None
        return Exclusion(
            rule="memory",
            reason=(
                f"needs {self.missing_gib:.1f} GiB more per accelerator: weights {self.weights_gib:.1f}, activations "
                f"{self.peak_gib:.1f}, CUDA graphs {self.graphs_gib:.1f} and {self.needed_gib:.1f} for one request of "
                f"{self.model_len} tokens, of {self.budget_gib:.1f} GiB{self.assumed}"
            ),
            source="estimate from the model's shape (tuner/spaces/memory.py)",
            violation=max(1e-6, self.missing_gib / max(self.budget_gib, 1e-6)),
        )

    def line(self) -> str:
        """One line for people."""
        return (
            f"weights {self.weights_gib:.1f} + activations {self.peak_gib:.1f} + graphs {self.graphs_gib:.1f} + "
            f"KV cache {max(self.kv_gib, 0.0):.1f} GiB ({self.kv_tokens:,} tokens) of {self.budget_gib:.1f} GiB"
        )

    def against(self, kv_tokens: float) -> str:
        """The estimate beside what a started server reports as its KV cache (tokens), with its error."""
        error = f" ({100 * (self.kv_tokens / kv_tokens - 1):+.1f} %)" if kv_tokens > 0 else ""
        return f"KV cache {kv_tokens:,.0f} tokens, estimated {self.kv_tokens:,}{error}"


def batch_defaults(hardware: Hardware, arguments: Mapping[str, Json]) -> tuple[int, int]:
    """``(max_num_batched_tokens, max_num_seqs)`` that ``vllm serve`` takes where the flags are left away.

    Source: vllm/engine/arg_utils.py, get_batch_defaults (0.32); 0.25.1 lacks the first tier and takes 8192 there.
    """
    if hardware.platform == "cpu":
        tokens, seqs = 2048 * hardware.count, 128 * hardware.count
    elif hardware.memory_gib >= 160:
        tokens, seqs = 16384, 1024
    elif hardware.memory_gib >= 70 and "a100" not in hardware.device.lower():
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    if arguments.get("performance-mode") == "throughput":
        tokens, seqs = 2 * tokens, 2 * seqs
    return int(_number(arguments, "max-num-batched-tokens", tokens)), int(_number(arguments, "max-num-seqs", seqs))


def estimate(
    candidate: Candidate, hardware: Hardware, model: ModelFacts, *, tokens_needed: int, safety: float = 0.005
) -> MemoryEstimate:
    """Memory of one candidate on the fullest accelerator.

    Args:
        tokens_needed: the workload's longest request (tokens).
        safety: share of the weights by which the estimate may be too high before a candidate is excluded; what
            the 12 logs leave open is 0.2 % of the weights.
    """
    flat = _flat(candidate.arguments)
    tensor, pipeline, data = (
        max(1, int(_number(flat, f"{kind}-parallel-size", 1))) for kind in ("tensor", "pipeline", "data")
    )
    model_len = int(_number(flat, "max-model-len", model.max_position))
    if model_len <= 0:  # -1 is vLLM's "as long as fits"
        model_len = max(1, tokens_needed)
    weights = _weights_gib(model, flat, tensor, pipeline, data)
    graphs = _graphs_gib(flat, hardware, model, pipeline)
    peak = _peak_gib(flat, hardware, model, tensor, tensor * pipeline * data)
    per_token = _kv_bytes_per_token(flat, model, tensor, pipeline)
    explicit = _number(flat, "kv-cache-memory-bytes", 0)
    if explicit > 0:
        # vLLM skips profiling then: the cache has this size, and the rest must fit beside it.
        budget = hardware.memory_gib
        kv = explicit / _GIB
        over = weights * (1 - safety) + (0.0 if hardware.platform == "cpu" else peak + graphs) + kv - budget
    else:
        budget = _number(flat, "gpu-memory-utilization", _DEFAULT_UTILIZATION) * hardware.memory_gib
        kv = budget - weights - peak - graphs
        over = 0.0
    needed = _sequence_bytes(model, per_token, model_len) / _GIB
    slack = weights * safety if explicit <= 0 else 0.0
    missing = max(0.0, needed - (kv + slack), over)
    tokens = int(max(kv, 0.0) * _GIB / per_token) if per_token > 0 else 0
    workload = _sequence_bytes(model, per_token, min(tokens_needed, model_len)) / _GIB
    return MemoryEstimate(
        budget_gib=budget,
        weights_gib=weights,
        peak_gib=peak,
        graphs_gib=graphs,
        kv_gib=kv,
        kv_bytes_per_token=per_token,
        kv_tokens=tokens,
        needed_gib=needed,
        max_concurrency=max(kv, 0.0) / needed if needed > 0 else 0.0,
        workload_concurrency=max(kv, 0.0) / workload if workload > 0 else 0.0,
        missing_gib=missing,
        model_len=model_len,
        assumed=_assumed(flat, hardware),
    )


def _assumed(flat: Mapping[str, Json], hardware: Hardware) -> str:
    """Said where a model may be too large for one device only because no flag splits it."""
    split = {"tensor-parallel-size", "pipeline-parallel-size"}
    if hardware.platform == "cpu" or hardware.count < 2 or split & flat.keys():
        return ""
    return (
        "; this is tensor-parallel-size 1, as no flag is given: `arguments: {tensor-parallel-size: "
        f"{hardware.count}}}` or --arg tensor-parallel-size={hardware.count} gives it"
    )


def _weights_gib(model: ModelFacts, flat: Mapping[str, Json], tensor: int, pipeline: int, data: int) -> float:
    """Weights of the fullest rank. Experts are split over tensor and data ranks, the rest over tensor ranks
    (config/parallel.py: "MoE layers will be sharded according to the product" of the two).
    """
    count = parts(model)
    plain = 4.0 if model.dtype == "float32" else 2.0
    online = str(flat.get("quantization") or "")
    linear, experts = bytes_per_parameter(model, online)
    stored_linear, stored_experts = bytes_per_parameter(model, "")
    embedding = count.embedding * plain
    rest = count.linear * stored_linear + count.router * plain
    routed = count.experts * stored_experts
    # The files know better than the shape, which is sure of the embeddings alone.
    scale = 1.0
    if model.weight_bytes > 0:
        embedding = min(embedding, 0.5 * model.weight_bytes)
        scale = (model.weight_bytes - embedding) / (rest + routed)
    dense_bytes = scale * (count.linear * linear + count.router * plain) / pipeline + embedding / min(pipeline, 2)
    expert_bytes = scale * count.experts * experts / pipeline
    offload = _number(flat, "cpu-offload-gb", 0) if model.weight_bytes > 0 else 0.0
    return max(0.0, (dense_bytes / tensor + expert_bytes / (tensor * data)) / _GIB - offload)


def _peak_gib(flat: Mapping[str, Json], hardware: Hardware, model: ModelFacts, tensor: int, ranks: int) -> float:
    """Context, activations of one full step, and the sampler's logits."""
    tokens, seqs = batch_defaults(hardware, flat)
    if model.is_moe:
        # fused_moe keeps gate and up, their product, and the experts' outputs for every (token, expert) pair.
        width = model.experts_per_token * (3 * model.moe_intermediate / tensor + model.hidden)
    else:
        width = 3 * model.intermediate / tensor + 4 * model.hidden
    activations = 2.0 * tokens * width
    rows = min(seqs, tokens)
    logits = _LOGIT_ROWS * 4 * rows * model.vocab
    drafts = _number(flat, "speculative-config.num_speculative_tokens", 0)
    # Draft rows are verified in one more float32 copy: 1.0 row each (0.55 GiB for 256 × 3 in the log).
    logits += 4 * rows * drafts * model.vocab
    return _CONTEXT_GIB + (_NCCL_GIB if ranks > 1 else 0.0) + (activations + logits) / _GIB


def _graphs_gib(flat: Mapping[str, Json], hardware: Hardware, model: ModelFacts, pipeline: int) -> float:
    """CUDA graphs by the number of captured sizes (config/vllm.py: 1, 2, 4, steps of 8 to 256, then of 16)."""
    mode = str(flat.get("compilation-config.cudagraph_mode") or "FULL_AND_PIECEWISE")
    if hardware.platform == "cpu" or flat.get("enforce-eager") is True or mode == "NONE":
        return 0.0
    if str(flat.get("optimization-level")) == "0":
        return 0.0
    _, seqs = batch_defaults(hardware, flat)
    per_request = 1 + int(_number(flat, "speculative-config.num_speculative_tokens", 0))
    default = min(seqs * per_request * 2, 512)
    largest = int(
        _number(flat, "compilation-config.max_cudagraph_capture_size", 0)
        or _number(flat, "max-cudagraph-capture-size", default)
    )
    piecewise = 0 if mode in ("FULL", "FULL_DECODE_ONLY") else _captures(largest)
    # Full graphs are for decode only, where a batch has at most max_num_seqs requests.
    full = 0 if mode == "PIECEWISE" else _captures(min(largest, seqs * per_request))
    layers = model.layers / pipeline
    return layers * (piecewise * _PIECEWISE_MIB_PER_LAYER + full * _FULL_MIB_PER_LAYER) * _MIB / _GIB


def _captures(largest: int) -> int:
    small = sum(size <= largest for size in (1, 2, 4))
    return small + max(0, min(largest, 255) // 8) + (max(0, (largest - 256) // 16 + 1) if largest >= 256 else 0)


def _kv_bytes_per_token(flat: Mapping[str, Json], model: ModelFacts, tensor: int, pipeline: int) -> float:
    """KV bytes of a token on one rank. KV heads are split over tensor ranks down to one each; a latent is not."""
    dtype = str(flat.get("kv-cache-dtype") or "auto")
    table = model.kv_bytes_per_token
    auto = table.get("auto", 0.0)
    if dtype in table:
        size = table[dtype]
    elif dtype.startswith("fp8"):
        size = table.get("fp8", auto / 2)
    elif dtype.startswith(("nvfp4", "int4", "turboquant")):
        size = auto * 0.2813  # 4 bits and a one-byte scale per 16
    elif dtype.startswith("int8"):
        size = auto / 2
    else:
        size = auto
    shared = 1 if model.is_mla or model.extra.get("kv_replicated") is True else min(tensor, max(1, model.kv_heads))
    return size / shared / pipeline


def _sequence_bytes(model: ModelFacts, per_token: float, length: int) -> float:
    """KV bytes of one request: layers with a sliding window keep the window only."""
    windowed = model.extra.get("sliding_layers")
    window = model.extra.get("sliding_window")
    if isinstance(windowed, int) and isinstance(window, int) and 0 < windowed <= model.layers and window > 0:
        share = windowed / model.layers
        return per_token * ((1 - share) * length + share * min(length, window))
    return per_token * length


def _flat(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Arguments with JSON flags unfolded one level, so that both spellings of a nested field are found."""
    flat: dict[str, Json] = {}
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{key}": inner for key, inner in value.items()})
        flat[name] = value
    return flat


def _number(arguments: Mapping[str, Json], name: str, default: float) -> float:
    """A numeric argument; text such as ``1G`` or ``2k`` is read as vLLM reads it (K 1024, k 1000)."""
    value = arguments.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value:
        unit = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
        scale = unit.get(value[-1], 1.0)
        try:
            return float(value[:-1] if value[-1] in unit else value) * scale
        except ValueError:
            return default
    return default
