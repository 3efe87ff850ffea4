"""The file: how it is opened, what it must be, and what its errors mean to whoever uses it.

Everything that can be wrong with a path or a file is found here, before anything is written, and told in one
line: not a database, somebody else's database, a newer one, on a network, read-only, damaged, full.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from tidemill.errors import DiskFull, TidemillError, Unavailable, rejected

APPLICATION_ID = 0x54494445
"""What marks a file as a store of Tidemill ("TIDE")."""
MAGIC = b"SQLite format 3\0"
CACHED_STATEMENTS = 128
"""As many as apsw allows. It keeps them in a ring that every execution moves on by one, so what is needed once in a
transaction (its beginning and end, the counters) falls out in between when the ring is shorter than a transaction."""
CACHE_KIB = 8_192
BUSY_MS = 10_000
PRESENCE_MS = 1_000.0
"""How often a writer looks whether its file is still there."""

NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs"),
        *("gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs"),
    )
)
"""File systems whose locks and shared memory do not hold between machines, so that a WAL on them gets damaged."""


def connect(path: Path, *, read_only: bool = False, create: bool = True, busy_ms: int = BUSY_MS) -> apsw.Connection:
    """A connection with the settings of every connection; the caller sets how durable its commits are."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    if create and not read_only:
        flags |= apsw.SQLITE_OPEN_CREATE
    with errors_of(path):
        connection = apsw.Connection(str(path), flags=flags, statementcachesize=CACHED_STATEMENTS)
        connection.set_busy_handler(_patience(busy_ms))
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _patience(busy_ms: int) -> Callable[[int], bool] | None:
    """Wait for others who write. SQLite's own time-out does not wait for connections of the same process."""
    if not busy_ms:
        return None
    give_up = 0.0

    def wait(times: int) -> bool:
        nonlocal give_up
        now = time.monotonic()
        if times == 0:
            give_up = now + busy_ms / 1000
        time.sleep(min(0.0005 * (times + 1), 0.005) * (0.5 + random.random()))
        return now < give_up

    return wait


def one(cursor: apsw.Cursor) -> tuple[Any, ...] | None:
    """The row of a statement that has at most one.

    A statement that is not read to its end stays open, and an open one keeps the log from being begun anew.
    """
    rows = cursor.fetchall()
    return rows[0] if rows else None


def located(path: str | Path) -> Path:
    """The one name of a file, whatever links lead to it and wherever this process goes; refuses what names none."""
    if Path(path).name == ":memory:":
        raise rejected("store_unusable", f"{path} is not a file", hint="a store in memory is memory://")
    try:
        found = Path(path).resolve()
        found.exists()
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        shown = str(path)[:200].replace("\0", "\\0")
        message = f"{shown} cannot be the name of a file: {why}"
        raise rejected("store_unusable", message, hint="name another file") from error
    return found


def check_place(path: Path, mounts: str | None = None) -> None:
    """Refuse a place where a store cannot be kept safely, or at all."""
    if path.is_dir():
        raise rejected("store_unusable", f"{path} is a directory", hint="name a file in it")
    if path.exists() and not path.is_file():
        raise rejected("store_unusable", f"{path} is a device, a pipe or a socket", hint="name a file on a local disk")
    if not path.parent.is_dir():
        raise rejected("store_unusable", f"there is no directory {path.parent}", hint="create it first")
    kind = file_system(path.parent.resolve(), mounts if mounts is not None else _mounts())
    if kind in NETWORK:
        raise rejected(
            "store_on_network",
            f"{path} is on a network file system ({kind}), where SQLite loses data",
            hint="put the file on a local disk; several machines need a store that is a server",
        )


