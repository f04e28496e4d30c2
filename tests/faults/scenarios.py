"""What is done to a study, and what must come of it. Each scenario fills one row of the table."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.fake_errors import KINDS
from tests.faults.harness import FAKES, Sandbox, Trial, Tune, alive, kill
from tuner.demo import cache_folder, is_complete

__all__ = ["SCENARIOS", "Row", "Scale"]

_GOOD = ("measured", "behind", "duplicate")
_MACHINE = frozenset({"killed", "terminated", "worker-killed", "died"})
_SLOW_S = 240.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done: ``kills`` of the tuner and as many of the server; ``seconds`` that a database is locked."""

    kills: int = 50
    lock_s: float = 60.0
    steals: int = 5
    real_kills: int = 3
    seed: int = 0


@dataclass
class Row:
    """One row.

    Attributes:
        injected: faults that were injected, detected: that were noticed, right: that were put into the right class
            (failure kind, and whose fault) or, where there is no class, met as they must be.
        lost: finished trials that a later look does not find as they were.
        left: processes of the sandbox still alive. running: runs or trials that a store still calls RUNNING.
        tracebacks: runs of `tune` that showed one.
    """

    name: str
    injected: int = 0
    detected: int = 0
    right: int = 0
    lost: int = 0
    left: int = 0
    running: int = 0
    tracebacks: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def fault(self, *, detected: bool, right: bool, note: str = "") -> None:
        """Count one injected fault."""
        self.injected += 1
        self.detected += detected
        self.right += detected and right
        if note and not (detected and right):
            self.notes.append(note)

    def close(self, box: Sandbox, kept: Mapping[int, Any] | None = None) -> Row:
        """Look at what is left in the sandbox."""
        self.left += box.left()
        self.running += box.running()
        shown = box.tracebacks()
        self.tracebacks += len(shown)
        self.notes += [f"traceback: {line[:200]}" for line in dict.fromkeys(shown)]
        if kept is not None:
            now = measured(box)
            missing = [number for number, value in kept.items() if now.get(number) != value]
            self.lost += len(missing)
            if missing:
                self.notes.append(f"lost trials {missing}")
        return self


def measured(box: Sandbox) -> dict[int, Any]:
    """Trials that are closed, with what was measured."""
    return {
        trial.number: trial.record.get("objective")
        for trial in box.trials()
        if trial.state == "COMPLETE" and trial.status in _GOOD
    }


def by_server(box: Sandbox) -> dict[int, Trial]:
    """Pid of the API server → the trial that it served."""
    pairs = ((box.server_of(trial), trial) for trial in box.trials())
    return {pid: trial for pid, trial in pairs if pid is not None}


def _ended(tune: Tune, row: Row, timeout_s: float = _SLOW_S, codes: Sequence[int] = (0,)) -> None:
    try:
        code = tune.wait(timeout_s)
    except subprocess.TimeoutExpired:
        row.notes.append(f"tune did not end within {timeout_s:.0f} s")
        return
    if code not in codes:
        last = next((line for line in reversed(tune.text().splitlines()) if line.strip()), "")
        row.notes.append(f"tune ended with {code}: {last[:160]}")


# ---------------------------------------------------------------- one fault per server

_PATIENT = {"imports": 0.3}
_ORDER: list[tuple[str, dict[str, Any], frozenset[str], str]] = [
    *(
        (name, {"exit_at": "imports" if name in ("quant-mismatch", "world-size", "port") else "profile", "error": name},
         kinds, blame)
        for name, (kinds, blame) in KINDS.items()
    ),
    ("unknown flag", {"exit_at": "imports", "error": "argparse"}, frozenset({"unknown-flag"}), ""),
    ("killed for memory, weights", {"oom_kill_at": "weights"}, _MACHINE, "machine"),
    ("killed for memory, capture", {"oom_kill_at": "capture"}, _MACHINE, "machine"),
    ("hang, imports", {"hang_at": "imports"}, frozenset({"hang"}), ""),
    ("hang, weights", {"hang_at": "weights"}, frozenset({"hang"}), ""),
    ("hang, compile", {"hang_at": "compile"}, frozenset({"hang"}), ""),
    ("hang, capture", {"hang_at": "capture"}, frozenset({"hang"}), ""),
    ("hang, before serving", {"hang_at": "serve"}, frozenset({"hang"}), ""),
    ("hang, under load", {"hang_at": "measure"}, frozenset({"hang", "stalled", "server-unresponsive"}), ""),
    ("health 503", {"health": 503}, frozenset({"hang", "died", "unknown"}), ""),
    ("out of memory under load", {"die_after": 10}, frozenset({"cuda-oom"}), "configuration"),
    ("API server killed under load", {"crash_after": 12}, _MACHINE, "machine"),
    ("answers 500", {"error_every": 5}, frozenset({"requests-failed", "server-error", "server-unresponsive"}), ""),
    ("closes connections", {"close_every": 5}, frozenset({"requests-failed", "server-unresponsive"}), ""),
    ("short outputs", {"short_outputs": True}, frozenset({"short-output"}), ""),
    ("another model answers", {"serve_as": "another-model"}, frozenset({"port"}), "machine"),
]  # fmt: skip


