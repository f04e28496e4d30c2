"""The command line as a person meets it: one line, the right exit code, nothing half-written."""

from __future__ import annotations

import json
import os
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
