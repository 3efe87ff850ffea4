"""Store protocol, Commit, Job, Lease, Row, cursors: the specification.

The narrow door to storage: streams of bytes, jobs with a ready time, index rows, and one writing verb.

A store does not know what a workflow is. It keeps *streams* (one per run, workflow, schedule…) of opaque
records, *jobs* that belong to a stream (work, and timers, which are jobs that are not ready yet), and *rows*
that can be found by plain string terms. Everything changes through `commit`. `memory.py` is the reference
implementation and the specification; every other store passes the same conformance suite and is compared
with it operation by operation.

Two rules make the rest of the engine simple. A lease is judged by its fence *token*, never by the clock: a
lease that has expired but that nobody took over still commits. And leases, ready times and expiry are all
measured by the store's own clock, so that workers on different machines never compare theirs.

Where a page of rows ends, as text that a caller can hold on to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from tidemill.errors import rejected


class Stream(NamedTuple):
    """The name of a stream: tenant first, then what kind of thing it is, then which one."""

    tenant: str
    kind: str
    key: str


class Value(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Base of the frozen values below.

    Those that are made for every step of a run can be made by position: a keyword costs several times as much.
    """


class Job(Value, frozen=True):
    """A unit of work of a stream. `key` is unique within the stream; inserting an existing key does nothing."""

    key: str
    queue: str
    body: bytes
    ready_at_ms: int = 0
    """Not claimed before this moment of the store's clock. A moment gone by (0) means the one of its insertion, so
    that work for at once and a timer that has run out stand in one line by age."""
    priority: int = 5
    """0–9; higher is claimed first within a tenant."""
    caps: tuple[str, ...] = ()
    """Names whose number of live leases is bounded at claim time (see `Claim.caps`). A name is one over all
    tenants and queues: the cap of a tenant names the tenant."""


class Lease(Value, frozen=True):
    """A job in somebody's hands."""

    stream: Stream
    key: str
    token: int
    """The fence: from a counter that only grows and survives ack, drop and re-insert of the same key."""
    body: bytes
    queue: str
    priority: int
    expires_at_ms: int
    expired: int = 0
    """How many earlier leases of this very job ended by expiring and being taken over: their holders are
    presumed dead. A release does not count; a job inserted anew starts at 0."""
    ready_at_ms: int = 0
    """Since when the job could be claimed: its ready time, or its insertion, or the end of a release's delay."""


class Row(Value, frozen=True, kw_only=True):
    """An index entry of the committing stream's tenant, one per (kind, key) whichever stream writes it.

    `find` orders by (`sort`, `key` by code point), newest first, and intersects `terms`, which are a set.
    """

    kind: str
    key: str
    sort: int
    terms: tuple[str, ...] = ()
    body: bytes = b""
    deleted: bool = False
    """Remove the row (kind, key) instead of writing it."""


class Snapshot(Value, frozen=True, kw_only=True):
    """The folded value of a stream's first `version` records; replaces an older snapshot, else is ignored."""

    version: int
    body: bytes


class Statement(Value, frozen=True, kw_only=True):
    """Something in the store's own language, done in the same transaction as a commit; only SQL stores can."""

    text: str
    parameters: bytes = b"[]"
    """A JSON list, or an object by name."""
    answer: bytes = b""
    """What `rehearse` said; if it comes out otherwise, nothing is written."""


class Commit(Value, frozen=True):
    """One all-or-nothing change to one stream. Checked and applied in this order:

    leases (`acks`, `holds`) → `expected` version → acks and drops and withdrawals remove jobs → `jobs` are
    inserted where the key is absent → `rows` → `keep` leases some of the inserted jobs to the committer.
    So one commit may settle a job and insert it anew (a retry): the new one has no lease and no history.
    """

    stream: Stream
    expected: int | None
    """The version the stream must have; None is whatever it is (rows and jobs only: records or a snapshot with
    None, and a snapshot beyond the stream's end, are the caller's bug: ValueError, nothing of the batch written)."""
    records: tuple[bytes, ...] = ()
    snapshot: Snapshot | None = None
    acks: tuple[tuple[str, int], ...] = ()
    """(job key, token) of leases that this commit settles: their jobs are removed."""
    holds: tuple[tuple[str, int], ...] = ()
    """(job key, token) of leases that must still be held, and stay so."""
    drop: tuple[str, ...] = ()
    """Jobs to remove, leased or not; absent ones do not matter."""
    withdraw: tuple[str, ...] = ()
    """Jobs to remove unless somebody holds a lease on them; an expired one that nobody took over is still held."""
    jobs: tuple[Job, ...] = ()
    keep: tuple[str, ...] = ()
    """Keys of `jobs` the committer takes at once: the answer holds their leases (hand-over). Only jobs that
    were really inserted by this commit and are ready are leased, in the order given here. Their leases count
    for caps but are not bounded by them: what has a cap is better left to `claim`."""
    keep_lease_ms: int = 15_000
    keep_owner: str = ""
    """The owner of the kept leases, as in `Claim`."""
    rows: tuple[Row, ...] = ()
    statements: tuple[Statement, ...] = ()


