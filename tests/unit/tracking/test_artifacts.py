"""Files on their way to the tracker: masked, trimmed, and only what belongs to the trial."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.tracking import artifacts
from tuner.tracking.payload import Mask

SECRET = "hf_" + "a1B2" * 6


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    folder = tmp_path / "trial"
    folder.mkdir()
    return folder


def test_logs_and_json_are_masked_and_json_stays_json(trial: Path, tmp_path: Path) -> None:
    (trial / "server.log").write_text(f"loading with token {SECRET}\n")
    bench = {"output_throughput": 5.5, "time_per_output_token": 3, "hf_token": SECRET}
    (trial / "bench.json").write_text(json.dumps(bench))
    artifacts.stage(trial, {"command.txt": "vllm serve"}, tmp_path / "out", Mask())
    assert (tmp_path / "out" / "server.log").read_text() == "loading with token ***\n"
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert found == {"output_throughput": 5.5, "time_per_output_token": 3, "hf_token": "***"}
    assert (tmp_path / "out" / "command.txt").read_text() == "vllm serve"


def test_a_huge_log_keeps_both_ends(trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "LOG_HEAD", 10)
    monkeypatch.setattr(artifacts, "LOG_TAIL", 10)
    (trial / "server.log").write_text("started..." + "x" * 100 + "...it died")
    artifacts.stage(trial, {}, tmp_path / "out", Mask())
    text = (tmp_path / "out" / "server.log").read_text()
    assert text.startswith("started...")
    assert text.endswith("...it died")
    assert "100 bytes left out" in text


def test_links_hidden_files_and_binaries_stay(trial: Path, tmp_path: Path) -> None:
    (tmp_path / "private.txt").write_text("private")
    (trial / "link.txt").symlink_to(tmp_path / "private.txt")
    (trial / ".hidden.txt").write_text("x")
    (trial / "core.bin").write_bytes(b"\x00\x01")
    (trial / "sub").mkdir()
    (trial / "sub" / "client.log").write_text("fine")
    artifacts.stage(trial, {}, tmp_path / "out", Mask())
    names = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert names == ["left_out.txt", "sub/client.log"]
    assert "core.bin" in (tmp_path / "out" / "left_out.txt").read_text()


def test_broken_json_is_masked_as_text(trial: Path, tmp_path: Path) -> None:
    (trial / "bench.json").write_text('{"api_key": "abc", oops')
    artifacts.stage(trial, {}, tmp_path / "out", Mask())
    assert '"abc"' not in (tmp_path / "out" / "bench.json").read_text()


def test_a_folder_that_is_gone_leaves_the_texts(tmp_path: Path) -> None:
    artifacts.stage(tmp_path / "gone", {"a.txt": "b"}, tmp_path / "out", Mask())
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a.txt"]
