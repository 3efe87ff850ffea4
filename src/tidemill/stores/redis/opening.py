"""Opening a Redis store: what the server must be, what its settings mean for durability, and a side connection.

Whether what is committed survives depends on three settings of the server: `appendonly`, `appendfsync` and
`maxmemory-policy`. A server that would lose everything at a restart, or evict keys, is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Literal, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from tidemill.errors import Rejected, TidemillError, Unavailable, rejected
from tidemill.stores.redis.database import (
    CALL_SECONDS,
    CONNECT_SECONDS,
    VERSION_MIN,
    Address,
    Answer,
    Argument,
    Connection,
    Cut,
    Link,
    Nodes,
    Place,
    connect,
    emptied,
    translate,
)
from tidemill.stores.redis.scripts import FORMAT, Partition, partition_of, script

LOG = logging.getLogger(__name__)

Severity = Literal["ok", "warning", "error"]


MEMORY_SHARE_MAX = 0.9
"""Of `maxmemory`; more is a finding of `doctor`."""


class Setting(NamedTuple):
    """A setting of the server, what it means for the store, and what to do."""

    name: str
    value: str
    severity: Severity
    meaning: str
    what_to_do: str


class Entered(NamedTuple):
    store: str
    partitions: int
    now_ms: int


async def enter(nodes: Nodes) -> Entered:
    """Check the server and open the store, which is made if it does not exist."""
    place = nodes.place
    try:
        refuse_unfit(place, await _reached(nodes), nodes.warnings)
        return await _enter(nodes)
    except (Answer, Cut, OSError, TimeoutError) as error:
        raise translate(error, place, opened=False) from error


async def _reached(nodes: Nodes) -> dict[str, str]:
    """What the first server says that answers and takes writes, else the last of those that the URL names.

    After a failover the first one may be a replica.
    """
    for left in reversed(range(len(nodes.place.addresses))):
        try:
            facts = await _asked(nodes.place, nodes.of(0))
            if not left or facts.get("role", "master") == "master":
                return facts
        except (Cut, OSError, TimeoutError):
            if not left:
                raise
        nodes.failed(0)
    raise AssertionError


async def _asked(place: Place, address: Address) -> dict[str, str]:
    made = await connect(place, address)
    try:
        return await _facts(made)
    finally:
        made.close()


async def recorded(place: Place) -> Entered | None:
    """The store at a place, if there is one."""
    nodes = Nodes(place)
    try:
        await _reached(nodes)
        link = Link(nodes, 0)
        try:
            return await _open(Partition(nodes, 0), link, "", 0)
        finally:
            await link.close()
    except (Answer, Cut, OSError, TimeoutError) as error:
        raise translate(error, place, opened=False) from error


def missing_store(place: Place) -> Rejected:
    hint = "run or publish a workflow first, or name another one with --store or TIDEMILL_STORE"
    return rejected("store_missing", f"there is no store {place.prefix!r} in {place.name}", hint=hint)


async def _open(partition: Partition, link: Link, store: str, partitions: int) -> Entered | None:
    arguments: tuple[Argument, ...] = (store, partitions, FORMAT)
    name, count, form, now = await link.run(script("open"), (partition.meta,), arguments)
    if name is None:
        return None
    if int(form) > FORMAT:
        message = f"{link.place.name} holds a store that a newer version of Tidemill has made"
        raise rejected("store_newer", message, hint="upgrade, and restart what still runs the old version")
    return Entered(name.decode(), int(count), now)


async def _enter(nodes: Nodes) -> Entered:
    place = nodes.place
    links: list[Link] = []

    async def opened(number: int, store: str, partitions: int) -> Entered | None:
        links.append(Link(nodes, number))
        return await _open(Partition(nodes, number), links[-1], store, partitions)

    try:
        found = await opened(0, "", 0)
        count = found.partitions if found else place.partitions or 1
        if place.partitions not in (0, count):
            raise _other_partitions(place, count)
        store = found.store if found else token_hex(12)
        # The first partition is made last: where it is, all are.
        for number in reversed(range(count)):
            entered = await opened(number, "" if found else store, count)
            if entered is None or (found and entered.store != store):
                raise emptied(place)
            store = entered.store
            if entered.partitions != count:
                raise _other_partitions(place, entered.partitions)
        assert entered is not None
        checked = {place.addresses[0]}
        for link in links:
            address = nodes.of(link.partition)
            if link.connection is not None and address not in checked:
                checked.add(address)
                refuse_unfit(place, await _facts(link.connection), nodes.warnings)
        return entered
    finally:
        for link in links:
            await link.close()


def _other_partitions(place: Place, count: int) -> Rejected:
    message = f"the store in {place.name} has {count} partitions, not {place.partitions}; their number never changes"
    return rejected(
        "store_option_unknown", message, path="/partitions", hint=f"write partitions={count}, or leave it out"
    )


# Settings


async def _facts(made: Connection) -> dict[str, str]:
    """The facts that a server reports about itself; those it does not report are missing."""
    facts: dict[str, str] = {}
    asked = [("INFO", section) for section in ("server", "replication", "cluster", "memory")]
    for told in await asyncio.gather(*(made.call(*command) for command in asked)):
        facts |= _lines(told)
    names = ("appendonly", "appendfsync", "maxmemory-policy")
    # Providers often forbid it.
    answers = await asyncio.gather(*(made.call("CONFIG", "GET", name) for name in names), return_exceptions=True)
    for found in answers:
        if isinstance(found, list) and found:
            facts[found[0].decode()] = found[1].decode()
    if facts.get("cluster_enabled") == "1":
        facts |= _lines(await made.call("CLUSTER", "INFO"))
    return facts


def _lines(told: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)


def settings_of(facts: dict[str, str]) -> list[Setting]:
    """The settings that decide what survives."""
    found = [_version(facts), _role(facts), _appendonly(facts)]
    if facts.get("appendonly") == "yes":
        found.append(_appendfsync(facts))
    found.append(_policy(facts))
    if facts.get("cluster_enabled") == "1":
        found.append(_slots(facts))
    return found


def _version(facts: dict[str, str]) -> Setting:
    own = facts.get("valkey_version")
    value = f"Valkey {own}" if own else f"Redis {facts.get('redis_version', '?')}"
    number = tuple(int(part) for part in facts.get("redis_version", "0").split(".")[:2] if part.isdigit())
    if number < VERSION_MIN:
        return Setting("version", value, "error", "it lacks commands that the store needs", "use Redis 7.0 or newer")
    return Setting("version", value, "ok", "", "")


def _role(facts: dict[str, str]) -> Setting:
    role = facts.get("role", "master")
    if role != "master":
        return Setting("role", role, "error", "nothing can be written to a replica", "name the primary server")
    return Setting("role", role, "ok", "", "")


def _appendonly(facts: dict[str, str]) -> Setting:
    value = facts.get("appendonly")
    if value is None:
        meaning = "the server does not reveal whether it persists writes"
        return Setting(
            "appendonly", "unknown", "warning", meaning, "allow CONFIG GET, or ask the server's administrator"
        )
    if value == "no":
        what = "CONFIG SET appendonly yes, and the same in its file; or write ?durability=none if you accept that"
        return Setting("appendonly", value, "error", "a restart of the server loses everything", what)
    return Setting("appendonly", value, "ok", "committed runs survive a restart of the server", "")


def _appendfsync(facts: dict[str, str]) -> Setting:
    value = facts.get("appendfsync", "unknown")
    if value == "always":
        return Setting("appendfsync", value, "ok", "committed runs survive a power cut", "")
    # With `everysec` the server answers before it has written while a sync takes long, for up to two seconds.
    meaning = (
        "a power cut may lose the last second, and while the disk is slow a killed server may, too"
        if value == "everysec"
        else "committed runs survive a killed server; a power cut may lose about the last half minute"
    )
    return Setting("appendfsync", value, "warning", meaning, "CONFIG SET appendfsync always to prevent that")


def _policy(facts: dict[str, str]) -> Setting:
    value = facts.get("maxmemory-policy", "unknown")
    if value == "unknown":
        meaning = "the server does not reveal whether it evicts keys when its memory is full"
        return Setting("maxmemory-policy", value, "warning", meaning, "make sure that it is noeviction")
    if value != "noeviction":
        meaning = "the server removes parts of runs when its memory is full"
        return Setting("maxmemory-policy", value, "error", meaning, "CONFIG SET maxmemory-policy noeviction")
    return Setting("maxmemory-policy", value, "ok", "", "")


def _memory(facts: dict[str, str]) -> Setting:
    """How full the memory is; a full server refuses writes until there is room again, so this ends no worker."""
    used, most = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
    if not most:
        return Setting("memory", f"{used >> 20} MiB, without a limit", "ok", "", "")
    value = f"{used >> 20} of {most >> 20} MiB"
    if used >= most * MEMORY_SHARE_MAX:
        what = "raise maxmemory, or shorten retention"
        if used >= most:
            return Setting("memory", value, "error", "the server accepts no writes, so nothing continues", what)
        return Setting("memory", value, "warning", "the server accepts no writes once its memory is full", what)
    return Setting("memory", value, "ok", "", "")


def _slots(facts: dict[str, str]) -> Setting:
    value = facts.get("cluster_slots_assigned", "0")
    if value != "16384" or facts.get("cluster_state") != "ok":
        meaning = (
            f"the state of the cluster is {facts.get('cluster_state', 'unknown')}, {value} of 16384 slots are assigned"
        )
        what = "give all hash slots to nodes that run: `redis-cli --cluster check` shows which are missing"
        return Setting("cluster_slots", value, "error", meaning, what)
    return Setting("cluster_slots", value, "ok", "", "")


_CODES = {"role": "store_read_only", "cluster_slots": "store_unusable", "version": "store_unusable"}


def refuse_unfit(place: Place, facts: dict[str, str], warnings: dict[str, None]) -> None:
    """Refuse a server that would harm a store; note what it may lose, so that workers can warn."""
    for setting in settings_of(facts):
        told = f"{setting.name} of {place.name} is {setting.value}: {setting.meaning}"
        if setting.name == "appendonly" and setting.severity == "error" and not place.durable:
            LOG.warning("%s", told)
        elif setting.severity == "error":
            if setting.name == "cluster_slots" and setting.value == "16384":
                # Nodes of the cluster do not reach each other; that may end by itself.
                raise Unavailable(told)
            if setting.name in _CODES:
                raise rejected(_CODES[setting.name], told, hint=setting.what_to_do)
            raise rejected("store_not_durable", told, hint=setting.what_to_do)
        elif setting.severity == "warning":
            warnings[f"{told} ({setting.what_to_do})"] = None


async def settings_report(place: Place) -> list[Setting]:
    """The settings of the server, or of every one that serves hash slots."""
    nodes = Nodes(place)
    try:
        servers = [await _reached(nodes)]
        if servers[0].get("cluster_enabled") == "1":
            servers += [await _asked(place, address) for address in await _primaries(place, nodes.of(0))]
        found = [setting for facts in servers for setting in (*settings_of(facts), _memory(facts))]
        if not place.durable:
            # The URL says that this is accepted.
            found = [each._replace(severity="warning") if each.name == "appendonly" else each for each in found]
        return list(dict.fromkeys(found))
    except (Answer, Cut, OSError, TimeoutError) as error:
        raise translate(error, place) from error


async def _primaries(place: Place, address: Address) -> set[Address]:
    made = await connect(place, address)
    try:
        ranges = await made.call("CLUSTER", "SLOTS")
    finally:
        made.close()
    return {(primary[0].decode() or address[0], primary[1]) for _, _, primary, *_ in ranges}


# Blobs


class BlobSpace:
    """The keys of blobs in one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def key(self, name: bytes) -> bytes:
        return self._partition.tag + b"blob:" + name

    async def call(self, *command: Argument) -> Any:
        return await self._partition.reads.call(*command)

    async def run(self, name: str, keys: Sequence[bytes], arguments: Sequence[Argument]) -> Any:
        return await self._partition.reads.run(script(name), keys, arguments)

    async def close(self) -> None:
        await self._partition.close()


