"""`tidemill nodes`: which node types there are, and what their fields are."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import tidemill
from tests.fixtures.command_line import InProcessCli, eventually

APP = """
import tidemill

SCHEMA = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "description": "Who gets it."},
        "level": {"enum": ["low", "high"], "default": "low"},
        "auth": {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]},
        "rows": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}}},
    },
    "required": ["to"],
}

class Send:
    type = tidemill.NodeType(
        name="send", major=2, version="2.3.1", title="Send", icon="✉", description="Sends something.\\n\\nTwice.",
        config_schema=SCHEMA, secret_fields=("auth.token",), queue="mail",
        capabilities=tidemill.Capabilities(retryable=False, streaming=True, at_most_once=True, concurrency=4),
        output_schema={"type": "object", "properties": {"id": {}}},
    )

    def call(self, context):
        return {"id": 1}

handlers = [Send()]
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sender_app.py").write_text(APP)
    yield "sender_app.py"
    sys.modules.pop("sender_app", None)


def test_types_are_listed(inside: InProcessCli, app: str) -> None:
    said = inside("nodes", "list", "--app", app)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].split() == ["TYPE", "VERSION", "QUEUE", "FROM", "CAN"]
    row = next(number for number, line in enumerate(lines) if line.startswith("send "))
    assert lines[row].split(maxsplit=4) == [
        "send", "2.3.1", "mail", "`handlers`", "stream, at most once, no retries, 4 at a time",
    ]  # fmt: skip
    assert lines[row + 1] == "  Sends something."
    assert any(line.startswith("http ") and "Tidemill" in line for line in lines)


def test_a_type_is_shown_with_its_fields(inside: InProcessCli, app: str) -> None:
    said = inside("nodes", "show", "send", "--app", app)
    assert said.code == 0
    lines = [line.rstrip() for line in said.out.splitlines()]
    assert lines[0] == "send@2  Send"
    assert "returns  object with id" in lines
    table = [line.split() for line in lines[lines.index("") + 1 :] if line.split()]
    fields = {words[0]: " ".join(words[1:]) for words in table}
    assert fields["to"] == "string required"
    assert fields["Who"] == "gets it."
    assert fields["level"] == "low | high low"
    assert fields["auth.token"] == "string required, may hold secrets"
    assert fields["rows"] == "array of object"
    assert fields["rows.*.n"] == "integer | null"


def test_programs_get_everything(inside: InProcessCli, app: str) -> None:
    shown = inside("nodes", "show", "send@2", "--app", app, "--json").json
    assert shown["capabilities"] == {
        "retryable": False, "streaming": True, "checkpointing": False, "at_most_once": True, "process": False,
        "concurrency": 4,
    }  # fmt: skip
    assert shown["secret_fields"] == ["auth.token"]
    assert shown["config_schema"]["required"] == ["to"]
    listed = inside("nodes", "list", "--json").json
    assert {each["name"] for each in listed["types"]} >= {"value", "python", "http", "sleep"}
    assert listed["broken"] == []


def test_every_built_in_type_can_be_shown(inside: InProcessCli) -> None:
    for each in inside("nodes", "list", "--json").json["types"]:
        said = inside("nodes", "show", each["type"])
        assert said.code == 0 and said.out.startswith(each["type"]), each["type"]
        assert each["description"] in said.out


FLOW = "name: sending\nnodes:\n  - {id: a, type: send, config: {to: you}}\n"


