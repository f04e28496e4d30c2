"""What a model is, read from its ``config.json`` and weight files; from the overlay's facts where none are at hand.

Nothing here touches the network: a local folder, then the Hugging Face cache, then the facts that travel with the
model's overlay.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from tuner.errors import InputError
from tuner.model.llm import ModelFacts
from tuner.model.weights import computed_weight_bytes

__all__ = ["model_facts", "read_config"]

_CONFIG_LIMIT = 8 * 1024 * 1024
_INDEX_LIMIT = 256 * 1024 * 1024
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
# First name that is present wins; the names are those of Llama, Qwen, DeepSeek, GLM, Kimi, MiniMax, gpt-oss, GPT-2.
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query_group_num")
_POSITION = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_sequence_length")
_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_hidden_size", "intermediate_dim")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_moe_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "moe_k")
_MOE_INTERMEDIATE = ("moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size")
_SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "max_position")
_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "n_predict")
_EXTRA = (
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_shared_experts",
    "shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step", "tie_word_embeddings",
    "sliding_window", "index_topk", "index_head_dim", "expert_dtype", "scoring_func", "model_type",
)  # fmt: skip


def model_facts(
    name: str,
    catalogue: Mapping[str, Mapping[str, object]],
    *,
    family: str = "generic",
    hub_cache: Path | None = None,
) -> ModelFacts:
    """Facts of the model that goes to vLLM as ``--model``.

    Args:
        name: a local folder with a ``config.json``, or a hub id.
        catalogue: hub id → :class:`~tuner.model.llm.ModelFacts` fields, gathered from the overlays.
        family: overlay name, kept in the facts.
        hub_cache: folder of the Hugging Face cache; by default where ``HF_HUB_CACHE`` or ``HF_HOME`` say.

    Raises:
        InputError: there is no such model here, or its ``config.json`` cannot be used.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(name, folder, family)
    known = catalogue.get(name)
    cached = _cached_snapshot(name, hub_cache)
    if cached is not None:
        facts = _from_folder(name, cached, family)
        if known is not None and not _weight_files(cached) and _is_number(known.get("weight_bytes")):
            # The cache may hold the small files only; the overlay knows the size on the hub.
            facts = dataclasses.replace(facts, weight_bytes=float(str(known["weight_bytes"])))
        return facts
    if known is not None:
        return _from_catalogue(name, known, family)
    raise InputError(
        f"model {name!r}: no such folder, not in the Hugging Face cache, and no overlay carries its facts; give a "
        f"folder with config.json, fetch it first (hf download {name}), or add it under `facts:` of an overlay or of "
        f"your own file, with {', '.join(_SHAPE)}"
    )


def read_config(folder: Path) -> dict[str, object]:
    """The model's ``config.json`` as a dict.

    Raises:
        InputError: it is missing, too large, or not a JSON object.
    """
    path = folder / "config.json"
    config = _read_json(path, _CONFIG_LIMIT)
    if config is None:
        raise InputError(f"{path}: not there; a model folder needs the config.json of the checkpoint")
    return config


def _from_folder(name: str, folder: Path, family: str) -> ModelFacts:
    outer = read_config(folder)
    where = str(folder / "config.json")
    facts = _parse(name, outer, family=family, source=where)
    size = _weight_bytes(folder)
    return facts if size is None else dataclasses.replace(facts, weight_bytes=size)


