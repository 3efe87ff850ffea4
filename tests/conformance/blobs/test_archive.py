"""Every archive keeps the same promises: put once, read what was put, list in order."""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tidemill.blobs.archive import Archive, DirectoryArchive, MemoryArchive, S3Archive
from tidemill.blobs.s3 import service_error
from tidemill.errors import StoreUnusable, Unavailable
from tidemill.storage_urls import archive_at

BUCKET = "archives"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def bucket(endpoint: str) -> S3Archive:
    import urllib.request

    from obstore.store import S3Store

    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request).read()
    store = S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        prefix=f"{random.randrange(10**9)}/old",
    )
    return S3Archive(store)


@pytest_asyncio.fixture(params=["memory", "directory", "s3"])
async def archive(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Archive]:
    match request.param:
        case "memory":
            yield MemoryArchive()
        case "directory":
            yield DirectoryArchive(tmp_path / "deep" / "archive")
        case _:
            yield bucket(request.getfixturevalue("s3"))


async def test_a_body_is_read_as_it_was_put(archive: Archive) -> None:
    body = os.urandom(100_000)
    assert await archive.put("a/b.gz", body)
    assert await archive.get("a/b.gz") == body
    assert await archive.get("a/c.gz") is None
    assert await archive.get("a") is None


async def test_what_is_there_is_never_replaced(archive: Archive) -> None:
    assert await archive.put("a/b", b"one")
    assert not await archive.put("a/b", b"two")
    assert await archive.get("a/b") == b"one"


async def _pieces(*pieces: bytes | Exception) -> AsyncIterator[bytes]:
    for piece in pieces:
        if isinstance(piece, Exception):
            raise piece
        yield piece


async def test_a_body_may_come_and_go_bit_by_bit(archive: Archive) -> None:
    body = os.urandom(3_000_000)
    assert await archive.put_stream("a/b", _pieces(body[:7], body[7:2_000_000], body[2_000_000:]))
    assert not await archive.put_stream("a/b", _pieces(b"two"))
    chunks = await archive.stream("a/b")
    assert chunks is not None
    assert b"".join([chunk async for chunk in chunks]) == body == await archive.get("a/b")
    assert await archive.stream("a/c") is None
    assert await archive.stream("a") is None


async def test_a_stream_that_breaks_off_is_not_stored(archive: Archive) -> None:
    with pytest.raises(Unavailable, match="half way"):
        await archive.put_stream("a/b", _pieces(b"half", Unavailable("half way")))
    assert await archive.names() == []
    assert await archive.put("a/b", b"whole")


