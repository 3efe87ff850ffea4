"""Inspection of a run: show, events, logs, path, tokens, why, compare.

A worker that cannot load a value, or cannot read the log of a child to start, releases the job and tries again later.
The run's log says nothing of that, so `why` looks for the unreadable values (`Unread`) and children (`Unstarted`)
itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.blobs.contract import Blobs, digest_of
from tidemill.blobs.payloads import decode_value, encode_value
from tidemill.engine.attempts.log_store import AttemptId, Lines, LogLine, StoredLine, latest_of, read_logs, shown_line
from tidemill.engine.attempts.rendering import needed_for, needed_for_outputs
from tidemill.engine.attempts.results import child_id, read_ask
from tidemill.engine.corruption import UNREADABLE, is_newer, newer_job
from tidemill.engine.index_rows import RUN, read_run_row
from tidemill.engine.maintenance.reindex import row_like
from tidemill.engine.run_cache import CachedRun
from tidemill.engine.services.context import AnyRun, ServiceContext, at_index, check_node, run_id_of
from tidemill.engine.services.workers import WorkerService, job_fact
from tidemill.engine.views import RunView, item_views, view_run
from tidemill.errors import Rejected, StoreUnusable, TidemillError, Unavailable, rejected
from tidemill.kernel.activation import Wait
from tidemill.kernel.codec import decode_event, plain
from tidemill.kernel.decide.waits import CHILD_FAILED
from tidemill.kernel.events import (
    NOT_AN_ITEM,
    AnyEvent,
    BlobRef,
    CompensationFailed,
    NodeAppended,
    NodeFailed,
    RunCreated,
)
from tidemill.kernel.evolve import evolve, replay
from tidemill.kernel.explain.blockers import Failure
from tidemill.kernel.explain.survey import JobFact, left_alone
from tidemill.kernel.jobs import JOB_FORMAT, key_of, task_of
from tidemill.kernel.queries import EventFilter, begun_at, path, payloads_in, tokens
from tidemill.kernel.state import State, peek_at
from tidemill.stores.contract import Row, Stream
from tidemill.version import __version__

if TYPE_CHECKING:
    from tidemill.agents.transcript import Transcript
    from tidemill.kernel.explain.ended import NodeHistory
    from tidemill.kernel.explain.explain import Explanation

ITEM_HINT = "items are counted from 0"
AGENT = "agent"
"""The node type whose visits have transcripts."""
LOOK_EVERY_MS = 250
"""How often a follower looks; lines are written about once a second, and at the end of an attempt."""


TRACEBACK = "traceback"
"""The source of log lines that hold tracebacks."""
TYPE_WITHIN_BYTES = 24


def _own_error(event: NodeFailed | CompensationFailed) -> bool:
    """Whether to show it here: a map fails with the error of an item, which is shown as the item's; so of a child."""
    of_map = event.index == NOT_AN_ITEM and event.error.index != NOT_AN_ITEM
    return not of_map and event.error.code != CHILD_FAILED


def _wanted(node: str | None, visit: int | None, index: int | None, attempt: int | None) -> Callable[[AttemptId], bool]:
    asked = {"node": node, "visit": visit, "index": index, "attempt": attempt}
    named = {name: value for name, value in asked.items() if value is not None}
    return lambda place: all(getattr(place, name) == value for name, value in named.items())


def _check_attempt(state: State, node: str, visit: int | None, index: int | None, attempt: int | None) -> None:
    """Refuse a visit or an attempt that has not been; the attempts of earlier visits are not known."""
    cell = state.peek(node)
    if visit is not None and visit > cell.visit:
        raise rejected("attempt_unknown", f"there is no visit {visit} of node {node}", path="/visit")
    is_known = visit == cell.visit or cell.visit == 1
    act = peek_at(cell, NOT_AN_ITEM if index is None else index)
    if attempt is None or not is_known or act is None or (cell.map is not None and index is None):
        return
    # One that has not ended may be at an attempt whose beginning is not written yet.
    if attempt > act.attempt + (not act.ended_seq):
        message = f"there is no attempt {attempt} of node {node}: it has had {act.attempt}"
        raise rejected("attempt_unknown", message, path="/attempt")


LOOKED_AT_MAX = 20
"""Values that are read for one answer; further ones usually wait for the same."""

READ_BYTES_MAX = 1 << 20
"""Larger values that a decision read are named by their digest."""

