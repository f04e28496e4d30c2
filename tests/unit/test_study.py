"""The loop against in-memory ports: order of work, budgets, retries, resume, confirmation, interrupts."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

import pytest

from tuner.account import Account
from tuner.errors import InputError, StudyStopped
from tuner.interrupts import Interrupts
from tuner.measuring.statistics import compare
from tuner.model.candidate import Candidate, Exclusion
from tuner.model.json import Json, Scalar
from tuner.model.measurement import Estimate, Measurement, PointResult, QualityReport, ServerReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Limit, LoadPoint, Objective, Workload
from tuner.ports import Past, Progress, StudyInfo, Suggestion, TrialContext
from tuner.study import Budget, Study


@dataclass
class MemoryOptimizer:
    """Suggests ``x`` from a list; keeps what it is told, like a storage does."""

    xs: Sequence[int] = tuple(range(1, 100))
    told: list[Past] = field(default_factory=list)
    gain: float | None = None
    plain: Mapping[str, Scalar] | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _asked: dict[int, Suggestion] = field(default_factory=dict)

    def ask(self, origin: str = "search", assignment: Mapping[str, Scalar] | None = None) -> Suggestion:
        if assignment is None:
            used = {p.assignment.get("x") for p in self.told if p.status not in ("disturbed", "interrupted")}
            left = [x for x in self.xs if x not in used]
            if not left:
                raise StudyStopped("nothing left")
            assignment = {"x": left[0]}
        suggestion = Suggestion(number=next(self._numbers), assignment=dict(assignment), origin=origin)
        self._asked[suggestion.number] = suggestion
        return suggestion

    def tell(self, number: int, outcome: Outcome, record: Mapping[str, Json]) -> None:
        suggestion = self._asked.pop(number)  # a second tell of the same trial fails here
        self.told.append(
            Past(
                number=number,
                assignment=suggestion.assignment,
                origin=suggestion.origin,
                status=outcome.status.value,
                objective=outcome.objective,
                constraints=outcome.constraints,
                record=record,
            )
        )

    def past(self) -> Sequence[Past]:
        return tuple(self.told)

    def expected_gain(self) -> float | None:
        return self.gain

    def plainer(self, assignment: Mapping[str, Scalar]) -> Mapping[str, Scalar] | None:
        return self.plain


class LinePlanner:
    """One parameter ``x``; values above 90 are excluded; even and odd neighbours run the same."""

    def baseline(self) -> Candidate:
        return Candidate(assignment={}, arguments={}, origin="baseline")

    def starts(self) -> Sequence[Candidate]:
        return [self.render({"x": 50}, origin="start:recipe")]

    def render(self, assignment: Mapping[str, Scalar], *, origin: str = "search") -> Candidate:
        return Candidate(assignment=dict(assignment), arguments={"max-num-seqs": assignment["x"]}, origin=origin)

    def exclusion(self, candidate: Candidate) -> Exclusion | None:
        x = candidate.assignment.get("x", 0)
        return Exclusion(reason=f"x {x} is above 90", rule="x", violation=2.0) if int(str(x)) > 90 else None

    def identity(self, candidate: Candidate) -> str:
        return candidate.key

    def doubts(self, candidate: Candidate) -> Sequence[float]:
        return ()

    def effective_identity(self, candidate: Candidate, effective: Mapping[str, Json]) -> str:
        return str(effective.get("seqs"))

    def forecast(self, candidate: Candidate) -> Mapping[str, float]:
        return {"kv-cache-tokens": 1000.0}

    def numerics(self, candidate: Candidate) -> str:
        return "same"


@dataclass
class TableRunner:
    """Answers from a function; plays failures for single candidates."""

    value: Callable[[int], float] = lambda x: 100.0 + x
    play: Mapping[int, Sequence[Outcome | BaseException]] = field(default_factory=dict)
    noise: float = 0.002
    seconds: float = 10.0
    ran: list[tuple[int, str, TrialContext]] = field(default_factory=list)
    closed: int = 0
    kind: str = "replay"

    def run(self, candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
        x = int(str(candidate.assignment.get("x", 0)))
        earlier = sum(1 for seen, _, _ in self.ran if seen == x)
        self.ran.append((x, candidate.origin, context))
        progress("measuring", "round 1")
        script = list(self.play.get(x, ()))
        if earlier < len(script):
            step = script[earlier]
            if isinstance(step, BaseException):
                raise step
            return step
        effective = {"seqs": x // 2 * 2 if x > 60 else x}
        server = ServerReport(effective=effective)
        twin = context.twin(candidate, effective) if context.twin else None
        if twin is not None:
            return Outcome(candidate=candidate, status=Status.DUPLICATE, twin=twin, server=server)
        mean = self.value(x)
        samples = tuple(mean * (1 + self.noise * math.sin(context.seed + k)) for k in range(3))
        value = fmean(samples)
        return Outcome(
            candidate=candidate,
            status=Status.MEASURED,
            objective=value,
            measurement=Measurement(
                metrics={"throughput/output": value, "latency/ttft_p99": 10.0 * x},
                objective=Estimate(value=value, low=value * 0.99, high=value * 1.01, samples=samples),
            ),
            quality=context.known_quality or QualityReport(passed=True, metrics={"accuracy/score": 0.6}),
            server=server,
            seconds={"total": self.seconds},
        )

    def close(self) -> None:
        self.closed += 1


@dataclass
class Notes:
    """Tracker and observer in one: keeps what it hears."""

    events: list[tuple[object, ...]] = field(default_factory=list)

    def open(self, info: StudyInfo) -> None:
        self.events.append(("open", info.name))

    def trial_started(self, number: int, candidate: Candidate, **kwargs: object) -> None:
        self.events.append(("started", number))

    def trial_ended(self, number: int, outcome: Outcome, *, is_best: bool, directory: Path | None = None) -> None:
        self.events.append(("ended", number, outcome.status, is_best))

    def study_ended(self, status: str, summary: Mapping[str, Json], artifacts: Sequence[Path]) -> None:
        self.events.append(("over", status))

    def phase(self, phase: str, detail: str) -> None:
        self.events.append(("phase", phase))

    def resumed(self, baseline: float | None, best: float | None) -> None:
        self.events.append(("resumed", baseline, best))

    def message(self, text: str) -> None:
        self.events.append(("message", text))


def _study(
    tmp_path: Path,
    *,
    runner: TableRunner | None = None,
    optimizer: MemoryOptimizer | None = None,
    budget: Budget | None = None,
    limits: tuple[Limit, ...] = (),
    further: tuple[Objective, ...] = (),
) -> tuple[Study, TableRunner, MemoryOptimizer, Notes]:
    runner, optimizer, notes = runner or TableRunner(), optimizer or MemoryOptimizer(), Notes()
    study = Study(
        info=StudyInfo(
            name="line",
            hardware="cpu",
            model="m",
            workload=Workload(name="w"),
            objective=Objective(),
            limits=limits,
            further=further,
            directory=tmp_path,
        ),
        planner=LinePlanner(),
        optimizer=optimizer,
        runner=runner,
        tracker=notes,
        observer=notes,
        compare=compare,
        budget=budget or Budget(trials=12),
    )
    return study, runner, optimizer, notes


def _failed(kind: str, blame: Blame, *, retry: bool = False) -> Outcome:
    failure = Failure(kind=kind, cause=f"{kind} at 1.5 GiB", blame=blame, retry=retry, violation=1.5, advice="Do less.")
    status = Status.DISTURBED if blame is Blame.MACHINE else Status.BROKEN
    candidate = Candidate(assignment={"x": 1}, arguments={"max-num-seqs": 1})
    return Outcome(candidate=candidate, status=status, failure=failure, seconds={"total": 3.0})


def test_the_order_is_baseline_starts_search_confirmation(tmp_path: Path) -> None:
    study, _, optimizer, notes = _study(tmp_path)
    result = study.run()
    origins = [p.origin for p in optimizer.told]
    assert origins[0] == "baseline"
    assert origins[1] == "start:recipe"
    assert set(origins[2:8]) == {"search"}
    assert origins[8:] == ["confirm"] * 4
    assert len(origins) == 12
    assert result.judgement is not None
    assert result.judgement.verdict == "better"
    assert result.judgement.gain == pytest.approx(0.5, abs=0.02)
    assert (result.judgement.basis, result.judgement.challenger_starts) == ("starts", 2)
    assert notes.events[-1] == ("over", "FINISHED")


def test_confirmation_takes_turns_with_the_baseline_and_uses_fresh_seeds(tmp_path: Path) -> None:
    study, runner, _, _ = _study(tmp_path)
    study.run()
    assert [x for x, _, _ in runner.ran[-4:]] == [50, 0, 0, 50]
    seeds = [context.seed for _, _, context in runner.ran]
    assert len(set(seeds)) == len(seeds)
    assert all(context.reference is None for _, _, context in runner.ran[-4:])


def test_a_configuration_against_itself_is_no_gain(tmp_path: Path) -> None:
    study, _, _, _ = _study(tmp_path, runner=TableRunner(value=lambda _: 100.0, noise=0.01), budget=Budget(trials=14))
    judgement = study.run().judgement
    assert judgement is not None
    assert judgement.verdict == "no significant difference"


def test_a_broken_baseline_ends_the_study_with_its_cause(tmp_path: Path) -> None:
    broken = _failed("kv-too-small", Blame.CONFIGURATION)
    study, runner, optimizer, notes = _study(tmp_path, runner=TableRunner(play={0: [broken]}))
    with pytest.raises(StudyStopped, match=r"baseline cannot run: kv-too-small at 1\.5 GiB\. Do less\."):
        study.run()
    assert len(runner.ran) == 1
    assert runner.closed == 1
    assert optimizer.told[0].constraints["start"] == 1.5
    assert notes.events[-1] == ("over", "FAILED")


def _dead(xs: Sequence[int], blame: Blame = Blame.CONFIGURATION) -> dict[int, list[Outcome]]:
    """Each of these candidates fails alike."""
    broken = _failed("attn-invalid", blame)
    return {
        x: [replace(broken, candidate=Candidate(assignment={"x": x}, arguments={"max-num-seqs": x}))] * 3 for x in xs
    }


def test_a_dead_region_does_not_end_a_study_in_which_others_work(tmp_path: Path) -> None:
    study, runner, _, _ = _study(tmp_path, runner=TableRunner(play=_dead(range(1, 16))), budget=Budget(trials=24))
    result = study.run()
    assert result.reason == "the budget of 24 trials is spent"
    assert [x for x, _, _ in runner.ran][:20] == [0, 50, *range(1, 19)]


def test_a_study_in_which_all_candidates_fail_alike_ends(tmp_path: Path) -> None:
    study, runner, _, _ = _study(
        tmp_path, runner=TableRunner(play=_dead([50, *range(1, 30)])), budget=Budget(trials=50)
    )
    with pytest.raises(StudyStopped, match=r"8 candidates in a row failed alike .the space is at fault."):
        study.run()
    assert [x for x, _, _ in runner.ran] == [0, 50, *range(1, 8)]


def test_a_long_row_of_one_cause_ends_even_a_study_that_had_measured(tmp_path: Path) -> None:
    study, runner, _, _ = _study(tmp_path, runner=TableRunner(play=_dead(range(1, 30))), budget=Budget(trials=50))
    with pytest.raises(StudyStopped, match="16 candidates in a row failed alike"):
        study.run()
    assert len(runner.ran) == 18


def test_three_trials_in_a_row_are_enough_where_the_input_is_at_fault(tmp_path: Path) -> None:
    study, runner, _, _ = _study(tmp_path, runner=TableRunner(play=_dead(range(1, 30), Blame.USER)))
    with pytest.raises(StudyStopped, match=r"3 trials in a row failed alike .the input is at fault."):
        study.run()
    assert [x for x, _, _ in runner.ran] == [0, 50, 1, 2, 3]


def test_a_disturbed_trial_is_run_again_but_not_for_ever(tmp_path: Path) -> None:
    port = _failed("port", Blame.MACHINE, retry=True)
    study, runner, optimizer, _ = _study(tmp_path, runner=TableRunner(play={1: [port], 2: [port] * 9}))
    with pytest.raises(StudyStopped, match="the machine is at fault"):
        study.run()
    tries = [x for x, _, _ in runner.ran]
    assert tries == [0, 50, 1, 1, 2, 2, 2]
    statuses = [p.status for p in optimizer.told if p.assignment.get("x") == 1]
    assert statuses == ["disturbed", "measured"]


def test_excluded_candidates_cost_nothing_and_duplicates_take_the_twins_result(tmp_path: Path) -> None:
    study, runner, optimizer, _ = _study(
        tmp_path, optimizer=MemoryOptimizer(xs=(95, 70, 71, 72, 73, 74, 75)), budget=Budget(trials=10)
    )
    study.run()
    by_x = {p.assignment.get("x"): p for p in optimizer.told if p.origin == "search"}
    assert by_x[95].status == "excluded"
    assert by_x[95].constraints["start"] == 2.0
    assert by_x[71].status == "duplicate"
    assert by_x[71].objective == by_x[70].objective
    launched = [p for p in optimizer.told if p.status == "measured"]
    assert [p.assignment.get("x", 0) for p in launched if p.origin != "confirm"] == [0, 50, 70, 72, 74]
    assert 95 not in [x for x, _, _ in runner.ran]


def test_a_limit_keeps_a_faster_configuration_from_winning(tmp_path: Path) -> None:
    study, _, _, _ = _study(tmp_path, limits=(Limit(metric="latency/ttft_p99", bound=40.0),))
    winner = study.run().history.winner()
    assert winner is not None
    assert winner.candidate.assignment == {"x": 4}


def test_ctrl_c_closes_the_trial_in_flight_and_the_run(tmp_path: Path) -> None:
    study, runner, optimizer, notes = _study(tmp_path, runner=TableRunner(play={3: [KeyboardInterrupt()]}))
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert optimizer.told[-1].status == "interrupted"
    assert runner.closed == 1
    assert notes.events[-1] == ("over", "KILLED")


@pytest.mark.parametrize("first", range(7))
def test_an_interrupt_at_any_line_leaves_no_trial_open(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between asking and launching, while a trial is closed, at the very end: a store must not say RUNNING for ever."""
    closed = 0
    for line in range(first, 4000, 7):
        interrupts = Interrupts()
        monkeypatch.setattr("tuner.study.interrupts", interrupts)
        study, _, optimizer, notes = _study(tmp_path / str(line), budget=Budget(trials=4))
        left = itertools.count(line, -1)

        def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
            if not frame.f_code.co_filename.endswith(("tuner/study.py", "tuner/account.py")):
                return None
            if event == "line" and next(left) == 0:  # noqa: B023 - called before the loop goes on
                interrupts(2, None)  # noqa: B023
            return trace

        sys.settrace(trace)
        try:
            study.run()
        except KeyboardInterrupt:
            closed += 1
        finally:
            sys.settrace(None)
        if not interrupts.seen:
            break
        assert not optimizer._asked, f"line event {line}"
        started = [event[1] for event in notes.events if event[0] == "started"]
        ended = [event[1] for event in notes.events if event[0] == "ended"]
        assert set(started) <= set(ended), f"line event {line}"
        assert ("open", "line") not in notes.events or notes.events[-1][0] == "over"
    assert closed > 20


