"""Where secrets come from, and what an attempt can learn of them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tests.fixtures.grants import grant_secrets
from tidemill.bootstrap import engine_at
from tidemill.errors import Unavailable
from tidemill.handlers.contract import Done, Handler
from tidemill.kernel.model import NodeType
from tidemill.security.grants import SecretGrant
from tidemill.security.secrets import (
    PREFIX,
    VALUE_BYTES_MAX,
    ChainedSecrets,
    EnvironmentSecrets,
    FolderSecrets,
    GrantedSecrets,
    SecretAccessLog,
    SecretNotGranted,
    SecretUnusable,
)


def test_the_environment_is_asked_under_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}CRM_TOKEN", "from-the-environment")
    monkeypatch.setenv("OTHER", "no secret")
    assert EnvironmentSecrets().get("CRM_TOKEN") == "from-the-environment"
    assert EnvironmentSecrets().get("OTHER") is None


def test_a_folder_holds_a_file_for_each(tmp_path: Path) -> None:
    (tmp_path / "TOKEN").write_text("in-a-file\n")
    (tmp_path / "WINDOWS").write_bytes(b"in-a-file\r\n")
    (tmp_path / "PEM").write_text("-----\nline\n-----\n")
    folder = FolderSecrets(tmp_path)
    assert (folder.get("TOKEN"), folder.get("WINDOWS")) == ("in-a-file", "in-a-file")
    assert folder.get("PEM") == "-----\nline\n-----"
    assert folder.get("MISSING") is None


@pytest.mark.parametrize("name", ["../outside", "a/b", "/etc/passwd", "..", ".", "", "a\0b", "a b", "x" * 200])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_text("not yours")
    inside = tmp_path / "folder"
    inside.mkdir()
    assert FolderSecrets(inside).get(name) is None


def test_a_link_may_lead_elsewhere(tmp_path: Path) -> None:
    """Container platforms mount secrets as links into a hidden folder."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "TOKEN").write_text("linked")
    (tmp_path / "TOKEN").symlink_to(tmp_path / "..data" / "TOKEN")
    assert FolderSecrets(tmp_path).get("TOKEN") == "linked"


def test_what_cannot_be_read_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "LONG").write_bytes(b"x" * (VALUE_BYTES_MAX + 1))
    (tmp_path / "BYTES").write_bytes(b"\xff\xfe")
    with pytest.raises(Unavailable, match="LONG is longer"):
        FolderSecrets(tmp_path).get("LONG")
    with pytest.raises(Unavailable, match="BYTES is not text"):
        FolderSecrets(tmp_path).get("BYTES")
    (tmp_path / "FOLDER").mkdir()
    assert FolderSecrets(tmp_path).get("FOLDER") is None


@pytest.mark.parametrize("order", [("first", "second")])
def test_places_are_asked_in_order(tmp_path: Path, order: tuple[str, str]) -> None:
    folders = [tmp_path / name for name in order]
    for folder in folders:
        folder.mkdir()
        (folder / "BOTH").write_text(folder.name)
    (folders[1] / "ONE").write_text("only here")
    places = ChainedSecrets(*map(FolderSecrets, folders))
    assert (places.get("BOTH"), places.get("ONE"), places.get("NONE")) == ("first", "only here", None)


def test_an_attempt_sees_only_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}A", "the first")
    monkeypatch.setenv(f"{PREFIX}B", "the second")
    seen = SecretAccessLog(EnvironmentSecrets())
    assert (list(seen), len(seen)) == ([], 0)
    assert seen["A"] == "the first"
    assert seen.values_seen == {"A": "the first"}
    with pytest.raises(KeyError):
        seen["NOT_THERE"]
    assert "the second" not in repr(seen), "a debugger's look discloses nothing"


def test_a_value_stays_the_same_for_an_attempt() -> None:
    """One that is changed meanwhile would otherwise be masked in its new form only."""
    name = f"{PREFIX}ROTATED"
    os.environ[name] = "before-rotation"
    try:
        seen = SecretAccessLog(EnvironmentSecrets())
        assert seen["ROTATED"] == "before-rotation"
        os.environ[name] = "after-rotation"
        assert seen["ROTATED"] == "before-rotation"
    finally:
        del os.environ[name]


