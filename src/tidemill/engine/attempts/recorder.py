"""What running attempts write into the log of their run: starts, checkpoints, and the records of agents.

A record is written once: its number says how many there were before, so that a repetition after an unknown outcome is
recognised. Records are in the log only; an attempt reads those of its visit when it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import NotJson
from tidemill.engine.attempts.invocation import retry_until_stored
from tidemill.engine.attempts.rendering import READ_BYTES_MAX, encoded
from tidemill.engine.attempts.results import as_payload, check_files, stored_value
from tidemill.engine.attempts.runtime import AppendedRecords, AttemptSuperseded
from tidemill.engine.corruption import require_intact
from tidemill.engine.run_cache import RunCache
from tidemill.engine.turn import TurnLoop
from tidemill.errors import Unavailable
from tidemill.expressions.errors import ExpressionError
from tidemill.handlers.contract import Cancelled, Fail
from tidemill.kernel.activation import Activation
from tidemill.kernel.codec import decode_event
from tidemill.kernel.commands import Append, AttemptStarted, Checkpoint
from tidemill.kernel.events import BlobRef, NodeAppended, Payload
from tidemill.kernel.spending import BUDGET_RESERVED, SET_ASIDE_MS, Spend
from tidemill.kernel.state import peek_at
from tidemill.stores.contract import Store

if TYPE_CHECKING:
    from tidemill.engine.attempts.attempt import Attempt

NO_CALL_NOW = ("budget_exceeded", "price_unknown", "run_paused", BUDGET_RESERVED)
"""Why the model is not called; the attempt continues."""
EVENTS_READ = 1_000
"""Events that are read at once to find the records of a visit."""


class AttemptLog:
    """Writes events of running attempts; `note` is called with whether an attempt is recorded as begun."""

    def __init__(
        self,
        turns: TurnLoop,
        runs: RunCache,
        store: Store,
        blobs: Blobs,
        worker: str,
        note: Callable[[Attempt, bool], None],
    ) -> None:
        self._turns, self._runs, self._store, self._blobs = turns, runs, store, blobs
        self._worker, self._note = worker, note

    async def record_start(self, attempt: Attempt) -> bool:
        """Commit NodeStarted; False when the attempt no longer counts."""
        answer = await self._turns.command(attempt.lease.stream, self.start_command(attempt), hold=attempt.lease)
        self._note(attempt, answer.problem is None)
        return answer.problem is None

    async def record_checkpoint(self, attempt: Attempt, value: Any) -> None:
        lease = attempt.lease
        _, payload = await self._stored(attempt, value)
        command = Checkpoint(value=payload, **self._common(attempt))
        # An unreachable store is not the handler's failure, and writing a checkpoint twice is idempotent.
        answer = await retry_until_stored(
            lambda: self._turns.command(lease.stream, command, hold=lease),
            partial(self._turns.mark_stuck, lease.stream),
        )
        self._note(attempt, answer.problem is None)

    async def record_append(
        self, attempt: Attempt, record: Any, number: int, reserve: Spend | None, spent: Spend | None
    ) -> bytes:
        """Commit a record as the one after `number` others, and return its text.

        Raises `Fail` when the budget of the run is used up or the run is paused, and `Cancelled` when the attempt no
        longer counts.
        """
        lease = attempt.lease
        text, payload = await self._stored(attempt, record)
        command = Append(value=payload, number=number, reserve=reserve, spent=spent, **self._common(attempt))
        answer = await retry_until_stored(
            lambda: self._turns.command(lease.stream, command, hold=lease),
            partial(self._turns.mark_stuck, lease.stream),
        )
        problem = answer.problem
        if problem is not None and problem.code in NO_CALL_NOW:
            again_ms = SET_ASIDE_MS if problem.code == BUDGET_RESERVED else None
            code, message, hint = problem.code, problem.message, problem.hint
            raise Fail(code, message, hint=hint, retryable=again_ms is not None, retry_after_ms=again_ms)
        self._note(attempt, problem is None)
        if problem is not None:
            raise Cancelled(problem.message)
        return text

    async def read_appended(self, attempt: Attempt) -> AppendedRecords:
        """The records that the visit has now; raises `AttemptSuperseded` when the attempt no longer counts."""
        task, tenant = attempt.task, attempt.lease.stream.tenant
        entry = self._runs.get(attempt.lease.stream)
        visit = None if entry is None else entry.state.peek(task.node)
        act = None if visit is None or visit.visit != task.visit else peek_at(visit, task.index)
        if act is None:
            raise AttemptSuperseded
        found = await self._records(attempt, act)
        sizes = (each.size if isinstance(each, BlobRef) else len(each) for each in found)
        if sum(sizes) > READ_BYTES_MAX:
            message = f"the records of the visit have more than {READ_BYTES_MAX} bytes"
            raise ExpressionError(code="values_too_large", message=message, hint="rewind to the node: it starts afresh")
        texts = [await self._text(tenant, each) for each in found]
        resumed = act.resumed if act.recall else None
        return AppendedRecords(texts, None if resumed is None else await self._text(tenant, resumed), act.child_spent)

    async def _records(self, attempt: Attempt, act: Activation) -> list[Payload]:
        task, found, after = attempt.task, list[Payload](), act.appended_from - 1
        place = (task.node, task.visit, task.index)
        while len(found) < act.appended:
            (tail,) = await self._store.load({attempt.lease.stream: after}, snapshots=False, limit=EVENTS_READ)
            records = require_intact(tail).records
            if not records:
                raise Unavailable(f"records of {task.node} are not in the log")
            after += len(records)
            for event in map(decode_event, records):
                if isinstance(event, NodeAppended) and (event.node, event.visit, event.index) == place:
                    found.append(event.value)
        return found[: act.appended]

    async def _text(self, tenant: str, payload: Payload) -> bytes:
        return await self._blobs.get(tenant, payload.digest) if isinstance(payload, BlobRef) else payload

    async def _stored(self, attempt: Attempt, value: Any) -> tuple[bytes, Payload]:
        """The text of a value, and what the log keeps of it; waits for a blob store that is unreachable."""
        stream = attempt.lease.stream
        try:
            text = encoded(value, attempt.mask)
        except NotJson as error:
            text, _ = await stored_value(self._blobs, stream.tenant, value, error, attempt.mask)
        on_stall = partial(self._turns.mark_stuck, stream)
        await retry_until_stored(lambda: check_files(self._blobs, stream.tenant, text), on_stall)
        return text, await retry_until_stored(lambda: as_payload(self._blobs, stream.tenant, text), on_stall)

    def start_command(self, attempt: Attempt) -> AttemptStarted:
        return AttemptStarted(**self._common(attempt))

    def _common(self, attempt: Attempt) -> dict[str, Any]:
        task = attempt.task
        return {
            "node": task.node,
            "visit": task.visit,
            "index": task.index,
            "admission": attempt.admission,
            "token": attempt.lease.token,
            "worker": self._worker,
            "started_ms": attempt.started_ms,
        }
