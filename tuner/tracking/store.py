"""MLflow, spoken to so that saying a thing twice does no harm.

Runs are found by tags (study, trial, candidate) before they are created, metrics carry the event's own time, and
parameters that are there already are not sent again. Only explicit run ids: the fluent API keeps a stack per thread
and closes parents with their children.
"""

from __future__ import annotations

import getpass
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from tuner.errors import InputError
from tuner.model.secrets import mask

if TYPE_CHECKING:
    from mlflow.entities import Run

__all__ = ["Store", "is_local", "temporary_errors"]

_SQLITE = "sqlite:///"
_DRAFT_S = 600.0
"""A database that nobody has written to for so long is not being made any more."""
_BATCH = 90
"""Entries per request; MLflow takes 100 parameters or tags at once."""

_PERMANENT = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST", "INVALID_STATE"})


def is_local(uri: str) -> bool:
    """Whether the store is a database that this process opens itself, rather than a server."""
    return not uri.startswith(("http://", "https://", "databricks"))


def temporary_errors() -> tuple[type[Exception], ...]:
    """What MLflow raises when its store is down, slow, locked or full."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - importing mlflow takes over a second
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    return (MlflowException, SQLAlchemyError, OSError)


def is_permanent(error: Exception) -> bool:
    """Whether sending the same again cannot help."""
    return getattr(error, "error_code", None) in _PERMANENT


class Store:
    """One MLflow store. Used by one thread at a time."""

    def __init__(self, uri: str, artifact_root: Path, *, timeout_s: float = 10.0) -> None:
        """``artifact_root``: where a local store keeps artifacts (a server decides for itself)."""
        self._uri = uri
        self._artifact_root = artifact_root
        self._timeout_s = timeout_s
        self._client: Any = None
        self._experiments: dict[str, str] = {}
        self._runs: dict[tuple[str, str], str] = {}

    def connect(self) -> None:
        """Open the store; creates a local one where there is none.

        Raises:
            InputError: this store can never work as it is (wrong URI, another version's schema, no right to write).
            Exception: one of :func:`temporary_errors`.
        """
        # A server that hangs must not hold a study's end for MLflow's own 120 s times 7 retries.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(int(self._timeout_s)))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        # It would print two lines for every trial, with the password of the address in them.
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        from mlflow import MlflowClient  # noqa: PLC0415 - over a second, and only where tracking is used

        # MLflow and alembic report their first-time set-up through the live view otherwise.
        # Its errors are raised as well, and said here in one line; its own log would add the traceback of each.
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)
        logging.getLogger("alembic").setLevel(logging.ERROR)
        try:
            _make_database(self._uri)
            client = MlflowClient(tracking_uri=self._uri)
            client.search_experiments(max_results=1)
        except ImportError as error:  # a database driver
            raise InputError(_fatal(error, self._uri) or str(error)) from None
        except temporary_errors() as error:
            fatal = _fatal(error, self._uri)
            if fatal is not None:
                raise InputError(fatal) from None
            raise
        self._client = client

    @property
    def connected(self) -> bool:
        return self._client is not None

    def experiment(self, name: str) -> str:
        """Id of the experiment of that name, made or restored where needed."""
        if name not in self._experiments:
            known = self._client.get_experiment_by_name(name)
            if known is None:
                # Without an absolute place MLflow would put artifacts below whatever folder we happen to run in.
                place = self._artifact_root.absolute().as_uri() if is_local(self._uri) else None
                self._experiments[name] = self._client.create_experiment(name, artifact_location=place)
            else:
                if known.lifecycle_stage == "deleted":
                    self._client.restore_experiment(known.experiment_id)
                self._experiments[name] = known.experiment_id
        return self._experiments[name]

    def tag_experiment(self, experiment: str, tags: Mapping[str, str]) -> None:
        """Set the tags that are not so already."""
        known = self._client.get_experiment(experiment).tags
        for name, value in tags.items():
            if known.get(name) != value:
                self._client.set_experiment_tag(experiment, name, value)

    def run(self, experiment: str, identity: Mapping[str, str], *, name: str, at: int, parent: str | None) -> str:
        """Id of the run with these tags, created if there is none (``at``: start, ms since the epoch)."""
        key = (experiment, repr(sorted(identity.items())))
        if key in self._runs:
            return self._runs[key]
        found = self.find(experiment, identity)
        if found:
            run_id = str(found[0].info.run_id)
            # A request that timed out may have reached the server all the same.
            for double in found[1:]:
                self._client.delete_run(double.info.run_id)
        else:
            tags = {
                **identity,
                "mlflow.source.name": "tune",
                "mlflow.source.type": "LOCAL",
                "mlflow.user": _user(),
                **({"mlflow.parentRunId": parent} if parent else {}),
            }
            run_id = self._client.create_run(experiment, start_time=at, tags=tags, run_name=name).info.run_id
        self._runs[key] = run_id
        return run_id

    def find(self, experiment: str, tags: Mapping[str, str], status: str = "") -> list[Run]:
        """Runs with all these tags, oldest first."""
        clauses = [f"tags.`{name}` = '{value}'" for name, value in tags.items()]
        if status:
            clauses.append(f"attributes.status = '{status}'")
        runs: list[Run] = []
        token = None
        while True:
            page = self._client.search_runs(
                [experiment],
                " and ".join(clauses),
                max_results=500,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            runs += page
            token = page.token
            if not token:
                return runs

    def experiment_named(self, name: str) -> str | None:
        """Id of the experiment of that name or id; None where there is none, or a deleted one."""
        known = self._client.get_experiment_by_name(name)
        if known is None and name.isdigit():
            known = next((item for item in self._client.search_experiments() if item.experiment_id == name), None)
        return str(known.experiment_id) if known is not None and known.lifecycle_stage == "active" else None

    def newest(self, experiment: str, most: int) -> list[Run]:
        """At most so many of the experiment's runs, newest first."""
        return list(self._client.search_runs([experiment], max_results=most, order_by=["attributes.start_time DESC"]))

    def log(
        self,
        run_id: str,
        *,
        params: Mapping[str, str] | None = None,
        metrics: Sequence[tuple[str, float, int]] = (),
        tags: Mapping[str, str] | None = None,
        at: int,
    ) -> None:
        """Add what is not there yet. ``metrics``: (name, value, step)."""
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

        new = dict(params or {})
        if new:
            # A parameter cannot be changed in MLflow; the first value said is the one asked for.
            known = self._client.get_run(run_id).data.params
            new = {name: value for name, value in new.items() if name not in known}
        entries: dict[str, list[Any]] = {
            "params": [Param(name, value) for name, value in new.items()],
            "metrics": [Metric(name, value, at, step) for name, value, step in metrics],
            "tags": [RunTag(name, value) for name, value in (tags or {}).items()],
        }
        for kind, items in entries.items():
            for start in range(0, len(items), _BATCH):
                self._client.log_batch(run_id, **{kind: items[start : start + _BATCH]}, synchronous=True)

    def upload(self, run_id: str, directory: Path) -> None:
        """Add every file below ``directory``; files of the same name are replaced."""
        self._client.log_artifacts(run_id, str(directory))

    def end(self, run_id: str, status: str, at: int) -> None:
        self._client.set_terminated(run_id, status, end_time=at)

    def reopen(self, run_id: str) -> None:
        self._client.update_run(run_id, status="RUNNING")

    def untag(self, run_id: str, name: str) -> None:
        if name in self._client.get_run(run_id).data.tags:
            self._client.delete_tag(run_id, name)

    def forget(self) -> None:
        """Look runs up again: a person may have deleted some."""
        self._runs.clear()
        self._experiments.clear()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry in the password file (containers)
        return "unknown"


def _make_database(uri: str) -> None:
    """Make a new SQLite store under another name first: one whose making was cut off can never be opened again.

    MLflow writes its schema in dozens of steps; killed between two of them it finds tables that it wants to make.
    """
    from mlflow import MlflowClient  # noqa: PLC0415
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # noqa: PLC0415

    address, _, query = uri.partition("?")
    if not address.startswith(_SQLITE) or query:
        return
    place = Path(unquote(address.removeprefix(_SQLITE)))
    if place.exists() or not place.parent.is_dir():
        return
    for left in place.parent.glob(f".{place.name}.*"):
        if time.time() - left.stat().st_mtime > _DRAFT_S:
            left.unlink(missing_ok=True)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    try:
        made = f"{_SQLITE}{quote(str(draft))}"
        MlflowClient(tracking_uri=made).search_experiments(max_results=1)
        for url, engine in list(SqlAlchemyStore._engine_map.items()):  # noqa: SLF001 - nothing public closes it
            if url == made:
                engine.dispose()
        # Another study may have been faster; its store is as good.
        if not place.exists():
            draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)


