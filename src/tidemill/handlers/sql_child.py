"""The child process that executes statements on a SQLite file of the operator.

A built-in function of SQLite may take minutes and reacts to nothing, a statement may need any memory, and some pragmas
change the whole process: so a worker executes such statements here, and kills the process when their time is up, which
rolls them back. It starts quickly: of the package it imports only what has no imports of its own.
"""

from __future__ import annotations

import json
import math
import os
import resource
import socket
from collections.abc import Sequence
from typing import Any

import apsw

from tidemill.processes.supervisor import frame, read_frame, resident_mb

MEMORY_MB_MAX = 256
"""What SQLite may allocate for a statement, temporary tables and sorting included."""
PROCESS_MB_MAX = 2 * MEMORY_MB_MAX
RETIRE_MB = 128
"""A child that holds more after a statement is replaced."""
BUSY_MS = 5_000
ROWS_MAX = 10_000
ANSWER_BYTES_MAX = 4_194_304
FRAME_MAX = ANSWER_BYTES_MAX + 2 * ROWS_MAX
SQL_HINT = "try the statement manually with the same parameters"
MISSING_HINT = "add it to parameters"
NOTHING_ELSE = "read and change rows, or make, change and drop tables and indexes of the file"

_ALLOWED = {
    *(apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE, apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE),
    *(apsw.SQLITE_DELETE, apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_ALTER_TABLE),
    *(apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_REINDEX, apsw.SQLITE_ANALYZE),
}
_REASONS = {
    apsw.SQLITE_TRANSACTION: "the node itself begins, commits and rolls back",
    apsw.SQLITE_SAVEPOINT: "savepoints are not allowed",
    apsw.SQLITE_ATTACH: "other files cannot be attached",
    apsw.SQLITE_DETACH: "other files cannot be attached",
    apsw.SQLITE_PRAGMA: "pragmas are not allowed",
}
_FUNCTIONS_DENIED = ("load_extension", "fts3_tokenizer")
_PRAGMAS_ALLOWED = ("data_version",)
"""Full-text tables read it when they are searched."""

_TEMPORARY_SCHEMA = ("sqlite_temp_master", "sqlite_temp_schema")
"""SQLite looks there for what a renamed column or table concerns."""


class Refused(Exception):
    """Why a statement has no answer."""

    def __init__(self, code: str, message: str, hint: str = "", *, retryable: bool = False) -> None:
        super().__init__(message)
        self.fields = {"code": code, "message": message, "hint": hint, "retryable": retryable}


def main(wire: socket.socket) -> None:
    """Serve until the parent closes the wire."""
    wire.set_inheritable(False)
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, PROCESS_MB_MAX << 20)):
        resource.setrlimit(kind, (most, most))
    apsw.hard_heap_limit(MEMORY_MB_MAX << 20)
    wire.sendall(frame(b""))
    while (body := read_frame(wire)) is not None:
        try:
            answer = b"+" + execute(*json.loads(body))
        except Refused as refused:
            answer = b"-" + json.dumps(refused.fields).encode()
        wire.sendall(frame((b"r" if resident_mb() > RETIRE_MB else b"k") + answer))


def execute(path: str, text: str, parameters: Any) -> bytes:
    """Execute a statement in a transaction; returns the JSON text of its answer."""
    try:
        # Each statement opens the file: it may be replaced at any time, and no statement leaves anything to the next.
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    except apsw.CantOpenError:
        name = path.rpartition("/")[2]
        if not os.path.exists(path):
            hint = "create the database first: a node opens only a file that exists"
            raise Refused("database_unavailable", f"there is no file {name}", hint, retryable=True) from None
        raise Refused("database_unavailable", f"{name} cannot be opened", retryable=True) from None
    try:
        connection.set_busy_timeout(BUSY_MS)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.execute("PRAGMA temp_store = MEMORY")
        with connection:
            answer = _answer(connection, text, parameters)
    except apsw.BusyError as error:
        raise Refused("database_busy", str(error), retryable=True) from error
    except (apsw.NoMemError, MemoryError):
        message = f"it needs more than {MEMORY_MB_MAX} MiB of memory"
        raise Refused("sql_failed", message, "ask for less, or do it in parts") from None
    except apsw.Error as error:
        raise Refused("sql_failed", str(error), SQL_HINT) from error
    finally:
        connection.close()
    return answer


