"""Invariants of attempts, approvals, waits, signals and child runs.

Roles are not in the log, so the right to decide is checked only where all approvers are named users. `at_ms` is
compared only here, and only for timers: their events carry the store's clock.
"""

from __future__ import annotations

from tidemill.kernel import events as ev
from tidemill.kernel.events import NOT_AN_ITEM, NodeEvent
from tidemill.kernel.invariants.ledger import ENDED_RUN, ActivationLedger, InvariantGroup, Key, Ledger, key_of

UNKNOWN = "unknown_outcome"
"""The error of an attempt whose outcome is unknown."""


class Attempts(InvariantGroup):
    """Attempts run one at a time, are numbered 1, 2, 3…, have growing fences and a bounded count."""

    def started(self, event: ev.NodeStarted) -> None:
        act = self._unfinished(event)
        self._check("attempts", event.attempt == act.count + 1, f"attempt {event.attempt} follows {act.count}")
        self._check("one-attempt", not act.open, "an attempt starts after the one before has ended")
        self._check("fence", event.token > act.token, f"token {event.token} is above {act.token}")
        once = self.ledger.node(event).delivery == "at_most_once"
        self._check("at-most-once", not (once and act.last_error == UNKNOWN), "an unknown outcome is final")
        act.count, act.token, act.open = event.attempt, event.token, True

    def checkpointed(self, event: ev.NodeCheckpointed) -> None:
        self._unfinished(event)

    def appended(self, event: ev.NodeAppended) -> None:
        act = self._unfinished(event)
        self._check("append", act.open, "a record is added by an attempt that has begun")
        self._fence(act, event.token)

    def left(self, event: ev.NodeWaiting | ev.NodeExpanded) -> None:
        """An attempt has ended, but its activation has not."""
        act = self._unfinished(event)
        self._fence(act, event.token)
        act.open = False

    def ended(self, event: ev.NodeCompleted | ev.NodeFailed | ev.NodeSkipped | ev.NodeCancelled) -> None:
        act = self.ledger.act(event)
        self._check("ended-once", not act.final, f"{event.node} ended twice: {act.final}")
        if isinstance(event, ev.NodeFailed):
            self._failed(event, act)
        elif isinstance(event, ev.NodeCompleted):
            self._fence(act, event.token)
        if not isinstance(event, (ev.NodeSkipped, ev.NodeCancelled)):
            act.open = False

    def _unfinished(self, event: NodeEvent) -> ActivationLedger:
        """The activation; it must be ready and must not have ended."""
        act, visit = self.ledger.act(event), self.ledger.at[event.node]
        self._check("ended-once", not act.final, f"{event.node} had ended as {act.final}")
        if event.index == NOT_AN_ITEM:
            self._check("ready", visit.ready, f"{event.node} was never made ready")
        else:
            queued = 0 <= event.index < visit.queued
            self._check("ready", queued, f"item {event.index} of {event.node} was never queued")
        return act

    def _fence(self, act: ActivationLedger, token: int) -> None:
        if token:
            self._check("fence", token >= act.token, f"token {token} is not below {act.token}")
            act.token = token

    def _failed(self, event: ev.NodeFailed, act: ActivationLedger) -> None:
        self._fence(act, event.token)
        of_items = event.index == NOT_AN_ITEM and self.ledger.at[event.node].expanded is not None
        if not act.open and event.attempt == act.count + 1 and not of_items:
            # The worker died before the start of the attempt was committed.
            self._check("attempts", event.lost or event.error.code == "worker_killer", "an end without a start")
            act.count = event.attempt
        act.last_error = event.error.code
        act.failures += not event.lost
        if event.retry_at_ms is not None:
            allowed = event.lost or act.failures < self.ledger.node(event).retry.max_attempts
            self._check("retry", event.error.retryable, f"{event.error.code} is not retryable")
            self._check("retry-count", allowed, "no more attempts than allowed")


def person(name: str) -> str:
    """Normalize an actor to `user:` or `role:`."""
    return name if name.startswith(("user:", "role:")) else f"user:{name}"


