"""Sql node, operator's databases, statement scanning, SQLite.

Node type `sql`: one parameterised statement, on the store that holds the run or on a database of the operator's.

On the run's own store the statement is done in the transaction that records the node's result, so it happens exactly
once: it is rehearsed here to learn its answer, and the commit does it for good. Elsewhere it is done like any other
effect, at least once; a statement that is handed `:effect_key` can tell repetitions apart.

What the text of a statement says without a database: whether it is only one, and where its parameters are.

Strings, quoted names and comments are passed over, as each language writes them. Everything takes time in proportion to
the text, because a text may come from anybody who can publish a workflow.

Databases of the operator's as the node type `sql` sees them, and what all of them answer with.

An operator chooses them, by variables of the environment, and a document only names them. So they are not subject to
the guard over outgoing calls, which is there for addresses that come from documents and data.

SQLite files of the operator's, for the node type `sql`.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import apsw
import msgspec

from tidemill.errors import Rejected, Unavailable
from tidemill.expressions.templates.syntax import is_template
from tidemill.handlers.contract import Cancelled, CapabilityMissing, Ended, Fail, Handler, NodeContext, Return
from tidemill.kernel.model import ConfigProblem, Json, NodeType
from tidemill.stores.contract import Statement
from tidemill.stores.optional import TransactionalStatements

Dialect = Literal["sqlite", "postgresql"]

_QUOTED = r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)"""
_pattern = cache(re.compile)
"""Only documents with `sql` nodes pay for compiling these patterns."""
_TOKENS: Mapping[Dialect, str] = {
    "sqlite": (
        rf"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<quoted>{_QUOTED}|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z))|(?P<end>;)"
    ),
    "postgresql": (
        r"(?P<comment>--[^\n]*)|(?P<nested>/\*)"
        rf"|(?P<quoted>(?<![\w$])[eE]'(?:[^'\\]|\\.)*(?:'|\Z)|{_QUOTED})"
        r"|(?P<dollars>(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))"
        r"|(?P<cast>::)|(?<!\w):(?P<name>[^\W\d]\w*)|(?P<mark>\?)|(?P<end>;)"
    ),
}
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_COPY = r"(?>\s|;|--[^\n]*\n|(?>/\*.*?\*/))*+COPY\b"
_COMPOUND = (
    r"(?>\s|--[^\n]*\n|(?>/\*.*?\*/))*+CREATE\s+(?:OR\s+REPLACE\s+)?(?:(?:TEMP|TEMPORARY|CONSTRAINT)\s+)?"
    r"(?:TRIGGER|FUNCTION|PROCEDURE|RULE)\b"
)
"""Statements with statements inside. Where they end is for the database to say."""


class _Token(NamedTuple):
    kind: str
    start: int
    stop: int
    name: str | None = None


def is_several(text: str, dialect: Dialect) -> bool:
    """Tell whether something follows the end of the first statement."""
    if _pattern(_COMPOUND, re.IGNORECASE | re.DOTALL).match(text):
        return False
    ended, place = False, 0
    for token in _tokens(text, dialect):
        if ended and (token.kind not in ("comment", "nested", "end") or text[place : token.start].strip()):
            return True
        ended = ended or token.kind == "end"
        place = token.stop
    return ended and bool(text[place:].strip())


def is_nothing(text: str, dialect: Dialect) -> bool:
    """Tell whether there is no statement at all, only comments and the ends of statements."""
    place = 0
    for token in _tokens(text, dialect):
        if token.kind not in ("comment", "nested", "end") or text[place : token.start].strip():
            return False
        place = token.stop
    return not text[place:].strip()


def is_copy(text: str) -> bool:
    """Tell whether a statement is PostgreSQL's COPY, which has a conversation of its own with its client."""
    return _pattern(_COPY, re.IGNORECASE | re.DOTALL).match(text) is not None


