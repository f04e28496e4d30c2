"""The tracker: everything goes to the spool first, and from there to MLflow by one thread, in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Condition, Thread
from urllib.parse import quote

from tuner.errors import InputError
from tuner.model.candidate import Candidate
from tuner.model.json import Json
from tuner.model.outcome import Outcome
from tuner.model.records import to_record
from tuner.model.secrets import mask
from tuner.ports import StudyInfo
from tuner.tracking import payload
from tuner.tracking.payload import Mask
from tuner.tracking.sender import Sender
from tuner.tracking.spool import Event, Spool
from tuner.tracking.store import Store, is_local, is_permanent, temporary_errors

__all__ = ["MlflowTracker", "default_uri"]

_log = logging.getLogger(__name__)

_FIRST_CONTACT_S = {True: 60.0, False: 15.0}
"""How long opening waits for the store, by "is a local database" (creating one took 2 to 6 s on two busy cores)."""

_LAST_WORDS_S = 30.0
"""How long a study's end waits for what is still queued; the rest is sent when the study is opened again."""

_LAST_TRIES = 3
"""A store that fails so often in a row at the end of a study is not waited for any longer."""

_LONGEST_PAUSE_S = 20.0


def default_uri(root: Path) -> str:
    """The SQLite store below ``root``, as the absolute URI that the tracker and the UI must share."""
    return "sqlite:///" + quote(str(root.absolute() / "mlflow.db"))


