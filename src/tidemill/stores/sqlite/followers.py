"""Followers of streams: records and live frames, within this process and from other processes.

Commits of this process are handed to its followers directly; anything else a follower reads from the file, so nothing
depends on the hand-over. Live frames of other processes arrive on a datagram socket per followed stream, in a folder
beside the store that only its user may enter; the socket's name tells a sender whether a stream is followed. Frames are
lost when a follower is slow, but arrive before any record that is committed after them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex

from tidemill.stores.contract import Stream
from tidemill.stores.wakeups import Waiter

# Sleeping until there is news

LOOK_EVERY_MS = 20.0
QUIET_LOOK_EVERY_MS = 160.0
LOOKS_PER_QUIET = 50
"""The longer no other process has written, the rarer the looks: an idle worker costs next to nothing, and what ends the
quiet is seen within a fiftieth of it."""


class ChangePoller:
    """Polls for changes of other processes while a task sleeps.

    `look` notifies the tasks and returns whether there was a change; None stops the polling.
    """

    def __init__(self, look: Callable[[], bool | None]) -> None:
        self._look = look
        self._sleepers = 0
        self._changed_s = 0.0
        """When the last change was seen, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, waiter: Waiter, ms: float | None) -> None:
        """Sleep until the waiter is notified or the time is up."""
        loop = asyncio.get_running_loop()
        alarm = None if ms is None else loop.call_later(max(ms, 0) / 1000, waiter.notify)
        self._sleepers += 1
        if self._timer is None:
            self._changed_s = self._changed_s or loop.time()
            self._timer = loop.call_later(self._interval_s(loop), self._poll)
        try:
            await waiter.future
        finally:
            self._sleepers -= 1
            if alarm is not None:
                alarm.cancel()

    async def notified(self, waiter: Waiter) -> bool:
        await self.wait(waiter, None)
        return True

    def _poll(self) -> None:
        self._timer = None
        if self._sleepers and (changed := self._look()) is not None:
            loop = asyncio.get_running_loop()
            if changed:
                self._changed_s = loop.time()
            self._timer = loop.call_later(self._interval_s(loop), self._poll)

    def _interval_s(self, loop: asyncio.AbstractEventLoop) -> float:
        quiet_ms = (loop.time() - self._changed_s) * 1000
        return min(max(LOOK_EVERY_MS, quiet_ms / LOOKS_PER_QUIET), QUIET_LOOK_EVERY_MS) / 1000


# Live frames between processes

LOG = logging.getLogger(__name__)

FOLLOWER_LOOK_EVERY_MS = 10.0
"""How often a sender lists the folder for new followers."""
PATIENCE_MS = 50.0
"""How long one `send` waits in all for full sockets; a slow follower is not waited for again before it reads."""
DATAGRAM_BYTES_MAX = 1 << 20
"""The system may allow less; larger frames are skipped."""
BINDING_SECONDS = 1.0
"""A younger socket that refuses may be about to be bound."""
FORMAT = "1"
"""Format of the datagrams. Part of the socket names, so different formats do not meet."""


def sockets_of(store: Path) -> Path:
    return store.with_name(store.name + "-ears")


class FrameReceiver:
    """Receives live frames of other processes for the streams that this process follows."""

    def __init__(self, store: Path, deliver: Callable[[Stream, int, bytes], None]) -> None:
        self._folder, self._deliver = sockets_of(store), deliver
        self._buffer = bytearray()
        self._listeners: dict[Stream, _FollowSocket] = {}
        self.names: set[str] = set()

    def listen(self, stream: Stream) -> None:
        """Add a follower of a stream. Without sockets only frames of this process arrive."""
        listener = self._listeners.get(stream)
        if listener is None:
            try:
                listener = self._listeners[stream] = self._new(stream)
            except (AttributeError, NotImplementedError, OSError) as error:
                # No UNIX sockets, no free descriptor, or the folder belongs to another user.
                LOG.info(
                    "live frames of %s %s from other processes are not received: %s", stream.kind, stream.key, error
                )
                return
        listener.followers += 1

    def leave(self, stream: Stream) -> None:
        listener = self._listeners.get(stream)
        if listener is not None:
            listener.followers -= 1
            if not listener.followers:
                self._remove(stream)

    def close(self) -> None:
        for stream in list(self._listeners):
            self._remove(stream)

    def drain(self, stream: Stream) -> None:
        listener = self._listeners.get(stream)
        if listener is None:
            return
        for _ in range(256):  # Then other tasks get their turn.
            try:
                size = listener.socket.recv_into(self._buffer)
            except OSError:
                return
            self._deliver(stream, int.from_bytes(self._buffer[:8], "big"), bytes(memoryview(self._buffer)[8:size]))

    def _new(self, stream: Stream) -> _FollowSocket:
        name = f"{_prefix(stream)}{token_hex(4)}"
        if not self._listeners:
            self._buffer = self._buffer or bytearray(DATAGRAM_BYTES_MAX)
            # Connecting removes sockets that killed processes left.
            with suppress(OSError):
                for each in os.listdir(self._folder) if _is_private(self._folder) else ():
                    if (connection := _connect(self._folder, each)) is not None:
                        connection.close()
        loop, listener = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            listener.setblocking(False)
            self._bind(listener, name)
            loop.add_reader(listener, partial(self.drain, stream))
        except BaseException:
            listener.close()
            raise
        self.names.add(name)
        return _FollowSocket(name, listener, loop)

    def _bind(self, listener: socket.socket, name: str) -> None:
        for _ in range(5):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            # The last follower of another process may just have removed the folder.
            with suppress(FileNotFoundError):
                if not _is_private(self._folder):
                    raise PermissionError(errno.EPERM, "the folder is open to others", str(self._folder))
                with _short(self._folder) as folder:
                    listener.bind(f"{folder}/{name}")
                    return
        raise FileNotFoundError(errno.ENOENT, "the folder does not stay", str(self._folder))

    def _remove(self, stream: Stream) -> None:
        listener = self._listeners.pop(stream)
        listener.loop.remove_reader(listener.socket)
        listener.socket.close()
        self.names.discard(listener.name)
        with suppress(OSError):
            (self._folder / listener.name).unlink()
            self._folder.rmdir()


