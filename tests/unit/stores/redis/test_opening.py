"""Opening a Redis store: URLs, servers that are refused and why, settings that decide what survives."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec.structs import replace

from tests.conformance.stores.harness import LONG_MS, RUN, job, row, run
from tests.fixtures.servers.certificates import Authority, authority
from tests.fixtures.servers.redis_server import PASSWORD, PrivateServer, cluster, running
from tests.fixtures.servers.tcp_proxy import Proxy
from tests.guards.guard import ROOT
from tidemill.blobs.redis import RedisBlobs
from tidemill.bootstrap import _retention_of
from tidemill.errors import Rejected, StoreUnusable, Unavailable
from tidemill.kernel.model import RETENTION_BY_STORE
from tidemill.stores.contract import Claim, Commit
from tidemill.stores.redis.database import Place, place_at
from tidemill.stores.redis.opening import BlobSpaces, refuse_unfit
from tidemill.stores.redis.store import RedisStore


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    with running() as started:
        yield started


async def opened(place: Place | str) -> RedisStore:
    store = RedisStore(place if isinstance(place, Place) else place_at(place))
    await store.open()
    return store


async def refused(url: str) -> Rejected | StoreUnusable:
    with pytest.raises((Rejected, StoreUnusable)) as told:
        await opened(url)
    assert PASSWORD not in str(told.value) and "\n" not in str(told.value)
    return told.value


def code_of(refusal: Rejected | StoreUnusable) -> str:
    return refusal.code if isinstance(refusal, Rejected) else refusal.problem.code


def test_a_url_says_where_the_store_is() -> None:
    assert place_at("redis://localhost") == Place((("localhost", 6379),))
    place = place_at("rediss://me:p%40ss@a:1,[::1]:2/3?prefix=x&partitions=4&durability=none&blobs=s3://b&ca=/f")
    assert place == Place((("a", 1), ("::1", 2)), "me", "p@ss", 3, True, "/f", "x", 4, False, "s3://b")
    assert "p@ss" not in place.name


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("redis://a?colour=red", "store_option_unknown"),
        ("redis://a?partitions=many", "store_option_unknown"),
        ("redis://a?partitions=999", "store_option_unknown"),
        ("redis://a?prefix={p0}", "store_option_unknown"),
        ("redis://a?durability=some", "store_option_unknown"),
        ("redis://a/name", "store_unknown"),
        ("redis://me:p@ss@a", "store_unknown"),
        ("redis://a:b:c", "store_unknown"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused(url: str, code: str) -> None:
    with pytest.raises(Rejected) as told:
        place_at(url)
    assert told.value.code == code


async def test_a_wrong_password_is_told(server: PrivateServer) -> None:
    for url in (server.url.replace(PASSWORD, "wrong"), server.url.replace(f":{PASSWORD}@", "")):
        refusal = await refused(url)
        assert code_of(refusal) == "store_unusable" and "refuses" in str(refusal)


async def test_a_user_without_rights_is_told(server: PrivateServer) -> None:
    server.asked("ACL", "SETUSER", "weak", "on", ">weak", "~other:*", "+@all")
    refusal = await refused(server.url.replace(f":{PASSWORD}@", "weak:weak@"))
    assert code_of(refusal) == "store_unusable" and "~tidemill:*" in str(refusal)


async def test_the_rights_that_the_docs_name_are_enough(server: PrivateServer) -> None:
    found = re.search(r"A user needs `([^`]+)`", (ROOT / "docs/how-to/redis.md").read_text())
    assert found is not None
    server.asked("ACL", "SETUSER", "worker", "reset", "on", ">strong", *found[1].split())
    place = place_at(server.url.replace(f":{PASSWORD}@", "worker:strong@"))
    store = await opened(place)
    await store.commit([Commit(stream=RUN, expected=0, records=(b"1",), jobs=(job(),), rows=(row("r"),))])
    (lease,) = await store.claim(Claim(queues=(), limit=1, lease_ms=LONG_MS, wait_ms=100))
    assert await asyncio.to_thread(lambda: asyncio.run(store.renew([lease], LONG_MS))) == []
    async for frame in store.follow(RUN, 0):
        assert frame.body == b"1"
        break
    await store.publish(RUN, [b"live"])
    assert await store.count("acme", "run") == 1 and len(await store.backlog()) == 1
    assert all(setting.severity != "error" for setting in await store.diagnose())
    assert await store.forget(RUN)
    blobs = RedisBlobs(lambda: BlobSpaces(place))
    await blobs.open()
    assert await blobs.get("acme", await blobs.put("acme", b"body")) == b"body"
    await blobs.close()
    await store.close()


async def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(Unavailable, match="cannot be reached"):
        await opened("redis://127.0.0.1:1")


@pytest.mark.parametrize(
    ("setting", "value", "before", "code"),
    [
        ("appendonly", "no", "yes", "store_not_durable"),
        ("maxmemory-policy", "allkeys-lru", "noeviction", "store_not_durable"),
    ],
)
async def test_settings_that_lose_runs_are_refused(
    server: PrivateServer, setting: str, value: str, before: str, code: str
) -> None:
    server.asked("CONFIG", "SET", setting, value)
    try:
        refusal = await refused(server.new_store())
        assert code_of(refusal) == code and f"CONFIG SET {setting} {before}" in str(refusal)
    finally:
        server.asked("CONFIG", "SET", setting, before)


async def test_a_server_that_forgets_is_taken_if_one_says_so(
    server: PrivateServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.asked("CONFIG", "SET", "appendonly", "no")
    try:
        with caplog.at_level(logging.WARNING):
            store = await opened(server.new_store(durability="none"))
        report = {finding.code: finding.severity for finding in await store.diagnose()}
        assert report["appendonly"] == "warning", "the URL accepts it"
        await store.close()
        assert "a restart of the server loses everything" in caplog.text
    finally:
        server.asked("CONFIG", "SET", "appendonly", "yes")


@pytest.mark.parametrize(
    ("value", "severity", "words"),
    [("always", "ok", "survive a power cut"), ("everysec", "warning", "the last second")],
)
async def test_the_report_says_what_survives(server: PrivateServer, value: str, severity: str, words: str) -> None:
    server.asked("CONFIG", "SET", "appendfsync", value)
    store = await opened(server.new_store())
    report = {finding.code: finding for finding in await store.diagnose()}
    await store.close()
    assert (report["appendfsync"].severity, report["appendonly"].severity) == (severity, "ok")
    assert words in report["appendfsync"].message
    assert set(report) == {"server_version", "role", "appendonly", "appendfsync", "maxmemory_policy", "memory"}


@pytest.mark.parametrize(("share", "severity"), [(0.5, "ok"), (0.95, "warning"), (1.5, "error")])
async def test_the_report_says_how_full_the_memory_is(server: PrivateServer, share: float, severity: str) -> None:
    store = await opened(server.new_store())
    used = server.asked("INFO", "memory")["used_memory"]
    server.asked("CONFIG", "SET", "maxmemory", int(used / share))
    try:
        report = {finding.code: finding for finding in await store.diagnose()}
        await store.close()
    finally:
        server.asked("CONFIG", "SET", "maxmemory", 0)
    assert report["memory"].severity == severity, report["memory"].message


async def test_a_replica_is_refused(server: PrivateServer) -> None:
    server.asked("REPLICAOF", "127.0.0.1", 1)
    try:
        assert code_of(await refused(server.new_store())) == "store_read_only"
    finally:
        server.asked("REPLICAOF", "NO", "ONE")


async def test_a_replica_that_is_named_first_is_passed() -> None:
    """As after a failover, when the primary of before has come back."""
    with running() as replica, running() as primary:
        replica.asked("REPLICAOF", "127.0.0.1", primary.port)
        hosts = f"127.0.0.1:{replica.port},127.0.0.1:{primary.port}"
        url = primary.new_store().replace(f"127.0.0.1:{primary.port}", hosts)
        store = await opened(url)
        await store.commit([Commit(RUN, 0, (b"1",))])
        report = {finding.code: finding.severity for finding in await store.diagnose()}
        await store.close()
        assert report["role"] == "ok"
        primary.asked("REPLICAOF", "127.0.0.1", 1)
        assert code_of(await refused(url)) == "store_read_only"


async def test_the_report_looks_at_every_node_of_a_cluster() -> None:
    with cluster() as nodes:
        for node in nodes:
            node.asked("CONFIG", "SET", "appendfsync", "always")
        nodes[2].asked("CONFIG", "SET", "appendfsync", "everysec")
        store = RedisStore(place_at(nodes[0].new_store()))
        found = [finding.severity for finding in await store.diagnose() if finding.code == "appendfsync"]
        assert sorted(found) == ["ok", "warning"]


async def test_a_cluster_without_all_slots_is_refused() -> None:
    with running("cluster-enabled yes") as lone:
        refusal = await refused(lone.new_store())
        assert code_of(refusal) == "store_unusable" and "slots" in str(refusal)
        assert "database 0" in str(await refused(lone.url.replace("/0", "/1")))


def test_a_cluster_whose_nodes_do_not_reach_each_other_is_tried_again() -> None:
    facts = {"redis_version": "7.2.4", "appendonly": "yes", "appendfsync": "always", "maxmemory_policy": "noeviction"}
    apart = {"cluster_enabled": "1", "cluster_slots_assigned": "16384", "cluster_state": "fail"}
    refuse_unfit(place_at("redis://localhost"), facts | apart | {"cluster_state": "ok"}, {})
    with pytest.raises(Unavailable, match="the state of the cluster is fail"):
        refuse_unfit(place_at("redis://localhost"), facts | apart, {})


async def test_the_number_of_partitions_stays(server: PrivateServer) -> None:
    url = server.new_store(partitions=3)
    store = await opened(url)
    names = [run(f"r{number}") for number in range(30)]
    await store.commit([Commit(stream=name, expected=0, records=(b"1",)) for name in names])
    await store.close()
    refusal = await refused(url.replace("partitions=3", "partitions=4"))
    assert code_of(refusal) == "store_option_unknown" and "partitions=3" in str(refusal)
    again = await opened(replace(place_at(url), partitions=0))
    assert [tail.version for tail in await again.load(dict.fromkeys(names, 0))] == [1] * 30
    assert await again.streams("run") == sorted(names)
    await again.close()
    used = {key.split(b"}")[0][-2:] for key in server.client().scan_iter("t_*:r:*")}
    assert used == {b"p0", b"p1", b"p2"}


async def test_a_partition_that_is_gone_is_told(server: PrivateServer) -> None:
    url = server.new_store(partitions=2)
    store = await opened(url)
    await store.close()
    (key,) = server.client().scan_iter(f"{place_at(url).prefix}:{{p1}}:meta")
    server.asked("DEL", key)
    assert code_of(await refused(url)) == "store_emptied"


async def test_an_open_store_does_not_survive_its_removal_quietly(server: PrivateServer) -> None:
    url = server.new_store()
    store = await opened(url)
    await store.commit([Commit(stream=RUN, expected=0, records=(b"1",))])
    server.asked("FLUSHALL")
    other = await opened(url)
    with pytest.raises(StoreUnusable, match="emptied"):
        await store.commit([Commit(stream=RUN, expected=0, records=(b"2",))])
    assert (await other.load({RUN: 0}))[0].version == 0
    await store.close()
    await other.close()


def test_runs_stay_shorter_in_memory() -> None:
    days = [_retention_of(url, RETENTION_BY_STORE) for url in ("sqlite:///f", "redis://a", "rediss://a")]
    assert days == [30.0, 7.0, 7.0]
    assert [_retention_of("redis://a", given) for given in (30.0, None)] == [30.0, None]


def pem_of(signer: Authority, name: str) -> Path:
    file = signer.folder / name
    file.write_bytes(signer.certificate.public_bytes(Encoding.PEM))
    return file


async def test_tls(server: PrivateServer, tmp_path: Path) -> None:
    """The server of the wheel has no TLS, so a proxy speaks it."""
    signer, (plain, port) = authority(tmp_path), server.url.rsplit(":", 1)
    ca, stranger = pem_of(signer, "ca.pem"), pem_of(authority(tmp_path), "stranger.pem")
    proxy = Proxy(int(port.partition("/")[0]))
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=signer.server("localhost")) as listening:
        at = f":{listening.sockets[0].getsockname()[1]}/0?prefix=tls&ca="
        url = plain.replace("redis://", "rediss://").replace("127.0.0.1", "localhost") + at
        store = await opened(url + str(ca))
        assert len(await store.commit([Commit(stream=run("r"), expected=0, records=(b"x",))])) == 1
        await store.close()
        for wrong in (url + str(stranger), url.replace("localhost", "127.0.0.1") + str(ca)):
            refusal = await refused(wrong)
            assert code_of(refusal) == "store_unusable" and "is not trusted" in str(refusal)
            assert "?ca=FILE" in str(refusal)
        assert "holds no certificates" in str(await refused(url + "/nowhere"))
        proxy.cut_all()