def failures(scale: Scale, *, only: Sequence[str] = ()) -> Row:
    """Each way to fail once, with a good start before and after, so that no three alike end the study."""
    row = Row("failures and hangs, one a server")
    chosen = [item for item in _ORDER if not only or item[0] in only]
    with Sandbox.make(patience=0.01) as box:
        # A good start between any two: a disturbed one is tried again, so the plan must not depend on the order.
        pending = [*chosen]
        running: list[tuple[int, tuple[str, dict[str, Any], frozenset[str], str]]] = []
        box.script({})
        tune = box.tune(4 * len(chosen) + 8)
        seen = 0
        with contextlib.suppress(TimeoutError):
            while pending and tune.process.poll() is None:
                launch = box.wait_for_launch(seen, timeout_s=90)
                seen += 1
                # What is written now holds for the next start.
                if seen % 2 == 1:
                    item = pending.pop(0)
                    box.script(item[1])
                    running.append((seen, item))
                else:
                    box.script({})
                del launch
            box.wait_for_launch(seen, timeout_s=90)
            box.script({})
            box.wait_for_launch(seen + 1, timeout_s=90)
        kill(tune.process.pid, signal.SIGTERM)
        _ended(tune, row, codes=(0, 1, 130, 143))
        launches, served = box.launches(), by_server(box)
        for number, (name, _, kinds, blame) in running:
            if number >= len(launches):
                row.notes.append(f"{name}: never started")
                continue
            trial = served.get(launches[number]["pid"])
            _judge(row, name, trial, kinds, blame)
        row.close(box)
    return row


def _judge(row: Row, name: str, trial: Trial | None, kinds: frozenset[str], blame: str) -> None:
    if trial is None:
        row.fault(detected=False, right=False, note=f"{name}: no trial")
        return
    right = trial.kind in kinds and (not blame or trial.blame == blame)
    cause = str((trial.record.get("failure") or {}).get("cause", ""))[:90]
    row.fault(
        detected=trial.status in ("broken", "disturbed"),
        right=right,
        note=f"{name}: {trial.status} {trial.kind} {trial.blame}: {cause}",
    )


def garbage(scale: Scale) -> Row:
    """Fast nonsense: the sanity check must see it."""
    row = Row("garbage answers")
    with Sandbox.make() as box:
        box.script({"plan": [{}, {"garbage": True}, {}]})
        argv = [word for word in box.argv(3) if word != "--no-accuracy"]
        log = box.folder / "tune-1.log"
        box.runs = 1
        with log.open("wb") as file:
            process = subprocess.Popen(
                argv, cwd=FAKES.parents[1], env=box.variables(), stdout=file, stderr=subprocess.STDOUT
            )
        _ended(Tune(process, log), row)
        served, launches = by_server(box), box.launches()
        if len(launches) > 1:
            _judge(row, "garbage", served.get(launches[1]["pid"]), frozenset({"garbage"}), "configuration")
        row.close(box)
    return row


# ---------------------------------------------------------------- kill -9


