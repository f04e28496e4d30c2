"""A workload from the user's own traffic file, as far as planning needs it: its kind, and how long requests get.

The file is read with care and in full when it is measured (:mod:`tuner.measuring`); here lengths are estimated, so
that ``max_model_len`` holds the longest request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tuner.errors import InputError
from tuner.model.json import finite
from tuner.model.workload import LoadPoint, PromptSource, Workload

__all__ = ["SUFFIXES", "workload_of_file"]

SUFFIXES = (".jsonl", ".json")
_MAX_BYTES = 1 << 30
_MAX_LINE = 8 << 20
_BYTES_PER_TOKEN = 3.0
"""Below what tokenizers reach on prose (about 4 bytes of English): rather too long than too short."""
_OUTPUT_TOKENS = 256
_OUTPUTS = ("output_tokens", "output_length", "output_len", "max_tokens")


def workload_of_file(path: Path) -> Workload:
    """The traffic in a JSONL file of prompts, a JSONL trace with times, or a ShareGPT JSON file.

    Raises:
        InputError: it cannot be read, or holds none of these.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise InputError(f"{path}: is larger than 1 GiB; take a sample of it")
        lengths, source = _sharegpt(path) if path.suffix == ".json" else _lines(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text") from None
    if not lengths:
        raise InputError(f'{path}: holds no requests; JSONL lines are {{"prompt": "…", "output_tokens": 128}}')
    inputs = sum(item[0] for item in lengths) / len(lengths)
    outputs = sum(item[1] for item in lengths) / len(lengths)
    longest = max(sum(item) for item in lengths)
    requests = min(len(lengths), 256)
    point = LoadPoint(requests=requests) if source == "trace" else LoadPoint(concurrency=32, requests=requests)
    mean = max(round(inputs), 1) + max(round(outputs), 1)
    return Workload(
        name=path.stem,
        source=source,
        path=str(path.absolute()),
        input_tokens=max(round(inputs), 1),
        output_tokens=max(round(outputs), 1),
        spread=max(longest / mean - 1, 0.0),
        points=(point,),
    )


def _lines(path: Path) -> tuple[list[tuple[int, int]], PromptSource]:
    lengths: list[tuple[int, int]] = []
    source: PromptSource = "jsonl"
    for number, entry in _objects(path):
        output = next((int(entry[key]) for key in _OUTPUTS if _positive(entry.get(key))), _OUTPUT_TOKENS)  # type: ignore[call-overload]
        prompt, given = entry.get("prompt"), entry.get("input_length")
        if isinstance(prompt, str):
            lengths.append((_tokens(prompt), output))
        elif _positive(given):
            source = "trace"
            lengths.append((int(given), output))  # type: ignore[call-overload]
        else:
            raise InputError(f'{path}:{number}: has neither "prompt" nor "input_length"')
    return lengths, source


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    with path.open(encoding="utf-8") as file:
        number = 0
        while line := file.readline(_MAX_LINE + 1):
            number += 1
            if len(line) > _MAX_LINE:
                raise InputError(f"{path}:{number}: a line is longer than 8 MiB")
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                raise InputError(f"{path}:{number}: is not JSON; one request per line") from None
            if not isinstance(entry, dict):
                raise InputError(f"{path}:{number}: must be a JSON object")
            yield number, entry


def _sharegpt(path: Path) -> tuple[list[tuple[int, int]], PromptSource]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise InputError(f"{path}: is not JSON; a ShareGPT file is one list of conversations") from None
    lengths = []
    for entry in data if isinstance(data, list) else ():
        turns = entry.get("conversations") if isinstance(entry, dict) else None
        values = [turn.get("value") for turn in turns[:2] if isinstance(turn, dict)] if isinstance(turns, list) else []
        texts = [value for value in values if isinstance(value, str) and value.strip()]
        if len(texts) == 2:
            lengths.append((_tokens(texts[0]), _tokens(texts[1])))
    return lengths, "sharegpt"


def _tokens(text: str) -> int:
    return max(1, round(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN))


def _positive(value: object) -> bool:
    return finite(value) and 0 < value < 1 << 22  # type: ignore[operator]
