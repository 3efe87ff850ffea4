"""References between nodes: does the other node exist, and can it have run by then?

A node may read its ancestors, over edges of any kind. Inside a loop it may also read itself and the rest of the
body, as they were when the current pass began. Anything else can never be there, so it is refused now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from tidemill.kernel.ancestry import ancestor_pairs, certain_pairs
from tidemill.kernel.clauses import Use
from tidemill.kernel.findings import Place, nearest, shown
from tidemill.kernel.graph import Edge, Graph, walk
from tidemill.kernel.loops import Loops
from tidemill.kernel.normal import Draft
from tidemill.kernel.scopes import locate

EARLY_TARGETS_MAX = 8192
"""Warnings are worth some sweeps over the graph, not any number of them."""

Reads = dict[int, list[int]]


class Reading:
    """What every node reads, by number and in document order."""

    __slots__ = ("anything", "current", "past")

    def __init__(self) -> None:
        self.current: Reads = {}
        """Ancestors whose output of this pass is read."""
        self.past: Reads = {}
        """Nodes that are seen only as they were when the current pass began."""
        self.anything: set[int] = set()
        """Nodes with a computed reference."""


def check_references(draft: Draft, graph: Graph, loops: Loops, uses: Mapping[int, Sequence[Use]]) -> Reading:
    """Sort every reference into current and past, record the impossible ones, and warn of those read too early."""
    reading = Reading()
    distant: list[Edge] = []
    for number, of_node in uses.items():
        sources = graph.into[number]
        parents = sources if len(sources) < 16 else set(sources)
        for other in _mentioned(draft, number, of_node, reading):
            if other in parents:
                reading.current.setdefault(number, []).append(other)
            else:
                distant.append((number, other))
    if not graph.acyclic:
        return reading
    ancestors = ancestor_pairs(graph, distant)
    for pair in distant:
        number, other = pair
        if pair in ancestors:
            reading.current.setdefault(number, []).append(other)
        elif loops.share(number, other):
            reading.past.setdefault(number, []).append(other)
        else:
            _impossible(draft, graph, loops, uses[number], pair)
    _warn_of_early(draft, graph, loops, uses, reading.current)
    return reading


def _mentioned(draft: Draft, number: int, uses: Sequence[Use], reading: Reading) -> list[int]:
    """The nodes that a node refers to, each once; unknown names are recorded."""
    known: dict[int, None] = {}
    for use in uses:
        if use.reach.dynamic:
            reading.anything.add(number)
        for name in sorted(use.reach.nodes):
            other = draft.index.get(name)
            if other is None:
                unknown_reference(draft, draft.place(number), use, name)
            else:
                known[other] = None
    return list(known)


def unknown_reference(draft: Draft, place: Place, use: Use, name: str) -> None:
    """Record a name that is neither a node nor anything else an expression can see."""
    message = f"`{shown(name)}` is neither a node of this workflow nor a known name"
    hint = nearest(name, draft.index) or "a node's output is `<id>.output`, an input `inputs.<name>`"
    place.problem("unknown_reference", locate(use, name), message, hint)


def _impossible(draft: Draft, graph: Graph, loops: Loops, uses: Sequence[Use], pair: Edge) -> None:
    number, other = pair
    name = graph.ids[other]
    use = next(use for use in uses if name in use.reach.nodes)
    place = draft.place(number)
    if number == other:
        hint = "conditions and compensators see the node's own result as `output`"
        place.problem("self_reference", locate(use, name), "refers to its own output, which is not there yet", hint)
        return
    message = f"refers to `{shown(name)}`, which cannot have run by then"
    hint = f"let it depend on `{shown(name)}`"
    if pair[::-1] in ancestor_pairs(graph, [pair[::-1]]):
        hint = "that node comes later; only inside one loop can its last output be read"
    place.problem("reference_not_ancestor", locate(use, name), message, hint)


def _warn_of_early(
    draft: Draft, graph: Graph, loops: Loops, uses: Mapping[int, Sequence[Use]], current: Reads
) -> None:
    """Warn of ancestors that need not have ended: past a join that does not wait, or by a way out of a loop."""
    needed = {
        number: 1 if join == "any" else join["quorum"]
        for number, node in enumerate(draft.nodes)
        if (join := node.get("join", "all")) not in ("all", "strict")
    }
    escapes = _left_early(loops)
    doubtful = set(walk(graph.out, [*needed, *(target for _, target in escapes)]))
    pairs = [(number, other) for number in sorted(doubtful & current.keys()) for other in current[number]]
    asked = set(islice(dict.fromkeys(other for _, other in pairs), EARLY_TARGETS_MAX))
    pairs = [pair for pair in pairs if pair[1] in asked]
    if not pairs:
        return
    certain = certain_pairs(graph, pairs, needed, escapes, loops.bodies)
    for pair in pairs:
        if pair not in certain:
            number, other = pair
            name = graph.ids[other]
            use = next(use for use in uses[number] if name in use.reach.nodes)
            message = f"refers to `{shown(name)}`, which may not have ended by then"
            hint = f"wait for it with `join: all`, or use `{shown(name)}.output | default(…)`"
            draft.place(number).warning("early_reference", locate(use, name), message, hint)


def _left_early(loops: Loops) -> dict[Edge, list[int]]:
    """The loops that an edge leaves while they may still go on, by edge."""
    left: dict[Edge, list[int]] = {}
    for looping in loops.bodies:
        for edge in loops.escapes[looping]:
            left.setdefault(edge, []).append(looping)
    return left
