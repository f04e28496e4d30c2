"""Parameters of a transformer by kind, from its shape: what online quantization shrinks and what it leaves alone."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.model.llm import ModelFacts

__all__ = ["Parts", "bytes_per_parameter", "computed_weight_bytes", "parts"]

# Bytes per weight of linear layers and experts in quantised checkpoints, scales included: 4-bit formats carry one
# scale per 32 (mxfp4: 8 bit), 16 (nvfp4: 8 bit) or 128 (int4: 16 bit) weights.
_CHECKPOINT_BYTES = {
    "fp8": 1.0, "deepseek_v4_fp8": 1.0, "fbgemm_fp8": 1.0, "modelopt": 1.0, "compressed-tensors": 1.0, "quark": 1.0,
    "mxfp4": 0.53, "gpt_oss_mxfp4": 0.53, "modelopt_fp4": 0.5625, "awq": 0.52, "gptq": 0.52, "awq_marlin": 0.52,
    "gptq_marlin": 0.52, "auto-round": 0.52, "inc": 0.52, "bitsandbytes": 0.55, "experts_int8": 1.0, "torchao": 1.0,
}  # fmt: skip
# Formats that quantise the experts only; attention and embeddings stay in 16 bits.
_EXPERTS_ONLY = frozenset({"mxfp4", "gpt_oss_mxfp4", "experts_int8", "int8_per_channel_weight_only", "nvfp4_per_token"})
# vLLM's online methods (config/quantization.py, _ONLINE_SHORTHANDS; `fp8` on a 16-bit checkpoint is per tensor).
_ONLINE_BYTES = {
    "fp8": 1.0, "fp8_per_tensor": 1.0, "fp8_per_block": 1.0, "fp8_per_channel": 1.0, "mxfp8": 1.03, "mxfp4": 0.53,
    "int8_per_channel_weight_only": 1.0, "experts_int8": 1.0, "nvfp4_per_token": 0.5625,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Numbers of parameters.

    Attributes:
        embedding: input embedding and output head; no quantization touches them.
        linear: attention, dense MLP and shared experts.
        experts: routed experts.
        router: the gates, kept in 16 bits.
    """

    embedding: float
    linear: float
    experts: float
    router: float

    @property
    def total(self) -> float:
        return self.embedding + self.linear + self.experts + self.router


def parts(model: ModelFacts) -> Parts:
    """Parameters of the model by kind. Norms and biases (well under 0.1 %) are left out."""
    dense_layers, moe_layers = model.layers, 0
    if model.is_moe:
        step = max(1, _number(model, "decoder_sparse_step"))
        dense_layers = min(model.layers, _number(model, "first_k_dense_replace"))
        moe_layers = (model.layers - dense_layers) // step
        dense_layers = model.layers - moe_layers
    shared = _number(model, "shared_expert_intermediate_size") or (
        _number(model, "n_shared_experts") * model.moe_intermediate
    )
    mlp = 3 * model.hidden
    tied = model.extra.get("tie_word_embeddings") is True
    return Parts(
        embedding=float((1 if tied else 2) * model.vocab * model.hidden),
        linear=float(
            model.layers * _attention(model) + dense_layers * mlp * model.intermediate + moe_layers * mlp * shared
        ),
        experts=float(moe_layers * model.experts * mlp * model.moe_intermediate),
        router=float(moe_layers * model.experts * model.hidden),
    )


def bytes_per_parameter(model: ModelFacts, online: str) -> tuple[float, float]:
    """Bytes per weight of (linear layers, experts) once loaded.

    Args:
        online: value of ``--quantization``, empty if it is left away. It counts on 16-bit checkpoints only.
    """
    plain = 4.0 if model.dtype == "float32" else 2.0
    # A checkpoint's own format where vLLM quantises online (bitsandbytes), or where a program picks the checkpoint.
    asked = _CHECKPOINT_BYTES | _ONLINE_BYTES
    method, table = (online, asked) if not model.quantization else (model.quantization, _CHECKPOINT_BYTES)
    size = table.get(method, plain)
    if model.quantization and str(model.extra.get("expert_dtype")) == "fp4":
        return size, _CHECKPOINT_BYTES["mxfp4"]  # DeepSeek-V4: fp8 layers around fp4 experts
    return (plain if method in _EXPERTS_ONLY else size), size


def computed_weight_bytes(model: ModelFacts) -> float:
    """Size of the checkpoint from its shape, for models whose files are not at hand."""
    count = parts(model)
    plain = 4.0 if model.dtype == "float32" else 2.0
    linear, experts = bytes_per_parameter(model, "")
    return (count.embedding + count.router) * plain + count.linear * linear + count.experts * experts


def _attention(model: ModelFacts) -> float:
    """Parameters of one layer's attention: four projections, or the low-rank ones of MLA."""
    if model.is_mla:
        rank, rope = _number(model, "kv_lora_rank") or model.mla_rank, _number(model, "qk_rope_head_dim")
        nope = _number(model, "qk_nope_head_dim") or model.head_dim
        value = _number(model, "v_head_dim") or model.head_dim
        query = model.heads * (nope + rope)
        low = _number(model, "q_lora_rank")
        return (
            (model.hidden * low + low * query if low else model.hidden * query)
            + model.hidden * (rank + rope)
            + rank * model.heads * (nope + value)
            + model.heads * value * model.hidden
        )
    return 2.0 * model.hidden * model.head_dim * (model.heads + model.kv_heads)


def _number(model: ModelFacts, key: str) -> int:
    value = model.extra.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12 else 0
