"""Server-Sent Events: every event once, resumed without a gap, bounded for slow clients, shared by many."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.api_server import ApiServer, SseFrame, api_server, sqlite_url, sse_frames
from tidemill.api import connections, streams
from tidemill.api.auth import Access
from tidemill.api.server_settings import ServerLimits
from tidemill.engine.engine import Engine
from tidemill.engine.services.access import KNOWN_FOR_MS
from tidemill.errors import rejected
from tidemill.security.roles import Principal

GATED = """
name: gated
nodes:
  - {id: a, type: value, config: 1, dependents: [gate]}
  - {id: gate, type: signal, config: {name: go}, dependents: [b]}
  - {id: b, type: python, config: {function: work}, dependents: [c]}
  - {id: c, type: value, config: 3}
"""
CHAIN = "name: chain\nnodes: [{id: a, type: value, config: 1, dependents: [b]}, {id: b, type: value, config: 2}]\n"
LOG = logging.getLogger("flow")


def work() -> int:
    LOG.warning("working")
    return 2


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), functions=[work]) as served:
        yield served


async def started(server: ApiServer, workflow: str) -> str:
    return str((await server.post("/runs", {"workflow": workflow}))["run_id"])


async def waiting_at_the_gate(server: ApiServer) -> str:
    await server.publish(GATED)
    run_id = await started(server, "gated")
    async with asyncio.timeout(30):
        while not (await server.engine.show(run_id)).waiting_for:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    return run_id


async def frames_of(server: ApiServer, path: str, until: str = "end", **options: Any) -> list[SseFrame]:
    found = []
    async with server.http.stream("GET", path, **options) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for each in sse_frames(response):
            found.append(each)
            if each.event == until:
                break
    return found


def events_in(frames: list[SseFrame]) -> list[Any]:
    return [each.data for each in frames if each.event == "message"]


async def test_a_run_that_has_ended_is_told_whole(server: ApiServer) -> None:
    await server.publish(CHAIN)
    run_id = await started(server, "chain")
    await server.get(f"/runs/{run_id}/result")
    told = await frames_of(server, f"/runs/{run_id}/stream")
    events = await server.events(run_id)
    assert events_in(told) == events
    assert [each.id for each in told if each.event == "message"] == [str(event["seq"]) for event in events]
    assert (told[-1].id, told[-1].data) == (None, {"run_id": run_id, "status": "COMPLETED", "events": len(events)})
    rest = await frames_of(server, f"/runs/{run_id}/stream", headers={"Last-Event-ID": "3"}, params={"after": "1"})
    assert events_in(rest) == events[3:]
    assert events_in(await frames_of(server, f"/runs/{run_id}/stream", params={"after": len(events)})) == []


async def test_a_cut_connection_resumes_without_a_gap(server: ApiServer) -> None:
    run_id = await waiting_at_the_gate(server)
    found: list[SseFrame] = []
    async with server.http.stream("GET", f"/runs/{run_id}/stream") as response:
        async for each in sse_frames(response):
            found.append(each)
            if len(found) == 2:
                break
    await server.post(f"/runs/{run_id}/signal", {"name": "go"})
    await server.get(f"/runs/{run_id}/result")
    found += await frames_of(server, f"/runs/{run_id}/stream", headers={"Last-Event-ID": found[-1].id})
    assert events_in(found) == await server.events(run_id)


async def test_a_live_run_is_followed_with_its_log(server: ApiServer) -> None:
    run_id = await waiting_at_the_gate(server)
    following = asyncio.create_task(frames_of(server, f"/runs/{run_id}/stream", params={"logs": True}))
    await followed(server, 1)
    await server.post(f"/runs/{run_id}/signal", {"name": "go"})
    told = await following
    assert events_in(told) == await server.events(run_id)
    lines = [each for each in told if each.event == "log"]
    assert [(each.id, each.data["text"]) for each in lines] == [(None, "working")]


async def followed(server: ApiServer, readers: int) -> None:
    """Wait until so many readers follow."""
    async with asyncio.timeout(30):
        while sum(feed.readers for feed in server.app.state.streams.all_feeds()) != readers:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def test_a_hundred_followers_share_one_and_each_sees_all_events(server: ApiServer) -> None:
    run_id = await waiting_at_the_gate(server)
    following = [asyncio.create_task(frames_of(server, f"/runs/{run_id}/stream")) for _ in range(100)]
    await followed(server, 100)
    assert len(list(server.app.state.streams.all_feeds())) == 1
    await server.post(f"/runs/{run_id}/signal", {"name": "go"})
    told = await asyncio.gather(*following)
    events = await server.events(run_id)
    assert all(events_in(each) == events and each[-1].event == "end" for each in told)
    await followed(server, 0)
    assert not list(server.app.state.streams.all_feeds())


async def test_parts_of_results_have_no_id(server: ApiServer) -> None:
    run_id = await waiting_at_the_gate(server)
    stream = server.engine.context.stream(run_id)
    body = b'[{"kind":"progress","node":"b","visit":1,"index":-1,"attempt":1,"fraction":0.5,"message":"half"}]'
    async with server.http.stream("GET", f"/runs/{run_id}/stream") as response:
        frames = sse_frames(response)
        seen = [await anext(frames)]
        while seen[-1].event != "live":
            await server.engine.context.store.publish(stream, [body])
            async with asyncio.timeout(30):
                seen.append(await anext(frames))
        await frames.aclose()
    assert (seen[-1].id, seen[-1].data["fraction"]) == (None, 0.5)


async def slow_client(server: ApiServer, run_id: str) -> socket.socket:
    """A connection that follows a run, and takes little of it until it is read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect(("127.0.0.1", server.port))
    client.setblocking(False)
    request = f"GET /api/v1/runs/{run_id}/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(client, request.encode())
    return client


