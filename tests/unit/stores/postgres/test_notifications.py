"""Hints between processes: a task that waits hears of what others write, long before it would look by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.conformance.stores.harness import LONG_MS, RUN, ack, job, keys, run
from tests.fixtures.servers.postgres_server import Server, given_or_running
from tidemill.stores.contract import Claim, Commit, Frame
from tidemill.stores.postgres import notifications, store
from tidemill.stores.postgres.database import place_at
from tidemill.stores.postgres.store import PostgresStore

Both = tuple[PostgresStore, PostgresStore]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with given_or_running() as started:
        yield started


@pytest_asyncio.fixture
async def both(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Both]:
    """Two processes on one store, which look by themselves once in an hour."""
    monkeypatch.setattr(store, "LOOK_EVERY_MS", 3_600_000.0)
    url = server.emptied_store()
    one, other = PostgresStore(place_at(url)), PostgresStore(place_at(url))
    for each in (one, other):
        await each.open()
    yield one, other
    for each in (one, other):
        await each.close()


async def waiting(here: PostgresStore, **fields: object) -> asyncio.Task[list[object]]:
    request = Claim(queues=("q",), limit=9, lease_ms=LONG_MS, wait_ms=LONG_MS, **fields)  # type: ignore[arg-type]
    task = asyncio.create_task(here.claim(request))
    async with asyncio.timeout(20):
        await here._hints.listening.wait()
    # Until it waits, and has heard that anything may have changed.
    await asyncio.sleep(0.3)
    assert not task.done()
    return task  # type: ignore[return-value]


async def test_a_claim_hears_of_new_work(both: Both) -> None:
    one, other = both
    task = await waiting(one)
    await other.commit([Commit(RUN, 0, jobs=(job("elsewhere", queue="x"),))])
    await other.commit([Commit(run("r2"), 0, jobs=(job("a"),))])
    assert keys(await asyncio.wait_for(task, 20)) == ["a"]  # type: ignore[arg-type]


async def test_a_claim_hears_of_a_release_and_of_room_under_a_cap(both: Both) -> None:
    one, other = both
    await other.commit([Commit(RUN, 0, jobs=(job("a"),))])
    leases = await other.claim(Claim(queues=("q",), limit=1, lease_ms=LONG_MS))
    task = await waiting(one)
    await other.release(leases)
    assert keys(await asyncio.wait_for(task, 20)) == ["a"]  # type: ignore[arg-type]
    await other.commit([Commit(run("b"), 0, jobs=(job("b", caps=("gpu",)), job("c", caps=("gpu",))))])
    (held,) = await other.claim(Claim(queues=("q",), limit=9, lease_ms=LONG_MS, caps={"gpu": 1}))
    task = await waiting(one, caps={"gpu": 1})
    await other.commit([Commit(held.stream, 0, acks=(ack(held),))])
    assert keys(await asyncio.wait_for(task, 20)) == ["c"]  # type: ignore[arg-type]


async def test_followers_hear_of_records_and_frames_of_any_size(both: Both) -> None:
    one, other = both
    follower = aiter(one.follow(RUN, 0))
    first = asyncio.ensure_future(anext(follower))
    async with asyncio.timeout(20):
        await one._hints.listening.wait()
    await asyncio.sleep(0.3)
    await other.commit([Commit(RUN, 0, (b"1",))])
    assert await asyncio.wait_for(first, 20) == Frame(version=1, body=b"1")
    large = bytes(range(256)) * 200
    assert len(large) > notifications.PAYLOAD_BYTES_MAX
    await other.publish(RUN, [b"live", large, b""])
    await other.publish(run("another"), [b"not mine"])
    seen = [await asyncio.wait_for(anext(follower), 20) for _ in range(3)]
    assert seen == [Frame(version=0, body=body) for body in (b"live", large, b"")]
    await follower.aclose()  # type: ignore[attr-defined]


async def test_hints_are_gathered(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many commits there are, a process sends one hint and then waits a while."""
    one, _ = both
    sent: list[str] = []
    fetch = one._readers.fetch

    async def counted(statement: str, *values: object, **fields: object) -> object:
        if "pg_notify" in statement:
            sent.append(statement)
        return await fetch(statement, *values, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(one._readers, "fetch", counted)
    monkeypatch.setattr(notifications, "HINT_EVERY_MS", 500.0)
    for number in range(100):
        await one.commit([Commit(run(f"{number}"), 0, (b"x",), jobs=(job(),))])
    await asyncio.sleep(1.2)
    assert 1 <= len(sent) <= 50


async def test_loads_that_arrive_together_share_a_call(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = both
    streams = [run(f"l{number}") for number in range(20)]
    await one.commit([Commit(stream, 0, (b"1", b"2")) for stream in streams])
    calls: list[str] = []
    fetch = one._readers.fetch

    async def counted(statement: str, *values: object, **fields: object) -> object:
        calls.append(statement)
        return await fetch(statement, *values, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(one._readers, "fetch", counted)
    asked = [{stream: number % 3} for number, stream in enumerate([*streams, *streams])]
    tails = await asyncio.gather(*(one.load(each) for each in asked))
    assert [len(tail.records) for (tail,) in tails] == [2 - number % 3 for number in range(40)]
    assert len(calls) < 10
