from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import InputError
from tuner.model.candidate import Candidate
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.records import from_record, to_record
from tuner.ports import MeasurementFailed, QualityCheck
from tuner.quality import QualitySuite, lm_eval
from tuner.quality.questions import builtin

KNOWN = {item.prompt: item.choices[item.answer] if item.choices else " " + item.answers[0] for item in builtin()}


def scholar(prompt: str) -> list[str]:
    """Knows three quarters of the built-in questions, and writes sober prose otherwise."""
    if prompt in KNOWN and len(prompt) % 4:
        head, *rest = KNOWN[prompt].strip().split(" ")
        return [" " + head, *(" " + word for word in rest)]
    return [f" word{number}" for number in range(40)]


def broken(prompt: str) -> list[str]:
    return ["!"] * 40


def quiet(phase: str, detail: str) -> None: ...


def test_the_suite_is_a_quality_check() -> None:
    suite: QualityCheck = QualitySuite()
    assert callable(suite.check)


def test_the_baseline_against_itself_passes(serve: Any, words: Any, tmp_path: Path) -> None:
    suite, server, said = QualitySuite(), serve(words(scholar)), []
    first = suite.check(server, baseline=None, directory=tmp_path, progress=lambda *what: said.append(what))
    assert first.passed
    assert 0.3 < first.metrics["accuracy/score"] < 0.95
    assert first.metrics["accuracy/agreement_floor"] == 1.0
    assert len(first.answers) == len(builtin())
    assert said[0] == ("checking accuracy", "16 fixed prompts")
    second = suite.check(server, baseline=first, directory=tmp_path, progress=quiet)
    assert second.passed
    assert not second.reason
    assert second.metrics["accuracy/drop"] == 0.0
    assert second.metrics["accuracy/drop_se"] > 0
    assert second.metrics["accuracy/agreement"] == 1.0
    assert second.metrics["accuracy/logprob_difference"] == 0.0
    assert second.metrics["accuracy/excess"] <= 0


def test_garbage_fails_and_is_graded(serve: Any, words: Any, tmp_path: Path) -> None:
    suite = QualitySuite()
    base = suite.check(serve(words(scholar)), baseline=None, directory=tmp_path, progress=quiet)
    found = suite.check(serve(words(broken)), baseline=base, directory=tmp_path, progress=quiet)
    assert not found.passed
    assert "lost, 0 gained" in found.reason
    assert found.metrics["accuracy/excess"] == pytest.approx(found.metrics["accuracy/drop"] - 0.01, abs=0.1)
    assert found.metrics["accuracy/agreement"] == 0.0
    kept = json.loads((tmp_path / "quality.json").read_text())
    assert kept["passed"] is False
    assert kept["completions"]["poem"].startswith("!!!")


def test_broken_decoding_behind_a_sound_prefill_fails(serve: Any, words: Any, tmp_path: Path) -> None:
    suite = QualitySuite()
    base = suite.check(serve(words(scholar)), baseline=None, directory=tmp_path, progress=quiet)
    half = serve(words(lambda prompt: [*scholar(prompt)[:1], "!", "?"]))
    found = suite.check(half, baseline=base, directory=tmp_path, progress=quiet)
    assert not found.passed


def test_the_report_survives_the_storage(serve: Any, words: Any, tmp_path: Path) -> None:
    suite, server = QualitySuite(max_items=20), serve(words(scholar))
    report = suite.check(server, baseline=None, directory=tmp_path, progress=quiet)
    outcome = Outcome(candidate=Candidate(assignment={}, arguments={}), status=Status.MEASURED, quality=report)
    again = from_record(json.loads(json.dumps(to_record(outcome)))).quality
    assert again is not None
    assert suite.check(server, baseline=again, directory=tmp_path, progress=quiet).metrics["accuracy/agreement"] == 1.0


