"""One round: fresh requests, the benchmark client beside the server, the counters before and after, and a verdict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.measuring import bench, checks
from tuner.measuring.api import Api, death
from tuner.measuring.early import BoundedRound, RoundWatch
from tuner.measuring.prometheus import Snapshot, delta, delta_by_label, quantile
from tuner.measuring.sampler import Sampler, look
from tuner.measuring.telemetry import GpuTelemetry
from tuner.measuring.warmup import CompileLog, stalled
from tuner.measuring.workloads import PromptSupply, RoundLoad
from tuner.model.outcome import Blame, Failure
from tuner.model.words import plain
from tuner.model.workload import Limit, LoadPoint, Workload
from tuner.ports import MeasurementFailed, Server

__all__ = ["Round", "RoundRunner", "amount_of", "median_steps", "server_latencies"]

_SETTLE_S = 5.0
"""The engine counts a token a little after the client has it."""
_SPEC = "vllm:spec_decode_num"
_HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a round brought.

    Attributes:
        metrics: grouped names, see :class:`~tuner.model.measurement.Measurement`.
        spoiled: failure that makes this round worthless but not the trial (``prefix-cache-warm``, ``slowdown``, …).
        bound: the round was ended early: the objective is no better than this, and latencies are the server's own.
        throughput: output tokens per second, for comparing rounds with one another.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[tuple[float, float], ...] = ()
    spoiled: Failure | None = None
    bound: float | None = None
    throughput: float = 0.0
    artifacts: tuple[str, ...] = ()


def amount_of(metric: str, load: RoundLoad) -> float | None:
    """What a throughput metric counts over a whole round; None for metrics that are no throughput."""
    if metric == "throughput/output":
        return float(load.output_total)
    if metric == "throughput/total":
        return None if load.input_total is None else float(load.output_total + load.input_total)
    return float(load.requests) if metric in ("throughput/requests", "throughput/goodput") else None


@dataclass(kw_only=True)
class RoundRunner:
    """Runs rounds on one server and judges each."""

    server: Server
    api: Api
    supply: PromptSupply
    workload: Workload
    limits: Sequence[Limit]
    directory: Path
    tokenizer: str
    compiled: CompileLog
    telemetry: GpuTelemetry
    expected_rate: float = 1.0
    expected_pace: float | None = None
    price_per_hour: float | None = None
    sample_s: float = 1.0
    stall_s: float = 300.0
    _memory: dict[str, checks.Memory] = field(default_factory=dict, init=False)
    _pace: dict[str, tuple[float, ...]] = field(default_factory=dict, init=False)

    def run(self, point: LoadPoint, *, seed: int, stem: str, race: Mapping[str, Any] | None = None) -> Round:
        """Run one round.

        Args:
            stem: name of its files without the ending.
            race: ``metric`` and the fields of :class:`~tuner.measuring.early.BoundedRound` that do not depend on the
                round, to allow an early stop.

        Raises:
            MeasurementFailed: the server or the client failed, or what came is not to be believed.
        """
        load = self.supply.round(point, seed=seed, path=self.directory / f"{stem}.prompts.jsonl")
        result_path = self.directory / f"{stem}.json"
        argv = bench.arguments(
            self.workload,
            point,
            load,
            base_url=self.server.base_url,
            model=self.server.model_name,
            tokenizer=self.tokenizer,
            result=result_path,
            limits=self.limits,
            server_command=self.server.report.command,
        )
        self.compiled.news()
        before = self._snapshot()
        self.telemetry.start()
        tick = self.telemetry.sample if self.telemetry.present else None
        servers = self.server.report.effective.get("api-server-count")
        sampler = Sampler(
            self.api.metrics,
            interval_s=self.sample_s,
            tick=tick,
            api_servers=servers if isinstance(servers, int) else 1,
        )
        watch = RoundWatch(lambda: sampler.samples, _race(point, load, race), self.stall_s)
        began = time.monotonic()
        with sampler:
            code = self.server.run_client(
                argv,
                log_path=self.directory / f"{stem}.log",
                timeout_s=self._timeout(point, load),
                watch=watch,
            )
        if watch.reason == "behind":
            return self._ended_early(before, watch.bound, sampler)
        if watch.reason == "hang":
            raise MeasurementFailed(self.server.failure() or stalled(self.stall_s))
        if code != 0:
            raise self._client_failed(code, self.directory / f"{stem}.log")
        gpu = self.telemetry.stop(time.monotonic() - began)
        result = bench.read_result(result_path)
        self._believe(result, load)
        after = self._settled(before, result.total_output)
        self._believe_counters(before, after, result, load, point)
        (self.directory / f"{stem}.prompts.jsonl").unlink(missing_ok=True)
        bench.slim(result_path)
        metrics = {
            **_client_metrics(result),
            **sampler.metrics(),
            **_engine_metrics(before, after),
            **gpu,
            **self._costs(result),
        }
        return Round(
            metrics=metrics,
            steps=sampler.steps(),
            spoiled=self._spoiled(before, after, result, load, point),
            throughput=result.output_throughput,
            artifacts=(result_path.name,),
        )

    def _ended_early(self, before: Snapshot, bound: float | None, sampler: Sampler) -> Round:
        """What the server's own histograms know of a round that has no result file: limits can still be judged."""
        after = self._snapshot()
        metrics = {**server_latencies(before, after), **sampler.metrics(), **_engine_metrics(before, after)}
        return Round(metrics=metrics, bound=bound, steps=sampler.steps())

    def _believe(self, result: bench.BenchResult, load: RoundLoad) -> None:
        failure = bench.check(result, load, exact=self.workload.ignore_eos or load.self_timed)
        if failure is None:
            return
        # Requests that failed, or answers that ended early, because the server died are the server's death.
        raise MeasurementFailed(death(self.server) or failure)

    def _believe_counters(
        self, before: Snapshot, after: Snapshot, result: bench.BenchResult, load: RoundLoad, point: LoadPoint
    ) -> None:
        memory = self._memory.setdefault(point.name, checks.Memory(self.expected_pace))
        # The user's own file may ask the same twice, and greedy answers to that are rightly the same.
        failure = checks.counters(before, after, result, load.requests) or memory.replayed(result, texts=not load.salt)
        if failure is not None:
            raise MeasurementFailed(death(self.server) or failure)

    def _spoiled(
        self, before: Snapshot, after: Snapshot, result: bench.BenchResult, load: RoundLoad, point: LoadPoint
    ) -> Failure | None:
        warm = checks.prefix_cache(checks.hit_rate(before, after), load)
        if warm is not None:
            return bench.failed("prefix-cache-warm", warm, blame=Blame.MACHINE, retry=True)
        if compiled := self.compiled.news():
            names = ", ".join(dict.fromkeys(compiled[:3]))
            return bench.failed(
                "compiled-while-measuring", f"kernels compiled: {names}", blame=Blame.MACHINE, retry=True
            )
        # In an open loop the batch may still be growing, which slows every token and is no fault.
        slow = None
        if point.rate is None and not load.self_timed:
            pace = self._pace.get(point.name, ())
            slow = checks.slowdown(result, pace)
            self._pace[point.name] = checks.faster(pace, checks.first_paces(result))
        return bench.failed("slowdown", slow, blame=Blame.MACHINE, retry=True) if slow is not None else None

    def _snapshot(self) -> Snapshot:
        snapshot = self.api.metrics()
        if snapshot is None:
            raise MeasurementFailed(
                death(self.server)
                or bench.failed("server-unresponsive", "/metrics does not answer", blame=Blame.MACHINE, retry=True)
            )
        return snapshot

    def _settled(self, before: Snapshot, tokens: int) -> Snapshot:
        """The counters once the engine is idle and has counted everything."""
        until = time.monotonic() + _SETTLE_S
        while True:
            snapshot = self._snapshot()
            seen = look(snapshot)
            rise = delta(before, snapshot, "vllm:generation_tokens")
            if seen.running == 0 and (rise is None or rise >= tokens):
                return snapshot
            if time.monotonic() > until:
                return snapshot
            time.sleep(0.1)

    def _timeout(self, point: LoadPoint, load: RoundLoad) -> float:
        """Seconds that the client may take: its imports, and six times what the warm-up's pace promises."""
        pace = load.output_total / max(self.expected_rate, 0.1)
        arrivals = load.requests / point.rate if point.rate else load.span_s
        return 300.0 + 6 * pace + 3 * arrivals

    def _client_failed(self, code: int, log: Path) -> MeasurementFailed:
        dead = death(self.server)
        if dead is not None:
            return MeasurementFailed(dead)
        return MeasurementFailed(
            bench.failed(
                "client-failed",
                f"vllm bench serve ended with code {code}: {_last_error(log)}",
                blame=Blame.MACHINE,
                retry=True,
                advice=f"see {log.name}",
            )
        )

    def _costs(self, result: bench.BenchResult) -> dict[str, float]:
        out: dict[str, float] = {}
        if self.telemetry.joules is not None and result.total_output:
            out["cost/joules_per_mtok"] = self.telemetry.joules / result.total_output * 1e6
        if self.price_per_hour is not None and result.output_throughput > 0:
            out["cost/price_per_mtok"] = self.price_per_hour / 3600 / result.output_throughput * 1e6
        return out


