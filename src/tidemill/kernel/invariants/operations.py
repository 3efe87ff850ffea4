"""Invariants of operator actions: dead letters, patches, retry, rewind, override and rollback.

A patch names a workflow by digest. If the checker cannot resolve it, it records the violation `graph` and ignores the
rest of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.kernel import events as ev
from tidemill.kernel.events import NOT_AN_ITEM
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
    """A dead letter records a final failure; it is closed once, or by a retry of its activation."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.open: dict[str, dict[Key, None]] = {}
        """Open letters by node."""
        self.due: dict[Key, None] = {}
        """Letters that a retry must close in the same commit."""

    def written(self, event: ev.DeadLettered) -> None:
        final = self.ledger.act(event).final
        self._check("dead-letter", final == "FAILED", "a dead letter follows a permanent failure")
        self.open.setdefault(event.node, {})[key_of(event)] = None

    def closed(self, event: ev.DeadLetterClosed) -> None:
        letters = self.open.get(event.node, {})
        self._check("letter-open", key_of(event) in letters, f"{event.node} has no such letter that is open")
        self._check("letter-open", event.status in ("reprocessed", "discarded"), f"no letter is {event.status}")
        letters.pop(key_of(event), None)
        self.due.pop(key_of(event), None)

    def retried(self, event: ev.RunRetried) -> None:
        """A retry closes the letters of what it reopens; in earlier logs those of tolerated items may stay open."""
        for opened in event.nodes:
            for key in self.open.get(opened.node, ()):
                if key[1] == opened.visit and not self.ledger.acts[key].tolerated:
                    self.due[key] = None

    def forked(self, event: ev.RunForked) -> None:
        """The letters stay with the origin."""
        self.open.clear()
        self.due.clear()

    def finish(self) -> None:
        for node, visit, index in self.due:
            self._check("letter-due", False, f"the letter of {node}/{visit}/{index} is open, though it is tried again")
        self.due.clear()


_SURROUNDINGS = frozenset({"inbound", "outbound", "plain", "loops", "reads", "reads_past", "reads_all"})
"""Fields that describe a node's surroundings, not the node itself."""


