"""Children that were asked for and cannot be started, because a log is damaged: `why` looks for it and says which.

A worker gives such a job back and tries it again after a while. Nothing of that is in the parent's log.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tidemill.blobs.contract import Blobs
from tidemill.engine.answers import read_ask
from tidemill.engine.catalog import Catalog
from tidemill.engine.damage import UNREADABLE
from tidemill.engine.runs import Runs
from tidemill.errors import Rejected, TidemillError
from tidemill.kernel.activation import Wait
from tidemill.kernel.events import BlobRef
from tidemill.kernel.explain import Failure, JobFact
from tidemill.kernel.state import State, peek_at
from tidemill.stores.contract import Stream

LOOKED_AT_MAX = 20
"""So many children are looked at for one answer: others wait for the same, as a rule."""


class Unstarted:
    """What keeps the children of one run from being started."""

    def __init__(self, catalog: Catalog, runs: Runs, blobs: Blobs, stream: Stream, state: State) -> None:
        self._catalog, self._runs, self._blobs, self._stream, self._state = catalog, runs, blobs, stream, state

    async def noted(self, jobs: Sequence[JobFact]) -> list[JobFact]:
        """The jobs, and with each that is to start a child what cannot be read of it or of its workflow."""
        found, left = list[JobFact](), LOOKED_AT_MAX
        for job in jobs:
            wait = _wait_of(self._state, job) if left and job.lease_expires_at_ms is None else None
            left -= wait is not None
            unread = None if wait is None else await self._look(wait)
            found.append(job if unread is None else msgspec.structs.replace(job, unread=unread))
        return found

    async def _look(self, wait: Wait) -> Failure | None:
        try:
            await self._try(wait)
        except Rejected as refusal:
            first = refusal.problems[0]
            if first.code in UNREADABLE:
                return Failure(code=first.code, message=first.message, hint=first.hint)
        except TidemillError:
            # What does not answer now may when the worker asks.
            return None
        return None

    async def _try(self, wait: Wait) -> None:
        """Look at all that a worker would read; raises what it would be refused with."""
        tenant, child = self._stream.tenant, self._stream._replace(key=wait.name)
        await self._runs.refresh([child])
        damage = self._runs.damage(child)
        if damage is not None:
            raise damage
        ask = wait.ask
        if ask is not None:
            text = await self._blobs.get(tenant, ask.digest) if isinstance(ask, BlobRef) else ask
            await self._catalog.resolve(tenant, read_ask(text).workflow)


def _wait_of(state: State, job: JobFact) -> Wait | None:
    """The wait for a child that a job is to start; None for any other job."""
    kind, name, visit, index = job.key.split("/")
    cell = state.peek(name) if kind == "child" else None
    act = peek_at(cell, int(index)) if cell is not None and cell.visit == int(visit) else None
    return None if act is None else act.wait
