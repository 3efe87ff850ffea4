"""How damaged records are reported, and which work waits for their repair.

A store returns no records for a damaged stream, as for one that was never written, so every reader that takes records
for facts calls `require_intact` first. A command is refused; running work waits: a run must not fail permanently
over damage that a backup repairs. What a newer version wrote is no damage: the run is left to workers of that version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.errors import Rejected, StoreUnusable, rejected
from tidemill.stores.contract import Stream, Tail

NEWER = frozenset({"event_newer", "workflow_newer", "job_newer"})
"""Codes of what a newer version has written: this version leaves it to workers of the newer one."""
UNREADABLE = NEWER | {"event_unreadable"}


def is_newer(error: Exception | None) -> bool:
    return isinstance(error, Rejected) and error.code in NEWER


def newer_job(key: str) -> Rejected:
    kind, slash, _ = key.partition("/")
    message = f"a job of kind {kind[:100] if slash else '?'} was written by a newer version"
    return rejected("job_newer", message, hint="upgrade Tidemill; workers of the newer version take it")


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
