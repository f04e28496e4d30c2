"""A small library of spaces of its own, so that tests do not change with the shipped profiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.spaces.loader import Library
from tuner.spaces.plan import Plan, open_plan

FILES = {
    "base/common.yaml": """
schema: 1
arguments: {seed: 7}
forbid:
  - name: tokens-below-seqs
    if: "max_num_batched_tokens < max_num_seqs"
    reason: "max_num_batched_tokens ({max_num_batched_tokens}) is below max_num_seqs ({max_num_seqs})"
    source: "vllm/config/scheduler.py"
    violation: "(max_num_seqs - max_num_batched_tokens) / max_num_seqs"
  - name: block-size
    if: "block_size != null and block_size % 32 != 0"
    reason: "block_size is {block_size}"
""",
    "h1.yaml": """
schema: 1
name: h1
extends: [base/common]
hardware:
  platform: cuda
  device: NVIDIA H1
  recognise: [H1]
  count: 2
  capability: "9.0"
  memory_gib: 100
  bandwidth_gb_s: 4000
  tflops: {bf16: 900}
model: org/tiny
workload: short
environment: {NCCL_DEBUG: WARN}
parameters:
  max_num_seqs:
    {flag: max-num-seqs, type: int, low: 32, high: "min(2048, workload.max_concurrency * 2)", log: true, default: 1024}
  max_num_batched_tokens: {flag: max-num-batched-tokens, type: int, low: 64, high: 8192, log: true}
  spec_tokens:
    {flag: speculative-config.num_speculative_tokens, type: int, low: 1, high: 7, when: "speculation != 'off'"}
  speculation:
    type: choice
    values:
      off: default
      ngram: {arguments: {speculative-config: {method: ngram, prompt_lookup_max: 4}}}
  kv_cache_dtype: {flag: kv-cache-dtype, type: choice, numerics: true, values: [auto, fp8], default: auto}
  quantization:
    flag: quantization
    type: choice
    numerics: true
    if: "model.quantization == ''"
    values: {none: default, fp8: fp8, int8: {value: int8_weight_only, if: "model.is_moe"}}
  utilization: {flag: gpu-memory-utilization, type: float, low: 0.8, high: 0.95, step: 0.05}
  tensor_parallel_size: {flag: tensor-parallel-size, type: choice, ordinal: true, values: [1, 2, 4]}
  prefix_caching: {flag: enable-prefix-caching, type: bool, default: true}
  threads: {env: OMP_NUM_THREADS, type: choice, values: {auto: default, two: 2}}
derived:
  - target: compilation-config.max_cudagraph_capture_size
    value: "max_num_seqs * (1 + (spec_tokens or 0))"
    when: "max_num_seqs != null"
neutral:
  - {if: "enable_prefix_caching == false", targets: [prefix-caching-hash-algo]}
starts:
  recipe: {source: "a recipe", assign: {max_num_seqs: 256, kv_cache_dtype: fp8}}
""",
    "models/generic.yaml": """
schema: 1
name: generic
match: {names: [], architectures: []}
facts:
  org/tiny:
    {architecture: TinyForCausalLM, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16, vocab: 1000,
     max_position: 4096, intermediate: 128, weight_bytes: 1.0e+9}
""",
    "models/tiny-moe.yaml": """
schema: 1
name: tiny-moe
match: {names: ["org/tiny-moe*"], architectures: [TinyMoe]}
facts:
  org/tiny-moe-8b:
    {architecture: TinyMoe, layers: 2, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16, vocab: 1000,
     max_position: 4096, moe_intermediate: 32, experts: 8, experts_per_token: 2, weight_bytes: 1.0e+9}
parameters:
  expert_parallel: {flag: enable-expert-parallel, type: bool, default: false}
  kv_cache_dtype: {values: [auto, fp8, bfloat16]}
""",
    "workloads/short.yaml": """
schema: 1
name: short
workload:
  source: random
  input_tokens: 128
  output_tokens: 128
  points: [{concurrency: 256, requests: 512}]
""",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    folder = tmp_path / "search_spaces"
    write(folder, FILES)
    return Library(folder)


@pytest.fixture
def space_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a user's space and returns its path."""

    def make(text: str, name: str = "my.yaml") -> Path:
        path = tmp_path / name
        path.write_text("schema: 1\n" + text, encoding="utf-8")
        return path

    return make


@pytest.fixture
def plan(library: Library) -> Plan:
    return open_plan("h1", library=library)
