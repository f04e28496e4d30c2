"""Processes are found by descent, session and marker, and ended for certain - and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.serving.processes import (
    MARKER,
    Identity,
    Tree,
    become_subreaper,
    boot_id,
    end_tree,
    identify,
    is_running,
    marked,
)

Start = Callable[..., subprocess.Popen[bytes]]

SLEEP = "import time; time.sleep(600)"
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
# A child whose own parent leaves at once; with a session of its own where asked for.
ORPHANS = (
    "import subprocess, sys, time\n"
    'code = "import subprocess, sys; '
    "subprocess.Popen([sys.executable, '-c', '{grandchild}'], start_new_session={own})\"\n"
    "subprocess.run([sys.executable, '-c', code])\n"
    "print('up', flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str, marker: str = "", *, session: bool = True) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        if marker:
            environment[MARKER] = marker
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, start_new_session=session, stdout=subprocess.PIPE
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def identity(process: subprocess.Popen[bytes]) -> Identity:
    found = identify(process.pid)
    assert found is not None
    return found


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_identity_outlives_no_process(start: Start) -> None:
    process = start(SLEEP)
    who = identity(process)
    assert is_running(who)
    assert not is_running(Identity(who.pid, who.started + 1))
    process.kill()
    assert until(lambda: not is_running(who))  # a zombie does not run
    process.wait()
    assert identify(who.pid) is None or identify(who.pid) != who
    assert len(boot_id()) == 36


def test_names_with_parentheses_are_read(start: Start) -> None:
    process = start(
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) R 1 (b', 0, 0, 0); print(flush=True); time.sleep(600)"
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert is_running(identity(process))
    assert identity(process).pid == process.pid


def test_marker_finds_and_short_ones_are_refused(start: Start) -> None:
    marker = uuid.uuid4().hex
    process = start(SLEEP, f"{marker}-1")
    assert until(lambda: identity(process) in marked(marker))
    assert marked(uuid.uuid4().hex) == set()
    with pytest.raises(ValueError, match="short"):
        marked("abc")


@pytest.mark.parametrize("own_session", [False, True], ids=["same-session", "own-session"])
def test_reparented_grandchildren_are_ended(start: Start, own_session: bool) -> None:
    assert become_subreaper()
    marker = uuid.uuid4().hex
    grandchild = IGNORE.replace("'", '"') + SLEEP
    process = start(ORPHANS.format(grandchild=grandchild, own=own_session), f"{marker}-1")
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    tree = Tree(identity(process), marker)
    assert until(lambda: len(tree.refresh(thorough=True)) == 2)
    innocent = start(grandchild)  # the same program, with nothing of ours
    assert end_tree(tree, grace_s=0.2, kill_s=5.0) == ()
    process.wait()
    assert marked(marker) == set()
    assert is_running(identity(innocent))


def test_sigterm_is_enough_where_it_is_heard(start: Start) -> None:
    process = start(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert end_tree(Tree(identity(process), ""), grace_s=10.0) == ()
    assert process.wait() == 7


def test_deaf_root_is_killed(start: Start) -> None:
    process = start(IGNORE + "print('up', flush=True); " + SLEEP)
    assert process.stdout is not None
    process.stdout.readline()
    assert end_tree(Tree(identity(process), ""), grace_s=0.2, kill_s=5.0) == ()
    assert process.wait() == -signal.SIGKILL


def test_the_tuner_and_the_warm_parent_are_spared(start: Start) -> None:
    marker = uuid.uuid4().hex
    parent, server = start(SLEEP, f"{marker}-warm1"), start(SLEEP, f"{marker}-1")
    tree = Tree(identity(server), marker, spare={identity(parent)})
    assert end_tree(tree, grace_s=2.0) == ()
    server.wait()
    assert is_running(identity(parent))
    assert os.getpid() not in {item.pid for item in tree.members}


def test_older_processes_never_belong(start: Start) -> None:
    marker = uuid.uuid4().hex
    older = start(SLEEP, f"{marker}-0")
    time.sleep(0.05)
    younger = start(SLEEP, f"{marker}-1")
    tree = Tree(identity(younger), marker)
    assert tree.refresh(thorough=True) == {identity(younger)}
    assert is_running(identity(older))


def test_ended_before_is_no_error(start: Start, tmp_path: Path) -> None:
    process = start("pass")
    tree = Tree(identity(process), uuid.uuid4().hex)
    process.wait()
    assert end_tree(tree, grace_s=0.1) == ()
