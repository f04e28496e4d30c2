"""The launcher against a fake vLLM that is a real process tree: starts, proofs, faults, teardown."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tuner.errors import InputError
from tuner.model.candidate import Candidate
from tuner.model.outcome import Blame
from tuner.ports import LaunchFailed, MeasurementFailed
from tuner.serving.launcher import VllmLauncher
from tuner.serving.processes import marked
from tuner.serving.server import LocalServer

FAKES = Path(__file__).parents[2] / "fakes"
CANDIDATE = Candidate(assignment={}, arguments={"enforce-eager": True, "max-num-seqs": 64, "block-size": 64})

Make = Callable[..., VllmLauncher]


def quiet(_phase: str, _detail: str) -> None:
    return


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[VllmLauncher] = []

    def build(script: Mapping[str, Any] | None = None, **options: Any) -> VllmLauncher:
        environment = {"FAKE_VLLM": json.dumps({"speed": 10, "lifetime_s": 120, **(script or {})})}
        environment["PYTHONPATH"] = str(FAKES / "site")
        launcher = VllmLauncher(
            "fake-model",
            study_dir=tmp_path / "study",
            vllm_command=[sys.executable, str(FAKES / "fake_vllm.py")],
            environment=environment,
            **options,
        )
        made.append(launcher)
        return launcher

    yield build
    for launcher in made:
        launcher.close()
        assert marked(launcher._id) == set()


def ask(server: LocalServer) -> httpx.Response:
    return httpx.post(
        f"{server.base_url}/v1/completions",
        headers={"Authorization": f"Bearer {server.api_key}"},
        json={"model": server.model_name, "prompt": "The capital of France is", "max_tokens": 4},
        timeout=10,
    )


def test_a_server_from_start_to_end(make: Make, tmp_path: Path) -> None:
    launcher = make()
    seen: list[tuple[str, str]] = []
    with launcher.launch(CANDIDATE, directory=tmp_path / "t0", progress=lambda *args: seen.append(args)) as server:
        assert ask(server).status_code == 200
        assert httpx.get(f"{server.base_url}/v1/models").status_code == 401  # the door is locked
        assert server.failure() is None
        report = server.report
        assert (report.mode, report.version) == ("cold", "0.32.0")
        assert report.effective["enforce-eager"] is True
        assert report.effective["max-num-seqs"] == 64
        assert report.phases["total"] > 0
        assert sum(value for name, value in report.phases.items() if name != "total") == pytest.approx(
            report.phases["total"], abs=1.5
        )
        assert server.api_key not in " ".join(report.command)
        assert server.model_name.startswith("tune-")
        assert Path(report.log_path).stat().st_mode & 0o077 == 0
    assert ("start", "cold") in seen
    assert seen[-1][0] == "teardown"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.base_url}/health")
    events = [json.loads(line)["event"] for line in (tmp_path / "study" / "processes.jsonl").read_text().splitlines()]
    assert events == ["will-start", "started", "ended"]


def failure_of(launcher: VllmLauncher, directory: Path) -> LaunchFailed:
    with pytest.raises(LaunchFailed) as caught, launcher.launch(CANDIDATE, directory=directory, progress=quiet):
        raise AssertionError("the server must not come up")
    return caught.value


@pytest.mark.parametrize(
    ("script", "kind", "blame", "retry"),
    [
        ({"exit_at": "weights", "error": "block-size"}, "block-size", Blame.CONFIGURATION, False),
        ({"exit_at": "capture", "error": "cuda-oom"}, "cuda-oom", Blame.CONFIGURATION, False),
        ({"exit_at": "profile", "error": "kv-too-small"}, "kv-too-small", Blame.CONFIGURATION, False),
        ({"exit_at": "weights", "error": "free-mem"}, "free-mem", Blame.MACHINE, True),
        ({"exit_at": "imports", "error": "port"}, "port", Blame.MACHINE, True),
        ({"serve_as": "somebody-else"}, "port", Blame.MACHINE, True),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_failed_starts_are_classified(
    *, make: Make, tmp_path: Path, script: dict[str, str], kind: str, blame: Blame, retry: bool
) -> None:
    caught = failure_of(make(script), tmp_path / "t0")
    assert (caught.failure.kind, caught.failure.blame, caught.failure.retry) == (kind, blame, retry)
    assert caught.report is not None
    assert caught.report.log_path.endswith("server.log")


def test_out_of_memory_kill(make: Make, tmp_path: Path) -> None:
    failure = failure_of(make({"oom_kill_at": "weights"}), tmp_path / "t0").failure
    assert failure.kind in {"worker-killed", "killed"}
    assert failure.blame is Blame.MACHINE


@pytest.mark.parametrize("phase", ["weights", "compile", "serve"])
def test_silence_ends_as_a_hang(make: Make, tmp_path: Path, phase: str) -> None:
    failure = failure_of(make({"hang_at": phase}, patience=0.002), tmp_path / "t0").failure
    assert failure.kind == "hang"
    assert "made no progress for" in failure.cause


@pytest.mark.parametrize("grandchild", ["child", "reparented", "daemon"])
def test_nothing_outlives_a_deaf_server(
    make: Make, tmp_path: Path, grandchild: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.serving.launcher._GRACE_S", (0.3, 0.3))
    launcher = make({"ignore_sigterm": True, "grandchild": grandchild})
    with launcher.launch(CANDIDATE, directory=tmp_path / "t0", progress=quiet) as server:
        assert len(server.tree.refresh(thorough=True)) >= 3
    assert marked(launcher._id) == set()


def test_death_in_use_is_noticed(make: Make, tmp_path: Path) -> None:
    with make({"die_after": 1}).launch(CANDIDATE, directory=tmp_path / "t0", progress=quiet) as server:
        ask(server)
        deadline = time.monotonic() + 10
        while server.failure() is None and time.monotonic() < deadline:
            ask(server)
        failure = server.failure()
        assert failure is not None
        assert failure.phase == "serve"


def test_killed_server_is_the_machines_doing(make: Make, tmp_path: Path) -> None:
    with make().launch(CANDIDATE, directory=tmp_path / "t0", progress=quiet) as server:
        os.kill(server.handle.identity.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while server.handle.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        failure = server.failure()
        assert failure is not None
        assert (failure.kind, failure.blame, failure.retry) == ("killed", Blame.MACHINE, True)


BENCH = ["bench", "serve", "--dataset-name", "random", "--random-input-len", "4", "--random-output-len", "4"]


def client(server: LocalServer, folder: Path, prompts: int) -> list[str]:
    where = ["--result-dir", str(folder), "--result-filename", "r.json", "--model", server.model_name]
    return [*BENCH, *where, "--base-url", server.base_url, "--num-prompts", str(prompts), "--max-concurrency", "1"]


def test_clients(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "client.log"
    with make().launch(CANDIDATE, directory=tmp_path / "t0", progress=quiet) as server:
        assert server.run_client(client(server, tmp_path, 3), log_path=log, timeout_s=30) == 0
        assert json.loads((tmp_path / "r.json").read_text())["completed"] == 3
        assert server.api_key not in log.read_text()
        many = client(server, tmp_path, 1_000_000)
        assert server.run_client(many, log_path=log, timeout_s=30, watch=lambda: False) == -1
        with pytest.raises(MeasurementFailed, match="did not end within"):
            server.run_client(many, log_path=log, timeout_s=0.5)
        assert server.run_client(["bench", "nonsense"], log_path=log, timeout_s=30) == 1


def test_server_that_dies_under_a_client(make: Make, tmp_path: Path) -> None:
    with make({"crash_after": 5}).launch(CANDIDATE, directory=tmp_path / "t0", progress=quiet) as server:
        argv = client(server, tmp_path, 2000)
        with pytest.raises(MeasurementFailed) as caught:
            server.run_client(argv, log_path=tmp_path / "client.log", timeout_s=30)
        assert caught.value.failure.kind == "killed"


def test_command_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    launcher = VllmLauncher("m", study_dir=tmp_path, vllm_command=["/no/such/vllm", "serve"])
    failure = failure_of(launcher, tmp_path / "t0").failure
    assert (failure.kind, failure.blame) == ("command", Blame.USER)
    launcher.close()
    with pytest.raises(InputError, match="--vllm-command is empty"):
        VllmLauncher("m", study_dir=tmp_path, vllm_command=[])


def test_cold_start_where_there_is_no_warm_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that cannot be a warm parent is no reason not to try: the cold start says what is wrong."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    launcher = VllmLauncher("m", study_dir=tmp_path / "s", python=["/bin/false"])
    caught = failure_of(launcher, tmp_path / "t0")
    assert caught.report is not None
    assert caught.report.mode == "cold"
    assert caught.report.warnings[0].startswith("started cold, which takes longer: ")
    launcher.close()
