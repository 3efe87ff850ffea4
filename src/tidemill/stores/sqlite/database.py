"""The SQLite file: opening and checking it, translating errors, migrations, checksums of bodies.

Every check of a path or file runs before the first write, so a refused file is left untouched. SQLite keeps no
checksums, so each stored body carries one that also covers its place: a body found in another place is damage.
"""

from __future__ import annotations

import errno
import os
import random
import re
import shlex
import stat
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
from tidemill.stores.optional import Finding, Severity, judged, migrations_finding
from tidemill.stores.sql_files import Migration, Step, migrations, pending
from tidemill.stores.sqlite.liveness import ProcessLocks

Execute = Callable[..., Any]

DIALECT = "sqlite"
APPLICATION_ID = 0x54494445
"""SQLite application id of a store: "TIDE"."""
MAGIC = b"SQLite format 3\0"
CACHED_STATEMENTS = 128
"""The most that apsw allows. Its cache is a ring that each execution advances, so a shorter one would evict what every
transaction needs once (BEGIN, COMMIT, the counters)."""
BUSY_MS = 10_000
PRESENCE_MS = 1_000.0
"""How often a writer checks that its file still exists."""

NETWORK = frozenset(
    (
        *("9p", "acfs", "afs", "auristorfs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fakeowner", "gfs2"),
        *("glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2"),
        *("smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs"),
    )
)
"""Network, cluster and host-shared file systems: their locks and shared memory do not work between machines, so a WAL
on them gets corrupted."""
FUSE = re.compile(r"fuse(\..*)?")
LOCAL_FUSE = frozenset(
    (
        *("fuse.bindfs", "fuse.cryfs", "fuse.encfs", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.gocryptfs"),
        *("fuse.mergerfs", "fuse.ntfs-3g"),
    )
)
"""FUSE file systems that are known to be local; most others are remote."""
SIDE_FILES = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates and removes beside a database."""


def connect(path: Path, *, read_only: bool = False, create: bool = True, busy_ms: int = BUSY_MS) -> apsw.Connection:
    """Open a connection with the common settings; the caller sets `synchronous`."""
    writing = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    flags = apsw.SQLITE_OPEN_READONLY if read_only else writing
    with errors_of(path):
        if create and not read_only:
            _create_private(path)
        connection = apsw.Connection(str(path), flags=flags, statementcachesize=CACHED_STATEMENTS)
        connection.set_busy_handler(_busy_handler(busy_ms))
        connection.execute("PRAGMA cache_size = -8192")  # KiB
        connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def connect_to_read(path: Path) -> apsw.Connection:
    """Open a connection that changes nothing: it neither writes nor moves a WAL that others have left into the file."""
    has_log = _size_of(f"{path}-wal") > 0
    connection = connect(path, create=False)
    with errors_of(path):
        connection.execute("PRAGMA query_only = ON")
        # Without a WAL of others, closing removes the empty files that opening made.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_log))
    return connection


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _create_private(path: Path) -> None:
    """Create a missing file for its owner alone; SQLite gives the files beside it the same mode."""
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def _busy_handler(busy_ms: int) -> Callable[[int], bool] | None:
    """Wait for other writers. SQLite's own time-out does not wait for connections of the same process."""
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


def roll_back(connection: apsw.Connection) -> None:
    """Leave no transaction open; SQLite may have ended it already with the error that led here."""
    if connection.in_transaction:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")


def fetch_one(cursor: apsw.Cursor) -> tuple[Any, ...] | None:
    """The only row of a statement, read to its end: an open statement keeps the WAL from restarting."""
    rows = cursor.fetchall()
    return rows[0] if rows else None


def resolve_path(path: str | Path) -> Path:
    """The absolute path of a store file with links resolved; refuses what cannot name a file."""
    if Path(path).name == ":memory:":
        raise rejected("store_unusable", f"{path} is not a file", hint="a store in memory is memory://")
    try:
        if _is_planted(Path(path)):
            message = f"{path} belongs to another user, in a world-writable folder"
            raise rejected("store_unusable", message, hint="name another file, in a folder of your own")
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
    if found.name.endswith(SIDE_FILES):
        message = f"{found} would be deleted: SQLite uses that name for its own files"
        raise rejected("store_unusable", message, hint=f"choose a name that does not end in {' or '.join(SIDE_FILES)}")
    return found


def _is_planted(path: Path) -> bool:
    """Whether a path is a link or file of another user in a shared folder, who could read what is stored there."""
    try:
        found, folder = path.lstat(), path.parent.stat()
    except OSError:
        return False
    shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    return bool(shared and found.st_uid not in (os.geteuid(), folder.st_uid))


def check_place(path: Path, mounts: str | None = None) -> str:
    """Refuse a path where a store cannot be kept safely, or at all; returns the type of its file system."""
    if path.is_dir():
        raise rejected("store_unusable", f"{path} is a directory", hint="name a file in it")
    if path.exists() and not path.is_file():
        raise rejected("store_unusable", f"{path} is a device, a pipe or a socket", hint="name a file on a local disk")
    if not path.parent.is_dir():
        raise rejected("store_unusable", f"there is no directory {path.parent}", hint="create it first")
    if mounts is None:
        # A system without mountinfo is trusted.
        with suppress(OSError):
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    kind = file_system(path.parent.resolve(), mounts or "")
    if kind in NETWORK or (FUSE.fullmatch(kind) and kind not in LOCAL_FUSE):
        hint = "put the file on a local disk; several machines need a store that is a server"
        message = f"{path} is on a network file system ({kind}), where SQLite loses data"
        raise rejected("store_on_network", message, hint=hint)
    return kind


_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How mountinfo escapes a blank, a tab, a new line and a backslash."""


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that holds a path, from the lines of /proc/self/mountinfo; empty if unknown."""
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


class FileIdentity:
    """Detects that the open file or its WAL was removed or replaced: what SQLite acknowledges then is lost."""

    def __init__(self, path: Path, every_ms: float = PRESENCE_MS) -> None:
        self._path, self._every_ms = path, every_ms
        self._opened = self._found()
        self._looked_at = time.monotonic()

    def check(self) -> None:
        """Refuse a file that is gone; looks at most once per `every_ms`."""
        now = time.monotonic()
        if (now - self._looked_at) * 1000 < self._every_ms:
            return
        found = self._found()
        if self._opened[1] is None:
            # A copy made by VACUUM INTO has no WAL until its first write.
            self._opened = (self._opened[0], found[1])
        if found != self._opened:
            message = f"{self._path} or its log was removed or replaced while in use"
            raise rejected("store_gone", message, hint="put the file back, then restart every process that uses it")
        self._looked_at = now

    def _found(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        return _identity(f"{self._path}"), _identity(f"{self._path}-wal")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# Errors


class errors_of:  # noqa: N801 - it is used like a function.
    """Translate SQLite's errors. Every read enters it, so it is a class: a generator costs more than the read."""

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, (apsw.Error, UnicodeDecodeError)):
            raise translate_error(error, self._path) from error


def translate_error(error: apsw.Error | UnicodeDecodeError | OSError, path: Path | str) -> TidemillError:
    """The Tidemill error for an error of SQLite. Text that does not decode comes from a damaged page."""
    match error:
        case apsw.NotADBError() if not _has_sqlite_header(Path(path)):
            hint = "name another file: this one was not touched"
            return rejected("store_foreign", f"{path} is not a SQLite database", hint=hint)
        case apsw.SQLError() if (found := _schema_of(path)) > (known := migrations(DIALECT)[-1].number):
            return newer_schema(path, found, known)
        case apsw.NotADBError() | apsw.CorruptError() | apsw.SQLError() | UnicodeDecodeError():
            return rejected(
                "store_damaged",
                f"{path} is damaged: {_line(error)}",
                hint="stop everything that uses it, keep a copy, and restore a backup; "
                "`tidemill verify-log` shows what can still be read",
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return rejected("store_read_only", f"{path} cannot be written to", hint=_read_only_hint(Path(path)))
        case apsw.CantOpenError():
            return rejected("store_unusable", f"{path} cannot be opened: {_line(error)}", hint=_open_hint(Path(path)))
        case apsw.FullError():
            return DiskFull(f"the disk of {path} is full; free some space")
        case apsw.BusyError() | apsw.LockedError():
            return Unavailable(f"{path} is locked by another process")
        case apsw.IOError():
            return _disk_error(error, path)
        case _:
            return Unavailable(f"{path}: {_line(error)}")


def newer_schema(path: Path | str, found: int, known: int) -> Rejected:
    """Another version has migrated the file while this process had it open."""
    message = f"{path} now has schema {found}, and this process knows schema {known}: another version has migrated it"
    hint = "restart this process with that version of Tidemill; it has written nothing since"
    return rejected("store_newer", message, hint=hint)


def _schema_of(path: Path | str) -> int:
    """The file's current schema: tells a table that a migration moved from one that was lost. 0 is unknown."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return int(connection.pragma("user_version"))
        finally:
            connection.close()
    except apsw.Error:
        return 0


def _line(error: Exception) -> str:
    """SQLite's message on one line; for a damaged schema it quotes the whole schema."""
    return " ".join(str(error).split())[:200]


def _has_sqlite_header(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _open_hint(path: Path) -> str:
    if _mounted_read_only(path.parent):
        return f"the file system of {path.parent} is mounted read-only"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "see its permissions"
    if not os.access(path.parent, os.W_OK):
        return f"nothing can be created in {path.parent}"
    return "make sure that it is a file on a local disk"


def _read_only_hint(path: Path) -> str:
    """A reader of another user may have left a WAL that this user cannot write to."""
    if _mounted_read_only(path.parent):
        return _open_hint(path)
    beside = [path.with_name(path.name + suffix) for suffix in SIDE_FILES]
    locked = [each.name for each in beside if each.exists() and not os.access(each, os.W_OK)]
    if locked and os.access(path, os.W_OK):
        return f"{' and '.join(locked)} beside it cannot be written to: give them the permissions of {path.name}"
    return "check its permissions and those of its directory"


def _mounted_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _disk_error(error: apsw.IOError, path: Path | str) -> Unavailable:
    """The cause of an I/O error; SQLite does not always report a full disk as such."""
    message = f"{path} could not be read or written: {_line(error)}"
    if getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ):
        return Unavailable(message)
    try:
        room = os.statvfs(Path(path).parent)
        # Pages that are only in the WAL will make the file grow.
        files = (Path(f"{path}{suffix}") for suffix in ("", "-wal"))
        size = sum(file.stat().st_size for file in files if file.exists())
    except OSError as gone:
        return Unavailable(f"{message} ({os.strerror(gone.errno or errno.EIO)})")
    if room.f_bavail * room.f_frsize < 1 << 20:
        return DiskFull(f"the disk of {path} is full; free some space")
    with suppress(ImportError):  # Windows has no such limit.
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY and size >= limit:
            return DiskFull(f"{path} cannot grow: files of this process end at {limit:,} bytes; raise that (ulimit -f)")
    return Unavailable(f"{message}; check that the disk is healthy and has space, and that file sizes are not limited")


# Migrations


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    applied: tuple[int, ...]
    pending: tuple[Migration, ...]


def look(connection: apsw.Connection, path: Path) -> Schema:
    """The schema of a file; refuses, untouched, a file of another program or of an unknown schema."""
    try:
        with errors_of(path):
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            # Read after the tables: another process may be creating both, in one transaction.
            if tables and connection.pragma("application_id") != APPLICATION_ID:
                message = f"{path} is a SQLite database of another program"
                raise rejected("store_foreign", message, hint="name another file: this one was not touched")
            applied: dict[int, str] = {}
            if "migrations" in tables:
                rows: list[Any] = connection.execute("SELECT number, checksum FROM migrations").fetchall()
                applied = dict(rows)
            if tables and not applied:
                # The first migration and the list are written in one transaction.
                raise apsw.CorruptError("the list of its migrations is gone")
        return Schema(applied=tuple(sorted(applied)), pending=pending(migrations(DIALECT), applied, path))
    except Rejected:
        # The last connection to close checkpoints the WAL, even one that a killed program of another kind left.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        raise


def refuse_migrated(execute: Execute, path: Path | str, schema: int) -> None:
    """Refuse a file that another version has migrated meanwhile. Cheap: reads the first page, which is cached."""
    ((found,),) = execute("PRAGMA user_version").fetchall()
    if found != schema:
        raise newer_schema(path, found, schema)


def newest_known() -> int:
    return migrations(DIALECT)[-1].number


def _use_wal(connection: apsw.Connection) -> None:
    """Set the journal mode. SQLite does not ask the busy handler here: the lock is upgraded from that of a reader."""
    give_up = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except apsw.BusyError:
            if time.monotonic() > give_up:
                raise
            # Processes that meet here do not meet again.
            time.sleep(0.002 + os.getpid() % 10 / 1000)
        else:
            return


def migrate(connection: apsw.Connection, path: Path) -> tuple[Migration, ...]:
    """Apply what is pending, in one transaction; two processes at once apply it once."""
    with errors_of(path):
        # A refused file keeps even its journal mode, an up-to-date one is not locked (a reader must not wait for a
        # stopped writer), and a copy without a WAL gets one only from its first writer.
        if not look(connection, path).pending:
            return ()
        _use_wal(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have migrated it before this one got the lock.
            schema = look(connection, path)
            todo = schema.pending
            if todo and schema.applied:
                _refuse_in_use(connection, path)
            if todo:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, "
                    "checksum TEXT NOT NULL, applied_ms INTEGER NOT NULL)"
                )
            for each in todo:
                connection.execute(each.sql)
                row = (each.number, each.name, each.checksum, time.time_ns() // 1_000_000)
                connection.execute("INSERT INTO migrations VALUES (?, ?, ?, ?)", row)
                connection.execute(f"PRAGMA user_version = {each.number}")
            connection.execute("COMMIT")
        except BaseException:
            roll_back(connection)
            raise
    return todo


def steps(path: Path, *, dry_run: bool) -> tuple[Step, ...]:
    """Apply what is pending and list all migrations; with `dry_run` nothing is applied or created."""
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
    """Refuse to migrate while other processes, which may know only the older schema, hold leases."""
    holders = ProcessLocks(path)
    found: list[Any] = connection.execute("SELECT id, name FROM holders").fetchall()
    names = [name for holder, name in found if holders.is_alive(holder)]
    if names:
        message = f"{path} has to be migrated, and is in use by {', '.join(names)}"
        raise rejected("store_in_use", message, hint="stop them, then repeat this: nothing was changed")


# Diagnosis

WAL_BYTES_MAX = 512 << 20
"""Twice of what commits let the WAL grow to: a reader keeps it from restarting, or checkpoints fail."""
DISK_BYTES_LOW, DISK_BYTES_MIN = 1 << 30, 100 << 20


def diagnose(path: Path, durability: str) -> list[Finding]:
    """Check a file, its settings and its disk; raises what opening it would be refused with."""
    require_file(path)
    kind = check_place(path)
    connection = connect_to_read(path)
    try:
        schema = look(connection, path)
    finally:
        connection.close()
    relaxed = "a power cut may lose the last commits, because the URL says durability=relaxed"
    full = "every commit is synced to the disk before it is answered"
    hint = "remove durability=relaxed from the URL"
    return [
        Finding("server_version", "ok", f"SQLite {apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}"),
        migrations_finding(len(schema.applied) + len(schema.pending), len(schema.pending)),
        judged("durability", "store", full, "" if durability == "full" else relaxed, hint),
        Finding("file_system", "ok", f"the file is on a local disk ({kind or 'of an unknown type'})"),
        _mode_finding(path),
        _wal_finding(path),
        disk_finding(path.parent),
    ]


def require_file(path: Path, shown: Path | None = None) -> None:
    if not path.exists():
        hint = "run or publish a workflow first, or name another one with --store or TIDEMILL_STORE"
        raise rejected("store_missing", f"there is no store {shown or path}", hint=hint)


def _mode_finding(path: Path) -> Finding:
    """Whether others than the owner and the group can read or write the file or what stands beside it."""
    open_to: dict[Path, int] = {}
    for each in (path, *(Path(f"{path}{suffix}") for suffix in (*SIDE_FILES, "-live"))):
        # The files beside it come and go.
        with suppress(FileNotFoundError):
            open_to[each] = each.stat().st_mode & stat.S_IRWXO
    loose = [each for each, bits in open_to.items() if bits]
    writable = any(open_to[each] & stat.S_IWOTH for each in loose)
    names = " and ".join(each.name for each in loose)
    bad = f"every user of this machine can {'change' if writable else 'read'} {names}" if loose else ""
    hint = f"chmod o-rwx {' '.join(shlex.quote(str(each)) for each in loose)}"
    ok = "only the owner and the group can use the file"
    return judged("file_mode", "store", ok, bad, hint, "error" if writable else "warning")


def _wal_finding(path: Path) -> Finding:
    size = _size_of(f"{path}-wal")
    shown = f"the WAL has {size >> 20:,} MiB"
    bad = f"{shown}: a reader keeps it from restarting" if size > WAL_BYTES_MAX else ""
    hint = f"stop programs that read it for long (`fuser {shlex.quote(str(path))}`); the next commits shrink it"
    return judged("wal_size", "store", shown, bad, hint)


def disk_finding(folder: Path) -> Finding:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    severity: Severity = "ok" if free >= DISK_BYTES_LOW else "warning" if free >= DISK_BYTES_MIN else "error"
    hint = "" if severity == "ok" else f"free space on the disk of {folder}; `tidemill archive sweep` retires old runs"
    return Finding("disk_space", severity, f"the disk has {free / (1 << 30):,.1f} GiB left", hint)


# Checksums

CHECKSUM_BYTES = 4


def counters_checksum(counters: Sequence[int]) -> int:
    return crc32("/".join(map(str, counters)).encode())


def place_in(stream: Stream, what: object) -> bytes:
    """A place in a stream, by the stream's name: a damaged index may lead to the number of another stream."""
    return f"{stream.kind}\0{stream.tenant}\0{stream.key}\0{what}".encode()


class Damaged(Exception):
    """Stored bytes are not the bytes that were written."""


def checksum(body: bytes, place: bytes) -> bytes:
    """A body with its checksum in front."""
    return crc32(body, crc32(place)).to_bytes(CHECKSUM_BYTES, "little") + body


def verify(stored: bytes, place: bytes, what: str) -> bytes:
    """The body, if its checksum fits this place. A flipped bit may even have changed its type."""
    if not isinstance(stored, bytes):
        raise Damaged(f"{what} does not match its checksum")
    body = stored[CHECKSUM_BYTES:]
    if crc32(body, crc32(place)).to_bytes(CHECKSUM_BYTES, "little") != stored[:CHECKSUM_BYTES]:
        raise Damaged(f"{what} does not match its checksum")
    return body
