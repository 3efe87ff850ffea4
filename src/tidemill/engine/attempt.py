"""One try at an activation, read from top to bottom: look → render → call → pack → route → result.

An attempt that needs nothing from outside (no blob, no awaiting handler) runs in one go without a task of
its own; `start` then returns its result at once, and an awaitable otherwise. Conditions are evaluated here,
right after the handler and off the run's serial path; the kernel only checks that the route is legal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar

import msgspec

from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.engine.answers import asked_for, child_id
from tidemill.engine.bearing import TransactionalStatement, transactional
from tidemill.engine.binaries import MARKED, read_described, stored_value, wrong_files
from tidemill.engine.calls import TimedOut, bounded, surely
from tidemill.engine.contexts import attempt_of, context_of, encoded, hidden, masked, rendered
from tidemill.engine.failures import failed_by, timed_out
from tidemill.engine.journals import Place
from tidemill.engine.lacks import lack_of
from tidemill.engine.map_values import assembled, item_of
from tidemill.engine.programs import Program
from tidemill.engine.readings import readings_of
from tidemill.engine.routes import Chosen, find_admission, find_route
from tidemill.engine.runs import Entry
from tidemill.engine.scopes import NOTHING_FETCHED, needed_for, scope_of
from tidemill.engine.tools import Stale, Tools
from tidemill.engine.utterances import Speaker
from tidemill.engine.values import Fetched, text_of
from tidemill.errors import Unavailable
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.isolation import settled
from tidemill.expressions.scope import Scope
from tidemill.expressions.templates import Template
from tidemill.handlers.contract import Ended, Fail, Handler, Lacking, NodeContext, Pause, Return, Skip
from tidemill.kernel.activation import QUEUED_ITEM, Activation
from tidemill.kernel.commands import Done, Expands, Failed, Outcome, Result, Skips
from tidemill.kernel.events import INLINE_BYTES_MAX, NOT_AN_ITEM, Admission, BlobRef, Payload, Route
from tidemill.kernel.jobs import Task
from tidemill.kernel.model import Node
from tidemill.kernel.standing import phase_of
from tidemill.kernel.state import peek_at
from tidemill.security.masking import NO_MASK, Mask
from tidemill.security.secrets import Disclosed, SecretUnusable
from tidemill.stores.contract import Lease

NO_ITEMS = Expands(count=0, items=b"[]")
_T = TypeVar("_T")
Coming = Result | Awaitable[Result]


class Attempt:
    """Everything that one try needs."""

    __slots__ = (
        "_act", "_cell", "_disclosed", "_entry", "_fetched", "_flow", "_handler", "_lists", "_node", "_speaker",
        "_started", "_state", "_tools", "admission", "called", "lease", "phase", "statement", "task",
    )  # fmt: skip

    def __init__(self, tools: Tools, entry: Entry, node: Node, handler: Handler, task: Task, lease: Lease) -> None:
        self._tools, self._node, self._handler = tools, node, handler
        self._entry, self._flow, self._lists, self._state = entry, entry.flow, entry.lists, entry.state
        self.task, self.lease = task, lease
        self._cell = cell = entry.state.peek(task.node)
        self._act: Activation = peek_at(cell, task.index) or QUEUED_ITEM
        self.phase = phase_of(node, cell, task.index)
        self._started = tools.ambient.monotonic_ms()
        self._fetched: Fetched = NOTHING_FETCHED
        self.called = False
        """The handler was called."""
        self._disclosed = Disclosed(tools.around.secrets)
        self.statement: TransactionalStatement | None = None
        self.admission: Admission | None = None
        self._speaker: Speaker | None = None

    def start(self) -> Coming:
        """Run as far as possible without waiting."""
        if self._state.blobs:
            needed = self._needed()
            known = self._tools.values.known(self.lease.stream.tenant, needed)
            if known is None:
                return self._fetch(needed)
            self._fetched = known
        return self._go()

    def _needed(self) -> dict[str, None]:
        task, listed = self.task, (self.task.node, self.task.visit) in self._lists
        return needed_for(self._flow.workflow, self._state, self._node, task.index, list_known=listed)

    async def _fetch(self, needed: Iterable[str]) -> Result:
        self._fetched = await self._tools.values.fetch(self.lease.stream.tenant, needed)
        return await _resolved(self._go())

    async def _later(self, pending: Awaitable[_T], then: Callable[[_T], Coming]) -> Result:
        """Go on once something is known that had to be waited for."""
        try:
            return await _resolved(then(await pending))
        except (ExpressionError, SecretUnusable) as error:
            return self._result(failed_by(error))

    def _go(self) -> Coming:
        try:
            match self.phase:
                case "call":
                    return self._admitted(self._flow.program(self._node), self._call)
                case "expand":
                    return self._admitted(self._flow.program(self._node), self._expand)
                case "assemble":
                    assert self._cell.map is not None
                    return self._finish(assembled(self._cell.map, self._fetched))
                case "route":
                    assert self._cell.resumed is not None
                    return self._finish(text_of(self._cell.resumed, self._fetched))
        except (ExpressionError, SecretUnusable) as error:
            return self._result(failed_by(error))

    # Look and render

    def _scope(self) -> Scope:
        return scope_of(self._flow.workflow, self._state, self.lease.stream.key, self._node, self._fetched)

    def _admitted(self, program: Program, then: Callable[[Program], Coming]) -> Coming:
        """Go on if `when` lets the visit happen; it is asked once per visit, before its first attempt.

        A worker that was lost may never have asked, so it counts as one that did not.
        """
        act = self._act
        if program.when is None or self.task.index != NOT_AN_ITEM or act.failures or act.running or act.recall:
            return then(program)
        scope, inputs = self._scope(), self._state.inputs
        steps = find_admission(program.when, scope, partial(readings_of, scope=scope, inputs=inputs))
        answer = settled(steps, self._tools.around.isolation)
        go_on = partial(self._told_by_when, program=program, then=then)
        return self._later(answer, go_on) if isawaitable(answer) else go_on(answer)

    def _told_by_when(
        self, answer: Admission | Skips | Failed, program: Program, then: Callable[[Program], Coming]
    ) -> Coming:
        if not isinstance(answer, Admission):
            return self._result(answer)
        self.admission = answer
        return then(program)

    def _render(self, template: Template) -> Any:
        scope = replace(self._scope(), secrets=self._disclosed)
        if self.task.index != NOT_AN_ITEM:
            assert self._cell.map is not None
            item = item_of(self._lists, self.task, self._cell.map, self._fetched)
            scope = replace(scope, has_item=True, item=item, index=self.task.index)
        return rendered(template, scope, self._tools.around.stage.schema(self._handler))

    # Call

    def _call(self, program: Program) -> Coming:
        config = self._render(program.config) if program.constant is None else decode_value(program.constant)
        context = self._context(config)
        if self._node.delivery == "at_most_once":
            return self._call_once(context)
        return self._run(context)

    async def _call_once(self, context: NodeContext) -> Result:
        """Let the log know before the handler does anything; a stale attempt does nothing at all."""
        if not await self._tools.recorder.record_start(self):
            raise Stale
        return await _resolved(self._run(context))

    def _run(self, context: NodeContext) -> Coming:
        self.called = True
        speaker = self._speaker
        assert speaker is not None, "it speaks through its context"
        try:
            ground, ended = self._tools.around.stage.call(self._handler, context, speaker.hear)
            if not isinstance(ended, (Return, Pause, Skip)):
                return self._await(ended, ground)
        except Lacking as error:
            return self._lacking(error)
        except BaseException as error:
            result: Coming = self._result(failed_by(error))
        else:
            result = self._ended(ended)
        return self._hushed(result) if speaker.has_spoken else result

    async def _hushed(self, result: Coming) -> Result:
        """Have it written what the handler has said; its result comes after."""
        assert self._speaker is not None
        await self._speaker.hush()
        return await _resolved(result)

    async def _lacking(self, error: Lacking) -> Result:
        """Leave it to another worker, if one may do it and the log does not say yet that this one has begun."""
        result = self._result(failed_by(error))
        if self._node.delivery != "at_most_once":
            assert isinstance(result.outcome, Failed)
            lack = lack_of(self._state.digest, self.task, result.outcome.error)
            await self._tools.around.leave(error, lack, self._tools.clock())
        return result

    def _context(self, config: Any) -> NodeContext:
        task, tenant = self.task, self.lease.stream.tenant
        place = Place(task.node, task.visit, task.index, attempt_of(self._act))
        self._speaker = Speaker(self._tools.around.air, self.lease, place, self._disclosed)
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

    async def _await(self, pending: Awaitable[Ended], ground: Context) -> Result:
        """Wait for a handler no longer than it may take."""
        try:
            ended = await bounded(pending, self._node.timeout_ms, ground)
        finally:
            if self._speaker is not None:
                self._speaker.over = True
        if isinstance(ended, Lacking):
            return await self._lacking(ended)
        if isinstance(ended, TimedOut):
            result: Coming = self._result(timed_out(self._node.timeout_ms or 0))
        elif isinstance(ended, BaseException):
            result = self._result(failed_by(ended))
        else:
            result = self._ended(ended)
        return await self._hushed(result)

    def _ended(self, ended: Ended) -> Coming:
        match ended:
            case Return(value, chosen, statement):
                self.statement = transactional(statement, self._disclosed.values_seen)
                try:
                    text = encoded(value, self.mask)
                except NotJson as error:
                    return self._finish_binary(value, chosen, error)
                return self._returned(text, chosen)
            case Pause() | Skip():
                try:
                    return self._asked(hidden(ended, self.mask))
                except Exception as error:
                    return self._result(failed_by(error))

    async def _finish_binary(self, value: Any, chosen: Chosen, refusal: NotJson) -> Result:
        """The value holds bytes, or is not JSON at all. Storing them takes no longer than a handler may."""
        stored = stored_value(self._tools.blobs, self.lease.stream.tenant, value, refusal, self.mask)
        text = await bounded(stored, self._node.timeout_ms)
        if isinstance(text, Unavailable):
            raise text
        if isinstance(text, BaseException):
            late = isinstance(text, TimedOut)
            return self._result(timed_out(self._node.timeout_ms or 0) if late else failed_by(text))
        return await _resolved(self._returned(text, chosen))

    def _returned(self, text: bytes, chosen: Chosen) -> Coming:
        if self._handler.type.output_schema is not True:
            try:
                self._tools.around.stage.check_output(self._handler, text)
            except Fail as broken_promise:
                return self._result(failed_by(broken_promise))
        return self._finish_described(text, chosen) if MARKED in text else self._finish(text, chosen)

    async def _finish_described(self, text: bytes, chosen: Chosen) -> Result:
        """The value describes files: they must be there before a fact says that they are."""
        wrong = await wrong_files(self._tools.blobs, self.lease.stream.tenant, text)
        return self._result(wrong) if wrong else await _resolved(self._finish(text, chosen))

    def _asked(self, ended: Pause | Skip) -> Coming:
        """The handler waits or skips; what it asks of a child is kept like any other value."""
        task = self.task
        outcome, ask = asked_for(ended, child_id(self.lease.stream.key, task.node, task.visit, task.index))
        if ask is None or isinstance(outcome, Skips):
            return self._result(outcome)
        return self._keep(ask, lambda kept: self._result(msgspec.structs.replace(outcome, ask=kept)))

    # Maps

    def _expand(self, program: Program) -> Coming:
        assert program.over is not None
        items = program.over.render(self._scope())
        if not isinstance(items, list):
            raise ExpressionError(
                code="template_failed",
                message=f"map.over gave {type(items).__name__}, not a list",
                hint="refer to a list with a single {{ expression }}",
            )
        if not items:
            return self._routed(b"[]", None, lambda route: self._result(NO_ITEMS, route))
        text = encode_value(items)
        return self._keep(text, lambda kept: self._result(Expands(count=len(items), items=kept)))

    # Route and pack

    def _finish(self, text: bytes, chosen: Chosen = None) -> Coming:
        """The visit has its output: find the way it goes on, and keep a long value by content."""
        if self._node.routed and self.task.index == NOT_AN_ITEM and self._entry.state.blobs:
            # Other nodes may have ended while the handler ran, with values too large to be at hand.
            return self._finish_looking_again(text, chosen)
        return self._finish_known(text, chosen)

    async def _finish_looking_again(self, text: bytes, chosen: Chosen) -> Result:
        self._fetched = await self._tools.values.fetch(self.lease.stream.tenant, self._needed())
        return await _resolved(self._finish_known(text, chosen))

    def _finish_known(self, text: bytes, chosen: Chosen) -> Coming:
        if len(text) > INLINE_BYTES_MAX:
            return self._routed(text, chosen, lambda route: self._finish_stored(text, route))
        if not self._node.routed:
            return self._result(Done(text, len(text)))
        return self._routed(text, chosen, lambda route: self._result(Done(text, len(text)), route))

    async def _finish_stored(self, text: bytes, route: Route | None) -> Result:
        return self._result(Done(await self._store(text), len(text)), route)

    def _keep(self, text: bytes, then: Callable[[Payload], Result]) -> Coming:
        """Go on with a text as the log keeps it."""
        if len(text) <= INLINE_BYTES_MAX and MARKED not in text:
            return then(text)
        return self._keep_checked(text, then)

    async def _keep_checked(self, text: bytes, then: Callable[[Payload], Result]) -> Result:
        wrong = await wrong_files(self._tools.blobs, self.lease.stream.tenant, text)
        if wrong:
            return self._result(wrong)
        return then(text if len(text) <= INLINE_BYTES_MAX else await self._store(text))

    async def _store(self, text: bytes) -> BlobRef:
        digest = await surely(lambda: self._tools.blobs.put(self.lease.stream.tenant, text))
        return BlobRef(digest, len(text))

    def _routed(self, text: bytes, chosen: Chosen, then: Callable[[Route | None], Coming]) -> Coming:
        """Conditions look at the value as it will be stored, not at what the handler held in its hands."""
        if self.task.index != NOT_AN_ITEM or not self._node.routed:
            return then(None)
        scope, inputs = replace(self._scope(), has_output=True, output=decode_value(text)), self._state.inputs
        program = self._flow.program(self._node)
        reads = partial(readings_of, scope=scope, inputs=inputs, output=text)
        route = settled(find_route(self._node, program, scope, chosen, reads), self._tools.around.isolation)
        if isinstance(route, (Route, Failed)):
            return self._result(route) if isinstance(route, Failed) else then(route)
        return self._later(route, lambda known: self._result(known) if isinstance(known, Failed) else then(known))

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
            duration_ms=round(duration_ms),
            waited_ms=max(0, round(self._tools.clock() - queued_since - duration_ms)),
            chance=ambient.chance(),
        )


async def _resolved(result: Coming) -> Result:
    return result if isinstance(result, Result) else await result
