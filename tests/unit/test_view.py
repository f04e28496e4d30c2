"""What a person sees of a study as it goes on."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tuner.model.candidate import Candidate
from tuner.model.intervals import mean_estimate
from tuner.model.judge import constraints
from tuner.model.measurement import Measurement, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Limit, Objective
from tuner.view import StudyView

LIMITS = (Limit(metric="latency/ttft_p99", bound=500.0),)
CANDIDATE = Candidate(assignment={"seqs": 64, "block_size": 16}, arguments={"max-num-seqs": 64})


def seen(outcome: Outcome) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=80)
    with StudyView(console, Objective(), limits=LIMITS, defaults={"block_size": 16}) as view:
        view.trial_started(3, outcome.candidate, done=3, total=8)
        view.trial_ended(3, outcome, is_best=False)
    return out.getvalue()


def measured(**metrics: float) -> Outcome:
    measurement = Measurement(metrics={k.replace("__", "/"): v for k, v in metrics.items()}, objective=None)
    return Outcome(
        candidate=CANDIDATE,
        status=Status.MEASURED,
        objective=700.0,
        measurement=measurement,
        constraints=constraints(LIMITS, measurement=measurement),
    )


def test_a_candidate_is_told_by_what_departs_from_the_defaults() -> None:
    text = seen(measured(latency__ttft_p99=100.0))
    assert "#3 (4 of 8) seqs=64\n" in text
    assert "block_size" not in text
    assert "✓ #3   700 tok/s  seqs=64" in text


def test_a_miss_shows_its_value_against_the_bound() -> None:
    assert "misses: ttft_p99 812 > 500 ms" in seen(measured(latency__ttft_p99=812.0))
    assert "misses: ttft_p99 not reported" in seen(measured())


def test_an_estimate_is_not_marked_as_measured() -> None:
    outcome = measured(latency__ttft_p99=1.0)
    text = seen(replace(outcome, server=ServerReport(mode="estimate")))
    assert "≈ #3" in text
    assert "estimated" in text
    assert "✓" not in text


def test_many_choices_are_counted() -> None:
    many = Candidate(assignment={f"a_long_parameter_name_{n}": n for n in range(40)}, arguments={})
    text = seen(replace(measured(latency__ttft_p99=1.0), candidate=many))
    assert "more" in text
    assert all(len(line) < 300 for line in text.splitlines())


def test_every_objective_of_several_is_in_the_trials_line() -> None:
    out = io.StringIO()
    latency, power = (
        Objective(metric=name, maximize=False, unit=unit)
        for name, unit in (("latency/ttft_p99", "ms"), ("gpu/power_w", "W"))
    )
    outcome = Outcome(
        candidate=Candidate(assignment={}, arguments={}, origin="baseline"),
        status=Status.MEASURED,
        objective=100.0,
        measurement=Measurement(metrics={"throughput/output": 100.0, "latency/ttft_p99": 12.0}, objective=None),
    )
    with StudyView(Console(file=out, width=200), Objective(), further=(latency, power)) as view:
        view.trial_ended(0, outcome, is_best=False)
    assert "100 tok/s, ttft_p99 12 ms, power ?" in out.getvalue()


def ended(objective: Objective, value: float, *, name: str = "vLLM's defaults", baseline: float | None = None) -> str:
    """The line of a trial that was measured, beside what an earlier run knew of the defaults."""
    out = io.StringIO()
    outcome = Outcome(candidate=CANDIDATE, status=Status.MEASURED, objective=value)
    with StudyView(Console(file=out, width=200), objective, name=name) as view:
        view.resumed(None if baseline is None else mean_estimate([baseline]), baseline)
        view.trial_ended(4, outcome, is_best=False)
        view.trial_ended(5, replace(outcome, candidate=Candidate(assignment={}, arguments={})), is_best=False)
    return out.getvalue()


def test_what_an_earlier_run_measured_is_compared_with_at_once() -> None:
    assert "#4   700 tok/s (1.40× default)" in ended(Objective(), 700.0, baseline=500.0)
    assert "×" not in ended(Objective(), 700.0)


def default_trial(value: float, *, feasible: bool = True) -> Outcome:
    candidate = Candidate(assignment={}, arguments={}, origin="baseline")
    missed = {} if feasible else {"latency/ttft_p99": 1.0}
    return Outcome(candidate=candidate, status=Status.MEASURED, objective=value, constraints=missed)


@pytest.mark.parametrize(
    ("earlier", "trials", "factor"),
    [
        (None, [default_trial(100.0), default_trial(104.0)], "1.96"),
        ([100.0, 101.0, 99.0], [default_trial(104.0)], "1.98"),
        (None, [default_trial(100.0, feasible=False), default_trial(200.0)], "1.00"),
        (None, [default_trial(200.0), default_trial(100.0, feasible=False)], "1.00"),
        (None, [default_trial(90.0, feasible=False), default_trial(110.0, feasible=False)], "2.00"),
    ],
)
def test_a_ratio_is_to_the_mean_of_the_defaults_trials_so_far(
    earlier: list[float] | None, trials: list[Outcome], factor: str
) -> None:
    """Lines of one study said 3.36, 3.26 and its summary 3.30: the last, the first and all of the defaults' trials."""
    out = io.StringIO()
    with StudyView(Console(file=out, width=200), Objective()) as view:
        view.resumed(None if earlier is None else mean_estimate(earlier), None)
        for number, outcome in enumerate(trials):
            view.trial_ended(number, outcome, is_best=False)
        view.trial_ended(9, replace(measured(latency__ttft_p99=1.0), objective=200.0), is_best=False)
    assert f"#9   200 tok/s ({factor}× default)" in out.getvalue()


