"""Where the operator's settings come from, which source wins, and that everything wrong is told at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tidemill
from tidemill.api.server_settings import ServerSettings
from tidemill.errors import Rejected
from tidemill.security.grants import ImportGrants, SecretGrant
from tidemill.settings import OTHER_VARIABLES, VARIABLES, Settings, ignored_config, read_settings

FULL = """
imports = ["shop.tasks", "shop.billing:charge"]
egress = ["10.1.2.3:8443", "intranet.example.com"]
shell = true
smtp = "smtp://user:password@mail.example.com:587"
secrets_folder = "FOLDER"

[secrets.CRM_TOKEN]
origins = ["https://api.crm.example.com"]
workflows = ["billing", "invoice-*"]

[databases]
crm = "postgresql://reader:password@db.example.com/crm"

[sql]
store = true

[sql.tables]
ledger = ["audit"]

[limits]
input_bytes = 2048
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings."""
    for name in [each for each in os.environ if each.startswith("TIDEMILL_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return folder


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problems(config: Path | None = None, imports: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    with pytest.raises(Rejected) as refused:
        read_settings(config, imports=imports)
    assert [each for each in refused.value.problems if not each.hint or not each.message] == []
    return [(each.code, each.path) for each in refused.value.problems]


def test_without_any_nothing_is_granted() -> None:
    assert read_settings() == Settings()
    assert not Settings().shell and not Settings().secrets and not Settings().sql.enabled


def test_every_key_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "tidemill.toml", FULL.replace("FOLDER", str(tmp_path)))
    found = read_settings(file)
    assert found.imports == ImportGrants(("shop.tasks", "shop.billing:charge"))
    assert len(found.egress.allow) == 2
    assert found.shell is True
    assert found.smtp is not None and (found.smtp.host, found.smtp.password) == ("mail.example.com", "password")
    assert found.secrets_folder == tmp_path
    assert found.secrets == {"CRM_TOKEN": SecretGrant(("https://api.crm.example.com",), ("billing", "invoice-*"))}
    assert found.databases["crm"][0].startswith("postgresql://reader")
    assert found.sql.enabled is True and found.sql.tables == {"ledger": ("audit",)}
    assert found.limits.input_bytes == 2048
    assert found.source == file


def test_the_first_place_that_has_a_file_is_read(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = written(home / ".config" / "tidemill" / "tidemill.toml", "shell = true")
    assert read_settings().source == user
    other = written(tmp_path / "xdg" / "tidemill" / "tidemill.toml", "shell = true")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert read_settings().source == other
    variable = written(tmp_path / "variable.toml", "shell = false")
    monkeypatch.setenv("TIDEMILL_CONFIG", str(variable))
    assert read_settings().source == variable
    named = written(tmp_path / "named.toml", "shell = true")
    assert read_settings(named).source == named
    assert read_settings(named).shell and not read_settings().shell


def test_a_file_in_the_current_folder_is_read_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = written(tmp_path / "work" / "tidemill.toml", 'shell = true\nimports = ["*"]')
    monkeypatch.chdir(here.parent)
    assert read_settings() == Settings()
    # A relative folder of configuration would be the current one.
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    written(Path("tidemill") / "tidemill.toml", "shell = true")
    assert read_settings() == Settings()
    assert ignored_config(tmp_path, here.parent) == here
    assert ignored_config(tmp_path) is None
    monkeypatch.setenv("TIDEMILL_CONFIG", "tidemill.toml")
    assert read_settings().shell and ignored_config(here.parent) is None


def test_variables_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "tidemill.toml", FULL.replace("FOLDER", str(tmp_path)))
    monkeypatch.setenv("TIDEMILL_IMPORTS", "a, b:f,")
    monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", "10.9.9.9")
    monkeypatch.setenv("TIDEMILL_SHELL", "off")
    monkeypatch.setenv("TIDEMILL_SMTP_URL", "smtps://other.example")
    monkeypatch.setenv("TIDEMILL_SECRET_GRANTS", "CRM_TOKEN=https://b.example@x; MORE=database:crm@*")
    monkeypatch.setenv("TIDEMILL_DATABASE_CRM", "sqlite:////crm.db")
    monkeypatch.setenv("TIDEMILL_SQL_STORE", "off")
    found = read_settings(file, imports=["c"])
    assert found.imports == ImportGrants(("a", "b:f", "c"))
    assert len(found.egress.allow) == 1 and not found.shell and found.sql.enabled is False
    assert found.smtp is not None and found.smtp.host == "other.example"
    assert found.secrets["CRM_TOKEN"] == SecretGrant(("https://b.example",), ("x",)) and "MORE" in found.secrets
    assert found.databases["crm"] == ("sqlite:////crm.db", "TIDEMILL_DATABASE_CRM")
    monkeypatch.setenv("TIDEMILL_IMPORTS", "")
    assert read_settings(file).imports == ImportGrants(()), "an empty list is a list"


def test_imports_that_nobody_lists_are_left_to_the_command() -> None:
    assert read_settings().imports is None
    assert read_settings(imports=["a"]).imports == ImportGrants(("a",))


BROKEN = """
imports = ["a b", "c d", 5, "fine", 6]
egres = []
egress = ["a", 3, 4]
shell = "yes"
smtp = "mail"
secrets_folder = "/nowhere"
databases = {store = "sqlite:///x.db", crm = 3}

