"""Blobs as files.

Blobs as files of a directory: `<root>/<tenant>/active/ab/<digest>`, and the same below `grace`.

A blob is written to a temporary file, synced, and linked to its name, which either is there or not; then the folder is
synced, so that neither the bytes nor the name are lost with the power. A process that is killed leaves a temporary
file behind, which the next one to open the directory sweeps away a day later. Moving between the places is a rename.
An empty file below `keep` says that a blob is never collected.

Files on a disk: how old they are, whether they hold what their names promise, and that no power cut takes them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import IO, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote

from tidemill.blobs.contract import (
    ACTIVE,
    GRACE,
    PIECE_BYTES,
    RENEW_MS,
    STORES,
    BlobInfo,
    BlobState,
    Listing,
    digest_of,
    hex_of,
    missing,
    verified,
    whole,
)
from tidemill.errors import Unavailable

LEFTOVER_SECONDS = 24 * 3600
"""No process still writes to a temporary file of this age."""


def sweep(drafts: Path) -> None:
    """Remove the temporary files that killed processes left in a folder."""
    for leftover in drafts.iterdir():
        # Another process may sweep at the same time.
        with suppress(FileNotFoundError):
            if leftover.stat().st_mtime < time.time() - LEFTOVER_SECONDS:
                leftover.unlink()


def renewed(path: Path) -> bool:
    """Whether a file is there; its date is renewed when it is an old one."""
    try:
        if mtime_ms(path.stat()) < time.time_ns() // 1_000_000 - RENEW_MS:
            os.utime(path)
    except FileNotFoundError:
        return False
    return True


def is_sound(path: Path, digits: str) -> bool:
    """Whether a file holds the bytes that its name promises. One that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digits
    except OSError:
        return False


def mtime_ms(known: os.stat_result) -> int:
    """When a file was dated last."""
    return known.st_mtime_ns // 1_000_000


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_file(file: IO[bytes]) -> None:
    """Make sure that what was written to a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def drop(draft: IO[bytes]) -> None:
    """Close a draft and take its temporary name away; what was linked stays under the other one."""
    with suppress(OSError):
        draft.close()
    with suppress(OSError):
        os.unlink(draft.name)


def write_synced(path: Path, body: bytes) -> None:
    """Write a small file whose bytes and name are on the disk afterwards."""
    with path.open("wb") as file:
        file.write(body)
        sync_file(file)
    sync_folder(path.parent)


LOG = logging.getLogger(__name__)

KEEP = "keep"
TEMPORARY = ".tmp"
"""No tenant has a folder of this name, because a dot is never part of one."""

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")

P = ParamSpec("P")
T = TypeVar("T")


def folder_name(tenant: str) -> str:
    """A tenant as the name of one folder, on any file system: nothing in it is a path, and case makes no difference."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in tenant.encode()) or "%"


def tenant_of(folder: str) -> str:
    """The tenant whose folder it is."""
    return "" if folder == "%" else unquote(folder)


