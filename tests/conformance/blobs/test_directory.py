"""Blobs in a directory: the laws, and what disks and killed processes do."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.conformance.blobs.laws import TENANT, BlobLaws, OutsideLaws, RenewalLaws, everything, in_chunks, killed_after
from tidemill.blobs.contract import digest_of
from tidemill.blobs.directory import DirectoryBlobs
from tidemill.errors import Unavailable


class TestDirectoryBlobs(BlobLaws, RenewalLaws, OutsideLaws):
    @pytest.fixture
    async def blobs(self, tmp_path: Path) -> AsyncIterator[DirectoryBlobs]:
        blobs = DirectoryBlobs(tmp_path / "blobs")
        await blobs.open()
        yield blobs
        await blobs.close()

    async def age(self, blobs: DirectoryBlobs, digest: str, since_ms: int) -> None:
        (path,) = [path for path in files(blobs.root) if path.name in digest]
        os.utime(path, ns=(since_ms * 1_000_000, since_ms * 1_000_000))

    async def spoil(self, blobs: DirectoryBlobs, digest: str, body: bytes) -> None:
        (path,) = [path for path in files(blobs.root) if path.name in digest]
        path.write_bytes(body)


@pytest.fixture
async def blobs(tmp_path: Path) -> DirectoryBlobs:
    found = DirectoryBlobs(tmp_path)
    await found.open()
    return found


def files(root: Path, place: str = "") -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if path.is_file() and f"/{place}" in str(path)]


async def test_a_blob_is_a_file_of_its_tenant(blobs: DirectoryBlobs) -> None:
    digest = await blobs.put("a/b", b"body")
    digits = digest.removeprefix("sha256:")
    path = blobs.root / "a%2fb" / "active" / digits[:2] / digits
    assert files(blobs.root) == [path]
    assert path.read_bytes() == b"body"


async def test_old_leftovers_are_swept_and_young_ones_stay(blobs: DirectoryBlobs) -> None:
    old, young = blobs.root / ".tmp" / "old", blobs.root / ".tmp" / "young"
    for leftover in (old, young):
        leftover.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    await blobs.open()
    assert (old.exists(), young.exists()) == (False, True)
    assert await blobs.tenants() == ()


async def test_a_place_that_is_away_does_not_keep_an_engine_from_opening(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "place"
    place.write_bytes(b"in the way")
    blobs = DirectoryBlobs(place)
    await blobs.open()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"the blobs in {place} cannot be reached: Not a directory" in line
    for verb in (blobs.put(TENANT, b"body"), blobs.put_stream(TENANT, in_chunks(b"body")), blobs.tenants()):
        with pytest.raises(Unavailable, match=r"cannot be reached: Not a directory") as told:
            await verb
        assert "\n" not in str(told.value)
    place.unlink()
    digest = await blobs.put(TENANT, b"body")
    assert await blobs.get(TENANT, digest) == b"body"


async def test_a_directory_that_vanished_is_told_in_one_line(blobs: DirectoryBlobs) -> None:
    (blobs.root / ".tmp").rmdir()
    with pytest.raises(Unavailable, match="No such file or directory"):
        await blobs.put(TENANT, b"body")
    with pytest.raises(Unavailable, match="No such file or directory"):
        await blobs.put_stream(TENANT, in_chunks(b"body"))
    await blobs.open()
    assert await blobs.put(TENANT, b"body") == digest_of(b"body")


async def test_a_full_disk_is_told_in_one_line_and_leaves_nothing(blobs: DirectoryBlobs) -> None:
    """A limit on the size of files is a disk that is full after so many bytes."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        for put in (blobs.put(TENANT, b"x" * 200_000), blobs.put_stream(TENANT, in_chunks(b"x" * 200_000))):
            with pytest.raises(Unavailable, match="File too large"):
                await put
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert files(blobs.root) == []
    assert await blobs.put(TENANT, b"x" * 200_000) == digest_of(b"x" * 200_000)


async def test_time_in_grace_begins_with_the_move(blobs: DirectoryBlobs) -> None:
    digest = await blobs.put(TENANT, b"old")
    os.utime(files(blobs.root)[0], (1_000, 1_000))
    began_ms = time.time_ns() // 1_000_000 - 1_000
    await blobs.quarantine(TENANT, digest)
    assert not await blobs.delete(TENANT, digest, before_ms=began_ms)
    assert await blobs.get(TENANT, digest) == b"old"


async def test_a_blob_that_is_moved_while_it_is_looked_for_is_found(
    blobs: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = await blobs.put(TENANT, b"moving")
    await blobs.quarantine(TENANT, digest)
    path, looked = blobs._path, list[str]()

    def restored_in_between(tenant: str, place: str, digits: str) -> Path:
        looked.append(place)
        if looked == ["active", "grace"]:
            path(tenant, "grace", digits).replace(path(tenant, "active", digits))
        return path(tenant, place, digits)

    monkeypatch.setattr(blobs, "_path", restored_in_between)
    assert await blobs.get(TENANT, digest) == b"moving"
    assert looked == ["active", "grace", "active"]


async def test_an_address_does_not_lead_out_of_the_folder(blobs: DirectoryBlobs, tmp_path: Path) -> None:
    await blobs.put(TENANT, b"body")
    (tmp_path / "acme" / "secret").write_bytes(b"secret")
    for digest in ("sha256:../secret", "sha256:../../secret", str(tmp_path / "acme" / "secret")):
        with pytest.raises(Unavailable, match="missing"):
            await blobs.get(TENANT, digest)
        with pytest.raises(Unavailable, match="missing"):
            await blobs.stat(TENANT, digest)


WRITER = """
import asyncio, os, sys
from pathlib import Path
from tidemill.blobs.directory import DirectoryBlobs

async def main():
    blobs = DirectoryBlobs(Path(sys.argv[1]))
    await blobs.open()
    number = 0
    while True:
        number += 1
        body = b"%d" % number * 40_000
        digest = await blobs.put("acme", body)
        print(digest, flush=True)
        if number % 3 == 0:
            await blobs.quarantine("acme", digest)
        if number % 6 == 0:
            await blobs.restore("acme", digest)

asyncio.run(main())
"""


async def test_a_killed_writer_loses_nothing_that_it_was_told_is_stored(blobs: DirectoryBlobs) -> None:
    for round_ in range(4):
        for digest in await asyncio.to_thread(killed_after, 5 + round_ * 3, WRITER, str(blobs.root)):
            assert digest_of(await blobs.get(TENANT, digest)) == digest
        for info in await everything(blobs):
            assert digest_of(await blobs.get(TENANT, info.digest)) == info.digest
