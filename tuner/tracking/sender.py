"""From spooled events to MLflow runs. Every step may be repeated without harm."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tuner.model.words import defaults_of
from tuner.ports import StudyInfo
from tuner.tracking import payload
from tuner.tracking.answers import answer_tables
from tuner.tracking.artifacts import stage
from tuner.tracking.overview import Overview
from tuner.tracking.payload import Mask
from tuner.tracking.spool import Event, Spool
from tuner.tracking.store import Store, scratch

__all__ = ["Sender"]


class Sender:
    """Knows what each event means in MLflow. Used by one thread."""

    def __init__(self, store: Store, spool: Spool, info: StudyInfo, hide: Mask) -> None:
        self.store = store
        self.spool = spool
        self._info = info
        self._hide = hide
        self._summary: dict[str, Any] = {}
        self._stale = False
        self._charted: set[tuple[int, str]] = set()

    def send(self, event: Event) -> None:
        """Make MLflow say what the event says.

        Raises:
            Exception: one of :func:`tuner.tracking.store.temporary_errors`; the event is then still to be sent.
        """
        handler = {
            "open": self._open,
            "trial_started": self._trial_started,
            "trial_ended": self._trial_ended,
            "study_ended": self._study_ended,
        }.get(str(event.get("kind")))
        if handler is not None:  # an event of a newer version says nothing to this one
            handler(event)

    def refresh(self) -> None:
        """Bring the parent run up to date: best figures, description, tables, the winner's YAML."""
        if not self._stale:
            return
        rows = self._rows()
        if rows:
            self._show(rows, max(int(row["at"]) for row in rows))
        self._stale = False

    # --- events ---

    def _open(self, event: Event) -> None:
        parent = self._parent(event["at"])
        self._summary = {}
        self.store.reopen(parent)
        self.store.log(parent, params=event["params"], tags={"state": "running"}, at=event["at"])
        self._upload(parent, event["texts"])
        self._close_children(event["at"], "`tune` ended while this trial ran")
        self._stale = True

    def _trial_started(self, event: Event) -> None:
        child = self._child(event)
        self.store.log(child, params=event["params"], tags=event["tags"], at=event["at"])

    def _trial_ended(self, event: Event) -> None:
        child = self._child(event)
        metrics = [(name, value, 0) for name, value in event["metrics"].items()]
        self.store.log(child, params=event["params"], metrics=metrics, tags=event["tags"], at=event["at"])
        self._upload(child, event["texts"], Path(event["directory"]))
        self.store.end(child, event["status"], event["at"])
        self._stale = True

    def _study_ended(self, event: Event) -> None:
        self._summary = {"ended": True, **event["summary"]}
        rows = self._rows()
        if rows:
            self._show(rows, event["at"])
        parent = self._parent(event["at"])
        self._crown()
        state = {"FINISHED": "finished", "KILLED": "interrupted"}.get(event["status"], "failed")
        self.store.log(parent, tags={"state": state}, at=event["at"])
        self._upload(parent, {"summary.json": payload.json_text(event["summary"])})
        for name in event["artifacts"]:
            self._upload_file(parent, Path(name))
        self._close_children(event["at"], "the study ended while this trial ran")
        self.store.end(parent, event["status"], event["at"])

    # --- runs ---

    @property
    def _experiment(self) -> str:
        return self.store.experiment(payload.experiment_name(self._info))

    def _parent(self, at: int) -> str:
        identity = {"tune.study_id": self.spool.identity, "tune.role": "study"}
        return self.store.run(self._experiment, identity, name=self._info.name, at=at, parent=None)

    def _child(self, event: Event) -> str:
        identity = {
            "tune.study_id": self.spool.identity,
            "tune.role": "trial",
            "tune.trial": str(event["number"]),
            "tune.candidate": str(event["key"]),
        }
        parent = self._parent(event["at"])
        return self.store.run(self._experiment, identity, name=event["name"], at=event["at"], parent=parent)

    def _close_children(self, at: int, why: str) -> None:
        """No trial of this study is running now: whatever still says so was left by a process that is gone."""
        trials = {"tune.study_id": self.spool.identity, "tune.role": "trial"}
        for run in self.store.find(self._experiment, trials, status="RUNNING"):
            self.store.log(run.info.run_id, tags={"state": "interrupted", "feasible": "no", "reason": why}, at=at)
            self.store.end(run.info.run_id, "KILLED", at)

    def _crown(self) -> None:
        """Mark the winner's run, and no other."""
        winner = self._overview(self._rows()).winner
        number = "" if winner is None else str(winner["number"])
        trials = {"tune.study_id": self.spool.identity, "tune.role": "trial"}
        for run in self.store.find(self._experiment, {**trials, "winner": "yes"}):
            if run.data.tags.get("tune.trial") != number:
                name = payload.run_name(int(run.data.tags["tune.trial"]), run.data.tags.get("origin", "search"))
                self.store.log(run.info.run_id, tags={"mlflow.runName": name}, at=0)
                self.store.untag(run.info.run_id, "winner")
        if winner is None:
            return
        for run in self.store.find(self._experiment, {**trials, "tune.trial": number}):
            name = payload.run_name(winner["number"], winner["origin"], winner=True)
            self.store.log(run.info.run_id, tags={"winner": "yes", "mlflow.runName": name}, at=0)

    # --- the parent's page ---

    def _rows(self) -> list[dict[str, Any]]:
        return [row for row in self.spool.rows() if row.keys() >= payload.ROW_KEYS]

    def _overview(self, rows: list[dict[str, Any]]) -> Overview:
        title = f"{payload.experiment_name(self._info)}, workload {self._info.workload.name}"
        return Overview(
            title=self._hide.text(title),
            model=self._info.model,
            objective=self._info.objective,
            rows=rows,
            summary=self._summary,
            hide=self._hide,
            defaults=defaults_of({"facts": self._info.facts}),
            limits=self._info.limits,
        )

    def _show(self, rows: list[dict[str, Any]], at: int) -> None:
        overview = self._overview(rows)
        parent = self._parent(at)
        # MLflow shows the value of the last step as the run's: the number of trials known is a step that grows.
        metrics = [(name, value, len(rows)) for name, value in overview.metrics().items()]
        tables = {"trials.json": overview.table_json(), **answer_tables(self._summary, overview.defaults)}
        tags = {
            **overview.tags(),
            "mlflow.note.content": overview.note()[:60_000],
            # What log_table would set; log_table itself appends to a table that is already there.
            "mlflow.loggedArtifacts": json.dumps([{"path": name, "type": "table"} for name in tables]),
        }
        self.store.log(parent, metrics=metrics, tags=tags, at=at)
        columns = [*(x.metric for x in self._info.further), *(x.metric for x in self._info.limits)]
        self.store.tag_experiment(self._experiment, overview.experiment_tags(columns))
        for row, name, value in overview.history():
            if (row["number"], name) not in self._charted:
                # With the trial's own time, a point that is sent again after a restart is the same point.
                self.store.log(parent, metrics=[(name, value, row["number"])], at=row["at"])
                self._charted.add((row["number"], name))
        texts = {"trials.csv": overview.csv(), **tables}
        best = overview.yaml()
        if best is not None:
            texts["best.yaml"] = best
        self._upload(parent, texts)

    # --- files ---

    def _upload(self, run_id: str, texts: dict[str, str], directory: Path | None = None) -> None:
        with scratch(self.spool.directory) as place:
            target = Path(place) / "files"
            stage(directory or Path(place) / "none", texts, target, self._hide)
            self.store.upload(run_id, target)

    def _upload_file(self, run_id: str, path: Path) -> None:
        with scratch(self.spool.directory) as place:
            source = Path(place) / "source"
            source.mkdir()
            try:
                shutil.copyfile(path, source / path.name)
            except OSError:
                return  # it was there when the study ended; losing a copy must not hold up everything behind it
            stage(source, {}, Path(place) / "files", self._hide)
            self.store.upload(run_id, Path(place) / "files")
