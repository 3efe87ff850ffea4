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