def check(commit: Commit) -> None:
    """Be loud about a commit no caller may build, before anything of its batch is written."""
    if commit.expected is None and (commit.records or commit.snapshot is not None):
        raise ValueError("records and snapshots need an expected version")
    if commit.snapshot is not None and commit.snapshot.version > (commit.expected or 0) + len(commit.records):
        raise ValueError("a snapshot cannot be newer than its stream")


class Committed(Value, frozen=True, kw_only=True):
    """The commit is durable; `version` is the stream's version after it."""

    version: int
    kept: tuple[Lease, ...] = ()


class VersionConflict(Value, frozen=True, kw_only=True):
    """The stream had another version than expected; nothing was written."""

    version: int


class LeasesLost(Value, frozen=True, kw_only=True):
    """These leases (all of them, in order) are no longer held with the given token; nothing was written.

    It is answered whatever the version, because the caller must first decide again without them.
    """

    keys: tuple[str, ...]


class StatementRefused(Value, frozen=True, kw_only=True):
    """A statement failed, or came out otherwise than when it was rehearsed; nothing was written."""

    statement: Statement
    message: str
    changed: bool = False
    """It did work, with another answer: rehearse it again."""
    equals: int = 0
    """How many statements of the same commit are equal to it and came before it."""


CommitResult = Committed | VersionConflict | LeasesLost | StatementRefused


class Claim(Value, frozen=True, kw_only=True):
    """A request for work. `owner` names the process, so that a store can void the leases of a dead one.

    The order of `queues` has no meaning.
    """

    queues: tuple[str, ...]
    """Which queues to take from; none named means every queue there is."""
    limit: int
    lease_ms: int
    wait_ms: int = 0
    """How long to wait for work when there is none; the answer may be empty earlier."""
    owner: str = ""
    caps: Mapping[str, int] = {}
    """Upper bounds on live leases per cap name (of all owners); a job over a cap stays where it is. An expired
    lease is not live, or a dead worker would block its own successor."""
    room: Callable[[], int] | None = None
    """How many there is room for at the moment, asked whenever the store looks for jobs: whoever waits for work may get
    some on another way meanwhile. A claim for which there is none left is answered at once."""
    run_tree: str = ""
    """Take only jobs of the stream with this key and of those whose key begins with it and a dot; empty is no bound.
    For a process that serves one run and its children: such a claim may cost as much as there are jobs in line."""

    @property
    def most(self) -> int:
        """How many jobs to take now."""
        return self.limit if self.room is None else min(self.limit, self.room())


def in_run_tree(family: str, key: str) -> bool:
    """Whether a stream's key belongs to a family, as a claim may ask for it."""
    return not family or key == family or key.startswith(family + ".")


class Tail(Value, frozen=True, kw_only=True):
    """Part of a stream: records `after`+1 … `version`; when `snapshot` is set it stands for the first `after`.

    With a limit, only the first of these records. A stream nobody wrote to has version 0 and is answered like any
    other.
    """

    stream: Stream
    version: int
    after: int
    records: tuple[bytes, ...]
    snapshot: bytes | None = None
    damage: str = ""
    """Why the stream cannot be read, when what is stored is not what was written; the rest is then empty."""


class Page(Value, frozen=True, kw_only=True):
    """Rows in order; `after` continues behind the last one, None when there are no more."""

    rows: tuple[Row, ...]
    after: str | None = None


class JobView(Value, frozen=True, kw_only=True):
    """A job as the audit sees it, with the ready time that `Lease` would show.

    `token` is 0 and `lease_expires_at_ms` None while nobody holds it; an expired lease that nobody took over
    is still shown.
    """

    job: Job
    token: int
    lease_expires_at_ms: int | None = None
    owner: str = ""
    void: bool = False
    """The holder is known to be gone: the lease does not count, whatever its time says."""


