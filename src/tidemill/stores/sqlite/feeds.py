"""Followers of streams, and what reaches each of them without asking the file.

What this process commits is handed to its followers directly. Whatever a follower was not handed (the past, and
what other processes wrote) it reads from the stream, so nothing depends on the handing over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidemill.stores.contract import Frame, Stream

LIVE_FRAMES_MAX = 256
"""Live frames kept for a follower that does not read; older ones are dropped."""
RECORDS_AHEAD_MAX = 4_096
"""Records kept for one; beyond that it reads them from the file when it gets there."""


class Feed:
    """What one follower has not been given yet. `version` is that of the last record which is here or was given."""

    __slots__ = ("live", "records", "stale", "version", "wants_live")

    def __init__(self, after: int, wants_live: bool) -> None:
        self.version, self.wants_live = after, wants_live
        self.records: deque[bytes] = deque()
        self.live: deque[tuple[int, bytes]] = deque(maxlen=LIVE_FRAMES_MAX)
        self.stale = True
        """There may be records in the file that are not here."""

    def append(self, first: int, records: Sequence[bytes]) -> None:
        """Take over records from a commit, if nothing is missing before them and there is room.

        Some may be here already: the file had them before this process heard that they are durable.
        """
        if first > self.version + 1 or len(self.records) >= RECORDS_AHEAD_MAX:
            self.stale = True
        elif not self.stale:
            fresh = records[self.version + 1 - first :]
            self.records.extend(fresh)
            self.version += len(fresh)

    def catch_up(self, records: Sequence[bytes], version: int) -> None:
        """Take over what the file has behind `version`."""
        self.records.extend(records)
        self.version, self.stale = version, False

    def next(self) -> Frame | None:
        """The next frame that is here. A live one comes after the records that were there when it was told."""
        given = self.version - len(self.records)
        if self.live and given >= self.live[0][0]:
            return Frame(version=0, body=self.live.popleft()[1])
        if self.records:
            return Frame(version=given + 1, body=self.records.popleft())
        return None


class Feeds:
    """Everybody who follows something in this process."""

    def __init__(self) -> None:
        self._feeds: dict[Stream, list[Feed]] = {}

    def has_live(self, stream: Stream) -> bool:
        return any(feed.wants_live for feed in self._feeds.get(stream, ()))

    def add(self, stream: Stream, after: int, *, live: bool) -> Feed:
        feed = Feed(after, live)
        self._feeds.setdefault(stream, []).append(feed)
        return feed

    def remove(self, stream: Stream, feed: Feed) -> None:
        feeds = [each for each in self._feeds.get(stream, ()) if each is not feed]
        if feeds:
            self._feeds[stream] = feeds
        else:
            self._feeds.pop(stream, None)

    def committed(self, stream: Stream, first: int, records: Sequence[bytes]) -> None:
        for feed in self._feeds.get(stream, ()):
            feed.append(first, records)

    def told(self, stream: Stream, version: int, frames: Sequence[bytes]) -> None:
        for feed in self._feeds.get(stream, ()):
            if feed.wants_live:
                feed.live.extend((version, body) for body in frames)
                # Another process may have written what they stand behind.
                feed.stale = feed.stale or version > feed.version

    def others_wrote(self) -> None:
        """What they wrote may concern anybody."""
        for feeds in self._feeds.values():
            for feed in feeds:
                feed.stale = True
