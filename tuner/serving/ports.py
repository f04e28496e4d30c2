"""A port on loopback, and the proof that what listens there is ours."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable

import psutil

from tuner.serving.processes import Identity, is_running

__all__ = ["Reservation", "is_free", "listens"]


class Reservation:
    """A free port, held by a bound socket until just before the server binds it itself."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind((host, 0))
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go. A socket that never listened leaves no TIME_WAIT behind."""
        self._socket.close()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind the port now (as uvicorn does, with SO_REUSEADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def listens(processes: Iterable[Identity], port: int) -> bool:
    """Whether one of the processes has a listening socket on the port."""
    for item in processes:
        if not is_running(item):
            continue
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(item.pid)
            connections = getattr(process, "net_connections", None) or process.connections  # renamed in psutil 6
            for connection in connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                    return True
    return False
