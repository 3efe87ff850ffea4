"""Makes `waiting_runs.db.gz`: a store as version 0.1 of 2026-11 left it, with runs that wait for all kinds of things.

    python tests/unit/engine/data/make_waiting_runs.py waiting_runs.db.gz

It is run with the version whose files have to stay readable, not with the present one. Its clock is set to a year ago,
so that every timer in the file is due.
"""

from __future__ import annotations

import gzip
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

YEAR_NS = 365 * 86_400 * 10**9
CHAIN = 260
"""Nodes of a run with a snapshot: each makes two events or more, and one is due after 500."""


def node(id_: str, *dependencies: str, type_: str = "value", **fields: Any) -> dict[str, Any]:
    return {"id": id_, "type": type_, "dependencies": list(dependencies), **fields}


def work(id_: str, *dependencies: str, **args: Any) -> dict[str, Any]:
    return node(id_, *dependencies, type_="python", config={"function": "work", "isolation": "inline", "args": args})


LAST = {"config": "{{ first.output }} and the end"}
FIRST = node("first", config="the beginning")
NAMES = ["first", *(f"n{number}" for number in range(CHAIN))]
FLOWS: dict[str, list[dict[str, Any]]] = {
    "approval": [FIRST, node("sign", "first", type_="human", config={"title": "Pay?"}), node("last", "sign", **LAST)],
    "signal": [FIRST, node("go", "first", type_="signal"), node("last", "go", **LAST)],
    "timer": [FIRST, node("nap", "first", type_="sleep", config={"seconds": 600}), node("last", "nap", **LAST)],
    "killed": [FIRST, work("job", "first", block=True), node("last", "job", **LAST)],
    "mapped": [
        FIRST,
        work("each", "first", block="{{ item > 2 }}", value="{{ item }}") | {"map": {"over": [1, 2, 3, 4]}},
        node("last", "each", **LAST),
    ],
    "kid": [node("go", type_="signal")],
    "parent": [FIRST, node("c", "first", type_="workflow", config={"workflow": "kid"}), node("last", "c", **LAST)],
    "failed": [FIRST, work("job", "first", fail=True), node("last", "job", **LAST)],
    "paused": [FIRST, work("job", "first"), node("last", "job", **LAST)],
    "snapshot": [
        FIRST,
        *(node(name, before, config=1) for before, name in itertools.pairwise(NAMES)),
        node("go", NAMES[-1], type_="signal"),
        node("last", "go", **LAST),
    ],
}


async def attempt(block: bool = False, fail: bool = False, value: Any = None) -> Any:
    """What nodes did when the file was made: some never end, some fail."""
    import asyncio

    if fail:
        raise ValueError("it fails as long as nobody mends it")
    if block:
        await asyncio.sleep(3_600)
    return value


def open_store(path: Path, *, working: bool = True) -> Any:
    import tidemill

    return tidemill.open(f"sqlite:///{path}", functions={"work": attempt}, work=working, retention_days=None)


def until(is_so: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to that")


def fill(path: Path) -> None:
    """Start the runs, and let go of them in good order."""
    with open_store(path, working=False) as mill:
        for name, nodes in FLOWS.items():
            mill.publish({"name": name, "nodes": nodes})
        mill.start("paused", key="paused")
        mill.pause("paused", reason="for a while")
    with open_store(path) as mill:
        for name in ("approval", "signal", "timer", "parent", "failed", "snapshot"):
            mill.start(name, key=name)
        mill.result("failed")
        for name in ("approval", "signal", "timer", "parent", "snapshot"):
            until(lambda name=name: bool(mill.show(name).waiting_for))
        until(lambda: bool(mill.show("parent.c.1").waiting_for))
        # A run goes on a little after its snapshot.
        mill.relabel("snapshot", {"seen": "yes"})


def hold(path: Path) -> None:
    """Begin attempts that do not end, and say so; somebody will kill this process."""
    mill = open_store(path)
    mill.start("killed", key="killed")
    mill.start("mapped", key="mapped")
    until(lambda: mill.show("mapped").nodes["each"].get("items", {}).get("done") == 2)
    # Long enough for the log to learn that the attempts have begun.
    time.sleep(12)
    print("ready", flush=True)
    time.sleep(600)


def make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tidemill.db")
        fill(path)
        worker = subprocess.Popen([sys.executable, __file__, "hold", path], stdout=subprocess.PIPE)
        assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        with sqlite3.connect(path) as connection:
            # The log of the file becomes a part of it, and nothing else changes.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            assert connection.execute("SELECT count(*) FROM snapshots").fetchone()[0] >= 1
        connection.close()
        target.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    print(target, target.stat().st_size, "bytes")


if __name__ == "__main__":
    now_ns = time.time_ns
    time.time_ns = lambda: now_ns() - YEAR_NS
    time.time = lambda: (now_ns() - YEAR_NS) / 1e9
    if sys.argv[1] == "hold":
        hold(Path(sys.argv[2]))
    else:
        make(Path(sys.argv[1]))
