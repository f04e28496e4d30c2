"""What a study is about, said back before anything runs: objective, limits, traffic, questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.compose.options import Options
from tuner.errors import InputError
from tuner.model.json import Json
from tuner.model.targets import counted, duration, figure, is_usual, metric_unit, short_name
from tuner.model.workload import Limit, LoadPoint, Objective, Workload

if TYPE_CHECKING:
    from tuner.model.hardware import Hardware
    from tuner.spaces import Plan

__all__ = ["about_lines", "about_values", "budget_line", "check_inputs", "doubts"]

_OF_GPUS = frozenset({"cost/joules_per_mtok", "gpu/power_w"})
"""Metrics that only the counters of GPUs give."""


def check_inputs(options: Options, plan: Plan) -> None:
    """Look at every file and task that was named, before anything is written and not after hours.

    Raises:
        InputError: a question or traffic file, an lm-eval task or the replayed table is not there or not what it
            should be, or the workload wants a chat template that the model does not have, or goodput is asked for
            without a limit that says which requests are good.
    """
    if options.replay is not None:
        from tuner.compose.replaying import replay_runner  # noqa: PLC0415

        replay_runner(options, plan)
    elsewhere = options.trial_command is not None or options.replay is not None
    if plan.workload.path and (not elsewhere or Path(plan.workload.path).is_file()):
        # Where something else measures, the file of a YAML workload may lie where that is.
        from tuner.measuring.workloads import read_traffic  # noqa: PLC0415

        read_traffic(plan.workload)
    if elsewhere:
        return
    _check_goodput(options)
    _check_template(plan)
    if not options.check_quality:
        return
    from tuner.quality import QualitySuite  # noqa: PLC0415

    QualitySuite(allowed_drop=options.max_drop, tasks=options.lm_eval, question_files=options.questions)


def _check_goodput(options: Options) -> None:
    """Goodput counts the requests that keep every limit: the load generator has none to count without one."""
    from tuner.measuring.bench import goodput_limits  # noqa: PLC0415

    if "throughput/goodput" in _asked(options) and not goodput_limits(options.parsed_limits):
        raise InputError(
            "goodput counts the requests that keep a latency, and none is given; add an upper --limit on ttft, tpot or "
            "e2e, such as --limit ttft_p99=500ms"
        )


def doubts(options: Options, hardware: Hardware) -> list[str]:
    """What is allowed and probably not meant, one sentence each."""
    said = []
    for text, limit in zip(options.limits, options.parsed_limits, strict=True):
        if not is_usual(limit):
            side, good = ("at most", "more") if limit.at_most else ("at least", "less")
            bound = f"{side} {figure(limit.bound, metric_unit(limit.metric))}"
            other = ">=" if limit.at_most else "<="
            said.append(
                f"--limit {text!r} demands {bound} of {short_name(limit.metric)}, of which {good} is better; "
                f"probably {other} is meant"
            )
    if hardware.platform != "cpu" or options.trial_command is not None or options.replay is not None:
        return said
    return said + [
        f"{short_name(metric)} is read from the counters of GPUs, and {hardware.name} is a CPU profile: no trial will "
        "report it, so none can be judged by it"
        for metric in sorted(_OF_GPUS & _asked(options))
    ]


def _asked(options: Options) -> set[str]:
    """Every metric that the study is judged by."""
    objectives = {objective.metric for objective in (options.parsed_objective, *options.further_objectives)}
    return objectives | {limit.metric for limit in options.parsed_limits}


def _check_template(plan: Plan) -> None:
    """A chat workload needs a chat template; what can be told from the model's files is told here."""
    if plan.workload.endpoint != "chat":
        return
    from tuner.measuring.template import has_chat_template  # noqa: PLC0415

    given = {"chat-template", "tokenizer-mode"} & plan.planner.baseline().arguments.keys()
    if not given and has_chat_template(plan.model.name) is False:
        raise InputError(
            f"workload {plan.workload.name}: sends chat requests, and {plan.model.name} has no chat template; "
            "give --arg chat-template=FILE, or a workload with endpoint: completions"
        )


