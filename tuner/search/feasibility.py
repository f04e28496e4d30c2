"""How likely a candidate is to start, learned from what failed: each choice, range end or pair may be the culprit.

A noisy-or: a trial fails if any of the things it contains is dead. A success clears everything it contains, a failure
shares the blame among what is not cleared yet, more of it to what the error message names. So one dead label is found
after a few trials without shunning everything that stood beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.model.json import Scalar
from tuner.search.distributions import Encoding

__all__ = ["Suspects", "suspect_model"]

Array: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Words: TypeAlias = tuple[re.Pattern[str], ...]

_LABEL, _END, _PAIR, _USUAL = 0.13, 0.012, 0.0006, 0.004
"""Prior chances that a label, the far end of a range, a pair, or the default is dead."""
_MARGINS = (0.0, 0.06, 0.18)
"""How far before a failed value the dead end of a range may begin (share of the range)."""
_GUILTY = 0.35
_CLEARED = 8.0
"""Weight of one success against a suspicion: starts are nearly deterministic, not quite."""
_NAMED = 6.0
"""Factor on the blame of what an error message names."""
_HUNGRY = ("memory_utilization", "kv_cache_memory", "batched_tokens", "max_model_len")
_SOMEWHAT_HUNGRY = ("max_num_seqs", "capture", "spec_tokens", "speculative_tokens")
"""Parameters of which more takes more memory: the far end is likelier to be dead, and to blame for running out."""
_ROUNDS = 5


@dataclass(frozen=True)
class Suspects:
    """The things a candidate may contain.

    Attributes:
        columns: column of the encoded row per suspect.
        kinds: 0 equals, 1 at least, 2 at most.
        values: what the column is compared with.
        prior: chance of being dead before anything was tried.
        words: what an error message would call it.
    """

    columns: NDArray[np.int64]
    kinds: NDArray[np.int64]
    values: Array
    prior: Array
    words: tuple[Words, ...]
    ranges: tuple[tuple[int, float, Words], ...] = ()

    @classmethod
    def of(cls, encoded: Mapping[str, Encoding], *, only: frozenset[str] | None = None) -> Suspects:
        """Every label, and both ends of every range in four steps away from the default."""
        rows: list[tuple[int, int, float, float, Words]] = []
        for column, (name, item) in enumerate(encoded.items()):
            if only is not None and name not in only:
                continue
            rows += _label_rows(column, item) if not item.ordered else _end_rows(column, item)
        if not rows:
            rows = [(0, 0, -9.0, _USUAL, ())]
        return cls(
            columns=np.array([row[0] for row in rows]),
            kinds=np.array([row[1] for row in rows]),
            values=np.array([row[2] for row in rows]),
            prior=np.array([row[3] for row in rows]),
            words=tuple(row[4] for row in rows),
            ranges=tuple(
                (column, _centre(item), _range_words(name))
                for column, (name, item) in enumerate(encoded.items())
                if item.ordered and (only is None or name in only)
            ),
        )

    def at_failures(self, x: Array) -> Suspects:
        """With ends of ranges that begin where the failed rows ``x`` stood, or a little before."""
        rows: list[tuple[int, int, float, float, Words]] = []
        for column, centre, words in self.ranges:
            ends: dict[tuple[int, float], None] = {}
            for value in x[-12:, column]:
                if value >= 0 and abs(value - centre) > 0.02:
                    kind = 1 if value > centre else 2
                    for step in _MARGINS:  # each with its part of one end's chance
                        end = value - step if kind == 1 else value + step
                        if (end > centre) == (kind == 1):
                            ends[(kind, round(float(end), 3))] = None
            rows += [(column, kind, end, _END / 2, words) for kind, end in ends]
        if not rows:
            return self
        return replace(
            self,
            columns=np.append(self.columns, [row[0] for row in rows]),
            kinds=np.append(self.kinds, [row[1] for row in rows]),
            values=np.append(self.values, [row[2] for row in rows]),
            prior=np.append(self.prior, [row[3] for row in rows]),
            words=(*self.words, *(row[4] for row in rows)),
        )

    def present(self, x: Array) -> Flags:
        """Which rows contain which suspects, shape (rows, suspects)."""
        values = x[:, self.columns]
        known = values >= 0
        equal = np.abs(values - self.values) < 1e-9
        found = np.where(
            self.kinds == 0, equal, np.where(self.kinds == 1, values >= self.values, values <= self.values)
        )
        return np.asarray(known & found)

    def named(self, messages: Sequence[str]) -> Array:
        """Factor on the blame of each suspect per failed trial."""
        out = np.ones((len(messages), len(self.words)))
        for row, message in enumerate(messages):
            text = _plain(message)
            for index, words in enumerate(self.words):
                if any(word.search(text) for word in words):
                    out[row, index] = _NAMED
        return out


@dataclass
class Feasibility:
    """Chance of starting. ``single`` and ``pair`` are the chances of being dead."""

    suspects: Suspects
    single: Array
    pairs: NDArray[np.int64]
    pair: Array
    failures: int = 0
    rate: float = field(default=0.0)

    def chance(self, x: Array) -> Array:
        """Chance that each row starts."""
        present = self.suspects.present(x)
        log = present @ np.log1p(-np.minimum(self.single, 0.999))
        if len(self.pairs):
            both = present[:, self.pairs[:, 0]] & present[:, self.pairs[:, 1]]
            log = log + both @ np.log1p(-np.minimum(self.pair, 0.999))
        return np.asarray(np.exp(log))

    def explains(self, x: Array) -> Flags:
        """Whether some one thing in each row is probably dead."""
        return np.asarray((self.suspects.present(x) * self.single).max(axis=1) > _GUILTY)


def suspect_model(suspects: Suspects, x: Array, failed: Flags, messages: Sequence[str]) -> Feasibility:
    """Share the blame for the failures.

    Args:
        suspects: what may be dead.
        x: encoded rows of all trials that were launched.
        failed: which of them did not start.
        messages: the failures' messages, one per failed row.
    """
    if failed.any():
        first = _shared(suspects, x, failed, messages)
        # Ends of ranges are suspected only where no label answers for the failure.
        unexplained = x[failed][~first.explains(x[failed])]
        if len(unexplained):
            suspects = suspects.at_failures(unexplained)
    return _shared(suspects, x, failed, messages)


def _shared(suspects: Suspects, x: Array, failed: Flags, messages: Sequence[str]) -> Feasibility:
    present = suspects.present(x)
    prior = suspects.prior.copy()
    cleared = present[~failed].sum(axis=0)
    bad = present[failed]
    factor = suspects.named(messages)
    labels = suspects.prior == _LABEL
    single, pairs, pair = prior, np.empty((0, 2), dtype=np.int64), np.empty(0)
    for _ in range(2):
        single, pairs, pair = _blame(
            present=present, failed=failed, prior=prior, cleared=cleared, bad=bad, factor=factor
        )
        tried = labels & (present.sum(axis=0) > 0)
        # Where every second label turns out dead, the untried ones are less to be trusted too.
        rate = (single[tried].sum() + 1.3) / (tried.sum() + 10.0) if tried.any() else _LABEL
        prior = np.where(labels, np.clip(rate, 0.05, 0.4), suspects.prior)
    return Feasibility(
        suspects, single, pairs, pair, failures=int(failed.sum()), rate=float(failed.mean() if len(failed) else 0)
    )


def _blame(
    *, present: Flags, failed: Flags, prior: Array, cleared: NDArray[np.int64], bad: Flags, factor: Array
) -> tuple[Array, NDArray[np.int64], Array]:
    pairs = _pairs(bad)
    good = present[~failed]
    if len(pairs):
        together = (good[:, pairs[:, 0]] & good[:, pairs[:, 1]]).sum(axis=0)
        bad_pairs = bad[:, pairs[:, 0]] & bad[:, pairs[:, 1]]
        pair_factor = np.sqrt(factor[:, pairs[:, 0]] * factor[:, pairs[:, 1]])
    else:
        together, bad_pairs, pair_factor = np.empty(0), np.empty((len(bad), 0), bool), np.empty((len(bad), 0))
    everything = np.concatenate([prior, np.full(len(pairs), _PAIR)])
    seen = np.concatenate([cleared, together])
    inside = np.concatenate([bad, bad_pairs], axis=1)
    weight = np.concatenate([factor, pair_factor], axis=1)
    trust = 1 + _CLEARED * seen
    unblamed = everything / trust
    dead = unblamed
    for _ in range(_ROUNDS):
        odds = dead / np.maximum(1 - dead, 1e-3) * weight * inside
        # One culprit per failure: with priors this small two at once are not worth a thought.
        blame = odds / np.maximum(odds.sum(axis=1, keepdims=True), 1e-12)
        acquitted = np.exp(np.log1p(-np.minimum(blame, 0.97)).sum(axis=0))
        dead = np.maximum(unblamed, (1 - acquitted) / trust)
    count = len(prior)
    return dead[:count], pairs, dead[count:]


def _pairs(bad: Flags) -> NDArray[np.int64]:
    """Pairs that occur in a failed trial, at most a few thousand."""
    found: dict[tuple[int, int], None] = {}
    for row in bad[-60:]:
        members = np.flatnonzero(row)
        for position, first in enumerate(members):
            for second in members[position + 1 :]:
                found[(int(first), int(second))] = None
        if len(found) > 4000:
            break
    return np.array(list(found), dtype=np.int64).reshape(-1, 2)


def _label_rows(column: int, item: Encoding) -> list[tuple[int, int, float, float, Words]]:
    default = item.position(item.default) if item.default is not None else None
    return [
        (column, 0, float(position), _USUAL if position == default else _LABEL, _words(item.name, value))
        for position, value in enumerate(item.values)
    ]


def _end_rows(column: int, item: Encoding) -> list[tuple[int, int, float, float, Words]]:
    middle = item.unit(item.default) if item.default is not None else None
    centre = _centre(item)
    rows: list[tuple[int, int, float, float, Words]] = []
    words = _range_words(item.name)
    if len(item.values) and len(item.values) <= 6:
        # Few sizes: each may be unsupported by itself (block sizes).
        for value in item.values:
            unit = item.unit(value)
            if unit is not None and unit != middle:
                rows.append((column, 0, unit, 0.05, (*words, *_words(item.name, value))))
    hungry = any(mark in _plain(item.name) for mark in _HUNGRY)
    above = ((0.3, 0.02), (0.6, 0.05), (0.9, 0.1)) if hungry else ((0.4, _END), (0.95, _END))
    rows += [(column, 1, centre + (1 - centre) * share, prior, words) for share, prior in above if centre < 1]
    rows += [(column, 2, centre * (1 - share), _END, words) for share in (0.4, 0.95) if centre > 0]
    return rows


def _centre(item: Encoding) -> float:
    """The default's place in its range, the middle where it is not known."""
    middle = item.unit(item.default) if item.default is not None else None
    return 0.5 if middle is None else middle


def _words(name: str, value: Scalar) -> Words:
    text = _plain(str(value))
    # Short labels ("8", "on") occur in any message; a name and its value together do not.
    if len(text) >= 3 and not text.isdigit() and text not in ("auto", "none", "true", "false", "off"):
        return (_word(text),)
    return (_word(_plain(name)), re.compile(rf"{re.escape(_plain(name))}[\W_]{{1,4}}{re.escape(text)}\b"))


def _range_words(name: str) -> Words:
    """The name itself; where more takes more memory, what running out of it is called too."""
    plain = _plain(name)
    memory = (re.compile(r"out_of_memory|oom|no_available_memory|kv_too_small|kv_cache"),)
    return (_word(plain), *(memory if any(mark in plain for mark in (*_HUNGRY, *_SOMEWHAT_HUNGRY)) else ()))


def _word(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z0-9]){re.escape(text)}(?![a-z0-9])")


def _plain(text: str) -> str:
    return text.lower().replace("-", "_").replace(" ", "_")
