"""One trial for people: what it asked, what ran, where the time went, which warnings matter, why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from tuner.model.choices import fit, shown
from tuner.model.history import Trial
from tuner.model.json import Json, finite
from tuner.model.outcome import Outcome
from tuner.model.targets import metric_unit
from tuner.model.words import defaults_of, kind_of
from tuner.model.workload import Objective
from tuner.report.document import trial_document
from tuner.report.show import PHASES, status_words
from tuner.report.text import counted, duration, figure, new_table, say

__all__ = ["print_trial"]

_UNITS = {
    "engine/step_ms": "ms",
    "gpu/memory_gib": "GiB",
    "gpu/sm_clock_mhz": "MHz",
    "engine/acceptance_length": "tokens",
}
_GRAPHS = "engine/steps_"
_ALIASES = {
    "compilation-config.max_cudagraph_capture_size": "cudagraph-capture-max",
    "max-cudagraph-capture-size": "cudagraph-capture-max",
    "speculative-config.method": "speculative-method",
    "optimization-level": "compilation-mode",
}
"""Asked-for names whose counterpart in the server's report is spelled otherwise."""
_BASES = {
    "recorded": "Recorded in the table: nothing was started.",
    "estimated": "Estimated from the nearest trials of the table: this configuration was never measured.",
    "trial command": "Measured by the trial command, not on a vLLM server that tune started.",
}
_EXCERPT = 20


def print_trial(console: Console, trial: Trial, objective: Objective, about: Mapping[str, Json] | None = None) -> None:
    """All about one trial; ``about`` is the study's description (limits, defaults)."""
    document = trial_document(trial, about)
    outcome = trial.outcome
    say(console, f"Trial {trial.number} ({trial.origin}): {status_words(document)}", style="bold")
    if document["basis"] in _BASES:
        say(console, _BASES[document["basis"]])
    if document["reason"]:
        say(console, document["reason"], style="red" if outcome.failure else "yellow")
    _failure(console, outcome)
    _asked_and_ran(console, document, defaults_of(about or {}))
    for title, lines in (
        ("Asked for one thing, runs another", document["differences"]),
        ("Warnings that matter", document["warnings"]),
        ("Notes", outcome.measurement.notes if outcome.measurement else ()),
    ):
        if lines:
            say(console, f"\n{title}", style="bold")
            for line in lines:
                say(console, f"  - {line}")
    _measured(console, outcome, objective, kind_of(about or {}))
    _graphs(console, document, outcome)
    _time(console, document)
    if outcome.server is not None and outcome.server.log_path:
        say(console, f"\nLog: {outcome.server.log_path}", style="dim")


def _failure(console: Console, outcome: Outcome) -> None:
    failure = outcome.failure
    if failure is None:
        return
    again = "worth another try" if failure.retry else "no use to try again"
    say(console, f"Class {failure.kind}, in phase {failure.phase}; at fault: {failure.blame.value}; {again}.")
    if failure.advice:
        say(console, f"What to change: {failure.advice}")
    for line in failure.excerpt.splitlines()[:_EXCERPT]:
        say(console, f"  | {line[:300]}", style="dim")


def _asked_and_ran(console: Console, document: Mapping[str, Any], name: str) -> None:
    """What was asked beside what runs; what the server decided by itself follows as text."""
    asked, ran = document["asked"]["arguments"], dict(document["ran"])
    table = new_table("\nSettings", ("setting", "left"), ("asked", "left"), ("runs", "left"))
    for setting, value in asked.items():
        runs = _counterpart(setting, ran)
        table.add_row(Text(setting), Text(shown(value)), Text(shown(ran.pop(runs)) if runs else ""))
    for setting, value in document["asked"]["environment"].items():
        table.add_row(Text(setting), Text(value), "")
    if table.row_count:
        console.print(table)
    else:
        say(console, f"Asked for {name}.")
    if ran:
        say(console, "\nRuns besides, by the server's own decision" if asked else "\nRuns", style="bold")
        for line in fit(
            [f"{setting}={shown(value)}" for setting, value in ran.items()], max(40, console.width - 2), 100
        ):
            say(console, f"  {line}")


