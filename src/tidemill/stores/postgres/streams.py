"""Streams in SQL: commits as arrays of one call, answers, loads.

The records of one commit are one value. The server applies commits on distinct streams together, so a call that has a
stream twice is cut into waves within one transaction. Places in line are given here and tokens there, both in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec
import psycopg

from tidemill.stores.contract import (
    Commit,
    CommitResult,
    Committed,
    Job,
    Lease,
    LeasesLost,
    Row,
    Stream,
    Tail,
    VersionConflict,
)
from tidemill.stores.postgres.database import LEASE_LOST, SQL, Bigints, Byteas, Link, Readers, Texts
from tidemill.stores.postgres.jobs import Numbers, add_jobs, job_arrays
from tidemill.stores.postgres.rows import RowArrays

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode
_answer = msgspec.json.Decoder(tuple[int, list[int], list[int], list[int], list[int], list[int], bool]).decode

NO_TOKEN = -1
"""The token of no lease."""
JOBS_MAX = 1 << 20
"""Places of one wave."""


def waves(commits: Sequence[Commit], *, by_tenant: bool = False) -> Iterator[Sequence[Commit]]:
    """Cut commits into parts that have no stream twice, in order; if asked for, of one tenant each."""
    if len(commits) == 1:
        yield commits
        return
    wave: dict[Stream, Commit] = {}
    jobs, tenant = 0, commits[0].stream.tenant
    for commit in commits:
        full = jobs + len(commit.jobs) > JOBS_MAX or (by_tenant and commit.stream.tenant != tenant)
        if full or commit.stream in wave:
            yield list(wave.values())
            wave, jobs = {}, 0
        wave[commit.stream] = commit
        jobs += len(commit.jobs)
        tenant = commit.stream.tenant
    yield list(wave.values())


class Wave:
    """The arrays of commits on distinct streams, and what their answer means."""

    def __init__(self, commits: Sequence[Commit], numbers: Numbers) -> None:
        # Every process locks streams in the order of their names.
        order = sorted(range(len(commits)), key=lambda number: _name(commits[number])) if len(commits) > 1 else [0]
        self._order = order
        self._commits = [commits[number] for number in order] if len(commits) > 1 else commits
        self._leases: list[tuple[int, str, int]] = []
        self._placed: dict[int, tuple[int, Job]] = {}
        """The jobs to keep, by their place, with the commit they belong to."""
        ends = list(accumulate(len(commit.jobs) for commit in commits))
        self._first_places = [ends[number] - len(commits[number].jobs) for number in order]
        self.now_ms = 0
        self.freed = False
        self.tenant = commits[0].stream.tenant
        self._numbers = numbers
        self._sent: list[Any] = []

    @property
    def values(self) -> list[Any]:
        """The arrays; made once, because a call may be repeated."""
        if not self._sent:
            self._sent = self._values()
        return self._sent

    async def apply(self, link: Link, head: tuple[Any, ...]) -> str | bytes:
        """Apply the commits in a transaction of their own."""
        hop = self._hop()
        if hop is not None:
            try:
                answer = await link.call(SQL["apply_hop"], (*head, *hop))
            except psycopg.Error as error:
                if error.sqlstate != LEASE_LOST:
                    raise
                answer = None
            if answer is not None:
                return answer
            # It was refused, for which there may be several reasons.
        answer = await link.call(SQL["apply"], (*head, *self.values))
        assert answer is not None, "it answers a text"
        return answer

    def _hop(self) -> list[Any] | None:
        """The values of the most frequent commit, which needs no arrays; None for any other."""
        commit = self._commits[0]
        if len(self._commits) > 1 or not commit.expected or len(commit.acks) != 1 or len(commit.jobs) > 1:
            return None
        if commit.rows or commit.holds or commit.drop or commit.withdraw or commit.snapshot or not commit.records:
            return None
        ((key, token),) = commit.acks
        head = [*commit.stream, commit.expected, len(commit.records), _pack(commit.records), key, token]
        values = [*head, commit.keep_lease_ms, commit.keep_owner]
        if not commit.jobs:
            return [*values, None, 0, 0, 0, 0, None]
        (job,) = commit.jobs
        self._placed[0] = 1, job
        lane = self._numbers[job.queue, commit.stream.tenant, job.caps, job.priority]
        return [*values, job.key, lane, int(bool(job.caps)), job.ready_at_ms, int(job.key in commit.keep), job.body]

    def _values(self) -> list[Any]:
        heads: list[Any] = [Texts() for _ in range(3)]
        tenants, kinds, keys = heads
        expected, new, counts, lease_ms = Bigints(), Bigints(), Bigints(), Bigints()
        bodies, owners = Byteas(), Texts()
        snapshots: tuple[Any, Any, Any] = (Bigints(), Bigints(), Byteas())
        removals: tuple[Any, Any, Any] = (Bigints(), Texts(), Bigints())
        rows = RowArrays()
        jobs = job_arrays()
        for number, commit in enumerate(self._commits, 1):
            tenant, kind, key = commit.stream
            tenants.append(tenant)
            kinds.append(kind)
            keys.append(key)
            records = commit.records
            expected.append(-1 if commit.expected is None else commit.expected)
            # A stream that does not exist has only idle jobs.
            fresh = not commit.expected and not commit.acks and not any(token for _, token in commit.holds)
            new.append(int(fresh and bool(records or commit.jobs or commit.snapshot is not None)))
            counts.append(len(records))
            bodies.append(_pack(records) if records else b"")
            lease_ms.append(commit.keep_lease_ms)
            owners.append(commit.keep_owner)
            if commit.snapshot is not None:
                _add(snapshots, number, commit.snapshot.version, commit.snapshot.body)
            for name, token in commit.acks:
                # 0 would ask for an idle job.
                self._leases.append((number, name, token or NO_TOKEN))
                _add(removals, number, name, 0)
            for name, token in commit.holds:
                self._leases.append((number, name, token))
            for name in commit.drop:
                _add(removals, number, name, 0)
            for name in commit.withdraw:
                _add(removals, number, name, 1)
            if commit.jobs:
                add_jobs(jobs, self._placed, number, commit, self._first_places[number - 1], self._numbers)
        # Of several writings of a row the last one counts, so they are told in the order of the commits.
        for _, number in sorted(zip(self._order, range(1, len(self._order) + 1), strict=True)):
            commit = self._commits[number - 1]
            for row in commit.rows:
                rows.add(number, commit.stream.tenant, row)
        leases = sorted(enumerate(self._leases), key=lambda each: each[1]) if len(self._leases) > 1 else None
        if leases is not None:
            self._lease_order = [place for place, _ in leases]
            sent = [lease for _, lease in leases]
        else:
            self._lease_order, sent = [0], self._leases
        return [
            *(tenants, kinds, keys, expected, new, counts, bodies, lease_ms, owners, *snapshots),
            *(Bigints([each[0] for each in sent]), Texts([each[1] for each in sent])),
            Bigints([each[2] for each in sent]),
            *removals,
            *jobs,
            *rows.arrays,
        ]

    def results(self, answer: str | bytes) -> list[CommitResult]:
        """What the commits have come to, in the order in which they were given."""
        self.now_ms, codes, versions, lost, kept, tokens, self.freed = _answer(answer)
        lost_keys: dict[int, dict[str, None]] = {}
        for place in sorted(self._lease_order[number - 1] for number in lost):
            number, key, _ = self._leases[place]
            lost_keys.setdefault(number, {})[key] = None
        leases: dict[int, list[Lease]] = {}
        for place, token in sorted(zip(kept, tokens, strict=True), key=lambda each: each[1]):
            number, job = self._placed[place]
            commit = self._commits[number - 1]
            until = self.now_ms + commit.keep_lease_ms
            lease = Lease(commit.stream, job.key, token, job.body, job.queue, job.priority, until, 0, self.now_ms)
            leases.setdefault(number, []).append(lease)
        results: list[CommitResult] = [Committed(version=0)] * len(codes)
        for number, (code, version) in enumerate(zip(codes, versions, strict=True), 1):
            if code == 0:
                version += len(self._commits[number - 1].records)
                result: CommitResult = Committed(version=version, kept=tuple(leases.get(number, ())))
            elif code == 1:
                result = LeasesLost(keys=tuple(lost_keys[number]))
            else:
                result = VersionConflict(version=version)
            results[self._order[number - 1]] = result
        return results


def _name(commit: Commit) -> tuple[str, str, str]:
    stream = commit.stream
    return stream.kind, stream.tenant, stream.key


def _add(arrays: tuple[Any, ...], *values: object) -> None:
    for array, value in zip(arrays, values, strict=True):
        array.append(value)


def forget_values(stream: Stream, expected: int | None, rows: Sequence[Row]) -> list[Any]:
    arrays = RowArrays()
    for row in rows:
        arrays.add(1, stream.tenant, row)
    return [*stream, -1 if expected is None else expected, *arrays.arrays]


# Reading

LOADS_AT_ONCE = 2
"""Calls under way; loads that arrive meanwhile share the next one."""


async def load_together(readers: Readers, calls: list[Mapping[Stream, int]]) -> list[list[Tail]]:
    """Read whole tails that many tasks ask for in one call."""
    asked = list(dict.fromkeys(each for call in calls for each in call.items()))
    tails = dict(zip(asked, await load(readers, asked, True, None), strict=True))
    return [[tails[each] for each in call.items()] for call in calls]


async def load(readers: Readers, asked: Sequence[tuple[Stream, int]], snapshots: bool, limit: int | None) -> list[Tail]:
    values = {
        "tenants": Texts([stream.tenant for stream, _ in asked]),
        "kinds": Texts([stream.kind for stream, _ in asked]),
        "keys": Texts([stream.key for stream, _ in asked]),
        "afters": Bigints([after for _, after in asked]),
        "snapshots": snapshots,
        "limit": limit,
    }
    found = await readers.fetch(SQL["load"], values, tenant=asked[0][0].tenant)
    heads: dict[int, tuple[Any, ...]] = {}
    parts: dict[int, list[tuple[int, bytes]]] = {}
    for number, part, version, snapshot, body in found:
        if part == 0:
            heads[number] = (version, snapshot, body)
        else:
            parts.setdefault(number, []).append((version, body))
    return [
        _tail(stream, after, heads[number], parts.get(number, []), limit)
        for number, (stream, after) in enumerate(asked, 1)
    ]


def _tail(stream: Stream, after: int, head: tuple[Any, ...], parts: list[tuple[int, bytes]], limit: int | None) -> Tail:
    version, snapshot, body = head
    if snapshot is not None:
        after = snapshot
    end = version if limit is None else min(version, after + limit)
    records: list[bytes] = []
    if after < end:
        following = 0
        for last, stored in parts:
            try:
                chunk = _unpack(stored)
            except ValueError as error:
                return Tail(stream=stream, version=version, after=after, records=(), damage=f"record {last}: {error}")
            if records and last - len(chunk) + 1 != following:
                damage = f"record {following} is missing"
                return Tail(stream=stream, version=version, after=after, records=(), damage=damage)
            records += chunk
            following = last + 1
        first = following - len(records)
        if not end < following <= version + 1 or first > after + 1:
            damage = f"records {after + 1} to {end} are not all there"
            return Tail(stream=stream, version=version, after=after, records=(), damage=damage)
        records = records[after + 1 - first : end + 1 - first]
    return Tail(stream=stream, version=version, after=after, records=tuple(records), snapshot=body)


async def streams_of(readers: Readers, kind: str, after: Stream | None, limit: int) -> list[Stream]:
    if after is None:
        rows = await readers.fetch(SQL["first_streams"], (kind, limit))
    else:
        rows = await readers.fetch(SQL["streams"], (kind, after.tenant, after.key, limit))
    return [Stream(tenant, kind, key) for tenant, key in rows]
