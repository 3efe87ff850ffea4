"""Blobs as objects of a bucket: `<prefix>/<tenant>/active/<digest>`, and the same below `grace` and `keep`.

Any service that speaks S3 and knows conditional puts will do. An object is created only where there is none; one that
is there is read instead, and replaced only if it is damaged. Retiring one is a copy and then a removal. Bringing it
back is a copy alone: a removal could hit the copy that another collector has just made, right before it removes the
active one. What is in both places is tidied up by the collector when it is due. Credentials come from the environment
(`AWS_ACCESS_KEY_ID`, a profile of the machine, …).

An object that is put again keeps its date, since only a copy of all its bytes would change it. So a collector may set
it aside before the fact that refers to it is written. It can be read all the same, and the next collection brings it
back, because nothing is deleted that has not been aside for the whole time of grace.
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

RETRY_SECONDS = 10
CONNECT_SECONDS = 5
REQUEST_SECONDS = 300
LISTED = 1_000
AT_ONCE_BYTES_MAX = 64 * 1024 * 1024
"""What is longer is sent in parts."""

NO_BUCKET = "NoSuchBucket"
NO_CREDENTIALS = "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
REASONS = {
    NO_BUCKET: "there is no such bucket; create it, or name another one",
    "AccessDenied": "access was denied; see which rights the credentials have",
    "InvalidAccessKeyId": "the credentials are not known; see AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "SignatureDoesNotMatch": "the credentials do not fit; see AWS_SECRET_ACCESS_KEY",
    "credential": NO_CREDENTIALS,
    # Where a machine of Amazon's would have some.
    "169.254.169.254": NO_CREDENTIALS,
    "error sending request": "nobody answers there; see that the service runs and the endpoint is right",
    "SlowDown": "the service asks for fewer requests",
}
"""What people can do about errors that a service reports, by a word that stands in them."""
MISTAKES = (NO_BUCKET, "InvalidAccessKeyId", "SignatureDoesNotMatch")
"""What a service says when it was reached and the configuration is wrong: waiting does not help."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Where the objects are, and how they are kept."""

    name: str
    prefix: str = ""
    endpoint: str = ""
    """The address of a service other than Amazon's."""
    region: str = ""
    sse: Literal["", "AES256", "aws:kms"] = ""
    """Encryption that the service does before it stores an object."""
    kms_key_id: str = ""
    """Which key; for `aws:kms`."""


