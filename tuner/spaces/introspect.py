"""What a vLLM accepts: flags, values, fields of its JSON flags and environment names, checked before anything starts.

From the installed vLLM itself where there is one, else from what was recorded of known versions, so that planning
works on a machine without vLLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from tuner.errors import InputError
from tuner.model.candidate import Candidate, Exclusion
from tuner.model.json import Json
from tuner.model.space import UNSET, Choice, Parameter, Space
from tuner.spaces import serving_python
from tuner.spaces.serving_python import read_back, read_back_many

__all__ = ["FORK_ENVIRONMENT", "KNOWN_VERSIONS", "Flag", "VllmFlags", "read_back", "read_back_many"]

KNOWN_VERSIONS = ("0.25.1", "0.32.0", "0.33.0")

# Flags that guides still name → what to write instead (CATALOGUE of removals in vLLM's own history).
_SUCCESSORS: Mapping[str, str] = {
    "cuda-graph-sizes": "use cudagraph-capture-sizes or max-cudagraph-capture-size",
    "max-seq-len-to-capture": "use max-cudagraph-capture-size (it counts tokens of a step, not of a sequence)",
    "num-scheduler-steps": "multi-step scheduling is gone; async-scheduling is its successor",
    "multi-step-stream-outputs": "multi-step scheduling is gone; stream-interval is the nearest",
    "max-num-partial-prefills": "use long-prefill-token-threshold",
    "max-long-partial-prefills": "use long-prefill-token-threshold",
    "swap-space": "preempted requests are recomputed now; kv-offloading-size keeps KV blocks in host memory",
    "disable-log-requests": "request logging is off unless enable-log-requests is given",
    "use-v2-block-manager": "it is always on",
    "enable-chunked-prefill-v1": "use enable-chunked-prefill",
    "preemption-mode": "preempted requests are always recomputed",
    "scheduler-delay-factor": "there is no successor; see prefill-schedule-interval",
    "num-lookahead-slots": "use speculative-config.num_speculative_tokens",
    "speculative-model": "use speculative-config.model",
    "num-speculative-tokens": "use speculative-config.num_speculative_tokens",
    "speculative-disable-by-batch-size": "use speculative-config.num_speculative_tokens_per_batch_size",
    "speculative-draft-tensor-parallel-size": "use speculative-config.draft_tensor_parallel_size",
    "ngram-prompt-lookup-max": "use speculative-config.prompt_lookup_max",
    "ngram-prompt-lookup-min": "use speculative-config.prompt_lookup_min",
    "calculate-kv-scales": "scales come from the checkpoint since 0.32",
    "override-attention-dtype": "use kv-cache-dtype",
    "guided-decoding-backend": "use structured-outputs-config.backend",
    "enable-lora-bias": "LoRA biases are gone",
    "device": "it follows from the installed build",
    "worker-use-ray": "use distributed-executor-backend: ray",
    "compile-level": "use optimization-level",
    "full-cuda-graph": "use compilation-config.cudagraph_mode",
    "compilation-config.full_cuda_graph": "use compilation-config.cudagraph_mode",
    "compilation-config.level": "use compilation-config.mode",
    "attention-config.use_fp4_indexer_cache": "use attention-config.indexer_kv_dtype: mxfp4",
    "speculative-config.disable_by_batch_size": "use speculative-config.num_speculative_tokens_per_batch_size",
    "env:VLLM_ATTENTION_BACKEND": "use attention-backend",
    "env:VLLM_USE_V1": "the V1 engine is the only one",
    "env:VLLM_USE_FLASHINFER_MOE_FP8": "use moe-backend: flashinfer_trtllm or flashinfer_cutlass",
    "env:VLLM_USE_FLASHINFER_MOE_FP4": "use moe-backend: flashinfer_trtllm or flashinfer_cutlass",
    "env:VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "use moe-backend: flashinfer_trtllm",
    "env:VLLM_FLASH_ATTN_VERSION": "use attention-config.flash_attn_version",
    "env:VLLM_USE_TRTLLM_ATTENTION": "use attention-config.use_trtllm_attention",
    "env:VLLM_TORCH_PROFILER_DIR": "use profiler-config",
}

FORK_ENVIRONMENT: Mapping[str, str] = {
    "VLLM_TRITON_MLA_SPARSE": "the forks with Triton sparse MLA (vllm PRs #40899 and #40991, not merged)",
    "VLLM_MOE_BACKEND": "the vLLM-Moet image of the RTX 4090 report; stock vLLM has moe-backend",
    "VLLM_SPARSE_MLA_BACKEND": "the vLLM-Moet image of the RTX 4090 report",
}
"""Variables that no released vLLM reads, but a fork does: a candidate with one needs that fork's Python."""

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?[kKmMgGtT]?")
_BOOLEANS = ("true", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option of ``vllm serve``.

    Attributes:
        kind: ``bool`` (has a ``--no-`` form), ``switch`` (has none), ``int``, ``float``, ``json``, ``str``, or
            ``any`` where the recording does not know.
        choices: the only values it takes, empty where any will do.
        nargs: as in argparse (``+`` takes a list).
    """

    kind: str = "any"
    choices: tuple[Json, ...] = ()
    nargs: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmFlags:
    """What one vLLM accepts.

    Attributes:
        version: its version.
        flags: name without dashes → flag (aliases too).
        fields: JSON flag → field → its choices (empty: open).
        environment: names of the variables it reads.
        recorded: True if this comes from a recording instead of an installed vLLM.
    """

    version: str
    flags: Mapping[str, Flag]
    fields: Mapping[str, Mapping[str, tuple[Json, ...]]]
    environment: frozenset[str]
    recorded: bool = False

    @classmethod
    def from_python(cls, python: Sequence[str], timeout_s: float = 180.0, *, cache: Path | None = None) -> VllmFlags:
        """Ask the vLLM of that Python. About 10 s the first time, from a cache afterwards.

        Raises:
            InputError: that Python has no vLLM, or cannot be run.
            RunError: its parser could not be asked.
        """
        return cls._from_json(serving_python.describe(python, timeout_s=timeout_s, cache=cache), recorded=False)

    @classmethod
    def known(cls, version: str = "0.32.0") -> VllmFlags:
        """What was recorded of a released version.

        Raises:
            InputError: that version was not recorded.
        """
        if version not in KNOWN_VERSIONS:
            raise InputError(
                f"vLLM {version}: its flags are not recorded; choose one of {', '.join(KNOWN_VERSIONS)}, or name a "
                "Python that has it"
            )
        file = resources.files("tuner.spaces").joinpath("known_flags", f"{version}.json")
        return cls._from_json(json.loads(file.read_text(encoding="utf-8")), recorded=True)

    @classmethod
    def _from_json(cls, data: Mapping[str, Json], *, recorded: bool) -> VllmFlags:
        flags: dict[str, Flag] = {}
        for name, entry in _mapping(data.get("flags")).items():
            values = _mapping(entry)
            nargs = values.get("nargs")
            flag = Flag(
                kind=str(values.get("kind", "any")),
                choices=_sequence(values.get("choices")),
                nargs=nargs if isinstance(nargs, str | int) else None,
            )
            for spelling in (name, *map(str, _sequence(values.get("aliases")))):
                flags[spelling] = flag
        fields = {
            flag: {name: _sequence(_mapping(entry).get("choices")) for name, entry in _mapping(entries).items()}
            for flag, entries in _mapping(data.get("fields")).items()
        }
        return cls(
            version=str(data.get("version", "unknown")),
            flags=flags,
            fields=fields,
            environment=frozenset(map(str, _sequence(data.get("env")))),
            recorded=recorded,
        )

    def check(self, candidate: Candidate) -> list[str]:
        """Everything in this candidate that this vLLM does not know, one line each; empty if all is well."""
        problems = [
            problem
            for name, value in candidate.arguments.items()
            if name != "model"  # the checkpoint, the positional argument of every version
            for problem in self._check_argument(name, value)
        ]
        problems += [problem for name in candidate.environment for problem in self._check_environment(name)]
        return _unique(problems)

    def check_space(self, space: Space) -> list[str]:
        """Everything in the space that this vLLM does not know: unknown flags, values and variables in one list.

        Values that a parameter offers are checked one by one. Variables of a known fork are no error here: the
        candidates that carry them are excluded by :meth:`exclusion`.
        """
        problems: list[str] = []
        for name, value in _space_arguments(space):
            problems += self._check_argument(name, value)
        for name in _space_environment(space):
            if name not in FORK_ENVIRONMENT:
                problems += self._check_environment(name)
        return _unique(problems)

    def exclusion(self, candidate: Candidate) -> Exclusion | None:
        """Why this vLLM would refuse the candidate's arguments; None if it would not."""
        problems = self.check(candidate)
        if not problems:
            return None
        return Exclusion(reason="; ".join(problems), rule="flag-unknown", source=f"the parser of vLLM {self.version}")

    def _check_argument(self, name: str, value: object) -> list[str]:
        head, _, path = name.partition(".")
        head = head.replace("_", "-")
        flag = self.flags.get(head)
        if flag is None:
            return [self._unknown(name, head, self.flags)]
        if path:
            return self._check_field(head, flag, path, value)
        if value is UNSET or value is None:
            return []
        if isinstance(value, Mapping) and flag.kind in ("json", "any"):
            return [p for key, inner in value.items() for p in self._check_field(head, flag, str(key), inner)]
        return self._check_value(head, flag, value)

    def _check_field(self, head: str, flag: Flag, path: str, value: object) -> list[str]:
        if flag.kind not in ("json", "any"):
            return [f"{head}.{path}: {head} takes no nested fields (vLLM {self.version})"]
        known = self.fields.get(head)
        if known is None:
            return []  # an open mapping, such as hf-overrides
        field, _, rest = path.partition(".")
        if field not in known:
            return [self._unknown(f"{head}.{path}", f"{head}.{field}", [f"{head}.{name}" for name in known])]
        if rest or value is UNSET or value is None:
            return []
        choices = known[field]
        # Enums take their numbers as well (compilation-config.mode: 3).
        numbered = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices)
        if choices and not numbered and not _among(value, choices):
            return [f"{head}.{field}: {_shown(value)} is none of {_listed(choices)} (vLLM {self.version})"]
        return []

    def _check_value(self, name: str, flag: Flag, value: object) -> list[str]:
        tail = f"(vLLM {self.version})"
        if isinstance(value, list | tuple):
            if flag.nargs in ("+", "*") or isinstance(flag.nargs, int) or flag.kind in ("json", "any"):
                return []
            return [f"{name}: takes one value, not a list {tail}"]
        if flag.choices and not _among(value, flag.choices):
            return [f"{name}: {_shown(value)} is none of {_listed(flag.choices)} {tail}"]
        if flag.kind == "switch" and value is False:
            return [f"{name}: cannot be switched off, leave it away {tail}"]
        if flag.kind in ("bool", "switch"):
            good = isinstance(value, bool)
        elif flag.kind in ("int", "float"):
            good = _is_number(value, whole=flag.kind == "int") or (name == "max-model-len" and value == "auto")
        else:
            good = not isinstance(value, bool) or flag.kind == "any"
        return [] if good else [f"{name}: {_shown(value)} is not {_KINDS[flag.kind]} {tail}"]

    def _check_environment(self, name: str) -> list[str]:
        if not name.startswith("VLLM_") or name in self.environment:
            return []
        if name in FORK_ENVIRONMENT:
            owner = FORK_ENVIRONMENT[name]
            return [f"{name}: no released vLLM reads it, it belongs to {owner}; start that build with --vllm-command"]
        return [self._unknown(name, f"env:{name}", [f"env:{known}" for known in self.environment])]

    def _unknown(self, shown: str, key: str, known: Mapping[str, Flag] | Sequence[str]) -> str:
        kind = "environment variable " if key.startswith("env:") else ""
        successor = _SUCCESSORS.get(key)
        if successor is None:
            near = get_close_matches(key, list(known), n=1, cutoff=0.75)
            successor = f"did you mean {near[0].removeprefix('env:')}?" if near else ""
        hint = f"; {successor}" if successor else ""
        return f"{kind}{shown}: unknown to vLLM {self.version}{hint}"