def _race(point: LoadPoint, load: RoundLoad, race: Mapping[str, Any] | None) -> BoundedRound | None:
    if race is None:
        return None
    amount = amount_of(race["metric"], load)
    if amount is None:
        return None
    seats = point.concurrency if point.concurrency is not None and point.rate is None and not load.self_timed else 0
    return BoundedRound(
        amount=amount,
        tokens=float(load.output_total),
        seats=seats if seats < load.requests else 0,
        **{key: value for key, value in race.items() if key != "metric"},
    )


def _client_metrics(result: bench.BenchResult) -> dict[str, float]:
    out = {
        "throughput/output": result.output_throughput,
        "throughput/total": result.total_throughput,
        "throughput/requests": result.request_throughput,
        **{f"latency/{name}": value for name, value in result.latency_ms.items()},
    }
    if result.goodput is not None:
        out["throughput/goodput"] = result.goodput
    return out


def server_latencies(before: Snapshot, after: Snapshot) -> dict[str, float]:
    """Latencies (ms) as the server saw them, as finely as its histograms tell; of finished requests only."""
    out: dict[str, float] = {}
    for name, series in _HISTOGRAMS.items():
        count, total = (delta(before, after, f"{series}_{part}") for part in ("count", "sum"))
        if count and total is not None:
            out[f"latency/{name}_mean"] = 1000 * total / count
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            value = quantile(before, after, series, share)
            if value is not None:
                out[f"latency/{name}_{label}"] = 1000 * value
    return out


