"""From exit code, phase and log to a class, the cause in one sentence, whose fault it is, and what to change.

Every rule is a row of :data:`RULES`. vLLM's last line ("Engine core initialization failed. See root cause above.") is
never the cause: rules are tried on the first error of a child process before anything that came later. Texts are
those of 0.25.1 and 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tuner.model.outcome import Blame, Failure
from tuner.model.secrets import mask
from tuner.model.words import plain, shortened
from tuner.serving.rules import GENERIC, RULES, Rule

__all__ = ["classify", "died", "hang", "make", "root_lines"]

_EXCERPT_LINES = 30
_EXCERPT_LIMIT = 6000
_CAUSE_LIMIT = 400
_PREFIX = re.compile(r"^\([A-Za-z][\w\-. ]{0,60} pid=\d{1,10}\) ?")
_STAMP = re.compile(r"^[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]{1,80}:\d{1,6}\] ?")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Fault)\b: ?\S?|^[A-Z]\w*Error$"
)
_ERROR_LEVEL = re.compile(r"^(?:ERROR|CRITICAL|FATAL) ")


def _strip(line: str) -> str:
    return _STAMP.sub("", _PREFIX.sub("", line, count=1), count=1)


def root_lines(log: str) -> list[str]:
    """Lines that may be the cause, first error first: exception lines and argparse's, vLLM's generic ones left out."""
    found = []
    lines = log.splitlines()
    for number, raw in enumerate(lines):
        line = _strip(raw[:4000]).strip()
        # vLLM's configuration classes are pydantic's: what a check raised stands on the line below its exception.
        is_error = (
            _EXCEPTION.match(line)
            or ": error: " in line[:200]
            or line.startswith(("Fatal Python error", "Value error, ", "Assertion failed, "))
        )
        if is_error and not _is_warning(line) and not any(pattern.search(line) for pattern in GENERIC):
            if "validation error" in line:
                # pydantic says on the next lines what it does not like.
                line = "\n".join([line, *(_strip(text[:4000]) for text in lines[number + 1 : number + 4])])
            found.append(line)
    return found


def _is_warning(line: str) -> bool:
    return re.match(r"^[\w.]*Warning\b", line) is not None


def classify(log: str, *, code: int | None, phase: str = "launch") -> Failure:
    """Why a server did not come up, or died.

    Args:
        log: its log, or the end of it.
        code: exit code; negative for a signal, None while it runs.
        phase: where the start was (see :class:`~tuner.model.outcome.Failure`).
    """
    candidates = root_lines(log)
    for line in candidates:
        if failure := _match(line, log, phase, code):
            return failure
    # Some causes are logged without an exception of their own, or over several lines.
    whole = "\n".join(_strip(line[:4000]) for line in log.splitlines()[-4000:])
    if failure := _match(whole, log, phase, code, anywhere=True):
        return failure
    if failure := _from_code(code, phase, log):
        return failure
    if not candidates and "engine core exited unexpectedly" in log:
        # Killed from outside in the moment between its start and its first request: nothing else is said of it.
        return Failure(
            kind="died",
            cause="the engine's process ended without a word",
            blame=Blame.MACHINE,
            retry=True,
            phase=phase,
            excerpt=excerpt(log, ""),
        )
    return Failure(
        kind="unknown",
        cause=_sentence(candidates[0]) if candidates else _ended(code),
        blame=Blame.CONFIGURATION,
        phase=phase,
        advice="read the log; if this is the machine's doing, start the study again",
        excerpt=excerpt(log, candidates[0] if candidates else ""),
    )


def _match(text: str, log: str, phase: str, code: int | None, *, anywhere: bool = False) -> Failure | None:
    for rule in RULES:
        if rule.codes and code not in rule.codes:
            continue
        if anywhere and not rule.anywhere:
            continue
        if found := rule.pattern.search(text):
            return make(rule, found, phase=phase, log=log)
    return None


def make(rule: Rule, found: re.Match[str], *, phase: str, log: str) -> Failure:
    """A rule's verdict."""
    line = found[0].splitlines()[0] if found[0] else ""
    if rule.context is not None:
        found = next(reversed(list(rule.context.finditer(log))), found)
    return Failure(
        kind=rule.kind,
        cause=_sentence(rule.sentence(found, phase)),
        blame=rule.blame,
        retry=rule.retry,
        phase=rule.phase or phase,
        violation=_grade(rule, found),
        advice=rule.advice(found) if callable(rule.advice) else rule.advice,
        excerpt=excerpt(log, line),
    )