[secrets]
C = 3
[secrets.A]
origins = ["ftp://x", "https://fine.example", "gopher://y"]
workflows = ["*"]
[secrets.B]
origins = ["https://b.example"]
workflow = ["b"]

[sql]
store = 1
[sql.tables]
x = "a"

[limits]
input_byte = 3
"""


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "tidemill.toml", BROKEN)
    monkeypatch.setenv("TIDEMILL_SECRET_GRANTS", "A; B=https://b.example@b; C")
    monkeypatch.setenv("TIDEMILL_SQL_STORE", "yes")
    monkeypatch.setenv("TIDEMILL_DATABASE_STORE", "sqlite:///x.db")
    keys = [
        "imports[2]",
        "imports[4]",
        "egres",
        "egress[1]",
        "egress[2]",
        "shell",
        "databases.crm",
        "secrets.C",
        "secrets.A",
        "secrets.B.workflow",
    ]
    keys += ["secrets.B.workflows", "sql.store", "sql.tables.x", "limits.input_byte"]
    found = problems(file, ("b c", "d e"))
    assert sorted(path for code, path in found if code == "setting_invalid") == sorted(f"{file}: {key}" for key in keys)
    assert [each for each in found if each[0] != "setting_invalid"] == [
        *[("import_pattern_invalid", f"{file}: imports")] * 2,
        *[("import_pattern_invalid", "--allow-import")] * 2,
        ("smtp_url_invalid", f"{file}: smtp"),
        ("secrets_folder_invalid", f"{file}: secrets_folder"),
        *[("secret_grant_invalid", "TIDEMILL_SECRET_GRANTS")] * 2,
        ("database_name_invalid", f"{file}: databases.store"),
        ("database_name_invalid", "TIDEMILL_DATABASE_STORE"),
        ("sql_switch_invalid", "TIDEMILL_SQL_STORE"),
    ]


def test_types_are_told_in_words(tmp_path: Path) -> None:
    file = written(tmp_path / "tidemill.toml", 'imports = "tasks"\nshell = "yes"\n[limits]\ninput_bytes = "5"')
    with pytest.raises(Rejected) as refused:
        read_settings(file)
    assert [(each.message, each.hint.partition(" lists")[0]) for each in refused.value.problems] == [
        ("`imports` must be a list, not text", 'write imports = ["…"]'),
        ("`shell` must be true or false, not text", "write true or false, without quotes"),
        ("`limits.input_bytes` must be a whole number, not text", "docs/reference/configuration.md"),
    ]


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:///", "crm.db"])
def test_a_database_of_no_known_kind_is_refused(tmp_path: Path, url: str) -> None:
    file = written(tmp_path / "tidemill.toml", f'[databases]\ncrm = "{url}"')
    assert problems(file) == [("database_unknown", f"{file}: databases.crm")]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TIDEMILL_STOER", "TIDEMILL_STORE"),
        ("TIDEMILL_IMPORT", "TIDEMILL_IMPORTS"),
        ("TIDEMILL_EGRESS", "TIDEMILL_EGRESS_ALLOW"),
        ("TIDEMILL_SERVER_URL", "TIDEMILL_SERVER"),
        ("TIDEMILL_SECRT_CRM", "TIDEMILL_SECRET_CRM"),
        ("TIDEMILL_DATABASES_CRM", "TIDEMILL_DATABASE_CRM"),
        ("TIDEMILL_DATABASE", "TIDEMILL_DATABASE_NAME"),
        ("TIDEMILL_ZORK", ""),
        ("TIDEMILL_SHOP_CRM_TOKEN", ""),
        ("TIDEMILL_", ""),
    ],
)
def test_a_variable_that_nothing_reads_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, meant: str) -> None:
    monkeypatch.setenv(name, "its-value")
    with pytest.raises(Rejected) as refused:
        read_settings()
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("variable_unknown", name)
    assert "unset it" in problem.hint and "its-value" not in f"{problem}"
    assert problem.hint.startswith(f"did you mean `{meant}`?" if meant else "unset it")
    with pytest.raises(Rejected, match=name):
        tidemill.open("memory://")
    with pytest.raises(Rejected, match=name):
        tidemill.connect()
    with tidemill.open("memory://", settings=Settings()) as mill:
        assert list(mill.runs()) == [], "settings that are given are not read from the environment"


def test_unknown_variables_are_told_with_everything_else_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_ZORK", "x")
    file = written(tmp_path / "tidemill.toml", "shel = true")
    assert problems(file) == [("variable_unknown", "TIDEMILL_ZORK"), ("setting_invalid", f"{file}: shel")]
    assert problems(tmp_path / "none.toml") == [("variable_unknown", "TIDEMILL_ZORK"), ("config_missing", "--config")]
    broken = written(tmp_path / "broken.toml", "shell = ")
    assert problems(broken) == [("variable_unknown", "TIDEMILL_ZORK"), ("config_unreadable", f"{broken}")]


@pytest.mark.parametrize(
    "name",
    [
        *("TIDEMILL_SECRET_ANYTHING", "TIDEMILL_GOLDEN", "TIDEMILL_TEST_REDIS"),
        *("TIDEMILL_SERVICE_HOST", "TIDEMILL_SERVICE_PORT", "TIDEMILL_SERVICE_PORT_HTTP", "TIDEMILL_PORT"),
        *("TIDEMILL_PORT_8321_TCP", "TIDEMILL_PORT_8321_TCP_ADDR", "TIDEMILL_SERVER_PORT", "TIDEMILL_WEB_SERVICE_HOST"),
        *(each for each in OTHER_VARIABLES if each != "TIDEMILL_CONFIG"),
    ],
)
def test_variables_of_the_product_its_tests_and_kubernetes_are_known(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "tcp://10.3.2.1:8321")
    assert read_settings() == Settings()
    assert set(OTHER_VARIABLES) < set(VARIABLES)


def test_every_wrong_entry_of_a_list_is_told(tmp_path: Path) -> None:
    file = written(
        tmp_path / "tidemill.toml",
        """
        egress = ["a.example", "http://", "b.example:x"]
        [secrets.A]
        origins = ["ftp://x", "https://fine.example", "gopher://y"]
        workflows = ["*"]
        """,
    )
    with pytest.raises(Rejected) as refused:
        read_settings(file)
    words = str(refused.value)
    assert all(each in words for each in ("'http://'", "'b.example:x'", "'ftp://x', 'gopher://y' are not origins"))
    assert "fine" not in words and "a.example" not in words


@pytest.mark.parametrize(
    ("text", "code"),
    [("shell = ", "config_unreadable"), ("\\x00", "config_unreadable"), ("[limits]\nlimits = 1", "setting_invalid")],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, code: str) -> None:
    file = written(tmp_path / "tidemill.toml", text)
    assert problems(file)[0][0] == code


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_bytes(b"shell = '\xff'")
    assert problems(file) == [("config_unreadable", str(file))]


def test_a_named_file_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(tmp_path / "none.toml") == [("config_missing", "--config")]
    monkeypatch.setenv("TIDEMILL_CONFIG", str(tmp_path))
    assert problems() == [("config_missing", "TIDEMILL_CONFIG")]


def test_no_problem_repeats_a_password(tmp_path: Path) -> None:
    file = written(
        tmp_path / "tidemill.toml",
        'smtp = "smtp://user:hunter22@mail?tls=none"\n[databases]\ncrm = {url = "postgresql://u:hunter22@h/x"}\n',
    )
    with pytest.raises(Rejected) as refused:
        read_settings(file)
    assert len(refused.value.problems) == 2 and "hunter22" not in str(refused.value)


SERVER = """
[server]
session_hours = 2
secret = "a secret of the tests, which is long enough"

