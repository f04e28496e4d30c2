"""What was measured, with its spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.model.json import Json

__all__ = ["Estimate", "Measurement", "PointResult", "QualityReport", "ServerReport", "reported_as"]

_REPORTED_AS = {
    "compilation-config.cudagraph_mode": "cudagraph-mode",
    "compilation-config.mode": "compilation-mode",
    "compilation-config.max_cudagraph_capture_size": "cudagraph-capture-max",
    "max-cudagraph-capture-size": "cudagraph-capture-max",
    "attention-config.backend": "attention-backend",
    "kernel-config.moe_backend": "moe-backend",
    "kernel-config.linear_backend": "linear-backend",
    "speculative-config.method": "speculative-method",
    "speculative-config.num_speculative_tokens": "num-speculative-tokens",
}


def reported_as(flag: str) -> str:
    """The name in :attr:`ServerReport.effective` under which a server answers a flag (dotted paths are folded)."""
    return _REPORTED_AS.get(flag, flag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its uncertainty.

    Attributes:
        value: the mean of the rounds.
        low, high: ends of its 95 % confidence interval (equal to ±inf where one round says nothing of spread).
        samples: one value per round.
    """

    value: float
    low: float
    high: float
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PointResult:
    """One load point. Metrics use the grouped names (``throughput/output``, ``latency/ttft_p99``)."""

    name: str
    metrics: Mapping[str, float]
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    rounds: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All load points of one trial.

    Attributes:
        metrics: the trial's figures: of the only point, or the weighted mean over points. Units: tok/s,
            req/s, seconds never - latencies are milliseconds - shares 0 to 1, watts, joules per 1e6 tokens.
            Groups: ``throughput/{output,total,requests,goodput}``,
            ``latency/{ttft,tpot,itl,e2e}_{mean,p50,p90,p99}``,
            ``engine/{preemptions,kv_usage_max,running_mean,running_max,waiting_max,prefix_hit_rate,
            acceptance_rate,acceptance_length,step_ms,steps_full,steps_piecewise,steps_none}``,
            ``gpu/{power_w,memory_gib,sm_clock_mhz}``, ``cost/{joules_per_mtok,price_per_mtok}``.
        objective: the objective's estimate, None if nothing valid was measured.
        bound: early stop: the objective is no better than this (None when the run was complete).
        complete: every point was measured to the end.
        steps: pairs (running batch size, seconds per decode step) seen in ``/metrics``, for the mechanism.
        notes: what a person should know (rounds thrown away and why).
        seconds: wall time of warm-up and measuring, by phase.
    """

    metrics: Mapping[str, float]
    objective: Estimate | None
    points: tuple[PointResult, ...] = ()
    bound: float | None = None
    complete: bool = True
    steps: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What the started server says of itself.

    Attributes:
        effective: flag or setting (``max-num-seqs``, ``attention-backend``, ``cudagraph-mode``,
            ``cudagraph-capture-max``, ``kv-cache-tokens``, ``model-gib``, ``moe-backend``, …) → what runs.
        differences: asked against runs, in words.
        phases: start seconds by phase: ``imports``, ``weights``, ``compile``, ``profile``, ``capture``, ``other``,
            and ``total``.
        mode: ``warm`` (forked from a parent that had imported vLLM) or ``cold``; where nothing was started here,
            ``external`` (a trial command), ``replay`` (recorded in a table) or ``estimate`` (from its nearest rows).
        warnings: log warnings that matter, in plain words.
        version: vLLM's version.
        command: the command line, secrets masked.
        log_path: the server's log.
        forecast: what was reckoned before the launch, by the names of ``effective``:
            ``kv-cache-tokens`` of one replica, ``model-gib`` of one accelerator.
    """

    effective: Mapping[str, Json] = field(default_factory=dict)
    differences: tuple[str, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    mode: str = "cold"
    warnings: tuple[str, ...] = ()
    version: str = ""
    command: tuple[str, ...] = ()
    log_path: str = ""
    forecast: Mapping[str, float] = field(default_factory=dict)

    def forecast_error(self, name: str) -> float | None:
        """Relative error of a forecast against what the server reports (0.05: 5 % too high); None if unknown."""
        actual = self.effective.get(name)
        if name not in self.forecast or not isinstance(actual, int | float) or actual <= 0:
            return None
        return self.forecast[name] / actual - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """What comes out, compared with the baseline.

    Attributes:
        passed: not significantly worse than the baseline by more than the allowed drop.
        reason: one sentence if it did not pass, else empty.
        metrics: ``accuracy/{score,score_se,drop,drop_se,agreement,agreement_floor}`` and one per lm-eval task.
        answers: per question id, 1.0 or 0.0, so that later comparisons are paired.
        completions: per fixed prompt id, greedy token texts, for agreement.
        logprobs: per fixed prompt id, the log-probability (nats) of each of those tokens.
    """

    passed: bool
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    answers: Mapping[str, float] = field(default_factory=dict)
    completions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    logprobs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seconds: float = 0.0
