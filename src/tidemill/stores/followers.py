"""Followers of streams within this process: what each has not received yet.

Commits of this process are handed to its followers directly; anything else a follower reads from the store, so nothing
depends on the hand-over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager

from tidemill.errors import rejected
from tidemill.stores.contract import Frame, IdleCallback, Store, Stream
from tidemill.stores.wakeups import Waiter, Waiters

LIVE_FRAMES_MAX = 256
"""Live frames kept per follower; older ones are dropped."""


class Follower:
    """What one follower has not received yet. `version` is that of the last record buffered or given."""

    __slots__ = ("live", "records", "stale", "version", "wants_live")

    def __init__(self, after: int, wants_live: bool) -> None:
        self.version, self.wants_live = after, wants_live
        self.records: deque[bytes] = deque()
        self.live: deque[tuple[int, bytes]] = deque(maxlen=LIVE_FRAMES_MAX)
        self.stale = True
        """The store may have records that are not buffered."""

    def append(self, first: int, records: Sequence[bytes]) -> None:
        """Buffer records of a commit, unless some before them are missing; a reader may have buffered them already."""
        if first > self.version + 1 or len(self.records) >= 4_096:
            self.stale = True  # It reads these records from the store.
        elif not self.stale:
            fresh = records[self.version + 1 - first :]
            self.records.extend(fresh)
            self.version += len(fresh)

    def catch_up(self, records: Sequence[bytes], version: int) -> None:
        """Buffer the records that the store has after `self.version`."""
        self.records.extend(records)
        self.version, self.stale = version, False

    def next(self) -> Frame | None:
        """The next buffered frame. A live frame follows the records that were committed when it was published."""
        given = self.version - len(self.records)
        if self.live and given >= self.live[0][0]:
            return Frame(version=0, body=self.live.popleft()[1])
        if self.records:
            return Frame(version=given + 1, body=self.records.popleft())
        return None


class Followers:
    """The followers of a store. `sleep` returns whether the waiter was notified, not just timed out."""

    def __init__(
        self,
        store: Store,
        waiters: Waiters,
        lock: AbstractContextManager[object],
        *,
        sleep: Callable[[Waiter], Awaitable[bool]],
        is_open: Callable[[], bool],
        on_loaded: Callable[[Stream], None] = lambda _: None,
    ) -> None:
        self._store, self._waiters, self._lock = store, waiters, lock
        self._sleep, self._is_open, self._on_loaded = sleep, is_open, on_loaded
        self._followers: dict[Stream, list[Follower]] = {}

    async def follow(
        self, stream: Stream, after: int, on_idle: IdleCallback | None, *, live: bool
    ) -> AsyncGenerator[Frame, None]:
        """The frames of a stream, until the store is closed."""
        follower = Follower(after, live)
        self._followers.setdefault(stream, []).append(follower)
        try:
            while self._is_open():
                with self._lock:
                    waiter = self._waiters.add([stream])
                try:
                    if follower.stale:
                        await self._catch_up(stream, follower)
                    frame = follower.next()
                    if frame is None:
                        if not await self._sleep(waiter):
                            follower.stale = True
                        elif on_idle is not None:
                            await on_idle()
                        continue
                finally:
                    with self._lock:
                        self._waiters.remove(waiter, [stream])
                while frame is not None:
                    yield frame
                    frame = follower.next()
        finally:
            self._remove(stream, follower)

    async def _catch_up(self, stream: Stream, follower: Follower) -> None:
        (tail,) = await self._store.load({stream: follower.version}, snapshots=False)
        if tail.damage:
            raise rejected("event_unreadable", f"{stream.kind} {stream.key} is damaged: {tail.damage}")
        follower.catch_up(tail.records, max(tail.version, follower.version))
        self._on_loaded(stream)

    def _remove(self, stream: Stream, follower: Follower) -> None:
        followers = [each for each in self._followers.get(stream, ()) if each is not follower]
        if followers:
            self._followers[stream] = followers
        else:
            self._followers.pop(stream, None)

    def has_live(self, stream: Stream) -> bool:
        return any(follower.wants_live for follower in self._followers.get(stream, ()))

    def committed(self, stream: Stream, first: int, records: Sequence[bytes]) -> None:
        for follower in self._followers.get(stream, ()):
            follower.append(first, records)

    def published(self, stream: Stream, version: int, frames: Sequence[bytes]) -> None:
        for follower in self._followers.get(stream, ()):
            if follower.wants_live:
                follower.live.extend((version, body) for body in frames)
                # Another process may have committed the records before the frame.
                follower.stale = follower.stale or version > follower.version

    def has(self, stream: Stream) -> bool:
        return stream in self._followers

    def others_wrote_to(self, stream: Stream) -> None:
        for follower in self._followers.get(stream, ()):
            follower.stale = True

    def others_wrote(self) -> None:
        """Any stream may have new records."""
        for followers in self._followers.values():
            for follower in followers:
                follower.stale = True
