from __future__ import annotations

from tuner.model.candidate import Candidate, render_flags


def _candidate(**arguments: object) -> Candidate:
    return Candidate(assignment={}, arguments=arguments)  # type: ignore[arg-type]


def test_flags_take_the_forms_that_the_parser_of_vllm_reads() -> None:
    candidate = Candidate(
        assignment={},
        arguments={
            "max-num-seqs": 256,
            "enable-prefix-caching": False,
            "enforce-eager": True,
            "gpu-memory-utilization": 0.9,
            "compilation-config.cudagraph_mode": "FULL",
            "compilation-config.pass_config.fuse_norm_quant": True,
            "cudagraph-capture-sizes": [1, 2, 4],
            "quantization": None,
        },
    )
    assert render_flags(candidate) == [
        "--max-num-seqs", "256",
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--gpu-memory-utilization", "0.9",
        "--compilation-config", '{"cudagraph_mode":"FULL","pass_config":{"fuse_norm_quant":true}}',
        "--cudagraph-capture-sizes", "1", "2", "4",
    ]  # fmt: skip


def test_dotted_paths_and_whole_objects_of_one_flag_merge() -> None:
    whole_first = Candidate(
        assignment={}, arguments={"compilation-config": {"mode": 3}, "compilation-config.cudagraph_mode": "FULL"}
    )
    path_first = Candidate(
        assignment={}, arguments={"compilation-config.cudagraph_mode": "FULL", "compilation-config": {"mode": 3}}
    )
    assert whole_first.nested() == path_first.nested() == {"compilation-config": {"mode": 3, "cudagraph_mode": "FULL"}}


def test_nesting_leaves_the_arguments_as_they_were() -> None:
    arguments = {"compilation-config": {"mode": 3}, "compilation-config.cudagraph_mode": "FULL"}
    candidate = Candidate(assignment={}, arguments=arguments)
    candidate.nested()
    assert arguments["compilation-config"] == {"mode": 3}


def test_the_key_is_what_is_asked_for_and_nothing_else() -> None:
    a = Candidate(assignment={"x": 1}, arguments={"a": 1, "b": 2}, origin="search")
    b = Candidate(assignment={}, arguments={"b": 2, "a": 1}, origin="confirm")
    assert a.key == b.key
    assert a.key != Candidate(assignment={}, arguments={"a": 1, "b": 2}, environment={"E": "1"}).key
    assert _candidate(a=1).key != _candidate(a="1").key
    assert _candidate(a=True).key != _candidate(a=1).key
