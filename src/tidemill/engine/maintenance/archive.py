"""The format of archived runs, and the reader of an archive.

An entry is compressed JSON lines: a header, the blobs, the events (readable and as stored bytes) and a checksum of all
lines before it. Equal runs give equal bytes, so writing one twice is idempotent. Every defect of an entry is one
refusal, `archive_damaged`.

Several entries may have the same run id, because a key may be reused and a restored run may be archived again. The
newest is meant unless the caller names another; an older one never replaces a newer one that cannot be read.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from tidemill.blobs.archive import Archive
from tidemill.blobs.contract import digest_of
from tidemill.errors import Rejected, Unavailable, rejected
from tidemill.kernel.codec import DAMAGE, decode_event, plain
from tidemill.kernel.events import AnyEvent, BlobRef, RunCreated, RunPatched
from tidemill.kernel.queries import payloads_in
from tidemill.kernel.state import State

_T = TypeVar("_T")

ARCHIVE_FORMAT = 1
INLINE_BYTES_MAX = 256 * 1024
"""Larger blobs are separate objects in the archive, which runs share."""
NAME_BYTES_MAX = 180
"""Longer run ids are replaced by their digest: file systems have limits."""
ENDING = ".jsonl.gz"
PIECE_BYTES = 1 << 20
UNPACKED_BYTES_MAX = 1 << 30
RATIO_MAX = 500
HEADER_BYTES_MAX = 1 << 20
"""Entries are JSON lines, which gzip makes about ten times smaller; repeated values shrink more."""
_STAMP = re.compile(rf"\.(?:(\d+)\.)?(\d+)(?:\.again\d+)?{re.escape(ENDING)}")
"""The suffix of an entry's name behind the run's id; the oldest entries lack the start time."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    run_id: str
    workflow: str
    version: int
    digest: str
    status: str
    seq: int
    created_ms: int
    ended_ms: int
    """The time of its last event."""
    labels: dict[str, str] = {}
    submitted_by: str = ""
    correlation_id: str = ""
    format: int = ARCHIVE_FORMAT


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True):
    header: Header
    records: tuple[bytes, ...]
    blobs: dict[str, bytes | None]
    """By digest; None when the blob is a separate object."""

    def events(self) -> list[dict[str, Any]]:
        return [plain(decode_event(record), seq) for seq, record in enumerate(self.records, 1)]


def header_of(tenant: str, run_id: str, state: State) -> Header:
    names = ("workflow", "version", "digest", "status", "seq", "created_ms", "submitted_by", "correlation_id")
    copied = {name: getattr(state, name) for name in names}
    return Header(tenant=tenant, run_id=run_id, ended_ms=state.last_ms, labels=dict(state.labels), **copied)


def name_of(header: Header, again: int = 0) -> str:
    """The name of a run's entry: by month, workflow and id.

    The start time distinguishes runs of the same key, and the number of events a run that was restored and continued.
    `again` counts names that were taken by something else.
    """
    month = datetime.fromtimestamp(header.ended_ms / 1000, UTC).strftime("%Y-%m")
    stamp = f"{header.created_ms}.{header.seq}" + (f".again{again}" if again else "")
    return f"{folder(header.tenant)}{month}/{header.workflow}/{short_name(header.run_id)}.{stamp}{ENDING}"


def stamp_of(name: str) -> tuple[int | None, int]:
    """The start time and number of events that an entry's name states, where it does."""
    found = _STAMP.fullmatch(name[name.find(".", name.rfind("/")) :])
    if found is None:
        return None, 0
    return int(found[1]) if found[1] else None, int(found[2])


def folder(tenant: str) -> str:
    return f"runs/{quote(tenant, safe='')}/"


def short_name(run_id: str) -> str:
    name = quote(run_id, safe="").replace(".", "%2E")
    return name if len(name) <= NAME_BYTES_MAX else digest_of(run_id.encode()).replace(":", "-")


def blob_name(tenant: str, digest: str) -> str:
    return f"blobs/{quote(tenant, safe='')}/{digest.partition(':')[2]}"


def needed_blobs(events: Iterable[AnyEvent]) -> list[str]:
    """The digests of the blobs that a run needs: its workflows, and its large values."""
    found: dict[str, None] = {}
    for event in events:
        if isinstance(event, (RunCreated, RunPatched)):
            found[event.digest] = None
        found.update((each.digest, None) for each in payloads_in(event) if isinstance(each, BlobRef))
    return list(found)


