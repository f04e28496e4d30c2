"""A scripted completions server on loopback: what the model says is a Python function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tuner.model.measurement import ServerReport
from tuner.model.outcome import Failure

Reply = tuple[int, bytes]
"""HTTP status and body."""


@dataclass
class FakeServer:
    """A :class:`tuner.ports.Server` whose answers ``reply`` makes from the request's payload."""

    reply: Callable[[dict[str, Any]], Reply]
    base_url: str = ""
    api_key: str = "planted-key"
    model_name: str = "demo"
    dead: Failure | None = None
    report: ServerReport = field(default_factory=ServerReport)
    seen: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    models: Any = None

    def failure(self) -> Failure | None:
        return self.dead


def answer(*choices: dict[str, Any]) -> Reply:
    return 200, json.dumps({"choices": list(choices)}).encode()


def model(say: Callable[[str], list[str]], *, logprob: float = -0.5) -> Callable[[dict[str, Any]], Reply]:
    """A model that continues a prompt with the tokens of ``say``; words are tokens, unlikely unless said."""

    def reply(payload: dict[str, Any]) -> Reply:
        choices = []
        for index, prompt in enumerate(payload["prompt"]):
            said = say(prompt)[: payload["max_tokens"]]
            tokens, values = list(said), [logprob] * len(said)
            if payload["echo"]:
                words = prompt.split(" ")
                tokens = [*words[:1], *(" " + word for word in words[1:]), *tokens]
                likely = _likely(prompt, say)
                values = [None, *([-1.0] * (len(words) - 2)), likely, *values]
            choices.append(
                {
                    "index": index,
                    "text": "".join(tokens),
                    "logprobs": None
                    if payload.get("logprobs") is None
                    else {
                        "tokens": tokens,
                        "token_logprobs": values,
                        "top_logprobs": [
                            {token: value} if value is not None else None
                            for token, value in zip(tokens, values, strict=True)
                        ],
                    },
                }
            )
        choices.reverse()  # order of arrival is not promised
        return answer(*choices)

    def _likely(prompt: str, say: Callable[[str], list[str]]) -> float:
        head, _, last = prompt.rpartition(" ")
        return -0.1 if say(head)[:1] == [" " + last] else -9.0

    return reply


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[dict[str, Any]], Reply]], FakeServer]]:
    running: list[ThreadingHTTPServer] = []

    def start(reply: Callable[[dict[str, Any]], Reply]) -> FakeServer:
        fake = FakeServer(reply)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.seen.append(payload)
                fake.authorizations.append(self.headers.get("Authorization", ""))
                status, body = fake.reply(payload)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                body = json.dumps(fake.models).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None: ...

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        http.daemon_threads = True
        http.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up early is a case
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(http)
        fake.base_url = f"http://127.0.0.1:{http.server_address[1]}"
        return fake

    yield start
    for http in running:
        http.shutdown()
        http.server_close()


@pytest.fixture
def words() -> Callable[[Callable[[str], list[str]]], Callable[[dict[str, Any]], Reply]]:
    return model
