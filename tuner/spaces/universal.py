"""Rules that hold for every space, whether or not it extends a base file: what vLLM's own checks refuse everywhere."""

from __future__ import annotations

from tuner.model.expression import Expression
from tuner.model.space import Forbid

__all__ = ["UNIVERSAL"]


def _rule(name: str, condition: str, reason: str, source: str, violation: str = "") -> Forbid:
    return Forbid(
        name=name,
        condition=Expression.parse(condition),
        reason=reason,
        source=source,
        violation=Expression.parse(violation) if violation else None,
    )


_RANKS = (
    "(flags.tensor_parallel_size or 1) * (flags.pipeline_parallel_size or 1)"
    " * (flags.data_parallel_size or 1) * (flags.prefill_context_parallel_size or 1)"
)

UNIVERSAL: tuple[Forbid, ...] = (
    _rule(
        "utilization-range",
        "flags.gpu_memory_utilization <= 0 or flags.gpu_memory_utilization > 1",
        "gpu-memory-utilization ({flags.gpu_memory_utilization}) is not above 0 and at most 1",
        "vllm/config/cache.py: CacheConfig.gpu_memory_utilization",
        "abs(flags.gpu_memory_utilization - 1)",
    ),
    _rule(
        "mtok-below-seqs",
        "flags.max_num_batched_tokens < flags.max_num_seqs",
        "max-num-batched-tokens ({flags.max_num_batched_tokens}) is below max-num-seqs ({flags.max_num_seqs})",
        "vllm/config/scheduler.py: verify_max_model_len",
        "(flags.max_num_seqs - flags.max_num_batched_tokens) / flags.max_num_seqs",
    ),
    _rule(
        "request-too-long",
        "flags.max_model_len < workload.tokens_needed",
        "max-model-len ({flags.max_model_len}) is below the longest request of the workload"
        " ({workload.tokens_needed} tokens)",
        "vllm/entrypoints: input and output beyond max_model_len are refused",
        "(workload.tokens_needed - flags.max_model_len) / workload.tokens_needed",
    ),
    _rule(
        "workload-beyond-model",
        "workload.tokens_needed > model.max_position and flags.max_model_len == null",
        "the longest request of the workload ({workload.tokens_needed} tokens) is beyond what {model.name} allows"
        " ({model.max_position})",
        "vllm/config/model.py: _get_and_verify_max_len",
        "(workload.tokens_needed - model.max_position) / model.max_position",
    ),
    _rule(
        "ranks",
        # A CPU host is one device with a rank on each memory node: how many those are, no profile says.
        f"hardware.platform != 'cpu' and {_RANKS} > hardware.count",
        f"{{{_RANKS}}} ranks need as many devices, {{hardware.name}} has {{hardware.count}}",
        "vllm/config/parallel.py: World size is larger than the number of available GPUs",
        f"({_RANKS} - hardware.count) / hardware.count",
    ),
    _rule(
        "heads-divisible",
        "model.heads % (flags.tensor_parallel_size or 1) != 0",
        "{model.heads} attention heads cannot be divided by tensor-parallel-size ({flags.tensor_parallel_size})",
        "vllm/config/model.py: verify_with_parallel_config",
    ),
    _rule(
        "not-positive",
        "flags.max_num_seqs < 1 or flags.max_num_batched_tokens < 1 or flags.block_size < 1"
        " or flags.tensor_parallel_size < 1 or flags.pipeline_parallel_size < 1 or flags.data_parallel_size < 1"
        " or flags.stream_interval < 1 or flags.speculative_config.num_speculative_tokens < 1",
        "a size that must be at least 1 is below it",
        "vllm/config: Field(ge=1)",
    ),
)
