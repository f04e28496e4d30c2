"""A study's other answers: the best at each load point, and the Pareto front of several objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from tuner.model.front import pareto_front
from tuner.model.history import Comparison, History
from tuner.model.json import Json
from tuner.model.judge import limits_of
from tuner.model.loads import load_answers
from tuner.model.summary import front_summary, loads_summary
from tuner.model.tables import TextTable, front_lines, front_table, loads_lines, loads_table, markdown
from tuner.model.words import VLLM_DEFAULTS, defaults_of
from tuner.report.text import new_table, say

__all__ = ["Answers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Plain values, as ``--json`` prints them.

    Attributes:
        loads: one entry per load point; empty for a study of one point.
        front: the Pareto front, None for a study with one objective.
        unit: of the first objective.
        name: what the defaults are called.
        defaults: what vLLM takes by itself, as far as the space knows: choices are shown where they differ.
    """

    loads: Sequence[Any] = ()
    front: dict[str, Any] | None = None
    unit: str = ""
    name: str = VLLM_DEFAULTS
    defaults: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, history: History, about: Mapping[str, Json], compare: Callable[..., Comparison]) -> Answers:
        """What the history answers beside its winner. ``about`` is the study's description (limits, defaults)."""
        defaults = about.get("defaults")
        front = pareto_front(history, compare)
        return cls(
            loads=loads_summary(load_answers(history, limits_of(about), compare)),
            front=None if front is None else front_summary(front),
            unit=history.objective.unit,
            name=defaults_of(about),
            defaults=defaults if isinstance(defaults, Mapping) else {},
        )

    def document(self) -> dict[str, Any]:
        """The keys ``loads`` and ``front``, each only where the study has it."""
        found: dict[str, Any] = {"loads": list(self.loads)} if self.loads else {}
        return found if self.front is None else {**found, "front": self.front}

    def show(self, console: Console) -> None:
        """As tables in a terminal; nothing where there is nothing more to say."""
        for table, lines, hint in self._parts():
            _print(console, table)
            for line in lines:
                say(console, f"  {line}")
            say(console, hint, style="dim")

    def markdown(self) -> str:
        """The same for a page; empty where there is nothing more to say."""
        parts = [
            markdown(table) + ("\n\n" + "\n".join(f"- {line}" for line in lines) if lines else "")
            for table, lines, _ in self._parts()
        ]
        return "\n\n".join(parts)

    def _parts(self) -> list[tuple[TextTable, list[str], str]]:
        parts = []
        # What a command measured is no configuration of vLLM's that could be exported.
        ours = self.name == VLLM_DEFAULTS
        if self.loads:
            way = f"export --load {self.loads[0]['load']}" if ours else "report --json"
            hint = f"The best at one load: tune {way}"
            parts.append((loads_table(self.loads, self.unit), loads_lines(self.loads, self.defaults, self.name), hint))
        if self.front is not None:
            hint = f"One of the front: tune {'export' if ours else 'report'} --trial N"
            parts.append((front_table(self.front, self.name), front_lines(self.front, self.defaults, self.name), hint))
        return parts


def _print(console: Console, table: TextTable) -> None:
    columns = [(name, "right" if index in table.right else "left") for index, name in enumerate(table.columns)]
    shown = new_table(table.title, *columns)
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    console.print(shown)