[server.jwt]
jwks = "FILE"
issuer = "https://id.example.com"
audience = "tidemill"
roles_claim = "realm_access.roles"

[tenants.acme]
imports = ["acme.tasks"]
functions = ["charge", "report-*"]
egress = ["10.1.0.0/16:443"]

[tenants.acme.secrets.CRM_TOKEN]
origins = ["https://api.crm.example.com"]
workflows = ["billing"]

[tenants.globex]
"""


def test_whom_the_server_believes_and_what_is_bound_to_tenants(tmp_path: Path) -> None:
    keys = written(tmp_path / "jwks.json", "{}")
    found = read_settings(written(tmp_path / "tidemill.toml", SERVER.replace("FILE", str(keys))))
    assert found.server.jwt is not None and found.server.jwt.secret == ""
    assert (found.server.jwt.issuer, found.server.jwt.roles_claim) == ("https://id.example.com", "realm_access.roles")
    assert (found.server.jwks, found.server.session_hours) == (keys, 2)
    acme, globex = found.tenants["acme"], found.tenants["globex"]
    assert acme.imports == ImportGrants(("acme.tasks",)) and acme.functions == ("charge", "report-*")
    assert acme.egress is not None and acme.egress.allow == ("10.1.0.0/16:443",)
    assert acme.secrets is not None and acme.secrets["CRM_TOKEN"].workflows == ("billing",)
    assert (globex.imports, globex.functions, globex.egress, globex.secrets) == (None, None, None, None)
    assert found.of_tenant("acme").imports == acme.imports and found.of_tenant("acme").functions == acme.functions
    assert found.of_tenant("globex").egress == found.egress and found.of_tenant("nobody").functions is None


def test_secrets_of_the_server_come_from_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_JWT_SECRET", "j" * 32)
    monkeypatch.setenv("TIDEMILL_SERVER_SECRET", "s" * 32)
    found = read_settings().server
    assert found.jwt is not None and (found.jwt.secret, found.secret) == ("j" * 32, "s" * 32)


def test_everything_wrong_with_the_server_and_tenants_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
[server]
session_hours = 0
secret = "short"
[server.jwt]
secret = "short"
jwks = "/nowhere/jwks.json"
nope = 1
[tenants.Acme]
imports = ["not a path"]
[tenants.acme]
egress = ["http://"]
shell = true
[tenants.acme.secrets.X]
origins = ["nowhere"]
workflows = []
"""
    file = written(tmp_path / "tidemill.toml", text)
    found = {(code, path.removeprefix(f"{file}: ")) for code, path in problems(file)}
    assert {
        ("setting_invalid", "server.session_hours"),
        ("setting_invalid", "server.secret"),
        ("setting_invalid", "server.jwt.nope"),
        ("setting_invalid", "server.jwt.secret"),
        ("setting_invalid", "server.jwt"),
        ("setting_invalid", "server.jwt.jwks"),
        ("setting_invalid", "server.jwt.issuer"),
        ("setting_invalid", "server.jwt.audience"),
        ("tenant_name_invalid", "tenants.Acme"),
        ("import_pattern_invalid", "tenants.Acme.imports"),
        ("egress_entry_invalid", "tenants.acme.egress"),
        ("setting_invalid", "tenants.acme.shell"),
    } <= found
    assert any(path.startswith("tenants.acme.secrets") for _, path in found)
    monkeypatch.setenv("TIDEMILL_JWT_SECRET", "short")
    assert ("setting_invalid", "TIDEMILL_JWT_SECRET") in problems()


