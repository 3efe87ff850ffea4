"""A job in a worker's hands: its lease, what it asks for, and what is being done about it."""

from __future__ import annotations

import asyncio

import msgspec

from tidemill.engine.attempt import Attempt
from tidemill.kernel.jobs import Task
from tidemill.stores.contract import Lease, Stream

Place = tuple[Stream, str]
"""Which job it is: its run, and its key there."""


class Hand(msgspec.Struct):
    """A job in hand."""

    lease: Lease
    task: Task
    running: asyncio.Task[None] | None = None
    attempt: Attempt | None = None
    begun: bool = False
    handed_in: int = 0
    """How often its result was handed in to a store that did not answer."""

    @property
    def place(self) -> Place:
        """Which job it is."""
        return self.lease.stream, self.lease.key

    @property
    def settling(self) -> bool:
        """Whether its work is done, and the result on its way into the log."""
        return self.running is None or (self.running.done() and not self.running.cancelled())
