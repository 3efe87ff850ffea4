"""Invariants of attempts, waits, approvals.

Laws of attempts: one at a time, counted 1, 2, 3…, under fences that only grow, no more often than allowed.

Laws of approvals: asked once per wait, decided once, by enough people who may, or by a time-out that has come.

Who has a role is not in the log, so whether somebody may decide is checked where only people were asked.

Laws of waits: what ends one, never before its time; signals, taken once and in order; children, one at a time.

`at_ms` is compared here and nowhere else: the clock of the store is what timers are judged by, and it is that
clock's time which the events of a timer carry.
"""

from __future__ import annotations

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    SYSTEM,
    ApprovalDecided,
    ApprovalDelegated,
    ApprovalEscalated,
    ApprovalEvent,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalReturned,
    ApprovalVoted,
    ChildFinished,
    ChildStarted,
    NodeCancelled,
    NodeCheckpointed,
    NodeCompleted,
    NodeEvent,
    NodeExpanded,
    NodeFailed,
    NodeOverridden,
    NodeScheduled,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunForked,
    RunPatched,
    SignalReceived,
)
from tidemill.kernel.invariants.ledger import ENDED_RUN, ActivationLedger, InvariantGroup, Key, Ledger, key_of

UNKNOWN = "unknown_outcome"
"""The error of an attempt that may or may not have happened."""


class Attempts(InvariantGroup):
    """Reads what workers did, whatever it means for the visit."""

    def started(self, event: NodeStarted) -> None:
        """A handler is called."""
        act = self._unfinished(event)
        self._law("attempts", event.attempt == act.count + 1, f"attempt {event.attempt} follows {act.count}")
        self._law("one-attempt", not act.open, "an attempt starts after the one before has ended")
        self._law("fence", event.token > act.token, f"token {event.token} is above {act.token}")
        once = self.books.node(event).delivery == "at_most_once"
        self._law("at-most-once", not (once and act.last_error == UNKNOWN), "an unknown outcome is final")
        act.count, act.token, act.open = event.attempt, event.token, True

    def stored(self, event: NodeCheckpointed) -> None:
        """An attempt says how far it has come."""
        self._unfinished(event)

    def left(self, event: NodeWaiting | NodeExpanded) -> None:
        """An attempt is over, but its activation is not."""
        act = self._unfinished(event)
        self._fence(act, event.token)
        act.open = False

    def ended(self, event: NodeCompleted | NodeFailed | NodeSkipped | NodeCancelled) -> None:
        """An activation is over, or at least an attempt at it."""
        act = self.books.act(event)
        self._law("ended-once", not act.final, f"{event.node} ended twice: {act.final}")
        if isinstance(event, NodeFailed):
            self._failed(event, act)
        elif isinstance(event, NodeCompleted):
            self._fence(act, event.token)
        if not isinstance(event, (NodeSkipped, NodeCancelled)):
            act.open = False

    def _unfinished(self, event: NodeEvent) -> ActivationLedger:
        """The activation, which was made ready and has not ended."""
        act, visit = self.books.act(event), self.books.at[event.node]
        self._law("ended-once", not act.final, f"{event.node} had ended as {act.final}")
        if event.index == NOT_AN_ITEM:
            self._law("ready", visit.ready, f"{event.node} was never made ready")
        else:
            queued = 0 <= event.index < visit.queued
            self._law("ready", queued, f"item {event.index} of {event.node} was never queued")
        return act

    def _fence(self, act: ActivationLedger, token: int) -> None:
        if token:
            self._law("fence", token >= act.token, f"token {token} is not below {act.token}")
            act.token = token

    def _failed(self, event: NodeFailed, act: ActivationLedger) -> None:
        self._fence(act, event.token)
        of_items = event.index == NOT_AN_ITEM and self.books.at[event.node].expanded is not None
        if not act.open and event.attempt == act.count + 1 and not of_items:
            # The worker died before anybody wrote down that it had started.
            self._law("attempts", event.lost or event.error.code == "worker_killer", "an end without a start")
            act.count = event.attempt
        act.last_error = event.error.code
        act.failures += not event.lost
        if event.retry_at_ms is not None:
            allowed = event.lost or act.failures < self.books.node(event).retry.max_attempts
            self._law("retry", event.error.retryable, f"{event.error.code} is not retryable")
            self._law("retry-count", allowed, "no more attempts than allowed")