DUE_MS_MAX = 1_000
"""What has been due for longer than this waits for something else."""


class MissingPayloads:
    def __init__(self, blobs: Blobs, tenant: str, entry: CachedRun) -> None:
        self._blobs, self._tenant, self._entry = blobs, tenant, entry
        self._seen: dict[str, Failure | None] = {}

    async def with_reasons(self, jobs: Sequence[JobFact], now_ms: int) -> list[JobFact]:
        """The jobs, and with each postponed one the first value it needs that cannot be read."""
        # A job that has just come due again will be put aside in a moment.
        since_ms = now_ms - DUE_MS_MAX
        return [
            await self._with_reason(job) if job.lease_expires_at_ms is None and job.ready_at_ms > since_ms else job
            for job in jobs
        ]

    async def _with_reason(self, job: JobFact) -> JobFact:
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
        except StoreUnusable as error:
            return Failure(code=error.problem.code, message=error.problem.message, hint=error.problem.hint)
        except Unavailable as error:
            return Failure(code="blob_unreadable", message=f"blob {digest} cannot be read: {error}")
        return None


class BlockedChildren:
    def __init__(self, context: ServiceContext, stream: Stream, state: State) -> None:
        self._context, self._stream, self._state = context, stream, state

    async def with_reasons(self, jobs: Sequence[JobFact]) -> list[JobFact]:
        """The jobs, and with each that is to start a child what cannot be read of it or of its workflow."""
        found, left = list[JobFact](), LOOKED_AT_MAX
        for job in jobs:
            wait = _wait_of(self._state, job) if left and job.lease_expires_at_ms is None else None
            left -= wait is not None
            unread = None if wait is None else await self._look(wait)
            found.append(job if unread is None else msgspec.structs.replace(job, unread=unread))
        return found

    async def _look(self, wait: Wait) -> Failure | None:
        """Read everything that a worker would read, and return the error that would stop it."""
        child = self._stream._replace(key=wait.name)
        try:
            await self._context.run_cache.refresh([child])
            damage = self._context.run_cache.damage(child)
            if damage is not None:
                raise damage
            if wait.ask is not None:
                ask = read_ask(await self._context.text(wait.ask))
                await self._context.catalog.resolve(self._context.tenant, ask.workflow)
        except Rejected as refusal:
            first = refusal.problems[0]
            if first.code in UNREADABLE:
                return Failure(code=first.code, message=first.message, hint=first.hint)
        except TidemillError:
            # What does not answer now may when the worker asks.
            return None
        return None


def _wait_of(state: State, job: JobFact) -> Wait | None:
    """The wait for a child that a job is to start; None for any other job."""
    kind, name, visit, index = job.key.split("/")
    cell = state.peek(name) if kind == "child" else None
    act = peek_at(cell, int(index)) if cell is not None and cell.visit == int(visit) else None
    return None if act is None else act.wait


EVENTS_LOOKED_AT = 2_000
"""Events that are read at a time when not all are wanted."""
BRIEF_BYTES = 200


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    left: str
    right: str
    same: bool
    """Whether inputs, status, outputs and all nodes are the same."""
    inputs_same: bool = True
    outputs_same: bool
    first_divergence: str | None
    """The first node, in the order in which the left run ended them, that did not come out the same."""
    inputs: tuple[Any, Any] = (None, None)
    """Of the left run, and of the right one."""
    nodes: tuple[dict[str, Any], ...]


class NodeOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What the latest visit of a node, or one item of its map, has returned."""

    node: str
    visit: int
    index: int | None
    status: str
    digest: str
    """The SHA-256 of the JSON text; empty if there is no output."""
    text: bytes
    """The output as JSON; empty if there is none."""


class InspectionService:
    def __init__(self, context: ServiceContext, workers: WorkerService) -> None:
        self._context, self._workers = context, workers

    async def show(self, run_id: str, *, at: int | None = None, values: bool = True) -> RunView:
        """The run as it is now, or as it was after event `at`; without `values` its outputs are left out."""
        entry, context = await self._at(run_id, at), self._context
        view = await view_run(context.stream(run_id), entry.state, entry.flow, context.blobs, gaps=True, values=values)
        if at is None:
            view.stuck = await self._stuck_reason(run_id, entry)
            if entry.state.live and any(node["status"] == "RUNNING" for node in view.nodes.values()):
                facts = [job_fact(each) for each in await context.store.jobs(context.stream(run_id))]
                for name in left_alone(entry.state, facts, context.store.now_ms()):
                    begun = {"begun_ms": view.nodes[name].pop("since_ms")}
                    view.nodes[name] |= {"status": "QUEUED", "waiting_for": "a worker"} | begun
        return view

    async def _stuck_reason(self, run_id: str, entry: CachedRun) -> str:
        """Why a worker gave up on a run for now; empty once the run has continued."""
        state = entry.state
        if not state.busy:
            return ""
        like = Row(kind=RUN, key=run_id, sort=state.created_ms, terms=("stuck", f"workflow:{state.workflow}"))
        row = await row_like(self._context.store, self._context.tenant, like)
        shown = None if row is None else read_run_row(row)
        return shown.stuck_reason if shown is not None and shown.events == state.seq else ""

    async def as_of(self, run_id: str, at: int | None) -> CachedRun:
        """State and workflow as they are now, or as they were after event `at`."""
        return await self._at(run_id, at)

    async def log(self, run_id: str, at: int | None) -> list[AnyEvent]:
        """All events of a run, or those up to `at`."""
        return await (self._context.log(run_id) if at is None else self._events_until(run_id, at))

    async def _at(self, run_id: str, at: int | None) -> CachedRun:
        if at is None:
            return await self._context.entry(run_id)
        state = replay(await self._events_until(run_id, at))
        return CachedRun(state, await self._context.catalog.flow(self._context.tenant, state.digest))

    async def _events_until(self, run_id: str, at: int) -> list[AnyEvent]:
        tail = await self._context.tail(run_id, 0, max(at, 0))
        if not 1 <= at <= tail.version:
            message = f"the run has events 1 to {tail.version}, not {at}"
            raise rejected("event_unknown", message, path="/at", hint="see `tidemill runs events`")
        return [decode_event(record) for record in tail.records]

    async def output(self, run_id: str, node: str, *, index: int | None = None, at: int | None = None) -> NodeOutput:
        """The output of a node's latest visit, or of one item of its map, now or after event `at`."""
        entry = await self._at(run_id, at)
        check_node(entry.flow.workflow, node)
        visit = entry.state.peek(node)
        act = peek_at(visit, at_index(index))
        if act is None:
            raise rejected("place_invalid", f"node {node} has no item {index}", path="/index", hint=ITEM_HINT)
        text = b"" if act.output is None else await self._context.text(act.output)
        digest = act.output.digest if isinstance(act.output, BlobRef) else digest_of(text) if text else ""
        return NodeOutput(node=node, visit=visit.visit, index=index, status=act.status, digest=digest, text=text)

    async def transcript(
        self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None
    ) -> Transcript:
        """The transcript of an agent in a visit, by default the latest: turns, tool calls, tokens and cost."""
        from tidemill.agents.delegation import child_key
        from tidemill.agents.transcript import Entry, Transcript, transcript_of

        entry = await self._context.entry(run_id)
        check_node(entry.flow.workflow, node)
        cell, place = entry.state.peek(node), at_index(index)
        number = cell.visit if visit is None else visit
        if not 1 <= number <= cell.visit:
            raise rejected("attempt_unknown", f"there is no visit {number} of node {node}", path="/visit")
        act = peek_at(cell, place) if number == cell.visit else None
        if act is None and number == cell.visit:
            raise rejected("place_invalid", f"node {node} has no item {index}", path="/index", hint=ITEM_HINT)
        known = entry.flow.workflow.by_id[node]
        kind = known.type.partition("@")[0]
        if kind != AGENT:
            hint = "`tidemill runs logs` shows the log lines of other nodes"
            raise rejected("agent_unknown", f"node {node} is of type {kind}, not an agent", path="/node", hint=hint)
        made = Transcript(run_id=run_id, node=node, visit=number, index=place)
        if act is not None:
            made.status = act.status
            if (error := act.error) is not None:
                made.error = {"code": error.code, "message": error.message, "hint": error.hint}
            if not act.appended:
                return made
        after = 0 if act is None else act.appended_from - 1
        tail = await self._context.tail(run_id, after, None)
        found: list[Entry] = []
        for seq, raw in enumerate(tail.records, after + 1):
            event = decode_event(raw)
            if isinstance(event, NodeAppended) and (event.node, event.visit, event.index) == (node, number, place):
                record = decode_value(await self._context.text(event.value))
                if isinstance(record, dict):
                    found.append(Entry(seq, event.at_ms, event.attempt, record))
        routed = known.branch is not None and known.branch.kind == "agent_driven"
        shown = transcript_of(made, found, routed=routed)
        # What a fork shares with its origin was done by children of the origin.
        shared = 0 if entry.state.forked_from is None else entry.state.forked_from[1]
        for turn in shown.turns:
            for position, call in enumerate(turn.calls):
                if call.waits_for == "child" and turn.seq > shared:
                    call.child = child_id(run_id, node, number, place, child_key(f"{turn.number}.{position}"))
        return shown

    async def events(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        """The run's events so far, from `after` + 1 on."""
        if after < 0:
            raise rejected("cursor_invalid", "events are counted from 1", path="/after")
        tail = await self._context.tail(run_id, after, None if limit is None else max(limit, 0))
        return [plain(decode_event(record), seq) for seq, record in enumerate(tail.records, after + 1)]

    async def find_events(
        self, run_id: str, wanted: EventFilter, *, after: int = 0, limit: int = 100, brief: bool = False
    ) -> tuple[list[dict[str, Any]], int | None]:
        """The wanted events after `after`, and the seq to continue from; `brief` truncates values."""
        found: list[dict[str, Any]] = []
        while True:
            tail = await self._context.tail(run_id, after, limit if wanted == EventFilter() else EVENTS_LOOKED_AT)
            for after, record in enumerate(tail.records, after + 1):  # noqa: B020 - continues where it stopped
                event = decode_event(record)
                if wanted.takes(event, record):
                    found.append(plain(event, after, bytes_max=BRIEF_BYTES if brief else None))
                    if len(found) == limit:
                        return found, after if after < tail.version else None
            if after >= tail.version or not tail.records:
                return found, None

    async def input(
        self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None, at: int | None = None
    ) -> NodeOutput:
        """What an attempt at a node was given: its config with the values in it; of a whole map, its list."""
        events = await (self._context.log(run_id) if at is None else self._events_until(run_id, at))
        state, place = replay(events), at_index(index)
        check_node((await self._context.catalog.flow(self._context.tenant, state.digest)).workflow, node)
        number = state.peek(node).visit if visit is None else visit
        begun = begun_at(events, node, number, place)
        text = b""
        if begun:
            then = replay(events[:begun])
            items = then.peek(node).map
            if items is not None and index is None:
                text = await self._context.text(items.items)
            else:
                value = await self._context.input_of(run_id, node, place, then)
                text = b"" if value is None else encode_value(value)
        status = "STARTED" if begun else "PENDING"
        digest = digest_of(text) if text else ""
        return NodeOutput(node=node, visit=number, index=index, status=status, digest=digest, text=text)

    async def items(
        self, run_id: str, node: str, *, status: str = "", after: int = -1, limit: int = 100, at: int | None = None
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Items of the latest visit of a map, all or those with a status; and the index to continue from."""
        entry = await self._at(run_id, at)
        check_node(entry.flow.workflow, node)
        return item_views(entry.state.peek(node), after, limit, status)

    async def path(self, run_id: str, *, at: int | None = None) -> list[dict[str, Any]]:
        """The path the run took: every visit in the order in which they ended, with the edges it took."""
        events = await (self._context.log(run_id) if at is None else self._events_until(run_id, at))
        return [{**msgspec.structs.asdict(step), "went": list(step.went)} for step in path(events)]

    async def tokens(self, run_id: str, *, at: int | None = None) -> list[dict[str, Any]]:
        """What is in flight: the tokens that the run's counter counts."""
        entry = await self._at(run_id, at)
        return [
            {"from": token.source, "to": token.to, "visit": token.visit, "hop": token.hop}
            for token in tokens(entry.flow.workflow, entry.state)
        ]

    async def why(self, run_id: str) -> Explanation:
        """What the run is waiting for, since when, and what unblocks it; of a failed run, the first cause."""
        from tidemill.kernel.explain.explain import beside_parent, explain

        try:
            entry = await self._context.entry(run_id)
        except Rejected as refusal:
            if not is_newer(refusal):
                raise
            return await self._left_alone(run_id, refusal)
        jobs = await self._context.store.jobs(self._context.stream(run_id))
        facts = [job_fact(view) for view in jobs]
        if entry.state.blobs:
            unread = MissingPayloads(self._context.blobs, self._context.tenant, entry)
            facts = await unread.with_reasons(facts, self._context.store.now_ms())
        facts = await BlockedChildren(self._context, self._context.stream(run_id), entry.state).with_reasons(facts)
        workers = await self._workers.capabilities(entry.state.digest)
        found = explain(entry.flow.workflow, entry.state, facts, self._context.store.now_ms(), workers=workers)
        if stuck := await self._stuck_reason(run_id, entry):
            headline = f"the run is stuck: {stuck}; {found.headline}"
            found = msgspec.structs.replace(found, stuck=stuck, headline=headline)
        if newer := [view.job.key for view in jobs if task_of(view.job.body).v > JOB_FORMAT]:
            words = f"{newer_job(newer[0]).problems[0].message}; {await self._waits_for_newer()}"
            found = msgspec.structs.replace(found, newer=words, headline=f"{words}; {found.headline}")
        if (place := entry.state.parent) is not None:
            found = beside_parent(found, entry.state, await self._context.parent_of(run_id, place))
        return await self._of_a_child(run_id, found)

    async def _left_alone(self, run_id: str, refusal: Rejected) -> Explanation:
        """What is known of a run that this version leaves alone: its state before the first unknown event."""
        from tidemill.kernel.explain.explain import Explanation

        state, tail = State(), await self._context.tail(run_id, 0, None)
        for record in tail.records:
            try:
                evolve(state, decode_event(record))
            except Rejected:
                break
        words = refusal.problems[0].message
        if await self._context.store.jobs(self._context.stream(run_id)):
            words = f"{words}; {await self._waits_for_newer()}"
        unblock = "start a worker of the newer version; upgrade Tidemill here to see more"
        return Explanation(status=state.status, headline=words, newer=words, since_ms=state.last_ms, unblock=unblock)

    async def _waits_for_newer(self) -> str:
        version = await self._workers.newer_version()
        return (
            f"it waits for a worker of version ≥ {version}" if version else f"it waits for one newer than {__version__}"
        )

    async def why_node(self, run_id: str, node: str) -> NodeHistory:
        """How the visits of a node ended and why, or what it is waiting for."""
        from tidemill.kernel.explain.ended import account_for

        entry = await self._context.entry(run_id)
        check_node(entry.flow.workflow, node)
        found, known = await self.why(run_id), entry.flow.workflow.by_id[node]
        events = await self._context.log(run_id)
        history = account_for(entry.state, events, known, found.blockers)
        reads = history.visits[-1].reads if history.visits else {}
        return msgspec.structs.replace(history, values=await self._values_read(reads, events, node))

    async def _values_read(self, reads: Mapping[str, str], events: Iterable[AnyEvent], node: str) -> dict[str, object]:
        """The values that a decision read, which the log knows by their digests."""
        names = {digest: name for name, digest in reads.items()}
        nodes = {node, *(name.removeprefix("ctx.") for name in reads)}
        found: dict[str, object] = {}
        for event in events:
            if not isinstance(event, RunCreated) and getattr(event, "node", "") not in nodes:
                continue
            for payload in payloads_in(event):
                digest, size = (
                    (payload.digest, payload.size) if isinstance(payload, BlobRef) else (digest_of(payload), 0)
                )
                name = names.get(digest)
                if name is None or name in found or size > READ_BYTES_MAX:
                    continue
                # A value that is lost is named by its digest.
                with suppress(StoreUnusable, Unavailable):
                    found[name] = decode_value(await self._context.text(payload))
        return found

    async def _of_a_child(self, run_id: str, found: Explanation) -> Explanation:
        """Continue with the child that a run has failed with, if it was started."""
        cause = found.first_cause
        if cause is None or cause.error.code != CHILD_FAILED or found.rollback != "none":
            return found
        child = self._context.stream(child_id(run_id, cause.node, cause.visit, cause.index))
        if child not in await self._context.run_cache.refresh([child]):
            return found
        words = "find out why the child run failed and fix it, then retry this run: completed nodes keep their results"
        return msgspec.structs.replace(found, unblock=words, command=f"tidemill why {quote(child.key)}")

    async def compare(self, run_id: str, other_id: AnyRun) -> Comparison:
        """Compare two runs: which nodes have the same result, and where they first differ."""
        left, right = await self.show(run_id), await self.show(run_id_of(other_id))
        order = [step["node"] for step in await self.path(run_id)]
        names = [*dict.fromkeys([*order, *left.nodes, *right.nodes])]
        nodes = tuple(_compared(name, left, right) for name in names)
        apart = [node["node"] for node in nodes if not node["same"]]
        inputs_same, outputs_same = bool(left.inputs == right.inputs), bool(left.outputs == right.outputs)
        return Comparison(
            left=run_id,
            right=right.run_id,
            same=not apart and inputs_same and outputs_same and left.status == right.status,
            inputs_same=inputs_same,
            outputs_same=outputs_same,
            first_divergence=apart[0] if apart else None,
            inputs=(left.inputs, right.inputs),
            nodes=nodes,
        )

    # Logs of attempts

    async def logs(
        self,
        run_id: str,
        node: str | None = None,
        *,
        visit: int | None = None,
        index: int | None = None,
        attempt: int | None = None,
    ) -> list[LogLine]:
        """What handlers have printed and logged, about the last megabyte of each attempt, and why attempts failed.

        In order of time: of a node, of one visit, item or attempt of it, or of the whole run. They are written once a
        second, so those of an attempt under way may be that late.
        """
        entry = await self._context.entry(run_id)
        wanted = _wanted(node, visit, index, attempt)
        spoken = await read_logs(self._context.store, self._context.tenant, run_id, {}, wanted)
        if not spoken and node is not None:
            check_node(entry.flow.workflow, node)
            _check_attempt(entry.state, node, visit, index, attempt)
        lines = Lines()
        told = [*lines.of(latest_of(spoken)), *lines.rest(), *await self._tracebacks(run_id, wanted)]
        return sorted(told, key=attrgetter("at_ms", "undo"))

    async def _tracebacks(
        self, run_id: str, wanted: Callable[[AttemptId], bool], after: int = 0, until: int | None = None
    ) -> list[LogLine]:
        """The tracebacks of attempts that failed, line by line; the events of the run have them."""
        tail = await self._context.tail(run_id, after, None if until is None else until - after)
        # The type is at the beginning of a record; the others are not decoded.
        kinds = (b"NodeFailed", b"CompensationFailed")
        records = (each for each in tail.records if any(each.find(kind, 0, TYPE_WITHIN_BYTES) >= 0 for kind in kinds))
        failed = (event for event in map(decode_event, records) if isinstance(event, NodeFailed | CompensationFailed))
        return [
            shown_line(place, StoredLine(event.at_ms, TRACEBACK, text))
            for event in failed
            if event.error.traceback and _own_error(event)
            if wanted(
                place := AttemptId(event.node, event.visit, event.index, event.attempt, type(event) is not NodeFailed)
            )
            for text in event.error.traceback.rstrip().split("\n")
        ]

    async def follow_logs(
        self,
        run_id: str,
        node: str | None = None,
        *,
        visit: int | None = None,
        index: int | None = None,
        attempt: int | None = None,
        new_only: bool = False,
    ) -> AsyncIterator[LogLine]:
        """The same lines, then those that are written from now on, or only these (`new_only`); ends with the run."""
        entry = await self._context.entry(run_id)
        if node is not None:
            check_node(entry.flow.workflow, node)
        wanted, seen, lines = _wanted(node, visit, index, attempt), dict[Stream, int](), Lines()
        busy, seq, old = True, 0, new_only
        while busy:
            # Checked first: lines from before the end are written before the end is reported.
            state = (await self._context.entry(run_id)).state
            busy, new = state.busy, state.seq > seq
            spoken = await read_logs(self._context.store, self._context.tenant, run_id, seen, wanted)
            fresh = list(lines.of(latest_of(spoken)))
            if new:
                fresh += await self._tracebacks(run_id, wanted, seq, state.seq)
                seq = state.seq
            fresh = [] if old else fresh
            old = False
            for line in sorted(fresh if busy else [*fresh, *lines.rest()], key=attrgetter("at_ms")):
                yield line
            if busy:
                await self._context.ambient.sleep(LOOK_EVERY_MS)


def _compared(name: str, left: RunView, right: RunView) -> dict[str, Any]:
    sides = left.nodes.get(name), right.nodes.get(name)
    same = None not in sides and _outcome(left, name) == _outcome(right, name)
    return {"node": name, "same": same, "left": sides[0], "right": sides[1]}


def _outcome(view: RunView, name: str) -> tuple[Any, ...]:
    """How a node came out: a message that names its run is the same in another run."""
    node = view.nodes[name]
    error = node["error"] or {}
    message = error.get("message", "").replace(view.run_id, "")
    return node["status"], node["output"], error.get("code"), error.get("type"), message
