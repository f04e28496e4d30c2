"""``--replay``: the runner for a plan, what it answers from, and the best that its table holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tuner.compose.options import Options
from tuner.model.candidate import Candidate
from tuner.model.json import Json
from tuner.model.space import UNSET, Choice, Space
from tuner.model.targets import change, counted, figure
from tuner.serving.replay import ReplayRunner

if TYPE_CHECKING:
    from tuner.model.history import Contender
    from tuner.spaces import Plan

__all__ = ["answers_line", "best_recorded", "best_recorded_line", "known_defaults", "replay_runner"]


def replay_runner(options: Options, plan: Plan) -> ReplayRunner:
    """What answers a study from the table of ``--replay``.

    Raises:
        InputError: the table is not there, or not what it should be.
    """
    assert options.replay is not None  # noqa: S101 - asked for only where it is given
    return ReplayRunner(
        options.replay,
        objective=options.parsed_objective,
        seed=options.seed,
        hardware=plan.hardware,
        defaults=known_defaults(plan.space),
        baseline=plan.planner.baseline(),
    )


def known_defaults(space: Space) -> Candidate:
    """What runs where its flag is left away, by the space: a row that says it and one that does not are alike."""
    from tuner.spaces.domains import settings  # noqa: PLC0415

    arguments: dict[str, Json] = {}
    environment: dict[str, Json] = {}
    for parameter in space.parameters:
        default, target = parameter.default, parameter.target
        if default is None:
            continue
        if not isinstance(parameter.domain, Choice):
            arguments[target] = default  # also outside of the range
        elif target and parameter.domain.values[default] is UNSET:
            # Its label stands for what the server takes by itself, such as ``auto``.
            place, name = (environment, target[4:]) if target.startswith("env:") else (arguments, target)
            if isinstance(default, str):
                place[name] = default
        else:
            flags, variables = settings(parameter, default)
            arguments |= flags
            environment |= variables
    variables = {name: str(value) for name, value in environment.items()}
    return Candidate(assignment={}, arguments=arguments, environment=variables)


def answers_line(options: Options, runner: ReplayRunner) -> str:
    """What a replay answers from: ``answers come from t.jsonl (350 rows, 157 of them failed)``."""
    rows, failed = counted(runner.rows, "row"), f"{runner.failed or 'none'} of them failed"
    others = f"; {runner.unused} more say nothing of a configuration or were measured another way"
    said = f"{rows}, {failed}{others if runner.unused else ''}"
    return f"answers come from {options.replay} ({said}); nothing is started"


def best_recorded(options: Options, runner: ReplayRunner, winner: Contender | None) -> dict[str, Json] | None:
    """The best recorded configuration that keeps the limits, and the winner's change against it; None without one."""
    best = runner.best(options.parsed_limits)
    if best is None:
        return None
    same = winner is not None and runner.is_of(winner.candidate, best)
    gain = None if winner is None or not best.value else (winner.value - best.value) / abs(best.value)
    return {
        "value": best.value,
        "lines": list(best.lines),
        "settings": dict(best.features),
        "winner_is_it": same,
        "winner_gain": gain,
    }


def best_recorded_line(options: Options, found: Mapping[str, Json], winner: Contender | None) -> str:
    """The same for people."""
    assert options.replay is not None  # noqa: S101 - asked for only where it is given
    unit, value, lines = options.parsed_objective.unit, found["value"], found["lines"]
    assert isinstance(value, float)  # noqa: S101 - as it was written above
    assert isinstance(lines, list)  # noqa: S101
    mean = f", mean of {len(lines)} rows" if len(lines) > 1 else ""
    said = f"Best recorded: {figure(value, unit)} (line {lines[0]} of {options.replay.name}{mean})"
    if winner is None:
        return f"{said}."
    if found["winner_is_it"]:
        return f"{said}; that is trial {winner.number}'s configuration."
    estimated = " (estimated)" if winner.estimated else ""
    against = f", {gain} against it" if (gain := change(value, winner.value)) else ""
    return f"{said}; trial {winner.number} has {figure(winner.value, unit)}{estimated}{against}."
