"""Credentials over HTTP: keys, tokens and sessions; `/keys`, `/tenants`, `/audit`, `/session` and `/me`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tidemill.ambient import wall_clock_ms
from tidemill.api import auth
from tidemill.api.auth import Access
from tidemill.engine.engine import Engine
from tidemill.engine.maintenance.audit_chain import chain_stream
from tidemill.engine.services import access
from tidemill.security.identity import CSRF_HEADER, SESSION_COOKIE, JwtRules, JwtVerifier, Sessions
from tidemill.stores.contract import Commit, Store

SECRET = "a secret of the tests, which is long enough"
FLOW: dict[str, Any] = {"name": "hello", "nodes": [{"id": "a", "type": "value", "config": 1}]}


def strict(engine: Engine) -> Access:
    return Access(engine, jwt=JwtVerifier(JwtRules(secret=SECRET)), sessions=Sessions(SECRET, hours=1))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), access=strict, work=False) as found:
        yield found


async def key_of(server: ApiServer, *roles: str, tenant: str = "default", label: str = "", **more: Any) -> str:
    made = await server.engine.for_tenant(tenant).keys.create(
        label or f"{tenant}-{'-'.join(roles)}", roles=roles, actor="the test", **more
    )
    return made.key


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def token(**claims: Any) -> str:
    body = {"sub": "ada", "tenant": "default", "roles": ["admin"], "exp": wall_clock_ms() // 1_000 + 600, **claims}
    return jwt.encode(body, SECRET, algorithm="HS256")


def problem(response: httpx2.Response) -> tuple[int, str]:
    """The status and the code of a refusal."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    if response.status_code == 401:
        assert response.headers["www-authenticate"] == "Bearer"
    body = response.json()
    assert body["status"] == response.status_code and body["hint"]
    return response.status_code, body["code"]


async def test_without_a_credential_nothing_is_answered(server: ApiServer) -> None:
    for path in ("/me", "/keys", "/tenants", "/audit", "/audit/verify"):
        assert problem(await server.http.get(path)) == (401, "unauthenticated")
    assert problem(await server.http.post("/keys", json={})) == (401, "unauthenticated")
    assert problem(await server.http.post("/session")) == (401, "unauthenticated")
    assert (await server.http.get(f"{server.url}/livez")).status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        *("", "Bearer", "Basic YTpi", "bearer x", "Bearer tm_", "Bearer tm_default.0123456789abcdef_x"),
        *("Bearer a.b.c", "Bearer " + "x" * 5_000, "tm_default.0123456789abcdef_x", "Bearer tm_ü.0_x"),
    ],
)
async def test_a_credential_that_is_none_is_refused(server: ApiServer, given: str) -> None:
    response = await server.http.get("/me", headers=[(b"authorization", given.encode("latin-1"))])
    assert problem(response) == (401, "credential_invalid")


async def test_two_credentials_in_one_request_are_refused(server: ApiServer) -> None:
    first, second = await key_of(server, "admin", label="one"), await key_of(server, "viewer", label="two")
    headers = [("Authorization", f"Bearer {first}"), ("Authorization", f"Bearer {second}")]
    assert problem(await server.http.get("/me", headers=headers)) == (401, "credential_invalid")


async def test_a_key_is_let_in_as_its_tenant_and_roles(server: ApiServer) -> None:
    key = await key_of(server, "viewer", label="reader")
    found = (await server.http.get("/me", headers=bearer(key))).json()
    assert (found["tenant"], found["name"], found["roles"]) == ("default", "key:reader", ["viewer"])
    assert "runs:read" in found["permissions"] and "keys:read" not in found["permissions"]
    assert found["csrf_token"] == ""
    assert problem(await server.http.get("/keys", headers=bearer(key))) == (403, "not_allowed")
    assert problem(await server.http.get("/me", headers=bearer(key + "x"))) == (401, "credential_invalid")
    assert (await server.http.get("/me", headers={"authorization": f"bearer  {key}"})).status_code == 200


