"""Makes `referring_runs.db.gz`: a store as version 0.1 of 2026-11 left it, whose runs refer to blobs and have no rows
that say so.

    python tests/unit/engine/data/make_referring_runs.py referring_runs.db.gz

It is run with a version before those rows, not with the present one. Its clock is set to a year ago, so that every blob
in the file is old enough to be collected.
"""

from __future__ import annotations

import gzip
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

YEAR_NS = 365 * 86_400 * 10**9
LARGE = "x" * 70_000


def draw() -> Any:
    return {"picture": tidemill.Blob(b"\x89PNG" * 1_000)}


def nodes(*each: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "value", "dependencies": [], **node} for node in each]


FLOWS: dict[str, list[dict[str, Any]]] = {
    "large": nodes({"id": "a", "config": "{{ inputs.big }} and more"}),
    "drawn": nodes({"id": "a", "type": "python", "config": {"function": "draw", "isolation": "inline"}}),
    "patched": nodes({"id": "a", "type": "signal"}, {"id": "b", "dependencies": ["a"], "config": 1}),
    "lost": nodes({"id": "a", "config": "{{ inputs.big }} and less"}),
}


def make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tidemill.db")
        with tidemill.open(f"sqlite:///{path}", functions={"draw": draw}, retention_days=None) as mill:
            for name, flow in FLOWS.items():
                mill.publish({"name": name, "nodes": flow, "outputs": "{{ a.output }}"})
                mill.start(name, {"big": name + LARGE}, key=name)
            while not mill.show("patched").waiting_for:
                time.sleep(0.1)
            mill.patch("patched", [{"op": "replace", "path": "/nodes/b/config", "value": LARGE}])
            mill.signal("patched", "a", "gone on")
            for name in FLOWS:
                assert mill.result(name, timeout_s=60).status == "COMPLETED"
            mill.result(mill.fork("large", node="a", key="forked"), timeout_s=60)
            mill.put_blob(b"nothing refers to this")
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        target.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    print(target, target.stat().st_size, "bytes")


if __name__ == "__main__":
    now_ns = time.time_ns
    time.time_ns = lambda: now_ns() - YEAR_NS
    time.time = lambda: (now_ns() - YEAR_NS) / 1e9
    import tidemill

    make(Path(sys.argv[1]))
