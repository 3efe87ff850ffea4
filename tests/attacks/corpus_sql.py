"""Attacks on the store and on the operator's databases, through statements."""

from __future__ import annotations

from typing import Any

from tests.attacks.review import (
    CRM,
    SQL_ON,
    Completes,
    Ending,
    Ends,
    Fails,
    Refused,
    Row,
    Run,
    document,
    node,
    on_crm,
    on_store,
    once,
)

ALICE = document(
    node("sql", {"statement": "CREATE TABLE ledger (n UNIQUE)"}, "make"),
    node("sql", {"statement": "INSERT INTO ledger VALUES ('canary-of-alice')"}, "fill", dependencies=["make"]),
    name="alice",
)
NOT_SEEN = Completes(lambda outputs: "canary-of-alice" not in str(outputs))
FAILS = Fails("sql_failed")
NUMBERS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {}) "


def steps(*statements: str) -> dict[str, Any]:
    """Statements one after the other; what a step before the last comes to does not matter."""
    nodes = []
    for number, statement in enumerate(statements):
        last = number == len(statements) - 1
        more: dict[str, Any] = {} if last else {"on_error": "continue"}
        if number:
            more["dependencies"] = [f"s{number - 1}"]
        nodes.append(once("sql", {"statement": statement}, id_="x" if last else f"s{number}", **more))
    return document(*nodes, name="mallory")


def store(statement: str, ending: Ending = FAILS, **more: Any) -> Run:
    more.setdefault("grants", SQL_ON)
    return Run(f"store: {statement}"[:60], (on_store(statement),), ending, **more)


OTHERS_ROWS: tuple[Row, ...] = (
    *(
        Run(f"store of alice: {statements[-1]}"[:60], (steps(*statements),), ending, before=(ALICE,), grants=SQL_ON)
        for statements, ending in (
            (("SELECT * FROM LEDGER",), FAILS),
            (("SELECT * FROM main.ledger",), FAILS),
            (('SELECT * FROM "ledger"',), FAILS),
            (("SELECT count(*) AS n FROM ledger",), FAILS),
            (("SELECT 1 AS n WHERE EXISTS (SELECT 1 FROM ledger)",), FAILS),
            (("WITH a AS (SELECT * FROM ledger) SELECT * FROM a",), FAILS),
            (("CREATE TABLE mine AS SELECT * FROM ledger",), FAILS),
            (("INSERT INTO ledger VALUES (1)",), FAILS),
            (("REPLACE INTO ledger VALUES ('canary-of-alice')",), FAILS),
            (("UPDATE ledger SET n = 0",), FAILS),
            (("DELETE FROM ledger",), FAILS),
            (("ALTER TABLE ledger RENAME TO mine",), FAILS),
            (("ALTER TABLE ledger ADD COLUMN x",), FAILS),
            (("CREATE INDEX mine ON ledger (n)",), FAILS),
            (("CREATE TABLE IF NOT EXISTS ledger (n)", "SELECT * FROM ledger"), FAILS),
            (("CREATE TABLE mine (n)", "ALTER TABLE mine RENAME TO ledger"), FAILS),
            (
                (
                    "CREATE TABLE mine (n REFERENCES ledger (n) ON DELETE CASCADE ON UPDATE CASCADE)",
                    "INSERT INTO mine VALUES ('guess')",
                    "SELECT * FROM mine, ledger",
                ),
                FAILS,
            ),
            (("CREATE TABLE mine (n CHECK (n IN (SELECT n FROM ledger)))",), FAILS),
            (("CREATE TABLE mine (n DEFAULT (SELECT n FROM ledger))",), FAILS),
            (("CREATE TABLE mine (n)", "CREATE TRIGGER t AFTER INSERT ON mine BEGIN DELETE FROM ledger; END"), FAILS),
            (("CREATE VIEW mine AS SELECT * FROM ledger", "SELECT * FROM mine"), FAILS),
            (("CREATE TABLE mine (n)", "SELECT (SELECT max(n) FROM ledger) AS n FROM mine"), FAILS),
            (("SELECT * FROM sqlite_schema WHERE sql LIKE '%ledger%'",), FAILS),
            (("SELECT * FROM sqlite_sequence",), FAILS),
            (("SELECT * FROM pragma_table_info('ledger')",), FAILS),
            (("SELECT * FROM pragma_table_list",), FAILS),
            (("SELECT * FROM sqlite_stat1",), FAILS),
            (("SELECT rowid FROM main.[ledger] AS mine",), FAILS),
            (("DROP TABLE IF EXISTS ledger",), FAILS),
        )
    ),
)

