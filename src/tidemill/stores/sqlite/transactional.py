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
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import apsw
import msgspec

from tidemill.errors import Rejected, rejected
from tidemill.stores.contract import Commit, CommitResult, Committed, Statement, StatementRefused
from tidemill.stores.optional import bound
from tidemill.stores.sql_files import migrations
from tidemill.stores.sqlite.writer import Operation, Transaction

PATIENCE_SECONDS = 0.2
"""How long to wait for the commit of a dry run: its caller may have been cancelled."""


class StatementSerializer:
    """Orders the dry runs of one process, all in one loop."""

    def __init__(self) -> None:
        self.serialized = False
        self._undecided = 0
        """Dry runs whose commit is not decided yet."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until a dry run may start."""
        if not self.serialized:
            self._undecided += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit_waiting()
        await turn

    def decided(self, count: int = 1) -> None:
        """Note that dry runs were committed, or will be repeated."""
        self._undecided = max(0, self._undecided - count)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting and not self._undecided:
            turn = self._waiting.popleft()
            if not turn.done():
                self._undecided += 1
                turn.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, lambda: self.decided(self._undecided))
        elif not self._undecided:
            self.serialized = False


# Statements

ROWS_MAX = 10_000
ANSWER_BYTES_MAX = 4_194_304
TIME_MAX_MS = 2_000
"""A statement delays every other commit of its store."""
PROGRESS_STEPS = 10_000
CONFLICT = "its answer differs from that of the dry run: another statement was committed in between"
NONDETERMINISTIC = "its answer differs each time: pass random values and the time as parameters"

_SCHEMA_CHANGES = {
    *(apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_ALTER_TABLE),
    *(apsw.SQLITE_DROP_TABLE, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_REINDEX),
}
_ROW_ACCESS = {apsw.SQLITE_READ, apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE}
_HARMLESS = {apsw.SQLITE_SELECT, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE}
"""Everything else is denied, above all what would outlive the statement on the store's connection or run inside the
store's own statements: triggers, views, anything temporary."""

_REASONS = {
    apsw.SQLITE_TRANSACTION: "BEGIN, COMMIT and ROLLBACK are the store's own affair",
    apsw.SQLITE_SAVEPOINT: "savepoints are the store's own affair",
    apsw.SQLITE_ATTACH: "other files cannot be attached",
    apsw.SQLITE_DETACH: "other files cannot be attached",
    apsw.SQLITE_PRAGMA: "pragmas are not allowed",
}


RESERVED = ("sqlite_", "pragma_", "tidemill_")
"""Prefixes of names that statements may not use: SQLite's own tables, and tables of later versions of the store."""

ALLOWED = "read and change rows of tables of your own, or make, change and drop such tables and their indexes"


def refusal(message: str, hint: str = "") -> Rejected:
    return rejected("statement_refused", message, hint=hint)


def own_tables() -> frozenset[str]:
    sql = "\n".join(each.sql for each in migrations("sqlite"))
    return frozenset({"migrations", *re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", sql.lower(), re.IGNORECASE)})


class Statements:
    def __init__(self) -> None:
        self._own = own_tables()
        self._turns = StatementSerializer()

    async def dry_run_in_turn(
        self, statement: Statement, write: Callable[[Operation[bytes]], Awaitable[bytes]]
    ) -> bytes:
        """Run dry in a transaction of its own, once it is the statement's turn."""
        await self._turns.turn()
        try:
            return await write(lambda tx: self.dry_run(tx, statement))
        except BaseException:
            self._turns.decided()
            raise

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

    def _why_denied(self, operation: int, names: tuple[str | None, ...], schema: str | None, text: str) -> str:
        """Why an operation is denied; empty if it is allowed."""
        if operation in _HARMLESS:
            return "extensions cannot be loaded" if "load_extension" in names else ""
        if operation not in _SCHEMA_CHANGES | _ROW_ACCESS:
            return _REASONS.get(operation, "only tables and indexes can be made, and only rows be changed")
        if schema not in (None, "main"):
            return "only the store's own file can be used, and nothing that is temporary"
        for name in names:
            if name is not None and name.lower() in self._own:
                return f"{name} is a table of the store's own"
        # SQLite updates its own tables when others are created or dropped, and does not report the new name in a
        # rename. So the text of the statement decides.
        shaped = operation in _SCHEMA_CHANGES
        for prefix in RESERVED:
            named = shaped or any(name is not None and name.lower().startswith(prefix) for name in names)
            if named and re.search(rf"\b{prefix}", text, re.IGNORECASE):
                return f"names that begin with {prefix} are not for statements"
        return ""

    def _perform(self, connection: apsw.Connection, statement: Statement) -> bytes:
        parameters = bound(msgspec.json.decode(statement.parameters))
        reasons: list[str] = []
        done: list[tuple[str, ...]] = []

        def allowed(operation: int, first: str | None, second: str | None, schema: str | None, _by: str | None) -> int:
            reason = self._why_denied(operation, (first, second), schema, statement.text)
            if reason:
                reasons.append(reason)
            return apsw.SQLITE_DENY if reason else apsw.SQLITE_OK

        def traced(cursor: apsw.Cursor, _text: str, _bound: Any) -> bool:
            done.append(tuple(column[0] for column in cursor.get_description()))
            return len(done) == 1

        deadline = time.monotonic() + TIME_MAX_MS / 1000
        before = connection.total_changes()
        cursor = connection.cursor()
        cursor.exec_trace = traced
        connection.authorizer = allowed
        connection.set_progress_handler(lambda: time.monotonic() > deadline, PROGRESS_STEPS)
        longest = connection.limit(apsw.SQLITE_LIMIT_LENGTH, ANSWER_BYTES_MAX)
        try:
            rows = []
            for row in cursor.execute(statement.text, parameters, can_cache=False):
                rows.append(row)
                if len(rows) > ROWS_MAX:
                    raise refusal(f"it answers more than {ROWS_MAX} rows", "ask for less, with WHERE or LIMIT")
        except apsw.ExecTraceAbort:
            raise refusal("there is more than one statement", "give each of them a node of its own") from None
        except apsw.InterruptError:
            message = f"it takes longer than {TIME_MAX_MS} ms, and everything else waits for it"
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
            cursor.close()
        return _answer(done[0] if done else (), rows, connection.total_changes() - before)


def _answer(columns: tuple[str, ...], rows: Sequence[Sequence[Any]], changed: int) -> bytes:
    if len(set(columns)) < len(columns):
        raise refusal("two columns have one name: rename one of them with AS")
    for row in rows:
        for name, value in zip(columns, row, strict=True):
            if isinstance(value, float) and not math.isfinite(value):
                raise refusal(f"the column {name} holds a number that JSON does not have")
            if isinstance(value, bytes):
                raise refusal(f"the column {name} holds bytes: ask for hex({name})")
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    answer = msgspec.json.encode({"rows": found, "count": len(found), "changed": changed})
    if len(answer) > ANSWER_BYTES_MAX:
        raise refusal(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
    return answer
