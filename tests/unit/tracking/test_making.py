"""A store whose making is cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tuner.tracking.store import Store

MAKE = """
import sys
from pathlib import Path
from tuner.tracking.store import Store
Store(sys.argv[1], Path(sys.argv[2])).connect()
"""


def test_a_making_that_was_killed_leaves_a_store_that_can_be_made(tmp_path: Path) -> None:
    place = tmp_path / "mlflow.db"
    uri = f"sqlite:///{place}"
    maker = subprocess.Popen([sys.executable, "-c", MAKE, uri, str(tmp_path)], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    # Kill it while its schema is half made: the draft is there and has pages, the store is not.
    while time.monotonic() < until and maker.poll() is None and not place.exists():
        if any(item.stat().st_size > 8192 for item in tmp_path.glob(".mlflow.db.*")):
            os.kill(maker.pid, signal.SIGKILL)
            break
        time.sleep(0.001)
    maker.wait()
    assert not place.exists()
    store = Store(uri, tmp_path)
    store.connect()
    assert store.connected
    assert int(store.experiment("after")) > 0
    assert place.stat().st_mode & 0o077 == 0
