"""An interrupt comes once, and waits for what is being written down."""

from __future__ import annotations

import signal

import pytest

from tuner.interrupts import Interrupts


def test_the_first_interrupt_is_raised_later_ones_are_told_to_wait(capsys: pytest.CaptureFixture[str]) -> None:
    handler = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        handler(signal.SIGINT, None)
    handler(signal.SIGTERM, None)
    assert "please wait" in capsys.readouterr().err


def twice_held(handler: Interrupts, done: list[str]) -> None:
    with handler.held():
        with handler.held():
            handler(signal.SIGINT, None)
            done.append("inner")
        done.append("outer")


def test_what_is_held_is_done_to_its_end() -> None:
    handler, done = Interrupts(), list[str]()
    with pytest.raises(KeyboardInterrupt):
        twice_held(handler, done)
    assert done == ["inner", "outer"]
    with handler.held():
        done.append("after")  # it came, was raised, and is over


def failing(handler: Interrupts) -> None:
    with handler.held():
        handler(signal.SIGINT, None)
        raise ValueError("mine")


def test_an_error_in_what_is_held_goes_before_the_interrupt() -> None:
    with pytest.raises(ValueError, match="mine"):
        failing(Interrupts())
