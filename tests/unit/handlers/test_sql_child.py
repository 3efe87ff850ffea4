"""SQLite files of the operator: statements in a child process that can be killed, and what they may not do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import tidemill
from tidemill.handlers.contract import Fail
from tidemill.handlers.sql import SqliteDatabase
from tidemill.processes.child import Pool

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
ONE_LONG_STEP = (
    "SELECT instr(replace(hex(zeroblob(1000000)),'00','aa'), replace(hex(zeroblob(500000)),'00','aa')||'b') AS x"
)
SORTED = (
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 9000) "
    "SELECT count(*) FROM (SELECT n, hex(zeroblob(2000000)) x FROM c ORDER BY x DESC, n)"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "crm.db"
    connection = apsw.Connection(str(path))
    for statement in (
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n)",
        "CREATE TABLE log (n)",
        "CREATE TRIGGER logged AFTER INSERT ON t BEGIN INSERT INTO log VALUES (upper(new.n)); END",
        "CREATE VIEW last AS SELECT max(id) AS id FROM t",
        "CREATE VIRTUAL TABLE words USING fts5(word)",
    ):
        connection.execute(statement)
    connection.close()
    return path


@pytest.fixture
async def database(file: Path) -> AsyncIterator[SqliteDatabase]:
    opened = SqliteDatabase(file)
    yield opened
    await opened.close()


async def failure(database: SqliteDatabase, text: str, parameters: Any = ()) -> Fail:
    with pytest.raises(Fail) as failed:
        await database.run(text, list(parameters))
    return failed.value


async def test_what_workflows_need(database: SqliteDatabase) -> None:
    for text, parameters, expected in (
        ("INSERT INTO t (n) VALUES (:n), ('b') RETURNING id", {"n": "ä"}, [{"id": 1}, {"id": 2}]),
        ("SELECT n FROM log ORDER BY n", {}, [{"n": "B"}, {"n": "ä"}]),
        ("SELECT id FROM last", {}, [{"id": 2}]),
        ("INSERT INTO words VALUES ('mill'), ('tide')", {}, []),
        (
            "SELECT word, bm25(words) < 0 AS found FROM words WHERE words MATCH ?",
            ["tide"],
            [{"word": "tide", "found": 1}],
        ),
        ("SELECT 'abc' LIKE 'A%' AS a, date('2026-01-31', '+1 day') AS b", {}, [{"a": 1, "b": "2026-02-01"}]),
        ("SELECT value FROM json_each(:list)", {"list": [1, 2.5]}, [{"value": 1}, {"value": 2.5}]),
        ("SELECT n, rank() OVER (ORDER BY id) AS r FROM t", [], [{"n": "ä", "r": 1}, {"n": "b", "r": 2}]),
        ("CREATE TABLE u (a, b)", [], []),
        ("ALTER TABLE u RENAME COLUMN a TO c", [], []),
        ("ALTER TABLE u RENAME TO v", [], []),
        ("CREATE INDEX v_c ON v (c)", [], []),
        ("DROP TABLE v", [], []),
    ):
        assert (await database.run(text, parameters))["rows"] == expected, text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PRAGMA hard_heap_limit = 1000000", "pragmas are not allowed"),
        ("PRAGMA writable_schema = 1", "pragmas are not allowed"),
        ("PRAGMA journal_mode = OFF", "pragmas are not allowed"),
        ("SELECT * FROM pragma_table_info('t')", "pragmas are not allowed"),
        ("ATTACH DATABASE '/etc/hostname' AS other", "other files cannot be attached"),
        ("SELECT load_extension('x')", "load_extension is not allowed"),
        ("CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t; END", "only tables and indexes"),
        ("DROP TRIGGER logged", "only tables and indexes"),
        ("CREATE VIRTUAL TABLE x USING fts5(y)", "only tables and indexes"),
        ("CREATE TEMP TABLE x (n)", "only tables and indexes"),
        ("INSERT INTO sqlite_schema VALUES (1, 1, 1, 1, 1)", "may not be modified"),
        ("DELETE FROM words_data", "may not be modified"),
        ("COMMIT", "the node itself begins"),
        ("SAVEPOINT mine", "savepoints are not allowed"),
        ("SELECT 1; SELECT 2", "more than one statement"),
        ("SELECT 1 AS a, 2 AS a", "two columns"),
        ("SELECT x'00' AS a", "holds bytes"),
        ("SELECT 9e999 AS a", "JSON cannot represent"),
        ("SELECT :n", "bindings"),
        (SORTED, "256 MiB of memory"),
        ("SELECT length(hex(zeroblob(200000000)))", "256 MiB of memory"),
    ],
)
async def test_what_is_refused(database: SqliteDatabase, text: str, said: str) -> None:
    failed = await failure(database, text)
    assert (failed.code, failed.retryable) == ("sql_failed", False) and said in failed.message, failed.message
    assert (await database.run("SELECT count(*) AS n FROM t", []))["rows"] == [{"n": 0}]


@pytest.mark.parametrize(
    "text",
    [
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c",
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n, hex(zeroblob(500000)) AS x FROM c",
    ],
    ids=["rows", "bytes"],
)
async def test_an_endless_answer_is_given_up_while_it_is_read(database: SqliteDatabase, text: str) -> None:
    assert (await failure(database, text)).code == "sql_answer_too_large"


@pytest.mark.parametrize("text", [ENDLESS, ONE_LONG_STEP], ids=["many steps", "one step"])
async def test_a_statement_that_nobody_waits_for_is_killed(
    database: SqliteDatabase, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = Pool._take

    async def noted(self: Pool, spec: Any) -> Any:
        child = await take(self, spec)
        taken.append(child._supervisor.pid)
        return child

    monkeypatch.setattr(Pool, "_take", noted)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await database.run(f"INSERT INTO t (n) {text}", [])
    assert time.monotonic() - began < 30
    with pytest.raises(ProcessLookupError):
        os.kill(taken[0], 0)
    assert (await database.run("SELECT count(*) AS n FROM t", []))["rows"] == [{"n": 0}], "it was not rolled back"


async def test_a_child_is_kept_for_the_next_statement_and_ended_when_idle(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.handlers.sql.IDLE_SECONDS", 0.5)
    database = SqliteDatabase(file)
    seen = set()
    for _ in range(5):
        await database.run("SELECT 1 AS n", [])
        (child,) = database._pool._idle
        seen.add(child)
    assert len(seen) == 1
    (child,) = database._pool._idle
    assert await child.wait(30_000), "it was not ended"
    assert not database._pool._idle
    assert (await database.run("SELECT 1 AS n", []))["count"] == 1
    await database.close()


async def test_a_child_that_was_killed_is_a_failure_with_an_unknown_outcome(database: SqliteDatabase) -> None:
    await database.run("SELECT 1 AS n", [])
    waiting = asyncio.create_task(failure(database, ENDLESS))
    while not database._pool._busy:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    (child,) = database._pool._busy
    child.kill()
    failed = await waiting
    assert (failed.code, failed.retryable, failed.unknown_outcome) == ("database_unavailable", True, True)
    assert (await database.run("SELECT 1 AS n", []))["count"] == 1


KILLED = """
import asyncio, sys
from pathlib import Path
from tidemill.handlers.sql import SqliteDatabase

