"""The engine behind the fake server: a scheduler with continuous batching in simulated time, and its counters.

Speed is a plain function of the flags, so that a study on it has a surface with an optimum, a cliff and dead ends:
a decode step costs a launch (cheap where a captured graph covers the batch), a share per running sequence, and a
share per prefilled token; the batch is bounded by ``--max-num-seqs``, by the KV cache and by the load.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import time
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Engine", "Request", "Tokenizer", "step_seconds"]

_PIECE = re.compile(r"\s?\w+|\s?[^\w\s]|\s+")
_WORDS = re.findall(
    r"\w+",
    """
    the of and to in is that for it as was with be by on not he his but at are
    this
    have from or had an they which one you were all her she there would their
    we him been has when who will no more if out so up said what its
""",
)
# What the question sets of a tuner may ask; everything else is answered by a hash of the prompt.
ANSWERS = {
    "capital of france": " Paris",
    "capital of germany": " Berlin",
    "capital of italy": " Rome",
    "capital of spain": " Madrid",
    "capital of japan": " Tokyo",
    "opposite of hot": " cold",
    "two plus two": " four",
    "2 + 2": " 4",
    "2+2": " 4",
    "1, 2, 3, 4,": " 5",
    "one, two, three,": " four",
    "1, 2, 3, 4, 5, 6,": " 7",
    "monday comes before": " Tuesday",
    "earth goes around the": " sun",
    "language spoken in italy is": " Italian",
    "monday, tuesday,": " Wednesday",
    "color of the sky": " blue",
}


class Tokenizer:
    """Words and signs; an id it never saw decodes to `` w<id>`` and back."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}

    def encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece in _PIECE.findall(text)]

    def _id(self, piece: str) -> int:
        if piece.startswith(" w") and piece[2:].isdigit():
            return int(piece[2:])
        number = 100 + int.from_bytes(hashlib.blake2s(piece.encode(), digest_size=4).digest()) % 48_000
        while self.texts.setdefault(number, piece) != piece:
            number += 1
        return number

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.texts.get(token, f" w{token}") for token in tokens)


def _number(flags: dict[str, object], name: str, default: float) -> float:
    value = flags.get(name, default)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def step_seconds(flags: dict[str, object], batch: int, prefill: int) -> float:
    """Seconds of one step that decodes ``batch`` sequences and prefills ``prefill`` tokens."""
    launch = 0.020
    if flags.get("enforce-eager") is not True:
        compilation = flags.get("compilation-config")
        settings = compilation if isinstance(compilation, dict) else {}
        sizes = settings.get("cudagraph_capture_sizes") or [settings.get("max_cudagraph_capture_size", 48)]
        launch = 0.008 if batch <= max(sizes) and settings.get("cudagraph_mode") != "NONE" else 0.026
    if flags.get("async-scheduling") is False:
        launch += 0.002
    each = 0.00025
    if str(flags.get("kv-cache-dtype", "auto")).startswith("fp8"):
        each *= 0.85
    block = _number(flags, "block-size", 16)
    each *= 1.0 + 0.02 * abs(math.log2(max(block, 1) / 32))
    token = 0.00002 if flags.get("enable-prefix-caching") is not False else 0.0000195
    return launch + each * batch + token * prefill


@dataclass(eq=False)
class Request:
    """One prompt on its way."""

    prompt: list[int]
    output: list[int]
    instant: bool = False
    prefill: int = 0
    produced: int = 0
    cached: int = 0
    arrived: float = field(default_factory=time.monotonic)
    first: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False

    @property
    def done(self) -> bool:
        return self.produced >= len(self.output)


