"""What the laws are written with: the store under test with its clock, and short ways to say a commit or a claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from tidemill.stores.contract import (
    Claim,
    Commit,
    CommitResult,
    Committed,
    Frame,
    Job,
    JobView,
    Lease,
    Row,
    Store,
    Stream,
    Tail,
)

LONG_MS = 60_000
"""A lease or delay that does not end during a test."""
SHORT_MS = 60
"""A lease or delay that is over after `pass_short`, and not before on a machine that is not stuck."""

RUN = Stream("acme", "run", "r1")
OTHER = Stream("acme", "run", "r2")


def job(key: str = "a", **fields: Any) -> Job:
    given: dict[str, Any] = {"key": key, "queue": "q", "body": key.encode()} | fields
    return Job(**given)


def row(key: str, sort: int = 1, *terms: str, **fields: Any) -> Row:
    given: dict[str, Any] = {"kind": "run", "key": key, "sort": sort, "terms": terms, "body": key.encode()} | fields
    return Row(**given)


def run(name: str, tenant: str = "acme") -> Stream:
    return Stream(tenant, "run", name)


def ack(lease: Lease) -> tuple[str, int]:
    return (lease.key, lease.token)


def keys(leases: Sequence[Lease]) -> list[str]:
    return [lease.key for lease in leases]


@dataclass
class StoreUnderTest:
    """A store and the way to let its clock pass: by decree where it can be injected, else by sleeping."""

    store: Store
    advance: Callable[[int], Awaitable[None]]
    exact_times: bool = False
    """The clock moves by `advance` only, so that times can be compared to the millisecond."""
    settle_ms: int = 0
    """How long a store needs until a task that waits in it has really begun to wait."""
    beside: Callable[[], Store] | None = None
    """The same store as another process would open it, where there can be one."""

    @asynccontextmanager
    async def another(self) -> AsyncIterator[Store]:
        """The same store as another process has it; where there can be none, the store itself."""
        if self.beside is None:
            yield self.store
            return
        other = self.beside()
        await other.open()
        try:
            yield other
        finally:
            await other.close()

    @property
    def soon_ms(self) -> int:
        """A time that is not over before somebody has looked, however busy the machine is."""
        return SHORT_MS if self.exact_times else 10 * SHORT_MS

    async def pass_short(self) -> None:
        await self.advance(SHORT_MS + 40)

    async def pass_soon(self) -> None:
        await self.advance(self.soon_ms + 40)

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(self.settle_ms / 5000)

    async def commit(self, stream: Stream = RUN, expected: int | None = None, **fields: Any) -> CommitResult:
        """One commit; by default one that does not care for the version."""
        results = await self.store.commit([Commit(stream=stream, expected=expected, **fields)])
        return results[0]

    async def committed(self, stream: Stream = RUN, expected: int | None = None, **fields: Any) -> Committed:
        """One commit that must succeed."""
        result = await self.commit(stream, expected, **fields)
        assert isinstance(result, Committed), result
        return result

    async def put(self, *jobs: Job, stream: Stream = RUN) -> None:
        await self.committed(stream, jobs=jobs)

    async def claim(
        self,
        limit: int = 1,
        *,
        lease_ms: int = LONG_MS,
        queues: tuple[str, ...] = ("q",),
        wait_ms: int = 0,
        owner: str = "w",
        caps: Mapping[str, int] | None = None,
        family: str = "",
        room: Callable[[], int] | None = None,
    ) -> list[Lease]:
        request = Claim(
            queues=queues,
            limit=limit,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            owner=owner,
            caps=caps or {},
            room=room,
            run_tree=family,
        )
        return await self.store.claim(request)

    async def take(self, limit: int = 1, **fields: Any) -> Lease:
        """Claim exactly one job."""
        leases = await self.claim(limit, **fields)
        assert len(leases) == 1, leases
        return leases[0]

    async def expired(self, **fields: Any) -> Lease:
        """Claim a job and let the lease expire, so that anybody may take it over."""
        lease = await self.take(lease_ms=SHORT_MS, **fields)
        await self.pass_short()
        return lease

    async def tail(
        self, stream: Stream = RUN, after: int = 0, *, snapshots: bool = True, limit: int | None = None
    ) -> Tail:
        return (await self.store.load({stream: after}, snapshots=snapshots, limit=limit))[0]

    async def views(self, stream: Stream = RUN) -> dict[str, JobView]:
        return {view.job.key: view for view in await self.store.jobs(stream)}

    async def found(self, *terms: str, tenant: str = "acme", kind: str = "run", limit: int = 50) -> list[str]:
        page = await self.store.find(tenant, kind, terms, limit=limit)
        return [found.key for found in page.rows]

    async def frames(self, count: int, stream: Stream = RUN, after: int = 0) -> list[Frame]:
        """The next frames of a follower that comes now."""
        seen: list[Frame] = []
        async with asyncio.timeout(20), self.following(stream, after) as follower:
            async for frame in follower:
                seen.append(frame)
                if len(seen) == count:
                    break
        return seen

    def following(self, stream: Stream = RUN, after: int = 0) -> aclosing[AsyncGenerator[Frame, None]]:
        return aclosing(cast(AsyncGenerator[Frame, None], self.store.follow(stream, after)))

    async def picture(self, *streams: Stream) -> object:
        """Everything that can be seen of some streams and their tenant's rows, to prove that nothing changed."""
        tails = await self.store.load(dict.fromkeys(streams, 0))
        plain = await self.store.load(dict.fromkeys(streams, 0), snapshots=False)
        jobs = [await self.store.jobs(stream) for stream in streams]
        rows = [await self.store.find(stream.tenant, "run") for stream in streams]
        return tails, plain, jobs, rows
