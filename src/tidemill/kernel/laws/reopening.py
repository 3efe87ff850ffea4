"""Laws of operators' acts on visits: what a retry or a rewind begins again, and what may be settled by hand."""

from __future__ import annotations

from tidemill.kernel.events import NOT_AN_ITEM, NodeOverridden, RunRetried, RunRewound
from tidemill.kernel.laws.attempts import UNKNOWN
from tidemill.kernel.laws.books import REOPENABLE, Act, Section, Visit
from tidemill.kernel.model import Node


class Reopening(Section):
    """Reads which visits are made once more, and with which tokens."""

    # Retry

    def retried(self, event: RunRetried) -> None:
        """A run that had ended goes on: exactly what had not ended well begins again, in the same visit."""
        books = self.books
        self._law("retry-ended", books.status in REOPENABLE or books.begins_anew, f"the run is {books.status}")
        self._law("retry-undone", books.rollback == "none", "what is being undone does not go on")
        unfinished = {node.id: node for node in books.workflow.nodes if self._unfinished(books.at[node.id])}
        said = [opened.node for opened in event.nodes]
        self._law("retry-set", sorted(said) == sorted(unfinished), "exactly what had not ended well begins again")
        for opened in event.nodes:
            node, visit = unfinished.get(opened.node), books.at[opened.node]
            if node is not None:
                self._law("retry-visit", opened.visit == visit.number, f"{node.id} is at visit {visit.number}")
                tokens = int(visit.own) or visit.taken
                self._law("retry-tokens", opened.tokens == tokens, f"{tokens} tokens stand at {node.id}")
                self._sure(node, event)
                self._reopen(node, visit, opened.tokens)
        renders = not event.nodes and books.workflow.outputs is not None
        self._law("renders", event.renders is renders, "outputs alone are rendered anew when all visits had ended")
        emitted = sum(opened.tokens for opened in event.nodes) + event.renders
        self._law("retry-tokens", event.emitted == emitted, f"{emitted} tokens are emitted again")
        books.counter += event.emitted
        self._law("counter", event.counter == books.counter, f"counter {event.counter} is {books.counter}")
        books.rendering = books.rendering or event.renders
        books.status, books.must_reopen, books.begins_anew = "RUNNING", False, False

    def _unfinished(self, visit: Visit) -> bool:
        """Whether a visit is to be made again; in a fork of a live run, only what had ended there."""
        return not visit.final and (visit.ended != "" or self.books.ended)

    def _sure(self, node: Node, event: RunRetried) -> None:
        """What nobody knows the outcome of is tried again only if an operator is sure that it did not happen."""
        visit = self.books.at[node.id]
        act = self.books.acts[node.id, visit.number, NOT_AN_ITEM]
        unknown = act.final == "FAILED" and act.last_error == UNKNOWN
        if node.delivery == "at_most_once":
            unknown = unknown or act.cut_off or any(item.cut_off for item in self._items(node, visit))
        self._law("at-most-once", not unknown or node.id in event.sure, f"nobody is sure about {node.id}")

    def _reopen(self, node: Node, visit: Visit, tokens: int) -> None:
        books = self.books
        books.acts[node.id, visit.number, NOT_AN_ITEM].reopen()
        books.visits -= visit.ready
        books.touched.add(node.id)
        visit.ready = visit.held = visit.assembled = visit.tolerated = visit.by_hand = False
        visit.ended, visit.tokens = "", tokens
        if visit.expanded is not None:
            visit.queued = visit.flying = visit.done = 0
            for item in self._items(node, visit):
                if item.final == "COMPLETED" or item.tolerated:
                    visit.done += 1
                else:
                    item.reopen()

    def _items(self, node: Node, visit: Visit) -> list[Act]:
        count = 0 if visit.expanded is None else visit.expanded.count
        known = (self.books.acts.get((node.id, visit.number, index)) for index in range(count))
        return [act for act in known if act is not None]

    # Rewind

    def rewound(self, event: RunRewound) -> None:
        """A node and what has happened behind it is made anew, each in its next visit."""
        books = self.books
        if event.node not in books.workflow.by_id:
            self._law("node", False, f"{event.node} is a node of the workflow")
            return
        reach = self._reach(event.node)
        touched = {node.id: node for node in books.workflow.nodes if node.id in reach and self._happened(node.id)}
        said = [again.node for again in event.nodes]
        self._law("rewind-set", sorted(said) == sorted(touched), "what has happened behind the node is made anew")
        flying = [name for name in touched if books.at[name].ready and not books.at[name].ended]
        self._law("rewind-busy", not flying, f"{', '.join(flying)} in flight")
        loops = {name for name, node in touched.items() if node.loop is not None and event.node not in node.loop.body}
        self._law("rewind-loops", set(event.restarted) == loops, f"loops that begin anew: {', '.join(sorted(loops))}")
        consumed = sum(books.at[name].tokens for name in touched) + books.rendering
        self._law("rewind-tokens", event.consumed == consumed, f"{consumed} tokens are consumed")
        emitted = sum(again.tokens for again in event.nodes)
        self._law("rewind-tokens", event.emitted == emitted, f"{emitted} tokens are emitted again")
        self._undecide(event, reach)
        for again in event.nodes:
            if again.node in touched:
                self._again(touched[again.node], event, set(touched), again.visit, again.tokens)
        books.counter += event.emitted - event.consumed
        self._law("counter", event.counter == books.counter, f"counter {event.counter} is {books.counter}")
        books.rendering = False

    def _reach(self, start: str) -> set[str]:
        """The node and everything behind it, loop-backs excluded."""
        seen, agenda = {start}, [start]
        while agenda:
            for target in self.books.workflow.by_id[agenda.pop()].outbound:
                if target not in seen:
                    seen.add(target)
                    agenda.append(target)
        return seen

    def _undecide(self, event: RunRewound, reach: set[str]) -> None:
        """Ways out of loops that had died with them are open again, where whoever may take them stays as it is."""
        books = self.books
        loops = [node.loop for node in books.workflow.nodes if node.loop is not None and node.id in reach]
        dead = {
            (source, target)
            for loop in loops
            for source, target in loop.escapes
            if source not in reach and books.edges.get((source, target)) is False
        }
        found = {(source, target) for source, target in dead if target in reach or not books.at[target].settled}
        books.reborn |= dead - found
        self._law("rewind-escapes", set(event.undecided) == found, "ways out of loops that go on are open again")
        for source, target in found:
            del books.edges[source, target]
            books.at[target].dead -= 1

    def _happened(self, name: str) -> bool:
        visit = self.books.at[name]
        return visit.settled or visit.passes > 0 or visit.taken + visit.dead > 0

    def _again(self, node: Node, event: RunRewound, touched: set[str], number: int, tokens: int) -> None:
        """The next visit: edges from nodes that stay as they are stay decided."""
        books, old = self.books, self.books.at[node.id]
        self._law("rewind-visit", number == old.number + 1, f"{node.id} goes on with visit {old.number + 1}")
        visit = books.at[node.id] = Visit(number)
        visit.own = old.own and node.id == event.node
        visit.passes = 0 if node.id in event.restarted else old.passes
        for source in node.inbound:
            if source in touched:
                books.edges.pop((source, node.id), None)
            elif (source, node.id) in books.edges:
                visit.taken += books.edges[source, node.id]
                visit.dead += not books.edges[source, node.id]
        expected = int(visit.own) or visit.taken
        self._law("rewind-tokens", tokens == expected, f"{expected} tokens stand at {node.id}")
        visit.tokens = tokens
        books.touched.add(node.id)

    # Override

    def overridden(self, event: NodeOverridden) -> None:
        """Only what is PENDING or WAITING is settled by hand; what had ended was reopened before."""
        act, visit = self.books.act(event), self.books.at[event.node]
        self._law("ended-once", not act.final, f"{event.node} ended twice: {act.final}")
        whole = event.index == NOT_AN_ITEM
        begun = visit.ready and not visit.held if whole else event.index < visit.queued
        self._law("override", not begun or act.wait is not None, f"{event.node} is being worked on")
        self._law("override", event.status in ("QUEUED", "COMPLETED", "SKIPPED"), f"nothing is {event.status} by hand")
        if not whole:
            self._law("override", visit.expanded is not None, f"{event.node} has no items")
            return
        visit.by_hand, visit.held = True, False
        if event.status == "QUEUED":
            given = int(not visit.tokens)
            self._law("override-tokens", event.emitted == given, f"{event.node} holds {visit.tokens} tokens")
            visit.tokens += event.emitted
            self.books.visits += not visit.ready
            visit.ready = True
