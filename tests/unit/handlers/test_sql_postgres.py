"""Node type `sql` on a PostgreSQL database of the operator's: a real server, started once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.servers.postgres_server import PASSWORD, Server, free_port, running
from tidemill.handlers.contract import Fail
from tidemill.handlers.sql import ANSWER_BYTES_MAX, ROWS_MAX
from tidemill.handlers.sql_postgres import CONNECTIONS_MAX, PostgresDatabase


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.fixture
async def database(server: Server) -> AsyncIterator[PostgresDatabase]:
    server.asked("DROP TABLE IF EXISTS orders")
    server.asked("CREATE TABLE orders (id int PRIMARY KEY, customer text, total numeric(12, 2), note jsonb)")
    opened = PostgresDatabase(server.url)
    yield opened
    await opened.close()


async def failure(database: PostgresDatabase, text: str, parameters: Any = None) -> Fail:
    with pytest.raises(Fail) as failed:
        await database.run(text, parameters or {})
    assert PASSWORD not in repr([failed.value.message, failed.value.hint, str(failed.value.__cause__)])
    return failed.value


async def test_the_answer_is_that_of_any_database(database: PostgresDatabase) -> None:
    insert = "INSERT INTO orders VALUES (:id, :customer, :total, :note) RETURNING id, customer"
    given = {"id": 1, "customer": "50% off: 'ä'", "total": 12.5, "note": {"a": [1]}, "more": 1}
    assert await database.run(insert, given) == {
        "rows": [{"id": 1, "customer": "50% off: 'ä'"}],
        "count": 1,
        "changed": 1,
    }
    asked = await database.run("SELECT total, note FROM orders WHERE customer LIKE '50%' AND id = ?", [1])
    assert asked == {"rows": [{"total": 12.5, "note": {"a": [1]}}], "count": 1, "changed": 0}
    assert await database.run("UPDATE orders SET total = total + 1", {}) == {"rows": [], "count": 0, "changed": 1}
    assert await database.run("SELECT id FROM orders WHERE id < 0", []) == {"rows": [], "count": 0, "changed": 0}
    assert (await database.run("CREATE TABLE IF NOT EXISTS other (n int)", {}))["changed"] == 0


@pytest.mark.parametrize(
    ("text", "parameters", "expected"),
    [
        ("SELECT :a::int + :a::int AS n, ':a ? ;' AS s -- :b ?\n", {"a": 2}, {"n": 4, "s": ":a ? ;"}),
        ("SELECT /* :b /* ? */ :c */ $$:d$$ AS d, $t$ ? $$ :e $t$ AS e, E'\\':f' AS f", {}, None),
        ("SELECT '[\"x\"]'::jsonb ? 'x' AS has, :n::text AS n", {"n": "1"}, {"has": True, "n": "1"}),
        ('SELECT (ARRAY[1,2,3])[1:2] AS part, ? AS "100%"', [True], {"part": [1, 2], "100%": True}),
        ("SELECT :n AS n", {"n": 1 << 70}, {"n": 1 << 70}),
        ("SELECT 7 % 4 AS n;", [], {"n": 3}),
    ],
)
async def test_parameters_are_found_where_they_are(
    database: PostgresDatabase, text: str, parameters: Any, expected: Any
) -> None:
    (row,) = (await database.run(text, parameters))["rows"]
    assert row == (expected or {"d": ":d", "e": " ? $$ :e ", "f": "':f"})


async def test_values_become_json(database: PostgresDatabase) -> None:
    (row,) = (
        await database.run(
            "SELECT 1::numeric AS whole, 10.50::numeric(8,2) AS money, sum(x) AS total, true AS yes, null AS nothing, "
            "'2026-03-29 14:30+02'::timestamptz AS moment, '2026-03-29 14:30:00.5'::timestamp AS local, "
            "'2026-03-29'::date AS day, '14:30'::time AS clock, '1 month 2 days'::interval AS span, "
            "'c0ffee00-0000-4000-8000-000000000000'::uuid AS id, '{\"n\": 12345678901234567890}'::json AS doc, "
            "'{{a,b}}'::text[] AS words, '10.0.0.1'::inet AS host, int4range(1, 3) AS range, "
            "ARRAY['2026-03-29'::date] AS days FROM generate_series(9007199254740993, 9007199254740993) AS x",
            {},
        )
    )["rows"]
    assert row == {
        "whole": 1,
        "money": 10.5,
        "total": 9007199254740993,
        "yes": True,
        "nothing": None,
        "moment": "2026-03-29T12:30:00Z",
        "local": "2026-03-29T14:30:00.500000",
        "day": "2026-03-29",
        "clock": "14:30:00",
        "span": "1 mon 2 days",
        "id": "c0ffee00-0000-4000-8000-000000000000",
        "doc": {"n": 12345678901234567890},
        "words": [["a", "b"]],
        "host": "10.0.0.1",
        "range": "[1,3)",
        "days": ["2026-03-29"],
    }
    assert type(row["whole"]) is int and type(row["money"]) is float


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("SELEC 1", "SQLSTATE 42601", "sql_failed"),
        ("SELECT 1; SELECT 2", "multiple commands", "sql_failed"),
        ("SELECT * FROM nowhere", "SQLSTATE 42P01", "sql_failed"),
        ("SELECT 1 / (3 - n) FROM generate_series(1, 9) AS n", "SQLSTATE 22012", "sql_failed"),
        ("INSERT INTO orders VALUES (1), (1)", "Key (id)=(1) already exists. (SQLSTATE 23505)", "sql_failed"),
        ("SELECT :missing", "'missing' is missing", "sql_failed"),
        ("SELECT 1 AS a, 2 AS a", "two columns", "sql_failed"),
        pytest.param("SELECT '\\x00'::bytea AS raw", "holds bytes", "sql_failed", id="bytes"),
        ("SELECT ARRAY['\\x00'::bytea] AS raw", "holds bytes", "sql_failed"),
        ("SELECT 'NaN'::float8 AS n", "JSON cannot represent", "sql_failed"),
        ("SELECT 'NaN'::numeric AS n", "JSON cannot represent", "sql_failed"),
        ("SELECT 'infinity'::timestamptz AS n", "timestamp too large", "sql_failed"),
        ("COPY orders TO STDOUT", "COPY", "sql_failed"),
        pytest.param(
            f"SELECT generate_series(1, {ROWS_MAX + 1}) AS n", "more than 10000 rows", "sql_answer_too_large", id="rows"
        ),
        (f"SELECT repeat('x', {ANSWER_BYTES_MAX}) AS n", "bytes", "sql_answer_too_large"),
    ],
)
async def test_what_cannot_be_done_is_a_failure(database: PostgresDatabase, text: str, said: str, code: str) -> None:
    failed = await failure(database, text)
    assert said in failed.message and (failed.code, failed.retryable) == (code, False), failed.message
    assert (await database.run("SELECT count(*) AS n FROM orders", {}))["rows"] == [{"n": 0}]


async def test_too_large_an_answer_is_given_up_and_undone(database: PostgresDatabase, server: Server) -> None:
    begun = time.monotonic()
    failed = await failure(database, "INSERT INTO orders SELECT generate_series(1, 200000) RETURNING id")
    assert failed.code == "sql_answer_too_large"
    assert server.asked("SELECT count(*) FROM orders") == [(0,)]
    failed = await failure(database, "SELECT generate_series(1, 1000000000) AS n")
    assert failed.code == "sql_answer_too_large" and time.monotonic() - begun < 60, "it was read to its end"


async def test_parameters_that_do_not_fit(database: PostgresDatabase) -> None:
    assert "parameters" in (await failure(database, "SELECT ?, ?", [1])).message
    assert "NUL" in (await failure(database, "SELECT :s", {"s": "\0"})).message


async def test_who_stands_in_the_way_of_another_is_tried_again(database: PostgresDatabase, server: Server) -> None:
    server.asked("INSERT INTO orders VALUES (1), (2)")
    # Each locks one row, waits, and wants the row of the other.
    first, second = (
        f"WITH a AS (UPDATE orders SET total = 1 WHERE id = {mine} RETURNING pg_sleep(0.2)), "
        f"b AS (SELECT (SELECT count(*) FROM a) AS n) UPDATE orders SET total = n FROM b WHERE id = {other}"
        for mine, other in ((1, 2), (2, 1))
    )
    ended = await asyncio.gather(database.run(first, {}), database.run(second, {}), return_exceptions=True)
    (failed,) = [each for each in ended if isinstance(each, Fail)]
    assert (failed.code, failed.retryable) == ("database_busy", True) and "SQLSTATE 40P01" in failed.message
    failed = await failure(database, "DO $$BEGIN RAISE SQLSTATE '40001'; END$$")
    assert (failed.code, failed.retryable) == ("database_busy", True)


async def test_a_statement_leaves_nothing_to_the_next(database: PostgresDatabase) -> None:
    for text in ("SET search_path = nowhere", "CREATE TEMP TABLE orders (n int)", "COMMIT"):
        await database.run(text, {})
        await asyncio.sleep(0.05)
        assert (await database.run("SELECT id FROM orders", {}))["count"] == 0, text


async def test_a_connection_that_was_cut_is_not_used_again(database: PostgresDatabase, server: Server) -> None:
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidemill'"
    await database.run("SELECT 1 AS n", {})
    await asyncio.sleep(0.2)
    assert (True,) in server.asked(cut), "no connection was kept"
    assert (await database.run("SELECT 1 AS n", {}))["count"] == 1
    waiting = asyncio.create_task(failure(database, "SELECT pg_sleep(20)"))
    await asyncio.sleep(0.3)
    assert (True,) in server.asked(cut)
    failed = await waiting
    assert (failed.code, failed.retryable, failed.unknown_outcome) == ("database_unavailable", True, True)


async def test_more_statements_than_connections_wait_for_each_other(database: PostgresDatabase) -> None:
    many = [
        database.run("SELECT :n::int AS n, pg_sleep(0.02)::text AS s", {"n": n}) for n in range(CONNECTIONS_MAX * 3)
    ]
    assert [answer["rows"][0]["n"] for answer in await asyncio.gather(*many)] == list(range(CONNECTIONS_MAX * 3))


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("postgresql://mill:secret-word@127.0.0.1:{closed}/x", "database_unavailable", "refused"),
        ("postgresql://mill:secret-word@no-such-host.invalid/x", "database_unavailable", "resolve"),
        ("postgresql://mill:secret-word@127.0.0.1:{port}/x", "database_refused", "password authentication failed"),
        ("{url}x", "database_refused", "does not exist"),
        ("postgresql://mill:secret-word@[::1/x", "database_refused", "cannot be read"),
        ("postgresql://mill:x@127.0.0.1:secret-word/x", "database_refused", "cannot be read"),
        ("postgresql://mill:x@secret-word@127.0.0.1/x", "database_refused", "cannot be read"),
    ],
    ids=[
        *("nobody listens", "no such host", "wrong password", "no such database", "no url"),
        *("password as a port", "password with an at"),
    ],
)
async def test_a_database_that_cannot_be_reached(server: Server, url: str, code: str, said: str) -> None:
    database = PostgresDatabase(url.format(closed=free_port(), port=server.port, url=server.url))
    failed = await failure(database, "SELECT 1")
    assert (failed.code, failed.retryable) == (code, code == "database_unavailable") and said in failed.message
    assert "secret-word" not in repr([failed.message, failed.hint, failed.__cause__])
    await database.close()


def asking(statement: str, **node: Any) -> dict[str, Any]:
    config = {"database": "crm", "statement": statement}
    return {"name": "asking", "nodes": [{"id": "ask", "type": "sql", "config": config, **node}]}


def test_a_run_uses_it_and_a_time_out_ends_the_statement_on_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", server.url)
    once = {"timeout_seconds": 0.4, "retry": {"max_attempts": 1}}
    with tidemill.open(f"sqlite:///{tmp_path}/runs.db") as mill:
        run = mill.run(asking("SELECT :effect_key::text AS key"))
        assert run.outputs["ask"]["rows"] == [{"key": f"{run.run_id}/ask/1/-1"}], run.error
        late = mill.run(asking("SELECT pg_sleep(20)::text AS slept", **once))
        assert late.error is not None and late.error["code"] == "timeout"
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidemill' AND state = 'active'"
        assert server.asked(left) == [(0,)], "the statement goes on without anybody who waits for it"
        assert not [line for line in caplog.records if "psycopg" in line.name], "the connection did not survive it"
        with pytest.raises(tidemill.Rejected) as refused:
            mill.publish(asking("SELECT 1; SELECT 2"))
        assert refused.value.problems[0].path == "/nodes/0/config/statement"
    left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidemill'"
    assert server.asked(left) == [(0,)], "a closed engine still holds connections"


ACTIVE = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidemill' AND state = 'active'"
SLEEPING = "SELECT pg_sleep(600)::text AS slept"


def awaited(server: Server, active: int) -> bool:
    """Whether so many statements run on the server, within a generous time."""
    deadline = time.monotonic() + 60
    while server.asked(ACTIVE) != [(active,)]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_cancelled_run_ends_its_statement_on_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", server.url)
    with tidemill.open(f"sqlite:///{tmp_path}/runs.db") as mill:
        mill.publish(asking(SLEEPING))
        run = mill.start("asking", {})
        assert awaited(server, 1), "it never began"
        mill.cancel(run)
        assert mill.result(run, timeout_s=60).status == "CANCELLED"
        assert awaited(server, 0), "the statement goes on without anybody who waits for it"


KILLED = """
import sys, tidemill
with tidemill.open(sys.argv[1]) as mill:
    mill.run({"name": "asking", "nodes": [{"id": "ask", "type": "sql", "timeout_seconds": 3,
              "config": {"database": "crm", "statement": sys.argv[2]}}]})