def person(name: str) -> str:
    """Somebody as approvals name them."""
    return name if name.startswith(("user:", "role:")) else f"user:{name}"


class Asked:
    """An approval: what was asked, of whom, and how far it has come."""

    __slots__ = ("approvers", "escalated", "event", "expires_ms", "may", "over", "voters")

    def __init__(self, event: ApprovalRequested) -> None:
        self.event = event
        self.approvers = event.approvers
        self.expires_ms = event.expires_ms
        self.escalated = False
        self.over = False
        self.voters: set[str] = set()
        self.may: dict[str, bool] = {}
        """People whose right to decide was passed on: to them, or by them to others."""


class Approvals(InvariantGroup):
    """Reads approvals; what follows for the visit is left to those who read waits."""

    def __init__(self, books: Ledger) -> None:
        super().__init__(books)
        self.asked: dict[Key, Asked] = {}
        self.patchers: set[str] = set()

    def requested(self, event: ApprovalRequested) -> None:
        """People are asked."""
        wait = self.books.act(event).wait
        waits = wait is not None and wait.on == "human"
        self._law("approval-asked", waits, f"{event.node} waits for nobody's decision")
        self._law("approval-asked", key_of(event) not in self.asked, f"{event.node} has asked already")
        self.asked[key_of(event)] = Asked(event)

    def forked(self, event: RunForked) -> None:
        """What was asked in the other run is asked anew in this one."""
        self.asked.clear()

    def voted(self, event: ApprovalVoted) -> None:
        """Somebody agreed, but more have to."""
        asked = self._open(event)
        if asked is not None:
            self._entitled(asked, event.by)
            self._law("approval-vote", event.by not in asked.voters, f"{event.by} has voted already")
            asked.voters.add(event.by)
            enough = len(asked.voters) >= asked.event.quorum
            self._law("quorum", not enough, "the vote that is enough decides")

    def delegated(self, event: ApprovalDelegated) -> None:
        """Somebody passed the decision on."""
        asked = self._open(event)
        if asked is not None:
            self._entitled(asked, event.by)
            self._law("four-eyes", not self._involved(asked, event.to), f"{event.to} may not decide")
            other = event.to != event.by and event.to.startswith("user:")
            self._law("approver", other, "a decision is passed on to another person")
            asked.may[event.by], asked.may[event.to] = False, True

    def returned(self, event: ApprovalReturned) -> None:
        """Somebody wants changes."""
        asked = self._open(event)
        if asked is not None:
            self._entitled(asked, event.by)
            self._over(asked, event, "changes were requested")

    def decided(self, event: ApprovalDecided) -> None:
        """It is decided: by one who rejects, by enough who agree, or because the time has come."""
        asked = self._open(event)
        if asked is None:
            return
        if event.by == SYSTEM:
            said = asked.event.on_timeout
            self._law("approval-system", event.decision == said, f"a time-out means {said}, not {event.decision}")
            self._due(asked, event)
        else:
            self._entitled(asked, event.by)
            self._law("approval-vote", event.by not in asked.voters, f"{event.by} has voted already")
            agreed, quorum = len(asked.voters | {event.by}), asked.event.quorum
            enough = event.decision != "approve" or agreed >= quorum
            self._law("quorum", enough, f"{agreed} of {quorum} people agreed")
        self._over(asked, event, f"it was decided: {event.decision}")

    def escalated(self, event: ApprovalEscalated) -> None:
        """Nobody decided in time: others are asked, once."""
        asked = self._open(event)
        if asked is not None:
            known = asked.event
            legal = known.on_timeout == "escalate" and not asked.escalated and event.to == known.escalate_to
            self._law("escalated", legal, f"{event.node} is escalated once, if and to whom it says")
            self._due(asked, event)
            asked.escalated, asked.approvers, asked.expires_ms = True, event.to, event.expires_ms
            # What had been passed on was the right of those who were asked before.
            asked.may.clear()

    def expired(self, event: ApprovalExpired) -> None:
        """Nobody decided in time, and nothing else is to be done about it."""
        asked = self._open(event)
        if asked is not None:
            last = asked.event.on_timeout == "fail" or asked.escalated
            self._law("expired", last, f"a time-out of {event.node} means {asked.event.on_timeout}")
            self._due(asked, event)
            self._over(asked, event, "its approval expired")

    def closed(self, event: NodeEvent) -> None:
        """The activation has ended, or waits anew: nothing of the old approval counts any more."""
        if self.asked:
            self.asked.pop(key_of(event), None)

    def patched(self, event: RunPatched) -> None:
        """Whoever changed the run has a part in it."""
        if event.actor:
            self.patchers.add(person(event.actor))

    def _open(self, event: ApprovalEvent) -> Asked | None:
        asked = self.asked.get(key_of(event))
        pending = asked is not None and not asked.over
        self._law("approval-open", pending, f"{event.node} waits for no decision")
        return asked if pending else None

    def _over(self, asked: Asked, event: ApprovalEvent, told: str) -> None:
        asked.over = True
        self.books.pending_waits[key_of(event)] = told

    def _due(self, asked: Asked, event: ApprovalEvent) -> None:
        due = asked.expires_ms
        in_time = due is not None and event.at_ms >= due
        self._law("timer", in_time, f"the time to decide is over at {due}, not {event.at_ms}")

    def _entitled(self, asked: Asked, by: str) -> None:
        """Whoever decides may decide, as far as the log can tell."""
        self._law("four-eyes", not self._involved(asked, by), f"{by} submitted or patched the run")
        anybody = not asked.approvers or any(not name.startswith("user:") for name in asked.approvers)
        may = asked.may.get(by, anybody or by in asked.approvers)
        self._law("approver", may, f"{by} was not asked")

    def _involved(self, asked: Asked, by: str) -> bool:
        if not asked.event.four_eyes:
            return False
        return by in self.patchers or (asked.event.requester != "" and by == person(asked.event.requester))


