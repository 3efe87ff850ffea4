"""Followers, live frames within and across processes.

Live frames on their way to followers in other processes: a datagram socket for each stream that a process follows.

The sockets stand in a folder beside the store that only its user may enter, each named after its stream, so whoever
tells something knows by a look whether anybody listens, and a stream that nobody follows costs nothing more. Nothing
is promised: what a follower does not take in time is lost. What has been sent is in the follower's hands before
anything that is committed afterwards, so a part is seen before the result that it is a part of.

Followers of streams, and what reaches each of them without asking the file.

What this process commits is handed to its followers directly. Whatever a follower was not handed (the past, and
what other processes wrote) it reads from the stream, so nothing depends on the handing over.

Sleeping until there is news: from this process, whose commits ring a bell, or from others, which must be looked for.

SQLite counts changes but tells nobody, so while somebody sleeps here the counter is looked at now and then.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex

from tidemill.stores.contract import Frame, Stream
from tidemill.stores.wakeups import Waiter

LIVE_FRAMES_MAX = 256
"""Live frames kept for a follower that does not read; older ones are dropped."""
RECORDS_AHEAD_MAX = 4_096
"""Records kept for one; beyond that it reads them from the file when it gets there."""


class Follower:
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


class Followers:
    """Everybody who follows something in this process."""

    def __init__(self) -> None:
        self._feeds: dict[Stream, list[Follower]] = {}

    def has_live(self, stream: Stream) -> bool:
        return any(feed.wants_live for feed in self._feeds.get(stream, ()))

    def add(self, stream: Stream, after: int, *, live: bool) -> Follower:
        feed = Follower(after, live)
        self._feeds.setdefault(stream, []).append(feed)
        return feed

    def remove(self, stream: Stream, feed: Follower) -> None:
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


LOOK_EVERY_MS = 20.0


class ChangePoller:
    """Those of a process who sleep. `look` wakes them if there is news, and answers whether to go on looking."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self._look = look
        self._sleepers = 0
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, bell: Waiter, ms: float | None) -> None:
        """Sleep until there is news in this process, another one has written, or the time is up."""
        loop = asyncio.get_running_loop()
        alarm = None if ms is None else loop.call_later(max(ms, 0) / 1000, bell.notify)
        self._sleepers += 1
        if self._timer is None:
            self._timer = loop.call_later(LOOK_EVERY_MS / 1000, self._look_out)
        try:
            await bell.future
        finally:
            self._sleepers -= 1
            if alarm is not None:
                alarm.cancel()

    def _look_out(self) -> None:
        self._timer = None
        if self._sleepers and self._look():
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_MS / 1000, self._look_out)


LOG = logging.getLogger(__name__)

FOLLOWER_LOOK_EVERY_MS = 10.0
"""How often somebody who tells looks for new followers."""
PATIENCE_MS = 50.0
"""How long a telling waits in all for followers who have no room; they are not waited for again before they read."""
DATAGRAM_BYTES_MAX = 1 << 20
"""The system may allow less; a frame that is larger is left out."""
DATAGRAMS_AT_ONCE_MAX = 256
"""How many are read before others have their turn."""
FOLDER_BYTES_MAX = 60
"""The name of a socket may have about a hundred bytes; this is what its own leaves."""
BINDING_SECONDS = 1.0
"""A socket so young may only look dead, because its owner is just about to bind it."""
TRIES_MAX = 5
FORMAT = "1"
"""Of the datagrams. It is part of the names, so those who speak another do not meet."""


def sockets_of(store: Path) -> Path:
    """The folder in which the followers of a store are found."""
    return store.with_name(store.name + "-ears")


class FrameReceiver:
    """What this process hears of the streams that it follows."""

    def __init__(self, store: Path, heard: Callable[[Stream, int, bytes], None]) -> None:
        self._folder, self._heard = sockets_of(store), heard
        self._buffer = bytearray()
        self._ears: dict[Stream, _FollowSocket] = {}
        self.names: set[str] = set()

    def listen(self, stream: Stream) -> None:
        """Listen to a stream, once more. Where that cannot be, only what this process tells is heard."""
        ear = self._ears.get(stream)
        if ear is None:
            try:
                ear = self._ears[stream] = self._new(stream)
            except (AttributeError, NotImplementedError, OSError) as error:
                # The system has no such sockets or no more of them, or the folder is another user's.
                LOG.info("what other processes show of %s %s is not heard: %s", stream.kind, stream.key, error)
                return
        ear.followers += 1

    def leave(self, stream: Stream) -> None:
        """Listen to a stream once less."""
        ear = self._ears.get(stream)
        if ear is not None:
            ear.followers -= 1
            if not ear.followers:
                self._remove(stream)

    def close(self) -> None:
        """Listen to nothing any more."""
        for stream in list(self._ears):
            self._remove(stream)

    def drain(self, stream: Stream) -> None:
        """Take what has come for a stream."""
        ear = self._ears.get(stream)
        if ear is None:
            return
        for _ in range(DATAGRAMS_AT_ONCE_MAX):
            try:
                size = ear.socket.recv_into(self._buffer)
            except OSError:
                return
            self._heard(stream, int.from_bytes(self._buffer[:8], "big"), bytes(memoryview(self._buffer)[8:size]))

    def _new(self, stream: Stream) -> _FollowSocket:
        name = f"{_prefix(stream)}{token_hex(4)}"
        if not self._ears:
            self._buffer = self._buffer or bytearray(DATAGRAM_BYTES_MAX)
            _sweep(self._folder)
        loop, ear = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            ear.setblocking(False)
            self._bind(ear, name)
            loop.add_reader(ear, partial(self.drain, stream))
        except BaseException:
            ear.close()
            raise
        self.names.add(name)
        return _FollowSocket(name, ear, loop)

    def _bind(self, ear: socket.socket, name: str) -> None:
        for _ in range(TRIES_MAX):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            # Whoever was the last to leave may have removed the folder again.
            with suppress(FileNotFoundError):
                if not _is_private(self._folder):
                    raise PermissionError(errno.EPERM, "the folder is open to others", str(self._folder))
                with _short(self._folder) as folder:
                    ear.bind(f"{folder}/{name}")
                    return
        raise FileNotFoundError(errno.ENOENT, "the folder does not stay", str(self._folder))

    def _remove(self, stream: Stream) -> None:
        ear = self._ears.pop(stream)
        ear.loop.remove_reader(ear.socket)
        ear.socket.close()
        self.names.discard(ear.name)
        with suppress(OSError):
            (self._folder / ear.name).unlink()
            self._folder.rmdir()


