"""Keys, tenants and the audit on every store: what is written there is found again, and rebuilt from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.servers import redis_server
from tests.fixtures.servers.postgres_server import Server
from tidemill.bootstrap import engine_at
from tidemill.engine.maintenance.audit_chain import AT_ONCE
from tidemill.engine.services.access import KEY, TENANT
from tidemill.errors import Rejected
from tidemill.stores.contract import Commit, Row, Stream

FLOW: dict[str, Any] = {"name": "hello", "nodes": [{"id": "a", "type": "value"}]}


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "postgres":
            postgres: Server = request.getfixturevalue("postgres")
            return postgres.emptied_store()
        case "redis":
            redis: redis_server.Server = request.getfixturevalue("redis")
            return redis.emptied_store()
        case "sqlite":
            return f"sqlite:///{tmp_path}/store.db"
    return "memory://"


async def test_keys_tenants_and_audit(url: str) -> None:
    async with engine_at(url, work=False) as engine:
        await engine.tenants.create("acme", actor="ada")
        acme = engine.for_tenant("acme", audited=True)
        made = await acme.keys.create("ci", roles=["operator"], actor="ada")
        assert (await engine.credentials.principal_of_key(made.key)).tenant == "acme"
        await acme.workflows.publish(FLOW, author="key:ci")
        count = AT_ONCE + 20
        started = await acme.runs.start_many("hello", [{}] * count, submitted_by="key:ci")
        await acme.keys.revoke(made.view.id, actor="ada")
        with pytest.raises(Rejected, match="key_revoked"):
            await engine.credentials.principal_of_key(made.key)
        found = await acme.audit.verify()
        assert (found.intact, found.entries, found.waiting) == (True, count + 3, 0)
        entries, after = await acme.audit.find(action="runs.start", limit=count)
        assert {each.subject for each in entries} == set(started) and after is None
        assert [each.action for each in (await engine.audit.find())[0]] == ["tenants.create"]


async def test_rows_of_keys_and_tenants_are_rebuilt(url: str) -> None:
    async with engine_at(url, work=False) as engine:
        await engine.tenants.create("acme", actor="ada")
        made = await engine.keys.create("ci", roles=["operator"], actor="ada")
        listed = (await engine.keys.find(), await engine.tenants.find())
        lost = (
            Row(kind=KEY, key=made.view.id, sort=made.view.created_ms, deleted=True),
            Row(kind=TENANT, key="acme", sort=0, deleted=True),
        )
        await engine.context.store.commit([Commit(stream=Stream("default", "x", "x"), expected=None, rows=lost)])
        assert (await engine.keys.find())[0] == [] == (await engine.tenants.find())[0]
        assert not (await engine.verify_log()).clean
        await engine.reindex()
        assert (await engine.keys.find(), await engine.tenants.find()) == listed
        assert (await engine.verify_log()).clean