def test_a_cut_off_study_goes_on_with_what_it_had_left(tmp_path: Path) -> None:
    optimizer = MemoryOptimizer()
    study, _, _, _ = _study(tmp_path, optimizer=optimizer, runner=TableRunner(play={3: [KeyboardInterrupt()]}))
    with pytest.raises(KeyboardInterrupt):
        study.run()
    again, runner, _, _ = _study(tmp_path, optimizer=optimizer)
    again.run()
    assert [x for x, _, _ in runner.ran][:2] == [3, 4]
    assert sum(p.status == "measured" for p in optimizer.told) == 12


def test_a_finished_study_goes_on_with_a_fresh_budget(tmp_path: Path) -> None:
    optimizer = MemoryOptimizer()
    first, _, _, _ = _study(tmp_path, optimizer=optimizer)
    first.run()
    again, runner, _, _ = _study(tmp_path, optimizer=optimizer)
    again.run()
    assert [x for x, _, _ in runner.ran] == list(range(7, 19)), "confirmed already: the reserve is searched with"


def test_the_time_budget_keeps_room_for_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=1)
    runner = TableRunner(seconds=10.0)
    monkeypatch.setattr("tuner.account.time.monotonic", lambda: 10.0 * len(runner.ran) + next(clock) * 1e-6)
    study, _, optimizer, _ = _study(tmp_path, runner=runner, budget=Budget(seconds=125.0))
    result = study.run()
    assert "budget of 125 s" in result.reason
    assert [p.origin for p in optimizer.told][-4:] == ["confirm"] * 4
    assert len(runner.ran) == 12


