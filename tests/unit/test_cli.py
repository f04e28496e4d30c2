"""The command line as a person meets it: one line, the right exit code, nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("mlflow", "optuna", "torch", "vllm", "transformers", "sklearn", "scipy", "pandas", "numpy", "httpx")


def _tune(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **(env or {})},
        timeout=120,
        check=False,
    )


H200_TABLE = str(Path(__file__).parents[1] / "data" / "h200" / "study" / "trials.jsonl")


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = f"import sys, tuner.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_names_every_option_of_the_main_command(tmp_path: Path) -> None:
    done = _tune("--help", cwd=tmp_path)
    assert done.returncode == 0
    for option in [
        "--hardware",
        "--model",
        "--workload",
        "--space",
        "--trials",
        "--budget",
        "--objective",
        "--limit",
        "--storage",
        "--tracking-uri",
        "--study",
        "--seed",
        "--vllm-command",
        "--dry-run",
        "--json",
    ]:
        assert option in done.stdout
    for command in ("export", "ui", "report", "spaces", "check"):
        assert command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--hardware", "b301"], "b300"),
        (["--hardware", "cpu", "--model", "./nowhere"], "no such folder"),
        (["--hardware", "cpu", "--limit", "ttft_p98=5ms"], "ttft_p99"),
        (["--hardware", "cpu", "--limit", "ttft_p99=soon"], "no positive number"),
        (["--hardware", "cpu", "--budget", "never"], "duration"),
        (["--hardware", "cpu", "--trials", "0"], "at least 1"),
        (["--hardware", "cpu", "--trials", "many"], "--trials"),
        (["--hardware", "cpu", "--objective", "joy"], "metric"),
        (["--hardware", "cpu", "--objective", "throughput", "--objective", "joy"], "metric"),
        (["--hardware", "cpu", "--objective", "throughput", "--objective", "output"], "given twice"),
        (["--hardware", "cpu", "--objective", "throughput", "--objective", "cost"], "--price"),
        (["export", "--load", "c8", "--trial", "3"], "exclude one another"),
        (["report", "--markdown", "--trial", "3"], "--markdown"),
        (["--hardware", "cpu", "--space", "absent.yaml"], "no such file"),
        (["--hardware", "cpu", "--vllm-command", "no-such-program serve"], "no program"),
        (["--hardware", "cpu", "--vllm-command", "'unbalanced"], "quotation"),
        (["--hardware", "cpu", "--tracking-uri", "ftp://x"], "--tracking-uri"),
        (["--hardware", "cpu", "--sampler", "crystal-ball"], "--sampler"),
        (["--hardware", "cpu", "--study", "../../etc"], "--study"),
        (["--hardware", "cpu", "--arg", "port=80"], "set by tune itself"),
        (["--hardware", "cpu", "--env", "NOT SET"], "NAME=VALUE"),
        (["--no-such-option"], "no-such-option"),
        (["no-such-command"], "no-such-command"),
        (["check", "absent.yaml"], "no such file"),
        (["check", "."], "is a folder; name a file in it"),
        (["--hardware", "cpu", "--questions", "."], "is a folder; name a file in it"),
        (["--hardware", "cpu", "--limit", "throughput=100ms"], "throughput has no unit 'ms', use tok/s"),
        (["--hardware", "cpu", "--trial-timeout", "5m"], "--trial-command"),
        (["--hardware", "cpu", "--no-accuracy", "--limit", "accuracy=0.5"], "--no-accuracy"),
        (["--hardware", "h200", "--dry-run", "--questions", "absent.jsonl"], "no such file"),
        (["--hardware", "h200", "--dry-run", "--lm-eval", "no_such_task_here"], "none of that name"),
        (["--hardware", "cpu", "--replay", H200_TABLE], "was recorded on a GPU, and cpu is a CPU"),
        (["report"], "holds no study yet"),
        (["export"], "holds no study yet"),
        (["ui"], "holds no MLflow store yet"),
        (["report", "--study", "x"], "none of that name"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_line_and_exit_2_and_leaves_nothing(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = _tune(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tune: ")
    assert says in lines[0]
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["report", "--json"], 2),
        (["--hardware", "cpu", "--budget", "never", "--json"], 2),
        (["--json", "--nonsense"], 2),
    ],
)
def test_with_json_an_error_is_json_with_the_same_exit_code(arguments: list[str], code: int, tmp_path: Path) -> None:
    done = _tune(*arguments, cwd=tmp_path)
    assert done.returncode == code
    (line,) = done.stderr.strip().splitlines()
    assert json.loads(done.stdout) == {"error": line.removeprefix("tune: "), "exit_code": code}


def test_a_reader_that_goes_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tuner.cli", "spaces", "show", "h200", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=120) == -signal.SIGPIPE


def _shell(redirected: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``tune`` with its streams put elsewhere by a shell."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m tuner.cli {redirected}', sys.executable],
        capture_output=True,
        encoding=environment.get("PYTHONIOENCODING", "utf-8"),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirected", "code", "says"),
    [
        ("spaces --json >&-", 1, "standard output: is closed"),
        ("spaces >&-", 1, "standard output: is closed"),
        ("spaces --json >/dev/full", 1, "standard output: no space left on device"),
        ("spaces show h200 >/dev/full", 1, "standard output: no space left on device"),
        ("--version >/dev/full", 1, "standard output: no space left on device"),
        ("--hardware nope --json >/dev/full", 2, "unknown hardware profile 'nope'"),
        ("--hardware nope --json >&-", 2, "unknown hardware profile 'nope'"),
    ],
)
def test_output_that_cannot_be_written_is_one_line(redirected: str, code: int, says: str, tmp_path: Path) -> None:
    done = _shell(redirected, tmp_path)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tune: {says}")


def test_without_standard_error_the_exit_code_stays(tmp_path: Path) -> None:
    done = _shell("--hardware nope --json 2>&-", tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2
    assert _shell("--hardware nope 2>/dev/full", tmp_path).returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_replaced(encoding: str, tmp_path: Path) -> None:
    done = _shell("spaces", tmp_path, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"1 {'?' if encoding == 'ascii' else '×'} NVIDIA" in done.stdout
    refused = _shell("--hardware 'n…pe'", tmp_path, PYTHONIOENCODING=encoding)
    assert refused.returncode == 2
    assert refused.stderr.startswith("tune: unknown hardware profile 'n?pe'")


def test_a_chat_workload_needs_a_chat_template(tmp_path: Path) -> None:
    model = tmp_path / "base-model"
    model.mkdir()
    shape = {"architectures": ["LlamaForCausalLM"], "hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152}
    shape |= {"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536, "torch_dtype": "bfloat16"}
    (model / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 8192, "model_type": "llama"}))
    (model / "tokenizer_config.json").write_text("{}")
    arguments = ("--hardware", "h200", "--dry-run", "--model", str(model), "--workload", "chat")
    done = _tune(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "has no chat template; give --arg chat-template=FILE" in done.stderr
    assert _tune(*arguments, "--arg", "chat-template=mine.jinja", cwd=tmp_path).returncode == 0


def test_a_dry_run_says_back_what_is_asked(tmp_path: Path) -> None:
    arguments = ("--hardware", "h200", "--dry-run", "--limit", "ttft_p99=0.5s", "--limit", "accuracy=50%")
    document = json.loads(_tune(*arguments, "--json", cwd=tmp_path).stdout)
    assert document["objective"] == {"metric": "throughput/output", "maximize": True, "unit": "tok/s"}
    assert document["limits"][0] == {"metric": "latency/ttft_p99", "bound": 500.0, "at_most": True}
    assert document["traffic"]["points"]
    text = _tune(*arguments, cwd=tmp_path).stdout
    assert "objective: throughput/output (tok/s), more is better\n" in text
    assert "limits: ttft_p99 at most 500 ms, accuracy at least 0.5\n" in text
    assert "traffic: text to the completions endpoint, " in text


def test_no_arguments_show_help_and_fail(tmp_path: Path) -> None:
    done = _tune(cwd=tmp_path)
    assert done.returncode == 2
    assert "--hardware" in done.stdout


def test_hardware_that_is_not_here_names_both_sides_and_the_ways_out(tmp_path: Path) -> None:
    done = _tune("--hardware", "b300", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    for word in ("B300", "--dry-run", "--vllm-command"):
        assert word in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_complete_commands_without_a_gpu(tmp_path: Path) -> None:
    done = _tune("--hardware", "h200", "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["baseline"]["command"].startswith("vllm serve Qwen/Qwen3-30B-A3B")
    assert plan["baseline"]["blocked"] is None
    assert len(plan["candidates"]) >= 5
    assert all(c["command"].startswith(("vllm serve ", "VLLM_")) for c in plan["candidates"])
    assert 0 < plan["feasible"] <= plan["sampled"]
    assert all(entry["reason"] and entry["count"] > 0 for entry in plan["excluded"].values())
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    done = _tune(
        "--hardware", "cpu", "--directory", str(tmp_path / "file" / "studies"), "--trial-command", "true", cwd=tmp_path
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_spaces_list_is_spaces(tmp_path: Path, how: tuple[str, ...]) -> None:
    """People type it; "No such command 'list'" was the answer."""
    plain, listed = _tune("spaces", *how, cwd=tmp_path), _tune("spaces", "list", *how, cwd=tmp_path)
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, plain.stdout, "")
    assert "h200" in listed.stdout


@pytest.mark.parametrize("what", [("list",), ("show", "h200")])
def test_json_counts_before_and_after_the_command_of_spaces(tmp_path: Path, what: tuple[str, ...]) -> None:
    before, after = _tune("spaces", "--json", *what, cwd=tmp_path), _tune("spaces", *what, "--json", cwd=tmp_path)
    assert (before.returncode, before.stdout) == (0, after.stdout)
    assert json.loads(before.stdout)
