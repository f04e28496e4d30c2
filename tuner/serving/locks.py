"""One study per GPU set, one process per study: locks that survive crashes because the kernel holds them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tuner.errors import RunError

__all__ = ["DeviceLock", "StudyLock", "cache_root", "claim_cache"]

_CONTENT_LIMIT = 4096


def cache_root() -> Path:
    """``~/.cache/vllm-tune`` (``$XDG_CACHE_HOME`` where set)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vllm-tune"


def _try_lock(path: Path) -> int | None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class DeviceLock:
    """Held from construction until :meth:`release` or the end of the process, however that comes.

    Args:
        devices: GPU indices as the driver counts them; empty for the CPU.
        study: what to tell others who want the same devices.

    Raises:
        RunError: another process holds one of them; the message says which, and since when.
    """

    def __init__(self, devices: Sequence[int], study: str, *, folder: Path | None = None) -> None:
        folder = folder or cache_root() / "locks"
        self._held: list[int] = []
        # One lock per device, always taken in the same order: overlapping sets exclude each other, without deadlock.
        for name in [f"gpu-{index}" for index in sorted(set(devices))] or ["cpu"]:
            path = folder / f"{name}.lock"
            descriptor = _try_lock(path)
            if descriptor is None:
                self.release()
                raise RunError(f"{name} is in use by {_holder(path)}; wait for it, end it, or give other devices")
            self._held.append(descriptor)
            _sign(descriptor, study)

    def release(self) -> None:
        """Safe to call twice. The files stay: removing them would let two holders in."""
        while self._held:
            os.close(self._held.pop())


class StudyLock:
    """One process per study, whatever measures it; held as a :class:`DeviceLock` is.

    Two would count each other's trials as their own and write into the same folders. A study is its folder, and its
    name in the storage: either in use is the study in use.

    Args:
        directory: the study's folder; it exists.
        study: its name.
        storage: the storage's file where it is one outside the folder of studies.

    Raises:
        RunError: another process runs this study (the message says which, and since when), or nothing can be locked
            there.
    """

    def __init__(self, directory: Path, study: str, *, storage: Path | None = None) -> None:
        self._held: list[int] = []
        paths = [directory / "study.lock"]
        if storage is not None:
            name = hashlib.sha256(study.encode()).hexdigest()[:12]
            paths.append(storage.with_name(f"{storage.name}.{name}.lock"))
        for path in paths:
            try:
                descriptor = _try_lock(path)
            except OSError as error:
                self.release()
                raise RunError(
                    f"{path} cannot be locked ({error.strerror}): choose a folder on another file system"
                ) from error
            if descriptor is None:
                self.release()
                raise RunError(
                    f"study {study!r} in {directory.parent} is being run by {_holder(path, named=False)}; "
                    "wait for it, end it, or give another --study"
                )
            self._held.append(descriptor)
            _sign(descriptor, study)

    def release(self) -> None:
        """Safe to call twice. The files stay: removing them would let two holders in."""
        while self._held:
            os.close(self._held.pop())


def _sign(descriptor: int, study: str) -> None:
    """Say in the lock's file who holds it."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "study": study, "since": time.time()}).encode(), 0)


def _holder(path: Path, *, named: bool = True) -> str:
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_CONTENT_LIMIT))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(content["since"])))
        if not named:
            return f"process {int(content['pid'])} (since {since})"
        return f"study {str(content['study'])[:200]!r} (process {int(content['pid'])}, since {since})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return "another process"


def claim_cache(root: Path | None = None) -> tuple[Path, int]:
    """A compile-cache folder that nobody else writes to: the first free one of ``vllm``, ``vllm-1``, ….

    Returns:
        The folder and the descriptor of its lock; closing that gives it back. The folder is kept for later studies.

    Raises:
        RunError: the cache folder cannot be written.
    """
    root = root or cache_root()
    for number in range(64):
        folder = root / (f"vllm-{number}" if number else "vllm")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _try_lock(folder / ".lock")
        except OSError as error:
            raise RunError(
                f"{folder} cannot be written ({error.strerror}): set XDG_CACHE_HOME to a folder that can"
            ) from error
        if descriptor is not None:
            return folder, descriptor
    raise RunError(f"all 64 compile caches in {root} are in use")