def kill_tuner(scale: Scale) -> Row:
    """``kill -9`` of the tuner at random moments; the same command goes on each time."""
    row = Row("kill -9 of the tuner")
    rng = random.Random(scale.seed)
    innocent = _innocent()
    try:
        with Sandbox.make() as box:
            kept: dict[int, Any] = {}
            for _ in range(scale.kills):
                tune = box.tune(10_000)
                delay = rng.uniform(0.2, 12.0)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    tune.process.wait(delay)
                if tune.process.poll() is not None:
                    row.notes.append(f"tune ended by itself with {tune.process.returncode}")
                    continue
                kill(tune.process.pid)
                tune.process.wait()
                now = measured(box)
                lost = [number for number, value in kept.items() if now.get(number) != value]
                kept |= now
                row.fault(detected=True, right=not lost, note=f"lost {lost}")
            _ended(box.tune(1), row)
            row.close(box, kept)
            if not alive(innocent.pid):
                row.notes.append("an innocent process of the same name was killed")
                row.lost += 1
    finally:
        innocent.kill()
        innocent.wait()
    return row


def kill_server(scale: Scale) -> Row:
    """``kill -9`` of the API server or of its EngineCore at random moments."""
    row = Row("kill -9 of the server")
    rng = random.Random(scale.seed)
    with Sandbox.make(patience=0.05) as box:
        tune = box.tune(20 * scale.kills)
        hit: list[tuple[int, str]] = []
        number, in_a_row = 0, 0
        with contextlib.suppress(TimeoutError):
            while len(hit) < scale.kills and tune.process.poll() is None:
                launch = box.wait_for_launch(number, timeout_s=60)
                number += 1
                if number == 1 or in_a_row >= 2 or rng.random() < 0.3:
                    in_a_row = 0
                    continue
                in_a_row += 1
                time.sleep(rng.uniform(0.0, 2.0))
                what = rng.choice(["API server", "EngineCore"])
                target = launch["pid"] if what == "API server" else _child(launch["pid"])
                if target is not None and alive(target):
                    kill(target)
                    hit.append((launch["pid"], what))
            box.wait_for_launch(number + 1, timeout_s=60)
        kill(tune.process.pid, signal.SIGTERM)
        _ended(tune, row, codes=(0, 1, 130, 143))
        served = by_server(box)
        late = 0
        for pid, what in hit:
            trial = served.get(pid)
            if trial is not None and trial.status in _GOOD:
                late += 1  # the kill came while the measured server was being ended
                row.fault(detected=True, right=True)
            elif trial is None:
                # Killed before it wrote its first line: the trial is known by what it says of the signal.
                row.fault(detected=True, right=True)
            else:
                _judge(row, f"kill of {what}", trial, _MACHINE, "machine")
        if late:
            row.notes.append(f"{late} of the kills hit a server whose trial was already measured")
        row.close(box)
    return row


