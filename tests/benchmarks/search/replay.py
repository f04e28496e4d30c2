"""The recorded H200 trials as a table to search: nothing is interpolated, what was not recorded is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from tests.benchmarks.search.bench_space import Surface, choice, space_of
from tuner.model.json import Scalar

__all__ = ["h200_table"]


def h200_table(path: Path) -> Surface:
    """Offline rows of ``trials.jsonl``; the value of a row is the mean of its runs but for a cold first one."""
    parameters = [
        choice("max_num_seqs", ["default", "256", "512", "1024"]),
        choice("quantization", ["none", "fp8"]),
        choice("kv_cache_dtype", ["auto", "fp8"]),
        choice("cudagraph_mode", ["default", "PIECEWISE", "NONE"], target="compilation-config.cudagraph_mode"),
        choice("moe_backend", ["auto", "deep_gemm_mega_moe", "deep_gemm"]),
        choice("gpu_memory_utilization", ["default", "0.42"]),
        choice("block_size", ["default", "24"]),
        choice("speculation", ["off", "ngram"], target="speculative-config.method"),
    ]
    defaults = {parameter.name: str(parameter.default) for parameter in parameters}
    table: dict[tuple[str, ...], float | str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["mode"] != "offline":
            continue
        config = row["config"]
        asked = {
            **{name: str(value) for name, value in config.items() if name in defaults},
            "cudagraph_mode": config.get("compilation_config", {}).get("cudagraph_mode", "default"),
            "speculation": config.get("speculative_config", {}).get("method", "off"),
        }
        key = tuple({**defaults, **asked}.values())
        runs = row.get("output_tok_s") or []
        # The first of several runs may still have compiled kernels.
        table[key] = fmean(runs[1:] or runs) if runs else str(row["error"])[:200]

    def key_of(setting: Mapping[str, Scalar]) -> tuple[str, ...]:
        return tuple(str(setting[name]) for name in defaults)

    return Surface(
        "h200-table",
        space_of("h200-table", parameters),
        lambda setting: table[key_of(setting)],
        noise=0.005,
        excluded=lambda setting: key_of(setting) not in table,
        known_best=max(value for value in table.values() if not isinstance(value, str)),
    )