class AskedApproval:
    __slots__ = ("approvers", "closed", "delegations", "escalated", "event", "expires_ms", "voters")

    def __init__(self, event: ev.ApprovalRequested) -> None:
        self.event = event
        self.approvers = event.approvers
        self.expires_ms = event.expires_ms
        self.escalated = False
        self.closed = False
        self.voters: set[str] = set()
        self.delegations: dict[str, bool] = {}
        """Users who received (True) or gave away (False) the right to decide by delegation."""


class Approvals(InvariantGroup):
    """An approval is requested once per wait and decided once, by entitled users or by a time-out."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.asked: dict[Key, AskedApproval] = {}
        self.patchers: set[str] = set()

    def requested(self, event: ev.ApprovalRequested) -> None:
        wait = self.ledger.act(event).wait
        waits = wait is not None and wait.on == "human"
        self._check("approval-asked", waits, f"{event.node} is not waiting for a decision")
        self._check("approval-asked", key_of(event) not in self.asked, f"{event.node} has asked already")
        self.asked[key_of(event)] = AskedApproval(event)

    def forked(self, event: ev.RunForked) -> None:
        """The fork requests its approvals again."""
        self.asked.clear()

    def voted(self, event: ev.ApprovalVoted) -> None:
        asked = self._pending(event)
        if asked is not None:
            self._check_entitled(asked, event.by)
            self._check("approval-vote", event.by not in asked.voters, f"{event.by} has voted already")
            asked.voters.add(event.by)
            enough = len(asked.voters) >= asked.event.quorum
            self._check("quorum", not enough, "the vote that is enough decides")

    def delegated(self, event: ev.ApprovalDelegated) -> None:
        asked = self._pending(event)
        if asked is not None:
            self._check_entitled(asked, event.by)
            self._check("four-eyes", not self._is_involved(asked, event.to), f"{event.to} may not decide")
            other = event.to != event.by and event.to.startswith("user:")
            self._check("approver", other, "a decision is delegated to another person")
            asked.delegations[event.by], asked.delegations[event.to] = False, True

    def returned(self, event: ev.ApprovalReturned) -> None:
        asked = self._pending(event)
        if asked is not None:
            self._check_entitled(asked, event.by)
            self._close(asked, event, "changes were requested")

    def decided(self, event: ev.ApprovalDecided) -> None:
        """One rejection, a quorum of approvals, or the time-out decides."""
        asked = self._pending(event)
        if asked is None:
            return
        if event.by == ev.SYSTEM:
            said = asked.event.on_timeout
            self._check("approval-system", event.decision == said, f"a time-out means {said}, not {event.decision}")
            self._check_due(asked, event)
        else:
            self._check_entitled(asked, event.by)
            self._check("approval-vote", event.by not in asked.voters, f"{event.by} has voted already")
            agreed, quorum = len(asked.voters | {event.by}), asked.event.quorum
            enough = event.decision != "approve" or agreed >= quorum
            self._check("quorum", enough, f"{agreed} of {quorum} people agreed")
        self._close(asked, event, f"it was decided: {event.decision}")

    def escalated(self, event: ev.ApprovalEscalated) -> None:
        """The time-out passes the approval to other approvers, once."""
        asked = self._pending(event)
        if asked is not None:
            known = asked.event
            legal = known.on_timeout == "escalate" and not asked.escalated and event.to == known.escalate_to
            self._check("escalated", legal, f"{event.node} is escalated once, if and to whom it says")
            self._check_due(asked, event)
            asked.escalated, asked.approvers, asked.expires_ms = True, event.to, event.expires_ms
            # Delegations were the right of the previous approvers.
            asked.delegations.clear()

    def expired(self, event: ev.ApprovalExpired) -> None:
        asked = self._pending(event)
        if asked is not None:
            last = asked.event.on_timeout == "fail" or asked.escalated
            self._check("expired", last, f"a time-out of {event.node} means {asked.event.on_timeout}")
            self._check_due(asked, event)
            self._close(asked, event, "its approval expired")

    def closed(self, event: NodeEvent) -> None:
        """The activation has ended or waits again, so its previous approval no longer counts."""
        if self.asked:
            self.asked.pop(key_of(event), None)

    def patched(self, event: ev.RunPatched) -> None:
        """The author of a patch is involved and falls under four eyes."""
        if event.actor:
            self.patchers.add(person(event.actor))

    def _pending(self, event: ev.ApprovalEvent) -> AskedApproval | None:
        asked = self.asked.get(key_of(event))
        pending = asked is not None and not asked.closed
        self._check("approval-open", pending, f"{event.node} is not waiting for a decision")
        return asked if pending else None

    def _close(self, asked: AskedApproval, event: ev.ApprovalEvent, reason: str) -> None:
        asked.closed = True
        self.ledger.pending_waits[key_of(event)] = reason

    def _check_due(self, asked: AskedApproval, event: ev.ApprovalEvent) -> None:
        due = asked.expires_ms
        in_time = due is not None and event.at_ms >= due
        self._check("timer", in_time, f"the time to decide is over at {due}, not {event.at_ms}")

    def _check_entitled(self, asked: AskedApproval, by: str) -> None:
        """Check the right to decide, as far as the log can tell."""
        self._check("four-eyes", not self._is_involved(asked, by), f"{by} submitted or patched the run")
        unrestricted = not asked.approvers or any(not name.startswith("user:") for name in asked.approvers)
        may = asked.delegations.get(by, unrestricted or by in asked.approvers)
        self._check("approver", may, f"{by} was not asked")

    def _is_involved(self, asked: AskedApproval, by: str) -> bool:
        if not asked.event.four_eyes:
            return False
        return by in self.patchers or (asked.event.requester != "" and by == person(asked.event.requester))


SIGNALS_MAX = 1_000

WaitEnd = ev.NodeCompleted | ev.NodeFailed | ev.NodeSkipped | ev.NodeCancelled | ev.NodeOverridden | ev.NodeScheduled


class Waits(InvariantGroup):
    """A wait ends by what it waits for or by its timer, never early."""

    def __init__(self, ledger: Ledger, signals: Signals) -> None:
        super().__init__(ledger)
        self.signals = signals

    def began(self, event: ev.NodeWaiting) -> None:
        act = self.ledger.act(event)
        self._check("wait-once", act.wait is None, f"{event.node} waits already")
        act.wait = event
        if event.on == "signal":
            self.signals.wanted(event)

    def resumed(self, event: ev.NodeScheduled) -> None:
        """A wait has ended, but its activation has not."""
        if event.resumed is None:
            return
        wait = self.ledger.act(event).wait
        self._check("wait-end", wait is not None, f"{event.node} is resumed without having waited")
        recalled = wait is None or wait.recall == event.recall
        self._check("recall", recalled, "a handler is called again if it asked for it")
        self.ended(event)

    def ended(self, event: WaitEnd) -> None:
        act = self.ledger.act(event)
        wait = act.wait
        if wait is None:
            return
        reason = self.ledger.pending_waits.pop(key_of(event), "")
        if wait.on == "signal":
            self.signals.left(key_of(event), wait.name)
        act.wait = None
        if reason or isinstance(event, ev.NodeCancelled):
            return
        if isinstance(event, ev.NodeOverridden):
            self._check("override", wait.on != "loop", f"{event.node} has its result and waits for its loop")
            return
        if wait.on == "loop":
            self._check("wait-end", isinstance(event, ev.NodeCompleted), f"{event.node} has its result")
            late = wait.until_ms is None or event.at_ms >= wait.until_ms
            self._check("timer", late, f"the next pass of {event.node} begins at {wait.until_ms}, not {event.at_ms}")
            return
        # A wait that ends well may still deliver more bytes than the run may hold.
        full = isinstance(event, ev.NodeFailed) and event.error.code == "max_bytes_exceeded"
        due = wait.expires_ms if isinstance(event, ev.NodeFailed) and not full else wait.until_ms
        expired = wait.on == "human" and isinstance(event, ev.NodeFailed) and not full
        if due is None or expired or isinstance(event, ev.NodeSkipped):
            self._check("wait-end", False, f"nothing ended the wait of {event.node} for {wait.on}")
        else:
            self._check("timer", event.at_ms >= due, f"{event.node} waits until {due}, not {event.at_ms}")

    def finish(self) -> None:
        """Every ended wait has had its consequence."""
        for (node, _, _), reason in self.ledger.pending_waits.items():
            self._check("wait-end", False, f"{node} still waits, though {reason}")


class Signals(InvariantGroup):
    """A signal is delivered once, to the longest wait; kept signals are taken oldest first."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.known: set[str] = set()
        self.kept: dict[str, dict[str, None]] = {}
        """Ids of untaken signals by name, oldest first."""
        self.count = 0
        self.listening: dict[str, dict[Key, None]] = {}
        """Waiting activations by name, longest first."""

    def received(self, event: ev.SignalReceived) -> None:
        """The longest waiting activation takes the signal; otherwise the run keeps it."""
        self._check("signal-once", event.signal not in self.known, f"signal {event.signal} was received before")
        self.known.add(event.signal)
        first = next(iter(self.listening.get(event.name, ())), None)
        if not event.node:
            self._check("signal-order", first is None, f"a node waits for {event.name}")
            self.kept.setdefault(event.name, {})[event.signal] = None
            self.count += 1
            self._check("signals-max", self.count <= SIGNALS_MAX, f"at most {SIGNALS_MAX} signals are kept")
            return
        taker = (event.node, event.visit, event.index)
        self._check("signal-order", taker == first, f"{first or 'no node'} has waited longest for {event.name}")
        if taker in self.listening.get(event.name, ()):
            self.ledger.pending_waits[taker] = "its signal came"

    def wanted(self, event: ev.NodeWaiting) -> None:
        """The wait takes the oldest kept signal, or listens."""
        kept = self.kept.get(event.name, {})
        oldest = next(iter(kept), "")
        self._check("signal-order", event.signal == oldest, f"the oldest signal {event.name} is {oldest or 'none'}")
        if event.signal in kept:
            del kept[event.signal]
            self.count -= 1
        if event.signal:
            self.ledger.pending_waits[key_of(event)] = "its signal had come"
        else:
            self.listening.setdefault(event.name, {})[key_of(event)] = None

    def left(self, key: Key, name: str) -> None:
        self.listening.get(name, {}).pop(key, None)

    def ended(self, event: ev.RunCompleted | ev.RunFailed | ev.RunCancelled) -> None:
        names = sorted(name for name, ids in self.kept.items() if ids)
        self._check("unread", sorted(event.unread) == names, f"unread are {', '.join(names) or 'none'}")


