"""Write a model folder with a shape but no weights, for `--load-format dummy`: speed can be measured, accuracy not.

    python tools/dummy_model.py qwen3-30b-a3b FOLDER --tokenizer DEMO_MODEL_FOLDER

The shape is Qwen3-30B-A3B's (https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json): 48 layers, hidden 2048,
128 experts of width 768 of which 8 are used, 32 query and 4 KV heads of 128, vocabulary 151,936.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

SHAPES: dict[str, dict[str, object]] = {
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 151936,
    }
}

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def main() -> None:
    """Write ``config.json`` and copy the tokenizer's files."""
    parser = argparse.ArgumentParser(description="Write a model folder with a shape but no weights.")
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder whose tokenizer is copied")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    (args.folder / "config.json").write_text(json.dumps(SHAPES[args.shape], indent=1), encoding="utf-8")
    for name in TOKENIZER_FILES:
        source = args.tokenizer / name
        if source.is_file():
            shutil.copy(source, args.folder / name)


if __name__ == "__main__":
    main()
