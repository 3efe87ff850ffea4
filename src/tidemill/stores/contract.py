"""The store contract: streams of opaque records, jobs with a ready time, index rows, and one writing method, `commit`.

A store does not know workflows. Timers are jobs that are not ready yet; rows are found by plain string terms.
`memory.py` is the reference implementation; all stores pass one conformance suite and are compared with it operation by
operation. Two invariants: a lease is judged by its fence token, never by the clock, so an expired lease that was not
taken over still commits; and ready times and leases use the store's clock, so workers never compare theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from tidemill.errors import rejected


class Stream(NamedTuple):
    tenant: str
    kind: str
    key: str


class Value(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Base of the frozen values below. Hot ones allow positional arguments, which cost a fraction of keywords."""


class Job(Value, frozen=True):
    """A unit of work of a stream. `key` is unique within the stream; inserting an existing key does nothing."""

    key: str
    queue: str
    body: bytes
    ready_at_ms: int = 0
    """Not claimed before this time of the store's clock. A past time (0) means the time of insertion, so that immediate
    work and due timers are ordered by age together."""
    priority: int = 5
    """0–9; higher is claimed first within a tenant."""
    caps: tuple[str, ...] = ()
    """Names whose number of live leases is bounded at claim time, across all tenants and queues: by `Claim.caps`, or
    by the name itself if it ends with a bound, as `queue:gpu<=4` does."""


class Lease(Value, frozen=True):
    """A job that a worker holds."""

    stream: Stream
    key: str
    token: int
    """The fence, from a counter that only grows, also across ack, drop and re-insert of the same key."""
    body: bytes
    queue: str
    priority: int
    expires_at_ms: int
    expired: int = 0
    """How many earlier leases of this job expired and were taken over: their holders are presumed dead. A release does
    not count; a re-inserted job starts at 0."""
    ready_at_ms: int = 0
    """Since when the job can be claimed: its ready time, its insertion, or the end of a release's delay."""


class Row(Value, frozen=True, kw_only=True):
    """An index entry of the committing stream's tenant, one per (kind, key) across all streams.

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
    """SQL that is executed in the transaction of a commit; only SQL stores can."""

    text: str
    parameters: bytes = b"[]"
    """A JSON list, or an object by name."""
    answer: bytes = b""
    """The answer of `dry_run`; if it differs at commit, nothing is written."""
    owner: str = ""
    """The workflow that the statement belongs to, and with it the tables that it makes."""
    shared: tuple[str, ...] = ()
    """Tables of others that it may use."""
    took_ms: int = 0
    """How long its dry run took."""
    effect_key: str = ""
    """Of the activation that it belongs to. If a process is lost while it executes the statement, the next dry run
    under the same key is refused (`statement_killed_worker`)."""


class Commit(Value, frozen=True):
    """One all-or-nothing change to one stream. Checked and applied in this order:

    leases (`acks`, `holds`) → `expected` version → acks and drops and withdrawals remove jobs → `jobs` are
    inserted where the key is absent → `rows` → `keep` leases some of the inserted jobs to the committer.
    So one commit may settle a job and re-insert it (a retry): the new one has no lease and no history.
    """

    stream: Stream
    expected: int | None
    """The version the stream must have; None is any, for rows and jobs only. Records or a snapshot with None, and a
    snapshot beyond the stream's end, raise ValueError before anything of the batch is written."""
    records: tuple[bytes, ...] = ()
    snapshot: Snapshot | None = None
    acks: tuple[tuple[str, int], ...] = ()
    """(job key, token) of settled leases: their jobs are removed."""
    holds: tuple[tuple[str, int], ...] = ()
    """(job key, token) of leases that must be held and stay held. With token 0 the job must be idle instead: not leased
    (an expired lease that was not taken over counts), and no earlier holder is presumed dead (`Lease.expired`). A job
    that does not exist is idle."""
    drop: tuple[str, ...] = ()
    """Jobs to remove, leased or not, if they exist."""
    withdraw: tuple[str, ...] = ()
    """Jobs to remove unless they are leased; an expired lease that was not taken over counts."""
    jobs: tuple[Job, ...] = ()
    keep: tuple[str, ...] = ()
    """Keys of `jobs` that are leased to the committer (hand-over), in this order, if this commit inserted them and they
    are ready. The leases count for caps but are not bounded by them: leave jobs with caps to `claim`."""
    keep_lease_ms: int = 15_000
    keep_owner: str = ""
    """The owner of the kept leases, as in `Claim`."""
    rows: tuple[Row, ...] = ()
    statements: tuple[Statement, ...] = ()


