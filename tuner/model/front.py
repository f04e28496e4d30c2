"""Several objectives: the configurations that no other beats in all of them, and where the defaults stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tuner.model.history import Comparison, Contender, History, Judgement
from tuner.model.measurement import Estimate
from tuner.model.projection import by_objective
from tuner.model.workload import Objective

__all__ = ["Front", "FrontPoint", "favourites", "pareto_front"]

_ACCURACY = "accuracy/"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One configuration on the front.

    Attributes:
        contender: the configuration, its value that of the study's first objective.
        values: one estimate per objective, in the study's order.
        judgements: against the defaults, per objective; None where the defaults have no value.
        is_baseline: these are vLLM's defaults themselves.
        roles: why it may be picked: ``best <metric>`` for an end of the front, ``knee`` for the even trade.
    """

    contender: Contender
    values: tuple[Estimate, ...]
    judgements: tuple[Judgement | None, ...] = ()
    is_baseline: bool = False
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The front, best of the first objective first.

    Attributes:
        baseline: the defaults' values, None where they were not measured or miss a limit.
        beaten_by: trials of the front that are better than the defaults in every objective; with the defaults on the
            front it is empty, and so it is where others are only as good in some.
    """

    objectives: tuple[Objective, ...]
    points: tuple[FrontPoint, ...]
    baseline: tuple[Estimate, ...] | None
    beaten_by: tuple[int, ...]

    @property
    def baseline_on_front(self) -> bool:
        return any(point.is_baseline for point in self.points)


def pareto_front(history: History, compare: Callable[..., Comparison]) -> Front | None:
    """The front of the feasible configurations, the defaults among them; None for a study with one objective.

    Configurations are compared by their means; what was not confirmed pushes a confirmed one off the front only where
    their intervals are apart. An objective that was not measured for one keeps it off the front.
    """
    if not history.further:
        return None
    objectives = (history.objective, *history.further)
    views = [_View.of(history, objective) for objective in objectives]
    points = _points(history, views)
    front = _front(points, objectives)
    judged = tuple(
        replace(point, judgements=_judgements(point, views, compare), roles=tuple(_roles(point, front, objectives)))
        for point in front
    )
    baseline = next((p.values for p in points if p.is_baseline), None)
    beaten_by = () if baseline is None else _better_in_all(front, baseline, objectives)
    return Front(objectives=objectives, points=judged, baseline=baseline, beaten_by=beaten_by)


def favourites(history: History) -> list[Contender]:
    """What is worth confirming of a front: the best of each objective, then the knee. The defaults are none."""
    if not history.further:
        return []
    objectives = (history.objective, *history.further)
    points = _points(history, [_View.of(history, objective) for objective in objectives])
    front = _front(points, objectives)
    named = [*(_end(front, index, objectives) for index in range(len(objectives))), _knee(front, objectives)]
    return [point.contender for point in named if point is not None and not point.is_baseline]


@dataclass(frozen=True, slots=True)
class _View:
    """The study through one objective, read once."""

    history: History
    baseline: Contender | None
    found: dict[str, Contender]

    @classmethod
    def of(cls, history: History, objective: Objective) -> _View:
        seen = by_objective(history, objective)
        baseline, others = seen.sides()
        everybody = others if baseline is None else [baseline, *others]
        return cls(seen, baseline, {c.candidate.key: c for c in everybody})

    @property
    def challengers(self) -> int:
        return len(self.found) - (self.baseline is not None)


def _points(history: History, views: Sequence[_View]) -> list[FrontPoint]:
    return [
        FrontPoint(
            contender=contender,
            values=tuple(_estimate(view.found[key]) for view in views),
            is_baseline=key == history.baseline_key,
        )
        for key, contender in views[0].found.items()
        if all(key in view.found for view in views)
    ]


def _front(points: Sequence[FrontPoint], objectives: Sequence[Objective]) -> list[FrontPoint]:
    """What nothing pushes off, the best of the first objective first."""
    sign = [-1.0 if objective.maximize else 1.0 for objective in objectives]
    ranked = sorted(points, key=lambda p: [s * value.value for s, value in zip(sign, p.values, strict=True)])
    ahead: list[FrontPoint] = []
    for point in ranked:
        # Whatever beats it ranks before it, and is itself on the front of means or beaten by one that is.
        if not any(_beats(other.values, point.values, objectives) for other in ahead):
            ahead.append(point)
    kept = {id(point) for point in ahead}
    front = []
    for point in ranked:
        if point.contender.confirmed:
            stays = not any(_pushes_off(other, point, objectives) for other in points)
        else:
            stays = id(point) in kept
        if stays:
            front.append(point)
    return front


def _judgements(
    point: FrontPoint, views: Sequence[_View], compare: Callable[..., Comparison]
) -> tuple[Judgement | None, ...]:
    if point.is_baseline:
        return ()
    key = point.contender.candidate.key
    found: list[Judgement | None] = []
    for index, view in enumerate(views):
        mine, baseline = view.found[key], view.baseline
        known = index == 0 or (_spread_known(mine) and baseline is not None and _spread_known(baseline))
        # Accuracy has its own judge, the check against the defaults: starts do not change what questions can tell.
        judged = baseline is not None and known and not view.history.objective.metric.startswith(_ACCURACY)
        found.append(
            view.history.judge(mine, compare, against=baseline, picked_of=view.challengers) if judged else None
        )
    return tuple(found)


def _estimate(contender: Contender) -> Estimate:
    """Over starts where there are several; an accuracy's interval is that of its questions, however many starts."""
    first = contender.counted[0].outcome.measurement
    if first is not None and first.objective is not None and len(first.objective.samples) < 2:
        spread = first.objective.high - first.objective.low
        if math.isfinite(spread):
            return first.objective
    return contender.estimate