async def test_a_connection_that_takes_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To close it would wait until the client takes what it was sent."""
    monkeypatch.setattr(streams, "STALLED_S", 0.1)
    monkeypatch.setattr(connections, "STALLED_MS", 500)
    lost = asyncio.Queue[int]()
    end = connections.BoundedConnection.connection_lost

    def note(connection: connections.BoundedConnection, error: Exception | None) -> None:
        assert connection.client is not None
        lost.put_nowait(connection.client[1])
        end(connection, error)

    monkeypatch.setattr(connections.BoundedConnection, "connection_lost", note)
    async with api_server(sqlite_url(tmp_path), send_buffer=4_096) as server:
        large = {"id": "m", "type": "value", "config": "x" * 5_000, "map": {"over": "{{ range(500) | list }}"}}
        await server.publish({"name": "large", "nodes": [large]})
        run_id = await started(server, "large")
        await server.get(f"/runs/{run_id}/result", timeout=60)
        with await slow_client(server, run_id) as client:
            async with asyncio.timeout(30):
                while await lost.get() != client.getsockname()[1]:
                    pass


async def test_a_slow_client_is_closed_with_the_place_to_resume_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BYTES_KEPT", 100_000)
    nodes = [{"id": "gate", "type": "signal", "config": {"name": "go"}, "dependents": ["n0"]}]
    last = 199
    nodes += [
        {"id": f"n{n}", "type": "value", "config": "x" * 20_000, "dependents": [f"n{n + 1}"] if n < last else []}
        for n in range(last + 1)
    ]
    async with api_server(sqlite_url(tmp_path), send_buffer=4_096) as server:
        await server.publish({"name": "long", "nodes": nodes})
        run_id = await started(server, "long")
        client = await slow_client(server, run_id)
        await followed(server, 1)
        await server.post(f"/runs/{run_id}/signal", {"name": "go"})
        assert (await server.get(f"/runs/{run_id}/result", timeout=60))["status"] == "COMPLETED"
        reader, writer = await asyncio.open_connection(sock=client)
        text = (await reader.read()).decode()
        writer.close()
        blocks = [block for block in text.split("\n\n") if "event: resume" in block]
        assert len(blocks) == 1
        resume = json.loads(blocks[0].partition("data: ")[2])
        assert resume["reason"] == "slow"
        events = await server.events(run_id)
        assert 0 < int(resume["after"]) < len(events)
        rest = await frames_of(server, f"/runs/{run_id}/stream", headers={"Last-Event-ID": resume["after"]})
        assert events_in(rest) == events[int(resume["after"]) :]


async def test_a_burst_does_not_close_a_client_that_reads(server: ApiServer) -> None:
    """The buffer is shorter than the burst: the feed lets its readers write in between."""
    nodes = [{"id": "gate", "type": "signal", "config": {"name": "go"}, "dependents": ["m"]}]
    nodes.append({"id": "m", "type": "value", "config": "{{ item }}", "map": {"over": "{{ range(3000) | list }}"}})
    await server.publish({"name": "wide", "nodes": nodes})
    run_id = await started(server, "wide")
    following = asyncio.create_task(frames_of(server, f"/runs/{run_id}/stream"))
    await followed(server, 1)
    await server.post(f"/runs/{run_id}/signal", {"name": "go"})
    told = await following
    assert events_in(told) == await server.events(run_id)


async def test_streams_end_with_the_place_to_resume_from_when_the_server_closes(server: ApiServer) -> None:
    run_id = await waiting_at_the_gate(server)
    following = asyncio.create_task(frames_of(server, f"/runs/{run_id}/stream", until="resume"))
    everything = asyncio.create_task(frames_of(server, "/stream", until="resume"))
    waiting = asyncio.create_task(server.http.get(f"/runs/{run_id}/result", params={"timeout": 60}))
    await followed(server, 2)
    server.app.state.closing.set()
    events = await server.events(run_id)
    assert (await following)[-1].data == {"after": str(len(events)), "reason": "closing"}
    assert (await everything)[-1].data["reason"] == "closing"
    assert (await waiting).status_code == 202


async def test_a_revoked_credential_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RECHECK_S", 0.0)
    revoked: list[bool] = []

    class Revocable(Access):
        async def caller(self, request: Any) -> Any:
            if revoked:
                raise rejected("unauthenticated", "the key was revoked")
            return await super().caller(request)

    def access(engine: Engine) -> Access:
        return Revocable(engine, open_as=Principal(tenant="default", name="key:x", roles=("admin",)))

    async with api_server(sqlite_url(tmp_path), access=access) as server:
        run_id = await waiting_at_the_gate_without_work(server)
        following = asyncio.create_task(frames_of(server, f"/runs/{run_id}/stream", until="resume"))
        await followed(server, 1)
        revoked.append(True)
        assert (await following)[-1].data["reason"] == "unauthenticated"


async def test_a_revoked_credential_ends_a_stream_that_still_reads_what_was_before(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RECHECK_S", 0.0)
    monkeypatch.setattr(streams, "PAGE", 2)
    await server.publish(CHAIN)
    run_id = await started(server, "chain")
    await server.get(f"/runs/{run_id}/result")
    asked: list[bool] = []

    async def recheck() -> None:
        asked.append(True)
        if len(asked) == 2:
            raise rejected("key_revoked", "the key was revoked")

    services = server.engine.for_tenant("default")
    reading = server.app.state.streams.run(services, run_id, 0, live=False, logs=False, recheck=recheck)
    told = b"".join([chunk async for chunk in reading]).decode().split("\n\n")
    assert [each.partition("\n")[0] for each in told[1:3]] == ["id: 1", "id: 2"]
    assert json.loads(told[3].partition("data: ")[2]) == {"after": "2", "reason": "key_revoked"}


async def test_what_happens_while_the_credential_is_asked_for_comes_before_the_end(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await waiting_at_the_gate(server)
    monkeypatch.setattr(streams, "RECHECK_S", 0.0)
    known = len(await server.events(run_id))

    async def recheck() -> None:
        """The store takes long to answer: meanwhile the run ends, and its feed has told so."""
        if (await server.engine.show(run_id)).status == "RUNNING":
            await server.engine.signal(run_id, "go")
            await server.engine.result(run_id)
            (feed,) = server.app.state.streams.all_feeds()
            await feed.task

    services = server.engine.for_tenant("default")
    reading = server.app.state.streams.run(services, run_id, known, live=False, logs=False, recheck=recheck)
    text = b"".join([chunk async for chunk in reading]).decode()
    ids = [int(line.removeprefix("id: ")) for line in text.splitlines() if line.startswith("id: ")]
    assert "event: end" in text and ids == [event["seq"] for event in (await server.events(run_id))[known:]]


async def test_a_revoked_key_is_noticed_within_five_seconds() -> None:
    """A process believes in a key for a while, and a stream asks, and looks, now and then."""
    assert KNOWN_FOR_MS / 1_000 + streams.RECHECK_S + streams.LOOK_S <= 5.0


async def test_one_reader_cannot_open_any_number_of_streams(tmp_path: Path) -> None:
    async with api_server(sqlite_url(tmp_path), limits=ServerLimits(key_streams=2)) as server:
        run_id = await waiting_at_the_gate_without_work(server)
        async with (
            server.http.stream("GET", "/stream") as first,
            server.http.stream("GET", f"/runs/{run_id}/stream") as second,
        ):
            assert first.status_code == second.status_code == 200
            refused = await server.http.get(f"/runs/{run_id}/stream")
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            assert refused.headers["retry-after"]
        status = 0
        while status != 200:
            async with server.http.stream("GET", "/stream") as again:
                status = again.status_code


async def waiting_at_the_gate_without_work(server: ApiServer) -> str:
    await server.publish("name: gate\nnodes: [{id: gate, type: signal, config: {name: go}}]\n")
    return await started(server, "gate")


# All runs of a tenant


async def test_the_runs_of_a_tenant_are_told_as_they_change(server: ApiServer) -> None:
    await server.publish(CHAIN)
    await server.publish(GATED)
    async with server.http.stream("GET", "/stream", params={"query": "workflow:gated"}) as response:
        frames = sse_frames(response)
        assert (await anext(frames)).data is None
        await started(server, "chain")
        run_id = await started(server, "gated")
        first = await anext(frames)
        assert (first.data["change"], first.data["run"]["run_id"]) == ("started", run_id)
        await server.post(f"/runs/{run_id}/signal", {"name": "go"})
        changes = [first]
        async with asyncio.timeout(30):
            while changes[-1].data["change"] != "ended":
                changes.append(await anext(frames))
        await frames.aclose()
    assert {each.data["run"]["workflow"] for each in changes} == {"gated"}
    assert changes[-1].data["run"]["status"] == "COMPLETED"


async def test_the_stream_of_a_tenant_resumes_or_says_that_it_cannot(server: ApiServer) -> None:
    await server.publish(CHAIN)
    async with server.http.stream("GET", "/stream") as response:
        first = await anext(sse_frames(response))
    run_ids = [await started(server, "chain") for _ in range(3)]
    told: set[str] = set()
    async with asyncio.timeout(30):
        async with server.http.stream("GET", "/stream", headers={"Last-Event-ID": str(first.id)}) as response:
            async for each in sse_frames(response):
                assert each.event == "message"
                if each.data is not None and each.data["change"] == "ended":
                    told.add(each.data["run"]["run_id"])
                if len(told) == 3:
                    break
    assert told == set(run_ids)
    for unknown in ("nonsense", "00000000-0000-7000-8000-000000000000-3", f"{str(first.id).rpartition('-')[0]}-999"):
        async with server.http.stream("GET", "/stream", headers={"Last-Event-ID": unknown}) as response:
            frames = sse_frames(response)
            assert (await anext(frames)).data is None
            assert (await anext(frames)).event == "reset"
            await frames.aclose()


async def test_all_listeners_of_a_tenant_share_one_poller(server: ApiServer) -> None:
    await server.publish(CHAIN)
    following = [asyncio.create_task(frames_of(server, "/stream", until="resume")) for _ in range(20)]
    await followed(server, 20)
    assert len(list(server.app.state.streams.all_feeds())) == 1
    await started(server, "chain")
    await asyncio.sleep(2 * streams.POLL_S)
    server.app.state.closing.set()
    told = await asyncio.gather(*following)
    assert all(each[-1].event == "resume" for each in told)


async def test_a_quiet_stream_beats(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(streams, "LOOK_S", 0.01)
    run_id = await waiting_at_the_gate(server)
    async with asyncio.timeout(30), server.http.stream("GET", f"/runs/{run_id}/stream") as response:
        beats = [line async for line in _until_comments(response, 3)]
    assert beats == [":"] * 3


async def _until_comments(response: Any, count: int) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith(":"):
            yield line
            count -= 1
            if not count:
                return


async def test_what_other_tenants_do_is_not_told(server: ApiServer) -> None:
    await server.publish(CHAIN)
    other = server.engine.for_tenant("other")
    await other.workflows.publish(CHAIN)
    async with server.http.stream("GET", "/stream") as response:
        frames = sse_frames(response)
        await anext(frames)
        foreign = await other.runs.start("chain")
        run_id = await started(server, "chain")
        told: set[str] = set()
        async with asyncio.timeout(30):
            while not told:
                told.add((await anext(frames)).data["run"]["run_id"])
        await frames.aclose()
    assert told == {run_id}
    absent = await server.http.get("/runs/none/stream")
    refused = await server.http.get(f"/runs/{foreign}/stream")
    assert (refused.status_code, refused.text.replace(foreign, "none")) == (404, absent.text)