def test_own_questions_are_judged_beside_the_builtin_ones(serve: Any, words: Any, tmp_path: Path) -> None:
    own = tmp_path / "our domain.jsonl"
    own.write_text(
        "".join(
            json.dumps({"id": str(n), "kind": "completion", "prompt": f"Part {n} is", "answers": [f"p{n}"]}) + "\n"
            for n in range(100)
        ),
        encoding="utf-8",
    )
    knows = serve(words(lambda prompt: [" p" + prompt.split()[1]] if prompt.startswith("Part") else scholar(prompt)))
    suite = QualitySuite(question_files=[own])
    base = suite.check(knows, baseline=None, directory=tmp_path, progress=quiet)
    assert base.metrics["accuracy/our_domain"] == 1.0
    assert base.metrics["accuracy/builtin"] < 1.0
    assert base.metrics["accuracy/questions"] == len(builtin()) + 100
    found = suite.check(serve(words(scholar)), baseline=base, directory=tmp_path, progress=quiet)
    assert not found.passed
    assert "100 lost" in found.reason
    assert found.metrics["accuracy/our_domain_drop"] == 1.0
    assert found.metrics["accuracy/builtin_drop"] == 0.0


def test_lm_eval_tasks_count_too(serve: Any, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {f"arc_easy:{n}": 1.0 for n in range(50)}
    monkeypatch.setattr(lm_eval, "installed", lambda: True)
    asked = []
    monkeypatch.setattr(lm_eval, "run", lambda *_, **options: asked.append(options) or dict(answers))
    suite, server = QualitySuite(tasks=["arc_easy"], builtin=False), serve(words(scholar))
    server.models = {"data": [{"id": "demo", "root": "/models/demo", "max_model_len": 1024}]}
    base = suite.check(server, baseline=None, directory=tmp_path, progress=quiet)
    assert base.metrics["accuracy/arc_easy"] == 1.0
    assert asked[0]["tokenizer"] == "/models/demo"
    answers |= {f"arc_easy:{n}": 0.0 for n in range(25)}
    assert not suite.check(server, baseline=base, directory=tmp_path, progress=quiet).passed


def test_another_question_set_than_the_baselines_is_an_error_of_the_user(
    serve: Any, words: Any, tmp_path: Path
) -> None:
    own = tmp_path / "own.jsonl"
    own.write_text('{"id": "a", "prompt": "x", "answers": ["y"]}', encoding="utf-8")
    server = serve(words(scholar))
    base = QualitySuite(max_items=5).check(server, baseline=None, directory=tmp_path, progress=quiet)
    with pytest.raises(InputError, match="new study"):
        QualitySuite(question_files=[own], builtin=False).check(
            server, baseline=base, directory=tmp_path, progress=quiet
        )


def test_sanity_and_a_dead_server(serve: Any, words: Any) -> None:
    failure = QualitySuite().sanity(serve(words(broken)))
    assert failure is not None
    assert failure.kind == "garbage"
    server = serve(lambda _: (500, b"{}"))
    server.dead = Failure(kind="hang", cause="stuck", blame=Blame.CONFIGURATION)
    with pytest.raises(MeasurementFailed):
        QualitySuite().sanity(server)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allowed_drop": 1.5}, "share from 0 to 1"),
        ({"allowed_drop": float("nan")}, "share from 0 to 1"),
        ({"max_items": 0}, "at least 1"),
        ({"builtin": False}, "nothing to ask"),
        ({"tasks": ["two words"]}, "not a task name"),
        ({"question_files": ["/nowhere/x.jsonl"]}, "/nowhere/x.jsonl"),
        ({"question_files": ["a/builtin.jsonl"]}, "rename the file"),
    ],
)
def test_wrong_settings_are_refused_at_once(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_eval, "installed", lambda: True)
    with pytest.raises(InputError, match=message) as seen:
        QualitySuite(**options)
    assert "\n" not in str(seen.value)


def test_a_missing_package_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_eval, "installed", lambda: False)
    with pytest.raises(InputError, match=r"pip install \.\[eval\]"):
        QualitySuite(tasks=["arc_easy"], tokenizer="x")
