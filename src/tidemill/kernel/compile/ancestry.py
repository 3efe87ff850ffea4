"""Questions about who comes before whom, answered for many pairs in one sweep over the graph.

Ancestor sets of a hundred thousand nodes do not fit into memory, and walking back from every node takes
quadratic time. So the targets asked for are numbered, some thousands at a time, and carried down the
topological order as the bits of one integer per node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_

from tidemill.kernel.compile.graph import Edge, Graph

TARGETS_PER_SWEEP = 4096
THRESHOLD_STEPS_MAX = 256

Bits = dict[int, int]
"""The bit of each target in this sweep."""
Gather = Callable[[int, list[int]], tuple[int, int]]
"""What holds when a node begins and when it has ended, given its number and what each of its sources passes on."""


def ancestor_pairs(graph: Graph, pairs: Collection[Edge]) -> set[Edge]:
    """Of pairs (node, other), those in which the other is an ancestor of the node."""

    def gather(_number: int, inherited: list[int]) -> tuple[int, int]:
        bits = at_least(inherited, 1)
        return bits, bits

    return set(_swept(graph, pairs, lambda _bits: gather))


def certain_pairs(
    graph: Graph,
    pairs: Collection[Edge],
    needed: Mapping[int, int],
    escapes: Mapping[Edge, Sequence[int]],
    bodies: Mapping[int, set[int]],
) -> set[Edge]:
    """Of pairs (node, ancestor), those in which the ancestor has surely ended when the node begins.

    `needed` gives the number of taken edges that let an `any` or quorum join fire. `escapes` gives the loops that
    an edge leaves while they may go on: what is in their bodies may be running again when its target begins.
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
            # An edge that is decided, either way, tells that its source has ended. A quorum fires by so many taken
            # edges, and is skipped by so many dead ones that it cannot be reached any more.
            wanted = needed.get(number)
            if wanted is None:
                bits = at_least(inherited, 1)
                return bits, bits
            fired = at_least(inherited, len(inherited) - wanted + 1)
            return fired, fired & at_least(inherited, wanted)

        return gather

    return set(_swept(graph, pairs, sweep))


def at_least(sets: list[int], count: int) -> int:
    """The bits that are in at least so many of the sets; where that is too dear, those that are in all."""
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


def _swept(graph: Graph, pairs: Collection[Edge], sweep: Callable[[Bits], Gather]) -> Iterator[Edge]:
    """Carry the targets down the order, one block of bits after the other, and yield the pairs that are met."""
    targets = sorted({other for _, other in pairs}, key=lambda number: graph.rank[number])
    askers: dict[int, list[int]] = {}
    for number, other in pairs:
        askers.setdefault(number, []).append(other)
    for start in range(0, len(targets), TARGETS_PER_SWEEP):
        bits = {number: 1 << bit for bit, number in enumerate(targets[start : start + TARGETS_PER_SWEEP])}
        yield from _one_sweep(graph, askers, bits, sweep(bits))


def _one_sweep(graph: Graph, askers: Mapping[int, Iterable[int]], bits: Bits, gather: Gather) -> Iterator[Edge]:
    passed = [0] * len(graph.ids)
    for number in graph.order[min(graph.rank[target] for target in bits) :]:
        sources = graph.into[number]
        begun, ended = gather(number, [passed[source] for source in sources]) if sources else (0, 0)
        if begun:
            for other in askers.get(number, ()):
                if begun & bits.get(other, 0):
                    yield number, other
        passed[number] = ended | bits.get(number, 0)
