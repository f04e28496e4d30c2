"""What servers say of themselves: read from the trials, and believed by the mechanism."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.search.helpers import small_encoder, small_space
from tests.unit.search.test_models import WORKLOAD, knobs
from tuner.model.json import Json
from tuner.model.outcome import Status
from tuner.model.space import UNSET, Choice, Parameter, Range
from tuner.search.agreement import Agreement
from tuner.search.distributions import encodings
from tuner.search.encoder import Encoder
from tuner.search.engine import EngineReadings
from tuner.search.knobs import KNOBS
from tuner.search.mechanism import StepModel
from tuner.search.observations import Observation
from tuner.search.settings import resolved

DRAFTS: Json = {"method": "ngram", "num_speculative_tokens": 3}


def trial(*, weight: float = 1.0, steps: tuple[tuple[float, float], ...] = (), **metrics: float) -> Observation:
    return Observation(
        number=0,
        assignment={},
        origin="search",
        status=Status.MEASURED,
        value=1.0,
        metrics={f"engine/{name}": value for name, value in metrics.items()},
        steps=steps,
        weight=weight,
    )


def rows(*arguments: dict[str, Json]) -> np.ndarray:
    return np.array([list(knobs(**item).values()) for item in arguments])


class TestReadings:
    def test_what_was_not_said_is_not_known(self) -> None:
        found = EngineReadings.of([trial(), trial(running_mean=90.0, running_max=100.0, kv_usage_max=0.5)])
        assert np.isnan([found.batch[0], found.capacity[0], found.cache[0], found.accepted[0]]).all()
        assert (found.batch[1], found.capacity[1]) == (90.0, 200.0)

    def test_zeros_say_nothing(self) -> None:
        found = EngineReadings.of([trial(running_mean=0.0, running_max=0.0, kv_usage_max=0.0, acceptance_length=0.0)])
        assert np.isnan([found.batch[0], found.capacity[0], found.accepted[0]]).all()

    def test_of_a_full_cache_the_mean_counts(self) -> None:
        """What was admitted into an empty cache is preempted when it fills."""
        found = EngineReadings.of([trial(running_mean=60.0, running_max=400.0, kv_usage_max=1.0)])
        assert found.capacity[0] == 60.0

    def test_the_logs_cache_size(self) -> None:
        seen = replace(trial(), metrics={"effective/kv-cache-tokens": 744_672.0})
        assert EngineReadings.of([seen]).cache[0] == 744_672.0

    def test_earlier_studies_had_other_servers(self) -> None:
        steps = ((1.0, 0.01), (64.0, 0.02))
        found = EngineReadings.of([trial(weight=0.3, running_mean=90.0, steps=steps)])
        assert np.isnan(found.batch[0])
        assert len(found.step_of) == 0

    def test_steps_count_where_the_batch_differed(self) -> None:
        alike = ((255.0, 0.02), (256.0, 0.03))
        apart = ((1.0, 0.01), (1.0, 0.012), (30.0, 0.02), (34.0, 0.03), (16.0, 0.015))
        found = EngineReadings.of([trial(steps=alike), trial(steps=apart)])
        assert found.step_of.tolist() == [1, 1, 1]
        assert found.step_batch.tolist() == [1.0, 16.0, 32.0]
        assert found.step_s.tolist() == pytest.approx([0.011, 0.015, 0.025])


class TestMechanismIsTold:
    def fitted(self, model: StepModel, tried: np.ndarray, y: list[float], *told: Observation) -> np.ndarray:
        """Coefficients that are still possible, one set per row."""
        readings = EngineReadings.of(told) if told else None
        return model.fit(tried, np.array(y), np.eye(len(y)) * 0.05**2, readings).draws

    def test_a_cache_that_holds_sixty_is_known_after_one_trial(self) -> None:
        model = StepModel(small_space(), None, per_step=False)
        tried = rows({"max_num_seqs": 256})
        full = trial(running_mean=55.0, running_max=60.0, kv_usage_max=1.0, preemptions=40.0)

        def batches(*told: Observation) -> np.ndarray:
            return np.array([model.batch(tried, draw)[0] for draw in self.fitted(model, tried, [0.0], *told)])

        unknown, known = (float(np.std(np.log(found))) for found in (batches(), batches(full)))
        assert np.median(batches(full)) == pytest.approx(55, rel=0.25)
        assert known < 0.4
        assert known < 0.65 * unknown

    def test_room_that_was_seen_makes_larger_batches_thinkable(self) -> None:
        """A tenth of the cache in use by 256 sequences: eight times as many have room."""
        model = StepModel(small_space(), None, per_step=False)
        tried, more = rows({"max_num_seqs": 256}), rows({"max_num_seqs": 1024, "max_cudagraph_capture_size": 1024})
        roomy = trial(running_mean=250.0, running_max=256.0, kv_usage_max=0.1)
        draws = self.fitted(model, tried, [0.0], roomy)
        held = np.array([model._capacity(more, model._named(draw))[0] for draw in draws])
        assert np.median(held) == pytest.approx(2560, rel=0.3)

    def test_refused_heads_say_little_of_drafts_that_are_looked_up(self) -> None:
        """A chat model's head may guess badly where answers repeat their prompts."""
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        head = {"method": "eagle3", "num_speculative_tokens": 3}
        tried = rows({"max_num_seqs": 4, "speculative_config": head})
        plain, looked_up = rows({"max_num_seqs": 4}, {"max_num_seqs": 4, "speculative_config": DRAFTS})
        draws = self.fitted(model, tried, [0.0], trial(acceptance_length=1.1))
        gains = [
            np.subtract(*model.predict(np.array([row, plain]), draw)) for row in (tried[0], looked_up) for draw in draws
        ]
        of_head, of_lookup = np.split(np.array(gains), 2)
        assert np.median(of_head) < 0.1
        assert np.median(of_lookup) > np.median(of_head) + 0.2

    def test_drafts_that_are_refused_are_known_by_their_acceptance(self) -> None:
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        tried = rows({"max_num_seqs": 4, "speculative_config": DRAFTS})
        pair = rows({"max_num_seqs": 4, "speculative_config": DRAFTS}, {"max_num_seqs": 4})

        def gain(length: float) -> float:
            draws = self.fitted(model, tried, [0.0], trial(acceptance_length=length))
            return float(np.mean([np.subtract(*model.predict(pair, draw)) for draw in draws]))

        assert gain(1.05) < 0.15
        assert gain(3.5) > gain(1.05) + 0.5

    def test_drafts_count_only_where_there_are_any(self) -> None:
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        tried = rows({"max_num_seqs": 64})
        without = self.fitted(model, tried, [0.0])
        assert np.array_equal(self.fitted(model, tried, [0.0], trial(acceptance_length=3.0)), without)

    def test_steps_at_several_batches_tell_what_a_larger_one_gains(self) -> None:
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        tried = rows({"max_num_seqs": 64, "max_cudagraph_capture_size": 1024})
        more = rows(*({"max_num_seqs": n, "max_cudagraph_capture_size": 1024} for n in (512, 64)))

        def gain(steps: tuple[tuple[float, float], ...]) -> float:
            draws = self.fitted(model, tried, [0.0], trial(steps=steps))
            return float(np.mean([np.subtract(*model.predict(more, draw)) for draw in draws]))

        flat = tuple((float(n), 0.02) for n in (1, 4, 16, 64))
        steep = tuple((float(n), 0.001 * n) for n in (1, 4, 16, 64))
        assert gain(flat) > gain(steep) + 0.3

    def test_the_level_of_the_steps_is_no_news(self) -> None:
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        tried = rows({"max_num_seqs": 64})
        first, slower = (
            self.fitted(model, tried, [0.0], trial(steps=tuple((float(n), s * (1 + n / 9)) for n in (1, 8, 64))))
            for s in (0.01, 0.5)
        )
        assert np.allclose(first, slower, atol=1e-6)

    def test_what_servers_say_is_no_evidence_against_the_mechanism(self) -> None:
        """A cache of a twentieth bends a coefficient; the objective then needs little more bending.

        Two modes explain these trials, and which one is found is a matter of draws: they are two log units apart.
        """
        model = StepModel(small_space(), WORKLOAD, per_step=False)
        tried = rows(*({"max_num_seqs": n} for n in (32, 64, 128, 256, 512)))
        truth = np.zeros(len(model._sigma) + 1)
        truth[6] = math.log(1 / 20)
        y = model.predict(tried, truth)
        told = [trial(running_mean=float(batch), running_max=float(batch)) for batch in model.batch(tried, truth)]
        covariance = np.eye(len(y)) * 0.05**2
        silent = model.fit(tried, y, covariance)
        spoken = model.fit(tried, y, covariance, EngineReadings.of(told))
        assert spoken.penalty > silent.penalty - 2.0
        assert spoken.penalty <= 0.5
        assert spoken.error < 0.1


