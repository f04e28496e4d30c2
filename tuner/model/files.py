"""Files that a person names and that appear whole or not at all: where they go, and drafts beside them."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner.errors import InputError

__all__ = ["draft_beside", "target_of", "write_draft"]

_KINDS = (
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def target_of(path: Path, option: str) -> Path:
    """Where a file named ``path`` really goes: links are followed, as writing into it would.

    Raises:
        InputError: something other than a file is there already; a rename would put a file in its place.
    """
    try:
        place = path.expanduser()
        with suppress(FileNotFoundError):
            # Before the links are resolved: /dev/stdout leads to a pipe that has no path.
            mode = place.stat().st_mode
            if stat.S_ISDIR(mode):
                raise InputError(f"{option} {path}: is a folder; name a file in it")
            if not stat.S_ISREG(mode):
                what = next((name for test, name in _KINDS if test(mode)), "no file")
                raise InputError(f"{option} {path}: is {what}; name a file, it is written anew in one step")
        return place.resolve()
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written ({error.strerror}); choose another place") from None
    except RuntimeError as error:
        # No home folder for ~, and links in a circle before Python 3.13.
        raise InputError(f"{option} {path}: cannot be written ({error}); choose another place") from None


@contextmanager
def draft_beside(place: Path, suffix: str = ".tmp") -> Iterator[Path]:
    """A new, empty file beside ``place`` that only its owner can read; gone afterwards unless it was moved there.

    Raises:
        OSError: it cannot be made.
    """
    draft = place.with_name(f".{place.stem[:64]}-{secrets.token_hex(8)}{suffix}")
    # Never a file, nor a link, that somebody else has put there.
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    try:
        yield draft
    finally:
        with suppress(OSError):
            draft.unlink()


def write_draft(draft: Path, text: str) -> None:
    """Write a draft anew, down to the disk.

    Raises:
        OSError: the disk is full, or the draft is gone.
    """
    handle = os.open(draft, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
