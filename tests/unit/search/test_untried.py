"""A label that nobody measured stays worth a trial, however alike its sisters are."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.search.bench_space import Surface, choice, number, space_of
from tests.benchmarks.search.harness import run_search
from tuner.model.space import Parameter, Range

SPEEDS = {"auto": 1.0, "triton": 1.0, "marlin": 1.0, "cutlass": 1.1}


def launched(seed: int, trials: int) -> list[tuple[str, float]]:
    """Three backends do alike, the fourth is a tenth faster: hidden unless it is tried for its own sake."""
    found: list[tuple[str, float]] = []

    def evaluate(setting: object) -> float:
        assert isinstance(setting, dict)
        found.append((str(setting["moe_backend"]), float(setting["max_num_seqs"])))
        return 1000.0 * SPEEDS[found[-1][0]] * found[-1][1] ** 0.05

    parameters = [number("max_num_seqs", 16, 1024, 256, log=True), choice("moe_backend", list(SPEEDS))]
    run_search(
        Surface("labels", space_of("labels", parameters), evaluate, noise=0.005), "tune", seed=seed, trials=trials
    )
    return found


def test_every_label_is_launched_within_thirteen_trials() -> None:
    every = [{label for label, _ in launched(seed, 13)} == set(SPEEDS) for seed in range(6)]
    assert sum(every) >= 4, every


def test_what_is_the_same_to_a_machine_is_not_launched_again() -> None:
    """Hope from noise alone took a third of the launches: 1,024 sequences, then 1,020, then 1,019."""
    tried = launched(0, 16)
    for index, (label, seqs) in enumerate(tried):
        near = [other for known, other in tried[:index] if known == label and abs(other / seqs - 1) < 0.02]
        assert not near, (label, seqs, near)


def test_another_precision_is_tried_before_small_things() -> None:
    """Eight bits are eight bits to the mechanism; the kernels behind two names of them are not."""
    small = [choice(f"small_{index}", ["a", "b", "c"]) for index in range(6)]
    speeds = {"none": 1.0, "int8_per_channel_weight_only": 1.5, "fp8": 2.5}
    parameters = [number("max_num_seqs", 16, 1024, 256, log=True), choice("quantization", list(speeds)), *small]

    def first(seed: int) -> int:
        """The trial in which every precision had been tried."""
        tried: list[str] = []

        def evaluate(setting: object) -> float:
            assert isinstance(setting, dict)
            tried.append(str(setting["quantization"]))
            return 1000.0 * speeds[tried[-1]] * float(setting["max_num_seqs"]) ** 0.3

        run_search(Surface("bits", space_of("bits", parameters), evaluate, noise=0.01), "tune", seed=seed, trials=10)
        return next((n for n in range(1, 11) if set(tried[:n]) == set(speeds)), 99)

    found = [first(seed) for seed in range(4)]
    assert sorted(found)[2] <= 8, found


def test_two_that_are_better_together_alone_are_found_when_nothing_else_helps() -> None:
    """Eight bits are slower without the drafts, and the drafts without eight bits: neither step alone leads there."""

    def first(seed: int) -> int:
        """The trial that had both."""
        tried: list[bool] = []

        def evaluate(setting: object) -> float:
            assert isinstance(setting, dict)
            bits, drafts = setting["quantization"] == "fp8", setting["spec_method"] == "eagle3"
            tried.append(bits and drafts)
            speed = 1.6 if tried[-1] else 0.9 ** (bits + drafts)
            return 1000.0 * speed * (1 + 0.004 * float(setting["stream_interval"]))

        parameters = [
            number("stream_interval", 1, 8, 1),
            choice("quantization", ["none", "fp8", "fp8_per_block", "int8"]),
            choice("spec_method", ["off", "ngram", "eagle3", "suffix"], target="speculative-config.method"),
            choice("attention_backend", ["auto", "FLASHINFER", "TRITON_ATTN"]),
        ]
        run_search(Surface("both", space_of("both", parameters), evaluate, noise=0.01), "tune", seed=seed, trials=24)
        return next((n for n, both in enumerate(tried, 1) if both), 99)

    found = sorted(first(seed) for seed in range(4))
    assert found[2] <= 24, found


def test_what_is_dosed_is_not_tried_value_by_value() -> None:
    """Thirty launches went into a grid of sequences and budgets; the one other setting that helps was never changed."""
    tried: list[str] = []

    def evaluate(setting: object) -> float:
        assert isinstance(setting, dict)
        tried.append(str(setting["gpu_memory_utilization"]))
        off = abs(np.log2(float(setting["max_num_seqs"]) / 256)) + abs(np.log2(float(setting["budget"]) / 4096))
        return 1000.0 * (1.06 if tried[-1] == "0.97" else 1.0) * (1 - 0.05 * off)

    parameters = [
        choice("max_num_seqs", ["32", "64", "128", "256", "512", "1024"], ordinal=True, default="256"),
        choice("budget", ["1024", "2048", "4096", "8192", "16384"], ordinal=True, target="max-num-batched-tokens"),
        choice("gpu_memory_utilization", ["0.85", "0.92", "0.97"], ordinal=True, default="0.92"),
    ]
    run_search(Surface("grid", space_of("grid", parameters), evaluate, noise=0.005), "tune", seed=0, trials=16)
    assert "0.97" in tried


def test_what_the_server_sizes_itself_may_stay_away() -> None:
    """A setting without a default is one that the server fits to the rest: any value that is asked for may be worse.

    Every candidate used to ask for one, and the best one (none) was never seen again after the defaults.
    """
    parameters = [
        number("lanes", 1, 64, 4, log=True),
        Parameter(name="layers", target="layers", domain=Range(low=24, high=49, integer=True)),
    ]

    def evaluate(setting: object) -> float:
        assert isinstance(setting, dict)
        asked = setting.get("layers")
        tried.append(asked is not None)
        fitted = 48 - float(setting["lanes"]) / 16
        layers = fitted if asked is None else float(asked)
        return 100 * float(setting["lanes"]) ** 0.3 * (layers / 49) ** 4 * (0.2 if layers > fitted else 1.0)

    for seed in range(3):
        tried: list[bool] = []
        result = run_search(
            Surface("fitted", space_of("fitted", parameters), evaluate, noise=0.01), "tune", seed=seed, trials=12
        )
        assert 3 <= tried.count(False) <= 11, tried
        assert max(result.best) > 0.9 * 100 * 64**0.3 * (44 / 49) ** 4
