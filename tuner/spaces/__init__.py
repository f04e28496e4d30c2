"""From ``search_spaces/*.yaml`` to a plan: what is searched, what cannot start, and what is the same."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.spaces.check import CheckReport, check_space
    from tuner.spaces.introspect import VllmFlags, read_back
    from tuner.spaces.plan import Plan, ProfileInfo, open_plan, profiles, workloads
    from tuner.spaces.planner import SpacePlanner, Survey
    from tuner.spaces.present import describe, print_plan

__all__ = [
    "CheckReport",
    "Plan",
    "ProfileInfo",
    "SpacePlanner",
    "Survey",
    "VllmFlags",
    "check_space",
    "describe",
    "open_plan",
    "print_plan",
    "profiles",
    "read_back",
    "workloads",
]

_HOMES = {
    "CheckReport": "check",
    "Plan": "plan",
    "ProfileInfo": "plan",
    "SpacePlanner": "planner",
    "Survey": "planner",
    "VllmFlags": "introspect",
    "check_space": "check",
    "describe": "present",
    "detect": "detect",
    "matches": "detect",
    "open_plan": "plan",
    "print_plan": "present",
    "profiles": "plan",
    "read_back": "introspect",
    "recognise": "detect",
    "workloads": "plan",
}


def __getattr__(name: str) -> object:
    """Parts are imported when they are first used: `tune --help` needs none of them."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
