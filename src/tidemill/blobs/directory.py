"""Blobs as files: `<root>/<tenant>/active/ab/<digest>`, likewise `grace`; an empty file below `keep` exempts a blob.

A blob is written to a temporary file, synced and linked to its name; then the folder is synced, so a power cut loses
neither bytes nor name. Temporary files of killed processes are removed a day later. Changing the state is a rename.
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
from itertools import islice
from pathlib import Path
from typing import IO, ParamSpec, TypeVar
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

# Durable files


def sweep(drafts: Path) -> None:
    """Remove temporary files that killed processes left: no process still writes to one that is a day old."""
    for leftover in drafts.iterdir():
        # Another process may sweep at the same time.
        with suppress(FileNotFoundError):
            if leftover.stat().st_mtime < time.time() - 24 * 3600:
                leftover.unlink()


def renewed(path: Path) -> bool:
    """Whether a file exists; renews an old date."""
    try:
        if mtime_ms(path.stat()) < time.time_ns() // 1_000_000 - RENEW_MS:
            os.utime(path)
    except FileNotFoundError:
        return False
    return True


def is_sound(path: Path, digits: str) -> bool:
    """Whether a file is readable and matches its digest."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digits
    except OSError:
        return False


def mtime_ms(known: os.stat_result) -> int:
    return known.st_mtime_ns // 1_000_000


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_above(path: Path, root: Path) -> None:
    """Make a name and the names of its parent folders up to the root durable."""
    for folder in path.parents:
        sync_folder(folder)
        if folder == root:
            break


