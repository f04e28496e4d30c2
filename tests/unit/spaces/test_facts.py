"""Facts of a model: config.json of the families, sizes of weights, the cache, overlays, and what is wrong there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.model.llm import ModelFacts
from tuner.model.weights import parts
from tuner.spaces.facts import model_facts

GIB = 1024**3
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "intermediate_size": 18432,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "experts_per_token": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "quantization_config": {"quant_method": "mxfp4"},
}


def folder(tmp_path: Path, config: object) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(tmp_path)


def facts(tmp_path: Path, config: Mapping[str, object]) -> ModelFacts:
    return model_facts(folder(tmp_path, config), {})


def test_moe_with_grouped_queries(tmp_path: Path) -> None:
    model = facts(tmp_path, QWEN3_MOE)
    assert (model.experts, model.experts_per_token, model.moe_intermediate) == (128, 8, 768)
    assert (model.heads, model.kv_heads, model.head_dim) == (32, 4, 128)
    assert model.kv_bytes_per_token == {"auto": 98304.0, "fp8": 49152.0}
    assert model.weight_bytes / GIB == pytest.approx(56.88, rel=0.002)  # "Model loading took 56.88 GiB"
    assert model.is_moe
    assert not model.is_mla
    assert model.quantization == ""


def test_latent_attention_with_fp8_weights(tmp_path: Path) -> None:
    model = facts(tmp_path, DEEPSEEK_V3)
    assert model.mla_rank == 576
    assert model.kv_bytes_per_token["auto"] == 61 * 576 * 2
    assert model.max_position == 163840
    assert (model.quantization, model.mtp_layers, model.experts) == ("fp8", 1, 256)
    assert parts(model).total == pytest.approx(671e9, rel=0.01)
    assert model.weight_bytes == pytest.approx(671e9, rel=0.03)


def test_gpt_oss_names_windows_and_fp4_experts(tmp_path: Path) -> None:
    model = facts(tmp_path, GPT_OSS)
    assert (model.experts, model.experts_per_token, model.moe_intermediate) == (128, 4, 2880)
    assert model.max_position == 131072
    assert (model.extra["sliding_layers"], model.extra["sliding_window"]) == (18, 128)
    assert model.weight_bytes == pytest.approx(65.25e9, rel=0.03)


def test_deepseek_v4_is_named_as_vllm_names_it(tmp_path: Path) -> None:
    config = {**QWEN3_MOE, "model_type": "deepseek_v4", "quantization_config": {"quant_method": "fp8"}}
    assert facts(tmp_path, config).quantization == "deepseek_v4_fp8"


def test_text_part_of_a_multimodal_model(tmp_path: Path) -> None:
    text = {key: value for key, value in QWEN3_MOE.items() if key != "architectures"}
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "hidden_size": 1, "text_config": text}
    model = facts(tmp_path, outer)
    assert (model.hidden, model.layers, model.architecture) == (2048, 48, "KimiK25ForConditionalGeneration")


def test_linear_attention_layers_hold_no_kv_cache(tmp_path: Path) -> None:
    model = facts(tmp_path, {**QWEN3_MOE, "full_attention_interval": 4})
    assert model.kv_bytes_per_token["auto"] == 98304 / 4


def test_rope_scaling_stretches_the_context_as_in_vllm(tmp_path: Path) -> None:
    linear = {**QWEN3_MOE, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    llama3 = {**QWEN3_MOE, "rope_parameters": {"rope_type": "llama3", "factor": 8.0}}
    assert facts(tmp_path, linear).max_position == 81920
    assert facts(tmp_path, llama3).max_position == 40960


def test_weight_files_are_counted_and_the_index_is_believed(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"x" * 500)
    (tmp_path / "consolidated.safetensors").write_bytes(b"x" * 5000)
    assert facts(tmp_path, QWEN3_MOE).weight_bytes == 1500
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 1480}}', encoding="utf-8")
    assert facts(tmp_path, QWEN3_MOE).weight_bytes == 1480


def test_cached_model_is_found_without_a_network(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text("abc\n", encoding="utf-8")
    folder(snapshot, QWEN3_MOE)
    model = model_facts("org/name", {}, hub_cache=tmp_path)
    assert model.layers == 48
    assert model.source.endswith("abc/config.json")
    known = model_facts("org/name", {"org/name": {"weight_bytes": 123e9}}, hub_cache=tmp_path)
    assert known.weight_bytes == 123e9


def test_overlay_facts_serve_where_nothing_is_at_hand(tmp_path: Path) -> None:
    known = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 100, "max_position": 512}
    model = model_facts("org/name", {"org/name": known}, family="llama", hub_cache=tmp_path)
    assert (model.family, model.source) == ("llama", "overlay llama")
    assert model.kv_bytes_per_token == {"auto": 2 * 2 * 2 * 16 * 2, "fp8": 2 * 2 * 2 * 16}
    assert model.weight_bytes == 2 * (2 * 100 * 64 + 2 * 2 * 64 * 16 * 6)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (
            {"layers": 2, "kv_heads": 0},
            r"needs hidden, heads, head_dim, vocab, max_position \(.*\); kv_heads must be .*, not 0$",
        ),
        ({"layers": 2, "colour": "red"}, "unknown key 'colour'"),
        ({"layers": "two"}, "layers must be a whole number"),
    ],
)
def test_broken_overlay_facts_are_named(known: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        model_facts("org/name", {"org/name": known}, hub_cache=tmp_path)


def test_unknown_model_says_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such folder.*hf download org/other.*facts"):
        model_facts("org/other", {}, hub_cache=tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "num_hidden_layers is missing"),
        ('{"num_hidden_layers": -3, "hidden_size": 1}', "num_hidden_layers is missing or not a positive number"),
        ('{"num_hidden_layers": true, "hidden_size": 1}', "num_hidden_layers is missing"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_broken_config_is_one_clear_error(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        model_facts(str(tmp_path), {})


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: not there"):
        model_facts(str(tmp_path), {})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
KEYS = sorted({*QWEN3_MOE, *DEEPSEEK_V3, *GPT_OSS, "text_config", "dtype", "full_attention_interval", "multi_query"})


@settings(max_examples=150, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
@example(changes={"q_lora_rank": float("inf")})
@example(changes={"q_lora_rank": 9.3e301})
def test_any_config_gives_facts_or_one_clear_error(
    changes: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("model")
    try:
        model, message = model_facts(folder(place, {**DEEPSEEK_V3, **changes}), {}), ""
    except InputError as error:
        model, message = None, str(error)
    if model is None:
        assert str(place) in message
        assert "\n" not in message
        return
    assert model.layers > 0
    assert model.weight_bytes > 0
    assert model.kv_bytes_per_token["auto"] >= 0
