"""The exported YAML on the real vLLM: its parser agrees field by field, and the server answers from it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tuner.errors import InputError
from tuner.export import export_winner
from tuner.model.candidate import Candidate
from tuner.model.history import History
from tuner.model.json import Json
from tuner.model.workload import Objective
from tuner.serving.starting import ZYGOTE
from tuner.spaces import read_back

pytestmark = pytest.mark.vllm

MODEL = Path.home() / ".cache" / "vllm-tune" / "models" / "SmolLM2-135M-Instruct"
SERVED = Candidate(
    assignment={},
    arguments={
        "enforce-eager": True,
        "max-model-len": 512,
        "max-num-seqs": 8,
        "max-num-batched-tokens": 512,
        "kv-cache-memory-bytes": "256M",
        "enable-prefix-caching": False,
        "async-scheduling": False,
        "generation-config": "vllm",
        "compilation-config.cudagraph_mode": "NONE",
        "served-model-name": ["exported", "alias"],
    },
    environment={"VLLM_CPU_OMP_THREADS_BIND": "0-1"},
)
ABOUT: dict[str, Any] = {
    "name": "real",
    "hardware": "cpu",
    "workload": "batch",
    "versions": {"vllm": "installed"},
    "facts": {"kind": "vllm"},
}


def reader(path: Path) -> dict[str, Json]:
    return read_back((sys.executable,), ["--config", str(path)])


def export(candidate: Candidate, output: Path, model: str) -> Any:
    return export_winner(
        candidate,
        about={**ABOUT, "model": model},
        history=History(objective=Objective(), baseline_key=""),
        contender=None,
        judgement=None,
        output=output,
        reader=reader,
    )


def test_the_parser_reads_every_kind_of_value(tmp_path: Path) -> None:
    rich = Candidate(
        assignment={},
        arguments={
            **SERVED.arguments,
            "gpu-memory-utilization": 0.85,
            "optimization-level": 2,
            "attention-backend": "CPU_ATTN",
            "speculative-config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
            "compilation-config.pass_config.fuse_norm_quant": False,
            "compilation-config.cudagraph_capture_sizes": [1, 2, 4],
            "enable-chunked-prefill": True,
            "quantization": None,
        },
    )
    result = export(rich, tmp_path / "best.yaml", "org/never-loaded")
    assert result.checked
    assert result.settings["no-enable-prefix-caching"] is True


def test_an_unknown_flag_is_refused_by_the_parser(tmp_path: Path) -> None:
    unknown = Candidate(assignment={}, arguments={"no-such-flag-anywhere": 3})
    with pytest.raises(InputError, match="no-such-flag-anywhere"):
        export(unknown, tmp_path / "best.yaml", "org/never-loaded")
    assert list(tmp_path.iterdir()) == []


def test_a_server_started_from_the_yaml_answers(tmp_path: Path) -> None:
    if not (MODEL / "config.json").is_file():
        pytest.skip(f"the demo model is not in {MODEL}: make tune brings it")
    export(SERVED, tmp_path / "best.yaml", str(MODEL))
    environment = dict(
        line.split("=", 1) for line in (tmp_path / "best.env").read_text().splitlines() if not line.startswith("#")
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "server.log"
    # As `vllm serve --config best.yaml`: the CPU build's own script needs what tools/install_cpu.sh gives it.
    command = [sys.executable, str(ZYGOTE), "cli", "serve", "--config", "best.yaml"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        answer = ask(f"http://127.0.0.1:{port}/v1/completions", process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
    assert answer["model"] == "exported"
    assert answer["usage"]["completion_tokens"] == 8
    assert "Paris" in answer["choices"][0]["text"]


def ask(url: str, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    body = {"model": "exported", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            answer = httpx.post(url, json=body, timeout=60)
        except httpx.TransportError:
            time.sleep(1)
            continue
        found: dict[str, Any] = answer.raise_for_status().json()
        return found
    pytest.fail(f"no answer within 300 s: {log.read_text(errors='replace')[-2000:]}")
