"""What people read: the verdict in words, and nothing from a log that draws on their terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tuner.model.candidate import Candidate
from tuner.model.history import History, Judgement, Trial
from tuner.model.measurement import Estimate, Measurement, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Objective
from tuner.report import print_conclusion, print_study, print_trial

BASELINE = Candidate(assignment={}, arguments={}, origin="baseline")
JUDGEMENT = Judgement(
    verdict="better", gain=0.6, low=0.5, high=0.7, basis="starts", challenger_starts=2, baseline_starts=3
)


def measured(candidate: Candidate, value: float) -> Outcome:
    return Outcome(
        candidate=candidate,
        status=Status.MEASURED,
        objective=value,
        measurement=Measurement(
            metrics={"throughput/output": value},
            objective=Estimate(value=value, low=value, high=value, samples=(value,)),
        ),
        server=ServerReport(effective={"block-size": 128}, phases={"imports": 8.0, "total": 9.0}),
        seconds={"measure": 30.0, "total": 75.0},
    )


def study(*more: Outcome) -> History:
    history = History(objective=Objective(), baseline_key=BASELINE.key)
    challenger = Candidate(assignment={"n": 8}, arguments={"max-num-seqs": 8})
    for number, outcome in enumerate([measured(BASELINE, 500.0), measured(challenger, 800.0), *more]):
        history.add(Trial(number=number, origin="search" if number else "baseline", outcome=outcome))
    return history


def shown(width: int = 120) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=False), out


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (
            "better",
            "Trial 1 beats vLLM's defaults: +60.0% (95 % interval +50.0% to +70.0%), over 2 and 3 server starts.",
        ),
        ("no significant difference", "No significant gain over vLLM's defaults (trial 1: +60.0%"),
        ("worse", "Nothing beats vLLM's defaults; the best other is trial 1"),
    ],
)
def test_the_verdict_is_a_sentence(verdict: str, sentence: str) -> None:
    console, out = shown()
    print_study(console, study(), replace(JUDGEMENT, verdict=verdict), {"name": "s", "model": "m"})
    assert sentence in out.getvalue()


def test_the_conclusion_says_why_it_ended_and_what_changed() -> None:
    console, out = shown()
    print_conclusion(console, study(), JUDGEMENT, reason="the budget is spent")
    text = out.getvalue()
    assert "Ended: the budget is spent." in text
    assert "500 tok/s" in text
    assert "800 tok/s" in text
    assert "Winner: n=8" in text


def test_a_failed_trial_tells_cause_blame_and_way_out() -> None:
    failure = Failure(
        kind="cuda-oom",
        cause="tried [bold]2 GiB[/bold], 1 GiB free",
        blame=Blame.CONFIGURATION,
        phase="profile",
        advice="ask for less",
        excerpt="ERROR [red]x[/red]\n" * 40,
    )
    broken = replace(measured(BASELINE, 1.0), status=Status.BROKEN, failure=failure, measurement=None)
    console, out = shown()
    print_trial(console, Trial(number=2, origin="search", outcome=broken), Objective())
    text = out.getvalue()
    assert "tried [bold]2 GiB[/bold], 1 GiB free" in text
    assert "Class cuda-oom, in phase profile; at fault: configuration; no use to try again." in text
    assert "What to change: ask for less" in text
    assert text.count("ERROR [red]x[/red]") == 20
    assert "block-size" in text
    assert "measuring 30.0 s" in text


def test_results_that_were_not_measured_here_are_named() -> None:
    console, out = shown()
    print_study(console, study(), None, {"name": "s", "facts": {"kind": "replay"}})
    assert "Results are replay results" in out.getvalue()


def test_an_empty_study_prints() -> None:
    console, out = shown(60)
    print_study(console, History(objective=Objective(), baseline_key="x"), None, {})
    assert "Nothing was measured to the end yet." in out.getvalue()
