"""Graphs of many shapes, as edges between numbers, and as workflows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemill.kernel.model import Node, Workflow

Edges = list[tuple[int, int]]


def graph_of(edges: Iterable[tuple[int, int]]) -> Workflow:
    """A workflow of value nodes with these plain edges; a lone node is written (0, 0)."""
    pairs = list(dict.fromkeys(edges))
    size = max(max(pair) for pair in pairs) + 1
    into: list[list[str]] = [[] for _ in range(size)]
    out: list[list[str]] = [[] for _ in range(size)]
    for source, target in pairs:
        if source != target:
            out[source].append(f"n{target}")
            into[target].append(f"n{source}")
    nodes = tuple(
        Node(id=f"n{number}", type="value@1", inbound=tuple(above), outbound=tuple(below), plain=tuple(below))
        for number, (above, below) in enumerate(zip(into, out, strict=True))
    )
    entries = tuple(node.id for node in nodes if not node.inbound)
    terminals = tuple(node.id for node in nodes if not node.outbound)
    return Workflow(name="shape", nodes=nodes, entries=entries, terminals=terminals)


def chain(size: int) -> Edges:
    return [(number, number + 1) for number in range(size - 1)] or [(0, 0)]


def fan(size: int) -> Edges:
    middle = range(1, size - 1)
    return [(0, number) for number in middle] + [(number, size - 1) for number in middle]


def ladder(size: int) -> Edges:
    rails = [(number, number + 2) for number in range(size - 2)]
    return rails + [(number, number + 1) for number in range(0, size - 1, 2)]


def skipping(size: int) -> Edges:
    return chain(size) + [(number, size - 1) for number in range(size - 2)]


def comb(size: int) -> Edges:
    half = size // 2
    back = [(2 * number, 2 * number + 2) for number in range(half - 1)]
    return back + [(2 * number, 2 * number + 1) for number in range(half)]


def nested(size: int) -> Edges:
    return chain(size) + [(number, size - 1 - number) for number in range(size // 2 - 1)]


def tree(size: int) -> Edges:
    return [((number - 1) // 2, number) for number in range(1, size)]


def islands(size: int) -> Edges:
    return [(number, number + 1) for number in range(0, size - 1, 2)]


SHAPES: dict[str, Callable[[int], Edges]] = {
    "chain": chain,
    "comb": comb,
    "fan": fan,
    "islands": islands,
    "ladder": ladder,
    "nested": nested,
    "skipping": skipping,
    "tree": tree,
}
