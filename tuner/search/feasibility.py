"""How likely a candidate is to start, learned from what failed: each choice, range end or pair may be the culprit.

A noisy-or: a trial fails if any of the things it contains is dead. A success clears what it contains, a failure
accuses it, the more so what the error message names and what other failures of the same cause contain too. Sets of
culprits are sampled by how likely they are and how well they explain all failures together: a limit that three
failures have in common outweighs three labels that each explain one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tuner.search.distributions import Encoding
from tuner.search.naming import (
    HUNGRY,
    SOMEWHAT_HUNGRY,
    Sisters,
    Words,
    names_of,
    plain,
    range_words,
    sisters_among,
    words_of,
)
from tuner.search.resampling import systematic

__all__ = ["Suspects", "suspect_model"]

Array: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

_LABEL, _SIZE, _USUAL, _PAIR = 0.13, 0.05, 0.004, 0.0015
"""Prior chances that a label, one of a few sizes, the default, or a pair is dead."""
_NAMED_PAIR = 0.2
"""The same of two settings that one error message names: it says that they do not go together."""
_MOST_NAMED = 3
"""Settings that a message which means two of them may name."""
_END, _SOMEWHAT_HUNGRY_END, _HUNGRY_END, _OPPOSITE = 0.05, 0.12, 0.2, 0.01
"""Prior chances that a range is dead from somewhere between default and end; that even the default lies behind."""
_STEPS = 10
"""Places between the default and an end where the dead part of a range may begin."""
_CLEARED, _CLEARED_FULLY = 15.0, 5
"""Weight of one success against a suspicion, and the successes that count: starts are nearly deterministic."""
_IMPLIED = 0.5
"""Of a success where the value was not asked for: the default that is written down need not be what ran."""
_NAMED, _ABOUT = 6.0, 3.0
"""Factors on the blame of what an error message names, and of a label whose parameter it names."""
_ALONE = 0.4
"""Factor on the blame of what no other failure of the same cause contains."""
_KIN = 0.4
"""Chance that a label is dead whose sister failed, for a reason that names the word which both share."""
_LEAK = 0.02
"""Blame that nothing here deserves: chance, or a reason outside the space."""
_CAUSED = 0.95
"""Chance that a trial fails which contains something dead."""
_SAMPLES, _HEATING, _SETTLED = 96, 12, 5
"""Sets of culprits that are followed, steps until the failures weigh in full, and steps that are counted then."""
_MOST_GROUPS = 150
_MOST_PAIRS = 4000
_NEGLIGIBLE = 1e-3


@dataclass(frozen=True, slots=True)
class _Suspect:
    """``kind``: 0 equals, 1 at least, 2 at most. ``pairs``: it may be dead in company alone."""

    column: int
    kind: int
    value: float
    prior: float
    words: Words = ()
    about: Words = ()
    label: bool = False
    pairs: bool = True


@dataclass(frozen=True)
class Suspects:
    """The things a candidate may contain.

    Attributes:
        columns: column of the encoded row per suspect.
        kinds: 0 equals, 1 at least, 2 at most.
        values: what the column is compared with.
        prior: chance of being dead before anything was tried.
        labels: whether it is one of a choice's labels, other than the default.
        pairable: whether it may be dead beside another one alone.
        words: what an error message would call it.
        about: what an error message would call the parameter, where that is not enough to single out the label.
        sisters: labels that share a word: two kernels of one library.
    """

    columns: NDArray[np.int64]
    kinds: NDArray[np.int64]
    values: Array
    prior: Array
    labels: Flags
    pairable: Flags
    words: tuple[Words, ...]
    about: tuple[Words, ...]
    sisters: tuple[Sisters, ...]

    @classmethod
    def of(cls, encoded: Mapping[str, Encoding], *, only: frozenset[str] | None = None) -> Suspects:
        """Every label, and both ends of every range in steps away from the default."""
        rows: list[_Suspect] = []
        kin: list[Sisters] = []
        for column, (name, item) in enumerate(encoded.items()):
            if only is not None and name not in only:
                continue
            if not item.ordered:
                kin += sisters_among(item, len(rows))
            rows += _ends(column, item) if item.ordered else _labels(column, item)
        if not rows:
            rows = [_Suspect(0, 0, -9.0, _USUAL)]
        return cls(
            columns=np.array([row.column for row in rows]),
            kinds=np.array([row.kind for row in rows]),
            values=np.array([row.value for row in rows]),
            prior=np.array([row.prior for row in rows]),
            labels=np.array([row.label for row in rows]),
            pairable=np.array([row.pairs for row in rows]),
            words=tuple(row.words for row in rows),
            about=tuple(row.about for row in rows),
            sisters=tuple(kin),
        )

    def present(self, x: Array) -> Flags:
        """Which rows contain which suspects, shape (rows, suspects)."""
        values = x[:, self.columns]
        known = values >= 0
        equal = np.abs(values - self.values) < 1e-9
        beyond = np.where(self.kinds == 1, values >= self.values - 1e-9, values <= self.values + 1e-9)
        return np.asarray(known & np.where(self.kinds == 0, equal, beyond))

    def sisters_of(self, bad: Flags, messages: Sequence[str]) -> NDArray[np.int64]:
        """Labels whose sister failed for something that they have in common: a library that is not installed."""
        found: set[int] = set()
        for row, message in zip(bad, messages, strict=True):
            text = plain(message)
            for item in self.sisters:
                if row[item.label] and item.accused(text):
                    found.update(item.others)
        return np.array(sorted(found), dtype=np.int64)

    def named(self, messages: Sequence[str]) -> Array:
        """Factor on the blame of each suspect per failed trial."""
        out = np.ones((len(messages), len(self.words)))
        for row, message in enumerate(messages):
            text = plain(message)
            for words, factor in ((self.about, _ABOUT), (self.words, _NAMED)):
                found = [any(word.search(text) for word in said) for said in words]
                out[row, found] = factor
        return out


@dataclass
class Feasibility:
    """Chance of starting.

    Attributes:
        single, pair: chances of being dead.
        order: suspects, then pairs, sorted so that rivals stand together.
        starts: where each set of rivals begins in ``order``: the same failures accuse them, one of them is it.
    """

    suspects: Suspects
    single: Array
    pairs: NDArray[np.int64]
    pair: Array
    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    def chance(self, x: Array) -> Array:
        """Chance that each row starts."""
        present = self.suspects.present(x)
        both = present[:, self.pairs[:, 0]] & present[:, self.pairs[:, 1]]
        dead = np.concatenate([present * self.single, both * self.pair], axis=1)[:, self.order]
        return np.asarray(np.exp(np.log1p(-np.minimum(np.add.reduceat(dead, self.starts, axis=1), 0.999)).sum(axis=1)))


def suspect_model(
    suspects: Suspects,
    x: Array,
    failed: Flags,
    messages: Sequence[str],
    *,
    causes: Sequence[str] = (),
    implied: Flags | None = None,
) -> Feasibility:
    """Share the blame for the failures.

    Args:
        suspects: what may be dead.
        x: encoded rows of all trials that were launched.
        failed: which of them did not start.
        messages: the failures' messages, one per failed row.
        causes: fingerprints of the failures, one per failed row: equal ones are likely to have one culprit.
        implied: entries of ``x`` that were not asked for, the default is assumed to have run.
    """
    present = suspects.present(x)
    proof = present[~failed].astype(float)
    if implied is not None:
        proof *= np.where(implied[~failed][:, suspects.columns] & (suspects.kinds > 0), _IMPLIED, 1.0)
    bad = present[failed]
    pairs = _pairs(bad & suspects.pairable)
    together = np.einsum("ij,ij->j", proof[:, pairs[:, 0]], proof[:, pairs[:, 1]])
    named = suspects.named(messages)
    case = _Case(
        inside=np.concatenate([bad, bad[:, pairs[:, 0]] & bad[:, pairs[:, 1]]], axis=1),
        weight=_weights(named, pairs),
        trust=_CLEARED ** np.minimum(np.concatenate([proof.sum(axis=0), together]), _CLEARED_FULLY),
        causes=causes,
    )
    pair_prior = _pair_prior(suspects, named, bad, pairs)
    least = np.zeros(len(suspects.prior))
    least[suspects.sisters_of(bad, messages)] = _KIN
    prior = np.maximum(suspects.prior, least)
    tried = suspects.labels & present.any(axis=0)
    for _ in range(2):
        dead, groups = case.blame(np.concatenate([prior, pair_prior]))
        # Where every second label turns out dead, the untried ones are less to be trusted too.
        rate = (dead[: len(prior)][tried].sum() + 1.3) / (tried.sum() + 10.0) if tried.any() else _LABEL
        prior = np.maximum(np.where(suspects.labels, np.clip(rate, 0.05, 0.4), suspects.prior), least)
    single, pair = dead[: len(prior)], dead[len(prior) :]
    keep = pair > _NEGLIGIBLE
    groups = np.concatenate([groups[: len(prior)], groups[len(prior) :][keep]])
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.append([True], np.diff(groups[order]) != 0))
    return Feasibility(suspects, single, pairs[keep], pair[keep], order, starts)


@dataclass(frozen=True)
class _Case:
    """The failures (rows) and what they contain (columns)."""

    inside: Flags
    weight: Array
    trust: Array
    causes: Sequence[str]

    def blame(self, prior: Array) -> tuple[Array, NDArray[np.int64]]:
        """Chance of being dead per column, and the number of its set of rivals."""
        prior = prior / self.trust
        count = len(prior)
        accused = np.flatnonzero(self.inside.any(axis=0))
        groups = np.arange(count) + count
        if not len(accused):
            return prior, groups
        weight = np.where(self.inside[:, accused], self.weight[:, accused] * self._company(accused), 0.0)
        # What the same failures contain cannot be told apart by them: judged together, shared out by prior.
        patterns, member = np.unique(np.round(weight, 6), axis=1, return_inverse=True)
        member = np.asarray(member).ravel()
        total = np.minimum(np.bincount(member, weights=prior[accused]), 0.5)
        guilt = total.copy()
        serious = np.sort(np.argsort(-total * (patterns > 0).sum(axis=0), kind="stable")[:_MOST_GROUPS])
        # A failure without any suspect (nothing was asked for, and no default is known) accuses nobody.
        telling = patterns[patterns.max(axis=1) > 0]
        guilt[serious] = _sampled(total[serious], _CAUSED * telling[:, serious] / telling.max(axis=1, keepdims=True))
        dead = prior.copy()
        dead[accused] = guilt[member] * prior[accused] / np.bincount(member, weights=prior[accused])[member]
        groups[accused] = member
        return dead, groups

    def _company(self, accused: NDArray[np.int64]) -> Array:
        """Less blame for what the other failures of the same cause do not contain."""
        inside = self.inside[:, accused].astype(float)
        if len(self.causes) != len(inside):
            return np.ones_like(inside)
        same = np.array([[a == b for b in self.causes] for a in self.causes], dtype=float)
        np.fill_diagonal(same, 0.0)
        others = same.sum(axis=1, keepdims=True)
        share = np.where(others > 0, same @ inside / np.maximum(others, 1.0), 1.0)
        return np.asarray(_ALONE + (1 - _ALONE) * share)


def _sampled(prior: Array, guilt: Array) -> Array:
    """Chances of being dead given the failures, by a sequential Monte Carlo sampler over sets of culprits.

    ``guilt``: per failure and suspect the chance that this failure follows if the suspect is dead; 0 where it is not
    contained. The samples start from the prior, the failures' weight grows step by step, samples that explain them
    are multiplied: so explanations by one thing in common and by many single ones compete, neither comes first.
    """
    rng = np.random.default_rng(0)  # equal histories, equal suggestions
    strength = -np.log1p(-guilt)
    odds = np.log(prior / (1 - prior))
    state = (rng.random((_SAMPLES, len(prior))) < prior).astype(float)
    total = state @ strength.T
    heat, dead = 0.0, np.zeros(len(prior))
    for step in range(1, _HEATING + _SETTLED + 1):
        hotter = min(step / _HEATING, 1.0) ** 2
        if hotter > heat:
            weight = (hotter - heat) * _explained(total).sum(axis=1)
            chosen = systematic(np.exp(weight - weight.max()))
            state, total, heat = state[chosen], total[chosen], hotter
        draws = np.log(1 / rng.random((len(prior), _SAMPLES)) - 1)
        for index in range(len(prior)):
            rows = np.flatnonzero(strength[:, index])
            mine, here = strength[rows, index], total[:, rows]
            without = here - state[:, index, None] * mine
            log = odds[index] + heat * (_explained(without + mine) - _explained(without)).sum(axis=1)
            state[:, index] = draws[index] < log
            total[:, rows] = without + state[:, index, None] * mine
            if step > _HEATING:
                dead[index] += float(np.mean(1 / (1 + np.exp(-np.clip(log, -30, 30)))))
    return np.asarray(dead / _SETTLED)


def _explained(total: Array) -> Array:
    """Log chance that a failure happens, by how strongly it is explained (negative log of not being caused)."""
    return np.asarray(np.log1p(-(1 - _LEAK) * np.exp(-total)))


def _weights(named: Array, pairs: NDArray[np.int64]) -> Array:
    return np.concatenate([named, np.sqrt(named[:, pairs[:, 0]] * named[:, pairs[:, 1]])], axis=1)


def _pair_prior(suspects: Suspects, named: Array, bad: Flags, pairs: NDArray[np.int64]) -> Array:
    """Chance that each pair is dead: high where one message names both settings, and neither is the default."""
    prior = np.full(len(pairs), _PAIR)
    first, second = pairs[:, 0], pairs[:, 1]
    for said in (named > 1) & bad & (suspects.prior > _USUAL):
        # One that names half of the configuration (a dump of all arguments) accuses no two of it.
        if len(np.unique(suspects.columns[said])) <= _MOST_NAMED:
            prior[said[first] & said[second] & (suspects.columns[first] != suspects.columns[second])] = _NAMED_PAIR
    return prior


def _pairs(bad: Flags) -> NDArray[np.int64]:
    """Pairs that occur in a failed trial, at most a few thousand."""
    found: dict[tuple[int, int], None] = {}
    for row in bad[-60:]:
        members = np.flatnonzero(row).tolist()
        for position, first in enumerate(members):
            for second in members[position + 1 :]:
                found[(first, second)] = None
        if len(found) > _MOST_PAIRS:
            break
    return np.array(list(found), dtype=np.int64).reshape(-1, 2)


def _labels(column: int, item: Encoding) -> list[_Suspect]:
    default = item.position(item.default) if item.default is not None else None
    about = names_of(item)
    return [
        _Suspect(
            column,
            0,
            float(position),
            _USUAL if position == default else _LABEL,
            words_of(item.name, value),
            about,
            label=position != default,
        )
        for position, value in enumerate(item.values)
    ]


def _ends(column: int, item: Encoding) -> list[_Suspect]:
    words, about = range_words(item.name), names_of(item)
    default = item.unit(item.default) if item.default is not None else None
    rows: list[_Suspect] = []
    units = [unit for unit in (item.unit(value) for value in item.values) if unit is not None]
    if 0 < len(units) <= 6:
        # Few sizes: each may be unsupported by itself (block sizes), the default beside something else.
        for value, unit in zip(item.values, units, strict=True):
            chance = _USUAL if unit == default else _SIZE
            rows.append(_Suspect(column, 0, unit, chance, (*words, *words_of(item.name, value))))
    name = plain(item.name)
    hungry, somewhat = (any(mark in name for mark in marks) for marks in (HUNGRY, SOMEWHAT_HUNGRY))
    above = _HUNGRY_END if hungry else _SOMEWHAT_HUNGRY_END if somewhat else _END
    for kind, chance in ((1, above), (2, _END)):
        far = 1.0 if kind == 1 else 0.0
        if default is None:
            # Not known what runs: the dead part may begin anywhere.
            rows += _cuts(column, kind, (1 - far, far), chance, words)
        else:
            rows += _cuts(column, kind, (default, far), chance, words)
            rows += _cuts(column, kind, (1 - far, default), _OPPOSITE, words, pairs=False)
    return [replace(row, about=about) for row in rows]


def _cuts(
    column: int, kind: int, span: tuple[float, float], chance: float, words: Words, *, pairs: bool = True
) -> list[_Suspect]:
    """Places in a span (its first end excluded) where the dead part may begin, with their share of the chance."""
    near, far = span
    if abs(far - near) < 1e-9:
        return []
    places = [near + (far - near) * step / _STEPS for step in range(1, _STEPS + 1)]
    # A few of them are enough for what is dead in company alone: pairs are many.
    return [
        _Suspect(column, kind, place, chance / _STEPS, words, pairs=pairs and index in (3, 6, 9))
        for index, place in enumerate(places)
    ]
