"""Whether a model can chat, from its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.measuring.template import has_chat_template


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"})}, True),
        ({"tokenizer_config.json": json.dumps({"chat_template": [{"name": "default", "template": "x"}]})}, True),
        ({"tokenizer_config.json": "{}", "chat_template.jinja": "x"}, True),
        ({"tokenizer_config.json": "{}", "tekken.json": "{}"}, True),
        ({"tokenizer_config.json": "{}"}, False),
        ({"tokenizer_config.json": json.dumps({"chat_template": None})}, False),
        ({"tokenizer_config.json": "[" * 100_000}, None),
        ({"tokenizer_config.json": "[]"}, None),
        ({}, None),
    ],
)
def test_files_tell(files: dict[str, str], expected: bool | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert has_chat_template(str(tmp_path)) is expected


def test_a_hub_id_is_looked_up_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert has_chat_template("org/base") is None
    snapshot = tmp_path / "models--org--base" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer_config.json").write_text("{}")
    assert has_chat_template("org/base") is False