HERE_BYTES_MAX = 64 * 1024
"""More is packed or unpacked in a thread: all runs of a worker wait for its loop."""


async def apart(size: int, work: Callable[..., _T], *given: Any) -> _T:
    """Do work in proportion to a size: in a thread if that is large."""
    return await asyncio.to_thread(work, *given) if size > HERE_BYTES_MAX else work(*given)


def encode_archived(header: Header, records: Sequence[bytes], blobs: Mapping[str, bytes | None]) -> bytes:
    bodies = [
        {"blob": digest} if body is None else {"blob": digest, "body": b64encode(body).decode()}
        for digest, body in blobs.items()
    ]
    events = [
        {"event": plain(decode_event(record), seq), "record": b64encode(record).decode()}
        for seq, record in enumerate(records, 1)
    ]
    lines = b"".join(map(_line, ({"run": msgspec.to_builtins(header)}, *bodies, *events)))
    end = _line({"sha256": hashlib.sha256(lines).hexdigest()})
    # Without a timestamp, so that equal runs give equal bytes.
    return gzip.compress(lines + end, mtime=0)


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted") + b"\n"


def decode_archived(name: str, body: bytes) -> ArchivedRun:
    """Read an archived run; refuse an incomplete one."""
    *lines, last = b"".join(_unpacked(name, body)).splitlines(keepends=True) or [b""]
    header = _header(name, lines[0] if lines else b"")
    try:
        whole = msgspec.json.decode(last)["sha256"] == hashlib.sha256(b"".join(lines)).hexdigest()
        rest = [msgspec.json.decode(line) for line in lines[1:]]
        blobs = {line["blob"]: b64decode(line["body"]) if "body" in line else None for line in rest if "blob" in line}
        records = tuple(b64decode(line["record"]) for line in rest if "record" in line)
    except (*DAMAGE, KeyError):
        raise _damaged(name, "it is not an archived run") from None
    if not whole:
        raise _damaged(name, "its content has changed: the checksum does not match")
    if len(records) != header.seq:
        raise _damaged(name, f"it has {len(records)} events instead of {header.seq}")
    return ArchivedRun(header=header, records=records, blobs=blobs)


def decode_header(name: str, body: bytes) -> Header:
    """Read the first line of an entry, and see that the rest of it is whole, without keeping it."""
    line, ended = b"", False
    for piece in _unpacked(name, body):
        if not ended:
            found, newline, _ = piece.partition(b"\n")
            line, ended = line + found, bool(newline)
            if len(line) > HEADER_BYTES_MAX:
                raise _damaged(name, "it is not an archived run")
    return _header(name, line)


def _unpacked(name: str, body: bytes) -> Iterator[bytes]:
    """The text of an entry. The compressed form has its own checksum, so every changed byte is noticed here."""
    if not body:
        raise _damaged(name, "it is empty")
    try:
        yield from _pieces(name, body)
    except EOFError:
        raise _damaged(name, "its end is missing") from None
    except (OSError, zlib.error):
        raise _damaged(name, "its bytes have changed") from None


def _pieces(name: str, body: bytes) -> Iterator[bytes]:
    """Unpack piece by piece, and stop where an entry grows beyond what any run can be."""
    size = 0
    with gzip.open(io.BytesIO(body)) as file:
        while piece := file.read(PIECE_BYTES):
            size += len(piece)
            if size > UNPACKED_BYTES_MAX or size > max(RATIO_MAX * len(body), PIECE_BYTES):
                raise _damaged(
                    name, f"it decompresses to more than {UNPACKED_BYTES_MAX >> 20} MiB, or {RATIO_MAX} times"
                )
            yield piece


def _header(name: str, line: bytes) -> Header:
    try:
        header = msgspec.convert(msgspec.json.decode(line)["run"], Header)
    except (*DAMAGE, KeyError):
        raise _damaged(name, "it is not an archived run") from None
    if header.format > ARCHIVE_FORMAT:
        raise _damaged(name, "it was written by a newer version", hint="upgrade Tidemill")
    return header


def _damaged(name: str, why: str, *, hint: str = "restore the archive from a backup") -> Rejected:
    return rejected("archive_damaged", f"{name} cannot be read: {why}", hint=hint)


# The reader

PAGE = 200
ENTRY_DEPTH = 2
"""Folders above an entry: its month and its workflow."""


