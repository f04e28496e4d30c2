from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tests.unit.search.helpers import small_space
from tuner.errors import InputError
from tuner.model.space import UNSET, Choice, Parameter, Range
from tuner.search.distributions import Encoding, encodings, space_digest


def one(domain: Range | Choice, default: object = None) -> Encoding:
    space = small_space(parameters=(Parameter(name="p", target="p", domain=domain, default=default),))  # type: ignore[arg-type]
    return encodings(space)["p"]


def test_ordinal_choice_is_sampled_by_position_and_read_back_as_its_label() -> None:
    item = one(Choice(values={"16": 16, "32": 32, "64": 64}, ordinal=True))
    assert item.distribution == IntDistribution(0, 2)
    assert [item.decode(position) for position in (0, 1, 2)] == ["16", "32", "64"]
    assert item.encode("64") == 2
    assert item.unit("32") == 0.5


def test_labels_without_an_order_have_no_scale() -> None:
    item = one(Choice(values={"auto": UNSET, "triton": "triton"}))
    assert item.distribution == CategoricalDistribution(("auto", "triton"))
    assert item.unit("triton") is None
    assert item.default == "auto"
    assert item.encode("gone") is None


def test_powers_of_two_are_neighbours() -> None:
    item = one(Range(low=16, high=300, log=True, base=2))
    assert item.values == (16, 32, 64, 128, 256)
    assert item.distribution == IntDistribution(0, 4)
    assert item.decode(4) == 256
    assert item.encode(100) == 3  # 128 is nearer than 64 on a log scale


@pytest.mark.parametrize(
    ("domain", "distribution"),
    [
        (Range(low=1, high=10), IntDistribution(1, 10)),
        (Range(low=100, high=1050, step=100), IntDistribution(100, 1000, step=100)),
        (Range(low=16, high=2048, log=True), IntDistribution(16, 2048, log=True)),
        (Range(low=0.8, high=0.96, integer=False), FloatDistribution(0.8, 0.96)),
    ],
)
def test_ranges(domain: Range, distribution: object) -> None:
    assert one(domain).distribution == distribution


def test_float_steps_stay_on_the_grid_and_inside() -> None:
    item = one(Range(low=0.8, high=0.965, step=0.05, integer=False))
    assert item.distribution == FloatDistribution(0.8, 0.95, step=0.05)
    assert item.decode(0.9000001) == 0.9
    assert item.at(0.999) == 0.95


def test_values_outside_are_told_as_the_nearest() -> None:
    item = one(Range(low=16, high=2048, log=True))
    assert item.encode(5000) == 2048
    assert item.encode(1) == 16


def test_true_and_one_are_different_labels() -> None:
    item = one(Choice(values={"1": 1, "true": True}))
    assert item.position("true") == 1
    assert item.position("1") == 0


@pytest.mark.parametrize(
    "domain", [Range(low=5, high=1), Range(low=0, high=8, log=True), Choice(values={}), Range(low=1, high=float("nan"))]
)
def test_impossible_domains_are_the_users_fault(domain: Range | Choice) -> None:
    with pytest.raises(InputError, match="parameter p"):
        one(domain)


def test_digest_follows_the_space() -> None:
    space = small_space(digest="")
    other = small_space(digest="", parameters=space.parameters[:-1])
    assert space_digest(space, encodings(space)) == space_digest(space, encodings(space))
    assert space_digest(space, encodings(space)) != space_digest(other, encodings(other))
    assert space_digest(small_space(), encodings(small_space())) == "d1"
