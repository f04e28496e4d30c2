"""Every parser against foreign input: an answer or one of its own errors, in bounded time; never a traceback."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.strategies import damaged, documents, json_values, jsonl
from tuner.compose.options import Options
from tuner.errors import TunerError
from tuner.measuring import bench, prometheus
from tuner.model import records, secrets, targets, traffic
from tuner.model.candidate import Candidate
from tuner.model.expression import Expression, ExpressionError
from tuner.model.outcome import Outcome, Status
from tuner.model.workload import Objective
from tuner.ports import MeasurementFailed
from tuner.serving import protocol, table
from tuner.serving.failures import classify
from tuner.serving.ledger import sweep
from tuner.serving.logs import read_log
from tuner.spaces.facts import model_facts
from tuner.spaces.schema import check_document
from tuner.spaces.yamlfile import SpaceError, parse_yaml

Bounded = Callable[[], AbstractContextManager[None]]
ROOT = Path(__file__).parents[2]
CANDIDATE = Candidate(assignment={"seqs": 8}, arguments={"max-num-seqs": 8})

EXPRESSIONS = [
    "max_num_seqs >= 512 and hardware.sm in [90, 100]",
    "min(max_num_seqs * 2, 8192) if model.is_moe else ceil(hardware.memory_gib / 3)",
    "not (a == 'x' or b != null) and -c // 4 % 3 < 1.5e3",
    "abs(len(sizes) - int(round(x, 2)))",
]
SCOPE: dict[str, Any] = {
    "max_num_seqs": 256, "a": "x", "b": None, "c": 3, "x": 1.5, "sizes": [1, 2], "hardware.sm": 90,
    "hardware.memory_gib": 141.0, "model.is_moe": True,
}  # fmt: skip
BENCH = [
    {
        "completed": 2, "failed": 0, "duration": 1.0, "total_input_tokens": 4, "total_output_tokens": 4,
        "request_throughput": 2.0, "output_throughput": 4.0, "total_token_throughput": 8.0, "request_goodput": None,
        "input_lens": [2, 2], "output_lens": [2, 2], "generated_texts": ["a", "b"], "errors": ["", ""],
        "ttfts": [0.1, 0.1], "itls": [[0.1], [0.1]], "start_times": [0.0, 0.1],
        **{f"{stat}_{name}_ms": 1.0 for name in ("ttft", "tpot", "itl", "e2el")
           for stat in ("mean", "p50", "p90", "p99")},
    }
]  # fmt: skip
METRICS = [
    (
        '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        'vllm:generation_tokens_total{engine="0",model_name="m"} 1e3\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0\n'
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n'
    )
]
ANSWERS: list[dict[str, Any]] = [
    {"protocol": 1, "status": "ok", "metrics": {"throughput/output": 5.0}, "samples": {"throughput/output": [4.0, 6.0]},
     "effective": {"a": 1}, "steps": [[1, 0.1]], "quality": {"passed": True}, "seconds": {"start": 1.0}},
    {"status": "failed", "failure": {"kind": "x", "cause": "y", "blame": "machine", "violation": 1.0}},
]  # fmt: skip
ROWS = [
    {"mode": "offline", "config": {"max_num_seqs": 256}, "output_tok_s": [1.0, 2.0], "latency": {"ttft_p50": 1}},
    {"arguments": {"max-num-seqs": 8}, "metrics": {"throughput/output": 3.0}, "samples": {}, "seconds": {"start": 1}},
    {"config": {}, "error": "ValueError: no", "start_s": 3.0},
]
REQUESTS: list[dict[str, Any]] = [
    {"prompt": "hello", "output_tokens": 3},
    {"timestamp": 1, "input_length": 10, "output_length": 5, "hash_ids": [1, 2]},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
]
LEDGER = [{"event": "started", "boot": "b", "marker": "m" * 20, "owner": [1, 2], "process": [3, 4], "what": "server"}]
KEYS = sorted(
    {key for sample in (*BENCH, *ANSWERS, *ROWS, *REQUESTS, *LEDGER) for key in sample}
    | {"candidate", "status", "measurement", "failure", "violation", "cause", "blame", "kind", "schema", "points",
       "estimates", "arguments", "constraints", "value", "low", "high", "server", "phases"}
)  # fmt: skip


@contextlib.contextmanager
def _file(text: str, name: str = "input") -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(text.encode("utf-8", errors="surrogatepass"))
        yield path


@given(text=damaged(EXPRESSIONS))
def test_expression(bounded: Bounded, text: str) -> None:
    with bounded():
        try:
            expression = Expression.parse(text)
        except ValueError:
            return
        with contextlib.suppress(ExpressionError):
            expression.evaluate(SCOPE)


@given(text=damaged([path.read_text(encoding="utf-8") for path in sorted((ROOT / "search_spaces").rglob("*.yaml"))]))
def test_space_file(bounded: Bounded, text: str) -> None:
    with bounded(), contextlib.suppress(SpaceError):
        for problem in check_document(parse_yaml(text.encode("utf-8", errors="surrogatepass"), "space.yaml")):
            assert str(problem)


@given(text=jsonl(REQUESTS, KEYS))
def test_traffic_files(bounded: Bounded, text: str) -> None:
    with _file(text, "traffic.jsonl") as path, bounded():
        for read in (traffic.read_jsonl, traffic.read_sharegpt, traffic.read_trace):
            with contextlib.suppress(TunerError):
                read(path)


@given(text=documents(BENCH, KEYS))
def test_bench_result(bounded: Bounded, text: str) -> None:
    with _file(text) as path, bounded(), contextlib.suppress(MeasurementFailed):
        result = bench.read_result(path)
        assert result.completed + result.failed >= 0


@given(text=damaged(METRICS))
def test_metrics_text(bounded: Bounded, text: str) -> None:
    with bounded():
        snapshot = prometheus.parse(text)
        snapshot.total("vllm:num_requests_running")
        snapshot.buckets("vllm:time_to_first_token_seconds")
        prometheus.delta(snapshot, snapshot, "vllm:generation_tokens")
        prometheus.quantile(snapshot, snapshot, "vllm:time_to_first_token_seconds", 0.5)


LOGS = [
    (
        "(APIServer pid=1) INFO 11-29 15:42:10 [api_utils.py:286] non-default args: {'port': 1}\n"
        "(EngineCore pid=2) INFO 11-29 15:42:33 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x=1\n"
        "(EngineCore pid=2) INFO 11-29 15:42:33 [kv_cache_utils.py:2327] CPU KV cache size: 46,592 tokens, Maximum "
        "concurrency for 1,024 tokens per request: 45.50x\n"
        "(EngineCore pid=2) ERROR 11-29 15:42:33 [core.py:1510] EngineCore failed to start.\n"
        "(EngineCore pid=2) ERROR 11-29 15:42:33 [core.py:1510] ValueError: To serve at least one "
        "request with the model's "
        "max seq len (131072), (24.00 GiB KV cache is needed, which is larger than the available KV cache memory (3.18 "
        "GiB). Based on the available memory, the estimated maximum model length is 34736.\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    ),
    (
        "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired "
        "GPU memory utilization "
        "(0.9, 42.64 GiB).\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    ),
]


@given(text=damaged(LOGS), code=st.none() | st.integers(-40, 300))
def test_server_log(bounded: Bounded, text: str, code: int | None) -> None:
    with _file(text, "server.log") as path, bounded():
        facts = read_log(path)
        failure = classify(text, code=code, phase=facts.phase)
        assert failure.kind
        assert failure.cause
        assert failure.fingerprint


@given(record=json_values(KEYS) | st.just(records.to_record(Outcome(candidate=CANDIDATE, status=Status.MEASURED))))
def test_records(bounded: Bounded, record: Any) -> None:
    with bounded(), contextlib.suppress(ValueError):
        records.from_record(record)


@given(text=documents(ANSWERS, KEYS))
def test_trial_command_answer(bounded: Bounded, text: str) -> None:
    with bounded(), contextlib.suppress(protocol.AnswerError):
        outcome = protocol.outcome_of(protocol.read_answer(text), CANDIDATE, objective=Objective())
        # What was accepted must be fit for every store.
        json.dumps(records.to_record(outcome), allow_nan=False)


@given(text=jsonl(ROWS, KEYS))
def test_replay_table(bounded: Bounded, text: str) -> None:
    with _file(text, "table.jsonl") as path, bounded(), contextlib.suppress(TunerError):
        found = table.read_table(path)
        found.look_up(table.flatten({"max-num-seqs": 64}))
        found.noise("throughput/output")


@given(text=jsonl(LEDGER, KEYS))
def test_process_ledger(bounded: Bounded, text: str) -> None:
    with _file(text, "processes.jsonl") as path, bounded():
        assert sweep(path) == ()


@given(text=damaged(["ttft_p99=500ms", "throughput>=2000", "e2e_p99<=8s", "2h", "30m", "goodput", "latency/x_p50"]))
def test_command_line_values(bounded: Bounded, text: str) -> None:
    for parse in (targets.parse_limit, targets.parse_objective, targets.parse_duration):
        with bounded(), contextlib.suppress(ValueError, TunerError):
            parse(text)


@given(text=damaged(["load-format=dummy", "compilation-config={mode: 3, sizes: [1, 2]}", "a.b=true", "X=1"]))
def test_command_line_arguments(bounded: Bounded, text: str) -> None:
    options = Options(hardware="cpu", arguments=(text, f"x={text}"), environment=(text,), study=text, budget=text)
    for read in ("extra_arguments", "extra_environment", "secret_environment", "budget_seconds", "validate"):
        with bounded(), contextlib.suppress(TunerError):
            value = getattr(options, read)
            if callable(value):
                value()


CONFIGS = [
    {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
     "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128, "intermediate_size": 128,
     "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}, "num_experts": 8, "head_dim": 16}
]  # fmt: skip


@given(text=documents(CONFIGS, sorted(CONFIGS[0])))
def test_model_config(bounded: Bounded, text: str) -> None:
    with _file(text, "config.json") as path, bounded(), contextlib.suppress(TunerError):
        model_facts(str(path.parent), {})


@given(text=damaged(["--api-key abc HF_TOKEN=hf_abcdefghijklmnop123 http://u:p@h/x?token=1 Bearer abcdefghij"]))
def test_masking(bounded: Bounded, text: str) -> None:
    with bounded():
        once = secrets.mask(text)
        assert secrets.mask(once) == once
