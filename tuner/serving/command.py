"""From a candidate to a command line and an environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.model.candidate import Candidate, render_flags
from tuner.model.secrets import mask_argv, mask_environment
from tuner.serving.processes import MARKER
from tuner.serving.starting import ZYGOTE

__all__ = ["Command", "Settings", "build", "import_time"]

SERVE = ("vllm", "serve")

_READ_LATE = (
    # Read by EngineCore or the worker when it starts, not when a module is imported (vLLM 0.25.1 to 0.32).
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_CPU_NUM_OF_RESERVED_CPU",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_API_KEY",
    "VLLM_SERVER_DEV_MODE",
    "VLLM_ENGINE_READY_TIMEOUT_S",
    "VLLM_RPC_TIMEOUT",
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
    "VLLM_USE_FLASHINFER_SAMPLER",
    "OPENAI_API_KEY",
)
_READ_LATE_PREFIXES = ("NCCL_", "TUNE_")  # NCCL reads its own when a communicator is made


def import_time(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be read while modules are imported or libraries loaded.

    Only what is known to be read later is left out; a variable nobody looked at counts, and gets a warm parent of
    its own. That costs one import where it was needless, and is never wrong.
    """
    return {
        name: value
        for name, value in environment.items()
        if name not in _READ_LATE and not name.startswith(_READ_LATE_PREFIXES)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every server of a study has in common.

    Attributes:
        base: the words before the model and the flags: what runs ``vllm serve``, or the user's own.
        environment: the study's variables, on top of the tuner's own.
        devices: GPU indices the servers may see; empty for all, or for the CPU.
        observe: flags (without dashes) that make the server tell more and compute nothing else.
    """

    model: str
    base: tuple[str, ...]
    environment: Mapping[str, str]
    devices: tuple[int, ...] = ()
    host: str = "127.0.0.1"
    tokenizer: str = ""
    trust_remote_code: bool = False
    observe: tuple[str, ...] = ()
    cache: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One server's command.

    Attributes:
        flags: what follows the base (or ``vllm serve``, in a forked server).
        environment: complete environment of the process.
    """

    base: tuple[str, ...]
    flags: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.base, *self.flags)

    def printable(self, candidate: Candidate, study: Mapping[str, str]) -> tuple[str, ...]:
        """The command with the variables that belong to it, secrets masked."""
        variables = mask_environment({**study, **candidate.environment})
        base = SERVE if str(ZYGOTE) in self.base else self.base
        return (*(f"{name}={value}" for name, value in sorted(variables.items())), *mask_argv((*base, *self.flags)))


def build(candidate: Candidate, settings: Settings, *, port: int, served_name: str, key: str, marker: str) -> Command:
    """The command for one launch.

    The model is the candidate's checkpoint, else the study's. ``{model}`` in the user's command is replaced;
    ``… serve`` gets the model as its positional argument; anything else gets ``--model``. The API key travels in the
    environment, where other users' process lists do not show it.
    """
    model = candidate.checkpoint or settings.model
    base = tuple(word.replace("{model}", model) for word in settings.base)
    flags: list[str] = []
    if base == settings.base:
        flags += [model] if base[-1] == "serve" else ["--model", model]
    flags += ["--host", settings.host, "--port", str(port), "--served-model-name", served_name]
    if settings.tokenizer:
        flags += ["--tokenizer", settings.tokenizer]
    if settings.trust_remote_code:
        flags.append("--trust-remote-code")
    flags += [f"--{name}" for name in settings.observe if name not in candidate.arguments]
    flags += render_flags(candidate)
    return Command(base=base, flags=tuple(flags), environment=environment(settings, candidate, key=key, marker=marker))


def environment(settings: Settings, candidate: Candidate | None, *, key: str, marker: str) -> dict[str, str]:
    """The complete environment of a process of this study."""
    variables = {name: value for name, value in os.environ.items() if name != MARKER}
    variables |= {
        "VLLM_SERVER_DEV_MODE": "1",  # /server_info, /reset_prefix_cache
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    if Path((candidate.checkpoint if candidate is not None else "") or settings.model).exists():
        variables.setdefault("HF_HUB_OFFLINE", "1")
    if settings.cache is not None:
        variables.setdefault("VLLM_CACHE_ROOT", str(settings.cache))
    if settings.devices:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in settings.devices)
    variables |= settings.environment
    if candidate is not None:
        variables |= candidate.environment
    if key:
        variables["VLLM_API_KEY"] = key
    # Last: setproctitle overwrites the front of what /proc shows of an environment.
    variables[MARKER] = marker
    return variables


def default_base(python: Sequence[str]) -> tuple[str, ...]:
    """``vllm serve`` with this Python, for CPU and CUDA builds alike.

    Not ``python -m vllm.entrypoints.openai.api_server``: that one starts a single API server whatever
    ``--api-server-count`` and the data parallel flags say (0.25.1), and an exported YAML would run as something else.
    """
    return (*python, str(ZYGOTE), "serve")
