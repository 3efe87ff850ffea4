"""Open/check the file, error meanings, record checksums, schema migrations.

The file: how it is opened, what it must be, and what its errors mean to whoever uses it.

Everything that can be wrong with a path or a file is found here, before anything is written, and told in one
line: not a database, somebody else's database, a newer one, on a network, read-only, damaged, full.

Bringing a file to the schema that this code knows, and refusing one that it cannot serve.

Checksums: SQLite has none of its own, and a bit that flipped on the disk must never become part of a run.

A seal covers a body and the place it belongs to, so that a body which is found in another place is damage too.
"""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import msgspec

from tidemill.errors import DiskFull, Rejected, TidemillError, Unavailable, rejected
from tidemill.stores.contract import Stream
from tidemill.stores.sql_files import Migration, Step, migrations, pending
from tidemill.stores.sqlite.liveness import ProcessLocks

DIALECT = "sqlite"
APPLICATION_ID = 0x54494445
"""What marks a file as a store of Tidemill ("TIDE")."""
MAGIC = b"SQLite format 3\0"
CACHED_STATEMENTS = 128
"""As many as apsw allows. It keeps them in a ring that every execution moves on by one, so what is needed once in a
transaction (its beginning and end, the counters) falls out in between when the ring is shorter than a transaction."""
CACHE_KIB = 8_192
BUSY_MS = 10_000
ROOM_BYTES_MIN = 1 << 20
"""With less room than this a disk counts as full, once a write to it has failed."""
READING = frozenset((apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ))
"""Failures that have nothing to do with how much room there is."""
PRESENCE_MS = 1_000.0
"""How often a writer looks whether its file is still there."""