SIGNALS_MAX = 1_000

WaitEnd = NodeCompleted | NodeFailed | NodeSkipped | NodeCancelled | NodeOverridden | NodeScheduled


class Waits(InvariantGroup):
    """Reads how waits begin and end, whatever they are for."""

    def __init__(self, books: Ledger, signals: Signals) -> None:
        super().__init__(books)
        self.signals = signals

    def began(self, event: NodeWaiting) -> None:
        """An attempt has ended with a wait."""
        act = self.books.act(event)
        self._law("wait-once", act.wait is None, f"{event.node} waits already")
        act.wait = event
        if event.on == "signal":
            self.signals.wanted(event)

    def resumed(self, event: NodeScheduled) -> None:
        """A wait is over, but its activation is not."""
        if event.resumed is None:
            return
        wait = self.books.act(event).wait
        self._law("wait-end", wait is not None, f"{event.node} is resumed without having waited")
        self._law("recall", wait is None or wait.recall == event.recall, "a handler is called again if it asked for it")
        self.ended(event)

    def ended(self, event: WaitEnd) -> None:
        """Look for what ended a wait: something that was told, or a moment that has come."""
        act = self.books.act(event)
        wait = act.wait
        if wait is None:
            return
        told = self.books.pending_waits.pop(key_of(event), "")
        self._leave(event, act)
        if told or isinstance(event, NodeCancelled):
            return
        if isinstance(event, NodeOverridden):
            self._law("override", wait.on != "loop", f"{event.node} has its result and waits for its loop")
            return
        if wait.on == "loop":
            self._law("wait-end", isinstance(event, NodeCompleted), f"{event.node} has its result")
            return
        # A wait that ends well may still bring more than the run may hold.
        full = isinstance(event, NodeFailed) and event.error.code == "max_bytes_exceeded"
        due = wait.expires_ms if isinstance(event, NodeFailed) and not full else wait.until_ms
        if (
            due is None
            or isinstance(event, NodeSkipped)
            or (wait.on == "human" and isinstance(event, NodeFailed) and not full)
        ):
            self._law("wait-end", False, f"nothing ended the wait of {event.node} for {wait.on}")
        else:
            self._law("timer", event.at_ms >= due, f"{event.node} waits until {due}, not {event.at_ms}")

    def _leave(self, event: WaitEnd, act: ActivationLedger) -> None:
        if act.wait is not None and act.wait.on == "signal":
            self.signals.left(key_of(event), act.wait.name)
        act.wait = None

    def finish(self) -> None:
        """What was told to a wait has had its consequence."""
        for (node, _, _), told in self.books.pending_waits.items():
            self._law("wait-end", False, f"{node} still waits, though {told}")


