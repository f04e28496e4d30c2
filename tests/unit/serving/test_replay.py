from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import InputError
from tuner.model.candidate import Candidate
from tuner.model.hardware import Hardware
from tuner.model.outcome import Outcome, Status
from tuner.model.records import to_record
from tuner.model.workload import Limit, Objective
from tuner.ports import TrialContext
from tuner.serving.replay import ReplayRunner
from tuner.serving.table import flatten, read_table

ROWS: list[dict[str, Any]] = [
    {"mode": "offline", "config": {}, "start_s": 90.7, "output_tok_s": [16888.3, 17325.6]},
    {"mode": "offline", "config": {"max_num_seqs": 256}, "start_s": 55.9, "output_tok_s": [10944.2, 10926.8]},
    {"mode": "offline", "config": {"max_num_seqs": 512, "kv_cache_dtype": "fp8"}, "start_s": 124.6,
     "output_tok_s": [23050.7], "metrics": {"vllm:num_preemptions": 0}},
    {"mode": "offline", "config": {"max_num_seqs": 256, "block_size": 24}, "start_s": 6.6,
     "error": "ValueError: No valid attention backend found"},
    {"mode": "server", "config": {"max_num_seqs": 64}, "output_tok_s": [3330.7], "latency": {"ttft_p50": 16.41}},
]  # fmt: skip
OBJECTIVE = Objective()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "trials.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n")
    return path


def run(runner: ReplayRunner, arguments: dict[str, Any], number: int = 1) -> Outcome:
    context = TrialContext(number=number, directory=Path("unused"), seed=number)
    return runner.run(Candidate(assignment={}, arguments=arguments), context, lambda *_: None)


def test_recorded_configurations_come_back(table: Path) -> None:
    runner = ReplayRunner(table, objective=OBJECTIVE, noise=0.0)
    assert runner.kind == "replay"
    got = run(runner, {"max-num-seqs": 256})
    assert got.status is Status.MEASURED
    assert got.objective == pytest.approx(10935.5)
    assert got.seconds["start"] == 55.9
    assert got.server is not None
    assert got.server.mode == "replay"
    assert got.measurement is not None
    assert "not measured" in got.measurement.notes[0]
    assert run(runner, {}).objective == pytest.approx(17106.95)


def test_recorded_failures_come_back(table: Path) -> None:
    got = run(ReplayRunner(table, objective=OBJECTIVE), {"max-num-seqs": 256, "block-size": 24})
    assert got.status is Status.BROKEN
    assert got.failure is not None
    assert "No valid attention backend" in got.failure.cause
    assert got.seconds["start"] == 6.6


def test_between_the_rows_is_between_their_values(table: Path) -> None:
    got = run(ReplayRunner(table, objective=OBJECTIVE, noise=0.0), {"max-num-seqs": 384, "kv-cache-dtype": "fp8"})
    assert got.objective is not None
    assert 10_900 < got.objective < 23_051
    assert got.measurement is not None
    assert "estimated" in got.measurement.notes[0]


def test_noise_is_repeatable_and_differs_by_trial(table: Path) -> None:
    one, two = (ReplayRunner(table, objective=OBJECTIVE, seed=7) for _ in range(2))
    assert run(one, {}).objective == run(two, {}).objective
    assert run(one, {}, 1).objective != run(one, {}, 2).objective
    assert run(ReplayRunner(table, objective=OBJECTIVE, seed=8), {}).objective != run(one, {}).objective


def test_noise_is_the_tables_own(table: Path) -> None:
    # Two rows with two runs each: 1.81 % and 0.11 %.
    assert read_table(table).noise("throughput/output") == pytest.approx(0.0096, rel=0.01)


def test_modes_are_not_mixed(table: Path) -> None:
    assert read_table(table).context == "offline"
    server = read_table(table, context="server")
    assert server.rows[0].metrics == {"throughput/output": 3330.7, "latency/ttft_p50": 16410.0}
    with pytest.raises(InputError, match="it has: offline, server"):
        read_table(table, context="both")


def test_objective_must_be_in_the_table(table: Path) -> None:
    with pytest.raises(InputError, match="does not hold latency/ttft_p99"):
        ReplayRunner(table, objective=Objective(metric="latency/ttft_p99", maximize=False))


