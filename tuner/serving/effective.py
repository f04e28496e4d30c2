"""What a started server really runs, beside what was asked of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import httpx

from tuner.model.candidate import Candidate
from tuner.model.json import Json
from tuner.model.measurement import reported_as
from tuner.serving.logs import LogFacts
from tuner.serving.patterns import plain

__all__ = ["differences", "effective", "fetch_labels", "fetch_server_info"]

_BODY_LIMIT = 4 << 20
_LABEL = re.compile(r'([a-zA-Z_]\w{0,80})="((?:[^"\\]|\\.){0,2000})"')

# (section of vLLM's configuration, field) → name used here; flags keep their own names.
_FIELDS: tuple[tuple[str, str, str], ...] = (
    ("model_config", "dtype", "dtype"),
    ("model_config", "quantization", "quantization"),
    ("model_config", "max_model_len", "max-model-len"),
    ("model_config", "enforce_eager", "enforce-eager"),
    ("cache_config", "block_size", "block-size"),
    ("cache_config", "cache_dtype", "kv-cache-dtype"),
    ("cache_config", "enable_prefix_caching", "enable-prefix-caching"),
    ("cache_config", "gpu_memory_utilization", "gpu-memory-utilization"),
    ("cache_config", "kv_cache_memory_bytes", "kv-cache-memory-bytes"),
    ("cache_config", "kv_cache_size_tokens", "kv-cache-tokens"),
    ("cache_config", "kv_cache_max_concurrency", "max-concurrency"),
    ("cache_config", "num_gpu_blocks", "kv-blocks"),
    ("parallel_config", "tensor_parallel_size", "tensor-parallel-size"),
    ("parallel_config", "pipeline_parallel_size", "pipeline-parallel-size"),
    ("parallel_config", "data_parallel_size", "data-parallel-size"),
    ("parallel_config", "enable_expert_parallel", "enable-expert-parallel"),
    ("parallel_config", "all2all_backend", "all2all-backend"),
    ("scheduler_config", "max_num_seqs", "max-num-seqs"),
    ("scheduler_config", "max_num_batched_tokens", "max-num-batched-tokens"),
    ("scheduler_config", "enable_chunked_prefill", "enable-chunked-prefill"),
    ("scheduler_config", "async_scheduling", "async-scheduling"),
    ("scheduler_config", "policy", "scheduling-policy"),
    ("scheduler_config", "stream_interval", "stream-interval"),
    ("scheduler_config", "long_prefill_token_threshold", "long-prefill-token-threshold"),
    ("compilation_config", "mode", "compilation-mode"),
    ("compilation_config", "cudagraph_mode", "cudagraph-mode"),
    ("compilation_config", "max_cudagraph_capture_size", "cudagraph-capture-max"),
    ("attention_config", "backend", "attention-backend"),
    ("kernel_config", "moe_backend", "moe-backend"),
    ("kernel_config", "linear_backend", "linear-backend"),
    ("speculative_config", "method", "speculative-method"),
    ("speculative_config", "num_speculative_tokens", "num-speculative-tokens"),
    ("load_config", "load_format", "load-format"),
    ("device_config", "device", "device"),
)
# Settings that only the log tells as they came out; the configuration still shows what was asked.
_LOG_WINS = ("cudagraph-mode", "cudagraph-capture-max", "attention-backend", "moe-backend", "kv-cache-gib")
_UNSPECIFIC = (None, "auto", "AUTO", "")
_MODES = {0: "NONE", 1: "STOCK_TORCH_COMPILE", 2: "DYNAMO_TRACE_ONCE", 3: "VLLM_COMPILE"}
_GRAPHS = {0: "NONE", 1: "PIECEWISE", 2: "FULL", (2, 0): "FULL_DECODE_ONLY", (2, 1): "FULL_AND_PIECEWISE"}


def fetch_server_info(client: httpx.Client) -> Mapping[str, Any]:
    """``/server_info`` (there with ``VLLM_SERVER_DEV_MODE=1``); empty if the server has none or answers nonsense."""
    body = _get(client, "/server_info?config_format=json")
    try:
        info = httpx.Response(200, content=body).json() if body else {}
    except (ValueError, RecursionError):
        return {}
    config = info.get("vllm_config") if isinstance(info, dict) else None
    return config if isinstance(config, dict) else {}


def fetch_labels(client: httpx.Client) -> dict[str, str]:
    """Labels of ``vllm:cache_config_info``; empty if there is no such metric."""
    for line in _get(client, "/metrics").decode("utf-8", errors="replace").splitlines():
        if line.startswith("vllm:cache_config_info{"):
            return dict(_LABEL.findall(line[:20000]))
    return {}


def _get(client: httpx.Client, path: str) -> bytes:
    body = b""
    try:
        with client.stream("GET", path) as response:
            if response.status_code != httpx.codes.OK:
                return b""
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _BODY_LIMIT:
                    return b""
    except httpx.HTTPError:
        return b""
    return body


def effective(info: Mapping[str, Any], labels: Mapping[str, str], facts: LogFacts) -> dict[str, Json]:
    """Setting → what runs. The resolved configuration counts more than the log, except where only the log knows."""
    settings: dict[str, Json] = dict(facts.settings)
    for field, name in (
        ("block_size", "block-size"),
        ("cache_dtype", "kv-cache-dtype"),
        ("num_gpu_blocks", "kv-blocks"),
        ("enable_prefix_caching", "enable-prefix-caching"),
        ("kv_cache_size_tokens", "kv-cache-tokens"),
    ):
        if field in labels and (value := plain(labels[field])) is not None:
            settings[name] = value
    for section, field, name in _FIELDS:
        part = info.get(section)
        if not isinstance(part, Mapping) or field not in part:
            continue
        value = _resolved(name, part[field])
        if name in _LOG_WINS and facts.settings.get(name) is not None:
            continue
        if value in _UNSPECIFIC and settings.get(name) not in _UNSPECIFIC:
            continue
        settings[name] = value
    sizes = info.get("compilation_config")
    if isinstance(sizes, Mapping) and isinstance(sizes.get("cudagraph_capture_sizes"), list):
        settings.setdefault("cudagraph-capture-count", len(sizes["cudagraph_capture_sizes"]))
    if settings.get("cudagraph-mode") == "NONE":
        settings["cudagraph-capture-max"] = 0
    return settings


def _resolved(name: str, value: object) -> Json:
    if name == "compilation-mode" and isinstance(value, int):
        return _MODES.get(value, value)
    if name == "cudagraph-mode":
        key = tuple(value) if isinstance(value, list) else value
        if isinstance(key, int | tuple) and key in _GRAPHS:
            return _GRAPHS[key]
    if isinstance(value, str):
        return value.removeprefix("torch.").rsplit("CUDAGraphMode.", 1)[-1].rsplit("CompilationMode.", 1)[-1][:300]
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:300]


def differences(candidate: Candidate, settings: Mapping[str, Json], warnings: Mapping[str, None]) -> tuple[str, ...]:
    """Where the server runs something else than asked, each in a sentence, with vLLM's own reason if it gave any."""
    found = []
    for flag, asked in candidate.arguments.items():
        for name, value in _expand(flag, asked):
            runs = settings.get(name)
            if name not in settings or value in _UNSPECIFIC or _same(value, runs):
                continue
            reason = next((text for text in warnings if _speaks_of(name, text)), "")
            found.append(f"asked {name} {_show(value)}, runs {_show(runs)}" + (f": {reason}" if reason else ""))
    return tuple(found)