def test_the_search_ends_when_nothing_more_is_expected(tmp_path: Path) -> None:
    study, _, optimizer, _ = _study(tmp_path, optimizer=MemoryOptimizer(gain=0.001), budget=Budget(trials=50))
    result = study.run()
    assert result.reason == "the model expects less than 0.5% more"
    assert len(optimizer.told) < 10


def test_a_large_budget_confirms_with_more_pairs(tmp_path: Path) -> None:
    study, _, optimizer, _ = _study(tmp_path, budget=Budget(trials=60))
    judgement = study.run().judgement
    assert [p.origin for p in optimizer.told][-9:] == ["search", *["confirm"] * 8]
    assert judgement is not None
    assert (judgement.challenger_starts, judgement.baseline_starts) == (4, 5)


def test_a_finalist_is_not_left_with_one_start(tmp_path: Path) -> None:
    """The first finalist loses its lead when started again; what is left does for one of the two only."""
    falls = itertools.count()
    runner = TableRunner(value=lambda x: (200.0 if next(falls) == 0 else 140.0) if x == 50 else 100.0 + x)
    study, _, optimizer, _ = _study(tmp_path, runner=runner, budget=Budget(trials=12))
    winner = study.run().history.winner()
    assert [p.assignment.get("x", 0) for p in optimizer.told][-4:] == [50, 0, 0, 50]
    assert winner is not None
    assert (winner.candidate.assignment, winner.confirmed) == ({"x": 50}, 2)


