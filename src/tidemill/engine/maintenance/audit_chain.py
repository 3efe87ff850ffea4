"""The audit log of a tenant: who changed what, as a hash chain that reveals changed or removed entries.

A commit that an actor causes through an audited context also writes one row per event that records the command: it
waits there. A maintenance task appends the rows of a tenant, oldest first, to the stream of its chain, each entry with
the hash of the one before, and removes the rows in the same commit; no change is left out, and none is entered twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import msgspec

from tidemill.engine.corruption import require_intact
from tidemill.engine.maintenance.schedule import Cursor
from tidemill.errors import Rejected, rejected
from tidemill.kernel import events
from tidemill.kernel.events import AnyEvent
from tidemill.stores.contract import Commit, Committed, Row, Snapshot, Store, Stream

AUDIT = "audit"
"""Kind of the stream of a tenant's chain, and of the rows that lists read."""
WAITING = "audit-waiting"
"""Kind of the rows that are not in the chain yet."""
CHAIN = "chain"
CHAIN_EVERY_MS = 10_000
CHAIN_REST_FACTOR = 3
AT_ONCE = 500
"""Entries that one commit appends."""
BATCHES_MAX = 20
"""Commits of one run of the task."""
READ_AT_ONCE = 1_000
VERSIONS_MAX = 10**12 - 1
AUDIT_FORMAT = 1
ACTIONS: Mapping[type[AnyEvent], str] = {
    events.RunCreated: "start",
    events.RunPaused: "pause",
    events.RunResumed: "resume",
    events.RunCancelled: "cancel",
    events.RunLabelled: "relabel",
    events.RunRetried: "retry",
    events.RunRewound: "rewind",
    events.RunPatched: "patch",
    events.RunForked: "fork",
    events.NodeOverridden: "override",
    events.SignalReceived: "signal",
    events.DeadLetterClosed: "close_dead_letter",
    events.RollbackStarted: "rollback",
    events.RollbackFinished: "stop_rollback",
    events.ApprovalVoted: "vote",
    events.ApprovalDecided: "decide",
    events.ApprovalReturned: "request_changes",
    events.ApprovalDelegated: "delegate",
}
"""What an event of a run that an actor causes is called in its audit."""
_WORDS = ("reason", "message", "comments")
"""What the actor said about it, as an event has it."""

CommandName = tuple[str | None, str | None]
"""The actor and the id of a command, as its events carry them."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change. The hash covers all other fields and with `previous` all entries before."""

    at_ms: int
    actor: str
    action: str
    """The resource and the command: `runs.cancel`, `workflows.publish`, `keys.revoke`."""
    subject: str
    """What was changed: a run, workflow, key, tenant or schedule, by its name within the tenant."""
    version: int
    """The number of the record in the subject's log that the change has written."""
    digest: str
    """The SHA-256 of that record."""
    detail: str = ""
    seq: int = 0
    """The place in the chain, from 1."""
    previous: str = ""
    """The hash of the entry before; empty in the first."""
    hash: str = ""
    v: int = AUDIT_FORMAT


class ChainCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` found."""

    intact: bool
    entries: int
    """Entries that were read and are intact."""
    head: str
    """The hash of the last of them: kept elsewhere, it shows later that no entry was removed from the end."""
    waiting: int
    """Changes that are not in the chain yet."""
    broken_seq: int | None = None
    """The first entry that is not what was appended."""
    problem: str = ""


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(AuditEntry).decode
_HEAD = msgspec.msgpack.Decoder(tuple[int, str]).decode


def chain_stream(tenant: str) -> Stream:
    return Stream(tenant, AUDIT, CHAIN)


def waiting_row(
    stream: Stream, version: int, record: bytes, *, actor: str, command: str, at_ms: int, detail: str = ""
) -> Row:
    """The row of a change, for the commit that makes it; `version` is the number that `record` gets."""
    entry = AuditEntry(
        at_ms=at_ms,
        actor=actor,
        action=f"{stream.kind}s.{command}",
        subject=stream.key,
        version=version,
        digest=f"sha256:{hashlib.sha256(record).hexdigest()}",
        detail=detail,
    )
    # Stores walk downwards, by sort and then by key, and the oldest is wanted first.
    key = f"{stream.kind}/{stream.key}/{VERSIONS_MAX - version:012d}"
    return Row(kind=WAITING, key=key, sort=-at_ms, body=_ENCODE(entry))


def event_rows(
    stream: Stream, before: int, decided: Sequence[AnyEvent], records: Sequence[bytes], audited: Collection[CommandName]
) -> tuple[Row, ...]:
    """The rows of the events that record audited commands; `before` is the run's version. A repetition has no event."""
    return tuple(
        waiting_row(
            stream,
            before + number,
            records[number - 1],
            actor=event.actor,
            command=ACTIONS.get(type(event), type(event).__name__),
            at_ms=event.at_ms,
            detail=next(filter(None, (getattr(event, name, "") for name in _WORDS)), ""),
        )
        for number, event in enumerate(decided, 1)
        if event.actor is not None and (event.actor, event.command) in audited
    )


def hash_of(entry: AuditEntry) -> str:
    return hashlib.sha256(_ENCODE(msgspec.structs.replace(entry, hash=""))).hexdigest()


def read_entry(row: Row) -> AuditEntry:
    return _DECODE(row.body)


class AuditChain:
    """Appends the waiting changes of any tenant to its chain."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def task(self, tenant: str, cursor: Cursor) -> Cursor:
        """The maintenance task."""
        for _ in range(BATCHES_MAX):
            if not await self.append(tenant):
                break
        return cursor

    async def append(self, tenant: str) -> bool:
        """Append the oldest waiting changes; whether more may wait. Of processes that do so at once, one succeeds."""
        page = await self._store.find(tenant, WAITING, limit=AT_ONCE)
        if not page.rows:
            return False
        stream = chain_stream(tenant)
        seq, previous = await self._head(stream)
        records: list[bytes] = []
        rows: list[Row] = []
        for row in page.rows:
            entry = msgspec.structs.replace(read_entry(row), seq=seq + len(records) + 1, previous=previous)
            previous = hash_of(entry)
            body = _ENCODE(msgspec.structs.replace(entry, hash=previous))
            records.append(body)
            terms = (f"actor:{entry.actor}", f"action:{entry.action}", f"subject:{entry.subject}")
            rows.append(Row(kind=AUDIT, key=f"{entry.seq:012d}", sort=entry.at_ms, terms=terms, body=body))
            rows.append(msgspec.structs.replace(row, deleted=True))
        # The snapshot stands for the chain where only its end matters.
        head = Snapshot(version=seq + len(records), body=_ENCODE((seq + len(records), previous)))
        commit = Commit(stream=stream, expected=seq, records=tuple(records), snapshot=head, rows=tuple(rows))
        (result,) = await self._store.commit([commit])
        return page.after is not None or not isinstance(result, Committed)

    async def _head(self, stream: Stream) -> tuple[int, str]:
        """The number and the hash of the last entry."""
        (tail,) = await self._store.load({stream: 0})
        seq, last = _HEAD(tail.snapshot) if tail.snapshot is not None else (0, "")
        for record in require_intact(tail).records:
            seq, last = seq + 1, _DECODE(record).hash
        return seq, last

    async def verify(self, tenant: str, known_head: str = "") -> ChainCheck:
        """Read the whole chain and compute every hash again; `known_head` is the head of an earlier check."""
        stream, waiting = chain_stream(tenant), await self._store.count(tenant, WAITING)
        seq, last, seen, problem = 0, "", not known_head, ""
        while not problem:
            (tail,) = await self._store.load({stream: seq}, snapshots=False, limit=READ_AT_ONCE)
            problem = tail.damage
            for record in tail.records:
                problem = _broken(record, seq + 1, last)
                if problem:
                    break
                seq, last = seq + 1, _DECODE(record).hash
                seen = seen or last == known_head
            if not tail.records:
                break
        if not problem and await self._missing_after(tenant, seq):
            problem = "entries were removed from the end"
        if not problem and not seen:
            problem = "the chain does not hold the head that was given"
        return ChainCheck(
            intact=not problem,
            entries=seq,
            head=last,
            waiting=waiting,
            broken_seq=seq + 1 if problem else None,
            problem=problem,
        )

    async def _missing_after(self, tenant: str, seq: int) -> bool:
        """Whether lists know of more entries than the chain has."""
        page = await self._store.find(tenant, AUDIT, limit=AT_ONCE)
        return any(int(row.key) > seq for row in page.rows)


def _broken(record: bytes, seq: int, previous: str) -> str:
    """What is wrong with an entry; empty if nothing is."""
    try:
        entry = _DECODE(record)
    except msgspec.MsgspecError:
        return "the entry cannot be read"
    if entry.v > AUDIT_FORMAT:
        return "a newer version wrote the entry: upgrade Tidemill"
    if entry.seq != seq or entry.previous != previous:
        return "the entry does not follow the one before it"
    # What the record holds beside the fields is a change too.
    fits = entry.hash == hash_of(entry) and _ENCODE(entry) == record
    return "" if fits else "the entry was changed: its hash does not match"


def require_actor(actor: str | None) -> str:
    """Refuse a change without an actor, where changes are audited."""
    if not actor:
        raise actor_missing()
    return actor


def actor_missing() -> Rejected:
    return rejected("actor_missing", "the change names no actor, and changes are audited here", hint="say who you are")
