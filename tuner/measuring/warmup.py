"""Real load until nothing compiles any more and throughput is steady.

Waves are sent from here, not by the benchmark client: its start costs seconds, and its own warm-up repeats one prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tuner.measuring.api import Api, chat_messages, death
from tuner.measuring.bench import failed
from tuner.measuring.sampler import look
from tuner.measuring.workloads import Prompt, PromptSupply
from tuner.model.outcome import Failure
from tuner.model.workload import LoadPoint, Workload
from tuner.ports import MeasurementFailed, Progress, Server

__all__ = ["CompileLog", "WarmUp", "warm_up"]

STEADY = 0.10
"""Short waves differ by a few percent from noise alone."""
_READ = 8 << 20
# vLLM: utils/jit_monitor.py ("… during inference: …. This causes a latency spike"), Triton's own autotuning print.
_COMPILING = re.compile(rb"during inference: (\S+)|Triton autotuning for function (\S+)")


class CompileLog:
    """Compilations that a server's log has reported since the last look."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._offset = self._size()

    def news(self) -> list[str]:
        """Names of what was compiled, empty where the log is silent or absent."""
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read(_READ)
        except OSError:
            return []
        # Leave a line that is still being written for the next look.
        text = text[: text.rfind(b"\n") + 1] if len(text) < _READ else text
        self._offset += len(text)
        found = [first or second for first, second in _COMPILING.findall(text)]
        return [name.decode("utf-8", errors="replace")[:80].rstrip(".") for name in found]

    def _size(self) -> int:
        try:
            return self._path.stat().st_size if self._path is not None else 0
        except OSError:
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """How warming went.

    Attributes:
        rate: output tokens per second of the last wave.
        pace: seconds per output token of one sequence in the slowest wave.
    """

    waves: int
    rate: float
    pace: float
    steady: bool
    seconds: float
    notes: tuple[str, ...] = ()


def warm_up(
    server: Server,
    api: Api,
    supply: PromptSupply,
    workload: Workload,
    compiled: CompileLog,
    *,
    seed: int,
    waves: int,
    stall_s: float,
    limit_s: float,
    progress: Progress,
) -> WarmUp:
    """Send waves of fresh prompts at the highest concurrency until warm, at most ``waves`` or ``limit_s`` seconds.

    Raises:
        MeasurementFailed: requests fail, the server dies, or nothing moves for ``stall_s`` seconds.
    """
    began = time.monotonic()
    rates: list[float] = []
    steady = False
    late: list[str] = []
    seats = max(_seats(point) for point in workload.points)
    for wave in range(waves):
        prompts = supply.prompts(seats, seed=seed + wave)
        rates.append(asyncio.run(_wave(server, api, prompts, workload, stall_s)))
        late = compiled.news()
        detail = f"wave {wave + 1}: {rates[-1]:.0f} tok/s"
        progress("warmup", f"{detail}, compiled {', '.join(late[:3])}" if late else detail)
        steady = not late and settled(rates)
        if steady or time.monotonic() - began > limit_s:
            break
    notes: list[str] = []
    if not steady:
        shown = ", ".join(f"{rate:.0f}" for rate in rates[-3:])
        why = f"kernels still compiled ({', '.join(late[:3])})" if late else f"throughput was {shown} tok/s"
        notes.append(f"not steady after {len(rates)} warm-up waves: {why}")
    return WarmUp(
        waves=len(rates),
        rate=rates[-1],
        pace=seats / max(min(rates), 1e-9),
        steady=steady,
        seconds=time.monotonic() - began,
        notes=tuple(notes),
    )


def settled(rates: Sequence[float]) -> bool:
    """Whether the last wave is no faster than the best one before it.

    Warming only ever makes waves faster. A slower one is noise, or a fault that the rounds themselves look for; waiting
    for two alike cost an H200 study 40 s a trial.
    """
    return len(rates) > 1 and rates[-1] <= (1 + STEADY) * max(rates[:-1])


