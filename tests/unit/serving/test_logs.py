"""The recorded logs of an H200 (0.25.1) and of a CPU (0.32) are read into what really ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.serving.logs import LogReader, read_log, tail

DATA = Path(__file__).parents[2] / "data"
H200 = DATA / "h200" / "logs"
CPU = DATA / "cpu" / "server-eager-0.32.log"


@pytest.mark.parametrize(
    ("name", "mode", "largest", "decode", "tokens", "concurrency"),
    [
        ("server-512-0", "FULL_AND_PIECEWISE", 512, 512, 744_688, 363.62),
        ("server-512-1", "FULL_AND_PIECEWISE", 512, 256, 763_056, 372.59),
        ("server-512-2", "FULL_AND_PIECEWISE", 128, 64, 769_392, 375.68),
        ("offline-512-3", "PIECEWISE", 512, None, 758_288, 370.26),
        ("offline-512-4", "NONE", 0, None, 762_496, 372.31),
        ("offline-1024-4", "FULL_AND_PIECEWISE", 512, 512, 2_107_760, 1029.18),
    ],
)
def test_graphs_and_kv(
    *, name: str, mode: str, largest: int, decode: int | None, tokens: int, concurrency: float
) -> None:
    settings = read_log(H200 / f"{name}.log").settings
    assert settings["cudagraph-mode"] == mode
    assert settings["cudagraph-capture-max"] == largest
    assert settings.get("cudagraph-decode-max") == decode
    assert settings["kv-cache-tokens"] == tokens
    assert settings["max-concurrency"] == concurrency


def test_backends_and_dtypes_fp8() -> None:
    facts = read_log(H200 / "offline-1024-4.log")
    expected = {
        "attention-backend": "FLASH_ATTN",
        "flash-attention-version": 3,
        "moe-backend": "TRITON",
        "linear-kernels": {"Fp8PerTensorOnlineLinearMethod": "CutlassFP8ScaledMMLinearKernel"},
        "quantization": "fp8",
        "kv-cache-dtype": "fp8",
        "dtype": "bfloat16",
        "max-model-len": 2048,
        "max-num-batched-tokens": 16384,
        "async-scheduling": True,
        "enable-prefix-caching": True,
        "model-gib": 29.06,
        "kv-cache-gib": 96.49,
        "cudagraph-gib": 0.81,
    }
    assert {name: facts.settings.get(name) for name in expected} == expected
    assert facts.version == "0.25.1"


def test_speculation_is_seen() -> None:
    settings = read_log(H200 / "offline-1024-6.log").settings
    assert settings["speculative-method"] == "ngram"
    assert settings["num-speculative-tokens"] == 3
    assert settings["async-scheduling"] is False


def test_phases_of_a_server_start() -> None:
    facts = read_log(H200 / "server-512-0.log")
    phases = facts.phases()
    # 15:42:10 → 15:42:33 are EngineCore's imports; profiling is 2.80 s and 3 s of graph memory.
    assert phases["imports"] == 23.0
    assert phases["weights"] == pytest.approx(1.488, abs=1e-3)
    assert phases["compile"] == 41.52
    assert phases["profile"] == pytest.approx(5.8)
    assert phases["capture"] == 28.0
    assert facts.seconds["engine"] == 86.42
    assert phases["total"] == 115.0 + 2.0 - 2.0  # 15:42:10 → 15:44:05, when the engine was done
    assert sum(value for name, value in phases.items() if name != "total") == pytest.approx(phases["total"])
    assert facts.phase == "serve"
    assert facts.serving


def test_compile_from_the_cache_is_short() -> None:
    assert read_log(H200 / "server-512-1.log").phases()["compile"] == 7.80


@pytest.mark.parametrize(
    ("name", "phase"),
    [("offline-1024-1", "weights"), ("offline-1024-2", "profile"), ("offline-1024-3", "weights")],
)
def test_phase_of_a_failed_start(name: str, phase: str) -> None:
    assert read_log(H200 / f"{name}.log").phase == phase


def test_warnings_in_plain_words() -> None:
    tuned = read_log(H200 / "offline-512-0.log")
    untuned = read_log(H200 / "offline-1024-0.log")
    sentence = (
        "no tuned MoE kernel configuration for this device "
        "(E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8.json): vLLM runs its default, likely slower"
    )
    assert sentence in untuned.warnings
    assert not any("tuned MoE" in text for text in tuned.warnings)
    assert untuned.compiled_under_load == ["fused_moe_kernel"]
    assert any("fused_moe_kernel was compiled while serving" in text for text in untuned.warnings)
    eager = read_log(H200 / "offline-512-4.log")
    assert "no CUDA graphs are captured: decode runs launch by launch" in eager.warnings


def test_steady_lines() -> None:
    facts = read_log(H200 / "server-512-2.log")
    first = facts.steady[0]
    assert first == {"prompt": 1088.3, "generation": 1730.3, "running": 64.0, "waiting": 192.0, "kv": 3.5}
    assert len(facts.steady) == 9


def test_cpu_server_of_0_32() -> None:
    facts = read_log(CPU)
    assert facts.version == "0.32.0"
    assert facts.settings["kv-cache-tokens"] == 46_592
    assert facts.settings["max-concurrency"] == 45.5
    assert facts.settings["model-runner"] == "V1"
    assert facts.settings["enforce-eager"] is True
    assert facts.settings["cudagraph-mode"] == "NONE"
    # EngineCore 8 s, worker 10 s; the API server's own came before the first stamp.
    assert facts.phases()["imports"] == 18.0
    assert facts.phases()["weights"] == pytest.approx(0.69 + 0.246541, abs=1e-3)
    assert facts.phase == "serve"


def test_compiling_on_cpu_is_told_by_its_stamps(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "(Worker pid=2) INFO 11-29 19:01:22 [cpu_model_runner.py:87] Warming up model for the compilation...\n"
        "(EngineCore pid=1) INFO 11-29 19:02:24 [shm_broadcast.py:8] No available shared memory broadcast block found "
        "in 60 seconds. This typically happens when some processes are hanging or doing some time-consuming work\n"
        "(Worker pid=2) INFO 11-29 19:02:39 [monitor.py:91] [backbone] Initial profiling/warmup run took 3.27 s\n"
        "(Worker pid=2) INFO 11-29 19:02:41 [cpu_model_runner.py:91] Warming up done.\n"
    )
    facts = read_log(path)
    assert facts.phases()["compile"] == pytest.approx(79 - 3.27)
    assert facts.phases()["profile"] == 3.27
    assert facts.words == 3  # the line that comes every minute is no sign of life
    assert not facts.warnings


def test_reads_on_as_the_log_grows(tmp_path: Path) -> None:
    whole = (H200 / "server-512-0.log").read_bytes()
    path = tmp_path / "server.log"
    reader = LogReader(path)
    assert reader.poll() is False  # not there yet
    with path.open("wb") as file:
        for start in range(0, len(whole), 777):
            file.write(whole[start : start + 777])
            file.flush()
            assert reader.poll() is True
    reader.finish()
    fresh = read_log(H200 / "server-512-0.log")
    assert reader.facts.settings == fresh.settings
    assert reader.facts.phases() == fresh.phases()
    assert reader.facts.warnings == fresh.warnings


def test_progress_bars_in_one_line_end_in_a_phase(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"(EngineCore pid=7) \rCapturing CUDA graphs (decode, FULL):  10%\rCapturing CUDA graphs (decode")
    reader = LogReader(path)
    reader.poll()
    assert reader.facts.phase == "capture"


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff" * 5000,
        b"x" * 3_000_000,
        b"INFO 99-99 99:99:99 [a.py:1] torch.compile took 1.0 s\n",
        b"INFO 11-29 15:42:10 [a.py:1] Model loading took 999999999999999999999 GiB memory and 1 seconds\n",
        b"GPU KV cache size: ,,,, tokens\n",
        b"Maximum concurrency for 1 tokens per request: 1.2.3x\n",
    ],
)
def test_nonsense_is_survived(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    assert read_log(path).phase in {"imports", "profile", "compile", "capture"}


def test_tail_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a" * 1000 + "\x1b[31mend\x1b[0m")
    assert tail(path, limit=20).endswith("end")
    assert len(tail(path, limit=20)) < 20
    assert tail(tmp_path / "missing") == ""