def _told(verb: Callable[Concatenate[DirectoryBlobs, P], T]) -> Callable[Concatenate[DirectoryBlobs, P], T]:
    """Say what is wrong with the disk in one line."""

    @wraps(verb)
    def call(self: DirectoryBlobs, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return verb(self, *args, **kwargs)
        except OSError as error:
            raise Unavailable(f"the blobs in {self.root} cannot be reached: {error.strerror or error}") from error

    return call


class DirectoryBlobs:
    """A `Blobs` in a directory, which several processes may share. What blocks is done in a thread."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prepared = False

    # Verbs

    async def open(self) -> None:
        try:
            await asyncio.to_thread(self._prepare)
        except Unavailable as error:
            LOG.warning("%s; what needs a blob waits until it is back", error)

    async def close(self) -> None:
        """No file is held open between two verbs."""

    async def put(self, tenant: str, body: bytes, *, keep: bool = False) -> str:
        digest = digest_of(body)
        await asyncio.to_thread(self._put, tenant, digest, body, keep)
        return digest

    async def put_stream(self, tenant: str, chunks: AsyncIterator[bytes], *, keep: bool = False) -> tuple[str, int]:
        draft, seen, size = await asyncio.to_thread(self._draft), hashlib.sha256(), 0
        try:
            async for chunk in chunks:
                seen.update(chunk)
                size += len(chunk)
                await asyncio.to_thread(self._write, draft, chunk)
            digest = f"sha256:{seen.hexdigest()}"
            await asyncio.to_thread(self._settle, tenant, digest, draft, keep)
            return digest, size
        finally:
            drop(draft)

    async def get(self, tenant: str, digest: str) -> bytes:
        return await whole(self.read(tenant, digest))

    async def read(self, tenant: str, digest: str) -> AsyncIterator[bytes]:
        async for chunk in verified(digest, self._chunks(tenant, digest)):
            yield chunk

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        return await asyncio.to_thread(self._stat, tenant, hex_of(digest))

    async def tenants(self) -> tuple[str, ...]:
        return await asyncio.to_thread(self._tenants)

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        return await asyncio.to_thread(self._list, tenant, "" if after is None else hex_of(after), limit)

    async def quarantine(self, tenant: str, digest: str) -> None:
        await asyncio.to_thread(self._retire, tenant, hex_of(digest))

    async def restore(self, tenant: str, digest: str) -> bool:
        return await asyncio.to_thread(self._restore, tenant, hex_of(digest))

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        return await asyncio.to_thread(self._delete, tenant, hex_of(digest), before_ms)

    # Marks of stores

    @property
    def address(self) -> str:
        return f"dir:///{self.root.resolve()}"

    def mark_path(self, mark: str) -> str:
        return str(self.root.resolve() / STORES / mark)

    async def read_markers(self) -> dict[str, str]:
        return await asyncio.to_thread(self._marks)

    async def write_marker(self, mark: str, words: str) -> None:
        await asyncio.to_thread(self._sign, mark, words)

    @_told
    def _marks(self) -> dict[str, str]:
        folder = self.root / STORES
        found = {path.name: path.read_text(errors="replace") for path in folder.iterdir()} if folder.exists() else {}
        return {name: words for name, words in found.items() if not name.startswith(".")}

    @_told
    def _sign(self, mark: str, words: str) -> None:
        path = self.root / STORES / mark
        self._make(path.parent)
        write_synced(path, words.encode())

    # Where things are

    def _path(self, tenant: str, place: str, digits: str) -> Path:
        return self.root / folder_name(tenant) / place / digits[:2] / digits

    def _kept(self, tenant: str, digits: str) -> bool:
        return self._path(tenant, KEEP, digits).exists()

    # Writing

    @_told
    def _prepare(self) -> None:
        """Make the folder for drafts, and sweep away what killed processes left in it."""
        drafts = self.root / TEMPORARY
        drafts.mkdir(parents=True, exist_ok=True)
        sweep(drafts)
        self._prepared = True

    @_told
    def _put(self, tenant: str, digest: str, body: bytes, keep: bool) -> None:
        if self._is_there(tenant, hex_of(digest), keep):
            return
        draft = self._draft()
        try:
            draft.write(body)
            self._link(tenant, hex_of(digest), draft)
        finally:
            drop(draft)

    @_told
    def _draft(self) -> IO[bytes]:
        """A file that nobody knows yet."""
        if not self._prepared:
            # The folder could not be reached when it was opened. Later on its absence is never mended here: a disk that
            # is no longer mounted must not be taken for an empty one.
            self._prepare()
        return tempfile.NamedTemporaryFile(dir=self.root / TEMPORARY, delete=False)

    @_told
    def _write(self, draft: IO[bytes], chunk: bytes) -> None:
        draft.write(chunk)

    @_told
    def _settle(self, tenant: str, digest: str, draft: IO[bytes], keep: bool) -> None:
        """A finished draft becomes a blob, unless there is one already."""
        if not self._is_there(tenant, hex_of(digest), keep):
            self._link(tenant, hex_of(digest), draft)

    def _is_there(self, tenant: str, digits: str, keep: bool) -> bool:
        """Whether the blob is in the active place, or could be moved back there, and its bytes are the right ones."""
        if keep:
            # Said first, so that no collector overlooks it once the blob is there.
            marker = self._path(tenant, KEEP, digits)
            self._make(marker.parent)
            marker.touch()
            sync_folder(marker.parent)
        path = self._path(tenant, ACTIVE, digits)
        if renewed(path):
            # Whoever linked it may not have come to this yet.
            sync_folder(path.parent)
            return is_sound(path, digits)
        return self._moved(tenant, digits, GRACE, ACTIVE) and is_sound(path, digits)

    def _link(self, tenant: str, digits: str, draft: IO[bytes]) -> None:
        """Give a draft its name, once its bytes are on the disk."""
        sync_file(draft)
        path = self._path(tenant, ACTIVE, digits)
        self._make(path.parent)
        try:
            os.link(draft.name, path)
        except FileExistsError:
            # What lies there is damaged, or somebody else was faster and wrote the same.
            os.replace(draft.name, path)
        sync_folder(path.parent)

    def _make(self, folder: Path) -> None:
        """Make a folder with those above it, so that none of them is lost with the power."""
        if folder.exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        for parent in folder.parents:
            sync_folder(parent)
            if parent == self.root:
                break

    # Between the places

    def _moved(self, tenant: str, digits: str, source: BlobState, target: BlobState) -> bool:
        """Move a blob, and let its time there begin now; false when it is not where it should be moved from."""
        here, there = (self._path(tenant, place, digits) for place in (source, target))
        try:
            os.utime(here)
            self._make(there.parent)
            here.replace(there)
        except FileNotFoundError:
            return False
        sync_folder(there.parent)
        sync_folder(here.parent)
        return True

    @_told
    def _retire(self, tenant: str, digits: str) -> None:
        if not self._kept(tenant, digits):
            self._moved(tenant, digits, ACTIVE, GRACE)

    @_told
    def _restore(self, tenant: str, digits: str) -> bool:
        return self._moved(tenant, digits, GRACE, ACTIVE)

    @_told
    def _delete(self, tenant: str, digits: str, before_ms: int) -> bool:
        path = self._path(tenant, GRACE, digits)
        try:
            if self._kept(tenant, digits) or mtime_ms(path.stat()) >= before_ms:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    # Looking

    async def _chunks(self, tenant: str, digest: str) -> AsyncIterator[bytes]:
        file = await asyncio.to_thread(self._opened, tenant, digest)
        with file:
            while chunk := await asyncio.to_thread(self._next, file):
                yield chunk

    @_told
    def _opened(self, tenant: str, digest: str) -> IO[bytes]:
        # It may be moved between two looks, so the first place is looked at again.
        for place in (ACTIVE, GRACE, ACTIVE):
            with suppress(FileNotFoundError):
                return self._path(tenant, place, hex_of(digest)).open("rb")
        raise missing(digest)

    @_told
    def _next(self, file: IO[bytes]) -> bytes:
        return file.read(PIECE_BYTES)

    @_told
    def _stat(self, tenant: str, digits: str) -> BlobInfo | None:
        for place in (ACTIVE, GRACE, ACTIVE):
            info = self._info(tenant, place, digits)
            if info is not None:
                return info
        return None

    def _info(self, tenant: str, place: BlobState, digits: str) -> BlobInfo | None:
        try:
            known = self._path(tenant, place, digits).stat()
        except FileNotFoundError:
            return None
        return BlobInfo(
            digest=f"sha256:{digits}",
            size=known.st_size,
            since_ms=mtime_ms(known),
            state=place,
            kept=self._kept(tenant, digits),
        )

    @_told
    def _tenants(self) -> tuple[str, ...]:
        folders = (entry.name for entry in os.scandir(self.root) if entry.is_dir() and "." not in entry.name)
        return tuple(sorted(map(tenant_of, folders)))

    @_told
    def _list(self, tenant: str, after: str, limit: int) -> Listing:
        found = (
            info
            for digits in islice(self._digits(tenant, after), limit)
            for place in (ACTIVE, GRACE)
            if (info := self._info(tenant, place, digits)) is not None
        )
        return [*found]

    def _digits(self, tenant: str, after: str) -> Iterator[str]:
        """The names of blobs in either place, in order, one folder of each at a time."""
        for number in range(int(after[:2] or "0", 16), 256):
            names = {name for place in (ACTIVE, GRACE) for name in _names(self._path(tenant, place, f"{number:02x}"))}
            yield from sorted(name for name in names if name > after)


def _names(path: Path) -> Sequence[str]:
    """What lies in the folder of a shard, whose name is that of a path without its last part."""
    try:
        return os.listdir(path.parent)
    except FileNotFoundError:
        return ()
