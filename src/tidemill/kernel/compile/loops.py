"""Loop bodies: which nodes a loop repeats, and whether they can be repeated as a whole.

A body is every node on a path from `loop_back_to` to the looping node. It is entered at the one and left at the
other; only error and exit paths may leave it elsewhere. Bodies are disjoint or nested. A document that breaks
one of these is refused with the edge that breaks it, because a run could not say which pass it is in.
"""

from __future__ import annotations

from itertools import pairwise

from tidemill.kernel.compile.graph import ESCAPING, Edge, Graph, Rule, walk
from tidemill.kernel.document.findings import shown
from tidemill.kernel.document.nodes import UNLIMITED
from tidemill.kernel.document.normal import Draft

NESTING_MAX = 32


class Loops:
    """The loops of a workflow by the number of their looping node."""

    __slots__ = ("around", "bodies", "escapes")

    def __init__(self) -> None:
        self.bodies: dict[int, set[int]] = {}
        self.escapes: dict[int, list[Edge]] = {}
        """Edges that leave a body from another node than its last: error and exit paths."""
        self.around: dict[int, list[int]] = {}
        """For each node in a loop: the looping nodes of the loops around it, innermost first."""

    def share(self, one: int, other: int) -> bool:
        """Whether some loop is around both nodes."""
        return not set(self.around.get(one, ())).isdisjoint(self.around.get(other, ()))


def find_loops(draft: Draft, graph: Graph) -> Loops:
    """Compute every body and record what is wrong with it.

    Ill-formed bodies are in the answer too, so that what is said of a loop is not said again of its references.
    """
    loops = Loops()
    looping = [number for number, node in enumerate(draft.nodes) if "loop" in node]
    if not looping:
        return loops
    _check_bounds(draft, looping)
    if not graph.acyclic:
        return loops
    # A well-formed document visits each node once per loop around it; this is what ends a hostile one.
    left = 2 * NESTING_MAX * len(draft.nodes)
    sound: set[int] = set()
    for number in looping:
        entry = _entry(draft, number)
        if entry is None:
            continue
        body, visited = _body(graph, entry, number)
        left -= visited
        if left < 0:
            _too_deep(draft, number)
            return loops
        if entry not in body:
            _not_an_ancestor(draft, number, entry)
            body = {number}
        elif _well_formed(draft, graph, entry, number, body, loops):
            sound.add(number)
        loops.bodies[number] = body
    _nest(draft, loops, sound)
    return loops


def _check_bounds(draft: Draft, looping: list[int]) -> None:
    limits = draft.document.get("limits", {})
    if "deadline_seconds" in limits or "max_visits" in limits:
        return
    for number in looping:
        if draft.nodes[number]["loop"].get("max_iterations") == UNLIMITED:
            hint = "set `limits.deadline_seconds` or `limits.max_visits`"
            message = "an unlimited loop needs another bound"
            draft.place(number).problem("unbounded_loop", "loop/max_iterations", message, hint)


def _entry(draft: Draft, number: int) -> int | None:
    name = draft.nodes[number]["loop"].get("loop_back_to")
    entry = draft.index.get(name)
    if entry is None and name is not None:
        message = f"`{shown(name)}` is not a node of this workflow"
        hint = draft.found.nearest(name, draft.index)
        draft.place(number).problem("unknown_target", "loop/loop_back_to", message, hint)
    return entry


def _body(graph: Graph, entry: int, exit_: int) -> tuple[set[int], int]:
    """The nodes between entry and exit, and how many were looked at; without the entry there is no such path."""
    if entry == exit_:
        return {entry}, 1
    first = graph.rank[entry]
    before = {exit_}
    agenda = [exit_]
    while agenda:
        for source in graph.into[agenda.pop()]:
            if source not in before and graph.rank[source] >= first:
                before.add(source)
                agenda.append(source)
    if entry not in before:
        return set(), len(before)
    inside = {number: [target for target in graph.out[number] if target in before] for number in before}
    return set(walk(inside, [entry])), len(before)


def _too_deep(draft: Draft, number: int) -> None:
    message = f"loops are nested more than {NESTING_MAX} levels deep"
    draft.place(number).problem("loops_too_deep", "loop", message, "unite some of the loops")


def _not_an_ancestor(draft: Draft, number: int, entry: int) -> None:
    name = shown(draft.nodes[entry]["id"])
    message = f"the loop goes back to `{name}`, from which no path leads here"
    draft.place(number).problem("loop_back_not_ancestor", "loop/loop_back_to", message, "name this node or an ancestor")


def _well_formed(draft: Draft, graph: Graph, entry: int, exit_: int, body: set[int], loops: Loops) -> bool:
    """Whether the body is entered at its entry and left at its exit only; keeps the edges that may escape."""
    before = len(draft.found.problems) + draft.found.dropped
    escapes: list[Edge] = []
    for number in sorted(body):
        if number != entry:
            for source in graph.into[number]:
                if source not in body:
                    _enters(draft, graph, (source, number), entry, exit_)
        if number != exit_:
            for target in graph.out[number]:
                if target in body:
                    continue
                if graph.ruled.get((number, target), Rule.BRANCH) & ~ESCAPING:
                    _leaves(draft, graph, (number, target), entry, exit_)
                else:
                    escapes.append((number, target))
    loops.escapes[exit_] = escapes
    return len(draft.found.problems) + draft.found.dropped == before


def _enters(draft: Draft, graph: Graph, edge: Edge, entry: int, exit_: int) -> None:
    source, target, first, last = (shown(graph.ids[number]) for number in (*edge, entry, exit_))
    message = f"edge {source} → {target} enters the loop {first} … {last} elsewhere than at `{first}`"
    hint = f"let `{first}` depend on `{source}`, or go back to a node before `{source}`"
    draft.place(exit_).problem("loop_entered_inside", "loop", message, hint)


def _leaves(draft: Draft, graph: Graph, edge: Edge, entry: int, exit_: int) -> None:
    source, target, first, last = (shown(graph.ids[number]) for number in (*edge, entry, exit_))
    message = f"edge {source} → {target} leaves the loop {first} … {last} elsewhere than at `{last}`"
    hint = (
        f"let `{target}` depend on `{last}`, or put it on a way to `{last}`; only error and rejection paths may leave"
    )
    draft.place(exit_).problem("loop_left_inside", "loop", message, hint)


def _nest(draft: Draft, loops: Loops, sound: set[int]) -> None:
    """Order the loops around every node from the inside out, and record pairs that overlap."""
    for looping in sorted(loops.bodies, key=lambda number: (len(loops.bodies[number]), number)):
        for number in loops.bodies[looping]:
            loops.around.setdefault(number, []).append(looping)
    checked: set[Edge] = set()
    for around in loops.around.values():
        if len(around) > NESTING_MAX:
            _too_deep(draft, around[-1])
            return
        for pair in pairwise(around):
            if pair not in checked and sound.issuperset(pair):
                checked.add(pair)
                _check_nested(draft, loops, *pair)


def _check_nested(draft: Draft, loops: Loops, inner: int, outer: int) -> None:
    if loops.bodies[inner] <= loops.bodies[outer]:
        return
    names = [shown(draft.nodes[number]["id"]) for number in (inner, outer)]
    shared = shown(draft.nodes[min(loops.bodies[inner] & loops.bodies[outer])]["id"])
    message = f"the loops of `{names[0]}` and `{names[1]}` overlap at `{shared}` but neither contains the other"
    draft.place(inner).problem("loops_overlap", "loop", message, "let one go back to a node inside or before both")
