"""What needs no server: the plan of a study, dry runs, listing and checking spaces."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tuner.compose.echo import about_lines, about_values, check_inputs, doubts
from tuner.compose.options import Options, check_file_exists, split_command
from tuner.errors import InputError
from tuner.model.candidate import Candidate, Exclusion, render_flags
from tuner.model.json import Scalar
from tuner.model.secrets import mask, mask_environment
from tuner.model.serve_config import serve_command

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.model.hardware import Hardware
    from tuner.serving.replay import ReplayRunner
    from tuner.spaces import Plan, VllmFlags

__all__ = [
    "Prepared",
    "cannot_start",
    "check_file",
    "command_of",
    "dry_run",
    "list_spaces",
    "make_plan",
    "recognised",
    "show_space",
]

_DRY_CANDIDATES = 5
_DRY_ASKED = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan and what it was made with.

    Attributes:
        flags: of the vLLM that will serve, or recorded ones; None where nobody can tell.
        devices: indices of the GPUs that the study takes; empty on a CPU.
    """

    plan: Plan
    flags: VllmFlags | None
    devices: tuple[int, ...]


def make_plan(options: Options, *, need_machine: bool) -> Prepared:
    """The study's plan: space, workload, planner.

    Raises:
        InputError: unknown names, a space that cannot be used, a machine that is not what the profile needs, no
            vLLM here although one must serve, or flags that this vLLM does not have.
    """
    from tuner import spaces  # noqa: PLC0415
    from tuner.spaces.detect import detect, devices  # noqa: PLC0415

    options.validate()
    here = detect()
    hardware = recognised(options).hardware
    local = need_machine and not (options.vllm_command or options.trial_command or options.replay)
    if local:
        _on_this_machine(hardware, here)
    flags = _flags(options, needed=local)
    _need_values(options, flags or spaces.VllmFlags.known())
    plan = spaces.open_plan(
        hardware,
        model=_model(options.model),
        workload=options.workload,
        space_files=options.spaces,
        local_hardware=here if local else None,
        flags=flags,
        arguments=options.extra_arguments,
        environment=options.extra_environment,
        external=options.trial_command is not None or options.replay is not None,
    )
    plan = replace(plan, notes=(*plan.notes, *doubts(options, plan.hardware)))
    taken = devices(plan.hardware.count) if plan.hardware.platform != "cpu" and need_machine else ()
    return Prepared(plan=plan, flags=flags, devices=taken)


def recognised(options: Options) -> Options:
    """The options with the name of this machine's profile for ``auto``: from there on both are one study.

    Raises:
        InputError: no profile is about this machine.
    """
    if options.hardware != "auto":
        return options
    from tuner import spaces  # noqa: PLC0415
    from tuner.spaces.detect import detect, recognise  # noqa: PLC0415

    return replace(options, hardware=recognise([(row.hardware, row.recognise) for row in spaces.profiles()], detect()))


def _need_values(options: Options, flags: VllmFlags) -> None:
    """``--arg NAME`` alone is for switches; another flag without its value is a slip, and said so here."""
    for text in options.arguments:
        name = text.strip().lstrip("-")
        flag = flags.flags.get(name)
        if flag is not None and flag.kind not in ("bool", "switch", "any"):
            some = f" ({', '.join(map(str, flag.choices[:6]))} …)" if flag.choices else ""
            raise InputError(f"--arg {name}: needs a value, write --arg {name}=VALUE{some}")


def _on_this_machine(profile: str, here: Hardware | None) -> None:
    from tuner import spaces  # noqa: PLC0415
    from tuner.spaces.detect import matches  # noqa: PLC0415

    wanted = next((row.hardware for row in spaces.profiles() if row.name == profile), None)
    mismatch = matches(wanted, here) if wanted is not None else None
    if mismatch is not None:
        raise InputError(
            f"--hardware {profile}: {mismatch}; plan with --dry-run, or serve elsewhere with --vllm-command"
        )


def _model(name: str | None) -> str | None:
    """A model as typed, a folder made absolute; what looks like a path must be one."""
    if name is None:
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if name.startswith((".", "/", "~")):
        raise InputError(
            f"--model {name}: no such folder; give a folder with config.json, or a hub id such as ORG/NAME"
        )
    return name


