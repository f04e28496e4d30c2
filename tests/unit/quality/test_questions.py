from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.quality.client import Completion, CompletionsClient
from tuner.quality.questions import Question, ask, best_choice, best_next, builtin, load, parse, score, select

NEXT = {"id": "n", "kind": "next", "prompt": "The capital of France is", "choices": [" Rome", " Paris"], "answer": 1}
CHOICE = {"id": "c", "kind": "choice", "prompt": "2 + 2 =", "choices": [" 4.", " 5."], "answer": 0}
COMPLETION = {"id": "w", "kind": "completion", "prompt": "one, two,", "answers": ["three, four"]}


def lines(*records: object) -> list[str]:
    return [json.dumps(record) for record in records]


def echoed(text: str, *logprobs: float | None) -> Completion:
    return Completion(text="", tokens=(*text.split("|"), "."), logprobs=(*logprobs, -1.0))


def test_the_builtin_set_is_large_and_well_formed() -> None:
    items = builtin()
    assert len(items) >= 200
    kinds = Counter(item.kind for item in items)
    assert kinds["next"] >= 150
    assert kinds["choice"] >= 30
    assert kinds["completion"] >= 50
    # The right answer's place says nothing.
    places = Counter(item.answer for item in items if len(item.choices) == 3)
    assert max(places.values()) < 0.5 * sum(places.values())
    assert len({(item.prompt, item.choices) for item in items}) == len(items)


def test_every_key_is_read() -> None:
    a, b, c = parse(lines(NEXT, CHOICE, {**COMPLETION, "max_tokens": 3}), where="x")
    assert (a.kind, a.choices, a.answer) == ("next", (" Rome", " Paris"), 1)
    assert (b.kind, b.answer) == ("choice", 0)
    assert (c.answers, c.max_tokens) == (("three, four",), 3)


def test_id_and_kind_may_be_left_away() -> None:
    a, b = parse(
        ["", *lines({"prompt": "p", "choices": ["x", "y"], "answer": 0}, {"prompt": "p", "answers": ["x"]})], where="f"
    )
    assert (a.id, a.kind, b.id, b.kind) == ("f:2", "choice", "f:3", "completion")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not list"),
        ({**NEXT, "id": 3}, "`id`"),
        ({**NEXT, "kind": "essay"}, "kind 'essay' is not known"),
        ({**NEXT, "colour": 1}, "'colour' is not known"),
        ({**NEXT, "prompt": " "}, "`prompt` must be text"),
        ({**NEXT, "choices": [" one"]}, "`choices` must be a list of 2"),
        ({**NEXT, "choices": [" one", 2]}, "`choices` must be text"),
        ({**NEXT, "answer": 2}, "`answer` must be a whole number from 0 to 1"),
        ({**NEXT, "answer": True}, "`answer`"),
        ({**NEXT, "choices": [" the cat", " the dog"]}, "share their first word"),
        ({**CHOICE, "choices": [" 1", " 12"]}, "' 1' begins ' 12'"),
        ({**CHOICE, "choices": [" 1", " 1"]}, "begins"),
        ({**COMPLETION, "answers": []}, "`answers`"),
        ({**COMPLETION, "max_tokens": 0}, "`max_tokens`"),
        ({**COMPLETION, "max_tokens": 1e9}, "`max_tokens`"),
    ],
)
def test_a_bad_line_is_named_with_its_number(record: object, message: str) -> None:
    text = record if isinstance(record, str) else json.dumps(record)
    with pytest.raises(InputError) as seen:
        parse([json.dumps(CHOICE), "", text], where="mine.jsonl")
    assert str(seen.value).startswith("mine.jsonl:3: ")
    assert message in str(seen.value)
    assert "\n" not in str(seen.value)


