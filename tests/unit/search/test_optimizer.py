from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from tests.unit.search.helpers import SmallPlanner, broken, measured, small_space
from tuner.errors import InputError, RunError, StudyStopped
from tuner.model.expression import Expression
from tuner.model.outcome import Outcome, Status
from tuner.model.records import from_record, to_record
from tuner.model.space import Choice, Parameter, Range, Space
from tuner.model.workload import Limit, Objective
from tuner.ports import Suggestion
from tuner.search import SAMPLERS, OptunaOptimizer
from tuner.search.conditions import Conditions
from tuner.search.distributions import encodings

FAST = ("tune", "tpe", "random")


def opened(
    path: Path, *, sampler: str = "random", space: Space | None = None, excluded: object = None, **more: object
) -> tuple[OptunaOptimizer, SmallPlanner]:
    space = space or small_space()
    planner = SmallPlanner(space, excluded)
    optimizer = OptunaOptimizer(
        space, planner, storage=f"sqlite:///{path}/s.db", study_name="s", sampler=sampler, seed=3, **more  # type: ignore[arg-type]
    )  # fmt: skip
    return optimizer, planner


def serve(optimizer: OptunaOptimizer, planner: SmallPlanner, suggestion: Suggestion) -> Outcome:
    """A tiny vLLM: more sequences are better, one backend is dead."""
    candidate = planner.render(suggestion.assignment)
    if suggestion.assignment.get("attention_backend") == "BROKEN":
        outcome = broken(candidate)
    else:
        outcome = measured(candidate, float(str(suggestion.assignment.get("max_num_seqs", "256"))))
    optimizer.tell(suggestion.number, outcome, to_record(outcome))
    return outcome


def searched(optimizer: OptunaOptimizer, planner: SmallPlanner, count: int) -> list[dict[str, object]]:
    out = []
    for _ in range(count):
        suggestion = optimizer.ask()
        out.append(dict(suggestion.assignment))
        serve(optimizer, planner, suggestion)
    return out