def _child(pid: int) -> int | None:
    """The EngineCore of an API server."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])
    return None


def _innocent() -> subprocess.Popen[bytes]:
    """A process that only looks like ours: nobody may end it."""
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'VLLM::EngineCor', 0, 0, 0); time.sleep(3600)"
    return subprocess.Popen(["VLLM::EngineCore", "-c", code], executable=sys.executable)


def stop_tuner(scale: Scale, *, cases: int = 4) -> Row:
    """SIGTERM and Ctrl-C: everything is closed at once, without a rerun."""
    row = Row("SIGTERM and SIGINT to the tuner")
    moments = ((signal.SIGTERM, 0.1), (signal.SIGINT, 1.5), (signal.SIGINT, 0.1), (signal.SIGTERM, 1.5))
    for number, wait_s in moments[:cases]:
        with Sandbox.make() as box:
            tune = box.tune(100)
            box.wait_for_launch(1)
            time.sleep(wait_s)
            kill(tune.process.pid, number)
            _ended(tune, row, 60, codes=(1, 130, 143, -int(number)))
            left, running = box.left(), box.running()
            row.fault(
                detected=True, right=not left and not running, note=f"{number.name}: left {left}, RUNNING {running}"
            )
            row.close(box)
    return row


def stubborn(scale: Scale) -> Row:
    """SIGTERM is ignored by the whole tree, and a grandchild has left it, beside an innocent of the same name."""
    row = Row("SIGTERM ignored, re-parented grandchild, innocent beside")
    innocent = _innocent()
    try:
        for kind in ("child", "reparented", "daemon"):
            with Sandbox.make() as box:
                box.script({"ignore_sigterm": True, "grandchild": kind})
                tune = box.tune(2)
                box.wait_for_launch(0)
                _ended(tune, row)
                left = box.left()
                row.fault(detected=True, right=left == 0, note=f"{kind}: {left} left")
                # And when nobody is there to end it but the next run:
                tune = box.tune(50)
                box.wait_for_launch(3)
                time.sleep(0.4)
                kill(tune.process.pid)
                tune.process.wait()
                box.script({})
                _ended(box.tune(1), row)
                left = box.left()
                row.fault(detected=True, right=left == 0, note=f"{kind}, tuner killed: {left} left")
                row.close(box)
        if not alive(innocent.pid):
            row.lost += 1
            row.notes.append("the innocent process was killed")
    finally:
        innocent.kill()
        innocent.wait()
    return row


# ---------------------------------------------------------------- ports


def port_stolen(scale: Scale) -> Row:
    """Between the choice of a port and the server's bind, another process takes it."""
    row = Row("port stolen")
    with Sandbox.make() as box:
        box.script({"times": {"imports": 1.0}})
        tune = box.tune(6 * scale.steals)
        hit = []
        with contextlib.ExitStack() as stack, contextlib.suppress(TimeoutError):
            for number in range(2, 2 + 3 * scale.steals, 3):
                launch = box.wait_for_launch(number)
                thief = stack.enter_context(socket.socket())
                with contextlib.suppress(OSError):
                    thief.bind(("127.0.0.1", launch["flags"]["port"]))
                    thief.listen()
                    hit.append(launch["pid"])
            box.wait_for_launch(number + 2, timeout_s=120)
        kill(tune.process.pid, signal.SIGTERM)
        _ended(tune, row, codes=(0, 1, 130, 143))
        served = by_server(box)
        for pid in hit:
            _judge(row, "stolen port", served.get(pid), frozenset({"port"}), "machine")
        row.close(box)
    return row


def old_server(scale: Scale) -> Row:
    """An old server answers, healthy, on the port that the new one should have."""
    row = Row("old server answers on the port")
    with Sandbox.make(patience=0.02) as box:
        box.script({"times": {"imports": 0.3}})
        tune = box.tune(6 * scale.steals)
        hit = []
        old: list[subprocess.Popen[bytes]] = []
        try:
            with contextlib.suppress(TimeoutError):
                for number in range(1, 1 + 3 * scale.steals, 3):
                    box.wait_for_launch(number)
                    box.script({"no_bind": True})
                    launch = box.wait_for_launch(number + 1)
                    box.script({"times": {"imports": 0.3}})
                    old.append(_old(launch["flags"]["port"]))
                    hit.append(launch["pid"])
                box.wait_for_launch(number + 3, timeout_s=120)
            kill(tune.process.pid, signal.SIGTERM)
            _ended(tune, row, codes=(0, 1, 130, 143))
            served = by_server(box)
            for pid in hit:
                _judge(row, "old server", served.get(pid), frozenset({"port"}), "machine")
            dead = sum(process.poll() is not None for process in old)
            if dead:
                row.notes.append(f"{dead} old servers, which are not ours, were ended")
                row.lost += dead
            row.close(box)
        finally:
            for process in old:
                process.kill()
                process.wait()
    return row


def _old(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(FAKES / "fake_vllm.py"), "--model", "old", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"FAKE_VLLM": '{"lifetime_s": 300, "times": {"imports": 0}, "open_door": true}', "PATH": "/usr/bin:/bin"},
    )


def two_studies(scale: Scale) -> Row:
    """A second study on the same devices says who holds them and goes away."""
    row = Row("second study on the same devices")
    with Sandbox.make() as box:
        first = box.tune(100)
        box.wait_for_launch(1)
        box.study = "second"
        second = box.tune(2)
        _ended(second, row, 60, codes=(1,))
        said = second.text()
        row.fault(
            detected=second.process.returncode == 1, right="faults" in said and "in use" in said, note=said[-200:]
        )
        kill(first.process.pid, signal.SIGTERM)
        _ended(first, row, codes=(1, 130, 143))
        box.study = "faults"
        row.close(box)
    return row


# ---------------------------------------------------------------- storage, disk, clock