FORBIDDEN: tuple[Row, ...] = (
    store("PRAGMA user_version = 9"),
    store("PRAGMA main.journal_mode"),
    store("VACUUM"),
    store("VACUUM INTO '/tmp/tidemill-attack.db'"),
    store("ATTACH ':memory:' AS m"),
    store("DETACH main"),
    store("BEGIN IMMEDIATE"),
    store("COMMIT"),
    store("ROLLBACK"),
    store("SAVEPOINT a"),
    store("CREATE TEMP TABLE t (n)"),
    store("CREATE TEMP VIEW t AS SELECT 1"),
    store("CREATE VIRTUAL TABLE t USING fts5(a)"),
    store("CREATE VIRTUAL TABLE t USING csv(filename='/etc/passwd')"),
    store("CREATE TABLE tidemill_x (n)"),
    store('CREATE TABLE "TIDEMILL_X" (n)'),
    store("CREATE TABLE sqlite_x (n)"),
    store("ANALYZE"),
    store("REINDEX"),
    store("EXPLAIN SELECT 1", Ends(("sql_failed",))),
    store("SELECT load_extension('x') AS n"),
    store("SELECT readfile('/etc/passwd') AS n"),
    store("SELECT writefile('/tmp/tidemill-attack', 'x') AS n"),
    store("SELECT fts3_tokenizer('x') AS n"),
    store("SELECT sqlite_compileoption_get(1) AS n"),
    store("SELECT json_patch('{}', '{}') AS n"),
    store(
        "SELECT " + ", ".join(f"upper('a') AS c{n}" for n in range(501)), Fails("sql_failed", "more than 500 places")
    ),
    store("SELECT 1; DROP TABLE x", Refused("config_invalid")),
    store("SELECT 1 AS n -- \n; SELECT 2 AS n", Refused("config_invalid")),
    store("SELECT 1 AS n\x00; DROP TABLE x", Refused("config_invalid")),
)

HEAVY: tuple[Row, ...] = tuple(
    store(statement, Ends(("sql_failed", "sql_answer_too_large", "config_invalid")), neighbours=True)
    for statement in (
        "SELECT length(randomblob(1000000000)) AS n",
        "SELECT length(zeroblob(2000000000)) AS n",
        "SELECT length(printf('%.*c', 1000000000, 'x')) AS n",
        "SELECT length(format('%1000000000d', 1)) AS n",
        "SELECT length(replace(hex(zeroblob(30000)), '0', hex(zeroblob(30000)))) AS n",
        NUMBERS.format(1_000_000) + "SELECT length(group_concat(n, hex(zeroblob(30000)))) AS n FROM c",
        NUMBERS.format(1_000_000) + "SELECT length(json_group_array(n)) AS n FROM c",
        "SELECT hex(zeroblob(30000)) LIKE '%0%0%0%0%0%0%0%0%0%0%0%0%0%1' AS n",
        "SELECT hex(zeroblob(30000)) GLOB '*0*0*0*0*0*0*0*0*0*0*0*0*0*1' AS n",
        "SELECT 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' REGEXP '(a+)+b' AS n",
        NUMBERS.format(30_000) + "SELECT count(*) AS n FROM c a, c b, c d WHERE a.n + b.n + d.n = 0",
        NUMBERS.format(100_000)
        + "SELECT sum(s) AS n FROM (SELECT sum(n) OVER (ROWS BETWEEN 50000 PRECEDING AND CURRENT ROW) s FROM c)",
        NUMBERS.format(100_000) + "SELECT max(r) AS n FROM (SELECT rank() OVER (ORDER BY n % 7, -n) r FROM c)",
        "WITH RECURSIVE c(x) AS (SELECT hex(zeroblob(30000)) UNION SELECT x || 'a' FROM c) SELECT count(*) AS n FROM c",
        NUMBERS.format(10_000_000) + "SELECT count(DISTINCT n || hex(zeroblob(1000))) AS n FROM c",
        NUMBERS.format(9_999) + "SELECT n, hex(zeroblob(30000)) AS x FROM c",
        NUMBERS.format(10_000_000) + "SELECT n FROM c",
        "SELECT json_extract(replace(hex(zeroblob(15000)), '0', '['), '$') AS n",
        "SELECT random() AS n",
        "SELECT strftime('%f', 'now') AS n",
        "SELECT " + "(" * 900 + "1" + ")" * 900 + " AS n",
        "SELECT " + "+".join(["1"] * 5_000) + " AS n",
        "SELECT 1 AS n WHERE 1 IN (" + ",".join(map(str, range(100_000))) + ")",
        " UNION ALL ".join(["SELECT 1 AS n"] * 400),
        "SELECT " + ", ".join(f"{n} AS c{n}" for n in range(2_000)),
        "CREATE TABLE wide (" + ", ".join(f"c{n}" for n in range(2_000)) + ")",
    )
)

