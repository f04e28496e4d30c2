"""What people read: the verdict in words, and nothing from a log that draws on their terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from tuner.measuring.statistics import compare
from tuner.model.candidate import Candidate, Exclusion
from tuner.model.history import History, Judgement, Trial
from tuner.model.json import Json
from tuner.model.judge import constraints
from tuner.model.measurement import Estimate, Measurement, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.summary import basis_words, summarise
from tuner.model.workload import Limit, Objective
from tuner.report import Answers, print_conclusion, print_study, print_trial, study_document, study_page
from tuner.report.show import _origins, verdict
from tuner.report.text import new_table

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
            "Trial 1 beats vLLM's defaults: +60.0% (99 % interval +50.0% to +70.0%), over 2 server starts against 3.",
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
    assert "Winner: trial 1: n=8" in text


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
    assert "Replayed from a recorded table: nothing was started, nothing was measured." in out.getvalue()


def test_an_empty_study_prints() -> None:
    console, out = shown(60)
    print_study(console, History(objective=Objective(), baseline_key="x"), None, {})
    assert "Nothing was measured to the end yet." in out.getvalue()


# --- 80 columns, limits, and what was averaged ---

DEFAULTS = {"a": 1, "block_size": 16, "seqs": 256, "graphs": "auto"}
WHOLE = {"a": 1, "block_size": 16, "seqs": 512, "graphs": "full"}


def wide_study() -> tuple[History, dict[str, object]]:
    """A study whose assignments name every parameter, as a sampler's do."""
    limits = (Limit(metric="latency/ttft_p99", bound=500.0), Limit(metric="accuracy/score", bound=0.5, at_most=False))
    history = History(objective=Objective(), baseline_key=BASELINE.key)
    assignments = [{}, WHOLE, {**WHOLE, "a": 7}, dict(DEFAULTS), {**WHOLE, "seqs": 1024, "graphs": "none"}]
    for number, assignment in enumerate(assignments):
        candidate = Candidate(assignment=assignment, arguments=dict(assignment)) if assignment else BASELINE
        outcome = measured(candidate, 1000.0 + number)
        measurement = Measurement(
            metrics={"throughput/output": 1000.0 + number, "latency/ttft_p99": 812.0}, objective=None
        )
        outcome = replace(outcome, measurement=measurement, constraints=constraints(limits, measurement=measurement))
        history.add(Trial(number=number, origin="search", outcome=outcome))
    about = {
        "defaults": DEFAULTS,
        "limits": [{"metric": x.metric, "bound": x.bound, "at_most": x.at_most} for x in limits],
    }
    return history, about


@pytest.mark.parametrize("width", [80, 200])
def test_trials_show_what_they_chose_beyond_the_defaults(width: int) -> None:
    history, about = wide_study()
    console, out = shown(width)
    print_study(console, history, None, about)
    text = out.getvalue()
    assert "a=7 seqs=512 graphs=full" in text
    assert "block_size" not in text.split("Trials")[1].split("Time")[0]
    assert "seqs=1024 graphs=none" in text
    assert "misses its limits: ttft_p99 812 > 500 ms, accuracy not reported" in text


def test_eighty_columns_hold_every_line_of_the_trials() -> None:
    history, about = wide_study()
    console, out = shown(80)
    print_study(console, history, None, about)
    trials = out.getvalue().split("Trials, and")[1].split("Time")[0]
    assert all(len(line) <= 80 for line in trials.splitlines())


def limited(*limits: Limit, best: float = 80.0) -> tuple[History, dict[str, Json]]:
    """Defaults that miss a limit on latency, and one configuration."""
    history = History(objective=Objective(), baseline_key=BASELINE.key)
    for number, (value, tpot) in enumerate(((500.0, 320.0), (400.0, best))):
        candidate = BASELINE if not number else Candidate(assignment={"n": 8}, arguments={"n": 8})
        outcome = measured(candidate, value)
        assert outcome.measurement is not None
        metrics = {**outcome.measurement.metrics, "latency/tpot_p99": tpot}
        measurement = replace(outcome.measurement, metrics=metrics)
        outcome = replace(outcome, measurement=measurement, constraints=constraints(limits, measurement=measurement))
        history.add(Trial(number=number, origin="search" if number else "baseline", outcome=outcome))
    listed = [{"metric": x.metric, "bound": x.bound, "at_most": x.at_most} for x in limits]
    return history, {"limits": listed, "facts": {"kind": "external"}}


TPOT = Limit(metric="latency/tpot_p99", bound=100.0)


