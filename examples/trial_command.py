#!/usr/bin/env python3
"""A complete trial command: `tune --hardware h200 --trial-command "python examples/trial_command.py"`.

It measures nothing: a few lines of arithmetic stand where a real one would start its server and send requests. Take
it as the frame for your own. Standard library only. The protocol is in docs/TRIAL_COMMAND.md.
"""

import json
import random
import sys
from typing import Any

KV_TOKENS = 100_000
PROMPT_AND_OUTPUT = 512


def measure(arguments: dict[str, Any], seed: int) -> list[float]:
    """Tokens per second of one run: more sequences help until no captured graph covers the batch."""
    sequences = int(arguments.get("max-num-seqs", 256))
    captured = int(arguments.get("compilation-config.max_cudagraph_capture_size", 512))
    batch = min(sequences, 384)  # the load: 384 clients
    step = 0.006 + 0.00002 * batch + (0 if batch <= captured else 0.030)
    noise = random.Random(seed)  # noqa: S311 - no secret
    return [batch / step * noise.gauss(1.0, 0.01) for _ in range(3)]


def answer(result: dict[str, Any]) -> None:
    """One JSON object, once."""
    sys.stdout.write(json.dumps({"protocol": 1, **result}) + "\n")


def main() -> None:
    """Read the question, answer it."""
    question = json.load(sys.stdin)
    if question["protocol"] != 1:
        cause = "this command speaks protocol 1"
        answer({"status": "failed", "failure": {"kind": "protocol", "cause": cause, "blame": "user"}})
        return
    arguments = question["candidate"]["arguments"]
    sys.stderr.write("what is written to standard error lands in external.log\n")

    needed = int(arguments.get("max-num-seqs", 256)) * PROMPT_AND_OUTPUT / 8
    if needed > KV_TOKENS:
        # Dead before it starts: say by how much, and the search learns where the border is.
        result = {
            "status": "infeasible",
            "failure": {
                "kind": "no-kv",
                "cause": f"{needed:.0f} tokens of KV cache are needed, {KV_TOKENS} fit",
                "violation": needed / KV_TOKENS - 1,
            },
        }
    else:
        runs = measure(arguments, question["seed"])
        result = {
            "status": "ok",
            "metrics": {"latency/tpot_p50": 1000 * min(int(arguments.get("max-num-seqs", 256)), 384) / max(runs)},
            "samples": {"throughput/output": runs},
            "effective": {"max-num-seqs": arguments.get("max-num-seqs", 256)},
        }
    answer(result)


if __name__ == "__main__":
    main()
