"""Streams in SQL, and the order of a commit: leases, version, removals, jobs, rows, hand-over.

The records of one commit are one row with one checksum. Everything that can refuse a commit comes before its first
change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import apsw
import msgspec

from tidemill.stores.contract import (
    Commit,
    CommitResult,
    Committed,
    Lease,
    LeasesLost,
    Row,
    Stream,
    Tail,
    VersionConflict,
)
from tidemill.stores.sql_files import statements
from tidemill.stores.sqlite.database import Damaged, Execute, checksum, fetch_one, place_in, verify
from tidemill.stores.sqlite.jobs import Jobs
from tidemill.stores.sqlite.liveness import ProcessLocks
from tidemill.stores.sqlite.rows import add_row, write_row
from tidemill.stores.sqlite.transactional import Statements
from tidemill.stores.sqlite.writer import STREAMS, Transaction
from tidemill.stores.wakeups import CAPS

LOG = logging.getLogger(__name__)

IDLE = (0, 0)
"""The token, and the number of expired leases, of an idle job."""
LOOKED_AT_MAX = 1_000
"""Streams whose version is cached."""

SQL = statements("sqlite")
_STREAM, _VERSION, _ADD_STREAM = SQL["stream"], SQL["version"], SQL["add_stream"]
_ADVANCE, _ADVANCE_HELD = SQL["advance"], SQL["advance_held"]
_SET_SNAPSHOT, _TOKEN = SQL["set_snapshot"], SQL["token"]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class Streams:
    """Applies commits, and caches stream ids (which are never reused) and versions."""

    def __init__(self, jobs: Jobs, locks: ProcessLocks) -> None:
        self._jobs = jobs
        self.statements = Statements(locks)
        self.ids: dict[Stream, int] = {}
        self._looked_at: dict[Stream, int] = {}
        """Versions that stay valid until this process writes to the stream or another process writes at all."""
        self._changes: int | None = None
        """The change counter for which they are valid."""

    def forget_all(self) -> None:
        """Clear the caches: after a close, changes of others are counted from zero again."""
        self.ids, self._looked_at, self._changes = {}, {}, None

    def quiet(self, execute: Execute, after: Mapping[Stream, int], changes: int | None) -> list[Tail] | None:
        """The tails of streams without news, else None. `changes` counts the writes of other processes, if known."""
        if changes is None or changes != self._changes or len(self._looked_at) > LOOKED_AT_MAX:
            self._looked_at, self._changes = {}, changes
        tails: list[Tail] = []
        for stream, version in after.items():
            found = self._looked_at.get(stream)
            if found is None:
                found = _version_of(execute, stream)
                if changes is not None and found is not None:
                    self._looked_at[stream] = found
            if found is None or found > version:
                return None
            tails.append(Tail(stream=stream, version=found, after=version, records=()))
        return tails

    def apply(self, tx: Transaction, commit: Commit) -> CommitResult:
        return self.statements.within(tx, commit, self._apply) if commit.statements else self._apply(tx, commit)

    def _apply(self, tx: Transaction, commit: Commit) -> CommitResult:
        stream = commit.stream
        number = tx.learned.get(stream) or self.ids.get(stream)
        if number is not None:
            result = self._write(tx, commit, number)
            if isinstance(result, Committed):
                return result
            # Another process may have forgotten the stream since: look its id up.
        elif (first := self._write_first(tx, commit)) is not None:
            return first
        found = fetch_one(tx.execute(_STREAM, (stream.kind, stream.tenant, stream.key)))
        if found is None:
            self.ids.pop(stream, None)
            tx.learned.pop(stream, None)
            return self._write_first(tx, commit) or self._write_to_none(tx, commit)
        tx.learned[stream] = found[0]
        return self._write(tx, commit, found[0])

    def _write(self, tx: Transaction, commit: Commit, number: int) -> CommitResult:
        expected, records = commit.expected, commit.records
        if records and expected is not None:
            version = expected + len(records)
            if not self._advance(tx, commit, number, version):
                lost = self._lost(tx, commit, number)
                return LeasesLost(keys=lost) if lost else VersionConflict(version=self._version(tx, number) or 0)
            self._append(tx, commit.stream, number, version, records)
        else:
            lost = self._lost(tx, commit, number)
            if lost:
                return LeasesLost(keys=lost)
            found = self._version(tx, number)
            version = found or 0
            if found is None or (expected is not None and expected != found):
                return VersionConflict(version=version)
        return self._follow_up(tx, commit, number, version)

    def _append(self, tx: Transaction, stream: Stream, number: int, version: int, records: tuple[bytes, ...]) -> None:
        self._looked_at.pop(stream, None)
        tx.records.append((number, version, checksum(_pack(records), place_in(stream, version))))
        tx.append(stream, version - len(records) + 1, records)

    def _advance(self, tx: Transaction, commit: Commit, number: int, version: int) -> bool:
        """Raise the version if it is the expected one, all leases are held (usually one) and all other jobs idle."""
        place, leases = (version, number, commit.expected), commit.acks + commit.holds
        # The statement itself checks the first lease. A job without a holder has the token 0.
        with_first = bool(leases) and leases[0][1] != 0
        if len(leases) > with_first and self._lost(tx, commit, number, int(with_first)):
            return False
        if with_first:
            tx.execute(_ADVANCE_HELD, (*place, number, *leases[0]))
        else:
            tx.execute(_ADVANCE, place)
        return bool(tx.connection.changes())

    def _version(self, tx: Transaction, number: int) -> int | None:
        row = fetch_one(tx.execute(_VERSION, (number,)))
        return None if row is None else row[0]

    def _lost(self, tx: Transaction, commit: Commit, number: int, first: int = 0) -> tuple[str, ...]:
        """Keys of leases that are no longer held and of jobs that are not idle, from the `first` on, each once."""
        lost: dict[str, None] = {}
        leases = commit.acks + commit.holds
        for place in range(first, len(leases)):
            key, token = leases[place]
            # (token, number of expired leases); a job that does not exist is idle.
            found = fetch_one(tx.execute(_TOKEN, (number, key))) or IDLE
            needs_idle = not token and place >= len(commit.acks)
            if found != IDLE if needs_idle else not token or found[0] != token:
                lost[key] = None
        return tuple(lost)

    def _write_first(self, tx: Transaction, commit: Commit) -> Committed | None:
        """Try a commit that expects a new stream without a lookup; None if the stream exists or it expects none."""
        stream, records = commit.stream, commit.records
        if commit.expected != 0 or not records or _leases(commit):
            return None
        number, version = tx.next(STREAMS), len(records)
        tx.execute(_ADD_STREAM, (number, stream.kind, stream.tenant, stream.key, version))
        if not tx.connection.changes():
            return None
        tx.learned[stream] = number
        self._append(tx, stream, number, version, records)
        return self._follow_up(tx, commit, number, version, first=True)

    def _write_to_none(self, tx: Transaction, commit: Commit) -> CommitResult:
        """Commit to a stream that does not exist. It gets an id only if the commit leaves something in it."""
        leases = _leases(commit)
        if leases:
            return LeasesLost(keys=tuple(dict.fromkeys(leases)))
        if commit.expected:
            return VersionConflict(version=0)
        stream = commit.stream
        if not (commit.jobs or commit.snapshot):
            for row in commit.rows:
                write_row(tx, stream.tenant, row)
            return Committed(version=0)
        number = tx.learned[stream] = tx.next(STREAMS)
        tx.execute(_ADD_STREAM, (number, stream.kind, stream.tenant, stream.key, 0))
        return self._follow_up(tx, commit, number, 0)

    def _follow_up(self, tx: Transaction, commit: Commit, number: int, version: int, first: bool = False) -> Committed:
        """Write everything of an accepted commit other than its records; the rows of a `first` one are usually new."""
        snapshot = commit.snapshot
        if snapshot is not None:
            stored = checksum(snapshot.body, place_in(commit.stream, snapshot.version))
            tx.execute(_SET_SNAPSHOT, (number, snapshot.version, stored))
        if commit.acks or commit.drop or commit.withdraw:
            self._jobs.remove(tx, number, commit)
        kept = self._jobs.insert(tx, number, commit) if commit.jobs else ()
        put_row = add_row if first else write_row
        for row in commit.rows:
            put_row(tx, commit.stream.tenant, row)
        return Committed(version=version, kept=kept)

    def forget(self, tx: Transaction, stream: Stream, expected: int | None, rows: Sequence[Row]) -> bool:
        """Remove a stream and write rows, unless its version is not the expected one."""
        tx.write_records()
        found = fetch_one(tx.execute(_STREAM, (stream.kind, stream.tenant, stream.key)))
        number, version = found or (None, 0)
        if expected is not None and expected != version:
            return False
        if number is not None:
            for name in ("forget_records", "forget_snapshot", "forget_jobs", "forget_stream"):
                tx.execute(SQL[name], (number,))
        self.ids.pop(stream, None)
        self._looked_at.pop(stream, None)
        tx.learned.pop(stream, None)
        tx.wake_topics.add(CAPS)
        for row in rows:
            write_row(tx, stream.tenant, row)
        return True


def _leases(commit: Commit) -> list[str]:
    """The keys of jobs that must be leased to the committer."""
    return [key for key, _ in commit.acks] + [key for key, token in commit.holds if token]


def _version_of(execute: Execute, stream: Stream) -> int | None:
    """A stream's version; None if it cannot be read."""
    try:
        found = execute(_STREAM, (stream.kind, stream.tenant, stream.key)).fetchall()
    except apsw.CorruptError:
        return None
    version = found[0][1] if found else 0
    return version if isinstance(version, int) else None


