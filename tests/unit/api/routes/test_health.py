"""`/metrics` over HTTP: who may read it, and what it says."""

from __future__ import annotations

import httpx2
import pytest

from tests.unit.observability.test_metrics import samples
from tidemill.api.app import create_app
from tidemill.api.auth import Access
from tidemill.bootstrap import engine_at
from tidemill.security.roles import OPERATOR_TENANT, Principal

FLOW = {"name": "report", "nodes": [{"id": "a", "type": "value", "config": 1}]}


@pytest.mark.parametrize(
    ("tenant", "roles", "status"),
    [(OPERATOR_TENANT, ("viewer",), 200), (OPERATOR_TENANT, (), 403), ("acme", ("viewer", "admin"), 403)],
)
async def test_metrics_are_for_the_operator(tenant: str, roles: tuple[str, ...], status: int) -> None:
    """They tell of all tenants."""
    async with engine_at("memory://", metrics=True) as engine:
        await engine.run(FLOW)
        access = Access(engine, open_as=Principal(tenant=tenant, name="key:prometheus", roles=roles))
        transport = httpx2.ASGITransport(app=create_app(engine, access=access))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            answer = await http.get("/metrics")
    assert answer.status_code == status
    if status == 200:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = samples(answer.content)
        assert found["tidemill_runs_ended_total status=COMPLETED"] == 1
        assert found["tidemill_runs_stuck"] == 0


async def test_an_engine_without_metrics_says_so() -> None:
    async with engine_at("memory://", work=False) as engine:
        transport = httpx2.ASGITransport(app=create_app(engine))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            answer = await http.get("/metrics")
    assert (answer.status_code, answer.json()["code"]) == (422, "metrics_off")
