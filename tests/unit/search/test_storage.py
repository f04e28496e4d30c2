"""Opening one storage from several processes at the same moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from tuner.search import storage as module
from tuner.search.storage import _made, open_storage

ROOT = str(Path(__file__).parents[3])
OPEN = (
    "import sys, tuner.search.storage as s; print('ready', flush=True); sys.stdin.readline()\n"
    "print(len(s.open_storage(sys.argv[1]).get_all_studies()))"
)


def test_a_new_database_is_made_once_by_processes_that_start_together(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    runners = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": ROOT},
        )
        for _ in range(3)
    ]
    for runner in runners:
        assert runner.stdout is not None
        assert runner.stdout.readline() == b"ready\n"
    for runner in runners:
        assert runner.stdin is not None
        runner.stdin.write(b"\n")
        runner.stdin.flush()
    assert [runner.communicate(timeout=60) for runner in runners] == [(b"0\n", b"")] * 3
    assert not list(tmp_path.glob("*lock*"))


@pytest.mark.parametrize(
    "trouble",
    [
        IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed: alembic_version.version_num")),
        OperationalError("CREATE", {}, Exception("table studies already exists")),
    ],
)
def test_what_another_runner_has_just_made_is_no_error(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    made = open_storage("memory://")
    answers = [trouble, made]

    def make() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert _made(make) is made  # type: ignore[arg-type,comparison-overlap]
    with pytest.raises(IntegrityError):
        _made(lambda: (_ for _ in ()).throw(IntegrityError("INSERT", {}, Exception("NOT NULL constraint failed"))))
