"""Streams: commits as the flat arguments of one call, loads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from tidemill.stores.contract import (
    Commit,
    CommitResult,
    Committed,
    Lease,
    LeasesLost,
    Row,
    Stream,
    Tail,
    VersionConflict,
)
from tidemill.stores.redis.database import Argument
from tidemill.stores.redis.jobs import fixed, release
from tidemill.stores.redis.rows import written
from tidemill.stores.redis.scripts import (
    Call,
    Head,
    Partition,
    Session,
    Settlement,
    decoded,
    encoded,
    encoded_stream,
    script,
)

_HEADER = struct.Struct(">IqIqIIIIIII").pack
RECORDS_MAX = 100
"""Records of a commit by the quicker script."""


class Applied:
    """Commits to one partition as the keys and arguments of a call, and what its answer means."""

    def __init__(self, partition: Partition, commits: Sequence[Commit]) -> None:
        self._partition, self._commits = partition, commits
        self.now_ms = 0
        self.freed = False

    def _call(self, head: Head) -> Call:
        numbers: dict[Stream, int] = {}
        body: list[Argument] = []
        for commit in self._commits:
            _add(body, numbers.setdefault(commit.stream, len(numbers) + 1), commit)
        names, part = [encoded_stream(stream) for stream in numbers], self._partition
        keys = [key for name in names for key in (part.records(name), part.rest(name))]
        arguments = [len(names), len(self._commits), *names, *body]
        return Call(script("commit"), (*part.of_writes, *keys), head, arguments)

    def _hop(self, head: Head) -> Call | None:
        """The most frequent commit, for which there is a quicker script; None for any other."""
        (commit, *others), part = self._commits, self._partition
        if others or not commit.expected or len(commit.acks) != 1 or not 0 < len(commit.records) <= RECORDS_MAX:
            return None
        if commit.rows or commit.holds or commit.drop or commit.withdraw or commit.snapshot or len(commit.jobs) > 1:
            return None
        key, packed = "", b""
        if commit.jobs:
            (job,) = commit.jobs
            if job.caps or job.ready_at_ms or commit.keep != (job.key,):
                return None
            key, packed = job.key, fixed(commit.stream, job)
        name = encoded_stream(commit.stream)
        keys = (*part.of_jobs[:3], part.records(name), part.rest(name))
        given = (commit.expected, name, *commit.acks[0], key, packed, commit.keep_lease_ms, commit.keep_owner)
        return Call(script("hop"), keys, head, (*given, *commit.records))

    async def send(self, session: Session, head: Head) -> list[CommitResult]:
        hop = self._hop(head)
        if hop is not None:
            reply = await session.call(hop, lambda: self._settlement(head), lambda: self._call(head))
        else:
            reply = await session.call(self._call(head), lambda: self._settlement(head))
        return self._results(reply)

    def _settlement(self, head: Head) -> Settlement:
        async def undo(reply: list[int]) -> None:
            """Return the leases: the caller learned only that the outcome is unknown."""
            if len(reply) > 2:
                kept = [lease for each in self._results(reply) if isinstance(each, Committed) for lease in each.kept]
                await release(self._partition, head, kept, 0)

        return Settlement(_nothing(self._partition, head), undo)

    def _results(self, reply: list[int]) -> list[CommitResult]:
        self.now_ms, self.freed = reply[0], bool(reply[1])
        results: list[CommitResult] = []
        at = 2
        for commit in self._commits:
            code, version, count = reply[at : at + 3]
            at += 3
            if code == 0:
                kept = tuple([self._kept(commit, *reply[n : n + 2]) for n in range(at, at + 2 * count, 2)])
                at += 2 * count
                results.append(Committed(version=version, kept=kept))
            elif code == 1:
                leases = commit.acks + commit.holds
                lost = dict.fromkeys(leases[number - 1][0] for number in reply[at : at + count])
                at += count
                results.append(LeasesLost(keys=tuple(lost)))
            else:
                results.append(VersionConflict(version=version))
        return results

    def _kept(self, commit: Commit, number: int, token: int) -> Lease:
        job, now_ms = commit.jobs[number - 1], self.now_ms
        until, ready = now_ms + commit.keep_lease_ms, max(now_ms, job.ready_at_ms)
        return Lease(commit.stream, job.key, token, job.body, job.queue, job.priority, until, 0, ready)


def _nothing(partition: Partition, head: Head) -> Call:
    return Call(script("commit"), partition.of_writes, head, (0, 0))


def _add(body: list[Argument], number: int, commit: Commit) -> None:
    snapshot, jobs, rows = commit.snapshot, commit.jobs, commit.rows
    body.append(
        _HEADER(
            number,
            -1 if commit.expected is None else commit.expected,
            len(commit.records),
            -1 if snapshot is None else snapshot.version,
            len(commit.acks),
            len(commit.holds),
            len(commit.drop),
            len(commit.withdraw),
            len(jobs),
            len(commit.keep),
            len(rows),
        )
    )
    body += commit.records
    if snapshot is not None:
        body.append(snapshot.body)
    for lease in commit.acks:
        body += lease
    for lease in commit.holds:
        body += lease
    body += commit.drop
    body += commit.withdraw
    for job in jobs:
        body += (job.key, job.ready_at_ms, fixed(commit.stream, job))
    if commit.keep:
        body += commit.keep
        body += (commit.keep_lease_ms, commit.keep_owner)
    for row in rows:
        body += written(commit.stream.tenant, row)


async def forget(session: Session, head: Head, stream: Stream, expected: int | None, rows: Sequence[Row]) -> bool:
    name, part = encoded_stream(stream), session.partition
    fields = [value for row in rows for value in written(stream.tenant, row)]
    arguments: list[Argument] = [-1 if expected is None else expected, name, *fields]
    keys = (*part.of_writes, part.records(name), part.rest(name))
    async with session.turn:
        # It leases nothing, so nothing has to be undone.
        call = Call(script("forget"), keys, head, arguments)
        return bool(await session.call(call, lambda: Settlement(_nothing(part, head))))


# Reading

Asked = tuple[Stream, int]


async def load(
    partition: Partition, store: str, asked: Sequence[Asked], *, snapshots: bool = True, limit: int | None = None
) -> list[Tail]:
    names = [encoded_stream(stream) for stream, _ in asked]
    keys = [key for name in names for key in (partition.records(name), partition.rest(name))]
    head: tuple[Argument, ...] = (store, int(snapshots), -1 if limit is None else limit)
    arguments = (*head, *(after for _, after in asked))
    found: list[list[Any]] = await partition.reads.run(script("load"), (partition.meta, *keys), arguments)
    return [_tail(stream, *each, limit=limit) for (stream, _), each in zip(asked, found, strict=True)]


def _tail(
    stream: Stream, version: int, after: int, snapshot: bytes | None, records: list[bytes], *, limit: int | None
) -> Tail:
    return Tail(stream=stream, version=version, after=after, records=tuple(records), snapshot=snapshot)


async def streams_of(partitions: Sequence[Partition], kind: str, after: Stream | None, limit: int) -> list[Stream]:
    start = b"[" + encoded(kind) if after is None else b"(" + encoded_stream(after._replace(kind=kind))
    to = b"(" + encoded(kind) + b"\xff"
    found: list[bytes] = []
    for part in partitions:
        found += await part.reads.call("ZRANGEBYLEX", part.streams, start, to, "LIMIT", 0, limit)
    names = [decoded(name) for name in sorted(found)[:limit]]
    return [Stream(tenant, kind, key) for _, tenant, key in names]
