"""Laws of visits: when a node may begin, how a map's items are queued, and how loops begin another pass."""

from __future__ import annotations

from tidemill.kernel.events import NOT_AN_ITEM, LoopContinued, NodeExpanded, NodeScheduled
from tidemill.kernel.laws.books import Section, Visit
from tidemill.kernel.laws.edges import verdict
from tidemill.kernel.model import Node


class Visits(Section):
    """Reads what makes activations ready."""

    def scheduled(self, event: NodeScheduled) -> None:
        """A visit, some items, or an activation whose wait is over may be worked on."""
        node, visit = self.books.node(event), self.books.at[event.node]
        if event.index != NOT_AN_ITEM:
            if event.resumed is None:
                self._items_queued(event, visit)
            return
        all_ended = visit.expanded is not None and visit.done >= visit.expanded.count
        if visit.ready:
            assembles = all_ended and not visit.assembled
            again = not event.held and (visit.held or event.resumed is not None or assembles)
            self._law("join-once", again, f"{event.node} was made ready twice")
            visit.held = False
        else:
            self._begins(node, event, visit)
        if all_ended and not event.held and event.resumed is None:
            visit.assembled = True

    def _begins(self, node: Node, event: NodeScheduled, visit: Visit) -> None:
        limits = self.books.workflow.limits
        self._law("ended-once", not visit.ended, f"{event.node} had ended")
        fires = visit.own or (node.inbound and verdict(node, visit) == "fire")
        self._law("join", bool(fires), f"the join of {event.node} allows it to begin")
        visit.ready, visit.held = True, event.held
        self.books.visits += 1
        self._law("max-visits", self.books.visits <= limits.max_visits, "no more visits than allowed")
        if limits.max_hops is not None:
            self._law("max-hops", event.hop <= limits.max_hops, "no longer path than allowed")

    def _items_queued(self, event: NodeScheduled, visit: Visit) -> None:
        expanded = visit.expanded
        if expanded is None:
            self._law("map", False, f"items of {event.node} were queued before its list was known")
            return
        first = self._next_item(event, visit)
        self._law("map-order", event.index == first and event.until > first, "items are queued in order, once")
        self._law("map-bounds", event.until <= expanded.count, "no item beyond the list")
        if visit.done > visit.queued - visit.flying:
            # Some ended before the run was reopened and stay as they are.
            known = (self.books.acts.get((event.node, event.visit, index)) for index in range(first, event.until))
            kept = any(act is not None and act.final for act in known)
            self._law("map-order", not kept, "an item that had ended is queued again")
        visit.flying += event.until - event.index
        visit.queued, visit.held = event.until, False
        self._law("map-window", visit.flying <= expanded.window, f"{visit.flying} items of {event.node} in flight")

    def _next_item(self, event: NodeScheduled, visit: Visit) -> int:
        """The first item that was not queued and has not ended before."""
        index, acts = visit.queued, self.books.acts
        while (act := acts.get((event.node, event.visit, index))) is not None and act.final:
            index += 1
        return index

    def expanded(self, event: NodeExpanded) -> None:
        """The list of a map is known."""
        visit = self.books.at[event.node]
        self._law("map-once", visit.expanded is None, f"{event.node} was expanded twice")
        self._law("max-fanout", event.count <= self.books.workflow.limits.max_fanout, "no wider map than allowed")
        visit.expanded = event

    # Loops

    def looped(self, event: LoopContinued) -> None:
        """Every node of the body has its next visit."""
        node, at = self.books.workflow.by_id.get(event.node), self.books.at
        loop = None if node is None else node.loop
        if loop is None or loop.back_to != event.entry or loop.body != event.body:
            self._law("loop", False, f"{event.node} loops as its document says")
            return
        passes = at[event.node].passes + 1
        self._law("loop-pass", event.iteration == passes, "passes count 0, 1, 2…")
        allowed = loop.max_iterations is None or event.iteration < loop.max_iterations
        self._law("loop-limit", allowed, f"{event.node} makes no more passes than allowed")
        for name in event.body:
            busy = at[name].ready and not at[name].ended
            self._law("loop-busy", not busy, f"{name} was in flight when the loop went on")
            self._next_pass(name, event)
        at[event.node].passes = event.iteration

    def _next_pass(self, name: str, event: LoopContinued) -> None:
        """The next visit; edges into the body's entry belong to the loop around it and stay as they are."""
        books, old = self.books, self.books.at[name]
        visit = books.at[name] = Visit(old.number + 1)
        if name == event.entry:
            visit.taken, visit.dead, visit.own, visit.tokens = old.taken, old.dead, True, 1
            books.touched.add(name)
        else:
            for source in books.workflow.by_id[name].inbound:
                books.edges.pop((source, name), None)
