"""Migrations: numbered without a gap, applied once whoever comes first, and known by what they do."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tidemill.errors import Rejected
from tidemill.stores.contract import Commit, Snapshot, Stream
from tidemill.stores.migrate import Migration, migrations, pending
from tidemill.stores.sqlite.file import connect
from tidemill.stores.sqlite.schema import look, migrate, newest_known, steps
from tidemill.stores.sqlite.store import SqliteStore
from tidemill.stores.statements import statements

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
    with pytest.raises(Rejected, match="store_newer"):
        pending(known, {1: known[0].checksum, 3: "x"})
    with pytest.raises(Rejected, match="store_schema_unknown"):
        pending(known, {1: "x"})


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
    monkeypatch.setattr("tidemill.stores.sqlite.schema.migrations", lambda dialect: (*migrations(dialect), broken))
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


# Statements


def test_statements_are_found_by_name() -> None:
    found = statements("sqlite")
    assert found["counters"].startswith("SELECT")
    assert all(sql and not sql.endswith(";") and "\n" not in sql for sql in found.values())


def test_every_statement_is_one_that_the_schema_knows(tmp_path: Path) -> None:
    connection = connect(tmp_path / "a.db")
    migrate(connection, tmp_path / "a.db")
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
    connection.execute("PRAGMA user_version = 2; DELETE FROM migrations WHERE number > 2")
    connection.close()
    await store.open()
    (tail,) = await store.load({stream: 0})
    assert (tail.version, tail.records, tail.snapshot) == (1, (b"1",), None)
    await store.close()
