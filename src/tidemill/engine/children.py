"""Messages between runs: start a child, close a child that its parent no longer needs, report an end to the parent.

A message is a job of the sending run. It is delivered as a command to the other run, which recognises a repetition,
and only then is the job settled: a worker that dies in between delivers it once more, which changes nothing. The
reconciler notices lost messages and delivers them by the same methods.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import encode_value
from tidemill.engine.attempts.rendering import LIST_BYTES_MAX
from tidemill.engine.attempts.results import as_payload, child_id, read_ask
from tidemill.engine.attempts.runtime import LeaveToOtherWorker
from tidemill.engine.catalog import Catalog
from tidemill.engine.corruption import NEWER, retry_until_repaired
from tidemill.engine.index_rows import RUN, root_term
from tidemill.engine.run_cache import CachedRun, RunCache
from tidemill.engine.turn import TurnLoop
from tidemill.engine.validation import check_labels, checked_inputs
from tidemill.errors import Rejected, StoreUnusable, Unavailable, rejected
from tidemill.kernel.activation import Activation, Wait
from tidemill.kernel.commands import AnyCommand, Cancel, ChildBegan, ChildEnded, Delivered, Relabel, Retry, Start
from tidemill.kernel.decide.completion import ABANDON
from tidemill.kernel.decide.retries import worker_killer
from tidemill.kernel.decide.visits import payload_size
from tidemill.kernel.decide.waits import AGAIN, served
from tidemill.kernel.events import BlobRef, Error, Payload
from tidemill.kernel.jobs import JobBody, system_job
from tidemill.kernel.spending import NOTHING_SPENT
from tidemill.kernel.state import State, peek_at
from tidemill.stores.contract import Store, Stream

LOG = logging.getLogger(__name__)

DEPTH_MAX = 32
INPUT_BYTES_MAX = 16 << 20
"""How many ancestors a run may have: bounds a workflow that starts itself."""
SHARES = 16
"""Of what is left below a root, a worker takes at most one such part without counting again."""
ROOTS_KNOWN_MAX = 1_000
FULL_MS = 1_000
"""How long a worker refuses children below a full root without counting again."""
REFUSED = "REFUSED"
"""The status of a child that could not be started, or whose outputs cannot be had."""


class _Root:
    """What a worker may start below one root run before it counts again."""

    def __init__(self) -> None:
        self.share = self.full_until_ms = 0
        self.starting = 0
        """Starts under way: the next count may miss them."""
        self.started = asyncio.Event()
        """Set while there are none."""
        self.started.set()
        self.counted: asyncio.Event | None = None
        """Set at the end of the present count."""


class DescendantLimit:
    """Bounds the runs below each root run; most starts need no count.

    A count and the starts it allows are not one transaction. One worker keeps the limit exactly; each further one may
    exceed it by what the others cannot count: one percent of the limit, and the starts that it has under way.
    """

    def __init__(self, store: Store, most: int) -> None:
        self._store, self._most = store, most
        self._roots: dict[tuple[str, str], _Root] = {}
        """By tenant and run, the least recently used first."""

    @asynccontextmanager
    async def start(self, tenant: str, run_id: str) -> AsyncIterator[None]:
        """Start one more run below a root; raises `Rejected` if there are too many."""
        known = self._roots.pop((tenant, run_id), None)
        root = self._roots[tenant, run_id] = _Root() if known is None else known
        if len(self._roots) > ROOTS_KNOWN_MAX:
            del self._roots[next(iter(self._roots))]
        while not root.share:
            if root.counted is not None:
                await root.counted.wait()
                continue
            counted = root.counted = asyncio.Event()
            try:
                root.share = await self._share(tenant, run_id, root)
            finally:
                root.counted = None
                counted.set()
        root.share -= 1
        root.starting += 1
        root.started.clear()
        try:
            yield
        finally:
            root.starting -= 1
            if not root.starting:
                root.started.set()

    async def _share(self, tenant: str, run_id: str, root: _Root) -> int:
        """How many runs may be started below a root before the next count; at least one."""
        if self._store.now_ms() >= root.full_until_ms:
            starting, terms = root.starting, [root_term(run_id)]
            left = self._most - starting - await self._store.count(tenant, RUN, terms, at_most=self._most)
            if left <= 0 and starting:
                # Some may be counted twice.
                await root.started.wait()
                left = self._most - await self._store.count(tenant, RUN, terms, at_most=self._most)
            if left > 0:
                return min(1 + left // SHARES, 1 + self._most // 100)
            root.full_until_ms = self._store.now_ms() + FULL_MS
        message = f"there are {self._most} runs below run {run_id} already"
        line = f"`max_descendants = {2 * self._most}` under `[limits]` in tidemill.toml"
        hint = f"does a workflow start itself? The operator can raise the limit: {line}"
        raise rejected("too_many_descendants", message, hint=hint)


class ChildRunMessenger:
    """Delivers messages. Every method is idempotent, and raises `Unavailable` when the store does not answer."""

    def __init__(
        self, runs: RunCache, turns: TurnLoop, catalog: Catalog, blobs: Blobs, descendants: DescendantLimit
    ) -> None:
        self._runs, self._turns, self._catalog, self._blobs = runs, turns, catalog, blobs
        self._descendants = descendants
        self._waiting: set[Stream] = set()
        """Streams whose messages wait for a repair; logged once each."""

    async def run(self, stream: Stream, state: State, task: JobBody, lost: int = 0) -> AnyCommand:
        """Deliver a message; returns the command that settles its job. `lost`: workers lost with it so far.

        `state` may be older than the message, so the sender is loaded again: a message that seems obsolete would
        otherwise be settled without having arrived.
        """
        entry = await self._find(stream)
        state = state if entry is None else entry.state
        try:
            with retry_until_repaired():
                settled = await self._deliver(stream, state, task, lost)
        except StoreUnusable as error:
            if error.problem.code in NEWER:
                self._runs.warn_once(stream, error)
                raise LeaveToOtherWorker from error
            if stream not in self._waiting:
                self._waiting.add(stream)
                LOG.warning("a message of run %s is held until an operator repairs this: %s", stream.key, error)
            raise
        self._waiting.discard(stream)
        return settled

    async def _deliver(self, stream: Stream, state: State, task: JobBody, lost: int) -> AnyCommand:
        match task.kind:
            case "child":
                return await self.start_child(stream, state, task.node, task.visit, task.index, lost)
            case "close":
                await self.close_child(stream, state, task.node, task.visit, task.index, task.attempt, task.child)
            case _:
                await self.report(stream, state, lost)
        return Delivered()

    # From the parent

    async def start_child(
        self, stream: Stream, state: State, node: str, visit: int, index: int, lost: int = 0
    ) -> AnyCommand:
        """Make sure that the child of a waiting visit exists, and report to the parent what was found."""
        act = _activation(state, node, visit, index)
        wait = act.wait if act is not None else None
        if act is None or wait is None or wait.on != "child" or not state.live:
            return Delivered()
        child = Stream(stream.tenant, RUN, wait.name)
        where = (node, visit, index)
        try:
            with retry_until_repaired():
                entry = await self._find(child)
                if entry is None:
                    if (killer := worker_killer(lost, "started it")) is not None:
                        return _refused(where, wait.name, killer)
                    entry = await self._start(stream, state, child, where, wait)
                if entry.state.parent != (stream.key, *where):
                    taken = Error("child_id_taken", f"run {wait.name} belongs to another parent")
                    return _refused(where, wait.name, taken)
                if act.attempt > 1:
                    entry = await self._ask_again(child, entry, f"{AGAIN}{act.attempt}")
        except Rejected as refusal:
            first = refusal.problems[0]
            return _refused(where, wait.name, Error(first.code, first.sentence, hint=first.hint))
        if not entry.state.live:
            return await self._ended(child, entry, lost)
        began = {"child": wait.name, "close": wait.close, "attempt": act.attempt, **_content_of(entry.state)}
        return ChildBegan(node=node, visit=visit, index=index, **began)

    async def _find(self, child: Stream) -> CachedRun | None:
        return (await self._runs.refresh([child])).get(child)

    async def _start(
        self, stream: Stream, state: State, child: Stream, where: tuple[str, int, int], wait: Wait
    ) -> CachedRun:
        """Start the child; raises `Rejected` when that is impossible."""
        damage = self._runs.damage(child)
        if damage is not None:
            raise damage
        payload = wait.ask
        assert payload is not None, "a child is asked for"
        text = await self._blobs.get(stream.tenant, payload.digest) if isinstance(payload, BlobRef) else payload
        ask = read_ask(text)
        if state.depth >= DEPTH_MAX:
            raise rejected("child_too_deep", f"there are {DEPTH_MAX} parents above this child already")
        version = await self._catalog.resolve(stream.tenant, ask.workflow, child.key)
        flow = await self._catalog.flow(stream.tenant, version.digest)
        inputs = await checked_inputs(stream.tenant, ask.inputs, flow.workflow.inputs, self._blobs, INPUT_BYTES_MAX)
        start = Start(
            id=f"start:{child.key}",
            version=version.version,
            digest=version.digest,
            inputs=inputs,
            labels=check_labels(ask.labels),
            submitted_by=state.submitted_by,
            correlation_id=state.correlation_id,
            trace=self._trace(stream, state, where),
            tag_used=ask.workflow,
            parent=(stream.key, *where),
            close=wait.close,
            depth=state.depth + 1,
            # A child of an earlier version does not know its root and counts as one.
            root=state.root or stream.key,
            budget=wait.budget,
        )
        async with self._descendants.start(stream.tenant, start.root):
            answer = await self._turns.command(child, start, start=flow)
        if answer.problem is not None:
            raise Rejected(answer.problem)
        entry = await self._find(child)
        if entry is None:
            raise Unavailable(f"run {child.key} was started, but cannot be read")
        return entry

    def _trace(self, stream: Stream, state: State, where: tuple[str, int, int]) -> str:
        """The trace of a child: that of its parent, below the attempt that requested it if there are spans."""
        spans, act = self._turns.spans, _activation(state, *where)
        return state.trace if spans is None or act is None else spans.traceparent(stream, state, *where, act.attempt)

    async def _ask_again(self, child: Stream, entry: CachedRun, command_id: str) -> CachedRun:
        """Retry a child that failed or was cancelled, once per attempt of the parent."""
        # A child that still runs records the attempt, so that a close for an earlier one is ignored.
        if entry.state.status == "COMPLETED":
            return entry
        again = Retry(id=command_id, reason="its parent tries again")
        answer = await self._turns.command(child, Relabel(id=command_id, labels={}) if entry.state.live else again)
        if answer.problem is not None:
            raise Rejected(answer.problem)
        return await self._find(child) or entry

    async def close_child(
        self, stream: Stream, state: State, node: str, visit: int, index: int, attempt: int, child_name: str = ""
    ) -> None:
        """Cancel a child that an attempt no longer waits for, unless its parent has requested it again since."""
        act = _activation(state, node, visit, index)
        name = child_name or child_id(stream.key, node, visit, index)
        if act is not None and act.wait is not None and act.wait.name == name and state.live:
            return
        child = Stream(stream.tenant, RUN, name)
        entry = await self._find(child)
        damage = self._runs.damage(child) if entry is None else None
        if damage is not None:
            # It cannot be told whether it was closed, so the message stays.
            raise damage
        if entry is not None and entry.state.live and entry.state.parent == (stream.key, node, visit, index):
            await self._turns.command(child, Cancel(reason="its parent no longer waits for it", attempt=attempt))

    # From the child

    async def report(self, stream: Stream, state: State, lost: int = 0) -> None:
        if state.live or state.parent is None:
            return
        entry = await self._find(stream)
        if entry is None or entry.state.live:
            return
        parent = Stream(stream.tenant, RUN, state.parent[0])
        await self._turns.command(parent, await self._ended(stream, entry, lost))

    async def _ended(self, child: Stream, entry: CachedRun, lost: int) -> ChildEnded:
        state = entry.state
        assert state.parent is not None
        _, node, visit, index = state.parent
        status: str = state.status
        error, output = state.error, None
        if status == "COMPLETED":
            # Its outputs may be more than a worker can hold.
            error = worker_killer(lost, "loaded its outputs") or _too_large(entry)
            if error is None:
                output = await self._outputs(child, entry)
            else:
                status = REFUSED
        elif error is None and status == "CANCELLED":
            error = Error("child_cancelled", state.reason or "it was cancelled")
        return ChildEnded(
            node=node,
            visit=visit,
            index=index,
            child=child.key,
            status=status,
            output=output,
            error=error,
            attempt=served(state.commands),
            spent=None if state.spent == NOTHING_SPENT else state.spent,
            **_content_of(state),
        )

    async def _outputs(self, child: Stream, entry: CachedRun) -> Payload:
        """What a COMPLETED child returns, put together without decoding it."""
        state, parts = entry.state, list[bytes]()
        if state.outputs is not None:
            return state.outputs
        for name in entry.flow.workflow.terminals:
            output = state.peek(name).output
            if output is not None:
                text = await self._blobs.get(child.tenant, output.digest) if isinstance(output, BlobRef) else output
                parts.append(encode_value(name) + b":" + text)
        return await as_payload(self._blobs, child.tenant, b"{" + b",".join(parts) + b"}")

    # For the reconciler

    async def look_after(self, stream: Stream, entry: CachedRun) -> None:
        """Deliver again what may have been lost: the end of a child, or of the parent that waited for it.

        A child reports by a job of its own, so that workers that are lost with it are counted.
        """
        waits = _children(entry.state)
        known = await self._runs.refresh([Stream(stream.tenant, RUN, wait.name) for *_, wait in waits])
        for node, visit, index, wait in waits:
            child = known.get(Stream(stream.tenant, RUN, wait.name))
            ours = child is not None and child.state.parent == (stream.key, node, visit, index)
            if child is not None and ours and not child.state.live:
                await self._turns.put_job(Stream(stream.tenant, RUN, wait.name), system_job("report"), child.state.seq)
        if entry.state.parent is None or entry.state.close == ABANDON:
            return
        run_id, node, visit, index = entry.state.parent
        parent = await self._find(Stream(stream.tenant, RUN, run_id))
        if parent is not None:
            act = _activation(parent.state, node, visit, index)
            attempt = 0 if act is None else act.attempt
            where = (node, visit, index, attempt, stream.key)
            await self.close_child(Stream(stream.tenant, RUN, run_id), parent.state, *where)


def _content_of(state: State) -> dict[str, Any]:
    return {"workflow": state.workflow, "version": state.version, "digest": state.digest}


def _activation(state: State, node: str, visit: int, index: int) -> Activation | None:
    current = state.peek(node)
    return peek_at(current, index) if current.visit == visit else None


def _children(state: State) -> list[tuple[str, int, int, Wait]]:
    """Every wait for a child that is known to exist."""
    found: list[tuple[str, int, int, Wait]] = []
    for name, current in state.cells.items():
        acts = [(-1, current), *(current.map.known() if current.map is not None else ())]
        for index, act in acts:
            if act.wait is not None and act.wait.on == "child" and act.wait.started:
                found.append((name, current.visit, index, act.wait))
    return found


def _too_large(entry: CachedRun) -> Error | None:
    """The error of a child without `outputs` whose last nodes return too much together."""
    state = entry.state
    outputs = [state.peek(name).output for name in entry.flow.workflow.terminals] if state.outputs is None else []
    if sum(payload_size(output) for output in outputs if output is not None) <= LIST_BYTES_MAX:
        return None
    message = f"the outputs of the child have more than {LIST_BYTES_MAX} bytes"
    return Error("output_too_large", message, hint="give the child `outputs` with what the parent needs")


def _refused(where: tuple[str, int, int], child: str, error: Error) -> ChildEnded:
    node, visit, index = where
    return ChildEnded(node=node, visit=visit, index=index, child=child, status=REFUSED, error=error)
