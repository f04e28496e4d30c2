"""Looking at a study that was: report, export, the MLflow UI."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.compose.options import Places
from tuner.compose.studies import count_studies, find_study, read_about
from tuner.errors import InputError, RunError
from tuner.model.history import Contender, History, Judgement, Trial
from tuner.model.intervals import gain_words
from tuner.model.json import Json
from tuner.model.outcome import Status
from tuner.model.targets import counted
from tuner.model.words import defaults_of, kind_of
from tuner.model.workload import Objective

if TYPE_CHECKING:
    from tuner.export import ExportResult

__all__ = ["Study", "export_study", "load", "open_ui", "report_study", "say_exported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study read back: what it was about, and its trials."""

    directory: Path
    about: Mapping[str, Json]
    history: History


def load(directory: Path, name: str | None, storage: str | None) -> Study:
    """Read a study back; without a name, the one that was written to last.

    Raises:
        InputError: there is none, several are meant, or its files cannot be read.
    """
    from tuner.model.records import from_record  # noqa: PLC0415
    from tuner.search import read_trials  # noqa: PLC0415

    root = directory.expanduser().absolute()
    folder = find_study(root, name)
    about = {**read_about(folder), **_account(folder)}
    url = Places.of(directory, storage or _text(about, "storage"), None).storage
    raw = about.get("objective")
    objective = Objective(**raw) if isinstance(raw, Mapping) else Objective()  # type: ignore[arg-type]
    raw = about.get("further")
    further = tuple(Objective(**x) for x in raw if isinstance(x, Mapping)) if isinstance(raw, list) else ()
    history = History(objective=objective, baseline_key=_text(about, "baseline_key") or "", further=further)
    for past in read_trials(url, _text(about, "name") or folder.name):
        if past.record:
            try:
                outcome = from_record(past.record)
            except ValueError as error:
                raise InputError(
                    f"study {folder.name}, trial {past.number}: {error}; was it written by another version?"
                ) from None
            history.add(Trial(number=past.number, origin=past.origin, outcome=outcome))
    return Study(directory=folder, about=about, history=history)


def _account(folder: Path) -> dict[str, Json]:
    """The loop's own time account; nothing where it cannot be read, it only completes a report."""
    try:
        account = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in account.items() if k.endswith("_seconds")} if isinstance(account, dict) else {}


def _text(about: Mapping[str, Json], key: str) -> str | None:
    value = about.get(key)
    return value if isinstance(value, str) else None


def report_study(
    directory: Path,
    name: str | None,
    storage: str | None,
    *,
    trial: int | None,
    table: Path | None,
    as_json: bool,
    as_markdown: bool = False,
) -> None:
    """Print a study or one trial of it; or write its trials as a table."""
    from rich.console import Console  # noqa: PLC0415

    from tuner import report  # noqa: PLC0415
    from tuner.measuring.statistics import compare  # noqa: PLC0415
    from tuner.report.text import say  # noqa: PLC0415

    study = load(directory, name, storage)
    console = Console()
    if table is not None:
        count = report.write_table(study.history, table, study.about)
        sys.stdout.write(f"{counted(count, 'trial')} written to {table}{_left_out(study.history, count)}\n")
        return
    if trial is not None:
        found = _trial(study, trial)
        document = report.trial_document(found, study.about)
        if as_json:
            sys.stdout.write(json.dumps(document, indent=1) + "\n")
        else:
            report.print_trial(console, found, study.history.objective, study.about)
        return
    winner = study.history.winner()
    judgement = study.history.judge(winner, compare) if winner else None
    answers = report.Answers.of(study.history, study.about, compare)
    if as_json:
        document = {**report.study_document(study.history, judgement, study.about), **answers.document()}
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    elif as_markdown:
        sys.stdout.write(report.study_page(report.study_document(study.history, judgement, study.about), answers))
    else:
        report.print_study(console, study.history, judgement, study.about, answers)
        others = count_studies(study.directory.parent) - 1
        if name is None and others:
            more = "1 other study" if others == 1 else f"{others} other studies"
            say(console, f"{more} in this folder: tune report --list", style="dim")


def _left_out(history: History, written: int) -> str:
    """Only what a replay estimated is left out of a table."""
    left = len(history.trials) - written
    return f"; {counted(left, 'estimated answer')} left out: never measured, so nothing to record" if left else ""


def _trial(study: Study, number: int) -> Trial:
    for trial in study.history.trials:
        if trial.number == number:
            return trial
    last = max((t.number for t in study.history.trials), default=None)
    known = "it has no trials" if last is None else f"it has trials 0 to {last}"
    raise InputError(f"--trial {number}: not in study {study.directory.name}; {known}")