NETWORK = frozenset(
    (
        *("9p", "acfs", "afs", "auristorfs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fakeowner", "gfs2"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2"),
        *("smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs"),
    )
)
"""File systems whose locks and shared memory do not hold between machines, so that a WAL on them gets damaged: those of
networks and clusters, and folders that a virtual machine shares with its host."""
FUSE = re.compile(r"fuse(\..*)?")
LOCAL_FUSE = frozenset(
    (
        *("fuse.bindfs", "fuse.cryfs", "fuse.encfs", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.gocryptfs"),
        *("fuse.mergerfs", "fuse.ntfs-3g"),
    )
)
"""A program can be a file system too, and most that are bring in what is elsewhere. These are known to be here."""
SHADOWS = ("-wal", "-shm", "-journal")
"""What the names of the files end in that SQLite keeps beside a database, and removes."""


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


def fetch_one(cursor: apsw.Cursor) -> tuple[Any, ...] | None:
    """The row of a statement that has at most one.

    A statement that is not read to its end stays open, and an open one keeps the log from being begun anew.
    """
    rows = cursor.fetchall()
    return rows[0] if rows else None


def resolve_path(path: str | Path) -> Path:
    """The one name of a file, whatever links lead to it and wherever this process goes; refuses what names none."""
    if Path(path).name == ":memory:":
        raise rejected("store_unusable", f"{path} is not a file", hint="a store in memory is memory://")
    try:
        found = Path(path).resolve()
        found.exists()
        if found.is_symlink():
            # Since Python 3.13 `resolve` leaves a loop of links as it is.
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        shown = str(path)[:200].replace("\0", "\\0")
        message = f"{shown} cannot be the name of a file: {why}"
        raise rejected("store_unusable", message, hint="name another file") from error
    if found.name.endswith(SHADOWS):
        message = f"{found} would be removed: SQLite calls what it keeps beside a database like that"
        raise rejected("store_unusable", message, hint=f"choose a name that does not end in {' or '.join(SHADOWS)}")
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
    if kind in NETWORK or (FUSE.fullmatch(kind) and kind not in LOCAL_FUSE):
        raise rejected(
            "store_on_network",
            f"{path} is on a network file system ({kind}), where SQLite loses data",
            hint="put the file on a local disk; several machines need a store that is a server",
        )


_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How the system writes a blank, a tab, a new line and a backslash in the name of a place; all else is as it is."""


def file_system(path: Path, mounts: str) -> str:
    """The kind of file system that holds a path, from the lines of /proc/self/mountinfo; unknown is empty."""
    best, kind = -1, ""
    for line in mounts.split("\n"):
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) < 5 or not tail:
            continue
        place = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        if (path == Path(place) or Path(place) in path.parents) and len(place) >= best:
            best, kind = len(place), tail.split()[0]
    return kind


def _mounts() -> str:
    """What is mounted where; systems that do not tell are trusted."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


class FileIdentity:
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
        found = self._found()
        if self._opened[1] is None:
            # A copy that SQLite made has no log until somebody writes to it.
            self._opened = (self._opened[0], found[1])
        if found != self._opened:
            raise rejected(
                "store_gone",
                f"{self._path} or its log was removed or replaced while in use",
                hint="restart what uses it, after putting the file back",
            )
        self._looked_at = now

    def _found(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        return _identity(f"{self._path}"), _identity(f"{self._path}-wal")


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
            raise translate_error(error, self._path) from error


def translate_error(error: apsw.Error | UnicodeDecodeError | OSError, path: Path | str) -> TidemillError:
    """Whose fault an error of SQLite is, and what now. A text that is none comes from a damaged page."""
    match error:
        case apsw.NotADBError() if not _begins_like_one(Path(path)):
            return rejected(
                "store_foreign", f"{path} is not a SQLite database", hint="name another file: this one was not touched"
            )
        case apsw.SQLError() if (found := _schema_of(path)) > (known := migrations(DIALECT)[-1].number):
            return migrated(path, found, known)
        case apsw.NotADBError() | apsw.CorruptError() | apsw.SQLError() | UnicodeDecodeError():
            return rejected(
                "store_damaged",
                f"{path} is damaged: {_line(error)}",
                hint="stop everything that uses it, keep a copy, and restore a backup; "
                "`tidemill verify-log` tells what can still be read",
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return rejected("store_read_only", f"{path} cannot be written to", hint=_why_read_only(Path(path)))
        case apsw.CantOpenError():
            return rejected("store_unusable", f"{path} cannot be opened: {_line(error)}", hint=_why_not(Path(path)))
        case apsw.FullError():
            return DiskFull(f"the disk of {path} is full; free some space")
        case apsw.BusyError() | apsw.LockedError():
            return Unavailable(f"{path} is held by another process that does not let go")
        case apsw.IOError():
            return _of_the_disk(error, path)
        case _:
            return Unavailable(f"{path}: {_line(error)}")


def migrated(path: Path | str, found: int, known: int) -> Rejected:
    """What becomes of a process when another version has migrated the file under it."""
    return rejected(
        "store_newer",
        f"{path} now has schema {found}, and this process knows schema {known}: another version has migrated it",
        hint="restart this process with that version of Tidemill: it wrote nothing since",
    )


def _schema_of(path: Path | str) -> int:
    """The schema that a file has by now, which tells a table that was moved from one that was lost; 0 is unknown."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return int(connection.pragma("user_version"))
        finally:
            connection.close()
    except apsw.Error:
        return 0


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


def _why_read_only(path: Path) -> str:
    """Whoever was only allowed to look may have left a log that others are not allowed to write to."""
    if _mounted_read_only(path.parent):
        return _why_not(path)
    beside = [path.with_name(path.name + suffix) for suffix in SHADOWS]
    locked = [each.name for each in beside if each.exists() and not os.access(each, os.W_OK)]
    if locked and os.access(path, os.W_OK):
        return f"{' and '.join(locked)} beside it cannot be written to: give them the permissions of {path.name}"
    return "see its permissions and those of its directory"


def _mounted_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _of_the_disk(error: apsw.IOError, path: Path | str) -> Unavailable:
    """What keeps a file from being read or written; that there is no room SQLite does not always say by itself."""
    said = f"{path} could not be read or written: {_line(error)}"
    if getattr(error, "extendedresult", 0) in READING:
        return Unavailable(said)
    try:
        room, size, limit = os.statvfs(Path(path).parent), _size_of(path), _size_limit()
    except OSError as gone:
        return Unavailable(f"{said} ({os.strerror(gone.errno or errno.EIO)})")
    if room.f_bavail * room.f_frsize < ROOM_BYTES_MIN:
        return DiskFull(f"the disk of {path} is full; free some space")
    if limit is not None and size >= limit:
        return DiskFull(f"{path} cannot grow: files of this process end at {limit:,} bytes; raise that (ulimit -f)")
    return Unavailable(f"{said}; see that the disk is sound and has room, and that the size of files is not limited")


def _size_limit() -> int | None:
    """How large the files of this process may become, where there is such a limit."""
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit


def _size_of(path: Path | str) -> int:
    """The sizes of a file and its log together: as long as a page is only in the log, the file is yet to grow by it."""
    files = (Path(f"{path}{suffix}") for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


_LEDGER = """CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_ms INTEGER NOT NULL
)"""


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """What a file has, and what it lacks."""

    applied: tuple[int, ...]
    pending: tuple[Migration, ...]

    @property
    def newest(self) -> int:
        return max((*self.applied, *(each.number for each in self.pending)), default=0)


def look(connection: apsw.Connection, path: Path) -> Schema:
    """What the file is; refuses one that is not ours, or not one that this code can serve, and then leaves it alone."""
    try:
        return _look(connection, path)
    except Rejected:
        # Whoever closes a file last moves its log into it, also the log of another program that was killed.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        raise


def _look(connection: apsw.Connection, path: Path) -> Schema:
    with errors_of(path):
        marked = connection.pragma("application_id")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if tables and marked != APPLICATION_ID:
            raise rejected(
                "store_foreign",
                f"{path} is a SQLite database of another program",
                hint="name another file: this one was not touched",
            )
        applied: dict[int, str] = {}
        if "migrations" in tables:
            rows: list[Any] = connection.execute("SELECT number, checksum FROM migrations").fetchall()
            applied = dict(rows)
        if tables and not applied:
            # The first migration and the list come in one transaction.
            raise apsw.CorruptError("the list of its migrations is gone")
    return Schema(applied=tuple(sorted(applied)), pending=pending(migrations(DIALECT), applied, path))


def refuse_migrated(execute: Callable[..., Any], path: Path | str, schema: int) -> None:
    """Refuse to read or write a file that another version has migrated meanwhile.

    Asked within every transaction: it is a look at the first page, which is at hand.
    """
    ((found,),) = execute("PRAGMA user_version").fetchall()
    if found != schema:
        raise migrated(path, found, schema)


def newest_known() -> int:
    """The schema that this code serves."""
    return migrations(DIALECT)[-1].number


def migrate(connection: apsw.Connection, path: Path) -> tuple[Migration, ...]:
    """Apply what is pending, in one transaction; two processes at once apply it once."""
    with errors_of(path):
        # A file that is refused is not touched: even the mode of its log is a part of it. And one that is up to date
        # is not locked: whoever only reads must not wait for a writer that was stopped. Nor is a copy without a log
        # given one: that is for whoever writes to it first.
        if not look(connection, path).pending:
            return ()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Looked at again behind the lock: somebody else may have been faster.
            schema = look(connection, path)
            todo = schema.pending
            if todo and schema.applied:
                _refuse_in_use(connection, path)
            if todo:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(_LEDGER)
            for each in todo:
                connection.execute(each.sql)
                row = (each.number, each.name, each.checksum, time.time_ns() // 1_000_000)
                connection.execute("INSERT INTO migrations VALUES (?, ?, ?, ?)", row)
                connection.execute(f"PRAGMA user_version = {each.number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with suppress(apsw.Error):
                    connection.execute("ROLLBACK")
            raise
    return todo


def steps(path: Path, *, dry_run: bool) -> tuple[Step, ...]:
    """The migrations of a file, once what is pending has been applied; with `dry_run` nothing is, or even created."""
    check_place(path)
    if dry_run and not path.exists():
        return tuple(Step(number=each.number, name=each.name, applied_ms=None) for each in migrations(DIALECT))
    connection = connect(path, read_only=dry_run)
    try:
        if not dry_run:
            migrate(connection, path)
        schema = look(connection, path)
        with errors_of(path):
            known = "SELECT number, name, applied_ms FROM migrations ORDER BY number"
            rows: list[Any] = connection.execute(known).fetchall() if schema.applied else []
    finally:
        connection.close()
    done = [Step(number=number, name=name, applied_ms=applied_ms) for number, name, applied_ms in rows]
    return (*done, *(Step(number=each.number, name=each.name, applied_ms=None) for each in schema.pending))


def _refuse_in_use(connection: apsw.Connection, path: Path) -> None:
    """A process that knows an older schema must not find itself on a newer one."""
    holders = ProcessLocks(path)
    found: list[Any] = connection.execute("SELECT id, name FROM holders").fetchall()
    names = [name for holder, name in found if holders.is_alive(holder)]
    if names:
        raise rejected(
            "store_in_use",
            f"{path} has to be migrated, and is in use by {', '.join(names)}",
            hint="stop them, then repeat this: nothing was changed",
        )


SEAL_BYTES = 4


def seal_of(counters: Sequence[int]) -> int:
    """A checksum of numbers that stand beside it."""
    return crc32("/".join(map(str, counters)).encode())


def within(stream: Stream, what: object) -> bytes:
    """A place in a stream. It has the stream's name and not its number: a damaged index may lead to another one."""
    return f"{stream.kind}\0{stream.tenant}\0{stream.key}\0{what}".encode()


class Damaged(Exception):
    """What is stored is not what was written."""


def checksum(body: bytes, place: bytes) -> bytes:
    """A body behind its checksum."""
    return crc32(body, crc32(place)).to_bytes(SEAL_BYTES, "little") + body


def verify(sealed: bytes, place: bytes, what: str) -> bytes:
    """The body, if it is the one that was sealed for this place. A flipped bit may even have changed its type."""
    if not isinstance(sealed, bytes):
        raise Damaged(f"{what} does not match its checksum")
    body = sealed[SEAL_BYTES:]
    if crc32(body, crc32(place)).to_bytes(SEAL_BYTES, "little") != sealed[:SEAL_BYTES]:
        raise Damaged(f"{what} does not match its checksum")
    return body
