"""When failures in a row say that a study cannot go on, and when they are only a dead region of its space."""

from __future__ import annotations

from tuner.model.history import History
from tuner.model.outcome import Blame
from tuner.model.words import sentences

__all__ = ["hopeless"]

_SAME_CAUSE = 3
"""Trials in a row that fail alike by the machine's or the user's fault: the next would fail as well."""

_ONLY_DEFAULTS_RAN, _OTHERS_RAN = 8, 16
"""Different candidates in a row that fail alike by their own fault, while nothing but the defaults was ever measured,
and once something was. Half of a space and more may be dead, and the search learns from it: the defaults run, so that
something else may. Eight in a row cost less than a study that was ended with most of its budget unspent."""


def hopeless(history: History) -> str | None:
    """One sentence why the study must end, None to go on.

    The launches at its end all failed for one root cause. Where the configuration is at fault, the same candidate
    tried again counts once.
    """
    tail = history.failed_alike()
    failure = tail[-1].failure if tail else None
    if failure is None:
        return None
    if failure.blame is Blame.CONFIGURATION:
        count = len({outcome.candidate.key for outcome in tail})
        what, patience = f"{count} candidates", _OTHERS_RAN if history.others_ran() else _ONLY_DEFAULTS_RAN
    else:
        count, what, patience = len(tail), f"{len(tail)} trials", _SAME_CAUSE
    if count < patience:
        return None
    whose = {Blame.MACHINE: "the machine", Blame.USER: "the input", Blame.CONFIGURATION: "the space"}[failure.blame]
    return sentences(f"{what} in a row failed alike ({whose} is at fault): {failure.cause}", failure.advice)
