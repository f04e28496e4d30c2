"""What a person gets of a study that was: an export only of what is proven, or on request."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.compose import look
from tuner.errors import RunError
from tuner.model.candidate import Candidate
from tuner.model.history import History, Trial
from tuner.model.json import Json
from tuner.model.measurement import Estimate, Measurement, ServerReport
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Objective

BASELINE = Candidate(assignment={}, arguments={}, origin="baseline")
CHALLENGER = Candidate(assignment={"seqs": 64}, arguments={"max-num-seqs": 64})
Export = Callable[..., Path]


def measured(candidate: Candidate, *samples: float) -> Outcome:
    value = sum(samples) / len(samples)
    estimate = Estimate(value=value, low=min(samples), high=max(samples), samples=samples)
    measurement = Measurement(metrics={"throughput/output": value}, objective=estimate)
    return Outcome(candidate=candidate, status=Status.MEASURED, objective=value, measurement=measurement)


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    """Exports a study in which the challenger made so many tok/s in its rounds; returns the YAML's path."""

    def run(
        *samples: float, kind: str = "vllm", trial: int | None = None, force: bool = False, as_json: bool = False
    ) -> Path:
        history = History(objective=Objective(), baseline_key=BASELINE.key)
        history.add(Trial(number=0, origin="baseline", outcome=measured(BASELINE, 500.0, 501.0, 499.0)))
        history.add(Trial(number=1, origin="search", outcome=measured(CHALLENGER, *samples)))
        about: dict[str, Json] = {
            "name": "s",
            "model": "org/m",
            "facts": {"kind": kind},
            "versions": {"vllm": "0.32.0"},
        }
        study = look.Study(directory=tmp_path / "s", about=about, history=history)
        monkeypatch.setattr(look, "load", lambda *_: study)
        monkeypatch.setattr("tuner.spaces.read_back", lambda *_: {"model": "org/m", "max_num_seqs": 64})
        output = tmp_path / "best.yaml"
        look.export_study(tmp_path, None, None, output=output, trial=trial, as_json=as_json, force=force)
        return output

    return run


def test_a_proven_winner_is_written(export: Export) -> None:
    text = export(800.0, 801.0, 799.0).read_text()
    assert "Verdict: better." in text
    assert "NOT PROVEN" not in text


def test_what_is_not_proven_is_refused_and_nothing_is_written(export: Export, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"trial 1 is the best candidate .* but not proven better") as refusal:
        export(505.0, 495.0, 512.0)
    assert refusal.value.exit_code == 1
    assert "--force or --trial 1 writes it all the same" in str(refusal.value)
    assert not (tmp_path / "best.yaml").exists()


@pytest.mark.parametrize("how", [{"force": True}, {"trial": 1}])
def test_on_request_it_is_written_and_its_header_says_so(
    how: dict[str, object], export: Export, capsys: pytest.CaptureFixture[str]
) -> None:
    text = export(505.0, 495.0, 512.0, as_json=True, **how).read_text()
    assert "# NOT PROVEN better than vLLM's defaults: exported on request." in text
    assert "Verdict: no significant difference." in text
    told = json.loads(capsys.readouterr().out)
    assert told["checked"] is True
    assert "against vLLM's defaults: no significant difference" in told["notes"]


def test_nothing_better_is_refused(export: Export) -> None:
    with pytest.raises(RunError, match="nothing beats vLLM's defaults"):
        export(400.0, 401.0, 399.0)


@pytest.mark.parametrize("kind", ["replay", "external"])
def test_what_was_not_measured_here_is_refused_in_its_own_words(kind: str, export: Export) -> None:
    with pytest.raises(RunError, match="no measured vLLM configuration to export"):
        export(505.0, 495.0, 512.0, kind=kind)


def _export_of(outcomes: list[Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Why nothing of these trials (the first is vLLM's defaults) is exported, asked with --force."""
    history = History(objective=Objective(), baseline_key=BASELINE.key)
    for number, outcome in enumerate(outcomes):
        history.add(Trial(number=number, origin="search" if number else "baseline", outcome=outcome))
    study = look.Study(directory=tmp_path / "s", about={"name": "s", "model": "org/m"}, history=history)
    monkeypatch.setattr(look, "load", lambda *_: study)
    with pytest.raises(RunError) as refusal:
        look.export_study(tmp_path, None, None, output=tmp_path / "x.yaml", trial=None, as_json=False, force=True)
    return str(refusal.value)


def test_where_nothing_was_measured_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Outcome(candidate=BASELINE, status=Status.BROKEN)
    said = _export_of([broken, Outcome(candidate=CHALLENGER, status=Status.BEHIND)], tmp_path, monkeypatch)
    assert said.startswith("study s: nothing was measured (none of its 2 trials ran to the end)")
    assert "--trial" not in said
    assert "nothing was measured (no trials)" in _export_of([], tmp_path, monkeypatch)


def test_only_a_trial_that_can_be_exported_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline = measured(BASELINE, 500.0)
    behind = Outcome(candidate=CHALLENGER, status=Status.BEHIND)
    said = _export_of([baseline, behind], tmp_path, monkeypatch)
    assert "nothing beats vLLM's defaults (so far), and nothing else was measured to its end" in said
    assert "--trial" not in said
    slower = [
        measured(CHALLENGER, 300.0),
        measured(Candidate(assignment={"seqs": 9}, arguments={"max-num-seqs": 9}), 400.0),
    ]
    assert "give --trial N, such as 2," in _export_of([baseline, *slower], tmp_path, monkeypatch)


def test_a_table_of_a_replay_says_how_many_estimates_it_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = History(objective=Objective(), baseline_key=BASELINE.key)
    for number, (candidate, mode) in enumerate(((BASELINE, "replay"), (CHALLENGER, "estimate"))):
        outcome = replace(measured(candidate, 500.0), server=ServerReport(mode=mode))
        history.add(Trial(number=number, origin="search", outcome=outcome))
    monkeypatch.setattr(look, "load", lambda *_: look.Study(directory=tmp_path, about={}, history=history))
    look.report_study(tmp_path, None, None, trial=None, table=tmp_path / "t.jsonl", as_json=False)
    left = "1 estimated answer left out: never measured, so nothing to record"
    assert capsys.readouterr().out == f"1 trial written to {tmp_path / 't.jsonl'}; {left}\n"
