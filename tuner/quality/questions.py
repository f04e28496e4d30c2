"""Question sets: read, ask, score.

A set is JSONL, one question a line, of three kinds:

``{"id": "x", "kind": "next", "prompt": "The capital of France is", "choices": [" Paris", " Rome"], "answer": 0}``
    Right if the first token of the right choice is likelier than those of the others. Costs one short prompt; the
    choices must differ in their first word.
``{"id": "y", "kind": "choice", "prompt": "2 + 2 =", "choices": [" 4.", " 5."], "answer": 0}``
    Right if the right choice as a whole has the highest log-likelihood. Costs one prompt per choice.
``{"id": "z", "kind": "completion", "prompt": "one, two,", "answers": ["three, four"], "max_tokens": 8}``
    Right if the greedy completion begins with one of the answers (case and spaces aside). Several tokens long, so
    that decoding from the KV cache counts and not only the prefill.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tuner.errors import InputError
from tuner.quality.client import Completion, CompletionsClient

__all__ = ["Question", "ask", "builtin", "load", "parse", "score", "select"]

_KEYS = ("id", "kind", "prompt", "choices", "answer", "answers", "max_tokens")
_MAX_FILE = 32 << 20
_MAX_QUESTIONS = 20_000
_MAX_TEXT = 20_000
_MAX_CHOICES = 26
_MAX_NEW_TOKENS = 512
_DEFAULT_NEW_TOKENS = 14
_TOP = 20
"""vLLM's default for ``--max-logprobs``: the most alternatives that a request may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One item. ``choices`` and ``answer`` (an index into them), or ``answers`` and ``max_tokens``."""

    id: str
    kind: str
    prompt: str
    choices: tuple[str, ...] = ()
    answer: int = 0
    answers: tuple[str, ...] = ()
    max_tokens: int = _DEFAULT_NEW_TOKENS


def builtin() -> tuple[Question, ...]:
    """The set that travels with the package: 304 questions; SmolLM2-135M-Instruct gets about three quarters."""
    source = resources.files("tuner.quality") / "data" / "questions.jsonl"
    return parse(source.read_text(encoding="utf-8").split("\n"), where="built-in questions")


def load(path: Path) -> tuple[Question, ...]:
    """Questions of the user's own.

    Raises:
        InputError: the file cannot be read or a line is not a question (with its number).
    """
    try:
        if path.stat().st_size > _MAX_FILE:
            raise InputError(f"{path}: larger than {_MAX_FILE >> 20} MiB; split the question set")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text; questions are JSON lines in UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a JSONL file of questions") from error
    return parse(text.split("\n"), where=str(path))


def parse(lines: Iterable[str], *, where: str) -> tuple[Question, ...]:
    """Questions from JSON lines; blank lines are skipped.

    Raises:
        InputError: naming ``where``, the line's number and what to change.
    """
    questions: list[Question] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        spot = f"{where}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{spot}: not JSON; write one JSON object a line") from error
        question = _question(record, spot)
        if question.id in seen:
            raise InputError(f"{spot}: id {question.id!r} was used on line {seen[question.id]}; ids must be unique")
        seen[question.id] = number
        questions.append(question)
        if len(questions) > _MAX_QUESTIONS:
            raise InputError(f"{where}: more than {_MAX_QUESTIONS} questions; give fewer")
    if not questions:
        raise InputError(f"{where}: holds no question; write at least one JSON object a line")
    return tuple(questions)


def _question(record: Any, spot: str) -> Question:
    if not isinstance(record, dict):
        raise InputError(f"{spot}: a question is a JSON object, not {type(record).__name__}")
    name, kind = record.get("id", spot), record.get("kind", "choice" if "choices" in record else "completion")
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise InputError(f"{spot}: `id` must be a short string")
    if kind not in {"next", "choice", "completion"}:
        raise InputError(f"{spot}: kind {str(kind)[:40]!r} is not known; use next, choice or completion")
    unknown = sorted(set(record) - set(_KEYS))
    if unknown:
        raise InputError(f"{spot}: key {unknown[0][:40]!r} is not known; a question has {', '.join(_KEYS)}")
    prompt = _text(record.get("prompt"), "prompt", spot)
    if kind == "completion":
        return Question(
            id=name,
            kind=kind,
            prompt=prompt,
            answers=_texts(record.get("answers"), "answers", spot, least=1),
            max_tokens=_whole(record.get("max_tokens", _DEFAULT_NEW_TOKENS), "max_tokens", spot, 1, _MAX_NEW_TOKENS),
        )
    choices = _texts(record.get("choices"), "choices", spot, least=2)
    answer = _whole(record.get("answer"), "answer", spot, 0, len(choices) - 1)
    _distinct(choices, kind, spot)
    return Question(id=name, kind=kind, prompt=prompt, choices=choices, answer=answer)


def _distinct(choices: Sequence[str], kind: str, spot: str) -> None:
    for one in choices:
        for other in choices:
            # The longer one can never be likelier than the shorter that it begins with.
            if one is not other and other.startswith(one):
                raise InputError(f"{spot}: choice {one!r} begins {other!r}; end every choice with a full stop")
    if kind == "next" and len({choice.split()[0] for choice in choices}) < len(choices):
        raise InputError(f"{spot}: choices share their first word; use kind `choice` for them")


