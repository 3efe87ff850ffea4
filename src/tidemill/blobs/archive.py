"""Where runs go that leave the store: named bodies that are put once, read, and listed by name.

An archive is a directory, a bucket, or (for tests) a dict. Names are paths of plain ASCII made by the caller. A body
is durable when `put` returns and never changes afterwards; putting a name that is there already changes nothing and
says so, which is what makes an interrupted sweep resumable.
"""

from __future__ import annotations

import asyncio
import errno
import os
from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import IO, TYPE_CHECKING, Protocol, TypeVar

from tidemill.blobs.contract import PIECE_BYTES, spooled, whole
from tidemill.blobs.directory import sweep, sync_file, sync_folder
from tidemill.blobs.s3 import AT_ONCE_BYTES_MAX, Objects
from tidemill.errors import Problem, StoreUnusable, Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Store


T = TypeVar("T")

DRAFTS = ".drafts"
"""Names that begin with a dot are no names of an archive."""
UNUSABLE = "archive_unusable"
LASTING = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS)
"""What is wrong with a folder until somebody sees to it."""


class Archive(Protocol):
    """Bodies by name."""

    async def put(self, name: str, body: bytes) -> bool:
        """Store a body durably unless the name is taken; whether it was stored."""
        ...

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> bool:
        """The same for a body that comes bit by bit and need not fit into memory; one that breaks off is not stored."""
        ...

    async def get(self, name: str) -> bytes | None:
        """The body of a name, if there is one."""
        ...

    async def stream(self, name: str) -> AsyncIterator[bytes] | None:
        """The same bit by bit."""
        ...

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        """Names that begin with `under` and stand behind `after`, in order, at most `limit` of them."""
        ...


class MemoryArchive:
    """An archive that ends with the process."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._names: list[str] = []

    async def put(self, name: str, body: bytes) -> bool:
        if name in self._held:
            return False
        self._held[name] = body
        insort(self._names, name)
        return True

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> bool:
        return name not in self._held and await self.put(name, await whole(chunks))

    async def get(self, name: str) -> bytes | None:
        return self._held.get(name)

    async def stream(self, name: str) -> AsyncIterator[bytes] | None:
        body = self._held.get(name)
        return None if body is None else at_once(body)

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        first = bisect_right(self._names, max(after, ""))
        found = (name for name in self._names[first:] if name.startswith(under))
        return [name for name, _ in zip(found, range(limit), strict=False)]


class DirectoryArchive:
    """An archive in a directory. A file appears under its name only when all of it is on the disk.

    Drafts lie in a folder of their own. Those that killed processes left there are swept away a day later, by whoever
    puts something. The first body makes the folder. Until then it is empty, unless somebody has `named` it: he may mean
    another one, or it is on a disk that is not mounted.
    """

    def __init__(self, root: Path, *, named: bool = False) -> None:
        self._root, self._named = root, named

    async def put(self, name: str, body: bytes) -> bool:
        return await self.put_stream(name, at_once(body))

    async def put_stream(self, name: str, chunks: AsyncIterator[bytes]) -> bool:
        target = self._root / name
        with self._told("written"):
            stored = not await asyncio.to_thread(target.exists) and await self._written(target, chunks)
            # In either case: whoever linked a name that is there already may have died before it came to this.
            await asyncio.to_thread(self._sync_above, target)
        return stored

    async def _written(self, target: Path, chunks: AsyncIterator[bytes]) -> bool:
        """Write a draft and give it its name; false when somebody else was faster."""
        file, draft = await asyncio.to_thread(self._draft, target)
        try:
            with file:
                async for chunk in chunks:
                    await asyncio.to_thread(file.write, chunk)
                await asyncio.to_thread(sync_file, file)
            # A link, unlike a rename, never replaces what somebody else has put there meanwhile.
            await asyncio.to_thread(os.link, draft, target)
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
        return True

    def _draft(self, target: Path) -> tuple[IO[bytes], str]:
        drafts = self._root / DRAFTS
        _make_directories(drafts)
        _make_directories(target.parent)
        sweep(drafts)
        handle, draft = mkstemp(dir=drafts)
        return os.fdopen(handle, "wb"), draft

    @contextmanager
    def _told(self, verb: str) -> Iterator[None]:
        """Say what is wrong with the folder in one line."""
        try:
            yield
        except OSError as error:
            what = f"the archive {self._root} cannot be {verb}: {error.strerror or error}"
            if error.errno not in LASTING:
                raise Unavailable(what) from error
            hint = "name a folder that can be read and written, with --archive or TIDEMILL_ARCHIVE"
            raise StoreUnusable(Problem(code=UNUSABLE, message=what, hint=hint)) from error

    def _sync_above(self, target: Path) -> None:
        """Make sure that a name, and those of the folders on the way to it, are on the disk."""
        for folder in target.parents:
            sync_folder(folder)
            if folder == self._root:
                break

    async def get(self, name: str) -> bytes | None:
        chunks = await self.stream(name)
        return None if chunks is None else await whole(chunks)

    async def stream(self, name: str) -> AsyncIterator[bytes] | None:
        try:
            with self._told("read"):
                return self._pieces(await asyncio.to_thread((self._root / name).open, "rb"))
        except Unavailable as error:
            if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
                return None
            raise

    async def _pieces(self, file: IO[bytes]) -> AsyncIterator[bytes]:
        with file, self._told("read"):
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        return await asyncio.to_thread(self._list, under, after, limit)

    def _list(self, under: str, after: str, limit: int) -> list[str]:
        with self._told("read"):
            if self._named or self._root.exists():
                os.scandir(self._root).close()
            return [name for name, _ in zip(self._walk("", under, after), range(limit), strict=False)]

    def _walk(self, folder: str, under: str, after: str) -> Iterator[str]:
        """Names in order; folders that cannot hold one are passed over unopened."""
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
    """An archive in a bucket, or in a part of one that the store was opened with."""

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
            # A writer that is as fast writes the same bytes.
            await self._objects.write(name, draft.pieces())
        return True

    async def get(self, name: str) -> bytes | None:
        chunks = await self.stream(name)
        return None if chunks is None else await whole(chunks)

    async def stream(self, name: str) -> AsyncIterator[bytes] | None:
        return await self._objects.stream(name)

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        found: list[str] = []
        # A bucket takes whole folders as a prefix, so the end of `under` is compared here.
        async for known in self._objects.list(under.rpartition("/")[0], after or None):
            if known["path"].startswith(under):
                found.append(known["path"])
            if len(found) >= limit:
                break
        return found[:limit]


async def at_once(body: bytes) -> AsyncIterator[bytes]:
    """A body as a stream of one piece."""
    yield body


def _make_directories(path: Path) -> None:
    """Make a directory and those above it, each durable in the one that holds it."""
    if path.is_dir():
        return
    _make_directories(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)
