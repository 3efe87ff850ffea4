"""The PostgreSQL database: its URL, connections, errors and migrations.

Everything of a store is in one schema of the database. Plans of prepared statements are kept for long, so connections
avoid scans that are right only while a table is small. Error messages never quote the URL, which may hold a password.
"""

from __future__ import annotations

import asyncio
import re
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
from psycopg import sql
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from tidemill.errors import DiskFull, Rejected, StoreUnusable, TidemillError, Unavailable, rejected
from tidemill.stores.optional import Finding, Severity, judged, migrations_finding
from tidemill.stores.sql_files import Migration, Step, migrations, pending, statements

DIALECT = "postgres"
SQL = statements(DIALECT)
VERSION_MIN = 14
SCHEMA = "tidemill"
READERS_MAX = 4
"""Connections of a process for reading, unless the URL says otherwise; besides them it has one each for commits,
claims, hints and renewals."""
CONNECT_SECONDS = 5
CALL_SECONDS = 30.0
"""How long a call may take before its connection counts as cut."""
PATIENCE_SECONDS = 5.0
"""How long a call waits for a server that cannot be reached before it fails."""
SESSION_OVER, LEASE_LOST, READ_ONLY, NOT_PREPARED = "TM001", "TM002", "25006", "26000"
SETTINGS = (
    "SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan; "
    "SET idle_in_transaction_session_timeout = '10s'"
)

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Rows = list[tuple[Any, ...]]


# Arrays as parameters: one type each, whatever their values are, so that a statement is prepared once.


class Bigints(list[int]):
    pass


class Texts(list[str]):
    pass


class Byteas(list[bytes]):
    pass


def _packed_bigints(values: Bigints) -> bytes:
    if len(values) < 2:
        return _ONE_BIGINT(1, 0, 20, 1, 1, 8, values[0]) if values else _EMPTY[20]
    numbers = [8] * (2 * len(values))
    numbers[1::2] = values
    return _array_head(20, len(values)) + struct.pack(">" + "iq" * len(values), *numbers)


_ONE_BIGINT = struct.Struct(">iiiiiiq").pack
_HEAD = struct.Struct(">iiiii").pack
_EMPTY = {oid: struct.pack(">iii", 0, 0, oid) for oid in (17, 20, 25)}


def _array_head(oid: int, length: int) -> bytes:
    return _HEAD(1, 0, oid, length, 1)


def _packed(oid: int, values: Sequence[bytes]) -> bytes:
    if not values:
        return _EMPTY[oid]
    parts = [_array_head(oid, len(values))]
    for value in values:
        parts.append(len(value).to_bytes(4, "big"))
        parts.append(value)
    return b"".join(parts)


_BIGINT = struct.Struct(">q").pack
_DUMPED: Mapping[type, Callable[[Any], bytes | None]] = {
    int: _BIGINT,
    str: str.encode,
    bytes: bytes,
    type(None): lambda _: None,
    Bigints: _packed_bigints,
    Texts: lambda values: _packed(25, [each.encode() for each in values]),
    Byteas: lambda values: _packed(17, values),
}
"""Values as the server reads them, by their types. Every number is a bigint."""


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    for kind, oid in ((int, 20), (Bigints, 1016), (Texts, 1009), (Byteas, 1001)):
        fields = {"format": Format.BINARY, "oid": oid, "dump": lambda _, value, pack=_DUMPED[kind]: pack(value)}
        adapters.register_dumper(kind, type("Dumped", (Dumper,), fields))
    return adapters


# The URL


class Place(msgspec.Struct, frozen=True):
    """Where a store is, and how many connections may read from it."""

    arguments: Mapping[str, str]
    schema: str = SCHEMA
    readers: int = READERS_MAX
    row_security: bool = False
    """Every transaction names its tenant: the role is bound by row-level security."""
    blobs: str = ""
    """The URL of a place for large values outside the database."""
    read_only: bool = False
    """Every transaction is read-only, and the store is not migrated."""

    @property
    def connections(self) -> int:
        """The most connections of a process: readers of records and blobs, commits, claims, hints, renewals, SQL."""
        return 2 * self.readers + 5

    @property
    def name(self) -> str:
        """For messages: without user and password."""
        host = self.arguments.get("host") or self.arguments.get("hostaddr") or "the local socket"
        port, database = self.arguments.get("port"), self.arguments.get("dbname") or self.arguments.get("user") or ""
        return f"PostgreSQL at {host}{f':{port}' if port else ''}/{database}"