class TestDefaultsAreReadBack:
    def encoder(self) -> Encoder:
        space = small_space()
        seqs = Parameter(
            name="max_num_seqs", target="max-num-seqs", default=256, domain=Range(low=16, high=2048, log=True)
        )
        space = small_space(parameters=(seqs, *space.parameters[1:]))
        return small_encoder(space, WORKLOAD)

    def ran(self, seqs: int, **changes: object) -> Observation:
        return replace(trial(), resolved={"max_num_seqs": seqs}, **changes)

    def test_the_server_knows_its_default_better_than_the_space(self) -> None:
        encoder = self.encoder()
        stated, asked = encoder.rows([{}, {"max_num_seqs": 1024}]).knobs[:, KNOBS.index("seqs")]
        encoder.correct([self.ran(1024)])
        found = encoder.rows([{}, {"max_num_seqs": 1024}])
        assert (stated, asked) == (256, 1024)
        assert found.knobs[0].tolist() == found.knobs[1].tolist()
        assert found.x[0].tolist() == found.x[1].tolist()

    def test_what_was_asked_for_is_no_default(self) -> None:
        encoder = self.encoder()
        encoder.correct([replace(trial(), assignment={"max_num_seqs": 64}, resolved={})])
        assert encoder.rows([{}]).knobs[0, KNOBS.index("seqs")] == 256

    def test_what_a_server_fits_to_the_rest_is_no_fixed_default(self) -> None:
        encoder = self.encoder()
        encoder.correct([self.ran(1024), self.ran(512)])
        assert encoder.told == {}
        assert encoder.rows([{}]).knobs[0, KNOBS.index("seqs")] == 256

    def test_another_studys_servers_are_not_ours(self) -> None:
        encoder = self.encoder()
        encoder.correct([self.ran(1024, weight=0.3)])
        assert encoder.rows([{}]).knobs[0, KNOBS.index("seqs")] == 256

    def test_earlier_studies_are_judged_as_after_a_resume(self) -> None:
        """The model of the earlier trials is fitted once; a default that is reported later changes where they stand."""
        encoder, size = self.encoder(), {"max_num_seqs": 0}
        values = {64: 900.0, 128: 700.0, 256: 300.0, 512: 900.0, 1024: 1000.0, 2048: 1000.0}
        earlier = [
            replace(trial(weight=0.5), assignment=size | {"max_num_seqs": seqs}, value=value)
            for seqs, value in values.items()
        ] + [replace(trial(weight=0.5), value=1000.0)]
        own = [
            replace(trial(), assignment=size | {"max_num_seqs": seqs}, value=value * 1.1)
            for seqs, value in list(values.items())[:4]
        ] + [replace(trial(), value=1100.0)]

        def stands_on(agreement: Agreement) -> list[list[float]]:
            agreement.judged([*earlier, *own], maximize=True)
            assert agreement._process is not None
            return agreement._process.x.tolist()

        agreement = Agreement(encoder)
        before = stands_on(agreement)
        encoder.correct([self.ran(1024)])
        assert encoder.heard == ({"max_num_seqs": 1024}, {})
        assert stands_on(agreement) == stands_on(Agreement(encoder))
        assert stands_on(agreement) != before


