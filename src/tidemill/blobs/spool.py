"""A stream set aside on the disk until its end is known, for stores that need the digest before the first byte."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import IO

from tidemill.blobs.contract import PIECE_BYTES
from tidemill.errors import Unavailable

MEMORY_BYTES_MAX = 8 * PIECE_BYTES
"""What is not longer than this never sees the disk."""


class Spooled:
    """A stream that has ended: what it is called, and its bytes once more from the beginning."""

    def __init__(self, file: IO[bytes], digest: str, size: int) -> None:
        self.file, self.digest, self.size = file, digest, size

    def pieces(self) -> Iterator[bytes]:
        """The bytes, bit by bit."""
        self.file.seek(0)
        while piece := self.file.read(PIECE_BYTES):
            yield piece


@asynccontextmanager
async def spooled(chunks: AsyncIterator[bytes]) -> AsyncIterator[Spooled]:
    """Take in a stream; it is gone when the block is left."""
    with tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX) as file:
        seen, size = hashlib.sha256(), 0
        async for chunk in chunks:
            seen.update(chunk)
            size += len(chunk)
            try:
                await asyncio.to_thread(file.write, chunk)
            except OSError as error:
                raise Unavailable(f"no room to set a stream aside: {error.strerror or error}") from error
        yield Spooled(file, f"sha256:{seen.hexdigest()}", size)
