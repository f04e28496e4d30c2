from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.model import traffic
from tuner.model.traffic import Arrival, Record, is_trace, read_jsonl, read_sharegpt, read_trace


def written(folder: Path, *lines: object) -> Path:
    path = folder / "traffic.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_jsonl_with_and_without_length(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"prompt": "a"}, "", {"prompt": "b", "output_tokens": 7}, {"prompt": "c", "output_length": 9.0}
    )
    assert read_jsonl(path) == [Record("a"), Record("b", 7), Record("c", 9)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "not JSON"),
        ("[1]", "object is wanted"),
        ({"text": "x"}, '"prompt" must be a text'),
        ({"prompt": "  "}, '"prompt" must be a text'),
        ({"prompt": "x", "output_tokens": 0}, "1 to"),
        ({"prompt": "x", "output_tokens": -3}, "1 to"),
        ({"prompt": "x", "output_tokens": 99_999_999_999}, "1 to"),
        ({"prompt": "x", "output_tokens": 10**400}, "whole number"),
        ({"prompt": "x", "output_tokens": None, "max_tokens": 0}, "1 to"),
        ({"prompt": ""}, '"prompt" must be a text'),
        ({"prompt": 3}, '"prompt" must be a text'),
        ({"prompt": "x", "output_tokens": "many"}, "whole number"),
        ({"prompt": "x", "output_tokens": True}, "whole number"),
        ('{"prompt": "x", "output_tokens": Infinity}', "whole number"),
        ('{"prompt": "x", "output_tokens": NaN}', "whole number"),
        ('{"prompt": "x", "output_tokens": 1.5}', "whole number"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_jsonl_faults_name_file_and_line(tmp_path: Path, line: object, complaint: str) -> None:
    path = written(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(InputError, match=complaint) as caught:
        read_jsonl(path)
    assert f"{path}:2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_empty_binary_and_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_jsonl(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="holds no prompts"):
        read_jsonl(written(tmp_path, ""))
    with pytest.raises(InputError, match="not a regular file"):
        read_jsonl(tmp_path)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8 at byte 0"):
        read_jsonl(binary)
    monkeypatch.setattr(traffic, "MAX_FILE", 10)
    with pytest.raises(InputError, match="more than 10"):
        read_jsonl(written(tmp_path, {"prompt": "a long enough line"}))


def test_sharegpt_takes_the_first_two_turns(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}, {"from": "human", "value": "more"}]
    path = written(tmp_path, [{"conversations": talk}, {"conversations": talk[:1]}, {"id": 3}, 4])
    assert read_sharegpt(path) == [Record("Q", answer="A")]


@pytest.mark.parametrize(("data", "complaint"), [("{", "not JSON"), ({"a": 1}, "JSON list"), ([], "holds no conv")])
def test_sharegpt_faults(tmp_path: Path, data: object, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_sharegpt(written(tmp_path, data))


def test_trace_in_seconds_or_milliseconds(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp_ms": 1500, "input_length": 20, "output_length": 6},
    )
    assert read_trace(path) == [Arrival(0.0, 100, 5, (1, 2)), Arrival(1.5, 20, 6)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"timestamp": 0.5, "input_length": 1, "output_length": 1}, "sort the trace"),
        ({"input_length": 1, "output_length": 1}, "timestamp"),
        ({"timestamp": 2, "output_length": 1}, "input_length"),
        ({"timestamp": 2, "input_length": 1, "output_length": -4}, "output_length"),
        ({"timestamp": 2, "input_length": 0, "output_length": 1}, "input_length"),
        ({"timestamp": 2, "input_length": True, "output_length": 1}, "input_length"),
        ({"timestamp": 2, "input_length": 10**400, "output_length": 1}, "input_length"),
        ({"timestamp": 10**400, "input_length": 1, "output_length": 1}, "timestamp"),
        ({"prompt": "x", "output_tokens": 3}, "timestamp"),
        ({"timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": ["x"]}, "hash_ids"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp"),
    ],
)
def test_trace_faults(tmp_path: Path, line: object, complaint: str) -> None:
    path = written(tmp_path, {"timestamp": 1, "input_length": 1, "output_length": 1}, line)
    with pytest.raises(InputError, match=complaint) as caught:
        read_trace(path)
    assert f"{path}:2" in str(caught.value)


def test_a_trace_is_told_by_its_first_line(tmp_path: Path) -> None:
    assert is_trace(written(tmp_path, "", {"timestamp": 0, "input_length": 1, "output_length": 1}))
    assert not is_trace(written(tmp_path, {"prompt": "x"}))
    assert not is_trace(written(tmp_path, "{not json"))
    assert not is_trace(written(tmp_path, ""))