async def test_expired_and_revoked_keys_are_refused(server: ApiServer) -> None:
    admin = await key_of(server, "admin")
    short = await key_of(server, "viewer", expires_days=1e-9)
    await asyncio.sleep(0.01)
    assert problem(await server.http.get("/me", headers=bearer(short))) == (401, "key_expired")
    made = await server.http.post("/keys", json={"label": "ci", "roles": ["viewer"]}, headers=bearer(admin))
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    key, view = made.json()["key"], made.json()["view"]
    assert (await server.http.get("/me", headers=bearer(key))).status_code == 200
    gone = await server.http.delete(f"/keys/{view['id']}", headers=bearer(admin))
    assert gone.json()["state"] == "revoked" and gone.json()["revoked_by"] == "key:default-admin"
    assert problem(await server.http.get("/me", headers=bearer(key))) == (401, "key_revoked")
    assert (await server.http.delete(f"/keys/{view['id']}", headers=bearer(admin))).json() == gone.json()
    listed = (await server.http.get("/keys", headers=bearer(admin))).json()
    assert {each["label"]: each["state"] for each in listed["items"]} == {
        "ci": "revoked",
        "default-admin": "live",
        "default-viewer": "expired",
    }
    assert key.split("_", 2)[2] not in str(listed) and "hash" not in listed["items"][0]


async def test_of_two_keys_that_are_made_at_once_one_has_the_label(server: ApiServer) -> None:
    admin, new = bearer(await key_of(server, "admin")), {"label": "ci", "roles": ["viewer"]}
    for _ in range(2):
        answers = await asyncio.gather(*(server.http.post("/keys", json=new, headers=admin) for _ in range(8)))
        assert sorted(each.status_code for each in answers) == [201] + [409] * 7
        assert {problem(each)[1] for each in answers if each.status_code == 409} == {"key_label_taken"}
        (made,) = [each.json() for each in answers if each.status_code == 201]
        assert (await server.http.get("/me", headers=bearer(made["key"]))).json()["name"] == "key:ci"
        # A label that is free again names another key.
        await server.http.delete(f"/keys/{made['view']['id']}", headers=admin)
        assert problem(await server.http.get("/me", headers=bearer(made["key"]))) == (401, "key_revoked")


async def test_bad_requests_for_keys_change_nothing(server: ApiServer) -> None:
    headers = bearer(await key_of(server, "admin"))
    wrong: list[tuple[Any, tuple[int, str]]] = [
        ({}, (422, "request_invalid")),
        ({"label": "x", "roles": []}, (422, "request_invalid")),
        ({"label": "x", "roles": ["root"]}, (422, "request_invalid")),
        ({"label": "x", "roles": ["viewer"], "tenant": "acme"}, (422, "request_invalid")),
        ({"label": "two words", "roles": ["viewer"]}, (422, "key_label_invalid")),
        ({"label": "default-admin", "roles": ["viewer"]}, (409, "key_label_taken")),
        ({"label": "x", "roles": ["viewer"], "expires_days": -1}, (422, "key_expiry_invalid")),
    ]
    for body, expected in wrong:
        response = await server.http.post("/keys", json=body, headers=headers)
        assert (response.status_code, response.json()["code"]) == expected
    absent = await server.http.delete("/keys/default.0123456789abcdef", headers=headers)
    assert problem(absent) == (404, "key_unknown")
    assert len((await server.http.get("/keys", headers=headers)).json()["items"]) == 1


async def test_another_tenants_key_answers_like_an_absent_one(server: ApiServer) -> None:
    operator = bearer(await key_of(server, "admin"))
    for name in ("acme", "globex"):
        assert (await server.http.post("/tenants", json={"name": name}, headers=operator)).status_code == 201
    acme, globex = [bearer(await key_of(server, "admin", tenant=name)) for name in ("acme", "globex")]
    (mine,) = (await server.http.get("/keys", headers=acme)).json()["items"]
    foreign = await server.http.delete(f"/keys/{mine['id']}", headers=globex)
    absent = await server.http.delete(f"/keys/{mine['id'][:-4]}0000", headers=globex)
    assert problem(foreign) == problem(absent) == (404, "key_unknown")
    assert foreign.text.replace(mine["id"], "ID") == absent.text.replace(f"{mine['id'][:-4]}0000", "ID")
    assert (await server.http.get("/me", headers=acme)).json()["tenant"] == "acme"
    for method, path in (("GET", "/tenants"), ("POST", "/tenants"), ("POST", "/tenants/acme/disable")):
        assert problem(await server.http.request(method, path, json={"name": "x"}, headers=acme)) == (
            403,
            "not_allowed",
        )


