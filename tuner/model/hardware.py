"""What a machine is, as far as serving a language model is concerned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = ["Hardware", "Platform"]

Platform: TypeAlias = Literal["cuda", "rocm", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The accelerators of one deployment. Figures are per accelerator, from the vendor unless measured.

    Attributes:
        name: profile name, such as ``h200`` or ``dgx-spark-x2``.
        platform: which vLLM build runs there.
        device: how the device names itself (``nvidia-smi``), for people and for recognition.
        count: accelerators over all nodes; for a CPU, the number of sockets' worth of workers (1).
        nodes: machines the accelerators are spread over.
        capability: CUDA compute capability (major, minor), None elsewhere.
        arch: ``gfx942`` and the like on ROCm, else empty.
        memory_gib: memory of one accelerator as vLLM sees it (GiB); for a CPU, host memory.
        bandwidth_gb_s: memory bandwidth of one accelerator (GB/s, 1e9 bytes).
        tflops: dense TFLOPS by dtype name (``bf16``, ``fp8``, ``fp4``, ``int8``).
        interconnect_gb_s: one-way scale-up bandwidth of one accelerator (GB/s), None if there is one only.
        unified_memory: the accelerator shares host memory (the host dies before CUDA reports).
        cores: CPU cores that the server may use; None where nobody counted (accelerators).
        watts: board power limit (W) if known.
        price_per_hour: currency units for the whole deployment per hour, if the user gave it.
    """

    name: str
    platform: Platform
    device: str
    count: int = 1
    nodes: int = 1
    capability: tuple[int, int] | None = None
    arch: str = ""
    memory_gib: float
    bandwidth_gb_s: float
    tflops: Mapping[str, float] = field(default_factory=dict)
    interconnect_gb_s: float | None = None
    unified_memory: bool = False
    cores: int | None = None
    watts: float | None = None
    price_per_hour: float | None = None

    @property
    def sm(self) -> int:
        """Compute capability as one number (9.0 → 90, 12.1 → 121); 0 where there is none."""
        return 0 if self.capability is None else self.capability[0] * 10 + self.capability[1]
