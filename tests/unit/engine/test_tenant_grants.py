"""Grants bound to a tenant: its runs use them instead of those of the process, and no other tenant's do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.servers.web import reply, web
from tidemill.errors import Rejected
from tidemill.net.egress import Egress
from tidemill.security.grants import ImportGrants, SecretGrant
from tidemill.settings import Settings, TenantGrants


def call_of(function: str) -> dict[str, Any]:
    return {"name": "calls", "nodes": [{"id": "a", "type": "python", "config": {"function": function}}]}


class Tenants:
    """One store, one worker of the operator, and clients of tenants that publish without checking."""

    def __init__(self, url: str, grants: Mapping[str, TenantGrants], **settings: Any) -> None:
        self._url, self._settings = url, Settings(tenants=grants, **settings)
        self._functions = {"charge": lambda: "charged", "refund": lambda: "refunded"}

    async def run(self, tenant: str, document: dict[str, Any]) -> str:
        """The code of the run's error; empty if it completed."""
        async with tidemill.aopen(self._url, work=False, tenant=tenant, settings=Settings()) as client:
            await client.publish(document)
            run_id = await client.start(document["name"])
            async with tidemill.aopen(self._url, functions=self._functions, settings=self._settings, only=run_id):
                run = await client.result(run_id, timeout=60)
            return "" if run.ok else str(run.to_dict()["error"]["code"])

    async def publish(self, tenant: str, document: dict[str, Any]) -> str:
        """The code of the refusal, or the name."""
        given = {"settings": self._settings, "functions": self._functions}
        async with tidemill.aopen(self._url, work=False, tenant=tenant, **given) as client:
            try:
                return (await client.publish(document)).name
            except Rejected as refusal:
                return refusal.code


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


async def test_functions_and_imports_of_a_tenant(url: str) -> None:
    granted = TenantGrants(functions=("char*",), imports=ImportGrants(("json",)))
    tenants = Tenants(url, {"acme": granted}, imports=ImportGrants(("os.path",)))
    assert await tenants.run("acme", call_of("charge")) == ""
    assert await tenants.run("acme", call_of("refund")) == "function_not_granted"
    assert await tenants.run("acme", call_of("os.path:abspath")) == "import_not_allowed"
    assert await tenants.run("acme", call_of("json:dumps")) == "arguments_invalid", "it is imported and called"
    assert await tenants.run("globex", call_of("refund")) == ""
    assert await tenants.run("globex", call_of("json:dumps")) == "import_not_allowed"
    assert await tenants.publish("acme", call_of("refund")) == "function_not_granted"
    assert await tenants.publish("acme", call_of("os.path:abspath")) == "import_not_allowed"
    assert (
        await tenants.publish("acme", call_of("json:dumps"))
        == await tenants.publish("globex", call_of("refund"))
        == "calls"
    )


async def test_egress_of_a_tenant(url: str) -> None:
    async with web({"/x": reply(b"hello")}) as served:
        document = {
            "name": "get",
            "nodes": [{"id": "a", "type": "http", "config": {"url": served.url("/x"), "parse": "text"}}],
        }
        tenants = Tenants(url, {"acme": TenantGrants(egress=Egress(allow=("127.0.0.1:*",)))})
        assert await tenants.run("acme", document) == ""
        assert len(served.asked) == 1
        assert await tenants.run("globex", document) == "egress_refused"
        closed = Tenants(url, {"acme": TenantGrants(egress=Egress())}, egress=Egress(allow=("127.0.0.1:*",)))
        assert await closed.run("acme", document) == "egress_refused"
        assert len(served.asked) == 1


async def test_secrets_of_a_tenant(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with web({"/x": reply(b"hello")}) as served:
        monkeypatch.setenv("TIDEMILL_SECRET_CRM", "the value of the secret")
        config = {"url": served.url("/x"), "parse": "text", "headers": {"x-key": "{{ secrets.CRM }}"}}
        document = {"name": "get", "nodes": [{"id": "a", "type": "http", "config": config}]}
        grant = SecretGrant(("http://127.0.0.1:*",), ("*",))
        open_ = {"egress": Egress(allow=("127.0.0.1:*",)), "secrets": {"CRM": grant}}
        tenants = Tenants(
            url, {"acme": TenantGrants(secrets={}), "globex": TenantGrants(secrets={"CRM": grant})}, **open_
        )
        assert await tenants.run("acme", document) == "secret_not_granted"
        assert await tenants.run("globex", document) == ""
        assert await tenants.run("initech", document) == ""
        assert len(served.asked) == 2
