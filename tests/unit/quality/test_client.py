from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from tuner.model.outcome import Blame, Failure
from tuner.ports import MeasurementFailed
from tuner.quality.client import CompletionsClient


def choice(index: int = 0, text: str = " yes", **extra: Any) -> dict[str, Any]:
    return {"index": index, "text": text, **extra}


def body(*choices: Any) -> bytes:
    return json.dumps({"choices": list(choices)}).encode()


def failure_of(serve: Any, status: int, content: bytes, *, logprobs: int | None = None, **options: Any) -> Failure:
    with (
        CompletionsClient(serve(lambda _: (status, content)), **options) as client,
        pytest.raises(MeasurementFailed) as seen,
    ):
        client.complete(["a"], max_tokens=1, logprobs=logprobs)
    return seen.value.failure


def test_answers_come_in_the_order_of_the_prompts_over_several_requests(serve: Any, words: Any) -> None:
    server = serve(words(lambda prompt: [" re:" + prompt]))
    prompts = [f"p{number}" for number in range(300)]
    with CompletionsClient(server) as client:
        answers = client.complete(prompts, max_tokens=1)
    assert [answer.text for answer in answers] == [" re:" + prompt for prompt in prompts]
    assert [len(request["prompt"]) for request in server.seen] == [256, 44]


def test_log_probabilities_and_alternatives_are_read(serve: Any) -> None:
    found = {"tokens": ["a", " b"], "token_logprobs": [None, -2.5], "top_logprobs": [None, {" b": -2.5, " c": -0.5}]}
    with CompletionsClient(serve(lambda _: (200, body(choice(logprobs=found))))) as client:
        (answer,) = client.complete(["a"], max_tokens=1, logprobs=1, echo=True)
    assert answer.logprobs == (None, -2.5)
    assert answer.top == ({}, {" b": -2.5, " c": -0.5})


def test_numbers_that_are_none_become_nan(serve: Any) -> None:
    values = '{"tokens": ["a", "b", "c"], "token_logprobs": [NaN, "x", true]}'
    text = f'{{"choices": [{{"index": 0, "text": "", "logprobs": {values}}}]}}'
    with CompletionsClient(serve(lambda _: (200, text.encode()))) as client:
        (answer,) = client.complete(["a"], max_tokens=3, logprobs=1)
    assert all(value is not None and math.isnan(value) for value in answer.logprobs)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"[" * 100_000,
        b"{}",
        b"[]",
        b'{"choices": 3}',
        body(),
        body(choice(), choice(1)),
        body(choice(1)),
        body(choice(True)),
        body(choice(text=None)),
        body({"text": "no index"}),
        body("text"),
    ],
)
def test_an_answer_that_is_no_completion_is_named_so(serve: Any, content: bytes) -> None:
    failure = failure_of(serve, 200, content)
    assert (failure.kind, failure.blame, failure.phase) == ("bad-response", Blame.CONFIGURATION, "quality")


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {},
        [],
        {"tokens": ["a"], "token_logprobs": []},
        {"tokens": [1], "token_logprobs": [0.0]},
        {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [3]},
    ],
)
def test_missing_log_probabilities_are_a_bad_response(serve: Any, logprobs: Any) -> None:
    assert failure_of(serve, 200, body(choice(logprobs=logprobs)), logprobs=1).kind == "bad-response"


def test_too_large_a_body_is_refused(serve: Any) -> None:
    failure = failure_of(serve, 200, body(choice(text="x" * (3 << 20))), max_body=1 << 20)
    assert failure.kind == "bad-response"
    assert "more than 1 MiB" in failure.cause


def test_nan_logits_are_garbage_not_an_error_of_the_machine(serve: Any) -> None:
    message = {"error": {"message": "Out of range float values are not JSON compliant: nan"}}
    assert failure_of(serve, 500, json.dumps(message).encode()).kind == "garbage"


def test_a_refusal_carries_the_servers_words_on_one_short_line(serve: Any) -> None:
    message = {"error": {"message": "maximum context length\nis 16 tokens " + "x" * 900}}
    failure = failure_of(serve, 400, json.dumps(message).encode())
    assert failure.kind == "request-refused"
    assert "HTTP 400: maximum context length is 16 tokens" in failure.cause
    assert "\n" not in failure.cause
    assert len(failure.cause) < 400


def test_a_silent_server_is_a_hang(serve: Any) -> None:
    def sleepy(_: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(1)
        return 200, b""

    with CompletionsClient(serve(sleepy), timeout_s=0.2) as client, pytest.raises(MeasurementFailed) as seen:
        client.complete(["a"], max_tokens=1)
    assert seen.value.failure.kind == "hang"


def test_a_dead_server_speaks_for_itself(serve: Any, words: Any) -> None:
    server = serve(words(lambda _: []))
    server.base_url = "http://127.0.0.1:9"  # the discard port: nobody listens
    server.dead = Failure(kind="cuda-oom", cause="out of memory", blame=Blame.CONFIGURATION)
    with CompletionsClient(server) as client, pytest.raises(MeasurementFailed) as seen:
        client.complete(["a"], max_tokens=1)
    assert seen.value.failure is server.dead


def test_the_key_stands_in_no_message(serve: Any) -> None:
    failure = failure_of(serve, 401, b'{"error": "Unauthorized"}')
    assert "planted-key" not in repr(failure)


@pytest.mark.parametrize(
    "models", [None, {}, {"data": []}, {"data": [{"id": "demo"}]}, {"data": [{"root": 3, "max_model_len": 9}]}, "text"]
)
def test_a_server_that_names_no_checkpoint(serve: Any, models: Any) -> None:
    server = serve(lambda _: (200, b""))
    server.models = models
    with CompletionsClient(server) as client, pytest.raises(MeasurementFailed, match="/v1/models"):
        client.card()
