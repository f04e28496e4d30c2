"""Settings of all fuzz tests: how many inputs, and what counts as a hang or as growth."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("TUNE_FUZZ_EXAMPLES", "40"))
"""Inputs per parser; `make fuzz` takes more."""

_LONGEST_S = 5.0
_GROWTH_MIB = 256

settings.register_profile(
    "fuzz",
    max_examples=EXAMPLES,
    deadline=None,  # processor time is bounded below: wall time says nothing on a shared machine
    suppress_health_check=list(HealthCheck),
    derandomize="TUNE_FUZZ_EXAMPLES" not in os.environ,
    print_blob=True,
)
settings.load_profile("fuzz")


@contextmanager
def _bounded() -> Iterator[None]:
    began = time.thread_time()
    yield
    assert time.thread_time() - began < _LONGEST_S, "one input kept the parser busy for too long"


@pytest.fixture(scope="session")
def bounded() -> Callable[[], object]:
    """A context: one input may take so much processor time and no more."""
    return _bounded


@pytest.fixture(autouse=True, scope="module")
def _memory_stays_flat() -> Iterator[None]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < _GROWTH_MIB, f"the parsers took {grown:.0f} MiB more"
