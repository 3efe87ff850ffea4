"""What the server refuses of its clients, and what every answer says to browsers."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from limits import RateLimitItemPerMinute

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.callers import TestAccess, as_caller
from tidemill.api import auth, connections
from tidemill.api.auth import Access
from tidemill.api.protection import SECURITY_HEADERS, STARTING, LoadGuard
from tidemill.api.server_settings import ServerLimits
from tidemill.errors import DiskFull, Problem, Rejected, StoreUnusable, Unavailable
from tidemill.security.roles import Principal
from tidemill.stores.contract import Commit, Job, Stream

JSON = {"content-type": "application/json"}
SMALL = ServerLimits(body_bytes=10_000, json_depth=20, json_keys=500, body_seconds=0.3)
ANN = Principal(tenant="default", name="ann", roles=("operator",))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), work=False, limits=SMALL) as running:
        yield running


def document(config: Any) -> str:
    return json.dumps({"document": {"name": "x", "nodes": [{"id": "a", "type": "value", "config": config}]}})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (document("x" * 10_000), JSON, 413, "body_too_large"),
        (document(nested(30)), JSON, 413, "body_too_complex"),
        (document({f"k{number}": number for number in range(500)}), JSON, 413, "body_too_complex"),
        (document(1), {"content-type": "application/x-www-form-urlencoded"}, 415, "content_type_unsupported"),
        (document(1), {}, 415, "content_type_unsupported"),
        (document(1), {**JSON, "content-encoding": "gzip"}, 415, "content_encoding_unsupported"),
    ],
)
async def test_a_body_is_refused_before_anything_is_made_of_it(
    server: ApiServer, body: str, headers: dict[str, str], status: int, code: str
) -> None:
    sent = gzip.compress(body.encode()) if "content-encoding" in headers else body.encode()
    answer = await server.http.post("/workflows", content=sent, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"
    meaning = await server.http.get(f"{server.url}{answer.json()['type']}")
    assert meaning.json()["code"] == code and meaning.json()["means"]


async def test_brackets_and_colons_within_texts_do_not_count(server: ApiServer) -> None:
    tricky = 'a "quoted\\" text with [[[[ and ' + "[:{ " * 1_000
    answer = await server.http.post("/workflows", content=document(tricky), headers=JSON)
    assert answer.status_code == 201, answer.text


async def test_a_text_without_an_end_is_read_once(tmp_path: Path) -> None:
    """Each quotation mark within it must not be tried as the beginning of another: that would take hours."""
    async with api_server(sqlite_url(tmp_path), work=False) as server:
        body = b"[" * 101 + b'"' + b'\\"' * 1_000_000
        answer = await server.http.post("/runs", content=body, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_complex")


CHUNKED = b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "begun",
    [b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ", b"GET /", CHUNKED + b"0\r\nX: ", CHUNKED + b"1;x="],
    ids=["header", "path", "trailer", "extension"],
)
async def test_a_head_without_an_end_is_cut_off(server: ApiServer, begun: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(begun)
    cut = False
    for _ in range(256):
        writer.write(b"a" * 65_536)
        try:
            await writer.drain()
        except ConnectionError:
            cut = True
            break
    writer.close()
    assert cut, "16 MiB were taken"


async def test_a_head_that_does_not_come_is_given_up(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    writer.close()


async def test_a_body_of_unknown_length_is_bounded_too(server: ApiServer) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1_000

    answer = await server.http.post("/workflows", content=endless(), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_a_client_that_sends_slowly_is_not_waited_for(server: ApiServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /api/v1/workflows HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    )
    async with asyncio.timeout(30):
        told = await reader.read()
    writer.close()
    assert told.startswith(b"HTTP/1.1 408 ") and b"body_slow" in told


@pytest.mark.parametrize("path", ["/workflows", "/workflows/none", "/nowhere", "/decisions/x"])
async def test_every_answer_tells_browsers_what_not_to_do(server: ApiServer, path: str) -> None:
    headers = (await server.http.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"


async def test_a_caller_that_asks_too_often_is_told_when_to_ask_again(tmp_path: Path) -> None:
    limits = ServerLimits(key_requests_per_second=5, tenant_requests_per_second=8)
    async with api_server(sqlite_url(tmp_path), work=False, access=TestAccess, limits=limits) as server:

        async def asked(name: str, tenant: str = "default") -> list[int]:
            who = as_caller(name, "viewer", tenant=tenant)
            answers = await asyncio.gather(*(server.http.get("/workflows", headers=who) for _ in range(50)))
            limited = [each for each in answers if each.status_code == 429]
            assert all(each.json()["code"] == "rate_limited" and each.headers["retry-after"] == "1" for each in limited)
            return [each.status_code for each in answers]

        for name in ("ann", "bob"):
            answered = await asked(name)
            assert 200 in answered and 429 in answered
        # What one tenant uses up is nothing to another.
        assert 200 in await asked("tom", tenant="other")


async def test_reads_of_thousands_of_rows_count_for_more(tmp_path: Path) -> None:
    limits = ServerLimits(key_requests_per_second=0, tenant_requests_per_second=50)
    async with api_server(sqlite_url(tmp_path), work=False, access=TestAccess, limits=limits) as server:
        guard: LoadGuard = server.app.state.load_guard
        # A minute, so that the windows do not change under the test.
        guard._rates = [("tenant", RateLimitItemPerMinute(50))]
        for number, path in enumerate(("/runs/count", "/runs/summary", "/runs/failures", "/usage", "/audit/verify")):
            who = as_caller("ann", "admin", tenant=f"tenant-{number}")
            paths = [path, path, *["/workflows"] * 11, path]
            answers = [await server.http.get(each, headers=who) for each in paths]
            # Two times 20, and ten are left for what is cheap.
            assert [each.status_code for each in answers] == [200] * 12 + [429] * 2, path
            assert "counts as 20" in answers[-1].json()["detail"]


async def test_what_the_store_says_of_itself_is_not_told_to_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "postgresql://db-7.internal:5432/mill cannot be reached: connection refused"
    problem = Problem(code="store_read_only", message=secret, hint="see db-7.internal")
    async with api_server(sqlite_url(tmp_path), work=False) as server:
        for error in (Unavailable(secret), StoreUnusable(problem), DiskFull(secret)):

            async def broken(*_: Any, error: Exception = error, **__: Any) -> Any:
                raise error

            server.engine.context.store.find = broken  # type: ignore[method-assign]
            answer = await server.http.get("/workflows")
            assert (answer.status_code, "db-7" in answer.text) == (503, False), answer.text
            assert answer.json()["hint"] and answer.headers["retry-after"] == "1"
            assert secret in caplog.text, "the operator is told"
            caplog.clear()


async def test_a_bug_tells_clients_nothing_of_itself(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("at line 7 of the vault")

    server.engine.context.store.find = broken  # type: ignore[method-assign]
    answer = await server.http.get("/workflows")
    assert (answer.status_code, answer.json()["code"], "vault" in answer.text) == (500, "internal_error", False)
    assert answer.headers["content-type"] == "application/problem+json" and "vault" in caplog.text
    assert {name.decode(): value.decode() for name, value in SECURITY_HEADERS.items()}.items() <= answer.headers.items()


async def test_an_address_that_sends_many_wrong_keys_has_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "WRONG_CREDENTIALS", RateLimitItemPerMinute(5))
    async with api_server(sqlite_url(tmp_path), work=False, access=Access) as server:
        answers = [await server.http.get("/workflows", headers={"Authorization": f"Bearer {n}"}) for n in range(8)]
        assert [each.status_code for each in answers] == [401] * 5 + [429] * 3
        assert answers[-1].json()["code"] == "rate_limited"
        assert (await server.http.get("/workflows")).status_code == 401, "what reads nothing is not limited"


async def test_wrong_keys_of_an_address_do_not_shut_out_those_who_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is behind a proxy: a key that was used before is still accepted."""
    monkeypatch.setattr(auth, "WRONG_CREDENTIALS", RateLimitItemPerMinute(5))
    async with api_server(sqlite_url(tmp_path), work=False, access=Access) as server:
        made = [await server.engine.keys.create(label, roles=["viewer"], actor="the test") for label in ("a", "b")]
        used, unused = ({"Authorization": f"Bearer {each.key}"} for each in made)
        assert (await server.http.get("/me", headers=used)).status_code == 200
        wrong = {"Authorization": f"Bearer {made[0].key[:-1]}"}
        answers = [await server.http.get("/me", headers=wrong) for _ in range(7)]
        assert [each.status_code for each in answers] == [401] * 5 + [429] * 2
        assert (await server.http.get("/me", headers=used)).status_code == 200
        assert (await server.http.get("/me", headers=unused)).status_code == 429, "it would be read"


