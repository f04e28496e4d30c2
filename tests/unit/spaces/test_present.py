"""A space as people see it: names that can be copied, whatever the width of the terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tuner.spaces import describe, open_plan, print_plan


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [60, 80, 120, 160])
@pytest.mark.parametrize("profile", ["h200", "cpu"])
def test_names_stay_whole(profile: str, width: int, terminal: bool) -> None:
    plan, out = open_plan(profile), io.StringIO()
    print_plan(plan, Console(file=out, width=width, force_terminal=terminal, no_color=True))
    text = re.sub("\x1b\\[[0-9;]*m", "", out.getvalue())
    words = set(text.split())
    assert {item.name for item in plan.space.parameters} <= words
    assert {item.target for item in plan.space.parameters if item.target} <= words
    here = {r.name for r in plan.space.forbids if not r.condition.never_holds({"hardware": plan.hardware})}
    assert here <= words
    assert {start.name for start in plan.space.starts} <= words
    if terminal and width >= 80:  # below, a name and its flag may be longer than the line
        assert all(len(line.rstrip()) <= width for line in text.splitlines())


def test_a_narrow_terminal_tells_default_and_condition_below_the_name() -> None:
    out = io.StringIO()
    print_plan(open_plan("h200"), Console(file=out, width=80))
    text = out.getvalue()
    assert "max_num_seqs  max-num-seqs\n    16 to 2048, log (default: 1024)\n" in text
    assert "    1 to 7\n    only when speculation != 'off'\n" in text


@pytest.mark.parametrize("width", [80, 160])
def test_rules_of_other_hardware_are_counted_only(width: int) -> None:
    """One H200 was told of ROCm's and of SM12x's rules."""
    plan, out = open_plan("h200"), io.StringIO()
    print_plan(plan, Console(file=out, width=width))
    text = out.getvalue()
    rules = [rule for rule in plan.space.forbids if rule.condition.text != "false"]
    elsewhere = [rule for rule in rules if rule.name not in text.split()]
    assert elsewhere
    assert all("hardware." in rule.condition.text for rule in elsewhere)
    assert f"· {len(elsewhere)} rules of other hardware left out, which --json lists as well" in text
    assert [rule["name"] for rule in describe(plan)["rules"]] == [rule.name for rule in rules]  # type: ignore[index, union-attr, call-overload]
