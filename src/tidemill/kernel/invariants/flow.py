"""Invariants of the normal course of a run: joins, edges, tokens, start and end, forks, visits, map items, loops.

The rules are stated here a second time on purpose; do not replace them by calls into `decide` or `evolve`.
"""

from __future__ import annotations

from tidemill.kernel import events as ev
from tidemill.kernel.events import NOT_AN_ITEM, AnyEvent, NodeEvent
from tidemill.kernel.invariants.ledger import ActivationLedger, InvariantGroup, Ledger, Visit
from tidemill.kernel.model import Node

_STATUS: dict[type, str] = {
    ev.NodeCompleted: "COMPLETED",
    ev.NodeFailed: "FAILED",
    ev.NodeSkipped: "SKIPPED",
    ev.NodeCancelled: "CANCELLED",
}

FEW = 8
"""Up to this many targets a tuple is searched; above, a set is built."""

AnyEnding = ev.NodeCompleted | ev.NodeFailed | ev.NodeSkipped | ev.NodeCancelled | ev.NodeOverridden


def verdict(node: Node, visit: Visit) -> str:
    """Whether a join must `fire` or `skip`; empty while it waits for more edges."""
    taken, undecided = visit.taken, len(node.inbound) - visit.taken - visit.dead
    if node.join == "any" or node.join == "quorum":
        wanted = 1 if node.join == "any" else node.quorum
        return "fire" if taken >= wanted else "skip" if taken + undecided < wanted else ""
    if undecided:
        return ""
    fires = taken > 0 if node.join == "all" else visit.dead == 0
    return "fire" if fires else "skip"


class Edges(InvariantGroup):
    """Checks what the end of a visit consumes, emits and decides, and the joins that follow."""

    def ended(self, event: AnyEnding) -> None:
        ledger, act, visit = self.ledger, self.ledger.act(event), self.ledger.at[event.node]
        self._move_tokens(event.emitted - event.consumed, event.counter)
        self._check("counter-negative", ledger.counter >= 0, "no token is consumed twice")
        settles = event.taken or event.dead or event.dead_escapes or event.consumed
        if isinstance(event, ev.NodeFailed) and event.retry_at_ms is not None:
            self._check("retry-edges", not (settles or event.emitted), "a retry decides nothing")
        elif isinstance(event, ev.NodeOverridden) and event.status == "QUEUED":
            self._check("override-edges", not settles, "a value whose conditions are not evaluated decides nothing")
        else:
            status = event.status if isinstance(event, ev.NodeOverridden) else _STATUS[type(event)]
            act.cut_off = isinstance(event, ev.NodeCancelled) and act.open
            act.final, act.open = status, False
            act.tolerated = isinstance(event, ev.NodeFailed) and event.tolerated
            if event.index != NOT_AN_ITEM:
                self._check("item-edges", not (settles or event.emitted), "an item decides no edges")
                visit.done += 1
                visit.flying -= event.index < visit.queued
            else:
                self._visit_ended(event, act, visit)

    def _visit_ended(self, event: AnyEnding, act: ActivationLedger, visit: Visit) -> None:
        node = self.ledger.node(event)
        if isinstance(event, ev.NodeSkipped) and not visit.ready:
            self._check("skip", verdict(node, visit) == "skip", f"the join of {event.node} calls for a skip")
        visit.ended, visit.tolerated, visit.held = act.final, act.tolerated, False
        visit.straight = _takes_plain_edges(node, event)
        self._tokens(node, event, visit)
        known = node.outbound if len(event.taken) + len(event.dead) <= FEW else frozenset(node.outbound)
        for taken, targets in ((True, event.taken), (False, event.dead)):
            for target in targets:
                self._check("edge", target in known, f"{node.id} → {target} is an edge")
                edge, before = (node.id, target), self.ledger.edges.get((node.id, target))
                once = before is None or (before and taken) or edge in self.ledger.revived_edges
                self._check("edge-once", once, f"{node.id} → {target} was decided")
                self.ledger.decide(node.id, target, taken)
        for source, target in event.dead_escapes:
            self._check("edge-once", (source, target) not in self.ledger.edges, f"{source} → {target} was decided")
            self.ledger.decide(source, target, False)

    def _tokens(self, node: Node, event: AnyEnding, visit: Visit) -> None:
        """The end consumes its own tokens and those a settled join absorbs, and emits one per taken edge."""
        ledger = self.ledger
        absorbed = 0
        for target in event.taken:
            if ledger.edges.get((node.id, target)) or ledger.at[target].settled:
                absorbed += 1
            else:
                ledger.at[target].tokens += 1
        message = f"{node.id} had {visit.tokens} tokens, {absorbed} are absorbed, {event.consumed} were consumed"
        self._check("consumed", event.consumed == visit.tokens + absorbed, message)
        visit.tokens = 0
        emitted = 1 if _continues_loop(node, event) else len(event.taken) + event.renders
        self._check("emitted", event.emitted == emitted, f"{node.id} emits {emitted} tokens, not {event.emitted}")
        if event.renders:
            last = ledger.counter == 1 and ledger.workflow.outputs is not None
            self._check("renders", last, "outputs are rendered when nothing else is in flight")
            ledger.rendering = True

    def finish(self) -> None:
        """After a commit no join is left that should have fired or been skipped."""
        ledger = self.ledger
        for name in () if ledger.ended else ledger.touched:
            node, visit = ledger.workflow.by_id.get(name), ledger.at[name]
            if node is not None and not (visit.ready or visit.ended):
                due = "fire" if visit.has_start_token else verdict(node, visit)
                self._check("join-due", not due, f"the join of {name} was to {due}")
        ledger.touched.clear()


