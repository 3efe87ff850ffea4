"""Blobs in a PostgreSQL database: the laws, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from tests.conformance.blobs.laws import BlobLaws, RenewalLaws
from tests.fixtures.servers.postgres_server import Server
from tidemill.blobs.postgres import PostgresBlobs
from tidemill.bootstrap import engine_at
from tidemill.engine.maintenance.blob_gc import HOUR_MS, collect
from tidemill.stores.contract import Stream, Tail
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


async def test_collection_goes_by_the_rows_of_the_database(postgres: Server) -> None:
    large = "x" * 70_000
    nodes = [{"id": "a", "type": "value", "config": "{{ inputs.big }}"}]
    async with engine_at(postgres.emptied_store(), retention_days=None) as engine:
        garbage = (await engine.put_blob(b"nothing refers to this"))["$blob"]
        await engine.publish({"name": "w", "nodes": nodes, "outputs": "{{ a.output }}"})
        run_id = await engine.start("w", {"big": large})
        await engine.result(run_id)
        store, blobs, reads = engine.context.store, engine.context.blobs, list[str]()
        load, now_ms = store.load, store.now_ms()

        async def counted(after: Mapping[Stream, int], **options: Any) -> list[Tail]:
            reads.extend(stream.kind for stream in after)
            return await load(after, **options)

        store.load = counted  # type: ignore[method-assign]
        for hours in (2, 48):
            await collect(store, blobs, "default", now_ms=now_ms + hours * HOUR_MS)
        assert reads == ["store", "store"]
        store.load = load  # type: ignore[method-assign]
        assert await blobs.stat("default", garbage) is None
        assert (await engine.show(run_id)).outputs == large
        assert (await engine.verify_log()).clean
