"""Connections that are cut in the middle of a call, and servers that restart: nothing is doubled, nothing is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import redis

from tests.conformance.stores.harness import LONG_MS, RUN, ack, job, keys, row, run
from tests.fixtures.servers.redis_server import PASSWORD, PrivateServer, running
from tests.fixtures.servers.tcp_proxy import Fault, Proxy, proxied
from tidemill.errors import DiskFull, StoreUnusable, Unavailable
from tidemill.stores.contract import Claim, Commit, Committed, Lease, LeasesLost, Stream, VersionConflict
from tidemill.stores.redis import database
from tidemill.stores.redis.database import place_at
from tidemill.stores.redis.store import RedisStore


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with running() as started:
        yield started


@pytest_asyncio.fixture
async def proxy(server: PrivateServer) -> AsyncIterator[Proxy]:
    async with proxied(server.port) as found:
        yield found


@pytest_asyncio.fixture
async def store(server: PrivateServer, proxy: Proxy) -> AsyncIterator[RedisStore]:
    url = server.emptied_store().replace(f":{server.port}/", f":{proxy.port}/")
    opened = RedisStore(place_at(url))
    await opened.open()
    # A cut is to meet the call itself, not the answer that its script is not loaded yet.
    warm = run("warm")
    (first,) = await opened.commit([Commit(warm, 0, records=(b"1",), jobs=(job(),), keep=("a",))])
    assert isinstance(first, Committed)
    hop = Commit(warm, 1, records=(b"2",), acks=(ack(first.kept[0]),), jobs=(job("b"),), keep=("b",))
    (second,) = await opened.commit([hop])
    assert isinstance(second, Committed)
    await opened.release(second.kept)
    await opened.release(await claimed(opened))
    await opened.load({warm: 0})
    await opened.forget(warm)
    yield opened
    await opened.close()


async def claimed(store: RedisStore, limit: int = 9, **fields: object) -> list[Lease]:
    return await store.claim(Claim(queues=("q",), limit=limit, lease_ms=LONG_MS, **fields))  # type: ignore[arg-type]


async def commit(store: RedisStore, expected: int | None = None, **fields: object) -> object:
    return (await store.commit([Commit(stream=RUN, expected=expected, **fields)]))[0]  # type: ignore[arg-type]


FAULTS: list[Fault] = ["request", "reply", "late"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_commit_happens_once_and_its_answer_is_found(store: RedisStore, proxy: Proxy, fault: Fault) -> None:
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
async def test_a_group_with_a_stream_twice_happens_once(store: RedisStore, proxy: Proxy, fault: Fault) -> None:
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
    store: RedisStore, proxy: Proxy, fault: Fault, caps: dict[str, int]
) -> None:
    await commit(store, 0, jobs=(job("a", caps=("gpu",)), job("b", caps=("gpu",))))
    await claimed(store, 1, owner="warm")
    proxy.arm(fault, b"worker-1")
    leases = await claimed(store, owner="worker-1", caps=caps)
    assert proxy.fired == 1
    assert [(lease.key, lease.expired) for lease in leases] == [("b", 0)]
    assert await commit(store, 0, acks=(ack(leases[0]),)) == Committed(version=0)


@pytest.mark.parametrize("fault", FAULTS)
async def test_forgetting_says_that_it_happened(store: RedisStore, proxy: Proxy, fault: Fault) -> None:
    await commit(store, 0, records=(b"1",), rows=(row("r"),))
    proxy.arm(fault, RUN.key.encode())
    assert await store.forget(RUN, expected=1, rows=(row("r", deleted=True),))
    assert proxy.fired == 1
    assert (await store.load({RUN: 0}))[0].version == 0


@pytest.mark.parametrize("fault", FAULTS)
async def test_reads_and_releases_are_repeated(store: RedisStore, proxy: Proxy, fault: Fault) -> None:
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


async def test_renewals_of_another_thread_are_repeated(store: RedisStore, proxy: Proxy) -> None:
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
    store: RedisStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has given up; when the server is there again, the jobs it would have kept wait for anybody."""
    await commit(store, 0, records=(b"1",), jobs=(job("a"),))
    await commit(store, 1, drop=("a",))
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.3)
    proxy.arm("reply", RUN.key.encode())
    proxy.down = True
    with pytest.raises(Unavailable):
        await commit(store, 1, records=(b"2",), jobs=(job("b"),), keep=("b",))
    assert proxy.fired == 1
    proxy.down = False
    assert await commit(store, 2, records=(b"3",)) == Committed(version=3)
    assert [(lease.key, lease.expired) for lease in await claimed(store)] == [("b", 0)]