def _counterpart(name: str, ran: Mapping[str, Json]) -> str | None:
    """The name under which the server reports what was asked for: flags alike, dotted paths by their last part."""
    tail = name.rsplit(".", 1)[-1].replace("_", "-")
    return next((found for found in (name, _ALIASES.get(name, ""), tail) if found in ran), None)


def _measured(console: Console, outcome: Outcome, objective: Objective, kind: str) -> None:
    measurement = outcome.measurement
    if measurement is None:
        return
    estimate = measurement.objective
    say(console, "\nReplayed" if kind == "replay" else "\nMeasured", style="bold")
    if estimate is not None:
        one = {"external": "value", "replay": "draw"}.get(kind, "round")
        rounds = counted(len(estimate.samples), one)
        spread = (
            f" (95 % interval {figure(estimate.low)} to {figure(estimate.high)}, {rounds})"
            if finite(estimate.low) and finite(estimate.high)
            else f" (one {one}: no interval)"
        )
        say(console, f"  {objective.metric} {figure(estimate.value, objective.unit)}{spread}")
    if measurement.bound is not None:
        say(console, f"  ended early; at best {figure(measurement.bound, objective.unit)}")
    figures = {**measurement.metrics, **(outcome.quality.metrics if outcome.quality else {})}
    for name, value in figures.items():
        if name != objective.metric and not name.startswith(_GRAPHS):
            say(console, f"  {name} {figure(value, _UNITS.get(name) or metric_unit(name))}")


def _graphs(console: Console, document: Mapping[str, Any], outcome: Outcome) -> None:
    """Steps by CUDA graph mode, where the server was asked to count them."""
    metrics = outcome.measurement.metrics if outcome.measurement else {}
    shares = {name.removeprefix(_GRAPHS): value for name, value in metrics.items() if name.startswith(_GRAPHS)}
    if shares:
        parts = ", ".join(f"{name.upper()} {value:.1%}" for name, value in sorted(shares.items(), key=lambda x: -x[1]))
        say(console, f"\nSteps by CUDA graph mode: {parts}")
    elif (
        metrics and document["basis"] == "measured here" and document["ran"].get("cudagraph-mode") not in (None, "NONE")
    ):
        say(console, "\nSteps by CUDA graph mode: not counted by this server")


def _time(console: Console, document: Mapping[str, Any]) -> None:
    seconds = {name: value for name, value in document["seconds"].items() if name != "total"}
    total = document["seconds"].get("total")
    title = {"recorded": "Time, as recorded", "estimated": "Time, as its nearest trials had it"}.get(
        document["basis"], "Time"
    )
    if seconds or total is not None:
        parts = ", ".join(f"{PHASES.get(name, name)} {duration(value)}" for name, value in seconds.items())
        whole = "" if total is None else f" ({duration(total)})"
        # Nobody here waited for them: what a command simulates may well be longer than the time it took.
        whose = "; by the trial command's own figures" if parts and document["basis"] == "trial command" else ""
        say(console, f"\n{title}{whole}{whose}{': ' if parts else ''}{parts}")
    start = dict(document["start"])
    mode = start.pop("mode", "")
    phases = ", ".join(
        f"{name} {duration(value)}" for name, value in start.items() if name != "total" and value >= 0.05
    )
    if phases:
        say(console, f"Of the start ({mode}): {phases}")
    for name, reckoned in document["forecast"].items():
        off = "" if reckoned["error"] is None else f" ({reckoned['error']:+.1%} against what the server reports)"
        expected = reckoned["expected"]
        say(console, f"Reckoned before the launch: {name} {expected:,.{0 if expected >= 100 else 1}f}{off}")
