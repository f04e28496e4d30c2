"""The traffic a deployment sees, and what it wants from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Endpoint", "Limit", "LoadPoint", "Objective", "PromptSource", "Workload"]

PromptSource: TypeAlias = Literal["random", "text", "prefix", "jsonl", "sharegpt", "trace"]
Endpoint: TypeAlias = Literal["completions", "chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One level of load on a running server.

    Attributes:
        concurrency: closed loop, so many requests in flight (None: open loop only).
        rate: open loop, requests per second (None: as fast as ``concurrency`` allows).
        burstiness: 1.0 is Poisson; smaller is burstier (``vllm bench serve --burstiness``).
        requests: requests per round.
        weight: share in the objective when there are several points.
    """

    concurrency: int | None = None
    rate: float | None = None
    burstiness: float = 1.0
    requests: int = 64
    weight: float = 1.0

    @property
    def name(self) -> str:
        parts = []
        if self.concurrency is not None:
            parts.append(f"c{self.concurrency}")
        if self.rate is not None:
            parts.append(f"r{self.rate:g}")
        return "-".join(parts) or "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent to the server.

    Attributes:
        source: where prompts come from; ``random`` tokens, ``text`` (the built-in corpus), ``prefix`` (shared
            prefixes), or the user's file at ``path``.
        input_tokens, output_tokens: lengths per request (the mean where the source has its own).
        spread: lengths vary uniformly by ± this share (0 to 1).
        prefix_tokens: shared prefix per group (``prefix`` source); ``prefix_groups`` different ones.
        expected_hit_rate: prefix-cache hit share (0 to 1) that the traffic itself should give.
        ignore_eos: every output has the full length.
        points: load points, all measured on one server.
        rounds: least and most measuring rounds per point; precision: wanted half-width of the 95 % interval
            relative to the mean.
        needs_text: kept from random tokens because acceptance or routing would be nonsense.
        endpoint: ``completions`` sends the text as it is to ``/v1/completions``; ``chat`` sends it as one user message
            to ``/v1/chat/completions``, so that the model's chat template is part of every request and of its length.
    """

    name: str
    source: PromptSource = "random"
    path: str = ""
    input_tokens: int = 128
    output_tokens: int = 128
    spread: float = 0.0
    prefix_tokens: int = 0
    prefix_groups: int = 1
    expected_hit_rate: float = 0.0
    ignore_eos: bool = True
    points: tuple[LoadPoint, ...] = (LoadPoint(concurrency=32),)
    rounds: tuple[int, int] = (2, 6)
    precision: float = 0.02
    temperature: float = 0.0
    force_random: bool = False
    endpoint: Endpoint = "completions"

    @property
    def tokens_needed(self) -> int:
        """Longest request (tokens): what ``max_model_len`` must hold."""
        longest = (self.input_tokens + self.output_tokens) * (1 + self.spread) + self.prefix_tokens
        return int(longest + 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is made best.

    Attributes:
        metric: name in :class:`~tuner.model.measurement.Measurement.metrics`, such as
            ``throughput/output`` or ``latency/ttft_p99``.
        maximize: more is better.
        unit: for people.
    """

    metric: str = "throughput/output"
    maximize: bool = True
    unit: str = "tok/s"

    def better(self, a: float, b: float) -> bool:
        """Whether ``a`` beats ``b``."""
        return a > b if self.maximize else a < b


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound that a winner must keep: ``metric`` at most (or at least) ``bound``, in the metric's unit."""

    metric: str
    bound: float
    at_most: bool = True

    def excess(self, value: float) -> float:
        """Relative amount over the bound; ≤ 0 means kept."""
        scale = abs(self.bound) or 1.0
        return (value - self.bound if self.at_most else self.bound - value) / scale