def place_at(url: str, *, read_only: bool = False) -> Place:
    """Read a URL. Our own options (schema, pool, blobs, row_security) are removed; libpq reads all others."""
    parts = urlsplit(url)
    mine = {"schema": SCHEMA, "pool": str(READERS_MAX), "row_security": "off", "blobs": ""}
    others = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in mine:
            mine[name] = value
        else:
            others.append((name, value))
    try:
        given = conninfo_to_dict(
            urlunsplit(parts._replace(scheme="postgresql", query=urlencode(others, quote_via=quote)))
        )
    except psycopg.Error as error:
        found = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        if found:
            hint = "the options are schema, pool, blobs, row_security, and those of libpq"
            message = f"a PostgreSQL store has no option {found[1]!r}"
            raise rejected("store_option_unknown", message, hint=hint) from None
        # The driver's message may quote a part of the password.
        raise _bad_url() from None
    if "@" in str(given.get("host", "")):
        raise _bad_url()
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,39}", mine["schema"]):
        message = f"{mine['schema']!r} is not a schema name: small letters, digits and _"
        raise rejected("store_option_unknown", message, path="/schema")
    if not re.fullmatch(r"[1-9]\d?", mine["pool"]):
        message = f"pool is a number of connections from 1 to 99, not {mine['pool']!r}"
        raise rejected("store_option_unknown", message, path="/pool")
    if mine["row_security"] not in ("on", "off"):
        message = f"row_security is on or off, not {mine['row_security']!r}"
        raise rejected("store_option_unknown", message, path="/row_security")
    arguments = {name: str(value) for name, value in given.items() if value is not None}
    bound_to_tenant = mine["row_security"] == "on"
    return Place(arguments, mine["schema"], int(mine["pool"]), bound_to_tenant, mine["blobs"], read_only)


def _bad_url() -> Rejected:
    hint = "write postgresql://user:password@host:5432/name, with %40 for an @ in the password"
    return rejected("store_unknown", "the URL of the PostgreSQL store cannot be read", hint=hint)


def connection_arguments(place: Place) -> dict[str, Any]:
    default = {
        "connect_timeout": str(CONNECT_SECONDS),
        "fallback_application_name": "tidemill",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "15000",
    }
    fixed = {"client_encoding": "utf8", "autocommit": True, "prepare_threshold": 0, "context": _adapters()}
    return default | dict(place.arguments) | fixed


def setup_of(place: Place) -> sql.Composed:
    fixed = SETTINGS + ("; SET default_transaction_read_only = on" if place.read_only else "")
    return sql.SQL("SET search_path = {}; " + fixed).format(sql.Identifier(place.schema))


# Errors

_PASSING = ("starting up", "shutting down", "recovery", "not accepting", "not yet accepting", "too many", "slots")
"""Words of a server that is temporarily unavailable. There is no SQLSTATE before a connection is made."""


def is_cut(error: BaseException, connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any] | None) -> bool:
    """Whether an error means that the connection is gone, and with it the answer."""
    state = getattr(error, "sqlstate", None) or ""
    gone = state.startswith(("08", "57P")) or (not state and isinstance(error, psycopg.OperationalError))
    return gone or isinstance(error, (TimeoutError, OSError)) or (connection is not None and connection.closed)


def translate_error(error: BaseException, place: Place) -> TidemillError:
    """The Tidemill error for an error of a statement."""
    if isinstance(error, TidemillError):
        return error
    state = getattr(error, "sqlstate", None) or ""
    message = f"{place.name}: {_line(error)}"
    if state == "53100":
        return DiskFull(f"the disk of {place.name} is full; free some space")
    if state == READ_ONLY:
        return read_only(place)
    if state == "42501":
        return rejected("store_unusable", message, hint=_rights_hint(place, message))
    if state in ("42P01", "42883", "3F000", "42703"):
        hint = "`tidemill migrate` shows its schema; restore a backup if tables were removed"
        return rejected("store_damaged", message, hint=hint)
    if state.startswith("22") or isinstance(error, psycopg.DataError):
        return rejected("value_unstorable", f"PostgreSQL cannot store a value: {_line(error)}")
    return Unavailable(message)


def _rights_hint(place: Place, message: str = "") -> str:
    if "denied for table" in message or "denied for sequence" in message:
        return "GRANT that to the user, as `docs/how-to/postgresql.md` does, or connect as the owner of the tables"
    return f"let the user own the schema {place.schema}, or GRANT it the right to CREATE schemas in the database"


