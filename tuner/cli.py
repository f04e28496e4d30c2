"""Commands: parse, compose, print. Everything heavy is imported inside the commands."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from tuner import __version__
from tuner.errors import InputError, TunerError
from tuner.interrupts import interrupts
from tuner.streams import STDOUT, drop_output, finish_output, prepare_streams, say_error

__all__ = ["app", "main"]

app = typer.Typer(
    name="tune",
    help="Find the vLLM serving configuration that is measurably best on your hardware, and prove it.",
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_STUDY = "Study"
_WHAT = "What to tune"
_HOW = "How to judge"
_RUN = "How to run"

DirectoryOption = Annotated[
    Path,
    typer.Option(
        "--directory", help="Folder that holds studies, storage and the MLflow store.", rich_help_panel=_STUDY
    ),
]
StudyOption = Annotated[
    str | None,
    typer.Option("--study", help="Study name; an existing one goes on. Default: made of hardware, model, workload."),
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="Optuna storage: sqlite:///FILE, postgresql://… or a journal file. Default: optuna.db in the directory.",
    ),
]
TrackingOption = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri", help="MLflow: sqlite:////ABSOLUTE/FILE or http://… Default: mlflow.db in the directory."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output on standard output.")]

_DIRECTORY = Path("tune-studies")
_INTERRUPTED = 130
_BROKEN_PIPE = 141
"""128 + SIGPIPE, what a shell reports of a program whose reader has gone."""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tune {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def tune(
    context: typer.Context,
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", help="Hardware profile (see `tune spaces`), or `auto`.", rich_help_panel=_WHAT),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model folder or hub id. Default: the profile's.", rich_help_panel=_WHAT),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            help="Workload name (see `tune spaces`), YAML, or your traffic as JSONL.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    space: Annotated[
        list[Path] | None,
        typer.Option("--space", help="Your own space, laid over the profile. Repeatable.", rich_help_panel=_WHAT),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", help="Launch at most so many servers in this run; failed ones count.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            help="Wall time of the study: 90s, 30m, 2h, 1h30m; a plain number means seconds. "
            "Default: 2h, or what --trials takes.",
        ),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            help="throughput (the default), goodput, requests, ttft_p99, tpot_p50, energy, … Repeatable: the first is "
            "judged against the defaults, and the report shows the Pareto front of all.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            help="A bound the winner must keep: ttft_p99=500ms, throughput>=2000. Repeatable.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    max_drop: Annotated[
        float,
        typer.Option(
            "--max-accuracy-drop",
            help="Allowed loss of accuracy against the default (0.01 = 1 point).",
            rich_help_panel=_HOW,
        ),
    ] = 0.01,
    lm_eval: Annotated[
        list[str] | None,
        typer.Option(
            "--lm-eval", help="Also check this lm-eval task (name or YAML). Repeatable.", rich_help_panel=_HOW
        ),
    ] = None,
    questions: Annotated[
        list[Path] | None,
        typer.Option(
            "--questions", help="Also ask these questions (JSONL, docs/ACCURACY.md). Repeatable.", rich_help_panel=_HOW
        ),
    ] = None,
    no_accuracy: Annotated[
        bool,
        typer.Option(
            "--no-accuracy", help="Do not check accuracy (dummy weights). The export says so.", rich_help_panel=_HOW
        ),
    ] = False,
    storage: StorageOption = None,
    tracking_uri: TrackingOption = None,
    study: StudyOption = None,
    directory: DirectoryOption = _DIRECTORY,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search and of the prompts.")] = 0,
    sampler: Annotated[str, typer.Option("--sampler", help="tune, tpe, gp, random, qmc or nsga2.")] = "tune",
    warm_start: Annotated[
        str,
        typer.Option(
            "--warm-start",
            help="Earlier trials to learn from: auto (like studies in the storage), none, a STUDY, mlflow:EXPERIMENT.",
        ),
    ] = "auto",
    vllm_command: Annotated[
        str | None,
        typer.Option(
            "--vllm-command",
            help="What serves instead of this environment's vLLM: another environment, a container, "
            "a wrapper. Split like a shell would, run without one.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    trial_command: Annotated[
        str | None,
        typer.Option(
            "--trial-command",
            help="A program of yours that measures a candidate (docs/TRIAL_COMMAND.md).",
            rich_help_panel=_RUN,
        ),
    ] = None,
    trial_timeout: Annotated[
        str | None,
        typer.Option(
            "--trial-timeout",
            help="Longest time that --trial-command may take for one trial, such as 90m. Default: 1h.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option("--replay", help="Answer from a recorded table instead of measuring.", rich_help_panel=_RUN),
    ] = None,
    argument: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            help="A vLLM flag for every candidate, such as load-format=dummy. Repeatable.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="NAME=VALUE for every server. Repeatable.", rich_help_panel=_RUN)
    ] = None,
    warm: Annotated[
        bool,
        typer.Option("--warm/--cold", help="Fork servers from a parent that has imported vLLM.", rich_help_panel=_RUN),
    ] = True,
    early_stop: Annotated[
        bool,
        typer.Option(
            "--early-stop/--no-early-stop",
            help="End a candidate that is clearly behind the best before its last round.",
            rich_help_panel=_RUN,
        ),
    ] = True,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Let vLLM run code that comes with the model.", rich_help_panel=_RUN),
    ] = False,
    price: Annotated[
        float | None,
        typer.Option("--price", help="Price of the machine per hour, for the cost objective.", rich_help_panel=_RUN),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the baseline and the first candidates as commands; needs no GPU.")
    ] = False,
    as_json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Search, measure, prove: `tune --hardware h200`."""
    if context.invoked_subcommand is not None:
        if hardware is not None:
            raise InputError("options of a study go without a subcommand: tune --hardware NAME")
        return
    if hardware is None:
        if len(sys.argv) > 1:
            raise InputError("--hardware is needed: a profile (see tune spaces), or auto")
        typer.echo(context.get_help())
        raise typer.Exit(2)
    from tuner import compose  # noqa: PLC0415

    options = compose.Options(
        hardware=hardware,
        model=model,
        workload=workload,
        spaces=tuple(space or ()),
        trials=trials,
        budget=budget,
        objective=(objective or ["throughput"])[0],
        further=tuple((objective or [])[1:]),
        limits=tuple(limit or ()),
        max_drop=max_drop,
        lm_eval=tuple(lm_eval or ()),
        questions=tuple(questions or ()),
        check_quality=not no_accuracy,
        storage=storage,
        tracking_uri=tracking_uri,
        study=study,
        directory=directory,
        seed=seed,
        sampler=sampler,
        warm_start=warm_start,
        vllm_command=vllm_command,
        trial_command=trial_command,
        trial_timeout=trial_timeout,
        replay=replay,
        arguments=tuple(argument or ()),
        environment=tuple(env or ()),
        warm=warm,
        early_stop=early_stop,
        trust_remote_code=trust_remote_code,
        price=price,
        as_json=as_json,
    )
    if dry_run:
        _end_with_the_pipe()
        compose.dry_run(options)
    else:
        interrupts.resumable = True
        compose.run_study(options)


