"""Any lm-eval task, by name or local YAML, against the running server.

lm-eval runs as a process of its own (its import takes seconds and pulls in half of the scientific Python world), as
``local-completions`` over HTTP. What it says is read from the samples that it logs, so that a candidate is compared
with the baseline question by question.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import InputError
from tuner.model.outcome import Blame, Failure
from tuner.model.words import plain
from tuner.ports import MeasurementFailed, Server

__all__ = ["Task", "installed", "read_samples", "run", "task"]

_MAX_YAML = 1 << 20
_MAX_SAMPLES = 512 << 20
_MAX_LINE = 8 << 20
_METRICS = ("acc", "exact_match", "acc_norm", "mc2", "f1", "pass@1", "em")
"""Which of a task's metrics is taken, first come first served: those that are shares and better when higher."""
_FILTERS = ("none", "flexible-extract")
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An lm-eval task. ``folder`` is where its YAML lies; None for a task that lm-eval brings itself."""

    name: str
    folder: Path | None = None


def installed() -> bool:
    """Whether lm-eval and what it needs to speak HTTP are in this Python environment."""
    return all(importlib.util.find_spec(name) is not None for name in ("lm_eval", "tenacity", "aiohttp"))


def task(spec: str) -> Task:
    """A task from its name (``arc_easy``) or the path of its YAML.

    Raises:
        InputError: the YAML cannot be read or names no task, or the name is none.
    """
    if not spec.endswith((".yaml", ".yml")):
        if not re.fullmatch(r"[A-Za-z0-9][\w.:/+-]{0,199}", spec):
            raise InputError(f"lm-eval task {spec[:60]!r}: not a task name; `lm_eval ls tasks` lists them")
        if _known(spec) is False:
            raise InputError(
                f"lm-eval task {spec[:60]!r}: this lm-eval has none of that name; `lm_eval ls tasks` lists them"
            )
        return Task(name=spec)
    path = Path(spec).expanduser()
    try:
        if path.stat().st_size > _MAX_YAML:
            raise InputError(f"{path}: larger than 1 MiB; this is no lm-eval task file")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text; give the YAML of an lm-eval task") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give the YAML of an lm-eval task") from error
    # Task files carry lm-eval's own tags (`!function`), which a safe YAML loader rightly refuses: one line is enough.
    found = re.search(r"^task:[ \t]*['\"]?([A-Za-z0-9][\w.:/+-]{0,199})['\"]?[ \t]*(?:#.*)?$", text, re.MULTILINE)
    if found is None:
        raise InputError(f"{path}: has no line `task: NAME`; give the YAML of an lm-eval task")
    return Task(name=found[1], folder=path.resolve().parent)


def _known(name: str) -> bool | None:
    """Whether some task file of the installed lm-eval names this task, group or tag; None without lm-eval.

    Read as text: lm-eval's own index takes many seconds and gigabytes of imports.
    """
    found = importlib.util.find_spec("lm_eval")
    if found is None or not found.submodule_search_locations:
        return None
    told = re.compile(
        rb"(?m)^\s*(?:-\s+)?(?:(?:task|group|tag):\s*)?[\"\']?" + re.escape(name).encode() + rb"[\"\']?\s*(?:#.*)?$"
    )
    tasks = Path(found.submodule_search_locations[0]) / "tasks"
    return any(told.search(path.read_bytes()) is not None for path in tasks.rglob("*.y*ml"))


def run(
    server: Server,
    wanted: Task,
    *,
    tokenizer: str,
    max_length: int,
    directory: Path,
    limit: int | None,
    timeout_s: float,
) -> dict[str, float]:
    """One number per document (mostly 1.0 or 0.0), by ``task:document``.

    Args:
        tokenizer: folder or name of the model's tokenizer.
        max_length: longest prompt and output together (tokens) that the server takes.
        directory: results and ``lm_eval.log`` go to a folder below it.
        limit: documents per task, at most.

    Raises:
        InputError: lm-eval is not installed.
        MeasurementFailed: it failed, hung, or wrote no usable samples; or the server died.
    """
    if not installed():
        raise InputError("lm-eval tasks need the package lm-eval: pip install .[eval]")
    out = directory / "lm_eval" / re.sub(r"[^\w.-]", "_", wanted.name)
    out.mkdir(parents=True, exist_ok=True)
    log = out / "lm_eval.log"
    # Results of an interrupted earlier try of the same trial would be read twice.
    for stale in out.rglob("samples_*.jsonl"):
        stale.unlink()
    command = _command(server, wanted, tokenizer, out, max_length=max_length, limit=limit)
    status = _wait(_start(command, server, out, log), server, timeout_s)
    if status is None:
        raise _failed(server, "lm-eval-hang", f"lm-eval task {wanted.name} gave no result within {timeout_s:g} s", log)
    if status != 0:
        raise _failed(server, "lm-eval-failed", f"lm-eval task {wanted.name} ended with exit code {status}", log)
    try:
        return read_samples(sorted(out.rglob("samples_*.jsonl")))
    except ValueError as error:
        raise _failed(server, "lm-eval-failed", f"lm-eval task {wanted.name}: {error}", log) from error


def _command(
    server: Server, wanted: Task, tokenizer: str, out: Path, *, max_length: int, limit: int | None
) -> list[str]:
    # The arguments are one comma-separated string: a comma inside a value cannot be spelled.
    for value in (server.model_name, tokenizer):
        if "," in value:
            raise InputError(f"lm-eval cannot take a model name or path with a comma: {value!r}; rename the folder")
    arguments = (
        f"model={server.model_name},base_url={server.base_url}/v1/completions,tokenizer={tokenizer},"
        f"max_length={max_length},num_concurrent=16,max_retries=3,tokenized_requests=True"
    )
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments]
    command += ["--tasks", wanted.name, "--log_samples", "--output_path", str(out)]
    if wanted.folder is not None:
        command += ["--include_path", str(wanted.folder)]
    if limit is not None:
        command += ["--limit", str(limit)]
    return command


def _start(command: Sequence[str], server: Server, out: Path, log: Path) -> subprocess.Popen[bytes]:
    # The key travels in the environment: a command line is everyone's to read.
    environment = {**os.environ, "OPENAI_API_KEY": server.api_key or "none", "TOKENIZERS_PARALLELISM": "false"}
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=out,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(process: subprocess.Popen[bytes], server: Server, timeout_s: float) -> int | None:
    """The exit code; None if time ran out or the server died first. Whatever happens, the process is gone after."""
    deadline = time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline and server.failure() is None:
            try:
                return process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                continue
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # The session, not only its leader: lm-eval's data loading forks.
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _failed(server: Server, kind: str, cause: str, log: Path) -> MeasurementFailed:
    dead = server.failure()
    if dead is not None:
        return MeasurementFailed(dead)
    excerpt = _tail(log)
    return MeasurementFailed(
        Failure(
            kind=kind,
            cause=cause,
            # The same task ran on the baseline or will not run at all: it is not this configuration's doing.
            blame=Blame.USER,
            phase="quality",
            advice=f"read {log}",
            excerpt=excerpt,
        )
    )


def _tail(log: Path, size: int = 2000) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            return plain(file.read(size).decode("utf-8", errors="replace"))
    except OSError:
        return ""


def read_samples(files: Sequence[Path]) -> dict[str, float]:
    """Per-document numbers from the ``samples_*.jsonl`` files that lm-eval wrote.

    Raises:
        ValueError: no file, a line that is no sample, or no metric that is a share.
    """
    if not files:
        raise ValueError("no samples were written")
    answers: dict[str, float] = {}
    for path in files:
        if path.stat().st_size > _MAX_SAMPLES:
            raise ValueError(f"{path.name} is larger than {_MAX_SAMPLES >> 20} MiB")
        name = re.sub(r"^samples_|_\d{4}-\d{2}-\d{2}T.*$|\.jsonl$", "", path.name)
        answers.update(_file(path, name))
    return answers


def _file(path: Path, name: str) -> dict[str, float]:
    metric, chosen = "", ""
    answers: dict[str, float] = {}
    with path.open("rb") as file:
        while raw := file.readline(_MAX_LINE + 1):
            sample = _sample(raw, path)
            if not metric:
                metric, chosen = _metric(sample, path), str(sample.get("filter", "none"))
            label = str(sample.get("filter", "none"))
            if label != chosen and label in _FILTERS and chosen not in _FILTERS:
                # A better filter of the same documents: it replaces what the first one said.
                chosen = label
                answers.clear()
            if label != chosen:
                continue
            value = sample.get(metric)
            if isinstance(value, bool):
                value = float(value)
            if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
                raise ValueError(f"{path.name}: {metric} of a sample is not a share from 0 to 1")
            answers[f"{name}:{sample.get('doc_id')}"] = float(value)
    if not answers:
        raise ValueError(f"{path.name} holds no sample")
    return answers


def _sample(raw: bytes, path: Path) -> Mapping[str, Any]:
    if len(raw) > _MAX_LINE:
        raise ValueError(f"{path.name} has a line of more than {_MAX_LINE >> 20} MiB")
    try:
        sample = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} has a line that is not JSON") from error
    if not isinstance(sample, dict) or not isinstance(sample.get("doc_id"), int):
        raise ValueError(f"{path.name} has a line that is no sample")  # noqa: TRY004 - bad input, not a bad call
    return sample


def _metric(sample: Mapping[str, Any], path: Path) -> str:
    named = sample.get("metrics")
    offered = [str(item) for item in named] if isinstance(named, list) else [key for key in _METRICS if key in sample]
    for metric in _METRICS:
        if metric in offered:
            return metric
    raise ValueError(f"{path.name} has none of the metrics {', '.join(_METRICS)}; it offers {', '.join(offered)[:100]}")
