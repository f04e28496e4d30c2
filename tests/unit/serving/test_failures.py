"""Each failure class, from texts as vLLM writes them: class, cause with numbers, blame, grade."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model.outcome import Blame
from tuner.serving.failures import classify, died, hang, root_lines
from tuner.serving.logs import read_log

H200 = Path(__file__).parents[2] / "data" / "h200" / "logs"
TAIL = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"


def log(text: str) -> str:
    """An exception in EngineCore as 0.32 logs it, with the generic tail of the parent."""
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):", *text.split("\n")]
    prefixed = (f"(EngineCore pid=42) ERROR 11-29 18:03:36 [core.py:1510] {line}" for line in lines)
    return "\n".join(prefixed) + "\n(APIServer pid=41) " + TAIL


@pytest.mark.parametrize(
    ("name", "kind", "cause", "violation"),
    [
        (
            "offline-1024-1",
            "moe-backend",
            (
                "moe_backend deep_gemm_mega_moe does not support unquantized MoE, only "
                "['triton', 'flashinfer_trtllm', 'flashinfer_cutlass', 'aiter'] do"
            ),
            None,
        ),
        (
            "offline-1024-2",
            "no-kv",
            "no memory is left for the KV cache after weights and profiling (-0.6 GiB)",
            0.6,
        ),
        (
            "offline-1024-3",
            "attn-none",
            "no attention backend runs block_size 24: block_size not supported by 5 of 5 backends",
            None,
        ),
    ],
)
def test_recorded_failures(name: str, kind: str, cause: str, violation: float | None) -> None:
    path = H200 / f"{name}.log"
    failure = classify(path.read_text(), code=1, phase=read_log(path).phase)
    assert (failure.kind, failure.cause, failure.violation) == (kind, cause, violation)
    assert failure.blame is Blame.CONFIGURATION
    assert not failure.retry
    assert failure.excerpt


def test_recorded_fp8_backend_failure() -> None:
    failure = classify((H200 / "offline-1024-5.log").read_text(), code=1, phase="weights")
    assert failure.kind == "moe-backend"
    assert failure.cause.startswith(
        "FP8 MoE backend DEEPGEMM does not support the deployment configuration: kernel does not support"
    )


CASES = [
    (
        (
            "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 42.64 GiB). Decrease GPU memory utilization."
        ),
        "free-mem",
        "only 31.44 of 47.38 GiB are free on cuda:0 where 42.64 GiB are wanted",
        Blame.MACHINE,
        True,
        11.2,
    ),
    (
        (
            "ValueError: To serve at least one request with the model's max seq len (131072), "
            "(24.00 GiB KV cache is needed, "
            "which is larger than the available KV cache memory (3.18 GiB). Based on the "
            "available memory, the estimated "
            "maximum model length is 34736. Try increasing"
        ),
        "kv-too-small",
        "one request of 131072 tokens needs 24.00 GiB of KV cache, 3.18 GiB are there",
        Blame.CONFIGURATION,
        False,
        20.82,
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has",
        "cuda-oom",
        "out of GPU memory while capturing CUDA graphs (tried to allocate 512.00 MiB)",
        Blame.CONFIGURATION,
        False,
        0.5,
    ),
    (
        (
            "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. "
            "Reason: ['block_size not supported']"
        ),
        "attn-invalid",
        "attention backend FLASHINFER cannot run this: ['block_size not supported']",
        Blame.CONFIGURATION,
        False,
        None,
    ),
    (
        "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).",
        "block-size",
        "block size 16 suits no attention backend (CPU_ATTN: [MultipleOf(32)])",
        Blame.CONFIGURATION,
        False,
        None,
    ),
    (
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
            "  Value error, Quantization method specified in the model config (fp8) does not "
            "match the quantization method "
            "specified in the `quantization` argument (awq). [type=value_error]"
        ),
        "quant-mismatch",
        "the checkpoint is quantized with fp8, the flag says awq",
        Blame.CONFIGURATION,
        False,
        None,
    ),
    (
        (
            "ValueError: The quantization method mxfp4 is not supported for the current GPU. Minimum capability: 90. "
            "Current capability: 80."
        ),
        "quant-cap",
        "quantization mxfp4 needs compute capability 90, this GPU has 80",
        Blame.CONFIGURATION,
        False,
        None,
    ),
    (
        "ValueError: World size (8) is larger than the number of available GPUs (4) in this node.",
        "world-size",
        "8 GPUs are wanted, 4 are there",
        Blame.CONFIGURATION,
        False,
        4.0,
    ),
    (
        "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (512).",
        "mamba-slots",
        "max_num_seqs 1024 is more than the 512 Mamba cache blocks",
        Blame.CONFIGURATION,
        False,
        1.0,
    ),
    (
        "ValueError: num_speculative_tokens:3 must be divisible by n_predict=2",
        "spec-divide",
        "must be divisible by n_predict=2",
        Blame.CONFIGURATION,
        False,
        None,
    ),
    (
        "TimeoutError: Timed out waiting for engine core processes to start. (VLLM_ENGINE_READY_TIMEOUT_S)",
        "ready-timeout",
        "vLLM's own limit",
        Blame.MACHINE,
        True,
        None,
    ),
    ("OSError: [Errno 98] Address already in use", "port", "the port was taken", Blame.MACHINE, True, None),
    ("OSError: [Errno 28] No space left on device: '/x'", "disk-full", "the disk is full", Blame.MACHINE, True, None),
    (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them",
        "model-access",
        "the model cannot be read",
        Blame.USER,
        False,
        None,
    ),
    (
        "RuntimeError: NCCL error: unhandled system error",
        "nccl",
        "the workers lost each other: NCCL error",
        Blame.MACHINE,
        True,
        None,
    ),
    (
        "RuntimeError: Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
        "worker-killed",
        "worker VllmWorker-0 was killed (exit code -9), most likely by the kernel for want of host memory",
        Blame.MACHINE,
        True,
        None,
    ),
]


@pytest.mark.parametrize(("text", "kind", "cause", "blame", "retry", "violation"), CASES, ids=[c[1] for c in CASES])
def test_classes(*, text: str, kind: str, cause: str, blame: Blame, retry: bool, violation: float | None) -> None:
    failure = classify(log(text), code=1, phase="capture")
    assert failure.kind == kind
    assert cause in failure.cause
    assert (failure.blame, failure.retry) == (blame, retry)
    assert failure.violation == (None if violation is None else pytest.approx(violation))


def test_argparse_errors_are_the_users() -> None:
    text = "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --num-scheduler-steps 8\n"
    failure = classify(text, code=2, phase="imports")
    assert failure.kind == "unknown-flag"
    assert failure.cause == "this vLLM does not know --num-scheduler-steps 8"
    assert failure.blame is Blame.USER
    choice = "api_server.py: error: argument --dtype: invalid choice: 'fp4' (choose from 'auto', 'half')\n"
    assert classify(choice, code=2).cause == "--dtype: 'fp4' (choose from 'auto', 'half')"


def test_first_error_counts_not_the_last() -> None:
    text = log("ValueError: No common block size for 24. ") + "torch.OutOfMemoryError: CUDA out of memory.\n"
    assert classify(text, code=1).kind == "block-size"
    assert "Engine core" not in "".join(root_lines(text))


def test_unknown_is_kept_whole() -> None:
    failure = classify(log("RuntimeError: the flux capacitor of layer 7 lost its charge"), code=1, phase="compile")
    assert failure.kind == "unknown"
    assert failure.cause == "RuntimeError: the flux capacitor of layer 7 lost its charge"
    assert "flux capacitor" in failure.excerpt
    assert failure.phase == "compile"
    twin = classify(log("RuntimeError: the flux capacitor of layer 9 lost its charge"), code=1)
    assert twin.fingerprint == failure.fingerprint


@pytest.mark.parametrize(
    ("code", "kind", "blame", "retry"),
    [
        (-9, "killed", Blame.MACHINE, True),
        (-15, "terminated", Blame.MACHINE, True),
        (-11, "crash", Blame.CONFIGURATION, False),
    ],
)
def test_signals(code: int, kind: str, blame: Blame, retry: bool) -> None:
    failure = classify("INFO nothing wrong\n", code=code, phase="serve")
    assert (failure.kind, failure.blame, failure.retry) == (kind, blame, retry)


def test_death_under_load() -> None:
    oom = died(log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), code=1, phase="serve")
    assert oom.cause == "out of GPU memory under load (tried to allocate 2.00 GiB)"
    silent = died("INFO all well\n", code=0, phase="serve")
    assert (silent.kind, silent.retry) == ("died", True)


def test_hang_names_phase_and_peer_to_peer() -> None:
    failure = hang(phase="weights", seconds=301.2, log="world_size=2 rank=0 backend=nccl", stack="Thread 1: all_reduce")
    assert failure.cause == "the server said nothing and made no progress for 301 s in phase weights"
    assert "NCCL_P2P_DISABLE=1" in failure.advice
    assert "all_reduce" in failure.excerpt


def test_secrets_do_not_come_through() -> None:
    failure = classify(log("RuntimeError: login with hf_abcdefghijklmnopqrstuvwx failed"), code=1)
    assert "hf_abc" not in failure.cause + failure.excerpt


def test_hostile_log_is_bounded() -> None:
    failure = classify("ValueError: " + "A" * 2_000_000 + "\n" + "[" * 50_000, code=1)
    assert len(failure.cause) <= 400
    assert len(failure.excerpt) <= 6100


def test_what_a_pydantic_check_raised_is_the_cause() -> None:
    """As vLLM 0.32 prints it for an FP8 checkpoint started with ``--quantization awq``."""
    log = (
        '  File "/site-packages/vllm/engine/arg_utils.py", line 1955, in create_model_config\n'
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, Quantization method specified in the model config (fp8) does not match the quantization method "
        "specified in the `quantization` argument (awq). [type=value_error, input_value=ArgsKwargs((), {'model': "
        "...nderer_num_workers': 1}), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error\n"
    )
    failure = classify(log, code=1)
    assert (failure.kind, failure.cause) == (
        "quant-mismatch",
        "the checkpoint is quantized with fp8, the flag says awq",
    )


def test_an_engine_killed_while_it_started_is_known_by_its_exit_code() -> None:
    generic = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
    log = generic + "{'EngineCore_DP0': -9}"
    failure = classify(log, code=1)
    assert (failure.kind, failure.blame, failure.retry) == ("worker-killed", Blame.MACHINE, True)
    cause = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
    assert classify(f"{cause}\n{log}", code=1).kind == "no-kv"
    assert classify(log.replace("-9", "1"), code=1).kind == "unknown"


def test_an_engine_that_ends_without_a_word_is_the_machines_doing() -> None:
    """vLLM 0.32, EngineCore killed between its start and its first request."""
    log = (
        "(APIServer pid=1) WARNING 11-29 23:53:26 [core_client.py:817] [shutdown] MPClient: engine core exited "
        "unexpectedly; starting cleanup\n"
        'INFO:     127.0.0.1:35118 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
        "INFO:     Finished server process [1]\n"
    )
    failure = classify(log, code=0, phase="serve")
    assert (failure.kind, failure.blame, failure.retry) == ("died", Blame.MACHINE, True)
    known = classify(f"{log}RuntimeError: a cause of its own\n", code=1, phase="serve")
    assert "a cause of its own" in known.cause


def test_what_a_log_holds_moves_no_terminal() -> None:
    failure = classify("\x1b[2Jstart\nRuntimeError: \x1b[1;31mnew\x1b[0m trouble\x07\n", code=1)
    assert failure.cause == "RuntimeError: new trouble"
    assert failure.excerpt == "start\nRuntimeError: new trouble"
