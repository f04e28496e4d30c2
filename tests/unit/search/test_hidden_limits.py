"""What cannot start is not written anywhere: the search has to find it out, and then to keep off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks.search.bench_space import choice, space_of
from tests.unit.search.helpers import SmallPlanner, broken, measured, small_space
from tuner.model.candidate import Candidate
from tuner.model.json import Scalar
from tuner.model.space import UNSET, Choice, Parameter, Range
from tuner.search import OptunaOptimizer
from tuner.search.distributions import encodings
from tuner.search.feasibility import Suspects, suspect_model

SPACE = small_space(
    parameters=(
        Parameter(name="max_num_seqs", target="max-num-seqs", default=64, domain=Range(low=4, high=1024, log=True)),
        Parameter(
            name="gpu_memory_utilization",
            target="gpu-memory-utilization",
            default=0.9,
            domain=Range(low=0.4, high=0.98, step=0.02, integer=False),
        ),
        Parameter(
            name="quantization",
            target="quantization",
            domain=Choice(values={"none": UNSET, "fp8": "fp8", "awq": "awq"}),
        ),
        Parameter(name="kv_cache_dtype", target="kv-cache-dtype", domain=Choice(values={"auto": UNSET, "fp8": "fp8"})),
        Parameter(
            name="attention_backend",
            target="attention-backend",
            domain=Choice(values={"auto": UNSET, "TRITON_ATTN": "TRITON_ATTN", "FLASHINFER": "FLASHINFER"}),
        ),
        Parameter(
            name="async_scheduling", target="async-scheduling", domain=Choice(values={"on": UNSET, "off": False})
        ),
    )
)

Dead = Callable[[Mapping[str, Scalar]], bool]

HIDDEN: dict[str, Dead] = {
    "upper limit near the default": lambda a: float(a.get("max_num_seqs", 64)) > 96,  # type: ignore[arg-type]
    "lower limit": lambda a: float(a.get("gpu_memory_utilization", 0.9)) < 0.8,  # type: ignore[arg-type]
    "dead label": lambda a: a.get("quantization") == "fp8",
    "dead pair": lambda a: a.get("quantization") == "fp8" and a.get("kv_cache_dtype") == "fp8",
}


def worth(assignment: Mapping[str, Scalar]) -> float:
    """What is dead would be the best: more sequences, less memory, FP8 throughout."""
    value = float(assignment.get("max_num_seqs", 64)) ** 0.8  # type: ignore[arg-type]
    value *= 1.3 if assignment.get("quantization") == "fp8" else 1.0
    value *= 1.2 if assignment.get("kv_cache_dtype") == "fp8" else 1.0
    return value * (1.5 - 0.5 * float(assignment.get("gpu_memory_utilization", 0.9)))  # type: ignore[arg-type]


def searched(dead: Dead, trials: int) -> list[bool]:
    """Which of the launches failed, the baseline first; the message says nothing."""
    planner = SmallPlanner(SPACE)
    optimizer = OptunaOptimizer(SPACE, planner, storage="memory://", study_name="s", seed=1, budget_trials=trials)
    failed = []
    for index in range(trials):
        suggestion = optimizer.ask() if index else optimizer.ask("baseline", {})
        candidate = planner.render(suggestion.assignment)
        failed.append(dead(suggestion.assignment))
        outcome = broken(candidate, "crash") if failed[-1] else measured(candidate, worth(suggestion.assignment))
        optimizer.tell(suggestion.number, outcome, {})
    return failed


@pytest.mark.parametrize("what", HIDDEN)
def test_at_most_a_tenth_is_wasted_once_ten_launches_were_seen(what: str) -> None:
    failed = searched(HIDDEN[what], 21)
    assert sum(failed[10:]) <= 1
    assert sum(failed[:10]) <= 4
    assert not any(all(failed[index : index + 3]) for index in range(len(failed) - 2)), "three alike end a study"


ENCODED = encodings(SPACE)
SUSPECTS = Suspects.of(ENCODED)
NAMES = list(ENCODED)


def row(**chosen: Scalar) -> list[float]:
    out = []
    for name, item in ENCODED.items():
        value = chosen.get(name, item.default)
        code = item.unit(value) if item.ordered else item.position(value)
        out.append(float(code or 0))
    return out


def chances(
    failures: list[list[float]],
    successes: list[list[float]],
    asked: list[list[float]],
    *,
    causes: list[str] | None = None,
) -> list[float]:
    rows = np.array([*failures, *successes])
    failed = np.arange(len(rows)) < len(failures)
    causes = causes or ["crash"] * len(failures)
    model = suspect_model(SUSPECTS, rows, failed, causes, causes=causes)
    return [float(chance) for chance in model.chance(np.array(asked))]


def test_one_limit_in_common_outweighs_a_label_for_each_failure() -> None:
    failures = [
        row(max_num_seqs=430, quantization="awq"),
        row(max_num_seqs=290, quantization="fp8", attention_backend="FLASHINFER"),
        row(max_num_seqs=160, kv_cache_dtype="fp8", attention_backend="TRITON_ATTN"),
    ]
    beyond, below, label = chances(
        failures, [row()], [row(max_num_seqs=500), row(max_num_seqs=70), row(quantization="fp8")]
    )
    assert beyond < 0.3
    assert below > 0.8
    assert label > 0.6


def test_many_dead_labels_do_not_condemn_the_default_that_stood_beside_them() -> None:
    failures = [row(quantization="awq"), row(attention_backend="FLASHINFER"), row(quantization="fp8")] * 2
    alive, dead = chances(
        failures,
        [row(), row(max_num_seqs=32)],
        [row(max_num_seqs=48), row(quantization="awq")],
        causes=["no weights", "no kernel", "no support"] * 2,
    )
    assert alive > 0.8
    assert dead < 0.1


def test_a_limit_between_two_trials_is_closed_in_on() -> None:
    first = chances([row(max_num_seqs=512)], [row()], [row(max_num_seqs=n) for n in (70, 256, 1024)])
    assert first == sorted(first, reverse=True)
    assert first[0] > 0.9
    later = chances([row(max_num_seqs=512)], [row(), row(max_num_seqs=300)], [row(max_num_seqs=n) for n in (256, 512)])
    assert later[0] > 0.9, "what is less than what started will start"
    assert later[1] < 0.4


def test_a_word_that_ends_like_out_of_memory_does_not_name_it() -> None:
    assert SUSPECTS.named(["boom", "no room"]).max() == 1.0
    assert SUSPECTS.named(["CUDA OOM"]).max() > 1.0


def test_what_was_not_asked_for_proves_little() -> None:
    """The default is written down as 64, but the server that started may have chosen 16 by itself."""
    failures = [row(max_num_seqs=n) for n in (32, 48, 40)]
    rows = np.array([*failures, row()])
    failed = np.array([True, True, True, False])
    implied = np.zeros(rows.shape, dtype=bool)
    implied[3] = True
    causes = ["crash"] * 3
    trusted = suspect_model(SUSPECTS, rows, failed, causes, causes=causes)
    doubted = suspect_model(SUSPECTS, rows, failed, causes, causes=causes, implied=implied)
    asked = np.array([row(max_num_seqs=50)])
    assert doubted.chance(asked)[0] < trusted.chance(asked)[0]


class _Doubtful(SmallPlanner):
    """Knows that there cannot be more ranks than devices, and does not forbid it."""

    def doubts(self, candidate: Candidate) -> Sequence[float]:
        ranks = [int(str(candidate.arguments.get(f"{kind}-parallel-size", 1))) for kind in ("tensor", "data")]
        return [0.995 if ranks[0] * ranks[1] > self.space.hardware.count else 0.0]


class TestKnownContradictions:
    """What vLLM is known to refuse is not launched, until a server starts in spite of it."""

    SPACE = small_space(
        parameters=tuple(
            Parameter(
                name=name, target=name.replace("_", "-"), default=default,
                domain=Choice(values={str(n): n for n in (1, 2, 4, 8)}, ordinal=True),
            )
            for name, default in (("tensor_parallel_size", "8"), ("data_parallel_size", "1"))
        ),
        hardware=replace(small_space().hardware, count=8),
    )  # fmt: skip

    def asked(self, *, fork: bool) -> list[int]:
        """Ranks of each suggestion; more devices are better, and a fork runs any number of ranks."""
        planner = _Doubtful(self.SPACE)
        optimizer = OptunaOptimizer(self.SPACE, planner, storage="memory://", study_name="s", seed=1)
        out = []
        for index in range(8):
            suggestion = optimizer.ask() if index else optimizer.ask("baseline", {})
            if fork and index == 1:
                optimizer.tell(suggestion.number, measured(planner.render(suggestion.assignment), 1.0), {})
                suggestion = optimizer.ask("user", {"tensor_parallel_size": "8", "data_parallel_size": "4"})
            taken = {"tensor_parallel_size": "8", "data_parallel_size": "1", **suggestion.assignment}
            out.append(int(str(taken["tensor_parallel_size"])) * int(str(taken["data_parallel_size"])))
            candidate = planner.render(suggestion.assignment)
            dead = out[-1] > 8 and not fork
            optimizer.tell(suggestion.number, broken(candidate) if dead else measured(candidate, float(out[-1])), {})
        return out

    def test_more_ranks_than_devices(self) -> None:
        assert max(self.asked(fork=False)) <= 8

    def test_a_fork_that_can_is_believed(self) -> None:
        assert max(self.asked(fork=True)[2:]) > 8


def test_a_failure_that_contains_no_suspect_accuses_nobody() -> None:
    """Nothing asked for and no default known: its share of the blame was 0 of 0, which spoiled every score."""
    rows = np.array([row(max_num_seqs=50), np.full(len(row()), -2.0), row()])
    failed = np.array([True, True, False])
    model = suspect_model(SUSPECTS, rows, failed, ["boom", "boom"], causes=["a", "b"])
    alone = suspect_model(SUSPECTS, rows[[0, 2]], failed[[0, 2]], ["boom"], causes=["a"])
    asked = np.array([row(max_num_seqs=50), row()])
    assert np.isfinite(model.chance(asked)).all()
    assert model.chance(asked) == pytest.approx(alone.chance(asked), abs=0.05)


def told(
    failures: list[tuple[list[float], str]], successes: list[list[float]], asked: list[list[float]]
) -> list[float]:
    """Chances of starting where failures speak."""
    rows = np.array([*(found for found, _ in failures), *successes])
    messages = [message for _, message in failures]
    model = suspect_model(SUSPECTS, rows, np.arange(len(rows)) < len(failures), messages, causes=messages)
    return [float(chance) for chance in model.chance(np.array(asked))]


def test_a_message_that_names_two_settings_accuses_them_together() -> None:
    """Drafts that cannot start beside a pipeline are not given up without it."""
    failure = row(quantization="awq", kv_cache_dtype="fp8")
    message = "NotImplementedError: KV cache dtype fp8 is not supported with quantized weights (awq)"
    both, alone = told([(failure, message)], [row()], [failure, row(quantization="awq")])
    assert both < 0.3
    assert alone > 0.6
    silent = chances([failure], [row()], [row(quantization="awq")])[0]
    assert alone > silent


def test_a_message_that_prints_all_settings_accuses_no_two_of_them() -> None:
    failure = row(quantization="awq", kv_cache_dtype="fp8", attention_backend="TRITON_ATTN", max_num_seqs=430)
    message = "args: quantization=awq, kv_cache_dtype=fp8, attention_backend=TRITON_ATTN, max_num_seqs=430: failed"
    named, plain = (suspect_model(SUSPECTS, np.array([failure, row()]), np.array([True, False]), [text])
                    for text in (message, "failed"))  # fmt: skip
    assert named.pair.max(initial=0.0) == pytest.approx(plain.pair.max(initial=0.0), abs=0.02)


def test_a_label_is_suspected_where_its_parameter_is_named() -> None:
    """``VLLM_CPU_OMP_THREADS_BIND has 2 groups for 4 ranks`` names no label, but whose label it is."""
    failure = row(quantization="awq", attention_backend="TRITON_ATTN")
    (weights, kernel) = told(
        [(failure, "ValueError: no kernel of this quantization here")],
        [row()],
        [row(quantization="awq"), row(attention_backend="TRITON_ATTN")],
    )
    assert weights < kernel - 0.1


def test_the_default_of_a_few_sizes_may_be_dead_beside_something_else() -> None:
    sized = choice("tensor_parallel_size", ["1", "2", "4"], ordinal=True)
    encoded = encodings(space_of("pair", [sized, choice("bind", ["auto", "per_node"])]))
    one, two, auto, node = 0.0, 0.5, 0.0, 1.0
    rows = np.array([[one, node], [one, node], [one, auto], [two, node], [two, node]])
    failed = np.array([True, True, False, False, False])
    model = suspect_model(Suspects.of(encoded), rows, failed, ["crash"] * 2, causes=["crash"] * 2)
    again, other = model.chance(np.array([[one, node], [two, node]]))
    assert again < 0.3
    assert other > 0.75


class TestSisters:
    """Two kernels of one library that is not installed, two transports of another: one failure speaks of both."""

    LABELS = ("allgather", "mori_high_throughput", "mori_low_latency", "deepep_high_throughput", "deepep_low_latency")

    def chances(self, message: str) -> dict[str, float]:
        parameter = Parameter(
            name="all2all",
            target="all2all-backend",
            default="allgather",
            domain=Choice(values={x: x for x in self.LABELS}),
        )
        encoded = encodings(small_space(parameters=(parameter,)))
        rows = np.array([[0.0], [1.0]])
        model = suspect_model(Suspects.of(encoded), rows, np.array([False, True]), [message], causes=[message])
        return dict(zip(self.LABELS, model.chance(np.arange(len(self.LABELS), dtype=float)[:, None]), strict=True))

    def test_a_library_that_is_missing_is_missing_for_both(self) -> None:
        chances = self.chances("ImportError: MoRI is not installed: No module named 'mori'")
        assert chances["mori_low_latency"] < 0.65
        assert chances["deepep_low_latency"] > 0.75
        assert chances["allgather"] > 0.99

    def test_a_message_that_names_the_label_alone_accuses_the_label_alone(self) -> None:
        chances = self.chances("mori_high_throughput needs two nodes")
        assert chances["mori_high_throughput"] < 0.3
        assert chances["mori_low_latency"] > 0.75

    def test_what_a_message_recommends_is_not_accused(self) -> None:
        chances = self.chances("mori_high_throughput needs two nodes; use mori_low_latency on one")
        assert chances["mori_low_latency"] > 0.75

    def test_a_word_that_happens_to_be_said_accuses_nobody(self) -> None:
        chances = self.chances("latency of the link is too high")
        assert chances["mori_low_latency"] > 0.75

    def test_what_every_label_shares_is_no_family(self) -> None:
        kernels = Parameter(
            name="kernel", target="kernel", domain=Choice(values={x: x for x in ("rocm_a", "rocm_b", "rocm_c")})
        )
        assert Suspects.of(encodings(small_space(parameters=(kernels,)))).sisters == ()
