"""The books that the checker keeps of a run: plain values, written down as the events say and nothing else.

They know nothing of the state that a log folds to, and no rule of the kernel is called to fill them, so that a
mistake there is not made here a second time. Every section of the checker reads and writes the same books.
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
"""How a run or a visit may have ended that can go on nevertheless."""


class Violation(msgspec.Struct, frozen=True):
    """A law that a log breaks, and where."""

    law: str
    seq: int
    message: str


class ActivationLedger:
    """What is known of the attempts at one activation."""

    __slots__ = ("count", "cut_off", "failures", "final", "last_error", "open", "token", "tolerated", "wait")

    def __init__(self) -> None:
        self.count = 0
        self.failures = 0
        self.token = 0
        self.open = False
        """An attempt has started and not ended."""
        self.cut_off = False
        """It was cancelled during an attempt, so that nobody knows what that did."""
        self.wait: NodeWaiting | None = None
        """What it waits for now."""
        self.final = ""
        self.tolerated = False
        self.last_error = ""

    def reopen(self) -> None:
        """It may be tried again: attempts and fences go on, the policy's count begins anew."""
        self.failures, self.open, self.cut_off, self.wait = 0, False, False, None
        self.final, self.tolerated, self.last_error = "", False, ""


class Visit:
    """What is known of a node's present visit."""

    __slots__ = (
        "assembled", "by_hand", "dead", "done", "ended", "expanded", "flying", "held", "number", "own", "passes",
        "queued", "ready", "straight", "taken", "tokens", "tolerated",
    )  # fmt: skip

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.ready = False
        self.held = False
        """A limit keeps it from being dispatched."""
        self.ended = ""
        self.tolerated = False
        self.by_hand = False
        """Somebody settled it, whatever its join said."""
        self.straight = False
        """It ended in a way that takes edges no rule names."""
        self.own = False
        """It holds a token that no edge brought: of the run's start, or of its loop's next pass."""
        self.tokens = 0
        self.taken = 0
        self.dead = 0
        """Inbound edges that were decided."""
        self.passes = 0
        self.expanded: NodeExpanded | None = None
        self.assembled = False
        """The list of a map is being put together."""
        self.queued = 0
        self.flying = 0
        self.done = 0
        """Items: before which all were queued or had ended, in flight, ended."""

    @property
    def settled(self) -> bool:
        """Whether a token that arrives now is absorbed."""
        return self.ready or self.own or self.ended != ""

    @property
    def live(self) -> bool:
        """Whether it is QUEUED, RUNNING or WAITING."""
        return self.ready and not self.held and not self.ended

    @property
    def final(self) -> bool:
        """Whether its outcome stays when the run is reopened."""
        return self.tolerated or (self.ended != "" and self.ended not in REOPENABLE)


class Ledger:
    """Everything that is known of the run so far."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.digest = ""
        self.revision = 0
        self.graph_unknown = False
        """The run goes by a graph that nobody knows: nothing more can be said about it."""
        self.violations: list[Violation] = []
        self.seq = 0
        self.status = "NEW"
        self.counter = 0
        self.rendering = False
        self.rollback = "none"
        self.must_reopen = False
        """A run that had ended was changed, which is only allowed together with its going on."""
        self.begins_anew = False
        """The run was just forked: what the other run had given up is tried again before anything else happens."""
        self.visits = 0
        self.acts: dict[Key, ActivationLedger] = defaultdict(ActivationLedger)
        self.at: dict[str, Visit] = defaultdict(Visit)
        self.edges: dict[tuple[str, str], bool] = {}
        self.revived_edges: set[tuple[str, str]] = set()
        """Ways out that died with their loop and whose targets were skipped, before a rewind let the loop go on."""
        self.touched: set[str] = set()
        """Nodes whose joins have to be looked at before the commit is over."""
        self.pending_waits: dict[Key, str] = {}
        """Waits that are over, with the reason; what follows from it stands in the same commit."""

    @property
    def ended(self) -> bool:
        """Whether the run has ended and was not reopened."""
        return self.status in ENDED_RUN

    def node(self, event: NodeEvent) -> Node:
        """The node that an event is about."""
        return self.workflow.by_id[event.node]

    def act(self, event: NodeEvent) -> ActivationLedger:
        """The activation that an event is about."""
        return self.acts[event.node, event.visit, event.index]

    def decide(self, source: str, target: str, taken: bool) -> None:
        """Write down what became of an edge; one that was decided before stays as it was."""
        if (source, target) in self.edges:
            return
        self.edges[source, target] = taken
        visit = self.at[target]
        if taken:
            visit.taken += 1
        else:
            visit.dead += 1
        self.touched.add(target)


class InvariantGroup:
    """A part of the checker: the laws of one matter, over the books that all parts share."""

    def __init__(self, books: Ledger) -> None:
        self.books = books

    def _law(self, law: str, holds: bool, message: str) -> None:
        if not holds:
            self.books.violations.append(Violation(law, self.books.seq, message))


def key_of(event: NodeEvent) -> Key:
    """The activation that an event is about, as the books name it."""
    return event.node, event.visit, event.index


def name_of(key: Key) -> str:
    """An activation as events name it in lists."""
    return "/".join(map(str, key))
