"""When to go on, what to throw away, when to stop: with scripted rounds."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.measuring import session as module
from tuner.measuring.bench import failed
from tuner.measuring.rounds import Round
from tuner.measuring.session import Session, Settings
from tuner.measuring.warmup import WarmUp
from tuner.model.measurement import Measurement
from tuner.model.outcome import Blame, Failure
from tuner.model.workload import Limit, LoadPoint, Objective, Workload
from tuner.ports import MeasurementFailed, Reference

WORKLOAD = Workload(name="w", source="text", points=(LoadPoint(concurrency=8),), rounds=(2, 5), precision=0.02)
OUTPUT = Objective()


def good(rate: float, **metrics: float) -> Round:
    values = {"throughput/output": rate, "latency/ttft_p99": 100.0, "engine/kv_usage_max": rate / 1000, **metrics}
    return Round(metrics=values, throughput=rate, artifacts=("r.json",), steps=((8.0, 0.01),))


def spoiled(kind: str, rate: float = 400.0) -> Round:
    return replace(good(rate), spoiled=failed(kind, "because", blame=Blame.MACHINE, retry=True))


class Runner:
    """Plays rounds in order; the last one again and again."""

    def __init__(self, *rounds: Round | Failure) -> None:
        self.rounds = list(rounds)
        self.calls: list[dict[str, Any]] = []
        self.resets = 0
        self.server = self.compiled = None
        self.supply = SimpleNamespace(skipped=0)
        self.api = SimpleNamespace(reset_prefix_cache=self.reset)
        self.expected_rate = 0.0

    def reset(self) -> bool:
        self.resets += 1
        return True

    def run(self, point: LoadPoint, **options: Any) -> Round:
        self.calls.append({"point": point.name, **options})
        item = self.rounds[min(len(self.calls), len(self.rounds)) - 1]
        if isinstance(item, Failure):
            raise MeasurementFailed(item)
        return item


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    done = WarmUp(waves=2, rate=400.0, pace=0.02, steady=True, seconds=3.0, notes=("as warm as it gets",))
    monkeypatch.setattr(module, "warm_up", lambda *arguments, **options: done)


def measure(
    *rounds: Round | Failure,
    workload: Workload = WORKLOAD,
    reference: Reference | None = None,
    limits: tuple[Limit, ...] = (),
    objective: Objective = OUTPUT,
    runner: Runner | None = None,
) -> Measurement:
    settings = Settings(
        workload=workload,
        objective=objective,
        limits=limits,
        noise_floor=0.01,
        alpha=0.05,
        warmup_waves=2,
        warmup_limit_s=1.0,
        stall_s=1.0,
    )
    return Session(
        settings=settings,
        runner=runner or Runner(*rounds),  # type: ignore[arg-type]
        seed=1,
        progress=lambda phase, detail: None,
        reference=reference,
    ).measure()


def test_rounds_go_on_until_the_interval_is_tight() -> None:
    result = measure(good(400), good(408), good(402), good(404), good(401))
    assert result.points[0].rounds == 4  # t(df 3) x 3.42 / 2 = 5.4: 1.3 % of 403.5; after three it was 2.6 %
    assert result.complete
    assert result.objective is not None
    assert result.objective.samples == (400, 408, 402, 404)
    assert result.metrics["throughput/output"] == pytest.approx(403.5)
    assert result.points[0].estimates["throughput/output"] == result.objective
    assert "engine/kv_usage_max" not in result.points[0].estimates
    assert result.steps == ((8.0, 0.01),)
    assert result.notes == ("as warm as it gets",)
    assert result.seconds["warmup"] == 3.0


def test_rounds_end_at_the_limit() -> None:
    assert measure(good(400), good(440), good(380), good(420), good(390)).points[0].rounds == 5


def test_no_seed_and_no_file_is_used_twice() -> None:
    runner = Runner(good(400), spoiled("slowdown"), good(440), good(380), good(420))
    measure(runner=runner)
    assert len({call["seed"] for call in runner.calls}) == len(runner.calls) == 6
    assert len({call["stem"] for call in runner.calls}) == 6


@pytest.mark.parametrize("kind", ["prefix-cache-warm", "slowdown", "compiled-while-measuring"])
def test_a_spoiled_round_is_thrown_away_and_named(kind: str) -> None:
    runner = Runner(good(400), spoiled(kind, 1000), good(401))
    result = measure(runner=runner)
    assert result.objective is not None
    assert result.objective.samples == (400, 401)
    assert f"c8: a round was thrown away ({kind}): because" in result.notes
    assert runner.resets == (kind == "prefix-cache-warm")


def test_random_tokens_start_every_round_with_an_empty_cache() -> None:
    runner = Runner(good(400), good(401))
    measure(runner=runner, workload=replace(WORKLOAD, source="random"))
    assert runner.resets == len(runner.calls) == 2


def test_what_spoils_every_round_fails_the_trial() -> None:
    with pytest.raises(MeasurementFailed) as caught:
        measure(spoiled("prefix-cache-warm"))
    assert caught.value.failure.kind == "prefix-cache-warm"


def test_slowdown_twice_running_is_how_the_server_is() -> None:
    runner = Runner(good(400), spoiled("slowdown"), spoiled("slowdown"))
    with pytest.raises(MeasurementFailed) as caught:
        measure(runner=runner)
    assert caught.value.failure.kind == "slowdown"
    assert len(runner.calls) == 3
    assert caught.value.partial is not None
    assert caught.value.partial.objective is not None
    assert not caught.value.partial.complete


def test_endless_compiling_is_kept_and_said() -> None:
    result = measure(spoiled("compiled-while-measuring"))
    assert result.complete
    assert any("was kept although because" in note for note in result.notes)


def test_one_low_round_is_thrown_away() -> None:
    result = measure(good(400), good(402), good(250), good(401), workload=replace(WORKLOAD, rounds=(3, 3)))
    assert result.objective is not None
    assert result.objective.samples == (400, 402, 401)
    assert any("(slowdown): 250 tok/s after 400, 402" in note for note in result.notes)


def test_throughput_that_stays_down_fails_the_trial() -> None:
    with pytest.raises(MeasurementFailed, match="fell and stayed down: 255 tok/s after 400") as caught:
        measure(good(400), good(250), good(255))
    assert caught.value.failure.kind == "slowdown"
    assert caught.value.failure.blame is Blame.MACHINE
    assert caught.value.failure.retry


def test_a_first_round_that_was_not_warm_is_thrown_away() -> None:
    result = measure(good(300), good(400), good(401))
    assert result.objective is not None
    assert result.objective.samples == (400, 401)
    assert any("not-yet-warm" in note for note in result.notes)


def test_failure_carries_what_was_measured_before() -> None:
    with pytest.raises(MeasurementFailed) as caught:
        measure(good(400), failed("requests-failed", "1 of 8 requests failed"))
    assert caught.value.partial is not None
    assert caught.value.partial.metrics["throughput/output"] == 400
    with pytest.raises(MeasurementFailed) as caught:
        measure(failed("requests-failed", "8 of 8 requests failed"))
    assert caught.value.partial is None


def test_clearly_behind_is_stopped_between_rounds() -> None:
    runner = Runner(good(300))
    result = measure(runner=runner, reference=Reference(value=400, samples=(400, 402, 398)))
    assert len(runner.calls) == 1
    assert not result.complete
    assert result.bound is not None
    assert 300 < result.bound < 310
    assert any("clearly behind the best (400 tok/s)" in note for note in result.notes)


def test_slightly_behind_is_measured_to_the_end() -> None:
    reference = Reference(value=400, samples=(400, 402, 398))
    assert measure(good(396), good(395), reference=reference).complete


def test_baseline_is_never_stopped() -> None:
    limit = Limit(metric="latency/ttft_p99", bound=1.0)
    assert measure(good(400), good(401), limits=(limit,)).complete


def test_a_broken_limit_ends_a_challenger() -> None:
    limit = Limit(metric="latency/ttft_p99", bound=50.0)
    result = measure(good(400), good(401), limits=(limit,), reference=Reference(value=390, samples=(390, 391)))
    assert not result.complete
    assert result.bound is not None
    assert result.metrics["latency/ttft_p99"] == 100
    assert "stopped after round 2: ttft_p99 is 100, the limit 50 ms" in result.notes


def test_latency_objective_is_bounded_from_below() -> None:
    objective = Objective(metric="latency/ttft_p99", maximize=False, unit="ms")
    result = measure(
        good(400, **{"latency/ttft_p99": 200.0}),
        objective=objective,
        reference=Reference(value=100, samples=(100, 101, 99)),
    )
    assert result.bound is not None
    assert 190 < result.bound < 200


def test_early_stop_within_a_round() -> None:
    runner = Runner(Round(bound=222.0, metrics={"latency/ttft_p99": 7.0}, steps=((4.0, 0.5),)))
    result = measure(runner=runner, reference=Reference(value=400, samples=(400, 402, 398)))
    assert (result.bound, result.complete, result.objective) == (222.0, False, None)
    assert result.metrics == {"latency/ttft_p99": 7.0}
    assert result.steps == ((4.0, 0.5),)
    assert result.notes[-1] == "stopped within the first round: no better than 222 tok/s"
    assert runner.calls[0]["race"]["reference"] == (400, 402, 398)


@pytest.mark.parametrize(
    ("workload", "objective", "reference"),
    [
        (WORKLOAD, OUTPUT, None),
        (WORKLOAD, Objective(metric="latency/ttft_p99", maximize=False), Reference(value=100)),
        (replace(WORKLOAD, points=(LoadPoint(concurrency=1), LoadPoint(concurrency=2))), OUTPUT, Reference(value=400)),
    ],
)
def test_no_race_where_the_rest_cannot_be_bounded(
    workload: Workload, objective: Objective, reference: Reference | None
) -> None:
    runner = Runner(good(400), good(401), good(400), good(401))
    measure(runner=runner, workload=workload, objective=objective, reference=reference)
    assert all(call["race"] is None for call in runner.calls)


def test_points_are_weighted_and_take_turns() -> None:
    points = (LoadPoint(concurrency=1, weight=3), LoadPoint(concurrency=2, weight=1))
    runner = Runner(good(100), good(500), good(101), good(502))
    result = measure(runner=runner, workload=replace(WORKLOAD, points=points))
    assert [call["point"] for call in runner.calls] == ["c1", "c2", "c1", "c2"]
    assert result.objective is not None
    assert result.objective.samples == (200, 201.25)
    assert result.metrics["throughput/output"] == pytest.approx(200.625)
    assert result.metrics["engine/kv_usage_max"] == pytest.approx(0.501)


def test_unmeasured_objective_is_the_users_choice() -> None:
    with pytest.raises(MeasurementFailed, match="cost/joules_per_mtok was not measured") as caught:
        measure(good(400), objective=Objective(metric="cost/joules_per_mtok", maximize=False))
    assert caught.value.failure.blame is Blame.USER
