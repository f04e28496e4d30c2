"""Opening the storage of studies: SQLite, a journal file, or a database server; errors in one line each."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from json import JSONDecodeError
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError

from tuner.errors import InputError, RunError

__all__ = ["open_storage", "redacted", "storage_errors"]

_SQLITE = "sqlite:///"
_JOURNAL = "journal:///"
_SQLITE_WAIT_S = 60
"""How long a writer waits for another one (a dashboard, a second runner) before it gives up."""
_TRIES, _PAUSE_S = 5, 0.2
"""How often, and after how long, a database is opened again while another process makes its tables."""


def open_storage(url: str) -> BaseStorage:
    """Open or create the storage at ``url``.

    ``sqlite:///FILE`` (a bare path ending in ``.db`` or ``.sqlite`` too), ``journal:///FILE`` (a bare path ending in
    ``.log``, ``.jsonl`` or ``.journal`` too), ``memory://`` (gone with the process), or any URL of SQLAlchemy such as ``postgresql+psycopg2://…``.

    Raises:
        InputError: the address is wrong, not writable, no database, or of another schema.
        RunError: the storage is locked or does not answer.
    """
    if url == "memory://":
        return InMemoryStorage()
    url = _normalised(url)
    with storage_errors(url):
        if url.startswith(_JOURNAL):
            path = _writable(url.removeprefix(_JOURNAL), url)
            return JournalStorage(JournalFileBackend(str(path)))
        if url.startswith("sqlite"):
            with _alone_in(_sqlite_file(url)):
                _prepare_sqlite(url)
                return _made(lambda: RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _SQLITE_WAIT_S}}))
        # A database server closes idle connections during an hour-long trial: test them before use.
        return _made(lambda: RDBStorage(url, engine_kwargs={"pool_pre_ping": True}))


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turn what storages raise into one line that names the storage and the way out."""
    where = redacted(url)
    try:
        yield
    except (ArgumentError, NoSuchModuleError) as error:
        raise InputError(f"storage {where}: not an address of a storage ({_first_line(error)}); "
                         "use sqlite:///FILE, journal:///FILE or postgresql://…") from error  # fmt: skip
    except ImportError as error:
        # Optuna says of any missing driver that one is missing; which, only the cause knows.
        name = error.name or getattr(error.__cause__, "name", None) or getattr(error.__context__, "name", None)
        driver = f"the driver {name}" if name else "the database driver"
        raise InputError(f"storage {where}: {driver} is not installed; pip install it") from error
    except (OperationalError, DatabaseError, StorageInternalError) as error:
        raise _database_error(where, error) from error
    except sqlite3.Error as error:
        raise _database_error(where, error) from error
    except RuntimeError as error:
        if "schema" not in str(error) and "version" not in str(error):
            raise
        raise InputError(f"storage {where}: written by another version of Optuna; "
                         "run `optuna storage upgrade` on a copy, or name a new file") from error  # fmt: skip
    except (PermissionError, IsADirectoryError, NotADirectoryError, FileNotFoundError) as error:
        raise InputError(f"storage {where}: {error.strerror}; name a file in a directory that is writable") from error
    except OSError as error:
        raise RunError(
            f"storage {where}: {error.strerror or error}; free space or mend the disk, then resume"
        ) from error
    except JSONDecodeError as error:
        # A journal holds one JSON object per line; anything else is not one.
        raise InputError(f"storage {where}: damaged or not a journal ({_first_line(error)}); "
                         "restore a copy or name a new file") from error  # fmt: skip


def redacted(url: str) -> str:
    """The address without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))


def _normalised(url: str) -> str:
    if "://" in url:
        return url
    suffix = Path(url).suffix
    if suffix in (".db", ".sqlite", ".sqlite3"):
        return _SQLITE + url
    if suffix in (".log", ".jsonl", ".journal"):
        return _JOURNAL + url
    return url


def _writable(path_text: str, url: str) -> Path:
    path = Path(path_text)
    if not path.parent.is_dir():
        raise InputError(f"storage {redacted(url)}: no directory {path.parent}; create it first")
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise InputError(f"storage {redacted(url)}: {target} is read-only; use a writable path")
    return path


def _sqlite_file(url: str) -> Path | None:
    """The file of a SQLite address; None for one in memory or with a driver of its own."""
    name = url.removeprefix(_SQLITE).split("?", 1)[0] if url.startswith(_SQLITE) else ""
    return None if not name or name == ":memory:" else Path(name)


@contextmanager
def _alone_in(path: Path | None) -> Iterator[None]:
    """One opener of a database at a time: Optuna looks for its tables first and makes them then.

    The lock is on the folder, so that no file is left behind. Where a file system has none, :func:`_made` is what
    is left.
    """
    try:
        descriptor = None if path is None else os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        descriptor = None  # what is wrong with the folder is said where the database is opened
    if descriptor is None:
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _made(make: Callable[[], RDBStorage]) -> RDBStorage:
    """Open a database that another runner may be making at this moment: what it has just made is no error."""
    for _ in range(_TRIES):
        try:
            return make()
        except DatabaseError as error:
            text = str(error).lower()
            if not any(word in text for word in ("unique constraint", "already exists", "duplicate")):
                raise
            time.sleep(_PAUSE_S)
    return make()


def _prepare_sqlite(url: str) -> None:
    """Check the file and switch it to WAL, so that a dashboard that reads does not stop the study that writes."""
    file = _sqlite_file(url)
    if file is None:
        return
    path = _writable(str(file), url)
    with closing(sqlite3.connect(path, timeout=_SQLITE_WAIT_S)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA schema_version")


def _database_error(where: str, error: Exception) -> InputError | RunError:
    text = f"{error} {error.__cause__ or ''}".lower()
    if "locked" in text or "busy" in text:
        return RunError(f"storage {where}: locked by another process; close it (a dashboard?) and resume")
    if "readonly" in text or "read-only" in text:
        return InputError(f"storage {where}: read-only; make the file and its directory writable")
    if "not a database" in text or "malformed" in text or "disk image" in text:
        return InputError(f"storage {where}: damaged or not a database; restore a copy or name a new file")
    if "no such column" in text or "no such table" in text or "has no column" in text:
        return InputError(f"storage {where}: a database of another schema; name a new file")
    if "unable to open" in text:
        return InputError(f"storage {where}: cannot be opened; name a file in a directory that is writable")
    return RunError(f"storage {where}: {_first_line(error)}; check that the database is up, then resume")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
