from __future__ import annotations

from pathlib import Path

import pytest

from tuner.account import Account


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    account = Account.read(tmp_path / "study" / "progress.json")
    assert (account.since, account.finished) == (0, True)
    account.since = 7
    with account.timed("search"):
        pass
    account.write(finished=False)
    again = Account.read(account.path)
    assert (again.since, again.finished) == (7, False)
    assert again.booked.keys() == {"wall_seconds", "search_seconds"}


def test_wall_time_adds_up_over_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tuner.account.time.monotonic", lambda: now[0])
    for _ in range(2):
        account = Account.read(tmp_path / "progress.json")
        now[0] += 30.0
        account.write(finished=False)
        now[0] += 10.0
        account.write(finished=True)
    assert Account.read(tmp_path / "progress.json").booked["wall_seconds"] == 80.0


@pytest.mark.parametrize("content", ["", "[]", "{", '{"since": "x"}', '{"since": null}', "\x00"])
def test_a_damaged_file_is_a_fresh_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "progress.json"
    path.write_text(content, encoding="utf-8")
    account = Account.read(path)
    assert (account.since, account.finished, account.booked) == (0, True, {})
