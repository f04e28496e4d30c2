"""The user's own traffic, read with care: JSONL prompts, ShareGPT conversations, timed traces.

One reading for planning and for measuring: what a dry run takes, a study takes. Every fault is an
:class:`~tuner.errors.InputError` that names file and line, raised before a server is started.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tuner.errors import InputError
from tuner.model.json import finite

__all__ = ["Arrival", "Record", "is_trace", "read_jsonl", "read_sharegpt", "read_trace"]

T = TypeVar("T")

MAX_FILE = 1 << 30
MAX_LINE = 8 << 20
MAX_RECORDS = 500_000
MAX_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True)
class Record:
    """One request of the user's traffic.

    Attributes:
        prompt: the text as it is sent to ``/v1/completions``.
        output_tokens: wanted length, None where the workload's own holds.
        answer: what was answered then (ShareGPT): its length becomes the wanted one.
    """

    prompt: str
    output_tokens: int | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One line of a timed trace: when (seconds from the first), how long, and which blocks are shared."""

    at: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_jsonl(path: Path) -> list[Record]:
    """Lines of ``{"prompt": text, "output_tokens": n}``; ``output_length`` is understood as well.

    Raises:
        InputError: no such file, too large, or a line that is not such an object.
    """
    records = []
    for where, entry in _objects(path):
        prompt = entry.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise InputError(f'{where}: "prompt" must be a text that is not empty')
        length = _first(entry, "output_tokens", "output_length", "output_len", "max_tokens")
        records.append(Record(prompt, None if length is None else _count(length, where, "output_tokens")))
    return _some(records, path, "prompts")


def read_sharegpt(path: Path) -> list[Record]:
    """A ShareGPT file: a JSON list of ``{"conversations": [{"from": "human", "value": …}, {"from": "gpt", …}]}``.

    The first two turns make a request, as in ``vllm bench serve``; conversations with fewer are passed over.

    Raises:
        InputError: no such file, too large, not such a list, or no usable conversation in it.
    """
    try:
        data = json.loads(_text(path))
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line}: not JSON ({error}); a ShareGPT file is one JSON list") from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply; a ShareGPT file is a list of conversations") from error
    if not isinstance(data, list):
        raise InputError(f"{path}: a ShareGPT file is a JSON list of conversations, this is a {type(data).__name__}")
    records = []
    for entry in data[:MAX_RECORDS]:
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(turn, dict) for turn in turns[:2]):
            continue
        question, answer = turns[0].get("value"), turns[1].get("value")
        if isinstance(question, str) and isinstance(answer, str) and question.strip() and answer.strip():
            records.append(Record(question, answer=answer))
    return _some(records, path, "conversations with two turns")


def read_trace(path: Path) -> list[Arrival]:
    """Lines of ``{"timestamp": seconds, "input_length": n, "output_length": n}``, sorted by time.

    ``timestamp_ms`` is understood as well, and ``hash_ids`` (which blocks requests share) is kept.

    Raises:
        InputError: no such file, too large, or a line that is not such an object.
    """
    arrivals: list[Arrival] = []
    for where, entry in _objects(path):
        at = entry.get("timestamp")
        if at is None and entry.get("timestamp_ms") is not None:
            at = _seconds(entry["timestamp_ms"], where) / 1000
        at = _seconds(at, where)
        if arrivals and at < arrivals[-1].at:
            raise InputError(f"{where}: timestamp {at:g} lies before that of the line above; sort the trace by time")
        ids = entry.get("hash_ids", [])
        if not isinstance(ids, list) or not all(isinstance(item, int) for item in ids):
            raise InputError(f'{where}: "hash_ids" must be a list of whole numbers')
        arrivals.append(
            Arrival(
                at,
                _count(entry.get("input_length"), where, "input_length"),
                _count(entry.get("output_length"), where, "output_length"),
                tuple(ids),
            )
        )
    return _some(arrivals, path, "requests")


def is_trace(path: Path) -> bool:
    """Whether a JSONL file is a timed trace: its first line tells lengths and no prompt.

    Raises:
        InputError: it cannot be read.
    """
    if not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            first = next((line for line in iter(lambda: file.readline(MAX_LINE), "") if line.strip()), "")
        entry = json.loads(first)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; check the path of the workload") from error
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and "input_length" in entry and "prompt" not in entry


def _objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        if number > MAX_RECORDS:
            raise InputError(f"{where}: more than {MAX_RECORDS} lines; cut the file")
        if len(line) > MAX_LINE:
            raise InputError(f"{where}: line of more than {MAX_LINE} characters")
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({error}); one object per line is wanted") from error
        if not isinstance(entry, dict):
            raise InputError(f"{where}: a JSON object is wanted, this is a {type(entry).__name__}")
        yield where, entry


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InputError(f"{path}: not a regular file")
        if size > MAX_FILE:
            raise InputError(f"{path}: {size} bytes is more than {MAX_FILE}; cut the file")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; check the path of the workload") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error


def _first(entry: Mapping[str, Any], *names: str) -> object:
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _count(value: object, where: str, name: str) -> int:
    if not finite(value) or not isinstance(value, int | float) or value != int(value):
        raise InputError(f'{where}: "{name}" must be a whole number, not {value!r}'[:300])
    if not 1 <= value <= MAX_TOKENS:
        raise InputError(f'{where}: "{name}" must be 1 to {MAX_TOKENS}, not {value:g}')
    return int(value)


def _seconds(value: object, where: str) -> float:
    if not finite(value) or not isinstance(value, int | float) or value < 0:
        raise InputError(f'{where}: "timestamp" must be seconds (a number of at least 0), not {value!r}'[:300])
    return float(value)


def _some(items: list[T], path: Path, what: str) -> list[T]:
    if not items:
        raise InputError(f"{path}: holds no {what}")
    return items
