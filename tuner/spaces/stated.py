"""What runs where a flag is left away: a program's stated defaults, or vLLM's own.

With a trial command the ``default`` of a parameter is what its program takes, so whatever is worked out from vLLM's
flag names has to count with it. vLLM takes its own default, whatever a file states: there a wrong one is a slip.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.model.candidate import Candidate
from tuner.model.expression import Expression
from tuner.model.json import Json
from tuner.model.space import UNSET, Parameter, Range, Space
from tuner.spaces.domains import CHECKPOINT, settings
from tuner.spaces.identity import under
from tuner.spaces.scope import holds
from tuner.spaces.yamlfile import Located, Problem, plain

__all__ = ["Stated", "other_than_vllm", "running", "stated_by"]

_VLLM: Mapping[str, Json] = {
    "tensor-parallel-size": 1,
    "pipeline-parallel-size": 1,
    "data-parallel-size": 1,
    "prefill-context-parallel-size": 1,
    "decode-context-parallel-size": 1,
    "gpu-memory-utilization": 0.92,
    "kv-cache-dtype": "auto",
    "cpu-offload-gb": 0,
    "stream-interval": 1,
}
"""Fields of vllm/config whose default is one value in every version and on every machine; others are worked out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """The flags that a parameter's ``default`` stands for, while the parameter exists and nothing is chosen for it."""

    name: str
    arguments: Mapping[str, Json]
    when: Expression | None = None


def stated_by(parameter: Parameter, node: Located) -> Stated | None:
    """What the parameter's default means in flags; None where it says nothing of one."""
    default, domain, target = parameter.default, parameter.domain, parameter.target
    arguments: Mapping[str, Json] = {}
    if target == CHECKPOINT or target.startswith("env:"):
        return None
    if default is None:
        # A default that is none of the values is what runs all the same.
        given = plain(node.get("default"))
        if target and given is not None and not isinstance(given, list | dict):
            arguments = {target: given}
    elif isinstance(domain, Range):
        arguments = {target: default}
    elif domain.values[default] is not UNSET:
        arguments, _ = settings(parameter, default)
    return Stated(name=parameter.name, arguments=arguments, when=parameter.when) if arguments else None


def running(candidate: Candidate, stated: Sequence[Stated], scope: Mapping[str, object]) -> Candidate:
    """The candidate with the stated defaults in place of flags that it leaves away.

    Args:
        scope: what expressions see of the candidate.
    """
    arguments = dict(candidate.arguments)
    for item in stated:
        if item.name not in candidate.assignment and holds(item.when, scope):
            arguments |= {name: value for name, value in item.arguments.items() if not under(name, arguments)}
    return dataclasses.replace(candidate, arguments=arguments)


def other_than_vllm(space: Space, declared: Mapping[str, Located], own: Collection[str]) -> Iterator[Problem]:
    """Defaults of the users' files that vLLM does not take: the baseline would be thought of as what it is not."""
    for parameter in space.parameters:
        entry = declared[parameter.name].get("default")
        if entry is None or entry.file not in own or isinstance(entry.value, list | dict):
            continue
        stated, target = stated_by(parameter, declared[parameter.name]), parameter.target
        value = stated.arguments.get(target) if stated is not None else None
        if value is None:
            continue
        if target in _VLLM and not under(target, space.base_arguments) and value != _VLLM[target]:
            yield entry.problem(
                f"parameters.{parameter.name}.default",
                f"vLLM takes {target} {_VLLM[target]} where the flag is left away, not {value}; write `default: "
                f"{_VLLM[target]}`, or give the baseline yours with `arguments: {{{target}: {value}}}` (with "
                "--trial-command it is the default of that program)",
            )
