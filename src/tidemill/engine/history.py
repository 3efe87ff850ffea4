"""Looking at a run: as it is, as it was, the way it went, why it waits, and how it differs from another."""

from __future__ import annotations

from shlex import quote
from typing import Any

import msgspec

from tidemill.engine.answers import child_id
from tidemill.engine.indexing import row_like
from tidemill.engine.roster import Roster
from tidemill.engine.rows import RUN, read_run_row
from tidemill.engine.runs import Entry
from tidemill.engine.unread import Unread
from tidemill.engine.unstarted import Unstarted
from tidemill.engine.views import RunView, view_run
from tidemill.errors import offered, rejected
from tidemill.kernel.codec import decode_event, plain
from tidemill.kernel.events import AnyEvent
from tidemill.kernel.evolve import replay
from tidemill.kernel.explain import Explanation, JobFact, explain
from tidemill.kernel.explain.account import Account, account_for
from tidemill.kernel.messages import CHILD_FAILED
from tidemill.kernel.sight import Step, path, tokens
from tidemill.stores.contract import JobView, Row


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs side by side, node by node."""

    left: str
    right: str
    same: bool
    outputs_same: bool
    first_divergence: str | None
    """The first node, in the order in which the left run ended them, that did not come out the same."""
    nodes: tuple[dict[str, Any], ...]


class History(Roster):
    """The verbs."""

    async def show(self, run_id: str, *, at: int | None = None) -> RunView:
        """The run as it is now, or as it was after event `at`."""
        entry = await self._at(run_id, at)
        view = await view_run(self._stream(run_id), entry.state, entry.flow, self._blobs, gaps=True)
        view.stuck = await self._stuck_reason(run_id, entry) if at is None else ""
        return view

    async def _stuck_reason(self, run_id: str, entry: Entry) -> str:
        """Why a worker gave up on a run for the time being; nothing once the run has gone on."""
        state = entry.state
        if not state.busy:
            return ""
        like = Row(kind=RUN, key=run_id, sort=state.created_ms, terms=("stuck", f"workflow:{state.workflow}"))
        row = await row_like(self._store, self._tenant, like)
        shown = None if row is None else read_run_row(row)
        return shown.stuck_reason if shown is not None and shown.events == state.seq else ""

    async def _at(self, run_id: str, at: int | None) -> Entry:
        if at is None:
            return await self._entry(run_id)
        state = replay(await self._events_until(run_id, at))
        return Entry(state, await self.catalog.flow(self._tenant, state.digest))

    async def _events_until(self, run_id: str, at: int) -> list[AnyEvent]:
        tail = await self._tail(run_id, 0, max(at, 0))
        if not 1 <= at <= tail.version:
            message = f"the run has events 1 to {tail.version}, not {at}"
            raise rejected("event_unknown", message, path="/at", hint="see `tidemill runs events`")
        return [decode_event(record) for record in tail.records]

    async def events(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        """The run's events so far, from `after` + 1 on."""
        if after < 0:
            raise rejected("cursor_invalid", "events are counted from 1", path="/after")
        tail = await self._tail(run_id, after, None if limit is None else max(limit, 0))
        return [plain(decode_event(record), seq) for seq, record in enumerate(tail.records, after + 1)]

    async def path(self, run_id: str, *, at: int | None = None) -> list[dict[str, Any]]:
        """The way the run went: every visit in the order in which they ended, each with the edges it took."""
        events = await (self._log(run_id) if at is None else self._events_until(run_id, at))
        return [_step_view(step) for step in path(events)]

    async def tokens(self, run_id: str, *, at: int | None = None) -> list[dict[str, Any]]:
        """What is in flight: the tokens that the run's counter counts."""
        entry = await self._at(run_id, at)
        return [
            {"from": token.source, "to": token.to, "visit": token.visit, "hop": token.hop}
            for token in tokens(entry.flow.workflow, entry.state)
        ]

    async def why(self, run_id: str) -> Explanation:
        """What the run waits for, since when, and what unblocks it; of a failed run, the first cause."""
        entry = await self._entry(run_id)
        jobs = await self._store.jobs(self._stream(run_id))
        facts = [_fact(job) for job in jobs]
        if entry.state.blobs:
            facts = await Unread(self._blobs, self._tenant, entry).noted(facts, self._store.now_ms())
        unstarted = Unstarted(self.catalog, self.runs, self._blobs, self._stream(run_id), entry.state)
        facts = await unstarted.noted(facts)
        workers = await self._workers(entry.state.digest)
        found = explain(entry.flow.workflow, entry.state, facts, self._store.now_ms(), workers=workers)
        if stuck := await self._stuck_reason(run_id, entry):
            headline = f"the run is stuck: {stuck}; {found.headline}"
            found = msgspec.structs.replace(found, stuck=stuck, headline=headline)
        return await self._of_a_child(run_id, found)

    async def why_node(self, run_id: str, node: str) -> Account:
        """How the visits of a node ended and what decided that, or what it waits for."""
        entry = await self._entry(run_id)
        known = entry.flow.workflow.by_id.get(node)
        if known is None:
            hint = offered(str(node), entry.flow.workflow.by_id)
            raise rejected("node_unknown", f"the workflow has no node {node}", path="/node", hint=hint)
        found = await self.why(run_id)
        return account_for(entry.state, await self._log(run_id), known, found.blockers)

    async def _of_a_child(self, run_id: str, found: Explanation) -> Explanation:
        """Lead on to the child that a run has failed with, where it ever began."""
        cause = found.first_cause
        if cause is None or cause.error.code != CHILD_FAILED or found.rollback != "none":
            return found
        child = self._stream(child_id(run_id, cause.node, cause.visit, cause.index))
        if child not in await self.runs.refresh([child]):
            return found
        words = "see why the child run failed and put that right, then retry this run: what completed stays"
        return msgspec.structs.replace(found, unblock=words, command=f"tidemill why {quote(child.key)}")

    async def compare(self, run_id: str, other_id: str) -> Comparison:
        """Two runs side by side: which nodes came out the same, and where they first went apart."""
        left, right = await self.show(run_id), await self.show(other_id)
        order = [step["node"] for step in await self.path(run_id)]
        names = [*dict.fromkeys([*order, *left.nodes, *right.nodes])]
        nodes = tuple(_beside(name, left.nodes.get(name), right.nodes.get(name)) for name in names)
        apart = [node["node"] for node in nodes if not node["same"]]
        outputs_same = bool(left.outputs == right.outputs)
        return Comparison(
            left=run_id,
            right=other_id,
            same=not apart and outputs_same and left.status == right.status,
            outputs_same=outputs_same,
            first_divergence=apart[0] if apart else None,
            nodes=nodes,
        )


def _fact(view: JobView) -> JobFact:
    return JobFact(
        key=view.job.key,
        queue=view.job.queue,
        ready_at_ms=view.job.ready_at_ms,
        owner=view.owner,
        lease_expires_at_ms=view.lease_expires_at_ms,
        expired=view.void,
    )


def _step_view(step: Step) -> dict[str, Any]:
    return {**msgspec.structs.asdict(step), "went": list(step.went)}


def _beside(name: str, left: dict[str, Any] | None, right: dict[str, Any] | None) -> dict[str, Any]:
    compared = ("status", "output")
    same = left is not None and right is not None and all(left[key] == right[key] for key in compared)
    return {"node": name, "same": same, "left": left, "right": right}
