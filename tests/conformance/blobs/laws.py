"""The laws of every place where blobs are kept; a back end joins by one class with a fixture."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidemill.blobs.contract import RENEW_MS, BlobInfo, BlobMissing, Blobs, ExternalBlobPlace, digest_of
from tidemill.errors import Unavailable

TENANT = "acme"
TENANTS = ("acme", "Acme", "ACME", "..", "a/b", "keep", "tmp", "größe 1%", "x" * 60)
BODIES = (b"", b"x", bytes(range(256)) * 1_000, b"\0" * 3_000_000)


def soon_ms() -> int:
    """A moment that has not come yet, by any clock that is roughly right."""
    return time.time_ns() // 1_000_000 + 60_000


def long_ago_ms() -> int:
    return time.time_ns() // 1_000_000 - 60_000


async def in_chunks(body: bytes, size: int = 70_001) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def seen(blobs: Blobs, digest: str, tenant: str = TENANT) -> BlobInfo:
    info = await blobs.stat(tenant, digest)
    assert info is not None
    return info


async def everything(blobs: Blobs, tenant: str = TENANT, page: int = 1_000) -> list[BlobInfo]:
    found: list[BlobInfo] = []
    while batch := await blobs.list(tenant, after=found[-1].digest if found else None, limit=page):
        found += batch
    return found


def killed_after(lines: int, program: str, *arguments: str) -> list[str]:
    """Run a writer that prints the digest of everything that it has stored, and kill it in the middle of its work."""
    writer = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [writer.stdout.readline().strip() for _ in range(lines)]
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    return [digest for digest in (*told, *rest.splitlines()) if len(digest) == len(digest_of(b""))]


class BlobLaws:
    """Every back end has a fixture `blobs` that gives an open and empty one, and says how one is damaged."""

    async def spoil(self, blobs: Any, digest: str, body: bytes) -> None:
        """Put other bytes where those of a blob are, behind its back."""
        raise NotImplementedError

    @pytest.mark.parametrize("retired", [False, True], ids=["active", "grace"])
    @pytest.mark.parametrize("streamed", [False, True], ids=["bytes", "stream"])
    @pytest.mark.parametrize("other", [b"", b"x" * 5], ids=["cut", "changed"])
    async def test_putting_mends_what_is_damaged(
        self, blobs: Blobs, other: bytes, streamed: bool, retired: bool
    ) -> None:
        digest = await blobs.put(TENANT, b"whole")
        await self.spoil(blobs, digest, other)
        with pytest.raises(Unavailable):
            await blobs.get(TENANT, digest)
        if retired:
            await blobs.quarantine(TENANT, digest)
        if streamed:
            await blobs.put_stream(TENANT, in_chunks(b"whole"))
        else:
            await blobs.put(TENANT, b"whole")
        assert await blobs.get(TENANT, digest) == b"whole"
        info = await seen(blobs, digest)
        assert (info.size, info.state) == (5, "active")

    @pytest.mark.parametrize("body", BODIES, ids=len)
    async def test_what_was_put_can_be_got(self, blobs: Blobs, body: bytes) -> None:
        digest = await blobs.put(TENANT, body)
        assert digest == "sha256:" + hashlib.sha256(body).hexdigest()
        assert await blobs.get(TENANT, digest) == body
        assert b"".join([chunk async for chunk in blobs.read(TENANT, digest)]) == body

    @pytest.mark.parametrize("start", [1, 1 << 20, (1 << 20) + 5, 2_999_999])
    async def test_a_part_is_read_from_its_first_byte_on(self, blobs: Blobs, start: int) -> None:
        body = bytes(range(250)) * 12_000
        digest = await blobs.put(TENANT, body)
        assert b"".join([chunk async for chunk in blobs.read(TENANT, digest, start=start)]) == body[start:]

    @pytest.mark.parametrize("body", BODIES, ids=len)
    async def test_a_stream_is_the_same_blob(self, blobs: Blobs, body: bytes) -> None:
        assert await blobs.put_stream(TENANT, in_chunks(body)) == (digest_of(body), len(body))
        assert await blobs.put(TENANT, body) == digest_of(body)
        assert await blobs.get(TENANT, digest_of(body)) == body
        assert len(await everything(blobs)) == 1

    async def test_a_stream_that_breaks_off_leaves_nothing(self, blobs: Blobs) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"some"
            raise ConnectionError("gone")

        with pytest.raises(ConnectionError):
            await blobs.put_stream(TENANT, broken())
        assert await everything(blobs) == []

    async def test_equal_bytes_are_stored_once(self, blobs: Blobs) -> None:
        digests = await asyncio.gather(*(blobs.put(TENANT, b"same" * 30_000) for _ in range(8)))
        assert len(set(digests)) == 1
        assert [info.digest for info in await everything(blobs)] == digests[:1]

    async def test_a_tenant_sees_only_its_own(self, blobs: Blobs) -> None:
        for tenant in TENANTS:
            await blobs.put(tenant, tenant.encode())
        assert await blobs.tenants() == tuple(sorted(TENANTS))
        for tenant in TENANTS:
            assert [info.digest for info in await everything(blobs, tenant)] == [digest_of(tenant.encode())]
            for other in TENANTS:
                if other != tenant:
                    with pytest.raises(Unavailable, match="missing"):
                        await blobs.get(tenant, digest_of(other.encode()))

    @pytest.mark.parametrize("digest", [digest_of(b"never put"), "sha256:../../../etc/passwd", "sha256:AB", "", "x"])
    async def test_a_missing_blob_is_told_in_one_line(self, blobs: Blobs, digest: str) -> None:
        with pytest.raises(BlobMissing, match="missing") as told:
            await blobs.get(TENANT, digest)
        assert "\n" not in str(told.value)
        assert digest in str(told.value)

    async def test_nothing_is_known_of_a_missing_blob(self, blobs: Blobs) -> None:
        assert await blobs.stat(TENANT, digest_of(b"never put")) is None
        assert await blobs.list(TENANT) == []
        assert await blobs.tenants() == ()

    async def test_what_is_known_of_a_blob(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"12345")
        info = await seen(blobs, digest)
        assert (info.digest, info.size, info.state, info.kept) == (digest, 5, "active", False)
        assert long_ago_ms() < info.since_ms < soon_ms()
        assert await blobs.list(TENANT) == [info]

    async def test_a_list_has_pages_in_order(self, blobs: Blobs) -> None:
        digests = sorted([await blobs.put(TENANT, b"%d" % number) for number in range(23)])
        for retired in digests[::3]:
            await blobs.quarantine(TENANT, retired)
        kept = await blobs.put(TENANT, b"7", keep=True)
        for page in (1, 2, 5, 23, 100):
            found = await everything(blobs, page=page)
            assert [info.digest for info in found] == digests
            assert [info.digest for info in found if info.state == "grace"] == [d for d in digests[::3] if d != kept]
            assert [info.digest for info in found if info.kept] == [kept]

    async def test_what_is_in_grace_can_still_be_read(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"leaving")
        await blobs.quarantine(TENANT, digest)
        assert (await seen(blobs, digest)).state == "grace"
        assert await blobs.get(TENANT, digest) == b"leaving"

    async def test_what_is_in_grace_is_deleted(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"leaving" * 300_000)
        await blobs.quarantine(TENANT, digest)
        assert await blobs.delete(TENANT, digest, before_ms=soon_ms())
        assert await blobs.stat(TENANT, digest) is None
        with pytest.raises(Unavailable, match="missing"):
            await blobs.get(TENANT, digest)
        assert not await blobs.delete(TENANT, digest, before_ms=soon_ms())

    async def test_what_is_active_is_never_deleted(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"needed")
        assert not await blobs.delete(TENANT, digest, before_ms=soon_ms())
        assert await blobs.get(TENANT, digest) == b"needed"

    async def test_what_has_not_been_in_grace_for_long_is_not_deleted(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"wait")
        await blobs.quarantine(TENANT, digest)
        assert not await blobs.delete(TENANT, digest, before_ms=long_ago_ms())
        assert await blobs.get(TENANT, digest) == b"wait"

    async def test_what_is_restored_is_active_from_now_on(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"back")
        await blobs.quarantine(TENANT, digest)
        assert await blobs.restore(TENANT, digest)
        assert (await seen(blobs, digest)).state == "active"
        await blobs.delete(TENANT, digest, before_ms=soon_ms())
        assert await blobs.get(TENANT, digest) == b"back"
        assert [info.state for info in await everything(blobs)] == ["active"]

    @pytest.mark.parametrize("streamed", [False, True])
    async def test_putting_brings_a_blob_back_from_grace(self, blobs: Blobs, streamed: bool) -> None:
        digest = await blobs.put(TENANT, b"again")
        await blobs.quarantine(TENANT, digest)
        if streamed:
            await blobs.put_stream(TENANT, in_chunks(b"again"))
        else:
            await blobs.put(TENANT, b"again")
        assert (await seen(blobs, digest)).state == "active"
        await blobs.delete(TENANT, digest, before_ms=soon_ms())
        assert await blobs.get(TENANT, digest) == b"again"
        assert [info.state for info in await everything(blobs)] == ["active"]

    async def test_moving_what_is_not_there_does_nothing(self, blobs: Blobs) -> None:
        digest = digest_of(b"never put")
        await blobs.quarantine(TENANT, digest)
        assert not await blobs.restore(TENANT, digest)
        assert not await blobs.delete(TENANT, digest, before_ms=soon_ms())
        active = await blobs.put(TENANT, b"active")
        assert not await blobs.restore(TENANT, active)
        await blobs.quarantine(TENANT, active)
        await blobs.quarantine(TENANT, active)
        assert [(info.digest, info.state) for info in await everything(blobs)] == [(active, "grace")]

    async def test_what_is_kept_stays(self, blobs: Blobs) -> None:
        first = await blobs.put(TENANT, b"one", keep=True)
        second = await blobs.put(TENANT, b"two")
        assert await blobs.put(TENANT, b"two", keep=True) == second
        third, _ = await blobs.put_stream(TENANT, in_chunks(b"three"), keep=True)
        await blobs.put(TENANT, b"three")
        for digest in (first, second, third):
            await blobs.quarantine(TENANT, digest)
            info = await seen(blobs, digest)
            assert (info.state, info.kept) == ("active", True)

    async def test_what_is_kept_while_in_grace_is_not_deleted(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"late")
        await blobs.quarantine(TENANT, digest)
        await blobs.put(TENANT, b"late", keep=True)
        await blobs.delete(TENANT, digest, before_ms=soon_ms())
        assert await blobs.get(TENANT, digest) == b"late"

    async def test_many_at_once(self, blobs: Blobs) -> None:
        """Writers, a collector that wants it all gone, and readers: what was put last can be read."""
        body = os.urandom(100_000)
        digest = digest_of(body)

        async def collect() -> None:
            for _ in range(10):
                await blobs.quarantine(TENANT, digest)
                await asyncio.sleep(0)

        async def write() -> None:
            for _ in range(10):
                await blobs.put(TENANT, body)
                assert await blobs.get(TENANT, digest) == body

        await asyncio.gather(write(), collect(), write(), collect())
        assert await blobs.get(TENANT, digest) == body

    async def test_it_can_be_opened_and_closed_again(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"lasting")
        await blobs.open()
        await blobs.close()
        await blobs.close()
        await blobs.open()
        assert await blobs.get(TENANT, digest) == b"lasting"


class RenewalLaws:
    """For back ends that renew the date of a blob that is put again; each says how a date is set behind its back."""

    async def age(self, blobs: Any, digest: str, since_ms: int) -> None:
        raise NotImplementedError

    @pytest.mark.parametrize("streamed", [False, True])
    async def test_what_is_put_again_counts_as_stored_now(self, blobs: Blobs, streamed: bool) -> None:
        digest = await blobs.put(TENANT, b"again")
        old_ms = long_ago_ms() - RENEW_MS
        await self.age(blobs, digest, old_ms)
        assert (await seen(blobs, digest)).since_ms == old_ms
        if streamed:
            await blobs.put_stream(TENANT, in_chunks(b"again"))
        else:
            await blobs.put(TENANT, b"again")
        info = await seen(blobs, digest)
        assert info.state == "active"
        assert long_ago_ms() < info.since_ms < soon_ms()

    async def test_a_date_that_is_young_is_left_alone(self, blobs: Blobs) -> None:
        digest = await blobs.put(TENANT, b"often")
        young_ms = long_ago_ms()
        await self.age(blobs, digest, young_ms)
        await blobs.put(TENANT, b"often")
        assert (await seen(blobs, digest)).since_ms == young_ms


class OutsideLaws:
    """For places that are no part of a store."""

    async def test_stores_leave_marks(self, blobs: Any) -> None:
        place: ExternalBlobPlace = blobs
        assert await place.read_markers() == {}
        await place.write_marker("one", "größe.db")
        await place.write_marker("one", "größe.db")
        await place.write_marker("two", "other.db")
        assert await place.read_markers() == {"one": "größe.db", "two": "other.db"}
        assert place.mark_path("two").endswith("/.stores/two")
        assert await place.tenants() == ()
        await blobs.put(TENANT, b"body")
        assert await place.tenants() == (TENANT,)
