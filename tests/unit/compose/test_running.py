"""The last lines of a study: where to look, and what becomes of the winner."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from tuner.compose.options import Options
from tuner.compose.running import _conclude, run_study
from tuner.model.candidate import Candidate
from tuner.model.history import History, Judgement, Trial
from tuner.model.measurement import Estimate, Measurement
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Objective
from tuner.study import Result

EXAMPLES = Path(__file__).parents[3] / "examples"
BASELINE = Candidate(assignment={}, arguments={}, origin="baseline")
OTHER = Candidate(assignment={"seqs": 64}, arguments={"max-num-seqs": 64})


def last_lines(options: Options, *, other: float = 800.0, verdict: str = "better") -> list[str]:
    history = History(objective=Objective(), baseline_key=BASELINE.key)
    for number, (candidate, value) in enumerate(((BASELINE, 500.0), (OTHER, other))):
        estimate = Estimate(value=value, low=value, high=value, samples=(value, value))
        outcome = Outcome(
            candidate=candidate,
            status=Status.MEASURED,
            objective=value,
            measurement=Measurement(metrics={"throughput/output": value}, objective=estimate),
        )
        history.add(Trial(number=number, origin="search", outcome=outcome))
    judgement = Judgement(
        verdict=verdict, gain=0.6, low=0.5, high=0.7, basis="starts", challenger_starts=2, baseline_starts=2
    )
    result = Result(history=history, judgement=judgement, reason="all trials done", wall_seconds=9.0)
    text = io.StringIO()
    _conclude(Console(file=text, width=200), options, {"name": "s", "facts": {}}, result, {})
    return [line.rstrip() for line in text.getvalue().split("\n\n")[-1].splitlines()]


def test_a_winner_is_followed_by_its_export() -> None:
    lines = last_lines(Options(hardware="cpu", directory=Path("my studies")))
    assert lines == [
        "every trial:   tune ui --directory 'my studies'",
        "one trial:     tune report --trial N --directory 'my studies'",
        "the winner:    tune export --output best.yaml --directory 'my studies'",
        "               vllm serve --config best.yaml",
    ]


def test_what_is_not_proven_is_exported_by_force() -> None:
    lines = last_lines(Options(hardware="cpu"), verdict="no significant difference")
    assert lines[2] == "not proven:    tune export --output best.yaml --force"


@pytest.mark.parametrize(
    ("options", "other", "ending"),
    [
        (Options(hardware="cpu", trial_command="./measure"), 800.0, ["the winner:    tune report --json"]),
        (Options(hardware="h200", replay=Path("t.jsonl")), 800.0, []),
        (Options(hardware="cpu"), 400.0, []),
    ],
)
def test_an_export_that_would_be_refused_is_not_named(options: Options, other: float, ending: list[str]) -> None:
    assert last_lines(options, other=other)[2:] == ending


def test_the_end_of_a_run_shows_the_limits_with_their_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.tracking.MlflowTracker", MagicMock())
    answer = '{"status": "ok", "metrics": {"throughput/output": 50, "latency/tpot_p99": 40}}'
    run_study(
        Options(
            hardware=str(EXAMPLES / "other_engine.yaml"),
            directory=tmp_path,
            trial_command=shlex.join(["echo", answer]),
            trials=1,
            limits=("tpot_p99=30ms",),
            warm_start="none",
        )
    )
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "tpot_p99 (at most 30 ms) 40 ms, misses" in rows
