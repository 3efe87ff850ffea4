"""Patch: let a run go on under another graph, without losing or doubling a token.

What has happened stays: a finished or live node may not change, and no edge may be added to or removed from a
join that has fired. Everything else is looked at anew: each visit that has not begun gets the inbound edges of
the new graph, decided by what their sources did, and the tokens that go with the taken ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.commands import Patch
from tidemill.kernel.events import Join, RunPatched
from tidemill.kernel.jobs import key_of, system_job
from tidemill.kernel.layers import everything
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.pen import Pen
from tidemill.kernel.reopening import refuse_reopening, reopen
from tidemill.kernel.state import ENDED, Cell, State

_DERIVED = frozenset({"inbound", "outbound", "plain", "loops", "reads", "reads_past", "reads_all"})
"""Fields of a node that follow from the rest of the graph."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a patch would do to a run."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    rerun: tuple[str, ...] = ()
    """Nodes that had begun and will be run again."""
    kept: tuple[str, ...] = ()
    """Nodes whose results stay."""


def verdict(old: Workflow, new: Workflow, state: State) -> Verdict:
    """What would be added, removed and changed, what would run again and what would stay."""
    again = not state.live
    return Verdict(
        added=tuple(name for name in new.by_id if name not in old.by_id),
        removed=tuple(name for name in old.by_id if name not in new.by_id),
        changed=tuple(node.id for node in new.nodes if node.id in old.by_id and _differs(old.by_id[node.id], node)),
        rerun=tuple(name for name in new.by_id if again and _reruns(state.peek(name))),
        kept=tuple(name for name in new.by_id if _final(state.peek(name))),
    )


def _reruns(cell: Cell) -> bool:
    return cell.status in ("FAILED", "CANCELLED") and not cell.tolerated and (cell.attempt > 0 or cell.fired)


def _final(cell: Cell) -> bool:
    return cell.status in ("COMPLETED", "SKIPPED") or (cell.status == "FAILED" and cell.tolerated)


def _differs(old: Node, new: Node) -> bool:
    """Whether a node itself was changed, and not only what surrounds it."""
    return any(_own(old, name) != _own(new, name) for name in old.__struct_fields__ if name not in _DERIVED)


def _own(node: Node, name: str) -> Any:
    value = getattr(node, name)
    if name == "loop" and value is not None:
        return msgspec.structs.replace(value, body=(), escapes=())
    return value


# Refusals


def refusal(pen: Pen, patch: Patch) -> Problem | None:
    """The first reason why a patch cannot be applied."""
    return next(problems(pen.flow, pen.state, patch), None) or _reopening_refusal(pen, patch)


def _reopening_refusal(pen: Pen, patch: Patch) -> Problem | None:
    return refuse_reopening(pen, patch.sure) if not pen.state.live else None


def problems(flow: Workflow, state: State, patch: Patch) -> Iterator[Problem]:
    """Every reason why a patch cannot be applied to a run."""
    if patch.base != state.digest:
        hint = "read the run's document again and make the patch against it"
        yield Problem(code="patch_stale", message="the run has another graph by now", path="/base", hint=hint)
        return
    if patch.expected_seq and patch.expected_seq != state.seq:
        message = f"the run is at event {state.seq}, not {patch.expected_seq}"
        yield Problem(code="patch_stale", message=message, path="/expected_seq", hint="look at the run again")
    if state.status == "COMPLETED":
        yield Problem(code="run_completed", message="the run is COMPLETED, and that is final", hint="fork it instead")
        return
    if not state.live and not patch.retry:
        hint = "ask for patch and retry together"
        yield Problem(code="patch_needs_retry", message=f"the run is {state.status}", hint=hint)
    if patch.workflow.name != flow.name:
        yield Problem(code="patch_name", message="a patch cannot rename the workflow of a run", path="/name")
    if state.rendering and patch.workflow.outputs is None:
        yield Problem(code="patch_too_late", message="the outputs are being rendered", path="/outputs")
    yield from _node_problems(flow, patch.workflow, state)


def _node_problems(old: Workflow, new: Workflow, state: State) -> Iterator[Problem]:
    for node in old.nodes:
        cell, after = state.peek(node.id), new.by_id.get(node.id)
        if after is None:
            if _fixed(cell):
                yield _fixed_problem(cell, node.id, "removed")
        elif _differs(node, after) and _fixed(cell):
            yield _fixed_problem(cell, node.id, "changed")
        elif node.loops != after.loops and _is_live(cell):
            yield _fixed_problem(cell, node.id, "put into another loop")
        if after is not None and _joined(state, cell) and set(node.inbound) != set(after.inbound):
            yield Problem(
                code="patch_join_fired",
                message=f"the edges into {node.id} cannot change: it has begun or was skipped",
                path=f"/nodes/{node.id}",
                hint="rewind the run to it first",
            )


