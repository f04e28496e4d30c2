"""The quality check of a study: what :class:`tuner.ports.QualityCheck` asks for, put together."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.errors import InputError
from tuner.model.measurement import QualityReport
from tuner.model.outcome import Failure
from tuner.ports import Progress, Server
from tuner.quality import agreement, judge, lm_eval, questions, sanity
from tuner.quality.client import CompletionsClient, ModelCard

__all__ = ["QualitySuite"]

_BUILTIN = "builtin"
_PHASE = "checking accuracy"
_LM_EVAL_TIMEOUT_S = 3600.0


class QualitySuite:
    """Sanity, agreement with the baseline, question sets and lm-eval tasks, judged together.

    Each question set and each task is one comparison with the baseline; the more there are, the stricter each is
    tested (Bonferroni), so that a sound candidate still passes them all in 95 % of cases.

    Args:
        allowed_drop: accuracy (share, absolute) that a candidate may lose on any set.
        tasks: lm-eval tasks, by name or path of a local YAML (extra ``eval``).
        question_files: question sets of the user's own (JSONL, see :mod:`tuner.quality.questions`).
        builtin: ask the built-in questions too.
        max_items: questions per set and documents per task, at most; None for all.
        seed: which questions, where ``max_items`` leaves a choice. The same for all trials of a study.
        tokenizer: folder or name of the model's tokenizer, for lm-eval; empty for that of the served checkpoint.
        timeout_s: longest wait (seconds) for one request of up to 256 prompts: a server that takes one sequence at a
            time needs half a minute for it on two idle cores.
        task_timeout_s: longest wait (seconds) for one lm-eval task.

    Raises:
        InputError: a file or task is not what it should be, nothing is left to ask, or a package is missing.
    """

    def __init__(
        self,
        *,
        allowed_drop: float = judge.ALLOWED_DROP,
        tasks: Sequence[str] = (),
        question_files: Sequence[Path | str] = (),
        builtin: bool = True,
        max_items: int | None = None,
        seed: int = 0,
        tokenizer: str = "",
        timeout_s: float = 300.0,
        task_timeout_s: float = _LM_EVAL_TIMEOUT_S,
    ) -> None:
        if not 0 <= allowed_drop < 1:
            raise InputError(f"allowed accuracy drop {allowed_drop:g}: give a share from 0 to 1, such as 0.01")
        if max_items is not None and max_items < 1:
            raise InputError(f"{max_items} questions are no check; give at least 1, or switch quality off")
        self._allowed = allowed_drop
        self._max_items = max_items
        self._tokenizer = tokenizer
        self._timeout_s = timeout_s
        self._task_timeout_s = task_timeout_s
        self._sets = _sets(question_files, builtin=builtin, max_items=max_items, seed=seed)
        self._tasks = tuple(lm_eval.task(spec) for spec in tasks)
        if self._tasks and not lm_eval.installed():
            raise InputError("lm-eval tasks need the package lm-eval: pip install .[eval]")
        if not self._sets and not self._tasks:
            raise InputError("nothing to ask: leave the built-in questions on, or give a question file or a task")

    def sanity(self, server: Server) -> Failure | None:
        """See :meth:`tuner.ports.QualityCheck.sanity`.

        Raises:
            MeasurementFailed: the server died or answered with errors.
        """
        with CompletionsClient(server, timeout_s=self._timeout_s) as client:
            return sanity.sane(client)

    def check(
        self, server: Server, *, baseline: QualityReport | None, directory: Path, progress: Progress
    ) -> QualityReport:
        """See :meth:`tuner.ports.QualityCheck.check`. Writes ``quality.json`` into ``directory``.

        Raises:
            MeasurementFailed: the server died or answered with errors.
            InputError: the baseline answered none of these questions.
        """
        began = time.monotonic()
        metrics: dict[str, float] = {}
        with CompletionsClient(server, timeout_s=self._timeout_s) as client:
            progress(_PHASE, f"{len(agreement.PROMPTS)} fixed prompts")
            transcript = agreement.transcribe(client)
            metrics |= _agreement(client, transcript, baseline)
            answers = self._ask(client, progress)
            card = client.card() if self._tasks else None
        if card is not None:
            answers |= self._run_tasks(server, card, directory, progress)
        metrics |= _scores(answers)
        judged = self._judge(answers, baseline, metrics)
        report = QualityReport(
            passed=judged.passed,
            reason=judged.reason,
            metrics=metrics,
            answers={f"{group}/{name}": value for group, part in answers.items() for name, value in part.items()},
            completions=transcript.tokens,
            logprobs=transcript.logprobs,
            seconds=time.monotonic() - began,
        )
        _write(report, directory / "quality.json")
        return report

    def _ask(self, client: CompletionsClient, progress: Progress) -> dict[str, Mapping[str, float]]:
        return {
            name: questions.ask(client, items, say=lambda text: progress(_PHASE, text))
            for name, items in self._sets.items()
        }

    def _run_tasks(
        self, server: Server, card: ModelCard, directory: Path, progress: Progress
    ) -> dict[str, Mapping[str, float]]:
        found: dict[str, Mapping[str, float]] = {}
        for wanted in self._tasks:
            progress(_PHASE, f"lm-eval {wanted.name}")
            found[wanted.name] = lm_eval.run(
                server,
                wanted,
                tokenizer=self._tokenizer or card.root,
                max_length=card.max_model_len,
                directory=directory,
                limit=self._max_items,
                timeout_s=self._task_timeout_s,
            )
        return found

    def _judge(
        self, answers: Mapping[str, Mapping[str, float]], baseline: QualityReport | None, metrics: dict[str, float]
    ) -> judge.Verdict:
        """The worst verdict over all sets; adds what was found to ``metrics``."""
        if baseline is None:
            return judge.Verdict(passed=True, excess=0.0)
        confidence = 1 - (1 - judge.CONFIDENCE) / len(answers)
        worst: tuple[judge.Verdict, judge.Drop] | None = None
        for group, part in answers.items():
            before = {
                key.removeprefix(f"{group}/"): value
                for key, value in baseline.answers.items()
                if key.startswith(f"{group}/")
            }
            try:
                drop = judge.paired_drop(before, part, confidence=confidence)
            except ValueError as error:
                raise InputError(
                    f"the baseline answered none of the questions of {group!r}: start a new study with --study NAME"
                ) from error
            found = judge.verdict(
                drop,
                allowed=self._allowed,
                agreement=metrics.get("accuracy/agreement"),
                floor=metrics.get("accuracy/agreement_floor"),
            )
            if len(answers) > 1:
                metrics[f"accuracy/{_metric_name(group)}_drop"] = drop.value
            if worst is None or found.excess > worst[0].excess:
                worst = (found, drop)
        if worst is None:
            return judge.Verdict(passed=True, excess=0.0)
        verdict, drop = worst
        metrics |= {"accuracy/drop": drop.value, "accuracy/drop_se": drop.se, "accuracy/excess": verdict.excess}
        return verdict


def _sets(
    files: Sequence[Path | str], *, builtin: bool, max_items: int | None, seed: int
) -> dict[str, tuple[questions.Question, ...]]:
    sets: dict[str, tuple[questions.Question, ...]] = {}
    if builtin:
        sets[_BUILTIN] = questions.select(questions.builtin(), max_items, seed)
    for file in files:
        path = Path(file).expanduser()
        if path.stem in sets:
            raise InputError(f"{path}: another question set is called {path.stem!r} too; rename the file")
        sets[path.stem] = questions.select(questions.load(path), max_items, seed)
    return sets


def _agreement(
    client: CompletionsClient, transcript: agreement.Transcript, baseline: QualityReport | None
) -> dict[str, float]:
    if baseline is None:
        again = agreement.compare(transcript, agreement.transcribe(client, rearranged=True))
        noise = again.logprob_difference
        found = {"accuracy/agreement": again.share, "accuracy/agreement_floor": again.share}
        return found if math.isnan(noise) else {**found, "accuracy/logprob_difference_floor": noise}
    before = agreement.Transcript(tokens=baseline.completions, logprobs=baseline.logprobs)
    if not set(before.tokens) & set(transcript.tokens):
        return {}
    seen = agreement.compare(before, transcript)
    found = {
        "accuracy/agreement": seen.share,
        "accuracy/identical": seen.identical,
        "accuracy/divergence_tokens": seen.divergence,
    }
    if not math.isnan(seen.logprob_difference):
        found["accuracy/logprob_difference"] = seen.logprob_difference
    for key in ("accuracy/agreement_floor", "accuracy/logprob_difference_floor"):
        if key in baseline.metrics:
            found[key] = baseline.metrics[key]
    return found


def _scores(answers: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The pooled score, and one per set where there are several."""
    pooled = {f"{group}/{name}": value for group, part in answers.items() for name, value in part.items()}
    value, error = questions.score(pooled)
    found = {"accuracy/score": value, "accuracy/score_se": error, "accuracy/questions": float(len(pooled))}
    for group, part in answers.items():
        if len(answers) > 1 or group != _BUILTIN:
            found[f"accuracy/{_metric_name(group)}"], found[f"accuracy/{_metric_name(group)}_se"] = questions.score(
                part
            )
    return found


def _metric_name(group: str) -> str:
    """Trackers take letters, digits and a few signs in a metric's name."""
    return "".join(ch if ch.isascii() and (ch.isalnum() or ch in "_-.") else "_" for ch in group)


def _write(report: QualityReport, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "passed": report.passed,
        "reason": report.reason,
        "metrics": dict(report.metrics),
        "answers": dict(report.answers),
        "completions": {name: "".join(tokens) for name, tokens in report.completions.items()},
        "seconds": round(report.seconds, 2),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
