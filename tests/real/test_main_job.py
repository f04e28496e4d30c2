"""The whole product on the real vLLM, as a person uses it: study, resume, report, export, notebook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from mlflow.tracking import MlflowClient
from nbclient import NotebookClient

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
MODEL = Path.home() / ".cache" / "vllm-tune" / "models" / "SmolLM2-135M-Instruct"
WORKLOAD = """
schema: 1
name: tiny
workload:
  source: text
  input_tokens: 32
  output_tokens: 32
  ignore_eos: true
  points: [{concurrency: 8, requests: 24}]
  rounds: [2, 2]
"""
# Two numbers to choose from, no compiling: each trial is some 20 s on two idle cores.
SPACE = """
schema: 1
name: tiny
arguments: {enforce-eager: true}
parameters:
  max_num_seqs: {flag: max-num-seqs, type: choice, ordinal: true, values: [1, 8, 16], default: 128}
  max_num_batched_tokens: null
  block_size: null
  prefix_caching: null
  chunked_prefill: null
  kv_cache_dtype: null
  omp_threads: null
  speculation: null
  spec_tokens: null
"""


def _command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tuner.cli", *arguments, "--directory", str(folder / "studies")]


def _study(folder: Path, trials: int) -> list[str]:
    (folder / "tiny.yaml").write_text(WORKLOAD, encoding="utf-8")
    (folder / "space.yaml").write_text(SPACE, encoding="utf-8")
    return _command(
        folder, "--hardware", "cpu", "--model", str(MODEL), "--workload", str(folder / "tiny.yaml"),
        "--space", str(folder / "space.yaml"), "--trials", str(trials), "--study", "tiny", "--json",
    )  # fmt: skip


def _run(command: list[str], cwd: Path) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout) if done.stdout.startswith("{") else {"text": done.stdout}


def _runs(folder: Path) -> list[Any]:
    client = MlflowClient(f"sqlite:///{folder / 'studies' / 'mlflow.db'}")
    return [run for e in client.search_experiments() for run in client.search_runs([e.experiment_id])]


def _ours(folder: Path) -> list[psutil.Process]:
    """Processes that speak of this study's folder, or of the demo model under this test's tuner."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or ()) and process.pid != os.getpid()
    ]


def test_a_study_runs_goes_on_and_exports_its_trial(tmp_path: Path) -> None:
    first = _run(_study(tmp_path, 3), tmp_path)
    assert sum(first["trials"].values()) == 3
    assert first["trials"].keys() <= {"measured", "behind"}
    assert first["baseline"]["value"] > 0
    assert _ours(tmp_path) == []

    second = _run(_study(tmp_path, 3), tmp_path)
    assert sum(second["trials"].values()) > 3, "a finished study goes on"

    report = _run(_command(tmp_path, "report", "--json"), tmp_path)
    assert report["study"] == "tiny"
    one = _run(_command(tmp_path, "report", "--trial", "0", "--json"), tmp_path)
    assert one["ran"]["max-num-seqs"] == 128
    assert one["ran"]["enforce-eager"] is True
    assert one["start"]["mode"] == "warm"
    assert one["record"]["quality"]["metrics"]["accuracy/questions"] >= 200
    assert 0.3 < one["record"]["quality"]["metrics"]["accuracy/score"] < 0.95

    _run(_command(tmp_path, "export", "--trial", "0", "--output", str(tmp_path / "best.yaml")), tmp_path)
    text = (tmp_path / "best.yaml").read_text(encoding="utf-8")
    assert f"model: {MODEL}" in text
    assert "enforce-eager: true" in text
    assert "api-key" not in text

    runs = _runs(tmp_path)
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(runs) - len(children) == 1
    assert len(children) >= 4
    assert {run.info.status for run in runs} == {"FINISHED"}
    measured = [run for run in children if run.data.tags["state"] == "measured"]
    assert measured
    assert all(run.data.metrics["throughput/output"] > 0 for run in measured)

    notebook = nbformat.read(ROOT / "notebooks" / "explore_study.ipynb", as_version=4)
    os.environ["TUNE_DIRECTORY"] = str(tmp_path / "studies")
    try:
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    finally:
        del os.environ["TUNE_DIRECTORY"]


def test_ctrl_c_leaves_no_process_and_no_run_running(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        _study(tmp_path, 3), cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "studies" / "tiny" / "trials" / "0000" / "server.log"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (log.is_file() and log.stat().st_size):
        time.sleep(0.2)
    tree = psutil.Process(process.pid).children(recursive=True)
    assert tree, "a server is starting"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    assert [p for p in tree if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    assert all(run.info.status != "RUNNING" for run in _runs(tmp_path))
