"""User SQL in the transaction of a commit: one statement at a time, bounded, kept away from the store's own tables.

A statement is first run dry (executed and rolled back), so that its answer can be recorded as a fact. When the commit
of that fact executes it again, the answer must be the same, else nothing is written. Dry runs happen concurrently until
one of them conflicted; from then on each waits for the commits of the earlier ones, as long as any waits.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any, TypeVar

import apsw
import msgspec

from tidemill.errors import Rejected, rejected
from tidemill.stores.contract import Commit, CommitResult, Committed, Statement, StatementRefused
from tidemill.stores.optional import KILLED_WORKER, bound
from tidemill.stores.sql_files import migrations
from tidemill.stores.sqlite.liveness import ProcessLocks
from tidemill.stores.sqlite.writer import Operation, Transaction
from tidemill.stores.statements import (
    CONFLICT,
    NONDETERMINISTIC,
    AnswerRows,
    StatementSerializer,
    answer_of,
    refusal,
    table_refusal,
)

T = TypeVar("T")

VALUE_BYTES_MAX = 65_536
"""Size of a value within a statement: a function over values is one step, which nothing interrupts."""
MEMORY_BYTES_MAX = 64 << 20
TIME_MAX_MS = 200
"""Of processor time: a statement delays every other commit of its store."""
WALL_TIME_MAX_MS = 500
"""On a machine with other work to do, a statement that is allowed is not refused for what others take."""
PROGRESS_STEPS = 1_000
SHARE = 4
"""Statements get every fourth millisecond of the writer: after one, the next waits three times as long as it took."""
KILLED = "a worker process was lost while it executed this statement, so it is not executed again"

_SCHEMA_CHANGES = {
    *(apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_ALTER_TABLE),
    *(apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_REINDEX),
}
_NAMES_TABLE_SECOND = {apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_ALTER_TABLE}
_NAMES_NO_OTHER_TABLE = {apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_REINDEX}
_ALTER = re.compile(r"\s*ALTER\b", re.IGNORECASE)
_LIKE_FLAGS = re.DOTALL | re.IGNORECASE | re.ASCII
LIKE_CHARACTERS_MAX = 200
_ROW_ACCESS = {apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
_HARMLESS = {apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE}
"""Everything else is denied, above all what would outlive the statement on the store's connection or run inside the
store's own statements: triggers, views, anything temporary."""

_REASONS = {
    apsw.SQLITE_TRANSACTION: "the store itself begins, commits and rolls back",
    apsw.SQLITE_SAVEPOINT: "savepoints are not allowed",
    apsw.SQLITE_ATTACH: "other files cannot be attached",
    apsw.SQLITE_DETACH: "other files cannot be attached",
    apsw.SQLITE_PRAGMA: "pragmas are not allowed",
}


FUNCTIONS = frozenset(
    (
        *("avg", "count", "group_concat", "max", "min", "string_agg", "sum", "total"),
        *("abs", "ceil", "ceiling", "exp", "floor", "ln", "log", "log10", "log2", "mod", "pi", "pow", "power", "round"),
        *("sign", "sqrt", "trunc", "changes", "coalesce", "if", "ifnull", "iif", "last_insert_rowid", "likely"),
        *("nullif", "typeof", "unlikely", "char", "concat", "concat_ws", "format", "hex", "instr", "length", "like"),
        *("lower", "ltrim", "octet_length", "printf", "quote", "replace", "rtrim", "substr", "substring", "trim"),
        *("unicode", "upper", "date", "datetime", "julianday", "strftime", "time", "timediff", "unixepoch"),
        *("random", "->", "->>", "json", "json_array", "json_array_length", "json_extract", "json_group_array"),
        *("json_group_object", "json_insert", "json_object", "json_quote", "json_remove"),
        *("json_replace", "json_set", "json_type", "json_valid", "cume_dist", "dense_rank", "first_value", "lag"),
        *("last_value", "lead", "nth_value", "ntile", "percent_rank", "rank", "row_number"),
    )
)
"""Functions that take little time over values of `VALUE_BYTES_MAX` bytes; `instr`, `like`, `replace`, `trim` are ours.
`json_patch` is missing: its time grows with the square of its arguments."""
FUNCTIONS_MAX = 500
"""Calls of functions in the text of a statement: SQLite looks at the clock only where a loop ends."""
TABLE_FUNCTIONS = frozenset(("json_each", "json_tree"))
RESERVED = ("sqlite_", "pragma_", "tidemill_")
"""Prefixes of names that statements may not use: SQLite's own tables, and tables of later versions of the store."""

ALLOWED = "read and change rows of tables of your own, or make, change and drop such tables and their indexes"


