"""``vllm bench serve``: its command line, its result file read strictly, and whether the result is to be believed.

The client exits 0 when every request failed, counts goodput of what was left, and may write NaN: nothing in its file
is taken on trust. Only flags that vLLM 0.25.1, 0.32 and 0.33 all know are used.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.measuring.workloads import RoundLoad
from tuner.model.outcome import Blame, Failure
from tuner.model.words import plain
from tuner.model.workload import Limit, LoadPoint, Workload
from tuner.ports import MeasurementFailed

__all__ = ["BenchResult", "arguments", "check", "failed", "goodput_limits", "read_result", "slim"]

MAX_RESULT = 1 << 30
KEPT_RESULT = 2 << 20
"""A trial's results are kept for good; a thousand requests of a thousand tokens would be 20 MB a round."""
_GOODPUT = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
_PERCENTILES = {"mean": "mean", "p50": "p50", "p90": "p90", "p99": "p99"}
_BACKENDS = {
    "completions": ("--backend", "openai", "--endpoint", "/v1/completions"),
    # Its stream begins with a piece that only names the role, sent together with the first token: the client counts
    # the pause of microseconds between the two as one more inter-token time (TTFT, TPOT and E2E are not touched).
    "chat": ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
}
_EMPTY_SHARE = 0.5
"""A token may print as nothing (special tokens, halves of a character), whole answers rarely do."""
_TEXT_FROM = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What one round brought, as the client saw it. Seconds, except ``latency_ms``.

    Attributes:
        latency_ms: ``ttft_p99`` and the like.
        goodput: requests per second that kept all limits; None where none were given.
        output_lens, texts, ttfts, itls, start_times: one entry per request, in the order they were sent.
        acceptance: ``rate`` (0 to 1), ``length`` and ``position_<n>`` where speculation ran.
    """

    completed: int
    failed: int
    duration: float
    total_input: int
    total_output: int
    request_throughput: float
    output_throughput: float
    total_throughput: float
    latency_ms: Mapping[str, float]
    goodput: float | None = None
    input_lens: tuple[int, ...] = ()
    output_lens: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    ttfts: tuple[float, ...] = ()
    itls: tuple[tuple[float, ...], ...] = ()
    start_times: tuple[float, ...] = ()
    acceptance: Mapping[str, float] = field(default_factory=dict)


def goodput_limits(limits: Sequence[Limit]) -> dict[str, float]:
    """Limits that a single request can keep, as ``--goodput`` wants them (ms): the tightest of each kind."""
    found: dict[str, float] = {}
    for limit in limits:
        group, _, metric = limit.metric.partition("/")
        name = _GOODPUT.get(metric.rpartition("_")[0])
        if group == "latency" and name is not None and limit.at_most:
            found[name] = min(limit.bound, found.get(name, math.inf))
    return found


def arguments(
    workload: Workload,
    point: LoadPoint,
    load: RoundLoad,
    *,
    base_url: str,
    model: str,
    tokenizer: str,
    result: Path,
    limits: Sequence[Limit] = (),
    server_command: Sequence[str] = (),
) -> list[str]:
    """Command line after ``vllm``. The API key is not in it: the client reads it from its environment."""
    argv = ["bench", "serve", *_BACKENDS[workload.endpoint], "--base-url", base_url]
    argv += ["--model", model, "--tokenizer", tokenizer, *load.arguments, "--num-prompts", str(load.requests)]
    if point.concurrency is not None:
        argv += ["--max-concurrency", str(point.concurrency)]
    if point.rate is not None:
        argv += ["--request-rate", f"{point.rate:g}", "--burstiness", f"{point.burstiness:g}"]
    if workload.ignore_eos:
        argv.append("--ignore-eos")
    argv += ["--temperature", f"{workload.temperature:g}"]
    if load.salt:
        argv += ["--extra-body", json.dumps({"cache_salt": load.salt})]
    goodput = [f"{name}:{bound:g}" for name, bound in goodput_limits(limits).items()]
    if goodput:
        argv += ["--goodput", *goodput]
    argv += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"]
    argv += ["--num-warmups", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm"]
    argv += ["--save-result", "--save-detailed", "--result-dir", str(result.parent), "--result-filename", result.name]
    if "--trust-remote-code" in server_command:
        argv.append("--trust-remote-code")
    if "--tokenizer-mode" in server_command[:-1]:
        argv += ["--tokenizer-mode", server_command[list(server_command).index("--tokenizer-mode") + 1]]
    return argv


def read_result(path: Path) -> BenchResult:
    """Read the client's JSON.

    Raises:
        MeasurementFailed: no file, too large, not JSON, a key missing or of the wrong type, a number not finite.
    """
    data = _load(path)
    reader = _Reader(path, data)
    done, lost = reader.count("completed"), reader.count("failed")
    if lost or done == 0:
        # The other numbers are about what was left; they may be NaN and must not be used.
        return _hollow(reader, done, lost)
    latency = {
        f"{name}_{label}": reader.number(f"{key}_{theirs}_ms")
        for label, key in _PERCENTILES.items()
        for name, theirs in _LATENCIES.items()
    }
    goodput = data.get("request_goodput")
    return BenchResult(
        completed=done,
        failed=lost,
        duration=reader.positive("duration"),
        total_input=reader.count("total_input_tokens"),
        total_output=reader.count("total_output_tokens"),
        request_throughput=reader.positive("request_throughput"),
        output_throughput=reader.number("output_throughput"),
        total_throughput=reader.positive("total_token_throughput"),
        latency_ms=latency,
        goodput=None if goodput is None else reader.number("request_goodput"),
        input_lens=reader.counts("input_lens"),
        output_lens=reader.counts("output_lens"),
        texts=reader.texts("generated_texts"),
        errors=reader.texts("errors"),
        ttfts=reader.numbers("ttfts"),
        itls=reader.rows("itls"),
        start_times=reader.numbers("start_times"),
        acceptance=_acceptance(reader, data),
    )


def slim(path: Path) -> None:
    """Drop the bulk (every inter-token time, every text) from a large result that has been read."""
    if path.stat().st_size <= KEPT_RESULT:
        return
    data = _load(path)
    kept = {key: value for key, value in data.items() if key not in ("itls", "generated_texts")}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(kept), encoding="utf-8")
    partial.replace(path)


def check(result: BenchResult, load: RoundLoad, *, exact: bool) -> Failure | None:
    """Why the round is not to be believed; None if it holds.

    Args:
        exact: every output must have the length that was asked (``ignore_eos``).
    """
    return _requests_failed(result, load) or (_short_output(result, load) if exact else None) or _empty_output(result)


def failed(
    kind: str, cause: str, *, blame: Blame = Blame.CONFIGURATION, retry: bool = False, advice: str = ""
) -> Failure:
    """A failure of phase ``measure``."""
    return Failure(kind=kind, cause=cause, blame=blame, retry=retry, phase="measure", advice=advice)


def _requests_failed(result: BenchResult, load: RoundLoad) -> Failure | None:
    if result.failed == 0 and result.completed == load.requests:
        return None
    lines = Counter(_last_line(error) for error in result.errors if error.strip())
    (why, _), *_ = lines.most_common(1) or [("no reason given", 0)]
    missing = load.requests - result.completed
    return failed("requests-failed", f"{missing} of {load.requests} requests failed: {why}", retry=True)


def _short_output(result: BenchResult, load: RoundLoad) -> Failure | None:
    low, high = load.output_range
    wanted = load.output_tokens or (0,) * len(result.output_lens)
    pairs = list(zip(result.output_lens, wanted, strict=False))
    wrong = [(have, want) for have, want in pairs if (have != want if load.output_tokens else not low <= have <= high)]
    if not wrong and len(pairs) == load.requests:
        return None
    if not wrong:
        return failed("short-output", f"lengths of {len(pairs)} outputs are known, {load.requests} were asked for")
    have, want = wrong[0]
    asked = str(want) if load.output_tokens else f"{low} to {high}"
    cause = f"{len(wrong)} of {load.requests} outputs have another length than asked: {have} tokens instead of {asked}"
    return failed("short-output", cause, advice="throughput of cut answers means nothing; look for a stop setting")


def _empty_output(result: BenchResult) -> Failure | None:
    if result.total_output == 0:
        return failed("empty-output", f"{result.completed} requests were answered without a single output token")
    long = [text for text, size in zip(result.texts, result.output_lens, strict=False) if size >= _TEXT_FROM]
    empty = sum(not text.strip() for text in long)
    if not long or empty <= _EMPTY_SHARE * len(long):
        return None
    return failed("empty-output", f"{empty} of {len(long)} answers are empty although tokens were counted")


def _acceptance(reader: _Reader, data: Mapping[str, Any]) -> dict[str, float]:
    if data.get("spec_decode_acceptance_rate") is None:
        return {}
    rates = reader.numbers("spec_decode_per_position_acceptance_rates")
    return {
        "rate": reader.number("spec_decode_acceptance_rate") / 100,
        "length": reader.number("spec_decode_acceptance_length"),
        **{f"position_{index}": rate for index, rate in enumerate(rates)},
    }


def _hollow(reader: _Reader, done: int, lost: int) -> BenchResult:
    return BenchResult(
        completed=done,
        failed=lost,
        duration=0.0,
        total_input=0,
        total_output=0,
        request_throughput=0.0,
        output_throughput=0.0,
        total_throughput=0.0,
        latency_ms={},
        errors=reader.texts("errors"),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_RESULT:
            raise _unreadable(path, f"{size} bytes are more than {MAX_RESULT}")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error.strerror or type(error).__name__) from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"not JSON: {error}"[:200]) from error
    if not isinstance(data, dict):
        raise _unreadable(path, f"a {type(data).__name__} instead of an object")
    return data


def _unreadable(path: Path, why: str) -> MeasurementFailed:
    cause = f"the result of vllm bench serve ({path.name}) cannot be used: {why}"
    return MeasurementFailed(failed("bad-result", cause, blame=Blame.MACHINE, retry=True))


def _last_line(error: str) -> str:
    lines = [line.strip() for line in plain(error[-4000:]).splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no reason given"


class _Reader:
    """Typed access to the result; what is missing or wrong is named."""

    def __init__(self, path: Path, data: Mapping[str, Any]) -> None:
        self._path = path
        self._data = data

    def number(self, key: str) -> float:
        value = self._data.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise self._wrong(key, "a finite number of at least 0", value)
        return float(value)

    def positive(self, key: str) -> float:
        value = self.number(key)
        if value == 0:
            raise self._wrong(key, "more than 0", value)
        return value

    def count(self, key: str) -> int:
        value = self.number(key)
        if value != int(value):
            raise self._wrong(key, "a whole number", value)
        return int(value)

    def counts(self, key: str) -> tuple[int, ...]:
        return tuple(int(value) for value in self.numbers(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        return self._floats(key, self._list(key))

    def rows(self, key: str) -> tuple[tuple[float, ...], ...]:
        rows = self._list(key)
        if not all(isinstance(row, list) for row in rows):
            raise self._wrong(key, "a list of lists", rows)
        return tuple(self._floats(key, row) for row in rows)

    def texts(self, key: str) -> tuple[str, ...]:
        # A request that failed has no text, and some versions write null for no error.
        return tuple("" if item is None else str(item) for item in self._list(key))

    def _list(self, key: str) -> list[Any]:
        value = self._data.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value

    def _floats(self, key: str, values: Sequence[Any]) -> tuple[float, ...]:
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise self._wrong(key, "finite numbers only", value)
        return tuple(float(value) for value in values)

    def _wrong(self, key: str, wanted: str, have: object) -> MeasurementFailed:
        found = "missing" if key not in self._data else repr(have)[:60]
        return _unreadable(self._path, f'"{key}" must be {wanted}, it is {found}')
