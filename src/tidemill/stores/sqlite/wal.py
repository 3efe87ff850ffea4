"""Moving what the write-ahead log holds into the file, in a thread, so that no commit has to wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import apsw

from tidemill.stores.sqlite.file import connect

PAGES_DUE = 2_000
"""Pages in the log (of 4 KiB) from which on it is moved; SQLite begins it anew when all of it is."""
PAGES_PRESSING = 16_000
"""Pages from which on commits wait until it has been moved, so that the log cannot grow without bound."""


class Checkpoints:
    """The log of one process's connections."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pages = self._moved = 0
        """How long the log is, and how long it was when it was last moved."""
        self._task: asyncio.Task[None] | None = None
        self.made = 0

    def note(self, connection: apsw.Connection, database: str, pages: int) -> int:
        """Hear how long the log is after a commit."""
        self._pages, self._moved = pages, min(self._moved, pages)
        if pages >= PAGES_PRESSING and self._task is None:
            # What happens here is not the commit's: that is done, and must not look as if it had failed.
            with contextlib.suppress(apsw.Error):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        return apsw.SQLITE_OK

    @property
    def due(self) -> bool:
        # Under steady load somebody always writes while the log is moved, so it is never begun anew by itself. Once it
        # presses, nothing more is moved beside the commits: one of them must find it idle.
        return self._task is None and self._pages < PAGES_PRESSING and self._pages - self._moved >= PAGES_DUE

    def begin(self) -> None:
        """Move it in a thread; a log that cannot be moved now is tried again after a later commit."""
        self._moved = self._pages
        self._task = asyncio.ensure_future(asyncio.to_thread(self._move))
        self._task.add_done_callback(self._over)

    def _move(self) -> None:
        connection = connect(self._path)
        try:
            with contextlib.suppress(apsw.Error):
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self.made += 1
        finally:
            connection.close()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
