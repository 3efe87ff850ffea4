"""Group commit: what gathers is written together, nobody pays for another's trouble, and the log stays short."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import pytest_asyncio

from tests.conformance.stores.harness import job, row, run
from tidemill.errors import Unavailable
from tidemill.stores.contract import Claim, Commit, Committed
from tidemill.stores.sqlite import writer
from tidemill.stores.sqlite.store import SqliteStore
from tidemill.stores.sqlite.writer import Transaction, Writer


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    yield store
    await store.close()


def writer_of(store: SqliteStore) -> Writer:
    assert store._writer is not None
    return store._writer


def commit(name: str, **fields: Any) -> Commit:
    return Commit(stream=run(name), **({"expected": 0, "records": (b"x",)} | fields))


async def test_what_gathers_is_one_transaction(store: SqliteStore) -> None:
    before = writer_of(store).transactions
    results = await asyncio.gather(*(store.commit([commit(f"r{number}")]) for number in range(100)))
    assert all(isinstance(result, Committed) for (result,) in results)
    assert writer_of(store).transactions - before <= 3


async def test_one_that_fails_harms_nobody_else(store: SqliteStore) -> None:
    def broken(tx: Transaction) -> None:
        tx.execute("INSERT INTO tenants VALUES ('half', 1)")
        raise ZeroDivisionError

    asked = [store.commit([commit(f"r{number}")]) for number in range(5)]
    trouble = writer_of(store).submit(broken, durable=True)
    *results, failed = await asyncio.gather(*asked, trouble, return_exceptions=True)
    assert isinstance(failed, ZeroDivisionError)
    assert all(isinstance(result, list) and isinstance(result[0], Committed) for result in results)
    assert store._read("SELECT count(*) FROM tenants").fetchall() == [(0,)], "half an operation was written"


async def test_sqlite_may_have_ended_the_transaction_itself(store: SqliteStore) -> None:
    """As it does when the disk is full: there is nothing to roll back then, and everybody is answered all the same."""

    def rolled_back(tx: Transaction) -> None:
        tx.execute("ROLLBACK")
        raise apsw.FullError("database or disk is full")

    async with asyncio.timeout(30):
        with pytest.raises(Unavailable, match="full"):
            await writer_of(store).submit(rolled_back, durable=True)
        both = asyncio.gather(
            writer_of(store).submit(rolled_back, durable=True), store.commit([commit("a")]), return_exceptions=True
        )
        failed, fine = await both
    assert isinstance(failed, Unavailable)
    assert isinstance(fine, list)


async def test_who_has_gone_away_wants_nothing_any_more(store: SqliteStore) -> None:
    await store.commit([Commit(stream=run("r"), expected=None, jobs=(job("a"),))])
    await store.claim(Claim(queues=("other",), limit=1, lease_ms=1_000, owner="w"))
    first = asyncio.create_task(store.commit([commit("other")]))
    claim = asyncio.create_task(store.claim(Claim(queues=("q",), limit=1, lease_ms=60_000, owner="w")))
    await asyncio.sleep(0)
    assert not claim.done(), "it waits for the next transaction"
    claim.cancel()
    await asyncio.gather(first, claim, return_exceptions=True)
    assert claim.cancelled()
    again = Claim(queues=("q",), limit=1, lease_ms=60_000, owner="w", wait_ms=2_000)
    assert len(await store.claim(again)) == 1


async def test_a_slow_sync_is_made_in_a_thread(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, threads = writer_of(store), set()
    commit_now = writer._commit

    def slow() -> float:
        threads.add(threading.get_ident())
        return commit_now() + 50

    monkeypatch.setattr(writer, "_commit", slow)
    for number in range(4):
        await store.commit([commit(f"r{number}")])
    assert writer.threaded
    assert threads - {threading.get_ident()}, "the loop waited for the disk"
    assert threading.get_ident() in threads, "the first one could not be known to be slow"


async def test_somebody_else_writes(store: SqliteStore) -> None:
    other = apsw.Connection(str(store.path))
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(store.commit([commit("a")]))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert writer_of(store).busy > 3
    assert writer_of(store).busy < 100, "it asks in a hurry"
    other.execute("COMMIT")
    other.close()
    (result,) = await asyncio.wait_for(waiting, 30)
    assert isinstance(result, Committed)


async def test_somebody_who_does_not_let_go(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.stores.sqlite.writer.BUSY_WAIT_MS", 50)
    other = apsw.Connection(str(store.path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="is locked by another process"):
        await store.commit([commit("a")])
    other.execute("ROLLBACK")
    other.close()
    (result,) = await store.commit([commit("a")])
    assert isinstance(result, Committed)


async def test_the_log_does_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PAGES_DUE", 50)
    monkeypatch.setattr(writer, "PAGES_PRESSING", 400)
    monkeypatch.setattr(writer, "PAGES_MOST", 1_200)
    move = writer.Checkpoints._move
    slow = iter((True,))

    def slowly(checkpoints: writer.Checkpoints) -> None:
        """The first one takes as long as a slow disk: commits go on meanwhile, until the log has its full length."""
        if next(slow, False):
            time.sleep(1)
        move(checkpoints)

    monkeypatch.setattr(writer.Checkpoints, "_move", slowly)
    store = SqliteStore(tmp_path / "a.db", durability="relaxed")
    await store.open()
    body, longest, commits = b"x" * 20_000, 0, 1_500
    for number in range(commits):
        await store.commit([commit(f"r{number}", records=(body,), rows=(row(f"r{number}"),))])
        longest = max(longest, (tmp_path / "a.db-wal").stat().st_size)
        await asyncio.sleep(0)
    assert store._checkpoints.made > 3
    # One more commit, and what checkpoints leave, come on top of the bound.
    assert longest < 1_600 * 4_120, f"the log grew to {longest} bytes"
    await store.close()


async def test_the_log_is_held_short_even_while_somebody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader keeps the log from being begun anew, but not commits from being made; once it is gone, it is."""
    monkeypatch.setattr(writer, "PAGES_DUE", 50)
    monkeypatch.setattr(writer, "PAGES_PRESSING", 200)
    store = SqliteStore(tmp_path / "a.db", durability="relaxed")
    await store.open()
    await store.commit([commit("first")])
    reader = apsw.Connection(str(store.path))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM streams").fetchall()
    for number in range(100):
        await store.commit([commit(f"r{number}", records=(b"x" * 20_000,))])
    reader.execute("COMMIT")
    reader.close()
    longest = (tmp_path / "a.db-wal").stat().st_size
    for number in range(300):
        await store.commit([commit(f"s{number}", records=(b"x" * 20_000,))])
        await asyncio.sleep(0.001)
    assert (tmp_path / "a.db-wal").stat().st_size <= longest * 1.5
    await store.close()


async def test_a_log_that_presses_is_left_to_the_commits(store: SqliteStore) -> None:
    """Moved beside them again and again, it would never be found idle, and so never be begun anew."""
    checkpoints, connection = writer.Checkpoints(store.path), apsw.Connection(str(store.path))
    checkpoints.note(connection, "main", writer.PAGES_DUE)
    assert checkpoints.due
    checkpoints.begin()
    await checkpoints.wait()
    checkpoints.note(connection, "main", writer.PAGES_DUE + 1)
    assert not checkpoints.due, "what was just moved is moved again"
    checkpoints.note(connection, "main", 2 * writer.PAGES_DUE)
    assert checkpoints.due
    checkpoints.note(connection, "main", writer.PAGES_PRESSING)
    assert not checkpoints.due
    connection.close()
