"""Why nothing can be started, for people: which rule says so, where it stands, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.model.candidate import Exclusion
from tuner.spaces.yamlfile import Located, Problem, SpaceError, plain

if TYPE_CHECKING:
    from tuner.spaces.plan import Plan

__all__ = ["UNEVALUATED", "place_of", "refused"]

UNEVALUATED = " cannot be evaluated"


def refused(plan: Plan, found: Exclusion, what: str, *, model_given: bool) -> InputError:
    """The error for an exclusion that ends everything.

    Args:
        what: what it keeps from starting (``nothing in this space can start on h200``).
        model_given: the model was asked for by name; else it is the profile's, and another one may be the way out.
    """
    own = place_of(plan.own, found)
    reason = found.reason if UNEVALUATED in found.reason or own is None else f"the rule {found.rule}: {found.reason}"
    if own is None and (rule := _rule(plan.root, found.rule)) is not None:
        reason += f" (rule {found.rule}, {rule.file}:{rule.line})"
    if not model_given and _about_model(plan, found):
        reason += f"; {plan.model.name} is the profile's own model, give another with --model NAME"
    if own is None:
        return InputError(f"{what}: {reason}")
    node, key = own
    return SpaceError(Problem(node.file, node.line, key, f"{what}: {reason}"))


def place_of(own: Sequence[Located], found: Exclusion) -> tuple[Located, str] | None:
    """The rule, derived value or parameter of the users' files that an exclusion speaks of, and its key."""
    subject = found.reason.partition(UNEVALUATED)[0]
    for root in reversed(own):
        for section, name, wanted in (("forbid", "name", found.rule), ("derived", "target", subject)):
            listed = root.get(section)
            for number, item in enumerate(listed.items if listed is not None else []):
                if str(plain(item.get(name))) == wanted:
                    return item, f"{section}[{number}]"
        parameters = root.get("parameters")
        at = parameters.get(subject) if parameters is not None else None
        if at is not None:
            return at, f"parameters.{subject}.when"
    return None


def _rule(root: Located, name: str) -> Located | None:
    listed = root.get("forbid")
    return next(
        (item for item in (listed.items if listed is not None else []) if item.mapping["name"].value == name), None
    )


def _about_model(plan: Plan, found: Exclusion) -> bool:
    """Whether another model may be the way out of an exclusion: a shipped profile chose it, and the rule reads it."""
    named = plan.root.get("model")
    if named is None or named.file in {root.file for root in plan.own}:
        return False
    rules = [rule for rule in plan.planner.rules if rule.name == found.rule]
    return found.rule == "memory" or any(
        name.split(".")[0] == "model" for rule in rules for name in rule.condition.names
    )
