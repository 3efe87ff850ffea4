"""How damaged records are reported, and which work waits for their repair.

A store returns no records for a damaged stream, as for one that was never written, so every reader that takes records
for facts calls `require_intact` first. A command is refused; work under way waits, because a run must not fail for good
over damage that a backup repairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.errors import Rejected, StoreUnusable, rejected
from tidemill.stores.contract import Stream, Tail

UNREADABLE = frozenset({"event_unreadable", "event_newer"})


def require_intact(tail: Tail) -> Tail:
    """Return the tail, or raise if the stored records are damaged."""
    if tail.damage:
        raise corrupt_stream(tail.stream, tail.damage)
    return tail


def corrupt_stream(stream: Stream, why: object) -> Rejected:
    message = f"the records of {stream.kind} {stream.key} are damaged: {why}"
    return rejected("event_unreadable", message, hint="restore the store from a backup")


@contextmanager
def retry_until_repaired() -> Iterator[None]:
    """Convert a refusal that blames the store into `StoreUnusable`, which work under way waits for."""
    try:
        yield
    except Rejected as refusal:
        if refusal.code in UNREADABLE or refusal.code.startswith("store_"):
            raise StoreUnusable(refusal.problems[0]) from refusal
        raise
