"""Secrets put into every place where one can enter a study are found in nothing that the study writes or shows."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import ROOT, Sandbox

ENTRY = {
    # Shapes as their issuers make them; the middle is what is searched for, so that half a secret counts as well.
    "HF_TOKEN": "hf_PlantedHubToken0123456789abcdef",
    "OPENAI_API_KEY": "sk-PlantedOpenAiKey0123456789",
    "VLLM_API_KEY": "PlantedServerKey",
    "AWS_SECRET_ACCESS_KEY": "PlantedAwsSecret",
    "MLFLOW_TRACKING_PASSWORD": "PlantedMlflowPassword",
}
GIVEN = {"MY_SERVICE_TOKEN": "PlantedEnvOption", "PLAIN_NAME": "hf_PlantedPlainValue0123456789"}
NEEDLES = (
    "PlantedHubToken", "PlantedOpenAiKey", "PlantedServerKey", "PlantedAwsSecret", "PlantedMlflowPassword",
    "PlantedEnvOption", "PlantedPlainValue", "PlantedTrackingPassword", "PlantedStoragePassword",
)  # fmt: skip


def _command_lines(box: Sandbox) -> set[bytes]:
    found = set()
    for pid in box.processes():
        with contextlib.suppress(OSError):
            found.add(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def _server_key(pid: int) -> str:
    with contextlib.suppress(OSError):
        for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if item.startswith(b"VLLM_API_KEY="):
                return item.partition(b"=")[2].decode()
    return ""


def _leaks(folder: Path, needles: tuple[str, ...], skip: tuple[str, ...] = ()) -> list[str]:
    """Files (databases byte by byte) that hold a needle."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in skip:
            data = path.read_bytes()
            found += [f"{path.relative_to(folder)}: {needle}" for needle in needles if needle.encode() in data]
    return found


@pytest.fixture(scope="module")
def study() -> Iterator[tuple[Sandbox, set[bytes], set[str]]]:
    """A finished study with secrets in its environment and its options; command lines seen; keys of its servers."""
    with Sandbox.make(environment=dict(ENTRY)) as box:
        options = [word for name, value in GIVEN.items() for word in ("--env", f"{name}={value}")]
        tune = box.tune(2, *options)
        lines: set[bytes] = set()
        keys: set[str] = set()
        deadline = time.monotonic() + 150
        while tune.process.poll() is None and time.monotonic() < deadline:
            # The tuner's own command line is the user's doing: what was typed there is there.
            own = Path(f"/proc/{tune.process.pid}/cmdline")
            with contextlib.suppress(OSError):
                lines |= _command_lines(box) - {own.read_bytes()}
            keys |= {key for launch in box.launches() if (key := _server_key(launch["pid"]))}
            time.sleep(0.05)
        assert tune.wait(10) == 0, tune.text()[-2000:]
        yield box, lines, keys


def test_nothing_that_was_written_holds_a_secret(study: tuple[Sandbox, set[bytes], set[str]]) -> None:
    box, _, keys = study
    assert keys, "the server's own key was never seen: the test looks at the wrong process"
    assert _leaks(box.folder, (*NEEDLES, *keys)) == []


def test_no_command_line_holds_a_secret(study: tuple[Sandbox, set[bytes], set[str]]) -> None:
    _, lines, keys = study
    assert any(b"fake_vllm" in line for line in lines)
    assert [(line, needle) for line in lines for needle in (*NEEDLES, *keys) if needle.encode() in line] == []


def test_the_server_gets_what_was_given(study: tuple[Sandbox, set[bytes], set[str]]) -> None:
    box, _, _ = study
    assert all(set(GIVEN) <= set(launch["variables"]) for launch in box.launches())


def test_files_are_for_their_owner_only(study: tuple[Sandbox, set[bytes], set[str]]) -> None:
    box, _, _ = study
    assert (box.directory / box.study).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--storage", "postgresql://user:PlantedStoragePassword@127.0.0.1:9/db"),
        ("--storage", "nonsense://user:PlantedStoragePassword@127.0.0.1:9/db"),
        ("--tracking-uri", "nonsense://user:PlantedTrackingPassword@127.0.0.1:9/db"),
    ],
)
def test_errors_do_not_repeat_a_password(option: str, value: str) -> None:
    with Sandbox.make() as box:
        tune = box.tune(1, option, value)
        assert tune.wait(60) != 0
        assert not tune.traceback, tune.text()[-2000:]
        assert _leaks(box.folder, NEEDLES) == []


def test_a_password_for_a_tracker_that_is_down_stays_out_of_everything() -> None:
    with Sandbox.make(tracking="http://user:PlantedTrackingPassword@127.0.0.1:9") as box:
        tune = box.tune(1)
        assert tune.wait(150) == 0, tune.text()[-2000:]
        assert _leaks(box.folder, NEEDLES) == []


@pytest.mark.parametrize("flag", ["api-key=PlantedServerKey", "hf-token=hf_PlantedHubToken0123456789"])
def test_a_secret_as_a_flag_is_refused_or_kept_out(flag: str) -> None:
    with Sandbox.make() as box:
        done = subprocess.run(
            [*box.argv(1), "--arg", flag], env=box.variables(), cwd=ROOT, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        assert not [needle for needle in NEEDLES if needle in done.stdout + done.stderr]
        assert _leaks(box.folder, NEEDLES) == []


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"\x00\xffPlantedHubToken\x00")
    assert _leaks(tmp_path, NEEDLES) == ["a.db: PlantedHubToken"]
