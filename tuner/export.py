"""The winner as files that a deployment runs: YAML for ``vllm serve --config`` and its environment beside it.

An export is done only when the installed vLLM's own parser has read the file and means by it, field by field, what
was measured: keys that a parser drops in silence are known (``x: false`` is one).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from tuner import __version__
from tuner.errors import InputError, RunError, TunerError
from tuner.model.candidate import Candidate
from tuner.model.files import draft_beside, target_of, write_draft
from tuner.model.history import Contender, History, Judgement, Trial
from tuner.model.intervals import gain_interval
from tuner.model.json import Json, canonical, finite
from tuner.model.judge import limits_of, misses
from tuner.model.projection import estimate_of
from tuner.model.secrets import MASK, looks_secret, mask, mask_environment
from tuner.model.serve_config import LAUNCHER_KEYS, serve_config
from tuner.model.summary import basis_words, judgement_values
from tuner.model.targets import figure, percent
from tuner.model.words import defaults_of, kind_of

__all__ = ["ExportResult", "Reader", "differences", "export_winner", "render"]

Reader = Callable[[Path], Mapping[str, Json]]
"""Reads a YAML with the parser of the vLLM that will serve: setting (``max_num_seqs``) → value."""

_MEASURED_HERE = "vllm"
_HUMAN = re.compile(r"^(\d+(?:\.\d+)?)([kKmMgGtT])$")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was written.

    Attributes:
        checked: vLLM's own parser read the file back and agreed.
        settings: the YAML's content.
        notes: what a person should know, one sentence each.
    """

    yaml: Path
    env: Path
    checked: bool
    settings: Mapping[str, Json]
    notes: tuple[str, ...] = ()


def export_winner(
    candidate: Candidate,
    *,
    about: Mapping[str, Json],
    history: History,
    contender: Contender | None,
    judgement: Judgement | None,
    output: Path,
    reader: Reader | None,
    purpose: str = "",
    force: bool = False,
) -> ExportResult:
    """Write ``output`` (``.yaml``) and, beside it, the environment as ``.env``. Both or neither appear.

    Args:
        about: the study's own description (name, model, hardware, workload, versions, facts).
        contender: what was measured of the candidate; None where one trial is exported by number.
        judgement: the candidate against vLLM's defaults, None where there is none.
        reader: the parser to check with; None leaves the file unchecked, and the result says so.
        purpose: what the configuration is best at, where that is not the study's objective as a whole.
        force: write what a trial command measured, too; the header says who measured it.

    Raises:
        InputError: the place cannot be written, or vLLM's parser refuses the file.
        RunError: nothing was measured on vLLM here (replay, external), or the parser reads something else than what
            was measured.
    """
    _refuse_a_replay(about)
    model = about.get("model")
    if not isinstance(model, str) or not model:
        raise InputError("the study does not say which model it measured; run it again with this version")
    place, env = _places(output)
    settings, notes = _settings(candidate, model)
    environment, hidden = _environment(candidate)
    notes += [f"{name} looks like a secret and is not exported: set it where you serve" for name in hidden]
    if judgement is None:
        notes.append(f"there is no comparison with {defaults_of(about)} for this configuration")
    elif judgement.verdict != "better":
        notes.append(f"against {defaults_of(about)}: {judgement.verdict}")
    facts = [f"Best at:   {purpose}"] if purpose else []
    facts += _facts(candidate, about, history, contender, judgement)
    body = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=1000)
    try:
        # vLLM reads files of this ending only, also where a link of that name leads to one of another.
        with draft_beside(place, output.suffix) as draft, draft_beside(env) as env_draft:
            write_draft(draft, body)
            facts.append(_read_back(reader, draft, settings, about, output=output, force=force))
            if reader is None:
                notes.append("the file was not read back by vLLM's parser")
            write_draft(draft, render(facts, environment, hidden, body, output))
            write_draft(env_draft, _env_text(environment, hidden, output))
            env_draft.replace(env)
            draft.replace(place)
    except OSError as error:
        raise InputError(f"cannot write to {place.parent}: {error.strerror}; choose another --output") from None
    return ExportResult(yaml=output, env=env, checked=reader is not None, settings=settings, notes=tuple(notes))


