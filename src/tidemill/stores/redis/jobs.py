"""Jobs: how they are stored, claimed, renewed, released and counted (see `lua/jobs.lua`)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from tidemill.stores.contract import Backlog, Claim, Job, JobView, Lease, Stream
from tidemill.stores.redis.database import Argument
from tidemill.stores.redis.scripts import Call, Head, Partition, Session, Settlement, encoded, encoded_stream, script

SCANNED_AT_ONCE = 1_000
CAPS_KEY = 8
"""Where the counts of live leases are among the keys of jobs."""

_HEADER = struct.Struct(">BQQQIH")
"""State, ready time, token, expiry, number of expired leases, length of the owner's name."""
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[str, str, str, str, str, tuple[str, ...], bytes]).decode


@lru_cache(maxsize=65_536)
def _lane(queue: str, tenant: str, priority: int, caps: tuple[str, ...]) -> bytes:
    lane = encoded(queue) + encoded(tenant)
    digest = blake2b(_pack(caps), digest_size=8).digest() if caps else b""
    names = [cap.encode() for cap in dict.fromkeys(caps)]
    parts = [struct.pack(">BH", priority, len(lane)), lane, bytes([len(digest)]), digest, bytes([len(names)])]
    parts += [len(name).to_bytes(2, "big") + name for name in names]
    return b"".join(parts)


def fixed(stream: Stream, job: Job) -> bytes:
    """What never changes of a job."""
    key = stream.key.encode()
    rest = _pack((*stream, job.key, job.queue, job.caps, job.body))
    return _lane(job.queue, stream.tenant, job.priority, job.caps) + len(key).to_bytes(2, "big") + key + rest


class Fixed(msgspec.Struct, frozen=True, gc=False):
    stream: Stream
    key: str
    queue: str
    priority: int
    caps: tuple[str, ...]
    body: bytes


def read_fixed(stored: bytes, at: int = 0) -> Fixed:
    priority = stored[at]
    at += 3 + int.from_bytes(stored[at + 1 : at + 3], "big")
    at += 1 + stored[at]
    count = stored[at]
    at += 1
    for _ in range(count + 1):
        at += 2 + int.from_bytes(stored[at : at + 2], "big")
    tenant, kind, stream_key, key, queue, caps, body = _unpack(stored[at:])
    return Fixed(Stream(tenant, kind, stream_key), key, queue, priority, caps, body)


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A job as it is stored."""

    ready_at_ms: int
    token: int
    expires_at_ms: int
    expired: int
    owner: str
    fixed: Fixed


def read_stored(stored: bytes) -> Stored:
    _, ready, token, expires, expired, length = _HEADER.unpack_from(stored)
    at = _HEADER.size + length
    return Stored(ready, token, expires, expired, stored[_HEADER.size : at].decode(), read_fixed(stored, at))


class Claimed(msgspec.Struct, frozen=True):
    leases: list[Lease]
    now_ms: int
    next_due_ms: int | None = None


async def claim(
    session: Session, head: Head, request: Claim, most: int, bounds: dict[str, int], waits: bool
) -> Claimed:
    """Lease the next jobs of a partition. What an earlier call has leased whose answer was lost is released."""

    def arguments(most: int) -> list[Argument]:
        names = [encoded(queue) for queue in request.queues]
        caps: list[Argument] = [value for cap in bounds.items() for value in cap]
        given: tuple[Argument, ...] = (most, request.lease_ms, request.owner, request.run_tree, int(waits), len(names))
        return [*given, *names, len(bounds), *caps]

    async def undo(reply: list[Any]) -> None:
        await release(session.partition, head, _leases(reply), 0)

    async with session.turn:
        call = Call(script("claim"), session.partition.of_jobs, head, arguments(most))
        reply = await session.call(call, lambda: Settlement(call._replace(arguments=arguments(0)), undo))
    due = reply[1]
    return Claimed(_leases(reply), reply[0], None if due < 0 else due)


async def live_leases(partition: Partition) -> dict[str, int]:
    """The number of live leases per cap in a partition."""
    found = await partition.reads.call("HGETALL", partition.of_jobs[CAPS_KEY])
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {name.decode(): int(number) for name, number in pairs}


def _leases(reply: list[Any]) -> list[Lease]:
    leases = []
    for at in range(2, len(reply), 5):
        token, expired, ready, expires, packed = reply[at : at + 5]
        job = read_fixed(packed)
        leases.append(Lease(job.stream, job.key, token, job.body, job.queue, job.priority, expires, expired, ready))
    return leases


def lease_call(
    partition: Partition, head: Head, leases: Sequence[Lease], ms: int
) -> tuple[tuple[bytes, ...], list[Argument]]:
    """Keys and arguments of a call about leases."""
    numbers: dict[Stream, int] = {}
    arguments: list[Argument] = [*head, "", 0, ms]
    for lease in leases:
        number = numbers.setdefault(lease.stream, len(numbers) + 1)
        arguments += (number, lease.key, lease.token)
    rests = (partition.rest(encoded_stream(stream)) for stream in numbers)
    return (*partition.of_jobs, *rests), arguments


async def renew(partition: Partition, head: Head, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
    """The lost ones."""
    _, *lost = await partition.reads.run(script("renew"), *lease_call(partition, head, leases, lease_ms))
    return [leases[number - 1] for number in lost]


async def release(partition: Partition, head: Head, leases: Sequence[Lease], delay_ms: int) -> None:
    if leases:
        await partition.reads.run(script("release"), *lease_call(partition, head, leases, delay_ms))


async def views(partition: Partition, store: str, stream: Stream) -> list[JobView]:
    keys = (partition.meta, partition.jobs, partition.rest(encoded_stream(stream)))
    found = [read_stored(stored) for stored in await partition.reads.run(script("views"), keys, (store,))]
    return sorted((_view(each) for each in found), key=lambda view: view.job.key)


def _view(stored: Stored) -> JobView:
    own = stored.fixed
    job = Job(own.key, own.queue, own.body, stored.ready_at_ms, own.priority, own.caps)
    if not stored.token:
        return JobView(job=job, token=0, expired=stored.expired)
    return JobView(
        job=job,
        token=stored.token,
        lease_expires_at_ms=stored.expires_at_ms,
        owner=stored.owner,
        expired=stored.expired,
    )


async def backlog(partitions: Iterable[Partition], now: int) -> list[Backlog]:
    """Counts every job, in pages: others may write meanwhile."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    oldest: dict[tuple[str, str], int] = {}
    for part in partitions:
        cursor, seen = b"0", set[bytes]()
        while True:
            cursor, found = await part.reads.call("HSCAN", part.jobs, cursor, "COUNT", SCANNED_AT_ONCE)
            for number, packed in zip(found[::2], found[1::2], strict=True):
                if number in seen:
                    continue
                seen.add(number)
                job = read_stored(packed)
                where = (job.fixed.stream.tenant, job.fixed.queue)
                state = "leased" if job.token and job.expires_at_ms > now else "later"
                if state == "later" and job.ready_at_ms <= now:
                    state = "ready"
                    oldest[where] = min(oldest.get(where, now), job.ready_at_ms)
                counts.setdefault(where, Counter(ready=0, leased=0, later=0))[state] += 1
            if cursor == b"0":
                break
    return [
        Backlog(tenant=tenant, queue=queue, oldest_ready_at_ms=oldest.get((tenant, queue)), **states)
        for (tenant, queue), states in sorted(counts.items())
    ]
