"""Blobs for callers: store and read bytes, list blobs, garbage-collect unreferenced ones."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection
from pathlib import Path
from typing import IO, Any

import msgspec

from tidemill.blobs.contract import BlobInfo, BlobState, is_digest
from tidemill.engine.attempts.results import UNREADABLE, described
from tidemill.engine.blob_references import BLOB_REFERENCE, parts_of, read_completeness
from tidemill.engine.maintenance.blob_gc import GRACE_MS, YOUNG_MS, BlobPlaceOwnership, GcReport
from tidemill.engine.maintenance.blob_gc import collect as collect_garbage
from tidemill.engine.maintenance.reindex import Indexer
from tidemill.engine.maintenance.schedule import Cursor
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.validation import check_limit
from tidemill.errors import rejected
from tidemill.handlers.contract import Blob, Fail
from tidemill.stores.contract import Stream

DIGEST_HINT = "a digest is sha256: and 64 digits"
GRACE_S_MAX = 100 * 365 * 86_400
COLLECT_EVERY_MS = 86_400_000
PAGES_MAX = 1_000
"""Pages that one question looks through for blobs in a certain state."""
USERS_SHOWN_MAX = 5


class BlobService:
    """Store, read, list and collect blobs. A digest is `sha256:` and 64 digits."""

    def __init__(self, context: ServiceContext, ownership: BlobPlaceOwnership | None) -> None:
        self._context, self._ownership = context, ownership

    async def put(
        self,
        data: bytes | Path | AsyncIterable[bytes],
        *,
        media_type: str = "application/octet-stream",
        name: str = "",
        keep: bool = False,
        actor: str = "",
    ) -> dict[str, Any]:
        """Store bytes, a file or a stream, and return their description, which may be an input of a run.

        Without `keep` they are collected after a day or so, unless a run or workflow refers to them by then.
        """
        context = self._context
        context.check_actor(actor)
        try:
            stored = await described(context.blobs, context.tenant, Blob(data, media_type, name, keep=keep))
        except Fail as error:
            if error.code == UNREADABLE:
                raise rejected(error.code, error.message, hint="name a file that can be read") from None
            raise rejected(error.code, error.message, path="/data", hint=error.hint) from None
        digest = str(stored["$blob"])
        detail = f"{stored['size']} bytes{', kept permanently' if keep else ''}"
        await context.enter(
            Stream(context.tenant, "blob", digest), digest.encode(), actor=actor, command="put", detail=detail
        )
        return stored

    async def show(self, digest: str) -> BlobInfo:
        """Size, state and age of a blob."""
        _check(digest)
        info = await self._context.blobs.stat(self._context.tenant, digest)
        if info is None:
            hint = "see `tidemill blobs list`; it may have been collected"
            raise rejected("blob_unknown", f"there is no blob {digest}", hint=hint)
        return await self._with_users(info)

    async def _with_users(self, info: BlobInfo) -> BlobInfo:
        page = await self._context.store.find(
            self._context.tenant, BLOB_REFERENCE, (info.digest,), limit=USERS_SHOWN_MAX
        )
        return msgspec.structs.replace(info, used_by=tuple(" ".join(parts_of(row.key)[:2]) for row in page.rows))

    async def save(self, digest: str, file: IO[bytes]) -> int:
        """Write the bytes of a blob to an open file; returns their number."""
        info = await self.show(digest)
        async for chunk in self._context.blobs.read(self._context.tenant, digest):
            file.write(chunk)
        return info.size

    def read(self, digest: str, start: int = 0) -> AsyncIterator[bytes]:
        """The bytes of a blob that `show` has found, as a stream; damage is raised at the end.

        What comes after byte `start` is not verified.
        """
        return self._context.blobs.read(self._context.tenant, digest, start=start)

    async def find(
        self, *, state: BlobState | None = None, after: str | None = None, limit: int = 50
    ) -> tuple[list[BlobInfo], str | None]:
        """Blobs by digest, and the cursor of the next page."""
        check_limit(limit)
        if after is not None and not is_digest(after):
            raise rejected("bad_cursor", "the next page starts after a digest", path="/after", hint=DIGEST_HINT)
        found: list[BlobInfo] = []
        for _ in range(PAGES_MAX):
            page = await self._context.blobs.list(self._context.tenant, after=after, limit=limit)
            if not page:
                return found, None
            for info in page:
                if state in (None, info.state):
                    found.append(await self._with_users(info))
                    if len(found) == limit:
                        return found, info.digest
            after = page[-1].digest
        return found, after

    async def collect(
        self, *, dry_run: bool = False, grace_s: float = 86_400, exclude: Collection[str] = ()
    ) -> GcReport:
        """Garbage-collect unreferenced blobs: mark them first, and delete them after `grace_s`.

        `exclude` names runs of earlier versions that cannot be read: blobs that only they need are given up.
        """
        if not grace_s <= GRACE_S_MAX:
            hint = "to keep a blob permanently, store it with `keep`"
            raise rejected("grace_too_long", f"a grace period of {grace_s:g} s is too long", path="/grace_s", hint=hint)
        grace_ms = round(grace_s * 1000)
        if grace_ms < YOUNG_MS:
            message = f"a grace period of {grace_s:g} s is too short: a run may be about to refer to a blob"
            raise rejected("grace_too_short", message, path="/grace_s", hint="give it an hour at least")
        if self._ownership is not None:
            await self._ownership.check_alone()
        return await self._collect(self._context.tenant, grace_ms, dry_run, exclude)

    async def maintain(self, tenant: str, cursor: Cursor) -> Cursor:
        """Collect the blobs of a tenant; a maintenance task. Rebuilds the rows of a store of an earlier version."""
        store = self._context.store
        if await read_completeness(store, tenant) is None:
            await Indexer(store, self._context.catalog, tenant=tenant).run()
        if self._ownership is not None:
            await self._ownership.check_alone()
        await self._collect(tenant, GRACE_MS, False, ())
        return cursor

    async def _collect(self, tenant: str, grace_ms: int, dry_run: bool, exclude: Collection[str]) -> GcReport:
        store, blobs, now_ms = self._context.store, self._context.blobs, self._context.store.now_ms()
        return await collect_garbage(
            store,
            blobs,
            tenant,
            now_ms=now_ms,
            grace_ms=grace_ms,
            dry_run=dry_run,
            exclude=exclude,
        )


def _check(digest: str) -> None:
    if not is_digest(digest):
        raise rejected("digest_invalid", f"{digest[:100]!r} is not a digest", hint=DIGEST_HINT)
