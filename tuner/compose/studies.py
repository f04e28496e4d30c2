"""The studies in a folder: which there are, and the one that is meant."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path

from tuner.errors import InputError
from tuner.model.json import Json
from tuner.model.targets import short_name
from tuner.model.words import kind_of

__all__ = ["count_studies", "find_study", "list_studies", "read_about"]

_NAMED = 8
"""Names that an error lists; `tune report --list` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """One row of the list; ``about`` is empty where the study's file cannot be read, ``trials`` are those that ran."""

    name: str
    about: Mapping[str, Json]
    trials: int
    started: float

    def document(self) -> dict[str, Json]:
        plain = {key: self.about.get(key) for key in ("hardware", "model", "workload", "objective")}
        kind = kind_of(self.about) if isinstance(self.about.get("facts"), Mapping) else None
        at = datetime.fromtimestamp(self.started, UTC).isoformat(timespec="seconds")
        return {"study": self.name, **plain, "kind": kind, "trials": self.trials, "started": at}

    def cells(self) -> tuple[str, ...]:
        at = datetime.fromtimestamp(self.started).astimezone().strftime("%Y-%m-%d %H:%M")
        if not self.about:
            return self.name, str(self.trials), at, "its study.json cannot be read"
        objective = self.about.get("objective")
        metric = str(objective.get("metric")) if isinstance(objective, Mapping) else "?"
        return self.name, str(self.trials), at, f"{short_name(metric)}; {Path(str(self.about.get('model'))).name}"


def find_study(root: Path, name: str | None) -> Path:
    """The folder of the study of that name; without a name, of the one that was run last.

    Raises:
        InputError: there is none; the message names those that are there.
    """
    found = _folders(root)
    if name is None:
        if not found:
            raise InputError(f"{root}: holds no study yet; run tune --hardware NAME first, or give --directory")
        return found[0]
    folder = root / name
    if folder in found:
        return folder
    if not found:
        raise InputError(f"study {name!r}: none of that name in {root}, which holds no study yet; give --directory")
    names = [item.name for item in found]
    near = get_close_matches(name, names, n=1)
    listed = ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    raise InputError(f"study {name!r}: none of that name in {root}; {hint} {listed} (tune report --list)")


def count_studies(root: Path) -> int:
    """How many studies a folder holds."""
    return len(_folders(root))


def list_studies(directory: Path, *, as_json: bool) -> None:
    """Print the studies in a folder, the one that was run last first.

    Raises:
        InputError: there is none.
    """
    root = directory.expanduser().absolute()
    find_study(root, None)
    rows = [_listed(folder) for folder in _folders(root)]
    if as_json:
        sys.stdout.write(json.dumps([row.document() for row in rows], indent=1) + "\n")
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from tuner.report.text import new_table, say  # noqa: PLC0415

    console = Console()
    table = new_table("", ("study", "left"), ("trials", "right"), ("last run", "left"), ("about", "left"))
    for row in rows:
        table.add_row(*map(Text, row.cells()))
    console.print(table)
    say(console, "One of them: tune report --study NAME; without a name, the first.", style="dim")


def read_about(folder: Path) -> dict[str, Json]:
    """What a study is about, as its own file says.

    Raises:
        InputError: it cannot be read, or is no such file.
    """
    path = folder / "study.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    if not isinstance(about, dict):
        raise InputError(f"{path}: is no study file")
    return about


def _folders(root: Path) -> list[Path]:
    found = sorted(root.glob("*/study.json"), key=_started, reverse=True)
    return [path.parent for path in found]


def _started(path: Path) -> float:
    """When the study was last begun or gone on with: its file is written then."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # taken away in the meantime


def _listed(folder: Path) -> _Listed:
    try:
        about: Mapping[str, Json] = read_about(folder)
    except InputError:
        about = {}
    trials = sum(1 for _ in folder.glob("trials/*/trial.json"))
    return _Listed(name=folder.name, about=about, trials=trials, started=_started(folder / "study.json"))
