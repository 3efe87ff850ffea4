"""One process's way to the shared store: it counts what passes, and goes wrong when it is told to.

The store behind it is the real one. A trouble is a function that is given the real call and decides whether it
happens and what the caller learns of it, so a test says exactly which call fails, and asserts that it did.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from tidemill.errors import Unavailable
from tidemill.stores.contract import (
    Backlog,
    Claim,
    Commit,
    CommitResult,
    Committed,
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

T = TypeVar("T")

Call = Callable[[], Awaitable[Any]]
Trouble = Callable[[Call], Awaitable[Any]]


async def refuse(call: Call) -> Any:
    """The request never arrives."""
    raise Unavailable("the store does not answer")


async def lose_reply(call: Call) -> Any:
    """The request is carried out, and the caller never learns of it."""
    await call()
    raise Unavailable("the reply was lost")


def after_s(seconds: float) -> Trouble:
    """The request takes long."""

    async def slow(call: Call) -> Any:
        await asyncio.sleep(seconds)
        return await call()

    return slow


def following(first: Call) -> Trouble:
    """Something else happens just before."""

    async def overtaken(call: Call) -> Any:
        await first()
        return await call()

    return overtaken


def _changes(commit: Commit) -> bool:
    return bool(commit.records or commit.acks or commit.drop or commit.withdraw or commit.jobs or commit.rows)


class Door:
    """A `Store` in front of another one."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.commits: list[Commit] = []
        """Every commit that changed a run, in order; one that only asks for its version is none."""
        self.loads: list[dict[Stream, int]] = []
        self.records_loaded = 0
        self.claimed = 0
        """Claims that were given something."""
        self.fired: Counter[str] = Counter()
        self.dead = False
        self.veto: Callable[[Commit], bool] | None = None
        """Which commit does not arrive, the first time it is tried."""
        self._once: dict[str, deque[Trouble]] = defaultdict(deque)
        self._always: dict[str, Trouble] = {}

    def next(self, verb: str, *troubles: Trouble) -> None:
        """The next calls of a verb go wrong, one after the other."""
        self._once[verb].extend(troubles)

    def always(self, verb: str, trouble: Trouble | None) -> None:
        """Every call of a verb goes wrong, until told otherwise."""
        self._always.pop(verb, None)
        if trouble is not None:
            self._always[verb] = trouble

    async def _pass(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if self.dead:
            await asyncio.Event().wait()
        self.calls[verb] += 1
        trouble = self._once[verb].popleft() if self._once[verb] else self._always.get(verb)
        if trouble is None:
            return await call()
        self.fired[verb] += 1
        answer: T = await trouble(call)
        return answer

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        """The shared store stays open for the others."""
        self.calls["close"] += 1

    def now_ms(self) -> int:
        return self.inner.now_ms()

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        if commits and all(commit.stream.kind == "worker" for commit in commits):
            # Signs of life come at their own pace, and have troubles of their own.
            return await self._pass("beat", lambda: self.inner.commit(commits))
        if self.veto is not None and any(map(self.veto, commits)):
            self.veto = None
            self.fired["veto"] += 1
            raise Unavailable("this commit did not arrive")

        async def call() -> list[CommitResult]:
            results = await self.inner.commit(commits)
            self.commits += [
                commit
                for commit, result in zip(commits, results, strict=True)
                if isinstance(result, Committed) and commit.stream.kind == "run" and _changes(commit)
            ]
            return results

        return await self._pass("commit", call)

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        async def call() -> list[Tail]:
            tails = await self.inner.load(after, snapshots=snapshots, limit=limit)
            self.loads.append(dict(after))
            self.records_loaded += sum(len(tail.records) for tail in tails)
            return tails

        return await self._pass("load", call)

    async def claim(self, request: Claim) -> list[Lease]:
        leases = await self._pass("claim", lambda: self.inner.claim(request))
        self.claimed += bool(leases)
        return leases

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        return await self._pass("renew", lambda: self.inner.renew(leases, lease_ms))

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        await self._pass("release", lambda: self.inner.release(leases, delay_ms=delay_ms))

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        name = "look" if kind == "worker" else "find"
        return await self._pass(name, lambda: self.inner.find(tenant, kind, terms, after=after, limit=limit))

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        return await self.inner.count(tenant, kind, terms, at_most=at_most)

    def follow(
        self, stream: Stream, after: int, on_idle: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        return self.inner.follow(stream, after, on_idle, live=live)

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        await self.inner.publish(stream, frames)

    async def jobs(self, stream: Stream) -> list[JobView]:
        return await self._pass("jobs", lambda: self.inner.jobs(stream))

    async def backlog(self) -> list[Backlog]:
        return await self.inner.backlog()

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        return await self._pass("streams", lambda: self.inner.streams(kind, after=after, limit=limit))

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        return await self._pass("forget", lambda: self.inner.forget(stream, expected=expected, rows=rows))
