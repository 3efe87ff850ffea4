"""Who is alive: a lock of the operating system says so, at once and however somebody went."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conformance.stores.harness import job, run
from tests.durability.disk import disk_full, failing, installed
from tidemill.errors import Unavailable
from tidemill.stores.contract import Claim, Commit
from tidemill.stores.sqlite.liveness import ProcessLocks
from tidemill.stores.sqlite.store import HOLDER_CHECK_MS, SqliteStore

ANY = Claim(queues=("q",), limit=10, lease_ms=600_000, owner="w")
HOLDING = """
import asyncio, sys
from tidemill.stores.contract import Claim
from tidemill.stores.sqlite.store import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    leases = await store.claim(Claim(queues=("q",), limit=1, lease_ms=600_000, owner="child"))
    print(len(leases), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
FORKING = """
import os, sys, time
from pathlib import Path
from tidemill.stores.sqlite.liveness import ProcessLocks
holders = ProcessLocks(Path(sys.argv[1]))
holders.enter(1)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


async def test_the_leases_of_a_killed_process_are_void_at_once(tmp_path: Path) -> None:
    store = await opened(tmp_path / "a.db")
    await store.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"), job("b")))])
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDING, str(store.path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"1\n"
        alive = await store.claim(ANY)
        assert len(alive) == 1, "what a living process holds was taken from it"
        await asyncio.sleep(HOLDER_CHECK_MS / 1000)
        assert await store.claim(ANY) == []
    finally:
        child.kill()
        await child.communicate()
    await asyncio.sleep(HOLDER_CHECK_MS / 1000)
    (taken,) = await store.claim(ANY)
    assert taken.expired == 1
    assert taken.key != alive[0].key
    locks = list((tmp_path / "a.db-live").iterdir())
    assert len(locks) == 1, "the lock of the dead is left"
    await store.close()
    assert not (tmp_path / "a.db-live").exists()


async def test_a_store_that_closes_gives_back_what_it_holds(tmp_path: Path) -> None:
    first, second = await opened(tmp_path / "a.db"), await opened(tmp_path / "a.db")
    await first.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"),))])
    assert len(await first.claim(ANY)) == 1
    assert await second.claim(ANY) == []
    await first.close()
    assert len(await second.claim(ANY)) == 1
    await second.close()


def test_forgotten_locks_are_free(tmp_path: Path) -> None:
    mine, others = ProcessLocks(tmp_path / "a.db"), ProcessLocks(tmp_path / "a.db")
    mine.enter(1)
    assert not others.is_dead(1)
    assert others.is_alive(1)
    assert not mine.is_dead(1)
    assert others.is_dead(2), "a holder without a lock was never there, or has gone"
    (tmp_path / "a.db-live" / "3.lock").touch()
    assert others.is_dead(3)
    others.sweep(3)
    with pytest.raises(Unavailable, match="is taken"):
        others.enter(1)
    mine.enter(4)
    mine.leave(1)
    assert others.is_dead(1)
    mine.leave(4)
    assert not (tmp_path / "a.db-live").exists()


def test_without_a_folder_of_locks_nobody_is_known_to_be_dead_or_alive(tmp_path: Path) -> None:
    mine, others = ProcessLocks(tmp_path / "a.db"), ProcessLocks(tmp_path / "a.db")
    mine.enter(1)
    assert others.present([(1, "one"), (2, "two")]) == {"one"}
    shutil.rmtree(tmp_path / "a.db-live")
    assert others.present([(1, "one")]) == {"one"}, "whoever has no lock of his own takes the living for dead"
    assert not others.is_alive(1), "a copy of a store could never be migrated: its holders are elsewhere"
    mine.leave(1)


def test_a_fork_does_not_outlive_its_parent_as_a_holder(tmp_path: Path) -> None:
    others = ProcessLocks(tmp_path / "a.db")
    command = [sys.executable, "-c", FORKING, str(tmp_path / "a.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            # The child has the locks of its parent until it has begun.
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and has_open(child, ".lock"):
                time.sleep(0.01)
            assert not others.is_dead(1), "the child has let go for its parent"
            parent.kill()
            parent.wait()
            os.kill(child, 0)
            assert others.is_dead(1)
        finally:
            parent.kill()
            os.kill(child, signal.SIGKILL)


def has_open(pid: int, suffix: str) -> bool:
    return any(target.endswith(suffix) for target in map(target_of, Path(f"/proc/{pid}/fd").iterdir()))


def target_of(handle: Path) -> str:
    try:
        return os.readlink(handle)
    except FileNotFoundError:
        # It was closed after it was listed.
        return ""


async def test_a_process_that_could_not_become_known_tries_again(tmp_path: Path) -> None:
    """The number that a rolled back transaction gave out comes again, and its lock must be free then."""
    with installed() as disk:
        store = await opened(tmp_path / "a.db")
        await store.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"),))])
        fault = disk.fault = failing("write", "-wal", disk_full, times=2)
        with pytest.raises(Unavailable, match="full"):
            await store.claim(ANY)
        assert fault.fired
        disk.fault = None
        assert len(await store.claim(ANY)) == 1
        assert len(list((tmp_path / "a.db-live").iterdir())) == 1
        await store.close()


async def test_nothing_can_be_locked(tmp_path: Path) -> None:
    store = await opened(tmp_path / "a.db")
    (tmp_path / "a.db-live").touch()
    with pytest.raises(Unavailable, match="no lock can be made"):
        await store.claim(ANY)
    (tmp_path / "a.db-live").unlink()
    assert await store.claim(ANY) == []
    await store.close()