def export_study(
    directory: Path,
    name: str | None,
    storage: str | None,
    *,
    output: Path,
    trial: int | None,
    as_json: bool,
    force: bool = False,
) -> None:
    """Write the winner (or one trial) as YAML, read back by vLLM's own parser.

    Without ``trial`` only a proven winner is written; ``force`` writes the best candidate all the same.

    Raises:
        InputError: no such study or trial, or the target cannot be written.
        RunError: nothing is proven better, the study was a replay, or vLLM's parser reads something else than what
            was measured.
    """
    from tuner.export import export_winner  # noqa: PLC0415
    from tuner.measuring.statistics import compare  # noqa: PLC0415
    from tuner.spaces import read_back  # noqa: PLC0415

    study = load(directory, name, storage)
    history = study.history
    chosen = _trial(study, trial) if trial is not None else None
    if chosen is not None:
        if chosen.outcome.status is not Status.MEASURED:
            raise InputError(f"--trial {trial}: was not measured ({chosen.outcome.status.value}); nothing to export")
        candidate = chosen.outcome.candidate
        contender = next((c for c in history.contenders() if c.candidate.key == candidate.key), None)
    else:
        contender = history.winner()
        if contender is None:
            raise RunError(f"study {study.directory.name}: {_why_no_winner(study)}")
        candidate = contender.candidate
    judgement = history.judge(contender, compare) if contender else None
    if chosen is None and contender is not None and not force:
        _refuse_unproven(study, contender, judgement)
    result = export_winner(
        candidate,
        about=study.about,
        history=history,
        contender=contender,
        judgement=judgement,
        output=output,
        force=force,
        reader=lambda path: read_back((sys.executable,), ["--config", str(path)]),
    )
    say_exported(result, output, as_json=as_json)


def _why_no_winner(study: Study) -> str:
    """One line: nothing was measured, or nothing was better, and which trial can be exported all the same."""
    history = study.history
    whole = [t for t in history.trials if t.outcome.status is Status.MEASURED and t.outcome.objective is not None]
    if not whole:
        failed = (
            f"none of its {counted(len(history.trials), 'trial')} ran to the end" if history.trials else "no trials"
        )
        return f"nothing was measured ({failed}), so there is nothing to export; tune report says why"
    # Against defaults that failed or miss a limit, whatever keeps the limits would be the winner.
    said = (
        f"nothing beats {defaults_of(study.about)} (so far)"
        if history.baseline()
        else "nothing measured keeps its limits (so far)"
    )
    others = [t for t in whole if t.outcome.candidate.key != history.baseline_key]
    if not others:
        return f"{said}, and nothing else was measured to its end; more trials may find something"
    feasible = history.contenders()
    sign = 1.0 if history.objective.maximize else -1.0
    number = feasible[0].number if feasible else max(others, key=lambda t: sign * (t.outcome.objective or 0.0)).number
    hint = f"give --trial N, such as {number}, to export one trial all the same"
    return f"{said}; {hint}" if kind_of(study.about) != "replay" else said


def say_exported(result: ExportResult, output: Path, *, as_json: bool) -> None:
    """What was written, and how to run it."""
    if as_json:
        found = {"yaml": str(output), "checked": result.checked, "notes": list(result.notes)}
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for note in result.notes:
        sys.stdout.write(f"{note}\n")
    sys.stdout.write(f"{output}: run it with  vllm serve --config {output}\n")


def _refuse_unproven(study: Study, contender: Contender, judgement: Judgement | None) -> None:
    """A winner must have measured better than the defaults; where those miss a limit there is nothing to compare."""
    if judgement is None or judgement.verdict == "better" or kind_of(study.about) != "vllm":
        # What was not measured on a server of our own is refused where it is written, with its own words.
        return
    gain = gain_words(judgement.gain, study.history.objective)
    raise RunError(
        f"study {study.directory.name}: trial {contender.number} is the best candidate ({gain}), but "
        f"not proven better than {defaults_of(study.about)} ({judgement.verdict}); more trials may prove it, "
        f"--force or --trial {contender.number} writes it all the same"
    )


def open_ui(directory: Path, tracking_uri: str | None, port: int) -> int:
    """Open the MLflow UI on the studies' store; returns its exit code."""
    places = Places.of(directory, None, tracking_uri)
    if tracking_uri is None and not (places.root / "mlflow.db").is_file():
        raise InputError(
            f"{places.root}: holds no MLflow store yet; run tune --hardware NAME first, or give --directory"
        )
    from tuner.tracking import open_ui as show  # noqa: PLC0415

    return show(places.tracking_uri, port=port)
