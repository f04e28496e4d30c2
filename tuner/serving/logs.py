"""Reading vLLM's log as it grows: where the start is, how long each phase took, what really runs, what matters.

Understands 0.25.1 and 0.32, with and without the ``(EngineCore pid=…)`` prefixes, progress bars included. A log is
untrusted: lines and totals are bounded, what is not understood is skipped.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from tuner.model.json import Json
from tuner.model.words import plain
from tuner.serving.patterns import PHASES, SETTINGS, WARNINGS, init_line

__all__ = ["LogFacts", "LogReader", "read_log", "tail"]

_LINE_LIMIT = 32 << 10
_CHUNK = 1 << 20
_TOTAL_LIMIT = 256 << 20
_PREFIX = re.compile(r"^\((?P<process>[A-Za-z][\w\-. ]{0,60}) pid=(?P<pid>\d{1,10})\) ?")
_STAMP = re.compile(
    r"^(?P<level>[A-Z]{4,8}) (?P<month>\d\d)-(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d) "
    r"\[[\w./]{1,80}:\d{1,6}\] ?"
)
_API_SERVER = re.compile(r"ApiServer_(\d{1,4})")
_STEADY = re.compile(
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: (?P<generation>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs,.{0,80}? KV cache usage: (?P<kv>[\d.]+)%"
)
# Repeated every minute while workers are busy, or stuck: no sign of life.
_HEARTBEAT = re.compile(r"No available shared memory broadcast block found in \d+ seconds")


@dataclass
class LogFacts:
    """What a log has told so far.

    Attributes:
        settings: effective settings, named as in :class:`~tuner.model.measurement.ServerReport`.
        warnings: plain sentences, in order, each once.
        seconds: what the log itself says of durations, by phase.
        phase: what the server is doing now.
        words: messages read so far, without those that come while nothing happens: what silence is told by.
        serving: the engine is up (from here on a kernel compiled is compiled under load).
        compiled_under_load: kernels compiled while requests were served.
        steady: the last periodic statistics lines (tok/s, requests, KV use in percent).
    """

    version: str = ""
    settings: dict[str, Json] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    phase: str = "imports"
    words: int = 0
    serving: bool = False
    compiled_under_load: list[str] = field(default_factory=list)
    steady: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=32))

    def phases(self, total: float | None = None) -> dict[str, float]:
        """Start seconds by phase; ``other`` is what no phase accounts for.

        Args:
            total: seconds from start to readiness where known, else taken from the log's first and last stamp.
        """
        known = {name: round(self.seconds.get(name, 0.0), 3) for name in PHASES}
        known["weights"] = known["weights"] or round(self.seconds.get("weights_cpu", 0.0), 3)
        whole = total if total is not None else self.seconds.get("span", 0.0)
        return {**known, "other": round(max(0.0, whole - sum(known.values())), 3), "total": round(whole, 3)}


class LogReader:
    """Follows one log file. ``poll`` reads what is new; it is cheap and never raises for content.

    Args:
        started: wall-clock time (``time.time()``) at which the process was started, for the time before its first line.
    """

    def __init__(self, path: Path, *, started: float | None = None) -> None:
        self.path = path
        self.facts = LogFacts()
        self.size = 0
        self._rest = b""
        self._seen: set[str] = set()
        self._last = None if started is None else _local_seconds(started)
        self._first = self._last
        self._pending: dict[str, float] = {}

    def poll(self) -> bool:
        """Read on. Returns whether the log has grown."""
        grown = False
        try:
            with self.path.open("rb") as file:
                file.seek(self.size)
                while self.size < _TOTAL_LIMIT and (data := file.read(_CHUNK)):
                    self.size += len(data)
                    grown = True
                    self._feed(data)
        except OSError:
            return grown
        return grown

    def finish(self) -> LogFacts:
        """Read to the end, the unfinished last line included."""
        self.poll()
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        return self.facts

    def _feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > _LINE_LIMIT:
            self._line(self._rest)
            self._rest = b""
        for line in lines:
            self._line(line)

    def _line(self, raw: bytes) -> None:
        text = plain(raw[:_LINE_LIMIT].decode("utf-8", errors="replace"))
        process = ""
        if found := _PREFIX.match(text):
            process = found["pid"]
            self._api_server(found["process"])
            text = text[found.end() :]
        stamp = None
        if found := _STAMP.match(text):
            stamp = _stamp_seconds(found)
            text = text[found.end() :]
        if stamp is not None:
            self._clock(process, stamp)
        if text:
            self._message(text, stamp)

    def _api_server(self, name: str) -> None:
        """How many API servers there are: one says ``APIServer``, several say ``ApiServer_0`` and so on."""
        number = 0 if name == "APIServer" else int(found[1]) if (found := _API_SERVER.fullmatch(name)) else -1
        known = self.facts.settings.get("api-server-count", 0)
        if isinstance(known, int) and number >= known:
            self.facts.settings["api-server-count"] = number + 1

    def _clock(self, process: str, stamp: float) -> None:
        if self._last is None:
            self._last = self._first = stamp
        # The first line of a new process comes when its imports are done: nobody else had anything to say meanwhile.
        if process not in self._seen and not self.facts.serving:
            gap = stamp - self._last
            if 0 <= gap < 3600:
                self.facts.seconds["imports"] = self.facts.seconds.get("imports", 0.0) + gap
            self._seen.add(process)
        self._last = stamp
        if self._first is not None and not self.facts.serving and stamp >= self._first:
            self.facts.seconds["span"] = stamp - self._first

    def _message(self, text: str, stamp: float | None) -> None:
        facts = self.facts
        facts.words += _HEARTBEAT.search(text) is None
        if found := init_line(text):
            version, settings = found
            facts.version = facts.version or version
            facts.settings = {**settings, **facts.settings}
        for pattern, read in SETTINGS:
            if match := pattern.search(text):
                with contextlib.suppress(ValueError):  # digits and dots that are no number
                    facts.settings.update(read(match, facts.settings))
        if not facts.version and (match := re.search(r"\bversion (\d+\.\d+[\w.+\-]{0,40})", text)):
            facts.version = match[1]
        for pattern, sentence in WARNINGS:
            if (match := pattern.search(text)) and len(facts.warnings) < 200:
                facts.warnings[sentence(match) if callable(sentence) else sentence] = None
        self._phase(text, stamp)
        if match := _STEADY.search(text):
            facts.steady.append({name: float(value) for name, value in match.groupdict().items()})
        elif (
            "JIT compilation during inference" in text
            and len(facts.compiled_under_load) < 1000
            and (match := re.search(r"during inference: (\w{1,120})", text))
        ):
            facts.compiled_under_load.append(match[1])

    def _phase(self, text: str, stamp: float | None) -> None:
        facts = self.facts
        for pattern, now, spent in _PHASE_MARKS:
            match = pattern.search(text)
            if not match:
                continue
            if now:
                facts.phase = now
                facts.serving = facts.serving or now == "serve"
            if spent and match.lastindex:
                with contextlib.suppress(ValueError):
                    facts.seconds[spent] = facts.seconds.get(spent, 0.0) + float(match[1])
        # The CPU worker compiles within its warm-up run and gives no figure of it.
        if stamp is not None and text.startswith("Warming up model for the compilation"):
            self._pending["compile"] = stamp
        elif stamp is not None and text.startswith("Warming up done") and "compile" in self._pending:
            spent_s = stamp - self._pending.pop("compile") - facts.seconds.get("profile", 0.0)
            facts.seconds["compile"] = max(facts.seconds.get("compile", 0.0), spent_s)
        # Estimating the graphs' memory captures some of them: part of profiling, known only from the stamps.
        if stamp is not None and "Profiling CUDA graph memory" in text:
            self._pending["profile"] = stamp
        elif stamp is not None and "Estimated CUDA graph memory" in text and "profile" in self._pending:
            facts.seconds["profile"] = facts.seconds.get("profile", 0.0) + max(
                0.0, stamp - self._pending.pop("profile")
            )


_Mark = tuple[re.Pattern[str], str, str]


def _mark(pattern: str, now: str = "", spent: str = "") -> _Mark:
    return re.compile(pattern), now, spent


# What a line says: which phase begins with it, and which phase its number (seconds) belongs to.
_PHASE_MARKS: tuple[_Mark, ...] = (
    _mark(r"Starting to load model ", "weights"),
    _mark(r"Model loading took -?[\d.]+ GiB memory and ([\d.]+) seconds", "compile", "weights"),
    # The CPU worker has no line for the whole: it reports both halves.
    _mark(r"^Initializing model took ([\d.]+) seconds", "", "weights_cpu"),
    _mark(r"^Loading weights took ([\d.]+) seconds", "", "weights_cpu"),
    _mark(r"Dynamo bytecode transform time|Using cache directory: .*torch_compile_cache|Start compil", "compile"),
    _mark(r"torch\.compile (?:took|takes) ([\d.]+) s", "profile", "compile"),
    _mark(r"Initial profiling/warmup run took ([\d.]+) s", "profile", "profile"),
    _mark(r"^Warming up model for the compilation", "compile"),
    _mark(r"^Warming up done", "profile"),
    _mark(r"^Capturing CUDA graphs|^Capturing CUDA graph shapes|KV cache size: [\d,]+ tokens", "capture"),
    _mark(r"Graph capturing finished in ([\d.]+) secs", "other", "capture"),
    _mark(r"^init engine .* took [\d.]+ s", "other"),
    _mark(r"^init engine .* took ([\d.]+) s", "", "engine"),
    _mark(r"^Application startup complete|^INFO: +Application startup complete|^Kernel JIT monitor activated", "serve"),
)


def _stamp_seconds(found: re.Match[str]) -> float:
    """Seconds within a leap year: vLLM's stamps have no year, only differences count."""
    month, day, hour, minute, second = (int(found[name]) for name in ("month", "day", "hour", "minute", "second"))
    days = (0, 0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)[month if month <= 12 else 0] + day
    return ((days * 24.0 + hour) * 60.0 + minute) * 60.0 + second


def _local_seconds(moment: float) -> float:
    local = time.localtime(moment)
    days = (0, 0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)[local.tm_mon] + local.tm_mday
    return ((days * 24.0 + local.tm_hour) * 60.0 + local.tm_min) * 60.0 + local.tm_sec + moment % 1.0


def read_log(path: Path, *, started: float | None = None) -> LogFacts:
    """Everything a finished log tells."""
    return LogReader(path, started=started).finish()


def tail(path: Path, *, limit: int = 256 << 10) -> str:
    """The end of a log (``limit`` bytes), for classification and excerpts; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - limit))
            return plain(file.read(limit).decode("utf-8", errors="replace"))
    except OSError:
        return ""
