"""Whether a model has a chat template, told from its files before anything is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["has_chat_template"]

_LARGEST = 16 << 20
_FILES = ("chat_template.jinja", "chat_template.json")
_OTHER_WAYS = ("tekken.json", "additional_chat_templates", "encoding")
"""Models that bring their message format as code or in a tokenizer of another kind (Mistral's, DeepSeek's)."""


def has_chat_template(model: str) -> bool | None:
    """True or False for a folder, or a hub id that lies in the hub's cache; None where nobody can tell from here."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        cached = _cached(model)
        if cached is None:
            return None
        folder = cached
    if any((folder / name).exists() for name in (*_FILES, *_OTHER_WAYS)):
        return True
    config = folder / "tokenizer_config.json"
    try:
        if config.stat().st_size > _LARGEST:
            return None
        told = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return bool(told.get("chat_template")) if isinstance(told, dict) else None


def _cached(model: str) -> Path | None:
    """The newest snapshot of a hub id in the local cache that has a tokenizer."""
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    root = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = root / f"models--{model.replace('/', '--')}" / "snapshots"
    try:
        found = [path.parent for path in snapshots.glob("*/tokenizer_config.json")]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)
    except OSError:
        return None