def _grade(rule: Rule, found: re.Match[str]) -> float | None:
    if rule.violation is None:
        return None
    try:
        return rule.violation(found)
    except (ValueError, OverflowError):
        return None  # digits and dots that are no number


def _from_code(code: int | None, phase: str, log: str) -> Failure | None:
    if code == -9:
        return Failure(
            kind="killed",
            cause="the server was killed with SIGKILL, most likely by the kernel for want of host memory",
            blame=Blame.MACHINE,
            retry=True,
            phase=phase,
            advice="look into the kernel log (dmesg) for an out-of-memory kill; free host memory",
            excerpt=excerpt(log, ""),
        )
    if code in (-15, -2, 143, 130):
        return Failure(
            kind="terminated",
            cause=f"somebody else ended the server (signal {-code if code < 0 else code - 128})",
            blame=Blame.MACHINE,
            retry=True,
            phase=phase,
            excerpt=excerpt(log, ""),
        )
    if code is not None and code < 0:
        return Failure(
            kind="crash",
            cause=f"the server crashed with signal {-code} ({_signal_name(-code)})",
            blame=Blame.CONFIGURATION,
            phase=phase,
            advice="a kernel of this configuration crashes; leave it out, or report it to vLLM with the log",
            excerpt=excerpt(log, "Fatal Python error"),
        )
    return None


def _signal_name(number: int) -> str:
    return {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}.get(number, "unknown signal")


def died(log: str, *, code: int | None, phase: str) -> Failure:
    """Why a server that was ready is dead; memory that runs out under load is the configuration's fault."""
    failure = classify(log, code=code, phase=phase)
    if failure.kind != "unknown" or root_lines(log):
        return failure
    return Failure(
        kind="died",
        cause=f"the server ended while it was in use ({_ended(code)})",
        blame=Blame.MACHINE,
        retry=True,
        phase=phase,
        excerpt=failure.excerpt,
    )


def hang(*, phase: str, seconds: float, log: str, stack: str = "") -> Failure:
    """No line, no progress for ``seconds``: ended as hung."""
    advice = "see the stack in the trial's folder"
    if re.search(r"(?i)nccl|world_size=(?!1\b)\d+", log) and phase in ("launch", "imports", "weights", "other"):
        advice = (
            "cards without peer-to-peer access may hang in NCCL: try NCCL_P2P_DISABLE=1 or disable-custom-all-reduce"
        )
    return Failure(
        kind="hang",
        cause=f"the server said nothing and made no progress for {seconds:.0f} s in phase {phase}",
        blame=Blame.CONFIGURATION,
        phase=phase,
        advice=advice,
        excerpt=_cut(mask("\n".join(filter(None, (excerpt(log, ""), stack))))),
    )


def excerpt(log: str, line: str) -> str:
    """The lines around ``line`` (its first occurrence), or the last ones; masked and bounded."""
    lines = log.splitlines()
    at = next((index for index, text in enumerate(lines) if line and line[:200] in text), None)
    chosen: Iterable[str] = lines[-_EXCERPT_LINES:] if at is None else lines[max(0, at - 8) : at + 6]
    return _cut(mask("\n".join(plain(text[:1000]) for text in chosen)))


def _cut(text: str) -> str:
    return text if len(text) <= _EXCERPT_LIMIT else text[: _EXCERPT_LIMIT // 2] + "\n…\n" + text[-_EXCERPT_LIMIT // 2 :]


def _sentence(text: str) -> str:
    return shortened(mask(text), _CAUSE_LIMIT)


def _ended(code: int | None) -> str:
    if code is None:
        return "the server does not answer and says nothing of why"
    return f"exit code {code}, nothing in the log says why" if code >= 0 else f"ended by signal {-code}"