def with_placeholders(text: str, parameters: list[Any] | dict[str, Any]) -> str:
    """Write a statement with the placeholders of the PostgreSQL driver in place of `?` or `:name`.

    With parameters by name, `?` is an operator of PostgreSQL's. Raises KeyError for a name that is not given.
    """
    named = isinstance(parameters, dict)
    parts: list[str] = []
    place = 0
    for token in _tokens(text, "postgresql"):
        if named and token.kind == "name":
            name = token.name or ""
            if name not in parameters:
                raise KeyError(name)
            placeholder = f"%({name})s"
        elif not named and token.kind == "mark":
            placeholder = "%s"
        else:
            continue
        parts += (_literal(text[place : token.start]), placeholder)
        place = token.stop
    return "".join([*parts, _literal(text[place:])])


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def _tokens(text: str, dialect: Dialect) -> Iterator[_Token]:
    """Find everything that is not plain text, in order."""
    place, tokens = 0, _pattern(_TOKENS[dialect], re.DOTALL)
    while found := tokens.search(text, place):
        kind = found.lastgroup or ""
        place = _comment_end(text, found.start()) if kind == "nested" else found.end()
        yield _Token(kind, found.start(), place, found["name"] if kind == "name" else None)


def _comment_end(text: str, start: int) -> int:
    """Find where a comment ends that may hold others."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)


ROWS_MAX = 10_000
ANSWER_BYTES_MAX = 4_194_304
SQL_HINT = "try the statement by hand with the same parameters"
MISSING_HINT = "add it to parameters"
EXTRAS = {"postgresql": "postgres"}
"""Which extra of the package brings the driver for a dialect."""

Parameters = list[Any] | dict[str, Any]


class Database(Protocol):
    """A database of the operator's."""

    @property
    def dialect(self) -> Dialect:
        """Which SQL it speaks."""
        ...

    async def run(self, text: str, parameters: Parameters) -> Any:
        """Do a statement in a transaction of its own; answers `{rows, count, changed}`.

        When it is cancelled the statement is given up, and nothing of it remains. Raises `Fail`.
        """
        ...

    async def close(self) -> None:
        """Let go of all connections; it can be used again."""
        ...


class LateDatabase:
    """A database whose driver is imported when a statement first needs it."""

    def __init__(self, dialect: Dialect, make: Callable[[], Database]) -> None:
        self.dialect: Dialect = dialect
        self._make = make
        self._made: Database | None = None

    async def run(self, text: str, parameters: Parameters) -> Any:
        """Do a statement."""
        try:
            # Importing takes long enough to keep others waiting.
            made = self._made or self._kept(await asyncio.to_thread(self._make))
        except ImportError as error:
            hint = f'pip install "tidemill[{EXTRAS[self.dialect]}]"'
            raise CapabilityMissing(
                "driver_missing", f"the driver for {self.dialect} is not installed", hint=hint
            ) from error
        return await made.run(text, parameters)

    def _kept(self, made: Database) -> Database:
        """Keep the first that was made, if several statements came at once."""
        if self._made is None:
            self._made = made
        return self._made

    async def close(self) -> None:
        """Let go of all connections."""
        if self._made is not None:
            await self._made.close()


def bound(parameters: Parameters) -> Parameters:
    """Give parameters as databases take them: lists and objects as JSON texts."""
    if isinstance(parameters, dict):
        return {name: _bound(value) for name, value in parameters.items()}
    return [_bound(value) for value in parameters]


def _bound(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, (list, dict)) else value


