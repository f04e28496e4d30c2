"""`tune export --load`: which configuration is written, and what the file says it is best at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.compose import answers
from tuner.compose.look import Study
from tuner.errors import InputError, RunError
from tuner.model.candidate import Candidate
from tuner.model.history import History, Trial
from tuner.model.intervals import mean_estimate
from tuner.model.measurement import Measurement, PointResult
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Objective

BASELINE = Candidate(assignment={}, arguments={}, origin="baseline")
ABOUT: dict[str, Any] = {"name": "sweep", "model": "org/tiny", "hardware": "cpu", "workload": "w", "facts": {}}


def study(*, points: tuple[str, ...] = ("c1", "c8")) -> Study:
    """Sequences 8 are best at c1, 64 at c8 and in the mean."""
    history = History(objective=Objective(), baseline_key=BASELINE.key)
    for number, (seqs, values) in enumerate(((0, (50.0, 200.0)), (8, (80.0, 190.0)), (64, (50.1, 300.0)))):
        who = Candidate(assignment={"seqs": seqs}, arguments={"max-num-seqs": seqs}) if seqs else BASELINE
        found = []
        for name, value in zip(points, values, strict=False):
            estimate = mean_estimate([value * noise for noise in (0.997, 1.0, 1.003)])
            found.append(
                PointResult(
                    name=name,
                    metrics={"throughput/output": estimate.value},
                    estimates={"throughput/output": estimate},
                    rounds=3,
                )
            )
        mean = sum(values) / 2
        outcome = Outcome(
            candidate=who,
            status=Status.MEASURED,
            objective=mean,
            measurement=Measurement(
                metrics={"throughput/output": mean}, objective=mean_estimate([mean] * 3), points=tuple(found)
            ),
        )
        history.add(Trial(number=number, origin="search" if number else "baseline", outcome=outcome))
    return Study(directory=Path("sweep"), about=ABOUT, history=history)


def export(monkeypatch: pytest.MonkeyPatch, output: Path, load_name: str, *, force: bool = False, **made: Any) -> str:
    monkeypatch.setattr(answers, "load", lambda *_: study(**made))
    monkeypatch.setattr("tuner.spaces.read_back", lambda *_: {"model": "org/tiny", "max_num_seqs": 8})
    answers.export_load(Path(), "sweep", None, output=output, load_name=load_name, as_json=False, force=force)
    return output.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["c1", "1"])
def test_the_best_at_one_load_is_written_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    text = export(monkeypatch, tmp_path / "c1.yaml", name)
    assert yaml.safe_load(text) == {"model": "org/tiny", "max-num-seqs": 8}
    for line in (
        "# Best at:   load point c1, of c1, c8\n",
        "#            All figures below are of this load alone.\n",
        "#            The best single one over all points is trial 2.\n",
        "# Workload:  w, load point c1\n",
        "# Measured:  throughput/output 80 tok/s; vLLM's defaults: 50 tok/s\n",
    ):
        assert line in text


def test_a_load_that_was_not_measured_names_those_that_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--load 'c64': not in study sweep; it has c1, c8"):
        export(monkeypatch, tmp_path / "x.yaml", "c64")
    with pytest.raises(InputError, match="measured one load point only"):
        export(monkeypatch, tmp_path / "x.yaml", "c1", points=("c1",))


def test_what_is_not_proven_at_this_load_is_refused_unless_forced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = study()
    made.history.trials.pop(1)  # what is left at c1 is 0.2 % better, within the spread
    monkeypatch.setattr(answers, "load", lambda *_: made)
    monkeypatch.setattr("tuner.spaces.read_back", lambda *_: {"model": "org/tiny", "max_num_seqs": 64})
    arguments: dict[str, Any] = {"output": tmp_path / "x.yaml", "load_name": "c1", "as_json": True}
    with pytest.raises(RunError, match=r"trial 2 looks best at load c1 \(\+0.2%\), but is not proven better"):
        answers.export_load(Path(), None, None, **arguments)
    assert not (tmp_path / "x.yaml").exists()
    answers.export_load(Path(), None, None, **arguments, force=True)
    assert "It is also the best single one over all points." in (tmp_path / "x.yaml").read_text(encoding="utf-8")


def test_where_nothing_is_better_there_is_nothing_to_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = study()
    del made.history.trials[1:]
    monkeypatch.setattr(answers, "load", lambda *_: made)
    with pytest.raises(RunError, match="nothing measured better than vLLM's defaults at load c8"):
        answers.export_load(Path(), None, None, output=tmp_path / "x.yaml", load_name="8", as_json=False)