@app.command()
def export(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the YAML goes; NAME.env goes beside it.")
    ] = Path("best.yaml"),
    trial: Annotated[int | None, typer.Option("--trial", help="This trial instead of the winner.")] = None,
    at_load: Annotated[
        str | None, typer.Option("--load", help="The best at this load point, such as c8, instead of the winner.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write the best candidate although it is not proven better; the header says so."),
    ] = False,
    study: StudyOption = None,
    storage: StorageOption = None,
    directory: DirectoryOption = _DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """Write the winner as YAML that `vllm serve --config` runs verbatim."""
    from tuner import compose  # noqa: PLC0415

    if at_load is not None:
        if trial is not None:
            raise InputError("--load and --trial exclude one another: each names one configuration")
        compose.export_load(directory, study, storage, output=output, load_name=at_load, as_json=as_json, force=force)
        return
    compose.export_study(directory, study, storage, output=output, trial=trial, as_json=as_json, force=force)


@app.command()
def ui(
    port: Annotated[int, typer.Option("--port", help="Port on loopback.")] = 5000,
    tracking_uri: TrackingOption = None,
    directory: DirectoryOption = _DIRECTORY,
) -> None:
    """Open the MLflow UI on the studies' store (loopback, one worker)."""
    from tuner import compose  # noqa: PLC0415

    raise typer.Exit(compose.open_ui(directory, tracking_uri, port))


@app.command()
def report(
    trial: Annotated[int | None, typer.Option("--trial", help="All about one trial.")] = None,
    table: Annotated[Path | None, typer.Option("--table", help="Write every trial as JSON lines, for replay.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list the studies in the directory.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The study as a page, for an issue or a wiki.")] = False,
    study: StudyOption = None,
    storage: StorageOption = None,
    directory: DirectoryOption = _DIRECTORY,
    as_json: JsonOption = False,
) -> None:
    """What a study found, where its time went, and all about one trial."""
    from tuner import compose  # noqa: PLC0415

    if listed:
        if markdown or trial is not None or table is not None or study is not None:
            raise InputError("--list names every study: it excludes --study, --trial, --table and --markdown")
        _end_with_the_pipe()
        compose.list_studies(directory, as_json=as_json)
        return
    if markdown and (as_json or trial is not None or table is not None):
        raise InputError("--markdown is a page about the whole study: it excludes --json, --trial and --table")
    _end_with_the_pipe()
    compose.report_study(directory, study, storage, trial=trial, table=table, as_json=as_json, as_markdown=markdown)


