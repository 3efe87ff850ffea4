"""User SQL in the transaction of a commit: one statement at a time, bounded, kept away from the store's own tables.

Tables of statements are in a schema of their own. A statement is checked twice: before, that it only reads or changes
rows, or tables and indexes, and calls only functions that cannot reach beyond it; after, by the locks that its
transaction holds, that it touched no table but its workflow's own and those that it was granted. Whatever fails a check
is rolled back.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing

import msgspec
import psycopg
from psycopg import sql
from psycopg.types.numeric import IntDumper

from tidemill.errors import Rejected
from tidemill.stores.contract import Commit, CommitResult, Committed, Statement, StatementRefused
from tidemill.stores.optional import bound
from tidemill.stores.postgres.database import SQL, Connection, Place, Readers
from tidemill.stores.postgres.streams import Wave
from tidemill.stores.postgres.writer import Head, Session
from tidemill.stores.postgres_cursor import RowByRow
from tidemill.stores.statements import (
    CONFLICT,
    NONDETERMINISTIC,
    AnswerRows,
    StatementSerializer,
    answer_of,
    is_several,
    refusal,
    table_refusal,
    to_json,
    tokens,
    with_placeholders,
)

TIME_MAX_MS = 200
"""A statement holds locks that others may wait for."""
ALLOWED = "read and change rows of tables of your own, or make, change and drop such tables and their indexes"
FUNCTIONS = frozenset(
    (
        *("avg", "bool_and", "bool_or", "count", "every", "max", "min", "string_agg", "sum", "array_agg"),
        *("json_agg", "jsonb_agg", "json_object_agg", "jsonb_object_agg", "stddev", "variance"),
        *("abs", "ceil", "ceiling", "exp", "floor", "ln", "log", "mod", "pi", "power", "random", "round", "sign"),
        *("sqrt", "trunc", "div", "coalesce", "nullif", "greatest", "least"),
        *("ascii", "btrim", "char_length", "chr", "concat", "concat_ws", "decode", "encode", "initcap", "left"),
        *("length", "lower", "ltrim", "md5", "octet_length", "overlay", "position", "replace", "reverse"),
        *(
            "right",
            "rtrim",
            "sha256",
            "split_part",
            "starts_with",
            "strpos",
            "substr",
            "substring",
            "translate",
            "trim",
        ),
        *("upper", "age", "date", "date_part", "date_trunc", "extract", "make_date", "make_interval", "now"),
        *("timestamp", "timestamptz", "time", "interval", "to_char", "to_date", "to_number", "to_timestamp"),
        *("array_append", "array_length", "array_position", "array_remove", "array_to_string", "cardinality", "unnest"),
        *("generate_series", "json_array_elements", "json_array_length", "json_build_array", "json_build_object"),
        *("json_each", "json_each_text", "json_extract_path", "json_extract_path_text", "json_typeof", "jsonb_set"),
        *("jsonb_array_elements", "jsonb_array_elements_text", "jsonb_array_length", "jsonb_build_array"),
        *("jsonb_build_object", "jsonb_each", "jsonb_each_text", "jsonb_extract_path", "jsonb_extract_path_text"),
        *("jsonb_typeof", "row_to_json", "to_json", "to_jsonb", "cume_dist", "dense_rank", "first_value", "lag"),
        *("last_value", "lead", "nth_value", "ntile", "percent_rank", "rank", "row_number", "row"),
        *("char", "varchar", "numeric", "decimal", "bit", "varbit", "float", "gen_random_uuid"),
    )
)
"""Functions that reach nothing but their arguments. Names that no function has may stand before a parenthesis too."""

_BEGINNINGS = re.compile(
    r"(?:SELECT|INSERT|UPDATE|DELETE|VALUES|WITH"
    r"|(?P<change>CREATE\s+(?:TABLE|(?:UNIQUE\s+)?INDEX)|ALTER\s+TABLE|DROP\s+(?:TABLE|INDEX)))\b",
    re.IGNORECASE,
)
_CALLED = re.compile(r"([^\W\d][\w$]*)\s*\(")
_QUOTED_CALLED = re.compile(r'"\s*\(')
_READS = re.compile(
    r"\b(?:SELECT|TABLESPACE|EXECUTE|VALUES|OWNER|SCHEMA|INHERITS?|TRIGGER|RULE|POLICY)\b", re.IGNORECASE
)

_NAMES_A_FUNCTION = "SELECT DISTINCT proname FROM pg_proc WHERE proname = ANY (%s)"
_TOUCHED = """
SELECT DISTINCT n.nspname, coalesce(t.relname, c.relname)
    FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_index i ON i.indexrelid = c.oid LEFT JOIN pg_class t ON t.oid = i.indrelid
    WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND c.relkind <> 'S'
        AND l.database IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
