"""What the loop may expect of a tracker, on real MLflow: SQLite here, a server that goes away and comes back."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tuner.errors import InputError
from tuner.model.candidate import Candidate
from tuner.model.measurement import Estimate, Measurement, QualityReport, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Limit, Objective, Workload
from tuner.ports import StudyInfo
from tuner.tracking import MlflowTracker, default_uri
from tuner.tracking.spool import Spool

SECRET = "hf_" + "Zz9Y" * 6
SUMMARY = {
    "winner": {"trial": 1, "value": 800.0},
    "judgement": {"verdict": "better", "gain": 0.6, "low": 0.5, "high": 0.7, "basis": "starts"},
}


def info(root: Path, name: str) -> StudyInfo:
    return StudyInfo(
        name=name,
        hardware="cpu",
        model="org/tiny",
        workload=Workload(name="batch"),
        objective=Objective(),
        limits=(Limit(metric="latency/ttft_p99", bound=500.0),),
        directory=root / name,
        versions={"vllm": "0.32.0"},
        facts={"device": "EPYC"},
    )


def measured(origin: str, value: float, seqs: int | None) -> Outcome:
    arguments: dict[str, Any] = {"enforce-eager": True, "enable-prefix-caching": False}
    if seqs is not None:
        arguments["max-num-seqs"] = seqs
    return Outcome(
        candidate=Candidate(
            assignment={} if seqs is None else {"max_num_seqs": seqs},
            arguments=arguments,
            environment={"HF_TOKEN": SECRET},
            origin=origin,
        ),
        status=Status.MEASURED,
        objective=value,
        measurement=Measurement(
            metrics={"throughput/output": value, "latency/ttft_p99": 120.0},
            objective=Estimate(value=value, low=value * 0.98, high=value * 1.02, samples=(value, value)),
        ),
        quality=QualityReport(passed=True, metrics={"accuracy/score": 0.6}),
        server=ServerReport(effective={"max-num-seqs": seqs or 256, "block-size": 128}, phases={"total": 12.0}),
        constraints={"start": -1.0},
        seconds={"total": 60.0},
    )


BROKEN = Outcome(
    candidate=Candidate(assignment={"max_num_seqs": 4096}, arguments={"max-num-seqs": 4096}),
    status=Status.BROKEN,
    failure=Failure(kind="kv-too-small", cause="2.1 GiB are missing", blame=Blame.CONFIGURATION),
    constraints={"start": 2.1},
)


class Study:
    """A study of one test on a shared store, with what MLflow says of it."""

    def __init__(self, root: Path, name: str, uri: str | None = None, **options: Any) -> None:
        self.root = root
        self.info = info(root, name)
        self.uri = uri or default_uri(root)
        self.said: list[str] = []
        self._options = options
        self.tracker = self.new_tracker()

    def new_tracker(self) -> MlflowTracker:
        return MlflowTracker(self.uri, spool=self.info.directory / "spool", notify=self.said.append, **self._options)

    def trial(self, number: int, outcome: Outcome, *, is_best: bool = False) -> None:
        directory = self.info.directory / "trials" / f"{number:04d}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "server.log").write_text(f"started with {SECRET}\n")
        self.tracker.trial_started(number, outcome.candidate)
        self.tracker.trial_ended(number, outcome, directory=directory, is_best=is_best)

    def runs(self) -> tuple[Any, dict[int, Any]]:
        """The parent and the children by number; asserts that there is one of each."""
        client = MlflowClient(tracking_uri=self.uri)
        experiment = client.get_experiment_by_name("org/tiny on cpu")
        found = client.search_runs([experiment.experiment_id], max_results=1000)
        parents = [r for r in found if r.info.run_name == self.info.name]
        assert len(parents) == 1
        children = [r for r in found if r.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
        numbers = [int(r.data.tags["tune.trial"]) for r in children]
        assert len(set(numbers)) == len(numbers)
        return parents[0], dict(zip(numbers, children, strict=True))

    def artifacts(self, run: Any) -> dict[str, Path]:
        client = MlflowClient(tracking_uri=self.uri)
        names = [entry.path for entry in client.list_artifacts(run.info.run_id)]
        return {name: Path(client.download_artifacts(run.info.run_id, name)) for name in names}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all tests of this file: making its tables takes seconds. The name wants quoting."""
    return tmp_path_factory.mktemp("all studies 100%")


@pytest.fixture
def study(root: Path, request: pytest.FixtureRequest) -> Study:
    return Study(root, request.node.name)


