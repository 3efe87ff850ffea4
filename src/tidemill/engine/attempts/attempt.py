"""One attempt at a visit or item: load → render → call → store → route → `Result`.

An attempt that awaits nothing, or only a thread, runs without a task of its own. Conditions are evaluated
here, off the run's serial path; the kernel only checks that the route is legal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextvars import Context
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tidemill.blobs.contract import MARKED, files_in
from tidemill.blobs.payloads import NotJson, check_text, decode_value, encode_text, encode_value
from tidemill.engine.attempts.conditions import Chosen, delay_ms_of, find_admission, find_route, readings_of
from tidemill.engine.attempts.invocation import (
    TimedOut,
    bounded,
    failed_by,
    next_step,
    outcome_of,
    retry_until_stored,
    timed_out,
)
from tidemill.engine.attempts.rendering import (
    NOTHING_FETCHED,
    Fetched,
    Upstream,
    assembled,
    check_memory,
    checked,
    hidden,
    item_of,
    list_size,
    masked,
    needed_for,
    rendered,
    scope_of,
    text_of,
)
from tidemill.engine.attempts.results import KnownFiles, TransactionalStatement, asked_for, child_id, stored_value
from tidemill.engine.attempts.runtime import BLOCKED_MS, AttemptRuntime, AttemptSuperseded
from tidemill.engine.attempts.streaming import AttemptOutput
from tidemill.engine.compiled import CompiledNode
from tidemill.engine.run_cache import CachedRun
from tidemill.errors import Unavailable
from tidemill.expressions.conditions import Condition, EvaluationSteps, is_small
from tidemill.expressions.errors import ExpressionError, LoopBudgetSpent, kind_of, shorten
from tidemill.expressions.sandbox.pool import render_apart, run_steps
from tidemill.expressions.scope import Scope
from tidemill.handlers.contract import (
    CapabilityMissing,
    Done,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    NullSink,
    PendingOutcome,
    Skip,
    Wait,
)
from tidemill.kernel import commands
from tidemill.kernel.activation import QUEUED_ITEM, Activation
from tidemill.kernel.commands import Failed, MapExpanded, Outcome, Result, SkipRequested, WaitRequested
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.events import INLINE_BYTES_MAX, NOT_AN_ITEM, Admission, BlobRef, Payload, Route
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.model import Node
from tidemill.kernel.spending import Spend
from tidemill.kernel.state import peek_at
from tidemill.security.masking import NO_MASK, Mask
from tidemill.security.secrets import SecretAccessLog, SecretNotGranted, SecretUnusable
from tidemill.stores.contract import Lease

if TYPE_CHECKING:
    from tidemill.expressions.templates.template import Template


_T = TypeVar("_T")

CHECKED_HERE_MAX = 1 << 18
"""The text of a longer result is looked through in a thread."""
INPUTS_HERE_MAX = 2_000
"""Inputs of a child with more values are written in a thread."""
STATE_BYTES_MAX, INLINE_LATER_MAX = 16 << 20, 1_024
"""Once the outputs of a run have more bytes, only short ones are part of its state."""


SILENT = NullSink()

_Answer = tuple[Context | None, HandlerOutcome | Awaitable[HandlerOutcome] | BaseException]
"""What a handler has returned or raised, and the context in which to await it."""


class Attempt:
    """One attempt at a visit or item; the worker creates it for a claimed `run` job."""

    called = False
    started_ms = 0
    """When the handler was called, by the store's clock."""
    statement: TransactionalStatement | None = None
    admission: Admission | None = None
    _fetched: Fetched = NOTHING_FETCHED
    _memory = 0
    _in_task = False
    _answer: _Answer | None = None
    """What the handler has answered, until `run` looks at it."""
    _text: bytes | None = None
    """The text of its value, once it is known."""
    _output: AttemptOutput | None = None
    _appended = _delay_ms = 0
    _described: frozenset[str] = frozenset()
    """Files that the records of the visit describe."""

    def __init__(
        self, tools: AttemptRuntime, entry: CachedRun, node: Node, handler: Handler, task: JobBody, lease: Lease
    ) -> None:
        self._tools, self._node, self._handler, self.task, self.lease = tools, node, handler, task, lease
        self._entry, self._flow = entry, entry.flow
        state = self._state = entry.state
        visit = self._visit = state.peek(task.node)
        act: Activation = visit if task.index == NOT_AN_ITEM else peek_at(visit, task.index) or QUEUED_ITEM
        self._act, self.lost = act, act.lost
        """The attempts so far, and how many workers in a row were lost with them."""
        self.phase = phase_of(node, visit, task.index)
        self.number = act.attempt if act.running or self.phase != "call" else act.attempt + 1
        """The number of the attempt within its visit or item, from 1; work that does not call the handler has none."""
        name, tenant = entry.flow.workflow.name, lease.stream.tenant
        self._disclosed = SecretAccessLog(tools.runtime.secrets, name, tenant, node.config)
        self._began_ms, self._started = tools.clock(), tools.ambient.monotonic_ms()

    @property
    def elapsed_ms(self) -> float:
        return self._tools.ambient.monotonic_ms() - self._started

    def begin(self) -> Result | None:
        """Call the handler now if nothing has to be loaded, rendered or recorded first, and return a plain result.

        Most attempts end here, without a coroutine. After None, `run` does everything else.
        """
        program = self._flow.known_program(self._node)
        config = None if program is None else program.at_once
        if config is None or self.phase != "call" or self._state.blobs or self._handler.agent:
            return None
        self._answer = self._invoke(self._context(decode_value(config)), self._began_ms)
        # An exception is not bound here: its traceback refers to this frame.
        return self._plain_result(self._answer[1]) if type(self._answer[1]) is Done else None

    def _plain_result(self, done: Done) -> Result | None:
        output = self._output
        if done.statement is None and (output is None or not output.has_output):
            try:
                text = self._text = encode_text(done.value)
                if self._is_plain(text) and not self._disclosed.values_seen:
                    check_text(done.value, text)
                    self._answer = None
                    return self._result(commands.Done(text, len(text)))
            except NotJson:
                pass
        return None

    async def run(self, *, in_task: bool = False) -> Result:
        """Load, render, call, store and route, as far as `begin` has not done so.

        Unless it is `in_task`, the worker drives the first step of this coroutine itself, and the next one too if it
        waits for a thread. It awaits other things only after `_enter_task`.
        """
        self._in_task = in_task
        try:
            if self._answer is not None:
                return await self._answered()
            items = self._visit.map if self.phase == "assemble" else None
            size = 0 if items is None else list_size(items)
            if self._state.blobs:
                await self._load()
            match self.phase:
                case "call" | "expand":
                    program = self._flow.known_program(self._node) or await self._compile()
                    if program.when is not None and self._is_first:
                        answer = await self._admission(program.when)
                        if not isinstance(answer, Admission):
                            return self._result(answer)
                        self.admission = answer
                    return await (self._call(program) if self.phase == "call" else self._expand(program))
                case "assemble":
                    assert items is not None
                    if size <= CHECKED_HERE_MAX:
                        return await self._finish(assembled(items, self._fetched))
                    await self._enter_task()
                    return await self._finish(await asyncio.to_thread(assembled, items, self._fetched))
                case "route":
                    assert self._visit.resumed is not None
                    return await self._finish(text_of(self._visit.resumed, self._fetched))
        except (ExpressionError, SecretNotGranted, SecretUnusable) as error:
            if self._disclosed.lacking and not self.called:
                return await self._missing_capability(error)
            return self._result(failed_by(error))
        finally:
            if self._memory:
                self._tools.values.release(self._memory)

    async def _enter_task(self, pending: object = None) -> None:
        """Continue in a task, unless this is one already. Closes `pending` if the task is cancelled first."""
        if not self._in_task:
            self._in_task = True
            try:
                await next_step()
            except BaseException:
                if isinstance(pending, Coroutine):
                    pending.close()
                elif isinstance(pending, PendingOutcome):
                    pending.cancel()
                raise

    async def _evaluate(self, steps: EvaluationSteps[_T]) -> _T:
        """Run a computation whose conditions may have to be evaluated in a sandbox process."""
        answer = run_steps(steps, self._tools.runtime.isolation)
        if isawaitable(answer):
            await self._enter_task(answer)
            return await answer
        return answer

    # Load and render

    async def _compile(self) -> CompiledNode:
        await self._enter_task()
        return await self._flow.compile_apart(self._node)

    def _scope(self) -> Scope:
        return scope_of(self._flow.workflow, self._state, self.lease.stream.key, self._node, self._fetched)

    def _needed(self) -> dict[str, int]:
        task, listed = self.task, (self.task.node, self.task.visit) in self._entry.map_inputs
        return needed_for(self._flow.workflow, self._state, self._node, task.index, list_known=listed)

    async def _load(self) -> None:
        needed, tenant = self._needed(), self.lease.stream.tenant
        known = self._tools.values.known(tenant, needed)
        if known is None:
            await self._enter_task()
            known, self._memory = await self._tools.values.read(tenant, needed)
        # A list is put together without decoding it.
        self._fetched = known if self.phase == "assemble" else check_memory(known)

    @property
    def _is_first(self) -> bool:
        """True until the first attempt of a visit has evaluated `when`; a lost worker may not have done so."""
        act = self._act
        return self.task.index == NOT_AN_ITEM and not (act.failures or act.running or act.recall or act.appended)

    async def _admission(self, when: Condition) -> Admission | SkipRequested | Failed:
        scope, inputs = self._scope(), self._state.inputs
        return await self._evaluate(find_admission(when, scope, partial(readings_of, scope=scope, inputs=inputs)))

    async def _render(self, template: Template | None) -> Any:
        assert template is not None, "only a constant has none"
        scope = self._scope()
        scope.secrets = self._disclosed
        if self.task.index != NOT_AN_ITEM:
            assert self._visit.map is not None
            item = item_of(self._entry.map_inputs, self.task, self._visit.map, self._fetched)
            scope.has_item, scope.item, scope.index = True, item, self.task.index
        value = await self._filled(template, scope)
        text, schema = encode_text(value), self._tools.runtime.handler_host.schema(self._handler)
        if len(text) > CHECKED_HERE_MAX:
            await self._enter_task()
            return await asyncio.to_thread(rendered, value, text, schema)
        return rendered(value, text, schema)

    async def _filled(self, template: Template, scope: Scope) -> Any:
        try:
            return template.render_on_loop(scope)
        except LoopBudgetSpent:
            await self._enter_task()
            return await render_apart(template, scope, self._tools.runtime.isolation)

    # Call

    async def _call(self, program: CompiledNode) -> Result:
        constant = program.constant
        config = await self._render(program.config) if constant is None else decode_value(constant)
        context = self._context(config)
        if self._node.delivery == "at_most_once" or self._handler.agent:
            # The start is durable before the handler is called; a superseded attempt does nothing.
            await self._enter_task()
            if not await self._tools.recorder.record_start(self):
                raise AttemptSuperseded
            if self._handler.agent:
                await self._serve_agent(context)
        self._answer = self._invoke(context, self._tools.clock())
        return await self._answered()

    def _invoke(self, context: NodeContext, now_ms: int) -> _Answer:
        self.called, self.started_ms = True, now_ms
        try:
            return self._tools.runtime.handler_host.call(self._handler, context, self._output)
        except BaseException as error:
            return None, error

    async def _answered(self) -> Result:
        """Await what the handler has returned, and make it the result."""
        assert self._answer is not None, "the handler was called"
        (call_context, ended), output = self._answer, self._output
        self._answer = None
        if not isinstance(ended, (Done, Wait, Skip, BaseException)):
            try:
                if isinstance(ended, PendingOutcome) and self._node.timeout_ms is None and not self._in_task:
                    ended = await outcome_of(ended)
                else:
                    await self._enter_task(ended)
                    ended = await bounded(ended, self._node.timeout_ms, call_context)
            finally:
                if output is not None:
                    output.over = True
        if isinstance(ended, CapabilityMissing):
            return await self._missing_capability(ended)
        try:
            result = await self._ended(ended)
        except Exception:
            await self._flush(output)
            raise
        del ended  # The traceback of an exception refers to this frame.
        await self._flush(output)
        return result

    async def _flush(self, output: AttemptOutput | None) -> None:
        """Write the handler's output before its result is committed."""
        if output is not None and output.has_output:
            await self._enter_task()
            await output.flush_and_close()

    async def _missing_capability(self, error: BaseException) -> Result:
        """Leave the job to another worker, unless the log already says that this attempt has begun."""
        result = self._result(failed_by(error))
        if not self.called or self._node.delivery != "at_most_once":
            assert isinstance(result.outcome, Failed)
            await self._enter_task()
            runtime, missing = self._tools.runtime, result.outcome.error
            # A handler says so before it does anything, so the job is as good as untouched.
            self.called = False
            await runtime.leave(self.lease.stream, self._state, self.task, missing, self._tools.clock())
        return result

    def _context(self, config: Any) -> NodeContext:
        task, node, act, state, workflow = self.task, self._node, self._act, self._state, self._flow.workflow
        output = None
        if self._handler.captured:
            output = AttemptOutput(self._tools.runtime.broadcaster, self.lease, task, self.number, self._disclosed)
            self._output = output
        context = NodeContext(
            self.lease.stream.key,
            task.node,
            task.visit,
            task.index,
            self.number,
            config,
            Upstream(workflow, state, node, self._fetched),
            state.deadline_ms,
            checkpoint=self._checkpoint,
            read=self._read,
            given=self._given,
            voice=output or SILENT,
            secrets=self._disclosed,
            workflow=workflow.name,
        )
        # Rare fields are set afterwards: every keyword of the call above costs time in all attempts.
        if node.delivery == "at_most_once":
            context.at_most_once = True
        if node.timeout_ms is not None:
            context.timeout_ms = node.timeout_ms
        if node.branch is not None and node.branch.kind == "agent_driven":
            context.routes = node.branch.available
        if act.checkpoint is not None:
            context.last_checkpoint = decode_value(text_of(act.checkpoint, self._fetched))
        if act.recall and act.resumed is not None:
            context.resumed = decode_value(text_of(act.resumed, self._fetched))
        spans = self._tools.runtime.spans
        if spans is not None:
            activation = (task.node, task.visit, task.index)
            context.traceparent = spans.traceparent(self.lease.stream, state, *activation, self.number)
        elif state.trace:
            context.traceparent = state.trace
        return context

    async def _read(self, described: Any) -> bytes:
        return await self._files().read(described)

    def _given(self) -> Any:
        return decode_value(text_of(self._state.inputs, self._fetched))

    async def _checkpoint(self, value: Any) -> None:
        await self._tools.recorder.record_checkpoint(self, value)

    async def _serve_agent(self, context: NodeContext) -> None:
        """Give an agent the records of its visit as they are now: another worker may have added some."""
        texts, resumed, context.child_spent = await self._tools.recorder.read_appended(self)
        self._appended = len(texts)
        self._described = frozenset(digest for text in texts if MARKED in text for digest in files_in(text))
        context.appended, context.append = tuple(map(decode_value, texts)), self._append
        context.recalled, context.resumed = resumed is not None, None if resumed is None else decode_value(resumed)
        if self._tools.runtime.agents is not None:
            self._tools.runtime.agents.serve(self.lease.stream.tenant, context, lambda: self.mask)

    async def _append(self, record: Any, *, reserve: Spend | None = None, spent: Spend | None = None) -> None:
        text = await self._tools.recorder.record_append(self, record, self._appended, reserve, spent)
        self._appended += 1
        if MARKED in text:
            self._described |= frozenset(files_in(text))

    @property
    def mask(self) -> Mask:
        values = self._disclosed.values_seen
        return NO_MASK if not values else Mask(values.values()) if self._output is None else self._output.mask

    async def _ended(self, ended: HandlerOutcome | BaseException) -> Result:
        match ended:
            case Done(value, chosen, statement):
                if statement is not None:
                    self.statement = TransactionalStatement(statement, tuple(self._disclosed.values_seen.values()))
                try:
                    text = self._text or encode_text(value)
                    if len(text) > CHECKED_HERE_MAX:
                        await self._enter_task()
                        text = await asyncio.to_thread(checked, value, text, self.mask)
                    else:
                        text = checked(value, text, self.mask)
                except NotJson as error:
                    found = await self._stored_binary(value, error)
                    if isinstance(found, Failed):
                        return self._result(found)
                    return await self._returned(found[0], chosen, made=found[1])
                if self._is_plain(text):
                    return self._result(commands.Done(text, len(text)))
                return await self._returned(text, chosen)
            case Wait() | Skip():
                task = self.task
                try:
                    key = ended.child.key if isinstance(ended, Wait) and ended.child is not None else ""
                    child = child_id(self.lease.stream.key, task.node, task.visit, task.index, key)
                    given = ended.child.inputs if isinstance(ended, Wait) and ended.child is not None else None
                    if is_small(given, INPUTS_HERE_MAX, CHECKED_HERE_MAX):
                        outcome, ask = asked_for(hidden(ended, self.mask), child)
                    else:
                        await self._enter_task()
                        outcome, ask = await asyncio.to_thread(asked_for, hidden(ended, self.mask), child)
                except Exception as error:
                    return self._result(failed_by(error))
                return await self._asked(outcome, ask)
            case TimedOut():
                return self._result(timed_out(self._node.timeout_ms or 0))
            case _:
                return self._result(failed_by(ended))

    @property
    def _inline_max(self) -> int:
        """How long a value of the run's state may be: a worker holds the whole of it in memory."""
        return INLINE_BYTES_MAX if self._entry.state.size <= STATE_BYTES_MAX else INLINE_LATER_MAX

    def _is_plain(self, text: bytes) -> bool:
        """Whether a result is stored as it is, without a look at a schema, at files or at routes; most are."""
        return (
            (len(text) <= INLINE_LATER_MAX or len(text) <= self._inline_max)
            and text.find(MARKED) < 0
            and self._handler.type.output_schema is True
            and not (self._node.routed and self.task.index == NOT_AN_ITEM)
        )

    async def _stored_binary(self, value: Any, refusal: NotJson) -> tuple[bytes, frozenset[str]] | Failed:
        """Store a value that holds bytes or is not JSON; bounded by the node's time-out."""
        await self._enter_task()
        stored = stored_value(self._tools.blobs, self.lease.stream.tenant, value, refusal, self.mask)
        found = await bounded(stored, self._node.timeout_ms)
        if isinstance(found, Unavailable):
            raise found
        if isinstance(found, TimedOut):
            return timed_out(self._node.timeout_ms or 0)
        return failed_by(found) if isinstance(found, BaseException) else found

    def _files(self, made: frozenset[str] = frozenset()) -> KnownFiles:
        known, state = made | self._described, self._entry.state
        return KnownFiles(self._tools.blobs, self.lease.stream.tenant, state, known, self._fetched)

    async def _returned(self, text: bytes, chosen: Chosen, made: frozenset[str] = frozenset()) -> Result:
        if self._handler.type.output_schema is not True:
            try:
                self._tools.runtime.handler_host.check_output(self._handler, text)
            except Fail as broken_promise:
                return self._result(failed_by(broken_promise))
        if MARKED in text:
            # The files that a value describes must exist before a fact refers to them.
            await self._enter_task()
            wrong = await self._files(made).wrong(text)
            if wrong:
                return self._result(wrong)
        return await self._finish(text, chosen)

    async def _asked(self, outcome: WaitRequested | SkipRequested, ask: bytes | None) -> Result:
        """The handler waits or skips; the request for a child is stored like any other value."""
        if ask is None or isinstance(outcome, SkipRequested):
            return self._result(outcome)
        payload = await self._payload(ask)
        return self._result(payload if isinstance(payload, Failed) else msgspec.structs.replace(outcome, ask=payload))

    # Maps

    async def _expand(self, program: CompiledNode) -> Result:
        assert program.over is not None and self._node.map is not None
        items = await self._filled(program.over, self._scope())
        if not isinstance(items, list):
            raise ExpressionError(
                code="template_failed",
                message=f"map.over gave {kind_of(items)}, not a list: {shorten(str(self._node.map.over), 80)}",
                hint="refer to a list with a single {{ expression }}",
            )
        if not items:
            route = await self._route(b"[]", None)
            empty = MapExpanded(count=0, items=b"[]")
            return self._result(route) if isinstance(route, Failed) else self._result(empty, route)
        payload = await self._payload(encode_value(items))
        return self._result(payload if isinstance(payload, Failed) else MapExpanded(count=len(items), items=payload))

    # Route and store

    async def _finish(self, text: bytes, chosen: Chosen = None) -> Result:
        """Choose the route for the visit's output; a large output is stored as a blob."""
        route: Route | None = None
        if self._node.routed and self.task.index == NOT_AN_ITEM:
            if self._entry.state.blobs:
                # Other nodes may have ended while the handler ran, with large values that are not loaded yet.
                await self._enter_task()
                self._fetched = await self._tools.values.fetch(self.lease.stream.tenant, self._needed())
            found = await self._route(text, chosen)
            if isinstance(found, Failed):
                return self._result(found)
            route = found
        output = text if len(text) <= self._inline_max else await self._store(text)
        return self._result(commands.Done(output, len(text)), route)

    async def _payload(self, text: bytes) -> Payload | Failed:
        if len(text) <= INLINE_BYTES_MAX and MARKED not in text:
            return text
        await self._enter_task()
        wrong = await self._files().wrong(text)
        if wrong:
            return wrong
        return text if len(text) <= INLINE_BYTES_MAX else await self._store(text)

    async def _store(self, text: bytes) -> BlobRef:
        await self._enter_task()
        digest = await retry_until_stored(lambda: self._tools.blobs.put(self.lease.stream.tenant, text))
        return BlobRef(digest, len(text))

    async def _route(self, text: bytes, chosen: Chosen) -> Route | Failed | None:
        """Conditions read the value as it will be stored, not the object that the handler returned."""
        if self.task.index != NOT_AN_ITEM or not self._node.routed:
            return None
        scope, inputs = self._scope(), self._state.inputs
        scope.has_output, scope.output = True, decode_value(text)
        program = self._flow.known_program(self._node) or await self._compile()
        reads = partial(readings_of, scope=scope, inputs=inputs, output=text)
        found = await self._evaluate(find_route(self._node, program, scope, chosen, reads))
        if program.delay is not None and isinstance(found, Route) and found.again:
            self._delay_ms = delay_ms_of(await self._filled(program.delay, scope))
        return found

    def fails(self, error: BaseException) -> Result:
        """The result of an attempt that called its handler and then met a permanent error elsewhere."""
        return self._result(failed_by(error))

    def _result(self, outcome: Outcome, route: Route | None = None) -> Result:
        if type(outcome) is Failed and self._disclosed.values_seen:
            outcome = masked(outcome, self.mask)
        task, ambient = self.task, self._tools.ambient
        duration_ms = ambient.monotonic_ms() - self._started
        waited_ms = self._began_ms - (self._act.since_ms or self._visit.since_ms)
        place = (self.lease.stream.key, task.node, task.visit, task.index)
        blocked_ms = self._tools.blocked_ms(place) if duration_ms >= BLOCKED_MS else 0
        return Result(
            node=task.node,
            visit=task.visit,
            index=task.index,
            token=self.lease.token,
            outcome=outcome,
            route=route,
            delay_ms=self._delay_ms,
            admission=self.admission,
            called=self.called,
            worker=self._tools.worker,
            started_ms=self.started_ms,
            duration_ms=round(duration_ms),
            blocked_ms=blocked_ms,
            waited_ms=max(0, waited_ms),
            chance=ambient.chance(),
        )
