"""``--trial-command``: any program measures a candidate and says what came out.

The program is a tree of its own (session and marker), gets one JSON object on standard input, and answers with one
on standard output. Whatever it does wrong - no answer, garbage, a crash, a hang, a flood - is an outcome.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from tuner.errors import InputError, StudyStopped
from tuner.model.candidate import Candidate
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.secrets import mask, mask_argv, mask_environment
from tuner.model.words import plain, shortened
from tuner.model.workload import Limit, LoadPoint, Objective
from tuner.ports import Progress, TrialContext
from tuner.serving.ledger import Ledger
from tuner.serving.processes import MARKER, Identity, Tree, become_subreaper, end_tree, identify
from tuner.serving.protocol import AnswerError, outcome_of, read_answer, request

__all__ = ["ExternalRunner"]

_LONGEST_ANSWER = 4 << 20
"""Bytes of standard output that are read; more is a fault of the command."""

_LONGEST_LOG = 16 << 20
"""Bytes of standard error that are kept in the trial's folder; the rest is read and dropped."""

_LONGEST_LINE = 8_000
_LONGEST_COMMAND = 60
"""Characters of the command that stand in a line for people."""
_GRACE_S = 15.0
_LINGER_S = 2.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What a run of the command left: ``code`` None if it was ended from here, for the reason ``cut``."""

    code: int | None
    output: bytes
    tail: str
    seconds: float
    cut: str = ""


def _shown(command: Sequence[str]) -> str:
    """The command by the names of its files, secrets masked: ``python`` alone says nothing of what runs."""
    words = [Path(word).name if Path(word).is_absolute() and " " not in word else word for word in mask_argv(command)]
    return shortened(shlex.join(words), _LONGEST_COMMAND)


class ExternalRunner:
    """Implements :class:`tuner.ports.TrialRunner` with a program of the user's.

    Args:
        command: argv of the program; there is no shell.
        objective: which metric of the answer is the objective.
        limits: told to the program, so that it may measure what they need.
        further: objectives beside the first, and
        points: load points of the workload, told for the same reason.
        timeout_s: a trial that takes longer is ended and counts as hung.
        environment: laid over this process's own for the program.
        ledger: record of started processes, so that a rerun finds what a killed tuner left.

    Raises:
        InputError: the command is empty or its program does not exist.
    """

    kind = "external"

    def __init__(
        self,
        command: Sequence[str],
        *,
        objective: Objective,
        limits: Sequence[Limit] = (),
        further: Sequence[Objective] = (),
        points: Sequence[LoadPoint] = (),
        timeout_s: float = 3600.0,
        environment: Mapping[str, str] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        if not command:
            raise InputError("--trial-command is empty: give a program that measures (docs/TRIAL_COMMAND.md)")
        if shutil.which(command[0]) is None:
            raise InputError(f"--trial-command: there is no program {command[0]!r}; give its path or put it on PATH")
        if timeout_s <= 0:
            raise InputError(f"--trial-timeout must be more than 0 seconds, not {timeout_s:g}")
        self._command = tuple(command)
        self._objective = objective
        self._limits = tuple(limits)
        self._further = tuple(further)
        self._points = tuple(points)
        self._timeout_s = timeout_s
        self._environment = dict(environment or {})
        self._ledger = ledger
        become_subreaper()

    def run(self, candidate: Candidate, context: TrialContext, progress: Progress) -> Outcome:
        """See :meth:`tuner.ports.TrialRunner.run`."""
        context.directory.mkdir(parents=True, exist_ok=True)
        ask = partial(
            request, objective=self._objective, limits=self._limits, further=self._further, points=self._points
        )
        question = ask(candidate, context)
        # The program is told everything; what is kept on disk, and goes to the tracker with the trial, is masked.
        shown = replace(candidate, environment=mask_environment(candidate.environment))
        kept = mask(ask(shown, context))
        (context.directory / "request.json").write_text(kept, encoding="utf-8")
        progress("measuring", f"trial command {_shown(self._command)}")
        try:
            run = self._execute(question, context)
        except OSError as error:
            cause = f"the trial command could not be started: {error.strerror or error}"
            failure = _failure("external-start", cause, blame=Blame.USER, phase="launch")
            return Outcome(candidate=candidate, status=Status.BROKEN, failure=failure)
        outcome = self._judge(run, candidate)
        seconds = {"total": run.seconds, **outcome.seconds}
        return replace(outcome, seconds=seconds)

    def close(self) -> None:
        """See :meth:`tuner.ports.TrialRunner.close`: nothing is held between trials."""

    # ------------------------------------------------------------ judging

    def _judge(self, run: _Run, candidate: Candidate) -> Outcome:
        failure = self._cut(run)
        if failure is None:
            text = run.output.decode("utf-8", errors="replace")
            try:
                answer = read_answer(text)
                outcome = outcome_of(answer, candidate, objective=self._objective)
            except AnswerError as error:
                failure = _unanswered(run, str(error))
            else:
                if run.code == 0 or outcome.failure is not None:
                    return outcome
                # A measurement from a program that then failed is not to be believed.
                failure = _unanswered(run, "it answered ok")
        status = Status.DISTURBED if failure.blame is Blame.MACHINE else Status.BROKEN
        return Outcome(candidate=candidate, status=status, failure=failure)

    def _cut(self, run: _Run) -> Failure | None:
        if run.cut == "timeout":
            return _failure(
                "hang",
                f"the trial command took longer than {self._timeout_s:g} s and was ended",
                excerpt=run.tail,
                advice="raise --trial-timeout if a trial may take this long",
            )
        if run.cut == "flood":
            return _failure(
                "external-answer",
                f"the trial command printed more than {_LONGEST_ANSWER >> 20} MiB on standard output and was ended",
                advice="print one JSON object on standard output and everything else on standard error",
                excerpt=_end_of(run.output),
            )
        return None

    # ------------------------------------------------------------ running

    def _execute(self, question: str, context: TrialContext) -> _Run:
        marker = f"{secrets.token_hex(12)}-trial{context.number}"
        began = time.monotonic()
        what = f"trial command of trial {context.number}"
        if self._ledger is not None:
            self._ledger.will_start(marker, what)
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self._environment, MARKER: marker},
            start_new_session=True,
        )
        root = identify(process.pid) or Identity(process.pid, 0)
        tree = Tree(root, marker)
        left: tuple[Identity, ...] = ()
        try:
            if self._ledger is not None:
                self._ledger.started(marker, root, what)
            output, tail, cut = self._converse(process, tree, question, context.directory / "external.log")
            code = None if cut else process.wait()
        finally:
            left = self._end(process, tree)
            if self._ledger is not None and not left:
                self._ledger.ended(marker, what)
        if left:
            pids = ", ".join(str(item.pid) for item in left)
            raise StudyStopped(f"processes {pids} of the trial command cannot be killed: the machine needs a person")
        return _Run(code=code, output=output, tail=tail, seconds=time.monotonic() - began, cut=cut)

    @staticmethod
    def _end(process: subprocess.Popen[bytes], tree: Tree) -> tuple[Identity, ...]:
        """End everything of the command; one that ended by itself may still have left children."""
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # what it did not read of the question is of no use to anybody now
        left = end_tree(tree, grace_s=_GRACE_S)
        if not left:
            process.wait()
        return left

    def _converse(
        self, process: subprocess.Popen[bytes], tree: Tree, question: str, log_path: Path
    ) -> tuple[bytes, str, str]:
        """Feed the question and read until both outputs end, the process has ended, or a bound is passed."""
        assert process.stdin is not None  # noqa: S101 - for the type checker: all three are pipes
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        deadline = time.monotonic() + self._timeout_s
        pending, output, log = memoryview(question.encode()), bytearray(), _Log(log_path)
        with selectors.DefaultSelector() as selector, log:
            for pipe in (process.stdin, process.stdout, process.stderr):
                os.set_blocking(pipe.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stderr, selectors.EVENT_READ)
            while any(key.fileobj is not process.stdin for key in selector.get_map().values()):
                if process.poll() is not None:
                    # A child that inherited the pipes must not hold the trial for ever.
                    deadline = min(deadline, time.monotonic() + _LINGER_S)
                if time.monotonic() >= deadline:
                    return bytes(output), log.tail(), "" if process.poll() is not None else "timeout"
                for key, _ in selector.select(timeout=min(1.0, max(deadline - time.monotonic(), 0.01))):
                    if key.fileobj is process.stdin:
                        pending = _feed(process, pending, selector)
                        continue
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        log.write(chunk)
                    else:
                        output += chunk
                        if len(output) > _LONGEST_ANSWER:
                            return bytes(output), log.tail(), "flood"
                tree.refresh()
            while process.poll() is None:  # it closed its outputs and goes on
                if time.monotonic() >= deadline:
                    return bytes(output), log.tail(), "timeout"
                time.sleep(0.05)
        return bytes(output), log.tail(), ""


class _Log:
    """Standard error in a file of bounded size; the last lines are kept for the excerpt."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._left = _LONGEST_LOG  # what comes later is read and dropped, the tail with it
        self._tail = b""
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        self._file.close()

    def write(self, chunk: bytes) -> None:
        # Whole lines, so that a secret is seen whole; a line without end is cut where it gets long.
        lines, newline, rest = (self._rest + chunk).rpartition(b"\n")
        self._rest = rest if len(rest) < _CHUNK else b""
        lines += newline + (b"" if len(rest) < _CHUNK else rest)
        if lines and self._left > 0:
            text = "\n".join(_cut(line) for line in lines.decode("utf-8", errors="replace").split("\n"))
            shown = mask(text).encode()
            self._tail = (self._tail + shown)[-4000:]
            self._file.write(shown[: self._left])
            self._file.flush()
            self._left -= len(shown)

    def finish(self) -> None:
        """Write a last line that has no end."""
        if self._rest:
            self.write(b"\n")

    def tail(self) -> str:
        self.finish()
        return plain(self._tail.decode("utf-8", errors="replace"))


