"""Layered layout of a graph, after Sugiyama: where boxes are placed, and how links run between them.

1. Each box gets a rank: the longest path to it. Boxes have even ranks, the labels of links odd ones in between.
2. A link over several ranks passes one point in each of them, so that it runs around boxes, not through them.
3. Every layer is sorted by the mean position of its neighbours, down and up; the order with fewest crossings wins, and
   pairs that cross less the other way round are swapped.
4. Positions are the least-squares solution that keeps order and distances, with straight long links preferred.

A link back to the entry of a loop is laid out upside down, so that the graph has no cycle. Nothing is recursive, and
nothing is random: the same graph gives the same layout.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import copysign
from typing import NamedTuple

POINTS_MAX = 3_000
"""Points that links may pass, besides one per box. Further links, the longest ones, run straight to their target."""
SWEEPS, SWEEPS_LARGE = 12, 4
ROUNDS, ROUNDS_LARGE = 10, 4
EXCHANGES = 8
LARGE = 3_000
"""With more boxes, points and links, fewer rounds have to do."""

BOX_GAP, POINT_GAP = 28.0, 14.0
RANK_GAP, ABOVE_LABEL, BELOW_LABEL = 40.0, 26.0, 24.0
POINT_WIDTH = 8.0
SNAP = 3.0
"""A link that leaves its column by less than this is straight."""
PORT_MAX = 36.0
"""How far from the middle of a box a link back begins or ends."""


class Box(NamedTuple):
    width: float
    height: float


class Link(NamedTuple):
    source: int
    target: int
    label: Box | None = None
    back: bool = False
    """It leads up again, to the entry of a loop; without it the target is below the source."""

    @property
    def ends(self) -> tuple[int, int]:
        """The upper and the lower box."""
        return (self.target, self.source) if self.back else (self.source, self.target)


class Point(NamedTuple):
    x: float
    y: float


class Route(NamedTuple):
    points: tuple[Point, ...]
    """From source to target; the link is vertical in each of them."""
    label: Point | None


class Layout(NamedTuple):
    width: float
    height: float
    boxes: list[Point]
    """Their centres."""
    routes: list[Route]


def place(boxes: Sequence[Box], links: Sequence[Link]) -> Layout:
    """Lay out a graph. Links without `back` must have no cycle, and none may lead from a box to itself."""
    if not boxes:
        return Layout(0, 0, [], [])
    graph = _LayeredGraph(boxes, links)
    layers = _ordered(graph)
    columns = _columns(graph, layers)
    tops, bottoms = _rows(graph, layers)
    left = min(x - size.width / 2 for x, size in zip(columns, graph.sizes, strict=True))
    right = max(x + size.width / 2 for x, size in zip(columns, graph.sizes, strict=True))
    columns = [x - left for x in columns]
    centres = [Point(columns[place], tops[graph.ranks[place]] + box.height / 2) for place, box in enumerate(boxes)]
    routes = [_route(graph, number, columns, tops, bottoms, centres) for number in range(len(links))]
    return Layout(right - left, bottoms[-1], centres, routes)


class _LayeredGraph:
    """The boxes, followed by the points that links pass. Neighbours are one rank above or below."""

    def __init__(self, boxes: Sequence[Box], links: Sequence[Link]) -> None:
        self.links, self.box_count = links, len(boxes)
        self.sizes = list(boxes)
        ranks = _ranks(len(boxes), links)
        labelled = {ranks[link.ends[0]] + 1 for link in links if link.label is not None}
        index = {rank: number for number, rank in enumerate(sorted({*ranks, *labelled}))}
        self.label_layers = {index[rank] for rank in labelled}
        self.ranks = [index[rank] for rank in ranks]
        self.depth = len(index)
        self.above: list[list[tuple[int, float]]] = [[] for _ in boxes]
        self.below: list[list[tuple[int, float]]] = [[] for _ in boxes]
        """Neighbours, with how much a straight link between the two is worth."""
        self.passed: list[list[int] | None] = [None] * len(links)
        """By link: the points it passes from top to bottom; None if it runs straight to its target."""
        for number in self._short_enough():
            self._add(number)
        self.is_large = len(self.sizes) + len(links) > LARGE

    def _short_enough(self) -> list[int]:
        spans = [self.ranks[bottom] - self.ranks[top] for top, bottom in (link.ends for link in self.links)]
        left, chosen = POINTS_MAX + self.box_count, []
        for number in sorted(range(len(spans)), key=lambda number: (spans[number], number)):
            left -= spans[number] - 1
            if left < 0:
                break
            chosen.append(number)
        return sorted(chosen)

    def _add(self, number: int) -> None:
        link = self.links[number]
        top, bottom = link.ends
        first, last = self.ranks[top] + 1, self.ranks[bottom]
        points = []
        for rank in range(first, last):
            labelled = link.label is not None and rank == first
            self.sizes.append(link.label if labelled and link.label is not None else Box(POINT_WIDTH, 0))
            self.ranks.append(rank)
            self.above.append([])
            self.below.append([])
            points.append(len(self.sizes) - 1)
        self.passed[number] = points
        path = [top, *points, bottom]
        for one, other in itertools.pairwise(path):
            both = one >= self.box_count and other >= self.box_count
            either = one >= self.box_count or other >= self.box_count
            worth = 8.0 if both else 2.0 if either else 1.0
            if link.back:
                # It goes beside its body, which stays straight.
                worth /= 400
            self.below[one].append((other, worth))
            self.above[other].append((one, worth))


def _ranks(count: int, links: Sequence[Link]) -> list[int]:
    """Two ranks per step of the longest path; an entry is as low as what it leads to allows."""
    out: list[list[int]] = [[] for _ in range(count)]
    into = [0] * count
    for link in links:
        top, bottom = link.ends
        out[top].append(bottom)
        into[bottom] += 1
    is_entry = [not number for number in into]
    ready = [number for number in range(count) if is_entry[number]]
    heapify(ready)
    ranks, order = [0] * count, []
    while ready:
        number = heappop(ready)
        order.append(number)
        for target in out[number]:
            ranks[target] = max(ranks[target], ranks[number] + 2)
            into[target] -= 1
            if not into[target]:
                heappush(ready, target)
    for number in reversed(order):
        if is_entry[number] and out[number]:
            ranks[number] = min(ranks[target] for target in out[number]) - 2
    return ranks


Layers = list[list[int]]


def _ordered(graph: _LayeredGraph) -> Layers:
    layers = _as_found(graph)
    at = [0] * len(graph.sizes)
    for layer in layers:
        _note(layer, at)
    best, fewest = [layer[:] for layer in layers], _crossings(graph, layers, at)
    for sweep in range(SWEEPS_LARGE if graph.is_large else SWEEPS):
        if not fewest:
            break
        down = not sweep % 2
        neighbours = graph.above if down else graph.below
        for layer in layers if down else reversed(layers):
            layer.sort(key=lambda number: (_mean(neighbours[number], at, at[number]), at[number]))
            _note(layer, at)
        crossed = _crossings(graph, layers, at)
        if crossed < fewest:
            best, fewest = [layer[:] for layer in layers], crossed
    if fewest and not graph.is_large:
        _exchange(graph, best)
    return best


def _exchange(graph: _LayeredGraph, layers: Layers) -> None:
    """Swap neighbours in a layer as long as that removes crossings."""
    at = [0] * len(graph.sizes)
    for layer in layers:
        _note(layer, at)
    for _ in range(EXCHANGES):
        swapped = False
        for layer in layers:
            for place in range(len(layer) - 1):
                one, other = layer[place], layer[place + 1]
                if _crossed(graph, one, other, at) > _crossed(graph, other, one, at):
                    layer[place], layer[place + 1] = other, one
                    at[one], at[other] = at[other], at[one]
                    swapped = True
        if not swapped:
            break


def _crossed(graph: _LayeredGraph, left: int, right: int, at: Sequence[int]) -> int:
    """Crossings between the links of two members if `left` is left of `right`."""
    return sum(
        at[one] > at[other]
        for neighbours in (graph.above, graph.below)
        for one, _ in neighbours[left]
        for other, _ in neighbours[right]
    )


def _as_found(graph: _LayeredGraph) -> Layers:
    """The layers in the order in which a walk in depth meets their members: trees have no crossings so."""
    layers: Layers = [[] for _ in range(graph.depth)]
    seen = bytearray(len(graph.sizes))
    stack = [number for number in reversed(range(graph.box_count)) if not graph.above[number]]
    while stack:
        number = stack.pop()
        if not seen[number]:
            seen[number] = 1
            layers[graph.ranks[number]].append(number)
            stack.extend(other for other, _ in reversed(graph.below[number]))
    return layers


def _note(layer: Sequence[int], at: list[int]) -> None:
    for position, number in enumerate(layer):
        at[number] = position


def _mean(neighbours: Sequence[tuple[int, float]], at: Sequence[float], otherwise: float) -> float:
    return sum(at[other] for other, _ in neighbours) / len(neighbours) if neighbours else otherwise


def _crossings(graph: _LayeredGraph, layers: Layers, at: Sequence[int]) -> int:
    """Pairs of links between two layers whose ends are in opposite order."""
    total = 0
    for layer in layers:
        seen: list[int] = []
        for number in layer:
            ends = sorted(at[other] for other, _ in graph.below[number])
            for end in ends:
                total += len(seen) - bisect_right(seen, end)
            for end in ends:
                seen.insert(bisect_right(seen, end), end)
    return total


def _columns(graph: _LayeredGraph, layers: Layers) -> list[float]:
    x = [0.0] * len(graph.sizes)
    gaps = [_gaps(graph, layer) for layer in layers]
    for layer, distances in zip(layers, gaps, strict=True):
        middle = sum(distances) / 2
        for number, distance in zip(layer, distances, strict=True):
            middle -= distance
            x[number] = -middle
    pairs = list(zip(layers, gaps, strict=True))
    for _ in range(ROUNDS_LARGE if graph.is_large else ROUNDS):
        _straighten(pairs, graph.above, x)
        _straighten(reversed(pairs), graph.below, x)
    _straighten(pairs, graph.above, x)
    # Labels are above what they lead to.
    _straighten([pair for rank, pair in enumerate(pairs) if rank in graph.label_layers], graph.below, x)
    return x


def _gaps(graph: _LayeredGraph, layer: Sequence[int]) -> list[float]:
    """The distance of each member's middle from the one before; zero for the first."""
    gaps = [0.0]
    for one, other in itertools.pairwise(layer):
        room = BOX_GAP if max(one, other) < graph.box_count else POINT_GAP
        gaps.append((graph.sizes[one].width + graph.sizes[other].width) / 2 + room)
    return gaps


