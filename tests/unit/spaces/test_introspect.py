"""What a vLLM accepts: recorded versions, a Python that has (a stand-in for) vLLM, and one that has not."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tuner.errors import InputError, RunError
from tuner.model.candidate import Candidate
from tuner.model.hardware import Hardware
from tuner.model.json import Json
from tuner.model.llm import ModelFacts
from tuner.model.space import UNSET, Choice, Parameter, Range, Space
from tuner.spaces import serving_python
from tuner.spaces.introspect import KNOWN_VERSIONS, VllmFlags

HARDWARE = Hardware(name="h", platform="cuda", device="H", memory_gib=80, bandwidth_gb_s=1000)
MODEL = ModelFacts(
    name="m", layers=1, hidden=1, heads=1, kv_heads=1, head_dim=1, vocab=1, max_position=1, weight_bytes=1.0
)


def candidate(arguments: dict[str, Json] | None = None, environment: dict[str, str] | None = None) -> Candidate:
    return Candidate(assignment={}, arguments=arguments or {}, environment=environment or {})


@pytest.fixture(scope="module", params=KNOWN_VERSIONS)
def flags(request: pytest.FixtureRequest) -> VllmFlags:
    return VllmFlags.known(request.param)


def test_what_every_version_takes(flags: VllmFlags) -> None:
    assert flags.recorded
    good = Candidate(
        assignment={},
        arguments={
            "max-num-seqs": 256,
            "max-num-batched-tokens": "8k",
            "gpu-memory-utilization": 0.9,
            "kv-cache-memory-bytes": "2G",
            "max-model-len": "auto",
            "enable-prefix-caching": False,
            "moe-backend": "flashinfer-cutlass",  # vLLM folds dashes
            "attention-backend": "flash_attn",  # and case
            "quantization": "fp8",
            "performance-mode": "throughput",
            "cudagraph-capture-sizes": [1, 2, 4],
            "compilation-config": {"cudagraph_mode": "FULL", "mode": 3, "pass_config": {"fuse_norm_quant": True}},
            "speculative-config.num_speculative_tokens_per_batch_size": [[1, 4, 2], [5, 512, 0]],
            "hf-overrides": {"anything": 1},
            "api-server-count": 2,
            "kernel-config.moe_backend": "triton",
        },
        environment={"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_ROCM_USE_AITER": "1", "NCCL_DEBUG": "INFO"},
    )
    assert flags.check(good) == []
    assert flags.exclusion(good) is None


def test_all_that_is_wrong_is_named_at_once_with_its_successor(flags: VllmFlags) -> None:
    stale = Candidate(
        assignment={},
        arguments={
            "cuda-graph-sizes": [1, 2],
            "max-seq-len-to-capture": 8192,
            "num-scheduler-steps": 8,
            "swap-space": 4,
            "disable-log-requests": True,
            "max-num-batched-token": 1,
            "compilation-config.full_cuda_graph": True,
            "speculative-config.disable_by_batch_size": 4,
        },
        environment={"VLLM_ATTENTION_BACKEND": "FLASHINFER", "VLLM_USE_V1": "1"},
    )
    problems = flags.check(stale)
    assert len(problems) == 10
    text = "\n".join(problems)
    for hint in (
        "cuda-graph-sizes: unknown",
        "use cudagraph-capture-sizes",
        "use max-cudagraph-capture-size",
        "async-scheduling",
        "kv-offloading-size",
        "did you mean max-num-batched-tokens?",
        "use compilation-config.cudagraph_mode",
        "num_speculative_tokens_per_batch_size",
        "use attention-backend",
    ):
        assert hint in text
    excluded = flags.exclusion(stale)
    assert excluded is not None
    assert excluded.rule == "flag-unknown"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"moe-backend": "bogus"}, "moe-backend: 'bogus' is none of"),
        ({"attention-backend": "FLASH"}, "attention-backend: 'FLASH' is none of"),
        ({"max-num-seqs": "many"}, "max-num-seqs: 'many' is not a whole number"),
        ({"max-num-seqs": 1.5}, "is not a whole number"),
        ({"max-num-seqs": [1]}, "takes one value, not a list"),
        ({"max-num-seqs.x": 1}, "takes no nested fields"),
        ({"gpu-memory-utilization": True}, "'true' is not a number"),
        ({"enforce-eager": "yes"}, "'yes' is not true or false"),
        ({"headless": False}, "cannot be switched off"),
        ({"compilation-config.cudagraph_mode": "EAGER"}, "'EAGER' is none of NONE, PIECEWISE"),
        ({"speculative-config.methd": "ngram"}, "did you mean speculative-config.method?"),
        ({"kernel-config": {"moe_backend": "x"}}, "kernel-config.moe_backend: 'x' is none of"),
        ({"attention-config.backed": "x"}, "did you mean attention-config.backend?"),
    ],
)
def test_wrong_values(arguments: dict[str, Json], says: str, flags: VllmFlags) -> None:
    problems = flags.check(candidate(arguments))
    assert len(problems) == 1
    assert says in problems[0]


def test_versions_differ_as_the_catalogue_says() -> None:
    old, middle, new = (VllmFlags.known(version) for version in KNOWN_VERSIONS)
    assert "calculate-kv-scales" in old.flags
    assert "calculate-kv-scales" not in middle.flags
    assert "max-num-active-seqs" not in old.flags
    assert {"monokernel", "watchdog-config"} <= set(new.flags) - set(middle.flags)
    assert "bitsandbytes" in old.flags["quantization"].choices
    assert "bitsandbytes" not in middle.flags["quantization"].choices
    assert "FLASHINFER_MLA_SPARSE_SM90" not in old.flags["attention-backend"].choices
    assert "batched_triton" in middle.flags["moe-backend"].choices
    assert "nvfp4_4over6" not in old.flags["kv-cache-dtype"].choices
    assert old.check(candidate({"attention-config.use_fp4_indexer_cache": True})) == []
    assert "indexer_kv_dtype" in middle.check(candidate({"attention-config.use_fp4_indexer_cache": True}))[0]
    assert middle.flags["device-memory-utilization"] == middle.flags["gpu-memory-utilization"]


def test_a_forks_variable_needs_that_fork(flags: VllmFlags) -> None:
    problems = flags.check(candidate(environment={"VLLM_TRITON_MLA_SPARSE": "1"}))
    assert len(problems) == 1
    assert "--vllm-command" in problems[0]


def test_a_space_is_checked_value_by_value() -> None:
    space = Space(
        name="s",
        hardware=HARDWARE,
        model=MODEL,
        base_arguments={"swap-space": 4},
        parameters=(
            Parameter(name="seqs", target="max-num-seqs", domain=Range(low=1, high=8)),
            Parameter(name="steps", target="num-scheduler-steps", domain=Range(low=1, high=8)),
            Parameter(
                name="moe",
                target="moe-backend",
                domain=Choice(values={"auto": UNSET, "good": "triton", "bad": "bogus"}),
            ),
            Parameter(
                name="several",
                target="",
                domain=Choice(values={"a": {"arguments": {"kv-cache-dtyp": "fp8"}, "environment": {"VLLM_NOPE": "1"}}}),
            ),
            Parameter(name="env", target="env:VLLM_LOGGING_LEVEL", domain=Choice(values={"x": "INFO"})),
            Parameter(name="fork", target="env:VLLM_MOE_BACKEND", domain=Choice(values={"x": "1"})),
        ),
    )
    problems = VllmFlags.known("0.32.0").check_space(space)
    assert [problem.split(":")[0] for problem in problems] == [
        "swap-space",
        "num-scheduler-steps",
        "moe-backend",
        "kv-cache-dtyp",
        "environment variable VLLM_NOPE",
    ]


def test_unknown_version() -> None:
    with pytest.raises(InputError, match=r"9\.9.*0\.25\.1, 0\.32\.0, 0\.33\.0"):
        VllmFlags.known("9.9")


FAKE = {
    "vllm/__init__.py": "__version__ = '0.99.0'\nprint('vLLM logs to standard output')\n",
    "vllm/_version.py": "__version__ = '0.99.0'\n",
    "vllm/envs.py": "environment_variables = {'VLLM_X': None}\n",
    "vllm/utils/__init__.py": "",
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/serve.py": """
        import argparse, json
        class ServeSubcommand:
            def subparser_init(self, commands):
                parser = commands.add_parser("serve")
                parser.add_argument("--max-num-seqs", type=int, default=128)
                parser.add_argument("--share", "--portion", type=float)
                parser.add_argument("--dtype", choices=["auto", "half"])
                parser.add_argument("--cc", type=json.loads)
                parser.add_argument("--prefix", action=argparse.BooleanOptionalAction)
                parser.add_argument("--headless", action="store_true")
                parser.add_argument("--sizes", type=int, nargs="+")
                return parser
    """,
}


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name, text in FAKE.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return [sys.executable]


def test_the_serving_python_is_asked_once_and_remembered(
    python: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = VllmFlags.from_python(python, cache=tmp_path / "cache")
    assert found.version == "0.99.0"
    assert not found.recorded
    kinds = {name: flag.kind for name, flag in found.flags.items()}
    assert kinds == {
        "max-num-seqs": "int", "share": "float", "portion": "float", "dtype": "str", "cc": "json", "prefix": "bool",
        "headless": "switch", "sizes": "int",
    }  # fmt: skip
    assert found.environment == {"VLLM_X"}
    assert found.check(candidate({"dtype": "bf8"}))[0].startswith("dtype: 'bf8' is none of auto, half")
    monkeypatch.setattr(serving_python, "_run", lambda *_: pytest.fail("asked again"))
    assert VllmFlags.from_python(python, cache=tmp_path / "cache") == found


def test_another_version_is_asked_anew(python: list[str], tmp_path: Path) -> None:
    VllmFlags.from_python(python, cache=tmp_path / "cache")
    for name in ("vllm/_version.py", "vllm/__init__.py"):
        (tmp_path / "site" / name).write_text("__version__ = '1.0.0'\n", encoding="utf-8")
    assert VllmFlags.from_python(python, cache=tmp_path / "cache").version == "1.0.0"


def test_arguments_are_read_back_by_the_parser_itself(python: list[str]) -> None:
    values = serving_python.read_back(python, ["--max-num-seqs", "7", "--no-prefix", "--cc", '{"a": [1]}'])
    assert (values["max_num_seqs"], values["prefix"], values["cc"]) == (7, False, {"a": [1]})
    with pytest.raises(InputError, match="invalid choice"):
        serving_python.read_back(python, ["--dtype", "x"])
    many = serving_python.read_back_many(python, [["--share", "0.5"], ["--nope"]])
    assert isinstance(many[0], dict)
    assert many[0]["share"] == 0.5
    assert "--nope" in str(many[1])


def test_a_python_without_vllm_or_none_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm-missing").mkdir()
    with pytest.raises(InputError, match="cannot be run"):
        VllmFlags.from_python([str(tmp_path / "python")], cache=tmp_path)
    with pytest.raises(InputError, match="has no vLLM"):
        VllmFlags.from_python([sys.executable, "-S", "-I"], cache=tmp_path)
    with pytest.raises(InputError, match="no working Python"):
        VllmFlags.from_python(["/bin/false"], cache=tmp_path)


def test_a_broken_vllm_is_told_with_its_own_words(python: list[str], tmp_path: Path) -> None:
    (tmp_path / "site" / "vllm" / "envs.py").write_text("raise ImportError('libcuda.so.1: no such file')\n")
    with pytest.raises(RunError, match=r"libcuda\.so\.1"):
        VllmFlags.from_python(python, cache=tmp_path / "cache")


def test_a_hanging_vllm_is_given_up(python: list[str], tmp_path: Path) -> None:
    (tmp_path / "site" / "vllm" / "envs.py").write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(RunError, match="took over"):
        VllmFlags.from_python(python, 1.0, cache=tmp_path / "cache")


def test_a_spoilt_cache_is_asked_again(python: list[str], tmp_path: Path) -> None:
    VllmFlags.from_python(python, cache=tmp_path / "cache")
    for path in (tmp_path / "cache").iterdir():
        path.write_text("{broken", encoding="utf-8")
    assert VllmFlags.from_python(python, cache=tmp_path / "cache").version == "0.99.0"