def _is_live(cell: Cell) -> bool:
    return cell.status in ("QUEUED", "RUNNING", "WAITING")


def _fixed(cell: Cell) -> bool:
    """Whether a node's latest visit is under way or has its result."""
    return _is_live(cell) or cell.status in ("COMPLETED", "SKIPPED")


def _fixed_problem(cell: Cell, name: str, what: str) -> Problem:
    code = "patch_live_node" if _is_live(cell) else "patch_finished_node"
    message = f"node {name} is {cell.status} and cannot be {what}"
    return Problem(code=code, message=message, path=f"/nodes/{name}", hint="rewind the run to it first")


def _joined(state: State, cell: Cell) -> bool:
    """Whether a join has been settled and will not be looked at again."""
    return cell.settled and not _reopens(state, cell)


def _reopens(state: State, cell: Cell) -> bool:
    """Whether a visit that had ended is to be made again when the run goes on."""
    return not state.live and cell.status in ("FAILED", "CANCELLED") and not cell.tolerated


# Applying


def apply_patch(pen: Pen, patch: Patch) -> list[str]:
    """Go on under the new graph; a run that had ended is reopened in the same breath.

    Answers the nodes whose joins are to be looked at.
    """
    state, old, new = pen.state, pen.flow, patch.workflow
    seen = verdict(old, new, state)
    changed = set(seen.changed)
    joins = tuple(_joins(old, new, state))
    before = sum(state.peek(join.node).tokens for join in joins)
    lost = sum(state.peek(name).tokens for name in seen.removed)
    emitted = sum(join.tokens for join in joins)
    deadline = _deadline(pen, new)
    moved = deadline != state.deadline_ms
    pen.flow = new
    pen.emit(
        RunPatched(
            at_ms=pen.now,
            actor=pen.actor,
            command=pen.command,
            base=patch.base,
            digest=new.digest,
            revision=state.revision + 1,
            patch=patch.patch,
            added=seen.added,
            removed=seen.removed,
            changed=seen.changed,
            joins=joins,
            relisted=tuple(node.id for node in new.nodes if node.id in changed and _relists(old, node, state)),
            emitted=emitted,
            consumed=before + lost,
            counter=state.counter + emitted - before - lost,
            deadline_at_ms=deadline,
            message=patch.message,
        )
    )
    pen.cause = state.seq
    if not state.live:
        return reopen(pen, patch.message, patch.sure)
    if moved:
        pen.drop(key_of("deadline"))
        if deadline is not None:
            pen.put(system_job("deadline", deadline))
    return [join.node for join in joins]


def _deadline(pen: Pen, new: Workflow) -> int | None:
    if new.limits.deadline_ms == pen.flow.limits.deadline_ms:
        return pen.state.deadline_ms
    return None if new.limits.deadline_ms is None else pen.state.created_ms + new.limits.deadline_ms


def _relists(old: Workflow, node: Node, state: State) -> bool:
    """Whether a map that had its list must make a new one; other changes leave the items that completed alone."""
    return state.peek(node.id).map is not None and old.by_id[node.id].map != node.map


def _joins(old: Workflow, new: Workflow, state: State) -> Iterator[Join]:
    """The inbound edges, under the new graph, of every visit that has not begun and whose edges are others now."""
    for node in new.nodes:
        cell, before = state.peek(node.id), old.by_id.get(node.id)
        same = before is not None and set(before.inbound) == set(node.inbound)
        if same or _joined(state, cell):
            continue
        edges = {source: _edge(old, new, state, source, node.id) for source in node.inbound}
        decided = tuple((source, taken) for source, taken in edges.items() if taken is not None)
        own = not node.inbound
        tokens = int(own) or sum(taken for _, taken in decided)
        yield Join(node.id, decided, tokens if state.live else 0, own)


def _edge(old: Workflow, new: Workflow, state: State, source: str, target: str) -> bool | None:
    """What an edge of the new graph was decided to be by the visit that its source has made."""
    known = old.by_id.get(source)
    if known is not None and target in known.outbound:
        return everything(state.peek(target).edges).get(source)
    cell = state.peek(source)
    if cell.status not in ENDED or _reopens(state, cell):
        return None
    return target in new.by_id[source].plain and (cell.status == "COMPLETED" or cell.tolerated)
