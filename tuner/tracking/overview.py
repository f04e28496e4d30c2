"""The study's own page: best against baseline, the winner's YAML, a table of trials. Plain data, no mlflow."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.model.candidate import Candidate
from tuner.model.intervals import gain_interval, gain_words
from tuner.model.json import finite
from tuner.model.targets import change, figure, metric_unit, short_name
from tuner.model.words import VLLM_DEFAULTS
from tuner.model.workload import Limit, Objective
from tuner.tracking.answers import answer_metrics, answer_tags, answer_text
from tuner.tracking.payload import Mask, legal, shown, yaml_text

__all__ = ["VIEW", "Overview"]

_SHOWN_TRIALS = 12
"""Trials listed in the description; the artifacts ``trials.csv`` and ``trials.json`` have all."""

_SHOWN_FLAGS = 6
"""Columns of flags in the prepared view of all runs."""

VIEW = "tune"
"""Key of that view in the page's address."""

_FIGURES = (
    ("throughput/output", "Output throughput (tok/s)"),
    ("throughput/requests", "Requests (req/s)"),
    ("throughput/goodput", "Goodput (req/s)"),
    ("latency/ttft_p50", "TTFT p50 (ms)"),
    ("latency/ttft_p99", "TTFT p99 (ms)"),
    ("latency/tpot_p50", "TPOT p50 (ms)"),
    ("latency/e2e_p99", "E2E p99 (ms)"),
    ("accuracy/score", "Accuracy"),
    ("gpu/power_w", "Power (W)"),
    ("cost/joules_per_mtok", "Energy (J/Mtok)"),
    ("cost/price_per_mtok", "Price per Mtok"),
)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything the parent run shows.

    Attributes:
        rows: one per ended trial (:func:`tuner.tracking.payload.row`).
        summary: the study's own verdict; empty while it runs. Its keys ``winner.trial`` and ``judgement`` are used.
        model: what goes to vLLM as the model.
        defaults: what the baseline is called.
        limits: what a winner must keep; their metrics are among the figures.
    """

    title: str
    model: str
    objective: Objective
    rows: Sequence[Row]
    summary: Mapping[str, Any] = field(default_factory=dict)
    hide: Mask = field(default_factory=Mask)
    defaults: str = VLLM_DEFAULTS
    limits: Sequence[Limit] = ()

    @property
    def baseline(self) -> Row | None:
        measured = [row for row in self.rows if row["origin"] == "baseline" and row["objective"] is not None]
        return measured[0] if measured else None

    @property
    def winner(self) -> Row | None:
        """The study's winner; while it runs, the best feasible trial that is not the baseline's configuration."""
        named = self.summary.get("winner")
        if isinstance(named, Mapping):
            for row in self.rows:
                if row["number"] == named.get("trial"):
                    return row
        if self.summary:
            return None
        default = self.baseline["key"] if self.baseline else None
        return self._best([row for row in self.rows if row["key"] != default])

    def _best(self, rows: Sequence[Row]) -> Row | None:
        feasible = [row for row in rows if row["feasible"] and row["objective"] is not None]
        pick = max if self.objective.maximize else min
        return pick(feasible, key=lambda row: row["objective"]) if feasible else None

    def metrics(self) -> dict[str, float]:
        """The gain, ``best/…`` and ``baseline/…`` figures, and trials by state: in the order to be read in."""
        gain = self._gain() or {}
        found: dict[str, float | None] = {f"gain/{name}": value for name, value in gain.items() if finite(value)}
        wanted = {self.objective.metric, *dict(_FIGURES), *(limit.metric for limit in self.limits)}
        best = ("best", "winner", self.winner) if self.winner is not None else ("best", "baseline", self.baseline)
        for name, who, row in (best, ("baseline", "baseline", self.baseline)):
            if row is not None:
                found[f"{name}/objective"] = self._pooled(who, row["objective"])
                metrics = self._figures(who, row)
                found.update({f"{name}/{key}": value for key, value in metrics.items() if key in wanted})
        for row in self.rows:
            found[f"trials/{row['state']}"] = (found.get(f"trials/{row['state']}") or 0) + 1
        found["trials/all"] = len(self.rows)
        found.update(answer_metrics(self.summary))
        return {legal(name): float(value) for name, value in found.items() if value is not None and finite(value)}

    def experiment_tags(self, limits: Sequence[str]) -> dict[str, str]:
        """How MLflow's page of all runs shows them: sorted by the objective, with the columns that matter.

        ``mlflow.sharedViewState.<key>`` is what its "share" button writes; the page opens so with
        ``?viewStateShareKey=<key>``. A version that reads it no more shows its own default instead.
        """
        metrics = dict.fromkeys([self.objective.metric, "accuracy/score", *limits, "latency/ttft_p99"])
        flags = [f"params.`{legal(f'asked/{flag}')}`" for flag in self._varied()[:_SHOWN_FLAGS]]
        view = {
            "orderByKey": f"metrics.`{legal(self.objective.metric)}`",
            "orderByAsc": not self.objective.maximize,
            "selectedColumns": [
                *(f"metrics.`{legal(name)}`" for name in metrics),
                "tags.`state`",
                "tags.`feasible`",
                *flags,
                "tags.`reason`",
            ],
        }
        return {
            "mlflow.experimentKind": "custom_model_development",
            "mlflow.experiment.primaryMetric.name": legal(self.objective.metric),
            "mlflow.experiment.primaryMetric.greaterIsBetter": str(self.objective.maximize),
            f"mlflow.sharedViewState.{VIEW}": json.dumps(view),
        }

    def _varied(self) -> list[str]:
        """Flags that differ between trials, the most often set first."""
        seen: dict[str, set[str]] = {}
        often: dict[str, int] = {}
        for row in self.rows:
            for flag, value in row["arguments"].items():
                seen.setdefault(flag, set()).add(json.dumps(value))
                often[flag] = often.get(flag, 0) + 1
        varied = [flag for flag in seen if len(seen[flag]) > 1 or often[flag] < len(self.rows)]
        return sorted(varied, key=lambda flag: (-often[flag], flag))

    def history(self) -> list[tuple[Row, str, float]]:
        """(trial's row, metric, value) of the course of the study, for MLflow's charts."""
        points: list[tuple[Row, str, float]] = []
        best: float | None = None
        for row in self.rows:
            value = row["objective"]
            if value is None or row["state"] != "measured":
                continue
            points.append((row, "history/objective", value))
            if row["feasible"] and (best is None or self.objective.better(value, best)):
                best = value
            if best is not None:
                points.append((row, "history/best", best))
        return points

    def tags(self) -> dict[str, str]:
        winner, judgement = self.winner, self.summary.get("judgement")
        tags = {"winner": f"trial {winner['number']}" if winner else "none yet" if not self.summary else "none"}
        if isinstance(judgement, Mapping):
            tags["verdict"] = str(judgement.get("verdict", ""))
        return {**tags, **answer_tags(self.summary, self.defaults)}

    def _gain(self) -> dict[str, float] | None:
        judgement = self.summary.get("judgement")
        if isinstance(judgement, Mapping):
            return {name: judgement[name] for name in ("gain", "low", "high", "level") if name in judgement}
        baseline, winner = self.baseline, self.winner
        if baseline is None or winner is None or not baseline["objective"]:
            return None
        rise = (winner["objective"] - baseline["objective"]) / abs(baseline["objective"])
        return {"gain": rise if self.objective.maximize else -rise}

    # --- texts ---

    def yaml(self) -> str | None:
        """The winner as ``vllm serve --config`` reads it; None while there is none."""
        winner = self.winner
        if winner is None:
            return None
        candidate = Candidate(
            assignment={}, arguments=winner["arguments"], environment=winner["environment"], origin=winner["origin"]
        )
        return yaml_text(candidate, self.model, self.hide)

    def note(self) -> str:
        """The description in Markdown."""
        parts = [f"**{self.title}**", self._verdict(), self._comparison(), answer_text(self.summary, self.defaults)]
        text = self.yaml()
        if text is not None:
            parts.append(f"### The winner, for `vllm serve --config best.yaml`\n\n```yaml\n{text}```")
        parts.append(self._trials())
        return "\n\n".join(part for part in parts if part) + "\n"

    def _verdict(self) -> str:
        judgement, gain = self.summary.get("judgement"), self._gain()
        winner = self.winner
        if winner is None:
            return "No winner yet." if not self.summary else "No configuration but the default can be recommended."
        sentence = f"Trial {winner['number']}"
        if gain is not None and finite(gain.get("gain")):
            sentence += f" is **{gain_words(gain['gain'], self.objective)}** against {self.defaults}"
            up = self.objective.maximize
            if finite(gain.get("low")) and finite(gain.get("high")):
                sentence += f" ({gain_interval(gain['low'], gain['high'], gain.get('level', 0.99), maximize=up)})"
        if isinstance(judgement, Mapping):
            fresh = "fresh server starts" if self.defaults == VLLM_DEFAULTS else "fresh trials"
            basis = f" over {fresh}" if judgement.get("basis") == "starts" else ""
            basis = " by the replay's estimate, not measured" if judgement.get("estimated") else basis
            return f"{sentence}{basis}. Verdict: **{judgement.get('verdict', '')}**."
        return f"{sentence}, not confirmed yet." if self.summary else f"{sentence} so far; the study is running."

    def _pooled(self, who: str, single: float | None) -> float | None:
        """The mean over the trials of the winner or of the default, once the study has said it."""
        part = self.summary.get(who)
        value = part.get("value") if isinstance(part, Mapping) else None
        return float(value) if isinstance(value, int | float) else single

    def _figures(self, who: str, row: Row | None) -> Mapping[str, Any]:
        """All figures of the winner or of the default: the study's own means, else those of its one trial."""
        part = self.summary.get(who)
        means = part.get("metrics") if isinstance(part, Mapping) else None
        own = row["metrics"] if row is not None else {}
        return {**own, **means} if isinstance(means, Mapping) else own

    def _comparison(self) -> str:
        baseline, winner = self.baseline, self.winner
        if baseline is None:
            return ""
        figures = list(_FIGURES)
        if self.objective.metric not in dict(figures):
            figures.insert(0, (self.objective.metric, f"{self.objective.metric} ({self.objective.unit})"))
        figures = self._with_limits(figures)
        ours_all, theirs_all = self._figures("winner", winner), self._figures("baseline", baseline)
        ours = f"winner (trial {winner['number']})" if winner is not None else "winner"
        lines = [
            f"| | {self.defaults} (trial {baseline['number']}) | {ours} | change |",
            "|:---|---:|---:|---:|",
        ]
        for metric, label in figures:
            before, after = theirs_all.get(metric), ours_all.get(metric)
            if metric == self.objective.metric:
                # The verdict stands on all trials of both, not on the two that found them.
                before, after = self._pooled("baseline", before), self._pooled("winner", after)
            if before is None and after is None:
                continue
            lines.append(f"| {label} | {_number(before)} | {_number(after)} | {change(before, after)} |")
        return "\n".join(lines)

    def _with_limits(self, figures: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """The figures with every limited metric among them, its bound in the label."""
        labels = dict(figures)
        for limit in self.limits:
            unit = metric_unit(limit.metric)
            own = f"{short_name(limit.metric)} ({unit})" if unit else short_name(limit.metric)
            side = "at most" if limit.at_most else "at least"
            labels[limit.metric] = f"{labels.get(limit.metric, own)}, {side} {figure(limit.bound)}"
        return list(labels.items())

    def _trials(self) -> str:
        measured = [row for row in self.rows if row["objective"] is not None and row["state"] == "measured"]
        measured.sort(key=lambda row: row["objective"], reverse=self.objective.maximize)
        if not measured:
            return ""
        lines = [
            f"### Trials by {self.objective.metric}",
            "",
            f"| trial | {self.objective.unit or 'objective'} | accuracy | what it asks |",
            "|---|---:|---:|---|",
        ]
        for row in measured[:_SHOWN_TRIALS]:
            asks = ", ".join(f"{name}={shown(value)}" for name, value in row["assignment"].items())
            mark = "" if row["feasible"] else f" ⚠ {row['reason']}"
            lines.append(
                f"| {row['number']} | {_number(row['objective'])} | {_number(row['metrics'].get('accuracy/score'))} "
                f"| {_cell(asks or self.defaults)}{_cell(mark)} |"
            )
        if len(measured) > _SHOWN_TRIALS:
            lines.append(f"\n{len(measured) - _SHOWN_TRIALS} more in the artifact `trials.csv`.")
        return "\n".join(lines)

    # --- tables ---

    def _table(self) -> tuple[list[str], list[list[Any]]]:
        metrics = [name for name, _ in _FIGURES if any(name in row["metrics"] for row in self.rows)]
        varied = self._varied()
        fixed = ["trial", "origin", "state", "feasible", "objective", "low", "high"]
        lines = [
            [
                row["number"],
                row["origin"],
                row["state"],
                row["feasible"],
                *(row[name] for name in ("objective", "low", "high")),
                *(row["metrics"].get(name) for name in metrics),
                *(None if row["arguments"].get(f) is None else shown(row["arguments"][f]) for f in varied),
                row["seconds"],
                row["reason"],
            ]
            for row in self.rows
        ]
        return [*fixed, *metrics, *varied, "seconds", "reason"], lines

    def csv(self) -> str:
        columns, lines = self._table()
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_rounded(value) for value in line] for line in lines)
        return out.getvalue()

    def table_json(self) -> str:
        """The table in the split layout that MLflow's table view and ``load_table`` read."""
        columns, lines = self._table()
        return json.dumps({"columns": columns, "data": [[_rounded(value) for value in line] for line in lines]})


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _number(value: float | None) -> str:
    return "" if value is None else figure(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
