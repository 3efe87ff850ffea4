"""The operator's file on the command line: named, found in the user's folder, ignored beside a document, refused."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.command_line import InProcessCli, running

HELLO = "name: hello\nnodes: [{id: a, type: value, config: 1}]\n"
COUNTS = "name: counts\nnodes: [{id: a, type: sql, config: {statement: SELECT 1 AS one}}]\n"
CALLS = 'name: calls\nnodes: [{id: a, type: python, config: {function: "json:dumps", args: {obj: [1]}}}]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a user without settings, with documents in another one."""
    for name in [each for each in os.environ if each.startswith("TIDEMILL_")]:
        monkeypatch.delenv(name)
    for name in ("here", "home", "documents"):
        (tmp_path / name).mkdir()
    for name, text in (("hello", HELLO), ("counts", COUNTS), ("calls", CALLS)):
        (tmp_path / "documents" / f"{name}.yaml").write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def grant(path: Path, text: str = "[sql]\nstore = true\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


RUN = ("run", "../documents/counts.yaml", "--json")


def test_a_run_uses_the_file_that_is_named_or_the_users(
    inside: InProcessCli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [each["code"] for each in inside(*RUN).json["problems"]] == ["sql_not_enabled"]
    named = grant(folder / "named.toml")
    assert inside(*RUN, "--config", str(named)).json["status"] == "COMPLETED"
    assert "TIDEMILL_CONFIG" not in os.environ, "the option is that of one command"
    assert inside(*RUN).code == 2
    monkeypatch.setenv("TIDEMILL_CONFIG", str(named))
    assert inside(*RUN).code == 0
    monkeypatch.delenv("TIDEMILL_CONFIG")
    grant(folder / "home" / ".config" / "tidemill" / "tidemill.toml")
    assert inside(*RUN).code == 0


def test_who_only_asks_needs_no_grants_of_secrets(
    inside: InProcessCli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", "../documents/hello.yaml", "--key", "r")
    assert inside(*run).code == 0
    monkeypatch.setenv("TIDEMILL_SECRET_GRANTS", "CRM=https://crm.example")
    monkeypatch.setenv("TIDEMILL_SECRETS", str(folder / "nowhere"))
    for command in (("why", "r"), ("runs", "logs", "r"), ("runs", "list"), ("dlq", "list")):
        assert inside(*command).code == 0, command
    refused = inside(*run)
    assert refused.code == 2 and "the workflow is missing" in refused.err and "TIDEMILL_SECRETS" in refused.err


@pytest.mark.parametrize("where", ["here", "documents"])
@pytest.mark.parametrize("command", ["run", "publish", "validate"])
def test_a_file_of_the_folder_is_ignored_and_the_command_says_so(
    inside: InProcessCli, folder: Path, command: str, where: str
) -> None:
    file = grant(folder / where / "tidemill.toml")
    ended = inside(command, "../documents/hello.yaml", "--json")
    assert ended.code == 0 and ended.json
    said = f"tidemill: {file} is ignored: name it with --config to use it\n"
    assert ended.err.count("is ignored") == 1 and said in ended.err
    # And it grants nothing.
    assert inside(*RUN).json["problems"][0]["code"] == "sql_not_enabled"
    assert "is ignored" not in inside(command, "../documents/hello.yaml", "--config", str(file)).err


@pytest.mark.parametrize("command", ["check", "show"])
def test_config_says_that_a_file_of_the_folder_is_ignored(inside: InProcessCli, folder: Path, command: str) -> None:
    file = grant(folder / "here" / "tidemill.toml")
    assert f"{file} is ignored" in inside("config", command).err
    assert "is ignored" not in inside("config", command, "--config", str(file)).err


def test_a_worker_says_so_too(folder: Path) -> None:
    file = grant(folder / "here" / "tidemill.toml")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running("worker", "--json", text=True, **pipes) as worker:
        assert worker.stdout is not None and "ready" in worker.stdout.readline()
        worker.terminate()
        _, said = worker.communicate()
    assert f"tidemill: {file} is ignored" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('imports = ["shop.*"]\n[sql]\nstore = true\n', "imports shop.*, json · databases store"),
        ('[secrets.CRM]\norigins = ["https://crm.example"]\nworkflows = []', "imports json · secrets CRM to https://c"),
        ("", "imports json"),
    ],
)
def test_a_worker_says_what_it_grants(folder: Path, text: str, said: str) -> None:
    file = grant(folder / "named.toml", text)
    command = ("worker", "--config", str(file), "--allow-import", "json")
    with running(*command, text=True, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and "is ready" in worker.stdout.readline()
        assert worker.stdout.readline().startswith(f"  grants: {said}")
        worker.terminate()
        worker.communicate()


def test_imports_are_listed_by_flags_and_files(inside: InProcessCli, folder: Path) -> None:
    calls = ("run", "../documents/calls.yaml", "--json")
    assert inside(*calls).code == 0, "author and operator are one person"
    assert inside(*calls, "--allow-import", "json").code == 0
    refused = inside(*calls, "--allow-import", "shop.*").json["problems"]
    assert [each["code"] for each in refused] == ["import_not_allowed"]
    assert 'adds "json:dumps" to `imports` in tidemill.toml' in refused[0]["hint"]
    file = grant(folder / "tidemill.toml", "imports = []")
    assert inside(*calls, "--config", str(file)).code == 2
    assert inside(*calls, "--config", str(file), "--allow-import", "json:dumps").code == 0


@pytest.mark.parametrize("command", ["validate", "publish", "run"])
def test_a_wrong_file_is_told_whole_before_anything_is_done(inside: InProcessCli, folder: Path, command: str) -> None:
    file = grant(folder / "wrong.toml", "shel = true\n[sql]\nstore = 3\n")
    ended = inside(command, "../documents/hello.yaml", "--json", "--config", str(file))
    assert ended.code == 2
    told = [(each["code"], each["path"]) for each in ended.json["problems"]]
    assert told == [("setting_invalid", f"{file}: shel"), ("setting_invalid", f"{file}: sql.store")]
    assert ended.json["problems"][0]["hint"] == "did you mean `shell`?"
    missing = inside(command, "../documents/hello.yaml", "--json", "--config", "none.toml")
    assert missing.json["problems"][0]["code"] == "config_missing"


def test_config_show_has_every_documented_key(inside: InProcessCli, folder: Path) -> None:
    named = grant(
        folder / "named.toml",
        'interpreter_packages = ["numpy"]\n[mcp.files]\ncommand = ["serve-files"]\n[server]\nsecret = "'
        + "s" * 40
        + '"\n'
        "[server.limits]\nbody_bytes = 5000\n[tracing]\ncontent = true\n",
    )
    shown = inside("config", "show", "--config", str(named), "--json").json
    assert shown["server.limits.body_bytes"] == 5000
    assert shown["server.secret"] == "given"
    assert (shown["tracing.content"], shown["mcp"]) == (True, {"files": "serve-files"})
    page = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith(("| `", "| `["))]
    keys = [key.strip("[]").removesuffix(".NAME") for row in rows for key in re.findall(r"`([^`]+)`", row)]
    missing = [key for key in keys if not key.isupper() and key not in shown and key.rpartition(".")[0] not in shown]
    assert missing == []


def test_config_check_takes_the_file_as_other_commands_do(inside: InProcessCli, folder: Path) -> None:
    named = grant(folder / "named.toml", "shel = true\n")
    for options in ((str(named),), ("--config", str(named))):
        assert "did you mean `shell`?" in inside("config", "check", *options).err


@pytest.mark.parametrize(
    "command",
    [
        *(
            ("runs", "list"),
            ("runs", "list", "--store", "memory://"),
            ("runs", "show", "@last"),
            ("worker",),
            ("doctor",),
        ),
        *(("run", "../documents/hello.yaml"), ("validate", "../documents/hello.yaml"), ("config", "show")),
        *(("graph", "../documents/hello.yaml"), ("verify", "../documents/hello.yaml"), ("config", "check")),
        ("runs", "list", "--server", "http://127.0.0.1:9"),
    ],
)
def test_a_misspelt_variable_is_refused_before_anything_is_done(
    inside: InProcessCli, folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TIDEMILL_STOER", "sqlite:///other.db")
    ended = inside(*command)
    assert ended.code == 2
    assert "TIDEMILL_STOER" in ended.err and "did you mean `TIDEMILL_STORE`? Otherwise unset it" in ended.err
    assert (ended.out, os.listdir()) == ("", [])
    assert inside(*command, "--help").code == 0


def test_config_show_has_the_variables_that_are_set_without_passwords(
    inside: InProcessCli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert inside("config", "show", "--json").json["variables"] == {}
    named = str(grant(folder / "named.toml"))
    for name, value in (
        ("TIDEMILL_CONFIG", named),
        ("TIDEMILL_STORE", "postgresql://mill:canary@db.example.com/mill"),
        ("TIDEMILL_SERVER", "https://tidemill.example.com"),
        ("TIDEMILL_KEY", "tk_canary"),
        ("TIDEMILL_ARCHIVE", "s3://old/runs"),
    ):
        monkeypatch.setenv(name, value)
    shown = inside("config", "show")
    assert "canary" not in shown.out and "TIDEMILL_STORE: postgresql://mill:***@db.example.com/mill" in shown.out
    variables = inside("config", "show", "--json").json["variables"]
    assert (variables["TIDEMILL_KEY"], variables["TIDEMILL_CONFIG"]) == ("given", named)
    other = str(grant(folder / "other.toml"))
    found = inside("config", "show", "--config", other, "--json").json
    assert found["file"] == other and "TIDEMILL_CONFIG" not in found["variables"]
