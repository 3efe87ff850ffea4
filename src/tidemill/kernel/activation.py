"""Activation, Wait, Approval, compact map items, OverlayDict.

The attempts at one visit of a node, or at one item of a map: where they stand, and what they came to.

An approval as the log knows it: what was asked of whom, who has voted, and how it came out.

The value and its fold live apart from the rest of the state because two readers need them: the state itself, and
the row under which people find what waits for them, which is written from the events of one commit.

Dicts in front of dicts: how a draft changes what it shares with the state it was drawn from.

Containers that can grow with a run are never copied whole; changes are kept in front of them and written into
them once they are committed.

The items of a map: what is known of each, and as little as possible of those that are simply done.

A map may have a hundred thousand items, and each result is needed until the list is put together. So an item that
completed without a story is kept as one string of bytes, and becomes an activation again when somebody asks for it.
When all items in a stretch of the list have, they are put on one shelf: a single string, for what would else be as
many entries with as many strings, each several times as large as what it says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Literal, TypeVar

import msgspec

from tidemill.kernel.events import (
    AnyEvent,
    ApprovalDecided,
    ApprovalDelegated,
    ApprovalEscalated,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalReturned,
    ApprovalVoted,
    Error,
    Payload,
    Route,
)

ApprovalStatus = Literal["pending", "decided", "expired", "cancelled"]


class Vote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One person's approval."""

    by: str
    on_behalf_of: str
    comments: str
    form: Payload | None


