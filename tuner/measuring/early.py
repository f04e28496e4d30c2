"""Ends a round that can no longer be a match for the best.

A round of N tokens that has run for E seconds lasts at least E, whatever happens next: its throughput is at most
N / E. Once every seat of the closed loop has answered at least one request, every kind of step the load knows has
been seen, and the rest will not go faster than the fastest stretch so far: N / (E + rest / fastest) bounds it more
closely. That bound stands in for the round's own value in the test between rounds
(:func:`~tuner.measuring.statistics.clearly_behind`), so that looking every second spends nothing of its error rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuner.measuring.sampler import Sample
from tuner.measuring.statistics import clearly_behind

__all__ = ["BoundedRound", "RoundWatch", "fastest_rate"]

_STRETCH_S = 3.0
_OPTIMISM = 3.0
"""The fastest stretch may be beaten by so many times the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedRound:
    """What a stop needs to know of the running round.

    Attributes:
        amount: what the objective counts over the whole round (tokens or requests).
        tokens: output tokens of the whole round.
        seats: requests in flight; 0 where the rest cannot be foreseen (open loop).
        earlier: objective values of the rounds before.
        reference: per-round values of the best so far.
        looks: most rounds there can be.
        noise: relative standard deviation between starts.
    """

    amount: float
    tokens: float
    seats: int
    earlier: tuple[float, ...]
    reference: tuple[float, ...]
    looks: int
    noise: float
    alpha: float


@dataclass
class RoundWatch:
    """Called about once a second while the client runs; False ends it.

    Attributes:
        samples: what the sampler has seen so far.
        race: None where an early stop is not possible (no reference, no throughput objective).
        stall_s: seconds without any progress under load that mean a hang.
        reason: why it said False: ``behind`` or ``hang``; empty while it did not.
        bound: with ``behind``: the objective is no better than this.
    """

    samples: Callable[[], Sequence[Sample]]
    race: BoundedRound | None = None
    stall_s: float = 300.0
    reason: str = ""
    bound: float | None = None
    _state: tuple[float, float, float | None] | None = field(default=None, init=False)
    _moved: float = field(default_factory=time.monotonic, init=False)

    def __call__(self) -> bool:
        samples = self.samples()
        if self._hangs(samples):
            self.reason = "hang"
        elif self.race is not None and (bound := best_possible(samples, self.race)) is not None:
            race = self.race
            values = (*race.earlier, bound)
            if clearly_behind(
                values, race.reference, maximize=True, looks=race.looks, alpha=race.alpha, noise=race.noise
            ):
                self.reason, self.bound = "behind", bound
        return not self.reason

    def _hangs(self, samples: Sequence[Sample]) -> bool:
        now = time.monotonic()
        last = samples[-1] if samples else None
        state = (last.generated, last.finished, last.steps) if last is not None else None
        # An idle server between two arrivals is no hang, and neither is one that has not been reached yet.
        idle = last is None or last.running + last.waiting == 0
        if state != self._state or idle:
            self._state, self._moved = state, now
        return now - self._moved > self.stall_s


def best_possible(samples: Sequence[Sample], race: BoundedRound) -> float | None:
    """Upper bound of the objective for the running round; None before its first token."""
    begin = next((index for index, sample in enumerate(samples) if sample.running > 0), None)
    if begin is None or len(samples) - begin < 2:
        return None
    # The first sample under load is later than the round's true start, so the bound errs to the safe side.
    first, last = samples[begin], samples[-1]
    before = samples[max(0, begin - 1)]
    elapsed = last.time - first.time
    done = last.generated - before.generated
    seconds = elapsed
    if race.seats and last.finished - before.finished >= race.seats:
        fastest = fastest_rate(samples[begin:]) * (1 + _OPTIMISM * race.noise)
        seconds += max(0.0, race.tokens - done) / fastest if fastest > 0 else 0.0
    return race.amount / seconds if seconds > 0 else None


def fastest_rate(samples: Sequence[Sample]) -> float:
    """Most output tokens per second over any stretch of at least three seconds; 0 if there is none."""
    best, start = 0.0, 0
    for end, sample in enumerate(samples):
        while start + 1 < end and sample.time - samples[start + 1].time >= _STRETCH_S:
            start += 1
        span = sample.time - samples[start].time
        if span >= _STRETCH_S:
            best = max(best, (sample.generated - samples[start].generated) / span)
    return best
