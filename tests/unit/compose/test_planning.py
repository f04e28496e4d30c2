"""Plans from options: what is said before anything is planned."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.compose.options import Options
from tuner.compose.planning import _need_values, check_file, dry_run, recognised
from tuner.compose.running import run_study
from tuner.errors import InputError
from tuner.model.hardware import Hardware
from tuner.spaces import VllmFlags

FLAGS = VllmFlags.known("0.32.0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("load-format", "--arg load-format: needs a value, write --arg load-format=VALUE"),
        ("--max-num-seqs", "--arg max-num-seqs: needs a value, write --arg max-num-seqs=VALUE"),
        ("kv-cache-dtype", "--arg kv-cache-dtype: needs a value, write --arg kv-cache-dtype=VALUE (auto, bfloat16, "),
    ],
)
def test_a_flag_that_is_no_switch_needs_its_value(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        _need_values(Options(hardware="h200", arguments=("enforce-eager", text)), FLAGS)


@pytest.mark.parametrize("text", ["enforce-eager", "load-format=dummy", "unknown-flag", "max-num-seqs="])
def test_switches_and_values_pass(text: str) -> None:
    _need_values(Options(hardware="h200", arguments=(text,)), FLAGS)


EXAMPLE = Path(__file__).parents[3] / "examples" / "other_engine.yaml"
COMMAND = f"{sys.executable} my_engine.py"


def test_the_example_of_another_engine_passes_with_a_trial_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_file(EXAMPLE, None, None, trial_command=COMMAND, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["errors"] == document["warnings"] == document["notes"] == []
    assert document["size"] == 512 * 3 * 3 * 2 * 6
    assert document["feasible_share"] > 0.9


def test_without_the_command_the_check_says_what_searches_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_file(EXAMPLE, None, None, as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["size"] == 1
    assert document["notes"][-1].startswith(
        "vLLM knows none of the 5 parameters of this profile; if another engine is meant, with --trial-command"
    )


def test_a_check_refuses_a_command_that_is_not_there() -> None:
    with pytest.raises(InputError, match="no program 'no-such-program-here'"):
        check_file(EXAMPLE, None, None, trial_command="no-such-program-here", as_json=True)


def test_a_dry_run_for_another_engine_shows_flags_and_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(hardware=str(EXAMPLE), trial_command=COMMAND, budget="10")
    dry_run(options)
    text = capsys.readouterr().out
    assert "vllm serve" not in text
    assert "can start" not in text
    assert "budget: 10 s\n" in text
    assert "# baseline\n(no flags: the program's own defaults)\n" in text
    assert "# start:small\n--batch 8 --kv q8\n" in text
    assert "sampled candidates may be measured" in text

    dry_run(replace(options, as_json=True, limits=("ttft_p99>=5s",)))
    document = json.loads(capsys.readouterr().out)
    assert document["baseline"]["command"] == ""
    searched = document["candidates"][1:]
    assert all(item["assignment"].keys() >= {"batch", "threads", "kv", "graph"} for item in searched)
    assert document["notes"][-1].endswith("probably <= is meant")


def test_the_page_about_trial_commands_holds_the_example() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "TRIAL_COMMAND.md").read_text(encoding="utf-8")
    text = EXAMPLE.read_text(encoding="utf-8")
    assert f"```yaml\n{text[text.index('schema: 1') :]}```" in page


@pytest.mark.parametrize("name", ["cpu", "auto"])
def test_auto_is_the_recognised_profile_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Hardware(name="here", platform="cpu", device="some CPU", memory_gib=16, bandwidth_gb_s=20)
    monkeypatch.setattr("tuner.spaces.detect.detect", lambda: here)
    options = recognised(Options(hardware=name))
    assert options == Options(hardware="cpu")
    assert options.study_name("org/m", "w", "cpu") == "cpu_m_w"


def test_a_machine_that_no_profile_is_about_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.spaces.detect.detect", lambda: None)
    with pytest.raises(InputError, match="--hardware"):
        recognised(Options(hardware="auto"))


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("{name: all, if: 'true', reason: nothing}", "the rule all: nothing"),
        (
            "{name: p, if: 'kv > 3', reason: x}",
            "the rule p cannot be evaluated: > needs numbers, not 'f16' in `kv > 3`",
        ),
        (
            "{name: p, if: '1 / (batch - batch) > 1', reason: x}",
            "the rule p cannot be evaluated: 1 / 0 divides by zero in `1 / (batch - batch) > 1`",
        ),
    ],
)
def test_a_rule_that_leaves_nothing_is_told_with_its_place(tmp_path: Path, rule: str, reason: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(f"schema: 1\nforbid: [{rule}]\n")
    options = Options(hardware=str(EXAMPLE), trial_command=COMMAND, spaces=(path,), directory=tmp_path / "studies")
    with pytest.raises(InputError) as refused:
        dry_run(options)
    place = f"{path}:2: forbid[0]"
    assert str(refused.value) == f"{place}: nothing in this space can start on other-engine: {reason}"
    with pytest.raises(InputError) as refused:
        run_study(options)
    assert str(refused.value) == f"{place}: my/model cannot start on other-engine: {reason}"


def test_a_profile_whose_own_model_cannot_start_says_to_name_another() -> None:
    with pytest.raises(InputError, match=r"give another with --model NAME$"):
        dry_run(Options(hardware="rtx4090x2"))
    with pytest.raises(InputError) as refused:
        dry_run(Options(hardware="rtx4090x2", model="deepseek-ai/DeepSeek-V4-Flash"))
    assert "--model" not in str(refused.value)