def _seats(point: LoadPoint) -> int:
    """Requests in a wave: what is in flight under this load (open loop: a guess that fills a batch)."""
    return max(1, min(point.concurrency or 32, point.requests))


async def _wave(server: Server, api: Api, prompts: Sequence[Prompt], workload: Workload, stall_s: float) -> float:
    """Output tokens per second of one wave."""
    timeout = httpx.Timeout(None, connect=30.0)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=server.base_url, headers=api.headers, timeout=timeout, limits=limits, trust_env=False
    ) as client:
        began = time.monotonic()
        sending = [asyncio.create_task(_send(client, server, prompt, workload)) for prompt in prompts]
        guard = asyncio.create_task(_guard(server, api, stall_s))
        everything = asyncio.gather(*sending)
        try:
            await asyncio.wait((everything, guard), return_when=asyncio.FIRST_COMPLETED)
            if guard.done():
                raise MeasurementFailed(guard.result())
            answers = everything.result()
        finally:
            for task in (*sending, guard):
                task.cancel()
            # `everything` as well: a future whose exception nobody asks for is printed at the end of the program.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(everything, *sending, guard, return_exceptions=True)
    seconds = time.monotonic() - began
    _complain(server, answers)
    return sum(tokens for tokens, _ in answers) / max(seconds, 1e-6)


async def _send(client: httpx.AsyncClient, server: Server, prompt: Prompt, workload: Workload) -> tuple[int, str]:
    """Output tokens of one request, and what went wrong (empty: nothing)."""
    length = warm_length(prompt.output_tokens)
    body: dict[str, Any] = {
        "model": server.model_name,
        "temperature": workload.temperature,
        "ignore_eos": workload.ignore_eos,
    }
    if workload.endpoint == "chat":
        path = "/v1/chat/completions"
        body |= {"messages": chat_messages(prompt.text), "max_completion_tokens": length}
    else:
        path = "/v1/completions"
        body |= {"prompt": prompt.text, "max_tokens": length}
    try:
        response = await client.post(path, json=body)
        if response.status_code != httpx.codes.OK:
            return 0, f"HTTP {response.status_code}: {response.text[:200]}"
        tokens = response.json()["usage"]["completion_tokens"]
    except httpx.HTTPError as error:
        return 0, f"{type(error).__name__}: {error}"[:200]
    except (ValueError, KeyError, TypeError):
        return 0, "an answer without usage.completion_tokens"
    return (tokens, "") if isinstance(tokens, int) else (0, "usage.completion_tokens is no number")


def warm_length(output_tokens: int) -> int:
    """Output tokens of a warm-up request: a quarter of the real one, at least 32 where it has as many."""
    return max(1, min(output_tokens, max(32, output_tokens // 4)))


async def _guard(server: Server, api: Api, stall_s: float) -> Failure:
    """Returns when the server is dead or nothing has moved for ``stall_s`` seconds."""
    state: tuple[float, float, float] | None = None
    moved = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        dead = server.failure()
        if dead is not None:
            return dead
        snapshot = await asyncio.to_thread(api.metrics)
        if snapshot is not None:
            seen = look(snapshot)
            now = (seen.generated, seen.finished, seen.steps or 0.0)
            if now != state:
                state, moved = now, time.monotonic()
        if time.monotonic() - moved > stall_s:
            return stalled(stall_s)


def stalled(stall_s: float) -> Failure:
    """Nothing moved for so long."""
    cause = f"requests are waiting and no token came for {stall_s:.0f} s"
    return failed("hang", cause, retry=True, advice="see the end of server.log")


def _complain(server: Server, answers: Sequence[tuple[int, str]]) -> None:
    errors = [error for _, error in answers if error]
    if not errors:
        return
    dead = death(server)
    if dead is not None:
        raise MeasurementFailed(dead)
    cause = f"{len(errors)} of {len(answers)} requests failed while warming up: {errors[0]}"
    raise MeasurementFailed(failed("requests-failed", cause, retry=True))
