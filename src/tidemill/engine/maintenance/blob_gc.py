"""Mark-and-sweep collection of blobs, and the binding of a store to its blob location.

A row (see `blob_references`), or an address in a JSON value that is itself needed, keeps a blob; no log is read.
Candidates are at least an hour old, because the record that refers to a new blob may not be committed yet. Unneeded
blobs are quarantined, and deleted after the grace period by a later collection that finds no reference either. It
refuses while references may be missing: before the first `reindex` of an older store, and when the index is damaged.
A store writes a marker with its id and file to its blob location and records both; later opens must match the address
or find the marker. Collection refuses a location with markers of other files: it knows the needs of its own store only.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, suppress
from pathlib import Path
from typing import cast
from urllib.parse import quote

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.contract import (
    DIGEST_LENGTH,
    GRACE,
    BlobDamaged,
    BlobInfo,
    BlobMissing,
    Blobs,
    ExternalBlobPlace,
    digests_in,
)
from tidemill.engine.blob_references import BLOB_REFERENCE, KINDS, parts_of, read_completeness
from tidemill.engine.maintenance.reindex import row_pages
from tidemill.errors import Rejected, TidemillError, Unavailable, rejected
from tidemill.kernel.codec import DAMAGE
from tidemill.stores.contract import Commit, Store, Stream
from tidemill.stores.optional import flaws_of

# The binding of a store to its blob location

REMEMBERED = Stream("", "store", "blobs")


class OwnershipRecord(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    mark: str
    """The store's id: the name of its marker."""


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(OwnershipRecord).decode


class BlobPlaceOwnership:
    """Binds the file of a store to its blob location; `inside` is the blob store in the file itself.

    With `read_only` nothing is bound and no marker is written.
    """

    def __init__(
        self,
        store: Store,
        path: Path | str,
        inside: Blobs,
        outside: ExternalBlobPlace | None,
        ambient: Ambient,
        *,
        read_only: bool = False,
    ) -> None:
        self._store, self._path, self._inside, self._outside = store, path, inside, outside
        self._ambient, self._read_only = ambient, read_only

    async def verify_or_claim(self) -> None:
        """Refuse a location that is not the store's; bind the two on first use."""
        known, outside = await self._known(), self._outside
        if known is None and outside is not None and await self._may_begin(outside) and not self._read_only:
            # An unreachable location or a read-only file is reported when it is needed.
            with suppress(TidemillError):
                await self._bind(outside)
            known = await self._known()
        if known is None:
            return
        if outside is None:
            raise _elsewhere(self._path, "in the store itself", known.address)
        if known.address != outside.address and not await self._carries(outside, known.mark):
            raise _elsewhere(self._path, f"in {outside.address}", known.address)

    async def check_alone(self) -> None:
        """Refuse to collect in a location that other stores, or copies of this one, use too."""
        if self._outside is None:
            return
        await self.verify_or_claim()
        marks = await self.verify_alone()
        known = await self._known()
        if known is not None and known.mark not in marks:
            await self._outside.write_marker(known.mark, str(self._path))

    async def verify_alone(self) -> dict[str, str]:
        """Refuse a location with markers of others, without writing one; returns the markers."""
        outside = self._outside
        if outside is None:
            return {}
        marks = await outside.read_markers()
        others = {mark: path for mark, path in marks.items() if path != str(self._path)}
        if others:
            mark, path = min(others.items())
            where = outside.mark_path(mark)
            message = f"nothing was collected, because {path or 'another store'} keeps its blobs in the same place"
            hint = f"give each store a place of its own; if that one is gone or was moved, remove {where}"
            raise rejected("blobs_shared", message, hint=hint)
        return marks

    async def _bind(self, outside: ExternalBlobPlace) -> None:
        """Write the marker, then the record. Reuses a marker that a killed process left for this file."""
        left = [mark for mark, path in (await outside.read_markers()).items() if path == str(self._path)]
        mark = min(left) if left else self._ambient.new_id()
        await outside.write_marker(mark, str(self._path))
        # Refused when another process was faster: its record counts, and both markers name the same file.
        await self._store.commit(
            [Commit(REMEMBERED, 0, (_ENCODE(OwnershipRecord(address=outside.address, mark=mark)),))]
        )

    async def _known(self) -> OwnershipRecord | None:
        (tail,) = await self._store.load({REMEMBERED: 0})
        # An unreadable record counts as none here; `verify-log` reports damage.
        with suppress(*DAMAGE):
            return _DECODE(tail.records[-1]) if tail.records else None
        return None

    async def _may_begin(self, outside: ExternalBlobPlace) -> bool:
        """Whether a store without a record may bind here: a used store not to an empty place, which may be a typo."""
        with suppress(Unavailable):
            if await outside.tenants():
                return True
            await self._inside.open()
            try:
                if await self._inside.tenants():
                    raise _elsewhere(self._path, f"in {outside.address}", "")
            finally:
                await self._inside.close()
            return not any([await self._store.streams(kind, limit=1) for kind in KINDS])
        return False

    async def _carries(self, outside: ExternalBlobPlace, mark: str) -> bool:
        with suppress(Unavailable):
            return mark in await outside.read_markers()
        return False


