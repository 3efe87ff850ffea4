"""Laws of patches: what has happened stays, and every join that has not is as its recorded edges say.

The graph behind a digest is asked for. Without it a changed run cannot be judged: that is said, as a violation,
and nothing behind it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.kernel.events import NOT_AN_ITEM, Join, RunPatched
from tidemill.kernel.laws.books import Books, Section, Visit
from tidemill.kernel.model import Node, Workflow

_AROUND = frozenset({"inbound", "outbound", "plain", "loops", "reads", "reads_past", "reads_all"})
"""Fields of a node that say how it stands in the graph, not what it is."""


class Patches(Section):
    """Reads changes of the graph."""

    def __init__(self, books: Books, find: Callable[[str], Workflow | None]) -> None:
        super().__init__(books)
        self.find = find

    def patched(self, event: RunPatched) -> None:
        """The run goes on under another graph."""
        books, old = self.books, self.books.workflow
        self._law("patch-base", event.base == books.digest, f"the run has the graph {books.digest}")
        self._law("patch-revision", event.revision == books.revision + 1, f"patch {event.revision}")
        books.digest, books.revision = event.digest, event.revision
        new = self.find(event.digest)
        if new is None:
            self._law("graph", False, f"nobody knows the graph {event.digest}: nothing behind this was checked")
            books.blind = True
            return
        self._nodes(event, old, new)
        self._joins(event, old, new)
        self._tokens(event)
        books.workflow, books.must_reopen = new, books.ended
        self._apply(event, old)

    # What has happened stays

    def _nodes(self, event: RunPatched, old: Workflow, new: Workflow) -> None:
        at = self.books.at
        altered = [node.id for node in new.nodes if node.id in old.by_id and _altered(old.by_id[node.id], node)]
        lists = (
            (event.added, [name for name in new.by_id if name not in old.by_id]),
            (event.removed, [name for name in old.by_id if name not in new.by_id]),
            (event.changed, altered),
        )
        same = all(sorted(said) == sorted(found) for said, found in lists)
        self._law("patch-set", same, "what is added, removed and changed is what differs")
        for name in (*altered, *lists[1][1]):
            fixed = at[name].live or at[name].ended in ("COMPLETED", "SKIPPED")
            self._law("patch-node", not fixed, f"{name} is under way or has its result")
        for node in new.nodes:
            known = old.by_id.get(node.id)
            moved = known is not None and known.loops != node.loops
            self._law("patch-node", not (moved and at[node.id].live), f"{node.id} is under way in another loop")
        for name in event.relisted:
            begun = not at[name].final and any(self._begun(name, index) for index in range(at[name].queued))
            self._law("relisted", not begun, f"items of {name} that have begun would be made again by another name")

    def _begun(self, name: str, index: int) -> bool:
        act = self.books.acts.get((name, self.books.at[name].number, index))
        return act is not None and (act.count > 0 or act.final == "COMPLETED")

    # Joins

    def _joins(self, event: RunPatched, old: Workflow, new: Workflow) -> None:
        said = {join.node: join for join in event.joins}
        self._law("patch-join", len(said) == len(event.joins), "one join per node")
        for node in new.nodes:
            known, join = old.by_id.get(node.id), said.pop(node.id, None)
            same = known is not None and set(known.inbound) == set(node.inbound)
            visit = self.books.at[node.id]
            if visit.settled and not self._reopens(visit):
                self._law("patch-join", same and join is None, f"the join of {node.id} has been settled")
                continue
            edges = {source: self._edge(source, node.id, old, new) for source in node.inbound}
            if same and all(self.books.edges.get((source, node.id)) is taken for source, taken in edges.items()):
                self._law("patch-join", join is None, f"the edges into {node.id} are the same")
            elif join is None:
                self._law("patch-join", False, f"the edges into {node.id} are others now")
            else:
                self._join(node, join, edges, own=same and visit.own)
        self._law("patch-join", not said, f"{', '.join(said)} not in the graph")

    def _join(self, node: Node, join: Join, edges: dict[str, bool | None], *, own: bool) -> None:
        decided = {source: taken for source, taken in edges.items() if taken is not None}
        self._law("patch-join", dict(join.edges) == decided, f"the edges into {node.id} are decided by what happened")
        self._law("patch-join", join.own is (own or not node.inbound), f"{node.id} is an entry if nothing leads to it")
        tokens = 0 if self.books.ended else int(join.own) or sum(decided.values())
        self._law("patch-tokens", join.tokens == tokens, f"{tokens} tokens stand at {node.id}")

    def _edge(self, source: str, target: str, old: Workflow, new: Workflow) -> bool | None:
        """What became of an edge: as recorded, or for a new one what its source's end means for it."""
        known, visit = old.by_id.get(source), self.books.at[source]
        was = known is not None and target in known.outbound
        recorded = self.books.edges.get((source, target)) if was else None
        if recorded or known is None or not visit.ended or self._reopens(visit):
            return recorded
        if not was and target in new.by_id[source].plain and visit.straight:
            return True
        return None if self._comes_back(source, target, new) else False

    def _comes_back(self, source: str, target: str, new: Workflow) -> bool:
        """Whether a loop that the edge leaves may make another pass, in which it is taken after all."""
        for name in new.by_id[source].loops:
            loop, visit = new.by_id[name].loop, self.books.at[name]
            if loop is not None and target in loop.body:
                return False
            if name != source and (not visit.ended or self._reopens(visit)):
                return True
        return False

    def _reopens(self, visit: Visit) -> bool:
        """Whether a visit that had ended is made again, because the run is reopened with the patch."""
        return self.books.ended and visit.ended != "" and not visit.final

    def _tokens(self, event: RunPatched) -> None:
        books = self.books
        gone = {join.node for join in event.joins} | set(event.removed)
        emitted = sum(join.tokens for join in event.joins)
        # Where there is more to do, the rendering of the outputs gives its token back.
        consumed = sum(books.at[name].tokens for name in gone) + (books.rendering and emitted > 0)
        books.rendering = books.rendering and not emitted
        self._law("patch-tokens", event.consumed == consumed, f"{consumed} tokens are consumed")
        self._law("patch-tokens", event.emitted == emitted, f"{emitted} tokens are emitted again")
        books.counter += event.emitted - event.consumed
        self._law("counter", event.counter == books.counter, f"counter {event.counter} is {books.counter}")

    # Another graph

    def _apply(self, event: RunPatched, old: Workflow) -> None:
        books = self.books
        for name in event.removed:
            if name in old.by_id:
                self._forget(old.by_id[name])
        for join in event.joins:
            before = old.by_id.get(join.node)
            for source in () if before is None else before.inbound:
                books.edges.pop((source, join.node), None)
            visit = books.at[join.node]
            visit.taken = visit.dead = 0
            visit.own, visit.tokens = join.own, join.tokens
            for source, taken in join.edges:
                books.decide(source, join.node, taken)
        for name in event.relisted:
            self._relist(name)
        books.touched.update(event.added, event.changed)

    def _forget(self, node: Node) -> None:
        """A node is gone. Should one of its name come back, its visits are counted on."""
        books, visit = self.books, self.books.at[node.id]
        key = (node.id, visit.number, NOT_AN_ITEM)
        begun = visit.ready or (key in books.acts and books.acts[key].count > 0)
        books.acts.pop(key, None)
        books.at[node.id] = Visit(visit.number + begun)
        for source in node.inbound:
            books.edges.pop((source, node.id), None)
        for target in node.outbound:
            books.edges.pop((node.id, target), None)

    def _relist(self, name: str) -> None:
        """The items of the old list are forgotten with it."""
        visit = self.books.at[name]
        for index in range(0 if visit.expanded is None else visit.expanded.count):
            self.books.acts.pop((name, visit.number, index), None)
        visit.expanded, visit.queued, visit.flying, visit.done = None, 0, 0, 0


def _altered(old: Node, new: Node) -> bool:
    """Whether a node is another one now, and not only its surroundings."""
    return any(_own(old, field) != _own(new, field) for field in old.__struct_fields__ if field not in _AROUND)


def _own(node: Node, field: str) -> Any:
    value = getattr(node, field)
    if field == "loop" and value is not None:
        return msgspec.structs.replace(value, body=(), escapes=())
    return value
