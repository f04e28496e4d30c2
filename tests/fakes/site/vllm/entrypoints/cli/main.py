"""``vllm bench serve`` in a tenth of a second: the flags that `tune` gives, and the result file with vLLM's keys."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def main() -> None:
    """Entry point, as ``vllm.entrypoints.cli.main.main``."""
    if sys.argv[1:3] != ["bench", "serve"]:
        sys.exit(f"the fake vllm has no sub-command {sys.argv[1:3]}")
    options = _options(sys.argv[3:])
    requests = _requests(options)
    began = time.perf_counter()
    answers = asyncio.run(_send(options, requests))
    result = _result(options, requests, answers, time.perf_counter() - began)
    path = Path(options.result_dir) / options.result_filename
    path.write_text(json.dumps(result), encoding="utf-8")


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    for name in ("--base-url", "--model", "--dataset-name", "--dataset-path", "--result-dir", "--result-filename"):
        parser.add_argument(name, default="")
    for name in ("--num-prompts", "--max-concurrency", "--seed", "--random-input-len", "--random-output-len"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--request-rate", type=float, default=float("inf"))
    parser.add_argument("--goodput", nargs="*", default=[])
    parser.add_argument("--extra-body", default="{}")
    parser.add_argument("--ignore-eos", action="store_true")
    return parser.parse_known_args(argv)[0]


def _requests(options: argparse.Namespace) -> list[dict[str, Any]]:
    if options.dataset_name == "random":
        source = random.Random(options.seed)
        return [
            {"prompt": [source.randrange(100, 40_000) for _ in range(options.random_input_len)],
             "output_tokens": options.random_output_len}
            for _ in range(options.num_prompts)
        ]  # fmt: skip
    lines = Path(options.dataset_path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()][: options.num_prompts]


async def _send(options: argparse.Namespace, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seats = asyncio.Semaphore(options.max_concurrency or len(requests))
    source = random.Random(options.seed)
    tasks = []
    for request in requests:
        if options.request_rate != float("inf"):
            await asyncio.sleep(source.expovariate(options.request_rate))
        tasks.append(asyncio.create_task(_one(options, request, seats)))
    return list(await asyncio.gather(*tasks))


async def _one(options: argparse.Namespace, request: dict[str, Any], seats: asyncio.Semaphore) -> dict[str, Any]:
    async with seats:
        answer: dict[str, Any] = {"start": time.perf_counter(), "times": [], "text": "", "error": "", "usage": {}}
        try:
            await _stream(options, request, answer)
        except (OSError, EOFError, ValueError) as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        answer["end"] = time.perf_counter()
        return answer


async def _stream(options: argparse.Namespace, request: dict[str, Any], answer: dict[str, Any]) -> None:
    place = urlsplit(options.base_url)
    body = json.dumps(
        {"model": options.model, "prompt": request["prompt"], "max_tokens": request["output_tokens"],
         "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": options.ignore_eos,
         "temperature": 0, **json.loads(options.extra_body or "{}")}
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
        f"Authorization: Bearer {os.environ.get('OPENAI_API_KEY', '')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1 << 22)
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        status = (await reader.readline()).split()
        if status[1:2] != [b"200"]:
            raise ValueError(f"status {status[1:2]}: {(await reader.read(4096))[-300:]!r}")
        ended = False
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                ended = True
                break
            event = json.loads(line[6:])
            if event.get("usage"):
                answer["usage"] = event["usage"]
            for choice in event.get("choices", ()):
                answer["times"].append(time.perf_counter())
                answer["text"] += choice["text"]
        if not ended:
            raise EOFError("the stream ended early")
    finally:
        writer.close()


def _result(
    options: argparse.Namespace, requests: list[dict[str, Any]], answers: list[dict[str, Any]], duration: float
) -> dict[str, Any]:
    good = [answer for answer in answers if not answer["error"]]
    outputs = [answer["usage"].get("completion_tokens", 0) if not answer["error"] else 0 for answer in answers]
    inputs = [answer["usage"].get("prompt_tokens", 0) for answer in answers]
    ttfts = [answer["times"][0] - answer["start"] if answer["times"] else 0.0 for answer in answers]
    itls = [[b - a for a, b in zip(answer["times"], answer["times"][1:], strict=False)] for answer in answers]
    e2els = [answer["end"] - answer["start"] for answer in good]
    done = [gaps for gaps, answer in zip(itls, answers, strict=True) if not answer["error"]]
    tpots = [sum(gaps) / len(gaps) if gaps else 0.0 for gaps in done]
    result: dict[str, Any] = {
        "backend": "openai", "model_id": options.model, "num_prompts": len(requests),
        "max_concurrency": options.max_concurrency, "duration": duration, "completed": len(good),
        "failed": len(answers) - len(good), "total_input_tokens": sum(inputs), "total_output_tokens": sum(outputs),
        "request_throughput": len(good) / duration, "request_goodput": None,
        "output_throughput": sum(outputs) / duration, "total_token_throughput": (sum(inputs) + sum(outputs)) / duration,
        "input_lens": inputs, "output_lens": outputs, "ttfts": ttfts, "itls": itls,
        "start_times": [answer["start"] for answer in answers],
        "generated_texts": [answer["text"] for answer in answers], "errors": [answer["error"] for answer in answers],
    }  # fmt: skip
    series = {"ttft": ttfts, "tpot": tpots, "itl": [gap for gaps in itls for gap in gaps], "e2el": e2els}
    limits = dict(item.split(":") for item in options.goodput)
    if limits:
        kept = [
            all(
                value * 1000 <= float(limits[name])
                for name, value in (("ttft", ttft), ("tpot", tpot), ("e2el", e2el))
                if name in limits
            )
            for ttft, tpot, e2el in zip(ttfts, tpots, e2els, strict=False)
        ]
        result["request_goodput"] = sum(kept) / duration
    for name, values in series.items():
        ordered = sorted(values) or [0.0]
        result[f"mean_{name}_ms"] = 1000 * statistics.fmean(ordered)
        result[f"median_{name}_ms"] = 1000 * statistics.median(ordered)
        result[f"std_{name}_ms"] = 1000 * statistics.pstdev(ordered)
        for percent in (50, 90, 99):
            result[f"p{percent}_{name}_ms"] = 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
    return result


if __name__ == "__main__":
    main()
