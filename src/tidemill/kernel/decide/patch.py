"""Apply a graph patch to a run without losing or doubling a token.

History stays: a finished or live node must not change, and a join that has fired keeps its edges. Every visit that
has not started gets the inbound edges of the new graph, decided by what their sources did, with one token per taken
edge. `problems` yields every reason for a refusal; the document format of patches is in `document.json_patch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.activation import ENDED
from tidemill.kernel.commands import Patch
from tidemill.kernel.decide.builder import DecisionBuilder
from tidemill.kernel.decide.operations import refuse_reopening, reopen, stays
from tidemill.kernel.events import Join, RunPatched
from tidemill.kernel.jobs import key_of, system_job
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State, Visit

_DERIVED = frozenset({"inbound", "outbound", "plain", "loops", "reads", "reads_past", "reads_all"})
"""Fields of a node that follow from the rest of the graph."""


class PatchVerdict(msgspec.Struct, frozen=True, kw_only=True):
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    rerun: tuple[str, ...] = ()
    """Nodes that had started and will run again."""
    kept: tuple[str, ...] = ()
    """Nodes whose results stay."""


def verdict(old: Workflow, new: Workflow, state: State) -> PatchVerdict:
    visits = [(name, state.peek(name)) for name in new.by_id]
    rerun = tuple(name for name, visit in visits if _reopens(state, visit) and (visit.attempt > 0 or visit.fired))
    kept = tuple(name for name, visit in visits if stays(visit))
    return msgspec.structs.replace(_difference(old, new), rerun=rerun, kept=kept)


def _difference(old: Workflow, new: Workflow) -> PatchVerdict:
    """What a patch does to the graph, whatever the state of the run."""
    return PatchVerdict(
        added=tuple(name for name in new.by_id if name not in old.by_id),
        removed=tuple(name for name in old.by_id if name not in new.by_id),
        changed=tuple(node.id for node in new.nodes if node.id in old.by_id and _differs(old.by_id[node.id], node)),
    )


def _differs(old: Node, new: Node) -> bool:
    """Whether the node itself differs, not only the graph around it."""
    if old == new:
        return False
    return any(_own(old, name) != _own(new, name) for name in old.__struct_fields__ if name not in _DERIVED)


def _own(node: Node, name: str) -> Any:
    value = getattr(node, name)
    if name == "loop" and value is not None:
        return msgspec.structs.replace(value, body=(), escapes=())
    return value


def refusal(builder: DecisionBuilder, patch: Patch) -> Problem | None:
    problem = next(problems(builder.flow, builder.state, patch), None)
    if problem is not None or builder.state.live:
        return problem
    return refuse_reopening(builder, patch.confirmed_not_done)


def problems(flow: Workflow, state: State, patch: Patch) -> Iterator[Problem]:
    """Every reason why a patch cannot be applied to a run."""
    if patch.base != state.digest:
        hint = "read the run's document again and make the patch against it"
        yield Problem(code="patch_stale", message="the graph of the run has changed since", path="/base", hint=hint)
        return
    if patch.expected_seq and patch.expected_seq != state.seq:
        message = f"the run is at event {state.seq}, not {patch.expected_seq}"
        yield Problem(code="patch_stale", message=message, path="/expected_seq", hint="read the run again")
    if state.status == "COMPLETED":
        yield Problem(code="run_completed", message="the run is COMPLETED, and that is final", hint="fork it instead")
        return
    if not state.live and not patch.retry:
        hint = "apply it together with a retry: `--retry`, or `retry=True`"
        yield Problem(code="patch_needs_retry", message=f"the run is {state.status}", hint=hint)
    if patch.workflow.name != flow.name:
        hint = "leave the name as it is, or publish the document under the other name"
        yield Problem(code="patch_name", message="a patch cannot rename the workflow of a run", path="/name", hint=hint)
    if state.rendering and patch.workflow.outputs is None:
        hint = "let the run end, then fork it with this patch"
        yield Problem(code="patch_too_late", message="the outputs are being rendered", path="/outputs", hint=hint)
    yield from _node_problems(flow, patch.workflow, state)


def _node_problems(old: Workflow, new: Workflow, state: State) -> Iterator[Problem]:
    same_loops = old.bodies == new.bodies
    for node in old.nodes:
        after = new.by_id.get(node.id)
        if same_loops and node == after:
            continue
        visit = state.peek(node.id)
        if after is None:
            if _fixed(visit):
                yield _fixed_problem(state, node.id, "removed")
        elif _differs(node, after) and _fixed(visit):
            yield _fixed_problem(state, node.id, "changed")
        elif node.loops != after.loops and _is_live(visit):
            yield _fixed_problem(state, node.id, "put into another loop")
        elif _relists(old, after, state) and _items_begun(visit):
            yield Problem(
                code="patch_items_begun",
                message=f"items of {node.id} have begun: items of another list would be mistaken for them",
                path=f"/nodes/{node.id}/map",
                hint=f"fork the run with this patch, beginning at {node.id}",
            )
        if after is not None and _joined(state, visit) and _other_edges(old, new, state, node, after):
            yield Problem(
                code="patch_join_fired",
                message=f"the edges into {node.id} cannot change: it has begun or was skipped",
                path=f"/nodes/{node.id}",
                hint=_change_hint(state, node.id),
            )


def _other_edges(old: Workflow, new: Workflow, state: State, node: Node, after: Node) -> bool:
    """Whether a join would have other edges: other sources, or a dead edge that a loop could still take."""
    if set(node.inbound) != set(after.inbound):
        return True
    dead = [source for source in node.inbound if state.peek(node.id).edges.get(source) is False]
    return any(
        _may_come_back(new, state, source, node.id) and not _may_come_back(old, state, source, node.id)
        for source in dead
        if source in new.by_id
    )


def _items_begun(visit: Visit) -> bool:
    """Whether any item of a map has used its effect key."""
    items = () if visit.map is None else visit.map.known()
    return any(item.attempt > 0 or item.status == "COMPLETED" for _, item in items)


def _is_live(visit: Visit) -> bool:
    return visit.status in ("QUEUED", "RUNNING", "WAITING")


def _fixed(visit: Visit) -> bool:
    """Whether a node's latest visit is in flight or has its result."""
    return _is_live(visit) or visit.status in ("COMPLETED", "SKIPPED")


