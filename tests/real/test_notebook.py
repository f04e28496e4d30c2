"""The notebook runs from top to bottom on the stores that a study really writes: Optuna's and MLflow's."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tuner.measuring.statistics import compare
from tuner.model.candidate import Candidate, Exclusion
from tuner.model.hardware import Hardware
from tuner.model.json import Json, Scalar
from tuner.model.llm import ModelFacts
from tuner.model.measurement import Estimate, Measurement, QualityReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.space import Choice, Parameter, Range, Space
from tuner.model.workload import Limit, Objective, Workload
from tuner.ports import Progress, StudyInfo, TrialContext
from tuner.search import OptunaOptimizer
from tuner.study import Budget, Study
from tuner.tracking import MlflowTracker

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "explore_study.ipynb"
LIMITS = (Limit(metric="latency/ttft_p99", bound=500.0),)


@dataclass
class Planner:
    """Two parameters; nothing is derived."""

    excluded: int = 0

    def baseline(self) -> Candidate:
        return Candidate(assignment={}, arguments={}, origin="baseline")

    def starts(self) -> Sequence[Candidate]:
        return [self.render({"max_num_seqs": 64, "kv_cache_dtype": "fp8"}, origin="start:recipe")]

    def render(self, assignment: Mapping[str, Scalar], *, origin: str = "search") -> Candidate:
        arguments: dict[str, Json] = {name.replace("_", "-"): value for name, value in assignment.items()}
        return Candidate(assignment=dict(assignment), arguments=arguments, origin=origin)

    def exclusion(self, candidate: Candidate) -> Exclusion | None:
        if candidate.assignment.get("max_num_seqs") == self.excluded:
            return Exclusion(reason="needs more memory than there is", rule="memory")
        return None

    def identity(self, candidate: Candidate) -> str:
        return candidate.key

    def doubts(self, candidate: Candidate) -> Sequence[float]:
        return ()

    def effective_identity(self, candidate: Candidate, effective: Mapping[str, Json]) -> str:
        return candidate.key

    def forecast(self, candidate: Candidate) -> Mapping[str, float]:
        return {}

    def numerics(self, candidate: Candidate) -> str:
        return str(candidate.assignment.get("kv_cache_dtype"))


@dataclass
class Arithmetic:
    """A runner in milliseconds: an optimum in the middle, one choice that breaks, one that costs accuracy."""

    accuracy: bool = True
    kind: str = "replay"
    closed: bool = field(default=False, init=False)

    def run(self, candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
        progress("measuring", "")
        seqs = int(str(candidate.assignment.get("max_num_seqs", 16)))
        dtype = candidate.assignment.get("kv_cache_dtype", "auto")
        if seqs > 200:
            failure = Failure(
                kind="cuda-oom", cause="out of memory", blame=Blame.CONFIGURATION, violation=seqs / 200 - 1
            )
            return Outcome(
                candidate=candidate, status=Status.BROKEN, failure=failure, seconds={"start": 9.0, "total": 9.0}
            )
        noise = random.Random(context.seed)
        mean = 300 - abs(seqs - 96) + (30 if dtype != "auto" else 0)
        samples = tuple(mean * noise.gauss(1, 0.005) for _ in range(3))
        value = sum(samples) / 3
        passed = dtype != "int8"
        score = {"accuracy/score": 0.74 if passed else 0.11, "accuracy/score_se": 0.025, "accuracy/excess": 0.57}
        quality = QualityReport(passed=passed, reason="" if passed else "accuracy 63 % below", metrics=score)
        return Outcome(
            candidate=candidate,
            status=Status.MEASURED,
            objective=value,
            measurement=Measurement(
                metrics={"throughput/output": value, "latency/ttft_p99": 4.0 * seqs},
                objective=Estimate(value=value, low=value * 0.99, high=value * 1.01, samples=samples),
            ),
            quality=quality if self.accuracy else None,
            seconds={"start": 12.0, "measure": 30.0, "total": 42.0},
        )

    def close(self) -> None:
        self.closed = True


class Silent:
    """An observer that shows nothing, whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None