def test_defaults_that_miss_a_limit_are_shown_with_what_they_measured() -> None:
    history, about = limited(TPOT)
    assert history.baseline() is None
    console, out = shown()
    print_conclusion(console, history, None, reason="the budget is spent", about=about)
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "Trial 1 is the best so far that keeps every limit; the defaults do not." in rows
    assert "throughput/output 500 tok/s 400 tok/s -20.0%" in rows
    assert "tpot_p99 (at most 100 ms) 320 ms, misses 80 ms -75.0%" in rows
    assert "mean over trial 0 trial 1" in rows
    document = study_document(history, None, about)
    assert (document["baseline"]["value"], document["baseline"]["feasible"]) == (500.0, False)
    said = summarise(history, None)["baseline"]
    assert (said["value"], said["feasible"], said["metrics"]["latency/tpot_p99"]) == (500.0, False, 320.0)  # type: ignore[index,call-overload]
    assert "| tpot_p99 (at most 100 ms) | 320 ms, misses | 80 ms | -75.0% |" in study_page(document, Answers())


def test_where_nothing_keeps_the_limits_the_defaults_are_shown_all_the_same() -> None:
    power = Limit(metric="gpu/power_w", bound=300.0)
    history, about = limited(TPOT, power, best=200.0)
    console, out = shown()
    print_conclusion(console, history, None, reason="the budget is spent", about=about)
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "No configuration keeps every limit so far." in rows
    assert "tpot_p99 (at most 100 ms) 320 ms, misses" in rows
    assert "power (at most 300 W) not reported" in rows


def test_limits_that_are_kept_have_their_rows() -> None:
    history, about = limited(
        Limit(metric="latency/tpot_p99", bound=400.0), Limit(metric="throughput/output", bound=100.0, at_most=False)
    )
    console, out = shown()
    print_conclusion(console, history, None, reason="the budget is spent", about=about)
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "throughput/output (at least 100 tok/s) 500 tok/s" in rows
    assert "tpot_p99 (at most 400 ms) 320 ms" in rows
    assert study_document(history, None, about)["baseline"]["feasible"] is True


def test_limits_that_nobody_keeps_say_whether_they_were_reported() -> None:
    history, about = wide_study()
    console, out = shown(120)
    print_study(console, history, None, about)
    assert "Limit: ttft_p99 at most 500 ms; no measured trial kept it" in out.getvalue()
    assert "Limit: accuracy at least 0.5; no trial reported it" in out.getvalue()


def test_figures_and_their_label_are_of_the_confirming_trials() -> None:
    history = study()
    challenger = history.trials[1].outcome.candidate
    for number, value in ((2, 600.0), (3, 700.0)):
        history.add(Trial(number=number, origin="confirm", outcome=measured(challenger, value)))
    console, out = shown()
    print_study(console, history, JUDGEMENT, {})
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "throughput/output 500 tok/s 650 tok/s +30.0%" in rows
    assert "mean over trial 0 trials 2, 3" in rows
    document = study_document(history, JUDGEMENT, {})
    assert document["winner"]["metrics"]["throughput/output"] == document["winner"]["value"] == 650.0


@pytest.mark.parametrize(
    ("kind", "says"), [("replay", "The recorded trials took"), ("external", "The trial command reports")]
)
def test_seconds_that_nobody_waited_for_are_no_share_of_the_studys_time(kind: str, says: str) -> None:
    about = {"facts": {"kind": kind}, "wall_seconds": 10.0, "search_seconds": 4.0}
    console, out = shown()
    print_study(console, study(), None, about)
    text = out.getvalue()
    assert "Time: 10.0 s in all" in text
    account = text[text.index("Time:") :].splitlines()
    assert [line.split()[-1] for line in account if line.endswith("%")] == ["40%", "60%"]
    assert f"{says}: measuring 1 min 00 s" in text


def test_excluded_trials_are_counted_and_not_listed() -> None:
    excluded = Outcome(
        candidate=Candidate(assignment={"n": 9}, arguments={}),
        status=Status.EXCLUDED,
        exclusion=Exclusion(reason="too large", rule="memory"),
    )
    console, out = shown()
    print_study(console, study(excluded), None, {})
    assert "n=9" not in out.getvalue()
    assert "Never launched, and not listed above, by rule: memory (1)" in out.getvalue()


