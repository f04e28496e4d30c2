"""When two configurations are one: by what is asked, and by what a started server says it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tuner.model.json import Json

__all__ = ["effective_settings", "flat", "under"]

# Figures of a start that differ from run to run without the configuration being another one.
_MEASURED = frozenset(
    {
        "kv-cache-tokens",
        "kv-cache-gib",
        "kv-cache-memory",
        "max-concurrency",
        "num-gpu-blocks",
        "num-cpu-blocks",
        "available-kv-gib",
        "weights-gib",
        "graphs-gib",
    }
)
# Asked under one name, reported under another.
_REPORTED_AS = {
    "compilation-config.max_cudagraph_capture_size": "cudagraph-capture-max",
    "max-cudagraph-capture-size": "cudagraph-capture-max",
    "attention-config.backend": "attention-backend",
    "kernel-config.moe_backend": "moe-backend",
    "kernel-config.linear_backend": "linear-backend",
}
# Parts of these keep their own names in reports.
_NOT_ALONE = ("speculative-config", "env:")


def flat(arguments: Mapping[str, Json], prefix: str = "") -> dict[str, Json]:
    """Nested mappings as dotted paths."""
    out: dict[str, Json] = {}
    for key, value in arguments.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{path}.")
        else:
            out[path] = value
    return out


def under(path: str, targets: Collection[str]) -> bool:
    """Whether ``path`` is one of the targets or a part of one."""
    parts = path.split(".")
    return any(".".join(parts[:length]) in targets for length in range(1, len(parts) + 1))


def effective_settings(asked: Mapping[str, Json], effective: Mapping[str, Json]) -> dict[str, Json]:
    """What runs: the server's word where it gives one, what was asked elsewhere.

    Args:
        asked: flags and variables that make a difference, dotted.
        effective: :attr:`tuner.model.measurement.ServerReport.effective`.
    """
    known = {key: value for key, value in effective.items() if key not in _MEASURED and value is not None}
    out = {path: value for path, value in asked.items() if _report_name(path) not in known}
    return out | {f"runs:{key}": value for key, value in known.items()}


def _report_name(path: str) -> str:
    if path in _REPORTED_AS:
        return _REPORTED_AS[path]
    if path.startswith(_NOT_ALONE):
        return path
    return path.rsplit(".", 1)[-1].replace("_", "-")
