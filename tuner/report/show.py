"""A study for people. Every text from a log or a file is printed as text, never as markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from tuner.model.choices import Choices, differing, fit, shown
from tuner.model.history import History, Judgement
from tuner.model.intervals import gain_interval, gain_words
from tuner.model.json import Json
from tuner.model.outcome import Status
from tuner.model.summary import basis_words
from tuner.model.targets import metric_unit, short_name
from tuner.model.words import defaults_name, sentences
from tuner.model.workload import Objective
from tuner.report.answers import Answers
from tuner.report.document import study_document
from tuner.report.figures import figure_rows
from tuner.report.text import counted, duration, figure, new_table, say

__all__ = [
    "PHASES",
    "counted_trials",
    "kind_words",
    "print_conclusion",
    "print_study",
    "status_words",
    "verdict",
]

PHASES = {
    "measure": "measuring",
    "start": "starting servers",
    "warmup": "warming up",
    "quality": "checking accuracy",
    "teardown": "stopping servers",
    "search": "searching",
    "tracking": "tracking",
    "trials": "trials",
    "other": "everything else",
}
_KINDS = {
    "external": "Measured by the trial command, not on a vLLM server that tune started.",
    "replay": "Replayed from a recorded table: nothing was started, nothing was measured.",
}
_WIDE = 120
"""Columns from which on a trial and what it chose share a line."""
_ORIGIN = 18
"""Characters of a trial's origin in the table."""
_LINES = 2
"""Lines that one trial's choices may take; the rest is counted (``+7 more``)."""


def print_conclusion(
    console: Console,
    history: History,
    judgement: Judgement | None,
    *,
    reason: str,
    about: Mapping[str, Json] | None = None,
    answers: Answers | None = None,
    recorded: str = "",
) -> None:
    """The end of a run in a few lines: why it ended, and the winner against the defaults.

    ``recorded`` is what a replay's table holds at best, in one sentence.
    """
    document = study_document(history, judgement, about or {})
    say(console, "")
    say(console, f"Ended: {reason}.")
    if document["kind"] == "replay":
        say(console, kind_words(document))
    say(console, verdict(document), style="bold")
    _comparison(console, document)
    if recorded:
        say(console, recorded)
    (answers or Answers()).show(console)


def print_study(
    console: Console,
    history: History,
    judgement: Judgement | None,
    about: Mapping[str, Json],
    answers: Answers | None = None,
) -> None:
    """The whole study: verdict, figures, trials, front, exclusions, failures, time."""
    document = study_document(history, judgement, about)
    where = f"{document['model']} on {document['hardware']}, workload {document['workload']}"
    say(console, f"Study {document['study']}: {where}", style="bold")
    if document["kind"] in _KINDS:
        say(console, kind_words(document))
    say(console, verdict(document), style="bold")
    _comparison(console, document)
    (answers or Answers()).show(console)
    _limits(console, document)
    _trials(console, document)
    _front(console, document)
    _troubles(console, document)
    _time(console, document)
    say(console, "One trial in full: tune report --trial N. Everything, whole: --json, or --table FILE.", style="dim")


def kind_words(document: Mapping[str, Any]) -> str:
    """What answered, where it was not a server that was started here; empty where it was."""
    estimated, kind = document["bases"].get("estimated", 0), _KINDS.get(document["kind"], "")
    near = f" {counted(estimated, 'answer')} estimated from the nearest recorded trials." if estimated else ""
    return kind + near


def verdict(document: Mapping[str, Any]) -> str:
    """The study in one sentence: the winner against the defaults."""
    name = defaults_name(document["kind"])
    winner, judgement = document["winner"], document["judgement"]
    baseline, replay = document["baseline"], document["kind"] == "replay"
    missed = baseline is not None and not baseline["feasible"]
    if winner is None and (baseline is None or missed):
        if document["trials"].get("measured", 0) > 0:
            return "No configuration keeps every limit so far."
        return "No trial was answered with a result yet." if replay else "Nothing was measured to the end yet."
    if winner is None:
        return f"Nothing {'replayed is' if replay else 'measured'} better than {name} so far."
    if judgement is None and missed:
        return f"Trial {winner['trial']} is the best so far that keeps every limit; {name} do not."
    if judgement is None:
        return f"Trial {winner['trial']} is the best so far; it was not compared with {name}."
    gain, low, high = judgement["gain"], judgement["low"], judgement["high"]
    objective = Objective(**document["objective"])
    interval = ""
    if low is not None and high is not None:
        interval = f" ({gain_interval(low, high, judgement['level'], maximize=objective.maximize)})"
    basis = f"{interval}, {basis_words(judgement, winner['confirmed'], document['kind'])}"
    # Repeats of an estimate agree with one another, whatever a real server would do.
    basis = " by the replay's estimate, not measured" if judgement["estimated"] else basis
    change = "" if gain is None else f": {gain_words(gain, objective)}{basis}"
    names = {
        "better": f"Trial {winner['trial']} beats {name}{change}.",
        "worse": f"Nothing beats {name}; the best other is trial {winner['trial']}{change}.",
    }
    return names.get(judgement["verdict"], f"No significant gain over {name} (trial {winner['trial']}{change}).")


