"""What of a trial's folder goes to the tracker: masked, trimmed, and never a link or a stranger's file."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tuner.tracking.payload import Mask

__all__ = ["stage"]

LOG_HEAD = 512 * 1024
LOG_TAIL = 1536 * 1024
"""A text longer than both together keeps these ends (bytes): starts and deaths are what logs are read for."""

JSON_LIMIT = 32 * 1024 * 1024
"""Larger JSON stays where it is (bytes); half of one is of no use."""

MOST_FILES = 200

_TEXT = frozenset({".log", ".txt", ".json", ".jsonl", ".yaml", ".yml", ".env", ".csv", ".md", ".out", ".err", ""})


def stage(directory: Path, texts: Mapping[str, str], target: Path, hide: Mask) -> None:
    """Fill ``target`` with ``texts`` (name → content) and the files of ``directory`` that a person would look for.

    Raises:
        OSError: the target cannot be written. Sources that vanish or cannot be read are left out.
    """
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    left_out = []
    for source in _files(directory):
        name = str(source.relative_to(directory))
        if name in texts:
            continue
        try:
            content = _content(source, hide)
        except OSError:
            continue
        if content is None:
            left_out.append(name)
            continue
        place = target / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.write_bytes(content)
    if left_out:
        (target / "left_out.txt").write_text(
            "Not uploaded (binary, or too large to be useful in part); still in the trial's own folder:\n"
            + "\n".join(left_out)
            + "\n",
            encoding="utf-8",
        )
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")


def _files(directory: Path) -> Iterator[Path]:
    found = 0
    for path in sorted(directory.rglob("*")):
        try:
            regular = stat.S_ISREG(path.lstat().st_mode)
        except OSError:
            continue
        hidden = any(part.startswith(".") for part in path.relative_to(directory).parts)
        if not regular or hidden or path.suffix in (".tmp", ".lock", ".sock", ".pid"):
            continue
        found += 1
        if found > MOST_FILES:
            return
        yield path


def _content(path: Path, hide: Mask) -> bytes | None:
    """The file as it may be shown; None to leave it out."""
    size = path.stat().st_size
    if path.suffix not in _TEXT:
        return None
    if path.suffix == ".json":
        if size > JSON_LIMIT:
            return None
        return _json(path.read_text(encoding="utf-8", errors="replace"), hide).encode()
    with path.open("rb") as file:
        if size <= LOG_HEAD + LOG_TAIL:
            raw = file.read(LOG_HEAD + LOG_TAIL)
        else:
            head = file.read(LOG_HEAD)
            file.seek(size - LOG_TAIL)
            cut = f"\n… {size - LOG_HEAD - LOG_TAIL} bytes left out …\n".encode()
            raw = head + cut + file.read(LOG_TAIL)
    return hide.text(raw.decode("utf-8", errors="replace")).encode()


def _json(text: str, hide: Mask) -> str:
    """Masked value by value, so that it stays JSON; as text where it is none."""
    try:
        value = json.loads(text)
        return json.dumps(hide.json(value), indent=1)
    except (ValueError, RecursionError):
        return hide.text(text)