def test_a_whole_study(study: Study) -> None:
    study.tracker.open(study.info)
    study.trial(0, measured("baseline", 500.0, None))
    study.trial(1, measured("search", 800.0, 64), is_best=True)
    study.trial(2, BROKEN)
    study.tracker.study_ended("FINISHED", SUMMARY, ())

    parent, children = study.runs()
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best/throughput/output"] == 800.0
    assert parent.data.metrics["baseline/throughput/output"] == 500.0
    assert parent.data.metrics["gain/gain"] == 0.6
    assert parent.data.tags["verdict"] == "better"
    note = parent.data.tags["mlflow.note.content"]
    assert "**+60.0%**" in note
    assert "no-enable-prefix-caching: true" in note
    assert {"best.yaml", "trials.csv", "trials.json", "machine.json", "summary.json"} <= set(study.artifacts(parent))

    assert [children[n].info.status for n in (0, 1, 2)] == ["FINISHED", "FINISHED", "FAILED"]
    assert children[0].info.run_name == "trial 000 · baseline"
    assert children[1].info.run_name == "trial 001 · winner"
    assert children[1].data.tags["winner"] == "yes"
    assert children[1].data.params["asked/max-num-seqs"] == "64"
    assert children[1].data.params["effective/block-size"] == "128"
    assert children[1].data.metrics["throughput/output"] == 800.0
    assert children[1].data.metrics["accuracy/score"] == 0.6
    assert children[2].data.tags["failure.class"] == "kv-too-small"
    assert children[2].data.tags["reason"] == "2.1 GiB are missing"
    files = study.artifacts(children[1])
    assert {"serve.yaml", "command.txt", "trial.json", "machine.json", "server.log"} == set(files)
    assert "vllm serve org/tiny --enforce-eager --no-enable-prefix-caching" in files["command.txt"].read_text()
    assert study.said == []
    assert len(study.tracker._known_spool()) == 0


def test_the_secret_is_nowhere(study: Study) -> None:
    study.tracker.open(study.info)
    study.trial(0, measured("baseline", 500.0, None))
    study.tracker.study_ended("FINISHED", {"token": SECRET}, ())
    places = [study.root / "mlflow.db", study.root / "mlartifacts", study.info.directory / "spool"]
    files = [p for place in places for p in ([place] if place.is_file() else place.rglob("*")) if p.is_file()]
    assert len(files) > 5
    assert [p for p in files if SECRET.encode() in p.read_bytes()] == []


def test_what_a_killed_process_left_running_is_closed(study: Study) -> None:
    study.tracker.open(study.info)
    study.trial(0, measured("baseline", 500.0, None))
    study.tracker.trial_started(1, BROKEN.candidate)
    study.tracker.close()  # as if killed: nobody says that trial 1 ended
    parent, children = study.runs()
    assert (parent.info.status, children[1].info.status) == ("RUNNING", "RUNNING")

    study.tracker = study.new_tracker()
    study.tracker.open(study.info)
    study.trial(2, measured("search", 800.0, 64))
    study.tracker.study_ended("KILLED", {}, ())
    parent, children = study.runs()
    assert parent.info.status == "KILLED"
    assert children[1].info.status == "KILLED"
    assert children[1].data.tags["state"] == "interrupted"
    assert sorted(children) == [0, 1, 2]


def test_the_end_closes_a_trial_in_flight(study: Study) -> None:
    study.tracker.open(study.info)
    study.tracker.trial_started(0, BROKEN.candidate)
    study.tracker.study_ended("KILLED", {}, ())
    study.tracker.study_ended("KILLED", {}, ())
    parent, children = study.runs()
    assert (parent.info.status, children[0].info.status) == ("KILLED", "KILLED")


def test_going_on_reopens_the_study_and_moves_the_crown(study: Study) -> None:
    for winner, value in ((1, 800.0), (2, 900.0)):
        study.tracker = study.new_tracker()
        study.tracker.open(study.info)
        study.trial(0, measured("baseline", 500.0, None))
        study.trial(winner, measured("search", value, 64 * winner))
        study.tracker.study_ended("FINISHED", {**SUMMARY, "winner": {"trial": winner}}, ())
    parent, children = study.runs()
    assert parent.data.metrics["best/throughput/output"] == 900.0
    crowned = {n: r.info.run_name for n, r in children.items() if "winner" in r.data.tags}
    assert crowned == {2: "trial 002 · winner"}
    assert children[1].info.run_name == "trial 001 · search"


