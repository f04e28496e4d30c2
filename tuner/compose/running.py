"""A study from options: join the adapters, run the loop, say what came of it."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.compose.echo import budget_line, check_inputs
from tuner.compose.options import Options, Places, check_writable, split_command
from tuner.compose.planning import Prepared, cannot_start, make_plan, recognised
from tuner.errors import InputError
from tuner.model.json import Json
from tuner.model.words import defaults_name
from tuner.ports import Observer, StudyInfo, TrialRunner

if TYPE_CHECKING:
    from rich.console import Console

    from tuner.model.earlier import EarlierRuns
    from tuner.model.workload import Limit, Objective
    from tuner.spaces import Plan
    from tuner.study import Result

__all__ = ["run_study"]


def run_study(options: Options) -> None:
    """Run or go on with a study, then print the result and where to look next.

    Raises:
        InputError: found before anything was started.
        StudyStopped: the study ended itself.
    """
    from rich.console import Console  # noqa: PLC0415

    from tuner.measuring.statistics import compare  # noqa: PLC0415
    from tuner.search import OptunaOptimizer  # noqa: PLC0415
    from tuner.study import Budget, Study  # noqa: PLC0415
    from tuner.tracking import MlflowTracker  # noqa: PLC0415
    from tuner.view import StudyView  # noqa: PLC0415

    console = Console(stderr=options.as_json)
    options.validate()
    options = recognised(options)
    prepared = make_plan(_with_demo_model(options), need_machine=True)
    plan = prepared.plan
    blocked = plan.planner.exclusion(plan.planner.baseline())
    if blocked is not None:
        raise cannot_start(options, plan, blocked, f"{plan.model.name} cannot")
    check_inputs(options, plan)
    places = options.places
    name = options.study_name(plan.model.name, plan.workload.name, plan.profile)
    directory = places.study(name)
    check_writable(places.root)
    check_writable(directory)
    objective, limits = options.parsed_objective, options.parsed_limits
    info = StudyInfo(
        name=name,
        hardware=plan.hardware.name,
        model=plan.model.name,
        workload=plan.workload,
        objective=objective,
        limits=limits,
        directory=directory,
        versions=_versions(prepared),
        facts=_facts(options, plan),
        further=options.further_objectives,
    )
    with ExitStack() as stack:
        stack.enter_context(_study_locked(places, name))
        _same_source(directory, options)
        stack.enter_context(_devices_locked(options, prepared.devices, name))
        optimizer = OptunaOptimizer(
            plan.space,
            plan.planner,
            storage=places.storage,
            study_name=name,
            sampler=options.sampler,
            objective=objective,
            further=info.further,
            limits=limits,
            seed=options.seed,
            budget_trials=options.trials,
            budget_seconds=None if options.trials is not None else options.budget_seconds,
            workload=plan.workload,
            workload_certain=_kind(options) == "vllm",
            facts={"kind": _kind(options), "vllm": _known(info.versions["vllm"])},
            warm_start=options.warm_start if _names_a_study(options) else options.warm_start == "auto",
            earlier=_earlier(options, places, objective),
        )
        _write_study_file(directory, info, places, plan)
        view = stack.enter_context(
            StudyView(
                console,
                objective,
                further=info.further,
                limits=limits,
                defaults=_defaults(plan),
                name=defaults_name(_kind(options)),
                budget_s=options.budget_seconds,
                quiet=options.as_json,
            )
        )
        for note in (budget_line(options), *plan.notes, optimizer.warm_start_note):
            if note:
                view.message(note)
        tracker = MlflowTracker(places.tracking_uri, spool=directory / "spool", notify=view.message)
        runner = _runner(options, prepared, directory, view)
        study = Study(
            info=info,
            planner=plan.planner,
            optimizer=optimizer,
            runner=runner,
            tracker=tracker,
            observer=view,
            compare=compare,
            budget=Budget(trials=options.trials, seconds=options.budget_seconds),
            seed=options.seed,
            check_quality=options.check_quality and _kind(options) == "vllm",
        )
        result = study.run()
    about: dict[str, Json] = {
        "name": name,
        "defaults": _defaults(plan),
        "facts": dict(info.facts),
        "limits": _limits(info.limits),
    }
    _conclude(console, options, about, result, study.summary(), runner=runner)


def _observing(prepared: Prepared) -> list[str]:
    """Flags by which this vLLM says more, where its own parser has them.

    Without the first, a kernel is named the first time it is compiled under load and never again: rounds with later
    compilations of it (other shapes) would pass for warm. The second counts steps by CUDA graph mode.
    """
    wanted = ["jit-monitor-verbose"]
    if prepared.plan.hardware.platform != "cpu":
        wanted.append("cudagraph-metrics")
    flags = prepared.flags
    return [] if flags is None or flags.recorded else [name for name in wanted if name in flags.flags]


def _source(options: Options) -> str:
    """What measures: vLLM, a command, or one recorded table. Numbers of two sources are not comparable."""
    if options.replay is not None:
        return "replay " + hashlib.sha256(options.replay.read_bytes()).hexdigest()[:12]
    return _kind(options)


def _known(version: str) -> str | None:
    return None if version == "unknown" else version


def _names_a_study(options: Options) -> bool:
    return options.warm_start not in ("auto", "none") and not options.warm_start.startswith("mlflow:")


def _earlier(options: Options, places: Places, objective: Objective) -> EarlierRuns | None:
    """Runs of the MLflow experiment that the study is to learn from; None where none was named."""
    if not options.warm_start.startswith("mlflow:"):
        return None
    from tuner.tracking import read_earlier  # noqa: PLC0415

    return read_earlier(places.tracking_uri, options.warm_start.removeprefix("mlflow:"), objective.metric)


def _same_source(directory: Path, options: Options) -> None:
    """Refuse to go on with a study whose numbers come from something else."""
    try:
        about = json.loads((directory / "study.json").read_text(encoding="utf-8"))
        before = about["facts"]["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if before != _source(options):
        raise InputError(
            f"study {directory.name}: its numbers come from {before}, not from {_source(options)}; "
            "give another --study, the old one is kept"
        )


def _with_demo_model(options: Options) -> Options:
    """The CPU profile's default model is fetched where no hub is at hand."""
    from dataclasses import replace  # noqa: PLC0415

    if options.model is not None or options.hardware != "cpu" or options.trial_command or options.replay:
        return options
    from tuner.demo import demo_model  # noqa: PLC0415

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    return replace(options, model=str(demo_model(say=say)))