class Children(InvariantGroup):
    """A child run starts and ends once, while its parent waits for it."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.started_by: dict[Key, ev.NodeWaiting] = {}
        """The wait in which an activation's latest child started."""

    def started(self, event: ev.ChildStarted) -> None:
        wait = self._awaited(event)
        if wait is not None:
            known = self.started_by.get(key_of(event)) is wait
            self._check("child-once", not known, f"{event.node} has started its child already")
            self.started_by[key_of(event)] = wait

    def finished(self, event: ev.ChildFinished) -> None:
        wait = self._awaited(event)
        if wait is None:
            return
        began = self.started_by.get(key_of(event)) is wait
        refused = event.status not in ENDED_RUN and event.error is not None
        self._check("child-started", began or refused, f"child {event.child} ended before it started")
        self._check("child-once", key_of(event) not in self.ledger.pending_waits, f"child {event.child} ended twice")
        self.ledger.pending_waits[key_of(event)] = f"child {event.child} has ended"

    def _awaited(self, event: ev.ChildStarted | ev.ChildFinished) -> ev.NodeWaiting | None:
        wait = self.ledger.act(event).wait
        if wait is not None and wait.on == "child" and wait.name == event.child:
            return wait
        self._check("child", False, f"{event.node} does not wait for child {event.child}")
        return None
