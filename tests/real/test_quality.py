"""The accuracy check on real vLLM servers: sound ones pass, one that runs and writes garbage does not."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tuner.demo import demo_model
from tuner.model.measurement import QualityReport, ServerReport
from tuner.model.outcome import Failure
from tuner.quality import QualitySuite

pytestmark = pytest.mark.vllm

_READY_S = 300


@dataclass
class RealServer:
    """Just enough of :class:`tuner.ports.Server` for the check: these tests are of the check, not the launcher."""

    base_url: str
    api_key: str
    process: subprocess.Popen[bytes]
    model_name: str = "demo"
    report: ServerReport = field(default_factory=ServerReport)

    def failure(self) -> Failure | None:
        return None


@contextmanager
def vllm(log: Path, *flags: str) -> Iterator[RealServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = secrets.token_hex(8)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(demo_model())]
    command += ["--served-model-name", "demo", "--enforce-eager", "--kv-cache-memory-bytes", "1G"]
    command += ["--max-model-len", "1024", "--host", "127.0.0.1", "--port", str(port), *flags]
    environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_API_KEY": key}
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = RealServer(f"http://127.0.0.1:{port}", key, process)
    try:
        deadline = time.monotonic() + _READY_S
        while not _healthy(server):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, "not ready"
            time.sleep(0.5)
        yield server
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
                process.wait(timeout=20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _healthy(server: RealServer) -> bool:
    try:
        return httpx.get(server.base_url + "/health", timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def quiet(phase: str, detail: str) -> None: ...


@pytest.fixture(scope="module")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An lm-eval task of our own: a YAML and a JSONL, no network."""
    folder = tmp_path_factory.mktemp("task")
    pairs = [("hot", "cold"), ("up", "down"), ("day", "night"), ("open", "closed"), ("rich", "poor"), ("wet", "dry")]
    (folder / "opposites.jsonl").write_text(
        "".join(
            json.dumps({"question": f"The opposite of {a} is", "choices": [b, "table"], "gold": 0}) + "\n"
            for a, b in pairs
        ),
        encoding="utf-8",
    )
    (folder / "opposites.yaml").write_text(
        "task: opposites\ndataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {folder / 'opposites.jsonl'}\n"
        "test_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{question}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: gold\n'
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n",
        encoding="utf-8",
    )
    return folder / "opposites.yaml"


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory, task_file: Path) -> tuple[QualityReport, QualityReport, Path]:
    """The baseline's report, and the baseline judged against it as if it were a candidate."""
    folder = tmp_path_factory.mktemp("baseline")
    # lm-eval only in the first report: it is the same code path for every server, and costs half a minute.
    with vllm(folder / "server.log") as server:
        assert QualitySuite().sanity(server) is None
        first = QualitySuite(tasks=[str(task_file)]).check(server, baseline=None, directory=folder, progress=quiet)
        again = QualitySuite().check(server, baseline=first, directory=folder / "again", progress=quiet)
    return first, again, folder


def test_the_builtin_questions_fit_the_demo_model(baseline: tuple[QualityReport, QualityReport, Path]) -> None:
    first, _, _ = baseline
    answers = [value for name, value in first.answers.items() if name.startswith("builtin/")]
    assert len(answers) >= 200
    assert 0.3 < sum(answers) / len(answers) < 0.95
    assert first.metrics["accuracy/agreement_floor"] > 0.5


def test_the_baseline_passes_against_itself(baseline: tuple[QualityReport, QualityReport, Path]) -> None:
    _, again, _ = baseline
    assert again.passed, again.reason
    assert abs(again.metrics["accuracy/drop"]) < 0.02
    assert again.metrics["accuracy/agreement"] > 0.5


def test_a_local_lm_eval_task_runs_offline(baseline: tuple[QualityReport, QualityReport, Path]) -> None:
    first, _, folder = baseline
    scored = {name: value for name, value in first.answers.items() if name.startswith("opposites/")}
    assert len(scored) == 6
    assert first.metrics["accuracy/opposites"] >= 4 / 6
    log = (folder / "lm_eval" / "opposites" / "lm_eval.log").read_text()
    assert "opposites" in log


def test_a_kv_cache_that_writes_garbage_fails(
    baseline: tuple[QualityReport, QualityReport, Path], tmp_path: Path
) -> None:
    # vLLM 0.32 on CPU: this one loads, answers with HTTP 200 and is fast.
    suite = QualitySuite()
    with vllm(tmp_path / "server.log", "--kv-cache-dtype", "int8_per_token_head") as server:
        insane = suite.sanity(server)
        report = suite.check(server, baseline=baseline[0], directory=tmp_path, progress=quiet)
    assert insane is not None
    assert insane.kind == "garbage"
    assert not report.passed
    assert report.metrics["accuracy/excess"] > 0.1
    assert report.metrics["accuracy/agreement"] < 0.2
