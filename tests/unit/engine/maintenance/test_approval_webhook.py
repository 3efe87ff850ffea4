"""The webhook about approvals: each message at least once, in order, signed, with a link for each person."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fixtures.approvers import human
from tests.fixtures.servers.web import Web, in_turn, reply, web
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.engine.maintenance.approval_webhook import ATTEMPTS_MAX, FAILURES_MAX, SENT_MAX, ApprovalWebhook
from tidemill.engine.maintenance.schedule import Cursor
from tidemill.net.egress import Egress
from tidemill.security.signing import DecisionLinks, verify

KEY = "whsec_" + base64.b64encode(bytes(32)).decode()
LINKS = DecisionLinks("a secret of the server, long enough")


@dataclass
class Told:
    """An engine, the receiver of its messages, and the cursor between two sweeps."""

    engine: Engine
    receiver: Web
    webhook: ApprovalWebhook
    cursor: Cursor = field(default_factory=dict)

    async def sweep(self) -> list[tuple[str, str]]:
        """What one sweep has sent: the type of each message, and the run."""
        before = len(self.receiver.asked)
        self.cursor = await self.webhook.tell("default", self.cursor)
        return [(each["type"], each["data"]["run_id"]) for each in self.bodies[before:]]

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(asked.body) for asked in self.receiver.asked]

    async def ask(self, *run_ids: str, **config: Any) -> None:
        document = {"name": "flow", "nodes": [human("ask", **{"approvers": ["user:alice", "role:clerk"], **config})]}
        await self.engine.publish(document)
        for run_id in run_ids:
            await self.engine.start("flow", key=run_id)
        for run_id in run_ids:
            await self.reaches(run_id, "pending")

    async def reaches(self, run_id: str, status: str) -> None:
        for _ in range(3_000):
            if (await self.engine.approvals.find([f"run:{run_id}", f"status:{status}"]))[0]:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{run_id} is never {status}")


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    async with web({"/hook": reply(b"ok")}) as receiver, engine_at("memory://") as engine:
        store = engine.context.store
        webhook = ApprovalWebhook(store, Egress(), receiver.url("/hook"), [KEY], "https://mill.example/", LINKS)
        yield Told(engine, receiver, webhook)
        await webhook.close()


async def test_a_request_and_its_decision_are_told_once_each(told: Told) -> None:
    await told.ask("one", title="Ship it?")
    assert await told.sweep() == [("approval.requested", "one")]
    assert await told.sweep() == []
    await told.engine.decide("one", "ask", "approve", actor="alice", comments="fine")
    assert await told.sweep() == [("approval.decided", "one")]
    assert await told.sweep() == []
    requested, decided = told.bodies
    assert requested["data"]["title"] == "Ship it?" and requested["data"]["status"] == "pending"
    assert (decided["data"]["decision"], decided["data"]["decided_by"]) == ("approve", "user:alice")


async def test_a_message_is_signed_and_carries_a_link_for_each_person(told: Told) -> None:
    await told.ask("one")
    await told.sweep()
    (asked,) = told.receiver.asked
    assert verify([KEY], asked.headers, asked.body, told.engine.context.store.now_ms()).startswith("msg_")
    data = told.bodies[0]["data"]
    assert data["approval_url"] == f"https://mill.example/api/v1/approvals/{data['approval_id']}"
    assert list(data["decision_urls"]) == ["user:alice"]
    token = data["decision_urls"]["user:alice"].removeprefix("https://mill.example/api/v1/decisions/")
    link = LINKS.read(token, told.engine.context.store.now_ms())
    assert (link.tenant, link.run_id, link.node, link.visit, link.person) == ("default", "one", "ask", 1, "user:alice")


async def test_what_was_asked_and_decided_between_two_sweeps_is_told_in_order(told: Told) -> None:
    await told.sweep()
    await told.ask("one")
    await told.engine.decide("one", "ask", "reject", actor="alice")
    await told.reaches("one", "decided")
    assert await told.sweep() == [("approval.requested", "one"), ("approval.decided", "one")]
    assert await told.sweep() == []


async def test_a_sweep_that_was_lost_is_repeated_under_the_same_ids(told: Told) -> None:
    await told.ask("one")
    await told.sweep()
    told.cursor = {}
    assert await told.sweep() == [("approval.requested", "one")]
    first, second = told.receiver.asked
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


async def test_a_message_that_fails_is_repeated_later_and_in_the_end_given_up(told: Told) -> None:
    told.receiver.routes["/hook"] = in_turn(reply(status=503), reply(status=404), reply())
    await told.ask("one")
    for attempts in (1, 2):
        assert await told.sweep() == [("approval.requested", "one")]
        ((failed, due_ms),) = told.cursor["retries"].values()
        assert failed == attempts and due_ms > told.engine.context.store.now_ms()
        assert await told.sweep() == []
        told.cursor["retries"] = {key: [failed, 0] for key in told.cursor["retries"]}
    assert await told.sweep() == [("approval.requested", "one")]
    assert told.cursor["retries"] == {}
    assert await told.sweep() == []

    told.receiver.routes["/hook"] = reply(status=503)
    await told.engine.decide("one", "ask", "approve", actor="alice")
    assert await told.sweep() == [("approval.decided", "one")]
    told.cursor["retries"] = {key: [ATTEMPTS_MAX - 1, 0] for key in told.cursor["retries"]}
    assert await told.sweep() == [("approval.decided", "one")]
    assert await told.sweep() == []


async def test_a_service_that_does_not_answer_is_not_asked_for_every_approval(told: Told) -> None:
    told.receiver.routes["/hook"] = reply(status=503)
    runs = [f"run-{number}" for number in range(2 * FAILURES_MAX)]
    await told.ask(*runs)
    assert len(await told.sweep()) == FAILURES_MAX
    told.receiver.routes["/hook"] = reply()
    told.cursor["retries"] = {key: [1, 0] for key in told.cursor["retries"]}
    assert sorted(await told.sweep()) == [("approval.requested", run_id) for run_id in runs]


async def test_many_messages_are_sent_in_several_sweeps(told: Told) -> None:
    await told.ask(*(f"run-{number:03}" for number in range(SENT_MAX + 5)))
    sent = [await told.sweep(), await told.sweep(), await told.sweep()]
    assert [len(each) for each in sent] == [SENT_MAX, 5, 0]
    assert len({run_id for each in sent for _, run_id in each}) == SENT_MAX + 5


async def test_an_escalation_asks_other_people_and_the_end_of_a_wait_is_told(told: Told) -> None:
    await told.ask("one", timeout_seconds=0.3, on_timeout="escalate", escalate_to=["user:boss"])
    assert await told.sweep() == [("approval.requested", "one")]
    for _ in range(3_000):
        if (await told.engine.approval("one", "ask")).approval.escalated:
            break
        await asyncio.sleep(0.01)
    assert ("approval.requested", "one") in await told.sweep()
    assert list(told.bodies[1]["data"]["decision_urls"]) == ["user:boss"]
    await told.engine.result("one", timeout=30)
    assert ("approval.expired", "one") in [*await told.sweep(), *((each["type"], "one") for each in told.bodies)]


async def test_without_a_lasting_secret_a_message_carries_no_links(told: Told) -> None:
    store = told.engine.context.store
    told.webhook = ApprovalWebhook(
        store, Egress(), told.receiver.url("/hook"), [KEY], "https://mill.example", DecisionLinks()
    )
    await told.ask("one")
    await told.sweep()
    assert "decision_urls" not in told.bodies[0]["data"]


async def test_the_person_to_whom_a_decision_is_delegated_is_told_once_with_a_link(told: Told) -> None:
    await told.ask("one")
    assert await told.sweep() == [("approval.requested", "one")]
    await told.engine.delegate("one", "ask", "bob", actor="alice")
    assert await told.sweep() == [("approval.delegated", "one")]
    assert list(told.bodies[1]["data"]["decision_urls"]) == ["user:bob"]
    await told.engine.delegate("one", "ask", "carol", actor="bob")
    assert await told.sweep() == [("approval.delegated", "one")]
    assert list(told.bodies[2]["data"]["decision_urls"]) == ["user:carol"]
    assert len({asked.headers["webhook-id"] for asked in told.receiver.asked}) == 3
    assert await told.sweep() == []
    await told.engine.decide("one", "ask", "approve", actor="carol")
    assert await told.sweep() == [("approval.decided", "one")]
    assert await told.sweep() == []


async def test_delegations_between_two_sweeps_are_told_after_the_request_and_in_order(told: Told) -> None:
    await told.ask("one")
    await told.engine.delegate("one", "ask", "bob", actor="alice")
    await told.engine.delegate("one", "ask", "carol", actor="bob")
    told.receiver.routes["/hook"] = in_turn(reply(), reply(status=503), reply(), reply())
    assert await told.sweep() == [("approval.requested", "one"), ("approval.delegated", "one")]
    told.cursor["retries"] = {key: [failed, 0] for key, (failed, _) in told.cursor["retries"].items()}
    assert await told.sweep() == [("approval.delegated", "one"), ("approval.delegated", "one")]
    asked = [list(body["data"]["decision_urls"]) for body in told.bodies]
    assert asked == [["user:alice"], ["user:bob"], ["user:bob"], ["user:carol"]]
