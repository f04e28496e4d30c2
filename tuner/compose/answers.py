"""A study's answers beside its winner, read back: for the report, and the best at one load for the export."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tuner.compose.look import Study, load, say_exported
from tuner.errors import InputError, RunError
from tuner.model.intervals import gain_words
from tuner.model.json import Json
from tuner.model.judge import limits_of
from tuner.model.loads import LoadAnswer, load_answers
from tuner.model.outcome import Status
from tuner.model.projection import load_names
from tuner.model.words import defaults_of, kind_of

__all__ = ["export_load"]

_NEXT_LINE = "\n           "
"""The header's texts stand in a column of their own."""


def export_load(
    directory: Path,
    name: str | None,
    storage: str | None,
    *,
    output: Path,
    load_name: str,
    as_json: bool,
    force: bool = False,
) -> None:
    """Write the best configuration at one load point as YAML, read back by vLLM's own parser.

    Raises:
        InputError: no such study or load point, or the target cannot be written.
        RunError: nothing is proven better at this load (``force`` writes the best candidate all the same), the study
            was a replay, or vLLM's parser reads something else than what was measured.
    """
    from tuner.export import export_winner  # noqa: PLC0415
    from tuner.measuring.statistics import compare  # noqa: PLC0415
    from tuner.spaces import read_back  # noqa: PLC0415

    study = load(directory, name, storage)
    answers = load_answers(study.history, limits_of(study.about), compare)
    answer = _answer(study, answers, load_name)
    best, judgement = answer.best, answer.judgement
    if best is None:
        raise RunError(
            f"study {study.directory.name}: nothing measured better than {defaults_of(study.about)} "
            f"at load {answer.name}"
        )
    if judgement is not None and judgement.verdict != "better" and not force and kind_of(study.about) == "vllm":
        gain = gain_words(judgement.gain, study.history.objective)
        raise RunError(
            f"study {study.directory.name}: trial {best.number} looks best at load {answer.name} "
            f"({gain}), but is not proven better than {defaults_of(study.about)} "
            f"({judgement.verdict}); more trials may prove it, "
            f"--force or --trial {best.number} writes it all the same"
        )
    result = export_winner(
        best.candidate,
        about=_about_one(study, answer),
        history=answer.history,
        contender=best,
        judgement=judgement,
        output=output,
        reader=lambda path: read_back((sys.executable,), ["--config", str(path)]),
        force=force,
        purpose=_purpose(study, answers, answer),
    )
    say_exported(result, output, as_json=as_json)


def _answer(study: Study, answers: tuple[LoadAnswer, ...], wanted: str) -> LoadAnswer:
    # People also write the number alone: 8 for c8.
    for answer in answers:
        if answer.name in (wanted, f"c{wanted}"):
            return answer
    names = load_names(study.history)
    if names:
        have = f"it has {', '.join(names)}"
    elif any(t.outcome.status is Status.MEASURED for t in study.history.trials):
        have = "it measured one load point only; leave --load away"
    else:
        have = "nothing was measured in it; tune report says why"
    raise InputError(f"--load {wanted!r}: not in study {study.directory.name}; {have}")


def _about_one(study: Study, answer: LoadAnswer) -> Mapping[str, Json]:
    """The study's description with the load point in the name of its workload."""
    return {**study.about, "workload": f"{study.about.get('workload')}, load point {answer.name}"}


def _purpose(study: Study, answers: tuple[LoadAnswer, ...], answer: LoadAnswer) -> str:
    """What the file is best at, and what it is not meant for."""
    best, single = answer.best, study.history.winner()
    key = best.candidate.key if best is not None else ""
    also = [a.name for a in answers if a is not answer and a.best is not None and a.best.candidate.key == key]
    text = f"load point {answer.name}" + (f" (and {', '.join(also)})" if also else "")
    text += f", of {', '.join(a.name for a in answers)}{_NEXT_LINE}All figures below are of this load alone."
    if single is not None and single.candidate.key == key:
        return f"{text}{_NEXT_LINE}It is also the best single one over all points."
    over = f"is trial {single.number}" if single is not None else f"are {defaults_of(study.about)}"
    note = " Accuracy was not checked for it." if answer.accuracy_unchecked else ""
    return f"{text}{note}{_NEXT_LINE}The best single one over all points {over}."