@pytest.mark.parametrize(
    "words",
    [("validate", "flow.yaml"), ("publish", "flow.yaml"), ("run", "flow.yaml")],
    ids=["validate", "publish", "run"],
)
def test_types_of_an_app_are_known_where_it_is_named(
    inside: InProcessCli, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TIDEMILL_STORE", f"sqlite:///{tmp_path}/t.db")
    (tmp_path / "flow.yaml").write_text(FLOW)
    without = inside(*words)
    assert without.code == 2 and "[unknown_node_type]" in without.out + without.err
    missing = inside(*words, "--app", "nowhere.py")
    assert missing.code == 2 and "[app_unknown]" in missing.err
    assert inside(*words, "--app", app).code == 0


def test_what_an_app_has_published_is_started_and_changed(
    inside: InProcessCli, app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_STORE", f"sqlite:///{tmp_path}/t.db")
    (tmp_path / "flow.yaml").write_text(FLOW + "  - {id: b, type: value, config: {}, dependencies: [a]}\n")
    assert inside("publish", "flow.yaml", "--app", app).code == 0
    started = inside("start", "sending")
    assert started.code == 0
    edit = ("--set", "/nodes/b/type=send", "--set", "/nodes/b/config/to=me")
    for patch in (("runs", "patch", started.out.strip(), *edit), ("workflows", "patch", "sending", *edit)):
        without = inside(*patch)
        assert without.code == 2 and "[unknown_node_type]" in without.err
        assert inside(*patch, "--app", app).code == 0


WRONG_SETTINGS = [
    ("TIDEMILL_SHELL", "yes", "shell_switch_invalid"),
    ("TIDEMILL_DATABASE_X", "mysql://x", "database_unknown"),
    ("TIDEMILL_DATABASE_X", "sqlite:///", "database_unknown"),
    ("TIDEMILL_DATABASE_STORE", "sqlite:///x.db", "database_name_invalid"),
    ("TIDEMILL_DATABASE_", "sqlite:///x.db", "database_name_invalid"),
    ("TIDEMILL_SMTP_URL", "foo://bar", "smtp_url_invalid"),
    ("TIDEMILL_EGRESS_ALLOW", "http://[bad", "egress_entry_invalid"),
]


@pytest.mark.parametrize(("variable", "value", "code"), WRONG_SETTINGS)
def test_a_wrong_setting_is_not_the_documents_fault(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: str
) -> None:
    monkeypatch.setenv(variable, value)
    file = tmp_path / "flow.yaml"
    file.write_text("name: w\nnodes:\n  - {id: a, type: value, config: 1}\n")
    said = inside("validate", str(file))
    assert (said.code, said.out) == (2, "")
    assert variable in said.err and f"[{code}]" in said.err and "flow.yaml" not in said.err
    assert inside("validate", str(file), "--json").json["problems"][0]["code"] == code


@pytest.mark.parametrize(
    ("variable", "value", "code"), [*WRONG_SETTINGS, ("TIDEMILL_SECRETS", "/nowhere", "secrets_folder_invalid")]
)
def test_a_wrong_setting_is_told_before_anything_is_done(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: str
) -> None:
    monkeypatch.setenv(variable, value)
    (tmp_path / "flow.yaml").write_text("name: w\nnodes:\n  - {id: a, type: value, config: 1}\n")
    store = f"sqlite:///{tmp_path}/t.db"
    for words in (("run", str(tmp_path / "flow.yaml")), ("worker",)):
        said = inside(*words, "--store", store, "--json")
        (problem,) = said.json["problems"]
        assert (said.code, problem["code"], problem["path"]) == (2, code, variable)
        assert problem["hint"]
    assert not (tmp_path / "t.db").exists()


def test_one_database_has_one_name(inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TIDEMILL_DATABASE_CRM", "TIDEMILL_DATABASE_Crm"):
        monkeypatch.setenv(variable, f"sqlite:///{tmp_path}/x.db")
    said = inside("nodes", "list")
    assert said.code == 2 and "[database_name_invalid]" in said.err and "TIDEMILL_DATABASE_Crm" in said.err


def test_the_node_types_of_a_module_need_no_list(inside: InProcessCli, tmp_path: Path, app: str) -> None:
    (tmp_path / "sender_app.py").write_text(
        "import tidemill\n\n@tidemill.node_type('greet')\nasync def greet(context):\n    return 'hello'\n"
    )
    assert inside("nodes", "show", "greet", "--app", app).code == 0


def test_what_comes_with_tidemill_has_its_version(inside: InProcessCli) -> None:
    assert inside("nodes", "show", "http", "--json").json["version"] == version("tidemill")


MAILING = "name: mailing\nnodes: [{id: a, type: send, config: {to: ada}}]\n"


@pytest.fixture
def offered(inside: InProcessCli, app: str, tmp_path: Path) -> Iterator[tidemill.Tidemill]:
    """A store whose worker has the type, which this process's commands have not."""
    spec = importlib.util.spec_from_file_location("sender_of_worker", tmp_path / app)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "mailing.yaml").write_text(MAILING)
    with tidemill.open("sqlite:///mill.db", handlers=module.handlers) as mill:
        offers = lambda: '"send@2"' in inside("nodes", "list", "--store", "sqlite:///mill.db", "--json").out  # noqa: E731
        eventually(offers, "the worker does not offer it")
        yield mill


def test_types_of_workers_are_shown_with_who_has_them(inside: InProcessCli, offered: tidemill.Tidemill) -> None:
    said = inside("nodes", "show", "send", "--store", "sqlite:///mill.db")
    assert [line.split() for line in said.out.splitlines()[4:6]] == [["from", "workers"], ["workers", "1", "worker"]]
    listed = inside("nodes", "list", "--store", "sqlite:///mill.db")
    assert listed.out.splitlines()[0].split() == ["TYPE", "VERSION", "QUEUE", "FROM", "WORKERS", "CAN"]
    known = {
        each["type"]: each for each in inside("nodes", "list", "--store", "sqlite:///mill.db", "--json").json["types"]
    }
    assert (known["send@2"]["here"], known["send@2"]["workers"], known["send@2"]["queue"]) == (False, 1, "mail")
    assert known["send@2"]["last_seen_ms"] > 0
    assert (known["value@1"]["here"], known["value@1"]["workers"]) == (True, 1)
    assert inside("nodes", "show", "send").code == 2, "without a store it is unknown"


def test_validate_and_publish_know_the_types_of_workers(
    inside: InProcessCli, offered: tidemill.Tidemill, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inside("validate", "mailing.yaml").code == 2
    valid = inside("validate", "mailing.yaml", "--store", "sqlite:///mill.db", "--json")
    monkeypatch.setenv("TIDEMILL_STORE", "sqlite:///mill.db")
    assert inside("validate", "mailing.yaml", "--json").json == valid.json
    said = inside("publish", "mailing.yaml")
    assert (said.code, said.out.splitlines()[-1].split()) == (0, ["of", "workers", "send@2", "(1", "worker)"])
    published = inside("publish", "mailing.yaml", "--json").json
    assert (published["digest"], published["from_workers"]) == (valid.json["digest"], ["send@2"])
    assert offered.run("mailing", timeout_s=60).status == "COMPLETED"
    Path("mailing.yaml").write_text(MAILING.replace("to: ada", "too: ada"))
    refused = inside("validate", "mailing.yaml", "--json").json
    assert {problem["code"] for problem in refused["problems"]} == {"config_invalid"}


def test_a_store_that_is_not_there_offers_nothing(
    inside: InProcessCli, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was named is missed; the variable may name one that is to be made."""
    refused = inside("nodes", "list", "--store", "sqlite:///none.db")
    assert refused.code == 2 and "store_missing" in refused.err
    monkeypatch.setenv("TIDEMILL_STORE", "sqlite:///none.db")
    assert inside("nodes", "list").code == 0
    assert not Path("none.db").exists()
