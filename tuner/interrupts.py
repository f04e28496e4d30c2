"""Ctrl-C and the other polite signals: one interrupt, and never in the middle of writing something down."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts", "interrupts"]


class Interrupts:
    """A signal handler that raises :class:`KeyboardInterrupt` once, after what is :meth:`held` has been done.

    What comes after the first one is answered with a line: the servers are being ended, and a second exception would
    leave them.
    """

    def __init__(self) -> None:
        self.seen = False
        self.resumable = False
        self._holders = 0
        self._waiting = False

    def install(self) -> None:
        """Answer SIGINT, SIGTERM and SIGHUP."""
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, self)

    def __call__(self, _signum: int, _frame: FrameType | None) -> None:
        if self.seen:
            sys.stderr.write("tune: still ending what this study started; please wait\n")
            return
        self.seen = True
        if self._holders:
            self._waiting = True
            return
        raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do this to its end: a trial that is half written down would stay RUNNING in a store for ever.

        Raises:
            KeyboardInterrupt: at the end, where one came meanwhile.
        """
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
        if self._waiting and not self._holders:
            self._waiting = False
            raise KeyboardInterrupt


interrupts = Interrupts()
"""The program's own: the command line installs it, a study holds it."""