class BlobSpaces:
    """Where the blobs of a store are, once it has been opened."""

    def __init__(self, place: Place) -> None:
        self._nodes = Nodes(place)
        self._spaces: list[BlobSpace] = []
        self._finding = asyncio.Lock()

    async def every(self) -> list[BlobSpace]:
        if not self._spaces:
            async with self._finding:
                await self._find()
        return self._spaces

    async def _find(self) -> None:
        if not self._spaces:
            found = await recorded(self._nodes.place)
            if found is None:
                raise translate(emptied(self._nodes.place), self._nodes.place)
            self._spaces = [BlobSpace(Partition(self._nodes, number)) for number in range(found.partitions)]

    async def of(self, name: str) -> BlobSpace:
        spaces = await self.every()
        return spaces[partition_of("", name, len(spaces))]

    async def close(self) -> None:
        spaces, self._spaces = self._spaces, []
        for space in spaces:
            await space.close()


# Other threads


class SideConnection:
    """Lazily opened connections for threads other than the loop's (lease renewal), one call at a time."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, int], redis.Redis] = {}

    def run(self, partition: Partition, name: str, keys: Sequence[bytes], arguments: Sequence[Argument]) -> Any:
        """Execute a script that may be repeated: after a cut it is tried once more."""
        called = script(name)
        failure: RedisError = RedisError("it does not answer")
        with self._lock:
            for _ in range(4):
                client = self._client(partition)
                try:
                    return client.evalsha(called.digest, len(keys), *keys, *arguments)
                except ResponseError as error:
                    failure = error
                    if str(error).startswith("EMPTIED"):
                        break
                    self._put_right(partition, client, called.text, error)
                except RedisError as error:
                    failure = error
                    client.close()
        # The client takes the code away from answers that it has a class for.
        code = {"OutOfMemoryError": "OOM ", "ReadOnlyError": "READONLY "}.get(type(failure).__name__, "")
        found = Answer(f"{code}{failure}") if isinstance(failure, ResponseError) else failure
        meant: TidemillError = translate(found, self._nodes.place)
        raise meant from failure

    def _put_right(self, partition: Partition, client: redis.Redis, text: bytes, error: ResponseError) -> None:
        if type(error).__name__ == "NoScriptError":
            client.script_load(text)
        elif type(error).__name__ == "MovedError":
            host, port = getattr(error, "host", ""), getattr(error, "port", 0)
            self._nodes.moved(partition.number, f"MOVED 0 {host}:{port}")

    def _client(self, partition: Partition) -> redis.Redis:
        address, place = self._nodes.of(partition.number), self._nodes.place
        if address not in self._clients:
            self._clients[address] = redis.Redis(
                host=address[0],
                port=address[1],
                db=place.database,
                username=place.user or None,
                password=place.password or None,
                ssl=place.tls,
                ssl_ca_certs=place.ca or None,
                socket_timeout=CALL_SECONDS / 3,
                socket_connect_timeout=CONNECT_SECONDS,
                retry=Retry(NoBackoff(), 0),
                max_connections=1,
                protocol=2,
            )
        return self._clients[address]

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()
