"""Blobs as objects of a bucket: `<prefix>/<tenant>/active/<digest>`, likewise `grace` and `keep`.

Works with any S3 service that knows conditional puts. An object is created only if it does not exist; an existing one
is verified and replaced only if damaged. Quarantine copies and then deletes; restore only copies, because its delete
could hit the copy that another collector has just made. The collector tidies up blobs in both states. An existing
object keeps its date, so it may be quarantined before the event that refers to it is written; it stays readable there,
and the next collection restores it. Credentials come from the environment.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote

import msgspec

from tidemill.blobs.contract import (
    ACTIVE,
    GRACE,
    PIECE_BYTES,
    STORES,
    BlobInfo,
    BlobState,
    Listing,
    digest_of,
    hex_of,
    missing,
    spooled,
    verified,
    whole,
)
from tidemill.blobs.directory import KEEP, folder_name, tenant_of
from tidemill.errors import Problem, StoreUnusable, Unavailable, rejected

if TYPE_CHECKING:
    from obstore.store import S3Store


T = TypeVar("T")

LOG = logging.getLogger(__name__)

AT_ONCE_BYTES_MAX = 64 * 1024 * 1024
"""Longer bodies are sent in parts."""

NO_BUCKET = "NoSuchBucket"
NO_CREDENTIALS = "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
REASONS = {
    NO_BUCKET: "there is no such bucket; create it, or name another one",
    "AccessDenied": "access was denied; check the permissions of the credentials",
    "InvalidAccessKeyId": "the credentials are unknown; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "SignatureDoesNotMatch": "the credentials do not match; check AWS_SECRET_ACCESS_KEY",
    "credential": NO_CREDENTIALS,
    # The metadata service of an EC2 machine.
    "169.254.169.254": NO_CREDENTIALS,
    "error sending request": "the service does not answer; check that it runs and that the endpoint is right",
    "SlowDown": "the service throttles requests",
}
"""Reason and remedy by a word that occurs in the error of the service."""
MISTAKES = (NO_BUCKET, "InvalidAccessKeyId", "SignatureDoesNotMatch")
"""Errors of a wrong configuration: waiting does not help."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    prefix: str = ""
    endpoint: str = ""
    """The URL of a service other than AWS."""
    region: str = ""
    sse: Literal["", "AES256", "aws:kms"] = ""
    """Server-side encryption."""
    kms_key_id: str = ""
    """For `aws:kms`."""


