"""Statements that come along with a commit: both happen or neither does."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tests.conformance.stores.harness import RUN
from tidemill.errors import Rejected
from tidemill.stores.contract import Commit, Committed, LeasesLost, Statement, StatementRefused, VersionConflict
from tidemill.stores.memory import MemoryStore
from tidemill.stores.sqlite.store import SqliteStore

INSERT = Statement(text="INSERT INTO mine (n) VALUES (?) RETURNING n", parameters=b"[7]")


async def opened(folder: Path) -> SqliteStore:
    store = SqliteStore(folder / "a.db")
    await store.open()
    connection = apsw.Connection(str(folder / "a.db"))
    connection.execute("CREATE TABLE mine (n INTEGER)")
    connection.close()
    return store


def mine(folder: Path) -> list[tuple[int]]:
    connection = apsw.Connection(str(folder / "a.db"))
    try:
        return connection.execute("SELECT n FROM mine").fetchall()
    finally:
        connection.close()


async def test_both_happen(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    answer = await store.dry_run(INSERT)
    assert answer == b'{"rows":[{"n":7}],"count":1,"changed":1}'
    assert mine(tmp_path) == [], "a rehearsal leaves nothing behind"
    statement = Statement(text=INSERT.text, parameters=INSERT.parameters, answer=answer)
    (result,) = await store.commit([Commit(stream=RUN, expected=0, records=(b"a",), statements=(statement,))])
    assert isinstance(result, Committed)
    assert mine(tmp_path) == [(7,)]
    await store.close()


@pytest.mark.parametrize(
    ("commit", "refusal"),
    [
        (Commit(stream=RUN, expected=3, records=(b"a",), statements=(INSERT,)), VersionConflict),
        (Commit(stream=RUN, expected=0, records=(b"a",), acks=(("j", 9),), statements=(INSERT,)), LeasesLost),
    ],
)
async def test_a_refused_commit_takes_its_statement_along(
    tmp_path: Path, commit: Commit, refusal: type[object]
) -> None:
    store = await opened(tmp_path)
    # One that is not refused shares the transaction.
    other = Commit(stream=RUN._replace(key="other"), expected=0, records=(b"x",), statements=(INSERT,))
    first, second = await store.commit([commit, other])
    assert isinstance(first, refusal) and isinstance(second, Committed)
    assert mine(tmp_path) == [(7,)]
    await store.close()


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        (Statement(text="INSERT INTO nowhere VALUES (1)"), False),
        (Statement(text=INSERT.text, parameters=b"[8]", answer=b'{"rows":[{"n":7}],"count":1,"changed":1}'), True),
        (Statement(text="INSERT INTO mine VALUES (random()) RETURNING n", answer=b'{"rows":[{"n":7}]}'), False),
    ],
)
async def test_a_refused_statement_takes_its_commit_along(tmp_path: Path, statement: Statement, changed: bool) -> None:
    store = await opened(tmp_path)
    commit = Commit(stream=RUN, expected=0, records=(b"a",), statements=(INSERT, statement))
    (result,) = await store.commit([commit])
    assert isinstance(result, StatementRefused) and result.changed is changed
    assert mine(tmp_path) == []
    (tail,) = await store.load({RUN: 0})
    assert tail.version == 0
    # The store's own statements work as before.
    (result,) = await store.commit([Commit(stream=RUN, expected=0, records=(b"a",))])
    assert isinstance(result, Committed)
    await store.close()


async def test_the_tables_of_the_store_are_out_of_reach_also_after_it_has_used_them(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.commit([Commit(stream=RUN, expected=0, records=(b"a",))])
    for text in ("SELECT * FROM records", "DELETE FROM counters", "UPDATE streams SET version = 9"):
        with pytest.raises(Rejected, match="store's own"):
            await store.dry_run(Statement(text=text))
    await store.close()


async def test_a_store_without_a_language_refuses() -> None:
    (result,) = await MemoryStore().commit([Commit(stream=RUN, expected=0, records=(b"a",), statements=(INSERT,))])
    assert isinstance(result, StatementRefused)
