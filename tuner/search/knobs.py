"""The settings of an engine that a step-time model understands, read from what a candidate asks for.

Names are matched loosely (``max_num_seqs``, ``max-num-seqs``, ``compilation_config.cudagraph_mode``), because spaces
for external programs spell them in their own way. Beside vLLM's own stand those by which SGLang (``launch_server``),
llama.cpp (``llama-server``) and TensorRT-LLM (``trtllm-serve``) call the same things. Whatever is not recognised stays
out of the mechanism.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tuner.model.candidate import Candidate
from tuner.model.json import finite
from tuner.model.llm import ModelFacts
from tuner.model.space import Choice, Parameter, Space
from tuner.model.weights import bytes_per_parameter

__all__ = [
    "KNOBS",
    "Defaults",
    "is_chosen",
    "is_decisive",
    "offers_lookup",
    "own_bits",
    "read_knobs",
    "spelling",
    "varies",
    "varies_knobs",
]

KNOBS = (
    "seqs",
    "batched_tokens",
    "capture",
    "graphs",
    "weight_bits",
    "format_bits",
    "weight_gib",
    "kv_bits",
    "utilization",
    "kv_bytes",
    "kv_tokens",
    "kv_room",
    "drafts",
    "draft_free",
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
    "async",
    "chunked",
    "threads",
    "stream",
    "api_servers",
)
"""Columns of a row of knobs. ``graphs``: 0 none, 1 piecewise, 2 full decode. ``kv_bytes``, ``kv_tokens``: size of the
cache where somebody asks for one, else 0. ``format_bits``: of the arithmetic, as the files' format has it.
``weight_gib``, ``kv_room``: what the planner reckons that the weights take of one device, and how many tokens the cache
of a replica holds; 0 where nobody can. ``draft_free``: drafts cost no model. ``threads``: of the CPU backend's compute;
``stream``: tokens in one streamed chunk."""

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "seqs": ("max-num-seqs", "max-running-requests", "parallel", "max-batch-size"),
    "batched_tokens": ("max-num-batched-tokens", "chunked-prefill-size", "ubatch-size", "max-num-tokens"),
    "capture": (
        "max-cudagraph-capture-size",
        "compilation-config.max-cudagraph-capture-size",
        "cudagraph-capture-size",
        "cuda-graph-max-bs",
    ),
    "capture_sizes": (
        "cudagraph-capture-sizes",
        "compilation-config.cudagraph-capture-sizes",
        "cuda-graph-sizes",
        "cuda-graph-bs",
    ),
    "mode": ("compilation-config.cudagraph-mode", "cudagraph-mode"),
    "eager": ("enforce-eager", "disable-cuda-graph"),
    "quantization": ("quantization",),
    "kv_dtype": ("kv-cache-dtype",),
    "keys_dtype": ("cache-type-k",),
    "values_dtype": ("cache-type-v",),
    "utilization": (
        "gpu-memory-utilization",
        "device-memory-utilization",
        "mem-fraction-static",
        "kv-cache-free-gpu-memory-fraction",
    ),
    "kv_bytes": ("kv-cache-memory-bytes",),
    "offload": ("cpu-offload-gb",),
    "kv_tokens": ("ctx-size",),
    "drafts": (
        "speculative-config.num-speculative-tokens",
        "spec-tokens",
        "num-speculative-tokens",
        "speculative-num-steps",
        "draft-max",
    ),
    "method": (
        "speculative-config.method",
        "spec-method",
        "speculative-method",
        "speculative-algorithm",
        "model-draft",
    ),
    "tensor_parallel": ("tensor-parallel-size", "tp-size"),
    "data_parallel": ("data-parallel-size", "dp-size"),
    "pipeline_parallel": ("pipeline-parallel-size", "pp-size"),
    "async": ("async-scheduling",),
    "not_async": ("disable-overlap-schedule",),
    "chunked": ("enable-chunked-prefill",),
    "threads": ("vllm-cpu-omp-threads-bind",),
    "stream": ("stream-interval",),
    "api_servers": ("api-server-count",),
}
_OFF = frozenset({"", "none", "off", "false", "null", "no", "disabled", "default", "auto"})
_CHOSEN = ("quantization", "method", "tensor_parallel", "data_parallel", "pipeline_parallel")
_LOOKED_UP = ("ngram", "suffix")
"""Ways to speculate without a model: drafts are looked up in the text so far."""
_FOUR_BITS = ("fp4", "int4", "w4", "awq", "gptq", "4bit", "nf4", "q4")
_EIGHT_BITS = ("fp8", "int8", "w8", "e4m3", "e5m2", "8bit", "q8")
_LARGEST_DEFAULT_CAPTURE = 512
"""vllm/config/vllm.py: the default limit is min(max_num_seqs * (1 + drafts) * 2, 512), 1024 on SM100 from 0.32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What runs where a candidate says nothing."""

    seqs: float = 256.0
    batched_tokens: float = 8192.0
    weight_bits: float = 16.0
    utilization: float = 0.92
    graphs: float = 2.0
    cores: int = 1
    checkpoint_bits: Mapping[str, float] = field(default_factory=dict)
    checkpoint_formats: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, space: Space) -> Defaults:
        """From the space's stated defaults where there are any, else vLLM's own for that platform."""
        found: dict[str, float] = {}
        for parameter in space.parameters:
            spelled = spelling(parameter.target or parameter.name)
            for knob in ("seqs", "batched_tokens", "utilization"):
                number = _float(parameter.default)
                if spelled in _SPELLINGS[knob] and number is not None and number > 0:
                    found[knob] = number
        cpu = space.hardware.platform == "cpu"
        small = cpu or space.hardware.memory_gib < 70
        found.setdefault("seqs", 128.0 if cpu else 256.0)
        found.setdefault("batched_tokens", 2048.0 if small else 8192.0)
        bits = own_bits(space.model)
        full = space.model.weight_bytes * 16 / bits
        return cls(
            **found,
            weight_bits=bits,
            graphs=0.0 if cpu else 2.0,
            cores=max(space.hardware.cores or 1, 1),
            # Their files know better than their names: embeddings stay in 16 bits, scales come on top.
            checkpoint_formats={name: own_bits(facts) for name, facts in space.checkpoints.items()},
            checkpoint_bits={
                name: 16 * facts.weight_bytes / full if facts.weight_bytes > 0 and full > 0 else own_bits(facts)
                for name, facts in space.checkpoints.items()
            },
        )


def own_bits(model: ModelFacts) -> float:
    """Bits per weight in which a model's files hold most of it: its experts, else its layers."""
    linear, experts = bytes_per_parameter(model, "")
    return 8 * (experts if model.is_moe else linear)


