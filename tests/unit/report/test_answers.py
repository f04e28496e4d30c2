"""The report's part for several load points and several objectives."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from tuner.measuring.statistics import compare
from tuner.model.candidate import Candidate
from tuner.model.history import History, Trial
from tuner.model.intervals import mean_estimate
from tuner.model.measurement import Measurement, PointResult
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Objective
from tuner.report import Answers, print_conclusion, study_document, study_page

BASELINE = Candidate(assignment={}, arguments={}, origin="baseline")
FAST = Candidate(assignment={"seqs": 512, "note": "[red]"}, arguments={"max-num-seqs": 512})
LATENCY = Objective(metric="latency/ttft_p99", maximize=False, unit="ms")


def study(*, points: bool = True, further: tuple[Objective, ...] = ()) -> History:
    history = History(objective=Objective(), baseline_key=BASELINE.key, further=further)
    for number, (who, factor) in enumerate(((BASELINE, 1.0), (FAST, 1.5))):
        found = []
        for name, value in (("c1", 50.0), ("c8", 200.0)) if points else (("all", 100.0),):
            samples = [value * factor * noise for noise in (0.998, 1.0, 1.002)]
            estimates = {"throughput/output": mean_estimate(samples)}
            found.append(
                PointResult(
                    name=name,
                    metrics={"throughput/output": value * factor, "latency/ttft_p99": 10 * factor},
                    estimates=estimates,
                    rounds=3,
                )
            )
        metrics = {"throughput/output": 125.0 * factor, "latency/ttft_p99": 10 * factor}
        outcome = Outcome(
            candidate=who,
            status=Status.MEASURED,
            objective=125.0 * factor,
            measurement=Measurement(metrics=metrics, objective=mean_estimate([125 * factor] * 3), points=tuple(found)),
        )
        history.add(Trial(number=number, origin="baseline" if number == 0 else "search", outcome=outcome))
    return history


def printed(history: History, about: dict[str, Any] | None = None) -> str:
    out = io.StringIO()
    answers = Answers.of(history, about or {}, compare)
    print_conclusion(Console(file=out, width=120), history, None, reason="done", answers=answers)
    return out.getvalue()


def test_the_end_of_a_run_says_what_is_best_at_each_load() -> None:
    text = printed(study())
    assert "Best at each load" in text
    assert "+50.0%" in text
    assert "c1, c8: trial 1 (not confirmed): seqs=512 note=[red]" in text, "text of a file is no markup"
    assert "tune export --load c1" in text


def test_choices_that_are_vllms_own_are_left_away() -> None:
    assert "c1, c8: trial 1 (not confirmed): seqs=512\n" in printed(study(), {"defaults": {"note": "[red]"}})


def test_several_objectives_show_their_front() -> None:
    text = printed(study(points=False, further=(LATENCY,)))
    assert "Pareto front of throughput, ttft_p99" in text
    assert "vLLM's defaults are on the front" in text
    assert "tune export --trial N" in text


def test_limits_of_the_study_count_at_each_load() -> None:
    limits = {"limits": [{"metric": "latency/ttft_p99", "bound": 12, "at_most": True}]}
    answers = Answers.of(study(), limits, compare)
    assert [entry["best"] for entry in answers.document()["loads"]] == [None, None]


def test_one_load_and_one_objective_say_nothing_more() -> None:
    answers = Answers.of(study(points=False), {}, compare)
    assert answers.document() == {}
    assert answers.markdown() == ""
    assert "each load" not in printed(study(points=False))


def test_the_same_as_markdown() -> None:
    text = Answers.of(study(further=(LATENCY,)), {}, compare).markdown()
    assert text.startswith("### Best at each load\n\n| load | defaults (tok/s) |")
    assert "- c1, c8: trial 1 (not confirmed): " in text
    assert "### Pareto front of throughput, ttft_p99" in text


def test_the_study_as_a_page() -> None:
    history = study(further=(LATENCY,))
    winner = history.winner()
    assert winner is not None
    about: dict[str, Any] = {
        "name": "s", "model": "m", "hardware": "cpu", "workload": "w", "facts": {"kind": "external"},
        "limits": [{"metric": "latency/ttft_p99", "bound": 500, "at_most": True}],
    }  # fmt: skip
    document = study_document(history, history.judge(winner, compare), about)
    page = study_page(document, Answers.of(history, about, compare))
    assert page.startswith("## Study s: m on cpu, workload w\n\nMeasured by the trial command")
    assert "\n**Trial 1 beats the defaults: +50.0%" in page
    assert "| throughput/output | 125 tok/s | 187.5 tok/s | +50.0% |" in page
    assert "- Limit: ttft_p99 at most 500 ms" in page
    assert "| #1 | search | measured | 187.5 ±0.0% |  | seqs=512 note=[red] |" in page
    for title in ("### Best at each load", "### Pareto front", "### Trials"):
        assert page.count(title) == 1


def test_a_page_of_nothing_is_a_page() -> None:
    empty = History(objective=Objective(), baseline_key="x")
    page = study_page(study_document(empty, None, {"name": "s"}), Answers())
    assert "Nothing was measured to the end yet." in page
