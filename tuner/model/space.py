"""A resolved search space: what may vary, what must not, and what follows from what.

Made by :mod:`tuner.spaces` from YAML, hardware and model; bounds are numbers by now, never expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tuner.model.candidate import Candidate
from tuner.model.expression import Expression
from tuner.model.hardware import Hardware
from tuner.model.json import Json, Scalar
from tuner.model.llm import ModelFacts

__all__ = [
    "UNSET",
    "Choice",
    "Derived",
    "Forbid",
    "Parameter",
    "Range",
    "Space",
    "Start",
]


class _Unset:
    """The choice that leaves a flag away, so that vLLM's own default decides."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        step: distance between values (integers: at least 1; floats: None for continuous). With ``log`` and
            ``base`` 2 an integer range is the powers of two times ``low``.
        log: search on a logarithmic scale.
        integer: whole numbers only.
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False
    integer: bool = True
    base: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Named alternatives. Labels are scalars (what Optuna stores); values are any JSON, or UNSET.

    Attributes:
        values: label → value, in order. Where YAML lists bare values, a value is its own label (``32``, ``True``).
        ordinal: the order means something (sizes): neighbours are alike.
    """

    values: Mapping[Scalar, Json | _Unset]
    ordinal: bool = False


Domain: TypeAlias = Range | Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One dimension of the search.

    Attributes:
        name: name in assignments and reports (``max_num_seqs``).
        target: where the value goes: a flag (``max-num-seqs``), a dotted path
            (``speculative-config.num_speculative_tokens``), or ``env:NAME``. A Choice whose values are
            mappings with the key ``arguments`` or ``environment`` may set several (target is then empty).
        domain: its values.
        when: the parameter exists only where this holds; None for always.
        default: what vLLM takes when the flag is left away, in this space's terms (None: unknown).
        numerics: changing it may change the tokens that come out (quantization, KV dtype, kernels).
        recompiles: changing it needs a new compile (the first start of a shape is dearer).
    """

    name: str
    target: str
    domain: Domain
    when: Expression | None = None
    default: Scalar = None
    numerics: bool = False
    recompiles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbid:
    """Candidates for which ``condition`` holds are never launched.

    Attributes:
        violation: graded amount (> 0 where forbidden) if the rule has a number, else None.
    """

    name: str
    condition: Expression
    reason: str
    source: str = ""
    violation: Expression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """An argument that follows from others: set ``target`` to ``value`` where ``when`` holds."""

    target: str
    value: Expression
    when: Expression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A configuration known to be good: tried right after the baseline.

    Attributes:
        assignment: parameter → value or label; parameters left away take their default.
        source: who says so (a recipe, a report).
    """

    name: str
    assignment: Mapping[str, Scalar]
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Everything a study needs to know about what it searches.

    Attributes:
        base_arguments, base_environment: what every candidate carries, the baseline too.
        neutral: rules ``(condition, targets)``: where the condition holds the targets have no effect, so two
            candidates that differ only there are one.
        digest: hash of the resolved content; a study goes on only with the same space.
        checkpoints: facts of the other checkpoints that candidates may serve, by what goes to vLLM as the model.
        constants: parameters of the files that came down to one value: name → value or label, for expressions.
    """

    name: str
    hardware: Hardware
    model: ModelFacts
    base_arguments: Mapping[str, Json] = field(default_factory=dict)
    base_environment: Mapping[str, str] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    forbids: tuple[Forbid, ...] = ()
    derived: tuple[Derived, ...] = ()
    neutral: tuple[tuple[Expression | None, tuple[str, ...]], ...] = ()
    starts: tuple[Start, ...] = ()
    digest: str = ""
    constants: Mapping[str, Scalar] = field(default_factory=dict)
    checkpoints: Mapping[str, ModelFacts] = field(default_factory=dict)

    def served(self, candidate: Candidate) -> ModelFacts:
        """Facts of the checkpoint that the candidate serves."""
        return self.checkpoints.get(candidate.checkpoint, self.model)

    def parameter(self, name: str) -> Parameter:
        """The parameter of that name.

        Raises:
            KeyError: there is none.
        """
        for item in self.parameters:
            if item.name == name:
                return item
        raise KeyError(name)