def _parse(name: str, outer: Mapping[str, object], *, family: str, source: str) -> ModelFacts:
    config: Mapping[str, object] = outer
    for key in _NESTED:
        inner = outer.get(key)
        if isinstance(inner, Mapping) and _first(inner, _LAYERS):
            config = {**outer, **inner}
            break
    layers, hidden, heads, vocab = (
        _needed(config, names, source) for names in (_LAYERS, _HIDDEN, _HEADS, ("vocab_size", "padded_vocab_size"))
    )
    kv_heads = 1 if config.get("multi_query") is True else _first(config, _KV_HEADS) or heads
    head_dim = _first(config, ("head_dim", "kv_channels")) or max(1, hidden // heads)
    experts = _first(config, _EXPERTS)
    intermediate = _first(config, _INTERMEDIATE)
    latent = _first(config, ("kv_lora_rank",))
    architectures = outer.get("architectures")
    facts = ModelFacts(
        name=name,
        family=family,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        max_position=_max_position(config),
        intermediate=intermediate,
        experts=experts if experts > 1 else 0,
        experts_per_token=_first(config, _TOP_K) if experts > 1 else 0,
        moe_intermediate=(_first(config, _MOE_INTERMEDIATE) or intermediate) if experts > 1 else 0,
        mla_rank=latent + _first(config, ("qk_rope_head_dim",)) if latent else 0,
        quantization=_quantization(outer, config),
        dtype=_dtype(outer, config),
        weight_bytes=0.0,
        mtp_layers=_first(config, _MTP),
        source=source,
        extra={**{key: config[key] for key in _EXTRA if config.get(key) is not None}, **_layer_kinds(config, layers)},
    )
    return _completed(facts)


def _from_catalogue(name: str, known: Mapping[str, object], family: str) -> ModelFacts:
    fields = {field.name for field in dataclasses.fields(ModelFacts)}
    unknown = sorted(set(known) - fields)
    if unknown:
        raise InputError(f"facts of {name!r}: unknown key {unknown[0]!r}; known keys are {', '.join(sorted(fields))}")
    values: dict[str, object] = {"weight_bytes": 0.0, "source": f"overlay {family}", **known}
    values.update(name=name, family=family)
    _check_shape(name, values)
    for key in ("kv_bytes_per_token", "extra"):
        if not isinstance(values.get(key, {}), Mapping):
            raise InputError(f"facts of {name!r}: {key} must be a mapping")
    if not _is_number(values["weight_bytes"]):
        raise InputError(f"facts of {name!r}: weight_bytes must be a number of bytes, not {values['weight_bytes']!r}")
    values["weight_bytes"] = float(str(values["weight_bytes"]))
    return _completed(ModelFacts(**values))  # type: ignore[arg-type]  # the keys and kinds were checked above


def _check_shape(name: str, values: Mapping[str, object]) -> None:
    """Every size of the shape is there and a number: all that is missing or wrong is said at once."""
    missing = [key for key in _SHAPE if values.get(key) is None]
    wrong = [
        f"{key} must be a whole number above 0, not {values[key]!r}"
        for key in _SHAPE
        if key not in missing and (not _is_number(values[key]) or float(str(values[key])) < 1)
    ]
    problems = [f"needs {', '.join(missing)} (whole numbers above 0)"] * bool(missing) + wrong
    if problems:
        raise InputError(f"facts of {name!r}: {'; '.join(problems)}")


def _completed(facts: ModelFacts) -> ModelFacts:
    """Fill in what follows from the shape: KV bytes per token, and the size of weights nobody has seen."""
    changes: dict[str, object] = {}
    if not facts.kv_bytes_per_token:
        changes["kv_bytes_per_token"] = _kv_bytes_per_token(facts)
    if facts.weight_bytes <= 0:
        changes["weight_bytes"] = computed_weight_bytes(facts)
    return dataclasses.replace(facts, **changes) if changes else facts  # type: ignore[arg-type]


def _kv_bytes_per_token(facts: ModelFacts) -> dict[str, float]:
    """Per KV dtype: two vectors per KV head and layer, or one latent vector with MLA (v1/kv_cache_interface.py).

    Layers with linear attention keep a state of fixed size instead, which no token adds to. MLA with fp8 stores
    the plain 1-byte latent; the sparse layout ``fp8_ds_mla`` takes 656 bytes for 576 elements.
    """
    layers = facts.layers - _count(facts.extra.get("linear_layers"))
    elements = facts.mla_rank or 2 * facts.kv_heads * facts.head_dim
    bytes_16 = 4 if facts.dtype == "float32" else 2
    index = facts.extra.get("index_head_dim")
    # The indexer of sparse MLA keeps one more fp8 vector with a 4-byte scale per 128 elements (DeepSeek-V3.2).
    indexer = _count(index) * (1 + 4 / 128) if index else 0.0
    sparse = 656.0 if index and facts.mla_rank == 576 else float(elements)
    return {"auto": layers * (elements * bytes_16 + indexer), "fp8": layers * (sparse + indexer)}


def _max_position(config: Mapping[str, object]) -> int:
    """Longest context as vLLM derives it: RoPE scaling stretches it (config/model.py, _get_and_verify_max_len)."""
    length = float(_first(config, _POSITION) or 2048)
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(rope, Mapping):
        kind = str(rope.get("rope_type", rope.get("type", "default")))
        factor = rope.get("factor")
        if kind not in ("default", "su", "longrope", "llama3", "mrope") and _is_number(factor):
            if kind in ("yarn", "deepseek_yarn"):
                length = float(_first(rope, ("original_max_position_embeddings",)) or length)
            length *= float(str(factor))
    return max(1, int(length))


def _quantization(outer: Mapping[str, object], config: Mapping[str, object]) -> str:
    for source in (outer, config):
        for key in ("quantization_config", "compression_config"):
            block = source.get(key)
            if isinstance(block, Mapping):
                method = str(block.get("quant_method", "")).lower()
                if method == "fp8" and str(config.get("model_type")) == "deepseek_v4":
                    return "deepseek_v4_fp8"  # vLLM renames it (config/model.py)
                return method or "unknown"
    return ""


def _dtype(outer: Mapping[str, object], config: Mapping[str, object]) -> str:
    for source in (config, outer):
        for key in ("dtype", "torch_dtype"):
            if isinstance(source.get(key), str):
                return str(source[key]).removeprefix("torch.")
    return "bfloat16"


def _layer_kinds(config: Mapping[str, object], layers: int) -> dict[str, object]:
    """How many layers see only a window, and how many hold no KV cache at all."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) >= layers:
        kinds = kinds[:layers]
        return {
            "sliding_layers": sum(kind == "sliding_attention" for kind in kinds),
            "linear_layers": sum(kind in ("linear_attention", "mamba", "recurrent") for kind in kinds),
        }
    interval = config.get("full_attention_interval")
    if isinstance(interval, int) and not isinstance(interval, bool) and interval > 1:
        return {"linear_layers": layers - layers // interval}
    return {}


def _cached_snapshot(name: str, hub_cache: Path | None) -> Path | None:
    """Folder of the newest cached revision of a hub id, None if there is none."""
    if name.count("/") != 1 or ".." in name or name.startswith("/"):
        return None
    root = hub_cache or Path(
        os.environ.get("HF_HUB_CACHE")
        or Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    )
    folder = root / ("models--" + name.replace("/", "--"))
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        wanted = folder / "snapshots" / revision
        if revision and (wanted / "config.json").is_file():
            return wanted
        found = [path.parent for path in (folder / "snapshots").glob("*/config.json")]
    except OSError:
        return None
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _weight_bytes(folder: Path) -> float | None:
    """Bytes of the weights on disk: the index's own total, else the sizes of the files, None where there are none."""
    index = _read_json(folder / "model.safetensors.index.json", _INDEX_LIMIT)
    metadata = index.get("metadata") if index else None
    files = _weight_files(folder)
    if files and isinstance(metadata, Mapping) and _is_number(metadata.get("total_size")):
        return float(str(metadata["total_size"]))
    try:
        return float(sum(path.stat().st_size for path in files)) if files else None
    except OSError:
        return None


def _weight_files(folder: Path) -> list[Path]:
    for pattern in ("model*.safetensors", "*.safetensors", "pytorch_model*.bin", "*.gguf"):
        files = sorted(folder.glob(pattern))
        if files:
            return files
    return []


def _read_json(path: Path, limit: int) -> dict[str, object] | None:
    try:
        if path.stat().st_size > limit:
            raise InputError(f"{path}: larger than {limit // 1024**2} MiB, that is no {path.name}; check the folder")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); download the file again") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds {type(value).__name__}, not a JSON object; download the file again")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12 else 0


def _first(config: Mapping[str, object], names: tuple[str, ...]) -> int:
    """The first of the names that holds a positive number, 0 if none does."""
    return next((number for name in names if (number := _count(config.get(name)))), 0)


def _needed(config: Mapping[str, object], names: tuple[str, ...], source: str) -> int:
    value = _first(config, names)
    if not value:
        raise InputError(f"{source}: {names[0]} is missing or not a positive number; is this a language model?")
    return value