def is_decisive(parameter: Parameter) -> bool:
    """Whether it sets the batch, its cache, tokens a step, precision, drafts, threads, or the split over devices."""
    return _sets(parameter, *_CHOSEN, "seqs", "batched_tokens", "kv_tokens", "drafts", "threads")


def is_chosen(parameter: Parameter) -> bool:
    """Whether it is decisive and chosen rather than dosed: precision, the way to speculate, the split over devices."""
    return _sets(parameter, *_CHOSEN)


def _sets(parameter: Parameter, *knobs: str) -> bool:
    names = {spelling(parameter.name), spelling(parameter.target.removeprefix("env:"))}
    return any(names & set(_SPELLINGS[knob]) for knob in knobs)


def varies_knobs(space: Space) -> bool:
    """Whether the space varies the batch, its graphs or its precision: anything the mechanism can speak of."""
    known = {spelling for spellings in _SPELLINGS.values() for spelling in spellings}
    for parameter in space.parameters:
        names = {spelling(parameter.name), spelling(parameter.target)}
        if isinstance(parameter.domain, Choice):
            for value in parameter.domain.values.values():
                arguments = value.get("arguments") if isinstance(value, Mapping) else None
                if isinstance(arguments, Mapping):
                    names |= {spelling(str(name)) for name in arguments}
        if names & known:
            return True
    return False


