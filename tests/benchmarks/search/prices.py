"""What a launch costs on a surface, in seconds: orders of magnitude of published start times, not a measurement."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.benchmarks.search.bench_space import Surface
from tuner.model.json import Scalar

__all__ = ["Clock", "priced"]

_LOAD_S, _COMPILE_S, _CAPTURE_S, _MEASURE_S, _FAILED_S = 45.0, 240.0, 6.0, 60.0, 40.0
_RECOMPILES = frozenset(
    {"quantization", "cudagraph_mode", "attention_backend", "moe_backend", "kv_cache_dtype", "speculation",
     "tensor_parallel_size", "enforce_eager"}
)  # fmt: skip


def priced(surface: Surface) -> Surface:
    """The surface with its parameters marked that need a new compile."""
    marked = tuple(
        replace(parameter, recompiles=parameter.name in _RECOMPILES) for parameter in surface.space.parameters
    )
    return replace(surface, space=replace(surface.space, parameters=marked))


@dataclass
class Clock:
    """Seconds of one launch after another.

    Attributes:
        kind: ``compile``: a shape that ran before finds its kernels compiled, all else costs alike. ``labels``: some
            choices cost minutes at every start besides (weights quantised while loading, kernels tuned, a draft
            model loaded), drawn by ``seed`` without regard to what they are worth. ``even``: all cost the same, what
            a method must not lose on.
    """

    kind: str = "compile"
    seed: int = 0
    _compiled: set[tuple[Scalar, ...]] = field(default_factory=set)

    def seconds(self, setting: Mapping[str, Scalar], *, failed: bool) -> float:
        """Of a launch with these settings, every parameter present."""
        if self.kind == "even":
            return 150.0
        if failed:
            return _FAILED_S
        eager = setting.get("enforce_eager") == "true" or setting.get("cudagraph_mode") == "NONE"
        key = tuple(setting.get(name, "") for name in sorted(_RECOMPILES))
        compiling = 0.0 if eager or key in self._compiled else _COMPILE_S
        self._compiled.add(key)
        captured = 0.0 if eager else _CAPTURE_S * math.log2(float(setting.get("max_cudagraph_capture_size", 512)))  # type: ignore[arg-type]
        dear = sum(self._extra(name, value) for name, value in setting.items()) if self.kind == "labels" else 0.0
        return _LOAD_S + compiling + captured + dear + _MEASURE_S

    def _extra(self, name: str, value: Scalar) -> float:
        """Minutes for one label in four, other than those that stand for doing nothing special."""
        if not isinstance(value, str) or value in ("none", "auto", "off", "true", "false", "1", "16"):
            return 0.0
        drawn = int.from_bytes(hashlib.sha256(f"{self.seed} {name} {value}".encode()).digest()[:2], "big") / 65536
        return 2400 * drawn if drawn < 0.4 else 0.0