def sync_file(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def drop(draft: IO[bytes]) -> None:
    """Close a draft and remove its temporary name; a linked blob keeps its own."""
    with suppress(OSError):
        draft.close()
    with suppress(OSError):
        os.unlink(draft.name)


# The blobs

LOG = logging.getLogger(__name__)

KEEP = "keep"
TEMPORARY = ".tmp"
"""No tenant's folder has a dot in its name."""

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")

P = ParamSpec("P")
T = TypeVar("T")


def folder_name(tenant: str) -> str:
    """A tenant as a folder name that is safe on any file system, case-insensitive ones included."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in tenant.encode()) or "%"


def tenant_of(folder: str) -> str:
    return "" if folder == "%" else unquote(folder)


class DirectoryBlobs:
    """A `Blobs` in a directory that several processes may share. Blocking calls run in a thread.

    Opening a `read_only` one creates nothing.
    """

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        self.root, self._read_only = root, read_only
        self._prepared = False

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call in a thread; an error of the disk is `Unavailable` with a one-line reason."""
        try:
            return await asyncio.to_thread(call, *args, **kwargs)
        except OSError as error:
            raise Unavailable(f"the blobs in {self.root} cannot be reached: {error.strerror or error}") from error

    # The contract

    async def open(self) -> None:
        if self._read_only:
            return
        try:
            await self._in_thread(self._prepare)
        except Unavailable as error:
            LOG.warning("%s; work that needs a blob waits until the blobs are reachable again", error)

    async def close(self) -> None:
        """No file stays open between two calls."""

    async def put(self, tenant: str, body: bytes, *, keep: bool = False) -> str:
        digest = digest_of(body)
        await self._in_thread(self._put, tenant, hex_of(digest), body, keep)
        return digest

    async def put_stream(self, tenant: str, chunks: AsyncIterator[bytes], *, keep: bool = False) -> tuple[str, int]:
        draft, seen, size = await self._in_thread(self._draft), hashlib.sha256(), 0
        try:
            async for chunk in chunks:
                seen.update(chunk)
                size += len(chunk)
                await self._in_thread(draft.write, chunk)
            if not await self._in_thread(self._is_there, tenant, seen.hexdigest(), keep):
                await self._in_thread(self._link, tenant, seen.hexdigest(), draft)
            return f"sha256:{seen.hexdigest()}", size
        finally:
            drop(draft)

    async def get(self, tenant: str, digest: str) -> bytes:
        return await whole(self.read(tenant, digest))

    def read(self, tenant: str, digest: str, *, start: int = 0) -> AsyncIterator[bytes]:
        chunks = self._chunks(tenant, digest, start)
        return chunks if start else verified(digest, chunks)

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        return await self._in_thread(self._stat, tenant, hex_of(digest))

    async def tenants(self) -> tuple[str, ...]:
        return await self._in_thread(self._tenants)

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        return await self._in_thread(self._list, tenant, "" if after is None else hex_of(after), limit)

    async def quarantine(self, tenant: str, digest: str) -> None:
        await self._in_thread(self._quarantine, tenant, hex_of(digest))

    async def restore(self, tenant: str, digest: str) -> bool:
        return await self._in_thread(self._moved, tenant, hex_of(digest), GRACE, ACTIVE)

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        return await self._in_thread(self._delete, tenant, hex_of(digest), before_ms)

    # Markers of stores

    @property
    def address(self) -> str:
        return f"dir:///{self.root.resolve()}"

    def mark_path(self, mark: str) -> str:
        return str(self.root.resolve() / STORES / mark)

    async def read_markers(self) -> dict[str, str]:
        return await self._in_thread(self._read_markers)

    async def write_marker(self, mark: str, words: str) -> None:
        await self._in_thread(self._write_marker, mark, words)

    def _read_markers(self) -> dict[str, str]:
        folder = self.root / STORES
        found = {path.name: path.read_text(errors="replace") for path in folder.iterdir()} if folder.exists() else {}
        return {name: words for name, words in found.items() if not name.startswith(".")}

    def _write_marker(self, mark: str, words: str) -> None:
        path = self.root / STORES / mark
        self._make(path.parent)
        with path.open("wb") as file:
            file.write(words.encode())
            sync_file(file)
        sync_folder(path.parent)

    # Paths

    def _path(self, tenant: str, place: str, digits: str) -> Path:
        return self.root / folder_name(tenant) / place / digits[:2] / digits

    def _kept(self, tenant: str, digits: str) -> bool:
        return self._path(tenant, KEEP, digits).exists()

    # Writing

    def _prepare(self) -> None:
        """Create and sweep the folder of temporary files."""
        drafts = self.root / TEMPORARY
        drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(drafts)
        self._prepared = True

    def _put(self, tenant: str, digits: str, body: bytes, keep: bool) -> None:
        if self._is_there(tenant, digits, keep):
            return
        draft = self._draft()
        try:
            draft.write(body)
            self._link(tenant, digits, draft)
        finally:
            drop(draft)

    def _draft(self) -> IO[bytes]:
        if not self._prepared:
            # It was unreachable at `open`. Once prepared, it is never created again: an unmounted disk must not be
            # taken for an empty one.
            self._prepare()
        return tempfile.NamedTemporaryFile(dir=self.root / TEMPORARY, delete=False)

    def _is_there(self, tenant: str, digits: str, keep: bool) -> bool:
        """Whether an intact blob is active, or could be moved back to active."""
        if keep:
            # Marked before the blob exists, so that the collector cannot miss it.
            marker = self._path(tenant, KEEP, digits)
            self._make(marker.parent)
            marker.touch()
            sync_folder(marker.parent)
        path = self._path(tenant, ACTIVE, digits)
        if renewed(path):
            # The process that linked it may not have synced the folder yet.
            sync_folder(path.parent)
            return is_sound(path, digits)
        return self._moved(tenant, digits, GRACE, ACTIVE) and is_sound(path, digits)

    def _link(self, tenant: str, digits: str, draft: IO[bytes]) -> None:
        """Sync a draft and link it to its name."""
        sync_file(draft)
        path = self._path(tenant, ACTIVE, digits)
        self._make(path.parent)
        try:
            os.link(draft.name, path)
        except FileExistsError:
            # The existing file is damaged, or another process wrote the same bytes.
            os.replace(draft.name, path)
        sync_folder(path.parent)

    def _make(self, folder: Path) -> None:
        if folder.exists():
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_above(folder, self.root)

    # States

    def _moved(self, tenant: str, digits: str, source: BlobState, target: BlobState) -> bool:
        """Move a blob and reset its date; False if it is not in the source state."""
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

    def _quarantine(self, tenant: str, digits: str) -> None:
        if not self._kept(tenant, digits):
            self._moved(tenant, digits, ACTIVE, GRACE)

    def _delete(self, tenant: str, digits: str, before_ms: int) -> bool:
        path = self._path(tenant, GRACE, digits)
        try:
            if self._kept(tenant, digits) or mtime_ms(path.stat()) >= before_ms:
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    # Reading

    async def _chunks(self, tenant: str, digest: str, start: int) -> AsyncIterator[bytes]:
        with await self._in_thread(self._opened, tenant, digest) as file:
            file.seek(start)
            while chunk := await self._in_thread(file.read, PIECE_BYTES):
                yield chunk

    def _opened(self, tenant: str, digest: str) -> IO[bytes]:
        # It may move between two attempts, so the first state is tried again.
        for place in (ACTIVE, GRACE, ACTIVE):
            with suppress(FileNotFoundError):
                return self._path(tenant, place, hex_of(digest)).open("rb")
        raise missing(digest)

    def _stat(self, tenant: str, digits: str) -> BlobInfo | None:
        found = (self._info(tenant, place, digits) for place in (ACTIVE, GRACE, ACTIVE))
        return next((info for info in found if info is not None), None)

    def _info(self, tenant: str, place: BlobState, digits: str) -> BlobInfo | None:
        try:
            known = self._path(tenant, place, digits).stat()
        except FileNotFoundError:
            return None
        digest, kept = f"sha256:{digits}", self._kept(tenant, digits)
        return BlobInfo(digest=digest, size=known.st_size, since_ms=mtime_ms(known), state=place, kept=kept)

    def _tenants(self) -> tuple[str, ...]:
        folders = (entry.name for entry in os.scandir(self.root) if entry.is_dir() and "." not in entry.name)
        return tuple(sorted(map(tenant_of, folders)))

    def _list(self, tenant: str, after: str, limit: int) -> Listing:
        return [
            info
            for digits in islice(self._digits(tenant, after), limit)
            for place in (ACTIVE, GRACE)
            if (info := self._info(tenant, place, digits)) is not None
        ]

    def _digits(self, tenant: str, after: str) -> Iterator[str]:
        """The names of blobs in either state, in order, one shard at a time."""
        for number in range(int(after[:2] or "0", 16), 256):
            names = {name for place in (ACTIVE, GRACE) for name in _names(self._path(tenant, place, f"{number:02x}"))}
            yield from sorted(name for name in names if name > after)


def _names(path: Path) -> Sequence[str]:
    try:
        return os.listdir(path.parent)
    except FileNotFoundError:
        return ()
