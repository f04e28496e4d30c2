"""What a server is started with: flags, environment, and what of it may be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.candidate import Candidate
from tuner.serving.command import Settings, build, default_base, environment, import_time
from tuner.serving.processes import MARKER
from tuner.serving.starting import ZYGOTE

CANDIDATE = Candidate(
    assignment={},
    arguments={"max-num-seqs": 64, "enable-prefix-caching": False, "compilation-config.cudagraph_mode": "PIECEWISE"},
    environment={"VLLM_CPU_OMP_THREADS_BIND": "0-1", "MY_TOKEN": "hush"},
)


def settings(**changes: object) -> Settings:
    values: dict[str, object] = {"model": "org/name", "base": default_base(("python3",)), "environment": {}}
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


def flags(made: Settings) -> tuple[str, ...]:
    return build(CANDIDATE, made, port=8123, served_name="tune-abc", key="k3y", marker="m").argv


def test_default_command() -> None:
    assert flags(settings(tokenizer="tok", trust_remote_code=True)) == (
        *("python3", str(ZYGOTE), "serve", "org/name"),
        *("--host", "127.0.0.1", "--port", "8123", "--served-model-name", "tune-abc"),
        *("--tokenizer", "tok", "--trust-remote-code", "--max-num-seqs", "64", "--no-enable-prefix-caching"),
        *("--compilation-config", '{"cudagraph_mode":"PIECEWISE"}'),
    )


@pytest.mark.parametrize(
    ("base", "begins"),
    [
        (("vllm", "serve"), ("vllm", "serve", "org/name", "--host")),
        (("docker", "run", "img", "--model={model}"), ("docker", "run", "img", "--model=org/name", "--host")),
        (("./start.sh",), ("./start.sh", "--model", "org/name", "--host")),
    ],
)
def test_users_own_command(base: tuple[str, ...], begins: tuple[str, ...]) -> None:
    assert flags(settings(base=base))[: len(begins)] == begins


def test_what_is_shown_is_what_a_person_can_type() -> None:
    command = build(CANDIDATE, settings(), port=1, served_name="n", key="k3y", marker="m")
    shown = command.printable(CANDIDATE, {})
    assert shown[2:7] == ("vllm", "serve", "org/name", "--host", "127.0.0.1")
    own = build(CANDIDATE, settings(base=("./start.sh",)), port=1, served_name="n", key="k3y", marker="m")
    assert own.printable(CANDIDATE, {})[2:4] == ("./start.sh", "--model")


def test_flags_that_only_tell_more_give_way_to_the_candidate() -> None:
    observing = settings(observe=("jit-monitor-verbose", "enable-prefix-caching"))
    made = flags(observing)
    assert "--jit-monitor-verbose" in made
    assert "--enable-prefix-caching" not in made  # the candidate says no


def test_key_is_in_the_environment_only() -> None:
    command = build(CANDIDATE, settings(), port=1, served_name="n", key="k3y", marker="m")
    assert command.environment["VLLM_API_KEY"] == "k3y"
    assert "k3y" not in " ".join(command.argv)
    shown = " ".join(command.printable(CANDIDATE, {"HF_TOKEN": "hf_secret", "A": "1"}))
    assert "k3y" not in shown
    assert "hush" not in shown
    assert "hf_secret" not in shown
    assert "A=1" in shown
    assert "VLLM_CPU_OMP_THREADS_BIND=0-1" in shown


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "users-own")
    monkeypatch.setenv(MARKER, "of-another-study")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    made = environment(
        settings(model=str(tmp_path), environment={"X": "study"}, devices=(2, 3), cache=tmp_path),
        CANDIDATE,
        key="",
        marker="mine",
    )
    assert made[MARKER] == "mine"
    assert list(made)[-1] == MARKER
    assert made["HF_TOKEN"] == "users-own"
    assert made["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert made["VLLM_SERVER_DEV_MODE"] == "1"
    assert made["HF_HUB_OFFLINE"] == "1"  # the model is a folder here
    assert made["VLLM_CACHE_ROOT"] == str(tmp_path)
    assert made["X"] == "study"
    assert "VLLM_API_KEY" not in made
    assert "HF_HUB_OFFLINE" not in environment(settings(), None, key="", marker="m")


def test_what_may_be_read_at_import_gets_its_own_parent() -> None:
    some = {"OMP_NUM_THREADS": "2", "VLLM_CPU_OMP_THREADS_BIND": "0-1", "NCCL_P2P_DISABLE": "1", "VLLM_NEW": "1"}
    assert import_time(some) == {"OMP_NUM_THREADS": "2", "VLLM_NEW": "1"}
