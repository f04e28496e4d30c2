"""A planted secret is found in no text that is shown; what is no secret stays readable."""

from __future__ import annotations

import pytest

from tuner.model.secrets import MASK, looks_secret, mask, mask_argv, mask_environment


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "--api-key",
        "api_key",
        "DB_PASSWORD",
        "MLFLOW_TRACKING_PASSWORD",
        "client-secret",
        "AWS_SECRET_ACCESS_KEY",
        "--hf-token",
        "token",
        "AUTH",
    ],
)
def test_secret_names(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max-num-batched-tokens",
        "tokenizer",
        "long-prefill-token-threshold",
        "num_speculative_tokens",
        "key-value",
        "kv-cache-dtype",
        "PATH",
        "VLLM_CACHE_ROOT",
        "monkey",
    ],
)
def test_ordinary_names(name: str) -> None:
    assert not looks_secret(name)


SECRET = "s3cr3tValue0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://user:{SECRET}@host:5432/db",
        f"http://{SECRET}@mlflow:5000",
        f"https://host/x?token={SECRET}&y=1",
        f"Authorization: Bearer {SECRET}",
        f"vllm serve --api-key {SECRET} --port 1",
        f"--hf-token={SECRET}",
        f"HF_TOKEN={SECRET} vllm",
        f"{{'api_key': '{SECRET}', 'port': 1}}",
        f'{{"password": "{SECRET}"}}',
        f"hf_{SECRET}",
        f"sk-{SECRET}",
        f"ghp_{SECRET}",
    ],
)
def test_nothing_planted_comes_through(text: str) -> None:
    shown = mask(text)
    assert SECRET not in shown
    assert MASK in shown
    assert mask(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "non-default args: {'api_key': None, 'port': 8123, 'model': '/tmp/moe'}",
        "max_num_batched_tokens=8192 tokens: 744,688",
        "http://127.0.0.1:8123/v1/models",
        "sqlite:////home/user/study.db",
        "Using '<B>' NvFp4 MoE backend",
        "--max-num-batched-tokens 8192 --tokenizer org/name",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert mask(text) == text


def test_command_lines_and_environments() -> None:
    argv = ["vllm", "--api-key", SECRET, "second", "--port", "1", f"--hf-token={SECRET}", f"http://u:{SECRET}@h"]
    assert mask_argv(argv) == (
        *("vllm", "--api-key", MASK, MASK, "--port", "1", f"--hf-token={MASK}", f"http://{MASK}@h"),
    )
    shown = mask_environment({"HF_TOKEN": SECRET, "URL": f"redis://a:{SECRET}@h", "N": "1"})
    assert shown == {"HF_TOKEN": MASK, "URL": f"redis://{MASK}@h", "N": "1"}
