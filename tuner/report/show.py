"""Tables for people. Every text from a log or a file is printed as text, never as markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tuner.model.history import History, Judgement, Trial
from tuner.model.json import Json, canonical, finite
from tuner.model.outcome import Outcome
from tuner.model.workload import Objective
from tuner.report.document import study_document, trial_document

__all__ = ["print_conclusion", "print_study", "print_trial"]

_FIGURES = (
    ("throughput/output", "output throughput", "tok/s"),
    ("throughput/requests", "requests", "req/s"),
    ("throughput/goodput", "goodput", "req/s"),
    ("latency/ttft_p50", "TTFT p50", "ms"),
    ("latency/ttft_p99", "TTFT p99", "ms"),
    ("latency/tpot_p50", "TPOT p50", "ms"),
    ("latency/e2e_p99", "E2E p99", "ms"),
    ("accuracy/score", "accuracy", ""),
    ("gpu/power_w", "power", "W"),
    ("cost/joules_per_mtok", "energy", "J/Mtok"),
    ("cost/price_per_mtok", "price", "/Mtok"),
)
_PHASES = {
    "measure": "measuring",
    "start": "starting servers",
    "warmup": "warming up",
    "quality": "checking accuracy",
    "teardown": "stopping servers",
    "search": "searching",
    "tracking": "tracking",
    "other": "everything else",
}


def print_conclusion(console: Console, history: History, judgement: Judgement | None, *, reason: str) -> None:
    """The end of a run in a few lines: why it ended, and the winner against the defaults."""
    document = study_document(history, judgement, {})
    _say(console, "")
    _say(console, f"Ended: {reason}.")
    _say(console, _verdict(document), style="bold")
    _comparison(console, document)


def print_study(console: Console, history: History, judgement: Judgement | None, about: Mapping[str, Json]) -> None:
    """The whole study: verdict, figures, trials, front, exclusions, failures, time."""
    document = study_document(history, judgement, about)
    where = f"{document['model']} on {document['hardware']}, workload {document['workload']}"
    _say(console, f"Study {document['study']}: {where}", style="bold")
    if document["kind"] != "vllm":
        _say(console, f"Results are {document['kind']} results, not measured on a vLLM server of `tune`'s own.")
    _say(console, _verdict(document), style="bold")
    _comparison(console, document)
    _limits(console, document)
    _trials(console, document)
    _front(console, document)
    _troubles(console, document)
    _time(console, document)


def print_trial(console: Console, trial: Trial, objective: Objective) -> None:
    """One trial: what it asked, what ran, where the time went, which warnings matter, why it failed."""
    document = trial_document(trial)
    outcome = trial.outcome
    _say(console, f"Trial {trial.number} ({trial.origin}): {document['status']}", style="bold")
    if document["reason"]:
        _say(console, document["reason"], style="red" if outcome.failure else "yellow")
    _failure(console, outcome)
    _asked_and_ran(console, document)
    for title, lines in (
        ("Asked for one thing, runs another", document["differences"]),
        ("Warnings that matter", document["warnings"]),
        ("Notes", outcome.measurement.notes if outcome.measurement else ()),
    ):
        if lines:
            _say(console, f"\n{title}", style="bold")
            for line in lines:
                _say(console, f"  - {line}")
    _measured(console, outcome, objective)
    _trial_time(console, document)
    if outcome.server is not None and outcome.server.log_path:
        _say(console, f"\nLog: {outcome.server.log_path}", style="dim")


# --- parts of a study ---


def _verdict(document: Mapping[str, Any]) -> str:
    winner, judgement = document["winner"], document["judgement"]
    if document["baseline"] is None and winner is None:
        measured = document["trials"].get("measured", 0) > 0
        return "No configuration keeps every limit so far." if measured else "Nothing was measured to the end yet."
    if winner is None:
        return "Nothing measured better than vLLM's defaults so far."
    if judgement is None:
        return f"Trial {winner['trial']} is the best so far; it was not compared with vLLM's defaults."
    gain, low, high = judgement["gain"], judgement["low"], judgement["high"]
    interval = f" (95 % interval {low:+.1%} to {high:+.1%})" if low is not None and high is not None else ""
    basis = (
        f"over {judgement['challenger_starts']} and {judgement['baseline_starts']} server starts"
        if judgement["basis"] == "starts"
        else "from rounds of one server start each, not confirmed"
    )
    change = "" if gain is None else f": {gain:+.1%}{interval}, {basis}"
    names = {
        "better": f"Trial {winner['trial']} beats vLLM's defaults{change}.",
        "worse": f"Nothing beats vLLM's defaults; the best other is trial {winner['trial']}{change}.",
    }
    return names.get(
        judgement["verdict"], f"No significant gain over vLLM's defaults (trial {winner['trial']}{change})."
    )


def _comparison(console: Console, document: Mapping[str, Any]) -> None:
    baseline, winner = document["baseline"], document["winner"]
    if baseline is None and winner is None:
        return
    before, after = _figures(baseline), _figures(winner)
    table = _table("", ("figure", "left"), ("vLLM's defaults", "right"), ("winner", "right"), ("change", "right"))
    objective = document["objective"]
    if baseline is not None or winner is not None:
        table.add_row(
            Text(f"{objective['metric']} (mean of its trials)"),
            *_pair(baseline and baseline["value"], winner and winner["value"], objective["unit"]),
        )
    for metric, label, unit in _FIGURES:
        if metric in (before | after) and metric != objective["metric"]:
            table.add_row(Text(label), *_pair(before.get(metric), after.get(metric), unit))
    console.print(table)
    if winner is not None:
        proven = document["judgement"] is not None and document["judgement"]["verdict"] == "better"
        title = "Winner" if proven else "Best candidate, not proven better"
        _say(console, f"{title}: {_choices(winner['assignment'])}")


def _figures(contender: Mapping[str, Any] | None) -> dict[str, float]:
    return {} if contender is None else {**contender["metrics"], **contender["accuracy"]}


def _pair(before: float | None, after: float | None, unit: str) -> tuple[str, str, str]:
    change = f"{after / before - 1:+.1%}" if before and after is not None else ""
    return _figure(before, unit), _figure(after, unit), change


def _limits(console: Console, document: Mapping[str, Any]) -> None:
    winner = _figures(document["winner"])
    for limit in document["limits"] or ():
        sign = "at most" if limit.get("at_most", True) else "at least"
        metric = str(limit.get("metric"))
        got = f"; the winner has {_figure(winner[metric], '')}" if metric in winner else ""
        _say(console, f"Limit: {metric} {sign} {limit.get('bound')}{got}")


def _trials(console: Console, document: Mapping[str, Any]) -> None:
    unit = document["objective"]["unit"]
    table = _table(
        "Trials",
        ("#", "right"),
        ("origin", "left"),
        ("status", "left"),
        (unit or "objective", "right"),
        ("±", "right"),
        ("accuracy", "right"),
        ("s", "right"),
        ("asked, and what came of it", "left"),
    )
    for line in document["table"]:
        low, high, value = line["low"], line["high"], line["objective"]
        spread = f"{(high - low) / 2 / abs(value):.1%}" if value and low is not None and high is not None else ""
        asked = _choices(line["assignment"])
        table.add_row(
            str(line["trial"]),
            Text(line["origin"]),
            Text(line["status"], style="" if line["feasible"] else "yellow"),
            _figure(value, ""),
            spread,
            _figure(line["accuracy"], ""),
            "" if line["seconds"] is None else f"{line['seconds']:.0f}",
            Text(f"{asked}: {line['reason']}" if line["reason"] else asked),
        )
    console.print(table)


def _front(console: Console, document: Mapping[str, Any]) -> None:
    if not document["pareto"]:
        return
    table = _table(
        "Best trade-offs of objective and accuracy", ("#", "right"), ("objective", "right"), ("accuracy", "right")
    )
    for point in document["pareto"]:
        table.add_row(str(point["trial"]), _figure(point["objective"], ""), _figure(point["accuracy"], ""))
    console.print(table)


def _troubles(console: Console, document: Mapping[str, Any]) -> None:
    if document["excluded"]:
        rules = ", ".join(f"{rule} ({count})" for rule, count in document["excluded"].items())
        _say(console, f"Never launched, by rule: {rules}")
    for failure in document["failures"]:
        numbers = ", ".join(str(number) for number in failure["trials"])
        advice = f" {failure['advice']}" if failure["advice"] else ""
        _say(console, f"Failed ({failure['class']}, {failure['blame']}; trials {numbers}): {failure['cause']}.{advice}")


def _time(console: Console, document: Mapping[str, Any]) -> None:
    account = document["time"]
    wall = account["wall_seconds"]
    if not wall:
        return
    table = _table(f"Time: {_duration(wall)} in all", ("went into", "left"), ("time", "right"), ("share", "right"))
    for phase, seconds in account["seconds"].items():
        if seconds >= 0.05:
            table.add_row(_PHASES.get(phase, phase), _duration(seconds), f"{seconds / wall:.0%}")
    console.print(table)
    if account["start_phases"]:
        parts = ", ".join(f"{name} {_duration(s)}" for name, s in account["start_phases"].items() if s >= 0.05)
        _say(console, f"Of the starts: {parts}")


# --- parts of a trial ---


def _failure(console: Console, outcome: Outcome) -> None:
    failure = outcome.failure
    if failure is None:
        return
    again = "worth another try" if failure.retry else "no use to try again"
    _say(console, f"Class {failure.kind}, in phase {failure.phase}; at fault: {failure.blame.value}; {again}.")
    if failure.advice:
        _say(console, f"What to change: {failure.advice}")
    for line in failure.excerpt.splitlines()[:20]:
        _say(console, f"  | {line[:300]}", style="dim")


def _asked_and_ran(console: Console, document: Mapping[str, Any]) -> None:
    asked, ran = document["asked"]["arguments"], document["ran"]
    table = _table("", ("setting", "left"), ("asked", "left"), ("runs", "left"))
    for name in dict.fromkeys([*asked, *ran]):
        table.add_row(
            Text(name),
            Text(_shown(asked[name]) if name in asked else "(default)"),
            Text(_shown(ran[name]) if name in ran else ""),
        )
    for name, value in document["asked"]["environment"].items():
        table.add_row(Text(name), Text(value), "")
    if table.row_count:
        console.print(table)
    else:
        _say(console, "Asked for vLLM's defaults.")


def _measured(console: Console, outcome: Outcome, objective: Objective) -> None:
    measurement = outcome.measurement
    if measurement is None:
        return
    estimate = measurement.objective
    _say(console, "\nMeasured", style="bold")
    if estimate is not None:
        spread = (
            f" (95 % interval {_figure(estimate.low, '')} to {_figure(estimate.high, '')}, "
            f"{len(estimate.samples)} rounds)"
            if finite(estimate.low) and finite(estimate.high)
            else " (one round: no interval)"
        )
        _say(console, f"  {objective.metric} {_figure(estimate.value, objective.unit)}{spread}")
    if measurement.bound is not None:
        _say(console, f"  ended early; at best {_figure(measurement.bound, objective.unit)}")
    figures = {**measurement.metrics, **(outcome.quality.metrics if outcome.quality else {})}
    for name, value in figures.items():
        if name != objective.metric:
            _say(console, f"  {name} {_figure(value, '')}")


def _trial_time(console: Console, document: Mapping[str, Any]) -> None:
    seconds = {name: value for name, value in document["seconds"].items() if name != "total"}
    if seconds:
        total = document["seconds"].get("total")
        parts = ", ".join(f"{_PHASES.get(name, name)} {_duration(value)}" for name, value in seconds.items())
        _say(console, f"\nTime{'' if total is None else f' ({_duration(total)})'}: {parts}")
    start = dict(document["start"])
    mode = start.pop("mode", "")
    phases = ", ".join(
        f"{name} {_duration(value)}" for name, value in start.items() if name != "total" and value >= 0.05
    )
    if phases:
        _say(console, f"Of the start ({mode}): {phases}")
    for name, reckoned in document["forecast"].items():
        off = "" if reckoned["error"] is None else f" ({reckoned['error']:+.1%})"
        _say(console, f"Reckoned before the launch: {name} {reckoned['expected']:,.0f}{off}")


# --- small things ---


def _table(title: str, *columns: tuple[str, str]) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="dim")
    for name, justify in columns:
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    return table


def _say(console: Console, text: str, *, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


def _figure(value: float | None, unit: str) -> str:
    if value is None or not finite(value):
        return ""
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".rstrip()


def _choices(assignment: Mapping[str, Json]) -> str:
    return " ".join(f"{name}={_shown(value)}" for name, value in assignment.items()) or "vLLM's defaults"


def _shown(value: Json) -> str:
    return value if isinstance(value, str) else canonical(value) if _plain(value) else str(value)


def _plain(value: Json) -> bool:
    return not isinstance(value, float) or finite(value)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
