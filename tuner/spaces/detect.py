"""What this machine is, and whether a profile is about such a machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tuner.errors import InputError
from tuner.model.hardware import Hardware

__all__ = ["detect", "matches", "recognise"]

_GIB = 1024**3
# Memory differs by a few per cent between boards, drivers and ECC settings of one product.
_MEMORY_TOLERANCE = 0.08
_AMD_ARCHITECTURES = {"gfx942": "AMD Instinct MI300X", "gfx950": "AMD Instinct MI355X"}


def detect() -> Hardware | None:
    """The accelerators of this machine, else its CPU; None if not even that can be read.

    Bandwidth and TFLOPS are not measured (0 and empty): a profile knows them. Only accelerators that
    ``CUDA_VISIBLE_DEVICES`` leaves visible count.
    """
    return _nvidia() or _amd() or _cpu()


def matches(profile: Hardware, found: Hardware | None) -> str | None:
    """Why the machine is not what the profile is about, in one line; None if it is.

    Accelerators on further nodes cannot be seen from here: a profile of several nodes is compared node by node.
    """
    needs = f"{profile.name} is for {_count(profile)}{profile.device}"
    if found is None:
        return f"{needs}; no accelerator was found here"
    here = f"here is {_count(found)}{found.device}"
    if found.platform != profile.platform:
        # A CPU profile runs on any host; the other way round it does not.
        return None if profile.platform == "cpu" else f"{needs}; {here}"
    if profile.platform == "cpu":
        return None
    if profile.capability and found.capability and profile.capability != found.capability:
        wanted, has = (f"{major}.{minor}" for major, minor in (profile.capability, found.capability))
        return f"{needs} (compute capability {wanted}); {here} ({has})"
    if profile.arch and found.arch and profile.arch != found.arch:
        return f"{needs} ({profile.arch}); {here} ({found.arch})"
    per_node = profile.count // max(1, profile.nodes)
    if found.count < per_node:
        return f"{needs}; {here}"
    if abs(found.memory_gib - profile.memory_gib) > _MEMORY_TOLERANCE * profile.memory_gib:
        return f"{needs} with {profile.memory_gib:.0f} GiB; {here} with {found.memory_gib:.0f} GiB"
    return None


def recognise(profiles: Sequence[tuple[Hardware, Sequence[str]]], found: Hardware | None) -> str:
    """Name of the profile that is about this machine: its device's name holds a part, and the count is closest.

    Args:
        profiles: hardware and the parts of a device name it is recognised by.

    Raises:
        InputError: none is about it.
    """
    if found is not None:
        if found.platform == "cpu":
            fitting = [profile for profile, _ in profiles if profile.platform == "cpu"]
        else:
            fitting = [
                profile
                for profile, names in profiles
                if profile.platform == found.platform
                and any(name.lower() in found.device.lower() for name in names)
                and matches(profile, found) is None
            ]
        # The longest name wins: GB200 holds B200.
        parts = {profile.name: max((len(name) for name in names), default=0) for profile, names in profiles}
        best = max(
            fitting,
            key=lambda profile: (parts[profile.name], -abs(profile.count - found.count), profile.count),
            default=None,
        )
        if best is not None:
            return best.name
    here = "no accelerator" if found is None else f"{_count(found)}{found.device}"
    names = ", ".join(profile.name for profile, _ in profiles)
    raise InputError(f"no profile is about this machine ({here}); name one with --hardware: {names}")


def _count(hardware: Hardware) -> str:
    return f"{hardware.count} x " if hardware.count > 1 else "one " if hardware.platform != "cpu" else ""


def _nvidia() -> Hardware | None:
    try:
        import pynvml  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index)
            for index in range(pynvml.nvmlDeviceGetCount())
            if _visible(index, os.environ.get("CUDA_VISIBLE_DEVICES"))
        ]
        if not handles:
            return None
        name = pynvml.nvmlDeviceGetName(handles[0])
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handles[0])
        memory, unified = _nvidia_memory(pynvml, handles[0])
        watts = None
        with suppress(pynvml.NVMLError):
            watts = pynvml.nvmlDeviceGetPowerManagementLimit(handles[0]) / 1000
        device = name.decode() if isinstance(name, bytes) else str(name)
        return Hardware(
            name="detected",
            platform="cuda",
            device=device,
            count=len(handles),
            capability=(int(major), int(minor)),
            memory_gib=memory,
            bandwidth_gb_s=0.0,
            unified_memory=unified,
            watts=watts,
        )
    except pynvml.NVMLError:
        return None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _nvidia_memory(pynvml: object, handle: object) -> tuple[float, bool]:
    """Memory (GiB) that a process can have, and whether it is the host's.

    The driver keeps a part that ``total`` includes: 0.42 % on an H200, where nvidia-smi says 143,771 MiB and
    vLLM could take 139.81 GiB. GB10 has no memory of its own and NVML refuses to tell a size.
    """
    try:
        total = pynvml.nvmlDeviceGetMemoryInfo(handle).total  # type: ignore[attr-defined]
    except pynvml.NVMLError:  # type: ignore[attr-defined]
        return psutil.virtual_memory().total / _GIB, True
    return total / _GIB * (1 - 0.0042), False


def _visible(index: int, setting: str | None) -> bool:
    """Whether a device is among ``CUDA_VISIBLE_DEVICES``."""
    listed = _listed(setting)
    return listed is None or index in listed


def _listed(setting: str | None) -> list[int] | None:
    """The numbers in ``CUDA_VISIBLE_DEVICES``, in its order; None where all are visible, or where it names UUIDs."""
    items = [item.strip() for item in (setting or "").split(",") if item.strip()]
    if setting is None or not all(item.isdigit() for item in items):
        return None
    return [int(item) for item in items]


def devices(count: int) -> tuple[int, ...]:
    """Indices, as the driver counts, of the first ``count`` GPUs that this process may use.

    With ``CUDA_VISIBLE_DEVICES=1`` the one GPU is number 1: locks, power readings and the servers' own
    ``CUDA_VISIBLE_DEVICES`` must all mean the same one.
    """
    listed = _listed(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return tuple(range(count)) if listed is None else tuple(listed[:count])


def _amd() -> Hardware | None:
    """AMD GPUs from the kernel's own files: nothing needs to be installed."""
    sizes: list[int] = []
    for path in sorted(Path("/sys/class/drm").glob("card*/device/mem_info_vram_total")):
        with suppress(OSError, ValueError):
            sizes.append(int(path.read_text(encoding="ascii")))
    if not sizes:
        return None
    largest = max(sizes)
    arch = _amd_architecture()
    return Hardware(
        name="detected",
        platform="rocm",
        device=_AMD_ARCHITECTURES.get(arch, f"AMD GPU {arch}".strip()),
        count=sum(size > largest // 2 for size in sizes),
        arch=arch,
        memory_gib=largest / _GIB,
        bandwidth_gb_s=0.0,
    )


def _amd_architecture() -> str:
    """``gfx942`` and the like from the topology of the compute driver (90402 stands for 9.4.2)."""
    for path in sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        with suppress(OSError, ValueError):
            for line in path.read_text(encoding="ascii").splitlines():
                key, _, value = line.partition(" ")
                if key == "gfx_target_version" and int(value) > 0:
                    version = int(value)
                    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return ""


def _cpu() -> Hardware | None:
    try:
        total = psutil.virtual_memory().total
    except (OSError, RuntimeError):
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Hardware(
        name="detected",
        platform="cpu",
        device=_cpu_name(),
        memory_gib=total / _GIB,
        bandwidth_gb_s=0.0,
        cores=cores,
    )


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return "CPU"