async def test_no_run_is_started_while_too_much_work_waits(server: ApiServer) -> None:
    guard = LoadGuard(server.engine, ServerLimits(backlog_jobs=10))
    jobs = tuple(Job(f"job-{number}", "default", b"") for number in range(11))
    stream = Stream("default", "run", "x")
    await server.engine.context.store.commit([Commit(stream, None, jobs=jobs)])
    with pytest.raises(Rejected) as refused:
        await guard.admit(ANN, STARTING)
    assert refused.value.code == "backlog_full"
    await guard.admit(ANN, "runs:act")
    await guard.admit(Principal(tenant="other", name="tom"), STARTING)


async def test_no_run_is_started_while_commits_are_slow(server: ApiServer) -> None:
    times = server.engine.turns.commit_times
    now = server.engine.context.ambient.monotonic_ms()

    async def refused() -> str:
        try:
            await LoadGuard(server.engine, ServerLimits(commit_ms=100)).admit(ANN, STARTING)
        except Rejected as refusal:
            return refusal.code
        return ""

    times.extend([(now, 50.0)] * 95)
    assert await refused() == ""
    times.extend([(now, 500.0)] * 10)
    assert await refused() == "store_slow"
    times.clear()
    times.extend([(now - 60_000, 500.0)] * 50)
    assert await refused() == ""


async def test_commits_are_timed(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path)) as server:
        await server.publish({"name": "x", "nodes": [{"id": "a", "type": "value"}]})
        await server.engine.run("x", timeout=30)
        assert server.engine.turns.commit_times
