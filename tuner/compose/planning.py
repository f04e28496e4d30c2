"""What needs no server: the plan of a study, dry runs, listing and checking spaces."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.compose.options import Options, split_command
from tuner.errors import InputError
from tuner.model.candidate import Candidate, render_flags
from tuner.model.json import Json
from tuner.model.secrets import mask, mask_environment

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.spaces import Plan, VllmFlags

__all__ = ["check_file", "command_of", "dry_run", "list_spaces", "make_plan", "show_space"]

_DRY_CANDIDATES = 5
_DRY_ASKED = 400


def make_plan(options: Options, *, need_machine: bool) -> Plan:
    """The study's plan: space, workload, planner.

    Raises:
        InputError: unknown names, a space that cannot be used, a machine that is not what the profile needs, no
            vLLM here although one must serve, or flags that this vLLM does not have.
    """
    from tuner import spaces  # noqa: PLC0415

    options.validate()
    here = spaces.detect()
    hardware = options.hardware
    if hardware == "auto":
        found = spaces.recognise(here)
        if found is None:
            what = here.device if here else "no accelerator that tune knows"
            raise InputError(f"--hardware auto: this machine has {what}; name a profile (see tune spaces)")
        hardware = found
    elsewhere = options.vllm_command or options.trial_command or options.replay
    local = need_machine and not elsewhere
    flags = _flags(options, needed=local)
    plan = spaces.open_plan(
        hardware,
        model=_model(options.model),
        workload=options.workload,
        space_files=options.spaces,
        local_hardware=here if local else None,
        flags=flags,
        arguments=options.extra_arguments,
        environment=options.extra_environment,
    )
    if local:
        mismatch = spaces.matches(plan.hardware, here)
        if mismatch is not None:
            raise InputError(
                f"--hardware {hardware}: {mismatch}; plan with --dry-run, or serve elsewhere with --vllm-command"
            )
    return plan


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

    if options.trial_command is not None or options.replay is not None:
        return None
    if options.vllm_command is not None:
        return VllmFlags.from_command(split_command("--vllm-command", options.vllm_command))
    try:
        return VllmFlags.from_python((sys.executable,))
    except InputError:
        if needed:
            raise
        return VllmFlags.recorded()


def command_of(candidate: Candidate, model: str) -> str:
    """The complete command as a person would type it, environment in front, secrets masked."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in mask_environment(candidate.environment).items()]
    return (
        mask(shlex.join(["vllm", "serve", model, *render_flags(candidate)]))
        if not environment
        else " ".join([*environment, mask(shlex.join(["vllm", "serve", model, *render_flags(candidate)]))])
    )


def dry_run(options: Options) -> None:
    """Print the baseline and the first candidates as complete commands, and why others were excluded."""
    plan = make_plan(options, need_machine=False)
    planner = plan.planner
    baseline = planner.baseline()
    blocked = planner.exclusion(baseline)
    candidates, excluded = [], {}
    for candidate in planner.starts():
        reason = planner.exclusion(candidate)
        if reason is None:
            candidates.append(candidate)
        else:
            excluded[reason.rule] = (excluded.get(reason.rule, (0, ""))[0] + 1, reason.reason)
    survey = planner.survey(_DRY_ASKED, options.seed)
    for rule, (count, reason_text) in survey.excluded.items():
        excluded[rule] = (
            excluded.get(rule, (0, ""))[0] + count,
            excluded.get(rule, (0, reason_text))[1] or reason_text,
        )
    candidates += survey.feasible[:_DRY_CANDIDATES]
    if not candidates and blocked is not None:
        raise InputError(f"nothing in this space can start on {plan.hardware.name}: {blocked.reason}")
    document: dict[str, Json] = {
        "hardware": plan.hardware.name,
        "model": plan.model.name,
        "workload": plan.workload.name,
        "baseline": _described(baseline, plan.model.name, blocked.reason if blocked else None),
        "candidates": [_described(c, plan.model.name, None) for c in candidates],
        "sampled": survey.sampled,
        "feasible": survey.sampled - sum(count for count, _ in survey.excluded.values()),
        "excluded": {rule: {"count": count, "reason": reason} for rule, (count, reason) in excluded.items()},
        "notes": list(plan.notes),
    }
    if options.as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        _print_dry(document)


def _described(candidate: Candidate, model: str, blocked: str | None) -> dict[str, Json]:
    return {
        "origin": candidate.origin,
        "assignment": dict(candidate.assignment),
        "command": command_of(candidate, model),
        "blocked": blocked,
    }


def _print_dry(document: Mapping[str, Json]) -> None:
    console = _console()
    console.print(f"[bold]{document['model']}[/] on [bold]{document['hardware']}[/], workload {document['workload']}")
    rows = [document["baseline"], *document["candidates"]]  # type: ignore[misc, list-item]
    for row in rows:
        console.print(f"\n[bold]# {row['origin']}[/]", highlight=False)  # type: ignore[index, call-overload]
        if row["blocked"]:  # type: ignore[index, call-overload]
            console.print(f"[red]# cannot start: {row['blocked']}[/]", highlight=False)  # type: ignore[index, call-overload]
        console.print(str(row["command"]), soft_wrap=True, highlight=False, markup=False)  # type: ignore[index, call-overload]
    share = f"{document['feasible']} of {document['sampled']} sampled candidates can start"
    console.print(f"\n{share}", highlight=False)
    for rule, entry in document["excluded"].items():  # type: ignore[union-attr]
        console.print(f"  [dim]{entry['count']:>4} ×[/] {rule}: {entry['reason']}", highlight=False, soft_wrap=True)  # type: ignore[index, call-overload]
    for note in document["notes"]:  # type: ignore[union-attr]
        console.print(f"[cyan]· {note}[/]", highlight=False, soft_wrap=True)


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
    table = Table("profile", "hardware", "default model", "workload", box=None, header_style="bold")
    for row in rows:
        table.add_row(row.name, f"{row.count} × {row.device}", row.model, row.workload)
    console = _console()
    console.print(table)
    console.print(f"\nworkloads: {', '.join(spaces.workloads())}", highlight=False)


def show_space(name: str, model: str | None, workload: str | None, *, as_json: bool) -> None:
    """Parameters, rules with reasons, starting points of one profile."""
    from tuner import spaces  # noqa: PLC0415

    plan = spaces.open_plan(name, model=_model(model), workload=workload, flags=None)
    document = spaces.describe(plan)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        spaces.print_plan(plan, _console())


def check_file(file: Path, hardware: str | None, model: str | None, *, as_json: bool) -> int:
    """Check a space file; exit code 0 if it can be used, 2 if not."""
    from tuner import spaces  # noqa: PLC0415

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    try:
        flags: VllmFlags | None = spaces.VllmFlags.from_python((sys.executable,))
    except InputError:
        flags = spaces.VllmFlags.recorded()
    found = spaces.check_space(file, hardware=hardware, model=_model(model), flags=flags)
    if as_json:
        sys.stdout.write(json.dumps(found.document(), indent=1) + "\n")
    else:
        found.print(_console())
    return 0 if found.ok else 2


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415

    return Console()
