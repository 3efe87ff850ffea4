"""A second way to write, for threads that may wait: leases are renewed from one, whatever the loop is busy with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import apsw

from tidemill.stores.sqlite.file import Presence, connect, errors_of
from tidemill.stores.sqlite.schema import refuse_migrated
from tidemill.stores.sqlite.writer import Operation, Transaction

T = TypeVar("T")


class Aside:
    """A connection of its own, made when it is first needed; threads use it one after the other."""

    def __init__(self, path: Path, clock: Callable[[], int], schema: int, presence: Presence) -> None:
        self._path, self._clock, self._schema, self._presence = path, clock, schema, presence
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None

    def write(self, operation: Operation[T], *, durable: bool) -> tuple[T, Transaction]:
        """Do an operation in a transaction of its own; answers its result, and whom it must wake."""
        with self._lock, errors_of(self._path):
            self._presence.check()
            connection = self._connected()
            execute = connection.cursor().execute
            execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            execute("BEGIN IMMEDIATE")
            try:
                refuse_migrated(execute, self._path, self._schema)
                tx = Transaction(connection, execute, self._clock())
                result = operation(tx)
                tx.finish()
                execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    with suppress(apsw.Error):
                        execute("ROLLBACK")
                raise
        return result, tx

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connected(self) -> apsw.Connection:
        if self._connection is None:
            self._connection = connect(self._path, create=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
        return self._connection
