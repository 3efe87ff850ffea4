"""One attempt at compensating a completed visit or item: render its compensator in the visit's scope, call it, report.

The compensator sees what the visit saw, plus the visit's own result as `output`. If that has changed since (a loop, a
rewind), the state at the visit's completion is restored by folding the log up to there. What it spends on models counts
for the run, whose budget does not stop it, and for the tenant's day, whose budget does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from tidemill.blobs.payloads import NotJson, decode_value, encode_text
from tidemill.engine.attempts.invocation import TimedOut, bounded, failed_by, retry_until_stored, timed_out
from tidemill.engine.attempts.rendering import (
    Fetched,
    Upstream,
    blobs_of,
    check_memory,
    digests_of,
    encoded,
    masked,
    rendered,
    scope_of,
    text_of,
)
from tidemill.engine.attempts.results import (
    KnownFiles,
    TransactionalStatement,
    as_payload,
    stored_value,
)
from tidemill.engine.attempts.runtime import AttemptRuntime
from tidemill.engine.attempts.streaming import AttemptOutput
from tidemill.engine.compiled import off_loop
from tidemill.engine.corruption import require_intact, retry_until_repaired
from tidemill.engine.run_cache import CachedRun
from tidemill.errors import Unavailable
from tidemill.expressions.sandbox.pool import render
from tidemill.handlers.contract import CapabilityMissing, Done, Fail, Handler, HandlerOutcome, NodeContext
from tidemill.kernel import commands
from tidemill.kernel.codec import decode_event
from tidemill.kernel.commands import CompensationResult, Failed
from tidemill.kernel.events import NOT_AN_ITEM, BlobRef, Payload
from tidemill.kernel.evolve import replay
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.model import Compensator, Node
from tidemill.kernel.spending import NOTHING_SPENT, Spend
from tidemill.kernel.state import CompletedStep, State, key_at
from tidemill.security.secrets import SecretAccessLog
from tidemill.stores.contract import Lease, Store


def _refuse_checkpoint(value: Any) -> NoReturn:
    """Refuse a checkpoint: compensators have none."""
    hint = "do not use checkpoints when `context.undoing` is true"
    raise Fail("checkpoint_not_kept", "a compensator has no checkpoints: it is repeated as a whole", hint=hint)


class CompensationAttempt:
    def __init__(
        self, tools: AttemptRuntime, store: Store, entry: CachedRun, handler: Handler, task: JobBody, lease: Lease
    ) -> None:
        self._tools, self._store, self._entry, self._handler = tools, store, entry, handler
        self.task, self.lease = task, lease
        self._node: Node = entry.flow.workflow.by_id[task.node]
        assert self._node.compensator is not None
        self._compensator: Compensator = self._node.compensator
        undo = entry.state.undo.get(key_at(task.node, task.visit, task.index))
        assert undo is not None
        self._undo: CompletedStep = undo
        self._started = tools.ambient.monotonic_ms()
        self.statement: TransactionalStatement | None = None
        name, tenant = entry.flow.workflow.name, lease.stream.tenant
        self._disclosed = SecretAccessLog(tools.runtime.secrets, name, tenant, self._compensator.config)
        self.number = undo.attempt + 1
        self._output = AttemptOutput(tools.runtime.broadcaster, lease, task, self.number, self._disclosed)
        self._spent: Spend | None = None
        self._memory = 0

    async def run(self) -> CompensationResult:
        """Call the compensator. Raises `Unavailable` when a value cannot be loaded, and `LeaveToOtherWorker`."""
        try:
            return await self._call()
        finally:
            self._tools.values.release(self._memory)

    async def _call(self) -> CompensationResult:
        state = await self._state_at_completion()
        output, item = self._values(state)
        wanted = [*blobs_of(self._entry.flow.workflow, state, self._node)]
        wanted += [ref for ref in (output, item) if isinstance(ref, BlobRef)]
        try:
            fetched, self._memory = await self._tools.values.read(self.lease.stream.tenant, digests_of(wanted))
            context = await self._context(state, check_memory(fetched), output, item)
        except Unavailable:
            raise
        except BaseException as error:
            return await self._failed(error, lacking=self._disclosed.lacking)
        try:
            call_context, answer = self._tools.runtime.handler_host.call(self._handler, context, self._output)
        except BaseException as error:
            return await self._failed(error)
        if isinstance(answer, HandlerOutcome):
            return await self._ended(answer)
        try:
            ended = await bounded(answer, self._compensator.timeout_ms, call_context)
        finally:
            self._output.over = True
        return await self._ended(ended)

    async def _state_at_completion(self) -> State:
        """The current state, or the state at the visit's completion if what the visit read has changed since."""
        state, node = self._entry.state, self._node
        seen = state.cells if node.reads_all else (*node.reads, *node.reads_past)
        again = state.peek(node.id).visit != self.task.visit
        if not again and all(state.peek(name).ended_seq <= self._undo.seq for name in seen):
            return state
        with retry_until_repaired():
            (tail,) = await self._store.load({self.lease.stream: 0}, snapshots=False, limit=self._undo.seq)
            return replay(decode_event(record) for record in require_intact(tail).records)

    def _values(self, state: State) -> tuple[Payload, Payload | None]:
        """The result of the visit or item, and the list that the item is from."""
        visit = state.peek(self.task.node)
        items = visit.map
        if self.task.index == NOT_AN_ITEM or items is None:
            return visit.output if visit.output is not None else b"null", None
        item = items.get(self.task.index)
        return item.output if item is not None and item.output is not None else b"null", items.items

    async def _context(self, state: State, fetched: Fetched, output: Payload, items: Payload | None) -> NodeContext:
        task, stream = self.task, self.lease.stream
        scope = scope_of(self._entry.flow.workflow, state, stream.key, self._node, fetched)
        value = decode_value(text_of(output, fetched))
        scope = replace(scope, has_output=True, output=value, secrets=self._disclosed)
        if items is not None:
            item = decode_value(text_of(items, fetched))[task.index]
            scope = replace(scope, has_item=True, item=item, index=task.index)
        flow, runtime = self._entry.flow, self._tools.runtime
        template = await off_loop(self._compensator.config, flow.undoing, self._node)
        filled = await render(template, scope, runtime.isolation)
        config = rendered(filled, encode_text(filled), runtime.handler_host.schema(self._handler))
        context = NodeContext(
            run_id=stream.key,
            node=task.node,
            visit=task.visit,
            index=task.index,
            attempt=self._undo.attempt + 1,
            config=config,
            upstream=Upstream(self._entry.flow.workflow, state, self._node, fetched),
            checkpoint=_refuse_checkpoint,
            read=KnownFiles(self._tools.blobs, stream.tenant, state).read,
            undoing=True,
            given=lambda: decode_value(text_of(state.inputs, fetched)),
            voice=self._output,
            secrets=self._disclosed,
            workflow=self._entry.flow.workflow.name,
            timeout_ms=self._compensator.timeout_ms,
        )
        if self._handler.agent:
            context.append = self._count
            if runtime.agents is not None:
                runtime.agents.serve(stream.tenant, context, lambda: self._output.mask)
        return context

    async def _count(self, record: Any, *, reserve: Spend | None = None, spent: Spend | None = None) -> None:
        """Count what a call of a model has cost; a compensation keeps no records."""
        if spent is not None:
            self._spent = (self._spent or NOTHING_SPENT) + spent

    async def _ended(self, ended: HandlerOutcome | BaseException) -> CompensationResult:
        await self._output.flush_and_close()
        match ended:
            case TimedOut():
                return self._result(timed_out(self._compensator.timeout_ms or 0))
            case Done(value=value, statement=statement):
                if statement is not None:
                    self.statement = TransactionalStatement(statement, tuple(self._disclosed.values_seen.values()))
                return await self._returned(value)
            case BaseException():
                return await self._failed(ended)
            case _:
                message = "a compensator cannot wait or be skipped"
                return self._result(failed_by(Fail("answer_invalid", message)))

    async def _returned(self, value: Any) -> CompensationResult:
        made: frozenset[str] = frozenset()
        try:
            text = encoded(value, self._output.mask)
        except NotJson as error:
            tenant, mask = self.lease.stream.tenant, self._output.mask
            stored = stored_value(self._tools.blobs, tenant, value, error, mask)
            found = await bounded(stored, self._compensator.timeout_ms)
            if isinstance(found, Unavailable):
                raise found from None
            if isinstance(found, BaseException):
                return await self._ended(found)
            text, made = found
        known = KnownFiles(self._tools.blobs, self.lease.stream.tenant, self._entry.state, made)
        wrong = await known.wrong(text)
        if wrong is not None:
            return self._result(wrong)
        output = await retry_until_stored(lambda: as_payload(self._tools.blobs, self.lease.stream.tenant, text))
        return self._result(commands.Done(output=output, size=len(text)))

    async def _failed(self, error: BaseException, *, lacking: bool = False) -> CompensationResult:
        """Report a failure; a missing capability is left to another worker if one may have it."""
        result = self._result(failed_by(error))
        if lacking or isinstance(error, CapabilityMissing):
            assert isinstance(result.outcome, Failed)
            state, missing = self._entry.state, result.outcome.error
            await self._tools.runtime.leave(self.lease.stream, state, self.task, missing, self._tools.clock())
        return result

    def _result(self, outcome: commands.Done | Failed) -> CompensationResult:
        ambient = self._tools.ambient
        if isinstance(outcome, Failed) and self._output.mask:
            outcome = masked(outcome, self._output.mask)
        return CompensationResult(
            node=self.task.node,
            visit=self.task.visit,
            index=self.task.index,
            token=self.lease.token,
            outcome=outcome,
            worker=self._tools.worker,
            duration_ms=round(ambient.monotonic_ms() - self._started),
            chance=ambient.chance(),
            spent=self._spent,
        )
