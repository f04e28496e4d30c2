"""`python -m tests.faults.campaign`: hurt studies in every way that is written down, and print what came of it.

The fake vLLM is a real process tree; `tune` is the real command line. Time limits after which silence counts as a hang
are scaled down (tests/faults/shim.py), everything else is as users have it. The last scenario kills the real vLLM.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.scenarios import SCENARIOS, Row, Scale

QUICK = Scale(kills=3, lock_s=4.0, steals=1, real_kills=1)


def run(names: list[str], scale: Scale, console: Console) -> list[Row]:
    """Run scenarios one after another."""
    rows = []
    for name in names:
        console.print(f"[dim]{name} …[/dim]")
        began = time.monotonic()
        row = SCENARIOS[name](scale)
        row.seconds = time.monotonic() - began
        rows.append(row)
        console.print(f"[dim]  {row.seconds:.0f} s, {row.right} of {row.injected} right[/dim]")
        for note in row.notes:
            console.print(f"[dim]  {note}[/dim]", markup=True, highlight=False)
    return rows


def table(rows: list[Row]) -> Table:
    """The table that is asked for."""
    shown = Table(title="Faults")
    for column in ("fault", "injected", "detected", "class right", "trials lost", "left", "RUNNING", "tracebacks", "s"):
        shown.add_column(column, justify="left" if column == "fault" else "right")
    for row in [*rows, total(rows)]:
        share = f"{row.right}/{row.injected}"
        numbers = (row.lost, row.left, row.running, row.tracebacks)
        shown.add_row(
            row.name, str(row.injected), str(row.detected), share, *(str(n) for n in numbers), f"{row.seconds:.0f}"
        )
    return shown


def total(rows: list[Row]) -> Row:
    """Sums."""
    names = ("injected", "detected", "right", "lost", "left", "running", "tracebacks", "seconds")
    sums = {name: sum(getattr(row, name) for row in rows) for name in names}
    return Row("all", **sums)


def good(rows: list[Row]) -> bool:
    """Goal: nothing lost, nothing left, nothing RUNNING, no traceback, class right in 95 % of the cases."""
    all_of = total(rows)
    return not (all_of.lost or all_of.left or all_of.running or all_of.tracebacks) and (
        all_of.right >= 0.95 * all_of.injected
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few of each, in about a minute")
    parser.add_argument("--only", nargs="*", choices=[*SCENARIOS], default=[*SCENARIOS])
    parser.add_argument("--kills", type=int, help="kills of the tuner, and as many of the server (default 50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    scale = dataclasses.replace(QUICK if options.quick else Scale(), seed=options.seed)
    if options.kills:
        scale = dataclasses.replace(scale, kills=options.kills)
    # Ended from outside, the sandboxes still clean up behind themselves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=max(Console().width, 120))
    rows = run(options.only, scale, console)
    console.print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1), encoding="utf-8")
    return 0 if good(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
