"""What a person sees: `tune ui` in a real Chromium, on a small study written by the tracker."""

from __future__ import annotations

import html
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.model.candidate import Candidate
from tuner.model.measurement import Estimate, Measurement, QualityReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Objective, Workload
from tuner.ports import StudyInfo
from tuner.tracking import MlflowTracker

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]


def outcome(origin: str, value: float | None, accuracy: float, seqs: int | None) -> Outcome:
    arguments = {} if seqs is None else {"max-num-seqs": seqs, "enable-prefix-caching": False}
    candidate = Candidate(assignment=arguments, arguments=arguments, origin=origin)
    if value is None:
        failure = Failure(kind="kv-too-small", cause="2.1 GiB are missing", blame=Blame.CONFIGURATION)
        return Outcome(candidate=candidate, status=Status.BROKEN, failure=failure, constraints={"start": 1.0})
    return Outcome(
        candidate=candidate,
        status=Status.MEASURED,
        objective=value,
        measurement=Measurement(
            metrics={"throughput/output": value, "latency/ttft_p99": 100.0},
            objective=Estimate(value=value, low=value * 0.99, high=value * 1.01, samples=(value, value)),
        ),
        quality=QualityReport(passed=True, metrics={"accuracy/score": accuracy}),
        constraints={"start": -1.0},
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of `tune ui`, and the line that it prints for the study's experiment."""
    root = tmp_path_factory.mktemp("studies")
    info = StudyInfo(
        name="browser-study",
        hardware="cpu",
        model="org/tiny",
        workload=Workload(name="batch"),
        objective=Objective(),
        directory=root / "browser-study",
    )
    tracker = MlflowTracker(None, spool=info.directory / "spool")
    tracker.open(info)
    trials = [("baseline", 500.0, 0.61, None), ("search", 700.0, 0.60, 32), ("search", 800.0, 0.62, 64)]
    for number, (origin, value, accuracy, seqs) in enumerate([*trials, ("search", None, 0.0, 4096)]):
        found = outcome(origin, value, accuracy, seqs)
        tracker.trial_started(number, found.candidate)
        tracker.trial_ended(number, found, directory=info.directory / str(number), is_best=number == 2)
    judgement = {"verdict": "better", "gain": 0.6, "low": 0.58, "high": 0.62, "basis": "starts"}
    tracker.study_ended("FINISHED", {"winner": {"trial": 2}, "judgement": judgement}, ())

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = root / "ui.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tuner.cli", "ui", "--directory", str(root), "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield f"http://127.0.0.1:{port}", line_with("viewStateShareKey", log, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "the UI outlived `tune ui`"


def line_with(text: str, log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        found = [line for line in log.read_text(errors="replace").splitlines() if text in line]
        if found:
            return found[0]
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        time.sleep(0.5)
    pytest.fail(f"`tune ui` did not come up: {log.read_text(errors='replace')[-2000:]}")


def page(url: str, profile: Path) -> str:
    """The page's text once its scripts have run."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={profile}", "--window-size=1900,1200", "--virtual-time-budget=60000"),
            *("--dump-dom", url),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    bare = re.sub(r"<(script|style)\b.*?</\1>", "", done.stdout, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


def test_trials_are_sorted_and_the_baseline_is_recognised(address: tuple[str, str], tmp_path: Path) -> None:
    url = address[1].rsplit(": ", 1)[1].strip()
    text = page(url, tmp_path)
    names = ["trial 002 · winner", "trial 001 · search", "trial 000 · baseline", "trial 003 · search"]
    places = [text.find(name) for name in names]
    assert -1 not in places, text[:2000]
    assert places == sorted(places)
    for column in ("throughput/output", "accuracy/score", "800", "0.62"):
        assert column in text


def test_the_studys_page_shows_gain_figures_and_yaml(address: tuple[str, str], tmp_path: Path) -> None:
    from mlflow import MlflowClient  # noqa: PLC0415 - only where there is a browser

    client = MlflowClient(tracking_uri=address[0])
    experiment = client.get_experiment_by_name("org/tiny on cpu")
    study = client.search_runs([experiment.experiment_id], "tags.`tune.role` = 'study'")[0]
    text = page(f"{address[0]}/#/experiments/{experiment.experiment_id}/runs/{study.info.run_id}", tmp_path)
    for part in (
        "+60.0% against vLLM's default",
        "+58.0% to +62.0%",
        "Output throughput (tok/s) 500 800 +60.0%",
        "max-num-seqs: 64 no-enable-prefix-caching: true",
        "best/throughput/output",
    ):
        assert part in text, text[:3000]
