"""Surfaces by another hand.

Written from public knowledge of the engines by somebody who had not read the search, so that the search cannot have
been made for them, nor they for it. They are not tuned to any search, and must not be changed to please one: a search
that does badly here is what there is to learn. Constants are redrawn with every seed; the form stays.

Each is a simulator of tokens per second: bytes read, operations computed, messages sent and queues waited for, with
the causes that keep such a server from starting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.benchmarks.search.bench_space import Surface
from tests.benchmarks.search.others_gpu import dense_online, h200_moe
from tests.benchmarks.search.others_misc import cpu_server, sglang_like
from tests.benchmarks.search.others_multi import big_tp, spark_pair

__all__ = ["OTHERS"]

OTHERS: Mapping[str, Callable[[int], Surface]] = {
    "h200_moe": h200_moe,
    "dense_online": dense_online,
    "big_tp": big_tp,
    "spark_pair": spark_pair,
    "cpu_server": cpu_server,
    "sglang_like": sglang_like,
}
