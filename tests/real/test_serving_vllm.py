"""Real vLLM on CPU: a forked server is a real server, soon there, classified when it fails, and gone afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tuner.model.candidate import Candidate
from tuner.model.outcome import Blame
from tuner.ports import LaunchFailed
from tuner.serving.launcher import VllmLauncher
from tuner.serving.processes import marked

pytest.importorskip("vllm")
MODEL = Path.home() / ".cache" / "vllm-tune" / "models" / "SmolLM2-135M-Instruct"
EAGER = {"enforce-eager": True, "kv-cache-memory-bytes": "512M", "max-model-len": 1024}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        not (MODEL / "config.json").exists(), reason="the demo model is not there: run `python -m tuner.demo`"
    ),
]


def quiet(_phase: str, _detail: str) -> None:
    return


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmLauncher]:
    made = VllmLauncher(
        str(MODEL),
        study_dir=tmp_path_factory.mktemp("study"),
        environment={"VLLM_CPU_OMP_THREADS_BIND": "0-1"},
        weight_bytes=269e6,
        platform="cpu",
    )
    yield made
    made.close()
    assert marked(made._id) == set()


def test_warm_server_answers_measures_and_leaves_nothing(launcher: VllmLauncher, tmp_path: Path) -> None:
    candidate = Candidate(assignment={}, arguments={**EAGER, "max-num-seqs": 16, "block-size": 64})
    with launcher.launch(candidate, directory=tmp_path / "t0", progress=quiet) as server:
        report = server.report
        assert report.mode == "warm"
        assert report.effective["max-num-seqs"] == 16
        assert report.effective["block-size"] == 64
        assert report.effective["dtype"] == "bfloat16"
        assert report.effective["kv-cache-tokens"] == report.effective["kv-blocks"] * 64  # type: ignore[operator]
        assert report.differences == ()
        assert report.version.startswith("0.")
        body = {"model": server.model_name, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        url = f"{server.base_url}/v1/completions"
        assert httpx.post(url, json=body, timeout=60).status_code == 401
        answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {server.api_key}"}, timeout=60)
        assert answer.json()["choices"][0]["text"].startswith(" Paris")
        argv = ["bench", "serve", "--backend", "vllm", "--base-url", server.base_url, "--model", server.model_name]
        argv += ["--tokenizer", str(MODEL), "--dataset-name", "random", "--random-input-len", "16"]
        argv += ["--random-output-len", "8", "--num-prompts", "8", "--max-concurrency", "4", "--ignore-eos"]
        argv += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json", "--disable-tqdm"]
        log = tmp_path / "client.log"
        assert server.run_client(argv, log_path=log, timeout_s=120) == 0
        result = json.loads((tmp_path / "r.json").read_text())
        assert (result["completed"], result["failed"], result["total_output_tokens"]) == (8, 0, 64)
        assert "Successful requests" in log.read_text()
        assert server.failure() is None
    assert server.tree.refresh(thorough=True) == set()


def test_several_api_servers_share_one_engine_and_its_counters(launcher: VllmLauncher, tmp_path: Path) -> None:
    candidate = Candidate(assignment={}, arguments={**EAGER, "max-num-seqs": 16, "api-server-count": 2})
    with launcher.launch(candidate, directory=tmp_path / "t0", progress=quiet) as server:
        assert server.report.mode == "warm"
        log = (tmp_path / "t0" / "server.log").read_text()
        assert "ApiServer_0" in log
        assert "ApiServer_1" in log
        headers = {"Authorization": f"Bearer {server.api_key}"}
        body = {"model": server.model_name, "prompt": "The capital of France is", "max_tokens": 5, "ignore_eos": True}
        for _ in range(8):  # a connection each, so that the kernel deals them out among both
            answer = httpx.post(f"{server.base_url}/v1/completions", json=body, headers=headers, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] == 5
        text = httpx.get(f"{server.base_url}/metrics", headers=headers, timeout=60).text
        counts = [line.split()[-1] for line in text.splitlines() if line.startswith("vllm:generation_tokens_total{")]
        assert [float(value) for value in counts] == [40.0]
    assert server.tree.refresh(thorough=True) == set()


def test_block_size_that_no_backend_runs(launcher: VllmLauncher, tmp_path: Path) -> None:
    candidate = Candidate(assignment={}, arguments={**EAGER, "block-size": 16})
    with pytest.raises(LaunchFailed) as caught, launcher.launch(candidate, directory=tmp_path / "t1", progress=quiet):
        raise AssertionError("block size 16 must not come up on CPU")
    failure = caught.value.failure
    assert (failure.kind, failure.blame, failure.retry) == ("block-size", Blame.CONFIGURATION, False)
    assert "block size 16" in failure.cause