def _kind(options: Options) -> str:
    if options.trial_command is not None:
        return "external"
    return "replay" if options.replay is not None else "vllm"


def _runner(options: Options, prepared: Prepared, directory: Path, view: Observer) -> TrialRunner:
    plan = prepared.plan
    objective, limits = options.parsed_objective, options.parsed_limits
    if options.trial_command is not None:
        from tuner.serving.external import ExternalRunner  # noqa: PLC0415
        from tuner.serving.ledger import Ledger, sweep  # noqa: PLC0415

        ledger = directory / "processes.jsonl"
        for sentence in sweep(ledger):
            view.message(sentence)
        return ExternalRunner(
            split_command("--trial-command", options.trial_command),
            objective=objective,
            limits=limits,
            further=options.further_objectives,
            points=plan.workload.points,
            timeout_s=options.trial_timeout_s,
            environment=options.secret_environment,
            ledger=Ledger(ledger),
        )
    if options.replay is not None:
        from tuner.compose.replaying import answers_line, replay_runner  # noqa: PLC0415

        replayed = replay_runner(options, plan)
        for sentence in (answers_line(options, replayed), *replayed.notes):
            view.message(sentence)
        return replayed
    from tuner.measuring import BenchLoadGenerator  # noqa: PLC0415
    from tuner.quality import QualitySuite  # noqa: PLC0415
    from tuner.serving.launcher import VllmLauncher  # noqa: PLC0415
    from tuner.trial import VllmTrial  # noqa: PLC0415

    command = None if options.vllm_command is None else split_command("--vllm-command", options.vllm_command)
    launcher = VllmLauncher(
        plan.model.name,
        study_dir=directory,
        vllm_command=command,
        warm=options.warm,
        environment=options.secret_environment,  # the other variables are part of every candidate
        # The largest of the checkpoints that may be served: a start must have time to read it.
        weight_bytes=max(facts.weight_bytes for facts in (plan.model, *plan.space.checkpoints.values())),
        platform=plan.hardware.platform,
        gpus=prepared.devices,
        trust_remote_code=options.trust_remote_code,
        observe=_observing(prepared),
    )
    for sentence in launcher.swept:
        view.message(sentence)
    load = BenchLoadGenerator(
        plan.workload,
        objective,
        limits,
        price_per_hour=options.price,
        gpu_indices=prepared.devices,
        model_is_moe=plan.model.is_moe,
        early_stop=options.early_stop,
    )
    return VllmTrial(
        launcher=launcher,
        load=load,
        quality=QualitySuite(allowed_drop=options.max_drop, tasks=options.lm_eval, question_files=options.questions),
        objective=objective,
    )


@contextmanager
def _study_locked(places: Places, name: str) -> Iterator[None]:
    """One process per study; on a database server several runners are meant, each with trials of its own."""
    from tuner.serving.locks import StudyLock  # noqa: PLC0415

    if places.storage.startswith(("postgres", "mysql")):
        yield
        return
    file = Path(places.storage.rpartition(":///")[2].partition("?")[0]).absolute()
    shared = places.storage != "memory://" and file.parent != places.root and file.parent.is_dir()
    lock = StudyLock(places.study(name), name, storage=file if shared else None)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _devices_locked(options: Options, devices: tuple[int, ...], name: str) -> Iterator[None]:
    """One study per set of devices; an external command or a replay takes none."""
    if _kind(options) != "vllm":
        yield
        return
    from tuner.serving.locks import DeviceLock  # noqa: PLC0415

    lock = DeviceLock(devices, name)
    try:
        yield
    finally:
        lock.release()


