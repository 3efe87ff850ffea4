"""Records that are not what was written: how that is told, and who waits for it to be mended.

A store answers a damaged stream with no records at all, as it does one that nobody ever wrote to. So whoever takes
records for facts looks here first. A command is refused; what is under way waits, because a run must not fail for
good over something that a backup puts right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.errors import Rejected, StoreUnusable, rejected
from tidemill.stores.contract import Stream, Tail

RESTORE = "restore the store from a backup"
UNREADABLE = frozenset({"event_unreadable", "event_newer"})


def require_intact(tail: Tail) -> Tail:
    """The same tail; refused, by its name, when what is stored is not what was written."""
    if tail.damage:
        raise corrupt_stream(tail.stream, tail.damage)
    return tail


def corrupt_stream(stream: Stream, why: object) -> Rejected:
    """The refusal of records that nobody can read."""
    message = f"the records of {stream.kind} {stream.key} are damaged: {why}"
    return rejected("event_unreadable", message, hint=RESTORE)


@contextmanager
def retry_until_repaired() -> Iterator[None]:
    """For work that is under way: a refusal that blames the store and not the work is `Unfit`, which is waited for."""
    try:
        yield
    except Rejected as refusal:
        if refusal.code in UNREADABLE or refusal.code.startswith("store_"):
            raise StoreUnusable(refusal.problems[0]) from refusal
        raise
