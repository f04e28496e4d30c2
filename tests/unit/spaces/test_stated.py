"""What a stated default means: what a program of one's own runs, and a slip where vLLM runs something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.model.candidate import Exclusion
from tuner.spaces.check import check_space
from tuner.spaces.introspect import VllmFlags
from tuner.spaces.loader import Library
from tuner.spaces.plan import Plan, open_plan

Make = Callable[..., Path]
FLAGS = VllmFlags.known("0.32.0")
# 140 GiB of weights: two of the 100 GiB accelerators hold them, one does not.
LARGE = (
    "facts: {org/large: {architecture: T, layers: 8, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16, vocab: 1000, "
    "max_position: 4096, intermediate: 128, weight_bytes: 1.5e+11}}\nmodel: org/large\n"
)


def planned(library: Library, path: Path, *, external: bool) -> Plan:
    return open_plan("h1", space_files=[path], external=external, library=library)


def blocked(plan: Plan) -> Exclusion | None:
    return plan.planner.exclusion(plan.planner.baseline())


@pytest.mark.parametrize(
    "parameter",
    [
        "{default: 2}",
        # One value left, or none of the values: the parameter is gone or has no label for it, the program runs 2.
        "{flag: tensor-parallel-size, type: choice, values: [2], default: 2}",
        "{flag: tensor-parallel-size, type: choice, values: [1, 4], default: 2}",
        "{flag: tensor-parallel-size, type: int, low: 1, high: 4, default: 2}",
        "{type: choice, values: {two: {arguments: {tensor-parallel-size: 2}}, one: default}, default: two}",
    ],
)
def test_a_program_of_ones_own_runs_what_its_default_says(library: Library, space_file: Make, parameter: str) -> None:
    path = space_file(f"{LARGE}parameters: {{tensor_parallel_size: {parameter}}}")
    plan = planned(library, path, external=True)
    assert blocked(plan) is None
    # It is counted with, not passed: the baseline stays what the program does by itself.
    assert "tensor-parallel-size" not in plan.planner.baseline().arguments
    single = plan.planner.render({"tensor_parallel_size": 1})
    if "tensor-parallel-size" in single.arguments:
        assert (plan.planner.exclusion(single) or Exclusion(rule="", reason="", source="")).rule == "memory"
    found = blocked(planned(library, path, external=False))
    assert found is not None
    assert found.rule == "memory"


def test_rules_that_hold_everywhere_read_it(library: Library, space_file: Make) -> None:
    path = space_file("parameters: {max_model_len: {flag: max-model-len, type: int, low: 64, high: 512, default: 128}}")
    found = blocked(planned(library, path, external=True))
    assert found is not None
    assert found.rule == "request-too-long"
    assert found.reason.startswith("max-model-len (128) is below the longest request of the workload (")
    assert blocked(planned(library, path, external=False)) is None


def test_a_default_of_a_parameter_that_does_not_exist_is_not_counted(library: Library, space_file: Make) -> None:
    path = space_file(f"{LARGE}parameters: {{tensor_parallel_size: {{default: 2, when: \"kv_cache_dtype == 'fp8'\"}}}}")
    planner = planned(library, path, external=True).planner
    assert planner.exclusion(planner.baseline()) is not None
    assert planner.exclusion(planner.render({"kv_cache_dtype": "fp8"})) is None


def test_the_forecast_counts_with_it(library: Library, space_file: Make) -> None:
    path = space_file(f"{LARGE}parameters: {{tensor_parallel_size: {{default: 2}}}}")
    planner = planned(library, path, external=True).planner
    asked = planner.render({"tensor_parallel_size": 2})
    assert planner.forecast(planner.baseline()) == planner.forecast(asked) != {}


def test_a_check_refuses_what_a_study_refuses(library: Library, space_file: Make) -> None:
    path = space_file(LARGE)
    report = check_space(path, hardware="h1", external=True, library=library)
    assert report.survey is not None
    assert report.survey.share > 0
    (error,) = report.errors
    assert error.message.startswith("the baseline cannot start on h1: needs ")
    assert error.message.endswith(
        "; this is tensor-parallel-size 1, as no flag is given: `arguments: {tensor-parallel-size: 2}` or "
        "--arg tensor-parallel-size=2 gives it"
    )
    told = space_file(f"{LARGE}parameters: {{tensor_parallel_size: {{default: 2}}}}", "told.yaml")
    assert check_space(told, hardware="h1", external=True, library=library).ok


def test_where_vllm_serves_a_default_that_it_does_not_take_is_a_slip(library: Library, space_file: Make) -> None:
    path = space_file("parameters:\n  tensor_parallel_size: {default: 2}\n  kv_cache_dtype: {default: fp8}\n")
    report = check_space(path, hardware="h1", flags=FLAGS, library=library)
    assert [(item.file, item.line, item.key) for item in report.errors] == [
        (str(path), 4, "parameters.kv_cache_dtype.default"),
        (str(path), 3, "parameters.tensor_parallel_size.default"),
    ]
    assert report.errors[1].message == (
        "vLLM takes tensor-parallel-size 1 where the flag is left away, not 2; write `default: 1`, or give the "
        "baseline yours with `arguments: {tensor-parallel-size: 2}` (with --trial-command it is the default of that "
        "program)"
    )
    with pytest.raises(InputError, match="where the flag is left away, not"):
        open_plan("h1", space_files=[path], flags=FLAGS, library=library)
    assert check_space(path, hardware="h1", flags=FLAGS, external=True, library=library).ok


def test_a_default_that_the_baseline_carries_or_that_is_vllms_is_none(library: Library, space_file: Make) -> None:
    path = space_file(
        "arguments: {tensor-parallel-size: 2}\n"
        "parameters:\n"
        "  tensor_parallel_size: {flag: tensor-parallel-size, type: choice, values: [1, 2], default: 2}\n"
        "  stream_interval: {flag: stream-interval, type: int, low: 1, high: 4, default: 1}\n"
    )
    assert check_space(path, hardware="h1", flags=FLAGS, library=library).errors == ()
