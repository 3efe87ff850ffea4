"""SQLite files of the operator's, for the node type `sql`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw

from tidemill.handlers.contract import Cancelled, Fail
from tidemill.handlers.sql_databases import MISSING_HINT, SQL_HINT, Gathered, Parameters, bound
from tidemill.handlers.sql_text import Dialect

BUSY_MS = 5_000
PROGRESS_STEPS = 10_000


class SqliteDatabase:
    """A SQLite file. It must exist: a statement never makes a new one."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(self, text: str, parameters: Parameters) -> Any:
        """Do a statement, in a thread."""
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self._done, text, parameters, stop)
        finally:
            # Whoever was cancelled while he waited leaves no statement behind that goes on without him.
            stop.set()

    async def close(self) -> None:
        """Do nothing: a file is opened for each statement, because files come and go."""

    def _done(self, text: str, parameters: Parameters, stop: threading.Event) -> Any:
        try:
            connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
        except apsw.CantOpenError:
            raise Fail("database_unavailable", f"{self._path.name} cannot be opened", retryable=True) from None
        try:
            connection.set_busy_timeout(BUSY_MS)
            connection.set_progress_handler(stop.is_set, PROGRESS_STEPS)
            with connection:
                answer = _answer(connection, text, parameters)
                if stop.is_set():
                    raise Cancelled("nobody waits for the statement any more")
                return answer
        except apsw.BusyError as error:
            raise Fail("database_busy", str(error), retryable=True) from error
        except apsw.Error as error:
            raise Fail("sql_failed", str(error), hint=SQL_HINT) from error
        finally:
            connection.close()


def _answer(connection: apsw.Connection, text: str, parameters: Parameters) -> Any:
    gathered = Gathered("hex({})")
    seen: list[None] = []

    def traced(cursor: apsw.Cursor, _text: str, _bound: Any) -> bool:
        seen.append(None)
        if len(seen) == 1:
            gathered.head([column[0] for column in cursor.get_description()])
        return len(seen) == 1

    before = connection.total_changes()
    cursor = connection.cursor()
    cursor.exec_trace = traced
    try:
        for row in cursor.execute(text, bound(parameters)):
            gathered.add(row)
    except apsw.ExecTraceAbort:
        raise Fail("sql_failed", "there is more than one statement") from None
    except KeyError as error:
        raise Fail("sql_failed", f"the parameter {error.args[0]!r} is missing", hint=MISSING_HINT) from None
    except (OverflowError, TypeError, ValueError) as error:
        raise Fail("sql_failed", f"a parameter cannot be bound: {error}") from error
    return gathered.answer(connection.total_changes() - before)
