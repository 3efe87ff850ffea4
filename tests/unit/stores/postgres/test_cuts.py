"""Connections that are cut in the middle of a call, and servers that restart: nothing is doubled, nothing is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import psycopg
import pytest
import pytest_asyncio

from tests.conformance.stores.harness import LONG_MS, RUN, ack, job, keys, row, run
from tests.fixtures.servers.postgres_server import PASSWORD, USER, PrivateServer, running
from tests.fixtures.servers.tcp_proxy import Fault, Proxy, proxied
from tidemill.errors import StoreUnusable, Unavailable
from tidemill.stores.contract import Claim, Commit, Committed, Lease, Stream
from tidemill.stores.postgres import database, writer
from tidemill.stores.postgres.database import place_at
from tidemill.stores.postgres.store import PostgresStore


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with running() as started:
        yield started


@pytest_asyncio.fixture
async def proxy(server: PrivateServer) -> AsyncIterator[Proxy]:
    async with proxied(server.port) as found:
        yield found


@pytest_asyncio.fixture
async def store(server: PrivateServer, proxy: Proxy) -> AsyncIterator[PostgresStore]:
    url = server.emptied_store().replace(f":{server.port}/", f":{proxy.port}/")
    opened = PostgresStore(place_at(url))
    await opened.open()
    yield opened
    await opened.close()


async def claimed(store: PostgresStore, limit: int = 9, **fields: object) -> list[Lease]:
    return await store.claim(Claim(queues=("q",), limit=limit, lease_ms=LONG_MS, **fields))  # type: ignore[arg-type]


async def commit(store: PostgresStore, expected: int | None = None, **fields: object) -> object:
    return (await store.commit([Commit(stream=RUN, expected=expected, **fields)]))[0]  # type: ignore[arg-type]


FAULTS: list[Fault] = ["request", "reply", "late"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_commit_happens_once_and_its_answer_is_found(store: PostgresStore, proxy: Proxy, fault: Fault) -> None:
    await commit(store, 0, records=(b"1",), jobs=(job("a"),))
    (lease,) = await claimed(store)
    proxy.arm(fault, RUN.key.encode())
    result = await commit(store, 1, records=(b"2",), acks=(ack(lease),), jobs=(job("b"),), keep=("b",))
    assert proxy.fired == 1
    assert isinstance(result, Committed) and result.version == 2
    (kept,) = result.kept
    assert await commit(store, 2, records=(b"3",), acks=(ack(kept),)) == Committed(version=3)
    (tail,) = await store.load({RUN: 0})
    assert tail.records == (b"1", b"2", b"3")
    assert await store.jobs(RUN) == []


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_group_with_a_stream_twice_happens_once(store: PostgresStore, proxy: Proxy, fault: Fault) -> None:
    await commit(store, 0, records=(b"1",))
    proxy.arm(fault, b"g1")
    others = [Commit(stream=run(f"g{n}"), expected=0, records=(b"x",), rows=(row(f"g{n}"),)) for n in range(3)]
    twice = [Commit(stream=RUN, expected=1, records=(b"2",)), Commit(stream=RUN, expected=2, records=(b"3",))]
    results = await store.commit([*others, *twice])
    assert proxy.fired == 1
    assert [each.version for each in results if isinstance(each, Committed)] == [1, 1, 1, 2, 3]
    assert (await store.load({RUN: 0}))[0].records == (b"1", b"2", b"3")
    assert await store.count("acme", "run") == 3


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("caps", [{}, {"gpu": 5}])
async def test_no_job_is_lost_to_a_claim_nobody_hears_of(
    store: PostgresStore, proxy: Proxy, fault: Fault, caps: dict[str, int]
) -> None:
    await commit(store, 0, jobs=(job("a", caps=("gpu",)), job("b", caps=("gpu",))))
    await claimed(store, 1, owner="warm")
    proxy.arm(fault, b"worker-1")
    leases = await claimed(store, owner="worker-1", caps=caps)
    assert proxy.fired == 1
    assert [(lease.key, lease.expired) for lease in leases] == [("b", 0)]
    assert await commit(store, 0, acks=(ack(leases[0]),)) == Committed(version=0)


@pytest.mark.parametrize("fault", FAULTS)
async def test_forgetting_says_that_it_happened(store: PostgresStore, proxy: Proxy, fault: Fault) -> None:
    await commit(store, 0, records=(b"1",), rows=(row("r"),))
    proxy.arm(fault, RUN.key.encode())
    assert await store.forget(RUN, expected=1, rows=(row("r", deleted=True),))
    assert proxy.fired == 1
    assert (await store.load({RUN: 0}))[0].version == 0


@pytest.mark.parametrize("fault", FAULTS)
async def test_reads_and_releases_are_repeated(store: PostgresStore, proxy: Proxy, fault: Fault) -> None:
    await commit(store, 0, records=(b"1",), jobs=(job("a"),), rows=(row("r", 1, "x"),))
    (lease,) = await claimed(store)
    for number, verb in enumerate((lambda: store.load({RUN: 0}), lambda: store.jobs(RUN)), 1):
        proxy.arm(fault, RUN.key.encode())
        assert len(await verb()) == 1
        assert proxy.fired == number
    proxy.arm(fault, RUN.key.encode())
    await store.release([lease])
    assert proxy.fired == 3
    assert keys(await claimed(store)) == ["a"]


@pytest.mark.parametrize("at_once", [1, 2])
async def test_whoever_loads_as_soon_as_a_load_is_answered_is_not_forgotten(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Readers that end at the same moment, as they do when the server is killed, are not waited for by the next one."""
    monkeypatch.setattr(store._loads, "_at_once", at_once)
    await commit(store, 0, records=(b"1",))

    async def again_and_again() -> list[int]:
        return [(await store.load({RUN: 0}))[0].version for _ in range(5)]

    async with asyncio.timeout(30):
        assert await asyncio.gather(*(again_and_again() for _ in range(3))) == [[1] * 5] * 3


