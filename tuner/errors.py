"""The errors a person can meet. Each message is one line: what is wrong, where, and the way out."""

from __future__ import annotations

__all__ = ["InputError", "RunError", "StudyStopped", "TunerError"]


class TunerError(Exception):
    """Base of every error that `tune` reports as one line instead of a traceback."""

    exit_code = 1


class InputError(TunerError):
    """The user's input is at fault (a file, a flag, the environment). Exit code 2."""

    exit_code = 2


class RunError(TunerError):
    """The run failed although the input was good (machine, network, disk). Exit code 1."""


class StudyStopped(RunError):
    """The study ended itself because going on would mislead or waste: the reason is the message."""
