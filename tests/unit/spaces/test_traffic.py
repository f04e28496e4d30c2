"""Workloads from the user's own traffic files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.model.workload import LoadPoint
from tuner.spaces.loader import Library
from tuner.spaces.plan import open_plan
from tuner.spaces.traffic import workload_of_file


def test_jsonl_prompts(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    lines = [{"prompt": "x" * 300, "output_tokens": 50}, {"prompt": "x" * 900, "output_tokens": 150}]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    found = workload_of_file(path)
    assert (found.name, found.source, found.path) == ("mine", "jsonl", str(path))
    assert (found.input_tokens, found.output_tokens) == (200, 100)
    # The longest request: 300 + 150 tokens.
    assert found.tokens_needed == 450
    assert found.points == (LoadPoint(concurrency=32, requests=2),)


def test_trace_and_sharegpt(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1000, "output_length": 10}\n')
    found = workload_of_file(trace)
    assert (found.source, found.tokens_needed, found.points) == ("trace", 1010, (LoadPoint(requests=1),))
    chats = tmp_path / "s.json"
    turns = [{"from": "human", "value": "a" * 30}, {"from": "gpt", "value": "b" * 60}]
    chats.write_text(json.dumps([{"conversations": turns}, {"conversations": []}, 3]))
    found = workload_of_file(chats)
    assert (found.source, found.input_tokens, found.output_tokens) == ("sharegpt", 10, 20)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b"", "holds no prompts"),
        ("a.jsonl", b"{", "a.jsonl:1: not JSON"),
        ("a.jsonl", b'{"prompt": "x"}\n[1]', "a.jsonl:2: a JSON object is wanted"),
        ("a.jsonl", b'{"text": "x"}', 'a.jsonl:1: "prompt" must be a text'),
        ("a.jsonl", b'{"prompt": "x"}\n{"prompt": " "}', 'a.jsonl:2: "prompt" must be a text that is not empty'),
        ("a.jsonl", b'{"prompt": "x", "output_tokens": 0}', 'a.jsonl:1: "output_tokens" must be 1 to'),
        ("a.jsonl", b'{"prompt": "x", "output_tokens": true}', 'a.jsonl:1: "output_tokens" must be a whole number'),
        ("a.jsonl", b'{"input_length": 9, "output_length": 9}', 'a.jsonl:1: "timestamp" must be seconds'),
        ("a.jsonl", b'{"timestamp": 0, "input_length": 9, "output_length": 0}', '1: "output_length" must be 1 to'),
        ("a.jsonl", b"\xff\xfe", "not UTF-8"),
        ("a.json", b"{}", "a ShareGPT file is a JSON list"),
        ("a.json", b"[]", "holds no conversations"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", b"\xff", "not UTF-8"),
    ],
)
def test_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=re.escape(message)):
        workload_of_file(path)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        workload_of_file(tmp_path / "none.jsonl")


def test_in_a_plan(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "hello there", "output_tokens": 9}\n')
    assert open_plan("h1", workload=str(path), library=library).workload.source == "jsonl"
    # Named in YAML, it lies beside that file.
    space = tmp_path / "w.yaml"
    space.write_text("schema: 1\nworkload: {source: jsonl, path: mine.jsonl}\n")
    assert open_plan("h1", workload=str(space), library=library).workload.path == str(path)
