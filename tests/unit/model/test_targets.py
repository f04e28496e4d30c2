from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.targets import (
    against,
    change,
    duration,
    figure,
    is_usual,
    metric_unit,
    parse_duration,
    parse_limit,
    parse_objective,
    short_name,
)


@pytest.mark.parametrize(
    ("text", "metric", "bound", "at_most"),
    [
        ("ttft_p99=500ms", "latency/ttft_p99", 500.0, True),
        ("ttft_p99=0.5s", "latency/ttft_p99", 500.0, True),
        ("e2e_p99 <= 8s", "latency/e2e_p99", 8000.0, True),
        ("throughput=2000", "throughput/output", 2000.0, False),
        ("throughput<=2000", "throughput/output", 2000.0, True),
        ("power=700", "gpu/power_w", 700.0, True),
        ("accuracy>=60%", "accuracy/score", 0.6, False),
        ("throughput>=2000tok/s", "throughput/output", 2000.0, False),
    ],
)
def test_limits_take_their_natural_side_and_unit(text: str, metric: str, bound: float, at_most: bool) -> None:
    limit = parse_limit(text)
    assert (limit.metric, limit.bound, limit.at_most) == (metric, pytest.approx(bound), at_most)


@pytest.mark.parametrize(
    "text", ["", "ttft_p99", "ttft_p99=", "ttft_p99=fast", "nonsense=3", "ttft_p99=-5", "ttft_p99=5kg", "power=0"]
)
def test_bad_limits_say_what_is_wrong(text: str) -> None:
    with pytest.raises(ValueError, match=r"limit|metric"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("throughput=100ms", "throughput has no unit 'ms', use tok/s"),
        ("throughput=50%", "throughput has no unit '%', use tok/s"),
        ("goodput=5s", "goodput has no unit 's', use req/s"),
        ("accuracy=5ms", "accuracy has no unit 'ms', use a share such as 0.5, or 50%"),
        ("ttft_p99=5tok/s", "ttft_p99 has no unit 'tok/s', use ms or s"),
    ],
)
def test_another_metrics_unit_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_limit(text)


def test_metrics_have_the_names_and_units_that_people_type() -> None:
    assert [short_name(m) for m in ("latency/ttft_p99", "throughput/output", "engine/x")] == [
        "ttft_p99",
        "throughput",
        "engine/x",
    ]
    assert [metric_unit(m) for m in ("latency/ttft_p99", "throughput/output", "accuracy/score")] == ["ms", "tok/s", ""]
    assert [figure(12345.6, "tok/s"), figure(0.51234), figure(812.04, "ms")] == ["12,346 tok/s", "0.5123", "812 ms"]


def test_an_unknown_metric_names_its_neighbours() -> None:
    with pytest.raises(ValueError, match="ttft_p99"):
        parse_objective("ttft_p98")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("0.5h", 1800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-5m", "30x", "0", "1e400", "3 bananas"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    for parse in (parse_duration, parse_limit, parse_objective):
        with contextlib.suppress(ValueError):
            assert parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "0.5 s"), (45, "45 s"), (120, "2 min"), (150, "150 s"), (1250, "21 min"), (5400, "90 min"),
        (7200, "2 h"), (9000, "2 h 30 min"),
    ],
)  # fmt: skip
def test_a_bound_on_time_reads_as_it_was_set(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "usual"),
    [("ttft_p99<=1s", True), ("ttft_p99>=1s", False), ("throughput>=9", True), ("throughput<=9", False)],
)
def test_which_side_of_a_metric_is_bad(text: str, usual: bool) -> None:
    assert is_usual(parse_limit(text)) is usual


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00004, "0.00004"),
        (-0.000012345678, "-0.00001235"),
        (0.0012345, "0.001234"),
        (12.3456, "12.35"),
        (999.96, "1,000"),
        (123456.7, "123,457"),
        (3e-9, "3e-09"),
        (1e20, "1e+20"),
    ],
)
def test_figures_have_digits_that_count(value: float, text: str) -> None:
    assert figure(value) == text
    assert figure(value, "req/s") == f"{text} req/s"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (100.0, 150.0, "+50.0%"),
        (-10.0, -5.0, "+50.0%"),
        (-10.0, -15.0, "-50.0%"),
        (1.0, 11.0, "+1000.0%"),
        (0.001983, 2.098, "×1,058"),
        (-1.0, 20.0, "+2100.0%"),
        (0.0, 5.0, ""),
        (None, 5.0, ""),
        (5.0, None, ""),
        (5.0, math.inf, ""),
    ],
)
def test_a_change_up_is_plus(before: float | None, after: float | None, text: str) -> None:
    assert change(before, after) == text


@pytest.mark.parametrize(
    ("value", "default", "text"),
    [
        (150.0, 100.0, "1.50× default"),
        (0.001, 1.0, "0.001× default"),
        (0.0, 1.0, "0.00× default"),
        (-5.0, -10.0, "+50.0% against the default"),
        (5.0, -10.0, "+150.0% against the default"),
        (5.0, None, ""),
        (5.0, 0.0, ""),
    ],
)
def test_a_factor_only_where_there_is_one(value: float, default: float | None, text: str) -> None:
    assert against(value, default) == text