def locked(scale: Scale) -> Row:
    """Somebody holds the storage's SQLite file, as a dashboard or a backup does."""
    row = Row(f"SQLite locked for {scale.lock_s:.0f} s")
    with Sandbox.make() as box:
        tune = box.tune(8)
        box.wait_for_launch(2)
        before = measured(box)
        with contextlib.closing(sqlite3.connect(box.directory / "optuna.db", timeout=30)) as connection:
            connection.isolation_level = None
            connection.execute("begin exclusive")
            time.sleep(scale.lock_s)
            connection.execute("rollback")
        _ended(tune, row)
        finished = tune.process.returncode == 0
        row.fault(detected=True, right=finished and not tune.traceback, note="the study did not survive the lock")
        row.close(box, before)
    return row


def disk_full(scale: Scale) -> Row:
    """A small tmpfs runs full in the middle of a study; then there is room again."""
    row = Row("disk full")
    mount = Path(tempfile.mkdtemp(prefix="tune-faults-disk-"))
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mount)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        mount.rmdir()
        row.notes.append(f"not run: a tmpfs cannot be mounted here ({done.stderr.strip()[:80]})")
        return row
    try:
        with tempfile.TemporaryDirectory() as logs, Sandbox.make(base=mount, logs=Path(logs)) as box:
            for launch in (1, 3):
                tune = box.tune(50)
                box.wait_for_launch(len(box.launches()) + launch)
                before = measured(box)
                filler = mount / "filler"
                with contextlib.suppress(OSError), filler.open("wb") as file:
                    while True:
                        file.write(b"x" * 65536)
                        file.flush()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    tune.process.wait(40)
                alone = tune.process.poll() is not None
                if not alone:
                    kill(tune.process.pid, signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        tune.process.wait(60)
                filler.unlink()
                said = tune.text()
                told = alone and any(word in said for word in ("space", "full"))
                row.fault(detected=alone, right=told and not tune.traceback, note=f"said: {said[-200:]}")
                after = box.tune(1)
                _ended(after, row)
                lost = [number for number, value in before.items() if measured(box).get(number) != value]
                row.lost += len(lost)
            row.close(box)
    finally:
        subprocess.run(["umount", str(mount)], check=False)
        mount.rmdir()
    return row


def clock_jump(scale: Scale) -> Row:
    """The wall clock is set an hour forward, then two back, while trials run."""
    row = Row("clock set forward and back")
    with Sandbox.make() as box:
        clock = box.folder / "clock"
        clock.write_text("0", encoding="ascii")
        box.environment["FAULT_CLOCK"] = str(clock)
        tune = box.tune(9)
        for launch, offset in ((2, 3600.0), (5, -7200.0)):
            with contextlib.suppress(TimeoutError):
                box.wait_for_launch(launch)
                clock.write_text(str(offset), encoding="ascii")
        _ended(tune, row)
        trials = [trial for trial in box.trials() if trial.status != "excluded"]
        bad = [trial.number for trial in trials if trial.status not in _GOOD]
        seconds = [value for trial in trials for value in (trial.record.get("seconds") or {}).values()]
        absurd = [value for value in seconds if not 0 <= value < 300]
        for _ in range(2):
            row.fault(detected=True, right=not bad and not absurd, note=f"failed {bad}, times {absurd}")
        row.close(box)
    return row


# ---------------------------------------------------------------- MLflow


def mlflow_killed(scale: Scale) -> Row:
    """The tracking server is killed in the middle of the study and comes back before its end, or after it."""
    row = Row("MLflow killed and brought back")
    for late in (False, True):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with Sandbox.make(tracking=f"http://127.0.0.1:{port}") as box:
            server = _mlflow(box, port)
            try:
                tune = box.tune(8 if late else 40)
                box.wait_for_launch(1, timeout_s=120)
                _stop(server)
                box.wait_for_launch(4, timeout_s=120)
                if not late:
                    server = _mlflow(box, port)
                _ended(tune, row)
                if late:
                    server = _mlflow(box, port)
                if late or "did not reach" in tune.text():
                    _ended(box.tune(1), row)
                wanted = sum(trial.status not in ("excluded", "duplicate", "") for trial in box.trials())
                logged = _logged(box)
                row.fault(
                    detected=True,
                    right=logged >= wanted,
                    note=f"{'late' if late else 'early'}: {logged} of {wanted} runs",
                )
                row.lost += max(wanted - logged, 0)
                row.running += _mlflow_running(box)
            finally:
                _stop(server)
            row.close(box)
    return row


def _mlflow(box: Sandbox, port: int) -> subprocess.Popen[bytes]:
    """An MLflow server on a store of its own; outside of the sandbox's mark, as a company's server is."""
    variables = {key: value for key, value in box.variables().items() if key != "FAULT_SANDBOX"}
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
         "--backend-store-uri", f"sqlite:///{box.folder / 'server.db'}",
         "--default-artifact-root", str(box.folder / "artifacts")],
        cwd=box.folder, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return process
        time.sleep(0.2)
    raise TimeoutError("MLflow did not come up")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The server with its workers: a session of its own, started here."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _query(box: Sandbox, text: str) -> int:
    with contextlib.closing(sqlite3.connect(box.folder / "server.db", timeout=30)) as connection:
        return int(connection.execute(text).fetchone()[0])