def _continues_loop(node: Node, event: ev.Ending) -> bool:
    """Whether the end continues a loop: it then emits the token of the next pass."""
    if node.loop is None or not isinstance(event, ev.NodeCompleted) or event.route is None:
        return False
    return bool(event.route.again) and not event.taken


def _takes_plain_edges(node: Node, event: AnyEnding) -> bool:
    """Whether this end takes the plain edges: not an exit, a time-out path or an error path."""
    if isinstance(event, ev.NodeFailed):
        return event.tolerated and node.on_error == "continue"
    if isinstance(event, ev.NodeOverridden):
        return event.status == "COMPLETED"
    if not isinstance(event, ev.NodeCompleted):
        return False
    if event.route is not None:
        return not event.route.again
    taken = set(event.taken)
    return not taken or not any(taken == set(targets) for targets in node.exits.values())


DISCARDS_MAX = 10

_COMPENSATIONS = (ev.CompensationScheduled, ev.CompensationCompleted, ev.CompensationFailed)
_OF_ANY_NODE = (ev.DeadLetterClosed, *_COMPENSATIONS)
"""Events that may name a node that a patch has removed."""
_OF_ANY_VISIT = (ev.ResultDiscarded, ev.DeadLettered, *_OF_ANY_NODE)
_REOPENING = (ev.RunRetried, ev.RunPatched, ev.RunForked)
_AFTER_THE_END = (
    *(ev.ResultDiscarded, ev.RunLabelled, ev.DeadLetterClosed, ev.RollbackStarted, ev.RollbackFinished),
    *(ev.NodeOverridden, *_COMPENSATIONS),
)

_RUN_STATUS: dict[type, str] = {ev.RunCompleted: "COMPLETED", ev.RunFailed: "FAILED", ev.RunCancelled: "CANCELLED"}


