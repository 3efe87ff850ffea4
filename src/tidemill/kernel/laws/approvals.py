"""Laws of approvals: asked once per wait, decided once, by enough people who may, or by a time-out that has come.

Who has a role is not in the log, so whether somebody may decide is checked where only people were asked.
"""

from __future__ import annotations

from tidemill.kernel.events import (
    SYSTEM,
    ApprovalDecided,
    ApprovalDelegated,
    ApprovalEscalated,
    ApprovalEvent,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalReturned,
    ApprovalVoted,
    NodeEvent,
    RunForked,
    RunPatched,
)
from tidemill.kernel.laws.books import Books, Key, Section, key_of


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


class Approvals(Section):
    """Reads approvals; what follows for the visit is left to those who read waits."""

    def __init__(self, books: Books) -> None:
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
        self.books.owed[key_of(event)] = told

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
