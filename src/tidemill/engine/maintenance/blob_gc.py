"""Mark-and-sweep collection of blobs, and the binding of a store to its blob location.

A digest anywhere in a record, or in a JSON value that is itself needed, keeps its blob. Candidates are at least an hour
old, because the record that refers to a new blob may not be committed yet. Unneeded blobs are quarantined, and deleted
after the grace period by a later collection that finds no reference either. One unreadable log stops the collection.
A store writes a marker with its id and file to its blob location and records both; later opens must match the address
or find the marker. Collection refuses a location with markers of other files: it reads the logs of its own store only.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
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
from tidemill.engine.corruption import is_newer
from tidemill.engine.index_rows import RUN
from tidemill.engine.maintenance.verify import payloads_in
from tidemill.engine.versions import WORKFLOW, read_history
from tidemill.errors import Rejected, TidemillError, Unavailable, rejected
from tidemill.kernel.codec import DAMAGE, decode_event
from tidemill.kernel.events import BlobRef
from tidemill.stores.contract import Commit, Store, Stream, Tail

# The binding of a store to its blob location

REMEMBERED = Stream("", "store", "blobs")


class OwnershipRecord(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    mark: str
    """The store's id: the name of its marker."""


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(OwnershipRecord).decode


class BlobPlaceOwnership:
    """Binds the file of a store to its blob location; `inside` is the blob store in the file itself."""

    def __init__(
        self, store: Store, path: Path | str, inside: Blobs, outside: ExternalBlobPlace | None, ambient: Ambient
    ) -> None:
        self._store, self._path, self._inside, self._outside = store, path, inside, outside
        self._ambient = ambient

    async def verify_or_claim(self) -> None:
        """Refuse a location that is not the store's; bind the two on first use."""
        known, outside = await self._known(), self._outside
        if known is None and outside is not None and await self._may_begin(outside):
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
        outside = self._outside
        if outside is None:
            return
        await self.verify_or_claim()
        marks = await outside.read_markers()
        others = {mark: path for mark, path in marks.items() if path != str(self._path)}
        if others:
            mark, path = min(others.items())
            where = outside.mark_path(mark)
            message = f"nothing was collected, because {path or 'another store'} keeps its blobs in the same place"
            hint = f"give each store a place of its own; if that one is gone or was moved, remove {where}"
            raise rejected("blobs_shared", message, hint=hint)
        known = await self._known()
        if known is not None and known.mark not in marks:
            await outside.write_marker(known.mark, str(self._path))

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
            return not any([await self._store.streams(kind, limit=1) for kind in (WORKFLOW, RUN)])
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

KINDS = (RUN, WORKFLOW)
"""Every kind of stream whose records may refer to a blob."""
HOUR_MS = 3_600_000
GRACE_MS = 24 * HOUR_MS
YOUNG_MS = HOUR_MS
"""The record that refers to a younger blob may not be committed yet."""
STREAMS_AT_A_TIME = 20
BLOBS_AT_A_TIME = 1_000


class GcReport(msgspec.Struct, frozen=True, kw_only=True):
    scanned: int = 0
    """Blobs that existed at the start."""
    reachable: int = 0
    """Blobs among them that a record or a needed value refers to."""
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
    store: Store, blobs: Blobs, tenant: str, *, now_ms: int, grace_ms: int = GRACE_MS, dry_run: bool = False
) -> GcReport:
    """Collect the blobs of a tenant. Safe to run concurrently and to kill at any point."""
    collection = BlobGarbageCollector(store, blobs, tenant, now_ms=now_ms, grace_ms=grace_ms, dry_run=dry_run)
    await collection.list()
    await collection.mark()
    await collection.sweep()
    return collection.report()


def _digests_of_readings(record: bytes) -> set[str]:
    """The digests in a record that are not those of its payloads; none if it is no event."""
    try:
        payloads = list(payloads_in(decode_event(record)))
    except (*DAMAGE, Rejected):
        return set()
    texts = [payload.digest.encode() if isinstance(payload, BlobRef) else payload for payload in payloads]
    return digests_in(record) - digests_in(b" ".join(texts))


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
        self._no_blobs: set[str] = set()
        """Digests that decisions record of the values that they read."""
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
        """Read every log, and every value that is referred to."""
        async for tail in self._tails():
            for record in tail.records:
                found = digests_in(record)
                if not found <= self._present | self._referred:
                    self._no_blobs |= _digests_of_readings(record)
                self._referred |= found
            _check_readable(tail)
        found = self._spared | self._referred
        while found:
            self._needed |= found
            within = set().union(*[await self._within(digest) for digest in found])
            self._referred |= within
            found = within - self._needed

    async def _tails(self) -> AsyncIterator[Tail]:
        for kind in KINDS:
            after = None
            while streams := await self._store.streams(kind, after=after, limit=STREAMS_AT_A_TIME):
                own = {stream: 0 for stream in streams if stream.tenant == self._tenant}
                # All records, because the history shows values that a snapshot has dropped.
                for tail in await self._store.load(own, snapshots=False) if own else ():
                    yield tail
                after = streams[-1]

    async def _within(self, digest: str) -> set[str]:
        """The digests that a blob refers to. An unreadable blob is recorded and does not stop the collection."""
        found = set[str]()
        try:
            async for text in referring_texts(self._blobs.read(self._tenant, digest)):
                found |= digests_in(text)
        except (BlobMissing, BlobDamaged) as error:
            if isinstance(error, BlobDamaged) or digest not in self._no_blobs:
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


def _check_readable(tail: Tail) -> None:
    """Refuse to collect when a log cannot be read, because its references are unknown."""
    stream, reason, hint = tail.stream, tail.damage, "repair it, or restore the store from a backup"
    try:
        if not reason and stream.kind == WORKFLOW:
            read_history(stream.key, tail)
        elif not reason:
            for record in tail.records:
                decode_event(record)
    except (TidemillError, *DAMAGE) as error:
        reason = str(error)
        hint = "collect with the newer version" if is_newer(error) else hint
    if reason:
        name = f"{stream.kind} {stream.key}"
        message = (
            f"nothing was collected, because {name} cannot be read, so the blobs that it needs are unknown: {reason}"
        )
        raise rejected("blobs_gc_unsafe", message, hint=hint)