def tail_of(execute: Execute, stream: Stream, after: int, snapshots: bool, limit: int | None = None) -> Tail:
    """The part of a stream after a version, or why it cannot be read."""
    version = 0
    try:
        found = fetch_one(execute(_STREAM, (stream.kind, stream.tenant, stream.key)))
        if found is None:
            return Tail(stream=stream, version=0, after=after, records=())
        number, version = found
        body = None
        if snapshots:
            after, body = _snapshot(execute, stream, number, after)
        records = _records(execute, stream, number, after, version, limit)
    except (Damaged, apsw.CorruptError, TypeError, ValueError) as error:
        # A flipped bit may turn a number into a text.
        known = version if type(version) is int else 0
        return Tail(stream=stream, version=known, after=after, records=(), damage=str(error))
    return Tail(stream=stream, version=version, after=after, records=records, snapshot=body)


def _snapshot(execute: Execute, stream: Stream, number: int, after: int) -> tuple[int, bytes | None]:
    """The version to read records after: that of a newer snapshot, unless it is damaged."""
    try:
        row = fetch_one(execute(SQL["snapshot"], (number,)))
        if row is not None and row[0] > after:
            return row[0], verify(row[1], place_in(stream, row[0]), "it")
    except (Damaged, apsw.CorruptError, TypeError) as error:
        LOG.warning("the snapshot of %s is damaged and not used: %s", stream.key, error)
    return after, None