def _text(value: object, key: str, spot: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_TEXT:
        raise InputError(f"{spot}: `{key}` must be text of 1 to {_MAX_TEXT} characters")
    return value


def _texts(value: object, key: str, spot: str, *, least: int) -> tuple[str, ...]:
    if not isinstance(value, list) or not least <= len(value) <= _MAX_CHOICES:
        raise InputError(f"{spot}: `{key}` must be a list of {least} to {_MAX_CHOICES} texts")
    return tuple(_text(item, key, spot) for item in value)


def _whole(value: object, key: str, spot: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{spot}: `{key}` must be a whole number from {low} to {high}")
    return value


def select(questions: Sequence[Question], max_items: int | None, seed: int) -> tuple[Question, ...]:
    """At most ``max_items`` of them, the same for the same seed, so that trials stay paired. File order is kept."""
    if max_items is None or max_items >= len(questions):
        return tuple(questions)
    chosen = random.Random(seed).sample(range(len(questions)), max_items)  # noqa: S311 - a sample, not a secret
    return tuple(questions[index] for index in sorted(chosen))


def ask(
    client: CompletionsClient, questions: Sequence[Question], *, say: Callable[[str], None] = lambda _: None
) -> dict[str, float]:
    """1.0 for every question answered right, else 0.0, by id.

    Raises:
        MeasurementFailed: the server died or answered with errors.
    """
    verdicts: dict[str, float] = {}
    for kind, run in (("next", _ask_next), ("choice", _ask_choice), ("completion", _ask_completion)):
        part = [question for question in questions if question.kind == kind]
        if part:
            say(f"{len(part)} questions ({kind})")
            verdicts.update(run(client, part))
    return {question.id: verdicts[question.id] for question in questions}


def _ask_next(client: CompletionsClient, questions: Sequence[Question]) -> dict[str, float]:
    answers = client.complete([question.prompt for question in questions], max_tokens=1, logprobs=_TOP)
    return {
        question.id: float(best_next(question, answer.top[0] if answer.top else {}) == question.answer)
        for question, answer in zip(questions, answers, strict=True)
    }


def best_next(question: Question, top: Mapping[str, float]) -> int | None:
    """The choice that the likeliest matching token begins; None if no token among ``top`` begins one.

    Leading spaces do not count: sentencepiece vocabularies lose them when a single token is decoded.
    """
    bare = [choice.strip() for choice in question.choices]
    for token in sorted((key for key in top if not math.isnan(top[key])), key=lambda key: -top[key]):
        piece = token.strip()
        begun = [index for index, choice in enumerate(bare) if piece and choice.startswith(piece)]
        if len(begun) == 1:
            return begun[0]
    return None


def _ask_choice(client: CompletionsClient, questions: Sequence[Question]) -> dict[str, float]:
    prompts = [question.prompt + choice for question in questions for choice in question.choices]
    # One token is generated because older servers refuse none; it is left out of the score.
    answers = iter(client.complete(prompts, max_tokens=1, logprobs=1, echo=True))
    return {
        question.id: float(best_choice([next(answers) for _ in question.choices]) == question.answer)
        for question in questions
    }


def best_choice(answers: Sequence[Completion]) -> int | None:
    """Index of the likeliest continuation among echoed prompts that differ only in their end; None if not finite.

    The tokens that all prompts begin with cancel out, so that no one needs to know where the question ends, which
    a tokenizer that joins across the border would make ambiguous.
    """
    tokens = [answer.tokens[:-1] for answer in answers]
    shared = 0
    while all(len(some) > shared and some[shared] == tokens[0][shared] for some in tokens):
        shared += 1
    # The first token of a prompt has no log-probability; where choices differ from there on, all lack it alike.
    sums = [
        math.fsum(value for value in answer.logprobs[shared:-1] if value is not None)
        if len(some) > shared
        else math.nan
        for some, answer in zip(tokens, answers, strict=True)
    ]
    if any(math.isnan(value) for value in sums):
        return None
    return max(range(len(sums)), key=sums.__getitem__)


def _ask_completion(client: CompletionsClient, questions: Sequence[Question]) -> dict[str, float]:
    verdicts: dict[str, float] = {}
    for length in sorted({question.max_tokens for question in questions}):
        part = [question for question in questions if question.max_tokens == length]
        answers = client.complete([question.prompt for question in part], max_tokens=length)
        for question, answer in zip(part, answers, strict=True):
            given = _plain(answer.text)
            verdicts[question.id] = float(any(given.startswith(_plain(right)) for right in question.answers))
    return verdicts


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def score(answers: Mapping[str, float]) -> tuple[float, float]:
    """Share right and its standard error (binomial; for graded answers the sample's own).

    Raises:
        ValueError: there are no answers.
    """
    if not answers:
        raise ValueError("no answers to score")
    count = len(answers)
    mean = math.fsum(answers.values()) / count
    if count == 1:
        return mean, 0.0
    spread = math.fsum((value - mean) ** 2 for value in answers.values()) / (count - 1)
    return mean, math.sqrt(spread / count)
