"""Answers as they are read: decompressed piece by piece, and cut off as soon as they are too much.

A bomb is never unpacked. No piece is larger than `PIECE_BYTES`, and the sums are looked at after each one.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator

from tidemill.expressions.wording import shorten
from tidemill.security.egress import CallFailed, Limits

PIECE_BYTES = 65_536
GZIP = ("gzip", "x-gzip")
_GZIP_BITS = 31
_RATIO_FROM_BYTES = 262_144
"""A short body may well grow a thousandfold; only what grows large is suspicious."""


async def read_body(chunks: AsyncIterator[bytes], encoding: str, limits: Limits) -> AsyncIterator[bytes]:
    """The body, plain, as long as it keeps within the limits."""
    unpack = _unpacker(encoding)
    received = produced = 0
    async for chunk in chunks:
        received += len(chunk)
        for piece in unpack(chunk):
            produced += len(piece)
            if produced > limits.bytes_max:
                raise too_large(limits.bytes_max)
            if produced > max(_RATIO_FROM_BYTES, received * limits.ratio_max):
                message = f"the answer grows more than {limits.ratio_max} times when it is decompressed"
                raise CallFailed("response_too_large", message)
            yield piece
    unpack.end()


def too_large(bytes_max: int) -> CallFailed:
    """The body is longer than it may be."""
    hint = "ask for less, e.g. page by page; `tidemill nodes show http` tells how far max_bytes may be raised"
    return CallFailed("response_too_large", f"the answer is longer than {bytes_max:,} bytes", hint=hint)


class Plain:
    """A body that is not compressed."""

    def __call__(self, chunk: bytes) -> Iterator[bytes]:
        yield chunk

    def end(self) -> None:
        """Anything may end at any place."""


class Gzip:
    """A body of one or more gzip members."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_BITS)
        self._begun = False

    def __call__(self, chunk: bytes) -> Iterator[bytes]:
        try:
            while chunk:
                if self._member.eof:
                    self._member = zlib.decompressobj(_GZIP_BITS)
                self._begun = True
                piece = self._member.decompress(chunk, PIECE_BYTES)
                if piece:
                    yield piece
                chunk = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        except zlib.error as error:
            raise CallFailed("response_invalid", "the answer says that it is gzip, but is not") from error

    def end(self) -> None:
        """A member that is not complete has been cut off."""
        if self._begun and not self._member.eof:
            raise CallFailed("response_invalid", "the compressed answer is cut off", retryable=True)


def _unpacker(encoding: str) -> Plain | Gzip:
    plain = encoding.strip().lower()
    if plain in ("", "identity"):
        return Plain()
    if plain in GZIP:
        return Gzip()
    raise CallFailed("response_invalid", f"the answer is encoded as {shorten(plain, 40)!r}, which nobody asked for")