PIN = "sha256:" + "a" * 64
SERVERS = f"""
[mcp.tickets]
command = ["tickets-mcp", "--read"]
env = {{ TOKEN = "x" }}
[mcp.tickets.tools]
search = "{PIN}"
[mcp.wiki]
url = "https://wiki.example.com/mcp"
headers = {{ Authorization = "Bearer x" }}
"""


def test_mcp_servers_and_the_tenants_that_may_use_them(tmp_path: Path) -> None:
    tenants = '[tenants.acme]\nmcp = ["wiki"]\n[tenants.globex]\nmcp = []\n[tenants.initech]\nimports = []\n'
    found = read_settings(written(tmp_path / "tidemill.toml", SERVERS + tenants))
    assert found.mcp["tickets"].command == ("tickets-mcp", "--read") and found.mcp["tickets"].tools == {"search": PIN}
    assert found.mcp["wiki"].headers == {"Authorization": "Bearer x"}
    offered = {name: set(found.of_tenant(name).mcp) for name in ("acme", "globex", "initech", "unnamed")}
    both = {"tickets", "wiki"}
    assert offered == {"acme": {"wiki"}, "globex": set(), "initech": both, "unnamed": both}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('[mcp.Tickets]\ncommand = ["x"]', "mcp.Tickets"),
        ("[mcp.tickets]\ntimeout_seconds = 5", "mcp.tickets"),
        ('[mcp.tickets]\ncommand = ["x"]\nurl = "https://a.example"', "mcp.tickets"),
        ('[mcp.tickets]\ncommand = ["", "x"]', "mcp.tickets.command"),
        ('[mcp.tickets]\ncommand = "x"', "mcp.tickets.command"),
        ('[mcp.tickets]\nurl = "nowhere"', "mcp.tickets.url"),
        ('[mcp.tickets]\nurl = "https://user:password@a.example"', "mcp.tickets.url"),
        ('[mcp.tickets]\nurl = "https://a.example"\nenv = { A = "b" }', "mcp.tickets.env"),
        ('[mcp.tickets]\ncommand = ["x"]\nheaders = { A = "b" }', "mcp.tickets.headers"),
        ('[mcp.tickets]\ncommand = ["x"]\npins = { a = "b" }', "mcp.tickets.pins"),
        ('[mcp.tickets]\ncommand = ["x"]\ntimeout_seconds = nan', "mcp.tickets.timeout_seconds"),
        ('[mcp.tickets]\ncommand = ["x"]\nmax_bytes = 1', "mcp.tickets.max_bytes"),
        ('[mcp.tickets]\ncommand = ["x"]\ntools = { search = "yes" }', "mcp.tickets.tools.search"),
        (SERVERS + '[tenants.acme]\nmcp = ["tikets"]', "tenants.acme.mcp"),
        ('[tenants.acme]\nmcp = ["tickets"]', "tenants.acme.mcp"),
        ("[limits]\nagent_money_per_day = inf", "limits.agent_money_per_day"),
        ("[limits]\nagent_money_per_day = nan", "limits.agent_money_per_day"),
        ("[limits]\nagent_tokens_per_day = 0", "limits.agent_tokens_per_day"),
        ("[limits]\nagent_calls_per_day = -1", "limits.agent_calls_per_day"),
    ],
)
def test_what_is_wrong_with_mcp_servers_and_budgets_is_told(tmp_path: Path, text: str, path: str) -> None:
    file = written(tmp_path / "tidemill.toml", text)
    assert ("setting_invalid", f"{file}: {path}") in problems(file)