def render(facts: Sequence[str], environment: Mapping[str, str], hidden: Sequence[str], body: str, output: Path) -> str:
    """The YAML with its header. What the parser reads is ``body`` alone: the rest is comment."""
    env = output.with_suffix(".env").name
    lines = [
        f"vLLM serving configuration, found and measured by tune {__version__}.",
        f"Run it:  {_with_environment(env) if environment else ''}vllm serve --config {output.name}",
        "",
        *facts,
        "",
    ]
    if environment or hidden:
        lines += [f"Environment (also in {env}):"]
        lines += [f"  {name}={value}" for name, value in environment.items()]
        lines += [f"  {name}: secret, set it yourself" for name in hidden]
    else:
        lines += ["Environment: nothing beyond what the server has anyway."]
    comment = "".join(f"# {line}".rstrip() + "\n" for text in lines for line in mask(text).splitlines() or [""])
    return comment + body


def differences(settings: Mapping[str, Json], parsed: Mapping[str, Json]) -> list[str]:
    """Where the parser's reading departs from what the file is to say, one clause per setting."""
    found = []
    for key, value in settings.items():
        name, expected = key.replace("-", "_"), value
        if name.startswith("no_") and value is True and name not in parsed:
            name, expected = name.removeprefix("no_"), False
        if name == "model" and parsed.get("model_tag") == value:
            continue
        if name not in parsed:
            found.append(f"{key} is no setting of it")
        elif not _same(expected, parsed[name]):
            found.append(f"{key} becomes {_short(parsed[name])} instead of {_short(expected)}")
    return found


def _same(asked: Json, read: Json) -> bool:
    """Whether the parser's value is what was asked; settings that it fills in beside do not count."""
    if isinstance(asked, Mapping):
        return isinstance(read, Mapping) and all(
            key in read and _same(value, read[key]) for key, value in asked.items()
        )
    if isinstance(asked, list | tuple):
        if isinstance(read, list | tuple):
            return len(asked) == len(read) and all(_same(a, r) for a, r in zip(asked, read, strict=True))
        return len(asked) == 1 and _same(asked[0], read)
    if isinstance(asked, bool) or isinstance(read, bool) or asked is None or read is None:
        return asked is read
    if isinstance(read, list | tuple):
        return len(read) == 1 and _same(asked, read[0])
    if isinstance(read, Mapping):
        # JSON given as text (an entry of a list, or a flag with its own parser).
        return isinstance(asked, str) and _json_text_same(asked, read)
    left, right = _number(asked), _number(read)
    if left is not None and right is not None:
        return left == right
    # Enums come back by their names: "FULL" for "full", "O3" for 3.
    return str(asked).lower() in (str(read).lower(), str(read).lower().removeprefix("o"))


def _json_text_same(asked: str, read: Mapping[str, Json]) -> bool:
    try:
        value = yaml.safe_load(asked)
    except yaml.YAMLError:
        return False
    return isinstance(value, Mapping) and _same(value, read)


def _number(value: Json) -> float | None:
    """A number, also as people write it for vLLM: ``2k`` is 2000, ``2K`` is 2048 (``human_readable_int``)."""
    if isinstance(value, int | float):
        return float(value)
    text = str(value)
    human = _HUMAN.match(text)
    if human is not None:
        base = 1024 if human[2].isupper() else 1000
        return float(human[1]) * float(base ** _POWERS[human[2].lower()])
    try:
        return float(text)
    except ValueError:
        return None


# --- what goes in ---


def _refuse_a_replay(about: Mapping[str, Json]) -> None:
    if kind_of(about) not in (_MEASURED_HERE, "external"):
        raise RunError(
            f"study {_text(about, 'name')}: replays a recorded table, so there is no measured vLLM configuration "
            "to export; measure it without --replay"
        )