def file_system(path: Path, mounts: str) -> str:
    """The kind of file system that holds a path, from the lines of /proc/self/mountinfo; unknown is empty."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split()
        if len(fields) < 5 or not tail:
            continue
        place = fields[4].encode().decode("unicode_escape")
        if (path == Path(place) or Path(place) in path.parents) and len(place) >= best:
            best, kind = len(place), tail.split()[0]
    return kind


def _mounts() -> str:
    """What is mounted where; systems that do not tell are trusted."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class Presence:
    """Whether the file and its log are still those that were opened.

    SQLite goes on writing to a file that was removed, and what it acknowledges then is lost. To look costs little, but
    not nothing, so it is done every now and then.
    """

    def __init__(self, path: Path, every_ms: float = PRESENCE_MS) -> None:
        self._path, self._every_ms = path, every_ms
        self._opened = self._found()
        self._looked_at = time.monotonic()

    def check(self) -> None:
        """Refuse to go on with a file that is gone."""
        now = time.monotonic()
        if (now - self._looked_at) * 1000 < self._every_ms:
            return
        if self._found() != self._opened:
            raise rejected(
                "store_gone",
                f"{self._path} or its log was removed or replaced while in use",
                hint="restart what uses it, after putting the file back",
            )
        self._looked_at = now

    def _found(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_identity(f"{self._path}{suffix}") for suffix in ("", "-wal"))


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class errors_of:  # noqa: N801 - it is used like a function.
    """Say in Tidemill's words what SQLite has against the file.

    Every look at the file goes through here, so it is a class: to enter a generator takes longer than to look.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, (apsw.Error, UnicodeDecodeError)):
            raise meaning(error, self._path) from error


def meaning(error: apsw.Error | UnicodeDecodeError | OSError, path: Path | str) -> TidemillError:
    """Whose fault an error of SQLite is, and what now. A text that is none comes from a damaged page."""
    match error:
        case apsw.NotADBError() if not _begins_like_one(Path(path)):
            return rejected(
                "store_foreign", f"{path} is not a SQLite database", hint="name another file: this one was not touched"
            )
        case apsw.NotADBError() | apsw.CorruptError() | apsw.SQLError() | UnicodeDecodeError():
            return rejected(
                "store_damaged",
                f"{path} is damaged: {_line(error)}",
                hint="stop everything that uses it, keep a copy, and restore a backup; "
                "`tidemill verify-log` tells what can still be read",
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            mounted = _mounted_read_only(Path(path).parent)
            hint = _why_not(Path(path)) if mounted else "see its permissions and those of its directory"
            return rejected("store_read_only", f"{path} cannot be written to", hint=hint)
        case apsw.CantOpenError():
            return rejected("store_unusable", f"{path} cannot be opened: {_line(error)}", hint=_why_not(Path(path)))
        case apsw.FullError():
            return DiskFull(f"the disk of {path} is full; free some space")
        case apsw.BusyError() | apsw.LockedError():
            return Unavailable(f"{path} is held by another process that does not let go")
        case apsw.IOError():
            return Unavailable(f"{path} could not be read or written: {_line(error)}{_disk_words(path)}")
        case _:
            return Unavailable(f"{path}: {_line(error)}")


def _line(error: Exception) -> str:
    """What SQLite says on one line; of a damaged schema it quotes all of it."""
    return " ".join(str(error).split())[:200]


def _begins_like_one(path: Path) -> bool:
    """Whether a file was a database once, so that it is damaged and not another kind of file."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _why_not(path: Path) -> str:
    if _mounted_read_only(path.parent):
        return f"the file system of {path.parent} is mounted read-only"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "see its permissions"
    if not os.access(path.parent, os.W_OK):
        return f"nothing can be created in {path.parent}"
    return "see that it is a file on a local disk"


def _mounted_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _disk_words(path: Path | str) -> str:
    """Whether the disk is full, which SQLite does not always say by itself."""
    try:
        room = os.statvfs(Path(path).parent)
    except OSError as error:
        return f" ({os.strerror(error.errno or errno.EIO)})"
    return " (the disk is full)" if room.f_bavail * room.f_frsize < 1 << 20 else ""
