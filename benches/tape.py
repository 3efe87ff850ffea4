"""The floor of a workload on SQLite: what the store wrote, recorded once, written again by a bare loop.

A tape holds every statement of every transaction that changed a row, with its values and whether the commit
was synced. Playing it on a copy of the file as it was is the least that anybody can do who writes the same
rows in the same batches: no engine, no reading, no thread, no event loop.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from tidemill.engine.engine import Engine
from tidemill.stores.sqlite.database import connect
from tidemill.stores.sqlite.store import SqliteStore

FOLDER = Path(".bench")
"""Files are made here and not in the system's folder for such, which is often in memory and syncs nothing."""
COMPARED = ("streams", "records", "jobs", "rows", "terms")

Statement = tuple[str, Any]


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on a disk, for as long as it is needed."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=FOLDER.resolve()) as made:
        yield Path(made)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements that were committed together."""

    synchronous: str
    statements: list[Statement]

    @property
    def commits(self) -> int:
        """How many commits of runs shared it."""
        return sum(1 for sql, _ in self.statements if sql.startswith("INSERT INTO records"))


@dataclass(frozen=True, slots=True)
class Tape:
    """What was written, and the file on which it was."""

    base: Path
    transactions: list[Transaction]

    @property
    def batches(self) -> list[int]:
        """Commits per transaction, of those that have any."""
        return [each.commits for each in self.transactions if each.commits]

    @property
    def synced(self) -> int:
        """How many transactions waited for the disk."""
        return sum(1 for each in self.transactions if each.synchronous == "FULL")

    def words(self) -> str:
        """Its size in one line."""
        batches = self.batches
        statements = sum(len(each.statements) for each in self.transactions)
        return (
            f"{len(self.transactions)} transactions, {self.synced} of them synced, {statements:,} statements;"
            f" commits per transaction: mean {statistics.mean(batches):.1f}, median {statistics.median(batches):g},"
            f" most {max(batches)}"
        )


@dataclass(slots=True)
class Listener:
    """Hears every statement of a connection before it is executed."""

    synchronous: str
    transactions: list[Transaction] = field(default_factory=list)
    open: list[Statement] = field(default_factory=list)

    def hear(self, cursor: apsw.Cursor, sql: str, values: Any) -> bool:
        """Write down what writes; a transaction that is rolled back never was."""
        match sql.split(maxsplit=1)[0]:
            case "PRAGMA" if "synchronous" in sql:
                self.synchronous = sql.split()[-1]
            case "BEGIN" | "ROLLBACK":
                self.open = []
            case "COMMIT":
                self.transactions.append(Transaction(self.synchronous, self.open))
            case "INSERT" | "UPDATE" | "DELETE":
                self.open.append((sql, values))
        return True


class Recording:
    """Listens to an engine's store from now on, until `stop`."""

    def __init__(self, engine: Engine, place: Path) -> None:
        store = engine._store
        assert isinstance(store, SqliteStore) and store._writer is not None
        self._file, self._place, self._connection = store.path, place, store._writer._connection
        # Nothing is awaited between the copy and the first statement that is heard.
        self._base = snapshot(store.path, place / "base.db")
        self._listener = Listener(store._writer._synchronous)
        self._connection.set_exec_trace(self._listener.hear)

    def stop(self) -> Tape:
        """The tape, cleared of statements that changed nothing, after proof that it leads to the same rows."""
        self._connection.set_exec_trace(None)
        reached = snapshot(self._file, self._place / "reached.db")
        copy = self._place / "proof.db"
        tape = Tape(self._base, _effective(self._listener.transactions, _copy(self._base, copy)))
        _same_tables(copy, reached)
        return tape


def snapshot(file: Path, into: Path) -> Path:
    """A copy of a file that is in use."""
    connection = apsw.Connection(str(file))
    connection.execute("VACUUM INTO ?", (str(into),))
    connection.close()
    return into


def _copy(base: Path, into: Path) -> Path:
    shutil.copyfile(base, into)
    return into


def _bare(file: Path) -> apsw.Connection:
    """A connection with the settings of the store. The log is not moved, so nothing but writing is measured."""
    connection = connect(file)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def _effective(transactions: list[Transaction], file: Path) -> list[Transaction]:
    connection = _bare(file)
    kept: list[Transaction] = []
    for each in transactions:
        connection.execute("BEGIN IMMEDIATE")
        statements = []
        for statement in each.statements:
            before = connection.total_changes()
            connection.execute(*statement)
            if connection.total_changes() != before:
                statements.append(statement)
        connection.execute("COMMIT")
        if statements:
            kept.append(Transaction(each.synchronous, statements))
    connection.close()
    return kept


def _same_tables(one: Path, other: Path) -> None:
    connection = apsw.Connection(str(one))
    connection.execute("ATTACH ? AS other", (str(other),))
    for table in COMPARED:
        for here, there in (("main", "other"), ("other", "main")):
            sql = f"SELECT count(*) FROM (SELECT * FROM {here}.{table} EXCEPT SELECT * FROM {there}.{table})"
            ((differing,),) = connection.execute(sql).fetchall()
            assert not differing, f"{differing} rows of {table} are only in {here}"
    connection.close()


def play(tape: Tape, place: Path) -> float:
    """Seconds that a bare loop needs for a tape."""
    return sum(played(tape, place))


def played(tape: Tape, place: Path) -> Iterator[float]:
    """Play one transaction of a tape at a time, and give the seconds it took."""
    file = _copy(tape.base, place / "floor.db")
    connection = _bare(file)
    execute, synchronous = connection.cursor().execute, ""
    for transaction in tape.transactions:
        begun = time.perf_counter()
        if transaction.synchronous != synchronous:
            synchronous = transaction.synchronous
            execute(f"PRAGMA synchronous = {synchronous}")
        execute("BEGIN IMMEDIATE")
        for sql, values in transaction.statements:
            execute(sql, values)
        execute("COMMIT")
        yield time.perf_counter() - begun
    connection.close()
    file.unlink()


def sync_ms(place: Path, times: int = 200) -> float:
    """Milliseconds of one sync of the disk behind 8 KiB that were appended, without a database."""
    handle = os.open(place / "synced", os.O_WRONLY | os.O_CREAT)
    took = []
    for _ in range(times):
        os.write(handle, bytes(8192))
        begun = time.perf_counter()
        os.fdatasync(handle)
        took.append(time.perf_counter() - begun)
    os.close(handle)
    return statistics.median(took) * 1000