LONG = "printf('%.*c', 64000, '0')"
STRAIGHT: tuple[Row, ...] = (
    Run(
        "store: many patterns without a loop",
        (on_store("SELECT " + ", ".join(f"{LONG} LIKE '%{'_' * 190}1' AS c{n}" for n in range(150))),),
        Fails("sql_failed", "200 ms"),
        grants=SQL_ON,
        neighbours=True,
    ),
    Run(
        "store: many characters to trim",
        (
            on_store(
                "SELECT "
                + ", ".join(f"length(trim({LONG}, printf('%.*c', 5000, '1') || '0')) AS c{n}" for n in range(60))
            ),
        ),
        Ends(("sql_failed",)),
        grants=SQL_ON,
        neighbours=True,
    ),
)
"""Statements that never get to the place where SQLite looks at the clock."""

MORE_STORE: tuple[Row, ...] = (
    Run(
        "store: rows until the disk is full",
        (
            steps(
                "CREATE TABLE mine (n)",
                "INSERT INTO mine " + NUMBERS.format(1_000_000) + "SELECT hex(zeroblob(30000)) FROM c",
            ),
        ),
        FAILS,
        grants=SQL_ON,
        neighbours=True,
    ),
    Run(
        "store: an index over what is there",
        (
            steps(
                "CREATE TABLE mine (n)",
                "INSERT INTO mine " + NUMBERS.format(1_000) + "SELECT n FROM c",
                "CREATE INDEX i ON mine (n)",
            ),
        ),
        Completes(),
        grants=SQL_ON,
    ),
    Run(
        "store: a table that grows while it is read",
        (
            steps(
                "CREATE TABLE mine (n)",
                "INSERT INTO mine VALUES (1)",
                "INSERT INTO mine SELECT a.n FROM mine a, mine b",
            ),
        ),
        Completes(),
        grants=SQL_ON,
    ),
    *(
        Run(
            f"store: a parameter, {name}",
            (
                document(
                    once("sql", {"statement": "SELECT length(:a) AS n", "parameters": {"a": value}}), name="mallory"
                ),
            ),
            Ends(("sql_failed", "config_invalid", "template_failed")),
            grants=SQL_ON,
            inputs={"big": "x" * 900_000, "deep": [[[[[[1]]]]]]},
        )
        for name, value in (
            ("large", "{{ inputs.big }}"),
            ("an integer that does not fit", 2**70),
            ("nested", "{{ inputs.deep }}"),
            ("with a NUL", "a\x00b"),
            ("a lie about a blob", {"$blob": "sha256:" + "0" * 64, "size": 1}),
        )
    ),
    Run(
        "store: many parameters",
        (
            document(
                once("sql", {"statement": "SELECT " + ",".join("?" * 1_900), "parameters": list(range(1_900))}),
                name="mallory",
            ),
        ),
        Ends(("sql_failed",)),
        grants=SQL_ON,
    ),
    Run(
        "store: as a compensator",
        (
            document(
                node("value", 1, compensator={"type": "sql", "config": {"statement": "DELETE FROM ledger"}}),
                node("fail", {"message": "no"}, "y", dependencies=["x"]),
                name="mallory",
                on_failure={"compensate": "automatic"},
            ),
        ),
        Fails("failed"),
        grants=SQL_ON,
        before=(ALICE,),
    ),
    Run(
        "store: a compensator with many steps",
        (
            document(
                node(
                    "value",
                    1,
                    compensator={
                        "type": "sql",
                        "config": {"statement": NUMBERS.format(40_000_000) + "SELECT count(*) AS n FROM c"},
                        "retry": {"max_attempts": 1},
                    },
                ),
                node("fail", {"message": "no"}, "y", dependencies=["x"]),
                name="mallory",
                on_failure={"compensate": "automatic"},
            ),
        ),
        Fails("failed"),
        grants=SQL_ON,
        neighbours=True,
    ),
    Run(
        "store: many statements that are too long",
        (
            document(
                once(
                    "sql",
                    {"statement": NUMBERS.format(40_000_000) + "SELECT count(*) AS n FROM c"},
                    map={"over": list(range(20)), "tolerate": 20},
                ),
                name="mallory",
            ),
        ),
        Completes(),
        grants=SQL_ON,
        neighbours=True,
    ),
)

