"""The same on a real file: a sweep that is killed for good, rows rebuilt beside a worker, an archive in a folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tidemill.engine.index_rows import DAY_MS

MOMENTS = (1, 7, 9, 11, 14, 20)

DYING = """
import asyncio, os, signal, sys, time
real, left = time.time_ns, [int(sys.argv[2])]
time.time_ns = lambda: real() + 40 * 86_400 * 10**9
from tidemill.bootstrap import engine_at

class Countdown:
    def __init__(self, inner): self._inner = inner
    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name in ("now_ms", "open", "close", "find", "names"):
            return found
        async def call(*args, **options):
            self.count()
            answer = await found(*args, **options)
            self.count()
            return answer
        return call
    def count(self):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with engine_at(sys.argv[1], work=False) as engine:
        service = engine.maintenance
        engine.context.store, service._archive = Countdown(engine.context.store), Countdown(service._archive)
        engine.run_cache._store = engine.context.store
        await engine.archive_sweep()
asyncio.run(main())
"""

FLOW: dict[str, Any] = {
    "name": "nightly",
    "nodes": [
        {"id": "a", "type": "value", "config": {"text": "x" * 300_000}},
        {"id": "b", "type": "fail", "dependencies": ["a"], "config": {"message": "no"}},
    ],
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_sweep_that_is_killed_loses_nothing(tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_ARCHIVE", raising=False)
    url = f"sqlite:///{tmp_path}/mill.db"
    with tidemill.open(url) as mill:
        mill.publish(FLOW)
        runs = {mill.result(mill.start("nightly", key=f"r{number}")).run_id for number in range(2)}
    died = subprocess.run([sys.executable, "-c", DYING, url, str(moment)], capture_output=True, timeout=50, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    real = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: real() + 40 * DAY_MS * 1_000_000)
    with tidemill.open(url, work=False) as mill:
        stored = {row.run_id for row in mill.find()[0]}
        archived = {header.run_id for header in mill.archive_list().runs}
        assert stored | archived == runs
        assert mill.verify_log().clean
        assert set(mill.archive_sweep().retired) == stored
        assert mill.find()[0] == []
        assert mill.dead_letters()[0] == []
        assert sorted(header.run_id for header in mill.archive_list().runs) == sorted(runs)
        for run in runs:
            mill.archive_restore(run)
        assert mill.verify_log().clean
        assert {row.run_id for row in mill.find()[0]} == runs


def test_rows_are_rebuilt_beside_a_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mill.db"
    chain = [{"id": f"n{i}", "type": "value", "dependencies": [f"n{i - 1}"] if i else []} for i in range(8)]
    counts: list[int] = []
    with tidemill.open(url) as mill, tidemill.open(url, work=False) as operator:
        mill.publish({"name": "chain", "nodes": chain})
        runs = [mill.start("chain", key=f"r{number}") for number in range(60)]
        stop = threading.Event()

        def reindex() -> None:
            while not stop.is_set():
                counts.append(operator.reindex().missing)

        thread = threading.Thread(target=reindex)
        thread.start()
        for run in runs:
            assert mill.result(run, timeout_s=40).status == "COMPLETED"
            assert len(mill.find(limit=100)[0]) == len(runs)
        stop.set()
        thread.join()
        assert len(counts) >= 1
        assert set(counts) == {0}
        assert operator.reindex().different == 0
        assert operator.verify_log().clean