def test_a_configuration_that_misses_a_limit_when_started_again_is_no_winner(tmp_path: Path) -> None:
    study, runner, _, _ = _study(tmp_path, limits=(Limit(metric="latency/ttft_p99", bound=900.0),))
    first = study.run().history.winner()
    assert first is not None
    assert first.candidate.assignment == {"x": 50}
    again, _, _, _ = _study(tmp_path / "b", limits=(Limit(metric="latency/ttft_p99", bound=900.0),))
    slow = runner.run(Candidate(assignment={"x": 95}, arguments={}), runner.ran[0][2], lambda *_: None)
    candidate = Candidate(assignment={"x": 50}, arguments={"max-num-seqs": 50})
    again.runner = TableRunner(
        play={50: [runner_outcome(slow, candidate, 150.0, 10.0)] + [replace(slow, candidate=candidate)] * 8}
    )
    second = again.run().history.winner()
    assert second is not None
    assert second.candidate.assignment != {"x": 50}


def runner_outcome(like: Outcome, candidate: Candidate, value: float, ttft: float) -> Outcome:
    estimate = Estimate(value=value, low=value, high=value, samples=(value, value))
    measurement = Measurement(metrics={"throughput/output": value, "latency/ttft_p99": ttft}, objective=estimate)
    return replace(like, candidate=candidate, objective=value, measurement=measurement)


