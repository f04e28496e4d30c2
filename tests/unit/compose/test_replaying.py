"""A replay as people meet it: what it answers from, what its table holds at best, what a dry run says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.compose.options import Options
from tuner.compose.planning import dry_run, make_plan
from tuner.compose.replaying import answers_line, best_recorded, best_recorded_line, known_defaults, replay_runner
from tuner.model.candidate import Candidate
from tuner.model.history import Contender, Trial
from tuner.model.outcome import Outcome, Status

PROFILE = """
schema: 1
name: box
hardware: {platform: cpu, device: CPU, memory_gib: 32, bandwidth_gb_s: 100}
model: org/m
facts:
  org/m: {architecture: LlamaForCausalLM, layers: 2, hidden: 64, heads: 2, kv_heads: 2, head_dim: 32, vocab: 100,
    max_position: 4096, intermediate: 128, weight_bytes: 1000}
workload: {source: text, input_tokens: 16, output_tokens: 16, points: [{concurrency: 1, requests: 1}]}
parameters:
  seqs: {flag: max-num-seqs, type: int, low: 1, high: 64, default: 256}
  dtype: {flag: kv-cache-dtype, type: choice, values: {auto: default, fp8: fp8}, default: auto}
  fast: {env: FAST, type: choice, values: {"off": default, "on": "1"}, default: "off"}
  how: {flag: how, type: choice, values: [slow, quick]}
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    (tmp_path / "box.yaml").write_text(PROFILE)
    rows = [
        {"arguments": {"max-num-seqs": 8}, "metrics": {"throughput/output": 100.0}},
        {"arguments": {"max-num-seqs": 16}, "metrics": {"throughput/output": 200.0}},
        {"arguments": {"max-num-seqs": 32}, "error": "no memory"},
        {"arguments": {}, "failure": {"cause": "somebody else", "blame": "machine"}},
    ]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Options(hardware=str(tmp_path / "box.yaml"), replay=tmp_path / "t.jsonl")


def contender(value: float, seqs: int) -> Contender:
    candidate = Candidate(assignment={}, arguments={"max-num-seqs": seqs})
    trial = Trial(
        number=7, origin="search", outcome=Outcome(candidate=candidate, status=Status.MEASURED, objective=value)
    )
    return Contender(candidate=candidate, trials=(trial,), value=value, confirmed=0)


def test_defaults_are_what_runs_where_a_flag_is_left_away(options: Options) -> None:
    known = known_defaults(make_plan(options, need_machine=False).plan.space)
    assert known.arguments == {"max-num-seqs": 256, "kv-cache-dtype": "auto"}
    assert known.environment == {"FAST": "off"}


def test_the_winner_is_compared_with_the_best_recorded_row(options: Options) -> None:
    runner = replay_runner(options, make_plan(options, need_machine=False).plan)
    assert answers_line(options, runner).endswith(
        "t.jsonl (3 rows, 1 of them failed; 1 more say nothing of a configuration or were measured another way); "
        "nothing is started"
    )
    said = []
    for winner in (contender(150.0, 12), contender(201.0, 16), None):
        found = best_recorded(options, runner, winner)
        assert found is not None
        said.append(best_recorded_line(options, found, winner))
    best = "Best recorded: 200 tok/s (line 2 of t.jsonl)"
    assert said == [
        f"{best}; trial 7 has 150 tok/s, -25.0% against it.",
        f"{best}; that is trial 7's configuration.",
        f"{best}.",
    ]


def test_a_dry_run_says_where_answers_would_come_from(options: Options, capsys: pytest.CaptureFixture[str]) -> None:
    dry_run(options)
    text = capsys.readouterr().out
    assert f"replay: answers come from {options.replay} (3 rows, 1 of them failed;" in text
    assert "vllm serve" not in text
    failed = (
        "1 of the 3 nearest recorded configurations failed (the nearest of them differs in 1 setting: max-num-seqs)"
    )
    assert f"# estimated: {failed}\n" in text
    assert "· t.jsonl does not hold the defaults: what everything is compared with is estimated too" in text
    assert "sampled candidates may be asked for" in text