def test_a_trial_is_asked_beside_what_runs() -> None:
    candidate = Candidate(
        assignment={"g": 1}, arguments={"compilation-config.cudagraph_mode": "FULL", "max-num-seqs": 8}
    )
    outcome = replace(
        measured(candidate, 5.0),
        server=ServerReport(
            effective={"cudagraph-mode": "PIECEWISE", "max-num-seqs": 8, "block-size": 16},
            forecast={"kv-cache-tokens": 5.0},
        ),
    )
    console, out = shown()
    print_trial(console, Trial(number=1, origin="search", outcome=outcome), Objective())
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "compilation-config.cudagraph_mode FULL PIECEWISE" in rows
    assert "block-size=16" in rows
    assert "Steps by CUDA graph mode: not counted by this server" in rows


def test_a_trial_of_a_command_has_no_reckoned_memory() -> None:
    server = ServerReport(mode="external", forecast={"kv-cache-tokens": 5.0})
    outcome = replace(measured(BASELINE, 5.0), server=server)
    console, out = shown()
    print_trial(console, Trial(number=1, origin="search", outcome=outcome), Objective())
    assert "Reckoned" not in out.getvalue()
    assert "Measured by the trial command" in out.getvalue()


def test_steps_by_graph_mode_are_shares() -> None:
    outcome = measured(BASELINE, 5.0)
    metrics = {"throughput/output": 5.0, "engine/steps_full": 0.9, "engine/steps_none": 0.1}
    outcome = replace(outcome, measurement=Measurement(metrics=metrics, objective=None))
    console, out = shown()
    print_trial(console, Trial(number=1, origin="search", outcome=outcome), Objective())
    assert "Steps by CUDA graph mode: FULL 90.0%, NONE 10.0%" in out.getvalue()


def test_a_title_is_never_folded_to_a_narrow_table() -> None:
    console, out = shown(80)
    table = new_table("Best trade-offs of objective and accuracy", ("#", "right"))
    table.add_row("1")
    console.print(table)
    assert out.getvalue().splitlines()[0] == "Best trade-offs of objective and accuracy"


def test_without_a_winner_there_is_no_empty_column() -> None:
    history = study()
    history.trials.pop()
    console, out = shown()
    print_study(console, history, None, {})
    assert "best candidate" not in out.getvalue()
    assert "change" not in out.getvalue()


# --- what the verdict stands on ---


@pytest.mark.parametrize(
    ("basis", "ours", "theirs", "confirmed", "words"),
    [
        ("rounds", 1, 1, 0, "from rounds of one server start each, not confirmed"),
        ("rounds", 1, 2, 0, "from rounds of 1 server start against 2, not confirmed"),
        ("rounds", 1, 2, 1, "from rounds of 1 server start against 2, confirmed on one fresh start only"),
        ("rounds", 2, 1, 2, "from rounds of 2 server starts against 1"),
        ("starts", 2, 3, 2, "over 2 server starts against 3"),
    ],
)
def test_the_basis_is_worded_after_the_starts(basis: str, ours: int, theirs: int, confirmed: int, words: str) -> None:
    history = study(*[measured(BASELINE, 500.0)] * (theirs - 1))
    winner = history.trials[1].outcome
    for _ in range(confirmed):
        history.add(Trial(number=len(history.trials), origin="confirm", outcome=winner))
    judgement = replace(JUDGEMENT, basis=basis, challenger_starts=ours, baseline_starts=theirs)
    assert verdict(study_document(history, judgement, {})).endswith(f"+70.0%), {words}.")


@pytest.mark.parametrize(
    ("kind", "basis", "single", "confirmed", "words"),
    [
        ("external", "rounds", True, 1, "from single values of 1 trial against 2, confirmed on one fresh trial only"),
        ("external", "rounds", False, 0, "from samples of 1 trial against 2, not confirmed"),
        ("external", "starts", False, 2, "over 1 trial against 2"),
        ("replay", "rounds", False, 1, "from draws of 1 replayed answer against 2, confirmed on one fresh answer only"),
        ("replay", "starts", False, 2, "over 1 replayed answer against 2"),
        ("vllm", "rounds", True, 0, "from single rounds of 1 server start against 2, not confirmed"),
    ],
)
def test_the_basis_is_worded_after_what_measured(
    kind: str, basis: str, single: bool, confirmed: int, words: str
) -> None:
    judgement = {"basis": basis, "challenger_starts": 1, "baseline_starts": 2, "single": single}
    assert basis_words(judgement, confirmed, kind) == words


def test_a_judgement_knows_whether_there_were_rounds() -> None:
    def judged(*samples: float) -> bool:
        history = study()
        for trial in list(history.trials):
            outcome, measurement = trial.outcome, trial.outcome.measurement
            assert measurement is not None
            estimate = replace(measurement.objective, samples=samples)  # type: ignore[type-var]
            outcome = replace(outcome, measurement=replace(measurement, objective=estimate))
            history.trials[trial.number] = replace(trial, outcome=outcome)
        judgement = history.judge(history.contenders()[0], compare)
        assert judgement is not None
        assert judgement.basis == "rounds"
        return judgement.single

    assert judged(5.0)
    assert not judged(5.0, 6.0)