class Objects:
    """Objects of a bucket by path. An error of the service is `Unavailable`, or `Unfit` with `code`, in one line."""

    def __init__(self, store: S3Store, what: str, code: str) -> None:
        self.store, self._what, self._code = store, what, code

    @contextmanager
    def _answered(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise service_error(f"{self._what} cannot be reached", error, self._code) from error

    async def create(self, path: str, body: bytes) -> bool:
        """Write an object where there is none; false when there is one."""
        from obstore.exceptions import AlreadyExistsError

        with self._answered():
            try:
                await self.store.put_async(path, body, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    async def write(self, path: str, body: bytes | Iterator[bytes]) -> None:
        """Write an object, whatever is there; pieces are sent in parts, which cannot be made conditional."""
        with self._answered():
            await self.store.put_async(path, body)

    async def head(self, path: str) -> Any:
        """What is known of an object; None when there is none."""
        with self._answered():
            return await _or_none(self.store.head_async(path))

    async def stream(self, path: str) -> AsyncIterator[bytes] | None:
        """What an object holds, bit by bit; None when there is none."""
        with self._answered():
            answer = await _or_none(self.store.get_async(path))
        return None if answer is None else self._pieces(answer)

    async def _pieces(self, answer: Any) -> AsyncIterator[bytes]:
        with self._answered():
            async for chunk in answer.stream(PIECE_BYTES):
                yield bytes(chunk)

    async def copy(self, source: str, target: str) -> bool:
        """Copy an object; false when there is none."""
        with self._answered():
            return await _or_none(self._copied(source, target)) is not None

    async def _copied(self, source: str, target: str) -> bool:
        await self.store.copy_async(source, target)
        return True

    async def delete(self, path: str) -> None:
        with self._answered():
            await self.store.delete_async(path)

    async def folders(self) -> list[str]:
        """The names of the folders at the top."""
        with self._answered():
            return list((await self.store.list_with_delimiter_async(None))["common_prefixes"])

    async def list(self, folder: str, after: str | None = None) -> AsyncIterator[Any]:
        """The objects below a folder in the order of their paths, behind one of them."""
        with self._answered():
            async for page in self.store.list(folder or None, offset=after, chunk_size=LISTED):
                for known in page:
                    yield known


async def _or_none(asked: Awaitable[T]) -> T | None:
    """What a service answers of an object; None when there is no such object in the bucket."""
    try:
        return await asked
    except FileNotFoundError as error:
        if NO_BUCKET in str(error):
            raise
        return None


class S3Blobs:
    """A `Blobs` in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._known: Objects | None = None

    # Verbs

    async def open(self) -> None:
        """Look once whether the bucket answers, so that a wrong name is found before a run needs it."""
        self._known = Objects(open_bucket(self._bucket), f"the blobs in {self._name}", code="blobs_unusable")
        try:
            async for _ in self._objects.list(""):
                break
        except Unavailable as error:
            if isinstance(error, StoreUnusable):
                raise
            LOG.warning("%s; what needs a blob waits until it is back", error)

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

    async def read(self, tenant: str, digest: str) -> AsyncIterator[bytes]:
        async for chunk in verified(digest, self._chunks(tenant, digest)):
            yield chunk

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
            number = 0
            async for known in self._listed(f"{folder_name(tenant)}/{place}", start):
                info = _info(known, place, False)
                found.setdefault(info.digest, []).append(info)
                number += 1
                if number == limit:
                    break
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
        # The other one stays until it is due: whoever retires the object again at this moment relies on it.
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

    # Marks of stores

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
        """Say that a blob is kept; said first, so that no collector overlooks it once the blob is there."""
        if keep:
            await self._objects.create(self._path(tenant, KEEP, hex_of(digest)), b"")

    def _listed(self, folder: str, after: str | None) -> AsyncIterator[Any]:
        return self._objects.list(folder, None if after is None else f"{folder}/{after}")

    async def _is_sound(self, path: str, digest: str) -> bool:
        """Whether an object is there and holds the bytes that its name promises."""
        chunks, seen = await self._objects.stream(path), hashlib.sha256()
        if chunks is None:
            return False
        async for chunk in chunks:
            seen.update(chunk)
        return f"sha256:{seen.hexdigest()}" == digest

    async def _is_kept(self, tenant: str, digits: str) -> bool:
        return await self._objects.head(self._path(tenant, KEEP, digits)) is not None

    async def _chunks(self, tenant: str, digest: str) -> AsyncIterator[bytes]:
        # It may be moved between two looks, so the first place is looked at again.
        for place in (ACTIVE, GRACE, ACTIVE):
            chunks = await self._objects.stream(self._path(tenant, place, hex_of(digest)))
            if chunks is not None:
                async for chunk in chunks:
                    yield chunk
                return
        raise missing(digest)


def service_error(what: str, error: Exception, code: str) -> Unavailable:
    """What a service said, in one line: `Unfit`, with this code, where waiting does not help."""
    said = str(error)
    sign = next((sign for sign in REASONS if sign in said), None)
    if sign is None:
        return Unavailable(f"{what}: {said.partition(chr(10))[0][:300]}")
    if sign not in MISTAKES:
        return Unavailable(f"{what}: {REASONS[sign]}")
    reason, _, hint = REASONS[sign].partition("; ")
    return StoreUnusable(Problem(code=code, message=f"{what}: {reason}", hint=hint))


def open_bucket(where: Bucket) -> S3Store:
    """A client for the objects of a bucket; nothing is asked of it yet."""
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
    limits = {"connect_timeout": timedelta(seconds=CONNECT_SECONDS), "timeout": timedelta(seconds=REQUEST_SECONDS)}
    client: Any = {**limits, "allow_http": where.endpoint.startswith("http://")}
    retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    return S3Store(where.name, prefix=where.prefix or None, config=config, client_options=client, retry_config=retries)


def _info(known: Any, place: BlobState, kept: bool) -> BlobInfo:
    digits = known["path"].rpartition("/")[2]
    return BlobInfo(digest=f"sha256:{digits}", size=known["size"], since_ms=_since_ms(known), state=place, kept=kept)


def _since_ms(known: Any) -> int:
    moment: datetime = known["last_modified"]
    return int(moment.timestamp() * 1000)
