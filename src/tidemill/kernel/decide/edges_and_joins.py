"""Pure edge and join rules: which edges a visit takes when it ends, and whether a join fires.

Read-only: everything here reads the workflow and the state. An edge is undecided, taken or dead; a join looks at its
edges only, never at the statuses of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Literal

from tidemill.kernel.activation import DISPATCHED, ENDED
from tidemill.kernel.events import Route
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State, Visit

JoinVerdict = Literal["fire", "skip"]


def join_verdict(node: Node, visit: Visit) -> JoinVerdict | None:
    """Whether a join fires, is skipped, or (None) has to wait for more edges."""
    taken = visit.taken
    undecided = len(node.inbound) - taken - visit.dead
    match node.join:
        case "all":
            return None if undecided else ("fire" if taken else "skip")
        case "strict":
            return None if undecided else ("skip" if visit.dead else "fire")
        case "any":
            return "fire" if taken else (None if undecided else "skip")
        case "quorum":
            if taken >= node.quorum:
                return "fire"
            return "skip" if taken + undecided < node.quorum else None


def on_completion(node: Node, route: Route | None) -> tuple[str, ...]:
    """Edges taken by a completed visit; on a looping node, by one that leaves its loop."""
    if not node.routed:
        return node.plain
    chosen = set(node.plain)
    if node.loop is not None:
        chosen.update(node.loop.break_path)
    if route is not None and route.branch:
        chosen.update(route.branch)
    return tuple(target for target in node.outbound if target in chosen)


def on_exhaustion(node: Node) -> tuple[str, ...]:
    """Edges taken after a loop's last allowed pass: the time-out path alone."""
    assert node.loop is not None, "only a looping node can exhaust its passes"
    return tuple(target for target in node.outbound if target in node.loop.timeout_path)


def on_tolerated_failure(node: Node) -> tuple[str, ...]:
    """Edges taken by a tolerated failure; no condition is evaluated over an error."""
    if node.on_error == "route":
        chosen = set(node.error_path)
    else:
        chosen = set(node.plain)
        if node.loop is not None:
            chosen.update(node.loop.break_path)
        if node.branch is not None:
            chosen.update(node.branch.default)
    return tuple(target for target in node.outbound if target in chosen)


def route_problem(node: Node, route: Route | None) -> str | None:
    """Why the document does not allow a reported route; None if it does."""
    if not node.routed:
        return None if route is None else "the node has no conditions"
    if route is None:
        return "the node's conditions were not evaluated"
    if (node.loop is not None) is (route.again is None):
        return "the loop's condition was not evaluated" if node.loop else "the node has no loop"
    if route.again or node.branch is None:
        return "the branch was evaluated too early" if route.branch is not None else None
    if route.branch is None:
        return "the branch was not evaluated"
    if node.branch.kind == "agent_driven":
        if route.branch == node.branch.default:
            return None
        strange = [target for target in route.branch if target not in node.branch.available]
        if strange:
            return f"{', '.join(strange)} is not among the nodes it may choose"
        return None if route.branch else "nothing was chosen, which means the default"
    if route.rule >= len(node.branch.rules):
        return f"the branch has no rule {route.rule + 1}"
    legal = node.branch.default if route.rule < 0 else node.branch.rules[route.rule].next_nodes
    return None if route.branch == legal else "the targets are not those of the rule that matched"


def dead_edges(flow: Workflow, state: State, node: Node, taken: tuple[str, ...]) -> tuple[str, ...]:
    """The edges that die when a visit ends and takes only some of them."""
    chosen = set(taken)
    dead = (t for t in node.outbound if t not in chosen and not open_loop(flow, state, node, t, node.id))
    # An edge that an earlier pass took stays taken, even if a patch has removed the loop.
    return tuple([t for t in dead if not state.peek(t).edges.get(node.id)])


def absorbed_tokens(state: State, node: Node, taken: tuple[str, ...]) -> int:
    """How many tokens reach a settled join: they are emitted and consumed at once."""
    count = 0
    for target in taken:
        visit = state.peek(target)
        if visit.settled or visit.edges.get(node.id):
            count += 1
    return count


def open_loop(flow: Workflow, state: State, node: Node, target: str, ending: str = "") -> str:
    """The loop whose later pass may take an untaken edge, or an empty string; `ending` is a loop that ends now."""
    for looping in node.loops:
        if looping == ending:
            continue
        if target in flow.bodies[looping]:
            return ""
        if state.peek(looping).status not in ENDED:
            return looping
    return ""


def dead_escapes(flow: Workflow, state: State, node: Node) -> tuple[tuple[str, str], ...]:
    """Edges of other body nodes that die with the end of this loop."""
    assert node.loop is not None
    return tuple(
        (source, target)
        for source, target in node.loop.escapes
        if state.peek(target).edges.get(source) is None
        and state.peek(source).status in ENDED
        and not open_loop(flow, state, flow.by_id[source], target, node.id)
    )


def body_busy(flow: Workflow, state: State, node: Node) -> bool:
    """Whether another visit of this loop's body is in flight, so that the next pass must wait.

    A visit that holds a token counts too: a node behind it may have been overridden before it started.
    """
    assert node.loop is not None
    cells = (state.peek(name) for name in node.loop.body if name != node.id)
    return any(in_flight(visit) or visit.tokens > 0 for visit in cells)


def in_flight(visit: Visit) -> bool:
    return visit.fired and visit.status not in ENDED


def descendants(flow: Workflow, node: str) -> set[str]:
    """Nodes reachable over any edge, loop-backs excluded."""
    return _reached(flow, node, _OUTBOUND)


def ancestors(flow: Workflow, node: str) -> set[str]:
    """Nodes from which a node is reachable over any edge, loop-backs excluded."""
    return _reached(flow, node, _INBOUND)


_OUTBOUND, _INBOUND = attrgetter("outbound"), attrgetter("inbound")


def _reached(flow: Workflow, node: str, edges: Callable[[Node], Iterable[str]]) -> set[str]:
    nodes, seen, pending = flow.by_id, set[str](), [node]
    while pending:
        for name in edges(nodes[pending.pop()]):
            if name not in seen:
                seen.add(name)
                pending.append(name)
    return seen


def owns_job(visit: Visit) -> bool:
    """Whether the visit itself has a job; between expansion and assembly only the items of a map do."""
    return visit.status in DISPATCHED and not (visit.map is not None and visit.status == "RUNNING")
