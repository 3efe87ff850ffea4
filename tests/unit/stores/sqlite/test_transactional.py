"""Statements that come along with a commit: both happen or neither does."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec
import pytest

from tests.conformance.stores.harness import RUN
from tidemill.errors import Rejected
from tidemill.stores.contract import (
    Commit,
    CommitResult,
    Committed,
    LeasesLost,
    Statement,
    StatementRefused,
    VersionConflict,
)
from tidemill.stores.memory import MemoryStore
from tidemill.stores.sqlite import transactional
from tidemill.stores.sqlite.store import SqliteStore

INSERT = Statement(text="INSERT INTO mine (n) VALUES (?) RETURNING n", parameters=b"[7]", shared=("mine",))


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
    statement = await store.dry_run(INSERT)
    assert statement.answer == b'{"rows":[{"n":7}],"count":1,"changed":1}'
    assert mine(tmp_path) == [], "a rehearsal leaves nothing behind"
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
        (msgspec.structs.replace(INSERT, parameters=b"[8]", answer=b'{"rows":[{"n":7}],"count":1,"changed":1}'), True),
        (
            msgspec.structs.replace(
                INSERT, text="INSERT INTO mine VALUES (random()) RETURNING n", answer=b'{"rows":[{"n":7}]}'
            ),
            False,
        ),
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
        with pytest.raises(Rejected, match="internal table of the store"):
            await store.dry_run(Statement(text=text))
    await store.close()


async def test_a_store_without_a_language_refuses() -> None:
    (result,) = await MemoryStore().commit([Commit(stream=RUN, expected=0, records=(b"a",), statements=(INSERT,))])
    assert isinstance(result, StatementRefused)


async def did(store: SqliteStore, owner: str, text: str, *shared: str) -> CommitResult:
    """Commit one statement of a workflow to a stream of its own."""
    stream = RUN._replace(key=f"{owner}: {text}")
    statement = Statement(text=text, owner=owner, shared=shared)
    (result,) = await store.commit([Commit(stream=stream, expected=0, records=(b"a",), statements=(statement,))])
    return result


def said(result: CommitResult) -> str:
    assert isinstance(result, StatementRefused)
    return result.message


async def test_a_table_belongs_to_the_workflow_that_made_it(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    assert isinstance(await did(store, "alice", "CREATE TABLE ledger (id TEXT PRIMARY KEY, n UNIQUE)"), Committed)
    for text in (
        "SELECT * FROM ledger",
        "INSERT INTO ledger (n) VALUES (1)",
        "DROP TABLE ledger",
        "SELECT count(*) FROM LEDGER l",
    ):
        message = said(await did(store, "mallory", text))
        assert message.startswith("the table ledger belongs to the workflow alice")
        assert message.endswith('tidemill.toml: `ledger = ["mallory"]` under `[sql.tables]`')
    assert isinstance(await did(store, "audit", "INSERT INTO ledger (n) VALUES (1)", "ledger"), Committed)
    for owner in ("audit", "alice"):
        assert "only the store's own file" in said(
            await did(store, owner, "ALTER TABLE ledger RENAME TO book", "ledger")
        )
    assert isinstance(await did(store, "alice", "DROP TABLE ledger"), Committed)
    assert isinstance(await did(store, "mallory", "CREATE TABLE ledger (n)"), Committed)
    assert "belongs to the workflow mallory" in said(await did(store, "alice", "SELECT * FROM ledger"))
    await store.close()


async def test_a_table_is_made_of_another_only_by_who_may_read_it(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    assert isinstance(await did(store, "alice", "CREATE TABLE a (n PRIMARY KEY)"), Committed)
    assert isinstance(await did(store, "alice", "CREATE TABLE b AS SELECT n FROM a"), Committed)
    for text in ("CREATE TABLE c AS SELECT n FROM a", "CREATE TABLE c AS SELECT count(*) FROM a"):
        assert "belongs to the workflow alice" in said(await did(store, "mallory", text))
    # Nothing is made of what is there; it stays the other's.
    assert isinstance(await did(store, "mallory", "CREATE TABLE IF NOT EXISTS a AS SELECT * FROM a"), Committed)
    assert "belongs to the workflow alice" in said(await did(store, "mallory", "SELECT * FROM a"))
    await store.close()


async def test_a_table_that_no_workflow_made_becomes_nobodys(tmp_path: Path) -> None:
    """The operator made it, or an earlier version that kept no owners; making another table does not take it over."""
    store = await opened(tmp_path)
    assert isinstance(await did(store, "mallory", "CREATE TABLE other (n)"), Committed)
    message = said(await did(store, "mallory", "SELECT * FROM mine"))
    assert message.startswith("the table mine was not created by a workflow")
    assert message.endswith('`mine = ["mallory"]` under `[sql.tables]`')
    assert isinstance(await did(store, "mallory", "SELECT * FROM mine", "mine"), Committed)
    await store.close()


@pytest.mark.parametrize(
    "called",
    [
        *(
            f"{name}({value}, {part})"
            for name in ("trim", "ltrim", "rtrim", "instr")
            for value, part in (
                ("'xxaxbx'", "'x'"),
                ("'xyaxbyx'", "'yx'"),
                ("'xx'", "'x'"),
                ("''", "'x'"),
                ("'a'", "''"),
                ("'äaä'", "'ä'"),
                ("NULL", "'x'"),
                ("'x'", "NULL"),
                ("717", "7"),
            )
        ),
        "trim(x'2061', ' ')",
        "replace(x'6162', 'b', 'c')",
        "replace('aaa', 'a', '')",
        "x'6162' LIKE 'A%'",
        "trim('  a ')",
    ],
)
async def test_functions_of_ours_answer_like_those_of_sqlite(tmp_path: Path, called: str) -> None:
    store = await opened(tmp_path)
    try:
        answer = (await store.dry_run(Statement(text=f"SELECT {called} AS n", parameters=b"[]"))).answer
    finally:
        await store.close()
    ((wanted,),) = apsw.Connection(":memory:").execute(f"SELECT {called}").fetchall()
    assert msgspec.json.decode(answer)["rows"] == [{"n": wanted}]


async def test_functions_of_ours_look_at_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself looks only where a loop ends, and a statement may have no loop."""
    store = await opened(tmp_path)
    monkeypatch.setattr(transactional, "TIME_MAX_MS", 0)
    try:
        with pytest.raises(Rejected, match="it takes more than 0 ms"):
            await store.dry_run(Statement(text="SELECT 'a' LIKE 'b' AS n", parameters=b"[]"))
        assert (await store.dry_run(Statement(text="SELECT 1 AS n", parameters=b"[]"))).answer
    finally:
        await store.close()
