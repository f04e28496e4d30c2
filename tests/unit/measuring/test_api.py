"""Calls to a server that is about to be gone."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tuner.measuring.api import Api
from tuner.model.outcome import Blame, Failure
from tuner.ports import MeasurementFailed

KILLED = Failure(kind="killed", cause="signal 9", blame=Blame.MACHINE, retry=True)


def gone(*, looks: int) -> SimpleNamespace:
    """A server that nothing answers for any more; its end shows at the look after ``looks``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen = iter([None] * looks)
    return SimpleNamespace(
        base_url=f"http://127.0.0.1:{port}", api_key="k", model_name="m", failure=lambda: next(seen, KILLED)
    )


@pytest.mark.parametrize(
    "call",
    [lambda api: api.model_card(), lambda api: api.count_tokens(["a"]), lambda api: api.count_chat_tokens(["a"])],
)
def test_a_death_that_shows_late_is_the_cause_not_the_broken_connection(call: Callable[[Api], object]) -> None:
    with Api(gone(looks=3)) as api, pytest.raises(MeasurementFailed) as caught:  # type: ignore[arg-type]
        call(api)
    assert caught.value.failure == KILLED


def test_a_server_that_lives_and_does_not_answer_is_unresponsive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.measuring.api._DEATH_NOTICE_S", 0.0)
    with Api(gone(looks=99)) as api, pytest.raises(MeasurementFailed) as caught:  # type: ignore[arg-type]
        api.model_card()
    assert caught.value.failure.kind == "server-unresponsive"
