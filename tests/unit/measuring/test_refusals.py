from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.measuring.refusals import needs_text, refuse_random
from tuner.model.candidate import Candidate
from tuner.model.workload import PromptSource, Workload

TEXT = Workload(name="w", source="text")


@pytest.mark.parametrize(
    ("arguments", "moe", "word"),
    [
        ({"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}}, False, "ngram"),
        ({"speculative-config.method": "mtp"}, False, "mtp"),
        ({"spec-method": "ngram"}, False, "ngram"),
        ({}, True, "experts"),
    ],
)
def test_random_tokens_are_refused_where_they_lie(arguments: dict[str, object], moe: bool, word: str) -> None:
    candidate = Candidate(assignment={}, arguments=arguments)  # type: ignore[arg-type]
    reason = needs_text(candidate, moe)
    assert reason is not None
    assert word in reason
    random = replace(TEXT, source="random")
    assert refuse_random(random, candidate, moe) == reason
    assert refuse_random(replace(random, force_random=True), candidate, moe) is None
    assert refuse_random(TEXT, candidate, moe) is None


@pytest.mark.parametrize("source", ["random", "text", "trace"])
def test_dense_models_without_speculation_take_anything(source: PromptSource) -> None:
    candidate = Candidate(assignment={}, arguments={"max-num-seqs": 4, "speculative-config": None})
    assert needs_text(candidate, False) is None
    assert refuse_random(replace(TEXT, source=source), candidate, False) is None