def _straighten(
    pairs: Iterable[tuple[list[int], list[float]]], neighbours: Sequence[Sequence[tuple[int, float]]], x: list[float]
) -> None:
    """Move every member as near to the weighted mean of its neighbours as order and distances allow."""
    for layer, gaps in pairs:
        wanted, worth = [], []
        for number in layer:
            total = sum(weight for _, weight in neighbours[number])
            if total:
                wanted.append(sum(x[other] * weight for other, weight in neighbours[number]) / total)
            else:
                wanted.append(x[number])
            worth.append(total or 0.01)
        for number, value in zip(layer, _nearest(wanted, worth, gaps), strict=True):
            x[number] = value


def _nearest(wanted: Sequence[float], worth: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Values at least `gaps` apart with the least weighted squared distance from `wanted` (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    offset = 0.0
    for value, weight, gap in zip(wanted, worth, gaps, strict=True):
        offset += gap
        mean, total, count = value - offset, weight, 1
        while blocks and blocks[-1][0] >= mean:
            other, heavy, many = blocks.pop()
            mean = (mean * total + other * heavy) / (total + heavy)
            total, count = total + heavy, count + many
        blocks.append((mean, total, count))
    found: list[float] = []
    offset = 0.0
    for mean, _, count in blocks:
        for _ in range(count):
            offset += gaps[len(found)]
            found.append(mean + offset)
    return found


def _rows(graph: _LayeredGraph, layers: Layers) -> tuple[list[float], list[float]]:
    tops, bottoms = [], []
    y = 0.0
    for number, layer in enumerate(layers):
        if number:
            above, here = number - 1 in graph.label_layers, number in graph.label_layers
            y += ABOVE_LABEL if here else BELOW_LABEL if above else RANK_GAP
        tops.append(y)
        y += max((graph.sizes[member].height for member in layer), default=0.0)
        bottoms.append(y)
    return tops, bottoms


def _route(
    graph: _LayeredGraph,
    number: int,
    columns: Sequence[float],
    tops: Sequence[float],
    bottoms: Sequence[float],
    centres: Sequence[Point],
) -> Route:
    link, passed = graph.links[number], graph.passed[number]
    top, bottom = link.ends
    begin = Point(columns[top], centres[top].y + graph.sizes[top].height / 2)
    end = Point(columns[bottom], centres[bottom].y - graph.sizes[bottom].height / 2)
    if link.back and passed:
        begin = begin._replace(x=_port(begin.x, graph.sizes[top], columns[passed[0]]))
        end = end._replace(x=_port(end.x, graph.sizes[bottom], columns[passed[-1]]))
    points = [begin]
    for member in passed or ():
        rank = graph.ranks[member]
        points += [Point(columns[member], tops[rank]), Point(columns[member], bottoms[rank])]
    points.append(end)
    label = None
    if link.label is not None:
        # A link without points of its own, in a large graph, has its label halfway.
        label = Point((begin.x + end.x) / 2, (begin.y + end.y) / 2)
        if passed:
            rank = graph.ranks[passed[0]]
            label = Point(columns[passed[0]], (tops[rank] + bottoms[rank]) / 2)
    distinct = [begin]
    for point in points[1:]:
        x = distinct[-1].x if abs(point.x - distinct[-1].x) < SNAP else point.x
        if (x, point.y) != distinct[-1]:
            distinct.append(Point(x, point.y))
    return Route(tuple(reversed(distinct) if link.back else distinct), label)


def _port(middle: float, box: Box, towards: float) -> float:
    return middle + copysign(min(PORT_MAX, box.width * 0.3), towards - middle)