class Gathered:
    """The rows of an answer, taken one by one, so that too many are noticed before they are all there."""

    def __init__(self, bytes_as: str) -> None:
        self._bytes_as = bytes_as
        """How to ask for bytes, such as `hex({})`."""
        self._columns: tuple[str, ...] = ()
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def head(self, columns: Sequence[str]) -> None:
        """Take the names of the columns."""
        if len(set(columns)) < len(columns):
            raise Fail("sql_failed", "two columns have one name", hint="rename one of them with AS")
        self._columns = tuple(columns)

    def add(self, values: Sequence[Any]) -> None:
        """Take a row."""
        row = dict(zip(self._columns, values, strict=True))
        for name, value in row.items():
            self._check(name, value)
        self._rows.append(row)
        self._size += len(msgspec.json.encode(row))
        if len(self._rows) > ROWS_MAX or self._size > ANSWER_BYTES_MAX:
            message = f"it answers more than {ROWS_MAX} rows or {ANSWER_BYTES_MAX} bytes"
            raise Fail("sql_answer_too_large", message, hint="ask for less, with WHERE or LIMIT")

    def _check(self, name: str, value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                self._check(name, each)
        elif isinstance(value, bytes):
            hint = f"ask for {self._bytes_as.format(name)}"
            raise Fail("sql_failed", f"the column {name} holds bytes, which JSON does not have", hint=hint)
        elif isinstance(value, float) and not math.isfinite(value):
            raise Fail("sql_failed", f"the column {name} holds a number that JSON does not have")

    def answer(self, changed: int) -> dict[str, Any]:
        """Give the whole answer."""
        return {"rows": self._rows, "count": len(self._rows), "changed": changed}


STORE = "store"
"""The name of the run's own store."""
EFFECT_KEY = "effect_key"
NOTHING = "there is no statement, only a comment or nothing"


def sql_handler(
    databases: Mapping[str, Database], own: TransactionalStatements | None = None, *, has_own: bool = True
) -> Handler:
    """The node type over the databases that an operator has named; `own` is the store, if it takes statements.

    Whoever only checks documents has no store, and says whether there would be one (`has_own`).
    """

    async def call(context: NodeContext) -> Ended:
        config: dict[str, Any] = context.config
        name, text = config.get("database", STORE), config["statement"]
        parameters = _parameters(config, context)
        if is_nothing(text, databases[name].dialect if name in databases else "sqlite"):
            raise Fail("sql_failed", NOTHING, hint="write one statement")
        if name == STORE:
            return await _rehearsed(own, Statement(text=text, parameters=msgspec.json.encode(parameters)))
        database = databases.get(name)
        if database is None:
            raise Fail("database_unknown", f"there is no database {name}", hint=_hint(databases))
        return Return(await database.run(text, parameters))

    async def close() -> None:
        for database in databases.values():
            await database.close()

    def flaws(config: Json) -> Iterator[ConfigProblem]:
        name, text = config.get("database", STORE), config["statement"]
        if is_template(name):
            return
        if name == STORE and not has_own:
            yield ConfigProblem(
                "/database", "this store takes no statements", "name a database, or use a store with SQL"
            )
        elif name != STORE and name not in databases:
            yield ConfigProblem("/database", f'there is no database "{name}"', _hint(databases))
        elif not is_template(text):
            dialect = databases[name].dialect if name in databases else "sqlite"
            if is_several(text, dialect):
                yield ConfigProblem(
                    "/statement", "there is more than one statement", "give each of them a node of its own"
                )
            if is_nothing(text, dialect):
                yield ConfigProblem("/statement", NOTHING, "write one statement")

    return Handler(msgspec.structs.replace(SQL, check=flaws), call, close=close)


SQL = NodeType(
    name="sql",
    title="SQL statement",
    icon="database",
    description="Does one parameterised statement; on the run's own store exactly once.",
    secret_fields=("parameters",),
    config_schema={
        "type": "object",
        "properties": {
            "database": {"type": "string", "minLength": 1, "default": STORE},
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


async def _rehearsed(own: TransactionalStatements | None, statement: Statement) -> Return:
    if own is None:
        raise Fail("database_unknown", "this store takes no statements", hint="name a database")
    try:
        answer = await own.dry_run(statement)
    except Rejected as refused:
        raise Fail("sql_failed", refused.problems[0].message, hint=refused.problems[0].hint or SQL_HINT) from refused
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
    return f"known: {known}; an operator names one with TIDEMILL_DATABASE_NAME=sqlite:///file or postgresql://…"


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