def test_how_the_server_is_protected_and_whom_it_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "whsec_" + "A" * 44
    text = f"""
[server]
public_url = "https://mill.example.com"
[server.limits]
body_bytes = 4096
[server.approvals]
webhook = "https://chat.example.com/hook"
secret = ["{key}"]
link_hours = 2
"""
    found = read_settings(written(tmp_path / "tidemill.toml", text)).server
    assert (found.public_url, found.limits.body_bytes) == ("https://mill.example.com", 4096)
    assert (found.approval_webhook, found.approval_webhook_keys) == ("https://chat.example.com/hook", (key,))
    assert (found.link_hours, ServerSettings().link_hours) == (2, 168)
    monkeypatch.setenv("TIDEMILL_APPROVALS_SECRET", f"{key} {key}")
    assert read_settings(tmp_path / "tidemill.toml").server.approval_webhook_keys == (key, key)


def test_a_webhook_without_a_key_and_limits_that_are_none_are_refused(tmp_path: Path) -> None:
    text = """
[server]
public_url = "mill.example.com"
[server.limits]
body_bytes = 0
bytes = 1
[server.approvals]
webhook = "https://"
secret = "whsec_short"
link_hours = 169
"""
    file = written(tmp_path / "tidemill.toml", text)
    assert {(code, path.removeprefix(f"{file}: ")) for code, path in problems(file)} == {
        ("setting_invalid", "server.public_url"),
        ("setting_invalid", "server.limits.body_bytes"),
        ("setting_invalid", "server.limits.bytes"),
        ("setting_invalid", "server.approvals.webhook"),
        ("setting_invalid", "server.approvals.link_hours"),
        ("signing_key_invalid", "server.approvals.secret"),
    }
    file.write_text('[server.approvals]\nwebhook = "https://chat.example.com"\n')
    assert problems(file) == [("setting_invalid", f"{file}: server.approvals.secret")]