def _cut(line: str) -> str:
    left_out = len(line) - _LONGEST_LINE
    return line if left_out <= 0 else f"{line[:_LONGEST_LINE]} … {left_out} characters left out"


def _feed(process: subprocess.Popen[bytes], pending: memoryview, selector: selectors.DefaultSelector) -> memoryview:
    """Write what fits; close standard input when all is written or nobody reads."""
    assert process.stdin is not None  # noqa: S101 - for the type checker
    try:
        pending = pending[os.write(process.stdin.fileno(), pending) :]
    except BrokenPipeError:
        pending = pending[len(pending) :]
    if not pending:
        selector.unregister(process.stdin)
        try:
            process.stdin.close()
        except BrokenPipeError:
            return pending
    return pending


def _unanswered(run: _Run, error: str) -> Failure:
    """No usable answer: a crash if the exit says so, else a fault of the answer."""
    last = next((line.strip() for line in reversed(run.tail.splitlines()) if line.strip()), "")
    shown = f" (its last line: {shortened(last, 300)})" if last else ""
    if run.code is not None and run.code < 0:
        name = f"signal {-run.code}"
        # Nothing in a configuration sends SIGKILL or SIGTERM: the kernel's OOM killer or a person does.
        machine = run.code in (-9, -15)
        return _failure(
            "killed" if machine else "crash",
            f"the trial command was ended by {name}{shown}",
            blame=Blame.MACHINE if machine else Blame.CONFIGURATION,
            retry=machine,
            excerpt=run.tail,
        )
    if run.code:
        return _failure("crash", f"the trial command ended with exit code {run.code}{shown}", excerpt=run.tail)
    return _failure(
        "external-answer",
        f"the trial command's answer cannot be used: {error}",
        advice="see docs/TRIAL_COMMAND.md",
        excerpt=_end_of(run.output),
    )


def _end_of(output: bytes) -> str:
    return mask(plain(output[-2000:].decode("utf-8", errors="replace")))


def _failure(
    kind: str,
    cause: str,
    *,
    blame: Blame = Blame.CONFIGURATION,
    retry: bool = False,
    phase: str = "measure",
    advice: str = "",
    excerpt: str = "",
) -> Failure:
    return Failure(kind=kind, cause=cause, blame=blame, retry=retry, phase=phase, advice=advice, excerpt=excerpt)