spaces_app = typer.Typer(help="Hardware profiles, model overlays and workloads.", rich_markup_mode=None)
app.add_typer(spaces_app, name="spaces", invoke_without_command=True)


@spaces_app.callback(invoke_without_command=True)
def spaces(context: typer.Context, as_json: JsonOption = False) -> None:
    """List what there is to tune."""
    context.obj = as_json
    if context.invoked_subcommand is None:
        from tuner import compose  # noqa: PLC0415

        _end_with_the_pipe()
        compose.list_spaces(as_json=as_json)


@spaces_app.command("list")
def spaces_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List what there is to tune, as without a command."""
    from tuner import compose  # noqa: PLC0415

    _end_with_the_pipe()
    compose.list_spaces(as_json=as_json or context.obj)


@spaces_app.command("show")
def spaces_show(
    context: typer.Context,
    name: str,
    model: Annotated[str | None, typer.Option("--model", help="Model folder or hub id.")] = None,
    workload: Annotated[str | None, typer.Option("--workload", help="Workload name or YAML.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Parameters, rules with their reasons and starting points of one profile."""
    from tuner import compose  # noqa: PLC0415

    _end_with_the_pipe()
    compose.show_space(name, model, workload, as_json=as_json or context.obj)


@app.command()
def check(
    file: Path,
    hardware: Annotated[str | None, typer.Option("--hardware", help="Profile the space is laid over.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model folder or hub id.")] = None,
    trial_command: Annotated[
        str | None,
        typer.Option(
            "--trial-command", help="What will measure instead of vLLM: flags are not compared with vLLM's parser."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a space file: errors with their lines, its size, and how much of it can start."""
    from tuner import compose  # noqa: PLC0415

    _end_with_the_pipe()
    raise typer.Exit(compose.check_file(file, hardware, model, trial_command=trial_command, as_json=as_json))


def _end_with_the_pipe() -> None:
    """Commands that only print end as `head` and `less` expect it: by SIGPIPE, in silence.

    A study keeps Python's way (an exception): a peer that closes its end must not kill what it has started.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


_FULL_OR_FORBIDDEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EMFILE})


def main() -> None:
    """Entry point: one line and an exit code for what a person can mend, 130 after an interrupt."""
    # What a study writes is its owner's: logs and stores can hold prompts.
    os.umask(0o077)
    prepare_streams()
    interrupts.install()
    try:
        code: Any = app(standalone_mode=False)
        finish_output()
        if code == _INTERRUPTED:
            # Typer turns an interrupt into an exit code of its own.
            raise KeyboardInterrupt  # noqa: TRY301 - one place says how to go on
    except TunerError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted" + "; the same command goes on from here" * interrupts.resumable, _INTERRUPTED)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    except BrokenPipeError:
        drop_output()
        sys.exit(_BROKEN_PIPE)
    except OSError as error:
        if error.filename == STDOUT:
            drop_output()
            _fail(f"{STDOUT}: {error.strerror}; send it to a place that takes it (studies and files are kept)", 1)
        if error.errno not in _FULL_OR_FORBIDDEN:
            raise
        where = f"{error.filename}: " if error.filename else ""
        reason = (error.strerror or str(error)).lower()
        _fail(f"{where}{reason}; what was measured is kept: mend that, then run the same command", 1)
    except Exception as error:
        message = _usage_message(error)
        if message is None:
            raise
        _fail(message, 2)
    sys.exit(code if isinstance(code, int) else 0)


def _usage_message(error: Exception) -> str | None:
    """The message of a parser error (Click's or Typer's own copy of it), None for anything else."""
    for kind in type(error).__mro__:
        if kind.__name__ in ("ClickException", "UsageError"):
            show = getattr(error, "format_message", None)
            return f"{show() if callable(show) else error} (see tune --help)"
    return None


def _fail(message: str, code: int) -> NoReturn:
    """One line on standard error and the exit code; with ``--json`` also an object where a script reads its answer."""
    import json  # noqa: PLC0415 - only where something went wrong

    from tuner.model.secrets import mask  # noqa: PLC0415

    line = mask(" ".join(message.split()))
    say_error(f"tune: {line}", json.dumps({"error": line, "exit_code": code}) if "--json" in sys.argv[1:] else None)
    sys.exit(code)


if __name__ == "__main__":
    main()
