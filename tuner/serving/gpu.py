"""GPU memory as the driver tells it, for knowing that a dead server has given it back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

__all__ = ["returned", "used_bytes"]

_TOLERANCE = 512 << 20


def used_bytes(devices: Sequence[int]) -> dict[int, int]:
    """Used memory (bytes) by device; empty where there is no NVIDIA driver. All devices if none are named."""
    try:
        import pynvml  # noqa: PLC0415 - only where it is needed; silent without a driver
    except ImportError:
        return {}
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    used = {}
    try:
        for index in devices or range(nvml.nvmlDeviceGetCount()):
            used[index] = int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index)).used)
    except nvml.NVMLError:
        return {}
    finally:
        nvml.nvmlShutdown()
    return used


def returned(before: dict[int, int], *, seconds: float) -> dict[int, int]:
    """Wait until every device uses no more than ``before`` (within 512 MiB).

    Returns:
        What is still held (bytes) by device after ``seconds``; empty on success.
    """
    deadline = time.monotonic() + seconds
    while before:
        now = used_bytes(tuple(before))
        held = {index: now[index] - used for index, used in before.items() if now.get(index, 0) - used > _TOLERANCE}
        if not held:
            break
        if time.monotonic() > deadline:
            return held
        time.sleep(0.25)
    return {}
