"""A study as a page of Markdown: for an issue, a wiki or a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.model.choices import differing, shown
from tuner.model.json import finite
from tuner.model.outcome import Status
from tuner.model.tables import TextTable, markdown
from tuner.model.targets import figure, metric_unit, short_name
from tuner.model.words import defaults_name
from tuner.report.answers import Answers
from tuner.report.figures import figure_rows
from tuner.report.show import counted_trials, kind_words, status_words, verdict

__all__ = ["study_page"]

Document = Mapping[str, Any]


def study_page(document: Document, answers: Answers) -> str:
    """The whole study: verdict, figures, the best at each load, the front, limits, trials.

    ``document`` is :func:`~tuner.report.document.study_document`. Text from logs and files stands in table cells and
    list items, on one line each.
    """
    where = f"{document['model']} on {document['hardware']}, workload {document['workload']}"
    parts = [
        f"## Study {document['study']}: {where}",
        kind_words(document),
        f"**{verdict(document)}**",
        _figures(document),
        _winner(document),
        answers.markdown(),
        "\n".join(_limits(document)),
        _trials(document),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(document: Document) -> str:
    baseline, winner = document["baseline"], document["winner"]
    if baseline is None and winner is None:
        return ""
    name = defaults_name(document["kind"])
    title = "Figures" if winner is None else f"Trial {winner['trial']} against {name}"
    columns, right = ("figure", name, "best", "change"), frozenset({1, 2, 3})
    rows = (*figure_rows(document), ("mean over", counted_trials(baseline), counted_trials(winner), ""))
    return markdown(TextTable(title=title, columns=columns, rows=rows, right=right))


def _winner(document: Document) -> str:
    winner = document["winner"]
    return "" if winner is None else f"Trial {winner['trial']}: `{_choices(winner['assignment'], document)}`"


def _limits(document: Document) -> list[str]:
    return [
        f"- Limit: {short_name(str(limit.get('metric')))} {'at most' if limit.get('at_most', True) else 'at least'} "
        f"{figure(limit['bound'], metric_unit(str(limit.get('metric'))))}"
        for limit in document["limits"] or ()
        if finite(limit.get("bound"))
    ]


def _trials(document: Document) -> str:
    rows = []
    for line in document["table"]:
        if line["status"] == Status.EXCLUDED.value:
            continue
        value, low, high = line["objective"], line["low"], line["high"]
        spread = f" ±{(high - low) / 2 / abs(value):.1%}" if value and finite(low) and finite(high) else ""
        note = f" ({line['reason']})" if line["reason"] else ""
        rows.append(
            (
                f"#{line['trial']}",
                line["origin"],
                status_words(line),
                "" if value is None else f"{figure(value)}{spread}",
                "" if line["accuracy"] is None else figure(line["accuracy"]),
                f"{_choices(line['assignment'], document)}{note}",
            )
        )
    unit = document["objective"]["unit"] or document["objective"]["metric"]
    columns = ("trial", "origin", "status", unit, "accuracy", f"beyond {defaults_name(document['kind'])}")
    return (
        markdown(TextTable(title="Trials", columns=columns, rows=tuple(rows), right=frozenset({3, 4}))) if rows else ""
    )


def _choices(assignment: Mapping[str, Any], document: Document) -> str:
    own = differing(assignment, document["defaults"])
    return " ".join(f"{name}={shown(value)}" for name, value in own.items()) or defaults_name(document["kind"])