class Patches(InvariantGroup):
    """A patch keeps everything that has happened; all other joins follow the recorded edges."""

    def __init__(self, ledger: Ledger, find: Callable[[str], Workflow | None]) -> None:
        super().__init__(ledger)
        self.find = find

    def patched(self, event: ev.RunPatched) -> None:
        ledger, old = self.ledger, self.ledger.workflow
        self._check("patch-base", event.base == ledger.digest, f"the run has the graph {ledger.digest}")
        self._check("patch-revision", event.revision == ledger.revision + 1, f"patch {event.revision}")
        ledger.digest, ledger.revision = event.digest, event.revision
        new = self.find(event.digest)
        if new is None:
            self._check("graph", False, f"the graph {event.digest} is unknown: later events were not checked")
            ledger.graph_unknown = True
            return
        self._nodes(event, old, new)
        self._joins(event, old, new)
        gone = {join.node for join in event.joins} | set(event.removed)
        emitted = sum(join.tokens for join in event.joins)
        # New work after the patch: the pending rendering of the outputs returns its token.
        consumed = sum(ledger.at[name].tokens for name in gone) + (ledger.rendering and emitted > 0)
        ledger.rendering = ledger.rendering and not emitted
        self._check("patch-tokens", event.consumed == consumed, f"{consumed} tokens are consumed")
        self._check("patch-tokens", event.emitted == emitted, f"{emitted} tokens are emitted again")
        self._move_tokens(event.emitted - event.consumed, event.counter)
        ledger.workflow, ledger.must_reopen = new, ledger.ended
        self._apply(event, old)

    def _nodes(self, event: ev.RunPatched, old: Workflow, new: Workflow) -> None:
        at = self.ledger.at
        altered = [node.id for node in new.nodes if node.id in old.by_id and _altered(old.by_id[node.id], node)]
        lists = (
            (event.added, [name for name in new.by_id if name not in old.by_id]),
            (event.removed, [name for name in old.by_id if name not in new.by_id]),
            (event.changed, altered),
        )
        same = all(sorted(named) == sorted(found) for named, found in lists)
        self._check("patch-set", same, "what is added, removed and changed is what differs")
        for name in (*altered, *lists[1][1]):
            fixed = at[name].live or at[name].ended in ("COMPLETED", "SKIPPED")
            self._check("patch-node", not fixed, f"{name} is under way or has its result")
        for node in new.nodes:
            known = old.by_id.get(node.id)
            moved = known is not None and known.loops != node.loops
            self._check("patch-node", not (moved and at[node.id].live), f"{node.id} is under way in another loop")
        for name in event.relisted:
            begun = not at[name].final and any(self._begun(name, index) for index in range(at[name].queued))
            self._check("relisted", not begun, f"items of {name} that have begun would be made again by another name")

    def _begun(self, name: str, index: int) -> bool:
        act = self.ledger.acts.get((name, self.ledger.at[name].number, index))
        return act is not None and (act.count > 0 or act.final == "COMPLETED")

    def _joins(self, event: ev.RunPatched, old: Workflow, new: Workflow) -> None:
        named = {join.node: join for join in event.joins}
        self._check("patch-join", len(named) == len(event.joins), "one join per node")
        for node in new.nodes:
            known, join = old.by_id.get(node.id), named.pop(node.id, None)
            same = known is not None and set(known.inbound) == set(node.inbound)
            visit = self.ledger.at[node.id]
            if visit.settled and not self._reopens(visit):
                self._check("patch-join", same and join is None, f"the join of {node.id} has been settled")
                continue
            edges = {source: self._edge(source, node.id, old, new) for source in node.inbound}
            if same and all(self.ledger.edges.get((source, node.id)) is taken for source, taken in edges.items()):
                self._check("patch-join", join is None, f"the edges into {node.id} are the same")
            elif join is None:
                self._check("patch-join", False, f"the edges into {node.id} are others now")
            else:
                decided = {source: taken for source, taken in edges.items() if taken is not None}
                self._check(
                    "patch-join", dict(join.edges) == decided, f"the edges into {node.id} are decided by what happened"
                )
                self._check(
                    "patch-join",
                    join.own is ((same and visit.has_start_token) or not node.inbound),
                    f"{node.id} is an entry if nothing leads to it",
                )
                tokens = 0 if self.ledger.ended else int(join.own) or sum(decided.values())
                self._check("patch-tokens", join.tokens == tokens, f"{tokens} tokens stand at {node.id}")
        self._check("patch-join", not named, f"{', '.join(named)} not in the graph")

    def _edge(self, source: str, target: str, old: Workflow, new: Workflow) -> bool | None:
        """The decision of an edge: as recorded, or for a new edge as the end of its source implies."""
        known, visit = old.by_id.get(source), self.ledger.at[source]
        was = known is not None and target in known.outbound
        recorded = self.ledger.edges.get((source, target)) if was else None
        if recorded or known is None or not visit.ended or self._reopens(visit):
            return recorded
        if not was and target in new.by_id[source].plain and visit.straight:
            return True
        return None if self._comes_back(source, target, new) else False

    def _comes_back(self, source: str, target: str, new: Workflow) -> bool:
        """Whether a loop that the edge leaves may make another pass that takes the edge after all."""
        for name in new.by_id[source].loops:
            loop, visit = new.by_id[name].loop, self.ledger.at[name]
            if loop is not None and target in loop.body:
                return False
            if name != source and (not visit.ended or self._reopens(visit)):
                return True
        return False

    def _reopens(self, visit: Visit) -> bool:
        """Whether the patch reopens an ended run in which this visit is repeated."""
        return self.ledger.ended and visit.ended != "" and not visit.final

    def _apply(self, event: ev.RunPatched, old: Workflow) -> None:
        ledger = self.ledger
        for name in event.removed:
            if name in old.by_id:
                self._forget(old.by_id[name])
        for join in event.joins:
            before = old.by_id.get(join.node)
            for source in () if before is None else before.inbound:
                ledger.edges.pop((source, join.node), None)
            visit = ledger.at[join.node]
            visit.taken = visit.dead = 0
            visit.has_start_token, visit.tokens = join.own, join.tokens
            for source, taken in join.edges:
                ledger.decide(source, join.node, taken)
        for name in event.relisted:
            visit = ledger.at[name]
            for index in range(0 if visit.expanded is None else visit.expanded.count):
                ledger.acts.pop((name, visit.number, index), None)
            visit.expanded, visit.queued, visit.flying, visit.done = None, 0, 0, 0
        ledger.touched.update(event.added, event.changed)

    def _forget(self, node: Node) -> None:
        """Forget a removed node; a later node of that name continues its visit numbers."""
        ledger, visit = self.ledger, self.ledger.at[node.id]
        key = (node.id, visit.number, NOT_AN_ITEM)
        begun = visit.ready or (key in ledger.acts and ledger.acts[key].count > 0)
        ledger.acts.pop(key, None)
        ledger.at[node.id] = Visit(visit.number + begun)
        for source in node.inbound:
            ledger.edges.pop((source, node.id), None)
        for target in node.outbound:
            ledger.edges.pop((node.id, target), None)