class Approval(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Everything that is known of one approval."""

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
    """(who, to whom), oldest first."""
    escalated: bool = False
    decision: str = ""
    """`approve`, `reject` or `changes`, once it is decided."""
    decided_by: str = ""
    on_behalf_of: str = ""
    comments: str = ""
    decided_ms: int | None = None


def requested(event: ApprovalRequested) -> Approval:
    """The approval that an event asks for."""
    return Approval(
        title=event.title,
        description=event.description,
        form=event.form,
        approvers=event.approvers,
        quorum=event.quorum,
        four_eyes=event.four_eyes,
        requester=event.requester,
        timeout_ms=event.timeout_ms,
        expires_ms=event.expires_ms,
        on_timeout=event.on_timeout,
        escalate_to=event.escalate_to,
        url=event.url,
        requested_ms=event.at_ms,
    )


def folded(approval: Approval | None, event: AnyEvent) -> Approval | None:
    """The approval after one of its own events; any other event leaves it as it is."""
    if isinstance(event, ApprovalRequested):
        return requested(event)
    if approval is None:
        return None
    replace = msgspec.structs.replace
    match event:
        case ApprovalVoted():
            return replace(approval, votes=(*approval.votes, _vote(event)))
        case ApprovalDelegated():
            return replace(approval, delegated=(*approval.delegated, (event.by, event.to)))
        case ApprovalEscalated():
            # Others are asked now; whom the first had passed it on to is no longer of interest.
            return replace(approval, approvers=event.to, delegated=(), expires_ms=event.expires_ms, escalated=True)
        case ApprovalDecided() | ApprovalReturned():
            return replace(
                approval,
                status="decided",
                votes=(*approval.votes, _vote(event)),
                decision=event.decision if isinstance(event, ApprovalDecided) else "changes",
                decided_by=event.by,
                on_behalf_of=event.on_behalf_of,
                comments=event.comments,
                decided_ms=event.at_ms,
            )
        case ApprovalExpired():
            return replace(approval, status="expired", decided_ms=event.at_ms)
        case _:
            return approval


def _vote(event: ApprovalVoted | ApprovalDecided | ApprovalReturned) -> Vote:
    return Vote(event.by, event.on_behalf_of, event.comments, event.form)


def closed(approval: Approval) -> Approval:
    """The approval after its wait has ended for another reason than a decision."""
    return msgspec.structs.replace(approval, status="cancelled") if approval.status == "pending" else approval


NodeStatus = Literal["PENDING", "QUEUED", "RUNNING", "WAITING", "COMPLETED", "FAILED", "SKIPPED", "CANCELLED"]

ENDED: frozenset[str] = frozenset({"COMPLETED", "FAILED", "SKIPPED", "CANCELLED"})
"""Statuses of a visit or item that is over."""
DISPATCHED: frozenset[str] = frozenset({"QUEUED", "RUNNING"})
"""Statuses that own a job in the store and count against `max_parallel`."""


class Wait(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a WAITING visit waits for, and since when."""

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
    """For `child`: it is known to exist."""


class Activation(msgspec.Struct, array_like=True, gc=False):
    """The attempts at one visit of a node, or at one item of a map."""

    status: NodeStatus = "PENDING"
    attempt: int = 0
    """Attempts made so far, which is also the number of the running one."""
    running: bool = False
    """NodeStarted was recorded for the current attempt and its end was not."""
    failures: int = 0
    """Attempts that used up the retry policy; lost workers do not."""
    lost: int = 0
    """Lost workers in a row."""
    token: int = 0
    """Highest fence seen; a result with a lower one is stale."""
    reported: int = 0
    """The fence of the attempt whose end was recorded last; a result with the same one is a repetition."""
    retry_at_ms: int | None = None
    wait: Wait | None = None
    output: Payload | None = None
    error: Error | None = None
    checkpoint: Payload | None = None
    since_ms: int = 0
    """When it got its present status."""
    ended_seq: int = 0
    duration_ms: int = 0
    discarded: int = 0
    resumed: Payload | None = None
    """What a wait ended with, while conditions over it are still to be evaluated, or the handler to be called."""
    recall: bool = False
    """The handler is called again with `resumed`."""
    approval: Approval | None = None


QUEUED_ITEM = Activation(status="QUEUED")
"""An item that has been queued and nothing else. Shared: never written."""


K = TypeVar("K")
V = TypeVar("V")


GONE: Any = object()
"""What a layer has in the place of an entry that was taken out."""


class OverlayDict(dict[K, V]):
    """A dict in front of another one that it never changes. Only `get`, `in` (own keys) and item writes are used."""

    __slots__ = ("behind",)

    def __init__(self, behind: dict[K, V]) -> None:
        self.behind = behind

    def get(self, key: K, default: Any = None) -> Any:
        """The own value, else the base's."""
        own = dict.get(self, key)
        if own is None:
            return self.behind.get(key, default)
        return default if own is GONE else own


def pop(mapping: dict[K, V], key: K) -> None:
    """Remove an entry, also one that is behind a layer."""
    if type(mapping) is OverlayDict:
        mapping[key] = GONE
    else:
        mapping.pop(key, None)


def items_merged(mapping: dict[K, V]) -> dict[K, V]:
    """All entries of a dict, those behind a layer included."""
    return _with(mapping, dict(mapping.behind)) if type(mapping) is OverlayDict else mapping


def merged(layer: dict[K, V]) -> dict[K, V]:
    """A layer's changes written into what is behind it."""
    return _with(layer, layer.behind) if type(layer) is OverlayDict else layer


def _with(layer: dict[K, V], base: dict[K, V]) -> dict[K, V]:
    base.update(layer)
    for key in [key for key, value in layer.items() if value is GONE]:
        del base[key]
    return base


_FACTS = struct.Struct("<IQQqI")
"""attempt, token, ended_seq, since_ms, duration_ms; the output follows."""
_STRETCH = struct.Struct("<II")
"""On a shelf: where an item begins, and where the next one does."""
SHELF = 64
"""How many items a shelf has room for."""


class MapState(msgspec.Struct, array_like=True, gc=False):
    """The items of a map in its present visit. Items from `next` on have not been queued yet.

    After a retry, some of those are there already: they had ended before, and are passed over.
    """

    count: int
    items: Payload
    window: int
    """How many items may be in flight at a time."""
    next: int = 0
    flying: int = 0
    """Items that were queued and have not ended."""
    done: int = 0
    failed: int = 0
    attempts: int = 0
    """The largest number of attempts of any item."""
    by_index: dict[int, Activation | bytes] = {}
    """Items that something has happened to; an item below `next` that is not here is simply queued.

    Shelves stand here too, the first one at -1. An item that has an entry of its own as well was changed since.
    """

    @property
    def room(self) -> int:
        """How many more items the window admits now."""
        return min(self.count - self.next, self.window - self.flying)

    def get(self, index: int) -> Activation | None:
        """Give an item to read; None if nothing has happened to it."""
        known: Activation | bytes | None = self.by_index.get(index)
        if known is None and index < self.count:
            shelf = self.by_index.get(_shelf_of(index))
            known = None if shelf is None else _on(shelf, index % SHELF)  # type: ignore[arg-type]
        return _unpacked(known) if type(known) is bytes else known  # type: ignore[return-value]

    def known(self) -> Iterator[tuple[int, Activation]]:
        """Go through the items that something has happened to, to read."""
        entries = items_merged(self.by_index)
        for key, entry in entries.items():
            if key >= 0:
                yield key, _unpacked(entry) if isinstance(entry, bytes) else entry
                continue
            for index in _stretch(~key, self.count):
                if index not in entries:
                    yield index, _unpacked(_on(entry, index % SHELF))  # type: ignore[arg-type]

    def edit(self, index: int) -> Activation:
        """Give an item to write; the map must be the caller's own."""
        own: Activation | bytes | None = dict.get(self.by_index, index)
        if not isinstance(own, Activation):
            own = (self.get(index) or QUEUED_ITEM).__copy__()  # type: ignore[attr-defined]
            self.by_index[index] = own
        return own  # type: ignore[return-value]

    def settle(self, index: int) -> None:
        """Keep an item that has completed in as little room as possible."""
        item = dict.get(self.by_index, index)
        if isinstance(item, Activation) and (packed := _packed(item)) is not None:
            self.by_index[index] = packed
            self._put_on_shelf(_shelf_of(index))

    def _put_on_shelf(self, shelf: int) -> None:
        """Put a stretch of items together, if all of them have simply completed."""
        stretch = _stretch(~shelf, self.count)
        items: list[bytes] = []
        # From its end: that is where one is missing for longest, when they end in their order.
        for index in reversed(stretch):
            item = self.by_index.get(index)
            if type(item) is not bytes:
                return
            items.append(item)
        self.by_index[shelf] = _shelf(items[::-1])
        for index in stretch:
            pop(self.by_index, index)


def _shelf_of(index: int) -> int:
    """The key of the shelf for an item; below zero, where no item is."""
    return ~(index // SHELF)


def _stretch(number: int, count: int) -> range:
    """The items that a shelf is for."""
    return range(number * SHELF, min((number + 1) * SHELF, count))


def _shelf(items: list[bytes]) -> bytes:
    """All of them in a row, behind a list of where each begins and the last one ends."""
    begins = accumulate(map(len, items), initial=4 * (len(items) + 1))
    return struct.pack(f"<{len(items) + 1}I", *begins) + b"".join(items)


def _on(shelf: bytes, place: int) -> bytes:
    begin, end = _STRETCH.unpack_from(shelf, 4 * place)
    return shelf[begin:end]


def _packed(item: Activation) -> bytes | None:
    """Write an item as bytes; None when there is more to it than its result."""
    if type(item.output) is not bytes:
        return None
    facts = (item.attempt, item.token, item.ended_seq, item.since_ms, item.duration_ms)
    if item != _plain(facts, item.output):
        return None
    try:
        return _FACTS.pack(*facts) + item.output
    except struct.error:
        # A number that has no room there is kept as it is.
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