def test_ids_are_unique_and_a_set_is_not_empty() -> None:
    with pytest.raises(InputError, match=r"x:2: id 'c' was used on line 1"):
        parse(lines(CHOICE, CHOICE), where="x")
    with pytest.raises(InputError, match="holds no question"):
        parse(["", " "], where="x")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(InputError, match="not UTF-8"):
        load(tmp_path / "latin.jsonl")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    message = ""
    try:
        parse(text.split("\n"), where="x")
    except InputError as error:
        message = str(error)
    assert "\n" not in message


def test_the_likeliest_token_that_begins_one_choice_decides() -> None:
    question = Question(id="q", kind="next", prompt="p", choices=(" Helsinki", " Paris"), answer=0)
    assert best_next(question, {" the": -0.1, " Hels": -1.0, " Paris": -2.0}) == 0
    assert best_next(question, {" Paris": -0.5, " Hels": -1.0}) == 1
    assert best_next(question, {"Paris": -0.5}) == 1  # sentencepiece drops the space
    assert best_next(question, {" ": -0.1, " the": -0.2}) is None
    assert best_next(question, {" Hels": math.nan, " Paris": -3.0}) == 1
    assert best_next(question, {}) is None


def test_a_token_that_begins_two_choices_decides_nothing() -> None:
    question = Question(id="q", kind="next", prompt="p", choices=(" Hungary", " Hull"), answer=0)
    assert best_next(question, {" Hu": -0.1, " Hull": -2.0}) == 1


def test_only_what_differs_between_choices_is_compared() -> None:
    # The shared beginning is worse in the first prompt (noise of batching): it must not count.
    one = echoed("The| cap| is| Paris", None, -9.0, -9.0, -1.0)
    two = echoed("The| cap| is| Ro|me", None, -1.0, -1.0, -0.9, -0.3)
    assert best_choice([one, two]) == 0
    assert best_choice([two, one]) == 1


def test_a_tokenizer_that_joins_across_the_border_is_no_matter() -> None:
    assert best_choice([echoed("a|bc", None, -3.0), echoed("a|b|d", None, -1.0, -1.0)]) == 1


def test_scores_that_are_not_finite_choose_nothing() -> None:
    assert best_choice([echoed("a| b", None, math.nan), echoed("a| c", None, -1.0)]) is None
    assert best_choice([echoed("a| b", None, -1.0), echoed("a| b| c", None, -1.0, -1.0)]) is None


def test_asking_scores_all_three_kinds(serve: Any, words: Any) -> None:
    known = {"The capital of France is": [" Paris"], "2 + 2 =": [" 4."], "one, two,": [" Three,", " four,", " five"]}
    wrong = {**NEXT, "id": "n2", "prompt": "The capital of Italy is", "choices": [" Rome", " Paris"], "answer": 0}
    items = parse(lines(COMPLETION, CHOICE, wrong, NEXT), where="x")
    server = serve(words(lambda prompt: known.get(prompt, [" unknown"])))
    with CompletionsClient(server) as client:
        answers = ask(client, items)
    assert answers == {"w": 1.0, "c": 1.0, "n2": 0.0, "n": 1.0}
    assert list(answers) == ["w", "c", "n2", "n"]
    assert [(r["max_tokens"], r["echo"], len(r["prompt"])) for r in server.seen] == [
        (1, False, 2),
        (1, True, 2),
        (14, False, 1),
    ]


def test_selection_is_the_same_for_the_same_seed() -> None:
    items = builtin()
    some = select(items, 50, 3)
    assert some == select(items, 50, 3)
    assert some != select(items, 50, 4)
    assert len(set(some)) == 50
    assert [items.index(item) for item in some] == sorted(items.index(item) for item in some)
    assert select(items, None, 0) == items
    assert select(items, 10_000, 0) == items


def test_score_and_its_error() -> None:
    value, error = score({str(i): float(i < 75) for i in range(100)})
    assert value == 0.75
    assert error == pytest.approx(math.sqrt(0.75 * 0.25 / 99))
    assert score({"only": 1.0}) == (1.0, 0.0)
    with pytest.raises(ValueError, match="no answers"):
        score({})
