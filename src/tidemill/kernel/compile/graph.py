"""The edge set of a document: who may follow whom, in which order, and whether that makes sense at all.

Nodes are numbers here, their positions in the document, because a hundred thousand of them must be walked in a
second. A pair is one edge. An edge that some rule names (branch, loop, error or exit path) is conditional,
whatever else names it; the rest are plain. Going back in a loop is not an edge, so the graph has no cycles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntFlag

from tidemill.kernel.document.findings import shown
from tidemill.kernel.document.normal import Draft
from tidemill.kernel.model import Json

CYCLES_MAX = 20
CYCLE_SHOWN_MAX = 20


class Rule(IntFlag):
    """What may name an edge. Error and exit paths are the only ones that may leave a loop early."""

    BRANCH = 1
    LOOP = 2
    ERROR = 4
    EXIT = 8


ESCAPING = Rule.ERROR | Rule.EXIT

Edge = tuple[int, int]


class Graph:
    """Adjacency by node number, every list in document order."""

    __slots__ = ("ids", "into", "order", "out", "rank", "ruled")

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids
        self.out: list[tuple[int, ...]] = [()] * len(ids)
        self.into: list[tuple[int, ...]] = [()] * len(ids)
        self.ruled: dict[Edge, Rule] = {}
        self.order: list[int] = []
        """A topological order; shorter than the nodes when there is a cycle."""
        self.rank: list[int] = []
        """Position of each node in the order."""

    @property
    def acyclic(self) -> bool:
        return len(self.order) == len(self.ids)

    def plain(self, number: int) -> list[int]:
        """Targets of the edges that no rule names."""
        return [target for target in self.out[number] if (number, target) not in self.ruled]

    def names(self, numbers: Collection[int]) -> tuple[str, ...]:
        """Ids instead of numbers, in the same order."""
        ids = self.ids
        return tuple([ids[number] for number in numbers]) if numbers else ()


def build_graph(draft: Draft, exits: dict[int, dict[str, list[str]]]) -> Graph:
    """Unite dependencies and the paths that rules name into one edge set, and order it.

    `exits` are the paths in the configurations of waiting nodes, by the field's name.
    """
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
    _fill(graph, edges)
    _sort(graph)
    return graph


def _fill(graph: Graph, edges: Collection[Edge]) -> None:
    out: list[list[int]] = [[] for _ in graph.ids]
    into: list[list[int]] = [[] for _ in graph.ids]
    for source, target in sorted(edges):
        out[source].append(target)
        into[target].append(source)
    # Tuples of numbers, unlike lists, soon are nothing to the garbage collector.
    graph.out, graph.into = list(map(tuple, out)), list(map(tuple, into))


def _plain_edges(draft: Draft) -> set[Edge]:
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
                    found.problem("unknown_dependency", path, message, found.nearest(name, index))
    return edges


_RULED_KEYS = frozenset(("branch", "loop", "on_error"))


def _ruled_targets(node: dict[str, Json], exits: dict[str, list[str]]) -> Iterator[tuple[Rule, str, Sequence[str]]]:
    """Each list of targets that a rule of the node names, with the rule and the key."""
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


def _checked_target(draft: Draft, number: int, key: str, target: str) -> Edge | None:
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
    """Order the nodes so that every edge leads forward; what lies on or behind a cycle is left out."""
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


def check_graph(graph: Graph, draft: Draft) -> None:
    """Record cycles, a missing entry or exit, and nodes that no run can reach; without a cycle all are well."""
    if graph.acyclic:
        return
    found, paths = draft.found, draft.paths
    for cycle in find_cycles(graph):
        names = [*graph.names(cycle[:CYCLE_SHOWN_MAX]), *(["…"] if len(cycle) > CYCLE_SHOWN_MAX else [])]
        drawn = " → ".join(map(shown, [*names, graph.ids[cycle[0]]]))
        hint = "to go back use `loop` with `loop_back_to`"
        found.problem("cycle", paths[cycle[0]], f"the dependencies form a cycle: {drawn}", hint)
    if all(graph.out):
        found.problem("no_exit", "/nodes", "every node leads to another one, so no run could end")
    if all(graph.into):
        found.problem("no_entry", "/nodes", "every node depends on another one, so no run could begin")
        return
    reached = set(walk(graph.out, [number for number, sources in enumerate(graph.into) if not sources]))
    for number, name in enumerate(graph.ids):
        if number not in reached:
            message = f"node `{shown(name)}` cannot be reached from any entry"
            found.problem("unreachable_node", paths[number], message, "it lies on or behind the cycle")


def walk(adjacent: Sequence[Sequence[int]] | Mapping[int, Sequence[int]], starts: Iterable[int]) -> Iterator[int]:
    """Every node that can be reached, the starts included, each once."""
    agenda = list(starts)
    seen = set(agenda)
    while agenda:
        number = agenda.pop()
        yield number
        for other in adjacent[number]:
            if other not in seen:
                seen.add(other)
                agenda.append(other)


def find_cycles(graph: Graph) -> list[list[int]]:
    """Some disjoint cycles, each in the direction of its edges; at least one of every tangle, bounded in number."""
    left = set(range(len(graph.ids))) - set(graph.order)
    cycles: list[list[int]] = []
    while len(cycles) < CYCLES_MAX:
        _peel(graph, left)
        if not left:
            break
        cycle = _cycle_in(graph, left)
        cycles.append(cycle)
        left.difference_update(cycle)
    return cycles


def _peel(graph: Graph, left: set[int]) -> None:
    """Drop the nodes that lie on no cycle of what is left: those without a way in or without a way out."""
    for back, forth in ((graph.into, graph.out), (graph.out, graph.into)):
        count = {number: sum(other in left for other in back[number]) for number in left}
        agenda = [number for number, others in count.items() if not others]
        while agenda:
            number = agenda.pop()
            left.discard(number)
            for other in forth[number]:
                if other in left:
                    count[other] -= 1
                    if not count[other]:
                        agenda.append(other)


def _cycle_in(graph: Graph, left: set[int]) -> list[int]:
    """Walk against the edges until a node comes again: every node that is left has a predecessor that is left."""
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