def test_below_zero_there_is_no_factor_and_better_is_plus() -> None:
    score = Objective(metric="score", unit="")
    assert "#4   -5 (+50.0% against the default)" in ended(score, -5.0, baseline=-10.0)
    assert "#4   -20 (-100.0% against the default)" in ended(score, -20.0, baseline=-10.0)


def test_small_figures_keep_their_digits() -> None:
    assert "#4   0.00004 req/s (0.80× default)" in ended(Objective(unit="req/s"), 4e-5, baseline=5e-5)


def test_another_engines_defaults_are_not_vllms() -> None:
    text = ended(Objective(), 700.0, name="the defaults")
    assert text.splitlines()[1].endswith("#5   700 tok/s  the defaults")
    assert "vLLM" not in text


def test_a_failure_is_no_sentence_about_its_time() -> None:
    failure = Failure(kind="no-kv", cause="2 GiB do not fit.", blame=Blame.CONFIGURATION)
    outcome = Outcome(candidate=CANDIDATE, status=Status.BROKEN, failure=failure, seconds={"total": 12.0})
    assert "✗ #3   no-kv: 2 GiB do not fit (after 12 s)  seqs=64\n" in seen(outcome)


def test_a_trial_is_told_by_what_it_changes_of_the_best() -> None:
    """Beyond a dozen settings a line ended in "+3 more", and the three were what had been tried."""
    many = {f"a_long_parameter_name_{n}": n for n in range(20)}
    best = Candidate(assignment={**many, "seqs": 64}, arguments={})
    other = Candidate(assignment={**many, "seqs": 96}, arguments={})
    out = io.StringIO()
    with StudyView(Console(file=out, width=80), Objective()) as view:
        view.trial_ended(3, replace(measured(latency__ttft_p99=1.0), candidate=best), is_best=True)
        view.trial_started(4, other, done=4, total=8)
        view.trial_ended(4, replace(measured(latency__ttft_p99=1.0), candidate=other), is_best=False)
    text = out.getvalue()
    assert "#4 (5 of 8) as #3 but seqs=96\n" in text
    assert text.splitlines()[-1].endswith("as #3 but seqs=96")
