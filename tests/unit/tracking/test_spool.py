"""The queue on disk: nothing lost, whatever moment it is cut off at."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.tracking import spool as module
from tuner.tracking.spool import Spool


def drain(spool: Spool) -> list[str]:
    kinds = []
    while (event := spool.head()) is not None:
        kinds.append(event["kind"])
        spool.arrived(event)
    return kinds


def test_what_was_not_sent_comes_back_in_order(tmp_path: Path) -> None:
    first = Spool(tmp_path / "spool")
    for kind in ("a", "b", "c"):
        first.append({"kind": kind})
    head = first.head()
    assert head is not None
    first.arrived(head)
    second = Spool(tmp_path / "spool")
    assert second.identity == first.identity
    assert drain(second) == ["b", "c"]
    third = Spool(tmp_path / "spool")
    third.append({"kind": "d"})
    assert drain(Spool(tmp_path / "spool")) == ["d"]


def test_files_are_their_owners(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append({"kind": "a"})
    spool.add_row({"number": 0})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in spool.directory.iterdir()}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(spool.directory.stat().st_mode) == 0o700


def test_a_torn_last_line_is_dropped_and_garbage_skipped(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append({"kind": "a"})
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('nonsense\n[1]\n{"seq": 9, "kind": "to')
    again = Spool(tmp_path)
    again.append({"kind": "b"})
    assert drain(Spool(tmp_path)) == ["a", "b"]


def test_a_broken_cursor_sends_again_rather_than_losing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append({"kind": "a"})
    spool.append({"kind": "b"})
    head = spool.head()
    assert head is not None
    spool.arrived(head)
    (tmp_path / "sent.json").write_text("{", encoding="utf-8")
    assert drain(Spool(tmp_path)) == ["a", "b"]


def test_a_full_disk_keeps_events_in_memory_and_writes_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    real = os.write

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "write", full)
    assert spool.append({"kind": "a"}) == "No space left on device"
    assert spool.add_row({"number": 3}) == "No space left on device"
    assert [row["number"] for row in spool.rows()] == [3]
    monkeypatch.setattr(module.os, "write", real)
    assert spool.append({"kind": "b"}) is None
    assert drain(Spool(tmp_path)) == ["a", "b"]
    assert [row["number"] for row in Spool(tmp_path).rows()] == [3]


def test_a_half_written_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.append({"kind": "a"})
    real, calls = os.write, []

    def half(handle: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "full")
        return real(handle, data[:5])

    monkeypatch.setattr(module.os, "write", half)
    assert spool.append({"kind": "b"}) == "full"
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["a"]


def test_rejected_events_are_kept_aside(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append({"kind": "a"})
    head = spool.head()
    assert head is not None
    spool.reject(head, "too long")
    assert len(spool) == 0
    assert json.loads((tmp_path / "rejected.jsonl").read_text())["rejected"] == "too long"


def test_rows_are_one_per_trial(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number, value in ((1, "x"), (0, "y"), (1, "z")):
        spool.add_row({"number": number, "value": value})
    assert [(row["number"], row["value"]) for row in spool.rows()] == [(0, "y"), (1, "z")]


def test_an_unwritable_place_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write the tracking spool") as caught:
        Spool(tmp_path / "file" / "spool")
    assert "\n" not in str(caught.value)


def test_files_left_on_their_way_are_swept(tmp_path: Path) -> None:
    (tmp_path / "send-abc").mkdir()
    (tmp_path / "send-abc" / "server.log").write_text("x")
    Spool(tmp_path)
    assert not (tmp_path / "send-abc").exists()
