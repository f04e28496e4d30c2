from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.model.candidate import Candidate
from tuner.model.outcome import Blame, Outcome, Status
from tuner.model.workload import Objective
from tuner.ports import TrialContext
from tuner.serving.external import ExternalRunner

CANDIDATE = Candidate(assignment={"max_num_seqs": 64}, arguments={"max-num-seqs": 64})
EXAMPLE = Path(__file__).parents[3] / "examples" / "trial_command.py"


def run(tmp_path: Path, code: str, *, timeout_s: float = 20, candidate: Candidate = CANDIDATE) -> Outcome:
    runner = ExternalRunner([sys.executable, "-c", code], objective=Objective(), timeout_s=timeout_s)
    return runner.run(candidate, TrialContext(number=1, directory=tmp_path / "t", seed=1), lambda *_: None)


def test_the_example_measures_and_knows_what_cannot_run(tmp_path: Path) -> None:
    runner = ExternalRunner([sys.executable, str(EXAMPLE)], objective=Objective())
    assert runner.kind == "external"
    context = TrialContext(number=1, directory=tmp_path / "t", seed=1)
    good = runner.run(CANDIDATE, context, lambda *_: None)
    assert good.status is Status.MEASURED
    assert good.measurement is not None
    assert good.measurement.objective is not None
    assert len(good.measurement.objective.samples) == 3
    dead = runner.run(Candidate(assignment={}, arguments={"max-num-seqs": 2048}), context, lambda *_: None)
    assert dead.failure is not None
    assert dead.failure.kind == "no-kv"
    assert dead.failure.violation == pytest.approx(2048 * 64 / 100_000 - 1)
    assert (tmp_path / "t" / "external.log").read_text().startswith("what is written")


def test_the_command_that_runs_is_named_and_its_secrets_are_not(tmp_path: Path) -> None:
    runner = ExternalRunner(
        [sys.executable, str(EXAMPLE), "--api-key", "hunter2hunter2", "--rate=3"], objective=Objective()
    )
    said: list[str] = []
    context = TrialContext(number=1, directory=tmp_path / "t", seed=1)
    runner.run(CANDIDATE, context, lambda phase, detail: said.append(f"{phase}: {detail}"))
    assert said[0].startswith("measuring: trial command python")
    assert "trial_command.py" in said[0]
    assert "--rate=3" in said[0]
    assert "hunter2" not in said[0]
    assert str(EXAMPLE.parent) not in said[0]


def test_a_crash_is_not_believed(tmp_path: Path) -> None:
    code = 'import sys; print(\'{"status":"ok","objective":1}\'); print(\'out of luck\', file=sys.stderr); sys.exit(3)'
    got = run(tmp_path, code)
    assert got.status is Status.BROKEN
    assert got.failure is not None
    assert got.failure.kind == "crash"
    assert "exit code 3" in got.failure.cause
    assert "out of luck" in got.failure.cause


def test_killed_is_the_machines_fault(tmp_path: Path) -> None:
    got = run(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert got.status is Status.DISTURBED
    assert got.failure is not None
    assert got.failure.blame is Blame.MACHINE
    assert got.failure.retry


def test_garbage_and_flood(tmp_path: Path) -> None:
    got = run(tmp_path, "print('hello')")
    assert got.failure is not None
    assert got.failure.kind == "external-answer"
    got = run(tmp_path, "import sys\nwhile True: sys.stdout.write('x' * 65536)")
    assert got.failure is not None
    assert "MiB" in got.failure.cause


def test_standard_error_is_bounded_and_does_not_block(tmp_path: Path) -> None:
    code = 'import sys; sys.stderr.write(\'e\' * (20 << 20)); print(\'{"status":"ok","objective":2}\')'
    got = run(tmp_path, code)
    assert got.objective == 2.0
    assert (tmp_path / "t" / "external.log").stat().st_size <= 17 << 20


def test_a_question_that_is_not_read_and_a_large_one(tmp_path: Path) -> None:
    large = Candidate(assignment={}, arguments={"x": "y" * 1_000_000})
    assert run(tmp_path, 'print(\'{"status":"ok","objective":2}\')', candidate=large).objective == 2.0
    code = """
import sys, json
told = json.load(sys.stdin)
print(json.dumps({'status': 'ok', 'objective': len(told['candidate']['arguments']['x'])}))
"""
    assert run(tmp_path, code, candidate=large).objective == 1_000_000


def test_secrets_are_told_but_not_kept(tmp_path: Path) -> None:
    secret = Candidate(assignment={}, arguments={}, environment={"HF_TOKEN": "planted-secret-77"})
    code = """
import json, sys
token = json.load(sys.stdin)["candidate"]["environment"]["HF_TOKEN"]
print("HF_TOKEN=" + token, end="", file=sys.stderr)
print("API_KEY=" + token)
sys.exit(token == "planted-secret-77")
"""
    got = run(tmp_path, code, candidate=secret)
    assert got.failure is not None
    assert got.failure.kind == "crash"  # exit code 1: the program was told
    assert "planted" not in repr(got.failure)
    for path in (tmp_path / "t").iterdir():
        assert "planted" not in path.read_text()


def test_a_timeout_ends_the_whole_tree(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(pids)!r}, "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
    got = run(tmp_path, code, timeout_s=1.5)
    assert got.failure is not None
    assert got.failure.kind == "hang"
    assert not _alive(int(pids.read_text()))


def test_a_child_that_keeps_the_pipe_does_not_hold_the_trial(tmp_path: Path) -> None:
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = """
import os, sys, time
if os.fork() == 0:
    time.sleep(600)
print('{"status":"ok","objective":2}', flush=True)
"""
    began = time.monotonic()
    try:
        assert run(tmp_path, code, timeout_s=60).objective == 2.0
        assert time.monotonic() - began < 30
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no program"):
        ExternalRunner(["/nonexistent/measure"], objective=Objective())
    with pytest.raises(InputError, match="empty"):
        ExternalRunner([], objective=Objective())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_what_the_command_writes_is_shown_as_text(tmp_path: Path) -> None:
    got = run(tmp_path, "import sys; sys.stderr.write('one\\n\\x1b[31mboom\\x07\\n'); sys.exit(3)")
    assert got.failure is not None
    assert got.failure.cause == "the trial command ended with exit code 3 (its last line: boom)"
    assert got.failure.excerpt == "one\nboom\n"
    got = run(tmp_path, "print('\\x1b]0;title\\x07no answer')")
    assert got.failure is not None
    assert got.failure.excerpt == "no answer\n"