def test_a_replay_says_at_its_end_that_nothing_was_started() -> None:
    console, out = shown()
    about: dict[str, Json] = {"facts": {"kind": "replay"}}
    print_conclusion(console, study(), JUDGEMENT, reason="the budget is spent", about=about)
    lines = out.getvalue().splitlines()
    assert "Replayed from a recorded table: nothing was started, nothing was measured." in lines
    assert (
        "Trial 1 beats the defaults: +60.0% (99 % interval +50.0% to +70.0%), over 2 replayed answers against 3."
        in lines
    )
    history = study()
    history.trials.pop()
    assert verdict(study_document(history, None, about)) == "Nothing replayed is better than the defaults so far."


@pytest.mark.parametrize(
    ("verdict_name", "gain", "sentence", "change"),
    [
        ("better", 0.6, "Trial 1 beats vLLM's defaults: -60.0% tpot_p50 (99 % interval -70.0% to -50.0%)", "-60.0%"),
        ("worse", -0.5, "the best other is trial 1: +50.0% tpot_p50 (99 % interval +40.0% to +60.0%)", "-60.0%"),
    ],
)
def test_what_should_be_small_has_one_sign_in_the_verdict_and_its_figures(
    verdict_name: str, gain: float, sentence: str, change: str
) -> None:
    metric = Objective(metric="latency/tpot_p50", maximize=False, unit="ms")
    history = History(objective=metric, baseline_key=BASELINE.key)
    for number, value in enumerate((10.0, 4.0)):
        candidate = BASELINE if not number else Candidate(assignment={"n": 8}, arguments={"n": 8})
        outcome = measured(candidate, value)
        history.add(Trial(number=number, origin="search" if number else "baseline", outcome=outcome))
    judgement = replace(JUDGEMENT, verdict=verdict_name, gain=gain, low=gain - 0.1, high=gain + 0.1)
    console, out = shown()
    print_conclusion(console, history, judgement, reason="the budget is spent")
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert any(sentence in row for row in rows)
    assert f"latency/tpot_p50 10 ms 4 ms {change}" in rows


@pytest.mark.parametrize("side", [0, 1])
def test_a_verdict_on_estimated_answers_says_so_and_gives_no_interval(side: int) -> None:
    history = study()
    trial = history.trials[side]
    server = ServerReport(mode="estimate")
    history.trials[side] = replace(trial, outcome=replace(trial.outcome, server=server))
    winner = history.winner()
    assert winner is not None
    judgement = history.judge(winner, compare)
    assert judgement is not None
    assert judgement.estimated
    document = study_document(history, judgement, {"facts": {"kind": "replay"}})
    assert (document["judgement"]["low"], document["judgement"]["high"]) == (None, None)
    said = summarise(history, judgement)
    assert (said["judgement"]["low"], said["judgement"]["estimated"]) == (None, True)  # type: ignore[index,call-overload]
    console, out = shown()
    print_conclusion(console, history, judgement, reason="the budget is spent")
    text = out.getvalue()
    assert "Trial 1 beats vLLM's defaults: +60.0% by the replay's estimate, not measured.\n" in text
    assert "interval" not in text
    assert f"trial {side} (estimated)" in text
    assert "Best candidate by the replay's estimate: trial 1: n=8" in text


def test_trackers_are_told_the_reports_means() -> None:
    history = study(measured(BASELINE, 504.0))
    for value in (790.0, 780.0):
        outcome = measured(history.trials[1].outcome.candidate, value)
        history.add(Trial(number=len(history.trials), origin="confirm", outcome=outcome))
    said, document = summarise(history, JUDGEMENT), study_document(history, JUDGEMENT, {})
    for side, value in (("winner", 785.0), ("baseline", 502.0)):
        assert said[side]["value"] == document[side]["value"] == value  # type: ignore[index,call-overload]
        assert said[side]["metrics"] == document[side]["metrics"] == {"throughput/output": value}  # type: ignore[index,call-overload]