def _flags(options: Options, *, needed: bool) -> VllmFlags | None:
    """The flags of the vLLM that will serve; recorded ones where none is needed or none can be asked."""
    from tuner.spaces import VllmFlags  # noqa: PLC0415

    if options.trial_command or options.replay or options.vllm_command:
        return None
    try:
        return VllmFlags.from_python((sys.executable,))
    except InputError:
        if needed:
            raise
        return VllmFlags.known()


def cannot_start(options: Options, plan: Plan, found: Exclusion, what: str) -> InputError:
    """The error for a baseline that is never launched, with the rule's place and a way out."""
    from tuner.spaces.blocked import refused  # noqa: PLC0415

    return refused(plan, found, f"{what} start on {plan.hardware.name}", model_given=options.model is not None)


def command_of(candidate: Candidate, model: str) -> str:
    """The complete command as a person would type it, environment in front, secrets masked."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in mask_environment(candidate.environment).items()]
    return " ".join([*environment, mask(serve_command(candidate, model))])


def _flags_of(candidate: Candidate) -> str:
    """What a trial command gets of a candidate, as it would be typed: no ``vllm serve``, the program knows its own."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in mask_environment(candidate.environment).items()]
    model = f"  # model: {candidate.checkpoint}" if candidate.checkpoint else ""
    return (" ".join([*environment, mask(shlex.join(render_flags(candidate)))]) + model).strip()


def dry_run(options: Options) -> None:
    """Print the baseline and the first candidates as complete commands, and why others were excluded.

    Where a trial command measures, the flags that it gets stand in place of commands; where a table answers, the
    flags that it is asked for, and where the answer comes from.
    """
    plan = make_plan(options, need_machine=False).plan
    check_inputs(options, plan)
    planner = plan.planner
    baseline = planner.baseline()
    blocked = planner.exclusion(baseline)
    survey = planner.survey(_DRY_ASKED, options.seed)
    starts = [(candidate, planner.exclusion(candidate)) for candidate in planner.starts()]
    fit = [candidate for candidate, reason in starts if reason is None] + list(survey.feasible[:_DRY_CANDIDATES])
    if not fit and blocked is not None:
        raise cannot_start(options, plan, blocked, "nothing in this space can")
    rows = [(baseline, blocked), *starts, *((candidate, None) for candidate in survey.feasible[:_DRY_CANDIDATES])]
    excluded = {rule: _Excluded(count, reason) for rule, (count, reason) in survey.excluded.items()}
    replay = None
    if options.replay is not None:
        from tuner.compose.replaying import replay_runner  # noqa: PLC0415

        replay = replay_runner(options, plan)
    dry = _Dry(
        options=options,
        plan=plan,
        replay=replay,
        rows=[_described(candidate, plan.model.name, reason, options, replay) for candidate, reason in rows],
        sampled=survey.sampled,
        feasible=round(survey.sampled * survey.share),
        excluded=excluded,
    )
    if options.as_json:
        sys.stdout.write(json.dumps(dry.document(), indent=1) + "\n")
    else:
        dry.print(_console())


@dataclass(frozen=True, slots=True)
class _Excluded:
    count: int
    reason: str


