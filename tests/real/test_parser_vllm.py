"""What the spaces suggest, read back by vLLM's own parser: the same values, in the Python that serves."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tuner.model.candidate import Candidate, render_flags
from tuner.model.json import Json
from tuner.spaces.introspect import VllmFlags, read_back, read_back_many
from tuner.spaces.loader import Library
from tuner.spaces.plan import open_plan

pytestmark = pytest.mark.vllm
PYTHON = [sys.executable]
SAMPLES = 12


@pytest.fixture(scope="module")
def flags() -> VllmFlags:
    return VllmFlags.from_python(PYTHON)


def same(asked: Json, read: Json) -> bool:
    """Equal, but that enums come back by name (2 as O2), and that a JSON flag comes back with all of its fields."""
    if isinstance(asked, Mapping) and isinstance(read, Mapping):
        return all(same(value, read.get(key)) for key, value in asked.items())
    if isinstance(asked, list | tuple) and isinstance(read, list | tuple):
        return len(asked) == len(read) and all(map(same, asked, read))
    return asked == read or str(asked).lower() == str(read).lower().removeprefix("o")


def wrong(candidate: Candidate, read: Mapping[str, Json] | str) -> list[str]:
    if isinstance(read, str):
        return [f"{candidate.arguments}: {read}"]
    return [
        f"{name}: asked {value!r}, read {read.get(name.replace('-', '_'))!r}"
        for name, value in candidate.nested().items()
        if not same(value, read.get(name.replace("-", "_")))
    ]


def test_every_profiles_candidates_are_read_back_as_they_were_meant(flags: VllmFlags) -> None:
    candidates: list[Candidate] = []
    for profile in Library().names():
        plan = open_plan(profile, flags=flags)
        planner = plan.planner
        share = 4 * SAMPLES if profile == "cpu" else SAMPLES
        candidates += [planner.baseline(), *planner.starts(), *planner.survey(share, seed=3).feasible]
    read = read_back_many(PYTHON, [render_flags(candidate) for candidate in candidates])
    problems = [line for candidate, values in zip(candidates, read, strict=True) for line in wrong(candidate, values)]
    assert problems == []
    assert len(candidates) > 100


def test_the_recording_of_this_version_is_what_the_installed_one_says(flags: VllmFlags) -> None:
    recorded = VllmFlags.known(flags.version.split("+")[0])
    assert recorded.flags == flags.flags
    assert recorded.fields == flags.fields
    assert recorded.environment == flags.environment


def test_a_configuration_file_is_read_as_vllm_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "winner.yaml"
    path.write_text(
        "model: some/model\nmax-num-seqs: 48\nno-enable-prefix-caching: true\nkv-cache-memory-bytes: 1G\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 2}\n",
        encoding="utf-8",
    )
    values = read_back(PYTHON, ["--config", str(path)])
    assert values["max_num_seqs"] == 48
    assert values["enable_prefix_caching"] is False
    assert values["kv_cache_memory_bytes"] == 1024**3
    assert values["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 2}