async def test_renewals_of_another_thread_are_repeated(store: PostgresStore, proxy: Proxy) -> None:
    await commit(store, 0, jobs=(job("a"),))
    leases = await claimed(store)
    lost: list[list[Lease]] = []

    def renew() -> None:
        lost.append(asyncio.run(store.renew(leases, LONG_MS)))

    for _ in range(2):
        await asyncio.to_thread(renew)
        proxy.arm("reply", RUN.key.encode())
    assert lost == [[], []]


async def test_what_an_unheard_commit_keeps_is_given_back(
    store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has given up; when the server is there again, the jobs it would have kept wait for anybody."""
    await commit(store, 0, records=(b"1",), jobs=(job("a"),))
    await commit(store, 1, drop=("a",))
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0.3)
    proxy.arm("reply", RUN.key.encode())
    proxy.down = True
    with pytest.raises(Unavailable):
        await commit(store, 1, records=(b"2",), jobs=(job("b"),), keep=("b",))
    assert proxy.fired == 1
    proxy.down = False
    assert await commit(store, 2, records=(b"3",)) == Committed(version=3)
    assert [(lease.key, lease.expired) for lease in await claimed(store)] == [("b", 0)]


@pytest.mark.parametrize("steps", range(1, 5))
async def test_what_a_cancelled_commit_keeps_is_given_back(store: PostgresStore, steps: int) -> None:
    """The job is inserted or not; if it is, another worker need not wait for the end of a lease."""
    await commit(store, None, jobs=(job("a"),))
    assert await commit(store, 0, records=(b"1",), drop=("a",)) == Committed(version=1)
    task = asyncio.create_task(commit(store, 1, records=(b"2",), jobs=(job("a"),), keep=("a",)))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await commit(store, None, jobs=(job("b"),))
    (tail,) = await store.load({RUN: 0})
    assert keys(await claimed(store)) == ["a", "b"][2 - tail.version :]


async def test_prepared_statements_that_are_gone_are_prepared_again(store: PostgresStore) -> None:
    await commit(store, 0, records=(b"1",))
    await store._writing.link.fetch("DEALLOCATE ALL")
    assert await commit(store, 1, records=(b"2",)) == Committed(version=2)


async def test_a_request_larger_than_the_buffers_of_the_socket(store: PostgresStore) -> None:
    large = b"x" * (48 << 20)
    assert await commit(store, 0, records=(large,)) == Committed(version=1)
    (tail,) = await store.load({RUN: 0})
    assert tail.records == (large,)


async def test_followers_and_waiting_claims_survive_a_cut(store: PostgresStore, proxy: Proxy) -> None:
    frames = asyncio.create_task(anext(aiter(store.follow(RUN, 0))))
    waiting = asyncio.create_task(claimed(store, wait_ms=LONG_MS))
    await asyncio.sleep(0.2)
    proxy.cut_all()
    await asyncio.sleep(0.2)
    await commit(store, 0, records=(b"1",), jobs=(job("a"),))
    assert (await asyncio.wait_for(frames, 20)).body == b"1"
    assert keys(await asyncio.wait_for(waiting, 20)) == ["a"]


async def is_read_only(store: PostgresStore) -> bool:
    try:
        await commit(store, 1, rows=(row("r"),))
    except StoreUnusable as error:
        return "replica" in str(error)
    return False


async def test_work_under_way_waits_for_an_operator(
    store: PostgresStore, server: PrivateServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that refuses the password, or has become a replica, is no refusal of what is to be written."""
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0.3)
    await commit(store, 0, records=(b"1",))
    server.asked("ALTER SYSTEM SET default_transaction_read_only = on")
    server.asked("SELECT pg_reload_conf()")
    try:
        async with asyncio.timeout(20):
            while not await is_read_only(store):
                continue
    finally:
        with psycopg.connect(server.url, autocommit=True, options="-c default_transaction_read_only=off") as direct:
            direct.execute("ALTER SYSTEM RESET default_transaction_read_only")
            direct.execute("SELECT pg_reload_conf()")
    while True:
        with suppress(StoreUnusable):
            assert await commit(store, 1, records=(b"2",)) == Committed(version=2)
            break
    server.asked(f"ALTER ROLE {USER} PASSWORD 'another'")
    try:
        proxy.cut_all()
        with pytest.raises(StoreUnusable, match="password"):
            await commit(store, 2, records=(b"3",))
    finally:
        with psycopg.connect(server.with_password("another"), autocommit=True) as direct:
            direct.execute(f"ALTER ROLE {USER} PASSWORD '{PASSWORD}'".encode())
    assert await commit(store, 2, records=(b"3",)) == Committed(version=3)