"""


def test_the_server_ends_the_statement_of_a_worker_that_was_killed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", server.url)
    command = [sys.executable, "-c", KILLED, f"sqlite:///{tmp_path}/runs.db", SLEEPING]
    with subprocess.Popen(command) as worker:
        assert awaited(server, 1), "it never began"
        worker.kill()
    assert awaited(server, 0), "the statement goes on for as long as it likes"


async def test_the_operators_shorter_time_limit_stays(server: Server) -> None:
    database = PostgresDatabase(f"{server.url}?options=-c%20statement_timeout%3D300ms")
    asked = "SELECT current_setting('statement_timeout') AS most"
    for timeout_ms, most in ((None, "300ms"), (60_000, "300ms"), (0, "300ms")):
        assert (await database.run(asked, [], timeout_ms))["rows"] == [{"most": most}]
    await database.close()
    database = PostgresDatabase(server.url)
    for timeout_ms, most in ((None, "0"), (2_000, "3s"), (None, "0")):
        assert (await database.run(asked, [], timeout_ms))["rows"] == [{"most": most}]
    await database.close()


def test_the_password_is_nowhere_in_what_a_run_leaves_behind(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", server.with_password("wrong-canary"))
    with tidemill.open(f"sqlite:///{tmp_path}/runs.db") as mill:
        run = mill.run(asking("SELECT 1"))
        assert run.error is not None
        assert (run.error["code"], run.nodes["ask"]["attempts"]) == ("database_refused", 1)
        assert mill.run(asking("SELECT 1")).status == "FAILED"
    for file in tmp_path.iterdir():
        assert b"wrong-canary" not in file.read_bytes()


@pytest.mark.parametrize("text", ["COPY t TO STDOUT", "-- in\n /* a */ copy t FROM STDIN"], ids=["out", "in"])
async def test_copy_is_refused_quietly(database: PostgresDatabase, caplog: pytest.LogCaptureFixture, text: str) -> None:
    with pytest.raises(Fail, match="COPY is not supported"):
        await database.run(text, [])
    assert (await database.run("SELECT 1 AS n", []))["rows"] == [{"n": 1}]
    assert caplog.records == []
