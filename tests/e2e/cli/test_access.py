"""`tidemill keys`, `tenants` and `audit`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import process
from tidemill.bootstrap import engine_at
from tidemill.cli import main
from tidemill.engine.services.access import KNOWN_FOR_MS
from tidemill.errors import Rejected
from tidemill.security.identity import id_of_key


def test_a_key_is_printed_once(cli_store: CliStore) -> None:
    made = cli_store("keys", "create", "ci", "--role", "author", "--role", "operator", "--as", "ada")
    key = made.out.removesuffix("\n")
    assert made.code == main.OK and id_of_key(key)
    assert "author, operator" in made.err and "not shown again" in made.err
    listed = cli_store.fine("keys", "list")
    assert id_of_key(key) in listed and "live" in listed and key.split("_", 2)[2] not in listed
    assert cli_store.json("keys", "list")["keys"][0]["created_by"] == "ada"
    assert "ci" in cli_store.fine("keys", "revoke", id_of_key(key))
    assert cli_store.json("keys", "list")["keys"][0]["state"] == "revoked"
    again = cli_store.json("keys", "create", "ci", "--role", "viewer", "--no-expiry")
    assert id_of_key(again["key"]) == again["view"]["id"] and again["view"]["expires_ms"] is None


def test_bad_keys_and_tenants_are_refused(cli_store: CliStore) -> None:
    (problem,) = cli_store.refused("keys", "create", "ci", "--role", "admn")
    assert (problem["code"], problem["hint"]) == ("roles_invalid", "did you mean `admin`?")
    (problem,) = cli_store.refused("keys", "create", "two words", "--role", "admin")
    assert problem["code"] == "key_label_invalid"
    (problem,) = cli_store.refused("keys", "create", "ci", "--role", "admin", "--tenant", "acme")
    assert (problem["code"], problem["hint"]) == ("tenant_unknown", "tidemill tenants create acme")
    (problem,) = cli_store.refused("keys", "list", "--tenant", "Acme")
    assert problem["code"] == "tenant_name_invalid"
    (problem,) = cli_store.refused("keys", "revoke", "default.0123456789abcdef")
    assert problem["code"] == "key_unknown"
    (problem,) = cli_store.refused("tenants", "create", "default")
    assert problem["code"] == "tenant_name_invalid"
    for words in (("create", "ci"), ("create", "ci", "--role", "admin", "--expires-days", "0")):
        assert cli_store("keys", *words).code == main.REFUSED


def test_tenants_have_keys_of_their_own(cli_store: CliStore) -> None:
    assert "no tenant was created" in cli_store.fine("tenants", "list")
    told = cli_store.fine("tenants", "create", "acme", "--as", "ada")
    assert "keys create first --role admin --tenant acme" in told
    (problem,) = cli_store.refused("tenants", "create", "acme")
    assert problem["code"] == "tenant_exists"
    key = cli_store.json("keys", "create", "first", "--role", "admin", "--tenant", "acme")["key"]
    assert key.startswith("tm_acme.")
    assert cli_store.json("keys", "list")["keys"] == []
    assert len(cli_store.json("keys", "list", "--tenant", "acme")["keys"]) == 1
    assert "disabled" in cli_store.fine("tenants", "disable", "acme")
    assert re.search(r"acme +disabled", cli_store.fine("tenants", "list"))
    assert "enabled" in cli_store.fine("tenants", "enable", "acme")


def test_the_audit_is_listed_and_verified(cli_store: CliStore) -> None:
    key_id = cli_store.json("keys", "create", "ci", "--role", "viewer", "--as", "ada")["view"]["id"]
    cli_store.fine("keys", "revoke", key_id, "--as", "bob")
    told = cli_store.fine("audit", "list", "--action", "keys.revoke")
    assert key_id in told and re.findall(r"just now +(\w+)", told) == ["bob"]
    assert [each["actor"] for each in cli_store.json("audit", "list", "--since", "1h")["audit"]] == ["bob", "ada"]
    assert "no change matches" in cli_store.fine("audit", "list", "--actor", "eve")
    good = cli_store.json("audit", "verify")
    assert good["intact"] and good["entries"] == 2
    assert "2 entries of default: no entry was changed" in cli_store.fine("audit", "verify", "--head", good["head"])
    lost = cli_store("audit", "verify", "--head", "0" * 64)
    assert lost.code == main.FAILED and "✗ entry 3 of default" in lost.out


def test_a_key_that_another_process_revokes_is_refused_here(tmp_path: Path) -> None:
    """Two processes and one SQLite file; how long this process relies on what it has read is a matter of its clock."""
    assert KNOWN_FOR_MS < 5_000
    url = f"sqlite:///{tmp_path}/store.db"
    made = process("keys", "create", "ci", "--role", "viewer", "--store", url, "--json")
    assert made.code == main.OK, made
    key, key_id = made.json["key"], made.json["view"]["id"]

    async def story() -> list[str]:
        async with engine_at(url, work=False) as engine:
            names = [(await engine.credentials.principal_of_key(key)).name]
            revoked = await asyncio.to_thread(process, "keys", "revoke", key_id, "--store", url)
            assert revoked.code == main.OK, revoked
            async with asyncio.timeout(60):
                while True:
                    try:
                        await engine.credentials.principal_of_key(key)
                    except Rejected as refusal:
                        return [*names, refusal.code]
                    await asyncio.sleep(0.1)

    assert asyncio.run(story()) == ["key:ci", "key_revoked"]
