"""The state of the log checker: visits, activations, edges and tokens, recorded exactly as the events say.

The ledger must not import the fold (`evolve`) or any rule of the kernel: an error there would then be repeated here
and stay hidden. All invariant groups read and write the same ledger.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from tidemill.kernel.events import NodeEvent, NodeExpanded, NodeWaiting
from tidemill.kernel.model import Node, Workflow

Key = tuple[str, int, int]
"""(node, visit, index)"""

ENDED_RUN = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
REOPENABLE = frozenset({"FAILED", "CANCELLED"})
"""Final statuses of a run or visit that can be reopened."""


class Violation(msgspec.Struct, frozen=True):
    """An invariant that the log breaks, and the event that breaks it."""

    law: str
    seq: int
    message: str


class ActivationLedger(msgspec.Struct):
    count: int = 0
    failures: int = 0
    token: int = 0
    open: bool = False
    """An attempt has started and not ended."""
    cut_off: bool = False
    """It was cancelled during an attempt, so the outcome of that attempt is unknown."""
    wait: NodeWaiting | None = None
    final: str = ""
    tolerated: bool = False
    last_error: str = ""

    def reopen(self) -> None:
        """Allow another attempt: attempt numbers and fences continue, the retry count starts at 0."""
        self.failures, self.open, self.cut_off, self.wait = 0, False, False, None
        self.final, self.tolerated, self.last_error = "", False, ""


class Visit(msgspec.Struct):
    number: int = 1
    ready: bool = False
    held: bool = False
    """`max_parallel` keeps it from being dispatched."""
    ended: str = ""
    tolerated: bool = False
    by_hand: bool = False
    """An operator settled it, whatever its join said."""
    straight: bool = False
    """It ended in a way that takes its plain edges (those that no rule names)."""
    has_start_token: bool = False
    """It holds a token that no edge brought: the run's start, or its loop's next pass."""
    tokens: int = 0
    taken: int = 0
    dead: int = 0
    """Taken and dead inbound edges."""
    passes: int = 0
    expanded: NodeExpanded | None = None
    assembled: bool = False
    """The job that assembles the results of the map was scheduled."""
    queued: int = 0
    flying: int = 0
    done: int = 0
    """Map items: the index up to which they were queued or had ended; in flight; ended."""

    @property
    def settled(self) -> bool:
        """Whether a token that arrives now is absorbed."""
        return self.ready or self.has_start_token or self.ended != ""

    @property
    def live(self) -> bool:
        return self.ready and not self.held and not self.ended

    @property
    def final(self) -> bool:
        """Whether its outcome stays when the run is reopened."""
        return self.tolerated or (self.ended != "" and self.ended not in REOPENABLE)


class Ledger:
    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.digest = ""
        self.revision = 0
        self.graph_unknown = False
        """The digest of a patch could not be resolved; the checker stops reading."""
        self.violations: list[Violation] = []
        self.seq = 0
        self.status = "NEW"
        self.counter = 0
        self.rendering = False
        self.rollback = "none"
        self.must_reopen = False
        """An ended run was patched or forked, so the same commit must reopen it."""
        self.just_forked = False
        """The run was just forked; what the origin had given up is retried before anything else happens."""
        self.visits = 0
        self.acts: dict[Key, ActivationLedger] = defaultdict(ActivationLedger)
        self.at: dict[str, Visit] = defaultdict(Visit)
        self.edges: dict[tuple[str, str], bool] = {}
        self.revived_edges: set[tuple[str, str]] = set()
        """Exits that died with their loop and whose targets were skipped, before a rewind continued the loop."""
        self.touched: set[str] = set()
        """Nodes whose joins are checked at the end of the commit."""
        self.pending_waits: dict[Key, str] = {}
        """Waits that are over, with the reason; the same commit must contain the consequence."""

    @property
    def ended(self) -> bool:
        """Whether the run has ended and was not reopened."""
        return self.status in ENDED_RUN

    def node(self, event: NodeEvent) -> Node:
        return self.workflow.by_id[event.node]

    def act(self, event: NodeEvent) -> ActivationLedger:
        return self.acts[event.node, event.visit, event.index]

    def decide(self, source: str, target: str, taken: bool) -> None:
        """Record the decision of an edge; the first decision is kept."""
        if (source, target) in self.edges:
            return
        self.edges[source, target] = taken
        self.at[target].taken += taken
        self.at[target].dead += not taken
        self.touched.add(target)


class InvariantGroup:
    """Base of the groups: each checks the invariants of one subject against the shared ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def _move_tokens(self, change: int, counter: int) -> None:
        """Add to the tokens in flight, and compare with the counter of the event."""
        self.ledger.counter += change
        self._check("counter", counter == self.ledger.counter, f"counter {counter} is {self.ledger.counter}")

    def _check(self, invariant: str, holds: bool, message: str) -> None:
        if not holds:
            self.ledger.violations.append(Violation(invariant, self.ledger.seq, message))


def key_of(event: NodeEvent) -> Key:
    return event.node, event.visit, event.index


def name_of(key: Key) -> str:
    """Format an activation as events list it: node/visit/index."""
    return "/".join(map(str, key))
