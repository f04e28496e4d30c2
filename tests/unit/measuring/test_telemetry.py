from __future__ import annotations

import sys
import types
from types import SimpleNamespace

import pytest

from tuner.measuring.telemetry import GpuTelemetry


class NVMLError(Exception):
    pass


def nvml(monkeypatch: pytest.MonkeyPatch, *, energy: list[float] | None, count: int = 2) -> None:
    """A stand-in for pynvml: two GPUs at 100 W and 200 W."""
    module = types.ModuleType("pynvml")
    readings = iter(energy or [])

    def energy_of(handle: int) -> float:
        if energy is None:
            raise NVMLError
        return next(readings)

    parts = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetPowerUsage": lambda handle: 100_000 * (handle + 1),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=(handle + 1) << 30),
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1000 + 500 * handle,
        "nvmlDeviceGetTotalEnergyConsumption": energy_of,
    }
    for name, value in parts.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", module)


def test_energy_counters_are_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, energy=[1000, 2000, 41_000, 62_000])
    gpus = GpuTelemetry()
    gpus.start()
    gpus.sample()
    metrics = gpus.stop(10.0)
    assert gpus.joules == pytest.approx(100)
    assert metrics == {"gpu/power_w": pytest.approx(10), "gpu/memory_gib": 2.0, "gpu/sm_clock_mhz": 1250.0}


def test_power_stands_in_where_energy_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, energy=None)
    gpus = GpuTelemetry([1])
    gpus.start()
    gpus.sample()
    metrics = gpus.stop(10.0)
    assert metrics["gpu/power_w"] == 200
    assert gpus.joules == 2000


@pytest.mark.parametrize("broken", ["missing", "no driver"])
def test_no_gpu_is_no_error(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    if broken == "missing":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        nvml(monkeypatch, energy=None)

        def no_driver() -> None:
            raise NVMLError

        monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", no_driver)
    gpus = GpuTelemetry()
    gpus.start()
    gpus.sample()
    assert not gpus.present
    assert gpus.stop(1.0) == {}
    assert gpus.joules is None
