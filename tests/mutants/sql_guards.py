"""The guards of statements: done once on the run's own store, and bounded and apart from each other elsewhere."""

from __future__ import annotations

from tests.mutants.guard import Guard

ASKS = "engine/asks.py"
DATABASES = "handlers/sql_databases.py"
POSTGRES = "handlers/sql_postgres.py"
IN_SQL = "tests/handlers/test_sql.py::"
IN_POSTGRES = "tests/handlers/test_sql_postgres.py::"

STATEMENTS: tuple[Guard, ...] = (
    Guard(
        name="one-statement-at-publish",
        why="A document with two statements in one would only be refused when it runs.",
        file="handlers/sql.py",
        snippet="if is_several(text, dialect):",
        sabotage="if False:",
        test=IN_SQL + "test_several_statements_are_refused_when_they_are_published[store]",
    ),
    Guard(
        name="sqlites-own-tables-refused",
        why="A statement could use up the numbers that SQLite gives, and no command would work on this store again.",
        file="stores/sqlite/statement.py",
        snippet='RESERVED = ("sqlite_", ',
        sabotage="RESERVED = (",
        test=IN_SQL + "test_the_tables_of_sqlite_are_out_of_reach",
    ),
    Guard(
        name="overtaken-take-turns",
        why="Statements on one row would all be rehearsed again whenever one of them is done.",
        file="stores/sqlite/taking_turns.py",
        snippet="self._orderly = True",
        sabotage="pass",
        test=IN_SQL + "test_statements_on_one_row_take_turns",
    ),
    Guard(
        name="copy-refused",
        why="COPY would leave the connection in the middle of a conversation.",
        file=POSTGRES,
        snippet="if is_copy(text):",
        sabotage="if False:",
        test=IN_POSTGRES + "test_copy_is_refused_quietly[out]",
    ),
    Guard(
        name="lost-race-is-no-attempt",
        why="Where many runs change one row, nodes would fail for nothing but having come second.",
        file=ASKS,
        snippet="if refused.changed:",
        sabotage="if False:",
        test=IN_SQL + "test_two_statements_that_race_both_happen_once",
    ),
    Guard(
        name="fickle-statement-refused",
        why="A statement that asks for chance would be rehearsed again and again, and its run never end.",
        file="stores/sqlite/statement.py",
        snippet="if self._is_fickle(tx, statement):",
        sabotage="if False:",
        test="tests/stores/test_sqlite_statements.py::test_a_refused_statement_takes_its_commit_along[statement2-False]",
    ),
    Guard(
        name="compensator-brings-its-statement",
        why="A rollback would say that it has undone what it has only rehearsed to undo.",
        file="engine/undoing.py",
        snippet="borne(statement, self._disclosed.values_seen)",
        sabotage='b""',
        test=IN_SQL + "test_a_compensator_on_the_store_undoes_in_the_commit_that_says_so",
    ),
    Guard(
        name="database-answer-bounded",
        why="An answer of any size would be taken into the worker's memory.",
        file=DATABASES,
        snippet="if len(self._rows) > ROWS_MAX or self._size > ANSWER_BYTES_MAX:",
        sabotage="if False:",
        test=IN_POSTGRES + "test_what_cannot_be_done_is_a_failure[rows]",
    ),
    Guard(
        name="database-bytes-refused",
        why="Bytes would become something that depends on how they are encoded.",
        file=DATABASES,
        snippet="elif isinstance(value, bytes):",
        sabotage="elif False:",
        test=IN_POSTGRES + "test_what_cannot_be_done_is_a_failure[bytes]",
    ),
    Guard(
        name="postgres-session-forgotten",
        why="What one workflow sets for its session would change what the statements of another one mean.",
        file=POSTGRES,
        snippet="                reset=_forget,\n",
        sabotage="",
        test=IN_POSTGRES + "test_a_statement_leaves_nothing_to_the_next",
    ),
    Guard(
        name="postgres-connection-looked-at",
        why="After the server was restarted, each connection that was kept would cost a node an attempt.",
        file=POSTGRES,
        snippet="                check=AsyncConnectionPool.check_connection,\n",
        sabotage="",
        test=IN_POSTGRES + "test_a_connection_that_was_cut_is_not_used_again",
    ),
    Guard(
        name="postgres-url-not-quoted",
        why="A part of a password with an @ in it would be shown as the name of a host.",
        file=POSTGRES,
        snippet='if "@" in str(given.get("host", "")):',
        sabotage="if False:",
        test=IN_POSTGRES + "test_a_database_that_cannot_be_reached[password with an at]",
    ),
    Guard(
        name="postgres-port-not-quoted",
        why="A part of a password with a colon in it would be shown as a port.",
        file=POSTGRES,
        snippet='if str(error).startswith("connection is bad: invalid"):',
        sabotage="if False:",
        test=IN_POSTGRES + "test_a_database_that_cannot_be_reached[password as a port]",
    ),
    Guard(
        name="postgres-deadlock-retried",
        why="Of two statements that wait for each other, one would fail its run.",
        file=POSTGRES,
        snippet='_BUSY = ("40", ',
        sabotage="_BUSY = (",
        test=IN_POSTGRES + "test_who_stands_in_the_way_of_another_is_tried_again",
    ),
    Guard(
        name="postgres-percent-is-itself",
        why="A percent sign in a statement would be taken for a parameter.",
        file="handlers/sql_text.py",
        snippet='text.replace("%", "%%")',
        sabotage="text",
        test=IN_POSTGRES + "test_the_answer_is_that_of_any_database",
    ),
)
