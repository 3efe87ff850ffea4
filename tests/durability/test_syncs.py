"""What is acknowledged was synced, a power cut takes nothing of it away, and a failed sync is no acknowledgement."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.stores.harness import job, row, run
from tests.durability.disk import Disk, Step, failing, installed, sync_failed, write_failed
from tests.durability.harness import ENDS, RecordingStore, begin, engine_on, eventually, examined, finish, mill
from tidemill.errors import Unavailable
from tidemill.stores.contract import Claim, Commit, Committed, Lease
from tidemill.stores.sqlite.store import SqliteStore

CUTS = 40
COMMITS = 60


async def one_commit(store: SqliteStore, number: int = 0, **fields: Any) -> Committed:
    stream = run(f"r{number}")
    commit = Commit(stream=stream, expected=0, records=(b"x" * 200,), rows=(row(stream.key),), **fields)
    (result,) = await store.commit([commit])
    assert isinstance(result, Committed)
    return result


def of_log(steps: list[Step]) -> list[str]:
    return [step.what for step in steps if step.file.endswith("-wal")]


@pytest.mark.parametrize("sync_ms", [0.0, 1e9], ids=["in the loop", "in a thread"])
async def test_an_answer_comes_after_the_sync_of_what_it_says(tmp_path: Path, sync_ms: float) -> None:
    with installed() as disk:
        store = SqliteStore(tmp_path / "a.db")
        await store.open()
        assert store._writer is not None
        for number in range(3):
            # Whether the disk has been quick lately is not left to this machine.
            store._writer._sync_ms = sync_ms
            disk.steps.clear()
            await one_commit(store, number)
            steps = of_log(disk.steps)
            assert "write" in steps
            assert steps[-1] == "sync", "the answer was given before the last write was synced"
        assert bool(store._writer.threaded) == bool(sync_ms)
        await store.close()


async def test_claims_and_renewals_wait_for_no_sync(tmp_path: Path) -> None:
    with installed() as disk:
        store = SqliteStore(tmp_path / "a.db")
        await store.open()
        await one_commit(store, jobs=(job("a"), job("b")))
        disk.steps.clear()
        leases = await store.claim(Claim(queues=("q",), limit=2, lease_ms=60_000, owner="w"))
        assert len(leases) == 2
        assert await store.renew(leases, 60_000) == []
        await store.release(leases)
        steps = of_log(disk.steps)
        assert "write" in steps
        assert "sync" not in steps
        await store.close()


async def test_what_is_relaxed_is_not_synced(tmp_path: Path) -> None:
    with installed() as disk:
        store = SqliteStore(tmp_path / "a.db", durability="relaxed")
        await store.open()
        await one_commit(store)
        disk.steps.clear()
        await one_commit(store, 1)
        assert "sync" not in of_log(disk.steps)
        await store.close()


async def worked(disk: Disk, path: Path, durability: Any) -> tuple[RecordingStore, Any]:
    """Runs in full flight."""
    store = RecordingStore(path, durability=durability)
    engine = await engine_on(store).open()
    runs = await begin(engine)
    assert await finish(engine, runs) == ENDS
    for _ in range(3):
        await engine.start("fan")
    return store, engine


@pytest.mark.parametrize("durability", ["full", "relaxed"])
async def test_a_power_cut(tmp_path: Path, quick_path: Path, durability: str) -> None:
    rng, forgotten = random.Random(durability), 0
    with installed(remember=True) as disk:
        store, engine = await worked(disk, quick_path / "a.db", durability)
        left = []
        for number in range(CUTS):
            if number % 4 == 0:
                await engine.start("chain")
            await asyncio.sleep(rng.random() * 0.004)
            # The order matters: what is acknowledged later may be on this disk, or may not.
            acked = list(store.acked)
            left.append((disk.power_cut(quick_path / f"cut-{number}", rng), acked))
        await engine.close()
    for path, acked in left:
        found = await examined(path)
        missing = [each for each in acked if found.get(each.stream, 0) < each.version]
        forgotten += bool(missing)
        assert durability == "relaxed" or not missing
    assert forgotten or durability == "full", "the disk forgot nothing, so nothing was tried"
    async with mill(left[0][0]) as engine:
        ends = await finish(engine)
        assert all(status == "COMPLETED" for status, _ in ends.values())


@pytest.mark.parametrize("sync_ms", [0.0, 1e9], ids=["in the loop", "in a thread"])
async def test_a_failed_sync_is_not_acknowledged(tmp_path: Path, sync_ms: float) -> None:
    with installed() as disk:
        store = SqliteStore(tmp_path / "a.db")
        await store.open()
        await one_commit(store, 0)
        assert store._writer is not None
        store._writer._sync_ms = sync_ms
        fault = disk.fault = failing("sync", "-wal", sync_failed)
        with pytest.raises(Unavailable, match="could not be read or written"):
            await one_commit(store, 1)
        assert fault.fired == 1
        (tail,) = await store.load({run("r1"): 0})
        assert tail.version == 0
        assert (await one_commit(store, 1)).version == 1
        await store.close()


async def test_a_failed_sync_in_the_midst_of_runs(tmp_path: Path) -> None:
    """Whoever was refused does not know what came of it, looks, and goes on: nothing happens twice."""
    with installed() as disk:
        async with mill(tmp_path / "a.db") as engine:
            runs = await begin(engine)
            for at in range(1, 9, 2):
                fault = disk.fault = failing("sync", "-wal", sync_failed, at=at)
                runs.append(await again(lambda: engine.start("fan", key=f"fan-{at}")))  # noqa: B023
                await eventually(lambda: fault.fired == 1, "no sync failed")  # noqa: B023
            ends = await finish(engine, runs)
            assert {run: ends[run] for run in ENDS} == ENDS
            assert all(ends[run] == ENDS["run-fan"] for run in runs if run.startswith("fan-"))
    await examined(tmp_path / "a.db")


async def again(ask: Any) -> Any:
    """Repeat a request that is safe to repeat, as a client would."""
    for _ in range(20):
        try:
            return await ask()
        except Unavailable:
            await asyncio.sleep(0.05)
    raise AssertionError("the store does not come back")


async def test_what_a_failed_sync_dropped_is_written_again(tmp_path: Path, quick_path: Path) -> None:
    """Linux forgets what it could not write and reports it once: the next sync succeeds, over a hole.

    The claim is not synced; the commit behind it fails to be. The one after that must not be acknowledged on top of a
    log whose middle is gone.
    """
    with installed(remember=True, lossy_sync=True) as disk:
        store = SqliteStore(quick_path / "a.db")
        await store.open()
        await one_commit(store, 0, jobs=(job("a"),))
        leases: list[Lease] = await store.claim(Claim(queues=("q",), limit=1, lease_ms=60_000, owner="w"))
        assert leases
        fault = disk.fault = failing("sync", "-wal", sync_failed)
        with pytest.raises(Unavailable):
            await one_commit(store, 1)
        assert fault.fired == 1
        await one_commit(store, 2)
        path = disk.power_cut(quick_path / "cut", random.Random(3))
        await store.close()
    store = SqliteStore(path)
    await store.open()
    tails = await store.load({run("r0"): 0, run("r2"): 0})
    assert [tail.version for tail in tails] == [1, 1]
    await store.close()


async def test_a_failed_write_harms_nobody_else(tmp_path: Path) -> None:
    with installed() as disk:
        store = SqliteStore(tmp_path / "a.db")
        await store.open()
        await one_commit(store, 0)
        fault = disk.fault = failing("write", "-wal", write_failed)
        results = await asyncio.gather(*(one_commit(store, n) for n in range(1, COMMITS)), return_exceptions=True)
        assert fault.fired == 1
        refused = [n for n, result in enumerate(results, 1) if isinstance(result, BaseException)]
        assert all(isinstance(results[n - 1], Unavailable) for n in refused)
        tails = await store.load({run(f"r{n}"): 0 for n in range(COMMITS)})
        assert [n for n, tail in enumerate(tails) if not tail.version] == refused
        await store.close()
