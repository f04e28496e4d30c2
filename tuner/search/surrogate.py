"""The models of one suggestion, fitted together: value, chance of starting, chance of keeping the limits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tuner.model.json import Scalar
from tuner.model.outcome import Status
from tuner.search.encoder import Encoder, Rows
from tuner.search.engine import EngineReadings
from tuner.search.feasibility import Feasibility, Suspects, suspect_model
from tuner.search.gaussian import Process, similarities
from tuner.search.limits import LimitModel, limit_models
from tuner.search.mechanism import Fit
from tuner.search.prices import Prices
from tuner.search.training import BOLD, Training

__all__ = ["Surrogate", "train"]

Array: TypeAlias = NDArray[np.float64]

_NOISE = 0.015
"""Relative spread of a repeated trial, before the data say otherwise."""
_FOREIGN = 13.0
"""Noise variance of an earlier study's trial over its weight, in units of a repeat's: a tenth either way at 0.3."""
_TRUST = 1.0
"""Log odds for the mechanism before any data."""
_MOST_TRUSTED = 0.85
"""Largest weight of the mechanism: what it does not know of must stay worth a trial."""
_BELIEVED, _REFUTED_AFTER = 0.5, 20
"""Least weight of the mechanism at the start, and the trials after which a tenth of it is left."""
_CLEARLY = 3.0
"""Log odds against the mechanism from which on that least weight yields too: twenty to one is no handful's whim."""
_LABEL_EFFECT, _RANGE_EFFECT, _MISFIT = 0.12, 0.05, 0.05
"""What a label, a range, and the crude form itself may add to the log value without moving the mechanism's figures."""
_UNTRIED, _UNTRIED_DECISIVE = 0.08, 0.16
"""Deviation (log units) that a label nobody measured adds: that its sisters do alike says little about a kernel.
Without it the third and fourth MoE backend waited twenty trials, some for ever. Twice as much where precision, drafts
or the split over devices is at stake: beside int8 at 33,000 tok/s, fp8 at 56,000 waited for the fourteenth trial."""
_UNTRIED_TOGETHER = 0.25
"""The most that two decisive values add which were never measured together, once nothing else gets better: drafts
that could not start beside a pipeline are worth a trial without it."""
_UNMOVED, _PATIENCE, _MOST_CURIOUS = 2, 4.0, 3.0
"""Launches without a better one after which curiosity grows, those in which it doubles what is untried counts for,
and how often that goes on."""
_NOTHING = 1e-6
"""Expected improvement that counts as none: hope that small is no reason to launch what will not start."""
_NEAR, _AGAIN = 0.02, 4.0
"""Shares of their ranges by which all numbers of two candidates may differ and be the same to a machine, and what
trying the same again costs (log units): 1,020 sequences after 1,024 are hope from noise alone."""
_EDGE, _OUTER = 0.6, 0.2
"""What an end of a range costs while the start fills the space, and how near is an end: corners are far from all
that was tried, and rarely good."""
_FLOOR = 1.2
"""Values further below the best (in log units) are pulled in: how bad a bad one is does not matter."""


