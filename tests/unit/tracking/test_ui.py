"""The UI's command: loopback, one worker, and no password where everybody can read it."""

from __future__ import annotations

import socket
import sys

import pytest

from tuner.errors import InputError, RunError
from tuner.tracking import open_ui, ui, ui_command


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


def test_a_ui_that_ends_at_once_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(uri: str, port: int, *, host: str) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-c", "print('starting'); print('no such table: runs'); raise SystemExit(3)"], {}

    monkeypatch.setattr(ui, "ui_command", failing)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RunError, match=r"ended at once \(exit code 3\): no such table: runs"):
        open_ui("sqlite:////x.db", port=port)


def test_an_interrupt_is_how_the_ui_ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    code = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('noise')"
    code += "; time.sleep(60)"

    def quiet(uri: str, port: int, *, host: str) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-c", code, str(port)], {}

    def interrupt(address: str) -> list[tuple[str, str]]:
        raise KeyboardInterrupt

    monkeypatch.setattr(ui, "ui_command", quiet)
    monkeypatch.setattr(ui, "_experiments", interrupt)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said: list[str] = []
    assert open_ui("sqlite:////x.db", port=port, say=said.append) == 0
    assert said == [f"MLflow UI: http://127.0.0.1:{port}  (Ctrl-C ends it)"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("port", [0, -1, 70000])
def test_no_port_is_refused(port: int) -> None:
    with pytest.raises(InputError, match="is no port"):
        open_ui("sqlite:////x.db", port=port)


def test_a_server_has_its_own_ui() -> None:
    with pytest.raises(InputError, match=r"\*\*\*@tracking:5000 is a server"):
        open_ui("http://u:Passw0rd@tracking:5000")
