"""The chance of keeping a limit, with and without the mechanism's help."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.search.helpers import small_encoder, small_space
from tests.unit.search.test_models import WORKLOAD
from tuner.model.outcome import Status
from tuner.model.space import Parameter, Range
from tuner.search.encoder import Encoder
from tuner.search.limits import limit_models
from tuner.search.mechanism import speaks_of
from tuner.search.observations import Observation
from tuner.search.training import Training

TPOT, TTFT = "limit:latency/tpot_p99", "limit:latency/ttft_p99"


def encoder() -> Encoder:
    seqs = Parameter(
        name="max_num_seqs", target="max-num-seqs", default=1024, domain=Range(low=16, high=1024, log=True)
    )
    budget = Parameter(
        name="max_num_batched_tokens",
        target="max-num-batched-tokens",
        default=8192,
        domain=Range(low=512, high=16384, log=True),
    )
    return small_encoder(small_space(parameters=(seqs, budget)), WORKLOAD)


def trial(seqs: int, value: float, weight: float = 1.0, **violations: float) -> Observation:
    names = {"tpot": TPOT, "ttft": TTFT}
    return Observation(
        number=seqs,
        assignment={"max_num_seqs": seqs},
        origin="search",
        status=Status.MEASURED,
        value=value,
        violations={names[name]: excess for name, excess in violations.items()},
        weight=weight,
    )


def kept(tried: list[Observation], asked: list[int], *, physics: bool = True) -> list[float]:
    """The chance that so many sequences keep all limits."""
    coder = encoder()
    training = Training(tried, maximize=True, startup=3, budget=20)
    rows = coder.rows([item.assignment for item in tried])
    fit = coder.model.fit(rows.knobs, training.y, np.eye(len(tried)) * 0.05**2) if physics else None
    models = limit_models(coder, rows, training, fit)
    new = coder.rows([{"max_num_seqs": seqs} for seqs in asked])
    return [float(chance) for chance in np.prod([model.kept(coder, new) for model in models], axis=0)]


def test_one_trial_over_the_limit_points_at_smaller_batches() -> None:
    """A token took three times as long as it may at 1,024 sequences: the mechanism knows which way is out."""
    few, half, same = kept([trial(1024, 9000.0, tpot=2.0)], [16, 512, 1024])
    assert few > 0.8
    assert few > half > same
    assert same < 0.1


def test_without_the_mechanism_one_trial_says_nothing() -> None:
    coder = encoder()
    one = [trial(1024, 9000.0, tpot=2.0)]
    training = Training(one, maximize=True, startup=3, budget=20)
    assert limit_models(coder, coder.rows([{}]), training, None) == ()


@pytest.mark.parametrize("physics", [True, False])
def test_the_bound_is_found_between_two_trials(physics: bool) -> None:
    tried = [trial(1024, 9000.0, tpot=2.0), trial(64, 2000.0, tpot=-0.6), trial(256, 5000.0, tpot=-0.05)]
    low, high = kept(tried, [128, 700], physics=physics)
    assert low > 0.7
    assert high < 0.3


def test_what_an_earlier_study_did_not_measure_is_not_kept() -> None:
    """Its fast trials had no limit; only the ones that measured the metric say who keeps it."""
    own = [trial(1024, 9000.0, ttft=2.0), trial(64, 2000.0, ttft=-0.6)]
    silent = [trial(seqs, 9500.0, 0.3, ttft=math.nan) for seqs in (700, 800, 900)]
    assert kept([*silent, *own], [1024])[0] == pytest.approx(kept(own, [1024])[0], abs=0.1)
    assert not silent[0].feasible


def test_what_the_mechanism_speaks_of() -> None:
    assert speaks_of("latency/tpot_p99")
    assert speaks_of("latency/e2el_p50")
    assert not speaks_of("latency/ttft_p99")
    assert not speaks_of("throughput/output")