def test_one_earlier_trial_is_one(tmp_path: Path) -> None:
    optimizer = MemoryOptimizer()
    first, _, _, _ = _study(tmp_path, optimizer=optimizer, budget=Budget(trials=1))
    first.run()
    again, _, _, notes = _study(tmp_path, optimizer=optimizer, budget=Budget(trials=1))
    result = again.run()
    assert ("message", "going on with 1 earlier trial of study line") in notes.events
    assert result.reason == "the budget of 1 trial is spent"


LATENCY = Objective(metric="latency/ttft_p99", maximize=False, unit="ms")


def test_several_objectives_end_with_a_front_whose_ends_are_confirmed(tmp_path: Path) -> None:
    """More ``x`` is more throughput and more latency, so everything is on the front but the ends stand out."""
    study, runner, _, _ = _study(tmp_path, further=(LATENCY,), budget=Budget(trials=32))
    study.run()
    summary = study.summary()
    front = summary["front"]
    assert isinstance(front, dict)
    assert front["baseline"] == {"values": front["points"][-1]["values"], "on_front": True, "beaten_by": []}
    assert front["points"][0]["roles"] == ["best throughput/output"]
    assert front["points"][-1]["baseline"] is True
    confirmed = [point["assignment"]["x"] for point in front["points"] if point["confirmed"] and not point["baseline"]]
    assert confirmed[0] == 50
    assert len(confirmed) == 2, "the best of throughput and the knee; the best of latency are the defaults"
    assert all(context.reference is None for _, _, context in runner.ran), "no early stop: it may be best in another"