def run_study(root: Path, runner: Arithmetic, *, trials: int) -> str:
    """A study through the real loop, storage and tracker; returns its name."""
    name, directory = "small", root / "small"
    directory.mkdir(parents=True)
    objective = Objective()
    parameters = (
        Parameter(name="max_num_seqs", target="max-num-seqs", domain=Range(low=8, high=256, step=8)),
        Parameter(
            name="kv_cache_dtype",
            target="kv-cache-dtype",
            domain=Choice(values={"auto": "auto", "fp8": "fp8", "int8": "int8"}),
            numerics=True,
        ),
    )
    space = Space(
        name="small",
        hardware=Hardware(name="cpu", platform="cpu", device="a test", memory_gib=8, bandwidth_gb_s=40),
        model=ModelFacts(
            name="demo",
            layers=30,
            hidden=576,
            heads=9,
            kv_heads=3,
            head_dim=64,
            vocab=49152,
            max_position=2048,
            weight_bytes=269_000_000,
        ),
        parameters=parameters,
        digest="0123456789ab",
    )
    planner = Planner(excluded=256)
    places = {"storage": f"sqlite:///{root / 'optuna.db'}", "tracking_uri": f"sqlite:///{root / 'mlflow.db'}"}
    workload = Workload(name="batch")
    study = Study(
        info=StudyInfo(
            name=name,
            hardware="cpu",
            model="demo",
            workload=workload,
            objective=objective,
            limits=LIMITS,
            directory=directory,
        ),
        planner=planner,
        optimizer=OptunaOptimizer(
            space,
            planner,
            storage=places["storage"],
            study_name=name,
            objective=objective,
            limits=LIMITS,
            sampler="random",
            budget_trials=trials,
        ),
        runner=runner,
        tracker=MlflowTracker(places["tracking_uri"], spool=directory / "spool"),
        observer=Silent(),
        compare=compare,
        budget=Budget(trials=trials),
    )
    about = {"name": name, **places, "objective": {"metric": objective.metric, "maximize": True, "unit": "tok/s"}}
    (directory / "study.json").write_text(json.dumps(about), encoding="utf-8")
    study.run()
    return name


def execute(folder: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return notebook


def texts(notebook: nbformat.NotebookNode) -> str:
    """All that the notebook printed or showed as text."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            found.append(output.get("text", "") or output.get("data", {}).get("text/plain", ""))
            found.append(output.get("data", {}).get("text/html", ""))
    return "\n".join(found)


def figures(notebook: nbformat.NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNE_DIRECTORY", "TUNE_STUDY", "TUNE_STORAGE", "TUNE_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("clean_environment")
def test_the_newest_study_is_shown_from_top_to_bottom(tmp_path: Path) -> None:
    run_study(tmp_path / "tune-studies", Arithmetic(), trials=16)
    (tmp_path / "notebooks").mkdir()
    notebook = execute(tmp_path / "notebooks")  # one folder below the studies, as in the repository
    said = texts(notebook)
    assert "small: " in said
    assert "maximise throughput/output (tok/s)" in said
    assert "verdict: better" in said
    assert "max-num-seqs" in said
    assert "accuracy 63 % below" in said
    # History, importances, slices, accuracy, time.
    assert figures(notebook) == 5


@pytest.mark.usefixtures("clean_environment")
def test_a_named_store_without_accuracy_and_with_two_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = run_study(tmp_path / "elsewhere", Arithmetic(accuracy=False), trials=2)
    monkeypatch.setenv("TUNE_STUDY", name)
    monkeypatch.setenv("TUNE_STORAGE", f"sqlite:///{tmp_path / 'elsewhere' / 'optuna.db'}")
    monkeypatch.setenv("TUNE_TRACKING_URI", f"sqlite:///{tmp_path / 'elsewhere' / 'mlflow.db'}")
    said = texts(execute(tmp_path))
    assert "No trial of this study was checked for accuracy." in said
    assert "Too few measured trials" in said


def test_it_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(
        not cell.get("outputs") and cell.get("execution_count") is None
        for cell in notebook.cells
        if cell.cell_type == "code"
    )
