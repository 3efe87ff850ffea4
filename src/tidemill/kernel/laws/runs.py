"""Laws of a run as a whole: how its log begins, what every event obeys, how it ends and what may come behind."""

from __future__ import annotations

from tidemill.kernel.events import (
    AnyEvent,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    DeadLetterClosed,
    DeadLettered,
    NodeCancelled,
    NodeEvent,
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
from tidemill.kernel.laws.books import Books, Section
from tidemill.kernel.model import Node

DISCARDS_MAX = 10

_COMPENSATIONS = (CompensationScheduled, CompensationCompleted, CompensationFailed)
_OF_ANY_NODE = (DeadLetterClosed, *_COMPENSATIONS)
"""These may speak of a node that a patch has removed since."""
_OF_ANY_VISIT = (ResultDiscarded, DeadLettered, *_OF_ANY_NODE)
_REOPENING = (RunRetried, RunPatched, RunForked)
_BEHIND_THE_END = (ResultDiscarded, RunLabelled, DeadLetterClosed, RollbackStarted, RollbackFinished, *_COMPENSATIONS)

_STATUS: dict[type, str] = {RunCompleted: "COMPLETED", RunFailed: "FAILED", RunCancelled: "CANCELLED"}


class Runs(Section):
    """Reads what is about the run, and looks at every event before anybody else does."""

    def __init__(self, books: Books) -> None:
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
        books.status, books.rendering = _STATUS[type(event)], False
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
