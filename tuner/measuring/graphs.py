"""Engine steps by CUDA graph mode, out of the tables that vLLM logs when started with ``--cudagraph-metrics``.

They are no Prometheus metric. Every few seconds the log gets a table of what ran since the last one (vLLM:
``compilation/cuda_graph.py``, ``CUDAGraphLogging``): tokens, padded tokens, paddings, runtime mode, and a count.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

__all__ = ["GraphLog"]

_READ = 8 << 20
"""Bytes of log that one call reads; a table row is about 150 bytes."""
_OVERLAP = 4096
_ROW = re.compile(
    rb"\| *\d{1,9} *\| *\d{1,9} *\| *-?\d{1,9} *\| *(?:CUDAGraphMode\.)?([A-Z_]{4,20}) *\| *(\d{1,9}) *\|"
)


class GraphLog:
    """What a server's log says of graph modes from the moment this is made."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._offset = self._size()

    def shares(self) -> dict[str, float]:
        """``engine/steps_full``, ``engine/steps_piecewise``, ``engine/steps_none``: shares of the engine's steps.

        Empty where the log has no such table. Warming up counts; what ran after the last table does not.
        """
        counts = self._counts()
        total = sum(counts.values())
        return (
            {f"engine/steps_{mode.lower()}": count / total for mode, count in sorted(counts.items())} if total else {}
        )

    def _counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        if self._path is None:
            return counts
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                rest = b""
                while block := file.read(_READ):
                    # A line that is cut here is read again in front of the next block.
                    whole, newline, tail = (rest + block).rpartition(b"\n")
                    rest = tail[-_OVERLAP:]
                    for mode, count in _ROW.findall(whole if newline else b""):
                        counts[mode.decode()] += int(count)
        except OSError:
            return Counter()
        return counts

    def _size(self) -> int:
        try:
            return self._path.stat().st_size if self._path is not None else 0
        except OSError:
            return 0
