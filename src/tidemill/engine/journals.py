"""What handlers print and log, kept per attempt beside the event log, as streams of their own.

An attempt's lines are a stream, cut into segments so that old ones can be let go: about the last megabyte is kept.
They are written about once a second, so a killed worker loses a second of them at most. Nothing depends on them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from tidemill.stores.contract import Commit, Committed, Store, Stream, VersionConflict

LOG = logging.getLogger(__name__)

JOURNAL = "journal"
"""The kind of these streams."""
SEGMENT_BYTES = 524_288
KEPT_BYTES = 1_048_576
SEGMENTS_KEPT = 3
WAITING_BYTES_MAX = 2_097_152
"""What is kept in memory of an attempt that says more than can be written; the oldest is dropped."""
PAGE = 500


class Line(msgspec.Struct, frozen=True, array_like=True):
    """Something that was said: when, where (`stdout`, `stderr` or a logging level), and the text."""

    at_ms: int
    source: str
    text: str


class Place(msgspec.Struct, frozen=True):
    """Which attempt of which activation."""

    node: str
    visit: int
    index: int
    attempt: int


class Spoken(msgspec.Struct, frozen=True):
    """A line with its attempt."""

    place: Place
    line: Line


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[Line])
_KEY = re.compile(r"(.*)/([A-Za-z_][A-Za-z0-9_-]*)/(\d+)/(-?\d+)/(\d+)/(\d+)", re.DOTALL)


def key_of(run_id: str, place: Place, segment: int) -> str:
    """The key of a segment's stream; sorted by key, the segments of an attempt are in order."""
    return f"{run_id}/{place.node}/{place.visit}/{place.index}/{place.attempt}/{segment:06d}"


def place_of(run_id: str, key: str) -> tuple[Place, int] | None:
    """The attempt and the segment that a key names, if it is one of this run."""
    found = _KEY.fullmatch(key)
    if found is None or found[1] != run_id:
        return None
    return Place(found[2], int(found[3]), int(found[4]), int(found[5])), int(found[6])


class Journal:
    """The lines of one attempt that are not written yet, and how far the written ones have come."""

    def __init__(self, tenant: str, run_id: str, place: Place) -> None:
        self._tenant, self._run_id, self._place = tenant, run_id, place
        self._lines: list[Line] = []
        self._waiting = 0
        self._segment = self._version = self._size = 0

    def add(self, line: Line) -> None:
        """Take a line; one that is longer than all that is kept is cut."""
        if len(line.text) > KEPT_BYTES:
            line = Line(line.at_ms, line.source, line.text[-KEPT_BYTES:])
        self._lines.append(line)
        self._waiting += len(line.text)
        while self._waiting > WAITING_BYTES_MAX:
            self._waiting -= len(self._lines.pop(0).text)

    def stream(self, segment: int | None = None) -> Stream:
        """Where it is written to at present."""
        number = self._segment if segment is None else segment
        return Stream(self._tenant, JOURNAL, key_of(self._run_id, self._place, number))

    async def write(self, store: Store) -> None:
        """Write what has gathered, and let go of what is too old."""
        if not self._lines:
            return
        lines, self._lines, self._waiting = self._lines, [], 0
        body = _ENCODER.encode(lines)
        for _ in range(3):
            (result,) = await store.commit([Commit(stream=self.stream(), expected=self._version, records=(body,))])
            if not isinstance(result, VersionConflict):
                break
            # A worker that was lost has begun with the same number; this one goes on where it stopped.
            self._version = result.version
        if not isinstance(result, Committed):
            LOG.warning("lines of %s were not kept", self.stream().key)
            return
        self._version, self._size = result.version, self._size + len(body)
        if self._size > SEGMENT_BYTES:
            self._segment, self._version, self._size = self._segment + 1, 0, 0
            if self._segment >= SEGMENTS_KEPT:
                await store.forget(self.stream(self._segment - SEGMENTS_KEPT))


async def journals_of(store: Store, tenant: str, run_id: str) -> AsyncIterator[tuple[Place, int, Stream]]:
    """Every segment of a run's journals."""
    after = Stream(tenant, JOURNAL, f"{run_id}/")
    while page := await store.streams(JOURNAL, after=after, limit=PAGE):
        for stream in page:
            if stream.tenant != tenant or not stream.key.startswith(f"{run_id}/"):
                return
            found = place_of(run_id, stream.key)
            if found is not None:
                yield *found, stream
        after = page[-1]


async def read_journals(store: Store, tenant: str, run_id: str, seen: dict[Stream, int]) -> list[Spoken]:
    """What was written behind `seen`, which is brought up to date: by attempt, and within it in order."""
    found = [entry async for entry in journals_of(store, tenant, run_id)]
    found.sort(key=lambda entry: (entry[0].node, entry[0].visit, entry[0].index, entry[0].attempt, entry[1]))
    tails = await store.load({stream: seen.get(stream, 0) for _, _, stream in found}, snapshots=False) if found else []
    by_stream = {tail.stream: tail for tail in tails}
    spoken: list[Spoken] = []
    for place, _, stream in found:
        tail = by_stream[stream]
        seen[stream] = tail.version
        spoken += [Spoken(place, line) for record in tail.records for line in _DECODER.decode(record)]
    return spoken


async def forget_journals(store: Store, tenant: str, run_id: str) -> None:
    """Let go of everything that a run's handlers have said."""
    streams: list[Any] = [stream async for _, _, stream in journals_of(store, tenant, run_id)]
    for stream in streams:
        await store.forget(stream)
