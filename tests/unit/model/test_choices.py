"""A trial in a few words: its difference from the defaults or from another trial."""

from __future__ import annotations

import pytest

from tuner.model.choices import Choices, differing, fit, shown

DEFAULTS = {"seqs": 256, "graphs": "auto", "caching": True}


def test_only_departures_from_the_defaults_count() -> None:
    assert differing({"seqs": 256, "graphs": "full", "caching": False, "new": 1}, DEFAULTS) == {
        "graphs": "full",
        "caching": False,
        "new": 1,
    }
    assert differing({"caching": 1}, DEFAULTS) == {"caching": 1}, "1 is not True"


def test_a_trial_is_told_by_the_shorter_of_its_differences() -> None:
    reference = {"seqs": 512, "graphs": "full", "caching": False, "x": 1, "y": 2}
    choices = Choices(DEFAULTS, (3, reference))
    assert choices.words(0, {}) == ["vLLM's defaults"]
    assert choices.words(1, {"seqs": 256, "graphs": "auto"}) == ["vLLM's defaults"]
    assert choices.words(2, {"seqs": 64}) == ["seqs=64"]
    assert choices.words(3, reference) == ["seqs=512", "graphs=full", "caching=false", "x=1", "y=2"]
    assert choices.words(4, {**reference, "x": 9}) == ["as #3 but", "x=9"]
    assert choices.words(5, {**reference, "seqs": 256}) == ["as #3 but", "seqs=256"]
    without = {name: value for name, value in reference.items() if name != "y"}
    assert choices.words(6, without) == ["as #3 but", "y=unset"]
    assert choices.words(7, dict(reference)) == ["as #3"]


@pytest.mark.parametrize(
    ("width", "lines", "expected"),
    [
        (11, 3, ["aaa bbb ccc", "ddd"]),
        (7, 2, ["aaa bbb", "ccc ddd"]),
        (11, 1, ["aaa +3 more"]),
        (14, 1, ["aaa +3 more"]),
        (15, 1, ["aaa bbb ccc ddd"]),
        (2, 9, ["aaa", "bbb", "ccc", "ddd"]),
    ],
)
def test_words_fit_or_are_counted(width: int, lines: int, expected: list[str]) -> None:
    assert fit(["aaa", "bbb", "ccc", "ddd"], width, lines) == expected


def test_values_are_shown_as_people_write_them() -> None:
    assert [shown(value) for value in ("auto", True, 0.5, None, [1])] == ["auto", "true", "0.5", "null", "[1]"]
    assert shown(float("inf")) == "inf"
