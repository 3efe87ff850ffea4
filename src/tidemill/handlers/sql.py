"""Node type `sql`: one parameterised statement, on the store that holds the run or on a database of the operator's.

On the run's own store the statement is done in the transaction that records the node's result, so it happens exactly
once: it is rehearsed here to learn its answer, and the commit does it for good. Elsewhere it is done like any other
effect, at least once; a statement that is handed `:effect_key` can tell repetitions apart.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import apsw
import msgspec

from tidemill.errors import Rejected, Unavailable
from tidemill.handlers.contract import Cancelled, Ended, Fail, Handler, NodeContext, Return
from tidemill.kernel.model import Flaw, Json, NodeType
from tidemill.stores.contract import Rehearsing, Statement

STORE = "store"
"""The name of the run's own store."""
ROWS_MAX = 10_000
ANSWER_BYTES_MAX = 4_194_304
BUSY_MS = 5_000
PROGRESS_STEPS = 10_000
EFFECT_KEY = "effect_key"
_SQL_HINT = "try the statement by hand with the same parameters"

Parameters = list[Any] | dict[str, Any]


class Database(Protocol):
    """A database of the operator's."""

    def run(self, text: str, parameters: Parameters, stop: threading.Event) -> Any:
        """Do a statement in a transaction of its own, in a thread; answers `{rows, count, changed}`.

        When `stop` is set, it is given up and nothing of it remains.
        """
        ...


class SqliteDatabase:
    """A SQLite file. It must exist: a statement never makes a new one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def run(self, text: str, parameters: Parameters, stop: threading.Event) -> Any:
        """Do a statement; the file is opened for it, because files come and go."""
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
            raise Fail("sql_failed", str(error), hint=_SQL_HINT) from error
        finally:
            connection.close()


def sql_handler(databases: Mapping[str, Database], own: Rehearsing | None = None, *, has_own: bool = True) -> Handler:
    """The node type over the databases that an operator has named; `own` is the store, if it takes statements.

    Whoever only checks documents has no store, and says whether there would be one (`has_own`).
    """

    async def call(context: NodeContext) -> Ended:
        config: dict[str, Any] = context.config
        name, text = config.get("database", STORE), config["statement"]
        parameters = _parameters(config, context)
        if name == STORE:
            return await _rehearsed(own, Statement(text=text, parameters=msgspec.json.encode(parameters)))
        database = databases.get(name)
        if database is None:
            raise Fail("database_unknown", f"there is no database {name}", hint=_hint(databases))
        stop = threading.Event()
        try:
            return Return(await asyncio.to_thread(database.run, text, parameters, stop))
        finally:
            # Whoever was cancelled while he waited leaves no statement behind that goes on without him.
            stop.set()

    def flaws(config: Json) -> Iterator[Flaw]:
        name = config.get("database", STORE)
        if not isinstance(name, str) or "{" in name:
            return
        if name == STORE and not has_own:
            yield Flaw("/database", "this store takes no statements", "name a database, or use a store with SQL")
        elif name != STORE and name not in databases:
            yield Flaw("/database", f'there is no database "{name}"', _hint(databases))

    return Handler(msgspec.structs.replace(SQL, check=flaws), call)


SQL = NodeType(
    name="sql",
    title="SQL statement",
    icon="database",
    description="Does one parameterised statement; on the run's own store exactly once.",
    secret_fields=("parameters",),
    config_schema={
        "type": "object",
        "properties": {
            "database": {"type": "string", "minLength": 1},
            "statement": {"type": "string", "minLength": 1, "maxLength": 65_536},
            "parameters": {"anyOf": [{"type": "array"}, {"type": "object"}]},
        },
        "required": ["statement"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {"rows": {"type": "array"}, "count": {"type": "integer"}, "changed": {"type": "integer"}},
        "required": ["rows", "count", "changed"],
    },
)


async def _rehearsed(own: Rehearsing | None, statement: Statement) -> Return:
    if own is None:
        raise Fail("database_unknown", "this store takes no statements", hint="name a database")
    try:
        answer = await own.rehearse(statement)
    except Rejected as refused:
        raise Fail("sql_failed", refused.problems[0].message, hint=refused.problems[0].hint or _SQL_HINT) from refused
    except Unavailable as error:
        raise Fail("database_unavailable", str(error), retryable=True) from error
    return Return(msgspec.json.decode(answer), statement=msgspec.structs.replace(statement, answer=answer))


def _parameters(config: Mapping[str, Any], context: NodeContext) -> Parameters:
    """What is bound: a list by position, or an object by name, which then also has the effect key."""
    given = config.get("parameters")
    if isinstance(given, list):
        return given
    named = dict(given or {})
    return named | {EFFECT_KEY: context.effect_key} if f":{EFFECT_KEY}" in config["statement"] else named


def _hint(databases: Mapping[str, Database]) -> str:
    known = ", ".join(sorted([STORE, *databases]))
    return f"known: {known}; an operator names one as TIDEMILL_DATABASE_NAME=sqlite:///file"


def _answer(connection: apsw.Connection, text: str, parameters: Parameters) -> Any:
    columns: list[tuple[str, ...]] = []

    def traced(cursor: apsw.Cursor, _text: str, _bound: Any) -> bool:
        columns.append(tuple(column[0] for column in cursor.get_description()))
        return len(columns) == 1

    before = connection.total_changes()
    cursor = connection.cursor()
    cursor.exec_trace = traced
    rows: list[dict[str, Any]] = []
    size = 0
    try:
        for row in cursor.execute(text, _bound(parameters)):
            rows.append(dict(zip(columns[0], row, strict=True)))
            size += sum(len(value) for value in row if isinstance(value, (str, bytes)))
            if len(rows) > ROWS_MAX or size > ANSWER_BYTES_MAX:
                raise Fail("sql_answer_too_large", f"it answers more than {ROWS_MAX} rows or {ANSWER_BYTES_MAX} bytes")
    except apsw.ExecTraceAbort:
        raise Fail("sql_failed", "there is more than one statement") from None
    except KeyError as error:
        raise Fail("sql_failed", f"the parameter {error.args[0]!r} is missing") from None
    except (OverflowError, TypeError, ValueError) as error:
        raise Fail("sql_failed", f"a parameter cannot be bound: {error}") from error
    if columns and len(set(columns[0])) < len(columns[0]):
        raise Fail("sql_failed", "two columns have one name", hint="rename one of them with AS")
    return {"rows": rows, "count": len(rows), "changed": connection.total_changes() - before}


def _bound(parameters: Parameters) -> Any:
    def plain(value: Any) -> Any:
        return msgspec.json.encode(value).decode() if isinstance(value, (list, dict)) else value

    if isinstance(parameters, dict):
        return {name: plain(value) for name, value in parameters.items()}
    return [plain(value) for value in parameters]