async def test_what_an_unheard_claim_has_leased_is_given_back(
    store: RedisStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await commit(store, 0, jobs=(job("a"), job("b")))
    await store.release(await claimed(store))
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.3)
    proxy.arm("reply", b"worker-1")
    proxy.down = True
    with pytest.raises(Unavailable):
        await claimed(store, owner="worker-1")
    assert proxy.fired == 1
    proxy.down = False
    assert [(lease.key, lease.expired) for lease in await claimed(store)] == [("a", 0), ("b", 0)]


async def test_a_server_that_stands_still_executes_late_what_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request lies in its socket while the caller gives up; when it wakes, nothing happens twice."""
    with running() as private:
        store = RedisStore(place_at(private.new_store()))
        await store.open()
        await commit(store, 0, records=(b"1",), jobs=(job("a"),))
        (lease,) = await claimed(store)
        with monkeypatch.context() as patched:
            patched.setattr(database, "CALL_SECONDS", 0.3)
            patched.setattr(database, "CONNECT_SECONDS", 0.3)
            patched.setattr(database, "PATIENCE_SECONDS", 0.3)
            store._parts[0].partition.writes.drop()
            await commit(store, 1)
            private.tell(signal.SIGSTOP)
            with pytest.raises(Unavailable):
                await commit(store, 1, records=(b"2",), acks=(ack(lease),), jobs=(job("b"),), keep=("b",))
            private.tell(signal.SIGCONT)
        (tail,) = await store.load({RUN: 0})
        result = await commit(store, tail.version, records=(b"next",))
        assert isinstance(result, Committed | VersionConflict)
        records = (await store.load({RUN: 0}))[0].records
        assert records in ((b"1", b"next"), (b"1", b"2", b"next"), (b"1", b"2"))
        if b"2" in records:
            assert [(lease.key, lease.expired) for lease in await claimed(store)] == [("b", 0)]
        else:
            assert await commit(store, 2, acks=(ack(lease),)) == Committed(version=2)
        await store.close()


async def test_followers_and_waiting_claims_survive_a_cut(store: RedisStore, proxy: Proxy) -> None:
    frames = asyncio.create_task(anext(aiter(store.follow(RUN, 0))))
    waiting = asyncio.create_task(claimed(store, wait_ms=LONG_MS))
    await asyncio.sleep(0.2)
    proxy.cut_all()
    await asyncio.sleep(0.2)
    await commit(store, 0, records=(b"1",), jobs=(job("a"),))
    assert (await asyncio.wait_for(frames, 20)).body == b"1"
    assert keys(await asyncio.wait_for(waiting, 20)) == ["a"]


async def unusable(store: RedisStore) -> StoreUnusable:
    while True:
        try:
            await commit(store, 1, rows=(row("r"),))
        except StoreUnusable as error:
            return error


async def test_work_under_way_waits_for_an_operator(
    store: RedisStore, server: PrivateServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that refuses the password, or has become a replica, is no refusal of what is to be written."""
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.3)
    await commit(store, 0, records=(b"1",))
    server.asked("REPLICAOF", "127.0.0.1", 1)
    try:
        async with asyncio.timeout(20):
            told = await unusable(store)
            # A worker ends on `store_read_only`, and a failover may take a while.
            assert "replica" in str(told) and told.problem.code == "store_unusable"
    finally:
        server.asked("REPLICAOF", "NO", "ONE")
    assert await commit(store, 1, records=(b"2",)) == Committed(version=2)
    server.asked("CONFIG", "SET", "requirepass", "another")
    try:
        proxy.cut_all()
        with pytest.raises(StoreUnusable, match="password"):
            await commit(store, 2, records=(b"3",))
    finally:
        with redis.Redis.from_url(server.url.replace(PASSWORD, "another")) as direct:
            direct.config_set("requirepass", PASSWORD)
    assert await commit(store, 2, records=(b"3",)) == Committed(version=3)


async def test_a_server_without_memory_is_told(store: RedisStore, server: PrivateServer) -> None:
    await commit(store, 0, records=(b"1",), jobs=(job("a"), job("b")))
    leases = await claimed(store, 1)
    server.asked("CONFIG", "SET", "maxmemory", "1mb")
    try:
        with pytest.raises(DiskFull, match="memory is full"):
            await commit(store, 1, records=(b"2",))
        with pytest.raises(DiskFull, match="memory is full"):
            await asyncio.to_thread(lambda: asyncio.run(store.renew(leases, LONG_MS)))
    finally:
        server.asked("CONFIG", "SET", "maxmemory", "0")
    assert await commit(store, 1, records=(b"2",)) == Committed(version=2)
    assert keys(await claimed(store)) == ["b"]


async def test_scripts_that_the_server_has_forgotten_are_loaded_again(store: RedisStore, server: PrivateServer) -> None:
    await commit(store, 0, records=(b"1",), jobs=(job("a"),))
    leases = await claimed(store)
    server.asked("SCRIPT", "FLUSH")
    assert await commit(store, 1, records=(b"2",)) == Committed(version=2)
    server.asked("SCRIPT", "FLUSH")
    lost = await asyncio.to_thread(lambda: asyncio.run(store.renew(leases, LONG_MS)))
    assert lost == []