_TLS_REFUSALS = ("certificate verify failed", "does not match host name", "does not support SSL", "root certificate")
"""What libpq says when the server is not as `sslmode` wants it."""


def unreached(error: BaseException, place: Place) -> TidemillError:
    """Why there is no connection. The driver's message names server, user and database, never the password."""
    message = _line(error)
    answered = message.partition("FATAL: ")[2].strip()
    if "does not exist" in answered and "database" in answered:
        hint = f"create it with `createdb {place.arguments.get('dbname', '')}`, or name another one"
        return rejected("store_missing", f"{place.name}: {answered}", hint=hint)
    refused = answered and not any(word in answered for word in _PASSING)
    if refused or "no password supplied" in message or "fe_sendauth" in message:
        hint = "check user and password in the URL, or PGPASSWORD, and pg_hba.conf of the server"
        return rejected("store_unusable", f"{place.name} refuses the connection: {answered or message}", hint=hint)
    if any(word in message for word in _TLS_REFUSALS):
        hint = "check `sslmode` and `sslrootcert` in the URL, and `ssl` of the server"
        return rejected("store_unusable", f"{place.name} cannot be trusted: {message}", hint=hint)
    if message.startswith("connection is bad: invalid"):
        return _bad_url()
    hint = "close some, or raise max_connections" if "too many" in answered else "check that the server runs"
    return Unavailable(f"{place.name} cannot be reached: {answered or message}; {hint}")


def read_only(place: Place) -> Rejected:
    message = f"{place.name} is a replica, or read-only: nothing can be written to it"
    return rejected("store_read_only", message, hint="name the primary server, or add target_session_attrs=read-write")


def _line(error: BaseException) -> str:
    diag = getattr(error, "diag", None)
    text = (diag and diag.message_primary) or str(error) or type(error).__name__
    return " ".join(text.split())[:300]


# Connections


@lru_cache(maxsize=256)
def _encoded(statement: str) -> bytes:
    return statement.encode()


@lru_cache(maxsize=16)
def _numbered(statement: str) -> bytes:
    """A statement with the placeholders of the server."""
    first, *others = statement.split("%s")
    return "".join((first, *(f"${number}{text}" for number, text in enumerate(others, 1)))).encode()


class DirectCalls:
    """Prepared statements that answer one text, one at a time, by the calls of libpq.

    A cursor costs several times as much. While the reader is in the loop, the driver must not wait for the connection.
    """

    def __init__(self, connection: Connection) -> None:
        self._libpq, self._socket = connection.pgconn, connection.pgconn.socket
        self._loop = asyncio.get_running_loop()
        self._names: dict[str, bytes] = {}
        self._answer: asyncio.Future[PGresult] | None = None
        self._result: PGresult | None = None
        self._listens = False

    async def call(self, statement: str, values: Sequence[Any]) -> bytes | None:
        """Execute a statement. Raises the driver's errors, and TimeoutError; then the connection may be busy."""
        sent = [_DUMPED[type(value)](value) for value in values]
        if statement not in self._names:
            await self._prepare(statement)
        self._libpq.send_query_prepared(self._names[statement], sent, [Format.BINARY] * len(sent))
        result = await self._sent()
        if result.status == ExecStatus.FATAL_ERROR:
            error = psycopg.errors.error_from_result(result)
            if error.sqlstate == NOT_PREPARED:
                # The driver deallocates all statements after some commands.
                self._names.clear()
                return await self.call(statement, values)
            raise error
        return result.get_value(0, 0)

    async def _prepare(self, statement: str) -> None:
        name = f"tidemill_{len(self._names)}".encode()
        self._libpq.send_prepare(name, _numbered(statement))
        result = await self._sent()
        if result.status != ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
        self._names[statement] = name

    async def _sent(self) -> PGresult:
        """The answer to what was sent."""
        answer: asyncio.Future[PGresult] = self._loop.create_future()
        self._answer = answer
        if not self._listens:
            self._listens = True
            self._loop.add_reader(self._socket, self._read)
        if self._libpq.flush():
            self._loop.add_writer(self._socket, self._write)
        timer = self._loop.call_later(CALL_SECONDS, self._fail, TimeoutError("the server does not answer"))
        try:
            return await answer
        finally:
            timer.cancel()

    def _write(self) -> None:
        try:
            if self._libpq.flush():
                return
        except psycopg.Error as error:
            self._fail(error)
        self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        libpq, answer = self._libpq, self._answer
        try:
            libpq.consume_input()
            while not libpq.is_busy():
                result = libpq.get_result()
                if result is not None:
                    self._result = result
                    continue
                if answer is not None and self._result is not None:
                    self._answer, result, self._result = None, self._result, None
                    if not answer.done():
                        answer.set_result(result)
                return
        except psycopg.Error as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.rest()
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def rest(self) -> None:
        """Leave the connection to the driver until the next call."""
        if self._listens:
            self._listens = False
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)


