"""What an archived run looks like: lines of JSON, compressed, that a person can read and a store can take back.

The first line says which run it is, then come the blobs it needs and its events, each as it reads and as the bytes
that were stored, and the last line has the checksum of all lines before it. Equal runs give equal bytes, so writing
one twice is writing it once. Nothing here reads or writes a store or an archive.
"""

from __future__ import annotations

import gzip
import hashlib
import io
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from tidemill.blobs.contract import digest_of
from tidemill.engine.auditing import blobs_in
from tidemill.errors import Rejected, rejected
from tidemill.kernel.codec import DAMAGE, decode_event, plain
from tidemill.kernel.events import AnyEvent, RunCreated, RunPatched
from tidemill.kernel.state import State

ARCHIVE_FORMAT = 1
INLINE_BYTES_MAX = 256 * 1024
"""Larger blobs are bodies of their own in the archive, where runs share them."""
NAME_BYTES_MAX = 180
"""Longer run ids are called by their digest: file systems have limits."""
ENDING = ".jsonl.gz"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Which run it is, and what lists show of it."""

    tenant: str
    run_id: str
    workflow: str
    version: int
    digest: str
    status: str
    seq: int
    created_ms: int
    ended_ms: int
    """When the last thing happened to it."""
    labels: dict[str, str] = {}
    submitted_by: str = ""
    correlation_id: str = ""
    format: int = ARCHIVE_FORMAT


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """An archived run, read back."""

    header: Header
    records: tuple[bytes, ...]
    blobs: dict[str, bytes | None]
    """By digest; None when the blob is a body of its own."""

    def events(self) -> list[dict[str, Any]]:
        """The run's events as people read them."""
        return [plain(decode_event(record), seq) for seq, record in enumerate(self.records, 1)]


def header_of(tenant: str, run_id: str, state: State) -> Header:
    """The header of a run that is over."""
    return Header(
        tenant=tenant,
        run_id=run_id,
        workflow=state.workflow,
        version=state.version,
        digest=state.digest,
        status=state.status,
        seq=state.seq,
        created_ms=state.created_ms,
        ended_ms=state.last_ms,
        labels=dict(state.labels),
        submitted_by=state.submitted_by,
        correlation_id=state.correlation_id,
    )


def name_of(header: Header) -> str:
    """Where a run stands in the archive: by month, workflow and id; the version tells what was restored and ran on."""
    month = datetime.fromtimestamp(header.ended_ms / 1000, UTC).strftime("%Y-%m")
    return f"{folder(header.tenant)}{month}/{header.workflow}/{short_name(header.run_id)}.{header.seq}{ENDING}"


def folder(tenant: str) -> str:
    """Where the runs of a tenant stand."""
    return f"runs/{quote(tenant, safe='')}/"


def short_name(run_id: str) -> str:
    """A run's id as part of a name."""
    name = quote(run_id, safe="").replace(".", "%2E")
    return name if len(name) <= NAME_BYTES_MAX else digest_of(run_id.encode()).replace(":", "-")


def blob_name(tenant: str, digest: str) -> str:
    """Where a large blob stands in the archive."""
    return f"blobs/{quote(tenant, safe='')}/{digest.partition(':')[2]}"


def needed_blobs(events: Iterable[AnyEvent]) -> list[str]:
    """The digests of everything outside the log that a run needs: its workflows, and its large values."""
    found: dict[str, None] = {}
    for event in events:
        if isinstance(event, (RunCreated, RunPatched)):
            found[event.digest] = None
        found.update((ref.digest, None) for ref in blobs_in(event))
    return list(found)


def encode_archived(header: Header, records: Sequence[bytes], blobs: Mapping[str, bytes | None]) -> bytes:
    """The body of an archived run."""
    lines = b"".join(_line(line) for line in _lines(header, records, blobs))
    end = _line({"sha256": hashlib.sha256(lines).hexdigest()})
    # Without a time in it, so that equal runs give equal bytes.
    return gzip.compress(lines + end, mtime=0)


def _lines(header: Header, records: Sequence[bytes], blobs: Mapping[str, bytes | None]) -> Iterator[dict[str, Any]]:
    yield {"run": msgspec.to_builtins(header)}
    for digest, body in blobs.items():
        yield {"blob": digest} if body is None else {"blob": digest, "body": b64encode(body).decode()}
    for seq, record in enumerate(records, 1):
        yield {"event": plain(decode_event(record), seq), "record": b64encode(record).decode()}


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted") + b"\n"


def decode_archived(name: str, body: bytes) -> Archived:
    """Read an archived run, or refuse what is not the whole of one."""
    try:
        return _decoded(gzip.decompress(body))
    except Rejected as refusal:
        raise _damaged(name, refusal.problems[0].message) from None
    except (*DAMAGE, OSError, EOFError, KeyError, IndexError) as error:
        raise _damaged(name, str(error)) from None


def decode_header(name: str, body: bytes) -> Header:
    """The first line of an archived run."""
    try:
        with gzip.open(io.BytesIO(body)) as file:
            return _header(msgspec.json.decode(file.readline()))
    except (*DAMAGE, OSError, EOFError, KeyError) as error:
        raise _damaged(name, str(error)) from None


def _decoded(text: bytes) -> Archived:
    *lines, last = text.splitlines(keepends=True)
    if msgspec.json.decode(last)["sha256"] != hashlib.sha256(b"".join(lines)).hexdigest():
        raise ValueError("the checksum does not fit")
    first, *rest = map(msgspec.json.decode, lines)
    header = _header(first)
    blobs = {line["blob"]: b64decode(line["body"]) if "body" in line else None for line in rest if "blob" in line}
    records = tuple(b64decode(line["record"]) for line in rest if "record" in line)
    if len(records) != header.seq:
        raise ValueError(f"{len(records)} events instead of {header.seq}")
    return Archived(header=header, records=records, blobs=blobs)


def _header(line: dict[str, Any]) -> Header:
    header = msgspec.convert(line["run"], Header)
    if header.format > ARCHIVE_FORMAT:
        raise ValueError("it was written by a newer version; upgrade Tidemill")
    return header


def _damaged(name: str, why: str) -> Rejected:
    return rejected("archive_damaged", f"{name} cannot be read: {why}", hint="restore the archive from a backup")
