from __future__ import annotations

import pytest

from tuner.model.candidate import Candidate, Exclusion
from tuner.model.judge import constraint_names, constraints, misses
from tuner.model.measurement import Measurement, QualityReport
from tuner.model.outcome import Blame, Failure, Outcome, Status
from tuner.model.workload import Limit

LIMITS = (Limit(metric="latency/ttft_p99", bound=500.0), Limit(metric="throughput/output", bound=1000.0, at_most=False))


def _measured(**metrics: float) -> Measurement:
    return Measurement(metrics={name.replace("__", "/"): value for name, value in metrics.items()}, objective=None)


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"failure": Failure(kind="x", cause="y", blame=Blame.CONFIGURATION)},
        {"exclusion": Exclusion(reason="r", rule="x")},
        {"measurement": _measured(latency__ttft_p99=1.0, throughput__output=5.0)},
        {"quality": QualityReport(passed=False)},
    ],
)
def test_every_ending_sets_the_same_names_in_the_same_order(parts: dict[str, object]) -> None:
    assert tuple(constraints(LIMITS, **parts)) == constraint_names(LIMITS)  # type: ignore[arg-type]


def test_numbers_of_failures_and_exclusions_grade_the_violation() -> None:
    graded = Failure(kind="kv-too-small", cause="", blame=Blame.CONFIGURATION, violation=20.8)
    assert constraints((), failure=graded)["start"] == 20.8
    assert constraints((), failure=Failure(kind="x", cause="", blame=Blame.CONFIGURATION))["start"] == 1.0
    assert constraints((), exclusion=Exclusion(reason="", rule="", violation=0.25))["start"] == 0.25


def test_limits_are_graded_by_their_relative_excess() -> None:
    values = constraints(LIMITS, measurement=_measured(latency__ttft_p99=750.0, throughput__output=900.0))
    assert values["limit:latency/ttft_p99"] == pytest.approx(0.5)
    assert values["limit:throughput/output"] == pytest.approx(0.1)


def test_a_limit_that_nobody_measured_is_not_kept() -> None:
    assert constraints(LIMITS, measurement=_measured(throughput__output=2000.0))["limit:latency/ttft_p99"] == 1.0


def test_a_floor_and_a_ceiling_on_one_metric_both_count() -> None:
    both = (Limit(metric="m", bound=10.0), Limit(metric="m", bound=5.0, at_most=False))
    assert constraints(both, measurement=_measured(m=7.0))["limit:m"] < 0
    assert constraints(both, measurement=_measured(m=20.0))["limit:m"] == pytest.approx(1.0)
    assert constraints(both, measurement=_measured(m=4.0))["limit:m"] == pytest.approx(0.2)


def test_lost_accuracy_is_graded_where_the_report_has_a_number() -> None:
    lost = QualityReport(passed=False, metrics={"accuracy/excess": 0.03})
    assert constraints((), quality=lost)["accuracy"] == 0.03
    assert constraints((), quality=QualityReport(passed=False))["accuracy"] == 1.0
    assert constraints((), quality=QualityReport(passed=True))["accuracy"] < 0


def _outcome(limits: tuple[Limit, ...], measurement: Measurement, quality: QualityReport | None = None) -> Outcome:
    return Outcome(
        candidate=Candidate(assignment={}, arguments={}),
        status=Status.MEASURED,
        measurement=measurement,
        quality=quality,
        constraints=constraints(limits, measurement=measurement, quality=quality),
    )


def test_a_miss_shows_the_value_against_the_bound() -> None:
    outcome = _outcome(LIMITS, _measured(latency__ttft_p99=812.0, throughput__output=900.0))
    assert misses(outcome, LIMITS) == ["ttft_p99 812 > 500 ms", "throughput 900 < 1,000 tok/s"]
    assert misses(_outcome(LIMITS, _measured(latency__ttft_p99=500.01, throughput__output=1e4)), LIMITS) == [
        "ttft_p99 500.01 > 500 ms"
    ]
    assert misses(_outcome(LIMITS, _measured(latency__ttft_p99=499.0, throughput__output=1e4)), LIMITS) == []


def test_what_was_never_reported_is_no_measured_miss() -> None:
    limits = (Limit(metric="accuracy/score", bound=0.5, at_most=False),)
    assert misses(_outcome(limits, _measured(throughput__output=1.0)), limits) == ["accuracy not reported"]
    assert misses(_outcome(limits, _measured(throughput__output=1.0)), ()) == ["accuracy"]


def test_a_limit_on_accuracy_is_held_against_the_accuracy_check() -> None:
    limits = (Limit(metric="accuracy/score", bound=0.5, at_most=False),)
    good = QualityReport(passed=True, metrics={"accuracy/score": 0.6})
    bad = QualityReport(passed=True, metrics={"accuracy/score": 0.4})
    assert _outcome(limits, _measured(), good).constraints["limit:accuracy/score"] <= 0
    assert misses(_outcome(limits, _measured(), bad), limits) == ["accuracy 0.4 < 0.5"]
