"""A plan for people and for programs: ``tune spaces show``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.model.json import Json
from tuner.model.space import UNSET, Choice, Parameter
from tuner.model.targets import counted
from tuner.spaces.domains import CHECKPOINT
from tuner.spaces.plan import Plan

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["describe", "print_plan"]

_LIFTED = "false"
"""The condition of a rule that a later file has lifted; it stays in the space to lift a built-in one as well."""

_WIDE = 120
"""Columns from which on a rule's name, its reason and its source share a line."""
_BESIDE = 60
"""Columns that values, default and condition of a parameter take beside its names."""


def describe(plan: Plan) -> dict[str, Json]:
    """The plan as plain data."""
    space, hardware = plan.space, plan.hardware
    return {
        "profile": plan.profile,
        "hardware": {
            "device": hardware.device,
            "count": hardware.count,
            "nodes": hardware.nodes,
            "platform": hardware.platform,
            "sm": hardware.sm,
            "arch": hardware.arch,
            "memory_gib": hardware.memory_gib,
            "bandwidth_gb_s": hardware.bandwidth_gb_s,
            "tflops": dict(hardware.tflops),
        },
        "model": plan.model.name,
        "overlay": plan.overlay,
        "workload": plan.workload.name,
        "arguments": dict(space.base_arguments),
        "environment": dict(space.base_environment),
        "parameters": [
            {
                "name": item.name,
                "target": item.target,
                "values": _values(item, space.model.name),
                "default": item.default,
                "when": item.when.text if item.when else None,
                "numerics": item.numerics,
            }
            for item in space.parameters
        ],
        "constants": dict(space.constants),
        "derived": [{"target": item.target, "value": item.value.text} for item in space.derived],
        "rules": [
            {"name": item.name, "if": item.condition.text, "reason": item.reason, "source": item.source}
            for item in space.forbids
            if item.condition.text != _LIFTED
        ],
        "starts": [
            {"name": item.name, "assign": dict(item.assignment), "source": item.source} for item in space.starts
        ],
        "notes": list(plan.notes),
    }


def _values(parameter: Parameter, own: str) -> Json:
    domain = parameter.domain
    if isinstance(domain, Choice) and parameter.target == CHECKPOINT:
        return {str(label): own if value is UNSET else value for label, value in domain.values.items()}  # type: ignore[misc]
    if isinstance(domain, Choice):
        return {str(label): None if value is UNSET else value for label, value in domain.values.items()}  # type: ignore[misc]
    return {"low": domain.low, "high": domain.high, "step": domain.step, "log": domain.log}


def _shown(parameter: Parameter) -> str:
    domain = parameter.domain
    if isinstance(domain, Choice):
        return ", ".join(str(label) for label in domain.values)
    scale = ", log" if domain.log else ""
    step = f", step {domain.step:g}" if domain.step else ""
    return f"{domain.low:g} to {domain.high:g}{step}{scale}"


def print_plan(plan: Plan, console: Console) -> None:
    """Parameters, rules with their reasons, and starting points, as tables."""
    from rich.markup import escape  # noqa: PLC0415 - only where something is printed

    hardware, space = plan.hardware, plan.space
    console.print(
        f"[bold]{escape(plan.profile)}[/]: {hardware.count} x {escape(hardware.device)}, {hardware.memory_gib:g} GiB, "
        f"{hardware.bandwidth_gb_s:g} GB/s; {escape(plan.model.name)}, workload {escape(plan.workload.name)}",
        highlight=False,
    )
    for name, value in (*space.base_arguments.items(), *space.base_environment.items()):
        console.print(f"  always {escape(name)} = {escape(str(value))}", highlight=False)
    _parameters(console, space.parameters)
    rules = [rule for rule in space.forbids if rule.condition.text != _LIFTED]
    here = [rule for rule in rules if not rule.condition.never_holds({"hardware": hardware})]
    for title, rows in (
        ("never launched", [(rule.name, rule.reason, rule.source) for rule in here]),
        ("tried first", [(start.name, _assigned(start.assignment), start.source) for start in space.starts]),
    ):
        if rows and console.width >= _WIDE:
            table = _table(title, "", "source", whole=1)
            for row in rows:
                table.add_row(*map(escape, row))
            console.print(table)
        elif rows:
            console.print(f"\n[bold]{title}[/]", highlight=False)
            for name, *texts in rows:
                _under(console, name, texts)
    if elsewhere := len(rules) - len(here):
        console.print(
            f"· {counted(elsewhere, 'rule')} of other hardware left out, which --json lists as well", highlight=False
        )
    for note in plan.notes:
        console.print(f"· {escape(note)}", highlight=False)


def _parameters(console: Console, parameters: Sequence[Parameter]) -> None:
    """As a table where names, flags and the rest fit side by side; else each with its values on lines of their own."""
    from rich.markup import escape  # noqa: PLC0415

    table = _table("parameter", "sets", "values", "default", "only when", whole=2)
    for item in parameters:
        default = "" if item.default is None else str(item.default)
        cells = (item.name, item.target or "several", _shown(item), default, item.when.text if item.when else "")
        table.add_row(*map(escape, cells))
    names = sum(max((len(cell) for cell in column), default=0) for column in _names(parameters))
    if names + _BESIDE <= console.width:
        console.print(table)
        return
    console.print("[bold]parameter, and what it sets[/]", highlight=False)
    for item in parameters:
        told = [_shown(item)] if item.default is None else [f"{_shown(item)} (default: {item.default})"]
        told += [f"only when {item.when.text}"] if item.when else []
        _under(console, f"{item.name}  {item.target or 'several flags'}", told)


def _names(parameters: Sequence[Parameter]) -> tuple[list[str], list[str]]:
    return [item.name for item in parameters], [item.target or "several" for item in parameters]


def _under(console: Console, head: str, texts: Sequence[str]) -> None:
    """A name on a line of its own, what belongs to it indented below; a pipe gets every text on one line."""
    from rich.padding import Padding  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console.print(Text(head), soft_wrap=True)
    for text in filter(None, texts):
        if console.is_terminal:
            console.print(Padding(Text(text, style="dim"), (0, 0, 0, 4)))
        else:
            console.print(Text(f"    {text}"), soft_wrap=True)


def _table(*titles: str, whole: int) -> Table:
    """The first ``whole`` columns are names: readable (and copied) whole, however narrow the others get."""
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, overflow="fold", no_wrap=number < whole)
    return table


def _assigned(assignment: object) -> str:
    return ", ".join(f"{key}={value}" for key, value in assignment.items()) if isinstance(assignment, dict) else ""
