"""What a process reads of a file while another one writes to it: one moment, never half of two."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.stores.contract import Commit, Job, Snapshot, Stream
from tidemill.stores.sqlite.store import SqliteStore

RUN = Stream("default", "run", "one")


async def elsewhere(path: Path, commit: Commit | None) -> None:
    """What another process does: here a thread with a loop and a store of its own."""
    store = SqliteStore(path)
    await store.open()
    if commit is None:
        await store.forget(RUN)
    else:
        await store.commit([commit])
    await store.close()


def in_between(store: SqliteStore, happen: Callable[[], None]) -> list[str]:
    """Let something happen once, after the first statement of a view that looks for a stream."""
    read, happened, begun = store._read, list[str](), list[str]()

    def watched(statement: str, *values: Any) -> Any:
        rows = read(statement, *values).fetchall()
        if statement == "BEGIN":
            begun.append(statement)
        if "FROM streams" in statement and begun and not happened:
            happened.append(statement)
            thread = threading.Thread(target=happen)
            thread.start()
            thread.join()
        return SimpleNamespace(fetchall=lambda: rows)

    store._read = watched  # type: ignore[assignment]
    return happened


MORE = Commit(stream=RUN, expected=2, records=(b"3", b"4"), jobs=(Job(key="b", queue="q", body=b""),))
SHORTER = Commit(stream=RUN, expected=2, records=(b"3",), snapshot=Snapshot(version=3, body=b"123"))


@pytest.mark.parametrize("commit", [MORE, SHORTER, None], ids=["appended", "shortened", "forgotten"])
async def test_a_stream_that_another_process_changes_meanwhile_is_not_damaged(
    tmp_path: Path, commit: Commit | None
) -> None:
    path = tmp_path / "tidemill.db"
    store = SqliteStore(path)
    await store.open()
    await store.commit([Commit(stream=RUN, expected=0, records=(b"1", b"2"))])
    happened = in_between(store, lambda: asyncio.run(elsewhere(path, commit)))
    (tail,) = await store.load({RUN: 0})
    assert happened
    assert (tail.damage, tail.version, tail.after, tail.records) == ("", 2, 0, (b"1", b"2"))
    (later,) = await store.load({RUN: 0}, snapshots=False)
    assert (later.damage, later.version) == ("", {MORE: 4, SHORTER: 3, None: 0}[commit])
    await store.close()


async def test_news_of_a_stream_that_was_quiet_is_seen_at_once(tmp_path: Path) -> None:
    """While nobody writes, its version is known by heart; whoever writes to it, here or elsewhere, ends that."""
    path = tmp_path / "tidemill.db"
    store, other = SqliteStore(path), SqliteStore(path)
    await store.open()
    await other.open()
    await store.commit([Commit(stream=RUN, expected=0, records=(b"1",))])
    looks = counted(store)

    async def version(known: int) -> int:
        """What is seen by whoever knows so much, asked three times."""
        seen = {(await store.load({RUN: known}))[0].version for _ in range(3)}
        assert len(seen) == 1
        return seen.pop()

    assert await version(1) == 1
    assert looks() == 1, "the file was asked once, not three times"
    await store.commit([Commit(stream=RUN, expected=1, records=(b"2",))])
    assert await version(1) == 2
    assert await version(2) == 2
    await other.commit([Commit(stream=RUN, expected=2, records=(b"3",))])
    assert await version(2) == 3
    assert await version(3) == 3
    await store.forget(RUN)
    assert await version(3) == 0
    await other.commit([Commit(stream=RUN, expected=0, records=(b"anew",))])
    assert await version(0) == 1
    await other.forget(RUN)
    assert await version(1) == 0
    await other.close()
    await store.close()


async def test_a_store_that_is_opened_again_has_forgotten_what_it_knew(tmp_path: Path) -> None:
    """SQLite counts what others write for each connection, from the same number on."""
    path = tmp_path / "tidemill.db"
    store = SqliteStore(path)
    await store.open()
    await store.commit([Commit(stream=RUN, expected=0, records=(b"1",))])
    await store.load({RUN: 1})
    await store.close()
    await elsewhere(path, Commit(stream=RUN, expected=1, records=(b"2",)))
    await store.open()
    assert (await store.load({RUN: 1}))[0].records == (b"2",)
    await store.close()


def counted(store: SqliteStore) -> Callable[[], int]:
    """How often a stream has been looked for in the file, since this was last asked."""
    read, looks = store._read, list[str]()

    def watched(statement: str, *values: Any) -> Any:
        looks.extend([statement] if "FROM streams" in statement else [])
        return read(statement, *values)

    store._read = watched  # type: ignore[assignment]

    def told() -> int:
        count = len(looks)
        looks.clear()
        return count

    return told