def check(commit: Commit) -> None:
    """Raise for a commit that is a bug of the caller, before anything of its batch is written."""
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
    """Nothing was written: `keys` are all leases that are no longer held, and jobs that are not idle, in order.

    Takes precedence over a version conflict.
    """

    keys: tuple[str, ...]


class StatementRefused(Value, frozen=True, kw_only=True):
    """A statement failed, or its answer differs from the dry run; nothing was written."""

    statement: Statement
    message: str
    changed: bool = False
    """It worked with another answer: run it dry again."""
    equals: int = 0
    """How many equal statements precede it in the same commit."""


CommitResult = Committed | VersionConflict | LeasesLost | StatementRefused


class Claim(Value, frozen=True, kw_only=True, gc=True):
    """A request for jobs. `owner` names the process, so that a store can void the leases of a dead one.

    The garbage collector tracks it, because `room` refers to the worker that holds it.
    """

    queues: tuple[str, ...]
    """Queues to take from, in no particular order; empty means all."""
    limit: int
    lease_ms: int
    wait_ms: int = 0
    """How long to wait for a job; the answer may be empty earlier."""
    owner: str = ""
    caps: Mapping[str, int] = {}
    """Bounds of live leases per cap name, of all owners, for names without a bound of their own. An expired lease is
    not live: otherwise a dead worker would block its successor."""
    room: Callable[[], int] | None = None
    """The worker's current capacity, called whenever the store looks for jobs: a waiting worker may get jobs by
    hand-over meanwhile. Without room a claim returns at once."""
    run_tree: str = ""
    """Take only jobs of the stream with this key and of its children (key and a dot); empty means any. Such a claim
    may visit every ready job."""

    @property
    def most(self) -> int:
        return self.limit if self.room is None else min(self.limit, self.room())


def cap_bound(cap: str, bounds: Mapping[str, int]) -> int | None:
    """The most live leases that a cap allows; None means no bound."""
    if cap in bounds:
        return bounds[cap]
    name, mark, bound = cap.rpartition("<=")
    return int(bound) if mark and name and bound.isascii() and bound.isdecimal() else None


def is_full(caps: Sequence[str], bounds: Mapping[str, int], live: Mapping[str, int]) -> bool:
    """Whether one of these caps leaves no room for another lease, with these numbers of live ones."""
    return any((bound := cap_bound(cap, bounds)) is not None and live.get(cap, 0) >= bound for cap in caps)


def in_run_tree(run_tree: str, key: str) -> bool:
    return not run_tree or key == run_tree or key.startswith(run_tree + ".")


class Tail(Value, frozen=True, kw_only=True):
    """Part of a stream: records `after`+1 … `version`; when `snapshot` is set it stands for the first `after`.

    With a limit, only the first of these records. A stream that does not exist has version 0.
    """

    stream: Stream
    version: int
    after: int
    records: tuple[bytes, ...]
    snapshot: bytes | None = None
    damage: str = ""
    """Why a corrupt stream cannot be read; the rest is then empty."""


class Page(Value, frozen=True, kw_only=True):
    """Rows in order; `after` is the cursor of the next page, None if there is none."""

    rows: tuple[Row, ...]
    after: str | None = None


class JobView(Value, frozen=True, kw_only=True):
    """A job as the audit sees it, with the ready time of its `Lease`.

    `token` is 0 and `lease_expires_at_ms` None without a lease; an expired lease that was not taken over is shown.
    """

    job: Job
    token: int
    lease_expires_at_ms: int | None = None
    owner: str = ""
    void: bool = False
    """The holder is known to be dead: the lease does not count."""
    expired: int = 0
    """As in `Lease`."""


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
"""Awaited by `follow` when there is nothing more to give."""