class Objects:
    """Objects of a bucket by path. Errors of the service are `Unavailable`, or `StoreUnusable` with `code`."""

    def __init__(self, store: S3Store, what: str, code: str) -> None:
        self.store, self._what, self._code = store, what, code

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise service_error(f"{self._what} cannot be reached", error, self._code) from error

    async def create(self, path: str, body: bytes) -> bool:
        """Create an object; False if it exists."""
        from obstore.exceptions import AlreadyExistsError

        with self._errors():
            try:
                await self.store.put_async(path, body, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    async def write(self, path: str, body: bytes | Iterator[bytes]) -> None:
        """Write or replace an object; an iterator is sent in parts, which cannot be conditional."""
        with self._errors():
            await self.store.put_async(path, body)

    async def head(self, path: str) -> Any:
        """The metadata of an object, if it exists."""
        with self._errors():
            return await _or_none(self.store.head_async(path))

    async def stream(self, path: str, start: int = 0) -> AsyncIterator[bytes] | None:
        """The chunks of an object from a byte on, if it exists."""
        with self._errors():
            answer = await _or_none(self.store.get_async(path, options={"range": {"offset": start}} if start else None))
        return None if answer is None else self._pieces(answer)

    async def _pieces(self, answer: Any) -> AsyncIterator[bytes]:
        with self._errors():
            async for chunk in answer.stream(PIECE_BYTES):
                yield bytes(chunk)

    async def copy(self, source: str, target: str) -> bool:
        """Copy an object; False if it does not exist."""

        async def copied() -> bool:
            await self.store.copy_async(source, target)
            return True

        with self._errors():
            return await _or_none(copied()) is not None

    async def delete(self, path: str) -> None:
        with self._errors():
            await self.store.delete_async(path)

    async def folders(self) -> list[str]:
        with self._errors():
            return list((await self.store.list_with_delimiter_async(None))["common_prefixes"])

    async def list(self, folder: str, after: str | None = None) -> AsyncIterator[Any]:
        """The objects below a folder, ordered by path, after one of them."""
        with self._errors():
            async for page in self.store.list(folder or None, offset=after, chunk_size=1_000):
                for known in page:
                    yield known


async def _or_none(request: Awaitable[T]) -> T | None:
    """The answer to a request; None if the object does not exist."""
    try:
        return await request
    except FileNotFoundError as error:
        if NO_BUCKET in str(error):
            raise
        return None


class S3Blobs:
    """A `Blobs` in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._known: Objects | None = None

    # The contract

    async def open(self) -> None:
        """Ask the bucket once, so that a wrong name is found before a run needs it."""
        self._known = Objects(open_bucket(self._bucket), f"the blobs in {self._name}", code="blobs_unusable")
        try:
            async for _ in self._objects.list(""):
                break
        except Unavailable as error:
            if isinstance(error, StoreUnusable):
                raise
            LOG.warning("%s; work that needs a blob waits until the blobs are reachable again", error)

    async def close(self) -> None:
        self._known = None

    async def put(self, tenant: str, body: bytes, *, keep: bool = False) -> str:
        digest = digest_of(body)
        path = self._path(tenant, ACTIVE, hex_of(digest))
        await self._mark(tenant, digest, keep)
        if not await self._objects.create(path, body) and not await self._is_sound(path, digest):
            await self._objects.write(path, body)
        return digest

    async def put_stream(self, tenant: str, chunks: AsyncIterator[bytes], *, keep: bool = False) -> tuple[str, int]:
        async with spooled(chunks) as draft:
            if draft.size <= AT_ONCE_BYTES_MAX:
                body = b"".join(draft.pieces())
                return await self.put(tenant, body, keep=keep), draft.size
            await self._mark(tenant, draft.digest, keep)
            path = self._path(tenant, ACTIVE, hex_of(draft.digest))
            if not await self._is_sound(path, draft.digest):
                await self._objects.write(path, draft.pieces())
            return draft.digest, draft.size

    async def get(self, tenant: str, digest: str) -> bytes:
        return await whole(self.read(tenant, digest))

    def read(self, tenant: str, digest: str, *, start: int = 0) -> AsyncIterator[bytes]:
        chunks = self._chunks(tenant, digest, start)
        return chunks if start else verified(digest, chunks)

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        digits = hex_of(digest)
        for place in (ACTIVE, GRACE, ACTIVE):
            known = await self._objects.head(self._path(tenant, place, digits))
            if known is not None:
                return _info(known, place, await self._is_kept(tenant, digits))
        return None

    async def tenants(self) -> tuple[str, ...]:
        folders = await self._objects.folders()
        return tuple(sorted(tenant_of(unquote(folder)) for folder in folders if folder != STORES))

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        start = None if after is None else hex_of(after)
        kept, found = set[str](), dict[str, Listing]()
        for place in (ACTIVE, GRACE):
            infos: Listing = []
            async for known in self._listed(f"{folder_name(tenant)}/{place}", start):
                infos.append(_info(known, place, False))
                if len(infos) == limit:
                    break
            for info in infos:
                found.setdefault(info.digest, []).append(info)
        digests = sorted(found)[:limit]
        async for known in self._listed(f"{folder_name(tenant)}/{KEEP}", start):
            kept.add(_info(known, ACTIVE, True).digest)
            if not digests or max(kept) >= digests[-1]:
                break
        return [msgspec.structs.replace(info, kept=digest in kept) for digest in digests for info in found[digest]]

    async def quarantine(self, tenant: str, digest: str) -> None:
        digits = hex_of(digest)
        active, grace = self._path(tenant, ACTIVE, digits), self._path(tenant, GRACE, digits)
        if not await self._is_kept(tenant, digits) and await self._objects.copy(active, grace):
            await self._objects.delete(active)

    async def restore(self, tenant: str, digest: str) -> bool:
        # The grace copy stays: a concurrent quarantine of the same object relies on it.
        digits = hex_of(digest)
        return await self._objects.copy(self._path(tenant, GRACE, digits), self._path(tenant, ACTIVE, digits))

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        digits = hex_of(digest)
        path = self._path(tenant, GRACE, digits)
        known = await self._objects.head(path)
        if known is None or _since_ms(known) >= before_ms or await self._is_kept(tenant, digits):
            return False
        await self._objects.delete(path)
        return True

    # Markers of stores

    @property
    def address(self) -> str:
        return self._name + (f"?endpoint={self._bucket.endpoint}" if self._bucket.endpoint else "")

    def mark_path(self, mark: str) -> str:
        return f"{self._name.rstrip('/')}/{STORES}/{mark}"

    async def read_markers(self) -> dict[str, str]:
        paths = [known["path"] async for known in self._objects.list(STORES)]
        streams = [(path.rpartition("/")[2], await self._objects.stream(path)) for path in paths]
        return {mark: (await whole(words)).decode(errors="replace") for mark, words in streams if words is not None}

    async def write_marker(self, mark: str, words: str) -> None:
        await self._objects.write(f"{STORES}/{mark}", words.encode())

    # Objects

    @property
    def _objects(self) -> Objects:
        if self._known is None:
            raise Unavailable(f"the blobs in {self._name} are closed")
        return self._known

    @property
    def _name(self) -> str:
        return f"s3://{self._bucket.name}/{self._bucket.prefix}"

    def _path(self, tenant: str, place: str, digits: str) -> str:
        return f"{folder_name(tenant)}/{place}/{digits}"

    async def _mark(self, tenant: str, digest: str, keep: bool) -> None:
        """Mark a blob as kept, before it exists, so that the collector cannot miss the mark."""
        if keep:
            await self._objects.create(self._path(tenant, KEEP, hex_of(digest)), b"")

    def _listed(self, folder: str, after: str | None) -> AsyncIterator[Any]:
        return self._objects.list(folder, None if after is None else f"{folder}/{after}")

    async def _is_sound(self, path: str, digest: str) -> bool:
        chunks, seen = await self._objects.stream(path), hashlib.sha256()
        if chunks is None:
            return False
        async for chunk in chunks:
            seen.update(chunk)
        return f"sha256:{seen.hexdigest()}" == digest

    async def _is_kept(self, tenant: str, digits: str) -> bool:
        return await self._objects.head(self._path(tenant, KEEP, digits)) is not None

    async def _chunks(self, tenant: str, digest: str, start: int) -> AsyncIterator[bytes]:
        # It may move between two requests, so the first state is tried again.
        for place in (ACTIVE, GRACE, ACTIVE):
            chunks = await self._objects.stream(self._path(tenant, place, hex_of(digest)), start)
            if chunks is not None:
                async for chunk in chunks:
                    yield chunk
                return
        raise missing(digest)


def service_error(what: str, error: Exception, code: str) -> Unavailable:
    """The error of a service in one line: `StoreUnusable` with this code where waiting does not help."""
    text = str(error)
    sign = next((sign for sign in REASONS if sign in text), None)
    if sign is None:
        return Unavailable(f"{what}: {text.partition(chr(10))[0][:300]}")
    if sign not in MISTAKES:
        return Unavailable(f"{what}: {REASONS[sign]}")
    reason, _, hint = REASONS[sign].partition("; ")
    return StoreUnusable(Problem(code=code, message=f"{what}: {reason}", hint=hint))


def open_bucket(where: Bucket) -> S3Store:
    """A client for a bucket; sends no request yet."""
    try:
        from obstore.store import S3Store
    except ImportError:
        hint = "pip install 'tidemill[s3]'"
        raise rejected("blobs_unsupported", "S3 needs the package obstore", hint=hint) from None
    given = {
        "endpoint": where.endpoint,
        "region": where.region or ("us-east-1" if where.endpoint else ""),
        "server_side_encryption": where.sse,
        "sse_kms_key_id": where.kms_key_id,
    }
    config: Any = {name: value for name, value in given.items() if value}
    limits = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(seconds=300)}
    client: Any = {**limits, "allow_http": where.endpoint.startswith("http://")}
    retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
    return S3Store(where.name, prefix=where.prefix or None, config=config, client_options=client, retry_config=retries)


def _info(known: Any, place: BlobState, kept: bool) -> BlobInfo:
    digits = known["path"].rpartition("/")[2]
    return BlobInfo(digest=f"sha256:{digits}", size=known["size"], since_ms=_since_ms(known), state=place, kept=kept)


def _since_ms(known: Any) -> int:
    moment: datetime = known["last_modified"]
    return int(moment.timestamp() * 1000)
