"""The graph of a document: edges, cycles, topological order, ancestor queries and loop bodies.

Nodes are numbers (document positions), because documents may have 100,000 of them: keep every walk iterative and near
linear. An edge that a rule names (branch, loop, error or exit path) is conditional; all others are plain. The way back
of a loop is not an edge, so a valid graph is acyclic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntFlag
from functools import reduce
from itertools import pairwise
from operator import and_

from tidemill.kernel.document.fields import UNLIMITED
from tidemill.kernel.document.normalize import NormalizedDraft
from tidemill.kernel.document.problems import shown
from tidemill.kernel.model import Json

CYCLES_MAX = 20
CYCLE_SHOWN_MAX = 20


class Rule(IntFlag):
    """What may name an edge; only error and exit paths may leave a loop early."""

    BRANCH = 1
    LOOP = 2
    ERROR = 4
    EXIT = 8


ESCAPING = Rule.ERROR | Rule.EXIT

Edge = tuple[int, int]


class Graph:
    """Adjacency by node number; lists are in document order."""

    __slots__ = ("ids", "into", "order", "out", "rank", "ruled")

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        self.out: list[tuple[int, ...]] = [()] * len(ids)
        self.into: list[tuple[int, ...]] = [()] * len(ids)
        self.ruled: dict[Edge, Rule] = {}
        self.order: list[int] = []
        """A topological order; incomplete if there is a cycle."""
        self.rank: list[int] = []

    @property
    def acyclic(self) -> bool:
        return len(self.order) == len(self.ids)

    def plain(self, number: int) -> list[int]:
        return [target for target in self.out[number] if (number, target) not in self.ruled]

    def names(self, numbers: Collection[int]) -> tuple[str, ...]:
        ids = self.ids
        return tuple([ids[number] for number in numbers]) if numbers else ()


def build_graph(draft: NormalizedDraft, exits: dict[int, dict[str, list[str]]]) -> Graph:
    """Unite dependencies and the paths that rules or `exits` (of waiting nodes) name into one ordered edge set."""
    graph = Graph([node["id"] for node in draft.nodes])
    edges = _plain_edges(draft)
    for number, node in enumerate(draft.nodes):
        if not node.keys().isdisjoint(_RULED_KEYS) or number in exits:
            for rule, key, targets in _ruled_targets(node, exits.get(number, {})):
                for step, name in enumerate(targets):
                    edge = _checked_target(draft, number, f"{key}/{step}", name)
                    if edge is not None:
                        edges.add(edge)
                        graph.ruled[edge] = graph.ruled.get(edge, Rule(0)) | rule
    out: list[list[int]] = [[] for _ in graph.ids]
    into: list[list[int]] = [[] for _ in graph.ids]
    for source, target in sorted(edges):
        out[source].append(target)
        into[target].append(source)
    # The garbage collector untracks tuples of numbers, but not lists.
    graph.out, graph.into = list(map(tuple, out)), list(map(tuple, into))
    _sort(graph)
    return graph


def _plain_edges(draft: NormalizedDraft) -> set[Edge]:
    index, found = draft.index, draft.found
    edges: set[Edge] = set()
    for (source, target), path in draft.edges.items():
        if source == target:
            hint = "to repeat a node give it a `loop`"
            found.problem("self_dependency", path, f"node `{shown(source)}` depends on itself", hint)
        elif source in index and target in index:
            edges.add((index[source], index[target]))
        else:
            for name in (source, target):
                if name not in index:
                    message = f"edge {shown(source)} → {shown(target)}: there is no node `{shown(name)}`"
                    hint = found.nearest(name, index) or "name a node of this workflow, or add one"
                    found.problem("unknown_dependency", path, message, hint)
    return edges


_RULED_KEYS = frozenset(("branch", "loop", "on_error"))


def _ruled_targets(node: dict[str, Json], exits: dict[str, list[str]]) -> Iterator[tuple[Rule, str, Sequence[str]]]:
    branch = node.get("branch")
    if branch:
        for step, rule in enumerate(branch.get("rules", ())):
            yield Rule.BRANCH, f"branch/rules/{step}/next_nodes", rule.get("next_nodes", ())
        for key in ("available_next_nodes", "default"):
            yield Rule.BRANCH, f"branch/{key}", branch.get(key, ())
    loop = node.get("loop")
    if loop:
        for key in ("break_path", "timeout_path"):
            yield Rule.LOOP, f"loop/{key}", loop.get(key, ())
    on_error = node.get("on_error")
    if isinstance(on_error, dict):
        yield Rule.ERROR, "on_error/route", on_error.get("route", ())
    for key, targets in exits.items():
        yield Rule.EXIT, f"config/{key}", targets


def _checked_target(draft: NormalizedDraft, number: int, key: str, target: str) -> Edge | None:
    other = draft.index.get(target)
    path = f"{draft.paths[number]}/{key}"
    who = f"node `{shown(draft.nodes[number]['id'])}`"
    if other is None:
        message = f"{who}: `{shown(target)}` is not a node of this workflow"
        draft.found.problem("unknown_target", path, message, draft.found.nearest(target, draft.index))
        return None
    if other == number:
        draft.found.problem("self_dependency", path, f"{who} leads to itself", "to repeat a node give it a `loop`")
        return None
    return number, other


def _sort(graph: Graph) -> None:
    """Sort topologically (Kahn); nodes on or behind a cycle are left out."""
    waiting = [len(sources) for sources in graph.into]
    order = [number for number, count in enumerate(waiting) if not count]
    for number in order:
        for target in graph.out[number]:
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    graph.order = order
    graph.rank = [0] * len(graph.ids)
    for rank, number in enumerate(order):
        graph.rank[number] = rank


def check_graph(graph: Graph, draft: NormalizedDraft) -> None:
    if graph.acyclic:
        return
    found, paths = draft.found, draft.paths
    for cycle in find_cycles(graph):
        names = [*graph.names(cycle[:CYCLE_SHOWN_MAX]), *(["…"] if len(cycle) > CYCLE_SHOWN_MAX else [])]
        drawn = " → ".join(map(shown, [*names, graph.ids[cycle[0]]]))
        hint = "to go back use `loop` with `loop_back_to`"
        found.problem("cycle", paths[cycle[0]], f"the dependencies form a cycle: {drawn}", hint)
    if all(graph.into):
        return
    reached = set(walk(graph.out, [number for number, sources in enumerate(graph.into) if not sources]))
    for number, name in enumerate(graph.ids):
        if number not in reached:
            message = f"node `{shown(name)}` cannot be reached from any entry"
            found.problem("unreachable_node", paths[number], message, "it is on or downstream of the cycle")


def walk(adjacent: Sequence[Sequence[int]] | Mapping[int, Sequence[int]], starts: Iterable[int]) -> Iterator[int]:
    """Every reachable node once, the starts included."""
    stack = list(starts)
    seen = set(stack)
    while stack:
        number = stack.pop()
        yield number
        for other in adjacent[number]:
            if other not in seen:
                seen.add(other)
                stack.append(other)


def find_cycles(graph: Graph) -> list[list[int]]:
    """Disjoint cycles in edge direction, at least one of every component, bounded in number."""
    left = set(range(len(graph.ids))) - set(graph.order)
    cycles: list[list[int]] = []
    while len(cycles) < CYCLES_MAX:
        _drop_acyclic(graph, left)
        if not left:
            break
        cycle = _cycle_in(graph, left)
        cycles.append(cycle)
        left.difference_update(cycle)
    return cycles


def _drop_acyclic(graph: Graph, left: set[int]) -> None:
    """Drop the nodes without a predecessor or without a successor: they lie on no cycle."""
    for back, forth in ((graph.into, graph.out), (graph.out, graph.into)):
        count = {number: sum(other in left for other in back[number]) for number in left}
        stack = [number for number, others in count.items() if not others]
        while stack:
            number = stack.pop()
            left.discard(number)
            for other in forth[number]:
                if other in left:
                    count[other] -= 1
                    if not count[other]:
                        stack.append(other)


def _cycle_in(graph: Graph, left: set[int]) -> list[int]:
    """Walk backwards until a node repeats: every remaining node has a remaining predecessor."""
    number = min(left)
    seen: dict[int, int] = {}
    path: list[int] = []
    while number not in seen:
        seen[number] = len(path)
        path.append(number)
        number = next(other for other in graph.into[number] if other in left)
    cycle = path[seen[number] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


TARGETS_PER_SWEEP = 4096
THRESHOLD_STEPS_MAX = 256

Bits = dict[int, int]
"""The bit of each target in this sweep."""
Gather = Callable[[int, list[int]], tuple[int, int]]
"""(number, bits passed by each source) to (bits when the node begins, bits when it has ended)."""


def ancestor_pairs(graph: Graph, pairs: Collection[Edge]) -> set[Edge]:
    """The pairs (node, other) in which the other is an ancestor of the node."""

    def gather(_number: int, inherited: list[int]) -> tuple[int, int]:
        bits = at_least(inherited, 1)
        return bits, bits

    return set(_ancestor_bits(graph, pairs, lambda _bits: gather))


def dominates_pairs(
    graph: Graph,
    pairs: Collection[Edge],
    needed: Mapping[int, int],
    escapes: Mapping[Edge, Sequence[int]],
    bodies: Mapping[int, set[int]],
) -> set[Edge]:
    """The pairs (node, ancestor) in which the ancestor has certainly ended when the node begins.

    `needed` is the number of taken edges that lets an `any` or quorum join fire. `escapes` are the loops that an edge
    leaves while they may continue: nodes of their bodies may run again when its target begins.
    """

    def sweep(bits: Bits) -> Gather:
        outside = {
            looping: ~sum(bit for number, bit in bits.items() if number in body) for looping, body in bodies.items()
        }
        masks = {edge: reduce(and_, (outside[looping] for looping in left)) for edge, left in escapes.items()}

        def gather(number: int, inherited: list[int]) -> tuple[int, int]:
            if masks:
                inherited = [
                    each & masks.get((source, number), -1)
                    for source, each in zip(graph.into[number], inherited, strict=True)
                ]
            # A decided edge means that its source has ended. A quorum fires by `wanted` taken edges, and is skipped
            # once too many edges are dead.
            wanted = needed.get(number)
            if wanted is None:
                bits = at_least(inherited, 1)
                return bits, bits
            fired = at_least(inherited, len(inherited) - wanted + 1)
            return fired, fired & at_least(inherited, wanted)

        return gather

    return set(_ancestor_bits(graph, pairs, sweep))


def at_least(sets: list[int], count: int) -> int:
    """The bits that are in at least `count` sets; if that is too expensive, those that are in all."""
    if count <= 1:
        found = 0
        for each in sets:
            found |= each
        return found
    if count >= len(sets) or count * len(sets) > THRESHOLD_STEPS_MAX:
        found = sets[0]
        for each in sets:
            found &= each
        return found
    reached = [0] * (count + 1)
    for each in sets:
        for level in range(count, 1, -1):
            reached[level] |= reached[level - 1] & each
        reached[1] |= each
    return reached[count]


def _ancestor_bits(graph: Graph, pairs: Collection[Edge], sweep: Callable[[Bits], Gather]) -> Iterator[Edge]:
    """Pass target bits down the order in blocks, because full ancestor sets do not fit into memory."""
    targets = sorted({other for _, other in pairs}, key=lambda number: graph.rank[number])
    wanted_by: dict[int, list[int]] = {}
    for number, other in pairs:
        wanted_by.setdefault(number, []).append(other)
    for start in range(0, len(targets), TARGETS_PER_SWEEP):
        bits = {number: 1 << bit for bit, number in enumerate(targets[start : start + TARGETS_PER_SWEEP])}
        gather, passed = sweep(bits), [0] * len(graph.ids)
        for number in graph.order[min(graph.rank[target] for target in bits) :]:
            sources = graph.into[number]
            begun, ended = gather(number, [passed[source] for source in sources]) if sources else (0, 0)
            if begun:
                yield from ((number, other) for other in wanted_by.get(number, ()) if begun & bits.get(other, 0))
            passed[number] = ended | bits.get(number, 0)


NESTING_MAX = 32


class Loops:
    __slots__ = ("around", "bodies", "escapes")

    def __init__(self) -> None:
        self.bodies: dict[int, set[int]] = {}
        self.escapes: dict[int, list[Edge]] = {}
        """Error and exit paths that leave a body before its looping node."""
        self.around: dict[int, list[int]] = {}
        """The looping nodes around each node in a loop, innermost first."""

    def share(self, one: int, other: int) -> bool:
        return not set(self.around.get(one, ())).isdisjoint(self.around.get(other, ()))


def find_loops(draft: NormalizedDraft, graph: Graph) -> Loops:
    """Compute every body and record its problems.

    A body is every node on a path from `loop_back_to` to the looping node; bodies are disjoint or nested. Ill-formed
    bodies are returned too, so that references inside them cause no second problem.
    """
    loops = Loops()
    looping = [number for number, node in enumerate(draft.nodes) if "loop" in node]
    if not looping:
        return loops
    _check_bounds(draft, looping)
    if not graph.acyclic:
        return loops
    # A valid document visits each node once per loop around it; the budget stops a hostile one.
    left = 2 * NESTING_MAX * len(draft.nodes)
    sound: set[int] = set()
    for number in looping:
        name = draft.nodes[number]["loop"].get("loop_back_to")
        entry = draft.index.get(name)
        if entry is None:
            if name is not None:
                message = f"`{shown(name)}` is not a node of this workflow"
                hint = draft.found.nearest(name, draft.index)
                draft.place(number).problem("unknown_target", "loop/loop_back_to", message, hint)
            continue
        body, visited = _body(graph, entry, number)
        left -= visited
        if left < 0:
            _too_deep(draft, number)
            return loops
        if entry not in body:
            message = f"the loop goes back to `{shown(draft.nodes[entry]['id'])}`, which has no path to this node"
            hint = "name this node or an ancestor"
            draft.place(number).problem("loop_back_not_ancestor", "loop/loop_back_to", message, hint)
            body = {number}
        elif _well_formed(draft, graph, entry, number, body, loops):
            sound.add(number)
        loops.bodies[number] = body
    _nest(draft, loops, sound)
    return loops


def _check_bounds(draft: NormalizedDraft, looping: list[int]) -> None:
    limits = draft.document.get("limits", {})
    if "deadline_seconds" in limits or "max_visits" in limits:
        return
    for number in looping:
        if draft.nodes[number]["loop"].get("max_iterations") == UNLIMITED:
            hint = "set `limits.deadline_seconds` or `limits.max_visits`"
            message = "an unlimited loop needs another bound"
            draft.place(number).problem("unbounded_loop", "loop/max_iterations", message, hint)


def _body(graph: Graph, entry: int, exit_: int) -> tuple[set[int], int]:
    """The nodes between entry and exit (empty if there is no path), and the number of nodes visited."""
    if entry == exit_:
        return {entry}, 1
    first = graph.rank[entry]
    before = {exit_}
    stack = [exit_]
    while stack:
        for source in graph.into[stack.pop()]:
            if source not in before and graph.rank[source] >= first:
                before.add(source)
                stack.append(source)
    if entry not in before:
        return set(), len(before)
    inside = {number: [target for target in graph.out[number] if target in before] for number in before}
    return set(walk(inside, [entry])), len(before)


def _too_deep(draft: NormalizedDraft, number: int) -> None:
    message = f"loops are nested more than {NESTING_MAX} levels deep"
    draft.place(number).problem("loops_too_deep", "loop", message, "merge some of the loops")


def _well_formed(draft: NormalizedDraft, graph: Graph, entry: int, exit_: int, body: set[int], loops: Loops) -> bool:
    """Whether the body is entered and left only at its ends; records the edges that may escape."""
    before = len(draft.found.problems) + draft.found.dropped
    escapes: list[Edge] = []
    for number in sorted(body):
        if number != entry:
            for source in graph.into[number]:
                if source not in body:
                    _crosses(draft, graph, (source, number), entry, exit_, enters=True)
        if number != exit_:
            for target in graph.out[number]:
                if target in body:
                    continue
                if graph.ruled.get((number, target), Rule.BRANCH) & ~ESCAPING:
                    _crosses(draft, graph, (number, target), entry, exit_, enters=False)
                else:
                    escapes.append((number, target))
    loops.escapes[exit_] = escapes
    return len(draft.found.problems) + draft.found.dropped == before


def _crosses(draft: NormalizedDraft, graph: Graph, edge: Edge, entry: int, exit_: int, *, enters: bool) -> None:
    source, target, first, last = (shown(graph.ids[number]) for number in (*edge, entry, exit_))
    code, verb, end = ("loop_entered_inside", "enters", first) if enters else ("loop_left_inside", "leaves", last)
    hint = f"let `{first}` depend on `{source}`, or go back to a node upstream of `{source}`"
    if not enters:
        way = f"let `{target}` depend on `{last}`, or put it on a path to `{last}`"
        hint = f"{way}; only error and rejection paths may leave"
    message = f"edge {source} → {target} {verb} the loop {first} … {last} at a node other than `{end}`"
    draft.place(exit_).problem(code, "loop", message, hint)


def _nest(draft: NormalizedDraft, loops: Loops, sound: set[int]) -> None:
    """Order the loops around every node from the inside out, and record pairs that overlap."""
    for looping in sorted(loops.bodies, key=lambda number: (len(loops.bodies[number]), number)):
        for number in loops.bodies[looping]:
            loops.around.setdefault(number, []).append(looping)
    checked: set[Edge] = set()
    for around in loops.around.values():
        if len(around) > NESTING_MAX:
            _too_deep(draft, around[-1])
            return
        for inner, outer in pairwise(around):
            if (inner, outer) in checked or not sound.issuperset((inner, outer)):
                continue
            checked.add((inner, outer))
            if not loops.bodies[inner] <= loops.bodies[outer]:
                shared = min(loops.bodies[inner] & loops.bodies[outer])
                names = [shown(draft.nodes[number]["id"]) for number in (inner, outer, shared)]
                message = "the loops of `{}` and `{}` overlap at `{}` but neither contains the other".format(*names)
                hint = "let one go back to a node inside or upstream of both"
                draft.place(inner).problem("loops_overlap", "loop", message, hint)