async def test_a_disabled_tenant_is_refused(server: ApiServer) -> None:
    operator = bearer(await key_of(server, "admin"))
    await server.http.post("/tenants", json={"name": "acme"}, headers=operator)
    again = await server.http.post("/tenants", json={"name": "acme"}, headers=operator)
    assert problem(again) == (409, "tenant_exists")
    key = await key_of(server, "viewer", tenant="acme")
    disabled = (await server.http.post("/tenants/acme/disable", headers=operator)).json()
    assert disabled["state"] == "disabled"
    assert problem(await server.http.get("/me", headers=bearer(key))) == (401, "tenant_disabled")
    assert problem(await server.http.get("/me", headers=bearer(token(tenant="acme")))) == (401, "tenant_disabled")
    assert [each["name"] for each in (await server.http.get("/tenants", headers=operator)).json()["items"]] == ["acme"]
    assert problem(await server.http.post("/tenants/none/enable", headers=operator)) == (404, "tenant_unknown")


async def test_a_token_is_let_in(server: ApiServer) -> None:
    found = (await server.http.get("/me", headers=bearer(token(roles=["operator", "finance"])))).json()
    assert (found["tenant"], found["name"], found["roles"]) == ("default", "ada", ["operator", "finance"])
    assert problem(await server.http.get("/me", headers=bearer(token(tenant="nowhere")))) == (401, "tenant_disabled")
    assert problem(await server.http.get("/me", headers=bearer(token(exp=1)))) == (401, "token_expired")
    unsigned = jwt.encode({"sub": "eve", "tenant": "default", "roles": ["admin"], "exp": 2**33}, "", algorithm="none")
    assert problem(await server.http.get("/me", headers=bearer(unsigned))) == (401, "credential_invalid")
    header, body, _ = token().split(".")
    assert problem(await server.http.get("/me", headers=bearer(f"{header}.{body}."))) == (401, "credential_invalid")


async def test_a_session_lets_a_browser_in_and_changes_need_its_csrf_token(server: ApiServer) -> None:
    admin = await key_of(server, "admin")
    begun = await server.http.post("/session", headers=bearer(admin))
    assert begun.status_code == 201
    (cookie,) = begun.headers.get_list("set-cookie")
    assert cookie.startswith(f"{SESSION_COOKIE}=") and admin.split("_", 2)[2] not in cookie
    lowered = cookie.lower()
    assert "httponly" in lowered and "samesite=strict" in lowered and "path=/" in lowered and "max-age=3600" in lowered
    assert "secure" not in lowered, "the test has no TLS"
    csrf = begun.json()["csrf_token"]
    found = (await server.http.get("/me")).json()
    assert (found["name"], found["csrf_token"]) == ("key:default-admin", csrf)
    new = {"label": "ci", "roles": ["viewer"]}
    assert problem(await server.http.post("/keys", json=new)) == (403, "csrf_invalid")
    assert problem(await server.http.post("/keys", json=new, headers={CSRF_HEADER: "x"})) == (403, "csrf_invalid")
    assert (await server.http.post("/keys", json=new, headers={CSRF_HEADER: csrf})).status_code == 201
    ended = await server.http.delete("/session", headers={CSRF_HEADER: csrf})
    assert ended.status_code == 204 and SESSION_COOKIE not in server.http.cookies
    assert problem(await server.http.get("/me")) == (401, "unauthenticated")


async def test_a_copied_cookie_is_worthless_after_sign_out(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "KNOWN_FOR_MS", 0)
    begun = await server.http.post("/session", headers=bearer(await key_of(server, "admin")))
    csrf, copied = begun.json()["csrf_token"], {"Cookie": f"{SESSION_COOKIE}={server.http.cookies[SESSION_COOKIE]}"}
    again = await server.http.post("/session", headers={CSRF_HEADER: csrf})
    assert problem(again) == (401, "unauthenticated"), "a second session would outlive the first"
    async with api_server(sqlite_url(tmp_path), access=strict, work=False) as other:
        for each in (server, other):
            assert (await each.http.get("/me", headers=copied)).status_code == 200
        assert (await server.http.delete("/session", headers={CSRF_HEADER: csrf})).status_code == 204
        for each in (server, other):
            assert problem(await each.http.get("/me", headers=copied)) == (401, "session_invalid")
            used = await each.http.post("/keys", json={}, headers={**copied, CSRF_HEADER: csrf})
            assert problem(used) == (401, "session_invalid")
    (entry,) = (await server.engine.audit.find(action="sessions.end"))[0]
    assert entry.actor == "key:default-admin"


async def test_an_ended_session_is_forgotten_when_its_time_is_over(server: ApiServer) -> None:
    credentials, store = server.engine.credentials, server.engine.context.store
    now_ms = store.now_ms()
    for number, expires_ms in enumerate((now_ms - 2, now_ms - 1, now_ms + 60_000)):
        await credentials.end_session("default", f"session-{number}", expires_ms, actor="ann")
    kept = await store.find("default", access.SESSION, limit=10)
    assert [row.key for row in kept.rows] == ["session-2"]
    assert [stream.key for stream in await store.streams(access.SESSION, limit=10)] == ["session-2"]


