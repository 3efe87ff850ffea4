"""PostgreSQL databases of the operator, for the node type `sql`.

Rows are read one by one, so that an answer that is too large is abandoned before it is in memory. The driver loads
slowly: only a statement that needs it may import this module. Error messages never quote the URL or its password.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from tidemill.blobs.payloads import decode_value
from tidemill.handlers.contract import Fail
from tidemill.handlers.sql import AnswerBuilder, Parameters
from tidemill.handlers.sql_child import MISSING_HINT, SQL_HINT
from tidemill.stores.optional import bound
from tidemill.stores.postgres_cursor import RowByRow
from tidemill.stores.statements import Dialect, is_copy, to_json, with_placeholders

CONNECTIONS_MAX = 8
CONNECT_SECONDS = 10
"""How long a statement may wait for a connection, unless the URL says otherwise (`connect_timeout`)."""
IDLE_SECONDS = 60
TIMEOUT_GRACE_MS = 1_000
"""How much later than the worker the server ends a statement: it does so only if the worker has died."""
_TIMEOUT = """
SELECT set_config('statement_timeout', %(ms)s::text, true)
WHERE current_setting('statement_timeout') = '0'
   OR current_setting('statement_timeout')::interval > %(ms)s * interval '1 millisecond'
"""

_AS_TEXT = (
    *("interval", "inet", "cidr", "record", "int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"),
    *("int4multirange", "int8multirange", "nummultirange", "datemultirange", "tsmultirange", "tstzmultirange"),
)
"""Types returned as PostgreSQL writes them; the driver's interval, for example, loses its months."""

_PASSING = ("starting up", "shutting down", "recovery", "not accepting", "not yet accepting", "too many", "slots")
"""Words of a server that is temporarily unavailable; any other message instead of a connection is a refusal. There is
no SQLSTATE before a connection is made."""
_BUSY = ("40", "55P03", "57014")
_GONE = ("53", "58")
"""SQLSTATEs or their prefixes: conflicts between transactions, and trouble of the server."""


class PostgresDatabase:
    """A PostgreSQL database behind a URL, with a pool of connections that are opened on demand."""

    dialect: Dialect = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[TupleRow]] | None = None

    async def run(self, text: str, parameters: Parameters, timeout_ms: int | None = None) -> Any:
        if is_copy(text):
            raise Fail("sql_failed", "COPY is not supported", hint="write INSERT or SELECT")
        try:
            text = with_placeholders(text, parameters)
        except KeyError as error:
            raise Fail("sql_failed", f"the parameter {error.args[0]!r} is missing", hint=MISSING_HINT) from None
        pool = await self._opened()
        try:
            async with pool.connection() as connection, connection.transaction():
                if timeout_ms is not None:
                    await connection.execute(_TIMEOUT, {"ms": timeout_ms + TIMEOUT_GRACE_MS})
                return await _answer(connection, text, bound(parameters))
        except PoolTimeout:
            # The pool does not say why. If the server can be reached, all connections are in use.
            await self._reach()
            raise Fail("database_busy", f"all {CONNECTIONS_MAX} connections are in use", retryable=True) from None
        except psycopg.Error as error:
            raise _failed(error) from error

    async def close(self) -> None:
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
        """Connect once, to learn the reason if that fails."""
        try:
            connection = await psycopg.AsyncConnection.connect(**self._arguments())
        except psycopg.Error as error:
            if str(error).startswith("connection is bad: invalid"):
                raise _invalid_url() from None
            raise _unreached(error) from error
        await connection.close()

    def _arguments(self) -> dict[str, Any]:
        try:
            given = conninfo_to_dict(self._url)
        except psycopg.Error:
            raise _invalid_url() from None
        if "@" in str(given.get("host", "")):
            raise _invalid_url()
        adapters = AdaptersMap(psycopg.adapters)
        for name in _AS_TEXT:
            adapters.register_loader(name, TextLoader)
        set_json_loads(lambda text: decode_value(text.encode() if isinstance(text, str) else text), adapters)
        fixed = {"client_encoding": "utf8", "autocommit": True, "prepare_threshold": None, "context": adapters}
        default = {"connect_timeout": CONNECT_SECONDS, "fallback_application_name": "tidemill"}
        return default | given | fixed


async def _forget(connection: psycopg.AsyncConnection[TupleRow]) -> None:
    """Reset the session, which the next statement of another node will use."""
    await connection.execute("DISCARD ALL")


async def _answer(connection: psycopg.AsyncConnection[TupleRow], text: str, parameters: Parameters) -> Any:
    answer = AnswerBuilder("encode({}, 'hex')")
    cursor = RowByRow(connection)
    columns: Sequence[str] = ()
    async with aclosing(cursor.stream(text.encode(), parameters)) as rows:  # type: ignore[type-var]
        async for row in rows:
            if not columns and cursor.description is not None:
                columns = [column.name for column in cursor.description]
                answer.set_columns(columns)
            answer.add([to_json(value) for value in row])
    return answer.build(cursor.changed)


def _unreached(error: psycopg.Error) -> Fail:
    """Why there is no connection. The driver's message names server, user and database, never the password."""
    message = " ".join(str(error).split())
    answered = message.partition("FATAL: ")[2]
    if "no password supplied" in message or (answered and not any(word in answered for word in _PASSING)):
        hint = "the operator sets user, password and name in the URL of the database"
        return Fail("database_refused", message, hint=hint)
    return Fail("database_unavailable", message, retryable=True)


def _invalid_url() -> Fail:
    """Refuse a URL without the driver's message, which may quote a part of the password."""
    hint = "write postgresql://user:password@host:5432/name, with %40 for an @ in the password"
    return Fail("database_refused", "the URL of the database cannot be read", hint=hint)


def _failed(error: psycopg.Error) -> Fail:
    """Why a statement failed, and whether a retry may help."""
    state = error.sqlstate or ""
    message = error.diag.message_primary or " ".join(str(error).split())
    details = f": {error.diag.message_detail}" if error.diag.message_detail else ""
    message = f"{message}{details} (SQLSTATE {state})" if state else message
    if state.startswith(_BUSY):
        return Fail("database_busy", message, retryable=True)
    cut = state.startswith(("08", "57P")) or (not state and isinstance(error, psycopg.OperationalError))
    if cut or state.startswith(_GONE):
        return Fail("database_unavailable", message, retryable=True, unknown_outcome=cut)
    return Fail("sql_failed", message, hint=error.diag.message_hint or SQL_HINT)
