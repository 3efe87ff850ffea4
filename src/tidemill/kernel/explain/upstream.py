"""Visits that wait for other visits: undecided edges, joins, loops and limits, and the live nodes at their upper end.

The search follows undecided edges only, caches its result per node and carries a bounded number of origins, so its cost
is linear in the edges it walks. Keep it iterative: graphs may be deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from tidemill.kernel.activation import ENDED
from tidemill.kernel.decide.edges_and_joins import in_flight, open_loop
from tidemill.kernel.explain.blockers import Edge, Join, Limit, Loop, Origin, Undecided
from tidemill.kernel.explain.live import common_fields
from tidemill.kernel.explain.survey import ExplainInput, WaitingVisit
from tidemill.kernel.model import Node

_FOLLOWING = frozenset({"edge", "join", "loop"})
"""Kinds that wait for nothing but other nodes."""


class Upstream:
    def __init__(self, facts: ExplainInput, cases: Iterable[WaitingVisit]) -> None:
        self._facts = facts
        self._kinds = {case.node.id: case.kind for case in cases if case.act is case.visit}
        self._found: dict[str, tuple[str, ...]] = {}

    def origins(self, name: str) -> tuple[str, ...]:
        """The live nodes above a node, or the node itself; at most one more than are listed."""
        expanded: dict[str, list[str]] = {}
        stack = [name]
        while stack:
            top = stack[-1]
            if top in self._found:
                stack.pop()
            elif top not in expanded:
                expanded[top] = self._waits_for(top)
                stack.extend(source for source in expanded[top] if self._follows(source) and source not in expanded)
            else:
                self._found[top] = self._merged(expanded[top]) or (top,)
                stack.pop()
        return self._found[name]

    def _follows(self, name: str) -> bool:
        return self._kinds.get(name) in _FOLLOWING

    def _waits_for(self, name: str) -> list[str]:
        """The nodes that a node waits for; only the live ones, once there are enough of them."""
        sources: list[str] = []
        live: list[str] = []
        for source in self._sources_of(name):
            sources.append(source)
            if not self._follows(source):
                live.append(source)
                if len(live) > self._facts.bounds.origins:
                    return live
        return sources

    def _merged(self, sources: list[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for source in sources:
            found.update(dict.fromkeys(self._found.get(source, ()) if self._follows(source) else (source,)))
            if len(found) > self._facts.bounds.origins:
                break
        return tuple(found)[: self._facts.bounds.origins + 1]

    def _sources_of(self, name: str) -> Iterator[str]:
        node, kind = self._facts.flow.by_id[name], self._kinds.get(name)
        if kind == "loop":
            yield from self.busy_body(node)
        elif kind in _FOLLOWING:
            yield from (edge.loop or edge.source for edge in self.undecided(node))

    def busy_body(self, node: Node) -> Iterator[str]:
        peek = self._facts.state.peek
        body = () if node.loop is None else node.loop.body
        return (name for name in body if name != node.id and in_flight(peek(name)))

    def undecided(self, node: Node) -> Iterator[Undecided]:
        peek = self._facts.state.peek
        decided = peek(node.id).edges
        for source in node.inbound:
            if decided.get(source) is None:
                status = peek(source).status
                flow, state = self._facts.flow, self._facts.state
                loop = open_loop(flow, state, flow.by_id[source], node.id) if status in ENDED else ""
                yield Undecided(source=source, status=status, loop=loop)

    def named(self, names: tuple[str, ...]) -> tuple[Origin, ...]:
        peek, kinds = self._facts.state.peek, self._kinds
        return tuple(
            Origin(node=name, visit=peek(name).visit, status=peek(name).status, kind=kinds.get(name, ""))
            for name in names[: self._facts.bounds.origins]
        )


def behind_edges(upstream: Upstream, facts: ExplainInput, case: WaitingVisit) -> Edge | Join:
    node = case.node
    names = upstream.origins(node.id)
    edges = tuple(islice(upstream.undecided(node), facts.bounds.names))
    live = ", ".join(names[: facts.bounds.origins]) + (" and others" if len(names) > facts.bounds.origins else "")
    since_ms = min((facts.state.peek(name).since_ms or facts.state.created_ms for name in names), default=None)
    common = common_fields(case, since_ms) | {
        "undecided": edges,
        "origins": upstream.named(names),
        "more_origins": len(names) > facts.bounds.origins,
        "unblock": f"it continues when {live} has ended" if len(names) == 1 else f"it continues when {live} have ended",
    }
    # The sources of the undecided edges, and the live nodes above them if those are others.
    waited = [edge.loop or edge.source for edge in edges]
    notes = (f", but the loop of {edge.loop} may come back to it" if edge.loop else "" for edge in edges)
    text = ", ".join(f"{edge.source} ({edge.status}{note})" for edge, note in zip(edges, notes, strict=True))
    sources = text if set(names) <= set(waited) else f"{text}, ultimately for {live}"
    if case.kind == "edge":
        return Edge(words=f"{case.label} is waiting for {sources}", **common)
    return _join(case, sources, common)


def _join(case: WaitingVisit, sources: str, common: dict[str, Any]) -> Join:
    node, visit = case.node, case.visit
    of = len(node.inbound)
    needed = {"any": 1, "quorum": node.quorum, "strict": of}.get(node.join, of - visit.dead)
    dead = f", {visit.dead} dead" if visit.dead else ""
    text = f"has {visit.taken} of the {needed} edges it needs ({of} inbound{dead})"
    if node.join == "strict" and visit.dead:
        text = f"will be skipped, because {visit.dead} of its {of} edges are dead and its join is strict"
    return Join(
        join=node.join,
        arrived=visit.taken,
        dead=visit.dead,
        of=of,
        needed=needed,
        words=f"{case.label} {text}; it is waiting for {sources}",
        **common,
    )


def behind_limit(facts: ExplainInput, case: WaitingVisit) -> Limit:
    limit, flying = facts.flow.limits.max_parallel, facts.state.in_flight
    place = facts.places.get(case.node.id, 0)
    return Limit(
        position=place,
        max_parallel=limit,
        in_flight=flying,
        words=f"{case.label} is ready and number {place} in the queue: {flying} are in flight, max_parallel is {limit}",
        unblock="it starts when enough of those in flight have ended",
        **common_fields(case, case.visit.since_ms),
    )


def behind_body(upstream: Upstream, facts: ExplainInput, case: WaitingVisit) -> Loop:
    busy = list(upstream.busy_body(case.node))
    names = tuple(busy[: facts.bounds.names])
    more = f" and {len(busy) - len(names)} more" if len(busy) > len(names) else ""
    return Loop(
        body=names,
        body_count=len(busy),
        words=f"{case.label} has its result; the next pass of its loop is waiting for {', '.join(names)}{more}",
        unblock="the next pass starts when no other node of the loop body is in flight",
        **common_fields(case, case.visit.since_ms),
    )
