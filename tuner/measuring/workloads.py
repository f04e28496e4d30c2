"""From a workload to the requests of one round: never the same prompt twice, and lengths that are what was asked.

Text goes to ``vllm bench serve --dataset-name custom`` as a JSONL file; random tokens and timed traces use vLLM's own
data sets. Lengths in tokens come from the server's ``/tokenize``, so no tokenizer is loaded here.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError
from tuner.measuring import corpus
from tuner.model.outcome import Blame, Failure
from tuner.model.traffic import Arrival, Record, read_jsonl, read_sharegpt, read_trace
from tuner.model.workload import LoadPoint, Workload
from tuner.ports import MeasurementFailed

__all__ = ["Prompt", "PromptSupply", "RoundLoad", "Traffic", "read_traffic"]

CountTokens = Callable[[Sequence[str]], list[int]]

_CLOSING_FROM = 48
"""Prompts of at least so many tokens end with an instruction; shorter ones have no room for it."""
_FIT_PASSES = 5
_LEAST_TEXT = 8
"""Tokens of text that a chat request holds at least beside its template."""
_CHUNKS = (16, 32, 64, 128, 256, 512, 1024)
"""Tokens per hash id that published traces use (Qwen 16, Mooncake 512) and what lies between."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: text, wanted output length, and its own length (tokens)."""

    text: str
    output_tokens: int
    input_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLoad:
    """What one round sends.

    Attributes:
        arguments: data set flags for ``vllm bench serve``.
        requests: how many.
        output_tokens: wanted length per request in order; None where only the range is known (random tokens).
        output_range: shortest and longest wanted output.
        output_total: most tokens that the round can bring.
        input_total: prompt tokens, None where vLLM's own data set decides.
        hit_rate: share of prompt tokens that repeat an earlier prompt: what a prefix cache may rightly hit.
        salt: keeps this round's prompts apart from earlier ones in the prefix cache; empty where none repeats.
        self_timed: requests start at the trace's own times, the last one after ``span_s`` seconds.
    """

    arguments: tuple[str, ...]
    requests: int
    output_tokens: tuple[int, ...] | None
    output_range: tuple[int, int]
    output_total: int
    input_total: int | None
    hit_rate: float
    salt: str = ""
    self_timed: bool = False
    span_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was read of the user's file; empty for the built-in sources."""

    records: tuple[Record, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


def read_traffic(workload: Workload) -> Traffic:
    """Read and validate the file that the workload names.

    Raises:
        InputError: the file is missing or wrong (with its line), or the workload contradicts itself.
    """
    if workload.source in ("jsonl", "sharegpt", "trace") and not workload.path:
        raise InputError(f"workload {workload.name}: source {workload.source} needs a path")
    if workload.endpoint == "chat" and workload.source in ("random", "trace"):
        raise InputError(
            f"workload {workload.name}: endpoint: chat needs text, a source of {workload.source} has none; "
            "set source: text (or your own file)"
        )
    if workload.source == "prefix" and (workload.prefix_tokens < 1 or workload.prefix_groups < 1):
        raise InputError(f"workload {workload.name}: source prefix needs prefix_tokens and prefix_groups of at least 1")
    if not workload.points:
        raise InputError(f"workload {workload.name}: at least one load point is wanted")
    path = Path(workload.path).expanduser()
    if workload.source == "jsonl":
        return Traffic(records=tuple(read_jsonl(path)))
    if workload.source == "sharegpt":
        return Traffic(records=tuple(read_sharegpt(path)))
    if workload.source == "trace":
        if any(point.rate is not None for point in workload.points):
            raise InputError(f"workload {workload.name}: a trace has its own times; leave rate away")
        return Traffic(arrivals=tuple(read_trace(path)))
    return Traffic()


class PromptSupply:
    """Requests for one trial. Not thread-safe: seeds and the place in the user's file move on with each call."""

    def __init__(
        self,
        workload: Workload,
        traffic: Traffic,
        *,
        seed: int,
        count_tokens: CountTokens,
        max_model_len: int | None = None,
    ) -> None:
        self.workload = workload
        self.skipped = 0
        self._traffic = traffic
        self._seed = seed
        self._count = count_tokens
        self._longest = max_model_len or 1 << 40
        self._tokens_per_word = 1.35
        self._prefixes: list[str] | None = None
        self._queue: Iterator[Record] = self._shuffled()
        if workload.source in ("random", "text", "prefix") and workload.tokens_needed > self._longest:
            raise _too_long(workload.tokens_needed, self._longest)
        self._template = self._template_tokens() if workload.endpoint == "chat" else 0

    def _template_tokens(self) -> int:
        """Tokens that the chat template adds to every request; they are part of its length.

        Raises:
            MeasurementFailed: the template leaves the shortest request no room for text.
        """
        (template,) = self._count([""])
        shortest, _ = _spread(self.workload.input_tokens, self.workload.spread)
        if self.workload.source in ("text", "prefix") and template + _LEAST_TEXT > shortest:
            raise _failed(
                "requests-too-short",
                f"the chat template alone is {template} tokens, which leaves a request of {shortest} no room for text",
                f"set input_tokens so that the shortest request has at least {template + _LEAST_TEXT}",
            )
        return template

    def round(self, point: LoadPoint, *, seed: int, path: Path) -> RoundLoad:
        """Requests for one round, written to ``path`` where a file is needed.

        Raises:
            MeasurementFailed: the requests do not fit the server's ``max_model_len``, or it cannot count tokens.
        """
        if self.workload.source == "random":
            return self._random(point, seed)
        if self.workload.source == "trace":
            return self._trace(point, seed, path)
        prompts = self.prompts(point.requests, seed=seed)
        with path.open("w", encoding="utf-8") as file:
            for prompt in prompts:
                file.write(json.dumps({"prompt": prompt.text, "output_tokens": prompt.output_tokens}) + "\n")
        outputs = tuple(prompt.output_tokens for prompt in prompts)
        return RoundLoad(
            arguments=(
                *("--dataset-name", "custom", "--dataset-path", str(path)),
                *("--custom-output-len", "-1", "--skip-chat-template", "--disable-shuffle", "--seed", str(seed)),
            ),
            requests=len(prompts),
            output_tokens=outputs,
            output_range=(min(outputs), max(outputs)),
            output_total=sum(outputs),
            input_total=sum(prompt.input_tokens for prompt in prompts),
            hit_rate=self._expected_hits(prompts),
            salt=f"{seed:x}" if self._traffic.records else "",
        )

    def prompts(self, number: int, *, seed: int) -> list[Prompt]:
        """``number`` fresh prompts of the workload's shape (text for every source, also for warming up)."""
        if self._traffic.records:
            return self._recorded(number)
        rng = random.Random(f"{self._seed}/{seed}")  # noqa: S311 - prompts, not secrets
        shapes = self._shapes(number, rng)
        prefixes = self._shared_prefixes() if self.workload.source == "prefix" else [""]
        chosen = [rng.choice(prefixes) for _ in shapes]
        texts, lengths = self._fit([wanted for wanted, _ in shapes], rng)
        return [
            Prompt(
                f"{prefix}\n\n{text}" if prefix else text, output, length + self.workload.prefix_tokens * bool(prefix)
            )
            for prefix, text, length, (_, output) in zip(chosen, texts, lengths, shapes, strict=True)
        ]

    def _shapes(self, number: int, rng: random.Random) -> list[tuple[int, int]]:
        """Input and output lengths (tokens)."""
        arrivals = self._traffic.arrivals
        if arrivals:
            picked = [rng.choice(arrivals) for _ in range(number)]
            return [(item.input_tokens, item.output_tokens) for item in picked]
        inputs = _spread(self.workload.input_tokens, self.workload.spread)
        outputs = _spread(self.workload.output_tokens, self.workload.spread)
        return [(rng.randint(*inputs), rng.randint(*outputs)) for _ in range(number)]

    def _fit(self, targets: Sequence[int], rng: random.Random) -> tuple[list[str], list[int]]:
        """Texts of at most, and almost, the wanted lengths in the server's own tokens."""
        drafts = [_Draft(random.Random(rng.getrandbits(64)), target) for target in targets]  # noqa: S311
        for draft in drafts:
            draft.words = max(1, int(draft.target / self._tokens_per_word))
        pending = drafts
        for _ in range(_FIT_PASSES):
            for draft, length in zip(pending, self._count([item.text() for item in pending]), strict=True):
                draft.length = length
            per_word = sum(item.length for item in pending) / max(1, sum(item.words for item in pending))
            self._tokens_per_word = max(0.5, min(per_word, 8.0))
            pending = [item for item in pending if item.adjust(self._tokens_per_word)]
            if not pending:
                break
        for draft in pending:
            draft.settle()
        return [draft.text() for draft in drafts], [draft.length for draft in drafts]

    def _shared_prefixes(self) -> list[str]:
        """The prefixes of this trial: the same in every round, so that the cache is as warm as in service."""
        if self._prefixes is None:
            rng = random.Random(f"{self._seed}/prefixes")  # noqa: S311
            # Joining a prefix and a suffix can cost a token more than the two alone.
            wanted = [max(1, self.workload.prefix_tokens - 2) + self._template] * self.workload.prefix_groups
            self._prefixes, _ = self._fit(wanted, rng)
        return self._prefixes

    def _expected_hits(self, prompts: Sequence[Prompt]) -> float:
        """Largest share of the prompts that a cache emptied before the round could rightly hit."""
        texts = [prompt.text for prompt in prompts]
        if self.workload.source == "prefix":
            whole = self.workload.prefix_tokens + self.workload.input_tokens * (1 - self.workload.spread)
            natural = self.workload.prefix_tokens / whole
        else:
            shared = sum(_shared_start(a, b) for a, b in itertools.pairwise(sorted(texts)))
            natural = shared / max(1, sum(len(text) for text in texts))
        # A chat template begins every request alike.
        template = self._template * len(prompts) / max(1, sum(prompt.input_tokens for prompt in prompts))
        natural = min(1.0, natural + template)
        return max(self.workload.expected_hit_rate, natural)

    def _shuffled(self) -> Iterator[Record]:
        """The user's records in random order, again and again."""
        rng = random.Random(f"{self._seed}/records")  # noqa: S311
        records = list(self._traffic.records)
        while records:
            rng.shuffle(records)
            yield from records

    def _recorded(self, number: int) -> list[Prompt]:
        """The next records of the user's file that fit the server."""
        found: list[Prompt] = []
        tried, most = 0, 2 * (len(self._traffic.records) + number)
        while len(found) < number and tried < most:
            batch = [next(self._queue) for _ in range(number - len(found))]
            tried += len(batch)
            inputs = self._count([record.prompt for record in batch])
            answered = [record for record in batch if record.output_tokens is None and record.answer]
            answers = iter(self._count([record.answer for record in answered]))
            for record, length in zip(batch, inputs, strict=True):
                wanted = record.output_tokens or (next(answers) if record.answer else self.workload.output_tokens)
                if length + wanted <= self._longest and wanted > 0:
                    found.append(Prompt(record.prompt, wanted, length))
                else:
                    self.skipped += 1
        if len(found) < number:
            raise _failed(
                "requests-too-long",
                f"only {len(found)} of {number} requests of {self.workload.path} fit max_model_len {self._longest}",
                "raise max-model-len or cut the long requests from the file",
            )
        return found

    def _random(self, point: LoadPoint, seed: int) -> RoundLoad:
        # vLLM's random data set rounds its range outwards.
        low = max(1, math.floor(self.workload.output_tokens * (1 - self.workload.spread)))
        high = max(1, math.ceil(self.workload.output_tokens * (1 + self.workload.spread)))
        flags: dict[str, object] = {
            "--dataset-name": "random",
            "--random-input-len": self.workload.input_tokens,
            "--random-output-len": self.workload.output_tokens,
            "--random-range-ratio": self.workload.spread,
            "--seed": seed,
        }
        return RoundLoad(
            arguments=tuple(str(word) for pair in flags.items() for word in pair),
            requests=point.requests,
            output_tokens=(low,) * point.requests if low == high else None,
            output_range=(low, high),
            output_total=high * point.requests,
            input_total=None,
            hit_rate=self.workload.expected_hit_rate,
        )

    def _trace(self, point: LoadPoint, seed: int, path: Path) -> RoundLoad:
        """The trace's first requests with fresh tokens: sharing between requests stays, repeats between rounds go."""
        arrivals = [item for item in self._traffic.arrivals if item.input_tokens + item.output_tokens <= self._longest]
        self.skipped = len(self._traffic.arrivals) - len(arrivals)
        arrivals = arrivals[: point.requests]
        if not arrivals:
            shortest = min(item.input_tokens + item.output_tokens for item in self._traffic.arrivals)
            raise _too_long(shortest, self._longest)
        chunk = _chunk(arrivals)
        rng = random.Random(f"{self._seed}/{seed}")  # noqa: S311
        fresh: dict[int, int] = {}
        repeated = 0
        with path.open("w", encoding="utf-8") as file:
            for item in arrivals:
                # Requests without ids share nothing: their ids are negative and used once.
                needed = math.ceil(item.input_tokens / chunk)
                ids = list(item.hash_ids[:needed])
                ids += [-rng.getrandbits(48) - 1 for _ in range(needed - len(ids))]
                repeated += sum(key in fresh for key in ids) * chunk
                line = {
                    "timestamp": item.at - arrivals[0].at,
                    "input_length": item.input_tokens,
                    "output_length": item.output_tokens,
                    "hash_ids": [fresh.setdefault(key, rng.getrandbits(48)) for key in ids],
                }
                file.write(json.dumps(line) + "\n")
        outputs = tuple(item.output_tokens for item in arrivals)
        total = sum(item.input_tokens for item in arrivals)
        return RoundLoad(
            arguments=(
                *("--dataset-name", "timed_trace", "--dataset-path", str(path)),
                *("--timed-trace-chunk-hash-size", str(chunk), "--seed", str(seed)),
            ),
            requests=len(arrivals),
            output_tokens=outputs,
            output_range=(min(outputs), max(outputs)),
            output_total=sum(outputs),
            input_total=total,
            hit_rate=max(self.workload.expected_hit_rate, min(1.0, repeated / total)),
            self_timed=True,
            span_s=arrivals[-1].at - arrivals[0].at,
        )


class _Draft:
    """A text on its way to the wanted length."""

    def __init__(self, rng: random.Random, target: int) -> None:
        self.target = target
        self.words = 1
        self.length = 0
        self._counted = (1, 0)
        self._fits: tuple[int, int] | None = None
        self._stream = corpus.sentences(rng)
        self._pieces = corpus.opening(rng).split(" ")
        self._closing = "\n" + corpus.closing(rng) if target >= _CLOSING_FROM else ""

    def text(self) -> str:
        while len(self._pieces) < self.words:
            self._pieces += next(self._stream).split(" ")
        return " ".join(self._pieces[: self.words]) + self._closing

    def adjust(self, tokens_per_word: float) -> bool:
        """Change the number of words after a count; False once the length is near enough."""
        excess = self.length - self.target
        self._counted = (self.words, self.length)
        if excess > 0:
            self.words = max(1, self.words - math.ceil(excess / tokens_per_word))
            return self.words != self._counted[0]
        if self._fits is None or self.length > self._fits[1]:
            self._fits = self._counted
        more = int(-excess / tokens_per_word)
        if -excess <= max(1, self.target // 100) or more == 0:
            return False
        self.words += more
        return True

    def settle(self) -> None:
        """Take the longest that was counted and fits; else give up exactness for never being too long."""
        if self._fits is not None:
            self.words, self.length = self._fits
            return
        words, length = self._counted
        # Every word is at least one token.
        self.words, self.length = max(1, words - (length - self.target)), self.target


def _chunk(arrivals: Sequence[Arrival]) -> int:
    """Tokens per hash id, read off the trace: the smallest usual size that covers every request."""
    needed = max((item.input_tokens / len(item.hash_ids) for item in arrivals if item.hash_ids), default=16)
    return next((size for size in _CHUNKS if size >= needed), math.ceil(needed))


def _shared_start(a: str, b: str) -> int:
    """Characters that two texts have in common at their beginning."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _spread(tokens: int, share: float) -> tuple[int, int]:
    """Shortest and longest length, rounded inwards so that ``Workload.tokens_needed`` holds."""
    return max(1, math.ceil(tokens * (1 - share) - 1e-9)), max(1, math.floor(tokens * (1 + share) + 1e-9))


def _too_long(needed: int, longest: int) -> MeasurementFailed:
    return _failed(
        "requests-too-long",
        f"requests need {needed} tokens (input and output), max_model_len is {longest}",
        f"set max-model-len to at least {needed} or shorten the workload",
    )


def _failed(kind: str, cause: str, advice: str) -> MeasurementFailed:
    return MeasurementFailed(Failure(kind=kind, cause=cause, blame=Blame.USER, phase="measure", advice=advice))