def test_a_call_is_judged_by_the_secrets_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt with two keys sends each of them to its own place."""
    monkeypatch.setenv(f"{PREFIX}A", "the first")
    monkeypatch.setenv(f"{PREFIX}B", "the second")
    grants = {name: SecretGrant((f"https://{name.lower()}.example",), ("*",)) for name in ("A", "B")}
    read = SecretAccessLog(GrantedSecrets(EnvironmentSecrets(), grants), "w")
    assert (read["A"], read["B"]) == ("the first", "the second")
    assert read.forbidden_at("https://a.example") == "B"
    assert read.forbidden_at("https://a.example", texts=("Bearer the first", "")) == ""
    assert read.forbidden_at("https://a.example", texts=("x", "Bearer the second")) == "B"
    assert read.forbidden_at("https://b.example", texts=("Bearer the first",)) == "A"
    assert read.forbidden_at("https://c.example", texts=()) == ""


@pytest.mark.parametrize(
    ("config", "origin"),
    [
        ({"url": "https://api.example.com/v1/{{ inputs.x }}"}, "https://api.example.com"),
        ({"base_url": "http://127.0.0.1:8080"}, "http://127.0.0.1:8080"),
        ({"url": "https://{{ inputs.host }}/v1"}, "https://HOST"),
        ({"url": "https://api.{{ inputs.host }}"}, "https://HOST"),
        ({"url": "https://user:word@host/"}, "https://HOST"),
        ({"url": 5}, "https://HOST"),
        (None, "https://HOST"),
    ],
)
def test_the_hint_for_a_grant_names_the_origin_that_the_config_holds(config: object, origin: str) -> None:
    read = SecretAccessLog(GrantedSecrets(EnvironmentSecrets(), {}), "billing", config=config)
    with pytest.raises(SecretNotGranted) as refused:
        read["CRM"]
    assert f'`origins = ["{origin}"]`' in refused.value.hint
    assert refused.value.hint.endswith(f"TIDEMILL_SECRET_GRANTS=CRM={origin}@billing")


def test_a_secret_is_found_as_json_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}ODD", 'a\\b"c\nd')
    grants = {"ODD": SecretGrant(("https://a.example",), ("*",))}
    read = SecretAccessLog(GrantedSecrets(EnvironmentSecrets(), grants), "w")
    body = msgspec.json.encode({"messages": [read["ODD"]]}).decode()
    assert read.forbidden_at("https://b.example", texts=(body,)) == "ODD"


def test_an_empty_secret_is_none_that_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "HOLLOW").write_text("\n")
    monkeypatch.setenv(f"{PREFIX}BLANK", "")
    disclosed = SecretAccessLog(ChainedSecrets(EnvironmentSecrets(), FolderSecrets(tmp_path)))
    for name in ("HOLLOW", "BLANK"):
        with pytest.raises(SecretUnusable, match=f"the secret {name} is empty"):
            disclosed[name]


@pytest.mark.parametrize("value", ["abc", " abc ", "   \n  x"])
def test_a_secret_that_could_not_be_masked_is_not_disclosed(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(f"{PREFIX}SHORT", value)
    disclosed = SecretAccessLog(EnvironmentSecrets())
    with pytest.raises(SecretUnusable, match="the secret SHORT is shorter than 4 characters"):
        disclosed["SHORT"]
    assert not disclosed.values_seen
    monkeypatch.setenv(f"{PREFIX}SHORT", "abcd")
    assert disclosed["SHORT"] == "abcd"


@pytest.mark.parametrize("config", ["{{ secrets.BYTES }}", "Bearer {{ secrets.BYTES }}"])
async def test_a_secret_that_cannot_be_used_fails_the_node_in_so_many_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    (tmp_path / "BYTES").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("TIDEMILL_SECRETS", str(tmp_path))
    grant_secrets(monkeypatch, "BYTES")
    asks = Handler(NodeType(name="asks", secret_fields=("token",)), lambda _: Done("called"))
    async with engine_at("memory://", handlers=[asks]) as engine:
        node = {"id": "a", "type": "asks", "config": {"token": config}, "retry": {"backoff_seconds": 0}}
        await engine.publish({"name": "w", "nodes": [node]})
        run = await engine.result(await engine.start("w", {}), timeout_s=20)
    error = run.nodes["a"]["error"]
    assert (error["code"], error["message"]) == ("secret_unusable", "the secret BYTES is not text")
    assert "4 characters to 64 KiB" in error["hint"]
