"""Blobs as objects of a bucket: `<prefix>/<tenant>/active/<digest>`, and the same below `grace` and `keep`.

Any service that speaks S3 and knows conditional puts will do. An object is created only where there is none, so bytes
that are there are not sent over by a second writer. Moving between the places is a copy and then a removal; what is
left in both places when somebody dies in between is tidied up by the collector. Credentials come from the environment
(`AWS_ACCESS_KEY_ID`, a profile of the machine, …).

An object that is put again keeps its date, since only a copy of all its bytes would change it. So a collector may set
it aside before the fact that refers to it is written. It can be read all the same, and the next collection brings it
back, because nothing is deleted that has not been aside for the whole time of grace.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote

import msgspec

from tidemill.blobs.contract import (
    ACTIVE,
    GRACE,
    PIECE_BYTES,
    BlobInfo,
    BlobState,
    Listing,
    digest_of,
    hex_of,
    missing,
    verified,
    whole,
)
from tidemill.blobs.directory import KEEP, folder_name, tenant_of
from tidemill.blobs.spool import spooled
from tidemill.errors import Unavailable, rejected

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
REASONS = {
    NO_BUCKET: "there is no such bucket; create it, or name another one",
    "AccessDenied": "access was denied; see which rights the credentials have",
    "InvalidAccessKeyId": "the credentials are not known; see AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "SignatureDoesNotMatch": "the credentials do not fit; see AWS_SECRET_ACCESS_KEY",
    "credential": "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
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


class S3Blobs:
    """A `Blobs` in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._known: S3Store | None = None

    # Verbs

    async def open(self) -> None:
        """Look once whether the bucket answers, so that a wrong name is found before a run needs it."""
        self._known = open_bucket(self._bucket)
        try:
            async for _ in self._objects("", None):
                break
        except Unavailable as error:
            if any(sign in str(error.__cause__) for sign in MISTAKES):
                raise
            LOG.warning("%s; what needs a blob waits until it is back", error)

    async def close(self) -> None:
        self._known = None

    async def put(self, tenant: str, body: bytes, *, keep: bool = False) -> str:
        digest = digest_of(body)
        await self._mark(tenant, digest, keep)
        await self._create(self._path(tenant, ACTIVE, hex_of(digest)), body)
        return digest

    async def put_stream(self, tenant: str, chunks: AsyncIterator[bytes], *, keep: bool = False) -> tuple[str, int]:
        async with spooled(chunks) as draft:
            if draft.size <= AT_ONCE_BYTES_MAX:
                body = b"".join(draft.pieces())
                return await self.put(tenant, body, keep=keep), draft.size
            await self._mark(tenant, draft.digest, keep)
            path = self._path(tenant, ACTIVE, hex_of(draft.digest))
            if await self._head(path) is None:
                # In parts, which cannot be made conditional: whoever is as fast writes the same bytes.
                await self._told(self._bucket_store.put_async(path, draft.pieces()))
            return draft.digest, draft.size

    async def get(self, tenant: str, digest: str) -> bytes:
        return await whole(self.read(tenant, digest))

    async def read(self, tenant: str, digest: str) -> AsyncIterator[bytes]:
        async for chunk in verified(digest, self._chunks(tenant, digest)):
            yield chunk

    async def stat(self, tenant: str, digest: str) -> BlobInfo | None:
        digits = hex_of(digest)
        for place in (ACTIVE, GRACE, ACTIVE):
            known = await self._head(self._path(tenant, place, digits))
            if known is not None:
                return _info(known, place, await self._is_kept(tenant, digits))
        return None

    async def tenants(self) -> tuple[str, ...]:
        found = await self._told(self._bucket_store.list_with_delimiter_async(None))
        return tuple(sorted(tenant_of(unquote(path)) for path in found["common_prefixes"]))

    async def list(self, tenant: str, *, after: str | None = None, limit: int = 1_000) -> Listing:
        start = None if after is None else hex_of(after)
        kept, found = set[str](), dict[str, Listing]()
        for place in (ACTIVE, GRACE):
            number = 0
            async for known in self._objects(f"{folder_name(tenant)}/{place}", start):
                info = _info(known, place, False)
                found.setdefault(info.digest, []).append(info)
                number += 1
                if number == limit:
                    break
        digests = sorted(found)[:limit]
        async for known in self._objects(f"{folder_name(tenant)}/{KEEP}", start):
            kept.add(_info(known, ACTIVE, True).digest)
            if not digests or max(kept) >= digests[-1]:
                break
        return [msgspec.structs.replace(info, kept=digest in kept) for digest in digests for info in found[digest]]

    async def retire(self, tenant: str, digest: str) -> None:
        digits = hex_of(digest)
        if not await self._is_kept(tenant, digits):
            await self._move(tenant, digits, ACTIVE, GRACE)

    async def restore(self, tenant: str, digest: str) -> None:
        await self._move(tenant, hex_of(digest), GRACE, ACTIVE)

    async def delete(self, tenant: str, digest: str, *, before_ms: int) -> bool:
        digits = hex_of(digest)
        path = self._path(tenant, GRACE, digits)
        known = await self._head(path)
        if known is None or _since_ms(known) >= before_ms or await self._is_kept(tenant, digits):
            return False
        await self._told(self._bucket_store.delete_async(path))
        return True

    # Objects

    @property
    def _bucket_store(self) -> S3Store:
        if self._known is None:
            raise Unavailable(f"the blobs in {self._name} are closed")
        return self._known

    @property
    def _name(self) -> str:
        return f"s3://{self._bucket.name}/{self._bucket.prefix}"

    def _path(self, tenant: str, place: str, digits: str) -> str:
        return f"{folder_name(tenant)}/{place}/{digits}"

    async def _told(self, asked: Awaitable[T]) -> T:
        """Say what is wrong with the service in one line."""
        from obstore.exceptions import BaseError

        try:
            return await asked
        except (BaseError, FileNotFoundError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        said = str(error)
        reason = next((words for sign, words in REASONS.items() if sign in said), said.partition("\n")[0][:300])
        return Unavailable(f"the blobs in {self._name} cannot be reached: {reason}")

    async def _mark(self, tenant: str, digest: str, keep: bool) -> None:
        """Say that a blob is kept; said first, so that no collector overlooks it once the blob is there."""
        if keep:
            await self._create(self._path(tenant, KEEP, hex_of(digest)), b"")

    async def _create(self, path: str, body: bytes) -> None:
        """Write an object where there is none."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            await self._bucket_store.put_async(path, body, mode="create")
        except AlreadyExistsError:
            return
        except (BaseError, FileNotFoundError) as error:
            raise self._unavailable(error) from error

    async def _head(self, path: str) -> Any:
        from obstore.exceptions import BaseError

        try:
            return await self._bucket_store.head_async(path)
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise self._unavailable(error) from error

    async def _is_kept(self, tenant: str, digits: str) -> bool:
        return await self._head(self._path(tenant, KEEP, digits)) is not None

    async def _move(self, tenant: str, digits: str, source: BlobState, target: BlobState) -> None:
        """Copy an object and remove the first one; its time at the other place begins with the copy."""
        from obstore.exceptions import BaseError

        here, there = (self._path(tenant, place, digits) for place in (source, target))
        try:
            await self._bucket_store.copy_async(here, there)
            await self._bucket_store.delete_async(here)
        except FileNotFoundError as error:
            if NO_BUCKET in str(error):
                raise self._unavailable(error) from error
        except BaseError as error:
            raise self._unavailable(error) from error

    async def _chunks(self, tenant: str, digest: str) -> AsyncIterator[bytes]:
        from obstore.exceptions import BaseError

        # It may be moved between two looks, so the first place is looked at again.
        for place in (ACTIVE, GRACE, ACTIVE):
            try:
                found = await self._bucket_store.get_async(self._path(tenant, place, hex_of(digest)))
                async for chunk in found.stream(PIECE_BYTES):
                    yield bytes(chunk)
                return
            except FileNotFoundError as error:
                if NO_BUCKET in str(error):
                    raise self._unavailable(error) from error
            except BaseError as error:
                raise self._unavailable(error) from error
        raise missing(digest)

    async def _objects(self, folder: str, after: str | None) -> AsyncIterator[Any]:
        """The objects of a folder in the order of their names, behind one of them."""
        from obstore.exceptions import BaseError

        offset = None if after is None else f"{folder}/{after}"
        try:
            async for page in self._bucket_store.list(folder or None, offset=offset, chunk_size=LISTED):
                for known in page:
                    yield known
        except (BaseError, FileNotFoundError) as error:
            raise self._unavailable(error) from error


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