def read_knobs(candidate: Candidate, defaults: Defaults, forecast: Mapping[str, float] | None = None) -> list[float]:
    """One row in the order of :data:`KNOBS`; always finite. ``forecast``: see :meth:`tuner.ports.Planner.forecast`."""
    flat = _flat(candidate)

    def look(name: str) -> object:
        return next((flat[spelling] for spelling in _SPELLINGS[name] if spelling in flat), None)

    def number(name: str, default: float) -> float:
        found = _float(look(name))
        return found if found is not None and found > 0 else default

    method = str(look("method") or "").lower()
    drafts = 0.0 if method in _OFF and method else number("drafts", 0.0)
    seqs = number("seqs", defaults.seqs)
    sizes = look("capture_sizes")
    listed = (
        [size for size in sizes if finite(size)] if isinstance(sizes, Sequence) and not isinstance(sizes, str) else []
    )
    capture = (
        float(max(listed)) if listed else number("capture", min(seqs * (1 + drafts) * 2, _LARGEST_DEFAULT_CAPTURE))
    )
    graphs = _graphs(str(look("mode") or ""), defaults.graphs)
    if _true(look("eager")):
        graphs = 0.0
    weight_bits = _bits(look("quantization"), defaults.checkpoint_bits.get(candidate.checkpoint, defaults.weight_bits))
    format_bits = _bits(
        look("quantization"), defaults.checkpoint_formats.get(candidate.checkpoint, defaults.weight_bits)
    )
    reckoned = forecast or {}
    cached = _bits(look("kv_dtype"), 16.0)
    if (halves := [look("keys_dtype"), look("values_dtype")]) != [None, None]:
        cached = sum(_bits(half, 16.0) for half in halves) / 2
    return [
        seqs,
        number("batched_tokens", defaults.batched_tokens),
        capture,
        graphs,
        weight_bits,
        format_bits,
        # What lies on the host is read all the same.
        reckoned["model-gib"] + number("offload", 0.0) if "model-gib" in reckoned else 0.0,
        cached,
        min(number("utilization", defaults.utilization), 1.0),
        number("kv_bytes", 0.0),
        number("kv_tokens", 0.0),
        reckoned.get("kv-cache-tokens", 0.0),
        min(drafts, 64.0),
        1.0 if method.startswith(_LOOKED_UP) else 0.0,
        number("tensor_parallel", 1.0),
        number("data_parallel", 1.0),
        number("pipeline_parallel", 1.0),
        0.0 if _false(look("async")) or _true(look("not_async")) else 1.0,
        0.0 if _false(look("chunked")) else 1.0,
        _threads(look("threads"), defaults.cores),
        number("stream", 1.0),
        number("api_servers", 1.0),
    ]


def varies(space: Space, *knobs: str) -> bool:
    """Whether a parameter of the space sets one of these knobs."""
    return any(_sets(parameter, *knobs) for parameter in space.parameters)


def offers_lookup(space: Space) -> bool:
    """Whether some label looks drafts up in the text."""
    choices = [parameter.domain for parameter in space.parameters if isinstance(parameter.domain, Choice)]
    values = [value for choice in choices for value in choice.values.values()]
    named = [value.get("method") if isinstance(value, Mapping) else value for value in values]
    return any(str(name).lower().startswith(_LOOKED_UP) for name in named)


def _threads(bind: object, cores: int) -> float:
    """Compute threads of the CPU backend: ``auto`` keeps one core free, ``nobind`` takes all, else a list of cores.

    Source: vllm/v1/worker/cpu_worker.py (VLLM_CPU_OMP_THREADS_BIND, VLLM_CPU_NUM_OF_RESERVED_CPU).
    """
    text = str(bind if bind is not None else "auto").lower()
    if text == "nobind":
        return float(cores)
    count = 0
    for first, last in re.findall(r"(\d{1,5})(?:-(\d{1,5}))?", text.split("|")[0]):
        count += max(int(last) - int(first) + 1, 1) if last else 1
    return float(min(count, 4096)) if count else float(max(cores - 1, 1))


def _flat(candidate: Candidate) -> dict[str, object]:
    flat: dict[str, object] = {spelling(name): value for name, value in candidate.assignment.items()}
    flat |= {spelling(name): value for name, value in candidate.environment.items()}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, Mapping) and len(prefix) < 200:
            for key, item in value.items():
                walk(f"{prefix}.{spelling(str(key))}", item)
        else:
            flat[prefix] = value

    for name, value in candidate.arguments.items():
        walk(spelling(name), value)
    return flat


def spelling(name: str) -> str:
    """A name as names are compared: lower case, dashes, without leading ones."""
    return name.lower().lstrip("-").replace("_", "-")


def _float(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and finite(value) else None


def _graphs(mode: str, default: float) -> float:
    mode = mode.upper()
    if mode == "NONE":
        return 0.0
    if mode == "PIECEWISE":
        return 1.0
    return 2.0 if mode.startswith("FULL") else default


def _bits(value: object, default: float) -> float:
    """Bits per element that a quantization or dtype name speaks of."""
    name = str(value or "").lower()
    if name in _OFF:
        return default
    if any(mark in name for mark in _FOUR_BITS):
        return 4.0
    if any(mark in name for mark in _EIGHT_BITS):
        return 8.0
    return 5.0 if "q5" in name else default


def _true(value: object) -> bool:
    return value is True or str(value).lower() in ("true", "on", "yes", "1")


def _false(value: object) -> bool:
    return value is False or str(value).lower() in ("false", "off", "no", "0")