class Backlog(Value, frozen=True, kw_only=True):
    """How much work one tenant has in one queue; `ready` includes jobs whose lease has expired."""

    tenant: str
    queue: str
    ready: int
    leased: int
    later: int
    oldest_ready_at_ms: int | None = None


class Frame(Value, frozen=True, kw_only=True):
    """What a follower receives: a committed record (`version` > 0) or a live frame (`version` = 0)."""

    version: int
    body: bytes


IdleCallback = Callable[[], Awaitable[None]]
"""A pause of a follower."""


class Store(Protocol):
    """The verbs. All are batched where a caller may have several, and safe to repeat after an unknown outcome."""

    async def open(self) -> None:
        """Make ready; idempotent. Migrations are applied once, under a lock."""
        ...

    async def close(self) -> None:
        """Let go of everything; idempotent. Waiting claims answer empty, followers end."""
        ...

    def now_ms(self) -> int:
        """The store's clock, by which ready times and leases are judged (a recent estimate is enough)."""
        ...

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """Apply many commits, each all-or-nothing on its own, in one transaction; answers in the same order.

        They are applied one after the other: a later one sees what an earlier one wrote, and is untouched by
        its refusal.
        """
        ...

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        """Read many streams, each after a version; from its newest snapshot where that is further on.

        Answers in the order of `after`, one for each, with the first `limit` records of each.
        """
        ...

    async def claim(self, request: Claim) -> list[Lease]:
        """Lease ready jobs, each to one caller, and answer them in the order they were chosen.

        Each next job is one of the tenant whose last claimed job is longest ago (hand-over does not count; among
        tenants never served the lesser name), and of its jobs the one of highest priority, then of the earliest
        ready time, then the one inserted first. A job whose lease expired keeps its ready time. A claim that is
        cancelled keeps nothing: what it was given at that moment is given back.
        """
        ...

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        """Prolong leases, never shortening one; answers those that are lost. Renewing twice is the same as once.

        A lease that expired but that nobody took over is renewed.
        """
        ...

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        """Give jobs back, not counted as expired. Lost ones do not matter.

        Without a delay a job keeps its ready time and so its place in the line.
        """
        ...

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        """Rows of a kind that have all terms, newest first, at most `limit` (of 1 or more) of them.

        A row that is not written meanwhile is on exactly one page, whatever else is. Refuses (`bad_cursor`) an
        `after` that no page gave.
        """
        ...

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        """How many rows have all terms, counted up to `at_most`."""
        ...

    def follow(
        self, stream: Stream, after: int, breath: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        """Committed records from `after`+1 on, each once and in order, and live frames as they pass by if `live`.

        `breath` is awaited whenever there is nothing more to give: who need not know at once wakes up less often.

        A live frame may be missed by a slow reader or one that has not asked for its first frame yet; a record
        never is. A live frame comes after the records that were committed before it was told.
        """
        ...

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        """Show live frames to current followers, in whatever process; they are never stored.

        Nobody waits for a follower that does not read, and a frame that is too large for it may be left out.
        """
        ...

    async def jobs(self, stream: Stream) -> list[JobView]:
        """Every job of a stream, leased or not, ordered by key."""
        ...

    async def backlog(self) -> list[Backlog]:
        """Work per tenant and queue, ordered by them; where there is none nothing is answered."""
        ...

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        """Streams of a kind that have records, of all tenants, at most `limit` of them, behind `after`.

        They come in the order of tenant and key, so whoever walks along it meets every stream that is there all the
        while. `after` need not exist: those of one tenant whose keys begin alike stand together.
        """
        ...

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        """Remove a stream with its records, snapshot and jobs, and write `rows`, all at once.

        Answers False, and does nothing, when the stream has another version than `expected`. Afterwards the stream
        is as if never written, but old tokens are still refused.
        """
        ...


Place = tuple[int, str]
"""Where a row stands: its sort and, between equals, its key."""

SORT_BITS = 64


def cursor_after(row: Row) -> str:
    """The cursor of a page that ends with this row."""
    return cursor_at((row.sort, row.key))


def cursor_at(place: Place) -> str:
    """The cursor of a page that ends at a place."""
    return f"{place[0]}:{place[1]}"


def place_of(cursor: str) -> Place:
    """The place behind which a page begins."""
    sort, _, key = cursor.partition(":")
    try:
        number = int(sort)
        number.to_bytes(SORT_BITS // 8, "little", signed=True)
    except (ValueError, OverflowError):
        raise rejected("bad_cursor", "this is not a cursor of an earlier page", hint="start without one") from None
    return number, key
