"""The tables behind :mod:`tuner.serving.logs`: which line says what. Texts are vLLM's own (0.25.1 and 0.32)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tuner.model.json import Json

__all__ = ["PHASES", "SETTINGS", "WARNINGS", "init_line"]

PHASES = ("imports", "weights", "compile", "profile", "capture")

Settings = Mapping[str, Json]
Reader = Callable[[re.Match[str], Settings], Settings]


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _graphs(match: re.Match[str], settings: Settings) -> Settings:
    """``PIECEWISE=51 (largest=512), FULL=35 (largest=256)``.

    Full graphs alone are what FULL and FULL_DECODE_ONLY both capture: there the configuration's word stands.
    """
    found = {kind: int(largest) for kind, largest in re.findall(r"(\w+)=\d+ \(largest=(\d+)\)", match[1])}
    mode: Json = "FULL_AND_PIECEWISE" if len(found) > 1 else next(iter(found), "NONE")
    if mode == "FULL" and settings.get("cudagraph-mode") == "FULL_DECODE_ONLY":
        mode = "FULL_DECODE_ONLY"
    out: dict[str, Json] = {"cudagraph-mode": mode, "cudagraph-capture-max": max(found.values(), default=0)}
    if "FULL" in found:
        out["cudagraph-decode-max"] = found["FULL"]
    return out


def _kernel(match: re.Match[str], settings: Settings) -> Settings:
    before = settings.get("linear-kernels")
    kernels = dict(before) if isinstance(before, Mapping) else {}
    if len(kernels) < 32:
        kernels[match[2]] = match[1]
    return {"linear-kernels": kernels}


def _one(name: str, convert: Callable[[str], Json] = str) -> Reader:
    return lambda match, _: {name: convert(match[1])}


def _fixed(**settings: Json) -> Reader:
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    return lambda _match, _settings: named


SETTINGS: tuple[tuple[re.Pattern[str], Reader], ...] = tuple(
    (re.compile(pattern), reader)
    for pattern, reader in (
        (
            r"^Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+)(?: attention)? backend(?: out of|\.)",
            _one("attention-backend"),
        ),
        (r"^Using FlashAttention version (\d)", _one("flash-attention-version", int)),
        (r"^Using ([\w ]{2,40}) MLA prefill backend", _one("mla-prefill-backend")),
        (r"^Using '?([\w \-]{2,60}?)'? \w+ MoE backend", _one("moe-backend")),
        (r"^Selected (\w{2,80}) for (\w{2,80})", _kernel),
        (r"^Using (\w{2,80}) for (mixed-precision linear|\w{4,8} GEMM)", _kernel),
        (r"\b(?:GPU|CPU) KV cache size: ([\d,]{1,20}) tokens", _one("kv-cache-tokens", _int)),
        (r"Maximum concurrency for [\d,]{1,20} tokens per request: ([\d.]{1,20})x", _one("max-concurrency", float)),
        (r"Available KV cache memory: (-?[\d.]{1,20}) GiB", _one("kv-cache-gib", float)),
        (r"^Model loading took (-?[\d.]{1,20}) GiB memory", _one("model-gib", float)),
        (r"^Profiling CUDA graph memory: (.{1,200})", _graphs),
        (r"^Graph capturing finished in [\d.]+ secs, took (-?[\d.]{1,20}) GiB", _one("cudagraph-gib", float)),
        (
            r"^Skipping CUDA graph capture",
            _fixed(cudagraph_mode="NONE", cudagraph_capture_max=0),
        ),
        (r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,9})", _one("max-num-batched-tokens", int)),
        (r"Chunked prefill is enabled", _fixed(enable_chunked_prefill=True)),
        (r"^Asynchronous scheduling is (?:enabled)", _fixed(async_scheduling=True)),
        (r"^Asynchronous scheduling is (?:disabled)", _fixed(async_scheduling=False)),
        (r"^Using V2 Model Runner", _fixed(model_runner="V2")),
        (r"using the V1 model runner instead", _fixed(model_runner="V1")),
        (r"^Using max model len (\d{1,9})", _one("max-model-len", int)),
        (r"^Resolved architecture: (\w{2,80})", _one("architecture")),
        (r"^Using (\w{2,40}) KV cache layout", _one("kv-cache-layout")),
    )
)

_INIT = re.compile(r"^Initializing a V1 LLM engine \(v([\w.+\-]{1,40})\) with config: ")
_SCALAR = r"'?([^\s,'()\[\]{}]{1,120})'?"
_INIT_FIELDS = {
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv-cache-dtype",
    "enforce_eager": "enforce-eager",
    "tensor_parallel_size": "tensor-parallel-size",
    "pipeline_parallel_size": "pipeline-parallel-size",
    "data_parallel_size": "data-parallel-size",
    "enable_prefix_caching": "enable-prefix-caching",
    "enable_chunked_prefill": "enable-chunked-prefill",
    "max_seq_len": "max-model-len",
    "load_format": "load-format",
}
_INIT_PATTERNS = {name: re.compile(rf"(?:^|[ ,(]){field}={_SCALAR}(?=[,)]|$)") for field, name in _INIT_FIELDS.items()}
_INIT_OTHERS = (
    (re.compile(r"'cudagraph_mode': <CUDAGraphMode\.(\w{1,40}):"), "cudagraph-mode", str),
    (re.compile(r"'max_cudagraph_capture_size': (\d{1,9})"), "cudagraph-capture-max", int),
    (re.compile(r"'mode': <CompilationMode\.(\w{1,40}):"), "compilation-mode", str),
    (re.compile(r"SpeculativeConfig\(method='(\w{1,40})'"), "speculative-method", str),
    (re.compile(r"num_spec_tokens=(\d{1,4})"), "num-speculative-tokens", int),
)


def plain(text: str) -> Json:
    """A Python literal in vLLM's own words as a JSON value."""
    if text in ("True", "False"):
        return text == "True"
    if text == "None":
        return None
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", text):
        return float(text)
    return text.removeprefix("torch.")


