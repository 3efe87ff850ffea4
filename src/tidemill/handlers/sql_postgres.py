"""PostgreSQL databases of the operator's, for the node type `sql`.

Rows are read one by one, so that an answer that is too large is given up before it is here. Importing this module is
slow, because of the driver: only who has a statement to do imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict
from psycopg.generators import fetch
from psycopg.pq import ExecStatus
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tidemill.blobs.payloads import decode_value
from tidemill.handlers.contract import Fail
from tidemill.handlers.sql import (
    MISSING_HINT,
    SQL_HINT,
    Dialect,
    Gathered,
    Parameters,
    bound,
    is_copy,
    with_placeholders,
)

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGresult


CONNECTIONS_MAX = 8
CONNECT_SECONDS = 10
"""How long a statement may wait for a connection, unless the URL says otherwise (`connect_timeout`)."""
IDLE_SECONDS = 60

_AS_TEXT = (
    *("interval", "inet", "cidr", "record", "int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
    *("int4multirange", "int8multirange", "nummultirange", "datemultirange", "tsmultirange", "tstzmultirange"),
)
"""Types that come as PostgreSQL writes them. What the driver makes of an interval would lose its months."""

_PASSING = ("starting up", "shutting down", "recovery", "not accepting", "not yet accepting", "too many", "slots")
"""How a server says that it has no time now; whatever else it says instead of connecting is a refusal. There is no
SQLSTATE to go by before a connection is made."""
_BUSY = ("40", "55P03", "57014")
_GONE = ("53", "58")
"""SQLSTATEs, or their beginnings: who stood in each other's way, and what is the server's trouble."""


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    for name in _AS_TEXT:
        adapters.register_loader(name, TextLoader)
    set_json_loads(lambda text: decode_value(text.encode() if isinstance(text, str) else text), adapters)
    return adapters


class PostgresDatabase:
    """A PostgreSQL database behind a URL, with a few connections that are opened when they are needed."""

    dialect: Dialect = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[TupleRow]] | None = None

    async def run(self, text: str, parameters: Parameters) -> Any:
        """Do a statement."""
        if is_copy(text):
            raise Fail("sql_failed", "COPY is not supported", hint="write INSERT or SELECT")
        try:
            text = with_placeholders(text, parameters)
        except KeyError as error:
            raise Fail("sql_failed", f"the parameter {error.args[0]!r} is missing", hint=MISSING_HINT) from None
        pool = await self._opened()
        try:
            async with pool.connection() as connection, connection.transaction():
                return await _answer(connection, text, bound(parameters))
        except PoolTimeout:
            # The pool does not say why. If it can be reached, others hold all connections.
            await self._reach()
            raise Fail("database_busy", f"all {CONNECTIONS_MAX} connections are in use", retryable=True) from None
        except psycopg.Error as error:
            raise _failed(error) from error

    async def close(self) -> None:
        """Let go of all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _opened(self) -> AsyncConnectionPool[psycopg.AsyncConnection[TupleRow]]:
        if self._pool is None:
            await self._reach()
        if self._pool is None:
            self._pool = AsyncConnectionPool(
                kwargs=self._arguments(),
                min_size=0,
                max_size=CONNECTIONS_MAX,
                max_idle=IDLE_SECONDS,
                timeout=CONNECT_SECONDS,
                check=AsyncConnectionPool.check_connection,
                reset=_forget,
                open=False,
            )
            await self._pool.open()
        return self._pool

    async def _reach(self) -> None:
        """Connect once, to learn why if it cannot be done."""
        try:
            connection = await psycopg.AsyncConnection.connect(**self._arguments())
        except psycopg.Error as error:
            if str(error).startswith("connection is bad: invalid"):
                raise _unreadable() from None
            raise _unreached(error) from error
        await connection.close()

    def _arguments(self) -> dict[str, Any]:
        try:
            given = conninfo_to_dict(self._url)
        except psycopg.Error:
            raise _unreadable() from None
        if "@" in str(given.get("host", "")):
            raise _unreadable()
        fixed = {"client_encoding": "utf8", "autocommit": True, "prepare_threshold": None, "context": _adapters()}
        default = {"connect_timeout": CONNECT_SECONDS, "fallback_application_name": "tidemill"}
        return default | given | fixed