def _fixed_problem(state: State, name: str, what: str) -> Problem:
    visit = state.peek(name)
    code = "patch_live_node" if _is_live(visit) else "patch_finished_node"
    message = f"node {name} is {visit.status} and cannot be {what}"
    return Problem(code=code, message=message, path=f"/nodes/{name}", hint=_change_hint(state, name))


def _change_hint(state: State, name: str) -> str:
    fork = f"fork the run with this patch, beginning at {name}"
    return f"cancel the run and patch it together with a retry, or {fork}" if _is_live(state.peek(name)) else fork


def _joined(state: State, visit: Visit) -> bool:
    return visit.settled and not _reopens(state, visit)


def _reopens(state: State, visit: Visit) -> bool:
    """Whether an ended visit starts again when the run continues."""
    return not state.live and visit.status in ("FAILED", "CANCELLED") and not visit.tolerated


def apply_patch(builder: DecisionBuilder, patch: Patch) -> list[str]:
    """Switch the run to the new graph, and reopen it if it had ended; return the nodes whose joins to check."""
    state, old, new = builder.state, builder.flow, patch.workflow
    change = _difference(old, new)
    changed = set(change.changed)
    joins = tuple(_joins(old, new, state))
    emitted = sum(join.tokens for join in joins)
    consumed = sum(state.peek(name).tokens for name in (*(join.node for join in joins), *change.removed))
    if state.rendering and emitted:
        # New visits come before the outputs, so the rendering gives its token back.
        consumed += 1
        builder.remove_job(key_of("outputs"))
    before = state.deadline_ms
    deadline = _deadline(builder, new)
    builder.flow = new
    builder.emit(
        RunPatched(
            **builder.command_fields,
            base=patch.base,
            digest=new.digest,
            revision=state.revision + 1,
            patch=patch.patch,
            added=change.added,
            removed=change.removed,
            changed=change.changed,
            joins=joins,
            relisted=tuple(node.id for node in new.nodes if node.id in changed and _relists(old, node, state)),
            emitted=emitted,
            consumed=consumed,
            counter=state.counter + emitted - consumed,
            deadline_at_ms=deadline,
            message=patch.message,
        )
    )
    builder.cause = state.seq
    if not state.live:
        return reopen(builder, patch.message, patch.confirmed_not_done)
    if state.deadline_ms != before:
        builder.remove_job(key_of("deadline"))
        if state.deadline_ms is not None:
            builder.add_job(system_job("deadline", state.deadline_ms))
    # Loops may have waited for a removed node.
    waits = ((name, state.peek(name).wait) for name in new.bodies)
    builder.loops.extend(name for name, wait in waits if wait is not None and wait.on == "loop")
    # A join of another kind may fire over edges that were decided before.
    return [*(join.node for join in joins), *change.changed]


