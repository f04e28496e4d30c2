"""From ``search_spaces/*.yaml`` to a plan: what is searched, what cannot start, and what is the same."""

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
