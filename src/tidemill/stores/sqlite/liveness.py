"""Which processes hold leases and are alive: each holds a file lock of the operating system.

The system drops the locks of a dead process, so a free lock proves death and its leases are void at once. Where the
system has no such locks, leases simply expire.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from weakref import WeakMethod

from tidemill.errors import Unavailable

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # pragma: no cover - Windows
    HAS_LOCKS = False


RUNNING_SECONDS_MAX = 30 * 24 * 3600


def this_process() -> str:
    """The name under which this process holds leases."""
    return f"{socket.gethostname()}/{os.getpid()}"


class ProcessLocks:
    """One lock file per process that holds leases, in a folder beside the store."""

    def __init__(self, path: Path) -> None:
        self._folder = path.with_name(path.name + "-live")
        self._mine: dict[int, int] = {}
        self._has_fork_hook = False

    def enter(self, holder: int) -> None:
        """Take the lock of a new holder, before the holder is committed."""
        if not HAS_LOCKS:  # pragma: no cover - Windows
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            found = self._folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
                raise Unavailable(f"{self._folder} is a link, or belongs to another user: remove it")
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(self._file(holder), flags, 0o600)
        except OSError as error:
            raise Unavailable(f"no lock can be made in {self._folder}: {error.strerror}") from error
        self._mine[holder] = handle
        self._forget_old()
        if not self._has_fork_hook:
            # Forked children close the locks. Python cannot remove the hook, so it holds this object weakly.
            self._has_fork_hook, forked = True, WeakMethod(self._forked)
            os.register_at_fork(after_in_child=lambda: (close := forked()) and close())
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # A rolled-back transaction assigned this id to another process, which still has the lock.
            os.close(self._mine.pop(holder))
            raise Unavailable(f"the lock {self._file(holder)} is taken: {error.strerror}") from error

    def leave(self, holder: int) -> None:
        handle = self._mine.pop(holder, None)
        if handle is not None:
            self.sweep(holder)
            os.close(handle)

    def is_dead(self, holder: int) -> bool:
        """Whether a holder's lock is free, or absent from a folder that was not moved or removed."""
        if not HAS_LOCKS or holder in self._mine:
            return False
        taken = self._is_taken(holder)
        if taken is None:
            return self._folder.is_dir() and all(self._file(mine).exists() for mine in self._mine)
        return not taken

    def _is_taken(self, holder: int) -> bool | None:
        """Whether another process has, or may have, a holder's lock; None if there is no such lock."""
        try:
            handle = os.open(self._file(holder), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
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
        """The names of the holders that are not known to be dead."""
        return frozenset(name for holder, name in holders if not self.is_dead(holder))

    def is_alive(self, holder: int) -> bool:
        """Whether a holder is known to be another live process; False where the system has no locks."""
        return HAS_LOCKS and holder not in self._mine and self._is_taken(holder) is True

    @contextmanager
    def surviving(self, name: str) -> Iterator[bool]:
        """Do something that may end this process; yields whether the process that last did it survived.

        A file exists meanwhile. The caller makes sure that no other process does the same at the same time.
        """
        file = self._folder / f"{sha256(name.encode()).hexdigest()[:32]}.running"
        try:
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            survived = True
        except FileExistsError:
            survived = False
        except OSError:
            # No folder, or no room on the disk for a name.
            survived = True
        try:
            yield survived
        finally:
            with suppress(OSError):
                file.unlink()

    def _forget_old(self) -> None:
        """Remove the files of lost processes whose work was not repeated."""
        with suppress(OSError):
            for file in self._folder.glob("*.running"):
                if time.time() - file.lstat().st_mtime > RUNNING_SECONDS_MAX:
                    file.unlink()

    def sweep(self, holder: int) -> None:
        """Remove the lock file of a holder, and the folder after the last one."""
        with suppress(OSError):
            self._file(holder).unlink()
            self._folder.rmdir()

    def _forked(self) -> None:
        """Close the parent's locks in a child, which would hold them beyond the parent's death."""
        while self._mine:
            os.close(self._mine.popitem()[1])

    def _file(self, holder: int) -> Path:
        return self._folder / f"{holder}.lock"
