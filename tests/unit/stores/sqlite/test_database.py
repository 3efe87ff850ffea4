"""Migrations: numbered without a gap, applied once whoever comes first, and known by what they do."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable
from itertools import takewhile
from pathlib import Path

import apsw
import pytest

from tests.conformance.stores.harness import run
from tidemill.blobs.sqlite import DatabaseBlobs
from tidemill.errors import Rejected, StoreUnusable
from tidemill.stores.contract import Commit, Snapshot, Stream
from tidemill.stores.sql_files import Migration, migrations, pending, statements
from tidemill.stores.sqlite.database import connect, look, migrate, newest_known, steps, translate_error
from tidemill.stores.sqlite.store import SqliteStore

OPENED_AT_ONCE = 8
OPEN = """
import asyncio, sys
from tidemill.stores.sqlite.store import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    sys.stdin.readline()
    await store.open()
    await store.close()
asyncio.run(main())
"""


def migration(number: int, sql: str = "CREATE TABLE a (b);") -> Migration:
    return Migration(number=number, name=f"m{number}", sql=sql)


def test_migrations_are_numbered_without_a_gap() -> None:
    numbers = [each.number for each in migrations("sqlite")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert newest_known() == numbers[-1]


def test_a_checksum_is_of_the_statements() -> None:
    plain = migration(1)
    assert migration(1, "-- Words.\nCREATE TABLE a (b);\n\n  -- More words.\n").checksum == plain.checksum
    assert migration(1, "CREATE TABLE a (c);").checksum != plain.checksum


def test_what_is_pending() -> None:
    known = (migration(1), migration(2))
    assert pending(known, {}) == known
    assert pending(known, {1: known[0].checksum}) == known[1:]
    assert pending(known, {each.number: each.checksum for each in known}) == ()
    with pytest.raises(Rejected, match=r"^here\.db has schema 3.*store_newer"):
        pending(known, {1: known[0].checksum, 3: "x"}, "here.db")
    with pytest.raises(Rejected, match="store_schema_unknown"):
        pending(known, {1: "x"})
    with pytest.raises(Rejected, match=r"of here\.db lacks number 1, and has number 2.*store_damaged"):
        pending(known, {2: known[1].checksum}, "here.db")


def test_many_processes_make_a_new_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    command = [sys.executable, "-c", OPEN, str(path)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(OPENED_AT_ONCE)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"now\n")
        child.stdin.flush()
    for child in children:
        _, said = child.communicate(timeout=50)
        assert child.returncode == 0, said.decode()
    connection = connect(path, read_only=True)
    rows = connection.execute("SELECT number FROM migrations").fetchall()
    connection.close()
    assert rows == [(each.number,) for each in migrations("sqlite")]


async def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    broken = migration(newest_known() + 1, "CREATE TABLE fresh (a); CREATE TABLE streams (a);")
    monkeypatch.setattr("tidemill.stores.sqlite.database.migrations", lambda dialect: (*migrations(dialect), broken))
    connection = connect(path)
    with pytest.raises(Rejected, match="already exists"):
        migrate(connection, path)
    assert not connection.in_transaction
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    assert "fresh" not in tables
    assert [each.number for each in look(connection, path).pending] == [broken.number]
    connection.close()


def test_looking_creates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    assert [step.applied_ms for step in steps(path, dry_run=True)] == [None] * newest_known()
    assert not path.exists()
    assert all(step.applied_ms for step in steps(path, dry_run=False))
    assert all(step.applied_ms for step in steps(path, dry_run=True))


async def test_a_new_schema_is_noticed_within_the_transaction(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    other = apsw.Connection(str(store.path))
    other.execute("PRAGMA user_version = 77")
    other.close()
    with pytest.raises(Rejected, match="schema 77"):
        await store.commit([])
    await asyncio.sleep(0)
    await store.close()


async def test_a_new_schema_is_noticed_by_whoever_reads(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    blobs = DatabaseBlobs(store.path, connect, translate_error)
    await store.open()
    await blobs.open()
    await store.commit([Commit(stream=run("r"), expected=0, records=(b"one",))])
    other = apsw.Connection(str(store.path))
    other.execute(f"PRAGMA user_version = {newest_known() + 1}")
    for read in (store.find("t", "run"), store.count("t", "run"), store.streams("run"), store.live_processes()):
        await says_newer(read)
    for look_at in (store.jobs(run("r")), store.backlog(), store.load({run("r"): 0})):
        await says_newer(look_at)
    # Whoever looks without a transaction would take tables that were moved for lost ones, and throw the file away.
    other.execute("ALTER TABLE streams RENAME TO runs; ALTER TABLE blobs RENAME TO values_of_runs")
    other.close()
    await says_newer(store.load({run("r"): 1}))
    with pytest.raises(StoreUnusable, match="another version has migrated it"):
        await blobs.get("t", "0" * 64)
    await blobs.close()
    await store.close()


async def says_newer(read: Awaitable[object]) -> None:
    with pytest.raises(Rejected, match="another version has migrated it") as refusal:
        await read
    assert refusal.value.problems[0].code == "store_newer"


async def test_a_table_that_is_lost_is_damage(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    other = apsw.Connection(str(store.path))
    other.execute("DROP TABLE streams")
    other.close()
    with pytest.raises(Rejected, match="store_damaged"):
        await store.streams("run")
    await store.close()


async def test_without_its_list_of_migrations_a_store_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    steps(path, dry_run=False)
    other = apsw.Connection(str(path))
    other.execute("DROP TABLE migrations")
    other.close()
    for dry_run in (True, False):
        with pytest.raises(Rejected, match="list of its migrations is gone") as refusal:
            steps(path, dry_run=dry_run)
        assert refusal.value.problems[0].code == "store_damaged"


async def test_a_copy_gets_a_log_from_whoever_writes_first(tmp_path: Path) -> None:
    origin, path = tmp_path / "origin.db", tmp_path / "copy.db"
    steps(origin, dry_run=False)
    connection = apsw.Connection(str(origin))
    connection.execute("VACUUM INTO ?", (str(path),))
    connection.close()
    before = path.read_bytes()
    reading, aside, writing = (SqliteStore(path, presence_ms=0.0) for _ in range(3))
    for store in (reading, aside, writing):
        await store.open()
    assert await reading.streams("run") == []
    assert path.read_bytes() == before, "to look at it has changed it"
    await writing.commit([Commit(stream=run("r"), expected=0, records=(b"one",))])
    assert (tmp_path / "copy.db-wal").exists()
    assert await reading.streams("run") == [run("r")]
    await reading.commit([Commit(stream=run("s"), expected=0, records=(b"one",))])
    await asyncio.to_thread(asyncio.run, aside.renew([], 1_000))
    for store in (reading, aside, writing):
        await store.close()


def test_statements_are_found_by_name() -> None:
    found = statements("sqlite")
    assert found["counters"].startswith("SELECT")
    assert all(sql and not sql.endswith(";") and "\n" not in sql for sql in found.values())


def test_every_statement_is_one_that_the_schema_knows(tmp_path: Path) -> None:
    connection = connect(tmp_path / "a.db")
    migrate(connection, tmp_path / "a.db")
    # What is there only while places of rows are compared, or built anew.
    connection.execute(statements("sqlite")["make_expected"])
    connection.execute("CREATE TABLE rows_aside AS SELECT * FROM rows")
    for name, sql in statements("sqlite").items():
        numbered = {int(number) for number in re.findall(r"\?(\d+)", sql)}
        try:
            connection.execute(f"EXPLAIN {sql}", (0,) * (max(numbered, default=0) or sql.count("?"))).fetchall()
        except apsw.Error as error:
            raise AssertionError(f"{name}: {error}") from error
    connection.close()


async def test_snapshots_in_an_earlier_form_are_dropped(tmp_path: Path) -> None:
    """A reader of this version would take them for another form; the records say the same."""
    path, stream = tmp_path / "a.db", Stream("acme", "run", "r")
    store = SqliteStore(path)
    await store.open()
    await store.commit([Commit(stream=stream, expected=0, records=(b"1",), snapshot=Snapshot(version=1, body=b"old"))])
    await store.close()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 2; DELETE FROM migrations WHERE number > 2; DROP TABLE statement_tables")
    connection.close()
    await store.open()
    (tail,) = await store.load({stream: 0})
    assert (tail.version, tail.records, tail.snapshot) == (1, (b"1",), None)
    await store.close()


async def test_a_process_without_the_snapshot_format_refuses_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own way of reading snapshots would fail on every one that begins with a format byte."""
    path = tmp_path / "a.db"
    steps(path, dry_run=False)
    older = tuple(takewhile(lambda each: each.name != "snapshot_format", migrations("sqlite")))
    monkeypatch.setattr("tidemill.stores.sqlite.database.migrations", lambda _dialect: older)
    with pytest.raises(Rejected, match="has schema 6, and this version of Tidemill knows schemas up to 3") as refusal:
        await SqliteStore(path).open()
    assert refusal.value.code == "store_newer"


async def test_a_store_to_read_is_neither_made_nor_changed(tmp_path: Path) -> None:
    path = tmp_path / "mill.db"
    store = SqliteStore(path, read_only=True)
    with pytest.raises(Rejected) as refused:
        await store.open()
    assert refused.value.code == "store_missing" and not path.exists()
    made = SqliteStore(path)
    await made.open()
    await made.commit([Commit(run("a"), 0, (b"one",))])
    await made.close()
    before = path.read_bytes()
    await store.open()
    (tail,) = await store.load({run("a"): 0})
    assert tail.records == (b"one",)
    with pytest.raises(Rejected) as refused:
        await store.commit([Commit(run("a"), 1, (b"two",))])
    assert refused.value.code == "store_read_only"
    await store.close()
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["mill.db"]
