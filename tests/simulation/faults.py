"""The fault catalogue, and a store that suffers from it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tidemill.errors import Unavailable
from tidemill.stores.contract import (
    Backlog,
    Claim,
    Commit,
    CommitResult,
    Frame,
    IdleCallback,
    JobView,
    Lease,
    Page,
    Row,
    Store,
    Stream,
    Tail,
)

FAULTS = (
    "store.slow",
    "commit.error_before_durable",
    "commit.error_after_durable",
    "commit.crash_before",
    "commit.crash_after",
    "commit.split_group",
    "claim.reply_lost",
    "claim.lease_at_once_void",
    "claim.crash_after",
    "claim.error",
    "load.error",
    "load.stale",
    "renew.error",
    "renew.reply_lost",
    "renew.crash",
    "release.lost",
    "process.crash_loop",
    "process.stop_short",
    "process.stop_long",
    "process.slow_start",
    "process.clean_drain",
    "process.drain_timeout",
    "process.same_name",
    "queue.job_lost",
    "queue.job_invented",
    "queue.leases_expired",
    "time.jump_forward",
    "time.jump_back",
    "time.skew",
    "time.frozen",
)
"""Everything that can go wrong with a process, the queue, the store and time."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How likely a fault is at each occasion."""

    slow: float = 0.1
    error: float = 0.02
    crash: float = 0.004
    claim: float = 0.03
    stale: float = 0.02


CALM = FaultRates(slow=0.05, error=0.0, crash=0.0, claim=0.0, stale=0.0)


class Crash(Exception):
    """The process dies here."""


class FaultyStore:
    """One process's way to the store."""

    def __init__(self, inner: Store, rng: random.Random, fired: Counter[str], odds: FaultRates) -> None:
        self._inner, self._rng, self._fired, self.odds = inner, rng, fired, odds
        self.dead = False
        self.on_crash: asyncio.Future[None] | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def healed(self) -> None:
        """From now on nothing goes wrong here."""
        self.odds = CALM
        self.gate.set()

    def _chance(self, odds: float) -> bool:
        return odds > 0 and self._rng.random() < odds

    def _fire(self, name: str) -> None:
        self._fired[name] += 1

    async def _enter(self) -> None:
        """Every call first passes here: stopped processes wait, dead ones wait for ever."""
        await self.gate.wait()
        if self.dead:
            await asyncio.Event().wait()
        if self._chance(self.odds.slow):
            self._fire("store.slow")
            await asyncio.sleep(self._rng.choice((0.0, 0.001, 0.01, 0.2)))
            await self.gate.wait()
            if self.dead:
                await asyncio.Event().wait()

    async def _crash(self, name: str) -> None:
        """Die: nothing of this process will ever run again."""
        self._fire(name)
        self.dead = True
        if self.on_crash is not None and not self.on_crash.done():
            self.on_crash.set_result(None)
        await asyncio.Event().wait()

    async def open(self) -> None:
        await self._inner.open()

    async def close(self) -> None:
        """The shared store stays open for the others."""

    def now_ms(self) -> int:
        return self._inner.now_ms()

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        await self._enter()
        if self._chance(self.odds.crash):
            await self._crash("commit.crash_before")
        if self._chance(self.odds.error):
            self._fire("commit.error_before_durable")
            raise Unavailable("simulated: the commit did not happen")
        if len(commits) > 1 and self._chance(self.odds.error):
            # The connection breaks in the middle of a group: a prefix is durable, the caller learns nothing.
            self._fire("commit.split_group")
            await self._inner.commit(commits[: len(commits) // 2])
            raise Unavailable("simulated: half of the group was committed")
        results = await self._inner.commit(commits)
        if self._chance(self.odds.crash):
            await self._crash("commit.crash_after")
        if self._chance(self.odds.error):
            self._fire("commit.error_after_durable")
            raise Unavailable("simulated: the reply was lost")
        return results

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        await self._enter()
        if self._chance(self.odds.error):
            self._fire("load.error")
            raise Unavailable("simulated: load")
        tails = await self._inner.load(after, snapshots=snapshots, limit=limit)
        if self._chance(self.odds.stale) and limit is None:
            return [self._stale(tail) for tail in tails]
        return tails

    def _stale(self, tail: Tail) -> Tail:
        """A replica that lags behind by one record."""
        if len(tail.records) < 2 or tail.stream.kind != "run":
            return tail
        self._fire("load.stale")
        return msgspec.structs.replace(tail, version=tail.version - 1, records=tail.records[:-1])

    async def claim(self, request: Claim) -> list[Lease]:
        await self._enter()
        if self._chance(self.odds.error):
            self._fire("claim.error")
            raise Unavailable("simulated: claim")
        if self._chance(self.odds.claim):
            self._fire("claim.lease_at_once_void")
            request = msgspec.structs.replace(request, lease_ms=1)
        leases = await self._inner.claim(request)
        if self.dead:
            await asyncio.Event().wait()
        if leases and self._chance(self.odds.crash):
            await self._crash("claim.crash_after")
        if leases and self._chance(self.odds.error):
            self._fire("claim.reply_lost")
            raise Unavailable("simulated: the claimed jobs never reached the caller")
        return leases

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        await self._enter()
        if self._chance(self.odds.crash):
            await self._crash("renew.crash")
        if self._chance(self.odds.error):
            self._fire("renew.error")
            raise Unavailable("simulated: renew")
        lost = await self._inner.renew(leases, lease_ms)
        if self._chance(self.odds.error):
            self._fire("renew.reply_lost")
            raise Unavailable("simulated: the reply was lost")
        return lost

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        await self._enter()
        if self._chance(self.odds.error * 3):
            self._fire("release.lost")
            return
        await self._inner.release(leases, delay_ms=delay_ms)

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        await self._enter()
        return await self._inner.find(tenant, kind, terms, after=after, limit=limit)

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        await self._enter()
        return await self._inner.count(tenant, kind, terms, at_most=at_most)

    def follow(
        self, stream: Stream, after: int, breath: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        return self._inner.follow(stream, after, breath, live=live)

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        await self._enter()
        await self._inner.publish(stream, frames)

    async def jobs(self, stream: Stream) -> list[JobView]:
        await self._enter()
        return await self._inner.jobs(stream)

    async def backlog(self) -> list[Backlog]:
        return await self._inner.backlog()

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        await self._enter()
        return await self._inner.streams(kind, after=after, limit=limit)

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        await self._enter()
        return await self._inner.forget(stream, expected=expected, rows=rows)
