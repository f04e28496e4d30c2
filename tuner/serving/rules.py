"""The failure classes: one row each. Order matters where texts overlap: the more telling rule comes first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tuner.model.outcome import Blame

__all__ = ["GENERIC", "RULES", "Rule"]

Found = re.Match[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One failure class.

    Attributes:
        sentence: the cause in words, from the match and the phase.
        violation: graded constraint (> 0) where the text has numbers.
        codes: exit codes it is limited to; empty for any.
        context: where the numbers are if not in the line itself: its last match in the log is handed to ``sentence``
            and ``violation`` instead, if there is one.
        anywhere: also looked for in the whole log, not only in error lines.
    """

    kind: str
    pattern: re.Pattern[str]
    sentence: Callable[[Found, str], str]
    blame: Blame = Blame.CONFIGURATION
    retry: bool = False
    phase: str = ""
    violation: Callable[[Found], float] | None = None
    advice: str | Callable[[Found], str] = ""
    codes: tuple[int, ...] = ()
    context: re.Pattern[str] | None = None
    anywhere: bool = False


def _rule(
    kind: str,
    pattern: str,
    sentence: str | Callable[[Found, str], str],
    *,
    blame: Blame = Blame.CONFIGURATION,
    retry: bool = False,
    phase: str = "",
    violation: Callable[[Found], float] | None = None,
    advice: str | Callable[[Found], str] = "",
    codes: tuple[int, ...] = (),
    context: str = "",
    anywhere: bool = False,
) -> Rule:
    say = sentence if callable(sentence) else _filled(sentence)
    return Rule(
        kind=kind,
        pattern=re.compile(pattern),
        sentence=say,
        blame=blame,
        retry=retry,
        phase=phase,
        violation=violation,
        advice=advice,
        codes=codes,
        context=re.compile(context) if context else None,
        anywhere=anywhere,
    )


def _filled(template: str) -> Callable[[Found, str], str]:
    """``{1}`` … are the match's groups."""

    def say(found: Found, _: str) -> str:
        return re.sub(r"\{(\d)\}", lambda number: (found[int(number[1])] or "").strip(), template)

    return say


def _gib(text: str) -> float:
    return float(text.replace(",", ""))


def _missing(found: Found) -> float:
    return max(_gib(found[2]) - _gib(found[3]), 0.01)


_OOM_PHASES = {
    "weights": "while loading weights",
    "compile": "while profiling the compiled model",
    "profile": "while profiling memory",
    "capture": "while capturing CUDA graphs",
    "serve": "under load",
    "measure": "under load",
    "quality": "under load",
}


def _oom(found: Found, phase: str) -> str:
    tried = f" (tried to allocate {found['size']})" if found["size"] else ""
    return f"out of GPU memory {_OOM_PHASES.get(phase, 'while starting')}{tried}"


def _to_gib(found: Found) -> float:
    match = re.match(r"([\d.]+) ([KMG])iB", found["size"] or "")
    if not match:
        return 1.0
    return max(float(match[1]) / {"K": 2**20, "M": 2**10, "G": 1}[match[2]], 0.01)


_LESS_MEMORY = "lower gpu_memory_utilization, max_num_seqs, max_num_batched_tokens or the largest CUDA graph"
_MORE_KV = "raise gpu_memory_utilization, lower max_model_len or max_num_seqs, or use an fp8 KV cache"

GENERIC: tuple[re.Pattern[str], ...] = tuple(
    re.compile(text)
    for text in (
        r"Engine core initialization failed",
        r"EngineCore failed to start",
        r"WorkerProc (?:failed to start|initialization failed)",
        r"EngineCore encountered an issue",
        r"EngineDeadError",
        r"See stack trace \(above\)",
        r"^(?:asyncio\.)?(?:exceptions\.)?CancelledError",
        r"^SystemExit",
        r"^BrokenPipeError|^ConnectionResetError|^EOFError",
        r"process died unexpectedly",
        r"nanobind",
    )
)

