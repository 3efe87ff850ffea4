"""The lines that handlers print and log: one sequence of streams per attempt, beside the event log.

An attempt's lines are cut into segments so that old ones can be deleted: about the last megabyte is kept. Lines are
written about once a second, so a killed worker loses at most a second of them. No decision depends on them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import msgspec

from tidemill.stores.contract import Commit, Committed, Store, Stream

LOG = logging.getLogger(__name__)

JOURNAL = "journal"
"""Stream kind."""
SEGMENT_BYTES = 524_288
KEPT_BYTES = 1_048_576
SEGMENTS_KEPT = 3
"""Two full segments are kept while the third is written."""
LINE_BYTES = 64
"""Memory cost of a line beside its text, so that empty lines count too."""
JOINED_MAX = 4_096
"""Pieces of a line are joined while writing up to this length; the reader joins longer ones."""
PAGE = 500


class StoredLine(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int
    source: str
    text: str


class AttemptId(msgspec.Struct, frozen=True, gc=False, order=True):
    node: str
    visit: int
    index: int
    attempt: int
    undo: bool = False
    """It is an attempt of the compensator, which has numbers of its own."""


class LogRecord(msgspec.Struct, frozen=True):
    place: AttemptId
    line: StoredLine


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[StoredLine])
_KEY = re.compile(r"(.*)/([A-Za-z_][A-Za-z0-9_-]*)/(\d+)/(-?\d+)/(u?)(\d+)/(\d+)/(\d+)", re.DOTALL)


def key_of(run_id: str, place: AttemptId, token: int, segment: int) -> str:
    """The key of a segment's stream; with the token, a lost worker's successor writes later segments of its own."""
    attempt = f"{'u' if place.undo else ''}{place.attempt}"
    return f"{run_id}/{place.node}/{place.visit}/{place.index}/{attempt}/{token}/{segment}"


class LogSegment(msgspec.Struct, frozen=True):
    place: AttemptId
    token: int
    number: int
    stream: Stream


def segment_of(run_id: str, stream: Stream) -> LogSegment | None:
    """Parse a stream key; None if it is not a segment of this run."""
    found = _KEY.fullmatch(stream.key)
    if found is None or found[1] != run_id:
        return None
    visit, index, attempt, token, number = map(int, found.group(3, 4, 6, 7, 8))
    return LogSegment(AttemptId(found[2], visit, index, attempt, found[5] == "u"), token, number, stream)


class AttemptLogWriter:
    """Buffers the lines of one attempt and writes them in segments."""

    def __init__(self, tenant: str, run_id: str, place: AttemptId, token: int) -> None:
        self._tenant, self._run_id, self._place, self._token = tenant, run_id, place, token
        self._lock, self._writing = threading.Lock(), asyncio.Lock()
        self._lines: deque[StoredLine] = deque()
        self._waiting = 0
        self._segment = self._version = self._size = 0

    def add(self, line: StoredLine) -> None:
        """Add a line, or a piece of one, from any thread; drops the oldest lines beyond the limit."""
        if len(line.text) > KEPT_BYTES:
            line = StoredLine(line.at_ms, line.source, line.text[-KEPT_BYTES:])
        with self._lock:
            last = self._lines[-1] if self._lines else None
            # `print` writes each of its arguments separately.
            if (
                last is not None
                and last.source == line.source
                and not last.text.endswith("\n")
                and len(last.text) + len(line.text) <= JOINED_MAX
            ):
                self._lines[-1] = StoredLine(last.at_ms, last.source, last.text + line.text)
                self._waiting += len(line.text)
            else:
                self._lines.append(line)
                self._waiting += len(line.text) + LINE_BYTES
            while self._waiting > KEPT_BYTES and len(self._lines) > 1:
                self._waiting -= len(self._lines.popleft().text) + LINE_BYTES

    async def write(self, store: Store) -> None:
        """Write the buffered lines and delete segments beyond the limit; returns when all are written."""
        async with self._writing:
            with self._lock:
                lines, self._lines, self._waiting = self._lines, deque(), 0
            if lines:
                await self._append(store, _ENCODER.encode(list(lines)))

    async def _append(self, store: Store, body: bytes) -> None:
        stream = self._stream(self._segment)
        (result,) = await store.commit([Commit(stream=stream, expected=self._version, records=(body,))])
        if not isinstance(result, Committed):
            LOG.warning("log lines of %s were dropped", stream.key)
            return
        self._version, self._size = result.version, self._size + len(body)
        if self._size > SEGMENT_BYTES:
            self._segment, self._version, self._size = self._segment + 1, 0, 0
            if self._segment >= SEGMENTS_KEPT:
                await store.forget(self._stream(self._segment - SEGMENTS_KEPT))

    def _stream(self, segment: int) -> Stream:
        return Stream(self._tenant, JOURNAL, key_of(self._run_id, self._place, self._token, segment))


async def segments_of(store: Store, tenant: str, run_id: str) -> AsyncIterator[LogSegment]:
    after = Stream(tenant, JOURNAL, f"{run_id}/")
    while page := await store.streams(JOURNAL, after=after, limit=PAGE):
        for stream in page:
            if stream.tenant != tenant or not stream.key.startswith(f"{run_id}/"):
                return
            found = segment_of(run_id, stream)
            if found is not None:
                yield found
        after = page[-1]


async def read_logs(
    store: Store, tenant: str, run_id: str, seen: dict[Stream, int], which: Callable[[AttemptId], bool] = lambda _: True
) -> list[LogRecord]:
    """Read the lines written after `seen`, which is updated: by attempt, then in order."""
    found = [segment async for segment in segments_of(store, tenant, run_id) if which(segment.place)]
    found.sort(key=lambda segment: (segment.place, segment.token, segment.number))
    streams = {segment.stream: seen.get(segment.stream, 0) for segment in found}
    tails = await store.load(streams, snapshots=False) if streams else []
    records: list[LogRecord] = []
    for segment, tail in zip(found, tails, strict=True):
        seen[tail.stream] = tail.version
        if tail.damage:
            LOG.warning("some log lines of %s are damaged and were left out: %s", segment.place.node, tail.damage)
        records += [LogRecord(segment.place, line) for record in tail.records for line in _DECODER.decode(record)]
    return records


async def last_token(store: Store, tenant: str, run_id: str) -> int | None:
    """The latest lease token under which a run's handlers wrote a line; later runs of its name have larger ones."""
    return max([segment.token async for segment in segments_of(store, tenant, run_id)], default=None)