class Store(Protocol):
    """Every method is safe to repeat after an unknown outcome."""

    async def open(self) -> None:
        """Open; idempotent. Migrations are applied once, under a lock."""

    async def close(self) -> None:
        """Close; idempotent. Waiting claims return nothing, followers end."""

    def now_ms(self) -> int:
        """The store's clock for ready times and leases (a recent estimate is enough)."""

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult]:
        """Apply commits in order in one transaction, each all-or-nothing; results in the same order.

        A later commit sees what an earlier one wrote, and is not affected by its refusal.
        """

    async def load(
        self, after: Mapping[Stream, int], *, snapshots: bool = True, limit: int | None = None
    ) -> list[Tail]:
        """Read streams, each after a version or from its newest snapshot if that is later, in the order of `after`."""

    async def claim(self, request: Claim) -> list[Lease]:
        """Lease ready jobs, each to one caller, in the order of choice.

        Each next job belongs to the tenant whose last claim is longest ago (hand-over does not count; tenants never
        served come first, by name); within the tenant the highest priority, the earliest ready time, then the first
        inserted. A job whose lease expired keeps its ready time. A cancelled claim releases what it was given. If more
        than about two thousand combinations of tenant, queue, caps and priority have ready jobs, a claim may choose
        among some of them; the next claims look at the others, in turn.
        """

    async def renew(self, leases: Sequence[Lease], lease_ms: int) -> list[Lease]:
        """Prolong leases, never shortening one; returns the lost ones. An expired lease not taken over is renewed."""

    async def release(self, leases: Sequence[Lease], *, delay_ms: int = 0) -> None:
        """Release jobs, not counted as expired; lost ones are ignored. Without a delay a job keeps its ready time."""

    async def find(
        self, tenant: str, kind: str, terms: Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> Page:
        """Rows of a kind that have all terms, newest first, at most `limit` (of 1 or more) of them.

        A row that is not written meanwhile is on exactly one page. Refuses (`bad_cursor`) an invalid `after`.
        """

    async def count(self, tenant: str, kind: str, terms: Sequence[str] = (), *, at_most: int = 10_000) -> int:
        """How many rows have all terms, counted up to `at_most`."""

    def follow(
        self, stream: Stream, after: int, on_idle: IdleCallback | None = None, *, live: bool = True
    ) -> AsyncIterator[Frame]:
        """Committed records from `after`+1 on, each once and in order, and, if `live`, live frames as they pass by.

        `on_idle` is awaited whenever there is nothing more to give, so that a patient follower wakes less often. A
        follower may miss live frames if it is slow or has not asked for its first frame yet; it never misses records. A
        live frame comes after the records that were committed before it was published.
        """

    async def publish(self, stream: Stream, frames: Sequence[bytes]) -> None:
        """Send live frames to the current followers in all processes; frames are never stored.

        Slow followers and frames that are too large are skipped.
        """

    async def jobs(self, stream: Stream) -> list[JobView]:
        """Every job of a stream, leased or not, ordered by key. Concurrent calls share a round trip."""

    async def backlog(self) -> list[Backlog]:
        """Work per tenant and queue, ordered by them, without empty entries."""

    async def streams(self, kind: str, *, after: Stream | None = None, limit: int = 1_000) -> list[Stream]:
        """At most `limit` streams of a kind with records, of all tenants, after `after`, ordered by tenant and key.

        Paging meets every stream that exists throughout. `after` need not exist.
        """

    async def forget(self, stream: Stream, *, expected: int | None = None, rows: Sequence[Row] = ()) -> bool:
        """Atomically remove a stream with its records, snapshot and jobs, and write `rows`.

        Returns False, and does nothing, if the version is not `expected`. Old tokens are refused afterwards too.
        """


# Cursors

Place = tuple[int, str]
"""A row's position: its sort and, between equals, its key."""


def cursor_after(row: Row) -> str:
    return cursor_at((row.sort, row.key))


def cursor_at(place: Place) -> str:
    """The cursor of what comes after a place, which need not exist: `(sort, "")` is every row with a lower sort."""
    return f"{place[0]}:{place[1]}"


def place_of(cursor: str) -> Place:
    """The place after which a page begins."""
    sort, _, key = cursor.partition(":")
    try:
        number = int(sort)
        number.to_bytes(8, "little", signed=True)
    except (ValueError, OverflowError):
        message = "this is not a cursor of an earlier page"
        raise rejected("bad_cursor", message, path="/after", hint="start without one") from None
    return number, key
