"""What an attempt writes to the log while it runs: that it has begun, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import NotJson
from tidemill.engine.asks import Answer, Ask
from tidemill.engine.attempt import Attempt
from tidemill.engine.binaries import check_files, stored_value
from tidemill.engine.calls import surely
from tidemill.engine.contexts import encoded
from tidemill.engine.turn import Turns
from tidemill.kernel.commands import Begin, Checkpoint
from tidemill.kernel.events import INLINE_BYTES_MAX, BlobRef, Payload


class AttemptLog:
    """Writes for the attempts of one worker; `note` hears whether an attempt is known to have begun."""

    def __init__(self, turns: Turns, blobs: Blobs, worker: str, note: Callable[[Attempt, bool], None]) -> None:
        self._turns, self._blobs, self._worker, self._note = turns, blobs, worker, note

    async def record_start(self, attempt: Attempt) -> bool:
        """Commit NodeStarted; False when the attempt no longer counts."""
        answer = await self._turns.command(attempt.lease.stream, self.begin_of(attempt), hold=attempt.lease)
        self._note(attempt, answer.problem is None)
        return answer.problem is None

    async def record_checkpoint(self, attempt: Attempt, value: Any) -> None:
        """Commit how far the attempt has come."""
        task, lease = attempt.task, attempt.lease
        try:
            text = encoded(value, attempt.mask)
        except NotJson as error:
            text = await stored_value(self._blobs, lease.stream.tenant, value, error, attempt.mask)
        await surely(lambda: check_files(self._blobs, lease.stream.tenant, text))
        payload: Payload = text
        if len(text) > INLINE_BYTES_MAX:
            payload = BlobRef(await surely(lambda: self._blobs.put(lease.stream.tenant, text)), len(text))
        command = Checkpoint(
            node=task.node,
            visit=task.visit,
            index=task.index,
            admission=attempt.admission,
            token=lease.token,
            value=payload,
            worker=self._worker,
            started_ms=attempt.started_ms,
        )
        # The handler is not to blame for a store that does not answer. Written twice, a checkpoint says the same.
        answer = await surely(lambda: self._turns.command(lease.stream, command, hold=lease))
        self._note(attempt, answer.problem is None)

    def begin_of(self, attempt: Attempt) -> Begin:
        """The command that says that an attempt has begun."""
        task = attempt.task
        return Begin(
            node=task.node,
            visit=task.visit,
            index=task.index,
            admission=attempt.admission,
            token=attempt.lease.token,
            worker=self._worker,
            started_ms=attempt.started_ms,
        )


def unheard(ask: Ask, answer: Answer) -> None:
    """Nobody waits for this answer: if the attempt no longer counts, its result will be discarded."""
