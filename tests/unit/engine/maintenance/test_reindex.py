"""Reindexing: whatever happened to the rows, the logs bring them back, also beside running workers."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tidemill
from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.operator import history, listed, operator, shown
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.index_rows import APPROVAL, DAY_MS, RUN, run_terms
from tidemill.engine.maintenance.reindex import agrees, all_rows, rows_of
from tidemill.kernel.state import State
from tidemill.stores.contract import Commit, Row, Stream

SEEDS = range(6)


def _damage(rng: random.Random, row: Row) -> Row:
    match rng.randrange(4):
        case 0:
            return msgspec.structs.replace(row, deleted=True)
        case 1:
            return msgspec.structs.replace(row, terms=("status:NONSENSE",))
        case 2:
            return msgspec.structs.replace(row, body=b"\x00")
        case _:
            return msgspec.structs.replace(row, sort=row.sort + 1)


@pytest.mark.parametrize("seed", SEEDS)
@simulated
async def test_all_lists_come_back(mill: Cluster, seed: int) -> None:
    rng = random.Random(seed)
    worker = await mill.process()
    await history(worker)
    await worker.stop()
    before = await shown(mill)
    terms = {term for row in before.values() for term in row.terms}
    lists = await listed(mill, terms)
    assert len(before) >= 8
    broken = rng.sample(sorted(before), rng.randrange(1, len(before)))
    ghosts = [
        Row(kind=RUN, key="ghost", sort=5, terms=("status:FAILED",), body=b"x"),
        Row(kind=APPROVAL, key="ghost/a/1/-1", sort=5, terms=("status:pending",), body=b"x"),
    ]
    rows = [*(_damage(rng, before[name]) for name in broken), *ghosts]
    await mill.store.commit([Commit(stream=Stream(TENANT, RUN, "x"), expected=None, rows=tuple(rows))])
    assert await shown(mill) != before
    engine = operator(mill)
    preview = await engine.reindex(dry_run=True)
    assert await shown(mill) != before
    done = await engine.reindex()
    assert msgspec.structs.replace(preview, dry_run=False) == done
    assert (done.surplus, done.missing + done.different) == (2, len(broken))
    assert await shown(mill) == before
    assert await listed(mill, terms) == lists
    again = await engine.reindex()
    assert (again.missing, again.different, again.surplus) == (0, 0, 0)
    assert again.rows == len(before)


@simulated
async def test_what_is_shown_follows_from_the_log(mill: Cluster) -> None:
    worker = await mill.process()
    for run_id in await history(worker):
        (tail,) = await mill.store.load({mill.stream(run_id): 0}, snapshots=False)
        _, rows = await rows_of(worker.engine.catalog, tail)
        there = await shown(mill)
        assert {name: there[name] for name in rows} == rows


@simulated
async def test_reindexing_beside_running_workers(mill: Cluster, ledger: Ledger) -> None:
    workers = [await mill.process(f"w{n}", functions={"work": ledger.work}) for n in range(2)]
    flow = document(*[call(f"n{i}", *([f"n{i - 1}"] if i else []), args={"seconds": 0.2}) for i in range(5)])
    reference = await workers[0].publish(flow)
    runs = [await workers[0].engine.start(reference, key=f"r{n}") for n in range(20)]
    engine = operator(mill)
    unlisted: list[int] = []

    async def watch() -> None:
        while True:
            unlisted.append(len(runs) - await mill.store.count(TENANT, RUN))
            await asyncio.sleep(0.01)

    watcher = asyncio.create_task(watch())
    done = 0
    while await mill.store.count(TENANT, RUN, ["live"]):
        await asyncio.sleep(0.1)
        found = await engine.reindex()
        assert (found.missing, found.surplus, found.unreadable) == (0, 0, ())
        done += 1
    watcher.cancel()
    assert done > 3
    assert set(unlisted) == {0}
    for run in runs:
        assert (await workers[0].end(run)).status == "COMPLETED"


@simulated
async def test_a_run_that_moves_on_is_derived_again(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(node("a"), node("b", "a", type="signal")))
    await asyncio.sleep(1)
    (row,) = [row async for row in all_rows(mill.store, TENANT, RUN)]
    await mill.store.commit([Commit(stream=mill.stream(run_id), expected=None, rows=(_gone(row),))])
    client = await mill.process("client", work=False)
    overtaken: list[str] = []

    async def signal_first(call_: object) -> object:
        overtaken.append(run_id)
        await worker.engine.signal(run_id, "b", "now")
        await worker.end(run_id)
        return await call_()  # type: ignore[operator]

    client.faulty_store.next("commit", signal_first)
    await client.engine.reindex()
    assert overtaken
    assert (await mill.row(run_id)).status == "COMPLETED"


def _gone(row: Row) -> Row:
    return msgspec.structs.replace(row, deleted=True)


@simulated
async def test_a_log_that_cannot_be_read_keeps_its_rows(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a"), node("b", "a", type="fail", config={"message": "no"})))
    mill.unjudged.add(run.run_id)
    mill.store._logs[mill.stream(run.run_id)].records[2] = b"\xc1"
    before = await shown(mill)
    found = await operator(mill).reindex()
    assert found.unreadable == (run.run_id,)
    assert (found.missing, found.different, found.surplus) == (0, 0, 0)
    assert await shown(mill) == before


def test_what_the_keeper_adds_is_no_difference() -> None:
    state = State(status="RUNNING", workflow="w", version=1)
    row = Row(kind=RUN, key="r", sort=0, terms=run_terms(state), body=b"")
    assert not agrees(None, row, state)
    assert not agrees(msgspec.structs.replace(row, sort=1), row, state)
    assert not agrees(msgspec.structs.replace(row, body=b"\xc1"), row, state)


# The same on a real file: a sweep that is killed for good, rows rebuilt beside a worker, an archive in a folder


MOMENTS = (7, 11, 20)

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
