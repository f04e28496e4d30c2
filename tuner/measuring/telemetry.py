"""Power, memory and clocks of NVIDIA GPUs while a round runs (nvidia-ml-py). Absent GPUs are no error: empty."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["GpuTelemetry"]

_GIB = 1 << 30


class GpuTelemetry:
    """Averages over the GPUs of one trial between :meth:`start` and :meth:`stop`; call :meth:`sample` in between.

    Args:
        indices: NVML indices of the GPUs that the server uses; None for all.
    """

    def __init__(self, indices: Sequence[int] | None = None) -> None:
        self._nvml, self._handles = _open(indices)
        self._power: list[float] = []
        self._memory: list[float] = []
        self._clock: list[float] = []
        self._energy_start: list[float | None] = []
        self.joules: float | None = None

    @property
    def present(self) -> bool:
        """Whether there is anything to see."""
        return bool(self._handles)

    def start(self) -> None:
        """Forget what was seen and read the energy counters."""
        self._power, self._memory, self._clock = [], [], []
        self.joules = None
        self._energy_start = [self._read("nvmlDeviceGetTotalEnergyConsumption", handle) for handle in self._handles]

    def sample(self) -> None:
        """Read every GPU once; what a GPU does not offer is left out."""
        power = [self._read("nvmlDeviceGetPowerUsage", handle) for handle in self._handles]
        memory = [self._memory_used(handle) for handle in self._handles]
        clock = [self._read("nvmlDeviceGetClockInfo", handle, 1) for handle in self._handles]  # 1: NVML_CLOCK_SM
        if known := [value / 1000 for value in power if value is not None]:
            self._power.append(sum(known))
        if known := [value / _GIB for value in memory if value is not None]:
            self._memory.append(max(known))
        if known := [value for value in clock if value is not None]:
            self._clock.append(sum(known) / len(known))

    def stop(self, seconds: float) -> dict[str, float]:
        """``gpu/power_w`` (all GPUs), ``gpu/memory_gib`` (the fullest, peak), ``gpu/sm_clock_mhz`` (mean).

        ``joules`` is set from the energy counters where the GPUs have them, else from power times ``seconds``.
        """
        out: dict[str, float] = {}
        ends = [self._read("nvmlDeviceGetTotalEnergyConsumption", handle) for handle in self._handles]
        used = [
            (end - begin) / 1000
            for begin, end in zip(self._energy_start, ends, strict=False)
            if begin is not None and end is not None and end >= begin
        ]
        if self._power:
            out["gpu/power_w"] = sum(self._power) / len(self._power)
        if used and len(used) == len(self._handles) and sum(used) > 0:
            self.joules = sum(used)
            out["gpu/power_w"] = self.joules / seconds if seconds > 0 else out.get("gpu/power_w", 0.0)
        elif self._power:
            self.joules = out["gpu/power_w"] * seconds
        if self._memory:
            out["gpu/memory_gib"] = max(self._memory)
        if self._clock:
            out["gpu/sm_clock_mhz"] = sum(self._clock) / len(self._clock)
        return out

    def _memory_used(self, handle: Any) -> float | None:
        if self._nvml is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except self._nvml.NVMLError:
            return None  # unified memory (GB10) has no such counter

    def _read(self, name: str, *arguments: Any) -> float | None:
        if self._nvml is None:
            return None
        try:
            return float(getattr(self._nvml, name)(*arguments))
        except self._nvml.NVMLError:
            return None  # not every GPU has every counter


def _open(indices: Sequence[int] | None) -> tuple[ModuleType | None, list[Any]]:
    try:
        import pynvml  # noqa: PLC0415 - absent on machines without the GPU extra
    except ImportError:
        return None, []
    try:
        pynvml.nvmlInit()
        wanted = range(pynvml.nvmlDeviceGetCount()) if indices is None else indices
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(index) for index in wanted]
    except pynvml.NVMLError:
        return None, []  # no driver, or a GPU that is not there
