"""A study in plain values, for trackers and scripts."""

from __future__ import annotations

from tuner.model.history import History, Judgement
from tuner.model.json import Json

__all__ = ["summarise"]


def summarise(history: History, judgement: Judgement | None) -> dict[str, Json]:
    """A study in plain values: baseline, winner, gain with its interval, trials by status."""
    baseline, winner = history.baseline(), history.winner()
    counts: dict[str, int] = {}
    for trial in history.trials:
        counts[trial.outcome.status.value] = counts.get(trial.outcome.status.value, 0) + 1
    summary: dict[str, Json] = {
        "objective": history.objective.metric,
        "maximize": history.objective.maximize,
        "unit": history.objective.unit,
        "trials": counts,
        "baseline": None if baseline is None else {"trial": baseline.number, "value": baseline.value},
        "winner": None,
    }
    if winner is not None:
        summary["winner"] = {
            "trial": winner.number,
            "value": winner.value,
            "confirmed": winner.confirmed,
            "assignment": dict(winner.candidate.assignment),
            "arguments": dict(winner.candidate.arguments),
            "environment": dict(winner.candidate.environment),
        }
    if judgement is not None:
        summary["judgement"] = {
            "verdict": judgement.verdict,
            "gain": judgement.gain,
            "low": judgement.low,
            "high": judgement.high,
            "basis": judgement.basis,
        }
    return summary