class _Row(NamedTuple):
    origin: str
    assignment: Mapping[str, Scalar]
    command: str
    blocked: str | None
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dry:
    options: Options
    plan: Plan
    replay: ReplayRunner | None
    rows: Sequence[_Row]
    sampled: int
    feasible: int
    excluded: Mapping[str, _Excluded]

    @property
    def _starts(self) -> bool:
        """Servers are what a study would start."""
        return self.options.trial_command is None and self.replay is None

    def document(self) -> dict[str, object]:
        rows = [{**row._asdict(), "assignment": dict(row.assignment)} for row in self.rows]
        if self.replay is None:
            for row in rows:
                del row["answer"]
        replay = {} if self.replay is None else {"replay": self._replay(self.replay)}
        return {
            "hardware": self.plan.hardware.name,
            "model": self.plan.model.name,
            "workload": self.plan.workload.name,
            **about_values(self.options, self.plan.workload),
            **replay,
            "baseline": rows[0],
            "candidates": rows[1:],
            "sampled": self.sampled,
            "feasible": self.feasible,
            "excluded": {rule: asdict(entry) for rule, entry in self.excluded.items()},
            "notes": self._notes(),
        }

    def _replay(self, replay: ReplayRunner) -> dict[str, object]:
        return {"file": str(self.options.replay), "rows": replay.rows, "failed": replay.failed}

    def _notes(self) -> list[str]:
        return [*self.plan.notes, *(() if self.replay is None else self.replay.notes)]

    def print(self, console: Console) -> None:
        plan = self.plan
        console.print(f"[bold]{plan.model.name}[/] on [bold]{plan.hardware.name}[/], workload {plan.workload.name}")
        for line in about_lines(self.options, plan.workload):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        external = self.options.trial_command is not None
        if self.replay is not None:
            from tuner.compose.replaying import answers_line  # noqa: PLC0415

            said = f"replay: {answers_line(self.options, self.replay)}"
            console.print(said, highlight=False, soft_wrap=True, markup=False)
        if external:
            console.print("the trial command gets these flags (candidate.flags), one candidate a call", highlight=False)
        for row in self.rows:
            console.print(f"\n[bold]# {row.origin}[/]", highlight=False)
            if row.blocked:
                said = "cannot start" if self._starts else "never asked for" if self.replay else "never measured"
                console.print(f"[red]# {said}: {row.blocked}[/]", highlight=False, soft_wrap=True)
            console.print(
                row.command or "(no flags: the program's own defaults)", soft_wrap=True, highlight=False, markup=False
            )
            if row.answer and not row.blocked:
                console.print(f"# {row.answer}", soft_wrap=True, highlight=False, markup=False)
        able = "can start" if self._starts else "may be asked for" if self.replay else "may be measured"
        console.print(f"\n{self.feasible} of {self.sampled} sampled candidates {able}", highlight=False)
        for rule, entry in self.excluded.items():
            console.print(f"{entry.count:>5} × {rule}: {entry.reason}", highlight=False, soft_wrap=True, markup=False)
        for note in self._notes():
            console.print(f"· {note}", style="cyan", highlight=False, soft_wrap=True, markup=False)


def _described(
    candidate: Candidate, model: str, blocked: Exclusion | None, options: Options, replay: ReplayRunner | None
) -> _Row:
    elsewhere = options.trial_command is not None or replay is not None
    return _Row(
        candidate.origin,
        dict(candidate.assignment),
        _flags_of(candidate) if elsewhere else command_of(candidate, model),
        None if blocked is None else blocked.reason,
        None if replay is None else replay.basis(candidate),
    )


def list_spaces(*, as_json: bool) -> None:
    """Table of hardware profiles, with overlays and workloads below."""
    from rich.table import Table  # noqa: PLC0415

    from tuner import spaces  # noqa: PLC0415

    rows = spaces.profiles()
    if as_json:
        document = [
            {"name": r.name, "device": r.device, "count": r.count, "model": r.model, "workload": r.workload}
            for r in rows
        ]
        sys.stdout.write(json.dumps({"profiles": document, "workloads": spaces.workloads()}, indent=1) + "\n")
        return
    table = Table(box=None, header_style="bold")
    for title in ("profile", "hardware", "default model", "workload"):
        # Names are typed again as they stand here: the hardware's own gives way in a narrow terminal.
        table.add_column(title, no_wrap=title != "hardware", overflow="fold")
    for row in rows:
        table.add_row(row.name, f"{row.count} × {row.device}", row.model, row.workload)
    console = _console()
    console.print(table)
    console.print(f"\nworkloads: {', '.join(spaces.workloads())}", highlight=False)


def show_space(name: str, model: str | None, workload: str | None, *, as_json: bool) -> None:
    """Parameters, rules with reasons, starting points of one profile."""
    from tuner import spaces  # noqa: PLC0415

    profile = recognised(Options(hardware=name)).hardware
    plan = spaces.open_plan(profile, model=_model(model), workload=workload, flags=None)
    document = spaces.describe(plan)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        spaces.print_plan(plan, _console())


def check_file(
    file: Path, hardware: str | None, model: str | None, *, trial_command: str | None = None, as_json: bool
) -> int:
    """Check a space file; exit code 0 if it can be used, 2 if not.

    With a trial command flags are left unchecked, as in a study of that command.
    """
    from tuner import spaces  # noqa: PLC0415

    check_file_exists(file)
    if trial_command is not None:
        split_command("--trial-command", trial_command)
    hardware = None if hardware is None else recognised(Options(hardware=hardware)).hardware
    flags = _flags(Options(hardware=hardware or "cpu", trial_command=trial_command), needed=False)
    found = spaces.check_space(
        file, hardware=hardware, model=_model(model), flags=flags, external=trial_command is not None
    )
    if as_json:
        sys.stdout.write(json.dumps(found.document(), indent=1) + "\n")
    else:
        found.print(_console())
    return 0 if found.ok else 2


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415

    return Console()
