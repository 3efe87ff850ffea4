"""The write-ahead log: made long beforehand, and moved into the file in a thread, so that commits need not wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import apsw

from tidemill.stores.sqlite.file import connect

PAGES_DUE = 3_500
"""Pages in the log (of 4 KiB) from which on it is moved; SQLite begins it anew when all of it is."""
PAGES_PRESSING = 16_000
"""Pages from which on commits wait until it has been moved, so that the log cannot grow without bound."""
PREPARED_BYTES = 4_000 * (4_096 + 24)
"""How long the log is made beforehand: a bit longer than it becomes before it is begun anew."""
PREPARED_AT_ONCE = 32 * 1024
"""How much of it is written by one call. Linux keeps what came by one call in large pieces, and looks at a whole piece
again for every few bytes that are written into it: beyond this, each commit pays for that."""
ROOM_TIMES = 20
"""How many times as much must be free for that."""


def prepare(path: Path) -> None:
    """Make the log as long as it will become, to be called by whoever holds the write lock.

    A sync of bytes that overwrite others costs half of one that also makes the file longer. What is written here is
    nothing to SQLite: a frame counts only with the right checksum. A disk with little room is left alone.
    """
    with contextlib.suppress(OSError), open(f"{path}-wal", "r+b", buffering=0) as log:
        size, disk = log.seek(0, os.SEEK_END), os.statvfs(path)
        if size < PREPARED_BYTES and disk.f_bavail * disk.f_frsize > ROOM_TIMES * PREPARED_BYTES:
            try:
                starts = range(size, PREPARED_BYTES, PREPARED_AT_ONCE)
                log.writelines(bytes(min(PREPARED_AT_ONCE, PREPARED_BYTES - at)) for at in starts)
                os.fsync(log.fileno())
            except OSError:
                log.truncate(size)


class Checkpoints:
    """The log of one process's connections."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pages = self._moved = 0
        """How long the log is, and how long it was when it was last moved."""
        self._nearly = False
        """All but the last few pages were moved a moment ago."""
        self._task: asyncio.Task[None] | None = None
        self.made = 0

    def note(self, connection: apsw.Connection, database: str, pages: int) -> int:
        """Hear how long the log is after a commit.

        Under steady load somebody always writes while the log is moved in the thread. So the rest, which is little, is
        moved here, and the log is begun anew.
        """
        self._pages, self._moved = pages, min(self._moved, pages)
        if (self._nearly or pages >= PAGES_PRESSING) and self._task is None:
            self._nearly = False
            # What happens here is not the commit's: that is done, and must not look as if it had failed.
            with contextlib.suppress(apsw.Error):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        return apsw.SQLITE_OK

    @property
    def due(self) -> bool:
        # Once it presses, nothing more is moved beside the commits: one of them must find it idle.
        return self._task is None and self._pages < PAGES_PRESSING and self._pages - self._moved >= PAGES_DUE

    def begin(self) -> None:
        """Move it in a thread; a log that cannot be moved now is tried again after a later commit."""
        self._moved = self._pages
        self._task = asyncio.ensure_future(asyncio.to_thread(self._move))
        self._task.add_done_callback(self._over)

    def _move(self) -> None:
        connection = connect(self._path, create=False)
        try:
            with contextlib.suppress(apsw.Error):
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self.made += 1
        finally:
            connection.close()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._nearly = not task.cancelled() and task.exception() is None

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
