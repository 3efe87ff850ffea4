"""Invariants of runs, visits, edges, tokens.

Laws of a run as a whole: how its log begins, what every event obeys, how it ends and what may come behind.

Laws of tokens and edges: what the end of a visit consumes, emits and decides, and what joins make of it.

Laws of visits: when a node may begin, how a map's items are queued, and how loops begin another pass.
"""

from __future__ import annotations

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    AnyEvent,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    DeadLetterClosed,
    DeadLettered,
    Ending,
    LoopContinued,
    NodeCancelled,
    NodeCompleted,
    NodeEvent,
    NodeExpanded,
    NodeFailed,
    NodeOverridden,
    NodeScheduled,
    NodeSkipped,
    ResultDiscarded,
    RollbackFinished,
    RollbackStarted,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunForked,
    RunLabelled,
    RunPatched,
    RunPaused,
    RunResumed,
    RunRetried,
)
from tidemill.kernel.invariants.ledger import ActivationLedger, InvariantGroup, Ledger, Visit
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


class Edges(InvariantGroup):
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

    def _visit_ended(self, event: AnyEnding, act: ActivationLedger, visit: Visit) -> None:
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
        once = known is None or (known and taken) or edge in self.books.revived_edges
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


DISCARDS_MAX = 10

_COMPENSATIONS = (CompensationScheduled, CompensationCompleted, CompensationFailed)
_OF_ANY_NODE = (DeadLetterClosed, *_COMPENSATIONS)
"""These may speak of a node that a patch has removed since."""
_OF_ANY_VISIT = (ResultDiscarded, DeadLettered, *_OF_ANY_NODE)
_REOPENING = (RunRetried, RunPatched, RunForked)
_BEHIND_THE_END = (ResultDiscarded, RunLabelled, DeadLetterClosed, RollbackStarted, RollbackFinished, *_COMPENSATIONS)

_RUN_STATUS: dict[type, str] = {RunCompleted: "COMPLETED", RunFailed: "FAILED", RunCancelled: "CANCELLED"}


class Runs(InvariantGroup):
    """Reads what is about the run, and looks at every event before anybody else does."""

    def __init__(self, books: Ledger) -> None:
        super().__init__(books)
        self.forked_from: tuple[str, int] | None = None
        self.discards: dict[tuple[str, int], int] = {}

    def structure(self, event: AnyEvent) -> bool:
        """Check what holds for every event; False when it is about nothing that exists."""
        books = self.books
        self._law("first", (books.seq == 1) is isinstance(event, RunCreated), "RunCreated is the first event, once")
        self._law("cause", event.cause < books.seq, "a cause lies in the past")
        if books.ended:
            self._behind_the_end(event)
        if books.begins_anew and not isinstance(event, (NodeCancelled, RunRetried)):
            books.begins_anew = False
        if self.forked_from is not None and books.seq == self.forked_from[1] + 1:
            self._law("fork", isinstance(event, RunForked), "RunForked follows what was taken over")
        if not isinstance(event, NodeEvent):
            return True
        if event.node not in books.workflow.by_id and not isinstance(event, _OF_ANY_NODE):
            self._law("node", False, f"{event.node} is a node of the workflow")
            return False
        if not isinstance(event, _OF_ANY_VISIT):
            present = books.at[event.node].number
            self._law("visit", event.visit == present, f"{event.node} is at visit {present}, not {event.visit}")
        return True

    def _behind_the_end(self, event: AnyEvent) -> None:
        books, name = self.books, type(event).__name__
        if books.must_reopen:
            self._law(
                "terminal", isinstance(event, (RunRetried, RunForked)), f"{name} instead of RunRetried after the end"
            )
        elif isinstance(event, _REOPENING):
            self._law("terminal", books.status != "COMPLETED", f"{name} after the run had COMPLETED")
        else:
            self._law("terminal", isinstance(event, _BEHIND_THE_END), f"{name} after the end")

    def created(self, event: RunCreated) -> None:
        """The run begins: one token for each entry."""
        books = self.books
        books.status, books.counter, books.digest = "RUNNING", event.counter, event.digest
        self.forked_from = event.forked_from
        self._law("tokens", event.counter == len(event.entries), "a start token per entry node")
        self._law("entries", event.entries == books.workflow.entries, "entries are those of the workflow")
        for name in event.entries:
            books.at[name].own, books.at[name].tokens = True, 1

    def paused(self, event: RunPaused) -> None:
        self.books.status = "PAUSED"

    def resumed(self, event: RunResumed) -> None:
        self.books.status = "RUNNING"

    def discarded(self, event: ResultDiscarded) -> None:
        """Late results are recorded, but not without bound."""
        times = self.discards[event.node, event.visit] = self.discards.get((event.node, event.visit), 0) + 1
        self._law("discards", times <= DISCARDS_MAX, f"at most {DISCARDS_MAX} discarded results per visit")

    def ended(self, event: RunCompleted | RunFailed | RunCancelled) -> None:
        """Nothing is in flight any more, and every node has ended."""
        books = self.books
        books.counter -= event.consumed
        self._law("counter-end", books.counter == 0 == event.counter, "the counter of a terminal run is 0")
        books.status, books.rendering = _RUN_STATUS[type(event)], False
        visits = [(node, books.at[node.id]) for node in books.workflow.nodes]
        flying = [node.id for node, visit in visits if visit.ready and not visit.ended]
        self._law("ended-all", not flying, f"{', '.join(flying)} in flight at the end")
        left = [node for node, visit in visits if not visit.ended]
        if books.status != "COMPLETED":
            self._law("ended-all", not left, f"{', '.join(node.id for node in left)} not ended with the run")
            return
        for node in left:
            self._law("settled", False, f"{node.id} is settled when the run completes")
        for node, _ in visits:
            self._skipped(node)

    def _skipped(self, node: Node) -> None:
        visit = self.books.at[node.id]
        if node.inbound and visit.dead == len(node.inbound) and not (visit.own or visit.by_hand):
            self._law("skip", visit.ended == "SKIPPED", f"{node.id} is skipped, all edges are dead")

    def forked(self, event: RunForked) -> None:
        """What came before was another run's: leases, letters and steps to undo are its own affair."""
        books, at = self.books, event.at
        self._law("fork", books.seq == at + 1, f"{at} events were taken over, this is event {books.seq}")
        inherited = self.forked_from is not None and books.seq <= self.forked_from[1]
        if not inherited:
            self._law("fork", self.forked_from == (event.run, at), "RunCreated names another origin")
        for act in books.acts.values():
            act.token, act.open, act.cut_off = 0, False, False
            if act.wait is not None and act.wait.on in ("child", "human"):
                # A child belongs to the run that asked for it, and so does a question: both are asked for again.
                act.wait = None
        self.discards.clear()
        books.must_reopen, books.begins_anew, books.rollback = books.ended, True, "none"
        books.status = "RUNNING" if books.status == "PAUSED" else books.status

    def finish(self) -> None:
        """A live run has something in flight, and one that was changed after its end goes on."""
        books = self.books
        if not books.ended and books.status != "NEW":
            self._law("counter-zero", books.counter > 0, "a live run has a token in flight")
        self._law("reopened", not books.must_reopen, "what ended and was changed or forked goes on in the same commit")


class Visits(InvariantGroup):
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
