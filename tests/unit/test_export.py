"""The exported files: what vLLM reads is what was measured, and nothing half-written stays behind."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tuner.errors import InputError, RunError
from tuner.export import ExportResult, differences, export_winner
from tuner.model.candidate import Candidate
from tuner.model.history import History, Judgement, Trial
from tuner.model.measurement import Estimate, Measurement, QualityReport
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Objective

SECRET = "hf_" + "Qq7R" * 6
WINNER = Candidate(
    assignment={"max_num_seqs": 64},
    arguments={
        "max-num-seqs": 64,
        "enable-prefix-caching": False,
        "enforce-eager": True,
        "kv-cache-memory-bytes": "1G",
        "gpu-memory-utilization": 0.9,
        "compilation-config.cudagraph_mode": "NONE",
        "compilation-config.pass_config": {"fuse_norm_quant": False},
        "served-model-name": ["a", "b"],
        "quantization": None,
        "port": 9999,
        "api_key": SECRET,
        "host": "0.0.0.0",  # noqa: S104
    },
    environment={"OMP_NUM_THREADS": "2", "A": "b c", "HF_TOKEN": SECRET},
)
BASELINE = Candidate(assignment={}, arguments={}, origin="baseline")
ABOUT: dict[str, Any] = {
    "name": "s",
    "model": "org/tiny",
    "hardware": "cpu",
    "workload": "batch",
    "versions": {"vllm": "0.32.0", "tune": "0.1.0"},
    "facts": {"kind": "vllm", "device": "EPYC"},
    "limits": [{"metric": "latency/ttft_p99", "bound": 500, "at_most": True}],
}
BETTER = Judgement(
    verdict="better", gain=0.64, low=0.6, high=0.68, basis="starts", challenger_starts=3, baseline_starts=2
)
READ = {
    "model": "org/tiny",
    "max_num_seqs": 64,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 30,
    "gpu_memory_utilization": 0.9,
    "compilation_config": {"cudagraph_mode": "NONE", "pass_config": {"fuse_norm_quant": False}, "level": 3},
    "served_model_name": ["a", "b"],
    "dtype": "auto",
}


def measured(candidate: Candidate, value: float) -> Outcome:
    return Outcome(
        candidate=candidate,
        status=Status.MEASURED,
        objective=value,
        measurement=Measurement(
            metrics={"throughput/output": value, "latency/ttft_p99": 120.0},
            objective=Estimate(value=value, low=value, high=value, samples=(value, value)),
        ),
        quality=QualityReport(passed=True, metrics={"accuracy/score": 0.61, "accuracy/score_se": 0.03}),
    )


def history() -> History:
    found = History(objective=Objective(), baseline_key=BASELINE.key)
    found.add(Trial(number=0, origin="baseline", outcome=measured(BASELINE, 500.0)))
    found.add(Trial(number=7, origin="search", outcome=measured(WINNER, 820.0)))
    return found


def export(output: Path, **changes: Any) -> ExportResult:
    past = history()
    arguments: dict[str, Any] = {
        "about": ABOUT,
        "history": past,
        "contender": past.winner(),
        "judgement": BETTER,
        "output": output,
        "reader": lambda path: READ,
        **changes,
    }
    return export_winner(arguments.pop("candidate", WINNER), **arguments)


def test_the_yaml_is_what_vllm_serve_reads(tmp_path: Path) -> None:
    result = export(tmp_path / "best.yaml")
    assert result.checked
    assert yaml.safe_load((tmp_path / "best.yaml").read_text()) == {
        "model": "org/tiny",
        "max-num-seqs": 64,
        "no-enable-prefix-caching": True,
        "enforce-eager": True,
        "kv-cache-memory-bytes": "1G",
        "gpu-memory-utilization": 0.9,
        "compilation-config": {"cudagraph_mode": "NONE", "pass_config": {"fuse_norm_quant": False}},
        "served-model-name": ["a", "b"],
    }
    assert "left to the deployment: api-key, host, port" in result.notes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.env", "best.yaml"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_the_header_says_what_was_measured_on_what(tmp_path: Path) -> None:
    export(tmp_path / "best.yaml")
    text = (tmp_path / "best.yaml").read_text()
    header = text[: text.index("model: org/tiny\n")]
    assert all(line.startswith("#") for line in header.splitlines())
    for part in (
        "vllm serve --config best.yaml",
        "Study:     s, trial 7",
        "cpu (EPYC)",
        "vllm 0.32.0",
        "throughput/output 820 tok/s; vLLM's defaults: 500 tok/s",
        "+64.0%, 99 % interval +60.0% to +68.0% (over 3 server starts against 2). Verdict: better.",
        "latency/ttft_p99 <= 500, measured 120",
        "0.610 ± 0.030",
        "read back by the parser of vLLM 0.32.0",
        "OMP_NUM_THREADS=2",
    ):
        assert part in header


def test_the_environment_goes_beside_and_secrets_stay_home(tmp_path: Path) -> None:
    result = export(tmp_path / "best.yaml")
    env = (tmp_path / "best.env").read_text()
    assert "OMP_NUM_THREADS=2\n" in env
    assert "A='b c'\n" in env
    assert "# HF_TOKEN: secret, set it yourself\n" in env
    assert SECRET not in env + (tmp_path / "best.yaml").read_text() + str(result)
    assert any("HF_TOKEN" in note for note in result.notes)


def test_a_file_read_differently_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text("precious")
    read = {**READ, "max_num_seqs": 256, "enable_prefix_caching": None}
    with pytest.raises(RunError, match=r"max-num-seqs becomes 256 instead of 64") as caught:
        export(tmp_path / "best.yaml", reader=lambda path: read)
    assert "no-enable-prefix-caching becomes null instead of false" in str(caught.value)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("best.yaml", "precious")]


def test_a_file_the_parser_refuses_is_not_written(tmp_path: Path) -> None:
    def refuse(path: Path) -> Mapping[str, Any]:
        assert path.suffix == ".yaml"
        raise InputError("vLLM's parser refuses the arguments: unrecognized")

    with pytest.raises(InputError, match="refuses"):
        export(tmp_path / "best.yaml", reader=refuse)
    assert list(tmp_path.iterdir()) == []


def test_unchecked_says_so(tmp_path: Path) -> None:
    result = export(tmp_path / "best.yml", reader=None, judgement=None)
    assert not result.checked
    assert "NOT read back" in (tmp_path / "best.yml").read_text()
    assert any("no comparison" in note for note in result.notes)


@pytest.mark.parametrize("kind", ["replay", "external"])
def test_what_was_not_measured_on_vllm_here_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(RunError, match="no measured vLLM configuration") as refusal:
        export(tmp_path / "best.yaml", about={**ABOUT, "facts": {"kind": kind}})
    assert refusal.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_what_a_command_measured_is_written_by_force_and_says_so(tmp_path: Path) -> None:
    export(tmp_path / "best.yaml", about={**ABOUT, "facts": {"kind": "external"}}, force=True)
    assert "# Measured by a trial command, NOT by tune" in (tmp_path / "best.yaml").read_text()
    with pytest.raises(RunError, match="measure it without --replay"):
        export(tmp_path / "replay.yaml", about={**ABOUT, "facts": {"kind": "replay"}}, force=True)


@pytest.mark.parametrize("force", [False, True])
def test_settings_of_another_engine_are_no_export_by_force_either(tmp_path: Path, force: bool) -> None:
    def refuse(_: Path) -> Mapping[str, Any]:
        raise InputError("vLLM's parser refuses the arguments: unrecognized arguments: --threads")

    def silent(_: Path) -> Mapping[str, Any]:
        return {"model": "org/tiny"}

    for reader in (refuse, silent):
        with pytest.raises(RunError, match=r"measured by your own command .* nothing for vllm serve to run") as refusal:
            export(tmp_path / "best.yaml", about={**ABOUT, "facts": {"kind": "external"}}, force=force, reader=reader)
        assert "`tune report --json`" in str(refusal.value)
        assert "--force" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["best.yaml", "best.env"])
def test_a_pipe_in_the_place_stays_a_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=rf"--output .*{name}: is a pipe; name a file"):
        export(tmp_path / "best.yaml")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert stat.S_ISFIFO((tmp_path / name).stat().st_mode)


def test_links_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "releases").mkdir()
    (tmp_path / "best.yaml").symlink_to("releases/v1.conf")
    result = export(tmp_path / "best.yaml")
    assert (tmp_path / "best.yaml").is_symlink()
    assert yaml.safe_load((tmp_path / "releases" / "v1.conf").read_text())["max-num-seqs"] == 64
    assert result.env == tmp_path / "best.env"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["best.env", "best.yaml", "releases", "v1.conf"]


def test_no_significant_gain_is_noted(tmp_path: Path) -> None:
    same = Judgement(
        verdict="no significant difference",
        gain=0.01,
        low=-math.inf,
        high=math.inf,
        basis="rounds",
        challenger_starts=1,
        baseline_starts=1,
    )
    result = export(tmp_path / "best.yaml", judgement=same)
    assert "against vLLM's defaults: no significant difference" in result.notes
    text = (tmp_path / "best.yaml").read_text()
    assert "from rounds of one server start each, not confirmed" in text
    assert "# NOT PROVEN better than vLLM's defaults: exported on request." in text
    export(tmp_path / "good.yaml")
    assert "NOT PROVEN" not in (tmp_path / "good.yaml").read_text()


def test_a_limit_that_is_missed_is_said_in_the_header(tmp_path: Path) -> None:
    past = history()
    limits = [{"metric": "latency/ttft_p99", "bound": 100.0, "at_most": True}]
    missing = replace(past.trials[1].outcome, constraints={"limit:latency/ttft_p99": 0.2})
    past.trials[1] = replace(past.trials[1], outcome=missing)
    export(tmp_path / "best.yaml", history=past, contender=None, judgement=None, about={**ABOUT, "limits": limits})
    assert "# MISSES its limits: ttft_p99 120 > 100 ms." in (tmp_path / "best.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("best.json", "reads .yaml and .yml only"), ("no/best.yaml", "there is no folder"), ("dir.yaml", "is a folder")],
)
def test_places_that_cannot_be(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / "dir.yaml").mkdir()
    with pytest.raises(InputError, match=complaint):
        export(tmp_path / name)


def test_secrets_in_settings_are_refused(tmp_path: Path) -> None:
    leaky = Candidate(assignment={}, arguments={"kv-transfer-config": {"url": f"http://u:{SECRET}@h"}})
    with pytest.raises(InputError, match="holds a secret"):
        export(tmp_path / "best.yaml", candidate=leaky)


@pytest.mark.parametrize(
    ("asked", "read", "same"),
    [
        (64, 64, True),
        (64, 64.5, False),
        ("2k", 2000, True),
        ("2K", 2048, True),
        ("auto", "AUTO", True),
        (3, "O3", True),
        (True, True, True),
        (True, 1, False),
        ("FULL", None, False),
        ([1, 2], [1, 2], True),
        ([1, 2], [1], False),
        ("a", ["a"], True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": 3}, True),
        ({"a": 1}, {"b": 1}, False),
        (['{"a":1}'], [{"a": 1, "b": 2}], True),
    ],
)
def test_what_counts_as_the_same(asked: Any, read: Any, same: bool) -> None:
    assert (differences({"x": asked}, {"x": read}) == []) is same


def test_an_unknown_setting_is_a_difference() -> None:
    assert differences({"no-such": 1}, {}) == ["no-such is no setting of it"]


def test_the_checkpoint_that_was_chosen_is_written(tmp_path: Path) -> None:
    candidate = Candidate(assignment={"checkpoint": "fp8"}, arguments={"model": "org/tiny-fp8", "max-num-seqs": 64})
    output = tmp_path / "best.yaml"
    result = export(output, candidate=candidate, contender=None, judgement=None, reader=None)
    assert yaml.safe_load(output.read_text()) == {"model": "org/tiny-fp8", "max-num-seqs": 64}
    assert "# Model:     org/tiny-fp8\n" in output.read_text()
    assert not any("left to the deployment" in note for note in result.notes)


def test_several_objectives_and_what_it_is_best_at_stand_in_the_header(tmp_path: Path) -> None:
    past = history()
    past.further = (Objective(metric="latency/ttft_p99", maximize=False, unit="ms"),)
    export(tmp_path / "best.yaml", history=past, purpose="load point c8\n           of c1, c8")
    header = (tmp_path / "best.yaml").read_text()
    assert "# Best at:   load point c8\n#            of c1, c8\n" in header
    assert "#            latency/ttft_p99 120 ms; vLLM's defaults: 120 ms (trial 7)\n" in header