class Link:
    """A connection that is made when it is needed, and replaced after it was cut."""

    def __init__(self, place: Place, *setup: str, opened: bool = True) -> None:
        self.place = place
        self._setup, self._opened = setup, opened
        self.connection: Connection | None = None
        self._direct: DirectCalls

    async def connect(self) -> Connection:
        """The connection, for the driver."""
        if self.connection is not None:
            self._direct.rest()
        if self.connection is None or self.connection.closed:
            await self.drop()
            try:
                async with asyncio.timeout(2 * CONNECT_SECONDS):
                    made = await psycopg.AsyncConnection.connect(**connection_arguments(self.place))
                    try:
                        await made.execute(setup_of(self.place), prepare=False)
                        for statement in self._setup:
                            await made.execute(statement.encode(), prepare=False)
                    except BaseException:
                        await made.close()
                        raise
            except (psycopg.Error, OSError, TimeoutError) as error:
                meant = unreached(error, self.place)
                if self._opened and isinstance(meant, Rejected):
                    # Work that is under way waits for the operator; a refusal would fail it.
                    raise StoreUnusable(meant.problems[0]) from error
                raise meant from error
            self.connection, self._cursor, self._direct = made, made.cursor(binary=True), DirectCalls(made)
        return self.connection

    async def reconnect(self, seconds: float = PATIENCE_SECONDS) -> Connection:
        """Connect, waiting a while for a server that starts."""
        until, pause = time.monotonic() + seconds, 0.05
        while True:
            try:
                return await self.connect()
            except Unavailable:
                if time.monotonic() + pause > until:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.5)

    async def fetch(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Rows:
        """Execute a prepared statement. Raises the driver's errors; a cut connection is dropped."""
        connection = await self.connect()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                cursor = self._cursor
                await cursor.execute(_encoded(statement), values, prepare=True)
                return await cursor.fetchall() if cursor.description else []
        except BaseException as error:
            if is_cut(error, connection):
                await self.drop()
            raise

    async def call(self, statement: str, values: Sequence[Any]) -> bytes | None:
        """Execute a prepared statement that answers one text, as `fetch` does."""
        connection = self.connection
        if connection is None or connection.closed:
            connection = await self.connect()
        try:
            return await self._direct.call(statement, values)
        except BaseException as error:
            if is_cut(error, connection) or not isinstance(error, psycopg.Error):
                # The answer may still arrive.
                await self.drop()
            raise

    async def drop(self) -> None:
        made, self.connection = self.connection, None
        if made is not None:
            self._direct.rest()
            with suppress(psycopg.Error, OSError):
                await made.close()


class Readers:
    """A few connections for reading and for calls that may be repeated."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._free = asyncio.Semaphore(place.readers)
        self._idle: list[Link] = []
        self._closed = False

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        if self._closed:
            raise Unavailable("the store is closed")
        async with self._free:
            link = self._idle.pop() if self._idle else Link(self._place)
            try:
                yield link
            finally:
                await self._return(link)

    async def fetch(
        self, statement: str, values: Sequence[Any] | Mapping[str, Any] = (), *, tenant: str | None = None
    ) -> Rows:
        """Execute a statement that may be repeated: after a cut it is tried again, on another connection."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            async with self.link() as link:
                try:
                    if self._place.row_security:
                        return await bound(link, tenant, statement, values)
                    return await link.fetch(statement, values)
                except (psycopg.Error, TimeoutError, OSError) as error:
                    again = is_cut(error, link.connection) or _is_conflict(error)
                    if not again or time.monotonic() > until:
                        raise translate_error(error, self._place) from error
                except Unavailable as error:
                    if isinstance(error, StoreUnusable) or time.monotonic() > until:
                        raise
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def transaction(self, *, tenant: str | None = None) -> AsyncIterator[Callable[..., Awaitable[Rows]]]:
        """Several statements at once or none; a cut is not repaired."""
        async with self.link() as link:
            try:
                connection = await link.connect()
                async with connection.transaction():
                    if self._place.row_security:
                        await connection.execute("SELECT set_config('tidemill.tenant', %s, true)", (tenant or "",))
                    yield link.fetch
            except (psycopg.Error, TimeoutError, OSError) as error:
                if is_cut(error, link.connection):
                    await link.drop()
                raise translate_error(error, self._place) from error

    async def _return(self, link: Link) -> None:
        if self._closed:
            await link.drop()
        elif link.connection is not None:
            self._idle.append(link)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().drop()


async def bound(link: Link, tenant: str | None, statement: str, values: Any) -> Rows:
    """Execute a statement for one tenant: row-level security shows and takes only what is the tenant's."""
    connection = await link.connect()
    async with asyncio.timeout(CALL_SECONDS), connection.transaction():
        await connection.execute("SELECT set_config('tidemill.tenant', %s, true)", (tenant or "",))
        return await link.fetch(statement, values)


def _is_conflict(error: BaseException) -> bool:
    """A deadlock or a failed serialization: nothing was written, and the same call may succeed."""
    return (getattr(error, "sqlstate", None) or "").startswith("40")


# Migrations


async def migrate(link: Link) -> None:
    """Bring the schema to the version that this process knows, under a lock; refuses what it does not know."""
    for each in await steps(link):
        if each.applied_ms is None:
            raise RuntimeError(f"migration {each.number} was not applied")


async def steps(link: Link, *, dry_run: bool = False) -> tuple[Step, ...]:
    """The migrations of a database, after those that were missing were applied, unless it is a dry run."""
    place, known = link.place, migrations(DIALECT)
    connection = await link.connect()
    try:
        number = connection.info.server_version // 10_000
        if number < VERSION_MIN:
            hint = f"Tidemill needs PostgreSQL {VERSION_MIN} or newer"
            raise rejected("store_unusable", f"{place.name} has version {number}", hint=hint)
        applied = await _applied(connection, place)
        missing = pending(known, {number: found[0] for number, found in applied.items()}, place.name)
        if missing and not dry_run:
            await _apply(connection, place)
            applied = await _applied(connection, place)
        if not dry_run:
            await connection.execute(SQL["add_partitions"].encode())
            await connection.execute(SQL["sweep_sessions"].encode())
    except (psycopg.Error, OSError) as error:
        if is_cut(error, connection):
            await link.drop()
        raise translate_error(error, place) from error
    moments = {number: found[1] for number, found in applied.items()}
    return tuple(Step(number=each.number, name=each.name, applied_ms=moments.get(each.number)) for each in known)


async def check_role(link: Link) -> None:
    """Refuse a user whom row-level security does not treat as the URL says: it would see nothing, or everything."""
    place = link.place
    ((binding, user),) = await link.fetch("SELECT row_security_active('streams'), current_user::text")
    if binding and not place.row_security:
        message = f"the user {user} does not own the tables of {place.name}, so row-level security hides them"
        hint = "connect as their owner, as workers do; a process that serves tenants adds ?row_security=on"
        raise rejected("store_unusable", message, hint=hint)
    if place.row_security and not binding:
        message = f"row-level security does not bind {user}, who owns the tables of {place.name} or is a superuser"
        raise rejected("store_unusable", message, hint="connect as another user, or leave row_security out")


async def _applied(connection: Connection, place: Place) -> dict[int, tuple[str, int]]:
    """The migrations of a schema, by number; refuses a schema of another program."""
    tables = await (
        await connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (place.schema,))
    ).fetchall()
    names = {name for (name,) in tables}
    reach = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s"
    if (False,) in await (await connection.execute(reach, (place.schema,))).fetchall():
        message = f"the user has no rights on the schema {place.schema} of {place.name}"
        raise rejected("store_unusable", message, hint=_rights_hint(place))
    rows: list[Any] = []
    if "migrations" in names:
        rows = await (await connection.execute("SELECT number, checksum, applied_ms FROM migrations")).fetchall()
    if not rows and names & {"streams", "jobs", "rows"}:
        message = f"the schema {place.schema} of {place.name} is of another program, or its list of migrations is gone"
        raise rejected("store_foreign", message, hint="name another one with ?schema=NAME: nothing was changed")
    return {number: (checksum, moment) for number, checksum, moment in rows}


