"""Which machine this is, and what is said when a profile is about another."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pytest

from tuner.errors import InputError
from tuner.model.hardware import Hardware
from tuner.spaces import detect as module
from tuner.spaces.detect import detect, matches, recognise

H200 = Hardware(
    name="h200", platform="cuda", device="NVIDIA H200", capability=(9, 0), memory_gib=139.8, bandwidth_gb_s=4800
)
B200 = dataclasses.replace(H200, name="b200", device="NVIDIA B200", capability=(10, 0), memory_gib=178)
GB200 = dataclasses.replace(B200, name="gb200", device="NVIDIA GB200", count=4, memory_gib=184)
SPARK2 = dataclasses.replace(
    H200, name="dgx-spark-x2", device="NVIDIA GB10", capability=(12, 1), memory_gib=119.7, count=2, nodes=2
)
CPU = Hardware(name="cpu", platform="cpu", device="CPU", memory_gib=16, bandwidth_gb_s=20)
MI300X = Hardware(
    name="mi300x", platform="rocm", device="AMD Instinct MI300X", arch="gfx942", memory_gib=192, bandwidth_gb_s=5300
)
PROFILES = [(H200, ("H200",)), (B200, ("B200",)), (GB200, ("GB200",)), (SPARK2, ("GB10",)), (CPU, ("cpu",)),
            (MI300X, ("MI300X",))]  # fmt: skip


def found(profile: Hardware, **changes: object) -> Hardware:
    return dataclasses.replace(profile, name="detected", **changes)  # type: ignore[arg-type]


def test_the_right_machine() -> None:
    assert matches(H200, found(H200, memory_gib=139.2)) is None
    assert matches(H200, found(H200, count=8)) is None  # a profile of one device uses one of eight
    assert matches(SPARK2, found(SPARK2, count=1, nodes=1)) is None  # one of its two nodes
    assert matches(CPU, found(H200)) is None


@pytest.mark.parametrize(
    ("profile", "machine", "says"),
    [
        (H200, None, "h200 is for NVIDIA H200; no accelerator was found here"),
        (H200, found(CPU, device="AMD EPYC"), "here is AMD EPYC"),
        (H200, found(B200), "compute capability 9.0); here is one NVIDIA B200 (10.0)"),
        (GB200, found(GB200, count=2), "4 x NVIDIA GB200; here is 2 x NVIDIA GB200"),
        (H200, found(H200, memory_gib=79), "with 140 GiB; here is one NVIDIA H200 with 79 GiB"),
        (MI300X, found(MI300X, arch="gfx950"), "(gfx942); here is one AMD Instinct MI300X (gfx950)"),
        (MI300X, found(H200), "here is one NVIDIA H200"),
    ],
)
def test_another_machine_is_told_in_one_line(profile: Hardware, machine: Hardware | None, says: str) -> None:
    reason = matches(profile, machine)
    assert reason is not None
    assert says.replace("is for NVIDIA H200", "is for one NVIDIA H200") in reason
    assert "\n" not in reason


def test_profiles_are_recognised_by_the_longest_name() -> None:
    assert recognise(PROFILES, found(GB200)) == "gb200"
    assert recognise(PROFILES, found(B200, count=8)) == "b200"
    assert recognise(PROFILES, found(H200)) == "h200"
    assert recognise(PROFILES, found(CPU)) == "cpu"
    with pytest.raises(InputError, match=r"NVIDIA H20\).*--hardware: h200"):
        recognise(PROFILES, found(H200, device="NVIDIA H20"))


class FakeNvml(SimpleNamespace):
    class NVMLError(Exception):
        pass


def nvml(count: int = 2, total: int = 143771 * 1024**2) -> FakeNvml:
    return FakeNvml(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: b"NVIDIA H200",
        nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=total),
        nvmlDeviceGetPowerManagementLimit=lambda _: 700_000,
    )


def test_nvidia_as_vllm_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    machine = detect()
    assert machine is not None
    assert (machine.device, machine.count, machine.capability, machine.watts) == ("NVIDIA H200", 1, (9, 0), 700)
    assert machine.memory_gib == pytest.approx(139.81, abs=0.01)
    assert matches(H200, machine) is None


def test_unified_memory_has_no_size_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = nvml()

    def refuse(_: object) -> object:
        raise fake.NVMLError("Not Supported")

    fake.nvmlDeviceGetMemoryInfo = refuse
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    machine = detect()
    assert machine is not None
    assert machine.unified_memory
    assert machine.memory_gib > 0


def test_without_a_driver_the_cpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = nvml()

    def refuse() -> None:
        raise fake.NVMLError("Driver Not Loaded")

    fake.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(module, "_amd", lambda: None)
    machine = detect()
    assert machine is not None
    assert machine.platform == "cpu"
    assert machine.cores
    assert machine.cores >= 1


def test_devices_hidden_from_cuda_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    monkeypatch.setattr(module, "_amd", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    machine = detect()
    assert machine is not None
    assert machine.platform == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1234")
    visible = detect()
    assert visible is not None
    assert visible.count == 2


@pytest.mark.parametrize(
    ("visible", "count", "indices"),
    [
        (None, 2, (0, 1)),
        ("1", 1, (1,)),  # the second study of a host with two GPUs is about the second GPU, not again the first
        ("3,1", 2, (3, 1)),
        ("3,1", 1, (3,)),
        ("GPU-36036aa9", 1, (0,)),
        ("", 1, ()),
    ],
)
def test_devices_are_numbered_as_the_driver_counts(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int, indices: tuple[int, ...]
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert module.devices(count) == indices
