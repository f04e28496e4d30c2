"""The parts of the default search: knobs, mechanism, process, feasibility."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.search.helpers import small_space
from tuner.model.candidate import Candidate
from tuner.model.json import Json
from tuner.model.space import Parameter, Range, Space
from tuner.model.workload import LoadPoint, Workload
from tuner.search.distributions import encodings
from tuner.search.feasibility import Suspects, suspect_model
from tuner.search.gaussian import Process, similarities
from tuner.search.knobs import KNOBS, Defaults, read_knobs, varies_knobs
from tuner.search.mechanism import StepModel

_SPLITS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
WORKLOAD = Workload(name="w", input_tokens=128, output_tokens=300, points=(LoadPoint(concurrency=1024),))


def knobs(**arguments: Json) -> dict[str, float]:
    spelled: dict[str, Json] = {name.replace("_", "-"): value for name, value in arguments.items()}
    row = read_knobs(Candidate(assignment={}, arguments=spelled), Defaults())
    return dict(zip(KNOBS, row, strict=True))


class TestKnobs:
    def test_defaults_are_vllms(self) -> None:
        found = knobs()
        assert (found["seqs"], found["capture"], found["graphs"], found["drafts"]) == (256, 512, 2, 0)

    def test_other_engines_say_it_in_their_own_words(self) -> None:
        sglang = knobs(
            max_running_requests=96, chunked_prefill_size=4096, cuda_graph_max_bs=160, mem_fraction_static=0.8,
            tp_size=2, dp_size=4, speculative_algorithm="EAGLE3", speculative_num_steps=3,
            disable_overlap_schedule=True,
        )  # fmt: skip
        vllm = knobs(
            max_num_seqs=96, max_num_batched_tokens=4096, max_cudagraph_capture_size=160, gpu_memory_utilization=0.8,
            tensor_parallel_size=2, data_parallel_size=4, async_scheduling=False,
            speculative_config={"method": "eagle3", "num_speculative_tokens": 3},
        )  # fmt: skip
        assert sglang == vllm
        llama = knobs(
            parallel=6, ubatch_size=512, ctx_size=8192, cache_type_k="q8_0", cache_type_v="q4_0",
            model_draft="draft.gguf", draft_max=4,
        )  # fmt: skip
        assert (llama["seqs"], llama["batched_tokens"], llama["kv_tokens"]) == (6, 512, 8192)
        assert (llama["kv_bits"], llama["drafts"]) == (6, 4)
        assert knobs(cache_type_k="q8_0")["kv_bits"] == knobs(cache_type_k="q8_0", cache_type_v="f16")["kv_bits"] == 12
        assert knobs(cache_type_k="f16", cache_type_v="q5_1")["kv_bits"] == 10.5
        assert knobs(disable_cuda_graph=True)["graphs"] == 0

    def test_a_cache_of_so_many_tokens_bounds_the_batch(self) -> None:
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        room = [
            float(model.batch(np.array([list(knobs(max_num_seqs=512, ctx_size=n).values())]))[0]) for n in (4096, 65536)
        ]
        assert room[0] < room[1] / 8

    def test_spellings(self) -> None:
        found = knobs(max_num_seqs="64", compilation_config={"cudagraph_mode": "PIECEWISE"}, quantization="fp8")
        assert (found["seqs"], found["graphs"], found["weight_bits"]) == (64, 1, 8)

    def test_default_capture_follows_the_batch(self) -> None:
        assert knobs(max_num_seqs=16)["capture"] == 32
        assert knobs(cudagraph_capture_sizes=[1, 2, 96])["capture"] == 96

    def test_eager_has_no_graphs(self) -> None:
        assert knobs(enforce_eager=True)["graphs"] == 0

    def test_speculation(self) -> None:
        assert knobs(speculative_config={"method": "ngram", "num_speculative_tokens": 3})["drafts"] == 3
        assert knobs(speculative_config={"method": "off", "num_speculative_tokens": 3})["drafts"] == 0

    @pytest.mark.parametrize(
        ("bind", "threads"),
        [(None, 7), ("auto", 7), ("nobind", 8), ("0-1", 2), ("0,2,4", 3), ("0-3|4-7", 4), ("nonsense", 7)],
    )
    def test_threads_of_the_cpu_backend(self, bind: str | None, threads: int) -> None:
        environment = {} if bind is None else {"VLLM_CPU_OMP_THREADS_BIND": bind}
        candidate = Candidate(assignment={}, arguments={}, environment=environment)
        row = dict(zip(KNOBS, read_knobs(candidate, Defaults(cores=8)), strict=True))
        assert row["threads"] == threads

    @pytest.mark.parametrize("value", [None, [], "many", float("inf"), -3, True])
    def test_nonsense_is_ignored(self, value: Json) -> None:
        assert knobs(max_num_seqs=value)["seqs"] == 256

    def test_whether_a_space_is_vllms(self) -> None:
        space = small_space()
        assert varies_knobs(space)
        other = tuple(replace(p, name=f"x{i}", target=f"x{i}") for i, p in enumerate(space.parameters))
        assert not varies_knobs(small_space(parameters=other))


def throughput(**arguments: Json) -> float:
    model = StepModel(small_space(), WORKLOAD, per_step=False)
    return float(model.predict(np.array([list(knobs(**arguments).values())]))[0])


class TestMechanism:
    def test_a_batch_beyond_the_graphs_falls_off_a_cliff(self) -> None:
        covered = throughput(max_num_seqs=1024, max_cudagraph_capture_size=1024)
        assert covered > throughput(max_num_seqs=1024, max_cudagraph_capture_size=512) + 0.04

    def test_larger_batches_pay_until_the_load_is_served(self) -> None:
        small, middle = throughput(max_num_seqs=64), throughput(max_num_seqs=256)
        assert middle > small + 0.5
        beyond = [throughput(max_num_seqs=n, max_cudagraph_capture_size=8192) for n in (2048, 4096)]
        assert abs(beyond[0] - beyond[1]) < 0.05

    @pytest.mark.parametrize("platform", ["cuda", "rocm"])
    @pytest.mark.parametrize("bandwidth", [0.0, 4800.0])
    def test_batches_pay_on_a_card_of_unknown_figures(self, bandwidth: float, platform: str) -> None:
        """No FLOPS were taken for a tenth of a TFLOPS: then no batch pays, and small ones are tried first."""
        space = small_space()
        unknown = replace(space.hardware, tflops={}, bandwidth_gb_s=bandwidth, platform=platform)  # type: ignore[arg-type]
        model, sure = (
            StepModel(replace(space, hardware=hardware), WORKLOAD, per_step=False)
            for hardware in (unknown, space.hardware)
        )
        rows = np.array([list(knobs(max_num_seqs=n).values()) for n in (256, 64)])
        assert np.subtract(*model.predict(rows)) > 0.5
        assert model._sigma[1] > sure._sigma[1]

    def test_sixteen_bits_count_whatever_is_listed_first(self) -> None:
        space = small_space()
        listed = replace(space.hardware, tflops={"fp4": 9000.0, "fp8": 1980.0, "bf16": 990.0})
        first, second = (
            StepModel(replace(space, hardware=hardware), WORKLOAD, per_step=False)
            for hardware in (listed, space.hardware)
        )
        assert first._compute == second._compute

    def test_fewer_bits_are_faster(self) -> None:
        assert throughput(quantization="fp8") > throughput()
        assert throughput(kv_cache_dtype="fp8") >= throughput()

    def test_drafts_pay_in_small_batches_only(self) -> None:
        drafts: Json = {"method": "ngram", "num_speculative_tokens": 3}
        alone = throughput(max_num_seqs=1, speculative_config=drafts) - throughput(max_num_seqs=1)
        crowd = throughput(max_num_seqs=512, speculative_config=drafts) - throughput(max_num_seqs=512)
        assert alone > crowd

    def test_coefficients_are_learned(self) -> None:
        """A machine with four times the launch cost is recognised from its uncovered trials."""
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        rows = np.array(
            [
                list(knobs(max_num_seqs=n, max_cudagraph_capture_size=c).values())
                for n in (64, 256, 900)
                for c in (32, 1024)
            ]
        )
        truth = np.zeros(len(model._sigma) + 1)
        truth[3] = np.log(4)
        y = model.predict(rows, truth) + 7.0
        fit = model.fit(rows, y, np.eye(len(y)) / 20**2)
        assert fit.error < 0.05
        assert fit.theta[3] == pytest.approx(np.log(4), abs=0.5)
        assert fit.penalty < 0

    def test_explanations_stay_beside_one_another_until_a_trial_tells(self) -> None:
        """Little gained from 8 to 512 sequences: a slow machine, or a cache that holds few. A trial between can say."""
        model = StepModel(small_space(), None, per_step=False)
        rows = np.array([list(knobs(max_num_seqs=n, max_cudagraph_capture_size=2048).values()) for n in (8, 512, 64)])

        def spread(tried: list[int], y: list[float]) -> float:
            fit = model.fit(rows[tried], np.array(y), np.eye(len(y)) * 0.05**2)
            return float(np.std([model.predict(rows[[2]], draw)[0] + draw[-1] for draw in fit.draws]))

        open_question, settled = spread([0, 1], [0.0, 0.1]), spread([0, 1, 2], [0.0, 0.1, 0.7])
        assert open_question > 0.12
        assert settled < 0.7 * open_question

    @pytest.mark.parametrize(("workload", "certain"), [(None, True), (WORKLOAD, False)])
    def test_long_prompts_are_thinkable_where_nobody_says_what_is_sent(
        self, workload: Workload | None, certain: bool
    ) -> None:
        """The cache holds sixty sequences, more of them thrash, and only crowded batches were tried."""
        told, guessed = (
            StepModel(small_space(), known, per_step=False, certain=sure)
            for known, sure in ((WORKLOAD, True), (workload, certain))
        )
        rows = np.array(
            [list(knobs(max_num_seqs=n, kv_cache_dtype=d).values()) for d in ("auto", "fp8") for n in (256, 512, 1024)]
        )
        few = np.array([list(knobs(max_num_seqs=n, kv_cache_dtype="fp8").values()) for n in (96, 256)])
        capacity = np.where(rows[:, KNOBS.index("kv_bits")] < 16, 110.0, 60.0)
        y = 0.8 * np.log(capacity) - np.log1p(0.25 * np.log2(rows[:, KNOBS.index("seqs")] / capacity))

        def hope(model: StepModel) -> float:
            """The chance that 96 sequences are faster than 256."""
            fit = model.fit(rows, y, np.eye(len(y)) * 0.05**2)
            return float(np.mean([np.subtract(*model.predict(few, draw)) > 0 for draw in fit.draws]))

        assert hope(guessed) >= 0.3
        assert hope(told) <= 0.1

    def test_stages_and_ranks_hold_more_cache(self) -> None:
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        rows = np.array([list(knobs(**{name: 2}).values()) for name in ("block_size", *_SPLITS)])
        one, *split = model._capacity(rows, model._named(None))
        assert all(capacity > 1.9 * one for capacity in split)

    def test_a_slow_link_makes_stages_better_than_ranks(self) -> None:
        space = small_space()
        slow, fast = (
            StepModel(
                replace(space, hardware=replace(space.hardware, count=2, interconnect_gb_s=link)),
                WORKLOAD,
                per_step=False,
            )
            for link in (8.0, 400.0)
        )
        ranks, stages = (
            np.array([list(knobs(max_num_seqs=512, **{f"{kind}_parallel_size": 2}).values())])
            for kind in ("tensor", "pipeline")
        )
        gap = [float(model.predict(ranks)[0] - model.predict(stages)[0]) for model in (slow, fast)]
        assert gap[0] < 0
        assert gap[1] > gap[0] + 0.2


class TestProcess:
    def test_similarity(self) -> None:
        a = np.array([[0.0, 1.0], [0.5, -1.0]])
        alike = similarities(a, a, np.array([False, True]))
        assert alike[0, 0, 0] == 1.0
        assert 0 < alike[0, 0, 1] < 1
        assert alike[1, 0, 1] == 0.0
        assert alike[1, 1, 1] == 1.0  # absent is like absent

    def test_main_effects_of_labels_are_separated(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.integers(0, 3, size=(24, 4)).astype(float)
        y = 0.5 * (x[:, 1] == 2) - 0.3 * (x[:, 3] == 0) + rng.normal(0, 0.01, 24)
        labels = np.ones(4, dtype=bool)
        process = Process.fit(x, y, labels, scale_floor=0.05, noise_guess=0.02, extra=np.zeros(24))
        mean, deviation = process.predict(np.array([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]))
        assert mean[0] - mean[1] == pytest.approx(0.8, abs=0.1)
        assert (deviation < 0.2).all()


class TestFeasibility:
    encoded = encodings(small_space())
    suspects = Suspects.of(encoded)

    def row(self, **chosen: float) -> list[float]:
        base = {"max_num_seqs": 0.5, "max_num_batched_tokens": 0.5, "attention_backend": 0.0, "spec_method": 0.0}
        return [*{**base, **chosen}.values(), -1.0]

    def test_a_dead_label_is_found_and_its_company_cleared(self) -> None:
        rows = [self.row(), self.row(attention_backend=2.0, spec_method=1.0), self.row(spec_method=1.0)]
        model = suspect_model(self.suspects, np.array(rows), np.array([False, True, False]), ["boom"])
        dead, alive = model.chance(np.array([self.row(attention_backend=2.0), self.row(spec_method=1.0)]))
        assert dead < 0.3
        assert alive > 0.9

    def test_the_message_names_the_culprit(self) -> None:
        rows = np.array([self.row(attention_backend=2.0, spec_method=1.0)])
        named = suspect_model(self.suspects, rows, np.array([True]), ["speculative method ngram is not supported"])
        backend, method = named.chance(np.array([self.row(attention_backend=2.0), self.row(spec_method=1.0)]))
        assert method < backend

    def test_the_far_end_of_a_range_is_shunned_after_a_failure_there(self) -> None:
        rows = np.array([self.row(max_num_batched_tokens=0.5), self.row(max_num_batched_tokens=0.95)])
        model = suspect_model(self.suspects, rows, np.array([False, True]), ["CUDA out of memory"])
        near, beyond = model.chance(
            np.array([self.row(max_num_batched_tokens=0.6), self.row(max_num_batched_tokens=1.0)])
        )
        assert beyond < 0.4
        assert near > beyond + 0.3

    def test_the_default_is_trusted_before_any_trial(self) -> None:
        model = suspect_model(self.suspects, np.zeros((0, 5)), np.zeros(0, bool), [])
        assert model.chance(np.array([self.row()]))[0] > 0.8


def _row(**values: float) -> np.ndarray:
    row = dict(zip(KNOBS, read_knobs(Candidate(assignment={}, arguments={}), Defaults()), strict=True))
    return np.array([[*(row | values).values()]])


class TestFrontend:
    """Beside an H200 with 1,024 clients one API server passed on 12,000 tok/s, whatever the GPU could do."""

    FRONTEND = Parameter(name="stream_interval", target="stream-interval", domain=Range(low=1, high=16, log=True))

    def _gain(self, space: Space, **values: float) -> float:
        sparse = replace(space.model, experts=128, experts_per_token=8)
        model = StepModel(replace(space, model=sparse), WORKLOAD, per_step=False)
        fast = {"seqs": 1024.0, "capture": 1024.0, "weight_bits": 8.0, "format_bits": 8.0}
        return float(model.predict(_row(**fast, **values))[0] - model.predict(_row(**fast))[0])

    def test_fewer_chunks_and_more_servers_help_a_fast_engine(self) -> None:
        space = small_space()
        space = replace(space, parameters=(*space.parameters, self.FRONTEND))
        assert self._gain(space, stream=8.0) > 0.2
        assert self._gain(space, stream=8.0, api_servers=4.0) > self._gain(space, stream=8.0)

    def test_where_the_space_cannot_change_it_it_plays_no_part(self) -> None:
        assert self._gain(small_space(), stream=8.0) == 0.0


def test_cpu_threads_speed_up_the_cpu_and_nothing_else() -> None:
    space = small_space()
    cpu = replace(space, hardware=replace(space.hardware, platform="cpu", bandwidth_gb_s=20, tflops={"bf16": 0.5}))
    for where, low, high in ((cpu, 1.3, 2.0), (space, 1.0, 1.0)):
        model = StepModel(where, WORKLOAD, per_step=False)
        ratio = float(np.exp(model.predict(_row(threads=2.0)) - model.predict(_row(threads=1.0)))[0])
        assert low <= ratio <= high


def test_a_candidates_own_checkpoint_has_its_own_precision() -> None:
    known = Defaults(checkpoint_bits={"org/model-FP8": 8.0})
    bits = [
        dict(zip(KNOBS, read_knobs(Candidate(assignment={}, arguments=arguments), known), strict=True))["weight_bits"]
        for arguments in ({}, {"model": "org/model-FP8"}, {"model": "org/other"})
    ]
    assert bits == [16.0, 8.0, 16.0]
