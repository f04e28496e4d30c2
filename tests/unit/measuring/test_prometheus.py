from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measuring import prometheus
from tuner.measuring.prometheus import delta, delta_by_label, parse, quantile

TEXT = """\
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"b\\", c"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4
vllm:generation_tokens_total{engine="0"} 1.5e+03 1395066363000
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 8
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 5
process_start_time_seconds 1.7e9
vllm:x_bucket{le="0.1"} 1
vllm:x_bucket{le="0.5"} 3
vllm:x_bucket{le="+Inf"} 4
vllm:nothing NaN
this is not a metric at all
"""


def test_reads_names_labels_and_values() -> None:
    snapshot = parse(TEXT, time=5.0)
    assert snapshot.time == 5.0
    assert snapshot.total("vllm:num_requests_running") == 7
    assert snapshot.total("vllm:num_requests_running", engine="1") == 4
    assert snapshot.total("vllm:num_requests_running", model_name='a "b", c') == 3
    assert snapshot.peak("vllm:num_requests_running") == 4
    assert snapshot.total("vllm:generation_tokens") == 1500
    assert snapshot.total("process_start_time_seconds") == 1.7e9
    assert snapshot.by_label("vllm:spec_decode_num_accepted_tokens_per_pos", "position") == {"0": 8, "1": 5}
    assert snapshot.total("vllm:absent") is None


def test_odd_lines_are_named_and_skipped() -> None:
    snapshot = parse(TEXT)
    assert "this is not a metric at all" in snapshot.odd
    assert snapshot.total("vllm:nothing") is None


def test_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_BYTES", 100)
    snapshot = parse("a 1\n" * 1000)
    assert snapshot.total("a") == 1
    assert "cut" in snapshot.odd[0]
    assert parse('b{c="' + "x" * 20_000 + '"} 1').total("b") is None


def test_counters_and_restarts() -> None:
    before, after = parse("a_total 5\n"), parse("a_total 9\n")
    assert delta(before, after, "a") == 4
    assert delta(after, before, "a") is None
    assert delta(parse(""), after, "a") == 9
    assert delta(before, parse(""), "a") is None


def test_deltas_by_label() -> None:
    before = parse('a_total{position="0"} 5\n')
    after = parse('a_total{position="0"} 9\na_total{position="1"} 2\n')
    assert delta_by_label(before, after, "a", "position") == {"0": 4, "1": 2}


def test_quantiles_interpolate_between_readings() -> None:
    before = parse('h_bucket{le="1"} 10\nh_bucket{le="2"} 10\nh_bucket{le="+Inf"} 10\n')
    after = parse('h_bucket{le="1"} 10\nh_bucket{le="2"} 14\nh_bucket{le="+Inf"} 15\n')
    assert quantile(before, after, "h", 0.4) == pytest.approx(1.5)
    assert quantile(before, after, "h", 0.99) == pytest.approx(2.0)
    assert quantile(before, before, "h", 0.5) is None


@given(st.text(max_size=400))
def test_any_text_is_survived(text: str) -> None:
    snapshot = parse(text)
    for series in snapshot.values.values():
        assert not any(math.isnan(value) for value in series.values())