OPERATORS: tuple[Row, ...] = (
    *(
        Run(f"crm: {statement}"[:60], on_crm(statement, timeout_seconds=5), ending, database=CRM, neighbours=True)
        for statement, ending in (
            ("VACUUM INTO '{folder}/copy.db'", FAILS),
            ("DETACH main", FAILS),
            ("CREATE TEMP TABLE x (n)", FAILS),
            ("CREATE VIEW x AS SELECT * FROM u", FAILS),
            ("CREATE VIRTUAL TABLE x USING fts5(a)", FAILS),
            ("CREATE VIRTUAL TABLE x USING csv(filename='/etc/passwd')", FAILS),
            ("SELECT readfile('/etc/passwd') AS n", FAILS),
            ("SELECT writefile('/tmp/tidemill-attack', 'x') AS n", FAILS),
            ("ATTACH 'file:/etc/passwd?mode=ro' AS s", FAILS),
            ("BEGIN IMMEDIATE", FAILS),
            ("SELECT * FROM pragma_database_list", FAILS),
            ("SELECT length(zeroblob(2000000000)) AS n", Ends(("sql_failed", "sql_answer_too_large"))),
            ("SELECT length(printf('%.*c', 900000000, 'x')) AS n", Ends(("sql_failed", "timeout"))),
            (
                "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c",
                Ends(("sql_answer_too_large", "timeout")),
            ),
            (
                "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) AS n FROM c",
                Fails("timeout"),
            ),
            ("SELECT hex(zeroblob(3000000)) AS n", Ends(("sql_answer_too_large", "sql_failed"))),
            ("SELECT hex(zeroblob(500000)) LIKE '%0%0%0%0%0%0%0%0%0%1' AS n", Ends(("timeout", "sql_failed"))),
        )
    ),
    Run(
        "crm: a database that nobody has named",
        (document(once("sql", {"database": "../store.db", "statement": "SELECT 1 AS n"})),),
        Refused("database_unknown", "`NAME = "),
        database=CRM,
    ),
    Run(
        "crm: a database that is not granted",
        (document(once("sql", {"database": "hr", "statement": "SELECT 1 AS n"})),),
        Refused("database_unknown", '`hr = "postgresql://…"` under `[databases]`'),
    ),
    Run(
        "crm: a database that data chooses",
        (document(once("sql", {"database": "{{ inputs.a }}", "statement": "SELECT 1 AS n"})),),
        Fails("database_unknown"),
        inputs={"a": "secret_grants"},
        database=CRM,
    ),
)

SQL_ROWS: tuple[Row, ...] = (*OTHERS_ROWS, *FORBIDDEN, *HEAVY, *STRAIGHT, *MORE_STORE, *OPERATORS)
