"""Laws of rollbacks: what completed is undone backwards, one step at a time, and what is left is named."""

from __future__ import annotations

from tidemill.kernel.events import (
    NOT_AN_ITEM,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    NodeCancelled,
    NodeCompleted,
    NodeFailed,
    NodeOverridden,
    RollbackFinished,
    RollbackStarted,
    RunForked,
    RunRetried,
)
from tidemill.kernel.laws.attempts import UNKNOWN
from tidemill.kernel.laws.books import Books, Key, Section, key_of, name_of

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


class Rollbacks(Section):
    """Reads what would have to be undone, and how it is."""

    def __init__(self, books: Books) -> None:
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
