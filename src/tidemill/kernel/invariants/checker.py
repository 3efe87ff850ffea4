"""LogChecker: verifies the invariants of a run's log without the fold (`evolve`), so an error there cannot hide itself.

The order of the groups in the tables below matters: an attempt's end is checked before the wait it ends, and that
before the tokens it moves. A violation is a bug in Tidemill or damage to the store, never a user's mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.kernel import events as ev
from tidemill.kernel.events import AnyEvent
from tidemill.kernel.invariants.attempts import Approvals, Attempts, Children, Signals, Waits
from tidemill.kernel.invariants.flow import Edges, Runs, Visits
from tidemill.kernel.invariants.ledger import Ledger, Violation
from tidemill.kernel.invariants.operations import DeadLetters, Patches, Reopening, Rollbacks
from tidemill.kernel.model import Workflow

Graphs = Mapping[str, Workflow] | Callable[[str], Workflow | None]
"""Workflows by digest, for runs that were patched."""

Reader = Callable[[Any], None]


class LogChecker:
    """Collects the violations of one run's log; `workflows` resolves the digests of its patches."""

    def __init__(self, workflow: Workflow, workflows: Graphs | None = None) -> None:
        self.ledger = Ledger(workflow)
        self.violations = self.ledger.violations
        self._given: dict[str, Workflow] = {}
        self._workflows = workflows
        ledger = self.ledger
        self.runs, self.attempts, self.edges = Runs(ledger), Attempts(ledger), Edges(ledger)
        self.visits_made, self.dead_letters = Visits(ledger), DeadLetters(ledger)
        self.signals = Signals(ledger)
        self.waits, self.children, self.approvals = Waits(ledger, self.signals), Children(ledger), Approvals(ledger)
        self.reopening, self.patches = Reopening(ledger), Patches(ledger, self._find)
        self.rollbacks = Rollbacks(ledger)
        self._readers = self._table()

    @property
    def workflow(self) -> Workflow:
        return self.ledger.workflow

    @workflow.setter
    def workflow(self, workflow: Workflow) -> None:
        """Make a graph known before the patch that leads to it is read."""
        self._given[workflow.digest] = workflow

    @property
    def seq(self) -> int:
        return self.ledger.seq

    @property
    def status(self) -> str:
        return self.ledger.status

    @property
    def counter(self) -> int:
        return self.ledger.counter

    @property
    def visits(self) -> int:
        return self.ledger.visits

    def take(self, event: AnyEvent) -> None:
        self.ledger.seq += 1
        if not self.ledger.graph_unknown and self.runs.structure(event):
            for read in self._readers.get(type(event), ()):
                read(event)

    def _overridden(self, event: ev.NodeOverridden) -> None:
        """An override ends a visit or item; in a run that has ended it settles what a rollback has left."""
        if self.ledger.ended:
            self.rollbacks.settled(event)
            return
        self.reopening.overridden(event)
        self.waits.ended(event)
        self.approvals.closed(event)
        self.edges.ended(event)
        self.rollbacks.completed(event)

    def finish(self) -> list[Violation]:
        """Check what must hold between commits and return all violations."""
        if not self.ledger.graph_unknown:
            for group in (self.runs, self.edges, self.waits, self.dead_letters):
                group.finish()
        return self.violations

    def _find(self, digest: str) -> Workflow | None:
        known = self._workflows
        found = known(digest) if callable(known) else known.get(digest) if known is not None else None
        return self._given.get(digest) if found is None else found

    def _table(self) -> dict[type, tuple[Reader, ...]]:
        """Which groups read an event type."""
        run_ended = (self.runs.ended, self.signals.ended)
        ended = (self.attempts.ended, self.waits.ended, self.approvals.closed, self.edges.ended)
        return {
            ev.RunCreated: (self.runs.created,),
            ev.RunPaused: (self.runs.paused,),
            ev.RunResumed: (self.runs.resumed,),
            ev.RunCompleted: run_ended,
            ev.RunFailed: run_ended,
            ev.RunCancelled: run_ended,
            ev.ResultDiscarded: (self.runs.discarded,),
            ev.DeadLettered: (self.dead_letters.written,),
            ev.DeadLetterClosed: (self.dead_letters.closed,),
            ev.NodeScheduled: (self.visits_made.scheduled, self.waits.resumed),
            ev.NodeStarted: (self.attempts.started,),
            ev.NodeCheckpointed: (self.attempts.checkpointed,),
            ev.NodeAppended: (self.attempts.appended,),
            ev.NodeExpanded: (self.attempts.left, self.visits_made.expanded),
            ev.NodeWaiting: (self.attempts.left, self.approvals.closed, self.waits.began),
            ev.NodeCompleted: (*ended, self.rollbacks.completed),
            ev.NodeFailed: (*ended, self.rollbacks.failed),
            ev.NodeSkipped: ended,
            ev.NodeCancelled: (*ended, self.rollbacks.cancelled),
            ev.LoopContinued: (self.visits_made.looped,),
            ev.ApprovalRequested: (self.approvals.requested,),
            ev.ApprovalVoted: (self.approvals.voted,),
            ev.ApprovalDelegated: (self.approvals.delegated,),
            ev.ApprovalReturned: (self.approvals.returned,),
            ev.ApprovalDecided: (self.approvals.decided,),
            ev.ApprovalEscalated: (self.approvals.escalated,),
            ev.ApprovalExpired: (self.approvals.expired,),
            ev.SignalReceived: (self.signals.received,),
            ev.ChildStarted: (self.children.started,),
            ev.ChildFinished: (self.children.finished,),
            ev.RunRetried: (self.dead_letters.retried, self.rollbacks.retried, self.reopening.retried),
            ev.RunRewound: (self.reopening.rewound,),
            ev.RunPatched: (self.approvals.patched, self.patches.patched),
            ev.RunForked: (self.runs.forked, self.approvals.forked, self.dead_letters.forked, self.rollbacks.forked),
            ev.NodeOverridden: (self._overridden,),
            ev.RollbackStarted: (self.rollbacks.started,),
            ev.RollbackFinished: (self.rollbacks.finished,),
            ev.CompensationScheduled: (self.rollbacks.scheduled,),
            ev.CompensationCompleted: (self.rollbacks.undone,),
            ev.CompensationFailed: (self.rollbacks.undo_failed,),
        }


def check_log(workflow: Workflow, events: Iterable[AnyEvent], workflows: Graphs | None = None) -> list[Violation]:
    checker = LogChecker(workflow, workflows)
    for event in events:
        checker.take(event)
    return checker.finish()
