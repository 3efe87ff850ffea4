"""Node type `sql`: one parameterised statement, on the run's own store or on a database of the operator.

On the run's own store a dry run gives the answer, and the transaction that records the result executes the statement:
exactly once. On other databases it is executed at least once; a statement can deduplicate by `:effect_key`.
The operator names databases in environment variables and documents only refer to them by name, so the egress policy
does not apply. Scanning takes time linear in the text, because any author of a workflow can write it. Also the SQLite
databases, whose statements `sql_child.py` executes in processes that can be killed; those of PostgreSQL are in
`sql_postgres.py`, because its driver loads slowly.
"""

from __future__ import annotations

import asyncio
import math
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidemill.errors import CONFIG_FILE, Rejected, Unavailable
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import (
    CapabilityMissing,
    Done,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    object_schema,
)
from tidemill.handlers.sql_child import ANSWER_BYTES_MAX, FRAME_MAX, PROCESS_MB_MAX, ROWS_MAX, SQL_HINT
from tidemill.kernel.model import Capabilities, ConfigProblem, Json, NodeType
from tidemill.net.http_client import origin_hint
from tidemill.processes.child import ChildSpec, Pool, StartFailed, minimal_environment
from tidemill.processes.supervised import ExitReport
from tidemill.security.grants import StoreSqlGrants
from tidemill.stores.contract import Statement
from tidemill.stores.optional import KILLED_WORKER, TransactionalStatements, bound
from tidemill.stores.statements import Dialect, is_nothing, is_several

# Databases.

CHILD = "tidemill.handlers.sql_child"

Parameters = list[Any] | dict[str, Any]


def is_database(url: str) -> bool:
    """Whether a URL names a database of a kind that statements are sent to."""
    return url.startswith(("postgresql://", "postgres://")) or re.match(r"sqlite:///[^?#]*[^/?#]", url) is not None


class Database(Protocol):
    """A database of the operator."""

    @property
    def dialect(self) -> Dialect: ...

    async def run(self, text: str, parameters: Parameters, timeout_ms: int | None = None) -> Any:
        """Execute in a transaction, which cancellation rolls back; returns `{rows, count, changed}`. Raises `Fail`.

        `timeout_ms` is when the caller will cancel it, for a server that continues when this process dies.
        """

    async def close(self) -> None:
        """Close all connections; the next statement opens new ones."""


class LateDatabase:
    """A database whose driver is imported by the first statement."""

    def __init__(self, dialect: Dialect, make: Callable[[], Database]) -> None:
        self.dialect: Dialect = dialect
        self._make = make
        self._made: Database | None = None

    async def run(self, text: str, parameters: Parameters, timeout_ms: int | None = None) -> Any:
        database = self._made
        if database is None:
            try:
                # In a thread, because the import would block the event loop.
                database = await asyncio.to_thread(self._make)
            except ImportError as error:
                message = f"the driver for {self.dialect} is not installed"
                hint = 'pip install "tidemill[postgres]"'
                raise CapabilityMissing("driver_missing", message, hint=hint) from error
            # A concurrent statement may have made one meanwhile.
            database = self._made = self._made or database
        return await database.run(text, parameters, timeout_ms)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()


class AnswerBuilder:
    """Collects the rows of an answer one by one, and fails as soon as there are too many."""

    def __init__(self, bytes_as: str) -> None:
        self._bytes_as = bytes_as
        """Expression that converts bytes to text, such as `hex({})`."""
        self._columns: tuple[str, ...] = ()
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def set_columns(self, columns: Sequence[str]) -> None:
        if len(set(columns)) < len(columns):
            raise Fail("sql_failed", "two columns have one name", hint="rename one of them with AS")
        self._columns = tuple(columns)

    def add(self, values: Sequence[Any]) -> None:
        row = dict(zip(self._columns, values, strict=True))
        for name, value in row.items():
            self._check(name, value)
        self._rows.append(row)
        self._size += len(msgspec.json.encode(row))
        if len(self._rows) > ROWS_MAX or self._size > ANSWER_BYTES_MAX:
            message = f"it returns more than {ROWS_MAX} rows or {ANSWER_BYTES_MAX} bytes"
            raise Fail("sql_answer_too_large", message, hint="ask for less, with WHERE or LIMIT")

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                self._check(name, each)
        elif isinstance(value, bytes):
            hint = f"ask for {self._bytes_as.format(name)}"
            raise Fail("sql_failed", f"the column {name} holds bytes, which JSON cannot represent", hint=hint)
        elif isinstance(value, float) and not math.isfinite(value):
            raise Fail("sql_failed", f"the column {name} holds a number that JSON cannot represent")

    def build(self, changed: int) -> dict[str, Any]:
        return {"rows": self._rows, "count": len(self._rows), "changed": changed}


