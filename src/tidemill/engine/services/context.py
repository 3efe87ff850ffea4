"""What the services share: the parts of an engine, run lookup, command dispatch and paging.

A service is constructed with one `ServiceContext`. Business rules live in the kernel; a context only loads, asks and
raises what the kernel refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.contract import Blobs
from tidemill.engine.attempts.rendering import Values, blobs_of, scope_of, shared_value
from tidemill.engine.catalog import Catalog
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.engine.corruption import require_intact
from tidemill.engine.index_rows import RUN, RunRow
from tidemill.engine.maintenance.audit_chain import require_actor, waiting_row
from tidemill.engine.run_cache import CachedRun, RunCache
from tidemill.engine.services.concurrency import KnownLimits
from tidemill.engine.turn import TurnLoop
from tidemill.engine.validation import check_command_id, check_limit, check_words, packed
from tidemill.engine.views import RunView
from tidemill.errors import Problem, Rejected, offered, rejected
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import Isolation, render
from tidemill.kernel.codec import decode_event
from tidemill.kernel.commands import AnyCommand, CloseDeadLetter
from tidemill.kernel.decide.builder import Decision
from tidemill.kernel.decide.completion import ABANDON
from tidemill.kernel.decide.decide import decide
from tidemill.kernel.events import AnyEvent, BlobRef, Payload
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State, peek_at
from tidemill.security.secrets import RedactedSecrets
from tidemill.stores.contract import Commit, Page, Row, Store, Stream, Tail, cursor_at, place_of

if TYPE_CHECKING:
    from tidemill.kernel.explain.ended import ParentRun

SUMMARIES_AT_ONCE = 2
"""Other requests wait for a slice of each that is under way."""


AnyRun = str | RunView | RunRow
"""A run, as its id or as what `run`, `show` and `find` return."""


def run_id_of(run: object) -> str:
    """The id of a run that is given as its id, or as a view or row of it."""
    run_id = run if isinstance(run, str) else getattr(run, "run_id", None)
    if isinstance(run_id, str):
        return run_id
    message = f"a run is given by its id, or as what `run`, `show` or `find` returned, not as {type(run).__name__}"
    raise rejected("run_id_invalid", message, path="/run_id", hint="`mill.find()` lists runs")


def run_ids_of(runs: AnyRun | Sequence[AnyRun]) -> list[str]:
    """The ids of several runs, or of one, each once."""
    given: Any = runs
    are_many = isinstance(given, Iterable) and not isinstance(given, (str, Mapping))
    return list(dict.fromkeys(map(run_id_of, given if are_many else [given])))


def with_run_id(
    parameters: Mapping[str, Parameter], args: Sequence[Any], given: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a verb with its first, a run, as the id of the run; refuses a node that is not an id."""
    names = list(parameters)
    for name, value in (*zip(names, args, strict=False), *given.items()):
        may_be_none = name in parameters and parameters[name].default is None
        if name == "node" and not isinstance(value, str) and not (value is None and may_be_none):
            message = f"a node is given by its id, not as {type(value).__name__}"
            raise rejected("node_unknown", message, path="/node", hint="the nodes of a run: mill.show(run).nodes")
    if not args and names[0] in given:
        args, given = [given[names[0]]], {name: value for name, value in given.items() if name != names[0]}
    return [*map(run_id_of, args[:1]), *args[1:]], dict(given)


