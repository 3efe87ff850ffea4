"""The items of a map: what is known of each, and as little as possible of those that are simply done.

A map may have a hundred thousand items, and each result is needed until the list is put together. So an item that
completed without a story is kept as one string of bytes, and becomes an activation again when somebody asks for it.
When all items in a stretch of the list have, they are put on one shelf: a single string, for what would else be as
many entries with as many strings, each several times as large as what it says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from tidemill.kernel.activation import QUEUED_ITEM, Activation
from tidemill.kernel.events import Payload
from tidemill.kernel.layers import everything, take_out

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
    at: dict[int, Activation | bytes] = {}
    """Items that something has happened to; an item below `next` that is not here is simply queued.

    Shelves stand here too, the first one at -1. An item that has an entry of its own as well was changed since.
    """

    @property
    def room(self) -> int:
        """How many more items the window admits now."""
        return min(self.count - self.next, self.window - self.flying)

    def get(self, index: int) -> Activation | None:
        """Give an item to read; None if nothing has happened to it."""
        known: Activation | bytes | None = self.at.get(index)
        if known is None and index < self.count:
            shelf = self.at.get(_shelf_of(index))
            known = None if shelf is None else _on(shelf, index % SHELF)  # type: ignore[arg-type]
        return _unpacked(known) if type(known) is bytes else known  # type: ignore[return-value]

    def known(self) -> Iterator[tuple[int, Activation]]:
        """Go through the items that something has happened to, to read."""
        entries = everything(self.at)
        for key, entry in entries.items():
            if key >= 0:
                yield key, _unpacked(entry) if isinstance(entry, bytes) else entry
                continue
            for index in _stretch(~key, self.count):
                if index not in entries:
                    yield index, _unpacked(_on(entry, index % SHELF))  # type: ignore[arg-type]

    def edit(self, index: int) -> Activation:
        """Give an item to write; the map must be the caller's own."""
        own: Activation | bytes | None = dict.get(self.at, index)
        if not isinstance(own, Activation):
            own = (self.get(index) or QUEUED_ITEM).__copy__()  # type: ignore[attr-defined]
            self.at[index] = own
        return own  # type: ignore[return-value]

    def settle(self, index: int) -> None:
        """Keep an item that has completed in as little room as possible."""
        item = dict.get(self.at, index)
        if isinstance(item, Activation) and (packed := _packed(item)) is not None:
            self.at[index] = packed
            self._put_on_shelf(_shelf_of(index))

    def _put_on_shelf(self, shelf: int) -> None:
        """Put a stretch of items together, if all of them have simply completed."""
        stretch = _stretch(~shelf, self.count)
        items: list[bytes] = []
        # From its end: that is where one is missing for longest, when they end in their order.
        for index in reversed(stretch):
            item = self.at.get(index)
            if type(item) is not bytes:
                return
            items.append(item)
        self.at[shelf] = _shelf(items[::-1])
        for index in stretch:
            take_out(self.at, index)


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