def _elsewhere(path: Path | str, given: str, address: str) -> Rejected:
    where = f"in {address}" if address else "in the store itself"
    hint = f"open it with ?blobs={quote(address, safe=':/?=')}" if address else "open it without ?blobs="
    return rejected("blobs_elsewhere", f"{path} keeps its blobs {where}, not {given}", hint=hint)


# References between blobs

_MAY_REFER = re.compile(rb'\s*[\[{"]')
"""The beginning of JSON that can contain a string."""
_OVERLAP = DIGEST_LENGTH + len('"$blob":""')
"""Chunks overlap by this much, so that an address with its key is never cut in two."""


async def referring_texts(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks of a blob in which addresses may occur."""
    rest, first = b"", True
    async with aclosing(cast(AsyncGenerator[bytes, None], chunks)) as opened:
        async for chunk in opened:
            if first and not _MAY_REFER.match(chunk):
                return
            text, first = rest + chunk, False
            yield text
            rest = text[-_OVERLAP:]


# Collection

HOUR_MS = 3_600_000
GRACE_MS = 24 * HOUR_MS
YOUNG_MS = HOUR_MS
"""The record that refers to a younger blob may not be committed yet."""
BLOBS_AT_A_TIME = 1_000


class GcReport(msgspec.Struct, frozen=True, kw_only=True):
    scanned: int = 0
    """Blobs that existed at the start."""
    reachable: int = 0
    """Blobs among them that a run, a workflow or a needed value refers to."""
    kept: int = 0
    """Blobs that are never collected."""
    young: int = 0
    """Blobs younger than an hour, which are left alone."""
    retired: int = 0
    waiting: int = 0
    """Blobs whose grace period is not over yet."""
    restored: int = 0
    deleted: int = 0
    bytes_freed: int = 0
    unreadable: tuple[str, ...] = ()
    """Blobs that are referred to and are missing or damaged."""
    dry_run: bool = False


async def collect(
    store: Store,
    blobs: Blobs,
    tenant: str,
    *,
    now_ms: int,
    grace_ms: int = GRACE_MS,
    dry_run: bool = False,
    exclude: Collection[str] = (),
) -> GcReport:
    """Collect the blobs of a tenant. Safe to run concurrently and to kill at any point.

    `exclude` names runs whose references are unknown: blobs that only they need are collected.
    """
    await _check_complete(store, tenant, exclude)
    collection = BlobGarbageCollector(store, blobs, tenant, now_ms=now_ms, grace_ms=grace_ms, dry_run=dry_run)
    await collection.list()
    await collection.mark()
    await collection.sweep()
    return collection.report()


class BlobGarbageCollector:
    """One collection; call `list`, `mark` and `sweep` in this order."""

    def __init__(self, store: Store, blobs: Blobs, tenant: str, *, now_ms: int, grace_ms: int, dry_run: bool) -> None:
        self._store, self._blobs, self._tenant, self._dry_run = store, blobs, tenant, dry_run
        self._young_ms, self._due_ms = now_ms - YOUNG_MS, now_ms - grace_ms
        self._candidates: list[BlobInfo] = []
        self._present: set[str] = set()
        self._spared: set[str] = set()
        self._referred: set[str] = set()
        self._needed: set[str] = set()
        self._confirmed: set[str] = set()
        """Candidates that were looked up one by one."""
        self._unreadable: list[str] = []
        self._tally = dict.fromkeys(
            ("scanned", "kept", "young", "retired", "waiting", "restored", "deleted", "bytes_freed"), 0
        )

    def report(self) -> GcReport:
        return GcReport(
            **self._tally,
            reachable=len(self._referred & self._present),
            unreadable=tuple(sorted(self._unreadable)),
            dry_run=self._dry_run,
        )

    # List

    async def list(self) -> None:
        """List the candidates; other blobs count as needed, with all that they refer to."""
        after: str | None = None
        while page := await self._blobs.list(self._tenant, after=after, limit=BLOBS_AT_A_TIME):
            for info in page:
                # A blob may be both active and in quarantine.
                self._tally["scanned"] += info.digest not in self._present
                self._present.add(info.digest)
                young = info.state != GRACE and info.since_ms >= self._young_ms
                self._tally["kept"] += info.kept
                self._tally["young"] += young and not info.kept
                if info.kept or young:
                    self._spared.add(info.digest)
                if info.state == GRACE or not (info.kept or young):
                    self._candidates.append(info)
            after = page[-1].digest

    # Mark

    async def mark(self) -> None:
        """Read every reference, and every value that is referred to."""
        async for rows in row_pages(self._store, self._tenant, BLOB_REFERENCE):
            self._referred.update(parts_of(row.key)[2] for row in rows)
        found = self._spared | self._referred
        while found := found or await self._overlooked():
            self._needed |= found
            within = set().union(*[await self._within(digest) for digest in found])
            self._referred |= within
            found = within - self._needed

    async def _overlooked(self) -> set[str]:
        """Candidates with a reference after all: a list leaves out a damaged row, the index still counts it."""
        doubtful = {info.digest for info in self._candidates} - self._needed - self._confirmed
        self._confirmed |= doubtful
        count = self._store.count
        found = {each for each in doubtful if await count(self._tenant, BLOB_REFERENCE, [each], at_most=1)}
        self._referred |= found
        return found

    async def _within(self, digest: str) -> set[str]:
        """The digests that a blob refers to. An unreadable blob is recorded and does not stop the collection."""
        found = set[str]()
        try:
            async for text in referring_texts(self._blobs.read(self._tenant, digest)):
                found |= digests_in(text)
        except (BlobMissing, BlobDamaged):
            self._unreadable.append(digest)
        return found

    # Sweep

    async def sweep(self) -> None:
        active = {info.digest for info in self._candidates if info.state != GRACE} | self._spared
        for info in self._candidates:
            needed = info.digest in self._needed
            if info.state != GRACE:
                if not needed:
                    self._tally["retired"] += 1
                    if not self._dry_run:
                        await self._blobs.quarantine(self._tenant, info.digest)
            elif needed and (info.kept or info.digest not in active):
                self._tally["restored"] += 1
                if not self._dry_run:
                    await self._blobs.restore(self._tenant, info.digest)
            else:
                # It is not needed, or also active.
                due = info.since_ms < self._due_ms
                if due and not self._dry_run:
                    due = await self._blobs.delete(self._tenant, info.digest, before_ms=self._due_ms)
                self._tally["deleted" if due else "waiting"] += 1
                self._tally["bytes_freed"] += info.size if due else 0


async def _check_complete(store: Store, tenant: str, exclude: Collection[str]) -> None:
    """Refuse to collect when references may be missing."""
    complete, flaws = await read_completeness(store, tenant), await flaws_of(store)
    if complete is None:
        message = "nothing was collected, because an earlier version did not list the blobs that its runs need"
        hint = "run `tidemill reindex` once; workers may run meanwhile"
        raise rejected("blob_references_missing", message, hint=hint)
    if not flaws.sound:
        message = "nothing was collected, because the index of the lists is damaged and may lack blobs that are needed"
        raise rejected("blobs_gc_unsafe", message, hint="run `tidemill reindex`")
    unknown = [name for name in complete.unknown if name not in exclude]
    if unknown:
        name = unknown[0]
        message = (
            f"nothing was collected, because the log of {name} cannot be read, so the blobs that it needs are unknown"
        )
        hint = f"repair it and run `tidemill reindex`, or give those blobs up: `tidemill blobs gc --exclude '{name}'`"
        raise rejected("blobs_gc_unsafe", message, hint=hint)