async def test_behind_tls_the_cookie_is_secure(server: ApiServer) -> None:
    headers = {**bearer(await key_of(server, "viewer")), "x-forwarded-proto": "https"}
    begun = await server.http.post("/session", headers=headers)
    assert "secure" in begun.headers["set-cookie"].lower()


async def test_a_session_ends_with_its_key_and_cannot_be_forged(server: ApiServer) -> None:
    made = await server.engine.keys.create("browser", roles=["viewer"], actor="the test")
    await server.http.post("/session", headers=bearer(made.key))
    assert (await server.http.get("/me")).status_code == 200
    await server.engine.keys.revoke(made.view.id, actor="the test")
    assert problem(await server.http.get("/me")) == (401, "key_revoked")
    good = server.http.cookies[SESSION_COOKIE]
    server.http.cookies.clear()
    for forged in (good[:-2], "x.y", "x", good.replace(".", ".A")):
        response = await server.http.get("/me", headers={"Cookie": f"{SESSION_COOKIE}={forged}"})
        assert problem(response) == (401, "session_invalid")


async def test_what_is_changed_over_http_is_audited(server: ApiServer) -> None:
    admin = bearer(await key_of(server, "admin"))
    services = server.engine.for_tenant("default", audited=True)
    await services.workflows.publish(FLOW, author="ada")
    made = (await server.http.post("/keys", json={"label": "ci", "roles": ["viewer"]}, headers=admin)).json()
    found = (await server.http.get("/audit", headers=admin)).json()
    assert [(each["actor"], each["action"]) for each in found["items"]] == [
        ("key:default-admin", "keys.create"),
        ("ada", "workflows.publish"),
        ("the test", "keys.create"),
    ]
    page = (await server.http.get("/audit", params={"limit": 1}, headers=admin)).json()
    rest = (await server.http.get("/audit", params={"after": page["next"]}, headers=admin)).json()
    assert [*page["items"], *rest["items"]] == found["items"]
    wanted = {"subject": made["view"]["id"], "action": "keys.create", "since": "1h"}
    assert len((await server.http.get("/audit", params=wanted, headers=admin)).json()["items"]) == 1
    assert problem(await server.http.get("/audit", params={"since": "never"}, headers=admin))[0] == 422
    good = (await server.http.get("/audit/verify", headers=admin)).json()
    assert good["intact"] and good["entries"] == 3
    kept = await server.http.get("/audit/verify", params={"head": good["head"]}, headers=admin)
    assert kept.json()["intact"]
    await _tamper(server.engine.context.store)
    broken = (await server.http.get("/audit/verify", headers=admin)).json()
    assert not broken["intact"] and broken["broken_seq"] == 2
    assert problem(await server.http.get("/audit", headers=bearer(token(roles=["operator"])))) == (403, "not_allowed")


async def test_the_audit_has_the_reasons_of_what_was_done_to_runs(server: ApiServer) -> None:
    admin = bearer(await key_of(server, "admin"))
    await server.publish({"name": "asks", "nodes": [{"id": "a", "type": "human"}]})
    run_id = await server.engine.start("asks")
    for action in ("pause", "resume", "cancel"):
        body = {"action": action, "query": "workflow:asks", "reason": f"why {action}"}
        assert (await server.http.post("/runs/bulk", json=body, headers=admin)).json()["done"] == 1
    found = (await server.http.get("/audit", params={"subject": run_id}, headers=admin)).json()["items"]
    told = [(each["action"], each["detail"]) for each in reversed(found)]
    assert told == [(f"runs.{action}", f"why {action}") for action in ("pause", "resume", "cancel")]


