from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tuner.errors import InputError
from tuner.model.outcome import Blame, Failure
from tuner.ports import MeasurementFailed
from tuner.quality import lm_eval
from tuner.quality.lm_eval import Task, read_samples, run, task


class Quiet:
    base_url = "http://127.0.0.1:1"
    api_key = "planted-key"
    model_name = "demo"
    report: Any = None
    dead: Failure | None = None

    def failure(self) -> Failure | None:
        return self.dead


def samples(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_tasks_by_name_and_by_file(tmp_path: Path) -> None:
    assert task("arc_easy") == Task(name="arc_easy")
    file = tmp_path / "mine.yaml"
    file.write_text("dataset_path: json\ntask: my_task  # mine\ndoc_to_text: !function utils.text\n", encoding="utf-8")
    assert task(str(file)) == Task(name="my_task", folder=tmp_path)


@pytest.mark.parametrize("spec", ["", "two words", "--model", "a,b", "x" * 300])
def test_names_that_are_none(spec: str) -> None:
    with pytest.raises(InputError, match="not a task name"):
        task(spec)


def test_files_that_are_no_task(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        task(str(tmp_path / "none.yaml"))
    (tmp_path / "no.yaml").write_text("group: x\n", encoding="utf-8")
    with pytest.raises(InputError, match="no line `task: NAME`"):
        task(str(tmp_path / "no.yaml"))
    (tmp_path / "bin.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        task(str(tmp_path / "bin.yml"))


def test_samples_become_answers_by_document(tmp_path: Path) -> None:
    file = samples(
        tmp_path / "samples_arc_easy_2026-01-02T03-04-05.678.jsonl",
        {"doc_id": 0, "filter": "none", "metrics": ["acc", "acc_norm"], "acc": 1.0, "acc_norm": 0.0},
        {"doc_id": 1, "filter": "none", "metrics": ["acc", "acc_norm"], "acc": 0, "acc_norm": 1.0},
    )
    assert read_samples([file]) == {"arc_easy:0": 1.0, "arc_easy:1": 0.0}


def test_one_filter_is_taken_and_the_lenient_one_is_preferred(tmp_path: Path) -> None:
    strict = [{"doc_id": i, "filter": "strict-match", "metrics": ["exact_match"], "exact_match": 0.0} for i in range(3)]
    lenient = [{**record, "filter": "flexible-extract", "exact_match": 1.0} for record in strict]
    for order in (strict + lenient, lenient + strict):
        assert read_samples([samples(tmp_path / "samples_gsm8k.jsonl", *order)]) == {
            f"gsm8k:{i}": 1.0 for i in range(3)
        }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no sample"),
        ("{\n", "not JSON"),
        ("[]\n", "no sample"),
        ('{"doc_id": "x"}\n', "no sample"),
        ('{"doc_id": 1, "metrics": ["word_perplexity"], "word_perplexity": 9.0}\n', "none of the metrics"),
        ('{"doc_id": 1, "metrics": ["acc"], "acc": NaN}\n', "not a share"),
        ('{"doc_id": 1, "metrics": ["acc"], "acc": 7}\n', "not a share"),
        ('{"doc_id": 1, "metrics": ["acc"]}\n', "not a share"),
    ],
)
def test_strange_samples_are_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "samples_x.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_samples([file])
    with pytest.raises(ValueError, match="no samples were written"):
        read_samples([])


def test_the_command_hides_the_key_and_names_the_server(tmp_path: Path) -> None:
    command = lm_eval._command(
        Quiet(), Task(name="t", folder=tmp_path), "/models/demo", tmp_path, max_length=1024, limit=7
    )
    assert "planted-key" not in " ".join(command)
    assert "base_url=http://127.0.0.1:1/v1/completions" in command[command.index("--model_args") + 1]
    assert command[command.index("--include_path") + 1] == str(tmp_path)
    assert "max_length=1024" in command[command.index("--model_args") + 1]
    assert command[command.index("--limit") + 1] == "7"
    with pytest.raises(InputError, match="comma"):
        lm_eval._command(Quiet(), Task(name="t"), "/models/a,b", tmp_path, max_length=1, limit=None)


def scripted(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(lm_eval, "_command", lambda *_, **options: [sys.executable, "-c", code])
    monkeypatch.setattr(lm_eval, "installed", lambda: True)


def test_a_run_reads_what_was_written_and_nothing_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples(tmp_path / "lm_eval" / "t" / "demo" / "samples_old.jsonl", {"doc_id": 0, "metrics": ["acc"], "acc": 1.0})
    code = (
        "import os, json; os.makedirs('demo', exist_ok=True);"
        "open('demo/samples_t_2026-01-02T03-04-05.6.jsonl', 'w').write("
        "json.dumps({'doc_id': 5, 'metrics': ['acc'], 'acc': float(os.environ['OPENAI_API_KEY'] == 'planted-key')}))"
    )
    scripted(monkeypatch, code)
    answers = run(Quiet(), Task(name="t"), tokenizer="x", max_length=1024, directory=tmp_path, limit=None, timeout_s=60)
    assert answers == {"t:5": 1.0}


def test_a_failing_run_is_the_users_and_shows_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "print('KeyError: no such task'); raise SystemExit(3)")
    with pytest.raises(MeasurementFailed) as seen:
        run(Quiet(), Task(name="t"), tokenizer="x", max_length=1024, directory=tmp_path, limit=None, timeout_s=60)
    failure = seen.value.failure
    assert (failure.kind, failure.blame) == ("lm-eval-failed", Blame.USER)
    assert "exit code 3" in failure.cause
    assert "no such task" in failure.excerpt


@pytest.mark.parametrize("died", [False, True])
def test_a_hanging_run_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: bool) -> None:
    code = (
        "import subprocess, sys, time, pathlib;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "pathlib.Path('child').write_text(str(child.pid)); time.sleep(60)"
    )
    scripted(monkeypatch, code)
    server = Quiet()
    dead = Failure(kind="cuda-oom", cause="out of memory", blame=Blame.CONFIGURATION)
    pid_file = tmp_path / "lm_eval" / "t" / "child"
    if died:
        server.failure = lambda: dead if pid_file.exists() else None  # type: ignore[method-assign]
    began = time.monotonic()
    with pytest.raises(MeasurementFailed) as seen:
        run(
            server,
            Task(name="t"),
            tokenizer="x",
            max_length=1024,
            directory=tmp_path,
            limit=None,
            timeout_s=30 if died else 2,
        )
    assert seen.value.failure.kind == ("cuda-oom" if died else "lm-eval-hang")
    assert time.monotonic() - began < 30
    # A kill is carried out a moment after it was sent.
    gone, alive = psutil.wait_procs([psutil.Process(pid) for pid in _pids(pid_file)], timeout=10)
    assert not alive, gone


def _pids(file: Path) -> list[int]:
    return [pid for pid in [int(file.read_text())] if psutil.pid_exists(pid)] if file.exists() else []


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval, "installed", lambda: False)
    with pytest.raises(InputError, match=r"pip install \.\[eval\]"):
        run(Quiet(), Task(name="t"), tokenizer="x", max_length=1024, directory=tmp_path, limit=None, timeout_s=1)