@dataclass(frozen=True)
class _View:
    """One way to see the values: a trend, and a process on what is left of them."""

    fit: Fit | None
    process: Process
    evidence: float
    drawn: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Surrogate:
    """Fitted models. More is better throughout."""

    encoder: Encoder
    views: tuple[tuple[float, _View], ...]
    feasibility: Feasibility
    learned: Array
    """Factor on the odds of each of the planner's doubts; empty before the first launch."""
    accuracy: Feasibility | None
    limits: tuple[LimitModel, ...]
    incumbent: float | None
    caution: float
    least_chance: float
    filling: Rows | None = None
    """What was tried, while the start is still filling the space (no mechanism, few trials)."""
    prices: Prices | None = None
    measured: Array | None = None
    """What was started, as the encoder's columns; None before the first."""
    thrift: float = 0.0
    """How much seconds count: 0 gain per trial, 1 gain per second."""
    stalled: int = 0
    """Launches since the best last rose."""

    def best_first(self, training: Training) -> list[int]:
        """Indices of the started trials, best first: feasible ones before others, by the model's mean."""
        if not training.started or not self.views:
            return list(training.started)
        rows = self.encoder.rows([training.items[index].assignment for index in training.started])
        mean = sum(weight * self._predict(view, rows)[0] for weight, view in self.views)
        order = np.lexsort((-np.asarray(mean), ~training.feasible))
        return [training.started[int(index)] for index in order]

    def acquisition(self, rows: Rows) -> tuple[Array, Array]:
        """Score to maximise, and the expected relative gain, per row."""
        chance, doubted = self.feasibility.chance(rows.x), self._undoubted(rows)
        kept = self._kept(rows)
        if self.least_chance > BOLD[1]:
            # No failure can be afforded now: a doubt is as good as a finding.
            chance = chance * doubted
        else:
            # What is merely known from elsewhere may be put to the test, once nothing else promises as much.
            kept = kept * doubted
        if not self.views or self.incumbent is None:
            spread = self._spread(rows)
            return np.log(chance + 1e-9) + np.log(kept + 1e-9) + 0.3 * spread - self._risk(chance), np.ones(len(rows))
        improvement, untried = np.zeros(len(rows)), self._untried(rows)
        for weight, view in self.views:
            improvement += weight * self._improvement(view, rows, self.incumbent, untried)
        if self.filling is not None:
            spread = 2 * _distance(rows.x, self.filling.x, self.encoder.labels) - _EDGE * _edges(
                rows.x, self.encoder.labels
            )
            return spread + np.log(chance + 1e-9) - self._risk(chance), improvement * chance
        score = np.log(improvement + _NOTHING) + self.caution * np.log(chance + 1e-9) + np.log(kept + 1e-9)
        score -= self._risk(chance) + _AGAIN * self._known(rows)
        if self.prices is not None and self.thrift > 0:
            score -= self.thrift * np.log(self.prices.relative(rows.x))
        return score, improvement * chance * kept

    def _risk(self, chance: Array) -> Array:
        return np.asarray(10 * np.maximum(self.least_chance - chance, 0))

    def _undoubted(self, rows: Rows) -> Array:
        """Chance that none of the planner's doubts keeps it from starting."""
        return np.asarray((1 - _believed(rows, self.learned)).prod(axis=1))

    def worth(self, rows: Rows) -> Array:
        """Expected target (more is better), less for what may not start or may miss a limit."""
        mean, _ = self.predict(rows)
        chance = self.feasibility.chance(rows.x) * self._undoubted(rows)
        return np.asarray(mean + np.log(chance + 1e-9) + np.log(self._kept(rows) + 1e-9))

    def predict(self, rows: Rows) -> tuple[Array, Array]:
        """Mean and standard deviation of the target over both views."""
        means, variances = np.zeros(len(rows)), np.zeros(len(rows))
        for weight, view in self.views:
            mean, deviation = self._predict(view, rows)
            means += weight * mean
            variances += weight * (deviation**2 + mean**2)
        return means, np.sqrt(np.maximum(variances - means**2, 1e-12))

    def _improvement(self, view: _View, rows: Rows, best: float, untried: Array) -> Array:
        """Expected improvement, averaged over what the trials leave possible of the mechanism's coefficients.

        ``untried``: variance beyond the view's own, see :meth:`_untried`.
        """
        if view.fit is None or not view.drawn:
            mean, deviation = self._predict(view, rows)
            return _expected_improvement(mean, np.sqrt(deviation**2 + untried), best)
        means, deviation = view.process.means(self.encoder.inputs(rows, _theta(view.fit)), view.drawn)
        deviation = np.sqrt(deviation**2 + untried)
        trends = [self.encoder.model.predict(rows.knobs, theta) + theta[-1] for theta in view.fit.draws]
        return np.asarray(
            np.mean(
                [_expected_improvement(m + trend, deviation, best) for m, trend in zip(means, trends, strict=True)],
                axis=0,
            )
        )

    def _untried(self, rows: Rows) -> Array:
        """Variance that a label without a measurement adds: of several in a row, the most that one does.

        It grows while nothing gets better, and then what was not measured together counts too.
        """
        added = np.zeros(len(rows))
        if self.measured is None:
            return added
        curious = min(max(self.stalled - _UNMOVED, 0) / _PATIENCE, _MOST_CURIOUS)
        for column in np.flatnonzero(self.encoder.labels):
            codes = rows.x[:, column]
            new = (codes >= 0) & ~np.isin(codes, self.measured[:, column])
            size = _UNTRIED_DECISIVE if self.encoder.importance[column] > 1 else _UNTRIED
            added = np.maximum(added, new * (size * (1 + curious)) ** 2)
        for first, second in itertools.combinations(self.encoder.choices, 2) if curious else ():
            a, b = (rows.x[:, column] for column in (first, second))
            seen = _together(self.measured[:, first], self.measured[:, second])
            new = (a >= 0) & (b >= 0) & ~np.isin(_together(a, b), seen)
            added = np.maximum(added, new * (_UNTRIED_TOGETHER * curious / _MOST_CURIOUS) ** 2)
        return added

    def _known(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a row is, to a machine, what was measured already."""
        if self.measured is None:
            return np.zeros(len(rows), dtype=bool)
        return np.asarray(_apart(rows.x, self.measured, self.encoder.labels).max(axis=2).min(axis=1) < _NEAR)

    def _predict(self, view: _View, rows: Rows) -> tuple[Array, Array]:
        x = self.encoder.inputs(rows, _theta(view.fit))
        mean, deviation = view.process.predict(x)
        if view.fit is not None:
            mean = mean + self.encoder.model.predict(rows.knobs, view.fit.theta) + view.fit.theta[-1]
        return mean, deviation

    def _kept(self, rows: Rows) -> Array:
        out = np.ones(len(rows)) if self.accuracy is None else self.accuracy.chance(rows.x)
        for limit in self.limits:
            out = out * limit.kept(self.encoder, rows)
        return np.asarray(out)

    def _spread(self, rows: Rows) -> Array:
        """Prefer what the mechanism likes where nothing was measured yet."""
        return self.encoder.model.predict(rows.knobs)


def train(
    encoder: Encoder,
    training: Training,
    suspects: Suspects,
    accuracy_suspects: Suspects,
    pending: Sequence[Mapping[str, Scalar]],
    *,
    thrift: float = 0.0,
) -> Surrogate:
    """Fit everything to the launched trials. ``pending`` ones count as if they came out as expected.

    ``thrift``: how much the seconds of a trial count (see :class:`Surrogate`).
    """
    all_rows = encoder.rows([item.assignment for item in training.items]) if training.items else None
    broken = np.array([item.broken for item in training.items], dtype=bool)
    x = all_rows.x if all_rows is not None else np.zeros((0, len(encoder.labels)))
    learned = _learned(all_rows, broken) if all_rows is not None else np.ones(0)
    # What is known to be refused explains its failures: they accuse nothing else.
    plain = np.ones(len(broken), dtype=bool)
    if all_rows is not None:
        plain = ~(broken & (_believed(all_rows, learned) > 0.5).any(axis=1))
    blamed = [item for item, counts in zip(training.items, plain, strict=True) if counts and item.broken]
    feasibility = suspect_model(
        suspects,
        x[plain],
        broken[plain],
        [f"{item.cause} {item.message}" for item in blamed],
        causes=[item.cause for item in blamed],
        implied=encoder.implied([item.assignment for item in training.items])[plain],
    )
    views: tuple[tuple[float, _View], ...] = ()
    incumbent: float | None = None
    started = None
    if training.started and all_rows is not None:
        index = np.array(training.started)
        started = all_rows.take(index)
        views = _views(encoder, started, training)
        if pending:
            views = tuple((weight, _with_pending(encoder, view, pending)) for weight, view in views)
    surrogate = Surrogate(
        encoder=encoder,
        views=views,
        feasibility=feasibility,
        learned=learned,
        accuracy=_accuracy(accuracy_suspects, started, training),
        limits=limit_models(encoder, started, training, next((view.fit for _, view in views if view.fit), None)),
        incumbent=None,
        caution=training.caution[0],
        least_chance=training.caution[1],
        prices=Prices.learned(training.items, x, encoder.labels, encoder.recompiles) if thrift > 0 else None,
        thrift=thrift,
        stalled=training.stalled,
        measured=started.x if started is not None else None,
        filling=all_rows if not encoder.knows_mechanism and training.own < training.startup else None,
    )
    mine = np.array([training.items[index].weight >= 1 for index in training.started], dtype=bool) & training.feasible
    if started is not None and mine.any():
        mean, _ = surrogate.predict(started)
        incumbent = float(np.max(mean[mine]))
    elif started is not None:
        # Nothing keeps the limits yet: any value is an improvement, keeping them is what counts.
        incumbent = float(np.min(training.y)) - 1.0
    return Surrogate(**{**surrogate.__dict__, "incumbent": incumbent})


def _believed(rows: Rows, learned: Array) -> Array:
    """Chance that each doubt keeps each row from starting."""
    odds = rows.doubts / (1 - rows.doubts) * (learned if len(learned) else 1.0)
    return np.asarray(odds / (1 + odds))


def _learned(rows: Rows, broken: NDArray[np.bool_]) -> Array:
    """Factor on the odds of each of the planner's doubts: less for every server that started in spite of it."""
    started, failed = ((rows.doubts[which] > 0).sum(axis=0) for which in (~broken, broken))
    return np.asarray(15.0 ** np.clip(failed - started, -5, 2))


def _views(encoder: Encoder, rows: Rows, training: Training) -> tuple[tuple[float, _View], ...]:
    y = np.maximum(training.y, training.y.max() - 2 * _FLOOR)
    weight = np.array([training.items[index].weight for index in training.started])
    bound = np.array([training.items[index].status is Status.BEHIND for index in training.started])
    extra = np.where(weight < 1, _FOREIGN / np.maximum(weight, 1e-3), 0.0) + np.where(bound, 8.0, 0.0)
    views = [_plain_view(encoder, rows, y, extra)]
    if training.logarithmic and encoder.knows_mechanism:
        told = EngineReadings.of([training.items[index] for index in training.started])
        views.append(_mechanistic_view(encoder, rows, y, extra, told))
    if len(views) == 1:
        return ((1.0, views[0]),)
    odds = np.clip(views[1].evidence - views[0].evidence + _TRUST, -20, 20)
    share = float(1 / (1 + np.exp(-odds)))
    # A handful of trials cannot refute what is known of the machine: its forecasts are tried before they are dropped.
    least = _BELIEVED * max(1 - len(y) / _REFUTED_AFTER, 0.1) * float(np.exp(min(1 + odds / _CLEARLY, 0.0)))
    share = min(max(share, least), _MOST_TRUSTED)
    return ((1 - share, views[0]), (share, views[1]))


def _plain_view(encoder: Encoder, rows: Rows, y: Array, extra: Array) -> _View:
    top = y.max()
    pulled = np.maximum(y, top - _FLOOR) + 0.15 * np.minimum(y - (top - _FLOOR), 0)
    floor = 0.5 if len(y) < 10 else 0.03
    process = Process.fit(
        encoder.inputs(rows, None),
        pulled,
        encoder.input_labels,
        scale_floor=floor,
        noise_guess=_NOISE,
        extra=extra,
        importance=encoder.input_importance,
    )
    return _View(None, process, process.evidence)


def _mechanistic_view(encoder: Encoder, rows: Rows, y: Array, extra: Array, told: EngineReadings) -> _View:
    alike = similarities(rows.x, rows.x, encoder.labels)
    share = np.where(encoder.labels, _LABEL_EFFECT**2, _RANGE_EFFECT**2)
    covariance = np.tensordot(share, alike, axes=1) + np.diag(_MISFIT**2 * (1 + extra))
    fit = encoder.model.fit(rows.knobs, y, covariance, told)
    residual = y - encoder.model.predict(rows.knobs, fit.theta) - fit.theta[-1]
    floor = 0.12 if len(y) < 6 else 0.05 if len(y) < 15 else 0.02
    process = Process.fit(
        encoder.inputs(rows, fit.theta),
        np.clip(residual, -1.0, 1.0),
        encoder.input_labels,
        scale_floor=floor,
        noise_guess=_NOISE,
        extra=extra,
        importance=encoder.input_importance,
    )
    drawn = tuple(
        process.with_targets(np.clip(y - encoder.model.predict(rows.knobs, theta) - theta[-1], -1.0, 1.0))
        for theta in fit.draws
    )
    return _View(fit, process, process.evidence + fit.penalty, drawn)


def _with_pending(encoder: Encoder, view: _View, pending: Sequence[Mapping[str, Scalar]]) -> _View:
    """The view as it would be if the running trials came out as it expects (kriging believer)."""
    waiting = encoder.rows(pending)
    x = encoder.inputs(waiting, _theta(view.fit))
    mean, _ = view.process.predict(x)
    process = view.process.extended(x, mean)
    return _View(view.fit, process, view.evidence, tuple(item.extended(x, item.predict(x)[0]) for item in view.drawn))


def _theta(fit: Fit | None) -> Array | None:
    return None if fit is None else fit.theta


def _accuracy(suspects: Suspects, rows: Rows | None, training: Training) -> Feasibility | None:
    if rows is None:
        return None
    lost = np.array([training.items[index].violations.get("accuracy", -1.0) > 0 for index in training.started])
    if not lost.any():
        return None
    return suspect_model(suspects, rows.x, lost, [""] * int(lost.sum()))


def _together(a: Array, b: Array) -> Array:
    """One code for two (each an integer, or a share of a range with few values)."""
    return np.asarray(np.round(a * 1000) * 1e6 + np.round(b * 1000))


def _distance(x: Array, seen: Array, labels: NDArray[np.bool_]) -> Array:
    """To the nearest of ``seen``, from 0 to 1, the mean over all settings."""
    return np.asarray(_apart(x, seen, labels).mean(axis=2).min(axis=1))


def _apart(x: Array, seen: Array, labels: NDArray[np.bool_]) -> Array:
    """How far each setting is from each of ``seen``, from 0 to 1, shape (rows, seen, settings).

    Labels differ or not, numbers differ by their distance.
    """
    apart = np.abs(x[:, None, :] - seen[None, :, :])
    return np.where(labels, apart > 0, np.minimum(apart, 1.0))


def _edges(x: Array, labels: NDArray[np.bool_]) -> Array:
    """Share of the settings that stand at an end of their range."""
    return np.asarray((~labels & (x >= 0) & ((x < _OUTER) | (x > 1 - _OUTER))).mean(axis=1))


def _expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    return np.asarray(deviation * (z * ndtr(z) + density))
