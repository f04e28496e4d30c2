"""Limits that are learned, memory that is watched."""

from __future__ import annotations

import pytest

from tuner.model.outcome import Blame
from tuner.serving import watch
from tuner.serving.watch import Patience, host_memory, memory_failure


def test_floors_scale_with_the_weights() -> None:
    small, large = Patience(weight_bytes=0.3e9), Patience(weight_bytes=160e9)
    assert large.silence_s("weights") == 300.0 + 3200.0
    assert small.silence_s("weights") == pytest.approx(306.0)
    assert large.total_s() > small.total_s() >= 1800.0
    assert small.silence_s("compile") == large.silence_s("compile") == 1200.0


def test_limits_follow_what_was_seen_but_never_below_the_floor() -> None:
    patience = Patience()
    patience.learn({"capture": 400.0, "total": 900.0, "imports": 2.0})
    patience.learn({"capture": 100.0, "total": 100.0})
    assert patience.silence_s("capture") == 2000.0
    assert patience.total_s() == 4500.0
    assert patience.silence_s("imports") == 300.0


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    available, total = host_memory()
    assert 0 < available <= total
    gib = 1 << 30
    monkeypatch.setattr(watch, "host_memory", lambda: (8.0 * gib, 121.0 * gib))
    assert memory_failure("weights", "") is None
    monkeypatch.setattr(watch, "host_memory", lambda: (2.0 * gib, 121.0 * gib))
    failure = memory_failure("weights", "")
    assert failure is not None
    assert (failure.kind, failure.blame, failure.phase) == ("host-memory", Blame.CONFIGURATION, "weights")
    assert failure.violation == pytest.approx(1.63)
    assert "2.0 GiB" in failure.cause
    monkeypatch.setattr(watch, "host_memory", lambda: (float("inf"), float("inf")))
    assert memory_failure("weights", "") is None
