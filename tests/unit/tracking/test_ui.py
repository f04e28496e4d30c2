"""The UI's command: loopback, one worker, and no password where everybody can read it."""

from __future__ import annotations

import socket

import pytest

from tuner.errors import InputError
from tuner.tracking import open_ui, ui_command


def test_the_command_is_private_and_small() -> None:
    argv, environment = ui_command("postgresql://u:Passw0rd@db/x", 5050)
    assert argv[1:4] == ["-m", "mlflow", "ui"]
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--workers") + 1] == "1"
    assert argv[argv.index("--allowed-hosts") + 1] == "127.0.0.1:5050,localhost:5050"
    assert not any("Passw0rd" in word for word in argv)
    assert environment["MLFLOW_BACKEND_STORE_URI"] == "postgresql://u:Passw0rd@db/x"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_taken_port_is_said_in_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(InputError, match="choose another with --port"):
            open_ui("sqlite:////x.db", port=other.getsockname()[1])


@pytest.mark.parametrize("port", [0, -1, 70000])
def test_no_port_is_refused(port: int) -> None:
    with pytest.raises(InputError, match="is no port"):
        open_ui("sqlite:////x.db", port=port)


def test_a_server_has_its_own_ui() -> None:
    with pytest.raises(InputError, match=r"\*\*\*@tracking:5000 is a server"):
        open_ui("http://u:Passw0rd@tracking:5000")
