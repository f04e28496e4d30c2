"""`tune`'s own command line with two things that a test cannot wait for made quicker. Everything else is the real one.

``FAULT_PATIENCE``  factor on the time limits after which silence counts as a hang (they are minutes to hours).
``FAULT_CLOCK``     file with a number of seconds; it is added to what ``time.time`` says from then on, as a clock that
                    is set does. ``datetime.now`` asks the kernel and is not moved, monotonic clocks never move.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path


def _shorten(scale: float) -> None:
    """Time limits in the two places where they are set."""
    from tuner.measuring.generator import BenchLoadGenerator  # noqa: PLC0415 - late
    from tuner.serving import launcher  # noqa: PLC0415 - late
    from tuner.serving.server import LocalServer  # noqa: PLC0415 - late
    from tuner.serving.watch import Patience  # noqa: PLC0415 - late

    def impatient(*, weight_bytes: float = 0.0, **_: float) -> Patience:
        return Patience(weight_bytes=weight_bytes, scale=scale)

    launcher.Patience = impatient  # type: ignore[misc,assignment]
    launcher.LocalServer = functools.partial(LocalServer, stuck_s=max(180.0 * scale, 4.0))  # type: ignore[misc,assignment]
    defaults = BenchLoadGenerator.__init__.__kwdefaults__
    defaults["stall_s"] = max(defaults["stall_s"] * scale, 4.0)


def _jump(path: Path) -> None:
    real = time.time

    def shifted() -> float:
        try:
            return real() + float(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return real()

    time.time = shifted


def main() -> None:
    """Apply the shims, then be `tune`."""
    if scale := os.environ.get("FAULT_PATIENCE"):
        _shorten(float(scale))
    if clock := os.environ.get("FAULT_CLOCK"):
        _jump(Path(clock))
    from tuner.cli import main as tune  # noqa: PLC0415 - late

    tune()


if __name__ == "__main__":
    main()
