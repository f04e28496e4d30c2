"""Small things that every printed table needs. Text from a log or a file is printed as text, never as markup."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from tuner.model.json import finite
from tuner.model.targets import counted
from tuner.model.targets import figure as number

__all__ = ["counted", "duration", "figure", "new_table", "say"]


class _Titled(Table):
    """A table whose title may be longer than its rows: Rich would fold it to their width."""

    heading = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading:
            yield Text(self.heading, style="italic")
        yield from super().__rich_console__(console, options)


def say(console: Console, text: str, *, style: str = "") -> None:
    """One paragraph, wrapped between words to the terminal, never coloured by its content."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def new_table(title: str, *columns: tuple[str, str]) -> Table:
    """A table without rules; a column is its name and ``left`` or ``right``. The first holds names: whole."""
    table = _Titled(box=None, pad_edge=False, header_style="dim")
    table.heading = title
    for place, (name, justify) in enumerate(columns):
        side = "right" if justify == "right" else "left"
        table.add_column(name, justify=side, overflow="fold", no_wrap=place == 0)  # type: ignore[arg-type]
    return table


def figure(value: float | None, unit: str = "") -> str:
    """A number with its unit; empty where there is none."""
    return "" if value is None or not finite(value) else number(value, unit)


def duration(seconds: float) -> str:
    """A time as people say it: ``12.3 s``, ``4 min 05 s``, ``2 h 07 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
