"""Blobs in a PostgreSQL database: the laws, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conformance.blobs.laws import BlobLaws, RenewalLaws
from tests.fixtures.servers.postgres_server import Server
from tidemill.blobs.postgres import PostgresBlobs
from tidemill.stores.postgres.database import Link, Readers, migrate, place_at


class TestPostgresBlobs(BlobLaws, RenewalLaws):
    @pytest.fixture
    async def blobs(self, postgres: Server) -> AsyncIterator[PostgresBlobs]:
        self.server, self.url = postgres, postgres.emptied_store()
        place = place_at(self.url)
        link = Link(place)
        await migrate(link)
        await link.drop()
        blobs = PostgresBlobs(lambda: Readers(place))
        await blobs.open()
        yield blobs
        await blobs.close()

    def table(self, name: str) -> str:
        return f"{self.url.partition('schema=')[2]}.{name}"

    async def age(self, blobs: PostgresBlobs, digest: str, since_ms: int) -> None:
        self.server.asked(f"UPDATE {self.table('blobs')} SET since_ms = {since_ms} WHERE digest = '{digest}'")

    async def spoil(self, blobs: PostgresBlobs, digest: str, body: bytes) -> None:
        self.server.asked(f"UPDATE {self.table('blob_pieces')} SET body = '\\x{body.hex()}'")
