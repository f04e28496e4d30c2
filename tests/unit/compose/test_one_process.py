"""A study is run by one process at a time, whatever measures it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.compose.options import Places
from tuner.compose.running import _study_locked
from tuner.errors import RunError


def places(root: Path, storage: str | None = None) -> Places:
    (root / "s").mkdir(parents=True, exist_ok=True)
    return Places.of(root, storage, None)


@pytest.mark.parametrize("storage", [None, "memory://"])
def test_a_second_process_is_refused(tmp_path: Path, storage: str | None) -> None:
    here = places(tmp_path, storage)
    with _study_locked(here, "s"):
        with pytest.raises(RunError, match=r"study 's' in .* is being run by process"), _study_locked(here, "s"):
            pass
        assert sorted(path.name for path in tmp_path.rglob("*lock*")) == ["study.lock"]
    with _study_locked(here, "s"):
        pass


@pytest.mark.parametrize("scheme", ["sqlite", "journal"])
def test_two_folders_with_one_study_in_one_storage_file(tmp_path: Path, scheme: str) -> None:
    storage = f"{scheme}:///{tmp_path / 'all.db'}"
    one, other = places(tmp_path / "one", storage), places(tmp_path / "other", storage)
    with _study_locked(one, "s"), pytest.raises(RunError, match="is being run by"), _study_locked(other, "s"):
        pass


def test_runners_on_a_database_server_share_a_study(tmp_path: Path) -> None:
    here = places(tmp_path, "postgresql+psycopg2://user@host/db")
    with _study_locked(here, "s"), _study_locked(here, "s"):
        assert not list(tmp_path.rglob("*.lock"))
