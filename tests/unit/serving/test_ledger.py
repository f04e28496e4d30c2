"""A rerun ends what a killed tuner left, by recorded identity, and nothing else."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tuner.serving.ledger import Ledger, sweep
from tuner.serving.processes import MARKER, Identity, boot_id, identify, is_running

SLEEP = "import time; time.sleep(600)"


def start(marker: str = "") -> subprocess.Popen[bytes]:
    environment = {**os.environ, **({MARKER: marker} if marker else {})}
    return subprocess.Popen([sys.executable, "-c", SLEEP], env=environment, start_new_session=True)


def entry(path: Path, marker: str, owner: list[int], process: list[int] | None, *, boot: str = "") -> None:
    line = {
        "event": "started" if process else "will-start",
        "boot": boot or boot_id(),
        "marker": marker,
        "owner": owner,
        "process": process,
        "what": "server",
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "study" / "processes.jsonl"


DEAD = [2**22 + 1, 1]  # above the kernel's largest pid


def test_file_is_private_and_survives_a_torn_line(ledger: Path) -> None:
    book = Ledger(ledger)
    book.will_start("m" * 32, "server")
    book.started("m" * 32, Identity(1, 2), "server")
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
    with ledger.open("a") as file:
        file.write('{"event": "sta')
    assert sweep(ledger) == ()  # our own entries are not left-overs


def test_recorded_process_of_a_dead_tuner_is_ended(ledger: Path) -> None:
    ledger.parent.mkdir()
    process, innocent = start(), start()
    who = identify(process.pid)
    assert who is not None
    entry(ledger, uuid.uuid4().hex, DEAD, [who.pid, who.started])
    notes = sweep(ledger)
    process.wait()
    assert notes == ("ended 1 process of an earlier run of this study (server)",)
    assert innocent.poll() is None
    assert sweep(ledger) == ()
    innocent.kill()
    innocent.wait()


def test_marker_alone_is_enough(ledger: Path) -> None:
    """The tuner was killed between the fork and the note of its pid."""
    ledger.parent.mkdir()
    marker = uuid.uuid4().hex
    process = start(f"{marker}-3")
    entry(ledger, f"{marker}-3", DEAD, None)
    assert sweep(ledger) == ("ended 1 process of an earlier run of this study (server)",)
    process.wait()


@pytest.mark.parametrize("case", ["reused pid", "other boot", "owner lives"])
def test_what_is_not_ours_lives(ledger: Path, case: str) -> None:
    ledger.parent.mkdir()
    process = start()
    who, me = identify(process.pid), identify(os.getppid())
    assert who is not None
    assert me is not None
    owner = [me.pid, me.started] if case == "owner lives" else DEAD
    started = who.started + (1 if case == "reused pid" else 0)
    entry(ledger, uuid.uuid4().hex, owner, [who.pid, started], boot="another" if case == "other boot" else "")
    assert sweep(ledger) == ()
    assert is_running(who)
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe\n[]\n1\nnull\n", b'{"marker": "x"}\n{"owner": [1], "marker": 5}\n', b"[" * 100_000 + b"\n"],
)
def test_nonsense_is_survived(ledger: Path, content: bytes) -> None:
    ledger.parent.mkdir()
    ledger.write_bytes(content)
    assert sweep(ledger) == ()
    assert sweep(ledger.with_name("missing")) == ()
