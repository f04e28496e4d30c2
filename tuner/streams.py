"""The standard streams as a command needs them: no character stops a line, and what fails is called by its name."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["STDOUT", "drop_output", "finish_output", "prepare_streams", "say_error"]

STDOUT = "standard output"
"""``OSError.filename`` of an error in writing to standard output."""


class _Output(io.FileIO):
    """Standard output; its errors say whose they are."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = "is closed" if error.errno == errno.EBADF else (error.strerror or str(error)).lower()
            raise OSError(error.errno, reason, STDOUT) from None


def prepare_streams() -> None:
    """Replace what an encoding lacks, and give closed streams their numbers back.

    A closed number would go to the next file that is opened, and whatever prints would write into it.
    """
    if sys.stdout is None:
        _occupy(1, os.O_RDONLY)
        sys.stdout = _text(1, "utf-8")
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        sys.stdout = _text(sys.stdout.fileno(), sys.stdout.encoding, sys.stdout)
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(_occupy(2, os.O_WRONLY), "w", closefd=False), encoding="utf-8")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="replace")


def _text(number: int, encoding: str, like: io.TextIOWrapper | None = None) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(number, "w", closefd=False)),
        encoding=encoding,
        errors="replace",
        line_buffering=like is not None and like.line_buffering,
        write_through=like is not None and like.write_through,
    )


def _occupy(number: int, flags: int) -> int:
    """Open the null device as descriptor ``number``; read-only, it refuses what is written as a closed one does."""
    while (handle := os.open(os.devnull, flags)) < number:
        pass
    os.set_inheritable(handle, True)
    return handle


def finish_output() -> None:
    """Write what is still held back.

    Raises:
        OSError: it cannot be written; ``filename`` is :data:`STDOUT`.
    """
    sys.stdout.flush()


def drop_output() -> None:
    """Forget what standard output could not take: Python would try again at its end and complain in its own words."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finish_output()


def say_error(line: str, answer: str | None = None) -> None:
    """A line on standard error and, where asked, an answer on standard output; neither is worth another error."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        # Nobody is left to tell; the exit code says it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    try:
        if answer is not None:
            sys.stdout.write(f"{answer}\n")
        finish_output()
    except OSError:
        drop_output()