class ArchiveEntry(Header, frozen=True, kw_only=True):
    entry: str
    """The name of the entry, which every command accepts in place of the run's id."""
    others: tuple[str, ...] = ()
    """Other entries of the same run id, newest first, when one run was asked for."""


class ArchivePage(msgspec.Struct, frozen=True, kw_only=True):
    runs: tuple[ArchiveEntry, ...]
    more: bool = False
    damaged: tuple[str, ...] = ()
    """Names of entries that cannot be read."""


class ArchiveReader:
    def __init__(self, archive: Archive, tenant: str) -> None:
        self._archive, self._root = archive, folder(tenant)

    async def page(self, workflow: str | None, limit: int) -> ArchivePage:
        """The first entries, latest months first. An unreadable entry does not hide others."""
        found, damaged = list[ArchiveEntry](), list[str]()
        async for name in self._entries(workflow):
            if len(found) + len(damaged) == limit:
                return ArchivePage(runs=tuple(found), damaged=tuple(damaged), more=True)
            try:
                found.append(_listed(await self._header(name), name))
            except (Rejected, Unavailable):
                damaged.append(name)
        return ArchivePage(runs=tuple(found), damaged=tuple(damaged))

    async def read(self, wanted: str) -> tuple[ArchiveEntry, ArchivedRun]:
        """The newest entry of a run, or the entry of this name."""
        # Only a listed name is read, so no name leads out of the archive.
        likely = wanted.startswith(self._root) and wanted.endswith(ENDING)
        is_entry = likely and wanted in await self._archive.names(wanted, limit=1)
        name, others = (wanted, []) if is_entry else await self._newest(wanted)
        body = await self._archive.get(name) or b""
        found = await apart(len(body), decode_archived, name, body)
        return _listed(found.header, name, others), found

    async def _newest(self, run_id: str) -> tuple[str, list[str]]:
        """The newest entry of a run, and its other entries."""
        names = [
            name
            async for group in self._groups()
            for name in await self._archive.names(f"{group}{short_name(run_id)}.")
        ]
        if not names:
            raise rejected("archived_run_unknown", f"run {run_id} is not archived", hint="see `tidemill archive list`")
        headers, damage = dict[str, Header](), dict[str, Rejected]()
        for name in names:
            try:
                headers[name] = await self._header(name)
            except Rejected as refusal:
                damage[name] = refusal
        ranked = sorted(headers, key=lambda name: _rank(headers[name]), reverse=True)
        for name, damaged in damage.items():
            if not ranked:
                raise damaged
            newest = headers[ranked[0]]
            created_ms, seq = stamp_of(name)
            if (newest.created_ms if created_ms is None else created_ms, seq) > _rank(newest):
                problem = damaged.problems[0]
                hint = f"{problem.hint}; an older one can be read: {ranked[0]}"
                raise rejected(problem.code, problem.message, hint=hint)
        return ranked[0], ranked[1:]

    async def _header(self, name: str) -> Header:
        body = await self._archive.get(name) or b""
        return await apart(len(body), decode_header, name, body)

    async def _entries(self, workflow: str | None) -> AsyncIterator[str]:
        """Names of archived runs, latest months first."""
        groups = [group async for group in self._groups()]
        for group in sorted(groups, key=lambda group: group.split("/")[-3:-1], reverse=True):
            if workflow is not None and group.split("/")[-2] != workflow:
                continue
            after = ""
            while names := await self._archive.names(group, after=after, limit=PAGE):
                for name in filter(self._is_name, names):
                    yield name
                after = names[-1]

    def _is_name(self, name: str) -> bool:
        """Whether an entry may have this name; other objects in the archive are foreign and ignored."""
        return name.endswith(ENDING) and name.removeprefix(self._root).count("/") == ENTRY_DEPTH

    async def _groups(self) -> AsyncIterator[str]:
        """The folders of the archive, one per month and workflow, found by skipping from one to the next."""
        after = self._root
        while names := await self._archive.names(self._root, after=after, limit=1):
            if not self._is_name(names[0]):
                after = names[0]
                continue
            group = names[0].rpartition("/")[0] + "/"
            yield group
            # The character after `/` sorts behind everything in this folder.
            after = group[:-1] + "0"


def _listed(header: Header, entry: str, others: list[str] | None = None) -> ArchiveEntry:
    return ArchiveEntry(**msgspec.structs.asdict(header), entry=entry, others=tuple(others or ()))


def _rank(header: Header) -> tuple[int, int]:
    """Newest by start time; for one run, by its number of events."""
    return header.created_ms, header.seq
