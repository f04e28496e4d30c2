"""Texts with which a real vLLM 0.32 dies, by class; the generic tail that follows each of them is added by the fake.

Wording and raising file are those of vLLM 0.32.0, so that whatever reads a log is tested on what it will meet.
"""

from __future__ import annotations

__all__ = ["ENGINE_TAIL", "ERRORS", "KINDS"]

ENGINE_TAIL = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"

# name → (raised in which process, exception line)
ERRORS: dict[str, tuple[str, str]] = {
    "cuda-oom": (
        "engine",
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "139.80 GiB of which 1.31 GiB is free. Including non-PyTorch memory, this process has "
            "138.48 GiB memory in use."
        ),
    ),
    "sampler-oom": (
        "engine",
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try "
            "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        ),
    ),
    "no-kv": (
        "engine",
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        ),
    ),
    "kv-too-small": (
        "engine",
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), (24.00 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the "
            "estimated maximum model length is 34736. Try increasing `gpu_memory_utilization` or decreasing "
            "`max_model_len` when initializing the engine."
        ),
    ),
    "free-mem": (
        "engine",
        (
            "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 42.64 GiB). Decrease GPU memory utilization or reduce GPU memory used by "
            "other processes."
        ),
    ),
    "attn-invalid": (
        "engine",
        (
            "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason: "
            "['block_size not supported']"
        ),
    ),
    "block-size": ("engine", "ValueError: No common block size for 24 (CPU_ATTN: [MultipleOf(32)])."),
    "quant-mismatch": (
        "api",
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, "
            "Quantization method specified in the model config (fp8) does not match the quantization method specified "
            "in the `quantization` argument (awq). [type=value_error, input_value=ArgsKwargs(()), "
            "input_type=ArgsKwargs]"
        ),
    ),
    "world-size": (
        "api",
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig\n  Value error, World "
            "size (8) is larger than the number of available GPUs (1) in this node. [type=value_error]"
        ),
    ),
    "port": (
        "api",
        "OSError: [Errno 98] Address already in use",
    ),
    "disk-full": ("engine", "OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache'"),
    "ready-timeout": (
        "api",
        (
            "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight "
            "loading for large models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S). To increase the "
            "timeout, set the environment variable: VLLM_ENGINE_READY_TIMEOUT_S=<seconds>"
        ),
    ),
    "unknown": ("engine", "RuntimeError: the flux capacitor of layer 7 lost its charge"),
}

# What a tuner should make of each: (kinds that are right, blame). Written from the table of failure classes, not
# from any classifier's answers.
KINDS: dict[str, tuple[frozenset[str], str]] = {
    "cuda-oom": (frozenset({"cuda-oom", "capture-oom", "oom", "load-oom"}), "configuration"),
    "sampler-oom": (frozenset({"cuda-oom", "sampler-oom", "oom"}), "configuration"),
    "no-kv": (frozenset({"no-kv"}), "configuration"),
    "kv-too-small": (frozenset({"kv-too-small"}), "configuration"),
    "free-mem": (frozenset({"free-mem"}), "machine"),
    "attn-invalid": (frozenset({"attn-invalid"}), "configuration"),
    "block-size": (frozenset({"block-size"}), "configuration"),
    "quant-mismatch": (frozenset({"quant-mismatch"}), "configuration"),
    "world-size": (frozenset({"world-size"}), "configuration"),
    "port": (frozenset({"port"}), "machine"),
    "disk-full": (frozenset({"disk-full", "disk"}), "machine"),
    "ready-timeout": (frozenset({"ready-timeout"}), "machine"),
    "unknown": (frozenset({"unknown"}), "configuration"),
}
