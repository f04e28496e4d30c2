"""A reserved port is held until it is let go, and its listener can be told."""

from __future__ import annotations

import os
import socket

import pytest

from tuner.serving.ports import Reservation, is_free, listens
from tuner.serving.processes import Identity, identify


def test_reserved_until_released() -> None:
    reservation = Reservation()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", reservation.port))
    reservation.release()
    assert is_free(reservation.port)


def test_whose_socket_it_is() -> None:
    me = identify(os.getpid())
    assert me is not None
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not listens([me], port)  # bound, not listening
        server.listen()
        assert listens([me], port)
        assert not is_free(port)
        assert not listens([Identity(me.pid, me.started + 1)], port)
        assert not listens([], port)
    assert not listens([me], port)
