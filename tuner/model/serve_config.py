"""A candidate as the mapping that ``vllm serve --config FILE`` reads.

The rules are those of ``vllm/utils/argparse_utils.py:load_config_file`` (0.25.1 to 0.33): top-level keys are flags,
dicts become one JSON argument, lists become repeated values, everything else goes through ``str``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tuner.model.candidate import Candidate, render_flags
from tuner.model.json import Json, canonical

__all__ = ["LAUNCHER_KEYS", "serve_command", "serve_config"]

LAUNCHER_KEYS = frozenset(
    {
        "allow-credentials",
        "api-key",
        "config",
        "hf-token",
        "host",
        "model",
        "port",
        "ssl-ca-certs",
        "ssl-certfile",
        "ssl-keyfile",
        "uds",
    }
)
"""Where a server listens and who may ask is the deployment's business; it never stands in an export."""


def serve_config(candidate: Candidate, model: str) -> dict[str, Json]:
    """The YAML's content: ``model`` first, then the flags in the candidate's order.

    Args:
        model: the study's own checkpoint; a candidate that chose another one is written with that.

    ``false`` is written as ``no-x: true`` because ``x: false`` is silently dropped (0.32 looks for the negated flag
    on a parser that does not own it, 0.25.1 does not look at all). A flag without a value is left away: ``null``
    would reach the parser as the text "None", and an empty list as nothing.
    """
    config: dict[str, Json] = {"model": candidate.checkpoint or model}
    for name, value in candidate.nested().items():
        key = name.replace("_", "-")
        if key in LAUNCHER_KEYS or value is None:
            continue
        if key == "O":
            key = "optimization-level"  # -O is no key of the file: it would become the unknown flag --O
        if value is False:
            config[f"no-{key}"] = True
        elif isinstance(value, list | tuple):
            if value:
                # Entries go through str, which would spell a dict as Python rather than JSON.
                config[key] = [canonical(item) if isinstance(item, Mapping) else item for item in value]
        else:
            config[key] = value
    return config


def serve_command(candidate: Candidate, model: str) -> str:
    """The same as a command line for people, ready to paste."""
    return shlex.join(["vllm", "serve", candidate.checkpoint or model, *render_flags(candidate)])