RULES: tuple[Rule, ...] = (
    _rule(
        "unknown-flag",
        r"error: unrecognized arguments: (--?\S.{0,200})",
        "this vLLM does not know {1}",
        blame=Blame.USER,
        advice="take the flag out of the space, or use a vLLM that has it: every trial would fail the same way",
    ),
    _rule(
        "bad-value",
        r"error: argument (\S{1,120}): (?:invalid choice: )?(.{1,200})",
        "{1}: {2}",
        advice="take the value out of the space",
    ),
    _rule("bad-value", r": error: (.{1,300})", "vLLM refuses its command line: {1}"),
    _rule(
        "port",
        r"(?i)address already in use|\[Errno 98\]",
        "the port was taken by another process before the server could bind it",
        blame=Blame.MACHINE,
        retry=True,
        anywhere=True,
    ),
    _rule(
        "free-mem",
        r"Free memory on device (\S{1,20}) \(([\d.]+)/([\d.]+) GiB\) on startup is less than desired GPU memory "
        r"utilization \(([\d.]+), ([\d.]+) GiB\)",
        "only {2} of {3} GiB are free on {1} where {5} GiB are wanted: something else holds GPU memory",
        blame=Blame.MACHINE,
        retry=True,
        violation=lambda found: max(_gib(found[5]) - _gib(found[2]), 0.01),
        advice="end what holds the GPU, or lower gpu_memory_utilization",
        anywhere=True,
    ),
    _rule(
        "free-mem",
        r"Available memory on node (\d+) \(([\d.]+)/([\d.]+) GiB\) on (?:startup|kv cache allocation) is less than "
        r"(?:desired CPU memory utilization \([\d.]+, |requested memory for kv \()([\d.]+)",
        "NUMA node {1} has {2} of {3} GiB free where {4} GiB are wanted",
        violation=lambda found: max(_gib(found[4]) - _gib(found[2]), 0.01),
        advice="set kv_cache_memory_bytes to less than the node has free",
        anywhere=True,
    ),
    _rule(
        "kv-too-small",
        r"max seq len \((\d+)\), \(?([\d.]+) GiB KV cache is needed, .{0,80}?"
        r"available KV cache memory \((-?[\d.]+) GiB\)"
        r"(?:.{0,120}?estimated maximum model length is (\d+))?",
        "one request of {1} tokens needs {2} GiB of KV cache, {3} GiB are there",
        violation=_missing,
        advice=lambda found: f"max_model_len {found[4]} would fit; or {_MORE_KV}" if found[4] else _MORE_KV,
        anywhere=True,
    ),
    _rule(
        "no-kv",
        r"No available memory for the cache blocks",
        lambda found, _: (
            "no memory is left for the KV cache after weights and profiling"
            + (f" ({found[1]} GiB)" if found.re.groups else "")
        ),
        context=r"Available KV cache memory: (-?[\d.]{1,20}) GiB",
        violation=lambda found: max(-_gib(found[1]), 0.01) if found.re.groups else 1.0,
        advice="raise gpu_memory_utilization, or make the weights smaller (quantization, more GPUs)",
        anywhere=True,
    ),
    _rule(
        "no-kv",
        r"Cannot auto-fit max_model_len",
        "not even one token of KV cache fits",
        advice="raise gpu_memory_utilization",
        anywhere=True,
    ),
    _rule(
        "mamba-slots",
        r"max_num_seqs \((\d+)\) exceeds available Mamba cache blocks \((\d+)\)",
        "max_num_seqs {1} is more than the {2} Mamba cache blocks",
        violation=lambda found: max(int(found[1]) / max(int(found[2]), 1) - 1.0, 0.01),
        advice=lambda found: f"max_num_seqs at most {found[2]}",
    ),
    _rule(
        "cuda-oom",
        r"CUDA out of memory occurred when warming up sampler with (\d+) dummy requests(?P<size>\Z)?",
        "out of GPU memory while warming up the sampler with {1} requests",
        phase="capture",
        advice="lower max_num_seqs or gpu_memory_utilization",
        anywhere=True,
    ),
    _rule(
        "cuda-oom",
        r"(?:OutOfMemoryError|CUDA out of memory|not enough GPU memory|HIP out of memory|CUDA error: out of memory)"
        r"(?:.{0,400}?Tried to allocate (?P<size>[\d.]+ [KMG]iB))?",
        _oom,
        violation=_to_gib,
        advice=_LESS_MEMORY,
        anywhere=True,
    ),
    _rule(
        "attn-invalid",
        r"Selected backend (?:AttentionBackendEnum\.)?(\S+) is not valid for this configuration\. "
        r"Reason: (\[.{0,400}?\])",
        "attention backend {1} cannot run this: {2}",
        advice="leave the attention backend to vLLM, or change what it names",
        anywhere=True,
    ),
    _rule(
        "attn-none",
        r"No valid attention backend found for \w+ with AttentionSelectorConfig\((.*?)\)\. Reasons: \{(.*?)\}",
        lambda found, _: _no_backend(found[1], found[2]),
        advice="change block size, KV cache dtype or model dtype",
        anywhere=True,
    ),
    _rule(
        "attn-invalid",
        r"Unknown attention backend: '?([\w.]+)'?",
        "this vLLM has no attention backend {1}",
    ),
    _rule(
        "block-size",
        r"No common block size for (\d+)\.?(?: ?\((.{1,200})\))?",
        lambda found, _: f"block size {found[1]} suits no attention backend" + (f" ({found[2]})" if found[2] else ""),
        advice="use a block size that the backend supports (CPU: multiples of 32)",
        anywhere=True,
    ),
    _rule(
        "moe-backend",
        r"moe_backend='?(\w+)'? is not supported for ([\w ]+?) MoE\.?(?: Expected one of (\[.{0,300}?\]))?",
        lambda found, _: (
            f"moe_backend {found[1]} does not support {found[2]} MoE" + (f", only {found[3]} do" if found[3] else "")
        ),
    ),
    _rule(
        "moe-backend",
        r"(\w+ MoE backend \S+ does not support the deployment configuration)(?: since (.{1,300}))?",
        "{1}: {2}",
    ),
    _rule(
        "moe-backend",
        r"(No \w+ MoE backend supports.{0,200}|.{0,80}MegaMoE (?:currently )?requires .{1,120}"
        r"|only supports fp4 experts"
        r"|.{0,120}dispatches and combines itself and cannot be paired with all2all_backend.{0,80})",
        "{1}",
        advice="make the MoE backend depend on expert parallelism and on the GPU",
    ),
    _rule(
        "quant-mismatch",
        r"Quantization method specified in the model config \((\S+?)\) does not match the quantization method "
        r"specified in the .?quantization.? argument \((\S+?)\)",
        "the checkpoint is quantized with {1}, the flag says {2}",
        advice="take quantization out of the space for this checkpoint",
    ),
    _rule(
        "quant-cap",
        r"quantization method (\S+) is not supported for the current GPU\. Minimum capability: (\d+)\. "
        r"Current capability: (\d+)",
        "quantization {1} needs compute capability {2}, this GPU has {3}",
    ),
    _rule(
        "kernel-missing",
        r"Failed to find a kernel that can implement the (.{1,60}?) linear layer\.?(?: Reasons: (.{1,300}))?",
        "no kernel here implements the {1} linear layer: {2}",
    ),
    _rule("kernel-missing", r"(.{0,120}(?:requires SM\d+|is only supported on Hopper and Blackwell).{0,120})", "{1}"),
    _rule(
        "kv-dtype",
        r"--kv-cache-dtype (\S+) is not supported by (.{1,120})",
        "KV cache dtype {1} is not supported by {2}",
    ),
    _rule(
        "world-size",
        r"World size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "{1} GPUs are wanted, {2} are there",
        violation=lambda found: max(float(int(found[1]) - int(found[2])), 1.0),
    ),
    _rule(
        "world-size",
        r"Not enough allowed NUMA nodes to bind threads of (\d+) local CPUWorkers",
        "{1} workers need as many NUMA nodes",
    ),
    _rule("tp-divide", r"(.{0,120}must be divisible by tensor parallel size.{0,40})", "{1}"),
    _rule("spec-divide", r"(.{0,80}must be divisible by n_predict.{0,40})", "{1}"),
    _rule(
        "spec-unsupported",
        r"(Unsupported speculative method.{0,120}|Model Runner V\d does not support: .{0,80}speculative decoding"
        r"|.{0,80}speculative decoding is not supported.{0,80})",
        "{1}",
    ),
    _rule(
        "model-access",
        r"(We couldn't connect to '[^']{1,200}'.{0,120}|Repo id must be in the form.{0,120}|GatedRepoError.{0,200}"
        r"|401 Client Error.{0,120}|RepositoryNotFoundError.{0,120}"
        r"|.{0,120}is not a local folder and is not a valid model.{0,80})",
        "the model cannot be read: {1}",
        blame=Blame.USER,
        advice="give a local folder, or make the hub reachable and HF_TOKEN valid",
    ),
    _rule(
        "model-unsupported",
        r"(Model architectures \[.{1,120}?\] (?:are not supported|failed to be inspected).{0,80}"
        r"|.{0,80}was supported in vLLM until.{0,40})",
        "{1}",
        blame=Blame.USER,
        advice="this vLLM cannot serve the model: use another version",
    ),
    _rule(
        "environment",
        r"Unknown vLLM environment variable detected: (\w+)",
        "this vLLM does not know the environment variable {1}",
        blame=Blame.USER,
    ),
    _rule(
        "disk-full",
        r"\[Errno 28\]|No space left on device",
        "the disk is full",
        blame=Blame.MACHINE,
        retry=True,
        advice="free space where the caches (VLLM_CACHE_ROOT) and the study are",
        anywhere=True,
    ),
    _rule(
        "files",
        r"\[Errno 24\]|Too many open files$",
        "the process may not open more files",
        blame=Blame.MACHINE,
        advice="raise the limit (ulimit -n)",
    ),
    _rule(
        "worker-killed",
        r"Worker proc (\S{1,80}) died unexpectedly \(exit code: (-?\d+)\)",
        lambda found, _: (
            f"worker {found[1]} was killed (exit code {found[2]})"
            + (", most likely by the kernel for want of host memory" if found[2] == "-9" else "")
        ),
        blame=Blame.MACHINE,
        retry=True,
        anywhere=True,
    ),
    _rule(
        "worker-killed",
        # An engine that was killed while it started leaves no error of its own, only its exit code in vLLM's last line.
        r"Failed core proc\(s\): \{[^}\n]{0,200}?'(\w{1,40})': (-9|-15)\b",
        lambda found, _: (
            f"{found[1]} was killed while it started (exit code {found[2]})"
            + (", most likely by the kernel for want of host memory" if found[2] == "-9" else "")
        ),
        blame=Blame.MACHINE,
        retry=True,
        anywhere=True,
    ),
    _rule(
        "ready-timeout",
        r"Timed out waiting for engine core processes to start|Did not receive response from front-end process within",
        "vLLM's own limit for the engine's start ran out",
        blame=Blame.MACHINE,
        retry=True,
        advice="set VLLM_ENGINE_READY_TIMEOUT_S to what loading these weights takes",
        anywhere=True,
    ),
    _rule(
        "nccl",
        r"(NCCL error.{0,160}|Watchdog caught collective operation timeout.{0,120}|RPC call to \w+ timed out)",
        "the workers lost each other: {1}",
        blame=Blame.MACHINE,
        retry=True,
        advice="check the links between the GPUs; NCCL_P2P_DISABLE=1 helps on cards without peer-to-peer access",
        anywhere=True,
    ),
    _rule(
        "gpu-fault",
        r"(CUDA error: (?:an illegal memory access|unspecified launch failure|uncorrectable ECC|device-side assert"
        r"|invalid device ordinal).{0,80}"
        r"|Xid \d+.{0,80}|no CUDA-capable device is detected)",
        "the GPU reports a fault: {1}",
        anywhere=True,
    ),
    _rule(
        "cuda-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "CUDA was in use before the fork",
        blame=Blame.MACHINE,
        retry=True,
        anywhere=True,
    ),
    _rule(
        "driver",
        r"(The NVIDIA driver on your system is too old.{0,80}|Found no NVIDIA driver.{0,40}"
        r"|Failed to infer device type)",
        "vLLM finds no usable device: {1}",
        blame=Blame.USER,
        advice="install the vLLM build for this machine, and a driver it can use",
        anywhere=True,
    ),
    _rule(
        "import",
        r"((?:ModuleNotFoundError|ImportError): .{1,200})",
        "vLLM or something it needs is not installed right: {1}",
        blame=Blame.USER,
        advice="repair the Python environment that serves",
    ),
    _rule(
        "validation",
        r"(?s)\d+ validation errors? for (\w+)\s+(.{1,300})",
        lambda found, _: f"{found[1]} refuses: {' '.join(found[2].split())[:200]}",
        anywhere=True,
    ),
    _rule("validation", r"(.{0,160}(?:are mutually exclusive|Unexpected keyword argument).{0,120})", "{1}"),
)


def _no_backend(config: str, reasons: str) -> str:
    """The backends' reasons, most common first, with the value of what they name."""
    names: dict[str, int] = {}
    for group in re.findall(r"\[(.*?)\]", reasons):
        for reason in group.split(","):
            text = reason.strip()
            if text:
                names[text] = names.get(text, 0) + 1
    worst = max(names, key=lambda name: names[name], default="no reason given")
    field = worst.split(" ", 1)[0]
    value = re.search(rf"\b{re.escape(field)}=([^,]+)", config)
    what = f"{field} {value[1]}" if value else worst
    count = len(re.findall(r"\w+: \[", reasons))
    return f"no attention backend runs {what}: {worst} by {names.get(worst, 0)} of {count} backends"
