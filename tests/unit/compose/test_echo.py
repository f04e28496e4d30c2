"""What is said back before a study runs: bounds with units, and what is probably not meant."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from tuner.compose.echo import about_values, budget_line, check_inputs, doubts
from tuner.compose.options import Options
from tuner.errors import InputError
from tuner.model.hardware import Hardware
from tuner.spaces import open_plan

GPU = Hardware(name="h200", platform="cuda", device="NVIDIA H200", memory_gib=140, bandwidth_gb_s=4800)
CPU = Hardware(name="cpu", platform="cpu", device="some CPU", memory_gib=16, bandwidth_gb_s=20)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (Options(hardware="cpu", budget="10"), "budget: 10 s"),
        (Options(hardware="cpu", budget="1h30m"), "budget: 90 min"),
        (Options(hardware="cpu"), "budget: 2 h (the default)"),
        (Options(hardware="cpu", trials=1), "budget: 1 trial"),
        (Options(hardware="cpu", trials=9, budget="3h"), "budget: 9 trials or 3 h, whichever comes first"),
    ],
)
def test_the_budget_is_said_with_its_unit(options: Options, line: str) -> None:
    assert budget_line(options) == line


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("ttft_p99>=5s", ["demands at least 5,000 ms of ttft_p99, of which less is better; probably <= is meant"]),
        ("throughput<=2000", ["demands at most 2,000 tok/s of throughput, of which more is better; probably >= is"]),
        ("ttft_p99<=5s", []),
        ("throughput>=2000", []),
        ("accuracy=0.5", []),
    ],
)
def test_a_limit_on_the_good_side_is_doubted(limit: str, says: list[str]) -> None:
    found = doubts(Options(hardware="h200", limits=(limit,)), GPU)
    assert len(found) == len(says)
    assert all(part in sentence for part, sentence in zip(says, found, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        Options(hardware="cpu", objective="energy"),
        Options(hardware="cpu", further=("energy",)),
        Options(hardware="cpu", limits=("energy=5000",)),
    ],
)
def test_energy_is_doubted_where_no_gpu_counts_it(options: Options) -> None:
    assert [text.partition(",")[0] for text in doubts(options, CPU)] == ["energy is read from the counters of GPUs"]
    assert doubts(options, GPU) == []
    assert doubts(dataclasses.replace(options, trial_command="mine"), CPU) == []


def test_goodput_without_a_latency_to_keep_is_refused_as_the_load_generator_would() -> None:
    plan = open_plan("h200")
    for options in (
        Options(hardware="h200", objective="goodput"),
        Options(hardware="h200", further=("goodput",)),
        Options(hardware="h200", objective="goodput", limits=("ttft_p99>=5s",)),
    ):
        with pytest.raises(InputError, match=re.escape("add an upper --limit on ttft, tpot or e2e")):
            check_inputs(options, plan)
    check_inputs(Options(hardware="h200", objective="goodput", limits=("ttft_p99=500ms",), check_quality=False), plan)
    check_inputs(Options(hardware="h200", objective="goodput", trial_command="mine"), plan)


def test_the_budget_as_values() -> None:
    values = about_values(Options(hardware="h200", budget="10"), open_plan("h200").workload)
    assert values["budget"] == {"seconds": 10.0, "trials": None}


@pytest.mark.parametrize("line", ['{"prompt": "x", "output_tokens": 0}', '{"prompt": " "}', '{"prompt": "x", "'])
@pytest.mark.parametrize("command", [None, "mine"])
def test_the_traffic_file_of_a_yaml_workload_is_read_before_anything_runs(
    tmp_path: Path, line: str, command: str | None
) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "fine"}\n' + line)
    workload = tmp_path / "w.yaml"
    workload.write_text("schema: 1\nworkload: {source: jsonl, path: mine.jsonl}\n")
    plan = open_plan("h200", workload=str(workload))
    options = Options(hardware="h200", trial_command=command, check_quality=False)
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / 'mine.jsonl'}:2: ")):
        check_inputs(options, plan)


def test_where_a_command_measures_the_traffic_may_lie_elsewhere(tmp_path: Path) -> None:
    workload = tmp_path / "w.yaml"
    workload.write_text("schema: 1\nworkload: {source: jsonl, path: far-away.jsonl}\n")
    plan = open_plan("h200", workload=str(workload))
    check_inputs(Options(hardware="h200", trial_command="mine"), plan)
    with pytest.raises(InputError, match="No such file"):
        check_inputs(Options(hardware="h200", check_quality=False), plan)