async def test_a_storm_of_cuts(store: PostgresStore, proxy: Proxy) -> None:
    """Chains of jobs on several streams while connections are cut at random: each step happens once, none expires."""
    dice, steps = random.Random(7), 25
    streams, calls = [run(f"s{number}") for number in range(6)], 0

    async def chain(stream: Stream) -> None:
        nonlocal calls
        done = 0
        while done < steps or await store.jobs(stream):
            # Any worker may take the job of any stream; this one takes what there is.
            for lease in await claimed(store, 3):
                number = int(lease.key)
                assert lease.expired == 0, "a lease that its worker never heard of is given back"
                after = (job(f"{number + 1}"),) if number < steps or proxy.fired < 5 else ()
                fields = {"records": (lease.key.encode(),), "acks": (ack(lease),), "jobs": after}
                (result,) = await store.commit([Commit(stream=lease.stream, expected=number - 1, **fields)])  # type: ignore[arg-type]
                assert isinstance(result, Committed)
                calls += 1
            done = (await store.load({stream: 0}))[0].version
            calls += 1

    async def storm() -> None:
        while True:
            # Some calls succeed between two faults, however slow the machine is.
            until = calls + dice.randint(2, 12)
            while calls < until:  # noqa: ASYNC110 - a count of calls, not an event.
                await asyncio.sleep(0.002)
            if dice.random() < 0.3:
                proxy.cut_all()
            else:
                proxy.arm(dice.choice(FAULTS))

    await store.commit([Commit(stream=stream, expected=0, jobs=(job("1"),)) for stream in streams])
    weather = asyncio.create_task(storm())
    try:
        async with asyncio.timeout(500):
            await asyncio.gather(*(chain(stream) for stream in streams))
    finally:
        weather.cancel()
        proxy.arm("")
    assert proxy.fired >= 5
    for tail in await store.load(dict.fromkeys(streams, 0)):
        assert tail.records == tuple(str(number).encode() for number in range(1, tail.version + 1))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
async def test_a_server_that_restarts_is_waited_for(how: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 1.0)
    with running("fsync=on") as private:
        store = PostgresStore(place_at(private.new_store()))
        await store.open()
        await commit(store, 0, records=(b"1",), jobs=(job("a"),))
        (lease,) = await claimed(store)
        private.stop(how)
        with pytest.raises(Unavailable):
            async with asyncio.timeout(5 * database.PATIENCE_SECONDS):
                await commit(store, 1, records=(b"2",), acks=(ack(lease),))
        again = threading.Timer(0.5, private.start)
        again.start()
        while True:
            try:
                result = await commit(store, 1, records=(b"2",), acks=(ack(lease),))
            except Unavailable:
                continue
            break
        again.join()
        assert result == Committed(version=2)
        assert await store.jobs(RUN) == []
        await store.close()
