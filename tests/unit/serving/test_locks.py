"""One study per device set, crash-safe; one writer per compile cache."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.errors import RunError
from tuner.serving.locks import DeviceLock, StudyLock, claim_cache

HOLD = (
    "import sys, time; from pathlib import Path; from tuner.serving.locks import DeviceLock\n"
    "lock = DeviceLock([int(item) for item in sys.argv[2].split(',')], 'theirs', folder=Path(sys.argv[1]))\n"
    "print('held', flush=True); time.sleep(600)\n"
)


def test_second_study_is_told_who_holds(tmp_path: Path) -> None:
    first = DeviceLock([0, 1], "night run", folder=tmp_path)
    with pytest.raises(RunError, match=rf"gpu-1 is in use by study 'night run' \(process {os.getpid()}, since 20"):
        DeviceLock([1, 2], "day run", folder=tmp_path)
    DeviceLock([2], "other card", folder=tmp_path).release()  # and nothing of the failed one stays held
    first.release()
    first.release()
    DeviceLock([1, 2], "day run", folder=tmp_path).release()
    assert stat.S_IMODE((tmp_path / "gpu-1.lock").stat().st_mode) == 0o600


def test_cpu_is_one_device(tmp_path: Path) -> None:
    lock = DeviceLock((), "a", folder=tmp_path)
    with pytest.raises(RunError, match="cpu is in use"):
        DeviceLock((), "b", folder=tmp_path)
    lock.release()


def test_lock_of_a_killed_study_is_free(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), "3"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(RunError, match="study 'theirs'"):
        DeviceLock([3], "ours", folder=tmp_path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    DeviceLock([3], "ours", folder=tmp_path).release()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"pid": "x"}', b'{"since": 1e400}', b"[" * 5000])
def test_holder_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    lock = DeviceLock([0], "a", folder=tmp_path)
    (tmp_path / "gpu-0.lock").write_bytes(content)
    with pytest.raises(RunError, match="another process"):
        DeviceLock([0], "b", folder=tmp_path)
    lock.release()


def test_two_studies_never_share_a_compile_cache(tmp_path: Path) -> None:
    (first, a), (second, b) = claim_cache(tmp_path), claim_cache(tmp_path)
    assert (first.name, second.name) == ("vllm", "vllm-1")
    os.close(a)
    third, c = claim_cache(tmp_path)
    assert third == first  # and what was compiled is found again
    os.close(b)
    os.close(c)


def test_cache_in_a_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        claim_cache(tmp_path / "file")


RUN = (
    "import sys, time; from pathlib import Path; from tuner.serving.locks import StudyLock\n"
    "lock = StudyLock(Path(sys.argv[1]), 'night'); print('held', flush=True); time.sleep(600)\n"
)


def test_a_study_is_run_by_one_process(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "night")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    said = (
        rf"^study 'night' in {tmp_path} is being run by process {holder.pid} \(since 20[^)]*\); "
        "wait for it, end it, or give another --study$"
    )
    with pytest.raises(RunError, match=said) as refusal:
        StudyLock(tmp_path / "night", "night")
    assert refusal.value.exit_code == 1
    holder.kill()
    holder.wait()
    holder.stdout.close()
    StudyLock(tmp_path / "night", "night").release()


def test_a_study_is_also_its_name_in_a_shared_storage_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    lock = StudyLock(tmp_path / "a", "s", storage=tmp_path / "all.db")
    with pytest.raises(RunError, match=f"process {os.getpid()} "):
        StudyLock(tmp_path / "b", "s", storage=tmp_path / "all.db")
    StudyLock(tmp_path / "b", "other", storage=tmp_path / "all.db").release()
    lock.release()


def test_a_study_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "study.lock").mkdir()
    with pytest.raises(RunError, match=r"study\.lock cannot be locked"):
        StudyLock(tmp_path, "s")