def _why_denied(operation: int, first: str | None, second: str | None, schema: str | None) -> str:
    """Why an operation is denied; empty if it is allowed."""
    if operation == apsw.SQLITE_FUNCTION:
        return f"the function {second} is not allowed" if str(second).lower() in _FUNCTIONS_DENIED else ""
    if operation == apsw.SQLITE_PRAGMA and first in _PRAGMAS_ALLOWED and second is None:
        return ""
    if operation not in _ALLOWED:
        return _REASONS.get(operation, "only tables and indexes can be created, and only rows changed")
    if schema in (None, "main") or str(first) in _TEMPORARY_SCHEMA:
        return ""
    return "only the file's own tables can be used, and no temporary ones"


def _answer(connection: apsw.Connection, text: str, parameters: Any) -> bytes:
    columns: list[tuple[str, ...]] = []
    reasons: list[str] = []

    def allowed(operation: int, first: str | None, second: str | None, schema: str | None, _by: str | None) -> int:
        reason = _why_denied(operation, first, second, schema)
        if reason:
            reasons.append(reason)
        return apsw.SQLITE_DENY if reason else apsw.SQLITE_OK

    def traced(cursor: apsw.Cursor, _text: str, _bound: Any) -> bool:
        columns.append(tuple(column[0] for column in cursor.get_description()))
        if len(set(columns[0])) < len(columns[0]):
            raise Refused("sql_failed", "two columns have one name", "rename one of them with AS")
        return len(columns) == 1

    before = connection.total_changes()
    cursor = connection.cursor()
    cursor.exec_trace = traced
    connection.authorizer = allowed
    rows: list[str] = []
    size = 0
    try:
        for row in cursor.execute(text, parameters, can_cache=False):
            rows.append(_row(columns[0], row))
            size += len(rows[-1].encode())
            if len(rows) > ROWS_MAX or size > ANSWER_BYTES_MAX:
                message = f"it returns more than {ROWS_MAX} rows or {ANSWER_BYTES_MAX} bytes"
                raise Refused("sql_answer_too_large", message, "ask for less, with WHERE or LIMIT")
    except apsw.ExecTraceAbort:
        raise Refused("sql_failed", "more than one statement was given") from None
    except KeyError as error:
        raise Refused("sql_failed", f"the parameter {error.args[0]!r} is missing", MISSING_HINT) from None
    except (OverflowError, TypeError, ValueError) as error:
        raise Refused("sql_failed", f"a parameter cannot be bound: {error}") from error
    except (apsw.AuthError, apsw.SQLError) as error:
        raise Refused("sql_failed", *((reasons[0], NOTHING_ELSE) if reasons else (str(error), SQL_HINT))) from error
    finally:
        # The end of the transaction is not the statement's.
        connection.authorizer = None
        cursor.close()
    changed = connection.total_changes() - before
    return f'{{"rows":[{",".join(rows)}],"count":{len(rows)},"changed":{changed}}}'.encode()


def _row(columns: Sequence[str], values: Sequence[Any]) -> str:
    for name, value in zip(columns, values, strict=True):
        if isinstance(value, bytes):
            message = f"the column {name} holds bytes, which JSON cannot represent"
            raise Refused("sql_failed", message, f"ask for hex({name})")
        if isinstance(value, float) and not math.isfinite(value):
            raise Refused("sql_failed", f"the column {name} holds a number that JSON cannot represent")
    return json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False, separators=(",", ":"))