def _logged(box: Sandbox) -> int:
    """Runs of trials: those below the study's own run."""
    return _query(
        box, "select count(distinct r.run_uuid) from runs r join tags t on t.run_uuid = r.run_uuid "
        "where t.key = 'mlflow.parentRunId' and r.lifecycle_stage = 'active'"
    )  # fmt: skip


def _mlflow_running(box: Sandbox) -> int:
    return _query(box, "select count(*) from runs where status = 'RUNNING'")


# ---------------------------------------------------------------- real vLLM


def real(scale: Scale) -> Row:
    """The same kills with the real vLLM on this CPU, while it loads and while it serves."""
    row = Row("kill -9 with real vLLM (tuner, API server, EngineCore)")
    model = cache_folder() / "models" / "SmolLM2-135M-Instruct"
    if not is_complete(model):
        row.notes.append("not run: the demo model is not there (make install)")
        return row
    rng = random.Random(scale.seed)
    with Sandbox.make(real=model) as box:
        kept: dict[int, Any] = {}
        for number in range(3 * scale.real_kills):
            what = ("tuner", "API server", "EngineCore")[number % 3]
            # A log of an earlier run names a process that is long gone.
            done = dict.fromkeys((box.directory / box.study / "trials").glob("*/server.log"), "")
            tune = box.tune(10_000)
            pattern = r"\((?:EngineCore) pid=(\d+)\)" if what == "EngineCore" else r"\(APIServer pid=(\d+)\)"
            try:
                log, pid = box.wait_for_log(pattern, done)
            except TimeoutError as error:
                row.notes.append(str(error))
                kill(tune.process.pid, signal.SIGTERM)
                tune.process.wait()
                continue
            time.sleep(rng.uniform(0.0, 20.0))
            known = dict.fromkeys((box.directory / box.study / "trials").glob("*/server.log"), "")
            kill(tune.process.pid if what == "tuner" else pid)
            if what != "tuner":
                with contextlib.suppress(TimeoutError):
                    box.wait_for_log(r"\(APIServer pid=(\d+)\)", known)
                kill(tune.process.pid, signal.SIGTERM)
            tune.process.wait()
            trial = next((trial for trial in box.trials() if f"{trial.number:04d}" == log.parent.name), None)
            now = measured(box)
            lost = [key for key, value in kept.items() if now.get(key) != value]
            kept |= now
            if what == "tuner" or (trial is not None and trial.status in _GOOD):
                row.fault(detected=True, right=not lost, note=f"lost {lost}")
            else:
                _judge(row, f"kill of {what}", trial, _MACHINE, "machine")
        # What the last killed tuner left is ended by the next run.
        _ended(box.tune(1), row, 400)
        row.close(box, kept)
    return row


SCENARIOS: dict[str, Callable[[Scale], Row]] = {
    "kill-tuner": kill_tuner,
    "kill-server": kill_server,
    "failures": failures,
    "garbage": garbage,
    "stop": stop_tuner,
    "stubborn": stubborn,
    "port": port_stolen,
    "old-server": old_server,
    "two": two_studies,
    "mlflow": mlflow_killed,
    "disk": disk_full,
    "locked": locked,
    "clock": clock_jump,
    "real": real,
}