@pytest.mark.parametrize("sampler", FAST)
def test_a_resumed_study_goes_on_as_an_uninterrupted_one(tmp_path: Path, sampler: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = searched(*opened(tmp_path / "a", sampler=sampler), 6)
    parts = searched(*opened(tmp_path / "b", sampler=sampler), 3) + searched(
        *opened(tmp_path / "b", sampler=sampler), 3
    )
    assert whole == parts


def test_a_study_ends_where_it_would_have_ended_without_the_interruption(tmp_path: Path) -> None:
    """What the last suggestion's model expected is in no storage: it is worked out again, before the search goes on."""
    first, planner = opened(tmp_path, sampler="tune")
    baseline = first.ask("baseline", {})
    first.tell(baseline.number, measured(planner.baseline(), 100.0), {})
    expected = []
    for _ in range(16):
        suggestion = first.ask()
        first.tell(suggestion.number, measured(planner.render(suggestion.assignment), 100.0), {})
        expected.append(first.expected_gain())
    again, _ = opened(tmp_path, sampler="tune")
    assert expected[:10] == [None] * 10, "a handful of trials says nothing of what may come"
    assert expected[-1] is not None
    assert again.expected_gain() == pytest.approx(expected[-1])


def test_a_study_in_which_something_has_just_got_better_is_not_over(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path, sampler="tune")
    baseline = optimizer.ask("baseline", {})
    optimizer.tell(baseline.number, measured(planner.baseline(), 100.0), {})
    for value in [100.0] * 15 + [110.0]:
        suggestion = optimizer.ask()
        optimizer.tell(suggestion.number, measured(planner.render(suggestion.assignment), value), {})
    assert optimizer.expected_gain() is None


def test_a_search_that_has_found_nothing_does_not_give_up_after_a_dozen(tmp_path: Path) -> None:
    """It said "less than 0.5 % more" of a machine whose best ran four times the defaults."""
    numbers = tuple(
        Parameter(name=f"p{index}", target=f"p{index}", default=4, domain=Range(low=1, high=64, log=True))
        for index in range(9)
    )
    optimizer, planner = opened(tmp_path, sampler="tune", space=small_space(parameters=numbers))
    baseline = optimizer.ask("baseline", {})
    optimizer.tell(baseline.number, measured(planner.baseline(), 100.0), {})
    said = []
    for _ in range(19):
        suggestion = optimizer.ask()
        optimizer.tell(suggestion.number, measured(planner.render(suggestion.assignment), 60.0), {})
        said.append(optimizer.expected_gain())
    assert said[:16] == [None] * 16, "two launches per parameter, the defaults included"
    assert said[-1] is not None, "nothing is better than the defaults: that is worth saying too"


def test_conditional_parameters_exist_only_with_their_condition(tmp_path: Path) -> None:
    for assignment in searched(*opened(tmp_path), 12):
        assert ("spec_tokens" in assignment) == (assignment["spec_method"] == "ngram")


def test_a_condition_sees_that_a_setting_is_left_away(tmp_path: Path) -> None:
    """A stand-in value made settings exist beside a method that nobody had asked for, and never the reverse."""
    parameters = (
        Parameter(name="method", target="method", domain=Choice(values={"ngram": "ngram", "eagle": "eagle"})),
        Parameter(
            name="lookup", target="lookup", domain=Range(low=1, high=8), when=Expression.parse("method == 'ngram'")
        ),
        Parameter(name="plain", target="plain", domain=Range(low=1, high=8), when=Expression.parse("method == null")),
    )
    space = small_space(parameters=parameters)
    conditions = Conditions(encodings(space), SmallPlanner(space))
    assert conditions.prune({"lookup": 3, "plain": 4}) == {"plain": 4}
    assert conditions.prune({"method": "ngram", "lookup": 3, "plain": 4}) == {"method": "ngram", "lookup": 3}
    for assignment in searched(*opened(tmp_path, sampler="tune", space=space), 10):
        assert ("lookup" in assignment) == (assignment.get("method") == "ngram")
        assert ("plain" in assignment) == ("method" not in assignment)


def test_nothing_is_tried_twice(tmp_path: Path) -> None:
    space = small_space(
        parameters=(Parameter(name="p", target="p", default="a", domain=Choice(values={"a": 1, "b": 2, "c": 3})),)
    )
    for sampler in ("tune", "tpe"):
        (tmp_path / sampler).mkdir()
        optimizer, planner = opened(tmp_path / sampler, sampler=sampler, space=space)
        tried = []
        for _ in range(3):
            suggestion = optimizer.ask()
            tried.append(suggestion.assignment["p"])
            optimizer.tell(suggestion.number, measured(planner.render(suggestion.assignment), 1.0), {})
        assert sorted(map(str, tried)) == ["a", "b", "c"], sampler
        with pytest.raises(StudyStopped, match="nothing feasible is left"):
            optimizer.ask()


def test_excluded_candidates_are_recorded_and_cost_no_suggestion(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path, excluded=lambda a: a.get("max_num_seqs") != "64")
    assert {a["max_num_seqs"] for a in searched(optimizer, planner, 4)} == {"64"}
    excluded = [item for item in optimizer.past() if item.status == Status.EXCLUDED]
    assert excluded
    outcome = from_record(excluded[0].record)
    assert outcome.exclusion is not None
    assert (outcome.exclusion.rule, excluded[0].constraints["start"]) == ("test", 2.0)


def test_a_given_assignment_is_asked_for_exactly(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path, sampler="tune")
    baseline = optimizer.ask("baseline", {})
    assert (baseline.number, dict(baseline.assignment), baseline.origin) == (0, {}, "baseline")
    serve(optimizer, planner, baseline)
    start = optimizer.ask("start:x", {"max_num_seqs": "512"})
    serve(optimizer, planner, start)
    again = optimizer.ask("confirm", {"max_num_seqs": "512"})
    serve(optimizer, planner, again)
    assert [(p.origin, dict(p.assignment), p.objective) for p in optimizer.past()] == [
        ("baseline", {}, 256.0),
        ("start:x", {"max_num_seqs": "512"}, 512.0),
        ("confirm", {"max_num_seqs": "512"}, 512.0),
    ]


def test_a_trial_is_told_once(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path)
    suggestion = optimizer.ask()
    outcome = serve(optimizer, planner, suggestion)
    with pytest.raises(RunError, match="told before"):
        optimizer.tell(suggestion.number, outcome, {})


def test_records_come_back(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path)
    suggestion = optimizer.ask()
    outcome = serve(optimizer, planner, suggestion)
    (past,) = opened(tmp_path)[0].past()
    assert to_record(from_record(past.record)) == to_record(outcome)
    assert past.status == outcome.status
    assert list(past.constraints) == ["accuracy", "start"]


def test_a_huge_record_is_shortened_not_lost(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path)
    suggestion = optimizer.ask()
    candidate = planner.render(suggestion.assignment)
    optimizer.tell(suggestion.number, measured(candidate, 1.0), {"log": "x" * 400_000, "kept": 1})
    record = optimizer.past()[0].record
    assert (record["kept"], record["shortened"]) == (1, True)


class TestKilled:
    def test_the_trial_in_flight_is_closed_and_suggested_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        optimizer, planner = opened(tmp_path)
        serve(optimizer, planner, optimizer.ask())
        lost = optimizer.ask()
        monkeypatch.setattr("tuner.search.ledger.psutil.Process", _gone)
        resumed, _ = opened(tmp_path)
        past = resumed.past()
        assert past[1].status == "interrupted"
        assert dict(past[1].assignment) == dict(lost.assignment)
        assert not past[1].record
        assert dict(resumed.ask().assignment) == dict(lost.assignment)
        states = [trial.state for trial in resumed._study.trials]
        assert states.count(optuna.trial.TrialState.RUNNING) == 1

    def test_a_living_process_keeps_its_trial(self, tmp_path: Path) -> None:
        optimizer, planner = opened(tmp_path)
        mine = optimizer.ask()
        assert not opened(tmp_path)[0].past()
        serve(optimizer, planner, mine)

    def test_an_outcome_that_was_written_is_not_lost(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        optimizer, planner = opened(tmp_path)
        suggestion = optimizer.ask()
        monkeypatch.setattr(optimizer, "_finish", _killed)
        with pytest.raises(KeyboardInterrupt):
            serve(optimizer, planner, suggestion)
        monkeypatch.setattr("tuner.search.ledger.psutil.Process", _gone)
        (past,) = opened(tmp_path)[0].past()
        assert past.status in ("measured", "broken")
        assert past.record["status"] == past.status
        assert dict(past.assignment) == dict(suggestion.assignment)


def _gone(*_: object) -> object:
    import psutil  # noqa: PLC0415

    raise psutil.NoSuchProcess(1)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_machines_fault_is_suggested_again_three_times(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path, sampler="tune")
    serve(optimizer, planner, optimizer.ask("baseline", {}))
    asked = []
    for _ in range(4):
        suggestion = optimizer.ask()
        asked.append(dict(suggestion.assignment))
        optimizer.tell(
            suggestion.number, Outcome(candidate=planner.render(suggestion.assignment), status=Status.DISTURBED), {}
        )
    assert asked[0] == asked[1] == asked[2] != asked[3]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"space": small_space(digest="d2")}, "another search space"),
        ({"objective": Objective(metric="latency/ttft_p99", maximize=False)}, "another objective"),
        ({"limits": (Limit(metric="latency/ttft_p99", bound=500.0),)}, "other limits"),
    ],
)
def test_another_question_needs_another_study(tmp_path: Path, change: dict[str, object], what: str) -> None:
    optimizer, planner = opened(tmp_path)
    serve(optimizer, planner, optimizer.ask())
    with pytest.raises(InputError, match=f"made with {what}.*new study name"):
        opened(tmp_path, **change)  # type: ignore[arg-type]
    assert len(opened(tmp_path)[0].past()) == 1


