"""Laws of tokens and edges: what the end of a visit consumes, emits and decides, and what joins make of it."""

from __future__ import annotations

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    Ending,
    NodeCancelled,
    NodeCompleted,
    NodeFailed,
    NodeOverridden,
    NodeSkipped,
)
from tidemill.kernel.laws.books import Act, Section, Visit
from tidemill.kernel.model import Node

_STATUS: dict[type, str] = {
    NodeCompleted: "COMPLETED",
    NodeFailed: "FAILED",
    NodeSkipped: "SKIPPED",
    NodeCancelled: "CANCELLED",
}

FEW = 8
"""Targets that are looked for one by one; more of them are worth a set."""

AnyEnding = NodeCompleted | NodeFailed | NodeSkipped | NodeCancelled | NodeOverridden


def verdict(node: Node, visit: Visit) -> str:
    """Whether a join must `fire` or `skip` as its edges stand; nothing when it waits for more of them."""
    taken, undecided = visit.taken, len(node.inbound) - visit.taken - visit.dead
    if node.join == "any" or node.join == "quorum":
        wanted = 1 if node.join == "any" else node.quorum
        return "fire" if taken >= wanted else "skip" if taken + undecided < wanted else ""
    if undecided:
        return ""
    fires = taken > 0 if node.join == "all" else visit.dead == 0
    return "fire" if fires else "skip"


class Edges(Section):
    """Reads the ends of visits and items."""

    def ended(self, event: AnyEnding) -> None:
        """Settle the account of an activation that is over, or of an attempt that is tried again."""
        books, act, visit = self.books, self.books.act(event), self.books.at[event.node]
        books.counter += event.emitted - event.consumed
        self._law("counter", event.counter == books.counter, f"counter {event.counter} is {books.counter}")
        self._law("counter-negative", books.counter >= 0, "no token is consumed twice")
        settles = event.taken or event.dead or event.dead_escapes or event.consumed
        if isinstance(event, NodeFailed) and event.retry_at_ms is not None:
            self._law("retry-edges", not (settles or event.emitted), "a retry decides nothing")
        elif isinstance(event, NodeOverridden) and event.status == "QUEUED":
            self._law("override-edges", not settles, "a value whose conditions are not evaluated decides nothing")
        else:
            status = event.status if isinstance(event, NodeOverridden) else _STATUS[type(event)]
            act.cut_off = isinstance(event, NodeCancelled) and act.open
            act.final, act.open = status, False
            act.tolerated = isinstance(event, NodeFailed) and event.tolerated
            if event.index != NOT_AN_ITEM:
                self._law("item-edges", not (settles or event.emitted), "an item decides no edges")
                visit.done += 1
                visit.flying -= event.index < visit.queued
            else:
                self._visit_ended(event, act, visit)

    def _visit_ended(self, event: AnyEnding, act: Act, visit: Visit) -> None:
        node = self.books.node(event)
        if isinstance(event, NodeSkipped) and not visit.ready:
            self._law("skip", verdict(node, visit) == "skip", f"the join of {event.node} calls for a skip")
        visit.ended, visit.tolerated, visit.held = act.final, act.tolerated, False
        visit.straight = _straight(node, event)
        self._tokens(node, event, visit)
        known = node.outbound if len(event.taken) + len(event.dead) <= FEW else frozenset(node.outbound)
        for taken, targets in ((True, event.taken), (False, event.dead)):
            for target in targets:
                self._law("edge", target in known, f"{node.id} → {target} is an edge")
                self._decide(node, target, taken)
        for source, target in event.dead_escapes:
            self._law("edge-once", (source, target) not in self.books.edges, f"{source} → {target} was decided")
            self.books.decide(source, target, False)

    def _tokens(self, node: Node, event: AnyEnding, visit: Visit) -> None:
        """What it had it consumes, with what reaches a join that has fired; what it takes it emits."""
        books = self.books
        absorbed = 0
        for target in event.taken:
            if books.edges.get((node.id, target)) or books.at[target].settled:
                absorbed += 1
            else:
                books.at[target].tokens += 1
        self._law(
            "consumed",
            event.consumed == visit.tokens + absorbed,
            f"{node.id} had {visit.tokens} tokens, {absorbed} are absorbed, {event.consumed} were consumed",
        )
        visit.tokens = 0
        emitted = 1 if _goes_on(node, event) else len(event.taken) + event.renders
        self._law("emitted", event.emitted == emitted, f"{node.id} emits {emitted} tokens, not {event.emitted}")
        if event.renders:
            last = books.counter == 1 and books.workflow.outputs is not None
            self._law("renders", last, "outputs are rendered when nothing else is in flight")
            books.rendering = True

    def _decide(self, node: Node, target: str, taken: bool) -> None:
        edge = (node.id, target)
        known = self.books.edges.get(edge)
        once = known is None or (known and taken) or edge in self.books.reborn
        self._law("edge-once", once, f"{node.id} → {target} was decided")
        self.books.decide(node.id, target, taken)

    def finish(self) -> None:
        """No join is left that should have fired or been skipped by what the commit says."""
        books = self.books
        for name in () if books.ended else books.touched:
            node, visit = books.workflow.by_id.get(name), books.at[name]
            if node is not None and not (visit.ready or visit.ended):
                due = "fire" if visit.own else verdict(node, visit)
                self._law("join-due", not due, f"the join of {name} was to {due}")
        books.touched.clear()


def _goes_on(node: Node, event: Ending) -> bool:
    """Whether the event ends a pass of a loop that continues: then it emits the token of the next pass."""
    if node.loop is None or not isinstance(event, NodeCompleted) or event.route is None:
        return False
    return bool(event.route.again) and not event.taken


def _straight(node: Node, event: AnyEnding) -> bool:
    """Whether edges that no rule names are taken by this end: not by an exit, a time-out path or an error path."""
    if isinstance(event, NodeFailed):
        return event.tolerated and node.on_error == "continue"
    if isinstance(event, NodeOverridden):
        return event.status == "COMPLETED"
    if not isinstance(event, NodeCompleted):
        return False
    if event.route is not None:
        return not event.route.again
    taken = set(event.taken)
    return not taken or not any(taken == set(targets) for targets in node.exits.values())
