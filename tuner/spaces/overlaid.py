"""What a shipped model overlay changes of a user's own profile, which it comes after."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tuner.model.space import Space
from tuner.spaces.loader import flatten, merge
from tuner.spaces.yamlfile import Located, plain

__all__ = ["overlaid"]

_SECTIONS = ("parameters", "arguments", "environment")


def overlaid(
    overlay: str,
    base: Sequence[Located],
    layers: Sequence[Located],
    users: Sequence[Located],
    *,
    own: Collection[str],
    space: Space,
    fixed: Collection[str] = (),
) -> Iterator[str]:
    """A note on what the user's own profile says and the overlay replaces or takes out; nothing if there is none.

    Args:
        base: the profile after everything it extends.
        layers: the overlay after everything it extends.
        users: the user's spaces, which come after the overlay: what they name is as they say.
        own: names of the user's files.
        space: what came out at last.
        fixed: parameters that the user's arguments took out.
    """
    mine = [root for root in base if root.file in own]
    if not mine or not layers:
        return
    before, after = merge(base).root, merge([*base, *layers]).root
    offered = {item.name for item in space.parameters}
    replaced: list[str] = []
    gone: list[str] = []
    for section in _SECTIONS:
        said = {name for root in users for name in _entries(root, section)}
        said |= set(fixed) if section == "parameters" else set()
        was, became = _entries(before, section), _entries(after, section)
        named = dict.fromkeys(name for root in mine for name in _entries(root, section) if name in was)
        for name in named:
            if name in said or plain(was[name]) == plain(became.get(name)):
                continue
            out = name not in became or (section == "parameters" and name not in offered)
            (gone if out else replaced).append(name)
    parts = [f"{what} {', '.join(names)}" for what, names in (("replaces", replaced), ("takes out", gone)) if names]
    if parts:
        files = ", ".join(dict.fromkeys(root.file for root in mine))
        yield (
            f"the model overlay {overlay} comes after {files}: it {' and '.join(parts)}; "
            "what is to stay as you wrote it belongs into a --space file, which comes after both"
        )


def _entries(root: Located, section: str) -> Mapping[str, Located]:
    node = root.get(section)
    found = node.mapping if node is not None else {}
    return flatten(found) if section == "arguments" else found
