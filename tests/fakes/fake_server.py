"""HTTP face of the fake vLLM: HTTP/1.1 with keep-alive and server-sent events on asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import time
from typing import Any

from fake_engine import Engine, Request, answer_to

__all__ = ["FakeServer"]

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 500: "Internal Server Error",
            503: "Service Unavailable"}  # fmt: skip
_TEMPLATE = "You are a fake and answer what you are asked. User: "
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class FakeServer:
    """Routes and faults; the engine does the rest."""

    def __init__(
        self,
        *,
        flags: dict[str, object],
        script: dict[str, object],
        engine: subprocess.Popen[bytes],
        kv_tokens: int,
        version: str,
    ) -> None:
        self.flags, self.script, self.child, self.version = flags, script, engine, version
        self.engine = Engine(flags, script, kv_tokens)
        served = flags.get("served-model-name", flags.get("model", "m"))
        self.model = str(script.get("serve_as") or (served[0] if isinstance(served, list) else served))
        self.key = os.environ.get("VLLM_API_KEY", "") or str(flags.get("api-key", "") or "")
        self.requests = 0
        self.created = int(time.time())

    async def run(self, listener: socket.socket) -> None:
        """Serve until SIGTERM or SIGINT."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        if not self.script.get("ignore_sigterm"):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)
        stepping = asyncio.create_task(self.engine.run())
        server = await asyncio.start_server(self._connection, sock=listener, backlog=2048)
        os.write(1, b"INFO:     Application startup complete.\n")
        await stop.wait()
        os.write(1, b"INFO:     Shutting down\n")
        stepping.cancel()
        server.close()

    # ------------------------------------------------------------ HTTP

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError, asyncio.LimitOverrunError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ", 2)
                headers = {}
                for line in head[1:]:
                    name, _, value = line.partition(":")
                    headers[name.strip().lower()] = value.strip()
                body = await self._body(reader, headers)
                if not await self._route(method, target, headers, body, writer):
                    break
                if headers.get("connection", "").lower() == "close":
                    break
        with contextlib.suppress(ConnectionError):
            writer.close()
            await writer.wait_closed()

    @staticmethod
    async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
                parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readexactly(2)
            return b"".join(parts)
        return await reader.readexactly(int(headers.get("content-length", "0") or 0))

    async def _send(
        self, writer: asyncio.StreamWriter, status: int, value: object, *, kind: str = "application/json"
    ) -> bool:
        body = value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()
        lines = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}",
            "server: uvicorn",
            f"content-length: {len(body)}",
            f"content-type: {kind}",
        )
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        await writer.drain()
        return True

    async def _route(
        self, method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; False closes the connection."""
        path = target.partition("?")[0]
        if path.startswith("/v1") and self.key and not self.script.get("open_door"):
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.key.encode()):
                return await self._send(writer, 401, {"error": "Unauthorized"})
        plain = self._plain(method, path)
        if plain is not None:
            status, value, kind = plain
            return await self._send(writer, status, value, kind=kind)
        try:
            request = json.loads(body or b"{}")
        except ValueError:
            return await self._send(writer, 400, _error("invalid JSON", 400))
        if path == "/tokenize":
            if "messages" in request and self.script.get("no_template"):
                return await self._send(writer, 400, _error("no chat template is defined", 400))
            tokens, _ = self._prompts(request, chat="messages" in request)[0]
            return await self._send(
                writer,
                200,
                {"count": len(tokens), "max_model_len": self._length(), "tokens": tokens, "token_strs": None},
            )
        if path == "/detokenize":
            return await self._send(writer, 200, {"prompt": self.engine.tokenizer.decode(request.get("tokens", []))})
        if path in ("/v1/completions", "/v1/chat/completions") and method == "POST":
            return await self._complete(request, writer, chat="chat" in path)
        return await self._send(writer, 404, {"detail": "Not Found"})

    def _plain(self, method: str, path: str) -> tuple[int, object, str] | None:
        """Answers that need no body."""
        dev = os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        if path in ("/health", "/ping"):
            status = 503 if self._dead() else int(self.script.get("health", 200))  # type: ignore[call-overload]
            return status, "", "text/plain"
        if path == "/metrics":
            return 200, self.engine.metrics(self.model), "text/plain; version=0.0.4"
        if path == "/version":
            return 200, {"version": self.version}, "application/json"
        if path == "/v1/models":
            card = {"id": self.model, "object": "model", "created": self.created, "owned_by": "vllm",
                    "root": self.flags.get("model"), "parent": None, "max_model_len": self._length()}  # fmt: skip
            return 200, {"object": "list", "data": [card]}, "application/json"
        if path == "/load":
            return 200, {"server_load": len(self.engine.running)}, "application/json"
        if dev and path == "/server_info":
            return 200, self._info(), "application/json"
        if dev and path == "/reset_prefix_cache" and method == "POST":
            self.engine.blocks.clear()
            return 200, {"success": True}, "application/json"
        return None

    def _length(self) -> int:
        value = self.flags.get("max-model-len", 2048)
        return value if isinstance(value, int) else 2048

    def _info(self) -> dict[str, object]:
        flags = self.flags
        eager = flags.get("enforce-eager") is True
        compilation = flags.get("compilation-config")
        settings: dict[str, object] = {
            "mode": 0 if eager else 3, "cudagraph_mode": "NONE" if eager else "FULL_AND_PIECEWISE",
            "cudagraph_capture_sizes": [] if eager else [1, 2, 4, 8, 16, 24, 32, 40, 48],
            "max_cudagraph_capture_size": 0 if eager else 48,
        }  # fmt: skip
        settings |= compilation if isinstance(compilation, dict) and not eager else {}
        return {
            "vllm_config": {
                "model_config": {"model": flags.get("model"), "dtype": "torch.bfloat16",
                                 "max_model_len": self._length(),
                                 "quantization": flags.get("quantization"), "enforce_eager": eager,
                                 "served_model_name": self.model, "seed": 0},
                "cache_config": {"block_size": flags.get("block-size", 16),
                                 "cache_dtype": flags.get("kv-cache-dtype", "auto"),
                                 "enable_prefix_caching": self.engine.caching,
                                 "num_gpu_blocks": self.engine.kv_tokens // 16,
                                 "kv_cache_memory_bytes": flags.get("kv-cache-memory-bytes")},
                "scheduler_config": {"max_num_seqs": self.engine.max_seqs,
                                     "max_num_batched_tokens": self.engine.max_batched,
                                     "enable_chunked_prefill": flags.get("enable-chunked-prefill", True),
                                     "async_scheduling": flags.get("async-scheduling", True)},
                "parallel_config": {"tensor_parallel_size": flags.get("tensor-parallel-size", 1)},
                "compilation_config": settings,
                "attention_config": {"backend": flags.get("attention-backend")},
            },
            "vllm_env": {}, "system_env": {},
        }  # fmt: skip

    def _dead(self) -> bool:
        after = self.script.get("die_after")
        if isinstance(after, int) and self.requests >= after and self.child.poll() is None:
            _log(
                "ERROR",
                "core.py:1620",
                "EngineCore encountered a fatal error.\n"
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.",
            )
            self.child.kill()
        return self.child.poll() is not None

    # ------------------------------------------------------------ completions

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter, *, chat: bool) -> bool:
        if body.get("model") not in (None, self.model):
            return await self._send(writer, 404, _error(f"The model `{body.get('model')}` does not exist.", 404))
        self.requests += 1
        crash = self.script.get("crash_after")
        if isinstance(crash, int) and self.requests > crash:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._dead():
            return await self._send(writer, 500, _error(_DEAD, 500))
        for key in ("error_every", "close_every"):
            every = self.script.get(key)
            if isinstance(every, int) and self.requests % every == 0:
                if key == "close_every":
                    writer.transport.abort()
                    return False
                return await self._send(writer, 500, _error("injected", 500))
        prompts = self._prompts(body, chat=chat)
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        wanted = 16 if limit is None else int(limit)
        if any(len(tokens) + wanted > self._length() for tokens, _ in prompts):
            return await self._send(
                writer, 400, _error(f"This model's maximum context length is {self._length()} tokens.", 400)
            )
        garbage = bool(self.script.get("garbage"))
        requests = [
            self.engine.submit(
                tokens, max(wanted, 1), ignore_eos=bool(body.get("ignore_eos")), answer=answer_to(text, garbage=garbage)
            )
            for tokens, text in prompts
        ]
        try:
            if body.get("stream"):
                return await self._stream(body, requests, writer, chat=chat)
            for request in requests:
                await self._until(request, lambda request=request: request.done)
        except _EngineDied:
            return await self._send(writer, 500, _error(_DEAD, 500))
        except ConnectionError:
            for request in requests:
                request.cancelled = True
            raise
        choices = [
            self._choice(body, request, text, index, chat=chat)
            for index, (request, (_, text)) in enumerate(zip(requests, prompts, strict=True))
        ]
        return await self._send(writer, 200, {**self._head(chat=chat), "choices": choices, "usage": _usage(requests)})

    def _prompts(self, body: dict[str, Any], *, chat: bool) -> list[tuple[list[int], str]]:
        encode, decode = self.engine.tokenizer.encode, self.engine.tokenizer.decode
        if chat:
            said = "\n".join(_content(message.get("content")) for message in body.get("messages", ()))
            text = f"{_TEMPLATE}{said}"
            return [(encode(text), text)]
        prompt = body.get("prompt", "")
        if isinstance(prompt, str):
            prompt = [prompt]
        if prompt and isinstance(prompt[0], int):
            prompt = [prompt]
        return [(encode(item), item) if isinstance(item, str) else (list(item), decode(list(item))) for item in prompt]

    async def _until(self, request: Request, ready: Any) -> None:
        while not ready():
            request.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(request.changed.wait(), 1.0)
            if self.child.poll() is not None:
                raise _EngineDied

    def _head(self, *, chat: bool) -> dict[str, object]:
        return {"id": f"cmpl-{self.requests:016x}", "object": "chat.completion" if chat else "text_completion",
                "created": int(time.time()), "model": self.model}  # fmt: skip

    def _choice(
        self, body: dict[str, Any], request: Request, text: str, index: int, *, chat: bool
    ) -> dict[str, object]:
        tokens = request.output if int(body.get("max_tokens") or 1) > 0 else []
        said = self.engine.tokenizer.decode(tokens)
        stops = body.get("stop") or []
        cuts = [said.find(stop) for stop in ([stops] if isinstance(stops, str) else stops) if stop in said]
        choice: dict[str, object] = {"index": index, "finish_reason": "stop" if cuts else "length", "stop_reason": None}
        said = said[: min(cuts)] if cuts else said
        if chat:
            return {**choice, "message": {"role": "assistant", "content": said}}
        shown = [*request.prompt, *tokens] if body.get("echo") else tokens
        logprobs = self._logprobs(shown, echo=bool(body.get("echo"))) if body.get("logprobs") is not None else None
        return {**choice, "text": text + said if body.get("echo") else said, "logprobs": logprobs}

    def _logprobs(self, tokens: list[int], *, echo: bool) -> dict[str, object]:
        words = [self.engine.tokenizer.decode([token]) for token in tokens]
        values = [
            -0.01 - int.from_bytes(hashlib.blake2s(word.encode(), digest_size=2).digest()) / 20_000 for word in words
        ]
        offsets = [0]
        for word in words[:-1]:
            offsets.append(offsets[-1] + len(word))
        best: list[object] = [{word: value} for word, value in zip(words, values, strict=True)]
        masked: list[object] = list(values)
        if echo and masked:
            best[0] = masked[0] = None
        return {"tokens": words, "token_logprobs": masked, "top_logprobs": best, "text_offset": offsets[: len(words)]}

    async def _stream(
        self, body: dict[str, Any], requests: list[Request], writer: asyncio.StreamWriter, *, chat: bool
    ) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        options = body.get("stream_options") or {}
        head = self._head(chat=chat)

        def event(payload: object) -> None:
            text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
            data = f"data: {text}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))

        for index, request in enumerate(requests):
            sent = 0
            while sent < len(request.output):
                await self._until(request, lambda request=request, sent=sent: request.produced > sent)
                said = self.engine.tokenizer.decode(request.output[sent : request.produced])
                sent = request.produced
                choice: dict[str, object] = {
                    "index": index,
                    "logprobs": None,
                    "finish_reason": "length" if request.done else None,
                }
                choice |= {"delta": {"content": said}} if chat else {"text": said}
                chunk: dict[str, object] = {**head, "choices": [choice]}
                if options.get("continuous_usage_stats"):
                    chunk["usage"] = _usage([request], produced=sent)
                event(chunk)
                await writer.drain()
        if options.get("include_usage"):
            event({**head, "choices": [], "usage": _usage(requests)})
        event("[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


class _EngineDied(Exception):
    """The EngineCore process is gone."""


def _usage(requests: list[Request], produced: int | None = None) -> dict[str, int]:
    prompt = sum(len(request.prompt) for request in requests)
    output = sum(len(request.output) for request in requests) if produced is None else produced
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


def _content(content: object) -> str:
    """The text of a message, given as text or as a list of parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(part.get("text")) for part in parts)


def _error(message: str, code: int) -> dict[str, object]:
    return {"error": {"message": message, "type": "Error", "param": None, "code": code}}


def _log(level: str, source: str, text: str) -> None:
    stamp = time.strftime("%m-%d %H:%M:%S")
    for line in text.split("\n"):
        os.write(1, f"(EngineCore pid={os.getpid()}) {level} {stamp} [{source}] {line}\n".encode())