def _spread_known(contender: Contender) -> bool:
    """Several starts or several rounds: a single number of a latency's tail compares with nothing."""
    first = contender.counted[0].outcome.measurement
    rounds = first.objective.samples if first is not None and first.objective is not None else ()
    return len(contender.counted) > 1 or len(rounds) > 1


def _pushes_off(a: FrontPoint, b: FrontPoint, objectives: Sequence[Objective]) -> bool:
    """``a`` beats ``b``; a number that was not confirmed beats a confirmed one only beyond both intervals.

    Of many that are as good, the luckiest would otherwise stand on the front, and what was started again never.
    """
    if not _beats(a.values, b.values, objectives):
        return False
    if a.contender.confirmed or not b.contender.confirmed:
        return True
    return any(
        o.better(x.low if o.maximize else x.high, y.high if o.maximize else y.low)
        for x, y, o in zip(a.values, b.values, objectives, strict=True)
    )


def _beats(a: Sequence[Estimate], b: Sequence[Estimate], objectives: Sequence[Objective]) -> bool:
    """No worse in any objective, and better in one."""
    worse = any(o.better(y.value, x.value) for x, y, o in zip(a, b, objectives, strict=True))
    better = any(o.better(x.value, y.value) for x, y, o in zip(a, b, objectives, strict=True))
    return better and not worse


def _better_in_all(
    front: Sequence[FrontPoint], baseline: Sequence[Estimate], objectives: Sequence[Objective]
) -> tuple[int, ...]:
    return tuple(
        p.contender.number
        for p in front
        if all(o.better(x.value, y.value) for x, y, o in zip(p.values, baseline, objectives, strict=True))
    )


def _roles(point: FrontPoint, front: Sequence[FrontPoint], objectives: Sequence[Objective]) -> list[str]:
    key = point.contender.candidate.key
    roles = []
    for index, objective in enumerate(objectives):
        end = _end(front, index, objectives)
        if end is not None and end.contender.candidate.key == key:
            roles.append(f"best {objective.metric}")
    knee = _knee(front, objectives)
    if knee is not None and knee.contender.candidate.key == key:
        roles.append("knee")
    return roles


def _end(front: Sequence[FrontPoint], index: int, objectives: Sequence[Objective]) -> FrontPoint | None:
    if not front:
        return None
    pick = max if objectives[index].maximize else min
    return pick(front, key=lambda p: p.values[index].value)


def _knee(front: Sequence[FrontPoint], objectives: Sequence[Objective]) -> FrontPoint | None:
    """The configuration that gives away least of any objective; None where the front has only its ends.

    Each objective is scaled from its best to its worst value on the front, and what counts is the largest distance
    from the best.
    """
    if len(front) <= len(objectives):
        return None
    shortfalls = []
    for point in front:
        apart = []
        for index, objective in enumerate(objectives):
            values = [p.values[index].value for p in front]
            best, worst = (max(values), min(values)) if objective.maximize else (min(values), max(values))
            apart.append(abs(best - point.values[index].value) / (abs(best - worst) or 1.0))
        shortfalls.append(max(apart))
    return front[shortfalls.index(min(shortfalls))]
