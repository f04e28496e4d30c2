"""A workload from the user's own traffic file, as far as planning needs it: its kind, and how long requests get.

Its requests are read as they are when they are measured (:mod:`tuner.model.traffic`); here their lengths are estimated,
so that ``max_model_len`` holds the longest request.
"""

from __future__ import annotations

from pathlib import Path

from tuner.model.traffic import is_trace, read_jsonl, read_sharegpt, read_trace
from tuner.model.workload import LoadPoint, PromptSource, Workload

__all__ = ["SUFFIXES", "workload_of_file"]

SUFFIXES = (".jsonl", ".json")
_BYTES_PER_TOKEN = 3.0
"""Below what tokenizers reach on prose (about 4 bytes of English): rather too long than too short."""
_OUTPUT_TOKENS = 256


def workload_of_file(path: Path) -> Workload:
    """The traffic in a JSONL file of prompts, a JSONL trace with times, or a ShareGPT JSON file.

    Raises:
        InputError: it cannot be read, holds none of these, or one of its requests is at fault (with its line).
    """
    lengths, source = _lengths(path)
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


def _lengths(path: Path) -> tuple[list[tuple[int, int]], PromptSource]:
    """Input and output tokens of each request, estimated where the file has texts."""
    if path.suffix == ".json":
        return [(_tokens(item.prompt), _tokens(item.answer)) for item in read_sharegpt(path)], "sharegpt"
    if is_trace(path):
        return [(item.input_tokens, item.output_tokens) for item in read_trace(path)], "trace"
    return [(_tokens(item.prompt), item.output_tokens or _OUTPUT_TOKENS) for item in read_jsonl(path)], "jsonl"


def _tokens(text: str) -> int:
    return max(1, round(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN))