def _read_back(
    reader: Reader | None,
    draft: Path,
    settings: Mapping[str, Json],
    about: Mapping[str, Json],
    *,
    output: Path,
    force: bool,
) -> str:
    """What the header says of vLLM's parser, which reads the file as it was measured.

    A command may have measured vLLM or anything else: the parser tells whether its settings are vLLM's at all.
    """
    external, name = kind_of(about) == "external", _text(about, "name")
    try:
        wrong = differences(settings, reader(draft)) if reader is not None else []
    except TunerError as error:
        if not external:
            raise
        wrong = [" ".join(str(error).split())[:200]]
    if wrong and external:
        why = f" (vLLM's parser: {'; '.join(wrong)})" if force else ""
        raise RunError(
            f"study {name}: was measured by your own command (--trial-command), and its settings are none that vLLM "
            f"reads{why}: there is nothing for vllm serve to run; the winner's settings are in `tune report --json`"
        )
    if external and not force:
        raise RunError(
            f"study {name}: was measured by your own command (--trial-command), not on a vLLM server of `tune`'s own, "
            "so there is no measured vLLM configuration to export; --force exports it all the same, and the header "
            "says so; its settings are also in `tune report --json`"
        )
    if wrong:
        raise RunError(f"{output}: not written, as vLLM's parser reads it differently: {'; '.join(wrong)}")
    if reader is None:
        return "NOT read back by vLLM's parser"
    version = _text(_mapping(about, "versions"), "vllm")
    # A study that a command measured does not know its vLLM; the parser is that of the vLLM beside us.
    whose = f"vLLM {version}" if version not in ("", "unknown") else "the vLLM installed beside tune"
    return f"read back by the parser of {whose}: it means what was measured"


def _settings(candidate: Candidate, model: str) -> tuple[dict[str, Json], list[str]]:
    notes = []
    settings: dict[str, Json] = {}
    for key, value in serve_config(candidate, model).items():
        if key != "model" and looks_secret(key):
            notes.append(f"{key} looks like a secret and is not exported")
        else:
            settings[key] = value
    left_out = sorted((LAUNCHER_KEYS - {"model"}) & {name.replace("_", "-") for name in candidate.arguments})
    if left_out:
        notes.append(f"left to the deployment: {', '.join(left_out)}")
    if mask(canonical(settings)) != canonical(settings):
        raise InputError("a setting of this configuration holds a secret; keep secrets in the environment")
    return settings, notes


def _environment(candidate: Candidate) -> tuple[dict[str, str], list[str]]:
    shown = mask_environment(candidate.environment)
    hidden = [name for name, value in shown.items() if value != candidate.environment[name] or MASK in value]
    return {name: value for name, value in shown.items() if name not in hidden}, hidden


def _facts(
    candidate: Candidate,
    about: Mapping[str, Json],
    history: History,
    contender: Contender | None,
    judgement: Judgement | None,
) -> list[str]:
    """What was measured, on what, with which versions: one line each."""
    objective = history.objective
    versions = ", ".join(f"{name} {version}" for name, version in _mapping(about, "versions").items())
    device = _text(_mapping(about, "facts"), "device")
    trials = [trial for trial in history.trials if trial.outcome.candidate.key == candidate.key]
    numbers = ", ".join(str(trial.number) for trial in trials)
    lines = [
        f"Written:   {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"Study:     {_text(about, 'name')}, trial{'' if len(trials) == 1 else 's'} {numbers}",
        f"Model:     {candidate.checkpoint or _text(about, 'model')}",
        f"Hardware:  {_text(about, 'hardware')}{f' ({device})' if device else ''}",
        f"Workload:  {_text(about, 'workload')}",
        f"Versions:  {versions}",
    ]
    value = contender.value if contender is not None else trials[0].outcome.objective if trials else None
    baseline = history.baseline()
    if value is not None:
        against = f"; {defaults_of(about)}: {baseline.value:,.5g} {objective.unit}" if baseline is not None else ""
        lines.append(f"Measured:  {objective.metric} {value:,.5g} {objective.unit}{against}")
    for other in history.further:
        ours, theirs = (estimate_of(t[0].outcome, other.metric) if t else None for t in (trials, _trials_of(baseline)))
        if ours is not None:
            against = f"; {defaults_of(about)}: {theirs.value:,.5g} {other.unit}" if theirs is not None else ""
            lines.append(
                f"           {other.metric} {ours.value:,.5g} {other.unit}{against} (trial {trials[0].number})"
            )
    if judgement is not None:
        basis = basis_words(
            judgement_values(judgement) or {}, contender.confirmed if contender is not None else 0, kind_of(about)
        )
        lines.append(f"Gain:      {_gain(judgement)} ({basis}). Verdict: {judgement.verdict}.")
    lines += _reservations(about, trials, judgement)
    lines += _limits(about, trials[0].outcome.measurement.metrics if trials and trials[0].outcome.measurement else {})
    quality = next((trial.outcome.quality for trial in trials if trial.outcome.quality is not None), None)
    if quality is not None and "accuracy/score" in quality.metrics:
        error = quality.metrics.get("accuracy/score_se")
        spread = f" ± {error:.3f}" if error is not None else ""
        lines.append(f"Accuracy:  {quality.metrics['accuracy/score']:.3f}{spread}, no worse than the defaults allow")
    elif _mapping(about, "facts").get("accuracy_checked") is False:
        lines.append("Accuracy:  NOT checked in this study")
    return lines


