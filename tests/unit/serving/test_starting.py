"""Cold and warm starts of real processes; the warm parent imports a stand-in for vLLM, a few lines long."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.serving.processes import Tree, end_tree, identify, is_running
from tuner.serving.starting import ZYGOTE, WarmParent, WarmParentLost, start_cold

SERVER = """
import json, os, sys, time
if __name__ == "__main__":
    print("printed", flush=True)
    state = {"argv": sys.argv, "sid": os.getsid(0), "pid": os.getpid(), "cwd": os.getcwd(),
             "env": os.environ.get("CHILD"), "parent_env": os.environ.get("PARENT"),
             "loaded_in": sys.modules["vllm"].PID}
    open(os.environ["REPORT"], "w").write(json.dumps(state))
    action = os.environ.get("ACTION", "")
    if action == "sleep":
        time.sleep(600)
    if action == "crash":
        raise RuntimeError("root cause")
    if action.isdigit():
        sys.exit(int(action))
"""
CLI = """
import runpy, sys, time
def main():
    if sys.argv[1] == "serve":
        del sys.argv[1]
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
        return
    print("cli", sys.argv[1:])
    if "sleep" in sys.argv:
        time.sleep(600)
    sys.exit(3 if "fail" in sys.argv else 0)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A package ``vllm`` of which nothing but the names is real."""
    root = tmp_path / "site"
    files = {
        "vllm/__init__.py": "import os\nPID = os.getpid()\n__version__ = '0.0.fake'\nprint('noise on stdout')\n",
        "vllm/version.py": "__version__ = '0.0.fake'\n",
        "vllm/envs.py": "environment_variables = {}\n",
        "vllm/platforms.py": "class P:\n    def is_cpu(self): return True\ncurrent_platform = P()\n",
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/openai/__init__.py": "",
        "vllm/entrypoints/openai/api_server.py": SERVER,
        "vllm/entrypoints/cli/__init__.py": "",
        "vllm/entrypoints/cli/main.py": CLI,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def parent(site: Path, tmp_path: Path) -> Iterator[WarmParent]:
    made = WarmParent(
        (sys.executable,),
        ("vllm.entrypoints.openai.api_server", "vllm.not_there"),
        environment={**os.environ, "PYTHONPATH": str(site), "PARENT": "1"},
        log=tmp_path / "parent.log",
    )
    yield made
    made.close()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def run(parent: WarmParent, tmp_path: Path, action: str) -> tuple[int, dict[str, object], str]:
    report, log = tmp_path / "report.json", tmp_path / "server.log"
    handle = parent.start(
        "server",
        ["--port", "1"],
        environment={**os.environ, "REPORT": str(report), "ACTION": action, "CHILD": "2"},
        log=log,
        directory=tmp_path,
    )
    assert until(lambda: handle.poll() is not None)
    code = handle.poll()
    assert code is not None
    return code, json.loads(report.read_text()), log.read_text()


def test_forked_server_is_a_process_of_its_own(parent: WarmParent, tmp_path: Path) -> None:
    code, state, log = run(parent, tmp_path, "")
    assert code == 0
    assert state["argv"][1:] == ["--port", "1"]  # type: ignore[index]
    assert state["sid"] == state["pid"]
    assert state["loaded_in"] == parent.identity.pid  # imported once, in the parent
    assert (state["env"], state["parent_env"]) == ("2", None)  # exactly the environment asked for
    assert state["cwd"] == str(tmp_path)
    assert "printed" in log  # not into the parent's answers
    assert parent.version == "0.0.fake"
    assert any("vllm.not_there" in text for text in parent.missing)


@pytest.mark.parametrize(("action", "code", "text"), [("5", 5, ""), ("crash", 1, "RuntimeError: root cause")])
def test_exit_codes_and_tracebacks(parent: WarmParent, tmp_path: Path, action: str, code: int, text: str) -> None:
    got, _, log = run(parent, tmp_path, action)
    assert got == code
    assert text in log


def test_forked_server_can_be_ended(parent: WarmParent, tmp_path: Path) -> None:
    environment = {**os.environ, "REPORT": str(tmp_path / "r"), "ACTION": "sleep"}
    handle = parent.start("server", [], environment=environment, log=tmp_path / "log")
    assert until((tmp_path / "r").exists)
    assert handle.poll() is None
    assert end_tree(Tree(handle.identity, ""), grace_s=5.0) == ()
    assert until(lambda: handle.poll() == -signal.SIGTERM)
    assert parent.is_alive


def test_client_runs_where_vllm_has_no_distribution(parent: WarmParent, tmp_path: Path) -> None:
    log = tmp_path / "client.log"
    handle = parent.start("cli", ["bench", "serve", "fail"], environment=dict(os.environ), log=log)
    assert until(lambda: handle.poll() is not None)
    assert handle.poll() == 3
    assert "cli ['bench', 'serve', 'fail']" in log.read_text()


def test_closing_ends_what_was_forked(parent: WarmParent, tmp_path: Path) -> None:
    handle = parent.start("cli", ["sleep"], environment=dict(os.environ), log=tmp_path / "log")
    assert is_running(handle.identity)
    parent.close()
    parent.close()
    assert until(lambda: not is_running(handle.identity))
    assert not is_running(parent.identity)
    with pytest.raises(WarmParentLost):
        parent.start("cli", [], environment={}, log=tmp_path / "log")


def test_killed_parent_is_noticed(parent: WarmParent, tmp_path: Path) -> None:
    handle = parent.start("cli", ["sleep"], environment=dict(os.environ), log=tmp_path / "log")
    os.kill(parent.identity.pid, signal.SIGKILL)
    assert until(lambda: not parent.is_alive)
    assert handle.poll() is None  # the client itself lives
    assert end_tree(Tree(handle.identity, ""), grace_s=2.0) == ()
    assert until(lambda: handle.poll() is not None)
    with pytest.raises(WarmParentLost, match="died"):
        parent.start("cli", [], environment={}, log=tmp_path / "log")


def test_killed_tuner_takes_parent_and_children_along(site: Path, tmp_path: Path) -> None:
    """What a tuner that is gone had forked must not outlive it, even where nobody reruns it."""
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom tuner.serving.starting import WarmParent\n"
        "p = WarmParent((sys.executable,), ['vllm'], environment=dict(os.environ), log=Path(sys.argv[1]) / 'z.log')\n"
        "h = p.start('cli', ['sleep'], environment=dict(os.environ), log=Path(sys.argv[1]) / 'c.log')\n"
        "Path(sys.argv[1], 'pids').write_text(f'{p.identity.pid} {h.identity.pid}')\ntime.sleep(600)\n"
    )
    paths = f"{Path(__file__).parents[3]}:{site}"
    tuner = start_cold(
        [sys.executable, "-c", code, str(tmp_path)],
        environment={**os.environ, "PYTHONPATH": paths},
        log=tmp_path / "tuner.log",
    )
    assert until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
    left = [identify(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
    os.kill(tuner.identity.pid, signal.SIGKILL)
    assert until(lambda: tuner.poll() == -signal.SIGKILL)
    assert until(lambda: not any(item is not None and is_running(item) for item in left))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("import nothing_of_the_kind_here.at_all", "refused|ended|import"),
        ("import sys; sys.exit(4)", "ended while importing"),
    ],
)
def test_vllm_that_cannot_be_imported(site: Path, tmp_path: Path, broken: str, message: str) -> None:
    (site / "vllm/__init__.py").write_text(broken)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    if "sys.exit" in broken:
        with pytest.raises(WarmParentLost, match=message):
            WarmParent((sys.executable,), ["vllm"], environment=environment, log=tmp_path / "log")
        return
    made = WarmParent((sys.executable,), ["vllm"], environment=environment, log=tmp_path / "log")
    assert made.missing  # a server forked from it will say why, in its own log
    made.close()


def test_parent_that_has_cuda_in_use_refuses(site: Path, tmp_path: Path) -> None:
    (site / "torch").mkdir()
    (site / "torch/__init__.py").write_text("class cuda:\n    is_initialized = staticmethod(lambda: True)\n")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    with pytest.raises(WarmParentLost, match="initialised CUDA"):
        WarmParent((sys.executable,), ["vllm", "torch"], environment=environment, log=tmp_path / "log")


def test_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WarmParentLost, match="cannot be started"):
        WarmParent(("/no/such/python",), [], environment={}, log=tmp_path / "log")
    with pytest.raises(FileNotFoundError):
        start_cold(["/no/such/program"], environment={}, log=tmp_path / "log")


def test_cold_client(site: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    handle = start_cold(
        [sys.executable, str(ZYGOTE), "cli", "bench"], environment={**os.environ, "PYTHONPATH": str(site)}, log=log
    )
    assert until(lambda: handle.poll() is not None)
    assert handle.poll() == 0
    assert "cli ['bench']" in log.read_text()
    assert (log.stat().st_mode & 0o777) == 0o600