class TestLabelsAreReadBack:
    """``auto`` and the kernel that it stands for are one configuration: no trial is worth telling them apart."""

    def encoder(self) -> Encoder:
        backend = Parameter(
            name="backend",
            target="attention-config.backend",
            default="auto",
            domain=Choice(values={name: name for name in ("auto", "FLASH_ATTN", "TRITON_ATTN")}),
        )
        others = [item for item in small_space().parameters if item.name != "attention_backend"]
        return small_encoder(small_space(parameters=(backend, *others)), WORKLOAD)

    def seen(self, encoder: Encoder, *backends: str) -> list[float]:
        return encoder.rows([{"backend": name} for name in backends]).x[:, 0].tolist()

    def test_auto_is_what_it_ran(self) -> None:
        encoder = self.encoder()
        auto, flash, triton = self.seen(encoder, "auto", "FLASH_ATTN", "TRITON_ATTN")
        assert len({auto, flash, triton}) == 3
        encoder.correct([replace(trial(), assignment={}, resolved={"backend": "FLASH_ATTN"})])
        assert self.seen(encoder, "auto", "FLASH_ATTN", "TRITON_ATTN") == [flash, flash, triton]
        assert encoder.rows([{}]).x[0, 0] == flash

    def test_what_was_asked_for_and_not_run_is_not_what_was_asked_for(self) -> None:
        encoder = self.encoder()
        flash = self.seen(encoder, "FLASH_ATTN")
        refused = replace(trial(), assignment={"backend": "TRITON_ATTN"}, resolved={"backend": "FLASH_ATTN"})
        encoder.correct([refused])
        assert self.seen(encoder, "TRITON_ATTN") != flash, "one refusal may be that candidate's own"
        encoder.correct([refused, refused])
        assert self.seen(encoder, "TRITON_ATTN") == flash

    def test_a_choice_that_depends_on_the_rest_is_its_own(self) -> None:
        encoder = self.encoder()
        before = self.seen(encoder, "auto")
        ran = [replace(trial(), assignment={}, resolved={"backend": name}) for name in ("FLASH_ATTN", "TRITON_ATTN")]
        encoder.correct(ran)
        assert self.seen(encoder, "auto") == before
        encoder.correct([ran[0], replace(trial(), assignment={"backend": "auto"}, resolved={})])
        assert self.seen(encoder, "auto") == before

    def test_a_trial_whose_server_said_nothing_contradicts_nobody(self) -> None:
        encoder = self.encoder()
        said = replace(trial(), assignment={}, resolved={"backend": "FLASH_ATTN"})
        encoder.correct([said, replace(trial(), assignment={"backend": "auto"}, resolved=None)])
        assert self.seen(encoder, "auto") == self.seen(encoder, "FLASH_ATTN")

    def test_the_mechanism_hears_it_too(self) -> None:
        precision = Parameter(
            name="kv", target="kv-cache-dtype", default="auto", domain=Choice(values={"auto": "auto", "fp8": "fp8"})
        )
        encoder = small_encoder(small_space(parameters=(precision,)), WORKLOAD)
        bits = KNOBS.index("kv_bits")
        assert encoder.rows([{}, {"kv": "auto"}, {"kv": "fp8"}]).knobs[:, bits].tolist() == [16, 16, 8]
        encoder.correct([replace(trial(), assignment={}, resolved={"kv": "fp8"})])
        assert encoder.rows([{}, {"kv": "auto"}, {"kv": "fp8"}]).knobs[:, bits].tolist() == [8, 8, 8]

    def test_what_is_said_otherwise_is_passed_over(self) -> None:
        parameters = (
            Parameter(name="tokens", target="max-num-batched-tokens", domain=Range(low=1024, high=8192, step=1024)),
            Parameter(name="flash", target="flash-attn", domain=Choice(values={True: True, False: False})),
            Parameter(
                name="quantization",
                target="",
                domain=Choice(values={"off": UNSET, "fp8": {"arguments": {"quantization": "fp8"}}}),
            ),
        )
        encoded = encodings(small_space(parameters=parameters))
        assert resolved({"max-num-batched-tokens": 16384}, {}, encoded) == {"tokens": 16384}
        assert resolved({"max-num-batched-tokens": 2000.0}, {}, encoded) == {"tokens": 2000}
        assert resolved({"flash-attn": 0}, {"flash": True}, encoded) == {"flash": False}
        assert resolved({"flash-attn": "on"}, {"flash": True}, encoded) == {}
        assert resolved({"quantization": "fp8"}, {"quantization": "off"}, encoded) == {}
        odd: dict[str, Json] = {"flash-attn": math.nan, "max-num-batched-tokens": [1], "quantization": {"a": None}}
        assert resolved(odd, {}, encoded) == {}

    def test_servers_answer_under_their_own_names(self) -> None:
        encoded = self.encoder()._encoded
        effective = {"attention-backend": "FLASH_ATTN", "max-num-seqs": 128, "kv-cache-tokens": 90_000, "backend": None}
        assert resolved(effective, {}, encoded) == {"backend": "FLASH_ATTN", "max_num_seqs": "128"}
        assert resolved(effective, {"backend": "FLASH_ATTN", "max_num_seqs": "128"}, encoded) == {}
        assert resolved({"attention-backend": "CUTLASS_MLA"}, {}, encoded) == {}