def _deadline(builder: DecisionBuilder, new: Workflow) -> int | None:
    """The deadline under the new graph, from the same start time as the old one."""
    state, was, allowed = builder.state, builder.flow.limits.deadline_ms, new.limits.deadline_ms
    if allowed == was:
        return state.deadline_ms
    if state.deadline_ms is not None and (was is None or state.deadline_ms < state.created_ms + was):
        # The start of the run set it, tighter than its workflow did.
        return state.deadline_ms if allowed is None else min(state.deadline_ms, state.created_ms + allowed)
    if allowed is None:
        return None
    if was is not None and state.deadline_ms is not None:
        return state.deadline_ms - was + allowed
    return (state.created_ms if state.forked_from is None else builder.now) + allowed


def _relists(old: Workflow, node: Node, state: State) -> bool:
    """Whether a map must evaluate its list again; other changes keep the completed items."""
    return state.peek(node.id).map is not None and _list_of(old.by_id[node.id]) != _list_of(node)


def _list_of(node: Node) -> Any:
    return None if node.map is None else (node.map.over,)


def _joins(old: Workflow, new: Workflow, state: State) -> Iterator[Join]:
    """Inbound edges, under the new graph, of every unstarted visit whose edges change."""
    same_loops = old.bodies == new.bodies
    for node in new.nodes:
        before = old.by_id.get(node.id)
        if same_loops and before is not None and before.inbound == node.inbound:
            continue
        visit = state.peek(node.id)
        if _joined(state, visit):
            continue
        edges = {source: _edge(old, new, state, source, node.id) for source in node.inbound}
        same = before is not None and set(before.inbound) == set(node.inbound)
        if same and all(visit.edges.get(source) is taken for source, taken in edges.items()):
            continue
        decided = tuple((source, taken) for source, taken in edges.items() if taken is not None)
        own = (same and visit.has_start_token) or not node.inbound
        tokens = int(own) or sum(taken for _, taken in decided)
        yield Join(node.id, decided, tokens if state.live else 0, own)


def _edge(old: Workflow, new: Workflow, state: State, source: str, target: str) -> bool | None:
    """How its latest visit decides an edge of the new graph: taken, dead, or None while a loop may repeat it."""
    known, visit = old.by_id.get(source), state.peek(source)
    was = known is not None and target in known.outbound
    recorded = state.peek(target).edges.get(source) if was else None
    if recorded or known is None or visit.status not in ENDED or _reopens(state, visit):
        return bool(recorded) if recorded is not None else None
    # A visit that ended by its plain edges takes a new one: not by an error, time-out or exit path.
    tolerated = visit.status == "FAILED" and visit.tolerated and known.on_error == "continue"
    went_on = tolerated or (visit.status == "COMPLETED" and not visit.left_by_exit)
    if not was and target in new.by_id[source].plain and went_on:
        return True
    return None if _may_come_back(new, state, source, target) else False


def _may_come_back(flow: Workflow, state: State, source: str, target: str) -> bool:
    """Whether a loop around the source of an edge, but not around its target, may make another pass."""
    for looping in flow.by_id[source].loops:
        if target in flow.bodies[looping]:
            return False
        visit = state.peek(looping)
        if looping != source and (visit.status not in ENDED or _reopens(state, visit)):
            return True
    return False
