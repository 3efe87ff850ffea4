"""Live streams as Server-Sent Events: the events of one run, and the changes of all runs of a tenant.

All readers of a run in this process share one follower of the store (`RunFeed`); all readers of a tenant share one
`TenantFeed`, which compares the rows of runs a few times a second. A feed keeps its latest frames, encoded once, in one
bounded buffer. A reader has a place in it and is sent what follows as fast as its connection takes it. One that has
fallen out of the buffer is too slow: its stream ends with a frame `resume` that names the last id it was sent, and with
that it continues where it was. Frames without an id (parts of results, progress, log lines) are never repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple, cast

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tidemill.engine.index_rows import RUN, read_run_row, run_row, run_terms
from tidemill.engine.run_query import RunQuery
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.services.tenant_services import TenantServices
from tidemill.engine.views import plain
from tidemill.errors import Rejected, TidemillError, Unavailable, rejected
from tidemill.stores.contract import Row

LOG = logging.getLogger(__name__)

FRAMES_KEPT = 4_096
BYTES_KEPT = 8 << 20
"""What a feed keeps for its readers; a reader that is further behind is too slow."""
PAGE = 100
"""Events that a reader gets from the store at once until it has caught up with the feed."""
GIVE_WAY_AFTER = 64
"""Frames after which a feed lets its readers write."""
HEARTBEAT_S = 15.0
RECHECK_S = 0.5
"""How often a stream checks its credential, which a process caches for four seconds more."""
LOOK_S = 0.5
"""How soon a quiet stream notices that the server shuts down."""
STALLED_S = 60.0
"""How long a connection may accept no data before it is closed."""
RETRY_MS = 1_000
"""When a browser connects again after a stream has ended."""

POLL_S = 0.25
WATCHED = 500
"""Runs that a tenant's feed compares: this many of the newest, and this many of the newest that have not ended."""
LOOKED_UP_MAX = 100
"""Runs that left the watched ones and are looked up, each time."""
LATE_MS = 5_000
"""How much earlier than the newest known run one may have been started that counts as new."""
ROLLING_BACK = "rollback:running"
LINGER_S = 60.0
"""How long a tenant's feed runs on without readers, so that they can resume."""

_ENCODE = msgspec.json.Encoder().encode
HEARTBEAT = b":\n\n"
HELLO = f"retry: {RETRY_MS}\n\n".encode()
Recheck = Callable[[], Awaitable[None]]
"""Raises Rejected when the reader may no longer see the stream."""


