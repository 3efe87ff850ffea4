"""Node type `sql`: statements on databases of the operator's, and on the run's own store, there exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import tidemill
from tests.fixtures.command_line import eventually
from tests.fixtures.grants import grant_tables
from tests.pace import allowed
from tidemill.errors import Rejected
from tidemill.handlers.contract import CapabilityMissing
from tidemill.node_types import databases
from tidemill.settings import read_settings
from tidemill.stores.contract import Statement
from tidemill.stores.optional import KILLED_WORKER
from tidemill.stores.sqlite.transactional import Statements
from tidemill.stores.sqlite.writer import Transaction
from tidemill.stores.statements import Dialect, is_several, with_placeholders


def made(path: Path, *statements: str) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5_000)
    for statement in statements:
        connection.execute(statement)
    return connection


def asks(statement: str, database: str = "store", **config: Any) -> dict[str, Any]:
    node = {"id": "ask", "type": "sql", "config": {"database": database, "statement": statement, **config}}
    return {"name": "asking", "nodes": [node]}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    grant_tables(monkeypatch, tmp_path, orders="asking", seats="asking")
    path = tmp_path / "runs.db"
    with tidemill.open(f"sqlite:///{path}", work=False):
        pass
    made(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, total REAL)").close()
    return path


def ran(store: Path, document: dict[str, Any], inputs: Any = None) -> Any:
    with tidemill.open(f"sqlite:///{store}") as mill:
        return mill.run(document, inputs or {})


def test_a_statement_on_the_store_is_part_of_the_commit(store: Path) -> None:
    insert = asks(
        "INSERT INTO orders (customer, total) VALUES (:customer, :total) RETURNING id, customer",
        parameters={"customer": "{{ inputs.customer }}", "total": 12.5},
    )
    run = ran(store, insert, {"customer": "acme"})
    assert run.status == "COMPLETED", run.error
    assert run.outputs["ask"] == {"rows": [{"id": 1, "customer": "acme"}], "count": 1, "changed": 1}
    assert made(store, "SELECT 1").execute("SELECT customer, total FROM orders").fetchall() == [("acme", 12.5)]


def test_a_question_has_an_answer_and_changes_nothing(store: Path) -> None:
    made(store, "INSERT INTO orders (customer, total) VALUES ('a', 1), ('b', 2)").close()
    run = ran(store, asks("SELECT customer, total FROM orders WHERE total > ? ORDER BY id", parameters=[1]))
    assert run.outputs["ask"] == {"rows": [{"customer": "b", "total": 2.0}], "count": 1, "changed": 0}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FROM nowhere", "no such table"),
        ("SELECT missing FROM orders", "no such column"),
        ("INSERT INTO orders (id) VALUES (1), (1)", "UNIQUE"),
        ("SELECT body FROM records", "an internal table of the store"),
        ("DELETE FROM jobs", "an internal table of the store"),
        ("INSERT INTO sqlite_master (name) VALUES (1)", "m"),
        ("INSERT INTO streams (id) VALUES (1)", "an internal table of the store"),
        ("DROP TABLE rows", "an internal table of the store"),
        ('DELETE FROM main."SQLITE_sequence"', "sqlite_"),
        ("SELECT name FROM sqlite_schema", "sqlite_"),
        ("SELECT * FROM pragma_user_version", "pragma"),
        ("CREATE TABLE tidemill_new (n)", "tidemill_"),
        ("ALTER TABLE orders RENAME TO tidemill_new", "tidemill_"),
        ("CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM jobs; END", "only tables and indexes"),
        ("COMMIT", "the store itself begins"),
        ("SAVEPOINT mine", "savepoints are not allowed"),
        ("PRAGMA synchronous = OFF", "pragmas are not allowed"),
        ("ATTACH DATABASE ':memory:' AS other", "other files cannot be attached"),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
            "it takes more than 200 ms",
        ),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 10001) SELECT i FROM n", "10000 rows"),
        ("SELECT x'00ff' AS raw", "holds bytes"),
        ("SELECT length(hex(hex(hex(hex('" + "x" * 9_000 + "')))))", "too big"),
        ("SELECT 9e999 AS much", "JSON cannot represent"),
        ("SELECT 1 AS a, 2 AS a", "two columns"),
        ("SELECT length(randomblob(500000000))", "the function randomblob is not for"),
        ("SELECT load_extension('x')", "the function load_extension is not for"),
        ("CREATE TEMP TABLE records (n)", "only"),
        ("CREATE TEMP VIEW jobs AS SELECT 1", "only"),
        ("CREATE TEMP TRIGGER t AFTER INSERT ON main.orders BEGIN DELETE FROM records; END", "only"),
        ("CREATE TRIGGER t AFTER INSERT ON orders BEGIN DELETE FROM orders; END", "only tables and indexes"),
        ("CREATE VIEW v AS SELECT * FROM orders", "only tables and indexes"),
        ("CREATE VIRTUAL TABLE f USING fts5(x)", "only tables and indexes"),
        ("CREATE TABLE jobs (n)", "an internal table of the store"),
        ("ANALYZE", "only tables and indexes"),
        ("VACUUM", "o"),
        ("SELECT ?", "Binding"),
    ],
)
def test_what_cannot_be_done_is_a_failure_and_leaves_nothing(store: Path, statement: str, said: str) -> None:
    run = ran(store, asks(statement))
    assert run.status == "FAILED"
    assert run.error["code"] == "sql_failed" and said in run.error["message"]
    assert run.nodes["ask"]["attempts"] == 1, "the same statement would fail again"
    # The store works on as before.
    assert ran(store, asks("INSERT INTO orders (customer) VALUES ('later')")).status == "COMPLETED"


@pytest.mark.parametrize(
    ("parameters", "said"), [({"n": 1 << 70}, "cannot be bound"), ({"m": 1}, "'n' is missing"), ({}, "'n' is missing")]
)
@pytest.mark.parametrize("database", ["store", "crm"])
def test_parameters_that_do_not_fit(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, parameters: Any, said: str
) -> None:
    made(tmp_path / "crm.db", "CREATE TABLE t (n)").close()
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", f"sqlite:///{tmp_path / 'crm.db'}")
    run = ran(store, asks("SELECT :n AS n", database, parameters=parameters))
    assert (run.error["code"], run.nodes["ask"]["attempts"]) == ("sql_failed", 1)
    assert said in run.error["message"]


def test_tables_and_indexes_can_be_made_and_changed(store: Path) -> None:
    for text in (
        "CREATE TABLE more (id INTEGER PRIMARY KEY AUTOINCREMENT, n)",
        "CREATE INDEX more_n ON more (n)",
        "ALTER TABLE more ADD COLUMN m",
        "INSERT INTO more (n, m) VALUES (1, 2)",
        "DROP INDEX more_n",
        "DROP TABLE more",
    ):
        run = ran(store, asks(text))
        assert run.status == "COMPLETED", (text, run.error)


def test_a_statement_elsewhere_that_nobody_waits_for_is_given_up(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "crm.db", "CREATE TABLE t (n)").close()
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", f"sqlite:///{tmp_path / 'crm.db'}")
    counting = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000000000)"
    slow = f"{counting} INSERT INTO t SELECT max(i) FROM n"
    document = asks(slow, "crm")
    document["nodes"][0] |= {"timeout_seconds": 0.3, "retry": {"max_attempts": 1}}
    assert ran(store, document).error["code"] == "timeout"
    begun = time.monotonic()
    assert ran(store, asks("INSERT INTO t VALUES (7)", "crm")).status == "COMPLETED"
    assert time.monotonic() - begun < 30, "the statement that was given up still holds the file"
    assert made(tmp_path / "crm.db").execute("SELECT n FROM t").fetchall() == [(7,)]


@pytest.mark.parametrize("database", ["store", "crm", "big"])
def test_several_statements_are_refused_when_they_are_published(
    store: Path, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", "sqlite:///nowhere.db")
    monkeypatch.setenv("TIDEMILL_DATABASE_BIG", "postgresql://nobody@nowhere.invalid/x")
    with tidemill.open(f"sqlite:///{store}", work=False) as mill, pytest.raises(Rejected) as refused:
        mill.publish(asks("INSERT INTO orders (customer) VALUES ('a'); DROP TABLE orders", database))
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("config_invalid", "/nodes/0/config/statement")


@pytest.mark.parametrize(
    "statement", ["SELECT 1{{ '; SELECT 2' }}", "{{ '-- nothing' }}", "SELECT '{{ inputs.name }}'"]
)
@pytest.mark.parametrize("database", ["store", "crm", "{{ inputs.where }}"])
def test_a_statement_is_a_constant(store: Path, monkeypatch: pytest.MonkeyPatch, statement: str, database: str) -> None:
    """Whatever data would change in it, an author must not let them."""
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", "sqlite:///nowhere.db")
    with tidemill.open(f"sqlite:///{store}", work=False) as mill, pytest.raises(Rejected) as refused:
        mill.publish(asks(statement, database))
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("statement_not_constant", "/nodes/0/config/statement")
    assert "parameters" in problem.hint


def test_sql_on_the_store_is_off_until_it_is_granted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_CONFIG")
    document = asks("SELECT 1 AS one")
    with pytest.raises(Rejected) as refused:
        ran(store, document)
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("sql_not_enabled", "/nodes/0/config/database")
    assert "`store = true` under `[sql]`" in problem.hint and "TIDEMILL_SQL_STORE=on" in problem.hint
    # A client that does no work does not know what its workers may do. A worker that may not leaves it to others.
    with tidemill.open(f"sqlite:///{store}", work=False) as mill:
        mill.publish(document)
        run = mill.start("asking")
    with tidemill.open(f"sqlite:///{store}") as mill:
        eventually(lambda: "not enabled SQL" in mill.why(run).headline, "nothing says what it lacks")
    monkeypatch.setenv("TIDEMILL_SQL_STORE", "on")
    with tidemill.open(f"sqlite:///{store}") as mill:
        assert mill.result(run).status == "COMPLETED"
    assert ran(store, document).outputs["ask"]["rows"] == [{"one": 1}]
    monkeypatch.setenv("TIDEMILL_SQL_STORE", "off")
    with pytest.raises(Rejected, match="not enabled SQL"):
        ran(store, document)


def test_a_comment_alone_is_refused_when_it_is_published(store: Path) -> None:
    with tidemill.open(f"sqlite:///{store}", work=False) as mill, pytest.raises(Rejected, match="no statement"):
        mill.publish(asks("-- nothing\n ; /* at all */"))


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("SELECT :n", "add n to parameters"),
        ("PRAGMA synchronous", "rows of tables of your own"),
        ("SELECT", "manually"),
    ],
)
def test_each_refusal_has_a_hint_of_its_own(store: Path, statement: str, hint: str) -> None:
    assert hint in ran(store, asks(statement, parameters={})).error["hint"]


def test_statements_on_one_row_take_turns(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(store, "INSERT INTO orders (id, total) VALUES (1, 0)").close()
    dry_runs: list[Statement] = []
    dry_run = Statements.dry_run

    def counted(self: Statements, tx: Transaction, statement: Statement) -> bytes:
        dry_runs.append(statement)
        return dry_run(self, tx, statement)

    monkeypatch.setattr(Statements, "dry_run", counted)
    document = asks("UPDATE orders SET total = total + 1 WHERE id = 1 RETURNING total")
    document["nodes"][0]["map"] = {"over": "{{ range(70) | list }}"}
    run = ran(store, document)
    assert sorted(item["rows"][0]["total"] for item in run.outputs["ask"]) == list(range(1, 71))
    assert len(dry_runs) < 400, "every statement is tried again whenever one of them is done"


ONE: list[tuple[str, Dialect]] = [
    ("SELECT 1;", "sqlite"),
    (" ; -- nothing; else\n /* ; */ ;", "sqlite"),
    ("SELECT ';', \"a;b\", [c;d], `e;f` -- g;\n", "sqlite"),
    ("SELECT 'it''s;' ; /* the end", "sqlite"),
    ("/* a */ -- b\n CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END;", "sqlite"),
    ("SELECT $$;$$, $a$;$$;$a$, E'\\';', U&';' /* ; /* ; */ ; */;", "postgresql"),
    ("CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END", "postgresql"),
]
SEVERAL: list[tuple[str, Dialect]] = [
    ("SELECT 1; SELECT 2", "sqlite"),
    ("SELECT 1;SELECT ';", "sqlite"),
    ("SELECT '\\'; DROP TABLE a --'", "sqlite"),
    ("SELECT 1 /* /* */ ; DROP TABLE a -- */", "sqlite"),
    ('SELECT 1;; "x"', "sqlite"),
    ("SELECT '\\'; DROP TABLE a --'", "postgresql"),
    ("SELECT a$b$; DROP TABLE a --$b$", "postgresql"),
]


@pytest.mark.parametrize(("text", "dialect", "several"), [(*o, False) for o in ONE] + [(*s, True) for s in SEVERAL])
def test_where_a_statement_ends(text: str, dialect: Dialect, several: bool) -> None:
    assert is_several(text, dialect) is several


@pytest.mark.parametrize("part", [";", "/*", "/**/", "$$", "$a$", "'", "E'\\", "--", "\n", " ", ":a", "?", "CREATE "])
def test_reading_a_text_takes_time_in_proportion_to_it(part: str) -> None:
    began = time.thread_time()
    text = part * (65_536 // len(part))
    for dialect in ("sqlite", "postgresql"):
        is_several("SELECT '" + text, dialect)
        is_several(text + "x", dialect)
    with_placeholders(text, {"a": 1})
    with_placeholders(text, [])
    assert time.thread_time() - began < allowed(1)


def test_a_store_without_sql_refuses_the_document() -> None:
    with tidemill.open("memory://", work=False) as mill, pytest.raises(Rejected) as refused:
        mill.publish(asks("SELECT 1"))
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("config_invalid", "/nodes/0/config/database")
    assert "does not support statements" in problem.message


def test_a_database_of_the_operators(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "crm.db", "CREATE TABLE seen (key TEXT PRIMARY KEY, n INTEGER)").close()
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", f"sqlite:///{tmp_path / 'crm.db'}")
    text = "INSERT INTO seen VALUES (:effect_key, :n) ON CONFLICT DO NOTHING"
    run = ran(store, asks(text, "crm", parameters={"n": 3}))
    assert run.outputs["ask"]["changed"] == 1
    assert made(tmp_path / "crm.db").execute("SELECT * FROM seen").fetchall() == [(f"{run.run_id}/ask/1/-1", 3)]
    failed = ran(store, asks("SELECT * FROM nowhere", "crm"))
    assert (failed.error["code"], failed.nodes["ask"]["attempts"]) == ("sql_failed", 1)
    with tidemill.open(f"sqlite:///{store}", work=False) as mill, pytest.raises(Rejected) as refused:
        mill.publish(asks("SELECT 1", "crn"))
    assert 'there is no database "crn"' in refused.value.problems[0].message


def test_two_statements_that_race_both_happen_once(store: Path) -> None:
    """Each is rehearsed before the other commits, so one of them comes out otherwise and is rehearsed again."""
    made(store, "INSERT INTO orders (id, customer, total) VALUES (1, 'x', 0)").close()
    text = "UPDATE orders SET total = total + 1 WHERE id = 1 RETURNING total"
    document = asks(text)
    document["nodes"][0]["retry"] = {"max_attempts": 1}
    with tidemill.open(f"sqlite:///{store}", work=False) as mill:
        mill.publish(document)
        started = [mill.start("asking", {}) for _ in range(30)]
    # A worker that finds them all begins with them at once.
    with tidemill.open(f"sqlite:///{store}") as mill:
        runs = [mill.result(run) for run in started]
    assert [run.error for run in runs if run.status != "COMPLETED"] == []
    assert sorted(run.outputs["ask"]["rows"][0]["total"] for run in runs) == [float(n) for n in range(1, 31)]
    assert {run.nodes["ask"]["attempts"] for run in runs} == {1}, "a lost race is not an attempt"


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_items_of_one_run_that_race_all_happen_once(store: Path, delivery: str) -> None:
    """Their results share commits, in which only the first of them can come out as it was rehearsed."""
    made(store, "INSERT INTO orders (id, total) VALUES (1, 0)").close()
    document = asks("UPDATE orders SET total = total + 1 WHERE id = 1 RETURNING total")
    once = {"delivery": delivery, "retry": {"max_attempts": 1}}
    document["nodes"][0] |= once | {"map": {"over": "{{ range(20) | list }}"}}
    run = ran(store, document)
    assert run.status == "COMPLETED", run.error
    assert sorted(each["rows"][0]["total"] for each in run.outputs["ask"]) == [float(n) for n in range(1, 21)]


def test_a_refused_statement_is_not_the_failure_of_its_neighbours(store: Path) -> None:
    """Their results may share a commit; each insert of the same key is refused but one."""
    document = asks("INSERT INTO orders (id, customer) VALUES (:id, 'x')", parameters={"id": "{{ item }}"})
    document["nodes"][0]["map"] = {"over": [1, 2, 2, 3], "tolerate": 1}
    run = ran(store, document)
    assert made(store).execute("SELECT id FROM orders ORDER BY id").fetchall() == [(1,), (2,), (3,)], run.nodes


def test_a_statement_that_asks_for_chance_is_refused_at_once(store: Path) -> None:
    document = asks("INSERT INTO orders (customer) VALUES (random()) RETURNING customer")
    run = ran(store, document)
    assert (run.error["code"], run.nodes["ask"]["attempts"]) == ("sql_failed", 1)
    assert "its result differs each time" in run.error["message"]


def test_a_compensator_on_the_store_undoes_in_the_commit_that_says_so(store: Path) -> None:
    made(store, "CREATE TABLE seats (n)").close()
    document = asks("INSERT INTO seats VALUES (7)")
    undo = {"type": "sql", "config": {"statement": "DELETE FROM seats WHERE n = 7 RETURNING n"}}
    document["nodes"][0]["compensator"] = undo
    document["nodes"] += [{"id": "fails", "type": "fail", "dependencies": ["ask"], "config": {"kind": "no_plane"}}]
    document |= {"on_failure": {"compensate": "automatic"}}
    run = ran(store, document)
    assert made(store).execute("SELECT count(*) FROM seats").fetchall() == [(0,)], run


WORKER = """
import sys, tidemill
with tidemill.open(sys.argv[1]) as mill:
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_killed_worker_leaves_each_statement_done_exactly_once(store: Path) -> None:
    url, runs_wanted, kills = f"sqlite:///{store}", 200, 3
    orders = made(store)

    def done() -> int:
        ((count,),) = orders.execute("SELECT count(*) FROM orders").fetchall()
        return int(count)

    with tidemill.open(url, work=False) as mill:
        mill.publish(asks("INSERT INTO orders (customer) VALUES (:customer)", parameters={"customer": "{{ run.id }}"}))
        runs = [mill.start("asking", {}) for _ in range(runs_wanted)]
        killed_in_the_middle = 0
        for _ in range(kills):
            with started(url) as worker:
                before, deadline = done(), time.monotonic() + 10
                while done() == before and time.monotonic() < deadline:
                    time.sleep(0.001)
                os.kill(worker.pid, signal.SIGKILL)
            killed_in_the_middle += before < done() < runs_wanted
        with started(url) as worker:
            ended = [mill.result(run, timeout_s=60) for run in runs]
            assert worker.stdin is not None
            worker.stdin.close()
            assert worker.wait(30) == 0
    assert killed_in_the_middle, "no worker was killed while it was at work"
    # A statement that was under way when its worker died is not executed again by itself.
    lost = [run for run in ended if run.status == "FAILED"]
    assert len(lost) <= kills and all(run.error is not None and run.error["code"] == KILLED_WORKER for run in lost)
    found = orders.execute("SELECT customer, count(*) FROM orders GROUP BY customer").fetchall()
    assert sorted(found) == sorted((run.run_id, 1) for run in ended if run.status == "COMPLETED")


def started(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, url]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    return worker


async def test_without_its_driver_a_database_is_left_to_other_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", "postgresql://mill@127.0.0.1/crm")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "tidemill.handlers.sql_postgres", raising=False)
    with pytest.raises(CapabilityMissing) as lacking:
        await databases(read_settings())["crm"].run("SELECT 1", [])
    assert lacking.value.code == "driver_missing"
    assert lacking.value.hint == 'pip install "tidemill[postgres]"'