# The node type.

STORE = "store"
"""The name of the run's own store."""
_SECRET = re.compile(r"{[{%].*\bsecrets\b")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOT_SAID = StoreSqlGrants()
NOT_ENABLED = "sql_not_enabled"
NOT_ENABLED_MESSAGE = "the operator has not enabled SQL on the store"
NOT_ENABLED_HINT = f"the operator writes `store = true` under `[sql]` in {CONFIG_FILE}, or sets TIDEMILL_SQL_STORE=on"
SECRET_ON_STORE = "a secret must not be written into the store"
NOT_CONSTANT = "the statement is a constant: values that are written into it could change what it does"
NOTHING = "there is no statement"


def sql_handler(
    databases: Mapping[str, Database],
    own: TransactionalStatements | None = None,
    grants: StoreSqlGrants = NOT_SAID,
    *,
    has_own: bool = True,
    dialect: Dialect = "sqlite",
) -> Handler:
    """The node type; `own` is the store, if it takes statements of a `dialect`; `has_own`: workers have one."""

    async def call(context: NodeContext) -> HandlerOutcome:
        config: dict[str, Any] = context.config
        name, text = config.get("database", STORE), config["statement"]
        # A list by position, or an object by name, with the effect key if the statement uses it.
        given = config.get("parameters")
        parameters: Parameters = {} if given is None else given
        if isinstance(parameters, dict) and ":effect_key" in text:
            parameters = parameters | {"effect_key": context.effect_key}
        if is_nothing(text, databases[name].dialect if name in databases else dialect):
            raise Fail("sql_failed", NOTHING, hint="write one statement")
        if name == STORE:
            if not grants.enabled:
                raise CapabilityMissing(NOT_ENABLED, NOT_ENABLED_MESSAGE, hint=NOT_ENABLED_HINT)
            if len(context.secrets):
                # Of a database that a template chooses this is known only now.
                raise Fail("secret_not_allowed", SECRET_ON_STORE, hint="leave it out")
            shared = tuple(table.lower() for table in grants.shared_with(context.workflow))
            body = msgspec.json.encode(parameters)
            mine: dict[str, Any] = {"owner": context.workflow, "shared": shared, "effect_key": context.effect_key}
            return await _dry_run(own, Statement(text=text, parameters=body, **mine))
        database = databases.get(name)
        if database is None:
            raise Fail("database_unknown", f"there is no database {name}", hint=_hint(name, databases))
        if context.forbidden_at is not None and (secret := context.forbidden_at(f"database:{name}")):
            message = f"the secret {secret} may not be sent to the database {name}"
            raise Fail("origin_not_allowed", message, hint=origin_hint(secret, f"database:{name}"))
        return Done(await database.run(text, parameters, context.timeout_ms))

    async def close() -> None:
        for database in databases.values():
            await database.close()

    def check(config: Json) -> Iterator[ConfigProblem]:
        name, text = config.get("database", STORE), config["statement"]
        if is_template(text):
            hint = "write :name and give it under parameters"
            yield ConfigProblem("/statement", NOT_CONSTANT, hint, code="statement_not_constant")
        if is_template(name):
            return
        if name == STORE and _SECRET.search(msgspec.json.encode(config.get("parameters")).decode()):
            yield ConfigProblem("/parameters", SECRET_ON_STORE, "leave it out", code="secret_not_allowed")
        if name == STORE and grants.enabled is False:
            yield ConfigProblem("/database", NOT_ENABLED_MESSAGE, NOT_ENABLED_HINT, code=NOT_ENABLED)
        elif name == STORE and not has_own:
            hint = "name a database, or use a store with SQL"
            yield ConfigProblem("/database", "this store does not support statements", hint)
        elif name != STORE and name not in databases:
            message = f'there is no database "{name}"'
            yield ConfigProblem("/database", message, _hint(name, databases), code="database_unknown")
        elif not is_template(text):
            spoken = databases[name].dialect if name in databases else dialect
            if is_several(text, spoken):
                hint = "give each of them a node of its own"
                yield ConfigProblem("/statement", "more than one statement was given", hint)
            if is_nothing(text, spoken):
                yield ConfigProblem("/statement", NOTHING, "write one statement")

    return Handler(msgspec.structs.replace(SQL, check=check), call, close=close)