class _FollowSocket:
    __slots__ = ("followers", "loop", "name", "socket")

    def __init__(self, name: str, ear: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.name, self.socket, self.loop = name, ear, loop
        self.followers = 0


class FrameSender:
    """What this process tells the others. `own` are the names of its own ears, which hear it without that."""

    def __init__(self, store: Path, own: Container[str]) -> None:
        self._folder, self._own = sockets_of(store), own
        self._names: list[str] = []
        self._look_at = 0.0
        self._lines: dict[str, socket.socket] = {}
        self._slow: set[str] = set()

    def ears(self, stream: Stream) -> list[str]:
        """Who else listens to a stream."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + FOLLOWER_LOOK_EVERY_MS / 1000
            self._look()
        if not self._names:
            return []
        prefix = _prefix(stream)
        return [name for name in self._names if name.startswith(prefix) and name not in self._own]

    async def tell(self, ears: Sequence[str], version: int, frames: Sequence[bytes]) -> None:
        """Send frames that were told when the stream had a version, and wait for nobody for long."""
        patient_until = time.monotonic() + PATIENCE_MS / 1000
        head = version.to_bytes(8, "big")
        for name in ears:
            for frame in frames:
                if len(frame) <= DATAGRAM_BYTES_MAX - len(head):
                    await self._send(name, head + frame, patient_until)

    async def _send(self, name: str, datagram: bytes, patient_until: float) -> None:
        while (line := self._line(name)) is not None:
            try:
                line.send(datagram)
                self._slow.discard(name)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    return
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    self._hang_up(name)
                elif name not in self._slow and time.monotonic() < patient_until:
                    await asyncio.sleep(0.001)
                    continue
                else:
                    self._slow.add(name)
            return

    def close(self) -> None:
        """Hang up."""
        for name in list(self._lines):
            self._hang_up(name)
        self._names, self._look_at = [], 0.0

    def _look(self) -> None:
        try:
            self._names = os.listdir(self._folder) if _is_private(self._folder) else []
        except OSError:
            self._names = []
        for name in self._lines.keys() - self._names:
            self._hang_up(name)

    def _line(self, name: str) -> socket.socket | None:
        """A socket of its own for each: what one does not read must not take the room of the others."""
        line = self._lines.get(name)
        if line is None and name in self._names:
            line = _called(self._folder, name)
            if line is None:
                self._names.remove(name)
            else:
                self._lines[name] = line
        return line

    def _hang_up(self, name: str) -> None:
        self._slow.discard(name)
        if (line := self._lines.pop(name, None)) is not None:
            line.close()
        if name in self._names:
            self._names.remove(name)


def _prefix(stream: Stream) -> str:
    return f"{FORMAT}-{blake2b(chr(0).join(stream).encode(), digest_size=12).hexdigest()}-"


def _is_private(folder: Path) -> bool:
    """Whether nobody but this user can have put something there, or listens there."""
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A name of a folder that is short enough for the sockets in it."""
    if len(os.fsencode(folder)) <= FOLDER_BYTES_MAX:
        yield str(folder)
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _called(folder: Path, name: str) -> socket.socket | None:
    """A line to an ear. One that belongs to nobody any more is removed."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, DATAGRAM_BYTES_MAX)
        with _short(folder) as short:
            line.connect(f"{short}/{name}")
    except OSError as error:
        line.close()
        with suppress(OSError):
            if error.errno == errno.ECONNREFUSED and time.time() - (folder / name).stat().st_mtime > BINDING_SECONDS:
                (folder / name).unlink()
        return None
    return line


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left."""
    with suppress(OSError):
        for name in os.listdir(folder) if _is_private(folder) else ():
            if (line := _called(folder, name)) is not None:
                line.close()