async def main():
    database = SqliteDatabase(Path(sys.argv[1]))
    await database.run("SELECT 1 AS n", [])
    print("ready", flush=True)
    await database.run("INSERT INTO t (n) " + sys.argv[2], [])

asyncio.run(main())
"""


async def test_a_statement_dies_with_its_worker(database: SqliteDatabase, file: Path) -> None:
    other = apsw.Connection(str(file))
    command = [sys.executable, "-c", KILLED, str(file), ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as worker:  # noqa: ASYNC220
        assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
        while not is_locked(other):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        worker.kill()
    other.close()
    await database.run("INSERT INTO t (n) VALUES (1)", [])
    assert (await database.run("SELECT count(*) AS n FROM t", []))["rows"] == [{"n": 1}]


def is_locked(connection: apsw.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return True
    return False


async def test_no_statement_runs_for_ever(database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.handlers.sql.TIME_MAX_SECONDS", 0.5)
    failed = await failure(database, ENDLESS)
    assert (failed.code, failed.retryable) == ("timeout", False)


async def test_a_file_that_is_missing_is_not_made(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "none.db")
    failed = await failure(database, "SELECT 1")
    assert (failed.code, failed.retryable) == ("database_unavailable", True) and "none.db" in failed.message
    await database.close()
    assert not os.listdir(tmp_path)


def test_a_child_imports_little() -> None:
    code = (
        "import sys; before = set(sys.modules); import tidemill.handlers.sql_child; "
        "print(*(name for name in set(sys.modules) - before if name.startswith(('tidemill', 'msgspec', 'asyncio'))))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(printed.split()) == {
        *("tidemill", "tidemill.handlers", "tidemill.handlers.sql_child"),
        *("tidemill.processes", "tidemill.processes.supervisor"),
    }


def test_a_run_times_out_and_the_store_goes_on(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", f"sqlite:///{file}")

    def asking(text: str, **node: Any) -> dict[str, Any]:
        config = {"database": "crm", "statement": text}
        return {"name": "asking", "nodes": [{"id": "ask", "type": "sql", "config": config, **node}]}

    with tidemill.open(f"sqlite:///{tmp_path / 'runs.db'}") as mill:
        late = mill.run(asking(ONE_LONG_STEP, timeout_seconds=0.5, retry={"max_attempts": 1}))
        assert late.error is not None and late.error["code"] == "timeout"
        refused = mill.run(asking("PRAGMA hard_heap_limit = 1000000"))
        assert refused.error is not None and refused.error["code"] == "sql_failed"
        assert mill.run(asking("SELECT count(*) AS n FROM t")).outputs["ask"]["rows"] == [{"n": 0}]