def test_records_are_rows(tmp_path: Path, table: Path) -> None:
    runner = ReplayRunner(table, objective=OBJECTIVE, noise=0.0)
    outcomes = [run(runner, {"max-num-seqs": 256}), run(runner, {"max-num-seqs": 256, "block-size": 24})]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(to_record(outcome)) + "\n" for outcome in outcomes))
    again = ReplayRunner(path, objective=OBJECTIVE, noise=0.0)
    assert run(again, {"max-num-seqs": 256}).objective == pytest.approx(outcomes[0].objective)
    assert run(again, {"max-num-seqs": 256, "block-size": 24}).failure == outcomes[1].failure


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("[]", "not a JSON object"),
        ("{", "line 1"),
        ('{"config": 3}', "neither config nor arguments"),
        ('{"config": {}}', "neither metrics nor a failure"),
        ('{"config": {}, "output_tok_s": ["fast"]}', "line 1"),
        ('{"config": {}, "output_tok_s": NaN}', "NaN"),
        ('{"config": {}, "failure": {"cause": "x", "blame": "god"}}', "god"),
        ('{"config": {}, "error": "no"}', "no measured trial"),
        ("", "no measured trial"),
    ],
)
def test_bad_tables_name_the_line(tmp_path: Path, line: str, part: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(InputError, match=part):
        read_table(path)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path / "none.jsonl")


def test_flatten_spells_one_setting_one_way() -> None:
    assert flatten({"compilation_config": {"cudagraph_mode": "NONE"}}) == flatten(
        {"compilation-config.cudagraph_mode": "NONE"}
    )
    assert flatten({"--enable_x": True, "sizes": [1, 2], "n": 3}) == {"enable-x": "true", "sizes": "[1,2]", "n": 3.0}


def test_what_the_table_does_not_hold_is_an_estimate(table: Path) -> None:
    runner = ReplayRunner(table, objective=OBJECTIVE, noise=0.0)
    near = run(runner, {"max-num-seqs": 300})
    assert near.server is not None
    assert near.server.mode == "estimate"
    assert near.server.warnings[0].startswith(
        "nothing was started: estimated from the 3 nearest recorded configurations ("
    )
    failed = run(runner, {"max-num-seqs": 250, "block-size": 24})
    assert failed.status is Status.BROKEN
    assert failed.server is not None
    assert failed.server.mode == "estimate"


def test_neighbours_that_failed_have_their_say(tmp_path: Path) -> None:
    oom = {"failure": {"kind": "oom", "cause": "no memory", "violation": 1.0}}
    good = {"metrics": {"throughput/output": 100.0}}
    # A configuration that was recorded thrice has no more voices than one that was recorded once.
    recorded = [(64, good), (200, good), (230, oom), (240, oom), (512, oom), (200, good), (200, good)]
    path = tmp_path / "edges.jsonl"
    path.write_text("".join(json.dumps({"arguments": {"batch": batch}, **what}) + "\n" for batch, what in recorded))
    runner = ReplayRunner(path, objective=OBJECTIVE, noise=0.0)
    # 200 is the nearest of 214, but 230 and 240 weigh more together.
    for batch in (214, 260, 500):
        got = run(runner, {"batch": batch})
        assert got.failure is not None
        assert (got.status, got.failure.kind, got.failure.violation) == (Status.BROKEN, "oom", 1.0)
        assert got.failure.cause == "no memory (by the replay's estimate)"
    assert run(runner, {"batch": 205}).objective == pytest.approx(100.0)
    recorded_one = run(runner, {"batch": 512})
    assert recorded_one.failure is not None
    assert recorded_one.failure.cause == "no memory"


CPU = Hardware(name="cpu", platform="cpu", device="CPU", memory_gib=32.0, bandwidth_gb_s=100.0)
H200 = Hardware(name="h200", platform="cuda", device="NVIDIA H200", memory_gib=139.8, bandwidth_gb_s=4800.0)


