"""Watches ``/metrics`` while a round runs: how full the engine is, how long a step takes, how far the round is."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tuner.measuring.prometheus import Snapshot

__all__ = ["Sample", "Sampler"]

_STEADY = 0.25
"""A step time is paired with a batch size only where the batch changed by no more than this share meanwhile."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the engine: sums over all data-parallel ranks, of which there are ``engines``."""

    time: float
    running: float
    waiting: float
    kv_usage: float
    generated: float
    finished: float
    steps: float | None
    engines: int = 1


class Sampler:
    """Polls in a thread of its own between entering and leaving.

    Args:
        fetch: one reading of ``/metrics``; None when the server does not answer (the sample is then missing).
        interval_s: seconds between two readings.
        tick: called after each reading (GPU telemetry).
        api_servers: how many there are. Each counts every step of the engine that it has a request in, and
            ``/metrics`` sums them up: the time of a step is then unknown.
    """

    def __init__(
        self,
        fetch: Callable[[], Snapshot | None],
        *,
        interval_s: float = 1.0,
        tick: Callable[[], None] | None = None,
        api_servers: int = 1,
    ) -> None:
        self._fetch = fetch
        self._interval = interval_s
        self._tick = tick
        self._counted = api_servers == 1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="metrics-sampler", daemon=True)
        self._samples: list[Sample] = []
        self.missed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=60)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What was seen so far, oldest first."""
        return tuple(self._samples)

    def _loop(self) -> None:
        while True:
            began = time.monotonic()
            snapshot = self._fetch()
            if snapshot is None:
                self.missed += 1
            else:
                self._samples.append(look(snapshot))
            if self._tick is not None:
                self._tick()
            if self._stop.wait(max(0.0, self._interval - (time.monotonic() - began))):
                return

    def metrics(self) -> dict[str, float]:
        """``engine/{running_mean,running_max,waiting_max,kv_usage_max,step_ms}`` over the time under load."""
        busy = [sample for sample in self._samples if sample.running > 0]
        if not busy:
            return {}
        out = {
            "engine/running_mean": statistics.fmean(sample.running for sample in busy),
            "engine/running_max": max(sample.running for sample in busy),
            "engine/waiting_max": max(sample.waiting for sample in busy),
            "engine/kv_usage_max": max(sample.kv_usage for sample in busy),
        }
        if steps := self.steps():
            out["engine/step_ms"] = 1000 * statistics.median(seconds for _, seconds in steps)
        return out

    def steps(self) -> tuple[tuple[float, float], ...]:
        """(running batch, seconds per step) of one engine, for each stretch in which the batch stayed about the same.

        Engine steps are counted by ``vllm:iteration_tokens_total``, which takes in one value per iteration.
        """
        pairs: list[tuple[float, float]] = []
        if not self._counted:
            return ()
        for before, after in zip(self._samples, self._samples[1:], strict=False):
            size = max(before.running, after.running)
            if not size or abs(after.running - before.running) > _STEADY * size:
                continue
            if before.steps is None or after.steps is None or after.generated <= before.generated:
                continue
            if (taken := after.steps - before.steps) >= 1:
                batch = (before.running + after.running) / 2 / after.engines
                pairs.append((batch, (after.time - before.time) * after.engines / taken))
        return tuple(pairs)


def look(snapshot: Snapshot) -> Sample:
    """The engine's state out of one reading."""
    return Sample(
        time=snapshot.time,
        running=snapshot.total("vllm:num_requests_running") or 0.0,
        waiting=snapshot.total("vllm:num_requests_waiting") or 0.0,
        kv_usage=snapshot.peak("vllm:kv_cache_usage_perc") or 0.0,
        generated=snapshot.total("vllm:generation_tokens") or 0.0,
        finished=snapshot.total("vllm:request_success") or 0.0,
        steps=snapshot.total("vllm:iteration_tokens_total_count"),
        engines=max(1, len(snapshot.values.get("vllm:iteration_tokens_total_count", {}))),
    )
