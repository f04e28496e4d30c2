"""Completions from the server under test, with every limit that an untrusted HTTP answer needs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from tuner.model.outcome import Blame, Failure
from tuner.model.words import shortened
from tuner.ports import MeasurementFailed, Server

__all__ = ["Completion", "CompletionsClient", "ModelCard"]

_BATCH = 256
"""Prompts per request: enough to fill any batch, and a body of a few megabytes."""
_MAX_BODY = 64 << 20
_MAX_MESSAGE = 300
_DEATH_NOTICE_S = 10.0
"""A dying server closes its connections before its process is reaped; only then does it say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer.

    Attributes:
        tokens: decoded tokens, those of the prompt first where ``echo`` was asked for.
        logprobs: per token its log-probability (nats); None where there is none (the first of an echoed prompt)
            and NaN where the server computed nothing finite.
        top: per token the likeliest alternatives, text → log-probability.
    """

    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    top: tuple[Mapping[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """``root``: folder or name of the checkpoint. ``max_model_len``: longest prompt and output together (tokens)."""

    root: str
    max_model_len: int


class CompletionsClient:
    """``POST /v1/completions`` of one server; a context manager.

    Args:
        timeout_s: longest wait (seconds) for the whole answer to one request of up to 256 prompts.
    """

    def __init__(self, server: Server, *, timeout_s: float = 300.0, max_body: int = _MAX_BODY) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._max_body = max_body
        headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
        # trust_env off: a proxy from the environment must not see loopback traffic or the key.
        self._http = httpx.Client(
            base_url=server.base_url, headers=headers, timeout=httpx.Timeout(timeout_s, connect=10.0), trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def complete(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int,
        logprobs: int | None = None,
        echo: bool = False,
        stop: Sequence[str] = (),
    ) -> list[Completion]:
        """Greedy completions, in the order of the prompts.

        Args:
            max_tokens: tokens to generate, at most.
            logprobs: so many likeliest alternatives per token; None for no log-probabilities.
            echo: give the prompt's tokens and log-probabilities too (vLLM computes them as ``prompt_logprobs``).

        Raises:
            MeasurementFailed: the server died, hung, refused, or answered something that is no completion.
        """
        out: list[Completion] = []
        for start in range(0, len(prompts), _BATCH):
            batch = list(prompts[start : start + _BATCH])
            payload: dict[str, Any] = {
                "model": self._server.model_name,
                "prompt": batch,
                "max_tokens": max_tokens,
                "temperature": 0.0,
                "echo": echo,
            }
            if logprobs is not None:
                payload["logprobs"] = logprobs
            if stop:
                payload["stop"] = list(stop)
            out += self._parse(
                self._request("POST", "/v1/completions", payload), len(batch), with_tokens=logprobs is not None
            )
        return out

    def card(self) -> ModelCard:
        """What ``/v1/models`` says of the model that is served.

        Raises:
            MeasurementFailed: the server died, hung, refused, or names no model.
        """
        try:
            first = json.loads(self._request("GET", "/v1/models"))["data"][0]
            root, longest = first["root"], first["max_model_len"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            raise self._failed("bad-response", "names no model in /v1/models") from error
        if not isinstance(root, str) or not root or not isinstance(longest, int) or longest < 1:
            raise self._failed("bad-response", "names no checkpoint in /v1/models")
        return ModelCard(root=root, max_model_len=longest)

    def _request(self, method: str, path: str, payload: Mapping[str, Any] | None = None) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        body = bytearray()
        try:
            with self._http.stream(method, path, json=payload) as response:
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > self._max_body:
                        raise self._failed("bad-response", f"answered with more than {self._max_body >> 20} MiB")
                    if time.monotonic() > deadline:
                        raise self._failed("hang", f"gave no full answer within {self._timeout_s:g} s")
                status = response.status_code
        except httpx.TimeoutException as error:
            raise self._failed("hang", f"gave no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failed(
                "server-unresponsive", f"cannot be reached ({type(error).__name__})", wait=True
            ) from error
        if status != httpx.codes.OK:
            raise self._refused(status, bytes(body))
        return bytes(body)

    def _refused(self, status: int, body: bytes) -> MeasurementFailed:
        message = _message(body)
        # NaN logits come out as an internal error: starlette's JSON encoder refuses NaN with this sentence.
        if status >= httpx.codes.INTERNAL_SERVER_ERROR and "not JSON compliant" in message:
            return self._failed("garbage", "computes log-probabilities that are not finite")
        # Errors that end the engine are answered with 500 moments before the process dies.
        fatal = status >= httpx.codes.INTERNAL_SERVER_ERROR
        return self._failed("request-refused", f"answered HTTP {status}: {message}", wait=fatal)

    def _parse(self, body: bytes, count: int, *, with_tokens: bool) -> list[Completion]:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._failed("bad-response", "answered something that is not JSON") from error
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or len(choices) != count:
            given = len(choices) if isinstance(choices, list) else "no"
            raise self._failed("bad-response", f"gave {given} answers to {count} prompts")
        found: dict[int, Completion] = {}
        for choice in choices:
            try:
                found[_index(choice)] = _completion(choice, with_tokens=with_tokens)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise self._failed("bad-response", "gave a completion without the fields asked for") from error
        if sorted(found) != list(range(count)):
            raise self._failed("bad-response", f"gave wrong indices to {count} prompts")
        return [found[index] for index in range(count)]

    def _failed(self, kind: str, what: str, *, wait: bool = False) -> MeasurementFailed:
        """The server's own account of its death where there is one, else what was seen from outside."""
        dead = self._server.failure()
        deadline = time.monotonic() + (_DEATH_NOTICE_S if wait else 0.0)
        while dead is None and time.monotonic() < deadline:
            time.sleep(0.1)
            dead = self._server.failure()
        if dead is not None:
            return MeasurementFailed(dead)
        cause = f"the server {what} during the accuracy check"
        return MeasurementFailed(Failure(kind=kind, cause=cause, blame=Blame.CONFIGURATION, phase="quality"))


def _message(body: bytes) -> str:
    """The error text of an OpenAI-style answer on one line, cut short."""
    text = body[:20_000].decode("utf-8", errors="replace")
    try:
        parsed = json.loads(text)
        inner = parsed.get("error", parsed)
        text = str(inner.get("message", text))
    except (ValueError, AttributeError, RecursionError):
        pass
    return shortened(text, _MAX_MESSAGE)


def _index(choice: Mapping[str, Any]) -> int:
    index = choice["index"]
    if not isinstance(index, int) or isinstance(index, bool):
        raise TypeError("index")
    return index


def _completion(choice: Mapping[str, Any], *, with_tokens: bool) -> Completion:
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError("text")
    if not with_tokens:
        return Completion(text=text)
    found = choice["logprobs"]
    tokens, logprobs, top = found["tokens"], found["token_logprobs"], found.get("top_logprobs") or []
    if len(tokens) != len(logprobs) or not all(isinstance(token, str) for token in tokens):
        raise ValueError("logprobs")
    return Completion(
        text=text,
        tokens=tuple(tokens),
        logprobs=tuple(None if value is None else _number(value) for value in logprobs),
        top=tuple({str(key): _number(value) for key, value in (entry or {}).items()} for entry in top),
    )


def _number(value: object) -> float:
    """A log-probability; NaN for anything that is none (vLLM writes -9999 for minus infinity, which stays)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return math.nan
    return float(value)