@pytest.mark.parametrize(
    ("more", "hardware", "says"),
    [
        ({"hardware": "h200"}, CPU, "was recorded on h200, which says nothing of cpu; give --hardware h200"),
        ({"effective": {"device": "cuda"}}, CPU, "was recorded on a GPU, and cpu is a CPU"),
        ({"power_w": 553.9}, CPU, "was recorded on a GPU, and cpu is a CPU"),
        ({"effective": {"device": "cpu"}}, H200, "was recorded on a CPU, and h200 is a GPU"),
    ],
)
def test_another_machines_table_is_refused(more: dict[str, Any], hardware: Hardware, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text(json.dumps({**ROWS[0], **more}) + "\n")
    with pytest.raises(InputError, match=says):
        ReplayRunner(path, objective=OBJECTIVE, hardware=hardware)


def test_the_right_table_is_taken_and_a_nameless_one_on_trust(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "named.jsonl"
    path.write_text(json.dumps({**ROWS[0], "hardware": "h200", "power_w": 500.0}) + "\n")
    assert ReplayRunner(path, objective=OBJECTIVE, hardware=H200).notes == ()
    (note,) = ReplayRunner(table, objective=OBJECTIVE, hardware=CPU).notes
    assert note == "trials.jsonl does not name its hardware: that it is cpu is taken on trust"


def test_load_points_of_a_table_are_replayed_one_by_one(tmp_path: Path) -> None:
    def row(seqs: int, alone: float, company: float) -> dict[str, Any]:
        points = [
            {"name": "c1", "weight": 1.0, "metrics": {"throughput/output": alone, "latency/ttft_p99": 10.0}},
            {"name": "c16", "weight": 3.0, "metrics": {"throughput/output": company}},
            {"name": "c8", "metrics": {"throughput/output": 2 * alone}},
        ]
        return {"arguments": {"max-num-seqs": seqs}, "metrics": {"throughput/output": 100.0}, "points": points}

    path = tmp_path / "sweep.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in (row(64, 50.0, 200.0), row(256, 60.0, 400.0))) + "\n")
    got = run(ReplayRunner(path, objective=OBJECTIVE, noise=0.0), {"max-num-seqs": 256}).measurement
    assert got is not None
    assert [(point.name, point.weight) for point in got.points] == [("c1", 1.0), ("c8", 1.0), ("c16", 3.0)]
    assert [point.metrics["throughput/output"] for point in got.points] == pytest.approx([60.0, 120.0, 400.0])
    assert got.points[0].metrics["latency/ttft_p99"] == 10.0
    assert set(got.metrics) == {"throughput/output"}
    near = run(ReplayRunner(path, objective=OBJECTIVE, noise=0.0), {"max-num-seqs": 128}).measurement
    assert near is not None
    assert 50.0 < near.points[0].metrics["throughput/output"] < 60.0


def test_names_of_a_table_hold_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    path = tmp_path / "red.jsonl"
    names = {"mode": "m\x1b[31m", "hardware": "h\x1b[31m", "failure": {"cause": "c\x1b[31m", "kind": "k\x07"}}
    good = {"mode": "m\x1b[31m", "config": {}, "output_tok_s": [1.0]}
    path.write_text("\n".join(json.dumps(item) for item in ({"config": {"a": 1}, **names}, good)))
    row = read_table(path, context="m").rows[0]
    assert row.failure is not None
    assert (row.hardware, row.failure.cause, row.failure.kind) == ("h", "c", "k")


@pytest.mark.parametrize("points", [{"c1": 1}, [{"name": "a"}, {"weight": 1}], [{"name": "a"}] * 65])
def test_load_points_that_are_none_name_their_line(tmp_path: Path, points: Any) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"arguments": {}, "metrics": {"throughput/output": 1.0}, "points": points}) + "\n")
    with pytest.raises(InputError, match=r"line 1 is not a recorded trial: .*load point"):
        read_table(path)


def candidate(**arguments: Any) -> Candidate:
    return Candidate(assignment={}, arguments={name.replace("_", "-"): value for name, value in arguments.items()})


def table_of(path: Path, *rows: tuple[dict[str, Any], Any]) -> Path:
    told = [
        {
            "arguments": arguments,
            **({"error": what} if isinstance(what, str) else {"metrics": {"throughput/output": what}}),
        }
        for arguments, what in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in told))
    return path


BACKENDS = [
    *(({"backend": "alpha", "batch": batch}, 100.0 + batch) for batch in (8, 16, 32, 64)),
    *(({"backend": "gamma_2", "batch": batch}, f"gamma_2 needs {batch} of nothing") for batch in (8, 32, 64)),
]


def test_a_setting_with_which_everything_failed_is_estimated_to_fail(tmp_path: Path) -> None:
    runner = ReplayRunner(table_of(tmp_path / "t.jsonl", *BACKENDS), objective=OBJECTIVE, noise=0.0)
    got = run(runner, {"backend": "gamma_2", "batch": 48, "more": "text"})
    assert got.failure is not None
    assert got.server is not None
    assert got.failure.cause == "gamma_2 needs 64 of nothing (by the replay's estimate)"
    said = "nothing was started: estimated: all 3 recorded configurations with backend=gamma_2 failed in t.jsonl"
    assert got.server.warnings == (said,)