async def test_an_emptied_database_is_no_new_store(store: RedisStore, server: PrivateServer) -> None:
    await commit(store, 0, records=(b"1",), jobs=(job("a"),))
    leases = await claimed(store)
    server.asked("FLUSHALL")
    calls = (
        lambda: commit(store, 1, records=(b"2",)),
        lambda: commit(store, 0, records=(b"anew",)),
        lambda: claimed(store),
        lambda: store.load({RUN: 0}),
        lambda: store.find("acme", "run"),
        lambda: store.renew(leases, LONG_MS),
        lambda: store.release(leases),
        lambda: store.forget(RUN),
    )
    for call in calls:
        with pytest.raises(StoreUnusable) as told:
            await call()
        assert told.value.problem.code == "store_emptied"
    assert server.asked("DBSIZE") == 0


async def test_a_busy_server_is_waited_for(store: RedisStore, server: PrivateServer) -> None:
    """Somebody's script holds the server up."""
    await commit(store, 0, records=(b"1",))
    server.asked("CONFIG", "SET", "busy-reply-threshold", 10)
    script = "local begun = redis.call('TIME')[1] while redis.call('TIME')[1] - begun < 2 do end return 1"
    busy = asyncio.create_task(asyncio.to_thread(server.asked, "EVAL", script, 0))
    await asyncio.sleep(0.1)
    assert await commit(store, 1, records=(b"2",)) == Committed(version=2)
    await busy


async def test_a_storm_of_cuts(store: RedisStore, proxy: Proxy) -> None:
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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_that_restarts_is_waited_for(how: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    with running("appendfsync always") as private:
        store = RedisStore(place_at(private.new_store()))
        await store.open()
        await commit(store, 0, records=(b"1",), jobs=(job("a"),))
        (lease,) = await claimed(store)
        private.stop(how)
        with monkeypatch.context() as patched:
            patched.setattr(database, "PATIENCE_SECONDS", 0.3)
            with pytest.raises(Unavailable):
                await commit(store, 1, records=(b"2",), acks=(ack(lease),))
        again = threading.Timer(0.5, private.start)
        again.start()
        result = await commit(store, 1, records=(b"2",), acks=(ack(lease),))
        again.join()
        assert result == Committed(version=2)
        assert await store.jobs(RUN) == []
        await store.close()


async def test_what_a_cut_log_has_lost_is_not_confused_with_what_comes_after() -> None:
    """The server has lost its last moments: a token of them is not given out again, and the store goes on."""
    with running() as private:
        store = RedisStore(place_at(private.new_store()))
        await store.open()
        await commit(store, 0, records=(b"1",), jobs=(job("a"),))
        log = next((private.home / "appendonlydir").glob("*.incr.aof"))
        kept = log.stat().st_size
        (lost,) = await claimed(store)
        await commit(store, 1, records=(b"2",))
        private.stop()
        with log.open("r+b") as file:
            file.truncate(kept + 7)
        private.start()
        (tail,) = await store.load({RUN: 0})
        assert tail.records == (b"1",)
        (again,) = await claimed(store)
        assert again.token > lost.token
        assert await commit(store, 1, acks=(ack(lost),)) == LeasesLost(keys=("a",))
        assert await commit(store, 1, records=(b"2 again",), acks=(ack(again),)) == Committed(version=2)
        await store.close()


async def test_a_replica_that_takes_over_is_found() -> None:
    """Primary and replica are named; the primary dies, the replica is promoted, and work goes on there."""
    with running() as primary, running() as replica:
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        store = RedisStore(place_at(primary.new_store().replace(f"127.0.0.1:{primary.port}", hosts)))
        await store.open()
        await commit(store, 0, records=(b"1",), jobs=(job("a"),))
        (lease,) = await claimed(store)
        replica.asked("REPLICAOF", "127.0.0.1", primary.port)
        deadline = time.monotonic() + 30
        while replica.client().info("replication").get("master_link_status") != "up":
            assert time.monotonic() < deadline
        primary.stop()
        promoted = threading.Timer(0.5, lambda: replica.asked("REPLICAOF", "NO", "ONE"))
        promoted.start()
        assert await commit(store, 1, records=(b"2",), acks=(ack(lease),)) == Committed(version=2)
        promoted.join()
        assert await store.jobs(RUN) == []
        await store.close()


async def test_what_a_cancelled_claim_has_leased_is_given_back_though_the_store_closes(store: RedisStore) -> None:
    await commit(store, 0, jobs=(job("a"),))
    for steps in range(6):
        task = asyncio.create_task(claimed(store))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()
        await store.open()
        if task.cancelled():
            leases = await claimed(store)
            assert [(lease.key, lease.expired) for lease in leases] == [("a", 0)]
            await store.release(leases)
        else:
            await store.release(task.result())
