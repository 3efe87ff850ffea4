"""Archives of runs that left the store: named bodies that are put once, read, and listed by name.

An archive is a directory, a bucket or (for tests) a dict. Names are plain ASCII paths made by the caller. A body is
durable when `put` returns and never changes; `put` of an existing name changes nothing and returns False, which makes
an interrupted retention sweep resumable.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import mkstemp
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

from tidemill.blobs.contract import PIECE_BYTES, spooled, whole
from tidemill.blobs.directory import sweep, sync_above, sync_file, sync_folder
from tidemill.blobs.s3 import AT_ONCE_BYTES_MAX, Objects
from tidemill.errors import Problem, StoreUnusable, Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Store


T = TypeVar("T")

UNUSABLE = "archive_unusable"


class Archive(Protocol):
    """Immutable bodies by name."""

    async def put(self, name: str, body: bytes) -> bool:
        """Store a body durably unless the name exists; returns whether it was stored."""

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> bool:
        """`put` for a stream that need not fit into memory; an interrupted one is not stored."""

    async def get(self, name: str) -> bytes | None:
        """The body of a name, if it exists."""

    async def stream(self, name: str) -> AsyncIterator[bytes] | None:
        """`get` as a stream."""

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        """At most `limit` names that begin with `under`, after `after`, in order."""


class MemoryArchive:
    """An archive that ends with the process."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    async def put(self, name: str, body: bytes) -> bool:
        if name in self._held:
            return False
        self._held[name] = body
        return True

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> bool:
        return name not in self._held and await self.put(name, await whole(chunks))

    async def get(self, name: str) -> bytes | None:
        return self._held.get(name)

    async def stream(self, name: str) -> AsyncIterator[bytes] | None:
        body = self._held.get(name)
        return None if body is None else at_once(body)

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        return sorted(name for name in self._held if name.startswith(under) and name > after)[:limit]


class DirectoryArchive:
    """An archive in a directory. A file gets its name only once all of it is on disk.

    Drafts of killed processes are removed a day later by the next `put`. The first `put` creates the directory. Until
    then it counts as empty, unless an operator `named` it: then its absence is an error (a typo, an unmounted disk).
    """

    def __init__(self, root: Path, *, named: bool = False) -> None:
        self._root, self._named = root, named

    async def put(self, name: str, body: bytes) -> bool:
        return await self.put_stream(name, at_once(body))

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> bool:
        target = self._root / name
        with self._errors("written"):
            stored = not await asyncio.to_thread(target.exists) and await self._written(target, chunks)
            # In either case: the process that linked an existing name may have died before its sync.
            await asyncio.to_thread(sync_above, target, self._root)
        return stored

    async def _written(self, target: Path, chunks: AsyncIterator[bytes]) -> bool:
        """Write a draft and link it to its name; False if the name exists already."""
        file, draft = await asyncio.to_thread(self._draft, target)
        try:
            with file:
                async for chunk in chunks:
                    await asyncio.to_thread(file.write, chunk)
                await asyncio.to_thread(sync_file, file)
            # A link, unlike a rename, never replaces an existing file.
            await asyncio.to_thread(os.link, draft, target)
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
        return True

    def _draft(self, target: Path) -> tuple[IO[bytes], str]:
        # Names with a leading dot are not names of an archive.
        drafts = self._root / ".drafts"
        _make_directories(drafts)
        _make_directories(target.parent)
        sweep(drafts)
        handle, draft = mkstemp(dir=drafts)
        return os.fdopen(handle, "wb"), draft

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Turn errors of the folder into one-line errors."""
        try:
            yield
        except OSError as error:
            what = f"the archive {self._root} cannot be {verb}: {error.strerror or error}"
            lasting = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS)
            if error.errno not in lasting:
                raise Unavailable(what) from error
            hint = "name a folder that can be read and written, with --archive or TIDEMILL_ARCHIVE"
            raise StoreUnusable(Problem(code=UNUSABLE, message=what, hint=hint)) from error

    async def get(self, name: str) -> bytes | None:
        chunks = await self.stream(name)
        return None if chunks is None else await whole(chunks)

    async def stream(self, name: str) -> AsyncIterator[bytes] | None:
        try:
            with self._errors("read"):
                return self._pieces(await asyncio.to_thread((self._root / name).open, "rb"))
        except Unavailable as error:
            if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
                return None
            raise

    async def _pieces(self, file: IO[bytes]) -> AsyncIterator[bytes]:
        with file, self._errors("read"):
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        return await asyncio.to_thread(self._list, under, after, limit)

    def _list(self, under: str, after: str, limit: int) -> list[str]:
        with self._errors("read"):
            if self._named or self._root.exists():
                os.scandir(self._root).close()
            return list(islice(self._walk("", under, after), limit))

    def _walk(self, folder: str, under: str, after: str) -> Iterator[str]:
        """Names in order; folders that cannot hold a match are not opened."""
        place = self._root / folder
        if not place.is_dir():
            return
        with os.scandir(place) as found:
            entries = [(entry.name + "/" if entry.is_dir() else entry.name) for entry in found]
        for entry in sorted(entries):
            name = folder + entry
            if entry.startswith("."):
                continue
            if not entry.endswith("/"):
                if name.startswith(under) and name > after:
                    yield name
            elif (name.startswith(under) or under.startswith(name)) and (name > after or after.startswith(name)):
                yield from self._walk(name, under, after)


class S3Archive:
    """An archive in a bucket, or below a prefix of one."""

    def __init__(self, store: S3Store) -> None:
        self._objects = Objects(store, "the archive", UNUSABLE)

    async def put(self, name: str, body: bytes) -> bool:
        return await self._objects.create(name, body)

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> bool:
        if await self._objects.head(name) is not None:
            return False
        async with spooled(chunks) as draft:
            if draft.size <= AT_ONCE_BYTES_MAX:
                return await self.put(name, b"".join(draft.pieces()))
            # A concurrent writer writes the same bytes.
            await self._objects.write(name, draft.pieces())
        return True

    async def get(self, name: str) -> bytes | None:
        chunks = await self.stream(name)
        return None if chunks is None else await whole(chunks)

    async def stream(self, name: str) -> AsyncIterator[bytes] | None:
        return await self._objects.stream(name)

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        found: list[str] = []
        # A bucket lists by whole folders, so the rest of `under` is compared here.
        async for known in self._objects.list(under.rpartition("/")[0], after or None):
            if known["path"].startswith(under):
                found.append(known["path"])
            if len(found) >= limit:
                break
        return found[:limit]


async def at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _make_directories(path: Path) -> None:
    """Create a directory and its parents durably."""
    if path.is_dir():
        return
    _make_directories(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    sync_folder(path.parent)
