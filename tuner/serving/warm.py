"""Warm parents: which one a server needs, when one is worth its import, and what to do without.

A parent is kept per set of import-time variables, the most recently used few of them. On a CPU the variables that
vLLM gives its worker (``OMP_NUM_THREADS``, ``LD_PRELOAD``, …) count as well, because they take effect at process start
only. They are not guessed: the first server notes what vLLM wanted, later parents are born with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.ports import Progress
from tuner.serving.command import import_time
from tuner.serving.ledger import Ledger
from tuner.serving.processes import MARKER, Identity
from tuner.serving.starting import WarmParent, WarmParentLost

__all__ = ["MODULES", "WarmParents"]

# Safe on CUDA machines: none of these touches the device (tried with 0.25.1, 0.32 and 0.33). GPU workers and
# attention backends do, and are left to the children.
MODULES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.executor.multiproc_executor",
    "torch._inductor.compile_fx",
    "vllm.benchmarks.serve",
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.cli.benchmark.main",
)
_CPU_MODULES = ("vllm.v1.worker.cpu_worker", "vllm.model_executor.model_loader")
_KEPT = 2
_FILE_LIMIT = 1 << 16


class WarmParents:
    """The warm parents of one launcher.

    Args:
        python: the Python that will serve.
        wants: file in the user's cache where learned worker variables are kept from one study to the next.
        marker: the launcher's identifier; each parent's marker starts with it.
    """

    def __init__(
        self,
        python: Sequence[str],
        *,
        platform: str,
        folder: Path,
        wants: Path,
        ledger: Ledger,
        marker: str,
    ) -> None:
        self._python = tuple(python)
        self._platform = platform
        self._folder = folder
        self._wants_file = wants
        self._ledger = ledger
        self._marker = marker
        self._count = 0
        self._kept: OrderedDict[str, tuple[WarmParent, str]] = OrderedDict()
        self._failed: dict[str, str] = {}
        self._wants: dict[str, dict[str, str]] = self._read_wants()
        self.seconds = 0.0
        self.version = ""

    def get(self, environment: Mapping[str, str], layout: str, progress: Progress) -> WarmParent:
        """The parent for servers with this environment, started if need be.

        Args:
            layout: what else decides the worker's variables (tensor parallel size and the like).

        Raises:
            WarmParentLost: there is none to be had; the same environment is not tried again.
        """
        born = {**import_time(environment), **self._wants.get(self.key(environment, layout), {})}
        born.pop(MARKER, None)
        key = _digest(born)
        if key in self._failed:
            raise WarmParentLost(self._failed[key])
        parent, _ = self._kept.get(key, (None, ""))
        if parent is not None and parent.is_alive:
            self._kept.move_to_end(key)
            return parent
        if parent is not None:
            self._drop(key)
        while len(self._kept) >= _KEPT:
            self._drop(next(iter(self._kept)))
        progress("start", "importing vLLM once for the servers to come")
        self._count += 1
        marker = f"{self._marker}-warm{self._count}"
        self._ledger.will_start(marker, "warm parent")
        modules = MODULES + (_CPU_MODULES if self._platform == "cpu" else ())
        try:
            parent = WarmParent(
                self._python, modules, environment={**born, MARKER: marker}, log=self._folder / "warm-parent.log"
            )
        except WarmParentLost as error:
            self._failed[key] = str(error)
            self._ledger.ended(marker, "warm parent")
            raise
        self._ledger.started(marker, parent.identity, "warm parent")
        self._kept[key] = (parent, marker)
        self.seconds += parent.seconds
        self.version = parent.version
        return parent

    def any(self) -> WarmParent | None:
        """A living parent, the most recently used one: clients do not care which."""
        for parent, _ in reversed(self._kept.values()):
            if parent.is_alive:
                return parent
        return None

    @property
    def identities(self) -> set[Identity]:
        return {parent.identity for parent, _ in self._kept.values()}

    def key(self, environment: Mapping[str, str], layout: str) -> str:
        """What decides the variables that vLLM gives its worker."""
        deciding = {name: value for name, value in environment.items() if name.startswith(("VLLM_CPU_", "OMP_", "LD_"))}
        return _digest(
            {**deciding, "layout": layout, "cpus": str(sorted(os.sched_getaffinity(0))), "python": self._python[0]}
        )

    def learn(self, environment: Mapping[str, str], layout: str, record: Path) -> None:
        """Take over what a server noted of its worker's variables. A first note is kept, a missing one is nothing."""
        try:
            with record.open("rb") as file:
                noted = json.loads(file.read(_FILE_LIMIT))
        except (OSError, ValueError, RecursionError):
            return
        if self._platform != "cpu" or not isinstance(noted, dict):
            return
        wanted = {str(name): str(value) for name, value in noted.items()}
        if self._wants.get(self.key(environment, layout)) == wanted:
            return
        self._wants[self.key(environment, layout)] = wanted
        with contextlib.suppress(OSError):
            self._wants_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self._wants_file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(self._wants), encoding="utf-8")
            draft.replace(self._wants_file)

    def _read_wants(self) -> dict[str, dict[str, str]]:
        try:
            with self._wants_file.open("rb") as file:
                content = json.loads(file.read(_FILE_LIMIT))
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(content, dict):
            return {}
        return {
            str(key): {str(name): str(item) for name, item in value.items()}
            for key, value in content.items()
            if isinstance(value, dict)
        }

    def _drop(self, key: str) -> None:
        parent, marker = self._kept.pop(key)
        parent.close()
        self._ledger.ended(marker, "warm parent")

    def close(self) -> None:
        """End every parent. Safe to call twice."""
        for key in list(self._kept):
            self._drop(key)


def _digest(values: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()[:16]