def _comparison(console: Console, document: Mapping[str, Any]) -> None:
    baseline, winner = document["baseline"], document["winner"]
    if baseline is None and winner is None:
        return
    judgement = document["judgement"]
    proven = judgement is not None and judgement["verdict"] == "better" and not judgement["estimated"]
    column = "winner" if proven else "best candidate"
    columns = [("figure", "left"), (defaults_name(document["kind"]), "right"), (column, "right"), ("change", "right")]
    shown_columns = len(columns) if winner is not None else 2
    table = new_table("", *columns[:shown_columns])
    rows = figure_rows(document)
    rows.append(("mean over", counted_trials(baseline), counted_trials(winner), ""))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row[:shown_columns]))
    console.print(table)
    if winner is not None:
        estimated = judgement is not None and judgement["estimated"]
        doubt = " by the replay's estimate" if estimated else ", not proven better"
        title = f"Winner: trial {winner['trial']}" if proven else f"Best candidate{doubt}: trial {winner['trial']}"
        own = differing(winner["assignment"], document["defaults"])
        words = [f"{name}={shown(value)}" for name, value in own.items()]
        say(console, f"{title}: {' '.join(words) or defaults_name(document['kind'])}")


def counted_trials(contender: Mapping[str, Any] | None) -> str:
    """Which trials the figures are the mean of: the confirming ones of a winner that has any."""
    if contender is None:
        return ""
    numbers = contender["counted"]
    mark = " (estimated)" if contender["estimated"] else ""
    return f"trial{'' if len(numbers) == 1 else 's'} {', '.join(str(number) for number in numbers)}{mark}"


def _limits(console: Console, document: Mapping[str, Any]) -> None:
    winner = document["winner"]
    figures = {**winner["metrics"], **winner["accuracy"]} if winner is not None else {}
    for limit in document["limits"] or ():
        sign = "at most" if limit.get("at_most", True) else "at least"
        metric = str(limit.get("metric"))
        unit = metric_unit(metric)
        got = _nearest(document["table"], short_name(metric)) if winner is None else ""
        if winner is not None:
            name = f"trial {winner['trial']}"
            got = f"; {name} has {figure(figures[metric], unit)}" if metric in figures else f"; {name} reports none"
        say(console, f"Limit: {short_name(metric)} {sign} {figure(limit.get('bound'), unit)}{got}")


