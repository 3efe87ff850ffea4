"""Bringing a file to the schema that this code knows, and refusing one that it cannot serve."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from tidemill.errors import Rejected, rejected
from tidemill.stores.migrate import Migration, Step, migrations, pending
from tidemill.stores.sqlite.file import APPLICATION_ID, DIALECT, check_place, connect, errors_of, migrated
from tidemill.stores.sqlite.holders import Holders

_LEDGER = """CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_ms INTEGER NOT NULL
)"""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """What a file has, and what it lacks."""

    applied: tuple[int, ...]
    pending: tuple[Migration, ...]

    @property
    def newest(self) -> int:
        return max((*self.applied, *(each.number for each in self.pending)), default=0)


def look(connection: apsw.Connection, path: Path) -> Schema:
    """What the file is; refuses one that is not ours, or not one that this code can serve, and then leaves it alone."""
    try:
        return _look(connection, path)
    except Rejected:
        # Whoever closes a file last moves its log into it, also the log of another program that was killed.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        raise


def _look(connection: apsw.Connection, path: Path) -> Schema:
    with errors_of(path):
        marked = connection.pragma("application_id")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if tables and marked != APPLICATION_ID:
            raise rejected(
                "store_foreign",
                f"{path} is a SQLite database of another program",
                hint="name another file: this one was not touched",
            )
        applied: dict[int, str] = {}
        if "migrations" in tables:
            rows: list[Any] = connection.execute("SELECT number, checksum FROM migrations").fetchall()
            applied = dict(rows)
        if tables and not applied:
            # The first migration and the list come in one transaction.
            raise apsw.CorruptError("the list of its migrations is gone")
    return Schema(applied=tuple(sorted(applied)), pending=pending(migrations(DIALECT), applied, path))


def refuse_migrated(execute: Callable[..., Any], path: Path | str, schema: int) -> None:
    """Refuse to read or write a file that another version has migrated meanwhile.

    Asked within every transaction: it is a look at the first page, which is at hand.
    """
    ((found,),) = execute("PRAGMA user_version").fetchall()
    if found != schema:
        raise migrated(path, found, schema)


def newest_known() -> int:
    """The schema that this code serves."""
    return migrations(DIALECT)[-1].number


def migrate(connection: apsw.Connection, path: Path) -> tuple[Migration, ...]:
    """Apply what is pending, in one transaction; two processes at once apply it once."""
    with errors_of(path):
        # A file that is refused is not touched: even the mode of its log is a part of it. And one that is up to date
        # is not locked: whoever only reads must not wait for a writer that was stopped. Nor is a copy without a log
        # given one: that is for whoever writes to it first.
        if not look(connection, path).pending:
            return ()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Looked at again behind the lock: somebody else may have been faster.
            schema = look(connection, path)
            todo = schema.pending
            if todo and schema.applied:
                _refuse_in_use(connection, path)
            if todo:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(_LEDGER)
            for each in todo:
                connection.execute(each.sql)
                row = (each.number, each.name, each.checksum, time.time_ns() // 1_000_000)
                connection.execute("INSERT INTO migrations VALUES (?, ?, ?, ?)", row)
                connection.execute(f"PRAGMA user_version = {each.number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with suppress(apsw.Error):
                    connection.execute("ROLLBACK")
            raise
    return todo


def steps(path: Path, *, dry_run: bool) -> tuple[Step, ...]:
    """The migrations of a file, once what is pending has been applied; with `dry_run` nothing is, or even created."""
    check_place(path)
    if dry_run and not path.exists():
        return tuple(Step(number=each.number, name=each.name, applied_ms=None) for each in migrations(DIALECT))
    connection = connect(path, read_only=dry_run)
    try:
        if not dry_run:
            migrate(connection, path)
        schema = look(connection, path)
        with errors_of(path):
            known = "SELECT number, name, applied_ms FROM migrations ORDER BY number"
            rows: list[Any] = connection.execute(known).fetchall() if schema.applied else []
    finally:
        connection.close()
    done = [Step(number=number, name=name, applied_ms=applied_ms) for number, name, applied_ms in rows]
    return (*done, *(Step(number=each.number, name=each.name, applied_ms=None) for each in schema.pending))


def _refuse_in_use(connection: apsw.Connection, path: Path) -> None:
    """A process that knows an older schema must not find itself on a newer one."""
    holders = Holders(path)
    found: list[Any] = connection.execute("SELECT id, name FROM holders").fetchall()
    names = [name for holder, name in found if holders.is_alive(holder)]
    if names:
        raise rejected(
            "store_in_use",
            f"{path} has to be migrated, and is in use by {', '.join(names)}",
            hint="stop them, then repeat this: nothing was changed",
        )
