"""Blobs in a bucket: the laws against a real server of the S3 protocol, and what services do."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.conformance.blobs.laws import TENANT, BlobLaws, OutsideLaws, everything, in_chunks, soon_ms
from tidemill.blobs.contract import digest_of
from tidemill.blobs.directory import DirectoryBlobs
from tidemill.blobs.s3 import AT_ONCE_BYTES_MAX, Bucket, S3Blobs
from tidemill.errors import Rejected, Unavailable
from tidemill.storage_urls import blobs_at, place_of

_numbers = count()


def key(digest: str, place: str = "active") -> str:
    return f"some/where/{TENANT}/{place}/{digest.removeprefix('sha256:')}"


class Service:
    """A server, and a look behind its counter."""

    def __init__(self, port: int = 0) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
        self._server.start()
        host, self.port = self._server.get_host_and_port()
        self.url = f"http://{host}:{self.port}"
        self.client: Any = boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
        )

    def stop(self) -> None:
        self.client.close()
        self._server.stop()

    def bucket(self) -> str:
        name = f"blobs-{next(_numbers)}"
        self.client.create_bucket(Bucket=name)
        return name

    def head(self, bucket: str, digest: str, place: str = "active") -> dict[str, Any]:
        found: dict[str, Any] = self.client.head_object(Bucket=bucket, Key=key(digest, place))
        return found

    def ask(self, method: str, path: str) -> bytes:
        with urllib.request.urlopen(urllib.request.Request(self.url + path, method=method)) as answer:
            body: bytes = answer.read()
            return body

    def record(self) -> None:
        """Begin to write down every request."""
        self.ask("POST", "/moto-api/recorder/reset-recording")
        self.ask("POST", "/moto-api/recorder/start-recording")

    def recorded(self) -> list[dict[str, Any]]:
        self.ask("POST", "/moto-api/recorder/stop-recording")
        body = self.ask("GET", "/moto-api/recorder/download-recording")
        return [json.loads(line) for line in body.splitlines()]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


async def opened(service: Service, bucket: str, **options: Any) -> S3Blobs:
    blobs = S3Blobs(Bucket(name=bucket, prefix="some/where", endpoint=service.url, **options))
    await blobs.open()
    return blobs


class TestS3Blobs(BlobLaws, OutsideLaws):
    @pytest.fixture
    async def blobs(self, service: Service) -> AsyncIterator[S3Blobs]:
        blobs = await opened(service, service.bucket())
        yield blobs
        await blobs.close()

    async def spoil(self, blobs: S3Blobs, digest: str, body: bytes) -> None:
        await blobs._objects.write(key(digest).removeprefix("some/where/"), body)


async def test_an_object_is_created_only_where_there_is_none(service: Service) -> None:
    bucket = service.bucket()
    blobs = await opened(service, bucket)
    digest = await blobs.put(TENANT, b"first")
    service.record()
    await blobs.put(TENANT, b"first")
    (put,) = [each for each in service.recorded() if each["method"] == "PUT"]
    assert {name.lower(): value for name, value in put["headers"].items()}["if-none-match"] == "*"
    assert await blobs.get(TENANT, digest) == b"first"


class Halting:
    """A client of a bucket that removes nothing until it may."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.copied, self.may_remove = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def copy_async(self, here: str, there: str) -> None:
        await self._client.copy_async(here, there)
        self.copied.set()

    async def delete_async(self, path: str) -> None:
        await self.may_remove.wait()
        await self._client.delete_async(path)


async def test_bringing_back_while_a_collector_retires_loses_nothing(service: Service) -> None:
    """Two collectors saw it as not needed: one has retired it, somebody brings it back, the other one comes late."""
    bucket = service.bucket()
    giver, late = await opened(service, bucket), await opened(service, bucket)
    digest = await giver.put(TENANT, b"precious")
    await giver.quarantine(TENANT, digest)
    first, second = Halting(giver._objects.store), Halting(late._objects.store)
    giver._objects.store, late._objects.store = cast(Any, first), cast(Any, second)
    giving = asyncio.create_task(giver.restore(TENANT, digest))
    await first.copied.wait()
    retiring = asyncio.create_task(late.quarantine(TENANT, digest))
    await second.copied.wait()
    first.may_remove.set()
    assert await giving
    second.may_remove.set()
    await retiring
    assert await giver.get(TENANT, digest) == b"precious"


