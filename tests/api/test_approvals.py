"""Approvals over HTTP: the inbox, what a person sees, decisions, delegation, and links to decide without a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.approvers import human, signal
from tests.fixtures.callers import TestAccess, as_caller
from tidemill.api.routes import run_actions
from tidemill.api.server_settings import ServerLimits
from tidemill.engine.views import activation_id
from tidemill.errors import Unavailable
from tidemill.security.signing import DecisionLinks

ALICE, BOB = as_caller("alice", "approver"), as_caller("bob", "approver")
ADMIN, CLERK = as_caller("root", "admin"), as_caller("carl", "approver", "clerk")
SECRET = "a secret of the server, long enough"
FORM = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), access=TestAccess, secret=SECRET) as running:
        yield running


def asking(*more: dict[str, Any], name: str = "order", **config: Any) -> dict[str, Any]:
    """A workflow that prices something, asks about it, and goes on."""
    price = {"id": "price", "type": "value", "config": 42}
    after = [{"id": each, "type": "value", "dependencies": ["ask"]} for each in ("ship", "bill")]
    return {"name": name, "nodes": [price, human("ask", "price", **config), *after, *more]}


async def asked(server: ApiServer, document: dict[str, Any], run_id: str = "run/1", **inputs: Any) -> str:
    """Start a run and wait until it asks; answers the id of its approval."""
    await server.publish(document)
    await server.engine.start(document["name"], inputs, key=run_id)
    return await pending(server, run_id)


async def pending(server: ApiServer, run_id: str) -> str:
    for _ in range(3_000):
        rows, _ = await server.engine.approvals.find([f"run:{run_id}", "status:pending"])
        if rows:
            return activation_id(run_id, rows[0].node, rows[0].visit, rows[0].index)
        await asyncio.sleep(0.01)
    raise AssertionError(f"{run_id} asks nobody")


async def decided(
    server: ApiServer, approval_id: str, decision: str, who: dict[str, str], **more: Any
) -> httpx2.Response:
    body = {"decision": decision, **more}
    return await server.http.post(f"/approvals/{approval_id}/decide", json=body, headers=who)


async def ids(server: ApiServer, who: dict[str, str], **params: Any) -> list[str]:
    answer = await server.http.get("/approvals", params=params, headers=who)
    assert answer.status_code == 200, answer.text
    return [each["approval_id"] for each in answer.json()["items"]]


async def test_a_person_sees_what_they_decide_on_and_what_follows(server: ApiServer) -> None:
    side = [{"id": "refund", "type": "value"}]
    document = asking(*side, approvers=["user:alice"], title="Ship it?", rejection_path=["refund"])
    approval_id = await asked(server, document, customer="Ada")
    shown = (await server.http.get(f"/approvals/{approval_id}", headers=ALICE)).json()
    assert (shown["run_id"], shown["node"], shown["title"], shown["status"]) == ("run/1", "ask", "Ship it?", "pending")
    assert shown["evidence"] == {"inputs": {"customer": "Ada"}, "nodes": {"price": 42}}
    leads_to = {verb: each["next_nodes"] for verb, each in shown["consequences"].items()}
    assert leads_to == {"approve": ["ship", "bill"], "reject": ["refund"], "changes": []}
    assert not shown["consequences"]["changes"]["possible"]


async def test_a_person_is_told_whether_they_may_decide(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"]))
    mine, others = [
        (await server.http.get(f"/approvals/{approval_id}", headers=who)).json()["decider"] for who in (ALICE, BOB)
    ]
    assert mine == {"person": "user:alice", "refusal": None, "expires_ms": None}
    assert (others["person"], others["refusal"]["code"]) == ("user:bob", "approver_not_allowed")
    viewer = as_caller("alice", "viewer")
    onlooker = (await server.http.get(f"/approvals/{approval_id}", headers=viewer)).json()["decider"]
    assert onlooker["refusal"]["code"] == "not_allowed"
    await decided(server, approval_id, "approve", ALICE)
    after = (await server.http.get(f"/approvals/{approval_id}", headers=ALICE)).json()["decider"]
    assert after["refusal"]["code"] == "approval_closed"


async def test_a_decision_is_answered_with_what_it_leads_to_and_the_same_again(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice", "user:bob"]))
    first = await decided(server, approval_id, "approve", ALICE, comments="fine")
    assert first.json() == {
        "approval_id": approval_id, "status": "decided", "decision": "approve", "next_nodes": ["ship", "bill"]
    }  # fmt: skip
    events = (await server.engine.show("run/1")).events
    again = await decided(server, approval_id, "approve", ALICE, comments="fine")
    assert (again.status_code, again.content) == (200, first.content)
    contrary = await decided(server, approval_id, "reject", BOB)
    assert (contrary.status_code, contrary.json()["code"]) == (409, "decision_conflict")
    assert (await server.engine.result("run/1", timeout=30)).ok
    assert (await server.engine.approval("run/1", "ask")).approval.decided_by == "user:alice"
    assert events <= (await server.engine.show("run/1")).events


async def test_who_decides_follows_from_the_credential_alone(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice", "role:clerk"]))
    stranger = await decided(server, approval_id, "approve", BOB)
    assert (stranger.status_code, stranger.json()["code"]) == (403, "approver_not_allowed")
    forged = await decided(server, approval_id, "approve", BOB, actor="alice", roles=["clerk"])
    assert (forged.status_code, forged.json()["code"]) == (422, "request_invalid")
    viewer = await decided(server, approval_id, "approve", as_caller("alice", "viewer"))
    assert (viewer.status_code, viewer.json()["code"]) == (403, "not_allowed")
    by_role = await decided(server, approval_id, "approve", CLERK)
    assert (by_role.status_code, by_role.json()["status"]) == (200, "decided")


async def test_an_approval_of_another_tenant_is_as_unknown_as_none(server: ApiServer) -> None:
    approval_id = await asked(server, asking())
    other = as_caller("alice", "admin", tenant="other")
    absent = activation_id("run/2", "ask", 1, -1)
    for method, path in (("GET", ""), ("GET", "/history"), ("GET", "/votes"), ("POST", "/decide"), ("POST", "/links")):
        body = {"decision": "approve"} if path == "/decide" else {} if path == "/links" else None
        answers = [
            await server.http.request(method, f"/approvals/{each}{path}", json=body, headers=other)
            for each in (approval_id, absent)
        ]
        assert [each.status_code for each in answers] == [404, 404]
        assert answers[0].text.replace("run/1", "run/2") == answers[1].text
    assert (await server.http.get("/approvals/nonsense", headers=ALICE)).json()["code"] == "approval_unknown"


async def test_a_decision_after_the_time_is_gone(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"], timeout_seconds=0.2))
    await server.engine.result("run/1", timeout=30)
    late = await decided(server, approval_id, "approve", ALICE)
    assert (late.status_code, late.json()["code"]) == (410, "approval_expired")


async def test_the_form_is_checked_and_a_quorum_counts_votes(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice", "user:bob"], quorum=2, form=FORM))
    wrong = await decided(server, approval_id, "approve", ALICE, form={"amount": "much"})
    assert (wrong.status_code, wrong.json()["path"]) == (422, "/form/amount")
    one = await decided(server, approval_id, "approve", ALICE, form={"amount": 1})
    assert one.json() == {"approval_id": approval_id, "status": "pending", "decision": None, "next_nodes": []}
    assert (await decided(server, approval_id, "approve", BOB, form={"amount": 2})).json()["status"] == "decided"
    votes = (await server.http.get(f"/approvals/{approval_id}/votes", headers=ALICE)).json()["items"]
    assert [(each["by"], each["form"]) for each in votes] == [
        ("user:alice", {"amount": 1}),
        ("user:bob", {"amount": 2}),
    ]
    told = (await server.http.get(f"/approvals/{approval_id}/history", headers=ALICE)).json()["items"]
    assert [each["event"] for each in told] == ["ApprovalRequested", "ApprovalVoted", "ApprovalDecided"]


async def test_a_delegate_decides_instead(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"]))
    passed = await server.http.post(f"/approvals/{approval_id}/delegate", json={"to": "bob"}, headers=ALICE)
    assert passed.json()["delegated"] == [{"by": "user:alice", "to": "user:bob"}]
    assert (await decided(server, approval_id, "approve", ALICE)).status_code == 403
    assert (await decided(server, approval_id, "approve", BOB)).status_code == 200


async def test_an_earlier_visit_stays_decided_when_the_node_asks_again(server: ApiServer) -> None:
    document = asking(approvers=["user:alice"], changes_path=["redo"])
    document["nodes"] += [{"id": "redo", "type": "value"}, signal("hold")]
    approval_id = await asked(server, document)
    path = f"/approvals/{approval_id}/request-changes"
    first = await server.http.post(path, json={"comments": "cheaper"}, headers=ALICE)
    assert first.json() == {
        "approval_id": approval_id, "status": "decided", "decision": "changes", "next_nodes": ["redo"]
    }  # fmt: skip
    await server.engine.rewind("run/1", "ask")
    assert await pending(server, "run/1") != approval_id
    again = await server.http.post(path, json={"comments": "cheaper"}, headers=ALICE)
    assert (again.status_code, again.content) == (200, first.content)
    contrary = await decided(server, approval_id, "approve", ALICE)
    assert (contrary.status_code, contrary.json()["code"]) == (409, "decision_conflict")
    shown = (await server.http.get(f"/approvals/{approval_id}", headers=ALICE)).json()
    assert (shown["status"], shown["decision"], shown["evidence"]) == ("decided", "changes", None)


async def test_who_may_not_decide_cannot_settle_the_node_by_hand(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"], four_eyes=True), run_id="run")
    for body in ({"node": "ask", "value": {"decision": "approve"}}, {"node": "ask", "skip": True}):
        refused = await server.http.post("/runs/run/override", json=body, headers=as_caller("olga", "operator"))
        assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed"), refused.text
    shown = await server.http.get(f"/approvals/{approval_id}", headers=ALICE)
    assert shown.json()["status"] == "pending"


async def test_a_fork_with_other_inputs_keeps_no_decision_of_others(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"]), run_id="run")
    await decided(server, approval_id, "approve", ALICE)
    operator = as_caller("olga", "operator")
    refused = await server.http.post("/runs/run/fork", json={"inputs": {"amount": 9}}, headers=operator)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed"), refused.text
    assert (await server.http.post("/runs/run/fork", json={"node": "ask"}, headers=operator)).status_code == 201


async def test_the_inbox_shows_mine_what_is_due_and_what_is_overdue(server: ApiServer) -> None:
    for name, config in {
        "mine": {"approvers": ["user:alice"], "timeout_hours": 1},
        "roles": {"approvers": ["role:clerk"], "timeout_hours": 100},
        "anyone": {},
    }.items():
        await asked(server, asking(name=name, **config), run_id=name)
    ask = {name: activation_id(name, "ask", 1, -1) for name in ("mine", "roles", "anyone")}
    assert set(await ids(server, ALICE)) == set(ask.values())
    assert await ids(server, ALICE, mine=True) == [ask["anyone"], ask["mine"]]
    assert await ids(server, CLERK, mine=True) == [ask["anyone"], ask["roles"]]
    assert await ids(server, CLERK, my_roles=True) == [ask["roles"]]
    assert await ids(server, ALICE, my_roles=True) == []
    assert await ids(server, ALICE, due=7_200) == [ask["mine"]]
    assert await ids(server, ALICE, overdue=True) == []
    assert await ids(server, ALICE, query="workflow:roles") == [ask["roles"]]
    await decided(server, ask["anyone"], "approve", ALICE)
    assert await ids(server, ALICE, mine=True) == [ask["mine"]]
    assert await ids(server, ALICE, status="decided") == [ask["anyone"]]


async def test_pages_of_the_inbox_neither_skip_nor_repeat(server: ApiServer) -> None:
    await server.publish(asking(name="a", approvers=["user:alice", "role:clerk"]))
    await server.publish(asking(name="b"))
    for number in range(7):
        await server.engine.start("ab"[number % 2], key=f"run-{number}")
    for number in range(7):
        await pending(server, f"run-{number}")
    found: list[str] = []
    after = None
    while True:
        params = {"mine": True, "limit": 2, **({"after": after} if after else {})}
        page = (
            await server.http.get("/approvals", params=params, headers=as_caller("alice", "clerk", "viewer"))
        ).json()
        found += [each["run_id"] for each in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(found) == [f"run-{number}" for number in range(7)]


# Links


async def link(server: ApiServer, approval_id: str, who: dict[str, str], **body: Any) -> httpx2.Response:
    return await server.http.post(f"/approvals/{approval_id}/links", json=body, headers=who)


async def test_a_link_shows_and_decides_once_without_a_key(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"]))
    made = await link(server, approval_id, ALICE)
    assert made.status_code == 201, made.text
    url = made.json()["url"]
    shown = await server.http.get(url)
    assert (shown.status_code, shown.json()["status"]) == (200, "pending")
    assert shown.headers["cache-control"] == "no-store" and shown.headers["referrer-policy"] == "no-referrer"
    assert (await server.engine.approval("run/1", "ask")).status == "pending"
    first = await server.http.post(url, json={"decision": "approve"})
    assert (first.status_code, first.json()["status"]) == (200, "decided")
    assert (await server.engine.approval("run/1", "ask")).approval.decided_by == "user:alice"
    assert (await server.http.post(url, json={"decision": "approve"})).content == first.content
    other = await server.http.post(url, json={"decision": "reject"})
    assert (other.status_code, other.json()["code"]) == (409, "decision_conflict")


async def test_a_browser_that_opens_a_link_is_sent_to_the_page(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"]))
    link = (await server.http.post(f"/approvals/{approval_id}/links", json={}, headers=ALICE)).json()
    token = link["url"].rpartition("/")[2]
    opened = await server.http.get(f"/decisions/{token}", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (opened.status_code, opened.headers["location"]) == (303, f"../../../decide/{token}")
    shown = (await server.http.get(f"/decisions/{token}")).json()["decider"]
    assert shown == {"person": "user:alice", "refusal": None, "expires_ms": link["expires_ms"]}


async def test_only_an_administrator_makes_links_for_others_who_were_asked(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice", "user:bob"], quorum=2))
    forged = await link(server, approval_id, ALICE, person="bob")
    assert (forged.status_code, forged.json()["code"]) == (403, "not_allowed")
    stranger = await link(server, approval_id, ADMIN, person="mallory")
    assert (stranger.status_code, stranger.json()["code"]) == (403, "approver_not_allowed")
    made = (await link(server, approval_id, ADMIN, person="bob")).json()
    assert (await server.http.post(made["url"], json={"decision": "approve"})).json()["status"] == "pending"
    assert [vote.by for vote in (await server.engine.approval("run/1", "ask")).approval.votes] == ["user:bob"]


async def test_a_link_that_is_forged_expired_or_of_an_earlier_request_decides_nothing(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"]))
    url = (await link(server, approval_id, ALICE)).json()["url"]
    body, _, signature = url.rpartition(".")
    for forged in (f"{body}x.{signature}", f"{body}.{signature[:-2]}AA", f"{url}x", f"{body}."):
        answer = await server.http.post(forged, json={"decision": "approve"})
        assert (answer.status_code, answer.json()["code"]) == (404, "link_invalid")
    short = (await link(server, approval_id, ALICE, expires_in_seconds=1)).json()["url"]
    await asyncio.sleep(1.1)
    gone = await server.http.get(short)
    assert (gone.status_code, gone.json()["code"]) == (410, "link_expired")
    assert (await server.engine.approval("run/1", "ask")).status == "pending"


async def test_a_link_ends_with_its_approval_and_after_a_week_at_most(tmp_path: Path) -> None:
    asks = asking(approvers=["user:alice"], timeout_seconds=3_600)
    async with api_server(sqlite_url(tmp_path), access=TestAccess, link_hours=0.5) as server:
        approval_id, now_ms = await asked(server, asks), server.engine.context.store.now_ms()
        made = (await link(server, approval_id, ALICE, expires_in_seconds=7 * 86_400)).json()
        assert now_ms < made["expires_ms"] <= server.engine.context.store.now_ms() + 1_800_000
        server.app.state.decision_links = DecisionLinks(SECRET)
        made = (await link(server, approval_id, ALICE, expires_in_seconds=7 * 86_400)).json()
        assert made["expires_ms"] == (await server.engine.approval("run/1", "ask")).approval.expires_ms
        longer = await link(server, approval_id, ALICE, expires_in_seconds=7 * 86_400 + 1)
        assert (longer.status_code, longer.json()["path"]) == (422, "/expires_in_seconds")


async def test_a_link_begins_with_an_address_that_the_client_does_not_choose(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"]))
    for header in ("Host", "X-Forwarded-Host", "Forwarded"):
        made = await link(server, approval_id, {**ALICE, header: "evil.example"})
        assert made.json()["url"].startswith(f"http://127.0.0.1:{server.port}/api/v1/decisions/")
    server.app.state.public_url = "https://mill.example"
    made = await link(server, approval_id, {**ALICE, "Host": "evil.example"})
    assert made.json()["url"].startswith("https://mill.example/api/v1/decisions/")


async def test_a_link_is_not_asked_more_often_than_a_key(tmp_path: Path) -> None:
    limits = ServerLimits(key_requests_per_second=20, tenant_requests_per_second=0)
    async with api_server(sqlite_url(tmp_path), access=TestAccess, secret=SECRET, limits=limits) as server:
        url = (await link(server, await asked(server, asking(approvers=["user:alice"])), ALICE)).json()["url"]
        answers = await asyncio.gather(*(server.http.get(url) for _ in range(300)))
        assert {each.status_code for each in answers} == {200, 429}
        assert {each.json()["code"] for each in answers if each.status_code == 429} == {"rate_limited"}


async def test_links_of_another_secret_are_not_believed(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), access=TestAccess) as server:
        approval_id = await asked(server, asking(approvers=["user:alice"]))
        url = (await link(server, approval_id, ALICE)).json()["url"]
        token = url.rpartition("/")[2]
    async with api_server(sqlite_url(tmp_path), access=TestAccess, secret=SECRET) as server:
        assert (await server.http.get(f"/decisions/{token}")).json()["code"] == "link_invalid"


async def test_a_link_of_a_tenant_that_is_disabled_is_closed(server: ApiServer) -> None:
    tenants = server.engine.for_tenant("default").tenants
    await tenants.create("acme", actor="root")
    services = server.engine.for_tenant("acme")
    await services.workflows.publish(asking(approvers=["user:alice"]))
    await services.runs.start("order", key="run")
    for _ in range(3_000):
        if (await services.approvals.find("status:pending"))[0]:
            break
        await asyncio.sleep(0.01)
    url = (
        await link(server, activation_id("run", "ask", 1, -1), as_caller("alice", "approver", tenant="acme"))
    ).json()["url"]
    await tenants.disable("acme", actor="root")
    refused = await server.http.post(url, json={"decision": "approve"})
    assert refused.json()["code"] == "tenant_disabled"
    assert (await services.approvals.show("run", "ask")).status == "pending"


async def test_a_decision_by_a_link_is_audited_under_the_name_of_its_person(server: ApiServer) -> None:
    approval_id = await asked(server, asking(approvers=["user:alice"]))
    url = (await link(server, approval_id, ALICE)).json()["url"]
    assert (await server.http.post(url, json={"decision": "approve"})).status_code == 200
    decided = [event for event in await server.engine.events("run/1") if event["type"] == "ApprovalDecided"]
    assert [(event["actor"], event["by"]) for event in decided] == [("alice", "user:alice")]


async def test_behind_a_decision_only_deciders_change_the_graph(server: ApiServer) -> None:
    """People have decided on what they saw: an author may change it before, by patch, fork and correction alike."""
    author = as_caller("anna", "author", "operator")
    broken = {"id": "pack", "type": "fail", "dependencies": ["ask"]}
    approval_id = await asked(server, asking(broken))
    run = "/runs/run%2F1"
    patch = {"operations": [{"op": "replace", "path": "/nodes/pack/type", "value": "value"}], "message": "repaired"}

    async def change(path: str, body: dict[str, Any], who: dict[str, str]) -> tuple[int, str]:
        answer = await server.http.post(path, json=body, headers=who)
        return answer.status_code, answer.json().get("code", "")

    described = {"operations": [{"op": "add", "path": "/description", "value": "as before"}]}
    assert await change(f"{run}/patch", described, author) == (200, "")
    assert (await decided(server, approval_id, "approve", ALICE)).status_code == 200
    await server.engine.result("run/1")
    refused = (403, "not_allowed")
    assert await change(f"{run}/patch", {**patch, "retry": True}, author) == refused
    assert await change(f"{run}/fork", {"patch": patch["operations"]}, author) == refused
    assert await change(f"{run}/fork", {"inputs": {"n": 1}}, author) == refused
    letters = {"workflow": "order", "operations": patch["operations"]}
    assert await change("/dead-letters/reprocess", letters, author) == refused
    assert (await server.engine.show("run/1")).status == "FAILED"
    assert await change(f"{run}/patch", {**patch, "retry": True, "dry_run": True}, author) == (200, "")
    assert await change(f"{run}/patch", {**patch, "retry": True}, ADMIN) == (200, "")
    assert (await server.engine.result("run/1")).status == "COMPLETED"


async def test_behind_a_vote_only_deciders_change_the_graph(server: ApiServer) -> None:
    author = as_caller("anna", "author", "operator")
    approval_id = await asked(server, asking(quorum=2))
    assert (await decided(server, approval_id, "approve", ALICE)).json()["status"] == "pending"
    patch = {"operations": [{"op": "replace", "path": "/nodes/ship/config", "value": "elsewhere"}]}
    refused = await server.http.post("/runs/run%2F1/patch", json=patch, headers=author)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    forked = await server.http.post("/runs/run%2F1/fork", json={"inputs": {"n": 1}}, headers=author)
    again = await pending(server, forked.json()["run_id"])
    assert (await server.http.get(f"/approvals/{again}", headers=ALICE)).json()["votes"] == [], "it asks her again"


async def test_a_fork_with_other_inputs_has_no_decision_that_was_made_meanwhile(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = as_caller("anna", "author", "operator")
    approval_id = await asked(server, asking())
    check = run_actions.check_decisions

    async def check_slowly(*asked: Any) -> int | None:
        found = await check(*asked)
        assert (await decided(server, approval_id, "approve", ALICE)).status_code == 200
        return found

    monkeypatch.setattr(run_actions, "check_decisions", check_slowly)
    forked = await server.http.post("/runs/run%2F1/fork", json={"inputs": {"n": 1}}, headers=author)
    assert (await server.engine.result("run/1")).status == "COMPLETED"
    await pending(server, forked.json()["run_id"])


async def test_the_log_of_the_server_has_no_link(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    url = (await link(server, await asked(server, asking()), ALICE)).json()["url"]

    for error, status in ((Unavailable("gone"), 503), (RuntimeError("a bug"), 500)):

        async def broken(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        server.engine.context.run_cache.refresh = broken  # type: ignore[method-assign]
        assert (await server.http.get(url)).status_code == status
        assert "GET /api/v1/decisions/{token}: " in caplog.text
        assert url.rpartition("/")[2] not in caplog.text
