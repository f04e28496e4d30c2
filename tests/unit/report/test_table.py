"""The table of trials: the recorded format, extended, and read again by what replays it."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.model.candidate import Candidate, Exclusion
from tuner.model.history import History, Trial
from tuner.model.measurement import Estimate, Measurement, PointResult, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Objective
from tuner.report import write_table
from tuner.serving.table import read_table

GOOD = Outcome(
    candidate=Candidate(
        assignment={"n": 8},
        arguments={"max-num-seqs": 8, "compilation-config.cudagraph_mode": "NONE"},
        environment={"A": "1"},
    ),
    status=Status.MEASURED,
    objective=500.0,
    measurement=Measurement(
        metrics={"throughput/output": 500.0, "latency/ttft_p50": 120.0, "gpu/power_w": 300.0},
        objective=Estimate(value=500.0, low=-math.inf, high=math.inf, samples=(500.0,)),
        points=(
            PointResult(
                name="c8",
                metrics={},
                estimates={"throughput/output": Estimate(value=500.0, low=490.0, high=510.0, samples=(495.0, 505.0))},
            ),
        ),
    ),
    server=ServerReport(effective={"block-size": 128}, phases={"total": 12.5}, log_path="/x/server.log"),
    constraints={"start": -1.0},
    seconds={"total": 60.0},
)
BROKEN = Outcome(
    candidate=GOOD.candidate,
    status=Status.BROKEN,
    failure=Failure(kind="cuda-oom", cause="2 GiB missing", blame=Blame.CONFIGURATION, violation=2.0),
)
EXCLUDED = Outcome(
    candidate=GOOD.candidate, status=Status.EXCLUDED, exclusion=Exclusion(reason="needs 90 GiB", rule="memory")
)
INTERRUPTED = Outcome(candidate=GOOD.candidate, status=Status.INTERRUPTED)


def history() -> History:
    found = History(objective=Objective(), baseline_key="")
    for number, outcome in enumerate((GOOD, BROKEN, EXCLUDED, INTERRUPTED)):
        found.add(Trial(number=number, origin="search", outcome=outcome))
    return found


def test_lines_have_the_recorded_keys_and_more(tmp_path: Path) -> None:
    assert write_table(history(), tmp_path / "trials.jsonl") == 4
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    good = lines[0]
    assert good["config"] == {"max_num_seqs": 8, "compilation_config": {"cudagraph_mode": "NONE"}}
    assert good["output_tok_s"] == [495.0, 505.0]
    assert good["latency"] == {"ttft_p50": 0.12}
    assert good["start_s"] == 12.5
    assert good["log"] == "server.log"
    assert good["effective"] == {"block-size": 128}
    assert good["power_w"] == 300.0
    assert good["constraints"] == {"start": -1.0}
    assert good["interval"] == [None, None]
    assert "error" not in good
    assert lines[1]["error"] == "2 GiB missing"
    assert [line["status"] for line in lines] == ["measured", "broken", "excluded", "interrupted"]
    assert stat.S_IMODE((tmp_path / "trials.jsonl").stat().st_mode) == 0o600


def test_what_replays_tables_reads_it(tmp_path: Path) -> None:
    write_table(history(), tmp_path / "trials.jsonl")
    rows = read_table(tmp_path / "trials.jsonl").rows
    measured = [row for row in rows if row.failure is None]
    assert measured[0].metrics["throughput/output"] == 500.0
    assert measured[0].samples["throughput/output"] == (495.0, 505.0)
    assert [row.failure.kind for row in rows if row.failure is not None] == ["cuda-oom", "excluded:memory"]


def test_an_unwritable_place_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--table .* cannot be written"):
        write_table(history(), tmp_path / "no" / "trials.jsonl")


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "trials.jsonl").symlink_to(tmp_path / "there" / "real.jsonl")
    for _ in range(2):  # first it leads nowhere, then to a file
        assert write_table(history(), tmp_path / "trials.jsonl") == 4
        assert (tmp_path / "trials.jsonl").is_symlink()
        assert [path.name for path in (tmp_path / "there").iterdir()] == ["real.jsonl"]
        assert len((tmp_path / "there" / "real.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_stays_a_pipe(tmp_path: Path, linked: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    place = tmp_path / "link" if linked else pipe
    if linked:
        place.symlink_to(pipe)
    with pytest.raises(InputError, match=r"--table .*: is a pipe; name a file"):
        write_table(history(), place)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert place.is_symlink() == linked
    assert len(list(tmp_path.iterdir())) == 1 + linked


def test_what_lies_where_a_draft_was_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".trials.jsonl.tmp").symlink_to(tmp_path / "victim")
    write_table(history(), tmp_path / "trials.jsonl")
    assert (tmp_path / "victim").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".trials.jsonl.tmp", "trials.jsonl", "victim"]


def test_the_table_says_what_it_was_measured_on(tmp_path: Path) -> None:
    write_table(history(), tmp_path / "trials.jsonl", {"hardware": "h200", "model": "m", "workload": None})
    lines = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert {(line["hardware"], line["model"], "workload" in line) for line in lines} == {("h200", "m", False)}
    table = read_table(tmp_path / "trials.jsonl")
    assert (table.hardware, table.devices) == (("h200",), ("gpu",))


def test_several_load_points_are_kept_and_the_samples_are_their_mean(tmp_path: Path) -> None:
    points = tuple(
        PointResult(
            name=name,
            weight=weight,
            metrics={"throughput/output": value},
            estimates={
                "throughput/output": Estimate(value=value, low=0.0, high=1.0, samples=(value - 1.0, value + 1.0))
            },
        )
        for name, value, weight in (("c1", 50.0, 1.0), ("c8", 250.0, 3.0))
    )
    measurement = Measurement(metrics={"throughput/output": 200.0}, objective=None, points=points)
    found = History(objective=Objective(), baseline_key="")
    outcome = Outcome(candidate=GOOD.candidate, status=Status.MEASURED, objective=200.0, measurement=measurement)
    found.add(Trial(number=0, origin="search", outcome=outcome))
    write_table(found, tmp_path / "trials.jsonl")
    line = json.loads((tmp_path / "trials.jsonl").read_text())
    assert line["output_tok_s"] == [199.0, 201.0]
    assert line["points"] == [
        {"name": "c1", "weight": 1.0, "metrics": {"throughput/output": 50.0}},
        {"name": "c8", "weight": 3.0, "metrics": {"throughput/output": 250.0}},
    ]
    assert read_table(tmp_path / "trials.jsonl").metrics == {"throughput/output"}


def test_what_a_replay_estimated_is_left_out(tmp_path: Path) -> None:
    found = History(objective=Objective(), baseline_key="")
    for number, (outcome, mode) in enumerate(((GOOD, "replay"), (GOOD, "estimate"), (BROKEN, "estimate"))):
        found.add(Trial(number=number, origin="search", outcome=replace(outcome, server=ServerReport(mode=mode))))
    assert write_table(found, tmp_path / "trials.jsonl") == 1
    (line,) = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert (line["trial"], line["basis"]) == (0, "recorded")