SQL = NodeType(
    name="sql",
    title="SQL statement",
    icon="database",
    description="Executes one parameterised statement; on the run's own store exactly once.",
    secret_fields=("parameters",),
    # On the store statements wait for one another, so more of them would only occupy places of workers.
    capabilities=Capabilities(concurrency=8),
    capped=lambda config: config.get("database", STORE) == STORE or is_template(config["database"]),
    config_schema=object_schema(
        ("statement",),
        database={
            "type": "string",
            "minLength": 1,
            "default": STORE,
            "description": "the name of a database under `[databases]` in tidemill.toml",
        },
        statement={"type": "string", "minLength": 1, "maxLength": 65_536},
        parameters={"anyOf": [{"type": "array"}, {"type": "object"}]},
    ),
    output_schema={
        "type": "object",
        "properties": {"rows": {"type": "array"}, "count": {"type": "integer"}, "changed": {"type": "integer"}},
        "required": ["rows", "count", "changed"],
    },
)


async def _dry_run(own: TransactionalStatements | None, statement: Statement) -> Done:
    if own is None:
        raise Fail("database_unknown", "this store does not support statements", hint="name a database")
    try:
        statement = await own.dry_run(statement)
    except Rejected as refused:
        first = refused.problems[0]
        code = first.code if first.code == KILLED_WORKER else "sql_failed"
        raise Fail(code, first.message, hint=first.hint or SQL_HINT) from refused
    except Unavailable as error:
        raise Fail("database_unavailable", str(error), retryable=True) from error
    return Done(msgspec.json.decode(statement.answer), statement=statement)


def _hint(name: str, databases: Mapping[str, Database]) -> str:
    """The line that names a database; data may have chosen a name that is none."""
    known = ", ".join(sorted([STORE, *databases]))
    key = name if _NAME.fullmatch(name) else "NAME"
    line = f'`{key} = "sqlite:////path/file.db"` or `{key} = "postgresql://…"` under `[databases]`'
    return f"known: {known}; the operator writes {line} in {CONFIG_FILE}, or sets TIDEMILL_DATABASE_{key.upper()}"


# SQLite.

CHILDREN_MAX = 4
IDLE_SECONDS = 60
TIME_MAX_SECONDS = 600
"""Of a statement, whatever its node says: others wait for its place."""


class SqliteDatabase:
    """A SQLite file, which must exist: a statement never creates one. Statements are executed in child processes."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pool = Pool(CHILDREN_MAX, idle_seconds=IDLE_SECONDS)

    async def run(self, text: str, parameters: Parameters, timeout_ms: int | None = None) -> Any:
        spec = ChildSpec(module=CHILD, flags=("-I", "-B"), env=minimal_environment(), cwd="/")
        call = msgspec.json.encode((str(self._path.absolute()), text, bound(parameters)))
        try:
            # A caller that is cancelled leaves it without an answer, so that the child is killed.
            async with self._pool.child(spec) as child:
                async with asyncio.timeout(TIME_MAX_SECONDS):
                    await child.send(call)
                    answer = await child.receive(FRAME_MAX)
                if answer is None:
                    raise _no_answer(await child.exit_report())
                child.reusable = answer[:1] == b"k"
        except TimeoutError:
            message = f"the statement took longer than {TIME_MAX_SECONDS} s"
            raise Fail("timeout", message, hint="do it in parts") from None
        except (StartFailed, RuntimeError) as error:
            message = f"no process could be started for a statement: {error}"
            raise Fail("database_unavailable", message, retryable=True) from error
        if answer[1:2] == b"-":
            raise Fail(**msgspec.json.decode(answer[2:]))
        return msgspec.json.decode(answer[2:])

    async def close(self) -> None:
        await self._pool.close()


def _no_answer(report: ExitReport) -> Fail:
    how = signal.Signals(-report.status).name if report.status < 0 else f"status {report.status}"
    hint = f"it may need more than {PROCESS_MB_MAX} MiB of memory, or the machine has too little"
    message = f"the process of the statement died ({how})"
    return Fail("database_unavailable", message, retryable=True, hint=hint, unknown_outcome=True)
