"""Laws of attempts: one at a time, counted 1, 2, 3…, under fences that only grow, no more often than allowed."""

from __future__ import annotations

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    NodeCancelled,
    NodeCheckpointed,
    NodeCompleted,
    NodeEvent,
    NodeExpanded,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
)
from tidemill.kernel.laws.books import Act, Section

UNKNOWN = "unknown_outcome"
"""The error of an attempt that may or may not have happened."""


class Attempts(Section):
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

    def _unfinished(self, event: NodeEvent) -> Act:
        """The activation, which was made ready and has not ended."""
        act, visit = self.books.act(event), self.books.at[event.node]
        self._law("ended-once", not act.final, f"{event.node} had ended as {act.final}")
        if event.index == NOT_AN_ITEM:
            self._law("ready", visit.ready, f"{event.node} was never made ready")
        else:
            queued = 0 <= event.index < visit.queued
            self._law("ready", queued, f"item {event.index} of {event.node} was never queued")
        return act

    def _fence(self, act: Act, token: int) -> None:
        if token:
            self._law("fence", token >= act.token, f"token {token} is not below {act.token}")
            act.token = token

    def _failed(self, event: NodeFailed, act: Act) -> None:
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