class _FollowSocket:
    __slots__ = ("followers", "loop", "name", "socket")

    def __init__(self, name: str, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.name, self.socket, self.loop = name, listener, loop
        self.followers = 0


class FrameSender:
    """Sends live frames to other processes. `own` are the socket names of this process, which need no datagrams."""

    def __init__(self, store: Path, own: Container[str]) -> None:
        self._folder, self._own = sockets_of(store), own
        self._names: list[str] = []
        self._refresh_at = 0.0
        self._connections: dict[str, socket.socket] = {}
        self._slow: set[str] = set()

    def listeners(self, stream: Stream) -> list[str]:
        now = time.monotonic()
        if now >= self._refresh_at:
            self._refresh_at = now + FOLLOWER_LOOK_EVERY_MS / 1000
            try:
                self._names = os.listdir(self._folder) if _is_private(self._folder) else []
            except OSError:
                self._names = []
            for name in self._connections.keys() - self._names:
                self._disconnect(name)
        if not self._names:
            return []
        prefix = _prefix(stream)
        return [name for name in self._names if name.startswith(prefix) and name not in self._own]

    async def send(self, listeners: Sequence[str], version: int, frames: Sequence[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_MS / 1000
        head = version.to_bytes(8, "big")
        for name in listeners:
            for frame in frames:
                if len(frame) <= DATAGRAM_BYTES_MAX - len(head):
                    await self._send(name, head + frame, deadline)

    async def _send(self, name: str, datagram: bytes, deadline: float) -> None:
        while (connection := self._connection(name)) is not None:
            try:
                connection.send(datagram)
                self._slow.discard(name)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    return
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    self._disconnect(name)
                elif name not in self._slow and time.monotonic() < deadline:
                    await asyncio.sleep(0.001)
                    continue
                else:
                    self._slow.add(name)
            return

    def close(self) -> None:
        for name in list(self._connections):
            self._disconnect(name)
        self._names, self._refresh_at = [], 0.0

    def _connection(self, name: str) -> socket.socket | None:
        """One socket per listener, so that a slow one does not fill the buffer of the others."""
        connection = self._connections.get(name)
        if connection is None and name in self._names:
            connection = _connect(self._folder, name)
            if connection is None:
                self._names.remove(name)
            else:
                self._connections[name] = connection
        return connection

    def _disconnect(self, name: str) -> None:
        self._slow.discard(name)
        if (connection := self._connections.pop(name, None)) is not None:
            connection.close()
        if name in self._names:
            self._names.remove(name)


def _prefix(stream: Stream) -> str:
    return f"{FORMAT}-{blake2b(chr(0).join(stream).encode(), digest_size=12).hexdigest()}-"


def _is_private(folder: Path) -> bool:
    """Whether only this user can write to the folder."""
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A path of the folder that is short enough: a socket address has about 100 bytes, including the file's name."""
    if len(os.fsencode(folder)) <= 60:
        yield str(folder)
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _connect(folder: Path, name: str) -> socket.socket | None:
    """Connect to a listener; removes the socket of a dead process."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, DATAGRAM_BYTES_MAX)
        with _short(folder) as short:
            connection.connect(f"{short}/{name}")
    except OSError as error:
        connection.close()
        with suppress(OSError):
            if error.errno == errno.ECONNREFUSED and time.time() - (folder / name).stat().st_mtime > BINDING_SECONDS:
                (folder / name).unlink()
        return None
    return connection