@dataclass(slots=True)
class ServiceContext:
    store: Store
    blobs: Blobs
    ambient: Ambient
    catalog: Catalog
    run_cache: RunCache
    turns: TurnLoop
    tenant: str
    input_bytes_max: int
    isolation: Isolation
    limits: KnownLimits
    audited: bool = False
    """Whether every change needs an actor, and is entered in the audit of the tenant; off for embedded use."""
    stream_kinds: dict[str, Callable[[Tail], Sequence[Row]]] = field(default_factory=dict)
    """Streams of floors above the engine: by kind, which rows the records of one call for."""
    summarising: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SUMMARIES_AT_ONCE))
    """Held by requests that read thousands of rows."""

    def stream(self, run_id: str) -> Stream:
        return Stream(self.tenant, RUN, run_id)

    async def entry(self, run_id: str) -> CachedRun:
        """The run as the store knows it now."""
        stream = self.stream(run_id)
        entry = (await self.run_cache.refresh([stream])).get(stream)
        if entry is None:
            raise self.run_cache.damage(stream) or rejected(
                "run_unknown", f"there is no run {run_id}", hint="see `tidemill runs list`"
            )
        return entry

    async def log(self, run_id: str, *, limit: int | None = None) -> list[AnyEvent]:
        return [decode_event(record) for record in (await self.tail(run_id, 0, limit)).records]

    async def tail(self, run_id: str, after: int, limit: int | None) -> Tail:
        (tail,) = await self.store.load({self.stream(run_id): after}, snapshots=False, limit=limit)
        if require_intact(tail).version == 0:
            raise rejected("run_unknown", f"there is no run {run_id}", hint="see `tidemill runs list`")
        return tail

    async def command(
        self, run_id: str, command: AnyCommand, *, flow: CompiledWorkflow | None = None, reason: str = ""
    ) -> None:
        """Send a command to a run; raises a refusal, and nothing has changed then."""
        check_words(actor=command.actor or "", reason=reason)
        self.check_actor(command.actor)
        if command.id is not None:
            check_command_id(command.id)
            command = msgspec.structs.replace(command, id=command_name(type(command), command.id))
            await self._same_request(run_id, command)
        answer = await self.turns.command(self.stream(run_id), command, flow=flow, audited=self.audited)
        if answer.problem is not None:
            raise Rejected(answer.problem)

    def check_actor(self, actor: str | None) -> None:
        """Refuse a change without an actor, where changes are audited."""
        if self.audited:
            require_actor(actor)

    def audit_rows(
        self, stream: Stream, version: int, record: bytes, *, actor: str, command: str, at_ms: int, detail: str = ""
    ) -> tuple[Row, ...]:
        """The rows that enter a change in the audit, for the commit that makes it; none where it is not audited.

        `version` is the number that `record` gets in its stream.
        """
        if not self.audited:
            return ()
        words = {"actor": require_actor(actor), "command": command, "detail": detail}
        return (waiting_row(stream, version, record, at_ms=at_ms, **words),)

    async def enter(self, stream: Stream, record: bytes, *, actor: str, command: str, detail: str = "") -> None:
        """Add an audit entry for a change that writes no record of its own; durable when this returns."""
        now_ms = self.store.now_ms()
        for row in self.audit_rows(stream, now_ms, record, actor=actor, command=command, at_ms=now_ms, detail=detail):
            # Several entries may have the same timestamp.
            unique = msgspec.structs.replace(row, key=f"{row.key}/{self.ambient.new_id()}")
            await self.store.commit([Commit(stream=stream, expected=None, rows=(unique,))])

    async def check_parent(self, run_id: str) -> None:
        """Refuse to reopen a child that its parent no longer waits for: it would be closed again at once."""
        state = (await self.entry(run_id)).state
        if state.parent is None or state.live or state.close == ABANDON:
            return
        parent = await self.parent_of(run_id, state.parent)
        if not parent.waits:
            message = f"its parent run {parent.run_id} no longer waits for it: it {parent.fate}"
            raise rejected("parent_over", message, hint=parent.way_on(retries=False)[0])

    async def parent_of(self, run_id: str, place: tuple[str, str, int, int]) -> ParentRun:
        """The parent of a run, from the `parent` of its state, and whether it still waits for the run."""
        from tidemill.kernel.explain.ended import ParentRun

        parent_id, node, visit, index = place
        parent = (await self.run_cache.refresh([self.stream(parent_id)])).get(self.stream(parent_id))
        cell = None if parent is None else parent.state.peek(node)
        act = peek_at(cell, index) if cell is not None and cell.visit == visit else None
        waits = act is not None and act.wait is not None and act.wait.name == run_id
        return ParentRun(parent_id, node, None if parent is None else parent.state, waits)

    async def _same_request(self, run_id: str, command: AnyCommand) -> None:
        """Refuse a command id that was used for the same act on something else."""
        seq = (await self.entry(run_id)).state.commands.get(command.id or "")
        if seq is None:
            return
        (tail,) = await self.store.load({self.stream(run_id): seq - 1}, snapshots=False, limit=1)
        first = decode_event(require_intact(tail).records[0])
        node, wanted = getattr(first, "node", None), getattr(command, "node", None)
        labels, set_ = getattr(first, "labels", {}), getattr(command, "labels", {})
        if (node and wanted and node != wanted) or not set_.items() <= labels.items():
            message, hint = "this command id belongs to another request", "use a new id for a new request"
            raise rejected("command_id_reused", message, path="/command_id", hint=hint)

    async def text(self, payload: Payload) -> bytes:
        return await self.blobs.get(self.tenant, payload.digest) if isinstance(payload, BlobRef) else payload

    async def input_of(self, run_id: str, node: str, index: int, state: State) -> Any:
        """A node's config as an attempt sees it, without secrets; None when it cannot be rendered."""
        flow = await self.catalog.flow(self.tenant, state.digest)
        known = flow.workflow.by_id[node]
        wanted = {ref.digest for ref in blobs_of(flow.workflow, state, known)}
        items = state.peek(node).map
        if items is not None and isinstance(items.items, BlobRef):
            wanted.add(items.items.digest)
        fetched = await Values(self.blobs).fetch(self.tenant, wanted)
        scope = scope_of(flow.workflow, state, run_id, known, fetched)
        if items is not None and index >= 0:
            item = shared_value(items.items, fetched)[index]
            scope = replace(scope, has_item=True, item=item, index=index)
        try:
            program = flow.program(known) if flow.is_ready(known) else await flow.compile_apart(known)
            if program.constant is not None or program.config is None:
                return known.config
            return await render(program.config, replace(scope, secrets=RedactedSecrets()), self.isolation)
        except ExpressionError:
            return None

    async def rehearse(self, run_id: str, command: AnyCommand) -> Decision:
        """What a command would come to now. Raises what it would be refused with."""
        entry = await self.entry(run_id)
        answer = decide(entry.flow.workflow, entry.state, command, self.store.now_ms())
        if isinstance(answer, Problem):
            raise Rejected(answer)
        return answer

    async def packed(self, value: Any, *, code: str, path: str, bytes_max: int | None = None) -> Payload:
        return await packed(self.tenant, value, self.blobs, code=code, path=path, bytes_max=bytes_max)

    async def page(
        self,
        kind: str,
        terms: Any,
        after: str | None,
        limit: int,
        *,
        since: int | None = None,
        before: int | None = None,
    ) -> Page:
        """A page of rows; `since` and `before` bound their sort, along which a store walks from the newest down."""
        check_limit(limit)
        if before is not None:
            after = cursor_at((before, "") if after is None else min((before, ""), place_of(after)))
        page = await self.store.find(self.tenant, kind, terms, after=after, limit=limit)
        if since is None:
            return page
        rows = tuple(row for row in page.rows if row.sort >= since)
        over = len(rows) < len(page.rows) or (page.after is not None and place_of(page.after)[0] < since)
        return Page(rows=rows, after=None if over else page.after)


_STORED_NAMES: dict[type[AnyCommand], str] = {CloseDeadLetter: "closeletter"}
"""Logs keep these names; a class that was renamed keeps its old one."""


def command_name(kind: type[AnyCommand], command_id: str) -> str:
    """What a request is remembered under: the same id for another act is another request."""
    return f"{_STORED_NAMES.get(kind, kind.__name__.lower())}:{command_id}"


def check_node(workflow: Workflow, node: str) -> None:
    if node not in workflow.by_id:
        hint = offered(str(node), workflow.by_id)
        raise rejected("node_unknown", f"the workflow has no node {node}", path="/node", hint=hint)


def at_index(index: int | None) -> int:
    """The index of an activation as the kernel counts; None is the visit itself."""
    return -1 if index is None else index
