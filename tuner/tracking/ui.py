"""The MLflow UI on the study's store: loopback, one worker, and gone with us."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import IO

from tuner.errors import InputError, RunError
from tuner.model.secrets import mask
from tuner.tracking.overview import VIEW
from tuner.tracking.store import is_local

__all__ = ["open_ui", "ui_command"]

_GRACE_S = 10.0
_READY_S = 120.0
_TAIL = 8192


def ui_command(uri: str, port: int, *, host: str = "127.0.0.1") -> tuple[list[str], dict[str, str]]:
    """Command line and environment of ``mlflow ui`` on the store.

    The URI goes through the environment: it can hold a password, and command lines can be read by everybody.
    """
    names = dict.fromkeys(f"{name}:{port}" for name in (host, "127.0.0.1", "localhost"))
    argv = [sys.executable, "-m", "mlflow", "ui", "--host", host, "--port", str(port), "--workers", "1"]
    argv += ["--allowed-hosts", ",".join(names)]
    environment = {
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Background jobs (evaluation of traces) start several more processes that a study has no use for.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    return argv, environment


def open_ui(uri: str, host: str = "127.0.0.1", port: int = 5000, *, say: Callable[[str], None] | None = None) -> int:
    """Serve the UI until interrupted; returns 0 then, as Ctrl-C is how it is meant to end.

    Raises:
        InputError: the port is taken, or the URI is a server that has a UI of its own.
        RunError: the UI did not come up, or ended by itself.
    """
    if not is_local(uri):
        raise InputError(f"{mask(uri)} is a server with a UI of its own: open it in a browser")
    _check_port(host, port)
    argv, environment = ui_command(uri, port, host=host)
    # MLflow and its web server say a lot that is no news to a person; it is read only where they fail.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv,
            env=_environment(environment),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        # Flushed: whoever reads a pipe or a log wants the address now, not when the UI ends.
        return _serve(process, host, port, log, say or functools.partial(print, flush=True))


def _serve(process: subprocess.Popen[bytes], host: str, port: int, log: IO[bytes], say: Callable[[str], None]) -> int:
    try:
        _wait_ready(process, host, port, log)
        address = f"http://{host}:{port}"
        say(f"MLflow UI: {address}  (Ctrl-C ends it)")
        for name, number in _experiments(address):
            say(f"  {name}: {address}/#/experiments/{number}/runs?viewStateShareKey={VIEW}")
        code = process.wait()
        raise RunError(f"the MLflow UI ended by itself (exit code {code}): {_last_line(log)}")
    except KeyboardInterrupt:
        return 0
    finally:
        _end(process)


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    # A leftover MLFLOW_TRACKING_URI would make the UI's helpers talk to another store.
    kept = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    return {**kept, **extra}


def _check_port(host: str, port: int) -> None:
    if not 0 < port < 65536:
        raise InputError(f"port {port} is no port: choose one from 1024 to 65535 with --port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InputError(f"cannot listen on {host}:{port} ({error.strerror}): choose another with --port") from None


def _last_line(log: IO[bytes]) -> str:
    """What the server said last, secrets masked."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
    lines = [line.strip() for line in log.read(_TAIL).decode("utf-8", errors="replace").splitlines()]
    return mask(next((line for line in reversed(lines) if line), "it said nothing")[:300])


def _wait_ready(process: subprocess.Popen[bytes], host: str, port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            raise RunError(f"the MLflow UI ended at once (exit code {code}): {_last_line(log)}")
        try:
            with socket.create_connection((host, port), timeout=1.0):
                return
        except OSError:
            time.sleep(0.2)
    raise RunError(f"the MLflow UI did not listen on {host}:{port} within {_READY_S:.0f} s")


def _experiments(address: str) -> list[tuple[str, str]]:
    """(name, id) of the experiments that studies made; empty if the server does not say."""
    request = urllib.request.Request(  # noqa: S310 - our own loopback address
        f"{address}/api/2.0/mlflow/experiments/search",
        data=b'{"max_results": 100}',
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
            found = json.loads(answer.read(4_000_000)).get("experiments", [])
    except (OSError, ValueError):
        return []
    key = f"mlflow.sharedViewState.{VIEW}"
    return [
        (str(item.get("name")), str(item.get("experiment_id")))
        for item in found
        if any(tag.get("key") == key for tag in item.get("tags", []))
    ]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its worker, which share a session of their own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)
