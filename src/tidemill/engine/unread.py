"""Jobs that were put aside because a large value that they need cannot be had: `why` looks for it and says which.

A worker that cannot load a value gives the job back and tries it again after a while. Nothing of that is in the log, so
whoever asks has to look where the values are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidemill.blobs.contract import Blobs
from tidemill.engine.runs import Entry
from tidemill.engine.scopes import needed_for, needed_for_outputs
from tidemill.errors import Unavailable, Unfit
from tidemill.kernel.explain import Failure, JobFact
from tidemill.kernel.jobs import key_of

LOOKED_AT_MAX = 20
"""So many values are looked at for one answer: others wait for the same, as a rule."""

DUE_MS_MAX = 1_000
"""What has been due for longer than this waits for something else."""


class Unread:
    """What one run needs, and what became of it."""

    def __init__(self, blobs: Blobs, tenant: str, entry: Entry) -> None:
        self._blobs, self._tenant, self._entry = blobs, tenant, entry
        self._seen: dict[str, Failure | None] = {}

    async def noted(self, jobs: Sequence[JobFact], now_ms: int) -> list[JobFact]:
        """The jobs, and with each that was put aside the first value it needs that cannot be had."""
        return [await self._of(job) if _rests(job, now_ms) else job for job in jobs]

    async def _of(self, job: JobFact) -> JobFact:
        for digest in self._needed(job.key):
            if digest not in self._seen and len(self._seen) < LOOKED_AT_MAX:
                self._seen[digest] = await self._look(digest)
            if (unread := self._seen.get(digest)) is not None:
                return msgspec.structs.replace(job, unread=unread)
        return job

    def _needed(self, key: str) -> Iterable[str]:
        workflow, state = self._entry.flow.workflow, self._entry.state
        if key == key_of("outputs"):
            return needed_for_outputs(workflow, state)
        kind, name, _, index = key.split("/")
        node = workflow.by_id.get(name) if kind == "run" else None
        return () if node is None else needed_for(workflow, state, node, int(index))

    async def _look(self, digest: str) -> Failure | None:
        try:
            await self._blobs.get(self._tenant, digest)
        except Unfit as error:
            return Failure(code=error.problem.code, message=error.problem.message, hint=error.problem.hint)
        except Unavailable as error:
            return Failure(code="blob_unreadable", message=f"blob {digest} cannot be read: {error}")
        return None


def _rests(job: JobFact, now_ms: int) -> bool:
    """Whether a job was put aside, or has just come due again and will be in a moment."""
    return job.lease_expires_at_ms is None and job.ready_at_ms > now_ms - DUE_MS_MAX