def init_line(text: str) -> tuple[str, dict[str, Json]] | None:
    """EngineCore's dump of its configuration: version and settings; None for any other line."""
    start = _INIT.match(text)
    if start is None:
        return None
    settings: dict[str, Json] = {}
    for name, pattern in _INIT_PATTERNS.items():
        if match := pattern.search(text):
            settings[name] = plain(match[1])
    for pattern, name, convert in _INIT_OTHERS:
        if match := pattern.search(text):
            settings[name] = convert(match[1])
    return start[1], settings


def _moe_config(match: re.Match[str]) -> str:
    file = match[1].rsplit("/", 1)[-1] if match[1] else "none"
    return f"no tuned MoE kernel configuration for this device ({file}): vLLM runs its default, likely slower"


Sentence = str | Callable[[re.Match[str]], str]

WARNINGS: tuple[tuple[re.Pattern[str], Sentence], ...] = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (r"Using default MoE config\.(?:.{0,200}?(?:not found at|at) (\S{1,400}))?", _moe_config),
        (
            r"JIT compilation during inference: (\w{1,120})",
            lambda match: f"kernel {match[1]} was compiled while serving: measurements around it are too slow",
        ),
        (
            r"(CUDAGraphMode\.\w+ is not supported with .{1,120}?); setting cudagraph_mode=([\w.]+)",
            lambda match: f"CUDA graph mode changed to {match[2]}: {match[1]}",
        ),
        (
            r"Cudagraph mode (\S+) is not compatible with compilation mode (\S+?)\.? Overriding to (\S+?)\.?$",
            lambda match: (
                f"CUDA graph mode changed from {match[1]} to {match[3]}: compilation mode {match[2]} cannot have it"
            ),
        ),
        (
            r"Overriding cudagraph_mode (?:from )?(\S+) to (\w+)",
            lambda match: f"CUDA graph mode changed from {match[1]} to {match[2]}",
        ),
        (r"Overriding cudagraph_mode to (\w+)", lambda match: f"CUDA graph mode changed to {match[1]}"),
        (
            r"Cudagraph mode (\S+) requires piecewise capture",
            lambda match: f"CUDA graph mode {match[1]} cannot be captured for this model",
        ),
        (r"^Skipping CUDA graph capture", "no CUDA graphs are captured: decode runs launch by launch"),
        (
            r"Auto-enabling VLLM_USE_BREAKABLE_CUDAGRAPH=1",
            "breakable CUDA graphs are on, so torch.compile is off for this model",
        ),
        (
            r"(?:Model Runner V2 (?:does not yet support|requires) (.{1,80}?))[;:] using the V1 model runner",
            lambda match: f"runs model runner V1: V2 does not support {match[1]} here",
        ),
        (r"Cannot use (\w+) backend on CPU", lambda match: f"attention backend {match[1]} is ignored on CPU"),
        (
            r"all2all.{0,60}has been removed\. Falling back to '(\w+)'",
            lambda match: f"all2all backend fell back to {match[1]}",
        ),
        (
            r"Unknown vLLM environment variable detected: (\w{1,80})",
            lambda match: f"this vLLM does not know the environment variable {match[1]}",
        ),
        (
            r"Using KV cache scaling factor 1\.0 for (\w+)",
            lambda match: f"the {match[1]} KV cache has no scales in the checkpoint: accuracy may suffer",
        ),
        (r"Using uncalibrated q_scale", "fp8 attention runs with uncalibrated scales: accuracy may suffer"),
        (
            r"No FlashInfer autotune cache entries found",
            "FlashInfer has no tuned tactics for this device: it runs its defaults",
        ),
        (
            r"min_p and logit_bias parameters won't work with speculative decoding",
            "min_p and logit_bias are ignored while speculating",
        ),
        (
            r"Speculative decoding on CPU without Intel OpenMP",
            "speculative decoding without Intel OpenMP in LD_PRELOAD is much slower on CPU",
        ),
        (
            r"(libtcmalloc|libiomp) is not found in LD_PRELOAD",
            lambda match: f"{match[1]} is not preloaded: CPU performance may be lower",
        ),
        (
            r"Your (?:GPU|device) does not have native support for FP8 computation",
            "this GPU has no native FP8 arithmetic: weights are expanded, memory is saved but not compute",
        ),
        (
            r"Reducing Torch parallelism from (\d+) threads to (\d+)",
            lambda match: f"torch threads reduced from {match[1]} to {match[2]}",
        ),
        (
            r"Default vLLM sampling parameters have been overridden by the model's",
            "the model's generation_config changes the default sampling parameters",
        ),
    )
)