def test_an_objective_that_the_defaults_have_no_figure_of_ends_the_study_in_one_line(tmp_path: Path) -> None:
    study, runner, _, _ = _study(tmp_path, further=(Objective(metric="gpu/power_w", maximize=False, unit="W"),))
    with pytest.raises(
        InputError, match=r"--objective power: was not measured .* there is latency/ttft_p99, throughput"
    ):
        study.run()
    assert len(runner.ran) == 1


def test_a_resumed_study_still_has_its_front(tmp_path: Path) -> None:
    optimizer = MemoryOptimizer()
    first, _, _, _ = _study(tmp_path, optimizer=optimizer, further=(LATENCY,), budget=Budget(trials=8))
    first.run()
    before = first.summary()["front"]
    again, _, _, _ = _study(tmp_path, optimizer=optimizer, further=(LATENCY,), budget=Budget(trials=1))
    again._account = Account.read(tmp_path / "progress.json")
    again._resume()
    assert again.summary()["front"] == before


def test_load_points_are_answered_one_by_one(tmp_path: Path) -> None:
    """Small ``x`` is best alone, large ``x`` in company and in the mean: both are confirmed."""
    points = (LoadPoint(concurrency=1), LoadPoint(concurrency=8))
    study, runner, _, _ = _study(tmp_path, runner=PointsRunner(), budget=Budget(trials=24))
    study.info = replace(study.info, workload=Workload(name="w", points=points))
    study.run()
    loads = study.summary()["loads"]
    assert isinstance(loads, list)
    assert [(entry["load"], entry["best"]["assignment"]["x"]) for entry in loads] == [("c1", 1), ("c8", 50)]
    assert [entry["best"]["confirmed"] for entry in loads] == [2, 2]
    assert [entry["judgement"]["verdict"] for entry in loads] == ["better", "better"]
    assert loads[0]["single"]["trial"] == loads[1]["best"]["trial"]
    assert [x for x, _, _ in runner.ran[-6:]] == [50, 1, 0, 0, 1, 50]


