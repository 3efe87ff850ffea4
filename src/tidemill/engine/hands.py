"""A job in a worker's hands: its lease, what it asks for, and what is being done about it."""

from __future__ import annotations

import asyncio

import msgspec

from tidemill.engine.attempt import Attempt
from tidemill.engine.bearing import TransactionalStatement
from tidemill.engine.undoing import Undoing
from tidemill.kernel.commands import AnyCommand, Done, Result, Undone
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
    undoing: Undoing | None = None
    begun: bool = False
    handed_in: int = 0
    """How often its result was handed in to a store that did not answer."""

    @property
    def place(self) -> Place:
        """Which job it is."""
        return self.lease.stream, self.lease.key

    def statement_with(self, command: AnyCommand) -> TransactionalStatement | None:
        """What the store is to do in the commit of this command, which the work on the job came to."""
        work = self.attempt or self.undoing
        if work is None or work.statement is None or not isinstance(command, (Result, Undone)):
            return None
        return work.statement if isinstance(command.outcome, Done) else None

    @property
    def settling(self) -> bool:
        """Whether its work is done, and the result on its way into the log."""
        return self.running is None or (self.running.done() and not self.running.cancelled())
