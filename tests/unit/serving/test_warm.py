"""Which warm parent a server gets, and that none is tried twice in vain."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.serving.ledger import Ledger
from tuner.serving.processes import is_running
from tuner.serving.starting import WarmParentLost
from tuner.serving.warm import WarmParents

LAYOUT = "1,1,1"


def quiet(_phase: str, _detail: str) -> None:
    return


@pytest.fixture
def base(tmp_path: Path) -> dict[str, str]:
    for name, text in (
        ("vllm", "__version__ = '0.0.fake'\n"),
        ("torch", "class cuda:\n    is_initialized = staticmethod(lambda: False)\n"),  # the real one takes seconds
    ):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def build(tmp_path: Path, python: str = sys.executable, platform: str = "cpu") -> WarmParents:
    return WarmParents(
        (python,),
        platform=platform,
        folder=tmp_path,
        wants=tmp_path / "cache" / "wants.json",
        ledger=Ledger(tmp_path / "processes.jsonl"),
        marker="a" * 32,
    )


@pytest.fixture
def parents(tmp_path: Path) -> Iterator[WarmParents]:
    made = build(tmp_path)
    yield made
    made.close()


def test_one_parent_serves_what_is_read_late(parents: WarmParents, base: dict[str, str]) -> None:
    first = parents.get(base, LAYOUT, quiet)
    assert parents.get({**base, "VLLM_CPU_KVCACHE_SPACE": "4"}, LAYOUT, quiet) is first
    assert parents.any() is first
    assert parents.version == "0.0.fake"
    other = parents.get({**base, "VLLM_SOMETHING": "1"}, LAYOUT, quiet)
    assert other is not first
    assert parents.any() is other
    assert parents.identities == {first.identity, other.identity}


def test_the_least_recently_used_goes(parents: WarmParents, base: dict[str, str], tmp_path: Path) -> None:
    first = parents.get(base, LAYOUT, quiet)
    second = parents.get({**base, "A_1": "1"}, LAYOUT, quiet)
    parents.get(base, LAYOUT, quiet)
    third = parents.get({**base, "A_1": "2"}, LAYOUT, quiet)
    assert not is_running(second.identity)
    assert parents.identities == {first.identity, third.identity}
    parents.close()
    assert parents.any() is None
    events = [json.loads(line)["event"] for line in (tmp_path / "processes.jsonl").read_text().splitlines()]
    assert events.count("will-start") == events.count("started") == events.count("ended") == 3


def test_a_dead_parent_is_replaced(parents: WarmParents, base: dict[str, str]) -> None:
    first = parents.get(base, LAYOUT, quiet)
    first.close()
    assert parents.any() is None
    second = parents.get(base, LAYOUT, quiet)
    assert second.identity != first.identity
    assert second.is_alive


def test_what_cannot_start_is_tried_once(tmp_path: Path, base: dict[str, str]) -> None:
    made = build(tmp_path, python="/bin/false")
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(WarmParentLost):
            made.get(base, LAYOUT, lambda _, detail: said.append(detail))
    assert len(said) == 1


def test_worker_variables_are_learned_and_kept(parents: WarmParents, base: dict[str, str], tmp_path: Path) -> None:
    bound = {**base, "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
    before = parents.get(bound, LAYOUT, quiet)
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"OMP_NUM_THREADS": "2", "GOMP_CPU_AFFINITY": "0 1"}))
    parents.learn(bound, LAYOUT, record)
    after = parents.get(bound, LAYOUT, quiet)
    assert after is not before
    environment = Path(f"/proc/{after.identity.pid}/environ").read_bytes().split(b"\0")
    assert b"OMP_NUM_THREADS=2" in environment
    assert parents.get(base, LAYOUT, quiet) is before  # bound otherwise, nothing is known of it
    fresh = build(tmp_path)
    assert fresh._wants == parents._wants  # the next study knows it from the start
    assert set(fresh._wants) == {fresh.key(bound, LAYOUT)}


@pytest.mark.parametrize("content", ["", "[]", "[" * 50_000, '{"a": 1}', "\x00"])
def test_nonsense_in_the_cache_is_survived(tmp_path: Path, content: str) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "wants.json").write_text(content)
    made = build(tmp_path)
    assert made._wants == {}
    (tmp_path / "record.json").write_text(content)
    made.learn({}, LAYOUT, tmp_path / "record.json")
    made.learn({}, LAYOUT, tmp_path / "missing.json")


def test_gpus_need_no_worker_variables(tmp_path: Path) -> None:
    made = build(tmp_path, platform="cuda")
    record = tmp_path / "record.json"
    record.write_text('{"OMP_NUM_THREADS": "8"}')
    made.learn({}, LAYOUT, record)
    assert made._wants == {}