@pytest.mark.parametrize("options", [{"sse": "AES256"}, {"sse": "aws:kms", "kms_key_id": "key-1"}], ids=["aes", "kms"])
async def test_the_service_encrypts_what_it_is_asked_to(service: Service, options: dict[str, Any]) -> None:
    bucket = service.bucket()
    blobs = await opened(service, bucket, **options)
    digest = await blobs.put(TENANT, b"secret")
    known = service.head(bucket, digest)
    assert known["ServerSideEncryption"] == options["sse"]
    assert known.get("SSEKMSKeyId") == options.get("kms_key_id")
    assert await blobs.get(TENANT, digest) == b"secret"
    await blobs.quarantine(TENANT, digest)
    assert service.head(bucket, digest, "grace")["ServerSideEncryption"] == options["sse"]


async def test_what_is_too_long_for_one_request_is_sent_in_parts(service: Service) -> None:
    blobs = await opened(service, service.bucket())
    body = b"x" * (AT_ONCE_BYTES_MAX + 1)
    digest, size = await blobs.put_stream(TENANT, in_chunks(body, 8_000_000))
    assert (digest, size) == (digest_of(body), len(body))
    assert await blobs.get(TENANT, digest) == body


async def test_a_copy_left_in_both_places_is_listed_twice_and_deleted_from_grace(service: Service) -> None:
    blobs = await opened(service, service.bucket())
    digest = await blobs.put(TENANT, b"twice")
    await blobs.quarantine(TENANT, digest)
    await blobs.put(TENANT, b"twice")
    assert [info.state for info in await everything(blobs)] == ["active", "grace"]
    assert await blobs.delete(TENANT, digest, before_ms=soon_ms())
    assert [info.state for info in await everything(blobs)] == ["active"]


async def test_a_bucket_that_is_not_there_is_told_in_one_line(service: Service) -> None:
    with pytest.raises(Unavailable, match="no such bucket") as told:
        await opened(service, "nowhere")
    assert "\n" not in str(told.value)


async def test_a_service_that_is_away_does_not_keep_an_engine_from_opening(caplog: pytest.LogCaptureFixture) -> None:
    away = Service()
    bucket = away.bucket()
    away.stop()
    blobs = await opened(away, bucket)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tidemill.blobs.s3"]
    assert "the service does not answer" in line
    with pytest.raises(Unavailable, match="the service does not answer"):
        await blobs.put(TENANT, b"body")
    back = Service(away.port)
    try:
        await blobs.put(TENANT, b"body")
        assert await blobs.get(TENANT, digest_of(b"body")) == b"body"
    finally:
        back.stop()


async def test_a_service_that_died_is_told_in_one_line_and_works_again_when_it_is_back() -> None:
    service = Service()
    bucket = service.bucket()
    blobs = await opened(service, bucket)
    await blobs.put(TENANT, b"before")
    service.stop()
    with pytest.raises(Unavailable, match="the service does not answer") as told:
        await blobs.put(TENANT, b"meanwhile")
    assert "\n" not in str(told.value)
    again = Service(service.port)
    try:
        await blobs.put(TENANT, b"after")
        assert await blobs.get(TENANT, digest_of(b"after")) == b"after"
    finally:
        again.stop()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("dir:///blobs", Path("blobs")),
        ("dir:////var/lib/tidemill", Path("/var/lib/tidemill")),
        ("dir:///with%20blank/x", Path("with blank/x")),
        ("s3://bucket", Bucket(name="bucket")),
        ("s3://bucket/some/prefix/", Bucket(name="bucket", prefix="some/prefix")),
        (
            "s3://b/p?endpoint=http://127.0.0.1:9000&region=eu-1&sse=aws:kms&kms_key_id=k",
            Bucket(
                name="b", prefix="p", endpoint="http://127.0.0.1:9000", region="eu-1", sse="aws:kms", kms_key_id="k"
            ),
        ),
    ],
)
def test_a_url_names_a_folder_or_a_bucket(url: str, place: Path | Bucket) -> None:
    assert place_of(url) == place
    assert isinstance(blobs_at(url), DirectoryBlobs if isinstance(place, Path) else S3Blobs)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "dir:///FOLDER"),
        ("dir://host/path", "dir:///FOLDER"),
        ("dir:///x?option=1", "dir:///FOLDER"),
        ("http://[", "dir:///FOLDER"),
        ("s3:///prefix", "s3://BUCKET"),
        ("s3://b?endpont=x", "'endpont' is not an option"),
        ("s3://b?sse=none", "AES256 or aws:kms"),
        ("s3://b?kms_key_id=k", "needs sse=aws:kms"),
    ],
)
def test_other_urls_are_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(Rejected) as refused:
        blobs_at(url)
    assert refused.value.code == "blobs_unknown"
    assert hint in refused.value.problems[0].hint