async def _forget(connection: psycopg.AsyncConnection[TupleRow]) -> None:
    """Take back what a statement has set for its session: the next one is somebody else's."""
    await connection.execute("DISCARD ALL")


class _RowByRow(psycopg.AsyncCursor[TupleRow]):
    """Streams whatever a statement answers, also if that is nothing, and learns how many rows it has changed."""

    changed = 0

    def _stream_fetchone_gen(self, first: bool) -> PQGen[PGresult | None]:
        result: PGresult | None = yield from fetch(self._pgconn)
        if result is None:
            return None
        if result.status == ExecStatus.SINGLE_TUPLE:
            self.pgresult = result
            self._tx.set_pgresult(result, set_loaders=first)
            if first:
                self._make_row = self._make_row_maker()
            return result
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY):
            self._raise_for_result(result)
        self.changed = _changed(result)
        while (yield from fetch(self._pgconn)):
            pass
        return None


def _changed(result: PGresult) -> int:
    """Read how many rows a command says that it has changed: `INSERT 0 3`, but not `SELECT 3`."""
    verb = (result.command_status or b"").partition(b" ")[0]
    return (result.command_tuples or 0) if verb in (b"INSERT", b"UPDATE", b"DELETE", b"MERGE") else 0


async def _answer(connection: psycopg.AsyncConnection[TupleRow], text: str, parameters: Parameters) -> Any:
    gathered = Gathered("encode({}, 'hex')")
    cursor = _RowByRow(connection)
    head: Sequence[str] = ()
    async with aclosing(cursor.stream(text.encode(), parameters)) as rows:  # type: ignore[type-var]
        async for row in rows:
            if not head and cursor.description is not None:
                head = [column.name for column in cursor.description]
                gathered.head(head)
            gathered.add([_plain(value) for value in row])
    return gathered.answer(cursor.changed)


def _plain(value: Any) -> Any:
    """Give a value as JSON has it: see the table in the page of the node type."""
    match value:
        case None | bool() | int() | float() | str() | dict() | bytes():
            return value
        case Decimal():
            # Whole numbers are exact, whatever their size; others are the nearest double, as in JSON everywhere.
            exponent = value.as_tuple().exponent
            return int(value) if isinstance(exponent, int) and exponent >= 0 else float(value)
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return moment.isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case list():
            return [_plain(each) for each in value]
        case UUID():
            return str(value)
        case _:
            return str(value)


def _unreached(error: psycopg.Error) -> Fail:
    """Say why there is no connection. The driver names the server, the user and the database, never the password."""
    said = " ".join(str(error).split())
    answered = said.partition("FATAL: ")[2]
    if "no password supplied" in said or (answered and not any(word in answered for word in _PASSING)):
        hint = "the operator sets user, password and name in the URL of the database"
        return Fail("database_refused", said, hint=hint)
    return Fail("database_unavailable", said, retryable=True)


def _unreadable() -> Fail:
    """Refuse a URL without showing what the driver says of it: that could be a part of the password."""
    hint = "write postgresql://user:password@host:5432/name, with %40 for an @ in the password"
    return Fail("database_refused", "the URL of the database cannot be read", hint=hint)


def _failed(error: psycopg.Error) -> Fail:
    """Say why a statement failed, and whether it is worth another attempt."""
    state = error.sqlstate or ""
    said = error.diag.message_primary or " ".join(str(error).split())
    details = f": {error.diag.message_detail}" if error.diag.message_detail else ""
    said = f"{said}{details} (SQLSTATE {state})" if state else said
    if state.startswith(_BUSY):
        return Fail("database_busy", said, retryable=True)
    cut = state.startswith(("08", "57P")) or (not state and isinstance(error, psycopg.OperationalError))
    if cut or state.startswith(_GONE):
        return Fail("database_unavailable", said, retryable=True, unknown_outcome=cut)
    return Fail("sql_failed", said, hint=error.diag.message_hint or SQL_HINT)
