"""One attempt: scope → render → call → store → route → Result; the run's outputs.

One try at an activation, read from top to bottom: look → render → call → pack → route → result.

An attempt that needs nothing from outside (no blob, no awaiting handler) runs in one go without a task of its own.
Conditions are evaluated here, right after the handler and off the run's serial path; the kernel only checks that the
route is legal.

The run's last step: its outputs, rendered by a worker as the document declares them.

It is no attempt: it has no node, is not retried after a failure, and fails the run as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from types import coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.engine.attempts.conditions import Chosen, find_admission, find_route, readings_of
from tidemill.engine.attempts.invocation import TimedOut, bounded, failed_by, surely, timed_out
from tidemill.engine.attempts.log_store import AttemptId
from tidemill.engine.attempts.rendering import (
    NOTHING_FETCHED,
    RUN_READER,
    Fetched,
    Values,
    assembled,
    attempt_of,
    context_of,
    encoded,
    hidden,
    item_of,
    masked,
    needed_for,
    needed_for_outputs,
    rendered,
    scope_of,
    text_of,
)
from tidemill.engine.attempts.results import (
    MARKED,
    TransactionalStatement,
    asked_for,
    check_files,
    child_id,
    read_described,
    stored_value,
    transactional,
    wrong_files,
)
from tidemill.engine.attempts.runtime import AttemptRuntime, AttemptSuperseded, missing_for
from tidemill.engine.attempts.streaming import AttemptOutput
from tidemill.engine.compiled import CompiledNode
from tidemill.engine.run_cache import CachedRun
from tidemill.errors import Unavailable
from tidemill.expressions.conditions import Condition, EvaluationSteps
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import run_steps
from tidemill.expressions.scope import Scope
from tidemill.handlers.contract import CapabilityMissing, Ended, Fail, Handler, NodeContext, Pause, Return, Skip
from tidemill.kernel.activation import QUEUED_ITEM, Activation
from tidemill.kernel.commands import Done, Failed, MapExpanded, Outcome, Result, SkipRequested, WaitRequested
from tidemill.kernel.decide.builder import LOST_IN_A_ROW_MAX
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.events import INLINE_BYTES_MAX, NOT_AN_ITEM, Admission, BlobRef, Error, Payload, Route
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.model import Node
from tidemill.kernel.state import peek_at
from tidemill.security.masking import NO_MASK, Mask
from tidemill.security.secrets import SecretAccessLog, SecretUnusable
from tidemill.stores.contract import Lease

if TYPE_CHECKING:
    from tidemill.expressions.templates.template import Template


NO_ITEMS = MapExpanded(count=0, items=b"[]")
_T = TypeVar("_T")


class Attempt:
    """Everything that one try needs."""

    __slots__ = (
        "_act", "_cell", "_disclosed", "_entry", "_fetched", "_flow", "_handler", "_in_task", "_lists", "_node",
        "_speaker", "_started", "_state", "_tools", "admission", "called", "lease", "phase", "started_ms", "statement",
        "task",
    )  # fmt: skip

    def __init__(
        self, tools: AttemptRuntime, entry: CachedRun, node: Node, handler: Handler, task: JobBody, lease: Lease
    ) -> None:
        self._tools, self._node, self._handler = tools, node, handler
        self._entry, self._flow, self._lists, self._state = entry, entry.flow, entry.map_inputs, entry.state
        self.task, self.lease = task, lease
        self._cell = cell = entry.state.peek(task.node)
        self._act: Activation = peek_at(cell, task.index) or QUEUED_ITEM
        self.phase = phase_of(node, cell, task.index)
        self._started = tools.ambient.monotonic_ms()
        self._fetched: Fetched = NOTHING_FETCHED
        self.called = False
        """The handler was called."""
        self.started_ms = 0
        """When it was called, by the store's clock."""
        self._disclosed = SecretAccessLog(tools.runtime.secrets)
        self.statement: TransactionalStatement | None = None
        self.admission: Admission | None = None
        self._in_task = False
        self._speaker: AttemptOutput | None = None

    async def run(self) -> Result:
        """Look, render, call, pack and route.

        The worker takes the first step of this coroutine itself, outside a task. It never suspends if nothing has to
        be waited for; everything that waits comes after `_leave`.
        """
        try:
            if self._state.blobs:
                await self._look()
            match self.phase:
                case "call" | "expand":
                    program = self._flow.program(self._node)
                    if program.when is not None and self._is_first:
                        answer = await self._admission(program.when)
                        if not isinstance(answer, Admission):
                            return self._result(answer)
                        self.admission = answer
                    return await (self._call(program) if self.phase == "call" else self._expand(program))
                case "assemble":
                    assert self._cell.map is not None
                    return await self._finish(assembled(self._cell.map, self._fetched))
                case "route":
                    assert self._cell.resumed is not None
                    return await self._finish(text_of(self._cell.resumed, self._fetched))
        except (ExpressionError, SecretUnusable) as error:
            return self._result(failed_by(error))

    async def _leave(self, pending: object = None) -> None:
        """Go on in a task, unless this is one already. `pending` is closed if the task is cancelled before that."""
        if not self._in_task:
            self._in_task = True
            try:
                await _next_step()
            except BaseException:
                if isinstance(pending, Coroutine):
                    pending.close()
                raise

    async def _settled(self, steps: EvaluationSteps[_T]) -> _T:
        """The end of a computation, which may have errands to another process."""
        answer = run_steps(steps, self._tools.runtime.isolation)
        if isawaitable(answer):
            await self._leave(answer)
            return await answer
        return answer

    # Look and render

    def _scope(self) -> Scope:
        return scope_of(self._flow.workflow, self._state, self.lease.stream.key, self._node, self._fetched)

    def _needed(self) -> dict[str, None]:
        task, listed = self.task, (self.task.node, self.task.visit) in self._lists
        return needed_for(self._flow.workflow, self._state, self._node, task.index, list_known=listed)

    async def _look(self) -> None:
        """Have the values at hand that are kept as blobs."""
        needed, tenant = self._needed(), self.lease.stream.tenant
        known = self._tools.values.known(tenant, needed)
        if known is None:
            await self._leave()
            known = await self._tools.values.fetch(tenant, needed)
        self._fetched = known

    @property
    def _is_first(self) -> bool:
        """`when` is asked once per visit, before its first attempt. A worker that was lost may never have asked."""
        act = self._act
        return self.task.index == NOT_AN_ITEM and not (act.failures or act.running or act.recall)

    async def _admission(self, when: Condition) -> Admission | SkipRequested | Failed:
        scope, inputs = self._scope(), self._state.inputs
        return await self._settled(find_admission(when, scope, partial(readings_of, scope=scope, inputs=inputs)))

    def _render(self, template: Template) -> Any:
        scope = replace(self._scope(), secrets=self._disclosed)
        if self.task.index != NOT_AN_ITEM:
            assert self._cell.map is not None
            item = item_of(self._lists, self.task, self._cell.map, self._fetched)
            scope = replace(scope, has_item=True, item=item, index=self.task.index)
        return rendered(template, scope, self._tools.runtime.stage.schema(self._handler))

    # Call

    async def _call(self, program: CompiledNode) -> Result:
        config = self._render(program.config) if program.constant is None else decode_value(program.constant)
        context = self._context(config)
        if self._node.delivery == "at_most_once":
            # The log knows before the handler does anything; a stale attempt does nothing at all.
            await self._leave()
            if not await self._tools.recorder.record_start(self):
                raise AttemptSuperseded
        self.called, self.started_ms = True, self._tools.clock()
        speaker = self._speaker
        assert speaker is not None, "it speaks through its context"
        ended: Ended | Awaitable[Ended] | BaseException
        try:
            ground, ended = self._tools.runtime.stage.call(self._handler, context, speaker.capture)
        except BaseException as error:
            ended = error
        else:
            if not isinstance(ended, (Return, Pause, Skip)):
                await self._leave(ended)
                try:
                    ended = await bounded(ended, self._node.timeout_ms, ground)
                finally:
                    speaker.over = True
        if isinstance(ended, CapabilityMissing):
            return await self._lacking(ended)
        try:
            result = await self._ended(ended)
        except Exception:
            await self._hush(speaker)
            raise
        del ended  # The traceback of an exception refers to this frame.
        if speaker.has_output:
            await self._hush(speaker)
        return result

    async def _hush(self, speaker: AttemptOutput) -> None:
        """Have it written what the handler has said; its result comes after."""
        await self._leave()
        await speaker.flush_and_close()

    async def _lacking(self, error: CapabilityMissing) -> Result:
        """Leave it to another worker, if one may do it and the log does not say yet that this one has begun."""
        result = self._result(failed_by(error))
        if self._node.delivery != "at_most_once":
            assert isinstance(result.outcome, Failed)
            lack = missing_for(self._state.digest, self.task, result.outcome.error)
            await self._leave()
            await self._tools.runtime.leave(error, lack, self._tools.clock())
        return result

    def _context(self, config: Any) -> NodeContext:
        task, tenant = self.task, self.lease.stream.tenant
        place = AttemptId(task.node, task.visit, task.index, attempt_of(self._act))
        self._speaker = AttemptOutput(self._tools.runtime.air, self.lease, place, self._disclosed)
        return context_of(
            self._flow.workflow,
            self._state,
            self._node,
            run_id=self.lease.stream.key,
            task=task,
            act=self._act,
            fetched=self._fetched,
            config=config,
            secrets=self._disclosed,
            voice=self._speaker,
            checkpoint=self._checkpoint,
            read=partial(read_described, self._tools.blobs, tenant),
        )

    async def _checkpoint(self, value: Any) -> None:
        await self._tools.recorder.record_checkpoint(self, value)

    @property
    def mask(self) -> Mask:
        """Hides the secrets that were disclosed to the attempt."""
        return NO_MASK if self._speaker is None or not self._disclosed.values_seen else self._speaker.mask

    async def _ended(self, ended: Ended | BaseException) -> Result:
        match ended:
            case Return(value, chosen, statement):
                self.statement = transactional(statement, self._disclosed.values_seen)
                try:
                    text = encoded(value, self.mask)
                except NotJson as error:
                    found = await self._stored_binary(value, error)
                    if isinstance(found, Failed):
                        return self._result(found)
                    text = found
                return await self._returned(text, chosen)
            case Pause() | Skip():
                task = self.task
                try:
                    child = child_id(self.lease.stream.key, task.node, task.visit, task.index)
                    outcome, ask = asked_for(hidden(ended, self.mask), child)
                except Exception as error:
                    return self._result(failed_by(error))
                return await self._asked(outcome, ask)
            case TimedOut():
                return self._result(timed_out(self._node.timeout_ms or 0))
            case _:
                return self._result(failed_by(ended))

    async def _stored_binary(self, value: Any, refusal: NotJson) -> bytes | Failed:
        """The value holds bytes, or is not JSON at all. Storing them takes no longer than a handler may."""
        await self._leave()
        stored = stored_value(self._tools.blobs, self.lease.stream.tenant, value, refusal, self.mask)
        text = await bounded(stored, self._node.timeout_ms)
        if isinstance(text, Unavailable):
            raise text
        if isinstance(text, TimedOut):
            return timed_out(self._node.timeout_ms or 0)
        return failed_by(text) if isinstance(text, BaseException) else text

    async def _returned(self, text: bytes, chosen: Chosen) -> Result:
        if self._handler.type.output_schema is not True:
            try:
                self._tools.runtime.stage.check_output(self._handler, text)
            except Fail as broken_promise:
                return self._result(failed_by(broken_promise))
        if MARKED in text:
            # The value describes files: they must be there before a fact says that they are.
            await self._leave()
            wrong = await wrong_files(self._tools.blobs, self.lease.stream.tenant, text)
            if wrong:
                return self._result(wrong)
        return await self._finish(text, chosen)

    async def _asked(self, outcome: WaitRequested | SkipRequested, ask: bytes | None) -> Result:
        """The handler waits or skips; what it asks of a child is kept like any other value."""
        if ask is None or isinstance(outcome, SkipRequested):
            return self._result(outcome)
        kept = await self._kept(ask)
        return self._result(kept if isinstance(kept, Failed) else msgspec.structs.replace(outcome, ask=kept))

    # Maps

    async def _expand(self, program: CompiledNode) -> Result:
        assert program.over is not None
        items = program.over.render(self._scope())
        if not isinstance(items, list):
            raise ExpressionError(
                code="template_failed",
                message=f"map.over gave {type(items).__name__}, not a list",
                hint="refer to a list with a single {{ expression }}",
            )
        if not items:
            route = await self._route(b"[]", None)
            return self._result(route) if isinstance(route, Failed) else self._result(NO_ITEMS, route)
        kept = await self._kept(encode_value(items))
        return self._result(kept if isinstance(kept, Failed) else MapExpanded(count=len(items), items=kept))

    # Route and pack

    async def _finish(self, text: bytes, chosen: Chosen = None) -> Result:
        """The visit has its output: find the way it goes on, and keep a long value by content."""
        route: Route | None = None
        if self._node.routed and self.task.index == NOT_AN_ITEM:
            if self._entry.state.blobs:
                # Other nodes may have ended while the handler ran, with values too large to be at hand.
                await self._leave()
                self._fetched = await self._tools.values.fetch(self.lease.stream.tenant, self._needed())
            found = await self._route(text, chosen)
            if isinstance(found, Failed):
                return self._result(found)
            route = found
        output = text if len(text) <= INLINE_BYTES_MAX else await self._store(text)
        return self._result(Done(output, len(text)), route)

    async def _kept(self, text: bytes) -> Payload | Failed:
        """A text as the log keeps it."""
        if len(text) <= INLINE_BYTES_MAX and MARKED not in text:
            return text
        await self._leave()
        wrong = await wrong_files(self._tools.blobs, self.lease.stream.tenant, text)
        if wrong:
            return wrong
        return text if len(text) <= INLINE_BYTES_MAX else await self._store(text)

    async def _store(self, text: bytes) -> BlobRef:
        await self._leave()
        digest = await surely(lambda: self._tools.blobs.put(self.lease.stream.tenant, text))
        return BlobRef(digest, len(text))

    async def _route(self, text: bytes, chosen: Chosen) -> Route | Failed | None:
        """Conditions look at the value as it will be stored, not at what the handler held in its hands."""
        if self.task.index != NOT_AN_ITEM or not self._node.routed:
            return None
        scope, inputs = replace(self._scope(), has_output=True, output=decode_value(text)), self._state.inputs
        program = self._flow.program(self._node)
        reads = partial(readings_of, scope=scope, inputs=inputs, output=text)
        return await self._settled(find_route(self._node, program, scope, chosen, reads))

    def fails(self, error: BaseException) -> Result:
        """What the attempt comes to when it has called its handler and something else went wrong for good."""
        return self._result(failed_by(error))

    def _result(self, outcome: Outcome, route: Route | None = None) -> Result:
        if isinstance(outcome, Failed) and self._disclosed.values_seen:
            outcome = masked(outcome, self.mask or Mask(self._disclosed.values_seen.values()))
        ambient = self._tools.ambient
        duration_ms = ambient.monotonic_ms() - self._started
        queued_since = self._act.since_ms or self._cell.since_ms
        return Result(
            node=self.task.node,
            visit=self.task.visit,
            index=self.task.index,
            token=self.lease.token,
            outcome=outcome,
            route=route,
            admission=self.admission,
            called=self.called,
            worker=self._tools.worker,
            started_ms=self.started_ms,
            duration_ms=round(duration_ms),
            waited_ms=max(0, round(self._tools.clock() - queued_since - duration_ms)),
            chance=ambient.chance(),
        )


@coroutine
def _next_step() -> Generator[None, None, None]:
    """Suspend once; whoever drives the coroutine resumes it."""
    yield


async def outputs_of(entry: CachedRun, lease: Lease, values: Values, blobs: Blobs) -> Done | Failed:
    """Render the outputs of a run. Raises `Unavailable` when a value they need cannot be loaded or stored."""
    if lease.expired >= LOST_IN_A_ROW_MAX:
        message = f"{LOST_IN_A_ROW_MAX} workers in a row were lost while they rendered it"
        return Failed(error=Error("worker_killer", message))
    workflow, state, tenant = entry.flow.workflow, entry.state, lease.stream.tenant
    fetched = await values.fetch(tenant, needed_for_outputs(workflow, state))
    try:
        scope = scope_of(workflow, state, lease.stream.key, RUN_READER, fetched)
        text = encode_value(entry.flow.outputs.render(scope))
        await check_files(blobs, tenant, text)
        if len(text) <= INLINE_BYTES_MAX:
            return Done(output=text, size=len(text))
        return Done(output=BlobRef(await blobs.put(tenant, text), len(text)), size=len(text))
    except Unavailable:
        raise
    except Exception as error:
        return failed_by(error)