def _nearest(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    """What the trials made of a limit while no configuration keeps them all."""
    told = [(line["trial"], text) for line in lines for text in line["misses"] if text.startswith(f"{name} ")]
    kept = sum(line["status"] == Status.MEASURED.value for line in lines) - len({number for number, _ in told})
    if kept > 0:
        return f"; {counted(kept, 'measured trial')} kept it" if told else ""
    if told and all(text.endswith("not reported") for _, text in told):
        return "; no trial reported it"
    return "; no measured trial kept it" if told else ""


# --- the trials ---


def _trials(console: Console, document: Mapping[str, Any]) -> None:
    lines = [line for line in document["table"] if line["status"] != Status.EXCLUDED.value]
    if not lines:
        return
    name = defaults_name(document["kind"])
    choices = Choices(document["defaults"], _reference(document), name)
    wide = console.width >= _WIDE
    columns = [("#", "right"), ("origin", "left"), ("status", "left")]
    columns += [(document["objective"]["unit"] or "objective", "right"), ("±", "right")]
    with_accuracy = any(line["accuracy"] is not None for line in lines)
    columns += [("accuracy", "right")] if with_accuracy else []
    columns += [("s", "right")]
    asked = f"chosen beyond {name}, and what came of it"
    columns += [(asked, "left")] if wide else []
    table = new_table("Trials", *columns)
    origins = _origins([line["origin"] for line in lines])
    notes: list[list[str]] = []
    for line in lines:
        words = choices.words(line["trial"], line["assignment"])
        width = console.width - 52 if wide else console.width - 4
        notes.append([*fit(words, width, _LINES), *([line["reason"]] if line["reason"] else [])])
        cells = _cells(
            line, origins[line["origin"]], maximize=document["objective"]["maximize"], with_accuracy=with_accuracy
        )
        table.add_row(*cells, *([Text("\n".join(notes[-1]))] if wide else []))
    if wide:
        console.print(table)
    else:
        _in_turns(console, table, notes, name)


def _reference(document: Mapping[str, Any]) -> tuple[int, Mapping[str, Json]] | None:
    """The trial that others are told by: the winner; without one the measured trial that is best in the objective."""
    if document["winner"] is not None:
        return document["winner"]["trial"], document["winner"]["assignment"]
    found = [x for x in document["table"] if x["status"] == Status.MEASURED.value and x["objective"] is not None]
    if not found:
        return None
    sign = 1.0 if document["objective"]["maximize"] else -1.0
    best = max(found, key=lambda line: sign * line["objective"])
    return best["trial"], best["assignment"]


def _cells(line: Mapping[str, Any], origin: str, *, maximize: bool, with_accuracy: bool) -> list[str | Text]:
    low, high, value = line["low"], line["high"], line["objective"]
    spread = f"{(high - low) / 2 / abs(value):.1%}" if value and low is not None and high is not None else ""
    # A trial that was stopped early has a bound, not a result.
    bound = ("≤ " if maximize else "≥ ") if line["status"] == Status.BEHIND.value and value is not None else ""
    status = status_words(line)
    cells: list[str | Text] = [
        str(line["trial"]),
        Text(origin),
        Text(status, style="" if line["feasible"] else "yellow"),
        f"{bound}{figure(value)}",
        "" if bound else spread,
    ]
    if with_accuracy:
        cells.append(figure(line["accuracy"]))
    return [*cells, "" if line["seconds"] is None else f"{line['seconds']:.0f}"]


def status_words(line: Mapping[str, Any]) -> str:
    """``measured`` only where something was: a replay's answers are recorded or estimated."""
    if line["basis"] not in ("recorded", "estimated"):
        return str(line["status"])
    return line["basis"] if line["status"] == Status.MEASURED.value else f"{line['status']}, {line['basis']}"


def _in_turns(console: Console, table: Any, notes: Sequence[Sequence[str]], name: str) -> None:
    """The table's rows with each trial's choices on lines of their own below: what 80 columns can hold."""
    with console.capture() as capture:
        console.print(table)
    title, header, *rows = [line.rstrip() for line in capture.get().splitlines()]
    # In a terminal they hold colours, which must not count as characters.
    say(console, f"{Text.from_ansi(title).plain}, and what they chose beyond {name}")
    console.print(Text.from_ansi(header), no_wrap=True, overflow="crop")
    # The cells above hold no line breaks, so there is one row for each trial.
    for row, lines in zip(rows, notes, strict=False):
        console.print(Text.from_ansi(row), no_wrap=True, overflow="crop")
        for line in lines:
            console.print(Text(f"    {line}", style="dim" if console.is_terminal else ""), soft_wrap=True)


def _origins(origins: Sequence[str]) -> dict[str, str]:
    """Origin → what its cell says: a start's name alone, cut in the middle; whole where two would read alike."""
    short = {origin: _middle(origin.removeprefix("start:"), _ORIGIN) for origin in origins}
    alike = Counter(short.values())
    return {origin: cut if alike[cut] == 1 else origin for origin, cut in short.items()}


def _middle(text: str, width: int) -> str:
    """Cut in the middle: names that begin alike differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def _front(console: Console, document: Mapping[str, Any]) -> None:
    if len(document["pareto"]) < 2:
        return  # one that is best in both: nothing to trade
    table = new_table(
        "Best trade-offs of objective and accuracy", ("#", "right"), ("objective", "right"), ("accuracy", "right")
    )
    for point in document["pareto"]:
        value = figure(point["objective"], document["objective"]["unit"])
        table.add_row(str(point["trial"]), value, figure(point["accuracy"]))
    console.print(table)


def _troubles(console: Console, document: Mapping[str, Any]) -> None:
    if document["excluded"]:
        rules = ", ".join(f"{rule} ({count})" for rule, count in document["excluded"].items())
        say(console, f"Never launched, and not listed above, by rule: {rules}")
    for failure in document["failures"]:
        numbers = ", ".join(str(number) for number in failure["trials"])
        which = f"trial{'' if len(failure['trials']) == 1 else 's'} {numbers}"
        first = f"Failed ({failure['class']}; at fault: {failure['blame']}; {which}): {failure['cause']}"
        say(console, sentences(first, failure["advice"]))


def _time(console: Console, document: Mapping[str, Any]) -> None:
    account = document["time"]
    wall = account["wall_seconds"]
    if wall:
        table = new_table(
            f"Time: {duration(wall)} in all", ("went into", "left"), ("time", "right"), ("share", "right")
        )
        for phase, seconds in account["seconds"].items():
            if seconds >= 0.05:
                table.add_row(_phase(phase, document["kind"]), duration(seconds), f"{seconds / wall:.0%}")
        console.print(table)
    told = account.get("told", {})
    if told and (document["kind"] == "replay" or len(told) > 1):
        whose = "The recorded trials took" if document["kind"] == "replay" else "The trial command reports"
        rest = "; nobody waited for it" if document["kind"] == "replay" else ""
        parts = [f"{PHASES.get(name, name)} {duration(s)}" for name, s in told.items() if name != "total"]
        # A table without phases still knows how long its trials took.
        parts = parts or [duration(told["total"])]
        say(console, f"{whose}: {', '.join(parts)}{rest}.")
    elif account["start_phases"]:
        parts = [f"{name} {duration(s)}" for name, s in account["start_phases"].items() if s >= 0.05]
        say(console, f"Of the starts: {', '.join(parts)}")


def _phase(phase: str, kind: str) -> str:
    if phase == "trials" and kind == "external":
        return "the trial command"
    return "replaying, and everything else" if phase == "trials" else PHASES.get(phase, phase)
