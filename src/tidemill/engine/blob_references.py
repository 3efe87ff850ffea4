"""Blob references: index rows that say which run or workflow needs which blob, so that collection reads no log.

A row is written in the same commit as the record that refers to the blob, and removed with its stream. Runs refer to
blobs by their values (large ones, and those that describe files) and by the graphs of their patches; workflows by the
content of their versions. The graph that a run was started with belongs to a version, so only a fork, and a restored
run whose workflow is not published here, refer to it too. Digests that decisions record of what they read, and
addresses in any other text, are no references.

Versions before these rows wrote none. A marker per tenant says that the rows are complete: the first publication of a
new tenant writes it, and so does `reindex`, with the names of the streams whose references it could not read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from tidemill.blobs.contract import DIGEST_PREFIX, files_in
from tidemill.engine.index_rows import RUN
from tidemill.engine.versions import WORKFLOW, Version
from tidemill.kernel.codec import DAMAGE
from tidemill.kernel.events import AnyEvent, BlobRef, RunCreated, RunPatched
from tidemill.kernel.queries import payloads_in
from tidemill.stores.contract import Commit, Row, Store, Stream

BLOB_REFERENCE = "blob_reference"
REFERRING_MAX = 100
"""Streams that are looked at to see whether one of them is a run."""
KINDS = (RUN, WORKFLOW)
"""Every kind of stream whose records may refer to a blob."""

Named = tuple[str, str]
"""(kind, key) of a row."""


def references_in(event: AnyEvent) -> Iterator[str]:
    """The digests of the blobs that an event needs, possibly repeated."""
    if isinstance(event, RunPatched) or (isinstance(event, RunCreated) and event.forked_from is not None):
        yield event.digest
    for payload in payloads_in(event):
        if isinstance(payload, BlobRef):
            yield payload.digest
        else:
            yield from files_in(payload)


def committed_references(stream: Stream, events: Sequence[AnyEvent], records: Sequence[bytes]) -> tuple[Row, ...]:
    """The rows for events that are about to be committed, with their records; most refer to nothing."""
    # Every commit does this: few records hold what all references do.
    written, first = b"".join(records), events[0]
    # `in` first tries to read the bytes as a number, which takes longer than the search.
    if written.find(b"$") < 0 and written.find(DIGEST_PREFIX) < 0:
        return ()
    # The digest of a new run's graph is a reference of the version.
    known = type(first) is RunCreated and first.forked_from is None and first.digest.startswith(DIGEST_PREFIX.decode())
    if b"$" not in written and written.count(DIGEST_PREFIX) <= known:
        return ()
    found = [digest for number in _marked(records, written) for digest in references_in(events[number])]
    return reference_rows(stream, found) if found else ()


def _marked(records: Sequence[bytes], written: bytes) -> list[int]:
    """The numbers of the records that may hold a reference; `written` is all of them together."""
    ends = list(accumulate(map(len, records)))
    found: set[int] = set()
    for mark in (b"$", DIGEST_PREFIX):
        at = written.find(mark)
        while at >= 0:
            number = bisect_right(ends, at)
            found.add(number)
            at = written.find(mark, ends[number])
    return sorted(found)


def version_references(version: Version) -> tuple[str, ...]:
    return tuple(filter(None, (version.digest, version.document, version.patch)))


def reference_rows(stream: Stream, digests: Iterable[str]) -> tuple[Row, ...]:
    """One row for each blob, found by the digest (is it needed?) and by the stream (what does it need?)."""
    _, kind, name = stream
    return tuple(
        Row(kind=BLOB_REFERENCE, key=f"{kind}/{name}/{digest}", sort=0, terms=(digest, f"{kind}:{name}"))
        for digest in dict.fromkeys(digests)
    )


def parts_of(key: str) -> tuple[str, str, str]:
    """The kind and key of the stream, and the digest, that the key of a row stands for."""
    kind, _, rest = key.partition("/")
    name, _, digest = rest.rpartition("/")
    return kind, name, digest


async def run_refers(store: Store, tenant: str, digest: str) -> bool:
    """Whether a run needs a blob."""
    page = await store.find(tenant, BLOB_REFERENCE, (digest,), limit=REFERRING_MAX)
    return page.after is not None or any(parts_of(row.key)[0] == RUN for row in page.rows)


# The marker


class Completeness(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a tenant are complete, except for these streams."""

    unknown: tuple[str, ...] = ()
    """Runs, and workflows as `workflow NAME`, written before there were such rows and not wholly readable."""


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Completeness).decode


def name_of(stream: Stream) -> str:
    return stream.key if stream.kind == RUN else f"{stream.kind} {stream.key}"


async def read_completeness(store: Store, tenant: str) -> Completeness | None:
    """What the marker says; a tenant without runs and workflows needs none. None if the rows may be incomplete."""
    # In this order, because the marker of a new tenant is written before its first stream.
    first = [each for kind in KINDS for each in await store.streams(kind, after=Stream(tenant, kind, ""), limit=1)]
    (tail,) = await store.load({_marker(tenant): 0})
    if not (tail.version or tail.damage):
        return None if any(stream.tenant == tenant for stream in first) else Completeness()
    try:
        return _DECODE(tail.records[-1]) if tail.records else None
    except DAMAGE:
        return None


async def marker_damaged(store: Store, tenant: str) -> bool:
    (tail,) = await store.load({_marker(tenant): 0})
    return bool(tail.version or tail.damage) and await read_completeness(store, tenant) is None


async def write_completeness(store: Store, tenant: str, complete: Completeness) -> None:
    marker = _marker(tenant)
    (tail,) = await store.load({marker: 0})
    if tail.damage:
        await store.forget(marker)
    if tail.records[-1:] != (record := (_ENCODE(complete),)):
        # Refused when another process was faster: each has read the same logs.
        await store.commit([Commit(marker, tail.version, record)])


async def mark_new_tenant(store: Store, tenant: str) -> None:
    """Mark the rows of a tenant as complete if it has no run and no workflow yet."""
    complete = await read_completeness(store, tenant)
    if complete is not None:
        # Refused when there is a marker.
        await store.commit([Commit(_marker(tenant), 0, (_ENCODE(complete),))])


def _marker(tenant: str) -> Stream:
    return Stream(tenant, "store", "blob_references")
