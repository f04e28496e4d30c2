"""Files that people name: never in the place of something else, and never through somebody else's link."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.model.files import draft_beside, target_of, write_draft


@pytest.mark.parametrize(
    ("path", "what"), [("/dev/null", "a device"), ("/", "a folder"), ("/dev/null/x", "cannot be written")]
)
def test_what_is_no_file_is_refused(path: str, what: str) -> None:
    with pytest.raises(InputError, match=rf"^--table {path}: (is )?{what}"):
        target_of(Path(path), "--table")


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InputError, match=r"--output .*/a: cannot be written"):
        target_of(tmp_path / "a", "--output")


def test_a_draft_is_new_private_and_gone_unless_moved(tmp_path: Path) -> None:
    place = tmp_path / "best.yaml"
    with draft_beside(place, ".yaml") as first, draft_beside(place, ".yaml") as second:
        assert first != second
        assert (first.parent, first.suffix) == (tmp_path, ".yaml")
        assert stat.S_IMODE(first.stat().st_mode) == 0o600
        write_draft(first, "long text")
        write_draft(first, "text")
        first.replace(place)
    assert [path.name for path in tmp_path.iterdir()] == ["best.yaml"]
    assert place.read_text() == "text"


def test_a_draft_that_became_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    with draft_beside(tmp_path / "x") as draft:
        draft.unlink()
        draft.symlink_to(tmp_path / "victim")
        with pytest.raises(OSError, match="symbolic links"):
            write_draft(draft, "other")
    assert (tmp_path / "victim").read_text() == "mine"