def _altered(old: Node, new: Node) -> bool:
    """Whether the node itself differs, not only its surroundings."""
    return any(
        _comparable(old, field) != _comparable(new, field)
        for field in old.__struct_fields__
        if field not in _SURROUNDINGS
    )


def _comparable(node: Node, field: str) -> Any:
    value = getattr(node, field)
    if field == "loop" and value is not None:
        return msgspec.structs.replace(value, body=(), escapes=())
    return value


class Reopening(InvariantGroup):
    """Checks which visits a retry or rewind repeats, with which tokens, and what may be overridden."""

    def retried(self, event: ev.RunRetried) -> None:
        """Exactly the visits that had not ended well are repeated, under the same visit number."""
        ledger = self.ledger
        self._check("retry-ended", ledger.status in REOPENABLE or ledger.just_forked, f"the run is {ledger.status}")
        self._check("retry-undone", ledger.rollback == "none", "a run that is being rolled back does not continue")
        # After a fork of a live run, only visits that had ended are repeated.
        visits = [(node, ledger.at[node.id]) for node in ledger.workflow.nodes]
        unfinished = {node.id: node for node, at in visits if not at.final and (at.ended != "" or ledger.ended)}
        named = [opened.node for opened in event.nodes]
        self._check("retry-set", sorted(named) == sorted(unfinished), "exactly what had not ended well begins again")
        for opened in event.nodes:
            node, visit = unfinished.get(opened.node), ledger.at[opened.node]
            if node is not None:
                self._check("retry-visit", opened.visit == visit.number, f"{node.id} is at visit {visit.number}")
                tokens = int(visit.has_start_token) or visit.taken
                self._check("retry-tokens", opened.tokens == tokens, f"{tokens} tokens stand at {node.id}")
                # An unknown outcome is retried only if an operator confirms that it did not happen.
                act = ledger.acts[node.id, visit.number, NOT_AN_ITEM]
                unknown = act.final == "FAILED" and act.last_error == UNKNOWN
                if node.delivery == "at_most_once":
                    unknown = unknown or act.cut_off or any(item.cut_off for item in self._items(node, visit))
                self._check(
                    "at-most-once", not unknown or node.id in event.sure, f"the outcome of {node.id} is unknown"
                )
                self._reopen(node, visit, opened.tokens)
        renders = not event.nodes and ledger.workflow.outputs is not None
        self._check("renders", event.renders is renders, "only outputs are rendered again when all visits had ended")
        emitted = sum(opened.tokens for opened in event.nodes) + event.renders
        self._check("retry-tokens", event.emitted == emitted, f"{emitted} tokens are emitted again")
        self._move_tokens(event.emitted, event.counter)
        ledger.rendering = ledger.rendering or event.renders
        ledger.status, ledger.must_reopen, ledger.just_forked = "RUNNING", False, False

    def _reopen(self, node: Node, visit: Visit, tokens: int) -> None:
        ledger = self.ledger
        ledger.acts[node.id, visit.number, NOT_AN_ITEM].reopen()
        ledger.visits -= visit.ready
        ledger.touched.add(node.id)
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
        known = (self.ledger.acts.get((node.id, visit.number, index)) for index in range(count))
        return [act for act in known if act is not None]

    def rewound(self, event: ev.RunRewound) -> None:
        """The node and everything that happened after it are repeated under the next visit numbers."""
        ledger = self.ledger
        if event.node not in ledger.workflow.by_id:
            self._check("node", False, f"{event.node} is a node of the workflow")
            return
        # The node and everything downstream, loop-backs excluded.
        seen, agenda = {event.node}, [event.node]
        while agenda:
            for target in self.ledger.workflow.by_id[agenda.pop()].outbound:
                if target not in seen:
                    seen.add(target)
                    agenda.append(target)
        reach = seen
        touched = {node.id: node for node in ledger.workflow.nodes if node.id in reach and self._has_happened(node.id)}
        named = [again.node for again in event.nodes]
        self._check("rewind-set", sorted(named) == sorted(touched), "visits after the node are repeated")
        flying = [name for name in touched if ledger.at[name].ready and not ledger.at[name].ended]
        self._check("rewind-busy", not flying, f"{', '.join(flying)} in flight")
        loops = {name for name, node in touched.items() if node.loop is not None and event.node not in node.loop.body}
        self._check("rewind-loops", set(event.restarted) == loops, f"loops that restart: {', '.join(sorted(loops))}")
        consumed = sum(ledger.at[name].tokens for name in touched) + ledger.rendering
        self._check("rewind-tokens", event.consumed == consumed, f"{consumed} tokens are consumed")
        emitted = sum(again.tokens for again in event.nodes)
        self._check("rewind-tokens", event.emitted == emitted, f"{emitted} tokens are emitted again")
        self._undecide(event, reach)
        for again in event.nodes:
            if again.node in touched:
                self._next_visit(touched[again.node], event, set(touched), again.visit, again.tokens)
        self._move_tokens(event.emitted - event.consumed, event.counter)
        ledger.rendering = False

    def _undecide(self, event: ev.RunRewound, reach: set[str]) -> None:
        """Exits that died with their loop are undecided again if their target is rewound or not settled."""
        ledger = self.ledger
        loops = [node.loop for node in ledger.workflow.nodes if node.loop is not None and node.id in reach]
        dead = {
            (source, target)
            for loop in loops
            for source, target in loop.escapes
            if source not in reach and ledger.edges.get((source, target)) is False
        }
        found = {(source, target) for source, target in dead if target in reach or not ledger.at[target].settled}
        ledger.revived_edges |= dead - found
        self._check("rewind-escapes", set(event.undecided) == found, "exits of continued loops are open again")
        for source, target in found:
            del ledger.edges[source, target]
            ledger.at[target].dead -= 1

    def _has_happened(self, name: str) -> bool:
        visit = self.ledger.at[name]
        return visit.settled or visit.passes > 0 or visit.taken + visit.dead > 0

    def _next_visit(self, node: Node, event: ev.RunRewound, touched: set[str], number: int, tokens: int) -> None:
        """Begin the next visit; edges from sources that are not rewound stay decided."""
        ledger, old = self.ledger, self.ledger.at[node.id]
        self._check("rewind-visit", number == old.number + 1, f"{node.id} continues with visit {old.number + 1}")
        visit = ledger.at[node.id] = Visit(number)
        visit.has_start_token = old.has_start_token and node.id == event.node
        visit.passes = 0 if node.id in event.restarted else old.passes
        for source in node.inbound:
            if source in touched:
                ledger.edges.pop((source, node.id), None)
            elif (source, node.id) in ledger.edges:
                visit.taken += ledger.edges[source, node.id]
                visit.dead += not ledger.edges[source, node.id]
        expected = int(visit.has_start_token) or visit.taken
        self._check("rewind-tokens", tokens == expected, f"{expected} tokens stand at {node.id}")
        visit.tokens = tokens
        ledger.touched.add(node.id)

    def overridden(self, event: ev.NodeOverridden) -> None:
        """Only PENDING or WAITING activations are overridden; ended ones are reopened first."""
        act, visit = self.ledger.act(event), self.ledger.at[event.node]
        self._check("ended-once", not act.final, f"{event.node} ended twice: {act.final}")
        whole = event.index == NOT_AN_ITEM
        begun = visit.ready and not visit.held if whole else event.index < visit.queued
        self._check("override", not begun or act.wait is not None, f"{event.node} is being worked on")
        known = event.status in ("QUEUED", "COMPLETED", "SKIPPED")
        self._check("override", known, f"nothing is {event.status} by hand")
        if not whole:
            self._check("override", visit.expanded is not None, f"{event.node} has no items")
            return
        visit.by_hand, visit.held = True, False
        if event.status == "QUEUED":
            given = int(not visit.tokens)
            self._check("override-tokens", event.emitted == given, f"{event.node} holds {visit.tokens} tokens")
            visit.tokens += event.emitted
            self.ledger.visits += not visit.ready
            visit.ready = True