async def test_blobs_and_links_are_audited(tmp_path: Path) -> None:
    ask = {"id": "ask", "type": "human", "config": {"title": "ok?", "approvers": ["role:approver"]}}
    async with api_server(sqlite_url(tmp_path), access=strict, secret=SECRET) as server:
        admin, approver = bearer(await key_of(server, "admin")), bearer(await key_of(server, "approver"))
        digests = []
        for _ in range(2):
            stored = await server.http.post("/blobs", content=b"bytes", params={"keep": "true"}, headers=admin)
            digests.append(stored.json()["$blob"])
        await server.publish({"name": "order", "nodes": [ask]})
        run_id = await server.engine.start("order")
        items: list[dict[str, Any]] = []
        while not items:
            items = (await server.http.get("/approvals", headers=approver)).json()["items"]
        made = await server.http.post(f"/approvals/{items[0]['approval_id']}/links", json={}, headers=approver)
        assert (await server.http.post(made.json()["url"], json={"decision": "approve"})).status_code == 200
        found = (await server.http.get("/audit", headers=admin)).json()["items"]
        told = [(each["actor"], each["action"], each["subject"], each["detail"]) for each in reversed(found)]
        assert [each for each in told if not each[1].startswith("keys.")] == [
            ("key:default-admin", "blobs.put", digests[0], "5 bytes, kept permanently"),
            ("key:default-admin", "blobs.put", digests[1], "5 bytes, kept permanently"),
            ("key:default-approver", "runs.create_link", run_id, "ask for key:default-approver"),
            ("key:default-approver", "runs.decide", run_id, ""),
            ("key:default-approver", "runs.use_link", run_id, "ask"),
        ]
        created, used = [each for each in found if each["action"].endswith("_link")]
        assert created["digest"] == used["digest"], "it shows by which link the decision was made"
        assert (await server.http.get("/audit/verify", headers=admin)).json()["intact"]


async def _tamper(store: Store) -> None:
    """Put another actor into the second entry of the chain, as one can who writes to the database."""
    stream = chain_stream("default")
    (tail,) = await store.load({stream: 0}, snapshots=False)
    records = list(tail.records)
    records[1] = records[1].replace(b"\xa3ada", b"\xa3eve")
    assert records[1] != tail.records[1]
    assert await store.forget(stream)
    await store.commit([Commit(stream=stream, expected=0, records=tuple(records))])


async def test_a_link_ends_with_the_key_that_made_it(tmp_path: Path) -> None:
    ask = {"id": "ask", "type": "human", "config": {"title": "ok?", "approvers": ["role:approver"]}}
    async with api_server(sqlite_url(tmp_path), access=strict, secret=SECRET) as server:
        approver = bearer(await key_of(server, "approver"))
        await server.publish({"name": "order", "nodes": [ask]})
        await server.engine.start("order", key="run")
        items: list[dict[str, Any]] = []
        while not items:
            items = (await server.http.get("/approvals", headers=approver)).json()["items"]
        made = await server.http.post(f"/approvals/{items[0]['approval_id']}/links", json={}, headers=approver)
        url = made.json()["url"]
        assert (await server.http.get(url)).status_code == 200
        me = (await server.http.get("/me", headers=approver)).json()
        await server.engine.for_tenant("default").keys.revoke(me["key_id"], actor="the test")
        for answer in (await server.http.get(url), await server.http.post(url, json={"decision": "approve"})):
            assert problem(answer) == (401, "key_revoked")
        assert (await server.engine.approval("run", "ask")).status == "pending"


async def test_without_authentication_no_page_of_another_site_is_answered(tmp_path: Path) -> None:
    def local(engine: Engine) -> Access:
        return Access.open(engine, hosts={"localhost", "127.0.0.1"})

    async with api_server(sqlite_url(tmp_path), access=local, work=False) as server:
        own = f"127.0.0.1:{server.port}"
        for headers in ({}, {"Host": f"LOCALHOST:{server.port}"}, {"Origin": f"http://{own}"}):
            assert (await server.http.get("/me", headers=headers)).status_code == 200, headers
        # What a browser sends without asking first, and what a name sends that points to this machine by now.
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:1"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": f"evil.example:{server.port}"},
            {"Host": f"evil.example:{server.port}", "Origin": f"http://evil.example:{server.port}"},
        ):
            text = {"Content-Type": "text/plain", **headers}
            answer = await server.http.post(
                "/workflows", content="name: x\nnodes: [{id: a, type: value}]", headers=text
            )
            assert problem(answer) == (403, "site_not_allowed"), headers
        assert (await server.http.get("/workflows")).json()["items"] == []


async def test_the_first_key_closes_a_server_without_authentication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "KNOWN_FOR_MS", 0)
    async with api_server(
        sqlite_url(tmp_path), access=lambda engine: Access.open(engine, hosts=()), work=False
    ) as found:
        assert (await found.http.get("/me")).json()["name"] == "local"
        assert problem(await found.http.post("/session")) == (401, "unauthenticated"), "it would outlive the open door"
        key = await key_of(found, "viewer")
        assert problem(await found.http.get("/me")) == (401, "unauthenticated")
        assert (await found.http.get("/me", headers=bearer(key))).json()["roles"] == ["viewer"]
