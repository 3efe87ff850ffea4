"""Where runs go that leave the store: named bodies that are put once, read, and listed by name.

An archive is a directory, a bucket, or (for tests) a dict. Names are paths of plain ASCII made by the caller. A body
is durable when `put` returns and never changes afterwards; putting a name that is there already changes nothing and
says so, which is what makes an interrupted sweep resumable.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_right, insort
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Protocol

from tidemill.errors import Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Store

DRAFTS = ".drafts"
"""Names that begin with a dot are no names of an archive."""
LEFTOVER_SECONDS = 24 * 3600
"""A draft of this age belongs to nobody who still writes."""


class Archive(Protocol):
    """Bodies by name."""

    async def put(self, name: str, body: bytes) -> bool:
        """Store a body durably unless the name is taken; whether it was stored."""
        ...

    async def get(self, name: str) -> bytes | None:
        """The body of a name, if there is one."""
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

    async def get(self, name: str) -> bytes | None:
        return self._held.get(name)

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        first = bisect_right(self._names, max(after, ""))
        found = (name for name in self._names[first:] if name.startswith(under))
        return [name for name, _ in zip(found, range(limit), strict=False)]


class DirectoryArchive:
    """An archive in a directory. A file appears under its name only when all of it is on the disk.

    Drafts lie in a folder of their own. Those that killed processes left there are swept away a day later, by whoever
    puts something.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, name: str, body: bytes) -> bool:
        return await asyncio.to_thread(self._put, name, body)

    def _put(self, name: str, body: bytes) -> bool:
        target = self._root / name
        try:
            stored = not target.exists() and self._link(target, body)
            # In either case: whoever linked a name that is there already may have died before it came to this.
            self._sync_above(target)
        except OSError as error:
            raise Unavailable(f"the archive cannot be written: {error}") from error
        return stored

    def _link(self, target: Path, body: bytes) -> bool:
        """Write a draft and give it its name; false when somebody else was faster."""
        drafts = self._root / DRAFTS
        _make_directories(drafts)
        _make_directories(target.parent)
        _sweep(drafts)
        handle, draft = mkstemp(dir=drafts)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            # A link, unlike a rename, never replaces what somebody else has put there meanwhile.
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
        return True

    def _sync_above(self, target: Path) -> None:
        """Make sure that a name, and those of the folders on the way to it, are on the disk."""
        for folder in target.parents:
            _sync_directory(folder)
            if folder == self._root:
                break

    async def get(self, name: str) -> bytes | None:
        return await asyncio.to_thread(self._get, name)

    def _get(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise Unavailable(f"the archive cannot be read: {error}") from error

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        return await asyncio.to_thread(self._list, under, after, limit)

    def _list(self, under: str, after: str, limit: int) -> list[str]:
        try:
            return [name for name, _ in zip(self._walk("", under, after), range(limit), strict=False)]
        except OSError as error:
            raise Unavailable(f"the archive cannot be read: {error}") from error

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
        self._store = store

    async def put(self, name: str, body: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            await self._store.put_async(name, body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except BaseError as error:
            raise Unavailable(f"the archive cannot be written: {error}") from error
        return True

    async def get(self, name: str) -> bytes | None:
        from obstore.exceptions import BaseError

        try:
            answer = await self._store.get_async(name)
            return bytes(await answer.bytes_async())
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise Unavailable(f"the archive cannot be read: {error}") from error

    async def names(self, under: str = "", *, after: str = "", limit: int = 1_000) -> list[str]:
        from obstore.exceptions import BaseError

        found: list[str] = []
        try:
            # A bucket takes whole folders as a prefix, so the end of `under` is compared here.
            folder = under.rpartition("/")[0] or None
            async for page in self._store.list(folder, offset=after or None, chunk_size=min(limit, 1_000)):
                found += [meta["path"] for meta in page if meta["path"].startswith(under)]
                if len(found) >= limit:
                    break
        except BaseError as error:
            raise Unavailable(f"the archive cannot be read: {error}") from error
        return sorted(found)[:limit]


def _make_directories(path: Path) -> None:
    """Make a directory and those above it, each durable in the one that holds it."""
    if path.is_dir():
        return
    _make_directories(path.parent)
    path.mkdir(exist_ok=True)
    _sync_directory(path.parent)


def _sweep(drafts: Path) -> None:
    """Take away what killed processes left."""
    for leftover in drafts.iterdir():
        # Somebody else may sweep at the same time.
        with suppress(FileNotFoundError):
            if leftover.stat().st_mtime < time.time() - LEFTOVER_SECONDS:
                leftover.unlink()


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
