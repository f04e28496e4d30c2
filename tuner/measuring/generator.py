"""The load generator: warm up, then rounds until the number is tight enough, hopeless, or the limit is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.errors import InputError
from tuner.measuring import bench
from tuner.measuring.api import Api
from tuner.measuring.bench import failed
from tuner.measuring.graphs import GraphLog
from tuner.measuring.prometheus import Snapshot
from tuner.measuring.refusals import MOE, SPECULATION, refusal
from tuner.measuring.rounds import RoundRunner
from tuner.measuring.session import Session, Settings
from tuner.measuring.telemetry import GpuTelemetry
from tuner.measuring.warmup import CompileLog
from tuner.measuring.workloads import PromptSupply, read_traffic
from tuner.model.measurement import Measurement
from tuner.model.outcome import Blame
from tuner.model.workload import Limit, Objective, Workload
from tuner.ports import MeasurementFailed, Progress, Reference, Server

__all__ = ["BenchLoadGenerator"]

_TEXT_ADVICE = "set source: text (or your own file), or force_random: true"


class BenchLoadGenerator:
    """Measures with ``vllm bench serve``. Implements :class:`tuner.ports.LoadGenerator`.

    Args:
        workload: what is sent.
        objective: what early stops and the wanted precision are about.
        limits: limits of the study; those on TTFT, TPOT and E2E latency also define goodput.
        noise_floor: relative standard deviation between two starts of one configuration, which the rounds on one
            server do not show; guards early stops.
        alpha: probability, over a whole trial, that a candidate as good as the best is stopped early.
        early_stop: end a candidate that is clearly behind the best, or clearly breaks a limit.
        price_per_hour: of the machine, in any currency; gives ``cost/price_per_mtok``.
        gpu_indices: GPUs (NVML indices) that the server uses; None for all.
        model_is_moe: the model routes tokens to experts: random tokens are then refused unless forced.
        warmup_waves: most warm-up waves.
        warmup_limit_s: no new warm-up wave after so many seconds.
        stall_s: seconds without any progress under load that count as a hang.
        sample_s: seconds between two looks at ``/metrics``.

    Raises:
        InputError: the user's file is missing or wrong, or the objective cannot be measured with this workload.
    """

    def __init__(
        self,
        workload: Workload,
        objective: Objective,
        limits: Sequence[Limit] = (),
        *,
        noise_floor: float = 0.01,
        alpha: float = 0.05,
        early_stop: bool = True,
        price_per_hour: float | None = None,
        gpu_indices: Sequence[int] | None = None,
        model_is_moe: bool = False,
        warmup_waves: int = 6,
        warmup_limit_s: float = 300.0,
        stall_s: float = 300.0,
        sample_s: float = 1.0,
    ) -> None:
        self._settings = Settings(
            workload=workload,
            objective=objective,
            limits=tuple(limits),
            noise_floor=noise_floor,
            alpha=alpha,
            warmup_waves=warmup_waves,
            warmup_limit_s=warmup_limit_s,
            stall_s=stall_s,
        )
        self._early_stop = early_stop
        self._price = price_per_hour
        self._gpus = gpu_indices
        self._sample_s = sample_s
        _validate(self._settings, price_per_hour)
        if model_is_moe and (reason := refusal(workload, MOE)):
            raise InputError(f"workload {workload.name}: {reason}; {_TEXT_ADVICE}")
        self._traffic = read_traffic(workload)

    def measure(
        self,
        server: Server,
        *,
        seed: int,
        directory: Path,
        progress: Progress,
        reference: Reference | None = None,
    ) -> Measurement:
        """See :meth:`tuner.ports.LoadGenerator.measure`."""
        directory.mkdir(parents=True, exist_ok=True)
        with Api(server) as api:
            runner = self._runner(server, api, seed, directory.resolve())
            graphs = GraphLog(server.report.log_path)
            found = Session(
                settings=self._settings,
                runner=runner,
                seed=seed,
                progress=progress,
                reference=reference if self._early_stop else None,
            ).measure()
        return replace(found, metrics={**found.metrics, **graphs.shares()})

    def _runner(self, server: Server, api: Api, seed: int, directory: Path) -> RoundRunner:
        drafting = (api.metrics() or Snapshot()).total("vllm:spec_decode_num_drafts") is not None
        if drafting and (reason := refusal(self._settings.workload, SPECULATION)):
            raise MeasurementFailed(failed("needs-text", reason, blame=Blame.USER, advice=_TEXT_ADVICE))
        card = api.model_card()
        longest, root = card.get("max_model_len"), card.get("root")
        supply = PromptSupply(
            self._settings.workload,
            self._traffic,
            seed=seed,
            count_tokens=api.count_chat_tokens if self._settings.workload.endpoint == "chat" else api.count_tokens,
            max_model_len=longest if isinstance(longest, int) else None,
        )
        return RoundRunner(
            server=server,
            api=api,
            supply=supply,
            workload=self._settings.workload,
            limits=self._settings.limits,
            directory=directory,
            tokenizer=root if isinstance(root, str) and root else server.model_name,
            compiled=CompileLog(server.report.log_path),
            telemetry=GpuTelemetry(self._gpus),
            price_per_hour=self._price,
            sample_s=self._sample_s,
            stall_s=self._settings.stall_s,
        )


def _validate(settings: Settings, price_per_hour: float | None) -> None:
    workload, metric = settings.workload, settings.objective.metric
    least, most = workload.rounds
    if not 1 <= least <= most:
        raise InputError(f"workload {workload.name}: rounds {least} to {most}; at least 1 and rising is wanted")
    if metric == "throughput/goodput" and not bench.goodput_limits(settings.limits):
        raise InputError("objective throughput/goodput needs an upper limit on a latency (ttft, tpot or e2e)")
    if metric == "cost/price_per_mtok" and price_per_hour is None:
        raise InputError("objective cost/price_per_mtok needs a price per hour")
    if not any(point.weight > 0 for point in workload.points):
        raise InputError(f"workload {workload.name}: at least one load point with a weight above 0 is wanted")
    for point in workload.points:
        if point.requests < 1 or (point.concurrency is not None and point.concurrency < 1) or point.weight < 0:
            raise InputError(f"workload {workload.name}: load point {point.name}: numbers must be positive")
        if point.rate is not None and not (point.rate > 0 and point.burstiness > 0):
            raise InputError(f"workload {workload.name}: load point {point.name}: rate and burstiness must be above 0")
    names = [point.name for point in workload.points]
    if len(set(names)) != len(names):
        raise InputError(f"workload {workload.name}: two load points are the same ({', '.join(names)})")
