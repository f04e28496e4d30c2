"""What runs, beside what was asked."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tuner.model.candidate import Candidate
from tuner.model.json import Json
from tuner.serving.effective import differences, effective, fetch_labels, fetch_server_info
from tuner.serving.logs import LogFacts, read_log

H200 = Path(__file__).parents[2] / "data" / "h200" / "logs"

INFO = {
    "model_config": {"dtype": "torch.bfloat16", "max_model_len": 1024, "quantization": None, "enforce_eager": False},
    "cache_config": {"block_size": 128, "cache_dtype": "auto", "kv_cache_memory_bytes": 1073741824},
    "scheduler_config": {"max_num_seqs": 128, "async_scheduling": False},
    "compilation_config": {"mode": 3, "cudagraph_mode": [2, 1], "cudagraph_capture_sizes": [1, 2, 4]},
    "attention_config": {"backend": None},
    "kernel_config": {"moe_backend": "auto"},
}
METRICS = (
    "# HELP vllm:cache_config_info Information\n"
    'vllm:cache_config_info{block_size="64",cache_dtype="fp8",kv_cache_size_tokens="46592",num_gpu_blocks="364"} 1.0\n'
)


def client(*bodies: bytes | int) -> httpx.Client:
    answers = iter(bodies)

    def answer(_: httpx.Request) -> httpx.Response:
        body = next(answers)
        return httpx.Response(body) if isinstance(body, int) else httpx.Response(200, content=body)

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")


def test_configuration_labels_and_log_together() -> None:
    facts = LogFacts(settings={"attention-backend": "FLASH_ATTN", "moe-backend": "TRITON", "kv-cache-tokens": 1})
    settings = effective(INFO, {"block_size": "64", "kv_cache_size_tokens": "46592"}, facts)
    expected: dict[str, Json] = {
        "dtype": "bfloat16",
        "max-model-len": 1024,
        "block-size": 128,
        "kv-cache-memory-bytes": 1073741824,
        "max-num-seqs": 128,
        "async-scheduling": False,
        "compilation-mode": "VLLM_COMPILE",
        "cudagraph-mode": "FULL_AND_PIECEWISE",
        "cudagraph-capture-count": 3,
        "attention-backend": "FLASH_ATTN",
        "moe-backend": "TRITON",
        "kv-cache-tokens": 46592,
    }
    assert {name: settings[name] for name in expected} == expected


def test_the_log_knows_what_graphs_came_of_it() -> None:
    facts = read_log(H200 / "offline-512-3.log")
    assert effective(INFO, {}, facts)["cudagraph-mode"] == "PIECEWISE"


def test_fetching() -> None:
    assert fetch_labels(client(METRICS.encode())) == {
        "block_size": "64",
        "cache_dtype": "fp8",
        "kv_cache_size_tokens": "46592",
        "num_gpu_blocks": "364",
    }
    assert fetch_server_info(client(b'{"vllm_config": {"a": 1}}')) == {"a": 1}


@pytest.mark.parametrize(
    "body", [404, b"", b"<html>", b"[]", b'{"vllm_config": "text"}', b"[" * 100_000, b"x" * 5_000_000]
)
def test_a_server_without_the_endpoint(body: bytes | int) -> None:
    assert fetch_server_info(client(body)) == {}
    assert fetch_labels(client(body)) == {}


def test_differences_in_words() -> None:
    candidate = Candidate(
        assignment={},
        arguments={
            "compilation-config": {"cudagraph_mode": "FULL_AND_PIECEWISE"},
            "kv-cache-memory-bytes": "1G",
            "dtype": "half",
            "block-size": 16,
            "enable-prefix-caching": True,
            "attention-backend": "auto",
            "moe-backend": "flashinfer-trtllm",
            "not-reported": 5,
        },
    )
    settings: dict[str, Json] = {
        "cudagraph-mode": "PIECEWISE",
        "kv-cache-memory-bytes": 1 << 30,
        "dtype": "float16",
        "block-size": 128,
        "enable-prefix-caching": False,
        "attention-backend": "FLASH_ATTN",
        "moe-backend": "FLASHINFER_TRTLLM",
    }
    reason = "CUDA graph mode changed to PIECEWISE: CUDAGraphMode.FULL is not supported with X backend"
    assert differences(candidate, settings, {reason: None, "other": None}) == (
        f"asked cudagraph-mode FULL_AND_PIECEWISE, runs PIECEWISE: {reason}",
        "asked block-size 16, runs 128",
        "asked enable-prefix-caching on, runs off",
    )


def test_quantities_with_suffixes() -> None:
    for asked, size in (("1G", 1 << 30), ("1g", 10**9), ("512M", 512 << 20), ("1.5Gi", 3 << 29), ("1000", 1000)):
        candidate = Candidate(assignment={}, arguments={"kv-cache-memory-bytes": asked})
        assert differences(candidate, {"kv-cache-memory-bytes": size}, {}) == ()
