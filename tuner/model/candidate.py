"""One configuration of vLLM, as asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.model.json import Json, Scalar, canonical

__all__ = ["Candidate", "Exclusion", "render_flags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What one trial asks vLLM for.

    Attributes:
        assignment: parameter name → what the sampler chose (a number, a bool, or a choice's label).
            Parameters whose ``when`` is false are absent. The baseline's assignment is empty.
        arguments: flag without dashes (``max-num-seqs``), or dotted path into a JSON flag
            (``compilation-config.cudagraph_mode``) → value. Base arguments, derived values included.
            Host, port and the API key are the launcher's and never stand here. ``model`` stands here only
            where the candidate serves another checkpoint than the study's own.
        environment: variables that the server process needs beyond the study's own.
        origin: where it came from: ``baseline``, ``start:<name>``, ``search``, ``plainer``,
            ``confirm``, ``user``.
    """

    assignment: Mapping[str, Scalar]
    arguments: Mapping[str, Json]
    environment: Mapping[str, str] = field(default_factory=dict)
    origin: str = "search"

    @property
    def key(self) -> str:
        """Identity of what is asked for: same arguments and environment, same key (12 hex digits)."""
        text = canonical({"arguments": dict(self.arguments), "environment": dict(self.environment)})
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def checkpoint(self) -> str:
        """The checkpoint to serve in place of the study's own (hub id or folder); empty for the study's own."""
        model = self.arguments.get("model")
        return model if isinstance(model, str) else ""

    def nested(self) -> dict[str, Json]:
        """Arguments with dotted paths folded into dicts, as ``vllm serve --config`` wants them."""
        out: dict[str, Json] = {}
        # Whole objects first, so that a dotted path refines them whichever was written first.
        for path, value in sorted(self.arguments.items(), key=lambda item: item[0].count(".")):
            *heads, last = path.split(".")
            node = out
            for step in heads:
                child = node.get(step)
                node[step] = fresh = dict(child) if isinstance(child, Mapping) else {}
                node = fresh
            node[last] = value
        return {name: out[name] for name in dict.fromkeys(path.split(".")[0] for path in self.arguments)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Why a candidate is not launched at all.

    Attributes:
        reason: one sentence with its numbers.
        rule: short stable name of the rule (``block-size``, ``memory``, ``flag-unknown``).
        source: where the rule comes from (file and function of vLLM, a page, a measurement).
        violation: how far off, in the rule's own unit over its limit (> 0); 1.0 where no number is known.
    """

    reason: str
    rule: str
    source: str = ""
    violation: float = 1.0


def render_flags(candidate: Candidate) -> list[str]:
    """Command-line arguments for ``vllm serve``: ``--no-x`` for false, JSON for dicts, repeats for lists.

    The checkpoint is none of them: it is the positional argument of ``vllm serve``.
    """
    flags: list[str] = []
    for name, value in candidate.nested().items():
        if name == "model":
            continue
        option = f"--{name}"
        if value is True:
            flags.append(option)
        elif value is False:
            flags.append(f"--no-{name}")
        elif value is None:
            continue
        elif isinstance(value, Mapping):
            flags += [option, canonical(value)]
        elif isinstance(value, list | tuple):
            flags += [option, *(str(item) for item in value)]
        else:
            flags += [option, str(value)]
    return flags