def own_tables() -> frozenset[str]:
    sql = "\n".join(each.sql for each in migrations("sqlite"))
    return frozenset({"migrations", *re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", sql.lower(), re.IGNORECASE)})


class Statements:
    def __init__(self, locks: ProcessLocks) -> None:
        self._own, self._locks = own_tables(), locks
        self._turns = StatementSerializer()
        self._one_at_a_time: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._free_at = 0.0
        self._busy_until = self._until = math.inf
        """When the statement that is executed has had its processor time, and its time at all."""
        self._prepared: apsw.Connection | None = None
        self._modules: set[str] = set()
        """Names of virtual tables that every connection has."""

    async def paced(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write something with a statement in it when statements have not had more than their share of the writer."""
        loop = asyncio.get_running_loop()
        if self._one_at_a_time is None or self._one_at_a_time[0] is not loop:
            # The store may be opened again in another loop.
            self._one_at_a_time = loop, asyncio.Lock()
        async with self._one_at_a_time[1]:
            if (wait := self._free_at - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            return await write()

    async def dry_run_in_turn(
        self, statement: Statement, write: Callable[[Operation[Statement]], Awaitable[Statement]]
    ) -> Statement:
        """Run dry in a transaction of its own, once it is the statement's turn."""
        await self._turns.turn()
        try:
            return await self.paced(lambda: write(lambda tx: self._timed_dry_run(tx, statement)))
        except BaseException:
            self._turns.decided()
            raise

    def _timed_dry_run(self, tx: Transaction, statement: Statement) -> Statement:
        began = time.monotonic()
        answer = self.dry_run(tx, statement)
        took_ms = math.ceil((time.monotonic() - began) * 1000)
        return msgspec.structs.replace(statement, answer=answer, took_ms=took_ms)

    def dry_run(self, tx: Transaction, statement: Statement) -> bytes:
        tx.execute("SAVEPOINT rehearsal")
        try:
            return self._perform(tx.connection, statement)
        finally:
            tx.execute("ROLLBACK TO rehearsal")
            tx.execute("RELEASE rehearsal")

    def within(self, tx: Transaction, commit: Commit, apply: Callable[..., CommitResult]) -> CommitResult:
        """Execute the statements of a commit, then apply it; if either is refused, both are rolled back."""
        tx.execute("SAVEPOINT performance")
        result: CommitResult | None = None
        try:
            result = self._refused(tx, commit.statements) or apply(tx, commit)
        finally:
            if not isinstance(result, Committed):
                tx.execute("ROLLBACK TO performance")
            tx.execute("RELEASE performance")
        # Let the next dry runs start. A commit that is refused for other reasons will be repeated.
        if isinstance(result, Committed):
            self._turns.decided(len(commit.statements))
        elif isinstance(result, StatementRefused) and result.changed:
            equal = [number for number, each in enumerate(commit.statements) if each == result.statement]
            self._turns.decided(len(commit.statements) - equal[result.equals])
            self._turns.serialized = True
        elif isinstance(result, StatementRefused):
            self._turns.decided()
        return result

    def _refused(self, tx: Transaction, statements: Sequence[Statement]) -> StatementRefused | None:
        for place, statement in enumerate(statements):
            equals = statements[:place].count(statement)
            try:
                answer = self._perform(tx.connection, statement)
            except Rejected as found:
                return StatementRefused(statement=statement, message=found.problems[0].message, equals=equals)
            if statement.answer and answer != statement.answer:
                if self._is_nondeterministic(tx, statement):
                    return StatementRefused(statement=statement, message=NONDETERMINISTIC, equals=equals)
                return StatementRefused(statement=statement, message=CONFLICT, changed=True, equals=equals)
        return None

    def _is_nondeterministic(self, tx: Transaction, statement: Statement) -> bool:
        """Whether two dry runs in a row differ: repeating such a statement would never help."""
        tx.execute("ROLLBACK TO performance")
        try:
            return self.dry_run(tx, statement) != self.dry_run(tx, statement)
        except Rejected:
            return False

    def _why_denied(
        self,
        operation: int,
        names: tuple[str | None, str | None],
        schema: str | None,
        statement: Statement,
        tables: Mapping[str, str | None],
    ) -> str:
        """Why an operation is denied; empty if it is allowed."""
        if operation in _HARMLESS:
            return ""
        if operation == apsw.SQLITE_FUNCTION:
            called = str(names[1])
            granted = called in FUNCTIONS or (called.startswith("sqlite_") and _ALTER.match(statement.text))
            return "" if granted else f"the function {called} is not for statements on the store"
        if operation not in _SCHEMA_CHANGES | _ROW_ACCESS:
            return _REASONS.get(operation, "only tables and indexes can be created, and only rows changed")
        if schema not in (None, "main"):
            return "only the store's own file can be used, and no temporary tables"
        for name in names:
            if name is not None and name.lower() in self._own:
                return f"{name} is an internal table of the store"
        table = str(names[1 if operation in _NAMES_TABLE_SECOND else 0]).lower()
        if schema is None and table in self._modules - TABLE_FUNCTIONS:
            return f"no such table: {table}"
        # Without a schema it is a table function, a part of the statement that WITH names, or a table of which only
        # the rows are counted.
        named = table in tables if schema is None else table not in TABLE_FUNCTIONS
        if named and operation not in _NAMES_NO_OTHER_TABLE and not table.startswith(RESERVED):
            owner = tables.get(table)
            if (owner is None or owner != statement.owner) and table not in statement.shared:
                known = table in tables
                return table_refusal(table, owner, statement.owner) if known else f"no such table: {table}"
        # SQLite updates its own tables when others are created or dropped, and does not report the new name in a
        # rename. So the text of the statement decides.
        shaped = operation in _SCHEMA_CHANGES
        for prefix in RESERVED:
            is_used = shaped or any(name is not None and name.lower().startswith(prefix) for name in names)
            if is_used and re.search(rf"\b{prefix}", statement.text, re.IGNORECASE):
                return f"names that begin with {prefix} are not for statements"
        return ""

    def _perform(self, connection: apsw.Connection, statement: Statement) -> bytes:
        """Execute a statement, and note its share of the writer's time."""
        began = time.monotonic()
        try:
            if connection is not self._prepared:
                self._replace_functions(connection)
                modules: Any = connection.execute("SELECT name FROM pragma_module_list").fetchall()
                self._modules, self._prepared = {name.lower() for (name,) in modules}, connection
            with self._locks.surviving(statement.effect_key) if statement.effect_key else nullcontext(True) as survived:
                if not survived:
                    raise rejected(KILLED_WORKER, KILLED, hint="make it smaller; a manual retry executes it once more")
                return self._execute(connection, statement)
        finally:
            now = time.monotonic()
            self._free_at = now + (SHARE - 1) * (now - began)

    def _execute(self, connection: apsw.Connection, statement: Statement) -> bytes:
        parameters = bound(msgspec.json.decode(statement.parameters))
        before_it = _tables(connection)
        tables = dict(before_it)
        reasons: list[str] = []
        done: list[tuple[str, ...]] = []
        operations: Counter[int] = Counter()

        def allowed(operation: int, first: str | None, second: str | None, schema: str | None, _by: str | None) -> int:
            operations[operation] += 1
            reason = self._why_denied(operation, (first, second), schema, statement, tables)
            if operation == apsw.SQLITE_REINDEX and apsw.SQLITE_CREATE_INDEX not in operations:
                reason = "indexes are not rebuilt: it would rebuild the store's own"
            if operations[apsw.SQLITE_FUNCTION] > FUNCTIONS_MAX:
                reason = f"it calls functions in more than {FUNCTIONS_MAX} places"
            if reason:
                reasons.append(reason)
            elif operation == apsw.SQLITE_CREATE_TABLE:
                # Its own keys and rows follow.
                tables.setdefault(str(first).lower(), statement.owner)
            return apsw.SQLITE_DENY if reason else apsw.SQLITE_OK

        def traced(cursor: apsw.Cursor, _text: str, _bound: Any) -> bool:
            done.append(tuple(column[0] for column in cursor.get_description()))
            return len(done) == 1

        self._busy_until, memory = time.thread_time() + TIME_MAX_MS / 1000, apsw.memory_used() + MEMORY_BYTES_MAX
        self._until = time.monotonic() + WALL_TIME_MAX_MS / 1000
        before = connection.total_changes()
        cursor, rows = connection.cursor(), AnswerRows()
        cursor.exec_trace = traced
        connection.authorizer = allowed
        connection.set_progress_handler(
            lambda: self._is_over() or apsw.memory_used() > memory,
            PROGRESS_STEPS,
        )
        longest = connection.limit(apsw.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
        try:
            for row in cursor.execute(statement.text, parameters, can_cache=False):
                rows.add(row)
        except apsw.ExecTraceAbort:
            raise refusal("more than one statement was given", "give each of them a node of its own") from None
        except (apsw.InterruptError, _OutOfTime):
            message = (
                f"it takes more than {TIME_MAX_MS} ms or {MEMORY_BYTES_MAX >> 20} MiB, and everything else waits for it"
            )
            raise refusal(message, "make it smaller, or use a database of the operator's") from None
        except apsw.AuthError:
            raise refusal(reasons[0] if reasons else "it is not allowed", ALLOWED) from None
        except (apsw.SQLError, apsw.ConstraintError, apsw.BindingsError, apsw.MismatchError, apsw.TooBigError) as error:
            raise refusal(reasons[0] if reasons else str(error), ALLOWED if reasons else "") from error
        except KeyError as error:
            name = error.args[0]
            raise refusal(f"the parameter {name!r} is missing", f"add {name} to parameters") from None
        except (OverflowError, TypeError, ValueError) as error:
            hint = "integers have 64 bits; give a larger one as a string"
            raise refusal(f"a parameter cannot be bound: {error}", hint) from error
        finally:
            connection.limit(apsw.SQLITE_LIMIT_LENGTH, longest)
            connection.authorizer = None
            connection.set_progress_handler(None)
            self._busy_until = self._until = math.inf
            cursor.close()
        if operations.keys() & _SCHEMA_CHANGES:
            _note_tables(connection, before_it, statement.owner)
        return answer_of(done[0] if done else (), rows.rows, connection.total_changes() - before)

    def _replace_functions(self, connection: apsw.Connection) -> None:
        """Replace functions whose own versions take quadratic or exponential time over hostile values."""
        functions: list[tuple[str, Any, int]] = [
            ("like", _like, 2),
            ("like", _like, 3),
            ("instr", _instr, 2),
            ("replace", _replace, 3),
            ("trim", partial(_trim, left=True, right=True), 2),
            ("ltrim", partial(_trim, left=True), 2),
            ("rtrim", partial(_trim, right=True), 2),
        ]
        for name, function, arguments in functions:
            connection.create_scalar_function(name, partial(self._timed, function), arguments, deterministic=True)

    def _timed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call one of our functions while the statement has time: between two of them SQLite does not look."""
        if self._is_over():
            raise _OutOfTime
        return function(*arguments)

    def _is_over(self) -> bool:
        return time.thread_time() > self._busy_until or time.monotonic() > self._until


class _OutOfTime(Exception):
    """A statement has had its processor time."""


def _tables(connection: apsw.Connection) -> dict[str, str | None]:
    """Every table, with the workflow that made it; None for those that no statement made."""
    listed: Any = connection.execute(
        "SELECT lower(s.name), t.owner FROM sqlite_schema s LEFT JOIN statement_tables t ON t.name = lower(s.name)"
        " WHERE s.type = 'table'"
    ).fetchall()
    return dict(listed)


def _note_tables(connection: apsw.Connection, before: Mapping[str, str | None], owner: str) -> None:
    """Record the owner of a new table, and forget one that is gone. There is no way to rename one."""
    after = _tables(connection).keys()
    for name in before.keys() - after:
        connection.execute("DELETE FROM statement_tables WHERE name = ?", (name,))
    for name in after - before.keys():
        if not name.startswith("sqlite_"):
            connection.execute("INSERT OR REPLACE INTO statement_tables VALUES (?, ?)", (name, owner))


def _like(pattern: Any, value: Any, escape: Any = None) -> int | None:
    """`value LIKE pattern`: each part between two `%` is found at its first place, and never looked for again."""
    if pattern is None or value is None:
        return None
    return int(_like_pattern(str(pattern), None if escape is None else str(escape)).fullmatch(str(value)) is not None)


@lru_cache(maxsize=64)
def _like_pattern(pattern: str, escape: str | None) -> re.Pattern[str]:
    if len(pattern) > LIKE_CHARACTERS_MAX:
        raise ValueError(f"a pattern of LIKE has more than {LIKE_CHARACTERS_MAX} characters")
    parts, escaped = [""], False
    for character in pattern:
        if escape and character == escape and not escaped:
            escaped = True
            continue
        if character == "%" and not escaped:
            parts.append("")
        else:
            parts[-1] += "." if character == "_" and not escaped else re.escape(character)
        escaped = False
    first, *middle = parts
    if not middle:
        return re.compile(first, _LIKE_FLAGS)
    inner = "".join(f"(?>.*?{part})" for part in middle[:-1])
    return re.compile(f"{first}{inner}.*{middle[-1]}", _LIKE_FLAGS)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _instr(value: Any, part: Any) -> int | None:
    return None if value is None or part is None else _text(value).find(_text(part)) + 1


def _trim(value: Any, characters: Any, *, left: bool = False, right: bool = False) -> str | None:
    if value is None or characters is None:
        return None
    text, removed = _text(value), frozenset(_text(characters))
    start, stop = 0, len(text)
    while left and start < stop and text[start] in removed:
        start += 1
    while right and stop > start and text[stop - 1] in removed:
        stop -= 1
    return text[start:stop]


def _replace(value: Any, part: Any, by: Any) -> str | None:
    if value is None or part is None or by is None:
        return None
    text, part, by = _text(value), _text(part), _text(by)
    if not part:
        return text
    if len(text) + text.count(part) * (len(by) - len(part)) > VALUE_BYTES_MAX:
        raise ValueError(f"a value has more than {VALUE_BYTES_MAX} bytes")
    return text.replace(part, by)
