"""Checksums: SQLite has none of its own, and a bit that flipped on the disk must never become part of a run.

A seal covers a body and the place it belongs to, so that a body which is found in another place is damage too.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from tidemill.stores.contract import Stream

SEAL_BYTES = 4


def seal_of(counters: Sequence[int]) -> int:
    """A checksum of numbers that stand beside it."""
    return crc32("/".join(map(str, counters)).encode())


def within(stream: Stream, what: object) -> bytes:
    """A place in a stream. It has the stream's name and not its number: a damaged index may lead to another one."""
    return f"{stream.kind}\0{stream.tenant}\0{stream.key}\0{what}".encode()


class Damaged(Exception):
    """What is stored is not what was written."""


def seal(body: bytes, place: bytes) -> bytes:
    """A body behind its checksum."""
    return crc32(body, crc32(place)).to_bytes(SEAL_BYTES, "little") + body


def unseal(sealed: bytes, place: bytes, what: str) -> bytes:
    """The body, if it is the one that was sealed for this place. A flipped bit may even have changed its type."""
    if not isinstance(sealed, bytes):
        raise Damaged(f"{what} does not match its checksum")
    body = sealed[SEAL_BYTES:]
    if crc32(body, crc32(place)).to_bytes(SEAL_BYTES, "little") != sealed[:SEAL_BYTES]:
        raise Damaged(f"{what} does not match its checksum")
    return body
