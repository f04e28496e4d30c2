from __future__ import annotations

from pathlib import Path

import pytest

from tuner.measuring.warmup import CompileLog, settled, warm_length


def test_compile_log_reports_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    monitor = "INFO Kernel JIT monitor activated; monitored JIT compilations during inference will use mode=warn.\n"
    compiled = (
        "WARNING [jit_monitor.py:90] Triton JIT compilation during inference: _attn_fwd. This causes a latency spike\n"
    )
    path.write_text("old: Triton JIT compilation during inference: old_kernel. x\n")
    log = CompileLog(str(path))
    assert log.news() == []
    with path.open("a") as file:
        file.write(
            monitor + compiled + "Triton autotuning for function _gemm finished after 1.2s\nhalf a line during inf"
        )
    assert log.news() == ["_attn_fwd", "_gemm"]
    assert log.news() == []
    with path.open("a") as file:
        file.write("erence: late_kernel (shape 3). This\n")
    assert log.news() == ["late_kernel"]


def test_without_a_log_there_is_no_news(tmp_path: Path) -> None:
    assert CompileLog("").news() == []
    assert CompileLog(str(tmp_path / "absent.log")).news() == []


@pytest.mark.parametrize(("wanted", "warm"), [(1, 1), (16, 16), (64, 32), (300, 75)])
def test_warm_requests_are_shorter(wanted: int, warm: int) -> None:
    assert warm_length(wanted) == warm


@pytest.mark.parametrize(
    ("rates", "warm"),
    [
        ([300.0], False),
        ([300.0, 500.0], False),
        ([300.0, 500.0, 540.0], True),
        # A slower wave is noise: on an H200 such waves came one after the other, 10 s each.
        ([9000.0, 7500.0], True),
        ([500.0, 300.0, 560.0], False),
    ],
)
def test_a_server_is_warm_when_its_waves_get_no_faster(rates: list[float], warm: bool) -> None:
    assert settled(rates) is warm
