"""The laws every log obeys, checked from the outside: a second, independent reading of a run's events.

The checker takes events one by one and keeps its own plain books; it does not use `evolve`, so a mistake there
cannot hide itself. The simulator runs it after every commit. A violation is a bug in Tidemill or damage to the
store, never a user's mistake.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    AnyEvent,
    DeadLettered,
    Ending,
    LoopContinued,
    NodeCancelled,
    NodeCheckpointed,
    NodeCompleted,
    NodeEvent,
    NodeExpanded,
    NodeFailed,
    NodeScheduled,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
    ResultDiscarded,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunPaused,
    RunResumed,
)
from tidemill.kernel.model import Node, Workflow

Key = tuple[str, int, int]
"""(node, visit, index)"""

DISCARDS_MAX = 10


class Violation(msgspec.Struct, frozen=True):
    """A law that a log breaks, and where."""

    law: str
    seq: int
    message: str


class Attempts:
    """What is known of the attempts at one activation."""

    __slots__ = ("count", "failures", "final", "last_error", "lost", "open", "started", "token")

    def __init__(self) -> None:
        self.count = 0
        self.failures = 0
        self.lost = 0
        self.token = 0
        self.open = False
        """An attempt has started and not ended."""
        self.started = False
        self.final = ""
        self.last_error = ""


class LogChecker:
    """Reads one run's log. `violations` grows as laws are broken; reading goes on."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.violations: list[Violation] = []
        self.seq = 0
        self.status = "NEW"
        self.counter = 0
        self.acts: dict[Key, Attempts] = defaultdict(Attempts)
        self.visit: dict[str, int] = defaultdict(lambda: 1)
        self.edges: dict[tuple[str, str], bool] = {}
        self.ready: set[str] = set()
        """Nodes whose present visit was made ready."""
        self.held: set[str] = set()
        """Of those, the ones that a limit keeps from being dispatched."""
        self.assembled: set[str] = set()
        """Maps whose list is being put together."""
        self.ended: dict[str, str] = {}
        """How the present visit of a node ended."""
        self.by_loop: set[str] = set()
        """Nodes that a loop's own token starts."""
        self.passes: dict[str, int] = defaultdict(int)
        self.maps: dict[str, NodeExpanded] = {}
        self.queued_until: dict[str, int] = {}
        self.item_ends: dict[str, int] = defaultdict(int)
        self.visits = 0
        self.discards: dict[tuple[str, int], int] = defaultdict(int)

    def take(self, event: AnyEvent) -> None:
        """Read the next event."""
        self.seq += 1
        if not self._structure(event):
            return
        match event:
            case RunCreated():
                self.status, self.counter = "RUNNING", event.counter
                self._law("tokens", event.counter == len(event.entries), "a start token per entry node")
                self._law("entries", event.entries == self.workflow.entries, "entries are those of the workflow")
            case RunPaused():
                self.status = "PAUSED"
            case RunResumed():
                self.status = "RUNNING"
            case RunCompleted() | RunFailed() | RunCancelled():
                self._run_ended(event)
            case NodeScheduled():
                self._scheduled(event)
            case NodeStarted():
                self._started(event)
            case NodeExpanded():
                self._expanded(event)
            case NodeWaiting() | NodeCheckpointed():
                self._in_attempt(event)
            case NodeCompleted() | NodeFailed() | NodeSkipped() | NodeCancelled():
                self._ending(event)
            case LoopContinued():
                self._loop(event)
            case ResultDiscarded():
                self.discards[event.node, event.visit] += 1
                few = self.discards[event.node, event.visit] <= DISCARDS_MAX
                self._law("discards", few, f"at most {DISCARDS_MAX} discarded results per visit")
            case DeadLettered():
                final = self.acts[_key(event)].final
                self._law("dead-letter", final == "FAILED", "a dead letter follows a failure for good")
            case _:
                pass

    def finish(self) -> list[Violation]:
        """Check what must hold between commits, and answer everything that was found."""
        if self.status in ("RUNNING", "PAUSED"):
            self._law("counter-zero", self.counter > 0, "a live run has a token in flight")
        if self.status == "COMPLETED":
            for node in self.workflow.nodes:
                self._law("settled", node.id in self.ended, f"{node.id} is settled when the run completes")
                dead = [self.edges.get((source, node.id)) is False for source in node.inbound]
                if dead and all(dead) and node.id not in self.by_loop:
                    self._law("skip", self.ended.get(node.id) == "SKIPPED", f"{node.id} is skipped, all edges are dead")
        return self.violations

    def _law(self, law: str, holds: bool, message: str) -> None:
        if not holds:
            self.violations.append(Violation(law, self.seq, message))

    def _structure(self, event: AnyEvent) -> bool:
        """Check what holds for every event; False when it is about nothing that exists."""
        self._law("first", (self.seq == 1) is isinstance(event, RunCreated), "RunCreated is the first event, once")
        self._law("cause", event.cause < self.seq, "a cause lies in the past")
        if self.status in ("COMPLETED", "FAILED", "CANCELLED"):
            self._law("terminal", isinstance(event, ResultDiscarded), f"{type(event).__name__} after the end")
        if isinstance(event, NodeEvent):
            if event.node not in self.workflow.by_id:
                self._law("node", False, f"{event.node} is a node of the workflow")
                return False
            if not isinstance(event, (ResultDiscarded, DeadLettered)):
                present = self.visit[event.node]
                self._law("visit", event.visit == present, f"{event.node} is at visit {present}, not {event.visit}")
        return True

    # Becoming ready

    def _scheduled(self, event: NodeScheduled) -> None:
        node = self.workflow.by_id[event.node]
        if event.index != NOT_AN_ITEM and event.resumed is not None:
            self._open_act(event)
            return
        if event.index != NOT_AN_ITEM:
            self._items_queued(node, event)
            return
        if event.node in self.ready:
            again = not event.held and (
                event.node in self.held or event.resumed is not None or self._may_assemble(event.node)
            )
            self._law("join-once", again, f"{event.node} was made ready twice")
            self.held.discard(event.node)
            return
        self._law("ended-once", event.node not in self.ended, f"{event.node} had ended")
        self.ready.add(event.node)
        if event.held:
            self.held.add(event.node)
        self.visits += 1
        self._law("max-visits", self.visits <= self.workflow.limits.max_visits, "no more visits than allowed")
        fires = node.id in self.by_loop or not node.inbound or self._fires(node)
        self._law("join", fires, f"the join of {event.node} allows it to begin")
        if self.workflow.limits.max_hops is not None:
            self._law("max-hops", event.hop <= self.workflow.limits.max_hops, "no longer path than allowed")

    def _may_assemble(self, name: str) -> bool:
        """Whether all items of a map have ended and nobody was asked to put them together yet."""
        expanded = self.maps.get(name)
        if expanded is None or name in self.assembled or self.item_ends[name] < expanded.count:
            return False
        self.assembled.add(name)
        return True

    def _fires(self, node: Node) -> bool:
        decided = [self.edges.get((source, node.id)) for source in node.inbound]
        taken, undecided = decided.count(True), decided.count(None)
        match node.join:
            case "all":
                return taken > 0 and undecided == 0
            case "strict":
                return taken == len(decided)
            case "any":
                return taken > 0
            case "quorum":
                return taken >= node.quorum

    def _items_queued(self, node: Node, event: NodeScheduled) -> None:
        expanded = self.maps.get(event.node)
        if expanded is None:
            self._law("map", False, f"items of {event.node} were queued before its list was known")
            return
        first = self.queued_until.get(event.node, 0)
        self._law("map-order", event.index == first and event.until > first, "items are queued in order, once")
        self._law("map-bounds", event.until <= expanded.count, "no item beyond the list")
        self.queued_until[event.node] = event.until
        flying = event.until - self.item_ends[event.node]
        self._law("map-window", flying <= expanded.window, f"{flying} items of {event.node} in flight")

    def _expanded(self, event: NodeExpanded) -> None:
        self._law("map-once", event.node not in self.maps, f"{event.node} was expanded twice")
        self._law("max-fanout", event.count <= self.workflow.limits.max_fanout, "no wider map than allowed")
        self.maps[event.node] = event
        self._in_attempt(event)

    # Attempts

    def _started(self, event: NodeStarted) -> None:
        act = self._open_act(event)
        self._law("attempts", event.attempt == act.count + 1, f"attempt {event.attempt} follows {act.count}")
        self._law("one-attempt", not act.open, "an attempt starts after the one before has ended")
        self._law("fence", event.token > act.token, f"token {event.token} is above {act.token}")
        once = self.workflow.by_id[event.node].delivery == "at_most_once"
        self._law("at-most-once", not (once and act.last_error == "unknown_outcome"), "an unknown outcome is final")
        act.count, act.token, act.open, act.started = event.attempt, event.token, True, True

    def _in_attempt(self, event: NodeWaiting | NodeCheckpointed | NodeExpanded) -> None:
        act = self._open_act(event)
        if not isinstance(event, NodeCheckpointed):
            self._fence(act, event.token)
            act.open = False

    def _open_act(self, event: NodeEvent) -> Attempts:
        act = self.acts[_key(event)]
        self._law("ended-once", not act.final, f"{event.node} had ended as {act.final}")
        if event.index == NOT_AN_ITEM:
            self._law("ready", event.node in self.ready, f"{event.node} was never made ready")
        else:
            queued = 0 <= event.index < self.queued_until.get(event.node, 0)
            self._law("ready", queued, f"item {event.index} of {event.node} was never queued")
        return act

    def _fence(self, act: Attempts, token: int) -> None:
        if token:
            self._law("fence", token >= act.token, f"token {token} is not below {act.token}")
            act.token = token

    # Endings

    def _ending(self, event: NodeCompleted | NodeFailed | NodeSkipped | NodeCancelled) -> None:
        act = self.acts[_key(event)]
        self._law("ended-once", not act.final, f"{event.node} ended twice: {act.final}")
        if isinstance(event, (NodeCompleted, NodeFailed)):
            self._attempt_ended(event, act)
        self.counter += event.emitted - event.consumed
        self._law("counter", event.counter == self.counter, f"counter {event.counter} is {self.counter}")
        self._law("counter-negative", self.counter >= 0, "no token is consumed twice")
        if isinstance(event, NodeFailed) and event.retry_at_ms is not None:
            self._law("retry-edges", not (event.taken or event.dead or event.emitted), "a retry decides nothing")
            return
        act.final, act.open = _STATUS[type(event)], False
        if event.index != NOT_AN_ITEM:
            self.item_ends[event.node] += 1
            self._law("item-edges", not (event.taken or event.dead or event.emitted), "an item decides no edges")
            return
        self.ended[event.node] = act.final
        if isinstance(event, NodeSkipped) and event.node not in self.ready:
            self._skipped(event)
        self._decide_edges(event)

    def _attempt_ended(self, event: NodeCompleted | NodeFailed, act: Attempts) -> None:
        self._fence(act, event.token)
        if not isinstance(event, NodeFailed):
            act.open = False
            return
        lost = event.lost
        of_items = event.index == NOT_AN_ITEM and event.node in self.maps
        if not act.open and event.attempt == act.count + 1 and not of_items:
            # The worker died before anybody wrote down that it had started.
            self._law("attempts", lost or event.error.code == "worker_killer", "an end without a start")
            act.count = event.attempt
        act.open, act.last_error = False, event.error.code
        if not lost:
            act.failures += 1
        retry = self.workflow.by_id[event.node].retry
        if event.retry_at_ms is not None:
            self._law("retry", event.error.retryable, f"{event.error.code} is not retryable")
            self._law("retry-count", lost or act.failures < retry.max_attempts, "no more attempts than allowed")

    def _skipped(self, event: NodeSkipped) -> None:
        node = self.workflow.by_id[event.node]
        decided = [self.edges.get((source, node.id)) for source in node.inbound]
        possible = decided.count(True) + decided.count(None)
        legal = {
            "all": decided.count(False) == len(decided),
            "any": decided.count(False) == len(decided),
            "strict": False in decided and None not in decided,
            "quorum": possible < node.quorum,
        }[node.join]
        self._law("skip", legal, f"the join of {event.node} calls for a skip")

    def _decide_edges(self, event: Ending) -> None:
        node = self.workflow.by_id[event.node]
        for target in event.taken:
            self._law("edge", target in node.outbound, f"{event.node} → {target} is an edge")
            self._law("edge-once", self.edges.get((event.node, target)) is not False, f"→ {target} was dead")
            self.edges[event.node, target] = True
        for target in event.dead:
            self._law("edge", target in node.outbound, f"{event.node} → {target} is an edge")
            self._law("edge-once", (event.node, target) not in self.edges, f"→ {target} was decided")
            self.edges[event.node, target] = False
        for source, target in event.dead_escapes:
            self._law("edge-once", (source, target) not in self.edges, f"{source} → {target} was decided")
            self.edges[source, target] = False

    def _loop(self, event: LoopContinued) -> None:
        loop = self.workflow.by_id[event.node].loop
        if loop is None or loop.back_to != event.entry or loop.body != event.body:
            self._law("loop", False, f"{event.node} loops as its document says")
            return
        self._law("loop-pass", event.iteration == self.passes[event.node] + 1, "passes count 0, 1, 2…")
        allowed = loop.max_iterations is None or event.iteration < loop.max_iterations
        self._law("loop-limit", allowed, f"{event.node} makes no more passes than allowed")
        for name in event.body:
            busy = name in self.ready and name not in self.ended
            self._law("loop-busy", not busy, f"{name} was in flight when the loop went on")
            self._next_visit(name, event)
        self.passes[event.node] = event.iteration
        self.by_loop.add(event.entry)

    def _next_visit(self, name: str, event: LoopContinued) -> None:
        self.visit[name] += 1
        self.ready.discard(name)
        self.held.discard(name)
        self.assembled.discard(name)
        self.ended.pop(name, None)
        self.maps.pop(name, None)
        self.queued_until.pop(name, None)
        self.item_ends.pop(name, None)
        self.passes.pop(name, None)
        self.by_loop.discard(name)
        if name != event.entry:
            for source in self.workflow.by_id[name].inbound:
                self.edges.pop((source, name), None)

    def _run_ended(self, event: RunCompleted | RunFailed | RunCancelled) -> None:
        self.counter -= event.consumed
        self._law("counter-end", self.counter == 0 == event.counter, "the counter of a terminal run is 0")
        self.status = {RunCompleted: "COMPLETED", RunFailed: "FAILED", RunCancelled: "CANCELLED"}[type(event)]
        flying = sorted(self.ready - set(self.ended))
        self._law("ended-all", not flying, f"{', '.join(flying)} in flight at the end")
        if self.status != "COMPLETED":
            left = [node.id for node in self.workflow.nodes if node.id not in self.ended]
            self._law("ended-all", not left, f"{', '.join(left)} not ended with the run")


_STATUS: dict[type, str] = {
    NodeCompleted: "COMPLETED",
    NodeFailed: "FAILED",
    NodeSkipped: "SKIPPED",
    NodeCancelled: "CANCELLED",
}


def _key(event: NodeEvent) -> Key:
    return event.node, event.visit, event.index


def check_log(workflow: Workflow, events: list[AnyEvent]) -> list[Violation]:
    """Read a whole log."""
    checker = LogChecker(workflow)
    for event in events:
        checker.take(event)
    return checker.finish()