async def test_what_is_too_long_for_one_request_is_sent_in_parts(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.blobs.archive.AT_ONCE_BYTES_MAX", 1_000_000)
    archive, body = bucket(s3), os.urandom(12_000_000)

    async def at_once(name: str, body: bytes) -> bool:
        raise AssertionError("it was sent at once")

    monkeypatch.setattr(archive, "put", at_once)
    assert await archive.put_stream("large", _pieces(body))
    assert not await archive.put_stream("large", _pieces(b"two"))
    assert await archive.get("large") == body


async def test_names_come_in_order_and_in_pages(archive: Archive) -> None:
    names = sorted(f"t/{month}/{flow}/{n}.gz" for month in ("2026-01", "2026-02") for flow in "ab" for n in range(3))
    for name in random.Random(1).sample(names, len(names)):
        await archive.put(name, b"x")
    await archive.put("u/2026-01/a/0.gz", b"x")
    assert await archive.names("t/") == names
    assert await archive.names("t/2026-02/") == names[6:]
    assert await archive.names("t/2026-02/b/1") == [names[10]]
    assert await archive.names("t/", limit=2) == names[:2]
    assert await archive.names("t/", after=names[4], limit=3) == names[5:8]
    assert await archive.names("t/", after="t/2026-010", limit=1) == [names[6]]
    assert await archive.names("t/", after=names[-1]) == []
    assert await archive.names("v/") == []


async def test_a_half_written_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = DirectoryArchive(tmp_path)
    died: list[str] = []

    def die(*paths: object) -> None:
        died.append(str(paths))
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", die)
        with pytest.raises(Unavailable):
            await archive.put("a/b", b"body")
    assert died
    assert await archive.get("a/b") is None
    assert await archive.names() == []
    assert await archive.put("a/b", b"body")


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "overtaken"])
async def test_a_name_that_is_there_is_synced_before_it_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """Whoever linked it may have died before its own sync, and the caller forgets the run after this answer."""
    archive, synced, fsync = DirectoryArchive(tmp_path), set[str](), os.fsync
    assert await archive.put("t/2026-01/a", b"body")

    def watched(number: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    monkeypatch.setattr(os, "fsync", watched)
    if not seen:
        monkeypatch.setattr(Path, "exists", lambda path: False)
    assert not await archive.put("t/2026-01/a", b"body")
    assert synced >= {str(tmp_path), str(tmp_path / "t"), str(tmp_path / "t/2026-01")}


async def test_old_drafts_are_swept_and_young_ones_stay(tmp_path: Path) -> None:
    archive = DirectoryArchive(tmp_path)
    await archive.put("a", b"x")
    old, young = tmp_path / ".drafts" / "old", tmp_path / ".drafts" / "young"
    for draft in (old, young):
        draft.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    await archive.put("b", b"x")
    assert [path.name for path in (tmp_path / ".drafts").iterdir()] == ["young"]
    assert await archive.names() == ["a", "b"]


async def test_an_archive_is_opened_by_what_people_write(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMILL_ARCHIVE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    bucket(s3)
    url = f"sqlite:///{tmp_path}/mill.db"
    for location in (f"s3://{BUCKET}/some/where?endpoint={s3}", str(tmp_path / "attic"), None):
        archive = archive_at(location, url)
        assert archive is not None
        assert await archive.put("runs/t/a.gz", b"body")
        assert await archive.names("runs/") == ["runs/t/a.gz"]
    assert (tmp_path / "attic" / "runs" / "t" / "a.gz").read_bytes() == b"body"
    assert (tmp_path / "mill.db-archive" / "runs" / "t" / "a.gz").read_bytes() == b"body"
    assert archive_at(None, "memory://") is None
    assert archive_at("none", url) is None


@pytest.mark.parametrize(
    ("answers", "kind", "words"),
    [(False, Unavailable, "the service does not answer"), (True, StoreUnusable, "there is no such bucket")],
)
async def test_a_bucket_that_cannot_be_reached_is_told(
    s3: str, monkeypatch: pytest.MonkeyPatch, answers: bool, kind: type[Exception], words: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    archive = archive_at(f"s3://nobucket/x?endpoint={s3 if answers else 'http://127.0.0.1:9'}", "memory://")
    assert archive is not None
    for ask in (archive.put("a", b""), archive.put_stream("a", _pieces(b"")), archive.get("a"), archive.names()):
        with pytest.raises(kind, match=rf"^the archive cannot be reached: {words}; [^\n]*$"):
            await ask


@pytest.mark.parametrize(
    "said",
    [
        "Generic S3 error: the credential provider\nwas not enabled",
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token: error sending request\nDebug",
    ],
)
def test_that_there_are_no_credentials_is_told_in_one_line(said: str) -> None:
    told = str(service_error("the archive cannot be read", OSError(said), "archive_unusable"))
    assert told.startswith("the archive cannot be read: there are no credentials; set AWS_ACCESS_KEY_ID")
    assert "\n" not in told


async def test_a_folder_that_is_none_is_somebodys_mistake(tmp_path: Path) -> None:
    """One that nobody named is empty until the first run leaves."""
    (tmp_path / "file").write_text("x")
    archive = DirectoryArchive(tmp_path / "file")
    for ask in (archive.put("a", b""), archive.names()):
        with pytest.raises(StoreUnusable, match="cannot be"):
            await ask
    absent = tmp_path / "absent"
    with pytest.raises(StoreUnusable, match="No such file"):
        await DirectoryArchive(absent, named=True).names()
    assert await DirectoryArchive(absent).names() == []
    assert await DirectoryArchive(absent, named=True).put("a", b"x")
    assert await DirectoryArchive(absent, named=True).names() == ["a"]
