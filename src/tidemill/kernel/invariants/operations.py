"""Invariants of retry, rewind, override, patch, rollback, dead letters.

Laws of operators' acts on visits: what a retry or a rewind begins again, and what may be settled by hand.

Laws of dead letters: written for what has failed for good, closed once, and by a retry of what they are about.

Laws of patches: what has happened stays, and every join that has not is as its recorded edges say.

The graph behind a digest is asked for. Without it a changed run cannot be judged: that is said, as a violation,
and nothing behind it is read.

Laws of rollbacks: what completed is undone backwards, one step at a time, and what is left is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    DeadLetterClosed,
    DeadLettered,
    Join,
    NodeCancelled,
    NodeCompleted,
    NodeFailed,
    NodeOverridden,
    RollbackFinished,
    RollbackStarted,
    RunForked,
    RunPatched,
    RunRetried,
    RunRewound,
)
from tidemill.kernel.invariants.attempts import UNKNOWN
from tidemill.kernel.invariants.ledger import (
    REOPENABLE,
    ActivationLedger,
    InvariantGroup,
    Key,
    Ledger,
    Visit,
    key_of,
    name_of,
)
from tidemill.kernel.model import Node, Workflow


class DeadLetters(InvariantGroup):
    """Reads dead letters."""

    def __init__(self, books: Ledger) -> None:
        super().__init__(books)
        self.open: dict[str, dict[Key, None]] = {}
        """By node: letters that nobody has taken care of."""
        self.due: dict[Key, None] = {}
        """Letters that a retry has to close in its commit."""

    def written(self, event: DeadLettered) -> None:
        """A failure that nobody will try again by itself."""
        final = self.books.act(event).final
        self._law("dead-letter", final == "FAILED", "a dead letter follows a failure for good")
        self.open.setdefault(event.node, {})[key_of(event)] = None

    def closed(self, event: DeadLetterClosed) -> None:
        """Somebody took care of it."""
        letters = self.open.get(event.node, {})
        self._law("letter-open", key_of(event) in letters, f"{event.node} has no such letter that is open")
        self._law("letter-open", event.status in ("reprocessed", "discarded"), f"no letter is {event.status}")
        letters.pop(key_of(event), None)
        self.due.pop(key_of(event), None)

    def retried(self, event: RunRetried) -> None:
        """What is tried again is no dead letter any more; a tolerated failure stays as it is."""
        for opened in event.nodes:
            for key in self.open.get(opened.node, ()):
                if key[1] == opened.visit and not self.books.acts[key].tolerated:
                    self.due[key] = None

    def forked(self, event: RunForked) -> None:
        """The letters are the other run's."""
        self.open.clear()
        self.due.clear()

    def finish(self) -> None:
        """A retry has closed the letters of what it reopened."""
        for node, visit, index in self.due:
            self._law("letter-due", False, f"the letter of {node}/{visit}/{index} is open, though it is tried again")
        self.due.clear()


_AROUND = frozenset({"inbound", "outbound", "plain", "loops", "reads", "reads_past", "reads_all"})
"""Fields of a node that say how it stands in the graph, not what it is."""


class Patches(InvariantGroup):
    """Reads changes of the graph."""

    def __init__(self, books: Ledger, find: Callable[[str], Workflow | None]) -> None:
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
            books.graph_unknown = True
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


class Reopening(InvariantGroup):
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

    def _items(self, node: Node, visit: Visit) -> list[ActivationLedger]:
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
        books.revived_edges |= dead - found
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


MISSING = "compensator_missing"
"""The error of a step that nobody can take any more."""


class Step:
    """A completed activation, and how far undoing it has come."""

    __slots__ = ("attempts", "done", "failures", "seq", "token")

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.done = False
        self.attempts = 0
        self.failures = 0
        self.token = 0