async def forget_journals(store: Store, tenant: str, run_id: str, *, up_to: int) -> None:
    for segment in [segment async for segment in segments_of(store, tenant, run_id) if segment.token <= up_to]:
        await store.forget(segment.stream)


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    visit: int
    index: int
    """The item of a map, -1 where there is none."""
    attempt: int
    at_ms: int
    source: str
    """`stdout`, `stderr`, the level of a log record in small letters, or `traceback`."""
    text: str
    """Without the end of the line."""
    undo: bool = False
    """The compensator of the node said it; `attempt` is the compensator's."""


class Lines:
    """Puts together what was said in pieces: segments hold what handlers printed as it came."""

    def __init__(self) -> None:
        self._begun: dict[tuple[AttemptId, str], StoredLine] = {}

    def of(self, spoken: Iterable[LogRecord]) -> Iterator[LogLine]:
        """The lines that end with what was said now."""
        for each in spoken:
            where = (each.place, each.line.source)
            begun = self._begun.pop(where, None)
            at_ms = each.line.at_ms if begun is None else begun.at_ms
            *whole, last = ((begun.text if begun is not None else "") + each.line.text).split("\n")
            for number, text in enumerate(whole):
                yield shown_line(each.place, StoredLine(each.line.at_ms if number else at_ms, each.line.source, text))
            if last:
                self._begun[where] = StoredLine(each.line.at_ms if whole else at_ms, each.line.source, last)

    def rest(self) -> Iterator[LogLine]:
        begun, self._begun = self._begun, {}
        for (place, _), line in begun.items():
            yield shown_line(place, line)


def shown_line(place: AttemptId, line: StoredLine) -> LogLine:
    return LogLine(**msgspec.structs.asdict(place), **msgspec.structs.asdict(line))


def latest_of(spoken: list[LogRecord]) -> list[LogRecord]:
    """About the last megabyte of each attempt: more may still be there."""
    left: dict[AttemptId, int] = {}
    kept: list[LogRecord] = []
    for each in reversed(spoken):
        room = left.get(each.place, KEPT_BYTES)
        if room > 0:
            kept.append(each)
            left[each.place] = room - len(each.line.text.encode("utf-8", "surrogatepass"))
    return kept[::-1]
