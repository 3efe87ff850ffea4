"""Activation (the attempts at one visit or map item), Wait, Approval, the items of a map, and OverlayDict.

A map can have 100,000 items, all needed until the list is assembled. A completed item without further history is kept
as bytes, and CHUNK_ITEMS consecutive ones as a single packed chunk; reading an item unpacks it. A draft never copies a
container that grows with the run: an OverlayDict holds its changes until they are committed.
Approval and its fold are used by the state and by the index row of an approval; no other rule belongs here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Literal, TypeVar

import msgspec

from tidemill.kernel import events
from tidemill.kernel.events import AnyEvent, Error, Payload, Route
from tidemill.kernel.spending import Budget, Spend

ApprovalStatus = Literal["pending", "decided", "expired", "cancelled"]


class Vote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    by: str
    on_behalf_of: str
    comments: str
    form: Payload | None


class Approval(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    title: str
    description: str
    form: Payload | None
    approvers: tuple[str, ...]
    quorum: int
    four_eyes: bool
    requester: str
    timeout_ms: int | None
    expires_ms: int | None
    on_timeout: str
    escalate_to: tuple[str, ...]
    url: str
    requested_ms: int
    status: ApprovalStatus = "pending"
    votes: tuple[Vote, ...] = ()
    delegated: tuple[tuple[str, str], ...] = ()
    """(from, to), oldest first."""
    escalated: bool = False
    decision: str = ""
    """`approve`, `reject` or `changes`."""
    decided_by: str = ""
    on_behalf_of: str = ""
    comments: str = ""
    decided_ms: int | None = None

    @property
    def escalated_ms(self) -> int | None:
        """When it was escalated: the time-out began again at that moment."""
        if not self.escalated or self.expires_ms is None or self.timeout_ms is None:
            return None
        return self.expires_ms - self.timeout_ms


_REQUESTED = (
    *("title", "description", "form", "approvers", "quorum", "four_eyes", "requester"),
    *("timeout_ms", "expires_ms", "on_timeout", "escalate_to", "url"),
)
"""Fields that an approval copies from its request."""


def folded(approval: Approval | None, event: AnyEvent) -> Approval | None:
    """The approval after one of its own events; any other event leaves it as it is."""
    if isinstance(event, events.ApprovalRequested):
        return Approval(requested_ms=event.at_ms, **{name: getattr(event, name) for name in _REQUESTED})
    if approval is None:
        return None
    replace = msgspec.structs.replace
    match event:
        case events.ApprovalVoted():
            return replace(approval, votes=(*approval.votes, _vote(event)))
        case events.ApprovalDelegated():
            return replace(approval, delegated=(*approval.delegated, (event.by, event.to)))
        case events.ApprovalEscalated():
            # Delegations of the first approvers do not apply to the new ones.
            return replace(approval, approvers=event.to, delegated=(), expires_ms=event.expires_ms, escalated=True)
        case events.ApprovalDecided() | events.ApprovalReturned():
            return replace(
                approval,
                status="decided",
                votes=(*approval.votes, _vote(event)),
                decision=event.decision if isinstance(event, events.ApprovalDecided) else "changes",
                decided_by=event.by,
                on_behalf_of=event.on_behalf_of,
                comments=event.comments,
                decided_ms=event.at_ms,
            )
        case events.ApprovalExpired():
            return replace(approval, status="expired", decided_ms=event.at_ms)
        case _:
            return approval


def _vote(event: events.ApprovalVoted | events.ApprovalDecided | events.ApprovalReturned) -> Vote:
    return Vote(event.by, event.on_behalf_of, event.comments, event.form)


def closed(approval: Approval) -> Approval:
    """The approval after its wait has ended for another reason than a decision."""
    return msgspec.structs.replace(approval, status="cancelled") if approval.status == "pending" else approval


NodeStatus = Literal["PENDING", "QUEUED", "RUNNING", "WAITING", "COMPLETED", "FAILED", "SKIPPED", "CANCELLED"]

ENDED: frozenset[str] = frozenset({"COMPLETED", "FAILED", "SKIPPED", "CANCELLED"})
"""Statuses of a visit or item that has ended."""
DISPATCHED: frozenset[str] = frozenset({"QUEUED", "RUNNING"})
"""Statuses that own a job in the store and count against `max_parallel`."""


class Wait(msgspec.Struct, frozen=True, array_like=True, gc=False):
    on: str
    name: str
    since_ms: int
    until_ms: int | None = None
    expires_ms: int | None = None
    output: Payload | None = None
    route: Route | None = None
    recall: bool = False
    ask: Payload | None = None
    close: str = ""
    started: bool = False
    """For `child`: the child run exists."""
    budget: Budget | None = None
    returns: bool = False
    """For `child`: its failure is the result of the wait."""


class Activation(msgspec.Struct, array_like=True, gc=False):
    """The attempts at one visit of a node, or at one item of a map."""

    status: NodeStatus = "PENDING"
    attempt: int = 0
    """Number of the latest attempt."""
    running: bool = False
    """NodeStarted was recorded for the current attempt and its end was not."""
    failures: int = 0
    """Failed attempts that count for the retry policy; lost workers do not."""
    lost: int = 0
    """Lost workers in a row."""
    token: int = 0
    """Highest fence seen; a result with a lower one is stale."""
    reported: int = 0
    """Fence of the latest recorded result; another result with the same fence is a repetition."""
    retry_at_ms: int | None = None
    wait: Wait | None = None
    output: Payload | None = None
    error: Error | None = None
    checkpoint: Payload | None = None
    since_ms: int = 0
    """When the status last changed."""
    ended_seq: int = 0
    duration_ms: int = 0
    discarded: int = 0
    resumed: Payload | None = None
    """Result of a wait, until a worker has evaluated the conditions over it or called the handler."""
    recall: bool = False
    """Call the handler again, with `resumed`."""
    approval: Approval | None = None
    appended: int = 0
    """Number of records that its attempts have added to the log."""
    appended_from: int = 0
    """The seq of the first of them."""
    reserved: Spend | None = None
    """Set aside from the budget of the run for a call of a model, or for a child run."""
    child_spent: Spend | None = None
    """What the child run has spent that it waited for, until a record says so."""


QUEUED_ITEM = Activation(status="QUEUED")
"""An item that was queued and has no history. Shared: never written."""


K = TypeVar("K")
V = TypeVar("V")

GONE: Any = object()
"""Marks a removed entry in an OverlayDict."""


class OverlayDict(dict[K, V]):
    """Changes to a dict that is left unchanged. Supports only `get`, `in` (own keys) and item writes."""

    __slots__ = ("behind",)

    def __init__(self, behind: dict[K, V]) -> None:
        self.behind = behind

    def get(self, key: K, default: Any = None) -> Any:
        own = dict.get(self, key)
        if own is None:
            return self.behind.get(key, default)
        return default if own is GONE else own


def pop(mapping: dict[K, V], key: K) -> None:
    """Remove an entry, also from the base of an overlay."""
    if type(mapping) is OverlayDict:
        mapping[key] = GONE
    else:
        mapping.pop(key, None)


def items_merged(mapping: dict[K, V]) -> dict[K, V]:
    """All entries, those of the base included; the base is not changed."""
    return _with(mapping, dict(mapping.behind)) if type(mapping) is OverlayDict else mapping


def merged(layer: dict[K, V]) -> dict[K, V]:
    """Write the changes of an overlay into its base, and return the base."""
    return _with(layer, layer.behind) if type(layer) is OverlayDict else layer


def _with(layer: dict[K, V], base: dict[K, V]) -> dict[K, V]:
    base.update(layer)
    for key in [key for key, value in layer.items() if value is GONE]:
        del base[key]
    return base


_FACTS = struct.Struct("<IQQqI")
"""attempt, token, ended_seq, since_ms, duration_ms; the output follows."""
_OFFSETS = struct.Struct("<II")
"""In a packed chunk: offsets of an item and of the next one."""
CHUNK_ITEMS = 64
"""Items per packed chunk."""


class MapState(msgspec.Struct, array_like=True, gc=False):
    """The items of a map in its latest visit. Those from `next` on are not queued yet; ended ones are skipped."""

    count: int
    items: Payload
    window: int
    """Maximum number of items in flight."""
    next: int = 0
    flying: int = 0
    """Items queued and not ended."""
    done: int = 0
    failed: int = 0
    attempts: int = 0
    """The largest number of attempts of any item."""
    by_index: dict[int, Activation | bytes] = {}
    """Items with a history; an item below `next` without an entry is queued.

    Packed chunks have negative keys, from -1 down. An item with an entry of its own was changed after packing.
    """

    @property
    def room(self) -> int:
        return min(self.count - self.next, self.window - self.flying)

    def counts(self) -> dict[str, int]:
        """How many items there are, have ended and failed, and how many of `done` were cancelled, if any."""
        # Only completed items are packed.
        entries = items_merged(self.by_index).values()
        cancelled = sum(isinstance(entry, Activation) and entry.status == "CANCELLED" for entry in entries)
        counted = {"count": self.count, "done": self.done, "failed": self.failed}
        return {**counted, "cancelled": cancelled} if cancelled else counted

    def get(self, index: int) -> Activation | None:
        """An item, to read; None if it has no history."""
        known: Activation | bytes | None = self.by_index.get(index)
        if known is None and index < self.count:
            chunk = self.by_index.get(_chunk_key(index))
            known = None if chunk is None else _chunk_item(chunk, index % CHUNK_ITEMS)  # type: ignore[arg-type]
        return _unpacked(known) if type(known) is bytes else known  # type: ignore[return-value]

    def known(self) -> Iterator[tuple[int, Activation]]:
        """Iterate over the items with a history, to read."""
        entries = items_merged(self.by_index)
        for key, entry in entries.items():
            if key >= 0:
                yield key, _unpacked(entry) if isinstance(entry, bytes) else entry
                continue
            for index in _chunk_range(key, self.count):
                if index not in entries:
                    yield index, _unpacked(_chunk_item(entry, index % CHUNK_ITEMS))  # type: ignore[arg-type]

    def edit(self, index: int) -> Activation:
        """An item, to write; the caller must own the map."""
        own: Activation | bytes | None = dict.get(self.by_index, index)
        if not isinstance(own, Activation):
            own = (self.get(index) or QUEUED_ITEM).__copy__()  # type: ignore[attr-defined]
            self.by_index[index] = own
        return own  # type: ignore[return-value]

    def settle(self, index: int) -> None:
        """Pack an item that has completed."""
        item = dict.get(self.by_index, index)
        if isinstance(item, Activation) and (packed := _packed(item)) is not None:
            self.by_index[index] = packed
            self._pack_chunk(_chunk_key(index))

    def _pack_chunk(self, key: int) -> None:
        """Pack the items of a chunk together once all of them are packed."""
        indices = _chunk_range(key, self.count)
        items: list[bytes] = []
        # Backwards, because items mostly end in order: the last ones of a chunk are missing longest.
        for index in reversed(indices):
            item = self.by_index.get(index)
            if type(item) is not bytes:
                return
            items.append(item)
        offsets = accumulate(map(len, reversed(items)), initial=4 * (len(items) + 1))
        self.by_index[key] = struct.pack(f"<{len(items) + 1}I", *offsets) + b"".join(reversed(items))
        for index in indices:
            pop(self.by_index, index)


def _chunk_key(index: int) -> int:
    """The key of an item's chunk in `by_index`; negative, so that it is not an item's index."""
    return ~(index // CHUNK_ITEMS)


def _chunk_range(key: int, count: int) -> range:
    return range(~key * CHUNK_ITEMS, min((~key + 1) * CHUNK_ITEMS, count))


def _chunk_item(chunk: bytes, place: int) -> bytes:
    begin, end = _OFFSETS.unpack_from(chunk, 4 * place)
    return chunk[begin:end]


def _packed(item: Activation) -> bytes | None:
    """An item as bytes; None if it has more history than its result."""
    if type(item.output) is not bytes:
        return None
    facts = (item.attempt, item.token, item.ended_seq, item.since_ms, item.duration_ms)
    if item != _plain(facts, item.output):
        return None
    try:
        return _FACTS.pack(*facts) + item.output
    except struct.error:
        # A number is too large for its field: the item stays unpacked.
        return None


def _unpacked(packed: bytes) -> Activation:
    return _plain(_FACTS.unpack_from(packed), packed[_FACTS.size :])


def _plain(facts: tuple[int, ...], output: bytes) -> Activation:
    attempt, token, ended_seq, since_ms, duration_ms = facts
    return Activation(
        status="COMPLETED",
        attempt=attempt,
        token=token,
        reported=token,
        output=output,
        since_ms=since_ms,
        ended_seq=ended_seq,
        duration_ms=duration_ms,
    )