def _records(
    execute: Execute, stream: Stream, number: int, after: int, version: int, limit: int | None
) -> tuple[bytes, ...]:
    end = version if limit is None else min(version, after + limit)
    if after >= end:
        return ()
    # Every row holds at least one wanted record.
    rows = execute(SQL["records"], (number, after, -1 if limit is None else limit)).fetchall()
    records: list[bytes] = []
    following = 1
    for last, stored in rows:
        chunk = _unpack(verify(stored, place_in(stream, last), f"record {last}"))
        if records and last - len(chunk) + 1 != following:
            raise Damaged(f"record {following} is missing")
        records += chunk
        following = last + 1
    first = following - len(records)
    if not end < following <= version + 1 or first > after + 1:
        raise Damaged(f"records {after + 1} to {end} are not all there")
    return tuple(records[after + 1 - first : end + 1 - first])


def streams_of(execute: Execute, kind: str, after: Stream | None, limit: int) -> list[Stream]:
    if after is None:
        rows = execute(SQL["first_streams"], (kind, limit))
    else:
        rows = execute(SQL["streams"], (kind, after.tenant, after.key, limit))
    return [Stream(tenant, kind, key) for tenant, key in rows]


def numbered(tx: Transaction, leases: Sequence[Lease]) -> list[tuple[int | None, Lease]]:
    """Leases with the ids of their streams; None for a stream that does not exist."""
    names = dict.fromkeys(lease.stream for lease in leases)
    found = {name: fetch_one(tx.execute(_STREAM, (name.kind, name.tenant, name.key))) for name in names}
    numbers = {name: None if row is None else row[0] for name, row in found.items()}
    return [(numbers[lease.stream], lease) for lease in leases]