MISSING = "compensator_missing"
"""The error of a step whose compensator a patch has removed."""


class Step(msgspec.Struct):
    """A completed activation and the progress of its compensation."""

    seq: int
    done: bool = False
    attempts: int = 0
    failures: int = 0
    token: int = 0


class Rollbacks(InvariantGroup):
    """A rollback compensates completed activations backwards, one at a time, and names what is left."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.steps: dict[Key, Step] = {}
        self.unknown: dict[Key, None] = {}
        """Activations with an unknown outcome that neither an operator nor a later attempt has settled."""
        self.order: list[Key] = []
        """Steps that are still to be scheduled, the next one last."""
        self.now: Key | None = None
        self.named: tuple[str, ...] = ()

    def completed(self, event: ev.NodeCompleted | ev.NodeOverridden) -> None:
        whole = event.index == NOT_AN_ITEM
        if event.undoable or isinstance(event, ev.NodeOverridden):
            self.unknown.pop(key_of(event), None)
        if not event.undoable and not whole:
            return
        done = isinstance(event, ev.NodeCompleted) or event.status == "COMPLETED"
        node = self.ledger.node(event)
        undoable = done and node.compensator is not None and (node.map is None or not whole)
        self._check("undoable", event.undoable == undoable, f"{event.node} has no compensator, or has one")
        if event.undoable:
            self._check("undoable", key_of(event) not in self.steps, f"{event.node} completed before in this visit")
            self.steps[key_of(event)] = Step(self.ledger.seq)

    def failed(self, event: ev.NodeFailed) -> None:
        """Record an unknown outcome; a map that failed because of an item is represented by that item."""
        final = event.error.code == UNKNOWN and event.retry_at_ms is None and event.error.index == NOT_AN_ITEM
        if event.unknown:
            node = self.ledger.workflow.by_id[event.node]
            self._check("undoable", node.compensator is not None, f"{event.node} has no compensator")
        if final or event.unknown:
            self.unknown[key_of(event)] = None

    def cancelled(self, event: ev.NodeCancelled) -> None:
        if event.unknown:
            node = self.ledger.workflow.by_id[event.node]
            self._check("undoable", node.compensator is not None, f"{event.node} has no compensator")
            self.unknown[key_of(event)] = None

    def retried(self, event: ev.RunRetried) -> None:
        """An unknown outcome stays until its activation completes, unless the operator says that it did not happen."""
        for key in list(self.unknown):
            if key[0] in event.sure and key[1] == self.ledger.at[key[0]].number:
                del self.unknown[key]

    def settled(self, event: ev.NodeOverridden) -> None:
        """After a partial rollback an operator says whether an unknown step happened; nothing else changes."""
        key, happened = key_of(event), event.status == "COMPLETED"
        left = self.ledger.rollback == "partial" and key in self.unknown and self._compensated(key)
        self._check("rollback-settled", left, f"{name_of(key)} is not what a rollback has left as unknown")
        self._check("rollback-settled", happened or event.status == "SKIPPED", f"nothing is {event.status} then")
        self._check("rollback-settled", event.undoable is happened, f"{name_of(key)} is undone if it happened")
        moved = (*event.taken, *event.dead, *event.dead_escapes)
        still = not (moved or event.emitted or event.consumed or event.counter or event.renders)
        self._check("rollback-settled", still, "a run that has ended stays as it is")
        self.unknown.pop(key, None)
        if event.undoable:
            self._check("undoable", key not in self.steps, f"{event.node} completed before in this visit")
            self.steps[key] = Step(self.ledger.seq)

    def forked(self, event: ev.RunForked) -> None:
        """Completed steps stay with the origin."""
        self.steps.clear()
        self.unknown.clear()
        self.order, self.now, self.named = [], None, ()

    def started(self, event: ev.RollbackStarted) -> None:
        ledger = self.ledger
        self._check("rollback", ledger.ended, f"the run is {ledger.status}")
        self._check("rollback", ledger.rollback in ("none", "partial"), f"its rollback is {ledger.rollback}")
        open_ = sorted((step.seq, key) for key, step in self.steps.items() if not step.done)
        self.order = [key for _, key in open_]
        self._check("rollback-steps", event.steps == len(open_), f"there are {len(open_)} steps, not {event.steps}")
        unknown = sorted(name_of(key) for key in self.unknown if self._compensated(key))
        same = sorted(event.unknown) == unknown
        self._check("rollback-unknown", same, f"visits with an unknown outcome: {', '.join(unknown) or 'none'}")
        ledger.rollback, self.now, self.named = "running", None, event.unknown

    def _compensated(self, key: Key) -> bool:
        node = self.ledger.workflow.by_id.get(key[0])
        return node is not None and node.compensator is not None

    def scheduled(self, event: ev.CompensationScheduled) -> None:
        """The next step is the latest completion that is not compensated."""
        self._check("rollback", self.ledger.rollback == "running", f"the rollback is {self.ledger.rollback}")
        self._check("rollback-one", self.now is None, "one step at a time")
        key, step = key_of(event), self.steps.get(key_of(event))
        following = self.order.pop() if self.order else None
        self._check("rollback-order", key == following, f"{following and name_of(following)} is to be undone next")
        if step is None:
            self._check("rollback-order", False, f"{name_of(key)} has nothing to undo")
            return
        self._check("rollback-of", event.of == step.seq, f"{name_of(key)} completed at {step.seq}, not {event.of}")
        self.now, step.failures = key, 0

    def undone(self, event: ev.CompensationCompleted) -> None:
        step = self._step(event)
        if step is not None:
            step.done, self.now = True, None

    def undo_failed(self, event: ev.CompensationFailed) -> None:
        step = self._step(event)
        if step is None:
            return
        if event.retry_at_ms is None:
            self.now = None
            return
        node = self.ledger.workflow.by_id.get(event.node)
        step.failures += not event.lost
        allowed = 0 if node is None or node.compensator is None else node.compensator.retry.max_attempts
        self._check("retry", event.error.retryable, f"{event.error.code} is not retryable")
        self._check("retry-count", event.lost or step.failures < allowed, "no more attempts than allowed")

    def _step(self, event: ev.CompensationCompleted | ev.CompensationFailed) -> Step | None:
        key, step = key_of(event), self.steps.get(key_of(event))
        if step is None or key != self.now:
            self._check("rollback-one", False, f"{name_of(key)} is not what is being undone")
            return None
        if isinstance(event, ev.CompensationFailed) and event.error.code == MISSING and not event.attempt:
            return step
        following = step.attempts + 1
        self._check("attempts", event.attempt == following, f"attempt {event.attempt} to undo is number {following}")
        self._check("fence", not event.token or event.token > step.token, f"token {event.token} is above {step.token}")
        step.attempts, step.token = event.attempt, max(step.token, event.token)
        return step

    def finished(self, event: ev.RollbackFinished) -> None:
        ledger = self.ledger
        self._check("rollback", ledger.rollback == "running", f"the rollback is {ledger.rollback}")
        left = sorted([*self.named, *(name_of(key) for key, step in self.steps.items() if not step.done)])
        self._check("rollback-left", sorted(event.left) == left, f"what is left: {', '.join(left) or 'nothing'}")
        status = "partial" if left else "done"
        self._check("rollback-left", event.status == status, f"it is {status}, not {event.status}")
        ledger.rollback, self.now, self.order = event.status, None, []