class Signals(InvariantGroup):
    """Reads signals: those that wait for a taker, and those who wait for a signal."""

    def __init__(self, books: Ledger) -> None:
        super().__init__(books)
        self.known: set[str] = set()
        self.kept: dict[str, dict[str, None]] = {}
        """By name: ids of signals that nobody has taken, oldest first."""
        self.count = 0
        self.listening: dict[str, dict[Key, None]] = {}
        """By name: activations that wait for it, longest first."""

    def received(self, event: SignalReceived) -> None:
        """Somebody told the run something: who has waited longest takes it, else it is kept."""
        self._law("signal-once", event.signal not in self.known, f"signal {event.signal} was received before")
        self.known.add(event.signal)
        first = next(iter(self.listening.get(event.name, ())), None)
        if not event.node:
            self._law("signal-order", first is None, f"somebody waits for {event.name}")
            self.kept.setdefault(event.name, {})[event.signal] = None
            self.count += 1
            self._law("signals-max", self.count <= SIGNALS_MAX, f"at most {SIGNALS_MAX} signals are kept")
            return
        taker = (event.node, event.visit, event.index)
        self._law("signal-order", taker == first, f"{first or 'nobody'} has waited longest for {event.name}")
        if taker in self.listening.get(event.name, ()):
            self.books.pending_waits[taker] = "its signal came"

    def wanted(self, event: NodeWaiting) -> None:
        """A node asks for a signal: it takes the oldest that was kept, or waits."""
        kept = self.kept.get(event.name, {})
        oldest = next(iter(kept), "")
        self._law("signal-order", event.signal == oldest, f"the oldest signal {event.name} is {oldest or 'none'}")
        if event.signal in kept:
            del kept[event.signal]
            self.count -= 1
        if event.signal:
            self.books.pending_waits[key_of(event)] = "its signal had come"
        else:
            self.listening.setdefault(event.name, {})[key_of(event)] = None

    def left(self, key: Key, name: str) -> None:
        """An activation waits no more."""
        self.listening.get(name, {}).pop(key, None)

    def ended(self, event: RunCompleted | RunFailed | RunCancelled) -> None:
        """The end of a run names what nobody took."""
        names = sorted(name for name, ids in self.kept.items() if ids)
        self._law("unread", sorted(event.unread) == names, f"unread are {', '.join(names) or 'none'}")


class Children(InvariantGroup):
    """Reads what became of child runs."""

    def __init__(self, books: Ledger) -> None:
        super().__init__(books)
        self.started_by: dict[Key, NodeWaiting] = {}
        """The wait in which an activation's latest child started."""

    def started(self, event: ChildStarted) -> None:
        """The child that somebody waits for exists."""
        wait = self._awaited(event)
        if wait is not None:
            known = self.started_by.get(key_of(event)) is wait
            self._law("child-once", not known, f"{event.node} has started its child already")
            self.started_by[key_of(event)] = wait

    def finished(self, event: ChildFinished) -> None:
        """The child that somebody waits for has ended, or could not be started."""
        wait = self._awaited(event)
        if wait is None:
            return
        began = self.started_by.get(key_of(event)) is wait
        refused = event.status not in ENDED_RUN and event.error is not None
        self._law("child-started", began or refused, f"child {event.child} ended before it started")
        self._law("child-once", key_of(event) not in self.books.pending_waits, f"child {event.child} ended twice")
        self.books.pending_waits[key_of(event)] = f"child {event.child} has ended"

    def _awaited(self, event: ChildStarted | ChildFinished) -> NodeWaiting | None:
        wait = self.books.act(event).wait
        if wait is not None and wait.on == "child" and wait.name == event.child:
            return wait
        self._law("child", False, f"{event.node} does not wait for child {event.child}")
        return None
