"""Values that live in blobs, kept by content for as long as there is room.

A large value is usually read by many attempts (a map's items all see the same inputs), so it is loaded and
decoded once per process, not once per attempt. The decoded form is shared: templates and conditions only read
it, and whatever leaves an expression towards a handler is a copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import decode_value
from tidemill.errors import Unfit
from tidemill.kernel.events import BlobRef, Payload

LOG = logging.getLogger(__name__)

HELD_BYTES_MAX = 256 * 1024 * 1024


class Held:
    """A loaded value: its text, and its decoded form once somebody has asked for it."""

    __slots__ = ("_decoded", "_known", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._decoded: Any = None
        self._known = False

    def shared(self) -> Any:
        """The decoded value, which nobody may change."""
        if not self._known:
            self._decoded, self._known = decode_value(self.text), True
        return self._decoded


Fetched = dict[str, Held]
"""What one attempt needs of them, by digest; held until the attempt is over, whatever the cache does."""


class Values:
    """The cache, bounded by the length of the texts it holds."""

    def __init__(self, blobs: Blobs, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._blobs, self._bytes_max = blobs, bytes_max
        self._held: OrderedDict[tuple[str, str], Held] = OrderedDict()
        self._bytes = 0
        self._lost: set[tuple[str, str]] = set()

    def known(self, tenant: str, digests: Iterable[str]) -> Fetched | None:
        """All of these values, or None when one of them has to be loaded first."""
        found: Fetched = {}
        for digest in digests:
            held = self._held.get((tenant, digest))
            if held is None:
                return None
            self._held.move_to_end((tenant, digest))
            found[digest] = held
        return found

    async def fetch(self, tenant: str, digests: Iterable[str]) -> Fetched:
        """All of these values, loading those that are not there."""
        wanted = list(digests)
        absent = [digest for digest in wanted if (tenant, digest) not in self._held]
        texts = await asyncio.gather(*(self._got(tenant, digest) for digest in absent))
        found = {digest: self._keep(tenant, digest, text) for digest, text in zip(absent, texts, strict=True)}
        for digest in wanted:
            if digest not in found:
                held = self._held.get((tenant, digest))
                found[digest] = held or Held(await self._got(tenant, digest))
        return found

    async def _got(self, tenant: str, digest: str) -> bytes:
        """A text from where blobs are kept. What somebody has to see to is said once, however often it is asked for."""
        try:
            text = await self._blobs.get(tenant, digest)
        except Unfit as error:
            if (tenant, digest) not in self._lost:
                self._lost.add((tenant, digest))
                LOG.warning("%s; what needs it waits until then", error)
            raise
        self._lost.discard((tenant, digest))
        return text

    def _keep(self, tenant: str, digest: str, text: bytes) -> Held:
        present = self._held.get((tenant, digest))
        if present is not None:
            # Somebody else was loading it at the same time.
            return present
        held = self._held[tenant, digest] = Held(text)
        self._bytes += len(text)
        while self._bytes > self._bytes_max and self._held:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= len(oldest.text)
        return held


def text_of(payload: Payload, fetched: Fetched) -> bytes:
    """The JSON text behind a payload."""
    return fetched[payload.digest].text if isinstance(payload, BlobRef) else payload


def shared_value(payload: Payload, fetched: Fetched) -> Any:
    """The value behind a payload, for reading only."""
    return fetched[payload.digest].shared() if isinstance(payload, BlobRef) else decode_value(payload)