def about_values(options: Options, workload: Workload) -> dict[str, Any]:
    """Objective, limits, traffic and accuracy questions as plain values."""
    objective = options.parsed_objective
    return {
        "objective": {"metric": objective.metric, "maximize": objective.maximize, "unit": objective.unit},
        "further": [{"metric": x.metric, "maximize": x.maximize, "unit": x.unit} for x in options.further_objectives],
        "budget": {"seconds": options.budget_seconds, "trials": options.trials},
        "limits": [{"metric": x.metric, "bound": x.bound, "at_most": x.at_most} for x in options.parsed_limits],
        "traffic": {
            "source": workload.source,
            "endpoint": workload.endpoint,
            "path": workload.path,
            "input_tokens": workload.input_tokens,
            "output_tokens": workload.output_tokens,
            "spread": workload.spread,
            "tokens_needed": workload.tokens_needed,
            "points": [_point_values(point) for point in workload.points],
        },
        "accuracy": {
            "checked": options.check_quality,
            "max_drop": options.max_drop,
            "questions": [str(path) for path in options.questions],
            "lm_eval": list(options.lm_eval),
        },
    }


def about_lines(options: Options, workload: Workload) -> list[str]:
    """The same for people, one line each."""
    objectives = (options.parsed_objective, *options.further_objectives)
    origin = f" from {workload.path}" if workload.path else ""
    spread = f" ± {workload.spread:.0%}" if workload.spread else ""
    loads = "; ".join(_point(point) for point in workload.points)
    sizes = f"{workload.input_tokens} tokens in and {workload.output_tokens} out{spread}"
    return [
        f"objective{'s' * (len(objectives) > 1)}: {'; '.join(_objective(objective) for objective in objectives)}",
        f"limits: {_limits(options.parsed_limits)}",
        budget_line(options),
        f"traffic: {workload.source}{origin} to the {workload.endpoint} endpoint, {sizes}; {loads}",
        f"accuracy: {_accuracy(options)}",
    ]


def budget_line(options: Options) -> str:
    """What bounds the study, with units: ``budget: 10 s``."""
    bounds = [] if options.trials is None else [counted(options.trials, "trial")]
    seconds = options.budget_seconds
    if seconds is not None:
        bounds.append(duration(seconds) + " (the default)" * (options.budget is None))
    return f"budget: {' or '.join(bounds)}{', whichever comes first' * (len(bounds) > 1)}"


def _objective(objective: Objective) -> str:
    unit = f" ({objective.unit})" if objective.unit else ""
    return f"{objective.metric}{unit}, {'more' if objective.maximize else 'less'} is better"


def _limits(limits: Sequence[Limit]) -> str:
    told = [
        f"{short_name(x.metric)} {'at most' if x.at_most else 'at least'} {figure(x.bound, metric_unit(x.metric))}"
        for x in limits
    ]
    return ", ".join(told) or "none"


def _accuracy(options: Options) -> str:
    if not options.check_quality:
        return "not checked"
    if options.trial_command is not None or options.replay is not None:
        return "as the trial command reports it" if options.replay is None else "as recorded"
    more = [*(path.name for path in options.questions), *(f"lm-eval {name}" for name in options.lm_eval)]
    return f"may fall by {options.max_drop:.2%} at most; {', '.join(['built-in questions', *more])}"


def _point(point: LoadPoint) -> str:
    how = [f"{point.concurrency} at a time"] if point.concurrency is not None else []
    how += [f"{point.rate:g} a second"] if point.rate is not None else []
    return f"{counted(point.requests, 'request')}, {' and '.join(how) or 'as they were timed'}"


def _point_values(point: LoadPoint) -> dict[str, Json]:
    return {
        "name": point.name,
        "concurrency": point.concurrency,
        "rate": point.rate,
        "requests": point.requests,
        "weight": point.weight,
    }
