"""Values by content: what is too large for a record is stored under the sha256 of its bytes.

A blob never changes and is put before anything refers to it, so a fact never points to a missing blob.
Putting the same bytes twice stores them once per tenant.
"""

from __future__ import annotations

import hashlib
from typing import Protocol


def digest_of(body: bytes) -> str:
    """The address of a blob."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


class Blobs(Protocol):
    """Where blobs are kept."""

    async def put(self, tenant: str, body: bytes) -> str:
        """Store bytes durably and return their digest; idempotent."""
        ...

    async def get(self, tenant: str, digest: str) -> bytes:
        """The bytes behind a digest, verified against it. Raises `Unavailable` when they are missing or damaged."""
        ...
