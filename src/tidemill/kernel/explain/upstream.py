"""Nodes that wait for nodes: undecided edges, joins, and what is really live at their upper end.

The search goes up undecided edges only, remembers what it found for every node it passed, and carries a bounded
number of origins along, so all of it together costs no more than the edges it walks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from tidemill.kernel.activation import ENDED
from tidemill.kernel.decide.routing import in_flight
from tidemill.kernel.explain.blockers import Edge, Join, Limit, Loop, Origin, Undecided
from tidemill.kernel.explain.live import place_of, who
from tidemill.kernel.explain.survey import ExplainInput, WaitingVisit
from tidemill.kernel.model import Node

_FOLLOWING = frozenset({"edge", "join", "loop"})
"""Kinds of nodes that wait for nothing but other nodes."""


class Upstream:
    """Finds what undecided edges lead up to, given the kind of every node's own blocker."""

    def __init__(self, scene: ExplainInput, cases: Iterable[WaitingVisit]) -> None:
        self._scene = scene
        self._kinds = {case.node.id: case.kind for case in cases if case.act is case.cell}
        self._found: dict[str, tuple[str, ...]] = {}

    def origins(self, name: str) -> tuple[str, ...]:
        """What is live at the upper end of a node, itself if it is; at most one more than are to be named."""
        open_: dict[str, list[str]] = {}
        agenda = [name]
        while agenda:
            top = agenda[-1]
            if top in self._found:
                agenda.pop()
            elif top not in open_:
                open_[top] = self._ways(top)
                agenda.extend(way for way in open_[top] if self._follows(way) and way not in open_)
            else:
                self._found[top] = self._merged(open_[top]) or (top,)
                agenda.pop()
        return self._found[name]

    def _follows(self, name: str) -> bool:
        """Whether a node only waits for others."""
        return self._kinds.get(name) in _FOLLOWING

    def _ways(self, name: str) -> list[str]:
        """The nodes that a node only waits for; when enough of them are live, those are all that matter."""
        ways: list[str] = []
        live: list[str] = []
        for way in self._ways_up(name):
            ways.append(way)
            if not self._follows(way):
                live.append(way)
                if len(live) > self._scene.bounds.origins:
                    return live
        return ways

    def _merged(self, ways: list[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for way in ways:
            found.update(dict.fromkeys(self._found.get(way, ()) if self._follows(way) else (way,)))
            if len(found) > self._scene.bounds.origins:
                break
        return tuple(found)[: self._scene.bounds.origins + 1]

    def _ways_up(self, name: str) -> Iterator[str]:
        node, kind, peek = self._scene.flow.by_id[name], self._kinds.get(name), self._scene.state.peek
        if kind == "loop":
            yield from self.busy_body(node)
        elif kind in _FOLLOWING:
            decided = peek(name).edges
            for source in node.inbound:
                if decided.get(source) is None:
                    over = peek(source).status in ENDED
                    yield (self._may_come_back(source, name) or source) if over else source

    def busy_body(self, node: Node) -> Iterator[str]:
        """The other nodes of a loop's body that are in flight."""
        peek = self._scene.state.peek
        body = () if node.loop is None else node.loop.body
        return (name for name in body if name != node.id and in_flight(peek(name)))

    def undecided(self, node: Node) -> Iterator[Undecided]:
        """The inbound edges that are neither taken nor dead."""
        peek = self._scene.state.peek
        decided = peek(node.id).edges
        for source in node.inbound:
            if decided.get(source) is None:
                status = peek(source).status
                loop = self._may_come_back(source, node.id) if status in ENDED else ""
                yield Undecided(source=source, status=status, loop=loop)

    def _may_come_back(self, source: str, target: str) -> str:
        """The looping node whose loop keeps an edge of an ended node undecided."""
        flow = self._scene.flow
        for looping in flow.by_id[source].loops:
            if target in flow.bodies[looping]:
                break
            if self._scene.state.peek(looping).status not in ENDED:
                return looping
        return ""

    def named(self, names: tuple[str, ...]) -> tuple[Origin, ...]:
        """Origins as they are shown."""
        peek, kinds = self._scene.state.peek, self._kinds
        return tuple(
            Origin(node=name, visit=peek(name).visit, status=peek(name).status, kind=kinds.get(name, ""))
            for name in names[: self._scene.bounds.origins]
        )


def behind_edges(upstream: Upstream, scene: ExplainInput, case: WaitingVisit) -> Edge | Join:
    """A visit whose join is not settled."""
    node = case.node
    names = upstream.origins(node.id)
    edges = tuple(islice(upstream.undecided(node), scene.bounds.names))
    live = ", ".join(names[: scene.bounds.origins]) + (" and others" if len(names) > scene.bounds.origins else "")
    since_ms = min((scene.state.peek(name).since_ms or scene.state.created_ms for name in names), default=None)
    common = place_of(case, since_ms) | {
        "undecided": edges,
        "origins": upstream.named(names),
        "more_origins": len(names) > scene.bounds.origins,
        "unblock": f"it goes on when {live} has ended" if len(names) == 1 else f"it goes on with the ends of {live}",
    }
    sources = _sources(edges, names, live)
    if case.kind == "edge":
        return Edge(words=f"{who(case)} waits for {sources}", **common)
    return _join(case, sources, common)


def _sources(edges: tuple[Undecided, ...], names: tuple[str, ...], live: str) -> str:
    """The nodes whose edges are undecided, and what is live behind them if that is something else."""
    waited = [edge.loop or edge.source for edge in edges]
    told = ", ".join(f"{edge.source} ({_status(edge)})" for edge in edges)
    return told if set(names) <= set(waited) else f"{told}, in the end for {live}"


def _status(edge: Undecided) -> str:
    return f"{edge.status}, but the loop of {edge.loop} may come back to it" if edge.loop else edge.status


def _join(case: WaitingVisit, sources: str, common: dict[str, Any]) -> Join:
    node, cell = case.node, case.cell
    of = len(node.inbound)
    needed = {"any": 1, "quorum": node.quorum, "strict": of}.get(node.join, of - cell.dead)
    dead = f", {cell.dead} dead" if cell.dead else ""
    told = f"has {cell.taken} of the {needed} edges it needs ({of} inbound{dead})"
    if node.join == "strict" and cell.dead:
        told = f"will be skipped, because {cell.dead} of its {of} edges are dead and its join is strict"
    return Join(
        join=node.join,
        arrived=cell.taken,
        dead=cell.dead,
        of=of,
        needed=needed,
        words=f"{who(case)} {told}; it waits for {sources}",
        **common,
    )


def behind_limit(scene: ExplainInput, case: WaitingVisit) -> Limit:
    """A visit that is ready and held back."""
    limit, flying = scene.flow.limits.max_parallel, scene.state.in_flight
    place = scene.places.get(case.node.id, 0)
    return Limit(
        position=place,
        max_parallel=limit,
        in_flight=flying,
        words=f"{who(case)} is ready and number {place} in the queue: {flying} are in flight, max_parallel is {limit}",
        unblock="it begins when enough of those in flight have ended",
        **place_of(case, case.cell.since_ms),
    )


def behind_body(upstream: Upstream, scene: ExplainInput, case: WaitingVisit) -> Loop:
    """A looping node that waits for the rest of its body."""
    busy = list(upstream.busy_body(case.node))
    names = tuple(busy[: scene.bounds.names])
    more = f" and {len(busy) - len(names)} more" if len(busy) > len(names) else ""
    return Loop(
        body=names,
        body_count=len(busy),
        words=f"{who(case)} has its result; the next pass of its loop waits for {', '.join(names)}{more}",
        unblock="the next pass begins when nothing else of the loop's body is in flight",
        **place_of(case, case.cell.since_ms),
    )
