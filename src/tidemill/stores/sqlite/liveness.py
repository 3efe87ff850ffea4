"""Who has the file open and holds leases: each process behind a lock of the operating system.

A lease is void at once when its process is gone, however it went: the system drops the locks of a dead process,
so a free lock is proof of death and nobody has to wait for a lease to expire. Where the system has no such
locks, leases simply expire.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from weakref import WeakMethod

from tidemill.errors import Unavailable

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # pragma: no cover - Windows
    HAS_LOCKS = False


def this_process() -> str:
    """What the holders of this process are called."""
    return f"{socket.gethostname()}/{os.getpid()}"


class ProcessLocks:
    """The locks of the processes that hold leases, one file for each in a folder beside the store."""

    def __init__(self, path: Path) -> None:
        self._folder = path.with_name(path.name + "-live")
        self._mine: dict[int, int] = {}
        self._has_fork_hook = False

    def enter(self, holder: int) -> None:
        """Take the lock of a new holder. To be called before anybody else can read of it."""
        if not HAS_LOCKS:  # pragma: no cover - Windows
            return
        try:
            self._folder.mkdir(exist_ok=True)
            handle = os.open(self._file(holder), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unavailable(f"no lock can be made in {self._folder}: {error.strerror}") from error
        self._mine[holder] = handle
        self._add_fork_hook()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Whoever was given this number before, in a transaction that came to nothing, has not let go of it yet.
            os.close(self._mine.pop(holder))
            raise Unavailable(f"the lock {self._file(holder)} is taken: {error.strerror}") from error

    def leave(self, holder: int) -> None:
        """Let go of a lock of this process."""
        handle = self._mine.pop(holder, None)
        if handle is not None:
            self.sweep(holder)
            os.close(handle)

    def is_dead(self, holder: int) -> bool:
        """Whether the process behind a holder is gone: its lock is free, or was never there.

        Where there is no folder of locks, or not those of this process in it, somebody has moved or removed it, and
        then a lock that is missing proves nothing.
        """
        if not HAS_LOCKS or holder in self._mine:
            return False
        taken = self._is_taken(holder)
        if taken is None:
            return self._folder.is_dir() and all(self._file(mine).exists() for mine in self._mine)
        return not taken

    def _is_taken(self, holder: int) -> bool | None:
        """Whether another process has the lock of a holder, or may have it; None when there is no such lock."""
        try:
            handle = os.open(self._file(holder), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def present(self, holders: Iterable[tuple[int, str]]) -> frozenset[str]:
        """The names of those that are not known to be gone."""
        return frozenset(name for holder, name in holders if not self.is_dead(holder))

    def is_alive(self, holder: int) -> bool:
        """Whether another process is known to be behind a holder; where the system does not tell, it is not."""
        return HAS_LOCKS and holder not in self._mine and self._is_taken(holder) is True

    def sweep(self, holder: int) -> None:
        """Remove the file of a holder that nobody needs any more, and the folder after the last one."""
        with suppress(OSError):
            self._file(holder).unlink()
            self._folder.rmdir()

    def _add_fork_hook(self) -> None:
        """Have forked children close the locks. Python cannot remove a hook, so it holds this object weakly."""
        if not self._has_fork_hook:
            self._has_fork_hook, forked = True, WeakMethod(self._forked)
            os.register_at_fork(after_in_child=lambda: (close := forked()) and close())

    def _forked(self) -> None:
        """Let go, in a child, of locks that are its parent's: it would hold them beyond the parent's death."""
        while self._mine:
            os.close(self._mine.popitem()[1])

    def _file(self, holder: int) -> Path:
        return self._folder / f"{holder}.lock"