def _engine_metrics(before: Snapshot, after: Snapshot) -> dict[str, float]:
    """Preemptions, prefix hits and acceptance of one round, from the counters."""
    out: dict[str, float] = {}
    preemptions = delta(before, after, "vllm:num_preemptions")
    if preemptions is not None:
        out["engine/preemptions"] = preemptions
    rate = checks.hit_rate(before, after)
    if rate is not None:
        out["engine/prefix_hit_rate"] = rate
    drafts = delta(before, after, f"{_SPEC}_drafts")
    proposed = delta(before, after, f"{_SPEC}_draft_tokens")
    accepted = delta(before, after, f"{_SPEC}_accepted_tokens")
    if drafts and proposed and accepted is not None:
        out["engine/acceptance_rate"] = accepted / proposed
        out["engine/acceptance_length"] = 1 + accepted / drafts
        by_position = delta_by_label(before, after, f"{_SPEC}_accepted_tokens_per_pos", "position")
        for position, count in by_position.items():
            if position.isdigit():
                out[f"engine/acceptance_position_{position}"] = count / drafts
    return out


def _last_error(log: Path) -> str:
    """The client's own last word: the last line that names an error, else the last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65_536))
            lines = [line.strip() for line in plain(file.read().decode("utf-8", errors="replace")).splitlines()]
    except OSError:
        return "it left no log"
    lines = [line for line in lines if line]
    named = [line for line in lines if "rror" in line]
    return (named or lines or ["it said nothing"])[-1][:300]


def median_steps(rounds: Sequence[Round]) -> tuple[tuple[float, float], ...]:
    """(batch, seconds per step) of all rounds, one median per batch size, by rising size."""
    sizes: dict[float, list[float]] = {}
    for item in rounds:
        for batch, seconds in item.steps:
            sizes.setdefault(round(batch), []).append(seconds)
    return tuple((float(size), statistics.median(values)) for size, values in sorted(sizes.items()))