@pytest.mark.parametrize("width", [80, 140])
def test_a_trial_commands_study_is_compared_with_the_defaults_below_zero_too(width: int) -> None:
    history = History(objective=Objective(metric="score", unit=""), baseline_key=BASELINE.key)
    for number, value in enumerate((-10.0, -5.0, -0.00004)):
        candidate = BASELINE if not number else Candidate(assignment={"n": number}, arguments={"n": number})
        history.add(Trial(number=number, origin="search", outcome=measured(candidate, value)))
    winner = history.winner()
    assert winner is not None
    console, out = shown(width)
    print_study(console, history, history.judge(winner, compare), {"facts": {"kind": "external"}})
    text = out.getvalue()
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "figure the defaults best candidate change" in rows or "figure the defaults winner change" in rows
    assert "score -10 -0.00004 +100.0%" in rows
    assert "vLLM's defaults" not in text


def test_a_setting_keeps_its_name_at_eighty_columns() -> None:
    name = "compilation-config.max_cudagraph_capture_size"
    candidate = Candidate(assignment={"g": 1}, arguments={name: "a-long-value-" * 6, "max-num-seqs": 8})
    outcome = replace(measured(candidate, 5.0), server=ServerReport(effective={"max-num-seqs": "another-long-" * 6}))
    console, out = shown(80)
    print_trial(console, Trial(number=1, origin="search", outcome=outcome), Objective())
    assert name in out.getvalue().split()
    assert all(len(line) <= 80 for line in out.getvalue().split("Measured")[0].splitlines())


def test_colours_do_not_break_the_trials_header_in_a_terminal() -> None:
    history, about = wide_study()
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard")
    print_study(console, history, None, about)
    lines = [Text.from_ansi(line).plain.rstrip() for line in out.getvalue().splitlines()]
    place = lines.index("Trials, and what they chose beyond vLLM's defaults")
    assert lines[place + 1].split() == ["#", "origin", "status", "tok/s", "±", "s"]
    assert lines[place + 2].split()[:3] == ["0", "search", "measured"]


def test_starts_that_begin_alike_stay_apart_in_the_table() -> None:
    """`start:report-b300…` stood there twice, for two starts."""
    assert _origins(["baseline", "start:report-b300-dspark", "search"]) == {
        "baseline": "baseline",
        "start:report-b300-dspark": "report-b300-dspark",
        "search": "search",
    }
    long = ["start:report-of-the-b300-with-eagle", "start:report-of-the-b300-with-dspark"]
    cut = _origins(long)
    assert list(cut.values()) == ["report-of…th-eagle", "report-of…h-dspark"]
    alike = ["start:report-of-the-b300-with-eagle", "start:report-of-an-h200-with-eagle", "start:search", "search"]
    assert _origins(alike) == {origin: origin for origin in alike}


def test_phases_that_a_trial_command_reports_are_its_own_figures() -> None:
    """Parts larger than the whole: "Time (0.1 s): starting servers 2 min 22 s"."""
    candidate = Candidate(assignment={"n": 8}, arguments={})
    own = replace(measured(candidate, 800.0), seconds={"total": 0.1, "start": 142.0, "measure": 32.6})
    for mode, sentence in (
        ("external", "Time (0.1 s); by the trial command's own figures: starting servers 2 min 22 s, measuring 32.6 s"),
        ("cold", "Time (0.1 s): starting servers 2 min 22 s, measuring 32.6 s"),
    ):
        console, out = shown()
        outcome = replace(own, server=ServerReport(mode=mode))
        print_trial(console, Trial(number=2, origin="search", outcome=outcome), Objective())
        assert sentence in out.getvalue()


def test_estimated_answers_are_nowhere_called_measured() -> None:
    history = study()
    for number, mode in enumerate(("replay", "estimate")):
        trial = history.trials[number]
        history.trials[number] = replace(trial, outcome=replace(trial.outcome, server=ServerReport(mode=mode)))
    winner = history.winner()
    assert winner is not None
    about: dict[str, Json] = {"name": "s", "facts": {"kind": "replay"}}
    document = study_document(history, history.judge(winner, compare), about)
    assert (document["trials"], document["bases"]) == ({"measured": 2}, {"recorded": 1, "estimated": 1})
    page = study_page(document, Answers())
    assert "nothing was measured. 1 answer estimated from the nearest recorded trials.\n" in page
    assert "| mean over | trial 0 | trial 1 (estimated) |  |" in page
    assert "| #1 | search | estimated |" in page
    console, out = shown()
    print_trial(console, history.trials[1], Objective(), about)
    assert out.getvalue().startswith("Trial 1 (search): estimated\nEstimated from the nearest trials of the table")
    console, out = shown()
    best = "Best recorded: 900 tok/s (line 3 of t.jsonl)."
    print_conclusion(console, history, None, reason="the budget is spent", about=about, recorded=best)
    assert best in out.getvalue()
    assert "1 answer estimated" in out.getvalue()