def _versions(prepared: Prepared) -> dict[str, str]:
    from tuner import __version__  # noqa: PLC0415

    vllm = prepared.flags.version if prepared.flags is not None else "unknown"
    versions = {"tune": __version__, "python": platform.python_version(), "vllm": vllm}
    for name in ("optuna", "mlflow", "torch"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _facts(options: Options, plan: Plan) -> dict[str, Json]:
    hardware = plan.hardware
    return {
        "kind": _kind(options),
        "source": _source(options),
        "device": hardware.device,
        "devices": hardware.count,
        "memory_gib": hardware.memory_gib,
        "model_source": plan.model.source,
        "space_digest": plan.space.digest,
        "sampler": options.sampler,
        "seed": options.seed,
        "accuracy_checked": options.check_quality,
        "parameters": [p.name for p in plan.space.parameters],
    }


def _write_study_file(directory: Path, info: StudyInfo, places: Places, plan: Plan) -> None:
    """What `tune report` and `tune export` need to find and name this study again."""
    from tuner.model.secrets import mask  # noqa: PLC0415

    document = {
        "name": info.name,
        "hardware": info.hardware,
        "model": info.model,
        "workload": info.workload.name,
        "objective": {
            "metric": info.objective.metric,
            "maximize": info.objective.maximize,
            "unit": info.objective.unit,
        },
        "further": [{"metric": x.metric, "maximize": x.maximize, "unit": x.unit} for x in info.further],
        "limits": _limits(info.limits),
        "versions": dict(info.versions),
        "facts": dict(info.facts),
        "storage": mask(places.storage),
        "tracking_uri": mask(places.tracking_uri),
        "baseline_key": plan.planner.baseline().key,
        "defaults": _defaults(plan),
    }
    fresh = directory / "study.json.tmp"
    fresh.write_text(json.dumps(document, indent=1), encoding="utf-8")
    fresh.replace(directory / "study.json")


def _limits(limits: Sequence[Limit]) -> list[Json]:
    return [{"metric": x.metric, "bound": x.bound, "at_most": x.at_most} for x in limits]


def _defaults(plan: Plan) -> dict[str, Json]:
    """What vLLM takes by itself, parameter by parameter: reports show what departs from it."""
    return {p.name: p.default for p in plan.space.parameters if p.default is not None}


def _conclude(
    console: Console,
    options: Options,
    about: dict[str, Json],
    result: Result,
    summary: dict[str, Json],
    *,
    runner: TrialRunner | None = None,
) -> None:
    recorded = ""
    if options.replay is not None and runner is not None:
        recorded = _recorded(options, result, summary, runner)
    if options.as_json:
        sys.stdout.write(json.dumps({"study": about["name"], "reason": result.reason, **summary}, indent=1) + "\n")
        return
    from tuner.measuring.statistics import compare  # noqa: PLC0415
    from tuner.report import Answers, print_conclusion  # noqa: PLC0415

    answers = Answers.of(result.history, about, compare)
    print_conclusion(
        console,
        result.history,
        result.judgement,
        reason=result.reason,
        about=about,
        answers=answers,
        recorded=recorded,
    )
    where = "" if options.directory == Path("tune-studies") else f" --directory {shlex.quote(str(options.directory))}"
    console.print()
    console.print(f"every trial:   tune ui{where}", highlight=False)
    console.print(f"one trial:     tune report --trial N{where}", highlight=False)
    if result.history.winner() is None:
        return
    if _kind(options) == "vllm":
        unproven = result.judgement is not None and result.judgement.verdict != "better"
        what, force = ("not proven:   ", " --force") if unproven else ("the winner:   ", "")
        console.print(f"{what} tune export --output best.yaml{force}{where}", highlight=False)
        console.print("               vllm serve --config best.yaml", highlight=False)
    elif _kind(options) == "external":
        # What a command measured need not be vLLM: its settings are the answer, and `tune export` says more.
        console.print(f"the winner:    tune report --json{where}", highlight=False)


def _recorded(options: Options, result: Result, summary: dict[str, Json], runner: TrialRunner) -> str:
    """The best that a replay's table holds, in words; it and where answers came from are added to the summary."""
    from tuner.compose.replaying import best_recorded, best_recorded_line  # noqa: PLC0415
    from tuner.report import bases  # noqa: PLC0415
    from tuner.serving.replay import ReplayRunner  # noqa: PLC0415

    if not isinstance(runner, ReplayRunner):
        return ""
    winner = result.history.winner()
    found = best_recorded(options, runner, winner)
    summary |= {"bases": {**bases(result.history)}, "best_recorded": found}
    return "" if found is None else best_recorded_line(options, found, winner)