def frame(data: Any, *, event: str = "", id: str = "") -> bytes:  # noqa: A002 - the protocol's name
    """One frame of the protocol; JSON has no line breaks."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return head.encode() + b"data: " + _ENCODE(data) + b"\n\n"


class Item(NamedTuple):
    seq: int
    """Of an event of a run; 0 for what is not committed."""
    kind: str
    text: bytes
    row: Row | None = None
    """Of a tenant's feed: the run's row, for the query of a reader."""


class Feed:
    """The latest frames of something, for any number of readers."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._bytes = 0
        self.first = 0
        """The place of the earliest frame that is kept."""
        self._changed = asyncio.Event()
        self.readers = 0
        self.over = False
        """Nothing follows."""
        self.ended: dict[str, Any] | None = None
        """How the run of the feed has ended."""
        self.task: asyncio.Task[None] | None = None

    @property
    def end(self) -> int:
        """The position after the last frame."""
        return self.first + len(self._items)

    def append(self, item: Item) -> None:
        self._items.append(item)
        self._bytes += len(item.text)
        while len(self._items) > FRAMES_KEPT or (self._bytes > BYTES_KEPT and len(self._items) > 1):
            self._bytes -= len(self._items.popleft().text)
            self.first += 1
        self.wake()

    def finish(self) -> None:
        self.over = True
        self.wake()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, seconds: float) -> None:
        """Wait for the next frame, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def since(self, place: int) -> list[Item] | None:
        """The frames from a place on; None if some of them are no longer kept."""
        if place < self.first:
            return None
        return [self._items[at] for at in range(place - self.first, len(self._items))]

    def place_after(self, seq: int) -> int | None:
        """The position of the event after `seq`; None if it is no longer kept."""
        for at, item in enumerate(self._items):
            if item.seq > seq:
                return self.first + at if item.seq == seq + 1 else None
        return None

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


class RunFeed(Feed):
    """The events of a run from now on, what its handlers show meanwhile, and on demand the lines that they log."""

    def __init__(self, services: TenantServices, run_id: str, seq: int) -> None:
        super().__init__()
        self._services, self._run_id = services, run_id
        self.seq = seq
        """Of the last event that was taken from the store."""
        self._logs: asyncio.Task[None] | None = None

    async def work(self) -> None:
        try:
            await self._follow()
            if self._logs is not None:
                await self._logs
            state = (await self._services.context.entry(self._run_id)).state
            if not state.busy:
                self.ended = {"run_id": self._run_id, "status": state.status, "events": state.seq}
        except TidemillError as error:
            LOG.warning("the stream of run %s ends: %s", self._run_id, error)
        finally:
            if self._logs is not None:
                self._logs.cancel()
            self.finish()

    async def _follow(self) -> None:
        following = self._services.runs.follow(self._run_id, self.seq, live=True)
        taken = 0
        async with aclosing(cast(AsyncGenerator[dict[str, Any], None], following)) as events:
            async for event in events:
                seq = event.get("seq", 0)
                if seq:
                    self.seq = seq
                self.append(Item(seq, "event" if seq else "live", event_frame(event)))
                taken += 1
                if taken % GIVE_WAY_AFTER == 0:
                    await asyncio.sleep(0)

    def want_logs(self) -> None:
        if self._logs is None and not self.over:
            self._logs = asyncio.create_task(self._follow_logs(), name="tidemill-stream-logs")

    async def _follow_logs(self) -> None:
        following = self._services.inspection.follow_logs(self._run_id, new_only=True)
        async with aclosing(cast(AsyncGenerator[Any, None], following)) as lines:
            async for line in lines:
                self.append(Item(0, "log", frame(plain(line), event="log")))


def event_frame(event: dict[str, Any]) -> bytes:
    """The frame of an event of a run, or of what is shown live and has no seq."""
    seq = event.get("seq", 0)
    return frame(event, id=str(seq)) if seq else frame(event, event="live")


class TenantFeed(Feed):
    """Changes of a tenant's runs: rows that differ from the last time they were read.

    The store has no stream of all runs, so this looks at the newest runs, and at the newest that have not ended. A
    `reset` says that more was started than it looks at, so that a reader has to read the list again.
    """

    def __init__(self, context: ServiceContext, closing: asyncio.Event) -> None:
        super().__init__()
        self._context, self._closing = context, closing
        self.epoch = context.ambient.new_id()
        """Part of every id: another process, or a later feed, cannot resume from it."""
        self.ready = asyncio.Event()
        self._known: dict[str, bytes] = {}
        self._live: dict[str, None] = {}
        self._newest_ms = 0

    def id_at(self, place: int) -> str:
        return f"{self.epoch}-{place}"

    def place_of(self, last_id: str) -> int | None:
        """The position after the frame with this id; None if this feed no longer has what followed it."""
        epoch, _, number = last_id.rpartition("-")
        known = epoch == self.epoch and number.isascii() and number.isdecimal() and len(number) < 20
        return int(number) if known and self.first <= int(number) <= self.end else None

    async def work(self) -> None:
        try:
            while not self._closing.is_set():
                await self._look()
                self.ready.set()
                await asyncio.sleep(POLL_S)
        except TidemillError as error:
            LOG.warning("the stream of the runs of %s ends: %s", self._context.tenant, error)
        finally:
            self.finish()
            self.ready.set()

    async def _look(self) -> None:
        newest = (await self._context.page(RUN, (), None, WATCHED)).rows
        live = (await self._context.page(RUN, ("live",), None, WATCHED)).rows
        rows = {row.key: row for row in (*newest, *live)}
        left = [key for key in self._live if key not in rows]
        rows |= {row.key: row for key in left[:LOOKED_UP_MAX] if (row := await self._row(key)) is not None}
        if self.ready.is_set():
            if len(newest) == WATCHED and not any(row.key in self._known for row in newest):
                self._tell("reset", {"change": "reset"}, None)
            for row in sorted(rows.values(), key=lambda row: (row.sort, row.key)):
                self._compare(row)
        self._known = {key: row.body for key, row in rows.items()}
        undoing = [key for key in left if key in rows and ROLLING_BACK in rows[key].terms]
        self._live = dict.fromkeys([*(row.key for row in live), *left[LOOKED_UP_MAX:], *undoing])
        self._newest_ms = max([self._newest_ms, *(row.sort for row in newest[:1])])

    async def _row(self, run_id: str) -> Row | None:
        """The row of a run that is no longer live, made from its log; None for one that is live, or gone."""
        try:
            state = (await self._context.entry(run_id)).state
        except Rejected:
            return None
        return None if state.live else run_row(self._context.stream(run_id), state, run_terms(state))

    def _compare(self, row: Row) -> None:
        known = self._known.get(row.key)
        if known == row.body or (known is None and row.sort < self._newest_ms - LATE_MS):
            return
        shown = read_run_row(row)
        if shown is None:
            return
        ended = shown.ended_ms is not None and ROLLING_BACK not in row.terms
        change = "ended" if ended else "started" if known is None else "changed"
        self._tell(change, {"change": change, "run": plain(shown)}, row)

    def _tell(self, kind: str, data: Any, row: Row | None) -> None:
        event = "reset" if kind == "reset" else ""
        self.append(Item(0, kind, frame(data, event=event, id=self.id_at(self.end + 1)), row))


def resume_frame(after: str, reason: str) -> bytes:
    """The last frame of a stream that ends before what it tells of."""
    return frame({"after": after, "reason": reason}, event="resume")


def meets(query: RunQuery, row: Row) -> bool:
    """Whether a run's row has all terms of a query, and was started within its bounds."""
    since, before = query.since_ms, query.before_ms
    is_in_time = (since is None or row.sort >= since) and (before is None or row.sort < before)
    return is_in_time and set(query.terms) <= set(row.terms) and query.accepts(row)