class Rollbacks(InvariantGroup):
    """Reads what would have to be undone, and how it is."""

    def __init__(self, books: Ledger) -> None:
        super().__init__(books)
        self.steps: dict[Key, Step] = {}
        self.unknown: dict[Key, None] = {}
        """What may or may not have happened, so that nobody can undo it."""
        self.order: list[Key] = []
        """Steps that are still to be begun, the next one last."""
        self.now: Key | None = None
        self.named: tuple[str, ...] = ()

    # Before

    def completed(self, event: NodeCompleted | NodeOverridden) -> None:
        """Remember what completed and can be undone."""
        whole = event.index == NOT_AN_ITEM
        if not event.undoable and not whole:
            return
        done = isinstance(event, NodeCompleted) or event.status == "COMPLETED"
        node = self.books.node(event)
        undoable = done and node.compensator is not None and (node.map is None or not whole)
        self._law("undoable", event.undoable == undoable, f"{event.node} has no compensator, or has one")
        if event.undoable:
            self._law("undoable", key_of(event) not in self.steps, f"{event.node} completed before in this visit")
            self.steps[key_of(event)] = Step(self.books.seq)

    def failed(self, event: NodeFailed) -> None:
        """Remember what nobody knows the outcome of; a map that failed because of an item is known by that item."""
        if event.error.code == UNKNOWN and event.retry_at_ms is None and event.error.index == NOT_AN_ITEM:
            self.unknown[key_of(event)] = None

    def cancelled(self, event: NodeCancelled) -> None:
        """Remember what may have been under way when it was cut off."""
        if event.unknown:
            node = self.books.workflow.by_id[event.node]
            self._law("undoable", node.compensator is not None, f"{event.node} has no compensator")
            self.unknown[key_of(event)] = None

    def retried(self, event: RunRetried) -> None:
        """What is tried again in the same visit will be known; a tolerated item is not, unless somebody is sure."""
        again = {(opened.node, opened.visit) for opened in event.nodes}
        for key in list(self.unknown):
            sure = key[0] in event.sure and key[1] == self.books.at[key[0]].number
            if sure or (key[:2] in again and not self.books.acts[key].tolerated):
                del self.unknown[key]

    def forked(self, event: RunForked) -> None:
        """What was done before is the other run's to undo."""
        self.steps.clear()
        self.unknown.clear()
        self.order, self.now, self.named = [], None, ()

    # While it runs

    def started(self, event: RollbackStarted) -> None:
        """Begin to undo what is not undone."""
        books = self.books
        self._law("rollback", books.ended, f"the run is {books.status}")
        self._law("rollback", books.rollback in ("none", "partial"), f"its rollback is {books.rollback}")
        open_ = sorted((step.seq, key) for key, step in self.steps.items() if not step.done)
        self.order = [key for _, key in open_]
        self._law("rollback-steps", event.steps == len(open_), f"there are {len(open_)} steps, not {event.steps}")
        unknown = sorted(name_of(key) for key in self.unknown if self._compensated(key))
        same = sorted(event.unknown) == unknown
        self._law("rollback-unknown", same, f"nobody knows the outcome of: {', '.join(unknown) or 'none'}")
        books.rollback, self.now, self.named = "running", None, event.unknown

    def _compensated(self, key: Key) -> bool:
        node = self.books.workflow.by_id.get(key[0])
        return node is not None and node.compensator is not None

    def scheduled(self, event: CompensationScheduled) -> None:
        """The next step: of what has completed last and is not undone."""
        self._law("rollback", self.books.rollback == "running", f"the rollback is {self.books.rollback}")
        self._law("rollback-one", self.now is None, "one step at a time")
        key, step = key_of(event), self.steps.get(key_of(event))
        following = self.order.pop() if self.order else None
        self._law("rollback-order", key == following, f"{following and name_of(following)} is to be undone next")
        if step is None:
            self._law("rollback-order", False, f"{name_of(key)} has nothing to undo")
            return
        self._law("rollback-of", event.of == step.seq, f"{name_of(key)} completed at {step.seq}, not {event.of}")
        self.now, step.failures = key, 0

    def undone(self, event: CompensationCompleted) -> None:
        """A step was taken."""
        step = self._step(event)
        if step is not None:
            step.done, self.now = True, None

    def undo_failed(self, event: CompensationFailed) -> None:
        """A step could not be taken: once more, or never."""
        step = self._step(event)
        if step is None:
            return
        if event.retry_at_ms is None:
            self.now = None
            return
        node = self.books.workflow.by_id.get(event.node)
        step.failures += not event.lost
        allowed = 0 if node is None or node.compensator is None else node.compensator.retry.max_attempts
        self._law("retry", event.error.retryable, f"{event.error.code} is not retryable")
        self._law("retry-count", event.lost or step.failures < allowed, "no more attempts than allowed")

    def _step(self, event: CompensationCompleted | CompensationFailed) -> Step | None:
        key, step = key_of(event), self.steps.get(key_of(event))
        if step is None or key != self.now:
            self._law("rollback-one", False, f"{name_of(key)} is not what is being undone")
            return None
        if isinstance(event, CompensationFailed) and event.error.code == MISSING and not event.attempt:
            return step
        following = step.attempts + 1
        self._law("attempts", event.attempt == following, f"attempt {event.attempt} to undo is number {following}")
        self._law("fence", not event.token or event.token > step.token, f"token {event.token} is above {step.token}")
        step.attempts, step.token = event.attempt, max(step.token, event.token)
        return step

    def finished(self, event: RollbackFinished) -> None:
        """It is over, and says what is left."""
        books = self.books
        self._law("rollback", books.rollback == "running", f"the rollback is {books.rollback}")
        left = sorted([*self.named, *(name_of(key) for key, step in self.steps.items() if not step.done)])
        self._law("rollback-left", sorted(event.left) == left, f"what is left: {', '.join(left) or 'nothing'}")
        status = "partial" if left else "done"
        self._law("rollback-left", event.status == status, f"it is {status}, not {event.status}")
        books.rollback, self.now, self.order = event.status, None, []