async def _apply(connection: Connection, place: Place) -> None:
    async with connection.transaction():
        ((recovery, frozen),) = await (
            await connection.execute("SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")
        ).fetchall()
        if recovery or frozen == "on":
            raise read_only(place)
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"tidemill.{place.schema}",))
        found = await (
            await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (place.schema,))
        ).fetchall()
        if not found:
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(place.schema)))
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations"
            " (number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_ms bigint NOT NULL)"
        )
        applied = {number: found[0] for number, found in (await _applied(connection, place)).items()}
        for each in pending(migrations(DIALECT), applied, place.name):
            await _apply_one(connection, each)


async def _apply_one(connection: Connection, migration: Migration) -> None:
    await connection.execute(migration.sql.encode(), prepare=False)
    await connection.execute(
        "INSERT INTO migrations VALUES (%s, %s, %s, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)",
        (migration.number, migration.name, migration.checksum),
    )
    # Processes of an older version look at the schema again before they write.
    with suppress(psycopg.errors.UndefinedTable):
        async with connection.transaction():
            await connection.execute("DELETE FROM sessions")


# Diagnosis

_SERVER = """SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
    current_setting('full_page_writes'), current_setting('autovacuum'), pg_is_in_recovery(),
    current_setting('transaction_read_only') = 'on',
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
    (SELECT sum(numbackends)::int FROM pg_stat_database),
    pg_database_size(current_database())::bigint"""
