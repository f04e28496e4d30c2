"""The few HTTP calls that measuring makes to the server itself (the load comes from vLLM's own client)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import httpx

from tuner.measuring import prometheus
from tuner.model.outcome import Blame, Failure
from tuner.model.words import shortened
from tuner.ports import MeasurementFailed, Server

__all__ = ["Api", "chat_messages", "death"]

MAX_BODY = 32 << 20
_TOKENIZERS = 8
"""Requests to ``/tokenize`` in flight: enough to hide their latency, few enough not to queue."""


_WELL_AFTER_S = 1.0
_DEATH_NOTICE_S = 10.0
"""A dying server closes its connections, or answers 500, before its process can be seen to be gone: vLLM 0.32 takes
some seconds to end after its EngineCore was killed."""


def death(server: Server) -> Failure | None:
    """Why a server that answers no more, or not as it should, is dead; None if it lives.

    Waits for its end to show, and no longer than a second where it says that it is well.
    """
    began = time.monotonic()
    while (dead := server.failure()) is None and time.monotonic() < began + _DEATH_NOTICE_S:
        if time.monotonic() > began + _WELL_AFTER_S and _is_well(server):
            break
        time.sleep(0.1)
    return dead


def _is_well(server: Server) -> bool:
    try:
        return httpx.get(f"{server.base_url}/health", timeout=2.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def chat_messages(text: str) -> list[dict[str, Any]]:
    """One user message, written as vLLM's benchmark client writes it."""
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def _no_template(body: bytes) -> MeasurementFailed:
    """A chat request that the server cannot even turn into tokens: mostly a model without a chat template."""
    told = shortened(body.decode("utf-8", errors="replace"), 300)
    failure = Failure(
        kind="no-chat-template",
        cause=f"the server cannot put a chat message into tokens: {told}",
        blame=Blame.USER,
        phase="measure",
        advice="give --arg chat-template=FILE, or a workload with endpoint: completions",
    )
    return MeasurementFailed(failure)


class Api:
    """A session with one server. Close it (or use it as a context manager) to give the connections back."""

    def __init__(self, server: Server, *, timeout_s: float = 30.0) -> None:
        self._server = server
        self.headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
        # trust_env off: a proxy of the environment must never see traffic to 127.0.0.1.
        self._client = httpx.Client(
            base_url=server.base_url, headers=self.headers, timeout=timeout_s, trust_env=False, follow_redirects=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def metrics(self) -> prometheus.Snapshot | None:
        """One reading of ``/metrics``; None if the server does not answer just now."""
        try:
            status, body = self._request("GET", "/metrics")
        except httpx.HTTPError:
            return None
        if status != httpx.codes.OK:
            return None
        return prometheus.parse(body.decode("utf-8", errors="replace"), time=time.monotonic())

    def model_card(self) -> dict[str, Any]:
        """The first entry of ``/v1/models``: ``root`` is the checkpoint, ``max_model_len`` the longest request.

        Raises:
            MeasurementFailed: the server does not answer, or answers something else.
        """
        answer = self._json("GET", "/v1/models")
        cards = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(cards, list) or not cards or not isinstance(cards[0], dict):
            raise self._failed("GET /v1/models names no model")
        return cards[0]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Length of each text in the model's own tokens (special tokens included, as for a completion).

        Raises:
            MeasurementFailed: ``/tokenize`` does not answer as it should.
        """
        with ThreadPoolExecutor(max_workers=_TOKENIZERS) as pool:
            return list(pool.map(lambda text: self._count({"prompt": text}), texts))

    def count_chat_tokens(self, texts: Sequence[str]) -> list[int]:
        """Length of each text as one user message, the chat template and the opening of the answer included.

        Raises:
            MeasurementFailed: the model has no chat template that takes it, or ``/tokenize`` does not answer.
        """
        asked = [{"messages": chat_messages(text), "add_generation_prompt": True} for text in texts]
        with ThreadPoolExecutor(max_workers=_TOKENIZERS) as pool:
            return list(pool.map(self._count, asked))

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False where the server does not offer it (no development mode)."""
        try:
            status, _ = self._request("POST", "/reset_prefix_cache")
        except httpx.HTTPError:
            return False
        return status == httpx.codes.OK

    def _count(self, asked: dict[str, Any]) -> int:
        answer = self._json("POST", "/tokenize", {"model": self._server.model_name, **asked})
        count = answer.get("count") if isinstance(answer, dict) else None
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise self._failed("POST /tokenize gives no count")
        return count

    def _json(self, method: str, path: str, payload: dict[str, Any] | None = None) -> Any:
        try:
            status, body = self._request(method, path, payload)
        except httpx.HTTPError as error:
            raise self._failed(f"{method} {path}: {type(error).__name__}") from error
        if status == httpx.codes.BAD_REQUEST and payload is not None and "messages" in payload:
            raise _no_template(body)
        if status != httpx.codes.OK:
            raise self._failed(f"{method} {path} answers {status}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._failed(f"{method} {path} answers something that is not JSON") from error

    def _request(self, method: str, path: str, payload: dict[str, Any] | None = None) -> tuple[int, bytes]:
        with self._client.stream(method, path, json=payload) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_BODY:
                    raise httpx.DecodingError(f"body of more than {MAX_BODY} bytes")
            return response.status_code, bytes(body)

    def _failed(self, cause: str) -> MeasurementFailed:
        dead = death(self._server)
        if dead is not None:
            return MeasurementFailed(dead)
        return MeasurementFailed(
            Failure(kind="server-unresponsive", cause=cause, blame=Blame.MACHINE, retry=True, phase="measure")
        )