def test_a_foreign_study_is_left_alone(tmp_path: Path) -> None:
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/s.db", study_name="s", direction="maximize")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(InputError, match="did not make"):
        opened(tmp_path)


def test_unknown_sampler() -> None:
    with pytest.raises(InputError, match="tune, tpe, gp"):
        OptunaOptimizer(small_space(), SmallPlanner(small_space()), storage="memory://", study_name="s", sampler="best")


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name not in FAST])
def test_optunas_other_samplers_work(sampler: str) -> None:
    space = small_space()
    planner = SmallPlanner(space)
    optimizer = OptunaOptimizer(
        space, planner, storage="memory://", study_name="s", sampler=sampler, seed=1, budget_trials=12
    )
    serve(optimizer, planner, optimizer.ask("baseline", {}))
    assert len(searched(optimizer, planner, 5)) == 5


def _text(path: Path) -> None:
    path.write_text("this is no database, not at all, but long enough to be looked at" * 20)


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE studies (id INTEGER PRIMARY KEY, flavour TEXT)")


@pytest.mark.parametrize(
    ("make", "message"), [(_text, "not a database"), (_foreign, "another schema"), (Path.mkdir, "cannot be opened")]
)
def test_what_is_no_storage_is_said_in_one_line(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "s.db")
    with pytest.raises((InputError, RunError), match=message) as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/directory/s.db", "no directory"),
        ("nonsense", "not an address"),
        ("postgresql+nodriver://u:secret@host/db", "nodriver|not an address"),
    ],
)
def test_wrong_addresses(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        OptunaOptimizer(small_space(), SmallPlanner(small_space()), storage=url, study_name="s")
    assert "secret" not in str(caught.value)


def test_a_damaged_journal(tmp_path: Path) -> None:
    (tmp_path / "s.journal").write_text("not json\n{}\n")
    with pytest.raises(InputError, match="damaged or not a journal"):
        OptunaOptimizer(small_space(), SmallPlanner(small_space()), storage=f"{tmp_path}/s.journal", study_name="s")


def test_what_does_nothing_is_left_away_and_what_pays_is_kept(tmp_path: Path) -> None:
    optimizer, planner = opened(tmp_path, sampler="tune")
    baseline = optimizer.ask("baseline", {})
    optimizer.tell(baseline.number, measured(planner.baseline(), 256.0), {})
    searched(optimizer, planner, 14)
    size = "1024"  # 2048 alone was tried, as all that ran best
    best = {"max_num_seqs": size, "attention_backend": "FLASH_ATTN", "spec_method": "ngram", "spec_tokens": 3}
    assert optimizer.plainer(best) == {"max_num_seqs": size}
    assert optimizer.plainer({"max_num_seqs": "2048", "attention_backend": "FLASH_ATTN"}) is None
    assert optimizer.plainer({"max_num_seqs": size}) is None, "without it nothing is left"


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_sampler_without_a_model_says_of_no_setting_that_it_does_nothing(tmp_path: Path, sampler: str) -> None:
    optimizer, planner = opened(tmp_path, sampler=sampler)
    searched(optimizer, planner, 3)
    assert optimizer.plainer({"max_num_seqs": "2048", "attention_backend": "FLASH_ATTN"}) is None


def test_a_finalist_can_be_confirmed_after_the_last_candidate_was_tried(tmp_path: Path) -> None:
    """Opening a trial that is given asked the search for another one, and ended the study with an error."""
    sizes = Parameter(
        name="max_num_seqs", target="max-num-seqs", domain=Choice(values={"8": 8, "16": 16}, ordinal=True)
    )
    optimizer, planner = opened(tmp_path, sampler="tune", space=small_space(parameters=(sizes,)))
    baseline = optimizer.ask("baseline", {})
    optimizer.tell(baseline.number, measured(planner.baseline(), 100.0), {})
    searched(optimizer, planner, 2)
    with pytest.raises(StudyStopped):
        optimizer.ask()
    for origin, assignment in (("confirm", {"max_num_seqs": "16"}), ("baseline", {}), ("plainer", {})):
        given = optimizer.ask(origin, assignment)
        assert (given.origin, given.assignment) == (origin, assignment)
        optimizer.tell(given.number, measured(planner.render(given.assignment), 110.0), {})
    assert len(optimizer.past()) >= 6