UNSAFE_SETTINGS: Mapping[str, tuple[str, Severity, str]] = {
    "fsync": ("off", "error", "a crash of the machine may destroy the database"),
    "synchronous_commit": ("off", "error", "a crash of the server loses acknowledged commits"),
    "full_page_writes": ("off", "error", "a power cut may leave half-written pages"),
    "autovacuum": ("off", "warning", "tables grow until the server stops"),
}
"""Settings of the server: the unsafe value, how bad it is, and what it means."""


async def diagnose(place: Place) -> list[Finding]:
    """Check the server, its settings and the schema; raises what opening the store would be refused with."""
    # Only reads; a connection that was told to write nothing could not tell whether the server lets it.
    link = Link(msgspec.structs.replace(place, read_only=False), opened=False)
    try:
        schema = [*await _pending(link), await _role_finding(link)]
        ((version, *rest),) = await link.fetch(_SERVER)
    except (psycopg.Error, OSError, TimeoutError) as error:
        raise translate_error(error, place) from error
    finally:
        await link.drop()
    settings = dict(zip(UNSAFE_SETTINGS, rest[:4], strict=True))
    recovery, frozen, most, used, size = rest[4:]
    hint = "name the primary server, or add target_session_attrs=read-write"
    frozen_by = "the server is a replica" if recovery else "the role or the database is read-only" if frozen else ""
    bad = frozen_by and f"nothing can be written: {frozen_by}"
    return [
        Finding("server_version", "ok", f"PostgreSQL {version}, psycopg {psycopg.__version__}"),
        *schema,
        judged("read_only", "store", "the server accepts writes", bad, hint, "error"),
        *(_setting_finding(name, value) for name, value in settings.items()),
        _connections_finding(place, most, used),
        Finding(
            "database_size", "ok", f"the database takes {size >> 20:,} MiB of the server's disk, which it can fill"
        ),
    ]


async def _pending(link: Link) -> list[Finding]:
    found = await steps(link, dry_run=True)
    if not any(step.applied_ms for step in found):
        raise missing_store(link.place)
    return [migrations_finding(len(found), sum(step.applied_ms is None for step in found))]


async def _role_finding(link: Link) -> Finding:
    try:
        await check_role(link)
    except Rejected as refusal:
        problem = refusal.problems[0]
        return Finding("row_security", "error", problem.message, problem.hint)
    role = "binds this role to one tenant at a time" if link.place.row_security else "lets this role cross tenants"
    return Finding("row_security", "ok", f"row-level security {role}")


def missing_store(place: Place) -> Rejected:
    hint = "run or publish a workflow first, or name another one with --store or TIDEMILL_STORE"
    return rejected("store_missing", f"there is no store in the schema {place.schema} of {place.name}", hint=hint)


def _setting_finding(name: str, value: str) -> Finding:
    unsafe, severity, meaning = UNSAFE_SETTINGS[name]
    bad, hint = f"{name} is off: {meaning}", f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
    return judged(name, "store", f"{name} is {value}", bad if value == unsafe else "", hint, severity)


def _connections_finding(place: Place, most: int, used: int) -> Finding:
    shown, hint = f"{used} of {most} connections are in use", f"raise max_connections, or lower pool={place.readers}"
    bad = f"{shown}; a process takes up to {place.connections}" if most - used < place.connections else ""
    return judged("connections", "store", shown, bad, hint)


def newest_known() -> int:
    return migrations(DIALECT)[-1].number