def _fatal(error: Exception, uri: str) -> str | None:
    """One line if the store can never work as it is; None if waiting may help."""
    shown, text = mask(uri), mask(str(error))
    code = getattr(error, "error_code", "")
    full = "No space left" in text or "disk is full" in text
    unwritable = isinstance(error, OSError) or "unable to open database" in text or "readonly database" in text
    causes = (
        (
            "database schema" in text,
            (
                f"the MLflow store {shown} was written by another version of MLflow: install that version, "
                "migrate it (back it up, then `mlflow db upgrade`), or choose another with --tracking-uri"
            ),
        ),
        (
            "filesystem tracking backend" in text,
            f"MLflow no longer writes folders such as {shown}: use --tracking-uri sqlite:////absolute/path/mlflow.db",
        ),
        (
            isinstance(error, ImportError),
            f"the MLflow store {shown} needs a driver that is not installed: {text}",
        ),
        (
            "file is not a database" in text or "malformed" in text,
            f"{shown} is not an MLflow database: choose another with --tracking-uri",
        ),
        (
            is_local(uri) and unwritable and not full,
            f"cannot write the MLflow store {shown}: make its folder writable or choose another --tracking-uri",
        ),
        (
            code in ("UNAUTHENTICATED", "PERMISSION_DENIED"),
            f"the MLflow server {shown} refuses us: set MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN",
        ),
        (
            code == "INVALID_PARAMETER_VALUE" or "unsupported URI" in text,
            f"{shown} is no MLflow tracking URI: use sqlite:///…, postgresql://… or http://…",
        ),
    )
    return next((message for holds, message in causes if holds), None)


def scratch(root: Path) -> tempfile.TemporaryDirectory[str]:
    """A private folder for files on their way."""
    return tempfile.TemporaryDirectory(prefix="send-", dir=root)