"""
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
_CATALOGS = frozenset(
    ("pg_locks", "pg_class", "pg_namespace", "pg_index", "pg_database", "pg_proc", "pg_tables", "pg_tablespace")
)
"""What the checks themselves read, with their indexes."""
OWN = "statement_tables"


class Statements:
    def __init__(self, place: Place, readers: Readers, session: Session) -> None:
        self._place, self._readers, self._session = place, readers, session
        self._schema = f"{place.schema}_tables"
        self._turns = StatementSerializer()
        self._made = False

    async def close(self) -> None:
        async with self._session.turn:
            await self._session.close()

    async def dry_run(self, statement: Statement) -> Statement:
        """Execute and roll back; returns the statement with its answer."""
        await self._turns.turn()
        try:
            async with self._readers.link() as link:
                connection = await link.connect()
                await self._make_schema(connection)
                began = time.monotonic()
                answer = await self._dry(connection, statement)
                took_ms = math.ceil((time.monotonic() - began) * 1000)
                return msgspec.structs.replace(statement, answer=answer, took_ms=took_ms)
        except BaseException:
            self._turns.decided()
            raise

    async def commit(self, commit: Commit, wave: Wave, now: int | None) -> CommitResult:
        """Execute the statements of a commit and apply it, both or neither."""

        async def run(head: Head) -> CommitResult:
            connection = await self._session.link.connect()
            await self._make_schema(connection)
            result: CommitResult | None = None
            async with connection.transaction():
                # One after another in all processes: two that do not see each other could both be right.
                await self._session.link.fetch(SQL["one_statement_commit"])
                result = await self._refused(connection, commit.statements)
                if result is None:
                    answers = await self._session.link.fetch(SQL["apply"], (*head, now, *wave.values))
                    (result,) = wave.results(answers[0][0])
                if not isinstance(result, Committed):
                    raise psycopg.Rollback
            assert result is not None
            if isinstance(result, StatementRefused) and result.changed:
                return await self._explained(connection, result)
            return result

        async with self._session.turn:
            result = await self._session.call(run, lambda answer: wave.results(answer)[0])
        self._note(commit, result)
        return result

    def _note(self, commit: Commit, result: CommitResult) -> None:
        """Let the next dry runs start. A commit that is refused for other reasons will be repeated."""
        if isinstance(result, Committed):
            self._turns.decided(len(commit.statements))
        elif isinstance(result, StatementRefused) and result.changed:
            equal = [number for number, each in enumerate(commit.statements) if each == result.statement]
            self._turns.decided(len(commit.statements) - equal[result.equals])
            self._turns.serialized = True
        elif isinstance(result, StatementRefused):
            self._turns.decided()

    async def _refused(self, connection: Connection, statements: Sequence[Statement]) -> StatementRefused | None:
        for place, statement in enumerate(statements):
            equals = statements[:place].count(statement)
            try:
                answer = await self._perform(connection, statement)
            except Rejected as found:
                return StatementRefused(statement=statement, message=found.problems[0].message, equals=equals)
            if statement.answer not in (b"", answer):
                return StatementRefused(statement=statement, message=CONFLICT, changed=True, equals=equals)
        return None

    async def _explained(self, connection: Connection, refused: StatementRefused) -> StatementRefused:
        """Tell a conflict from a statement whose answer differs each time: repeating such a one would never help."""
        try:
            first, second = [await self._dry(connection, refused.statement) for _ in range(2)]
        except Rejected:
            return refused
        if first == second:
            return refused
        return msgspec.structs.replace(refused, message=NONDETERMINISTIC, changed=False)

    async def _dry(self, connection: Connection, statement: Statement) -> bytes:
        async with connection.transaction(force_rollback=True):
            return await self._perform(connection, statement)

    async def _make_schema(self, connection: Connection) -> None:
        if not self._made:
            query = sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self._schema))
            found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,))
            if not await found.fetchall():
                await connection.execute(query)
            self._made = True

    async def _perform(self, connection: Connection, statement: Statement) -> bytes:
        """Execute a statement within the transaction of its connection."""
        changes_tables = await self._check_text(connection, statement.text)
        parameters = bound(msgspec.json.decode(statement.parameters))
        try:
            text = with_placeholders(statement.text, parameters)
        except KeyError as error:
            name = error.args[0]
            raise refusal(f"the parameter {name!r} is missing", f"add {name} to parameters") from None
        local = sql.SQL("SET LOCAL search_path = {}; SET LOCAL statement_timeout = {}; SET LOCAL enable_seqscan = on")
        await connection.execute(local.format(sql.Identifier(self._schema), TIME_MAX_MS), prepare=False)
        cursor, rows = RowByRow(connection), AnswerRows()
        # Integers as small as they are: a function may take no other.
        cursor.adapters.register_dumper(int, IntDumper)
        try:
            # What is streamed is one statement; the rest of an answer that is too large is not read.
            async with connection.transaction(), aclosing(cursor.stream(text.encode(), parameters)) as found:  # type: ignore[type-var]
                async for row in found:
                    rows.add([to_json(value) for value in row])
        except psycopg.errors.QueryCanceled:
            hint = "make it smaller, or use a database of the operator's"
            raise refusal(f"it takes more than {TIME_MAX_MS} ms", hint) from None
        except (
            psycopg.DataError,
            psycopg.ProgrammingError,
            psycopg.IntegrityError,
            psycopg.NotSupportedError,
        ) as error:
            raise refusal(error.diag.message_primary or str(error)) from error
        except (OverflowError, TypeError, ValueError) as error:
            hint = "integers have 64 bits; give a larger one as a string"
            raise refusal(f"a parameter cannot be bound: {error}", hint) from error
        back = sql.SQL("SET LOCAL search_path = {}; SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = off")
        await connection.execute(back.format(sql.Identifier(self._place.schema)), prepare=False)
        await self._check_tables(connection, statement, changes_tables)
        columns = tuple(column.name for column in cursor.description or ())
        return answer_of(columns, rows.rows, cursor.changed, "encode({}, 'hex')")

    async def _check_text(self, connection: Connection, text: str) -> bool:
        """Refuse what a statement may not be or call; whether it changes tables."""
        plain = _plain(text)
        if is_several(text, "postgresql"):
            raise refusal("more than one statement was given", "give each of them a node of its own")
        if OWN in text.lower():
            raise refusal(f"{OWN} is an internal table of the store", ALLOWED)
        begun = _BEGINNINGS.match(plain.strip())
        if begun is None:
            raise refusal("only rows can be read or changed, and tables and indexes created", ALLOWED)
        changes = begun["change"] is not None
        if changes and (found := _READS.search(plain)):
            raise refusal(f"{found[0].upper()} is not allowed where tables are made or changed", ALLOWED)
        if _QUOTED_CALLED.search(plain) and not changes:
            # A quoted name before a parenthesis may be a function.
            plain += _unquoted_calls(text)
        called = {name.lower() for name in _CALLED.findall(plain)} - FUNCTIONS
        rows = await (await connection.execute(_NAMES_A_FUNCTION, (list(called),))).fetchall() if called else []
        if rows:
            raise refusal(f"the function {min(rows)[0]} is not for statements on the store", ALLOWED)
        return changes

    async def _check_tables(self, connection: Connection, statement: Statement, changes: bool) -> None:
        """Refuse a statement that touched another table than its own; note those that it made or dropped."""
        touched = await (await connection.execute(_TOUCHED)).fetchall()
        owners: Mapping[str, str] = dict(
            await (await connection.execute("SELECT name, owner FROM statement_tables")).fetchall()
        )
        made = {name for (name,) in await (await connection.execute(_TABLES, (self._schema,))).fetchall()}
        for schema, name in sorted(touched):
            if schema == self._schema:
                owner = owners.get(name, statement.owner if name in made else None)
                if (owner is None or owner != statement.owner) and name not in statement.shared:
                    raise refusal(table_refusal(name, owner, statement.owner))
            elif schema == self._place.schema:
                if name != OWN:
                    raise refusal(f"{name} is an internal table of the store", ALLOWED)
            elif not (schema == "pg_catalog" and (changes or name in _CATALOGS)) and schema != "pg_toast":
                raise refusal(f"only tables of statements can be used, not {schema}.{name}", ALLOWED)
        if changes:
            new = made - owners.keys()
            for name in owners.keys() - made:
                await connection.execute("DELETE FROM statement_tables WHERE name = %s", (name,))
            for name in new:
                await connection.execute("INSERT INTO statement_tables VALUES (%s, %s)", (name, statement.owner))


def _plain(text: str) -> str:
    """A statement without comments and strings; quoted names become a quote."""
    if re.search(r"(?i)\bU&[\"']", text):
        raise refusal("names and strings with U& are not allowed")
    parts: list[str] = []
    position = 0
    for token in tokens(text, "postgresql"):
        if token.kind in ("comment", "nested", "quoted", "dollars"):
            quoted = token.kind == "quoted" and text[token.start] == '"'
            parts += (text[position : token.start], '"' if quoted else " ")
            position = token.stop
    return "".join([*parts, text[position:]])


def _unquoted_calls(text: str) -> str:
    """Quoted names that stand before a parenthesis, as if they were not quoted."""
    return " ".join(f"{name}(" for name in re.findall(r'"([^"]+)"\s*\(', text))