class PointsRunner(TableRunner):
    def run(self, candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
        outcome = super().run(candidate, context, progress)
        x = int(str(candidate.assignment.get("x", 0)))
        points = []
        for name, value in (("c1", 20.0 if x == 0 else 60.0 - x), ("c8", 100.0 + 3 * x)):
            samples = tuple(value * (1 + self.noise * math.sin(context.seed + k)) for k in range(3))
            estimate = Estimate(value=fmean(samples), low=value * 0.99, high=value * 1.01, samples=samples)
            points.append(
                PointResult(
                    name=name,
                    metrics={"throughput/output": estimate.value},
                    estimates={"throughput/output": estimate},
                    rounds=3,
                )
            )
        assert outcome.measurement is not None
        return replace(outcome, measurement=replace(outcome.measurement, points=tuple(points)))


def test_where_nothing_comes_near_the_defaults_the_search_takes_what_was_kept(tmp_path: Path) -> None:
    runner = TableRunner(value=lambda x: 60.0 + x if x else 200.0)
    study, _, optimizer, _ = _study(tmp_path, runner=runner, budget=Budget(trials=12))
    assert study.run().judgement is None
    assert [p.origin for p in optimizer.told] == ["baseline", "start:recipe", *["search"] * 10]


def test_going_on_the_view_knows_the_defaults_and_the_best_of_earlier_runs(tmp_path: Path) -> None:
    optimizer = MemoryOptimizer()
    first, _, _, _ = _study(tmp_path, optimizer=optimizer, budget=Budget(trials=8))
    known = first.run().history
    again, _, _, notes = _study(tmp_path, optimizer=optimizer, budget=Budget(trials=1))
    again._account = Account.read(tmp_path / "progress.json")
    again._resume()
    best = known.best()
    assert best is not None
    assert known.default_value() is not None
    assert notes.events[-1] == ("resumed", known.default_value(), best.value)


@pytest.mark.parametrize("advice", ["do less", "Do less."])
def test_the_first_line_of_a_failed_baseline_is_whole_sentences(tmp_path: Path, advice: str) -> None:
    failure = Failure(kind="hang", cause="it hung at 1.5 GiB.", blame=Blame.CONFIGURATION, advice=advice)
    outcome = Outcome(candidate=Candidate(assignment={}, arguments={}), status=Status.BROKEN, failure=failure)
    study, runner, _, _ = _study(tmp_path)
    runner.run = lambda *_: outcome  # type: ignore[method-assign]
    with pytest.raises(StudyStopped) as stopped:
        study.run()
    said = f"the baseline cannot run: it hung at 1.5 GiB. Do less. See {tmp_path / 'trials' / '0000'}"
    assert str(stopped.value) == said


def test_a_finalist_is_started_again_where_the_defaults_miss_a_limit(tmp_path: Path) -> None:
    """Nobody to take turns with, but whether it keeps the limit is to be seen on fresh starts; nothing is left over."""
    floor = Limit(metric="latency/ttft_p99", bound=5.0, at_most=False)  # the defaults have 0
    study, runner, optimizer, _ = _study(tmp_path, limits=(floor,), budget=Budget(trials=15))
    result = study.run()
    winner = result.history.winner()
    assert winner is not None
    assert winner.confirmed == 2
    assert [p.origin for p in optimizer.told][-2:] == ["confirm", "confirm"]
    assert len(runner.ran) == 15
    assert result.reason == "the budget of 15 trials is spent"


def test_the_last_two_trials_go_to_the_next_finalist_where_the_first_one_failed(tmp_path: Path) -> None:
    """50 is fast and keeps the limit once; what follows is the best that is left, twice, without the baseline."""
    like = TableRunner().run(Candidate(assignment={"x": 50}, arguments={}), _context(tmp_path), lambda *_: None)
    candidate = Candidate(assignment={"x": 50}, arguments={"max-num-seqs": 50})
    runner = TableRunner(
        play={50: [runner_outcome(like, candidate, 150.0, 10.0), *[runner_outcome(like, candidate, 150.0, 999.0)] * 9]}
    )
    study, _, optimizer, _ = _study(tmp_path, runner=runner, limits=(Limit(metric="latency/ttft_p99", bound=900.0),))
    winner = study.run().history.winner()
    assert [(p.assignment.get("x", 0), p.origin) for p in optimizer.told][-4:] == [
        (50, "confirm"), (0, "confirm"), (6, "confirm"), (6, "confirm"),
    ]  # fmt: skip
    assert winner is not None
    assert (winner.candidate.assignment, winner.confirmed) == ({"x": 6}, 2)


def _context(tmp_path: Path) -> TrialContext:
    return TrialContext(
        number=0,
        directory=tmp_path,
        seed=1,
        reference=None,
        baseline_quality=None,
        known_quality=None,
        check_quality=True,
        twin=None,
    )


class TestThePlainest:
    """Before it is confirmed, the best is asked for without the settings that seem to do nothing."""

    BEST, PART = {"x": 60, "y": 1, "z": 2}, {"x": 60, "z": 2}

    def _study(self, tmp_path: Path, *, part: float) -> tuple[Study, MemoryOptimizer]:
        """The search finds BEST at 160; PART runs at ``part`` of that."""
        planner, runner = LinePlanner(), TableRunner()
        study, _, optimizer, _ = _study(tmp_path, runner=runner, budget=Budget(trials=12))
        values = {0: 100.0, 1: 160.0 * part, 2: 160.0}

        def render(assignment: Mapping[str, Scalar], *, origin: str = "search") -> Candidate:
            arguments = {f"flag-{name}": value for name, value in assignment.items()}
            return Candidate(assignment=dict(assignment), arguments=arguments, origin=origin)

        def run(candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
            settings = candidate.assignment
            asked = 2 if "y" in settings else 1 if "z" in settings else 0
            value = values[asked] + (int(str(settings["x"])) - 60 if "x" in settings and not asked else 0)
            runner.ran.append((int(str(settings.get("x", 0))), candidate.origin, context))
            return TableRunner(value=lambda _: value, seconds=1.0).run(candidate, context, progress)

        planner.render = render  # type: ignore[method-assign]
        planner.effective_identity = lambda candidate, effective: candidate.key  # type: ignore[method-assign]
        planner.starts = lambda: [render(self.BEST, origin="start:recipe")]  # type: ignore[method-assign]
        runner.run = run  # type: ignore[method-assign]
        study.planner, optimizer.plain = planner, self.PART
        return study, optimizer

    @pytest.mark.parametrize(("part", "winner"), [(0.99, PART), (1.01, PART), (0.95, BEST)])
    def test_it_goes_before_a_higher_number_that_is_no_more_than_noise(
        self, tmp_path: Path, part: float, winner: Mapping[str, Scalar]
    ) -> None:
        study, optimizer = self._study(tmp_path, part=part)
        result = study.run()
        origins = [past.origin for past in optimizer.told]
        assert origins.count("plainer") == 1
        assert origins.index("plainer") == origins.index("confirm") - 1
        assert len(origins) == 12
        found = result.history.winner()
        assert found is not None
        assert (found.candidate.assignment, found.confirmed) == (winner, 2)

    def test_where_there_is_none_the_search_takes_its_trial(self, tmp_path: Path) -> None:
        study, optimizer = self._study(tmp_path, part=1.0)
        optimizer.plain = None
        study.run()
        origins = [past.origin for past in optimizer.told]
        assert "plainer" not in origins
        assert (origins.count("search"), origins.count("confirm")) == (6, 4)
        assert len(origins) == 12

    @pytest.mark.parametrize("inside", [True, False])
    def test_a_resumed_study_asks_once(self, tmp_path: Path, inside: bool) -> None:
        """Cut off while the trial runs, it is tried again; after it, not."""
        study, optimizer = self._study(tmp_path, part=0.99)
        run = study.runner.run

        def cut_off(candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
            if candidate.origin == ("plainer" if inside else "confirm"):
                raise KeyboardInterrupt
            return run(candidate, context, progress)

        study.runner.run = cut_off  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            study.run()
        again, _ = self._study(tmp_path, part=0.99)
        again.optimizer = optimizer
        again.run()
        measured = [past.origin for past in optimizer.told if past.status == "measured"]
        assert (measured.count("plainer"), len(measured)) == (1, 12)

    @pytest.mark.parametrize("trials", range(1, 14))
    def test_no_budget_is_overspent_and_small_ones_do_without(self, tmp_path: Path, trials: int) -> None:
        study, optimizer = self._study(tmp_path, part=0.99)
        study.budget = Budget(trials=trials)
        study.run()
        origins = [past.origin for past in optimizer.told]
        assert len(origins) == trials
        assert origins.count("plainer") == (1 if trials >= 10 else 0)

    def test_known_good_starts_go_before_what_is_kept_for_it(self, tmp_path: Path) -> None:
        study, optimizer = self._study(tmp_path, part=0.99)
        render = study.planner.render
        study.planner.starts = lambda: [render({"x": x}, origin=f"start:{x}") for x in range(61, 70)]  # type: ignore[method-assign]
        study.budget = Budget(trials=12)
        study.run()
        origins = [past.origin for past in optimizer.told]
        assert [origin for origin in origins if origin.startswith("start")] == [f"start:{x}" for x in range(61, 68)]
        assert len(origins) == 12

    def test_it_is_measured_in_full_though_it_runs_the_same(self, tmp_path: Path) -> None:
        study, optimizer = self._study(tmp_path, part=0.99)
        alike = lambda candidate, effective: "the same" if "z" in candidate.assignment else candidate.key  # noqa: E731
        study.planner.effective_identity = alike  # type: ignore[method-assign]
        study.run()
        statuses = {past.origin: past.status for past in optimizer.told}
        assert statuses["plainer"] == "measured"
        contexts = {origin: context for _, origin, context in study.runner.ran}  # type: ignore[attr-defined]
        assert (contexts["plainer"].twin, contexts["plainer"].reference) == (None, None)