def test_sending_everything_twice_changes_nothing(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        # As if killed each time between an event's arriving and its being crossed off.
        patch.setattr(Spool, "_note", lambda spool, seq: None)
        study.tracker.open(study.info)
        study.trial(0, measured("baseline", 500.0, None))
        study.trial(1, measured("search", 800.0, 64))
        study.tracker.close()
    study.tracker = study.new_tracker()
    study.tracker.open(study.info)
    assert len(study.tracker._known_spool()) > 0
    study.tracker.study_ended("FINISHED", SUMMARY, ())
    parent, children = study.runs()
    client = MlflowClient(tracking_uri=study.uri)
    assert sorted(children) == [0, 1]
    assert len(client.get_metric_history(children[1].info.run_id, "throughput/output")) == 1
    assert [m.step for m in client.get_metric_history(parent.info.run_id, "history/best")] == [0, 1]


def test_a_locked_store_holds_up_nobody(study: Study) -> None:
    study.tracker.open(study.info)
    study.tracker.trial_started(0, measured("baseline", 500.0, None).candidate)
    lock = sqlite3.connect(study.root / "mlflow.db", timeout=30, isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(8.0, lambda: lock.execute("ROLLBACK"))
    release.start()
    began = time.monotonic()
    study.trial(0, measured("baseline", 500.0, None))
    study.trial(1, measured("search", 800.0, 64))
    assert time.monotonic() - began < 5
    release.join()
    study.tracker.study_ended("FINISHED", SUMMARY, ())
    lock.close()
    parent, children = study.runs()
    assert parent.info.status == "FINISHED"
    assert sorted(children) == [0, 1]


@pytest.mark.parametrize(
    ("uri", "complaint"),
    [
        ("bogus://x", "no MLflow tracking URI"),
        ("/srv/mlruns", "no longer writes folders"),
        ("postgresql://user:Passw0rd@127.0.0.1:9/db", "driver that is not installed"),
    ],
)
def test_a_store_that_can_never_work_is_refused_at_once(tmp_path: Path, uri: str, complaint: str) -> None:
    study = Study(tmp_path, "s", uri=uri)
    with pytest.raises(InputError, match=complaint) as caught:
        study.tracker.open(study.info)
    assert "\n" not in str(caught.value)
    assert "Passw0rd" not in str(caught.value)
    assert not (study.info.directory / "spool").exists()


def test_a_store_of_another_version_is_refused(root: Path, tmp_path: Path) -> None:
    first = Study(root, "makes-the-store")
    first.tracker.open(first.info)
    first.tracker.study_ended("FINISHED", {}, ())
    with sqlite3.connect(root / "mlflow.db") as source, sqlite3.connect(tmp_path / "mlflow.db") as target:
        source.backup(target)
        target.execute("update alembic_version set version_num = 'f00000000000'")
    study = Study(tmp_path, "s")
    with pytest.raises(InputError, match="written by another version of MLflow"):
        study.tracker.open(study.info)


def test_no_database_and_no_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database " * 500)
    with pytest.raises(InputError, match="is not an MLflow database"):
        Study(tmp_path, "s").tracker.open(info(tmp_path, "s"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        Study(tmp_path / "file" / "deeper", "s").tracker.open(info(tmp_path / "file" / "deeper", "s"))


# --- a server ---


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Callable[[], subprocess.Popen[bytes]]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        log = (tmp_path / "server.log").open("ab")
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)),
                *("--backend-store-uri", f"sqlite:///{tmp_path}/server.db"),
                *("--artifacts-destination", str(tmp_path / "served")),
            ],
            stdout=log,
            stderr=log,
            cwd=tmp_path,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            start_new_session=True,
        )
        log.close()
        started.append(process)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                    return process
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
        pytest.fail(f"the MLflow server did not start: {(tmp_path / 'server.log').read_text()[-500:]}")

    yield f"http://127.0.0.1:{port}", start
    for process in started:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(timeout=30)


def test_a_server_that_is_killed_and_comes_back(
    tmp_path: Path, server: tuple[str, Callable[[], subprocess.Popen[bytes]]]
) -> None:
    uri, start = server
    study = Study(tmp_path / "studies", "s", uri=uri, timeout_s=5.0)
    study.tracker.open(study.info)  # nobody answers yet
    study.trial(0, measured("baseline", 500.0, None))
    process = start()
    wait_until(lambda: any("is back" in line for line in study.said), 120)
    _, children = study.runs()
    assert sorted(children) == [0]

    end(process)
    study.trial(1, measured("search", 800.0, 64))
    study.tracker.study_ended("FINISHED", SUMMARY, ())
    assert any("kept in" in line and "sent when this study is opened again" in line for line in study.said)

    start()
    study.tracker = study.new_tracker()
    study.tracker.open(study.info)
    study.tracker.study_ended("FINISHED", SUMMARY, ())
    parent, children = study.runs()
    assert parent.info.status == "FINISHED"
    assert {n: r.info.status for n, r in children.items()} == {0: "FINISHED", 1: "FINISHED"}
    assert "serve.yaml" in study.artifacts(children[1])
    assert sum("cannot be reached" in line for line in study.said) == 2


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)