_KINDS = {
    "bool": "true or false",
    "switch": "true",
    "int": "a whole number",
    "float": "a number",
    "json": "a mapping",
    "str": "text or a number",
}


def _space_arguments(space: Space) -> Iterator[tuple[str, object]]:
    yield from space.base_arguments.items()
    for parameter in space.parameters:
        if parameter.target and not parameter.target.startswith("env:"):
            if isinstance(parameter.domain, Choice):
                yield from ((parameter.target, value) for value in _plain_values(parameter))
            else:
                yield (
                    parameter.target,
                    parameter.domain.low if not parameter.domain.integer else int(parameter.domain.low),
                )
        for group in _groups(parameter, "arguments"):
            yield from group.items()
    yield from ((derived.target, UNSET) for derived in space.derived if not derived.target.startswith("env:"))


def _space_environment(space: Space) -> Iterator[str]:
    yield from space.base_environment
    for parameter in space.parameters:
        if parameter.target.startswith("env:"):
            yield parameter.target.removeprefix("env:")
        for group in _groups(parameter, "environment"):
            yield from group
    yield from (derived.target[4:] for derived in space.derived if derived.target.startswith("env:"))


def _groups(parameter: Parameter, key: str) -> Iterator[Mapping[str, Json]]:
    """The arguments or environment that choices of the parameter set beside, or instead of, its own target."""
    if isinstance(parameter.domain, Choice) and not parameter.target:
        for value in parameter.domain.values.values():
            group = value.get(key) if isinstance(value, Mapping) else None
            if isinstance(group, Mapping):
                yield group


def _plain_values(parameter: Parameter) -> Iterator[object]:
    if isinstance(parameter.domain, Choice):
        yield from parameter.domain.values.values()


def _among(value: object, choices: Sequence[Json]) -> bool:
    """As vLLM compares: case and dashes do not count."""
    return _folded(value) in {_folded(choice) for choice in choices}


def _folded(value: object) -> str:
    return str(value).lower().replace("-", "_")


def _is_number(value: object, *, whole: bool) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return True
    if isinstance(value, float):
        return not whole or value.is_integer()
    return isinstance(value, str) and len(value) < 40 and _NUMBER.fullmatch(value) is not None


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return repr(text[:60])


def _listed(choices: Sequence[Json]) -> str:
    names = [str(choice) for choice in choices]
    return ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:12])} and {len(names) - 12} more"


def _mapping(value: object) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _sequence(value: object) -> tuple[Json, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _unique(lines: list[str]) -> list[str]:
    return list(dict.fromkeys(lines))