class MlflowTracker:
    """Logs a study to MLflow. Implements :class:`tuner.ports.Tracker`; never stops a study.

    Calls return once the spool has the event. A thread sends; while the store is down, slow, locked or full the
    events stay on disk, and go out when it is back or when the study is opened again. What is sent twice does no harm.
    """

    def __init__(
        self,
        uri: str | None,
        *,
        spool: Path,
        notify: Callable[[str], None] | None = None,
        secrets: Iterable[str] = (),
        timeout_s: float = 10.0,
        last_words_s: float = _LAST_WORDS_S,
    ) -> None:
        """
        Args:
            uri: MLflow tracking URI; None for ``mlflow.db`` in the folder that holds the study's folder.
            spool: folder for what has not arrived yet; belongs to one study.
            notify: gets one line when the store goes away and when it is back (may be called by another thread).
            secrets: texts to hide wherever they stand, beside what is recognised by its shape.
            timeout_s: bound on one request to a tracking server.
            last_words_s: how long :meth:`study_ended` waits for the store.
        """
        self._uri = uri
        self._spool_directory = spool
        self._notify = notify or _log.warning
        self._hide = Mask(secrets)
        self._timeout_s = timeout_s
        self._last_words_s = last_words_s
        self._spool: Spool | None = None
        self._sender: Sender | None = None
        self._info: StudyInfo | None = None
        self._thread: Thread | None = None
        self._state = Condition()
        self._stopping = False
        self._contacted = False
        self._idle = False
        self._away = False
        self._refused: InputError | None = None
        self._closing = False
        self._failures = 0
        self._disk_trouble = False

    @property
    def uri(self) -> str:
        """The store's URI. Known after :meth:`open` where none was given."""
        if self._uri is None:
            raise InputError("the tracking store has no place yet: open a study first")
        return self._uri

    # --- the port ---

    def open(self, info: StudyInfo) -> None:
        """Open the study's run, sweep what a killed process left RUNNING, send what it left unsent.

        Raises:
            InputError: the URI can never work (unknown scheme, another version's schema, no right to write).
        """
        root = info.directory.absolute().parent
        if self._uri is None:
            self._uri = default_uri(root)
        if is_local(self._uri):
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot make the folder {root}: {error.strerror}; choose another") from None
        self._info = info
        self._refused = None
        self._start(Store(self._uri, root / "mlartifacts", timeout_s=self._timeout_s))
        self._put({"kind": "open", "params": payload.study_params(info, self._hide), "texts": self._study_texts(info)})

    def trial_started(self, number: int, candidate: Candidate) -> None:
        """See :class:`tuner.ports.Tracker`."""
        self._put(
            {
                "kind": "trial_started",
                "number": number,
                "key": candidate.key,
                "name": payload.run_name(number, candidate.origin),
                "params": payload.child_params(candidate, None, self._hide),
                "tags": {"origin": candidate.origin, "state": "running"},
            }
        )

    def trial_ended(self, number: int, outcome: Outcome, *, directory: Path, is_best: bool) -> None:
        """See :class:`tuner.ports.Tracker`."""
        candidate, info = outcome.candidate, self._known_info()
        effective = outcome.server.effective if outcome.server is not None else None
        shown = payload.row(number, outcome, self._hide)
        self._complain(self._known_spool().add_row({"at": int(time.time() * 1000), **shown}))
        self._put(
            {
                "kind": "trial_ended",
                "number": number,
                "key": candidate.key,
                "name": payload.run_name(number, candidate.origin),
                "status": payload.RUN_STATUS[outcome.status],
                "params": payload.child_params(candidate, effective, self._hide),
                "metrics": payload.child_metrics(outcome),
                "tags": payload.child_tags(outcome, is_best=is_best, hide=self._hide, limits=info.limits),
                "directory": str(directory.absolute()),
                "texts": {
                    "serve.yaml": payload.yaml_text(candidate, info.model, self._hide),
                    "command.txt": payload.command_text(outcome, info.model, self._hide),
                    "trial.json": payload.json_text(self._hide.json(to_record(outcome))),
                    "machine.json": self._study_texts(info)["machine.json"],
                },
            }
        )

    def study_ended(self, status: str, summary: Mapping[str, Json], artifacts: Sequence[Path]) -> None:
        """See :class:`tuner.ports.Tracker`. Waits a bounded time for what is still to be sent."""
        if self._spool is None:
            return
        self._put(
            {
                "kind": "study_ended",
                "status": status,
                "summary": self._hide.json(summary),
                "artifacts": [str(path.absolute()) for path in artifacts],
            }
        )
        self.close()

    def close(self) -> None:
        """Wait a bounded time for the store, then stop sending. Safe to call twice; what is left stays spooled."""
        if self._thread is None:
            return
        deadline = time.monotonic() + self._last_words_s
        with self._state:
            self._closing = True
            self._state.notify_all()
            enough = self._failures + _LAST_TRIES
            while not self._idle and self._failures < enough and (left := deadline - time.monotonic()) > 0:
                self._state.wait(left)
            self._stopping = True
            self._state.notify_all()
        self._thread.join(timeout=self._timeout_s)
        self._thread = None
        left_over = len(self._known_spool())
        if left_over:
            self._notify(
                f"{left_over} entries did not reach MLflow at {mask(self.uri)}; they are kept in "
                f"{self._spool_directory} and sent when this study is opened again"
            )

    # --- the queue's front end ---

    def _put(self, event: Event) -> None:
        self._complain(self._known_spool().append({"at": int(time.time() * 1000), **event}))
        info = self._known_info()
        if self._thread is None:  # a study that ended is being spoken of again
            self._start(Store(self.uri, info.directory.absolute().parent / "mlartifacts", timeout_s=self._timeout_s))
        with self._state:
            self._idle = False
            self._state.notify_all()

    def _complain(self, trouble: str | None) -> None:
        if trouble is not None and not self._disk_trouble:
            self._notify(
                f"the tracking spool {self._spool_directory} cannot be written ({trouble}); entries are kept in "
                "memory and lost if `tune` ends before there is space again; the trials' own results are safe"
            )
        self._disk_trouble = trouble is not None

    def _known_info(self) -> StudyInfo:
        if self._info is None:
            raise InputError("the tracker was not opened")
        return self._info

    def _known_spool(self) -> Spool:
        if self._spool is None:
            raise InputError("the tracker was not opened")
        return self._spool

    def _study_texts(self, info: StudyInfo) -> dict[str, str]:
        machine = {"versions": dict(info.versions), "hardware": info.hardware, "facts": dict(info.facts)}
        return {"machine.json": payload.json_text(self._hide.json(machine))}

    # --- the sender's thread ---

    def _start(self, store: Store) -> None:
        self._stopping = self._closing = self._contacted = self._idle = self._away = False
        self._sender = None
        self._thread = Thread(target=self._work, args=(store,), name="tune-tracking", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _FIRST_CONTACT_S[is_local(self.uri)]
        with self._state:
            while not self._contacted and (left := deadline - time.monotonic()) > 0:
                self._state.wait(left)
            if self._refused is not None:
                self._thread = None
                raise self._refused
        if self._spool is None:
            self._spool = Spool(self._spool_directory)
        with self._state:
            self._sender = Sender(store, self._spool, self._known_info(), self._hide)
            self._state.notify_all()
        if not self._contacted:
            self._report_away("it has not answered yet")

    def _work(self, store: Store) -> None:
        pause = 1.0
        while True:
            try:
                if not store.connected:
                    store.connect()
                self._contact()
                if self._send_all():
                    return
                pause = 1.0
            except InputError as refused:
                if self._sender is None and not self._contacted:
                    self._refused = refused
                    self._contact()
                    return
                self._report_away(str(refused))
            except temporary_errors() as error:
                store.forget()
                self._report_away(_first_line(error))
                self._contact()
            if self._pause(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _contact(self) -> None:
        with self._state:
            self._contacted = True
            self._state.notify_all()

    def _send_all(self) -> bool:
        """Send until told to stop (True). Errors of the store are the caller's."""
        while True:
            with self._state:
                while self._sender is None and not self._stopping:
                    self._state.wait()
                sender, stopping = self._sender, self._stopping
            if sender is None or stopping:
                return True
            event = sender.spool.head()
            if event is not None:
                self._send_one(sender, event)
                continue
            sender.refresh()
            self._report_back()
            with self._state:
                if len(sender.spool):
                    continue
                self._idle = True
                self._state.notify_all()
                while self._idle and not self._stopping:
                    self._state.wait()

    def _send_one(self, sender: Sender, event: Event) -> None:
        try:
            sender.send(event)
        except temporary_errors() as error:
            if not is_permanent(error):
                raise
            self._reject(sender, event, error)
        except (KeyError, TypeError, ValueError) as error:
            # The spool is a file: what stands in it may be another version's, or damaged.
            self._reject(sender, event, error)
        else:
            sender.spool.arrived(event)

    def _reject(self, sender: Sender, event: Event, error: Exception) -> None:
        sender.spool.reject(event, _first_line(error))
        self._notify(f"an entry cannot be sent ({mask(_first_line(error))}); it is kept in {self._spool_directory}")

    def _pause(self, seconds: float) -> bool:
        """Wait after a failure, briefly if the study is ending; True if sending is over."""
        began = time.monotonic()
        with self._state:
            self._failures += 1
            self._state.notify_all()
            while not self._stopping:
                left = began + (min(seconds, 1.0) if self._closing else seconds) - time.monotonic()
                if left <= 0:
                    break
                self._state.wait(left)
            return self._stopping

    def _report_away(self, why: str) -> None:
        with self._state:
            first, self._away = not self._away, True
            self._state.notify_all()
        if first:
            self._notify(
                f"MLflow at {mask(self.uri)} cannot be reached ({mask(why)}); the study goes on, "
                f"entries are kept in {self._spool_directory} and sent later"
            )

    def _report_back(self) -> None:
        with self._state:
            back, self._away = self._away, False
        if back:
            self._notify(f"MLflow at {mask(self.uri)} is back: everything was sent")


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
