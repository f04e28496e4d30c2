"""The studies in a folder, by name and by age."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tuner.compose.studies import count_studies, find_study, list_studies
from tuner.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two studies, the second one run last, beside things that are none."""
    for age, name in enumerate(("cpu_m_chat", "h200_m_short")):
        study = tmp_path / name
        (study / "trials" / "0000").mkdir(parents=True)
        (study / "trials" / "0000" / "trial.json").write_text("{}")
        (study / "trials" / "0001").mkdir()
        about = {
            "name": name,
            "model": "org/m",
            "objective": {"metric": "latency/ttft_p99"},
            "facts": {"kind": "external"},
        }
        (study / "study.json").write_text(json.dumps(about))
        os.utime(study / "study.json", (1_000_000 + age, 1_000_000 + age))
    (tmp_path / "no-study").mkdir()
    (tmp_path / "mlflow.db").write_text("")
    return tmp_path


def test_without_a_name_the_one_that_was_run_last(folder: Path) -> None:
    assert find_study(folder, None) == folder / "h200_m_short"
    assert find_study(folder, "cpu_m_chat") == folder / "cpu_m_chat"
    assert count_studies(folder) == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cpu_m_chart", "; did you mean cpu_m_chat? There are h200_m_short, cpu_m_chat (tune report --list)"),
        ("zzz", "; there are h200_m_short, cpu_m_chat (tune report --list)"),
        ("no-study", "; there are h200_m_short, cpu_m_chat (tune report --list)"),
        ("../x", "; there are h200_m_short, cpu_m_chat (tune report --list)"),
    ],
)
def test_an_unknown_name_is_answered_with_those_that_are_there(folder: Path, name: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        find_study(folder, name)
    assert str(refused.value) == f"study {name!r}: none of that name in {folder}{says}"


def test_an_error_names_a_few(folder: Path) -> None:
    for number in range(20):
        (folder / f"s{number:02d}").mkdir()
        (folder / f"s{number:02d}" / "study.json").write_text("{}")
    with pytest.raises(InputError, match=r"and 14 more \(tune report --list\)"):
        find_study(folder, "unlike")


@pytest.mark.parametrize("name", [None, "x"])
def test_an_empty_folder(tmp_path: Path, name: str | None) -> None:
    with pytest.raises(InputError, match="holds no study yet"):
        find_study(tmp_path, name)
    with pytest.raises(InputError, match="holds no study yet"):
        list_studies(tmp_path, as_json=False)


def test_the_list_for_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list_studies(folder, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["study"] for row in rows] == ["h200_m_short", "cpu_m_chat"]
    assert rows[1] == {
        "study": "cpu_m_chat",
        "hardware": None,
        "model": "org/m",
        "workload": None,
        "objective": {"metric": "latency/ttft_p99"},
        "kind": "external",
        "trials": 1,
        "started": "1970-01-12T13:46:40+00:00",
    }


def test_the_list_for_people_keeps_names_whole(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = folder / "h200x8_Qwen3-30B-A3B-FP8_batch-short"
    long.mkdir()
    (long / "study.json").write_text("no JSON")
    list_studies(folder, as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith(f"{long.name} 0 ") for line in lines)
    assert any(line.startswith("cpu_m_chat 1 1970-01-1") for line in lines)
    assert lines[-1] == "One of them: tune report --study NAME; without a name, the first."
