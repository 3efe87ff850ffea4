"""What events point to: large values, and the files that are described in values of any size.

Each is read to its end and compared with its digest, a piece at a time, so that a file of any size may be audited. A
large value is looked through for descriptions on the way. What a file holds is its own affair.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, cast

import msgspec

from tidemill.blobs.contract import BlobMissing, Blobs
from tidemill.engine.binaries import DESCRIBED_LENGTH, files_in
from tidemill.errors import Unavailable, Unfit
from tidemill.kernel.events import AnyEvent, BlobRef, Payload, RunPatched

DAMAGES = frozenset({"blob_damaged", "store_damaged"})


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with something that an event points to, in words that follow the name of the event."""

    code: str
    message: str


def payloads_in(value: Any) -> Iterator[Payload]:
    """Every value in an event, as its text or as the reference to one that is stored apart."""
    if isinstance(value, (bytes, BlobRef)):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from payloads_in(getattr(value, name))
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from payloads_in(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from payloads_in(inner)


def is_damage(error: Exception) -> bool:
    """Whether other bytes were read than were written; an outage, which says nothing about them, is none."""
    return isinstance(error, Unfit) and error.problem.code in DAMAGES


class Evidence:
    """What the events of one run point to; each blob is read once, however often it is pointed to."""

    def __init__(self, blobs: Blobs, tenant: str) -> None:
        self._blobs, self._tenant = blobs, tenant
        self._read: set[str] = set()

    async def faults(self, event: AnyEvent) -> list[Fault]:
        """What an event points to for the first time and is not as it must be."""
        found: list[Fault] = []
        values, files = set[str](), set[str]()
        for payload in payloads_in(event):
            if isinstance(payload, BlobRef):
                values.add(payload.digest)
            elif not isinstance(event, RunPatched):
                # A patch is no value: it may speak of files that nobody has brought yet.
                files.update(files_in(payload))
        for digest in sorted(values - self._read):
            within = await self._look_at(digest, "a value", found)
            files |= set() if isinstance(event, RunPatched) else within
        for digest in sorted(files - self._read):
            await self._look_at(digest, "a file", found)
        return found

    async def _look_at(self, digest: str, what: str, found: list[Fault]) -> set[str]:
        """Read a blob; answers the files that its text describes."""
        self._read.add(digest)
        try:
            return await self._files_within(digest)
        except BlobMissing as error:
            found.append(Fault(code="blob_missing", message=f"refers to {what} that is not there: {error}"))
        except Unavailable as error:
            message = f"refers to {what}: {error}"
            found.append(Fault(code="blob_damaged" if is_damage(error) else "blob_unreadable", message=message))
        return set()

    async def _files_within(self, digest: str) -> set[str]:
        files, rest = set[str](), b""
        chunks = cast(AsyncGenerator[bytes, None], self._blobs.read(self._tenant, digest))
        async with aclosing(chunks):
            async for chunk in chunks:
                # A description may begin in one piece and end in the next.
                text = rest + chunk
                files.update(files_in(text))
                rest = text[1 - DESCRIBED_LENGTH :]
        return files