class Runs(InvariantGroup):
    """Checks every event first: beginning, end, forks, and what may follow the end."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.forked_from: tuple[str, int] | None = None
        self.discards: dict[tuple[str, int], int] = {}

    def structure(self, event: AnyEvent) -> bool:
        """Check what holds for every event; False when the event names an unknown node."""
        ledger = self.ledger
        first = (ledger.seq == 1) is isinstance(event, ev.RunCreated)
        self._check("first", first, "RunCreated is the first event, once")
        self._check("cause", event.cause < ledger.seq, "a cause lies in the past")
        name = type(event).__name__
        if ledger.ended and ledger.must_reopen:
            reopens = isinstance(event, (ev.RunRetried, ev.RunForked))
            self._check("terminal", reopens, f"{name} instead of RunRetried after the end")
        elif ledger.ended and isinstance(event, _REOPENING):
            self._check("terminal", ledger.status != "COMPLETED", f"{name} after the run had COMPLETED")
        elif ledger.ended:
            self._check("terminal", isinstance(event, _AFTER_THE_END), f"{name} after the end")
        if ledger.just_forked and not isinstance(event, (ev.NodeCancelled, ev.RunRetried)):
            ledger.just_forked = False
        if self.forked_from is not None and ledger.seq == self.forked_from[1] + 1:
            self._check("fork", isinstance(event, ev.RunForked), "RunForked follows what was taken over")
        if not isinstance(event, NodeEvent):
            return True
        if event.node not in ledger.workflow.by_id and not isinstance(event, _OF_ANY_NODE):
            self._check("node", False, f"{event.node} is a node of the workflow")
            return False
        settles = ledger.ended and isinstance(event, ev.NodeOverridden)
        if not (settles or isinstance(event, _OF_ANY_VISIT)):
            present = ledger.at[event.node].number
            self._check("visit", event.visit == present, f"{event.node} is at visit {present}, not {event.visit}")
        return True

    def created(self, event: ev.RunCreated) -> None:
        ledger = self.ledger
        ledger.status, ledger.counter, ledger.digest = "RUNNING", event.counter, event.digest
        self.forked_from = event.forked_from
        self._check("tokens", event.counter == len(event.entries), "a start token per entry node")
        self._check("entries", event.entries == ledger.workflow.entries, "entries are those of the workflow")
        for name in event.entries:
            ledger.at[name].has_start_token, ledger.at[name].tokens = True, 1

    def paused(self, event: ev.RunPaused) -> None:
        self.ledger.status = "PAUSED"

    def resumed(self, event: ev.RunResumed) -> None:
        self.ledger.status = "RUNNING"

    def discarded(self, event: ev.ResultDiscarded) -> None:
        times = self.discards[event.node, event.visit] = self.discards.get((event.node, event.visit), 0) + 1
        self._check("discards", times <= DISCARDS_MAX, f"at most {DISCARDS_MAX} discarded results per visit")

    def ended(self, event: ev.RunCompleted | ev.RunFailed | ev.RunCancelled) -> None:
        ledger = self.ledger
        ledger.counter -= event.consumed
        self._check("counter-end", ledger.counter == 0 == event.counter, "the counter of a terminal run is 0")
        ledger.status, ledger.rendering = _RUN_STATUS[type(event)], False
        visits = [(node, ledger.at[node.id]) for node in ledger.workflow.nodes]
        flying = [node.id for node, visit in visits if visit.ready and not visit.ended]
        self._check("ended-all", not flying, f"{', '.join(flying)} in flight at the end")
        left = [node for node, visit in visits if not visit.ended]
        if ledger.status != "COMPLETED":
            self._check("ended-all", not left, f"{', '.join(node.id for node in left)} not ended with the run")
            return
        for node in left:
            self._check("settled", False, f"{node.id} is settled when the run completes")
        for node, visit in visits:
            if node.inbound and visit.dead == len(node.inbound) and not (visit.has_start_token or visit.by_hand):
                self._check("skip", visit.ended == "SKIPPED", f"{node.id} is skipped, all edges are dead")

    def forked(self, event: ev.RunForked) -> None:
        """Leases, letters and compensations of the copied prefix stay with the origin."""
        ledger, at = self.ledger, event.at
        self._check("fork", ledger.seq == at + 1, f"{at} events were taken over, this is event {ledger.seq}")
        inherited = self.forked_from is not None and ledger.seq <= self.forked_from[1]
        if not inherited:
            self._check("fork", self.forked_from == (event.run, at), "RunCreated names another origin")
        for act in ledger.acts.values():
            act.token, act.open, act.cut_off = 0, False, False
            if act.wait is not None and act.wait.on in ("child", "human"):
                # A child run and an approval belong to the origin, so the fork requests them again.
                act.wait = None
        self.discards.clear()
        ledger.must_reopen, ledger.just_forked, ledger.rollback = ledger.ended, True, "none"
        ledger.status = "RUNNING" if ledger.status == "PAUSED" else ledger.status

    def finish(self) -> None:
        ledger = self.ledger
        if not ledger.ended and ledger.status != "NEW":
            self._check("counter-zero", ledger.counter > 0, "a live run has a token in flight")
        message = "an ended run that is changed or forked continues in the same commit"
        self._check("reopened", not ledger.must_reopen, message)


class Visits(InvariantGroup):
    """Checks when visits and map items may be dispatched, and the passes of loops."""

    def scheduled(self, event: ev.NodeScheduled) -> None:
        node, visit = self.ledger.node(event), self.ledger.at[event.node]
        if event.index != NOT_AN_ITEM:
            if event.resumed is None:
                self._items_queued(event, visit)
            return
        all_ended = visit.expanded is not None and visit.done >= visit.expanded.count
        if visit.ready:
            assembles = all_ended and not visit.assembled
            again = not event.held and (visit.held or event.resumed is not None or assembles)
            self._check("join-once", again, f"{event.node} was made ready twice")
            visit.held = False
        else:
            limits = self.ledger.workflow.limits
            self._check("ended-once", not visit.ended, f"{event.node} had ended")
            fires = visit.has_start_token or (node.inbound and verdict(node, visit) == "fire")
            self._check("join", bool(fires), f"the join of {event.node} allows it to begin")
            visit.ready, visit.held = True, event.held
            self.ledger.visits += 1
            self._check("max-visits", self.ledger.visits <= limits.max_visits, "no more visits than allowed")
            if limits.max_hops is not None:
                self._check("max-hops", event.hop <= limits.max_hops, "no longer path than allowed")
        if all_ended and not event.held and event.resumed is None:
            visit.assembled = True

    def _items_queued(self, event: ev.NodeScheduled, visit: Visit) -> None:
        expanded = visit.expanded
        if expanded is None:
            self._check("map", False, f"items of {event.node} were queued before its list was known")
            return
        index, acts = visit.queued, self.ledger.acts
        while (act := acts.get((event.node, event.visit, index))) is not None and act.final:
            index += 1
        first = index
        self._check("map-order", event.index == first and event.until > first, "items are queued in order, once")
        self._check("map-bounds", event.until <= expanded.count, "no item beyond the list")
        if visit.done > visit.queued - visit.flying:
            # Some items ended before the run was reopened and keep their results.
            known = (self.ledger.acts.get((event.node, event.visit, index)) for index in range(first, event.until))
            kept = any(act is not None and act.final for act in known)
            self._check("map-order", not kept, "an item that had ended is queued again")
        visit.flying += event.until - event.index
        visit.queued, visit.held = event.until, False
        self._check("map-window", visit.flying <= expanded.window, f"{visit.flying} items of {event.node} in flight")

    def expanded(self, event: ev.NodeExpanded) -> None:
        visit = self.ledger.at[event.node]
        self._check("map-once", visit.expanded is None, f"{event.node} was expanded twice")
        self._check("max-fanout", event.count <= self.ledger.workflow.limits.max_fanout, "no wider map than allowed")
        visit.expanded = event

    def looped(self, event: ev.LoopContinued) -> None:
        node, at = self.ledger.workflow.by_id.get(event.node), self.ledger.at
        loop = None if node is None else node.loop
        if loop is None or loop.back_to != event.entry or loop.body != event.body:
            self._check("loop", False, f"{event.node} loops as its document says")
            return
        passes = at[event.node].passes + 1
        self._check("loop-pass", event.iteration == passes, "passes count 0, 1, 2…")
        allowed = loop.max_iterations is None or event.iteration < loop.max_iterations
        self._check("loop-limit", allowed, f"{event.node} makes no more passes than allowed")
        for name in event.body:
            busy = at[name].ready and not at[name].ended
            self._check("loop-busy", not busy, f"{name} was in flight when the loop continued")
            # Begin the next visit; edges into the body's entry belong to the outer loop and stay decided.
            ledger, old = self.ledger, self.ledger.at[name]
            visit = ledger.at[name] = Visit(old.number + 1)
            if name == event.entry:
                visit.taken, visit.dead, visit.has_start_token, visit.tokens = old.taken, old.dead, True, 1
                ledger.touched.add(name)
            else:
                for source in ledger.workflow.by_id[name].inbound:
                    ledger.edges.pop((source, name), None)
        at[event.node].passes = event.iteration