def _expand(flag: str, asked: Json) -> list[tuple[str, Json]]:
    if isinstance(asked, Mapping):
        return [(reported_as(f"{flag}.{key}"), value) for key, value in asked.items()]
    return [(reported_as(flag), asked)]


def _speaks_of(name: str, warning: str) -> bool:
    return {
        "cudagraph-mode": "CUDA graph",
        "cudagraph-capture-max": "CUDA graph",
        "attention-backend": "attention backend",
        "moe-backend": "MoE",
        "all2all-backend": "all2all",
        "compilation-mode": "torch.compile",
    }.get(name, "\0") in warning


def _show(value: Json) -> str:
    return (
        {True: "on", False: "off", None: "none"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )


def _same(asked: Json, runs: Json) -> bool:
    if isinstance(asked, bool) or isinstance(runs, bool) or asked is None or runs is None:
        return asked == runs
    if isinstance(asked, int | float) and isinstance(runs, int | float):
        return abs(asked - runs) <= 1e-9 * max(abs(asked), abs(runs))
    if isinstance(runs, int) and (size := _bytes(str(asked))) is not None:
        return size == runs
    return _plain_name(str(asked)) == _plain_name(str(runs))


def _plain_name(text: str) -> str:
    text = text.lower().replace("-", "_").replace(" ", "_")
    return {"half": "float16", "float": "float32", "fp8": "fp8_e4m3"}.get(text, text)


def _bytes(text: str) -> int | None:
    """``1G``, ``512m``, ``1.5Gi`` as vLLM's parser reads them: capital letters are binary (1024)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)i?", text.strip())
    if not found:
        return None
    power = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}[found[2].lower()]
    return int(float(found[1]) * (1024 if found[2].isupper() or not found[2] else 1000) ** power)