def test_failures_of_a_setting_that_it_does_not_have_do_not_concern_a_configuration(tmp_path: Path) -> None:
    rows = [*BACKENDS, ({"backend": "delta", "batch": 16}, "ValueError: delta is no backend")]
    runner = ReplayRunner(table_of(tmp_path / "t.jsonl", *rows), objective=OBJECTIVE, noise=0.0)
    got = run(runner, {"backend": "beta", "batch": 16})
    assert got.objective is not None
    assert 108.0 < got.objective < 164.0
    assert got.server is not None
    assert "(the nearest differs in 1 setting: backend)" in got.server.warnings[0]


def test_what_repeats_a_default_is_what_leaves_it_away(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t.jsonl", ({"seqs": 128}, 100.0), ({}, 50.0), ({"seqs": 128, "ratio": 0.5}, 120.0))
    runner = ReplayRunner(
        path, objective=OBJECTIVE, noise=0.0, defaults=candidate(seqs=256, ratio=0.9), baseline=candidate(length=9)
    )
    # What all candidates carry and no row tells of is passed over.
    assert runner.notes == ()
    for asked, value in (({"seqs": 256}, 50.0), ({"seqs": 128, "ratio": 0.9}, 100.0), ({"length": 9}, 50.0)):
        got = run(runner, {"length": 9, **asked})
        assert (got.objective, got.server and got.server.mode) == (pytest.approx(value), "replay")
    near = run(runner, {"length": 9, "seqs": 130, "ratio": 0.9})
    assert near.server is not None
    assert near.server.warnings[0].endswith("(the nearest differs in 1 setting: seqs) in t.jsonl")


def test_a_setting_that_the_table_never_speaks_of_is_not_recorded(tmp_path: Path) -> None:
    runner = ReplayRunner(table_of(tmp_path / "t.jsonl", ({"seqs": 8}, 100.0)), objective=OBJECTIVE, noise=0.0)
    got = run(runner, {"seqs": 8, "never": 3})
    assert got.server is not None
    assert got.server.mode == "estimate"
    assert "estimated from the only one that ran (it differs in 1 setting: never)" in got.server.warnings[0]


def test_a_table_without_the_defaults_says_so(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t.jsonl", ({"seqs": 128}, 100.0))
    notes = ReplayRunner(path, objective=OBJECTIVE, baseline=candidate()).notes
    assert notes == ("t.jsonl does not hold the defaults: what everything is compared with is estimated too",)


def test_estimates_of_another_replay_are_no_recorded_trials(tmp_path: Path, table: Path) -> None:
    estimated = run(ReplayRunner(table, objective=OBJECTIVE, noise=0.0), {"max-num-seqs": 300})
    rows = [
        to_record(estimated),
        {"arguments": {"seqs": 1}, "basis": "estimated", "metrics": {"throughput/output": 9.0}},
    ]
    path = tmp_path / "again.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, ROWS[0]]))
    runner = ReplayRunner(path, objective=OBJECTIVE)
    assert (runner.rows, runner.failed, runner.unused) == (1, 0, 2)


def test_the_best_recorded_configuration_keeps_the_limits(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [({}, 50.0, 9.0), ({"seqs": 8}, 90.0, 9.0), ({"seqs": 8}, 110.0, 9.0), ({"seqs": 9}, 200.0, 99.0)]
    path.write_text(
        "".join(
            json.dumps({"arguments": asked, "metrics": {"throughput/output": value, "latency/ttft_p99": wait}}) + "\n"
            for asked, value, wait in rows
        )
    )
    runner = ReplayRunner(path, objective=OBJECTIVE)
    free, kept = runner.best(), runner.best([Limit(metric="latency/ttft_p99", bound=10.0)])
    assert free is not None
    assert kept is not None
    assert (free.value, free.lines) == (pytest.approx(200.0), (4,))
    assert (kept.value, kept.lines) == (pytest.approx((90.0 * 110.0) ** 0.5), (2, 3))
    assert runner.is_of(candidate(seqs=8), kept)
    assert not runner.is_of(candidate(seqs=9), kept)
    assert runner.best([Limit(metric="latency/tpot_p99", bound=10.0)]) is None