class Permit:
    """Whether a stream may continue: the server stays, and the credential of its reader is valid."""

    def __init__(self, closing: asyncio.Event, recheck: Recheck) -> None:
        self._closing, self._recheck = closing, recheck
        self._clock = asyncio.get_running_loop().time
        self._checked = self._clock()

    async def refusal(self) -> str:
        """Why the stream ends here; empty if it continues. It asks for the credential now and then."""
        if self._closing.is_set():
            return "closing"
        if self._clock() - self._checked >= RECHECK_S:
            self._checked = self._clock()
            try:
                await self._recheck()
            except Rejected as refusal:
                return refusal.code
            except Unavailable:
                return "unavailable"
        return ""


class LiveStreams:
    """The feeds of this process, and the streams that are read from them."""

    def __init__(self, closing: asyncio.Event, streams_max: int) -> None:
        self._closing, self.open_streams = closing, OpenStreams(streams_max)
        self._runs: dict[tuple[str, str], RunFeed] = {}
        self._tenants: dict[str, TenantFeed] = {}

    def all_feeds(self) -> list[Feed]:
        """The feeds that read from the store now, however many readers each has."""
        return [*self._runs.values(), *self._tenants.values()]

    async def run(
        self, services: TenantServices, run_id: str, after: int, *, live: bool, logs: bool, recheck: Recheck
    ) -> AsyncGenerator[bytes, None]:
        """The frames of a run from event `after` + 1 on, until it ends."""
        kinds = {"event", *(("live",) if live else ()), *(("log",) if logs else ())}
        sent = after

        def chosen(items: Sequence[Item]) -> bytes:
            nonlocal sent
            parts = [item.text for item in items if item.kind in kinds and not 0 < item.seq <= sent]
            sent = max([sent, *(item.seq for item in items)])
            return b"".join(parts)

        yield HELLO
        async with self._run_feed(services, run_id) as feed:
            if logs:
                feed.want_logs()
            permit = Permit(self._closing, recheck)
            while (place := feed.end if sent >= feed.seq else feed.place_after(sent)) is None:
                if reason := await permit.refusal():
                    yield resume_frame(str(sent), reason)
                    return
                # What was committed before is read from the store, at the pace of the reader.
                events = await services.inspection.events(run_id, after=sent, limit=PAGE)
                yield b"".join(map(event_frame, events))
                sent = events[-1]["seq"] if events else feed.seq
            reading = self._read(feed, place, chosen, lambda _: str(sent), permit)
            async with aclosing(reading) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def tenant(
        self, services: TenantServices, last_id: str, query: RunQuery, *, recheck: Recheck
    ) -> AsyncGenerator[bytes, None]:
        """The changes of a tenant's runs after a frame, or from now on."""

        def chosen(items: Sequence[Item]) -> bytes:
            return b"".join(item.text for item in items if item.row is None or meets(query, item.row))

        yield HELLO
        async with self._tenant_feed(services) as feed:
            await feed.ready.wait()
            found = feed.place_of(last_id) if last_id else None
            place = feed.end if found is None else found
            # An id at once: a connection that is cut before the first change can be resumed, too.
            yield f"id: {feed.id_at(place)}\n\n".encode()
            if last_id and found is None:
                yield frame({"change": "reset"}, event="reset")
            permit = Permit(self._closing, recheck)
            async with aclosing(self._read(feed, place, chosen, feed.id_at, permit)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _read(
        self,
        feed: Feed,
        place: int,
        chosen: Callable[[Sequence[Item]], bytes],
        id_at: Callable[[int], str],
        permit: Permit,
    ) -> AsyncGenerator[bytes, None]:
        """What a feed has from a place on, and heartbeats; at last how the run has ended, or how to resume."""
        clock = asyncio.get_running_loop().time
        wrote = clock()
        while True:
            reason = await permit.refusal()
            # Read after the last wait: what was appended meanwhile comes before the end.
            items = feed.since(place)
            if items is None:
                reason = "slow"
            if reason or items is None:
                break
            place += len(items)
            if chunk := chosen(items):
                wrote = clock()
                yield chunk
            elif not items and feed.ended is not None:
                yield frame(feed.ended, event="end")
                return
            elif not items and feed.over:
                reason = "unavailable"
                break
            elif clock() - wrote >= HEARTBEAT_S:
                wrote = clock()
                yield HEARTBEAT
            elif not items:
                await feed.change(LOOK_S)
        yield resume_frame(id_at(place), reason)

    @asynccontextmanager
    async def _run_feed(self, services: TenantServices, run_id: str) -> AsyncIterator[RunFeed]:
        """The feed of a run for one reader; the first one opens it and the last one closes it."""
        name = (services.context.tenant, run_id)
        seq = (await services.context.entry(run_id)).state.seq
        feed = self._runs.get(name)
        if feed is None or feed.over:
            feed = self._runs[name] = RunFeed(services, run_id, seq)
            feed.task = asyncio.create_task(feed.work(), name="tidemill-stream")
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                if self._runs.get(name) is feed:
                    del self._runs[name]
                await feed.stop()

    @asynccontextmanager
    async def _tenant_feed(self, services: TenantServices) -> AsyncIterator[TenantFeed]:
        """The feed of a tenant for one reader; it lingers when the last one has left."""
        tenant = services.context.tenant
        feed = self._tenants.get(tenant)
        if feed is None or feed.over:
            feed = self._tenants[tenant] = TenantFeed(services.context, self._closing)
            feed.task = asyncio.create_task(feed.work(), name="tidemill-stream")
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                asyncio.get_running_loop().call_later(LINGER_S, self._close_unread, tenant, feed)

    def _close_unread(self, tenant: str, feed: TenantFeed) -> None:
        if not feed.readers and feed.task is not None:
            feed.task.cancel()
            if self._tenants.get(tenant) is feed:
                del self._tenants[tenant]


Reader = tuple[str, str]
"""A tenant, and a key or a subject of tokens."""


class OpenStreams:
    """How many streams each reader has open in this process."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, Counter[Reader]()

    def check(self, reader: Reader) -> None:
        """Raises Rejected (`rate_limited`)."""
        if self._open[reader] >= self._most:
            hint = "close some, or follow `/stream`, which has all runs"
            raise rejected("rate_limited", f"more than {self._most} streams of the key are open", hint=hint)

    @contextmanager
    def one_of(self, reader: Reader) -> Iterator[None]:
        self._open[reader] += 1
        try:
            yield
        finally:
            self._open[reader] -= 1
            self._open += Counter()  # Without readers that have none.


class EventStream(StreamingResponse):
    """A stream of frames as a response; it ends when the client leaves, or takes nothing for too long."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None], open_streams: OpenStreams, reader: Reader) -> None:
        super().__init__(chunks, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._chunks, self._open_streams, self._reader = chunks, open_streams, reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._open_streams.one_of(self._reader):
            await self._stream(receive, send)

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        tasks = (asyncio.create_task(self._write(send)), asyncio.create_task(_left(receive)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            written, _ = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(written, TidemillError):
            LOG.warning("a stream ends: %s", written)
        elif isinstance(written, Exception):
            LOG.error("a stream ends with %s", written, exc_info=written)

    async def _write(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                try:
                    async with asyncio.timeout(STALLED_S):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                except TimeoutError:
                    return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