def _trials_of(contender: Contender | None) -> Sequence[Trial]:
    return () if contender is None else contender.trials


def _reservations(about: Mapping[str, Json], trials: Sequence[Trial], judgement: Judgement | None) -> list[str]:
    """What speaks against relying on the file, one line each."""
    lines = []
    if kind_of(about) != _MEASURED_HERE:
        lines.append("Measured by a trial command, NOT by tune on a vLLM server of its own.")
    if judgement is not None and judgement.verdict != "better":
        lines.append(f"NOT PROVEN better than {defaults_of(about)}: exported on request.")
    missed = misses(trials[0].outcome, limits_of(about)) if trials else []
    if missed:
        lines.append(f"MISSES its limits: {', '.join(missed)}.")
    return lines


def _gain(judgement: Judgement) -> str:
    if not (finite(judgement.low) and finite(judgement.high)):
        return f"{percent(judgement.gain)}, no interval"
    return f"{percent(judgement.gain)}, {gain_interval(judgement.low, judgement.high, judgement.level)}"


def _limits(about: Mapping[str, Json], metrics: Mapping[str, float]) -> list[str]:
    lines = []
    limits = about.get("limits")
    for limit in limits if isinstance(limits, list | tuple) else ():
        if isinstance(limit, Mapping):
            sign = "<=" if limit.get("at_most", True) else ">="
            metric = str(limit.get("metric"))
            got = f", measured {figure(metrics[metric])}" if metric in metrics else ""
            lines.append(f"Limit:     {metric} {sign} {limit.get('bound')}{got}")
    return lines


def _mapping(about: Mapping[str, Json], key: str) -> Mapping[str, Json]:
    value = about.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(about: Mapping[str, Json], key: str) -> str:
    value = about.get(key)
    return value if isinstance(value, str) else ""


def _short(value: Json) -> str:
    text = value if isinstance(value, str) else canonical(value)
    return text if len(text) <= 80 else text[:79] + "…"


# --- files ---


def _with_environment(env: str) -> str:
    return f"set -a; . ./{shlex.quote(env)}; set +a; "


def _env_text(environment: Mapping[str, str], hidden: Sequence[str], output: Path) -> str:
    lines = [
        f"# Environment of {output.name}. In a shell: {_with_environment(output.with_suffix('.env').name).strip()}"
    ]
    lines += [f"# {name}: secret, set it yourself" for name in hidden]
    # Quoted only where a shell needs it: `docker run --env-file` takes values literally.
    lines += [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    if not environment and not hidden:
        lines.append("# nothing is needed")
    return "\n".join(lines) + "\n"


def _places(output: Path) -> tuple[Path, Path]:
    """Where the YAML and its environment really go: each beside the other by name, each through its own links."""
    place = output.expanduser()
    if place.suffix not in (".yaml", ".yml"):
        raise InputError(
            f"--output {output}: vLLM reads .yaml and .yml only; name it {place.with_suffix('.yaml').name}"
        )
    found = target_of(place, "--output"), target_of(place.with_suffix(".env"), "--output")
    for target in found:
        if not target.parent.is_dir():
            raise InputError(f"--output {output}: there is no folder {target.parent}; make it first")
    return found