class Engine:
    """Continuous batching, one coroutine."""

    def __init__(self, flags: dict[str, object], script: dict[str, object], kv_tokens: int) -> None:
        self.flags, self.script, self.kv_tokens = flags, script, kv_tokens
        self.tokenizer = Tokenizer()
        self.max_seqs = int(_number(flags, "max-num-seqs", 64))
        self.max_batched = int(_number(flags, "max-num-batched-tokens", 2048))
        self.caching = flags.get("enable-prefix-caching") is not False
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.blocks: set[bytes] = set()
        self.seen: set[str] = set()
        self.work = asyncio.Event()
        self.finished = 0
        self.counts: dict[str, float] = dict.fromkeys(
            (
                "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions",
                "external_prefix_cache_queries", "external_prefix_cache_hits", "prompt_tokens_cached",
            ), 0.0,
        )  # fmt: skip
        self.ended: dict[str, float] = dict.fromkeys(("stop", "length", "abort", "error"), 0.0)
        self.histograms: dict[str, list[float]] = {
            name: []
            for name in (
                "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
                "e2e_request_latency_seconds", "request_queue_time_seconds", "iteration_tokens_total",
                "request_prompt_tokens", "request_generation_tokens",
            )
        }  # fmt: skip

    # ------------------------------------------------------------ requests

    def submit(self, prompt: list[int], max_tokens: int, *, ignore_eos: bool, answer: str) -> Request:
        """Queue one prompt; its output is decided now, its time passes in :meth:`run`."""
        tokens = self.tokenizer.encode(answer)
        if self.script.get("short_outputs"):
            max_tokens = max(1, max_tokens // 4)
        elif not ignore_eos:
            max_tokens = min(max_tokens, max(len(tokens), 1))
        while len(tokens) < max_tokens:
            tokens += self.tokenizer.encode(_filler(prompt, len(tokens)))
        key = hashlib.blake2s(json.dumps([prompt, max_tokens]).encode()).hexdigest()
        request = Request(prompt, tokens[:max_tokens], instant=bool(self.script.get("cached")) and key in self.seen)
        self.seen.add(key)
        request.cached = self._cached(prompt)
        request.prefill = len(prompt) - request.cached
        self.counts["prompt_tokens"] += len(prompt)
        self.counts["prefix_cache_queries"] += len(prompt)
        self.counts["prefix_cache_hits"] += request.cached
        self.counts["prompt_tokens_cached"] += request.cached
        self.waiting.append(request)
        self.work.set()
        return request

    def _cached(self, prompt: list[int]) -> int:
        """Tokens of the prompt whose blocks are in the cache; they are put there as well."""
        if not self.caching:
            return 0
        block = max(int(_number(self.flags, "block-size", 16)), 1)
        digest, hits, known = hashlib.blake2s(), 0, True
        for end in range(block, len(prompt), block):
            digest.update(json.dumps(prompt[end - block : end]).encode())
            key = digest.digest()
            known = known and key in self.blocks
            hits += block if known else 0
            self.blocks.add(key)
        return hits

    # ------------------------------------------------------------ time

    async def run(self) -> None:
        """Step for ever."""
        due = time.monotonic()
        while True:
            if not self.waiting and not self.running:
                self.work.clear()
                await self.work.wait()
                due = time.monotonic()
            batch, prefill = self._schedule()
            speed = float(self.script.get("speed", 1.0))  # type: ignore[arg-type]
            slow = self.script.get("slow_after")
            if isinstance(slow, list) and self.finished >= slow[0]:
                speed /= float(slow[1])
            due = max(due, time.monotonic() - 0.05) + step_seconds(self.flags, batch, prefill) / speed
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self.script.get("hang_at") == "measure":
                await asyncio.Event().wait()  # nobody sets it
            self._advance(batch + prefill)

    def _schedule(self) -> tuple[int, int]:
        self.running = [request for request in self.running if not request.cancelled]
        room = self.kv_tokens - sum(len(request.prompt) + len(request.output) for request in self.running)
        while self.waiting and len(self.running) < self.max_seqs:
            request = self.waiting[0]
            if self.running and len(request.prompt) + len(request.output) > room:
                break
            room -= len(request.prompt) + len(request.output)
            self.waiting.popleft()
            if not request.cancelled:
                self.running.append(request)
                self.histograms["request_queue_time_seconds"].append(time.monotonic() - request.arrived)
        budget = max(self.max_batched - sum(not request.prefill for request in self.running), 0)
        total = 0
        for request in self.running:
            part = min(request.prefill, budget - total)
            request.prefill -= part
            total += part
        return sum(not request.prefill for request in self.running), total

    def _advance(self, tokens: int) -> None:
        now = time.monotonic()
        self.histograms["iteration_tokens_total"].append(tokens)
        for request in self.running:
            if request.prefill and not request.instant:
                continue
            new = len(request.output) if request.instant else 1
            if not request.first:
                request.first = now
                self.histograms["time_to_first_token_seconds"].append(now - request.arrived)
            request.produced = min(request.produced + new, len(request.output))
            self.counts["generation_tokens"] += new
            request.changed.set()
            if request.done:
                self._finish(request, now)
        self.running = [request for request in self.running if not request.done]

    def _finish(self, request: Request, now: float) -> None:
        self.finished += 1
        self.ended["length"] += 1
        gaps = max(len(request.output) - 1, 1)
        step = (now - request.first) / gaps
        self.histograms["request_time_per_output_token_seconds"].append(step)
        self.histograms["inter_token_latency_seconds"].append(step)
        self.histograms["e2e_request_latency_seconds"].append(now - request.arrived)
        self.histograms["request_prompt_tokens"].append(len(request.prompt))
        self.histograms["request_generation_tokens"].append(len(request.output))

    # ------------------------------------------------------------ metrics

    def metrics(self, model: str) -> str:
        """Prometheus text under vLLM's names."""
        label = f'engine="0",model_name="{model}"'
        used = sum(len(request.prompt) + request.produced for request in self.running) / max(self.kv_tokens, 1)
        gauges = {
            "num_requests_running": len(self.running),
            "num_requests_waiting": len(self.waiting),
            "kv_cache_usage_perc": min(used, 1.0),
        }
        lines: list[str] = []
        for name, value in gauges.items():
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{label}}} {value}"]
        for name, value in self.counts.items():
            lines += [f"# TYPE vllm:{name} counter", f"vllm:{name}_total{{{label}}} {value}"]
        lines.append("# TYPE vllm:request_success counter")
        for reason, value in self.ended.items():
            lines.append(
                f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{model}"}} {value}'
            )
        for name, values in self.histograms.items():
            lines.append(f"# TYPE vllm:{name} histogram")
            for bound in (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 100.0, 1000.0):
                count = sum(value <= bound for value in values)
                lines.append(f'vllm:{name}_bucket{{engine="0",le="{bound}",model_name="{model}"}} {float(count)}')
            lines.append(f'vllm:{name}_bucket{{engine="0",le="+Inf",model_name="{model}"}} {float(len(values))}')
            lines.append(f"vllm:{name}_count{{{label}}} {float(len(values))}")
            lines.append(f"vllm:{name}_sum{{{label}}} {float(sum(values))}")
        block = int(_number(self.flags, "block-size", 16))
        length = _number(self.flags, "max-model-len", 2048)
        info = {
            "block_size": block, "cache_dtype": self.flags.get("kv-cache-dtype", "auto"), "engine": 0,
            "enable_prefix_caching": self.caching, "gpu_memory_utilization": 0.92,
            "kv_cache_max_concurrency": round(self.kv_tokens / length, 2), "kv_cache_size_tokens": self.kv_tokens,
            "num_gpu_blocks": self.kv_tokens // block,
        }  # fmt: skip
        labels = ",".join(f'{key}="{value}"' for key, value in info.items())
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{labels}}} 1.0"]
        return "\n".join(lines) + "\n"


def _filler(prompt: list[int], position: int) -> str:
    """The next word after the answer: a hash of prompt and position, the same in every configuration."""
    seed = hashlib.blake2s(json.dumps([prompt[-64:], position]).encode(), digest_size=4).digest()
    return " " + _WORDS[int.from_bytes(seed) % len(_WORDS)]


def answer_to(text: str, *, garbage: bool) -> str:
    """What the model says first."""
    if garbage:
        return " zq xv !! ## zq qx vv ~~ zq xv"
    tail = text.lower()[-300:]
    found = [(tail.rfind(question), answer) for question, answer in ANSWERS.items() if question in tail]
    return (max(found)[1] if found else _filler([len(text), *text.encode()[-60:]], 0)) + ".\n"
