"""What a model is: the facts of its ``config.json`` that decide memory, speed and what can start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ModelFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Shape and storage of one checkpoint.

    Attributes:
        name: what goes to vLLM as ``--model`` (hub id or path).
        family: overlay name (``qwen3-moe``, ``deepseek-v4``, ``generic``).
        architecture: first entry of ``architectures``.
        layers, hidden, heads, kv_heads, head_dim, vocab: the usual sizes.
        max_position: longest context the model allows (tokens).
        experts, experts_per_token, moe_intermediate: zero on dense models.
        intermediate: MLP width of the dense layers.
        mla_rank: width (elements per token and layer) of the latent KV cache, 0 without MLA.
        quantization: ``quant_method`` of the checkpoint, empty if it holds 16-bit weights.
        dtype: ``bfloat16`` and the like.
        weight_bytes: bytes of all weight files (estimated from the shape where no files are at hand).
        kv_bytes_per_token: bytes of KV cache a token takes over all layers, by KV dtype ``auto``/``fp8``.
        mtp_layers: ``num_nextn_predict_layers`` (0: no MTP speculation).
        source: where the facts come from (a path, or the overlay's name).
        extra: other values of the config that rules may name.
    """

    name: str
    family: str = "generic"
    architecture: str = ""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    intermediate: int = 0
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    mla_rank: int = 0
    quantization: str = ""
    dtype: str = "bfloat16"
    weight_bytes: float
    kv_bytes_per_token: Mapping[str, float] = field(default_factory=dict)
    mtp_layers: int = 0
    source: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_moe(self) -> bool:
        return self.experts > 0

    @property
    def is_mla(self) -> bool:
        return self.mla_rank > 0
