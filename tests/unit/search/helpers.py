"""A small space and a planner that needs nothing else of the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.expression import Expression
from tuner.model.hardware import Hardware
from tuner.model.json import Json, Scalar, canonical
from tuner.model.llm import ModelFacts
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.space import UNSET, Choice, Parameter, Range, Space
from tuner.model.workload import Objective, Workload
from tuner.search.conditions import Conditions
from tuner.search.distributions import encodings
from tuner.search.encoder import Encoder


def small_space(**changes: object) -> Space:
    """Five parameters of vLLM's: numbers on a log scale, a label set, an ordinal one, a conditional one."""
    fields: dict[str, object] = {
        "name": "small",
        "hardware": Hardware(
            name="h200", platform="cuda", device="H200", memory_gib=140, bandwidth_gb_s=4800, tflops={"bf16": 990}
        ),
        "model": ModelFacts(
            name="m", layers=48, hidden=2048, heads=32, kv_heads=4, head_dim=128, vocab=151936, max_position=40960,
            weight_bytes=6e10, kv_bytes_per_token={"auto": 98304.0, "fp8": 49152.0},
        ),
        "parameters": (
            Parameter(name="max_num_seqs", target="max-num-seqs", default=256,
                      domain=Choice(values={str(2**k): 2**k for k in range(4, 12)}, ordinal=True)),
            Parameter(name="max_num_batched_tokens", target="max-num-batched-tokens",
                      domain=Range(low=1024, high=16384, step=1024)),
            Parameter(name="attention_backend", target="attention-backend",
                      domain=Choice(values={"auto": UNSET, "FLASH_ATTN": "FLASH_ATTN", "BROKEN": "BROKEN"})),
            Parameter(name="spec_method", target="speculative-config.method",
                      domain=Choice(values={"off": UNSET, "ngram": "ngram"})),
            Parameter(name="spec_tokens", target="speculative-config.num_speculative_tokens",
                      domain=Range(low=1, high=8), when=Expression.parse("spec_method == 'ngram'")),
        ),
        "digest": "d1",
    }  # fmt: skip
    return Space(**(fields | changes))  # type: ignore[arg-type]


class SmallPlanner:
    """Renders, prunes by ``when``, excludes what ``excluded`` says; two spellings of a no-op share an identity."""

    def __init__(self, space: Space, excluded: object = None) -> None:
        self.space = space
        self.excluded = excluded or (lambda assignment: False)

    def baseline(self) -> Candidate:
        return Candidate(assignment={}, arguments={}, origin="baseline")

    def starts(self) -> Sequence[Candidate]:
        return ()

    def render(self, assignment: Mapping[str, Scalar], *, origin: str = "search") -> Candidate:
        kept: dict[str, Scalar] = {}
        arguments: dict[str, Json] = {}
        for parameter in self.space.parameters:
            if parameter.name not in assignment:
                continue
            scope = {p.name: None for p in self.space.parameters} | dict(assignment)
            if parameter.when is not None and not parameter.when.holds(scope):
                continue
            kept[parameter.name] = assignment[parameter.name]
            value: object = assignment[parameter.name]
            if isinstance(parameter.domain, Choice):
                value = parameter.domain.values[str(value)]
            if value is not UNSET:
                arguments[parameter.target] = value  # type: ignore[assignment]
        return Candidate(assignment=kept, arguments=arguments, origin=origin)

    def exclusion(self, candidate: Candidate) -> Exclusion | None:
        if self.excluded(candidate.assignment):  # type: ignore[operator]
            return Exclusion(reason="told so", rule="test", violation=2.0)
        return None

    def identity(self, candidate: Candidate) -> str:
        return canonical(dict(candidate.arguments))

    def doubts(self, candidate: Candidate) -> Sequence[float]:
        return ()

    def effective_identity(self, candidate: Candidate, effective: Mapping[str, Json]) -> str:
        return self.identity(candidate)

    def forecast(self, candidate: Candidate) -> Mapping[str, float]:
        return {}

    def numerics(self, candidate: Candidate) -> str:
        return ""


def measured(candidate: Candidate, value: float, seconds: float | None = None) -> Outcome:
    took = {} if seconds is None else {"total": seconds}
    return Outcome(candidate=candidate, status=Status.MEASURED, objective=value, constraints=KEPT, seconds=took)


def broken(candidate: Candidate, kind: str = "cuda-oom") -> Outcome:
    failure = Failure(kind=kind, cause="died", blame=Blame.CONFIGURATION)
    return Outcome(
        candidate=candidate, status=Status.BROKEN, failure=failure, constraints={"start": 1.0, "accuracy": -1.0}
    )


KEPT = {"start": -1.0, "accuracy": -1.0}


def small_encoder(space: Space, workload: Workload | None) -> Encoder:
    """The encoder of a space that :class:`SmallPlanner` plans, for throughput."""
    planner, encoded = SmallPlanner(space), encodings(space)
    conditions = Conditions(encoded, planner)
    return Encoder(space, encoded, conditions=conditions, planner=planner, objective=Objective(), workload=workload)
