"""A place in which a study can be hurt: own folders, own cache, and every process in it known by a mark."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Sandbox", "Trial", "Tune", "alive", "kill"]

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "fakes"
_MARK = "FAULT_SANDBOX"
_WORKLOAD = """schema: 1
name: tiny
workload:
  source: text
  input_tokens: 16
  output_tokens: 8
  ignore_eos: true
  points: [{concurrency: 8, requests: 16}]
  rounds: [2, 2]
  precision: 0.5
"""
# A model with a shape and no weights: the fake needs none, and the memory estimate only wants config.json.
_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial as the storage has it. ``state``: Optuna's (1 RUNNING, …, by name)."""

    number: int
    state: str
    record: Mapping[str, Any]

    @property
    def status(self) -> str:
        return str(self.record.get("status", ""))

    @property
    def kind(self) -> str:
        return str((self.record.get("failure") or {}).get("kind", ""))

    @property
    def blame(self) -> str:
        return str((self.record.get("failure") or {}).get("blame", ""))


@dataclass
class Tune:
    """One running `tune`. Its output goes to a file that is searched for tracebacks."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, timeout_s: float) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            kill(self.process.pid)
            self.process.wait()
            raise

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.text()


@dataclass
class Sandbox:
    """Folders and environment of one scenario. Use as a context manager: what is left at the end is ended."""

    folder: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(16))
    patience: float | None = None
    study: str = "faults"
    tracking: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    logs: Path | None = None
    real: Path | None = None
    """Model folder for the real vLLM of this environment instead of the fake one."""

    @classmethod
    @contextlib.contextmanager
    def make(cls, base: Path | None = None, **options: Any) -> Iterator[Sandbox]:
        with tempfile.TemporaryDirectory(prefix="tune-faults-", dir=base) as folder:
            box = cls(folder=Path(folder), **options)
            box._prepare()
            try:
                yield box
            finally:
                box.end_all()

    def _prepare(self) -> None:
        for name in ("model", "state", "cache"):
            (self.folder / name).mkdir()
        (self.folder / "model" / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
        (self.folder / "tiny.yaml").write_text(_WORKLOAD, encoding="utf-8")
        self.script({})

    # ------------------------------------------------------------ running

    def script(self, faults: Mapping[str, Any]) -> None:
        """What the fake server does from its next start on."""
        text = json.dumps({"state": str(self.folder / "state"), "speed": 2.0, "lifetime_s": 600, **faults})
        fresh = self.folder / "fake.json.tmp"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.folder / "fake.json")

    @property
    def directory(self) -> Path:
        return self.folder / "studies"

    def variables(self) -> dict[str, str]:
        """Environment of everything in the sandbox: its mark, its own cache, the fake instead of vLLM."""
        kept = {key: value for key, value in os.environ.items() if key not in ("FAKE_VLLM", "PYTHONPATH")}
        shims = {} if self.patience is None else {"FAULT_PATIENCE": str(self.patience)}
        return {
            **kept,
            _MARK: self.mark,
            "FAKE_VLLM": str(self.folder / "fake.json"),
            "PYTHONPATH": str(ROOT) if self.real else f"{ROOT}:{FAKES / 'site'}",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "COLUMNS": "200",
            **shims,
            **self.environment,
        }

    def argv(self, trials: int, *more: str) -> list[str]:
        tracking = ["--tracking-uri", self.tracking] if self.tracking else []
        # Compiling takes a minute on two cores and adds nothing to what is tested here.
        server = (
            ["--model", str(self.real), "--arg", "enforce-eager=true"]
            if self.real
            else ["--model", str(self.folder / "model"), "--vllm-command", f"{sys.executable} {FAKES / 'fake_vllm.py'}"]
        )
        return [
            sys.executable, "-m", "tests.faults.shim", "--hardware", "cpu", *server,
            "--workload", str(self.folder / "tiny.yaml"),
            "--directory", str(self.directory), "--study", self.study, "--trials", str(trials), "--no-accuracy",
            "--sampler", "random", *tracking, *more,
        ]  # fmt: skip

    def tune(self, trials: int, *more: str) -> Tune:
        """Start the study, or go on with it."""
        self.runs += 1
        log = self._log(self.runs)
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.argv(trials, *more), cwd=ROOT, env=self.variables(), stdout=file, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return Tune(process, log)

    def _log(self, number: int) -> Path:
        return (self.logs or self.folder) / f"tune-{number}.log"

    # ------------------------------------------------------------ looking

    def launches(self) -> list[dict[str, Any]]:
        """Every start of the fake server: pid, time, flags."""
        try:
            text = (self.folder / "state" / "launches.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def wait_for_log(self, pattern: str, known: Mapping[Path, str], timeout_s: float = 300.0) -> tuple[Path, int]:
        """The next server log that holds the pattern (its first group is a pid) and is not known: log and pid."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for log in sorted((self.directory / self.study / "trials").glob("*/server.log")):
                found = re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))
                if found and log not in known:
                    return log, int(found[1])
            time.sleep(0.1)
        raise TimeoutError(f"no server log with {pattern} within {timeout_s:.0f} s")

    def wait_for_launch(self, number: int, timeout_s: float = 60.0) -> dict[str, Any]:
        """The start with this number (from 0)."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = self.launches()
            if len(found) > number:
                return found[number]
            time.sleep(0.02)
        raise TimeoutError(f"no server start number {number} within {timeout_s:.0f} s")

    def trials(self) -> list[Trial]:
        """What the storage holds."""
        path = self.directory / "optuna.db"
        if not path.exists():
            return []
        query = (
            "select t.number, t.state, a.value_json from trials t left join trial_user_attributes a "
            "on a.trial_id = t.trial_id and a.key = 'tune:record' order by t.number"
        )
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
            try:
                rows = connection.execute(query).fetchall()
            except sqlite3.OperationalError:  # killed before the tables were made
                return []
        return [Trial(number, str(state), json.loads(record) if record else {}) for number, state, record in rows]

    def mlflow_running(self) -> int:
        """Runs that MLflow believes are still going on."""
        path = self.directory / "mlflow.db"
        if not path.exists():
            return 0
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
            try:
                return int(connection.execute("select count(*) from runs where status = 'RUNNING'").fetchone()[0])
            except sqlite3.OperationalError:
                return 0

    def running(self) -> int:
        """RUNNING left in both stores."""
        return sum(trial.state == "RUNNING" for trial in self.trials()) + self.mlflow_running()

    def processes(self) -> list[int]:
        """Everything alive that was started in this sandbox, however far from its parent it is by now."""
        wanted = f"{_MARK}={self.mark}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0") and alive(int(folder.name)):
                    found.append(int(folder.name))
        return found

    def left(self, wait_s: float = 5.0) -> int:
        """Processes that are still there after a moment."""
        deadline = time.monotonic() + wait_s
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return len(found)

    def server_of(self, trial: Trial) -> int | None:
        """Pid of the API server that ran a trial, from its log."""
        path = self.directory / self.study / "trials" / f"{trial.number:04d}" / "server.log"
        with contextlib.suppress(OSError):
            if found := re.search(r"\(APIServer pid=(\d+)\)", path.read_text(encoding="utf-8", errors="replace")):
                return int(found[1])
        return None

    def tracebacks(self) -> list[str]:
        """The exception's line of every traceback that a run of `tune` showed."""
        found = []
        for number in range(1, self.runs + 1):
            log = self._log(number)
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            for part in text.split("Traceback (most recent call last)")[1:]:
                lines = [line for line in part.splitlines()[1:] if line and not line.startswith(" ")]
                found.append(lines[0] if lines else "cut off")
        return found

    def end_all(self) -> None:
        """End what is left, by pid, because it carries this sandbox's mark."""
        for _ in range(50):
            found = self.processes()
            if not found:
                return
            for pid in found:
                kill(pid)
            time.sleep(0.1)


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text[text.rfind(")") + 2] not in "ZX"


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal one process; one that is gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
