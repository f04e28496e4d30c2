"""What the mechanism makes of a model's files: their bits, and the cache beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.search.helpers import SmallPlanner, small_space
from tuner.model.candidate import Candidate
from tuner.model.json import Json
from tuner.model.llm import ModelFacts
from tuner.model.space import Space
from tuner.model.workload import LoadPoint, Objective, Workload
from tuner.search.conditions import Conditions
from tuner.search.distributions import encodings
from tuner.search.encoder import Encoder
from tuner.search.knobs import KNOBS, Defaults, read_knobs
from tuner.search.mechanism import StepModel

WORKLOAD = Workload(name="w", input_tokens=1024, output_tokens=1024, points=(LoadPoint(concurrency=4096),))


def of(model: ModelFacts, **hardware: object) -> Space:
    space = small_space()
    return replace(space, model=model, hardware=replace(space.hardware, **hardware))  # type: ignore[arg-type]


def row(space: Space, forecast: Mapping[str, float] | None = None, **arguments: Json) -> dict[str, float]:
    spelled = {name.replace("_", "-"): value for name, value in arguments.items()}
    found = read_knobs(Candidate(assignment={}, arguments=spelled), Defaults.of(space), forecast)
    return dict(zip(KNOBS, found, strict=True))


def batch(space: Space, forecast: Mapping[str, float] | None = None, **arguments: Json) -> float:
    asked = row(space, forecast, max_num_seqs=4096, **arguments)
    return float(StepModel(space, WORKLOAD, per_step=False).batch(np.array([[*asked.values()]]))[0])


PLAIN = replace(small_space().model, intermediate=6144)


@pytest.mark.parametrize(
    ("quantization", "share"), [("fp8", 0.5), ("compressed-tensors", 0.5), ("mxfp4", 0.265), ("awq", 0.26)]
)
def test_files_that_are_quantised_are_as_large_as_they_are(quantization: str, share: float) -> None:
    """A checkpoint of 60 GB in 4 bits is no model of 15 GB: nobody divides its size again."""
    stored = replace(PLAIN, quantization=quantization, weight_bytes=share * PLAIN.weight_bytes)
    asked = {"fp8": "fp8", "compressed-tensors": "fp8", "mxfp4": "mxfp4", "awq": "awq"}[quantization]
    assert batch(of(stored)) == pytest.approx(batch(of(PLAIN), quantization=asked), rel=0.01)
    assert batch(of(replace(stored, weight_bytes=PLAIN.weight_bytes))) == pytest.approx(batch(of(PLAIN)))


def test_another_checkpoint_is_as_large_as_its_files() -> None:
    """And is computed as its format says: embeddings in 16 bits make no 16-bit arithmetic, few layers no 8-bit one."""
    eight = replace(PLAIN, name="org/m-FP8", quantization="compressed-tensors", weight_bytes=0.8 * PLAIN.weight_bytes)
    small = replace(PLAIN, name="org/small", weight_bytes=0.45 * PLAIN.weight_bytes)
    space = replace(of(PLAIN), checkpoints={"org/m-FP8": eight, "org/small": small})
    bits = [
        (found["weight_bits"], found["format_bits"])
        for found in (row(space, **asked) for asked in ({}, {"model": "org/m-FP8"}, {"model": "org/small"}))
    ]
    assert bits == [(16, 16), (pytest.approx(12.8), 8), (pytest.approx(7.2), 16)]
    assert row(space, model="org/small", quantization="fp8")["format_bits"] == 8
    # Beside quantised files the other ones are larger, whatever the format is called.
    beside = replace(
        of(replace(PLAIN, quantization="quark")), checkpoints={"org/m-16": replace(PLAIN, name="org/m-16")}
    )
    assert row(beside)["weight_bits"] == 8
    assert row(beside, model="org/m-16")["weight_bits"] == 8, "as many bytes as the study's own"


def test_a_latent_cache_is_kept_by_every_tensor_rank() -> None:
    """DeepSeek on eight ranks holds the cache eight times; four KV heads are shared by four ranks at most."""
    latent = replace(PLAIN, kv_heads=128, mla_rank=576, kv_bytes_per_token={}, weight_bytes=1e9)
    heads = replace(PLAIN, weight_bytes=1e9)
    # Nearly nothing but the cache takes memory here.
    for model, most in ((latent, 1.0), (heads, 4.0)):
        rooms = []
        for ranks in (1, 4, 8):
            asked = row(of(model), tensor_parallel_size=ranks)
            rooms.append(float(StepModel(of(model), WORKLOAD, per_step=False)._cache(np.array([[*asked.values()]]))[0]))
        assert rooms[1] / rooms[0] == pytest.approx(most, rel=0.05)
        assert rooms[2] / rooms[0] == pytest.approx(most, rel=0.05)


RECKONED = {"model-gib": 40.0, "kv-cache-tokens": 500_000.0}


class TestForecast:
    """What the planner reckons of vLLM's memory is within two per cent of what it reports; the shape alone is not."""

    def test_it_is_believed(self) -> None:
        found = row(of(PLAIN), RECKONED)
        assert (found["weight_gib"], found["kv_room"]) == (40.0, 500_000.0)
        # 500,000 tokens hold 244 requests of 2,048 tokens; the batch is a soft minimum.
        assert batch(of(PLAIN), RECKONED) == pytest.approx(244, rel=0.02)

    def test_what_lies_on_the_host_is_read_all_the_same(self) -> None:
        assert row(of(PLAIN), {"model-gib": 15.0}, cpu_offload_gb=25)["weight_gib"] == 40
        assert row(of(PLAIN), cpu_offload_gb=25)["weight_gib"] == 0

    def test_a_size_that_is_asked_for_is_no_matter_of_reckoning(self) -> None:
        assert batch(of(PLAIN), RECKONED, ctx_size=204_800) == pytest.approx(100, rel=0.02)

    @pytest.mark.parametrize(("certain", "room"), [(True, 500_000.0), (False, 0.0)])
    def test_of_a_trial_command_nobody_knows_what_it_runs(self, certain: bool, room: float) -> None:
        class Reckoning(SmallPlanner):
            def forecast(self, candidate: Candidate) -> Mapping[str, float]:
                return RECKONED

        space = of(PLAIN)
        planner, encoded = Reckoning(space), encodings(space)
        encoder = Encoder(
            space,
            encoded,
            conditions=Conditions(encoded, planner),
            planner=planner,
            objective=Objective(),
            workload=WORKLOAD,
            certain=certain,
        )
        assert encoder.rows([{}]).knobs[0, KNOBS.index("kv_room")] == room


def test_a_shape_without_its_mlp_says_too_little_of_the_size() -> None:
    """Users who state layers and widths alone get a size without two thirds of the model."""
    dense = replace(PLAIN, layers=64, hidden=5120, heads=40, kv_heads=8, intermediate=0)
    small, whole = replace(dense, weight_bytes=11e9), replace(dense, weight_bytes=65e9)
    sizes = [StepModel(of(model), WORKLOAD, per_step=False)._weight_bytes for model in (small, whole)]
    assert sizes[0] == pytest.approx(46e9, rel=0.05)
    assert sizes[1] == 65e9
