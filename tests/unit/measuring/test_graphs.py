"""Steps by CUDA graph mode, out of vLLM's own tables in a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.measuring.graphs import GraphLog

PREFIX = "(EngineCore pid=71) INFO 07-22 10:11:12 [cuda_graph.py:118] "
TABLE = """**CUDAGraph Config Settings:**

- Mode: FULL_AND_PIECEWISE
- Capture sizes: [1, 2, 4]

**CUDAGraph Stats:**

| Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Count |
|-----------------|---------------|--------------|--------------|-------|
| 3               | 4             | 1            | FULL         | 90    |
| 900             | 900           | 0            | NONE         | 4     |
| 130             | 136           | 6            | PIECEWISE    | 6     |
"""


def test_tables_after_the_beginning_are_added_up(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(TABLE)  # before: somebody else's
    graphs = GraphLog(str(log))
    assert graphs.shares() == {}
    with log.open("a") as file:
        for line in (TABLE + TABLE.replace("| 90 ", "| 190")).splitlines():
            file.write(f"{PREFIX}{line}\n")
    assert graphs.shares() == pytest.approx(
        {"engine/steps_full": 280 / 300, "engine/steps_none": 8 / 300, "engine/steps_piecewise": 12 / 300}
    )


def test_rows_across_two_reads_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "server.log"
    log.write_text("")
    graphs = GraphLog(str(log))
    log.write_text("".join(f"{PREFIX}{line}\n" for line in TABLE.splitlines() * 3))
    whole = graphs.shares()
    for size in (7, 100, 333):
        monkeypatch.setattr("tuner.measuring.graphs._READ", size)
        assert graphs.shares() == whole


@pytest.mark.parametrize(
    "text", ["", "no table\n", "| 1 | 2 | x | FULL | 3 |\n", "| 1 | 2 | 3 | FULL | 0 |\n", "\xff\x00|"]
)
def test_anything_else_says_nothing(text: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("")
    graphs = GraphLog(str(log))
    log.write_text(text, encoding="latin-1")
    assert graphs.shares() == {}
    assert GraphLog(str(tmp_path / "absent.log")).shares() == {}
    assert GraphLog("").shares() == {}
